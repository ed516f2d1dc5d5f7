"""A world for controllers alone: a metadata store, queued messages, brokers that only answer.

Nothing happens by itself: each test says which calls and requests are delivered, delayed or lost. A
broker here keeps what it was told (epochs, roles) and answers as a real one would; it has no log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.controller import Controller
from logstore.replication.effects import Client, Effect, Peer, Reply, Respond, Send, StoreCall, WatchFired
from logstore.replication.messages import (
    BEING_DELETED,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IsrProposal,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    NewTopic,
    PartitionState,
    RequestBody,
    ResponseBody,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    StoreError,
)
from logstore.replication.state_change import StateChange

SESSION_TIMEOUT_MS = 6_000


def _hear(changes: list[StateChange], change: StateChange) -> None:
    assert change.reason, f"no reason: {change}"
    changes.append(change)


@dataclass
class ScriptedBroker:
    """The roles and metadata that a broker received, fenced by the same epochs as in a real one."""

    broker_id: int
    epoch: int = -1
    controller_epoch: int = 0
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    metadata: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    live: tuple[int, ...] = ()
    shutting_down: tuple[int, ...] = ()
    received: list[RequestBody] = field(default_factory=list)
    failing: set[TopicPartition] = field(default_factory=set)
    """partitions whose log dir is broken"""
    deleted: dict[TopicPartition, tuple[str, float]] = field(default_factory=dict)
    """by order: the topic id, and up to which leader epoch a role comes too late"""

    def serve(self, body: RequestBody) -> ResponseBody:
        assert isinstance(body, LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest)
        if body.broker_epoch < self.epoch:
            return _refusal(body, ErrorCode.STALE_BROKER_EPOCH)
        if body.controller_epoch < self.controller_epoch:
            return _refusal(body, ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = body.controller_epoch
        self.received.append(body)
        if isinstance(body, UpdateMetadataRequest):
            self.live = tuple(broker.broker_id for broker in body.live_brokers)
            self.shutting_down = body.shutting_down
            self.metadata.update(body.partitions)
            return UpdateMetadataResponse(ErrorCode.NONE)
        if isinstance(body, StopReplicaRequest):
            codes = {}
            for each, order in body.partitions.items():
                known = self.states.get(each)
                is_old = known is not None and 0 <= order.leader_epoch < known.leader_epoch
                codes[each] = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.NONE
                if each in self.failing:
                    codes[each] = ErrorCode.KAFKA_STORAGE_ERROR
                elif order.delete and not is_old:
                    self.states.pop(each, None)
                    until = math.inf if order.leader_epoch == BEING_DELETED else order.leader_epoch
                    self.deleted[each] = body.topic_ids.get(each.topic, ""), until
            return StopReplicaResponse(ErrorCode.NONE, codes)
        errors = {}
        for each, state in body.partitions.items():
            if each in self.failing:
                errors[each] = ErrorCode.KAFKA_STORAGE_ERROR
            elif self._is_old(each, body.topic_ids.get(each.topic, ""), state):
                errors[each] = ErrorCode.STALE_CONTROLLER_EPOCH
            else:
                errors[each] = ErrorCode.NONE
                self.deleted.pop(each, None)
                known = self.states.get(each)
                if known is None or version_of(state) > version_of(known):
                    self.states[each] = state
        return LeaderAndIsrResponse(ErrorCode.NONE, errors)

    def _is_old(self, topic_partition: TopicPartition, topic_id: str, state: PartitionState) -> bool:
        known = self.states.get(topic_partition)
        if known is not None:
            return version_of(state) < version_of(known)
        deleted_id, until = self.deleted.get(topic_partition, ("", -1))
        return bool(topic_id) and deleted_id == topic_id and state.leader_epoch < until


def version_of(state: PartitionState) -> tuple[int, int]:
    """Return the epochs that tell a new state from a repeated one."""
    return state.leader_epoch, state.partition_epoch


def _refusal(
    body: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest, error: ErrorCode
) -> ResponseBody:
    if isinstance(body, LeaderAndIsrRequest):
        return LeaderAndIsrResponse(error)
    if isinstance(body, UpdateMetadataRequest):
        return UpdateMetadataResponse(error)
    return StopReplicaResponse(error)


@dataclass
class Member:
    """One broker process: its session, its controller, what travels to and from it."""

    broker: ScriptedBroker
    controller: Controller
    session_id: int = 0
    running: bool = True
    paused: bool = False
    """the process stands still: it neither reads, nor writes, nor keeps its session alive"""
    inbox: list[WatchFired | tuple[int, Outcome]] = field(default_factory=list)
    """what the store sends this session, in order"""
    store_calls: list[StoreCall] = field(default_factory=list)
    requests: list[Send] = field(default_factory=list)


class World:
    """Brokers 1..n, each with a possible controller, over one store. Time moves by `run`."""

    def __init__(self, brokers: int, *, seed: int = 0, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig(
            request_timeout_ms=1_000,
            retry_backoff_ms=100,
            auto_leader_rebalance_enable=False,
            # Every write is a store call of its own, before which a test may stop a controller.
            partitions_per_transaction=1,
        )
        self.store = MemoryStore()
        self.now_ms = 0
        self.racks: dict[int, str] = {}
        """where brokers stand that start from now on"""
        self.members: dict[int, Member] = {}
        self.replies: dict[object, ResponseBody | None] = {}
        self.responses: dict[int, ResponseBody] = {}
        self.history: list[tuple[int, StoreCall, Outcome]] = []
        """every store call that was applied: by whom, what, how it ended"""
        self.changes: list[StateChange] = []
        """the state-change log of all controllers"""
        self.on_delivery: Callable[[int, Mapping[TopicPartition, PartitionState], list[RequestBody]], None]
        self.on_delivery = lambda broker_id, before, received: None
        """called after a controller's request: to whom, what it was told before, what it took in now"""
        self._random = random.Random(seed)
        self._ids = count(1)
        self._admin = self.store.open_session(10**9, 0)
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)
            self.run()

    # --- processes ----------------------------------------------------------------------------

    def start(self, broker_id: int, *, clean: bool = True, damaged: tuple[TopicPartition, ...] = ()) -> None:
        """Start a broker's process; if one was there, it is gone (its session may linger)."""
        controller = Controller(
            broker_id,
            self.config,
            random=random.Random(self._random.randrange(2**32)),
            next_id=lambda: next(self._ids),
            state_changes=partial(_hear, self.changes),
        )
        self.members[broker_id] = Member(ScriptedBroker(broker_id), controller)
        self.register(broker_id, clean=clean, damaged=damaged)

    def register(
        self, broker_id: int, *, clean: bool = True, damaged: tuple[TopicPartition, ...] = ()
    ) -> None:
        """Open a session, replace an old registration of ours, compete."""
        member = self.members[broker_id]
        member.session_id = self.store.open_session(SESSION_TIMEOUT_MS, self.now_ms)
        member.inbox.clear()
        member.store_calls.clear()
        path = layout.broker_path(broker_id)
        old = self.admin(Get(path)).stat
        if old is not None:
            self._deliver(self.store.close_session(old.ephemeral_owner))
        data = layout.encode_broker(
            layout.BrokerRegistration(
                f"host{broker_id}",
                9092,
                clean=clean,
                rack=self.racks.get(broker_id, ""),
                damaged=damaged,
            )
        )
        outcome, fired = self.store.call(
            member.session_id, Create(path, data, ephemeral=True, make_parents=True), self.now_ms
        )
        assert outcome.stat is not None
        self._deliver(fired)
        member.running = True
        member.broker.epoch = outcome.stat.created_txid
        self.perform(
            member,
            member.controller.on_session(member.session_id, outcome.stat.created_txid, self.now_ms),
        )

    def kill(self, broker_id: int) -> None:
        """Kill the process; the store notices when the session times out."""
        member = self.members[broker_id]
        member.running = False
        member.inbox.clear()
        member.store_calls.clear()
        member.requests.clear()

    def expire(self, broker_id: int) -> None:
        """Expire the broker's session now; the process does not know."""
        self._deliver(self.store.close_session(self.members[broker_id].session_id))

    def stop(self, broker_id: int) -> None:
        """Kill the process and expire its session at once."""
        self.kill(broker_id)
        self.expire(broker_id)

    # --- the network --------------------------------------------------------------------------

    def perform(self, member: Member, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StoreCall():
                    member.store_calls.append(effect)
                case Send():
                    member.requests.append(effect)
                case Respond(_, correlation_id, body):
                    self.responses.setdefault(correlation_id, body)  # whoever asked takes the first
                case Reply(token, body):
                    self.replies[token] = body
                case _:
                    raise AssertionError(f"a controller has no business with {effect}")

    def _deliver(self, fired: list[WatchFired]) -> None:
        for watch in fired:
            for member in self.members.values():
                if member.running and member.session_id == watch.session_id:
                    member.inbox.append(watch)

    def apply_call(self, broker_id: int, *, lose_reply: bool = False, lose_call: bool = False) -> StoreCall:
        """The store takes the member's oldest call; the answer waits in its inbox."""
        member = self.members[broker_id]
        call = member.store_calls.pop(0)
        outcome = Outcome(StoreError.CONNECTION_LOSS)
        if not lose_call:
            outcome, fired = self.store.call(call.session_id, call.operation, self.now_ms)
            self.history.append((broker_id, call, outcome))
            self._deliver(fired)
            if lose_reply and outcome.error is not StoreError.SESSION_EXPIRED:
                outcome = Outcome(StoreError.CONNECTION_LOSS)
        member.inbox.append((call.call_id, outcome))
        return call

    def read_inbox(self, broker_id: int) -> None:
        """The member takes the oldest thing the store sent."""
        member = self.members[broker_id]
        item = member.inbox.pop(0)
        if isinstance(item, WatchFired):
            effects = member.controller.on_watch(item.path, item.kind, self.now_ms)
        else:
            effects = member.controller.on_store_reply(*item, self.now_ms)
        self.perform(member, effects)

    def send_request(self, broker_id: int, *, lose: bool = False, lose_answer: bool = False) -> Send:
        """The oldest request of this controller reaches its broker (if that runs) and is answered."""
        member = self.members[broker_id]
        send = member.requests.pop(0)
        target = self.members[send.target]
        before, seen = dict(target.broker.states), len(target.broker.received)
        if lose or not target.running:
            effects = member.controller.on_disconnected(send.target, send.correlation_id, self.now_ms)
        else:
            answer = target.broker.serve(send.body)
            if lose_answer:
                effects = member.controller.on_disconnected(send.target, send.correlation_id, self.now_ms)
            else:
                effects = member.controller.on_response(send.target, send.correlation_id, answer, self.now_ms)
        self.perform(member, effects)
        self.on_delivery(send.target, before, target.broker.received[seen:])
        return send

    def run(self, *, until: Callable[[], bool] | None = None, for_ms: int = 2_000) -> None:
        """Deliver everything that can be delivered, then move time, for a while or until a condition."""
        end_ms = self.now_ms + for_ms
        for _ in range(100_000):
            if until is not None and until():
                return
            if self._one_step():
                continue
            if self.now_ms >= end_ms:
                assert until is None, "the condition did not come true"
                return
            deadlines = [
                deadline
                for member in self.members.values()
                if member.running
                and not member.paused
                and (deadline := member.controller.deadline_ms) is not None
            ]
            self.now_ms = min([end_ms, *(max(deadline, self.now_ms + 1) for deadline in deadlines)])
            self.pass_time()
        raise AssertionError("the world does not come to rest")

    def pass_time(self, by_ms: int = 0) -> None:
        """Heartbeats, expiries and ticks of this moment, or of a later one."""
        self.now_ms += by_ms
        awake = [member for member in self.members.values() if member.running and not member.paused]
        for member in awake:
            self.store.heartbeat(member.session_id, self.now_ms)
        self._deliver(self.store.tick(self.now_ms)[1])
        for member in awake:
            self.perform(member, member.controller.tick(self.now_ms))

    def _one_step(self) -> bool:
        for broker_id, member in self.members.items():
            if not member.running or member.paused:
                continue
            if member.inbox:
                self.read_inbox(broker_id)
            elif member.store_calls:
                self.apply_call(broker_id)
            elif member.requests:
                self.send_request(broker_id)
            else:
                continue
            return True
        return False

    # --- asking -------------------------------------------------------------------------------

    def admin(self, operation: Operation) -> Outcome:
        outcome, fired = self.store.call(self._admin, operation, self.now_ms)
        self._deliver(fired)
        return outcome

    @property
    def active(self) -> Member:
        (member,) = [each for each in self.members.values() if each.running and each.controller.is_active]
        return member

    @property
    def controller_id(self) -> int:
        return self.active.broker.broker_id

    def state(self, partition: int = 0, topic: str = "t") -> layout.LeaderAndIsr | None:
        read = self.admin(Get(layout.partition_state_path(TopicPartition(topic, partition))))
        return layout.parse_state(read.data) if read.stat else None

    def view(self, partition: int = 0, topic: str = "t") -> tuple[int, int, tuple[int, ...]]:
        """(leader, leader epoch, ISR) as persisted."""
        state = self.state(partition, topic)
        assert state is not None
        return state.leader, state.leader_epoch, state.isr

    def version(self, partition: int = 0, topic: str = "t") -> int:
        stat = self.admin(Get(layout.partition_state_path(TopicPartition(topic, partition)))).stat
        assert stat is not None
        return stat.version

    def controller_epoch(self) -> int:
        return layout.parse_controller_epoch(self.admin(Get(layout.CONTROLLER_EPOCH_PATH)).data)

    def overwrite(self, path: str, data: bytes) -> None:
        """Write a node unconditionally, as a tool does."""
        is_there = self.admin(Get(path)).stat is not None
        self.admin(Set(path, data, -1) if is_there else Create(path, data, make_parents=True))

    def create(self, *topics: NewTopic, via: int | None = None) -> CreateTopicsResponse:
        body = self.ask(CreateTopicsRequest(topics), via)
        assert isinstance(body, CreateTopicsResponse)
        return body

    def create_by_tool(self, topic: NewTopic) -> None:
        """Write a topic's node, as a tool does: its replicas may be on brokers that are not registered."""
        assignment = layout.TopicAssignment(f"id of {topic.name}", dict(enumerate(topic.assignment)))
        self.overwrite(layout.topic_path(topic.name), layout.encode_topic(assignment))
        self.run()

    def ask(self, request: RequestBody, via: int | None = None) -> ResponseBody | None:
        """Send a client's request to a controller (default: the active one) and return its answer."""
        token = self.post(request, None if via is None else self.members[via])
        self.run(until=lambda: token in self.replies)
        self.run()
        return self.replies[token]

    def alter(
        self,
        sender: int,
        isr: tuple[int, ...],
        partition: int = 0,
        *,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        via: int | None = None,
        broker_epoch: int | None = None,
        broker_epochs: tuple[int, ...] = (),
    ) -> AlterPartitionResponse:
        """The leader asks for another ISR, on top of what is persisted unless said otherwise."""
        correlation_id = next(self._ids)
        state = self.state(partition)
        assert state is not None
        proposal = IsrProposal(
            state.leader_epoch if leader_epoch is None else leader_epoch,
            self.version(partition) if partition_epoch is None else partition_epoch,
            isr,
            broker_epochs,
        )
        epoch = self.members[sender].broker.epoch if broker_epoch is None else broker_epoch
        request = AlterPartitionRequest(sender, epoch, {TopicPartition("t", partition): proposal})
        member = self.members[via if via is not None else self.controller_id]
        self.perform(member, member.controller.on_request(Peer(sender, correlation_id), request, self.now_ms))
        self.run(until=lambda: correlation_id in self.responses)
        self.run()
        body = self.responses[correlation_id]
        assert isinstance(body, AlterPartitionResponse)
        return body

    def post(self, body: RequestBody, member: Member | None = None) -> object:
        """Send a client's request, to the active controller if not said otherwise; its answer goes to
        `replies`, by this token."""
        token = object()
        member = member or self.active
        self.perform(member, member.controller.on_request(Client(token), body, self.now_ms))
        return token

    def elect(
        self, *partitions: TopicPartition, election_type: ElectionType = ElectionType.PREFERRED
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask for elections; without partitions, for all."""
        body = self.ask(ElectLeadersRequest(election_type, partitions or None))
        assert isinstance(body, ElectLeadersResponse)
        assert body.error is ErrorCode.NONE
        return {each: result.error for each, result in body.partitions.items()}

    def shut_down(self, broker_id: int, *, broker_epoch: int | None = None) -> ControlledShutdownResponse:
        """Request the broker's controlled shutdown; its process runs on."""
        epoch = self.members[broker_id].broker.epoch if broker_epoch is None else broker_epoch
        body = self.ask(ControlledShutdownRequest(broker_id, epoch))
        assert isinstance(body, ControlledShutdownResponse)
        return body

    def partitions(self) -> list[TopicPartition]:
        found = []
        for topic in self.admin(Children(layout.TOPICS_PATH)).children:
            node = layout.parse_topic(self.admin(Get(layout.topic_path(topic))).data)
            found += [TopicPartition(topic, partition) for partition in node.partitions]
        return found


def topic(*replicas: tuple[int, ...], name: str = "t", **configs: str) -> NewTopic:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return NewTopic(name, assignment=replicas, configs=settings)


def writes_of(operation: Operation) -> tuple[Operation, ...]:
    """The writes in an operation, a Multi's one by one."""
    if isinstance(operation, Multi):
        return operation.writes
    return () if isinstance(operation, Get | Children) else (operation,)


def state_writes(world: World, *, since: int = 0) -> list[tuple[int, TopicPartition, layout.LeaderAndIsr]]:
    """Every partition state that was really written, in order, with the version it got."""
    written = []
    for _, call, outcome in world.history[since:]:
        if outcome.error is not None:
            continue
        for write in writes_of(call.operation):
            if isinstance(write, Create | Set) and is_state(write):
                written.append(state_of(write))
    return written


def state_reads(world: World, *, since: int = 0) -> int:
    """Return how often a partition state was read."""
    reads = (call.operation for _, call, _ in world.history[since:])
    return sum(isinstance(each, Get) and each.path.endswith("/state") for each in reads)


def is_state(write: Operation) -> bool:
    """Return whether the operation writes a partition's state node."""
    return isinstance(write, Create | Set | Delete) and write.path.endswith("/state")


def is_topic(write: Operation) -> bool:
    """Return whether the operation writes a topic's node."""
    return (
        isinstance(write, Create | Set | Delete)
        and write.path.count("/") == 3
        and write.path.startswith(f"{layout.TOPICS_PATH}/")
    )


def state_of(write: Create | Set) -> tuple[int, TopicPartition, layout.LeaderAndIsr]:
    """The state that is written, with the version it gets."""
    version = write.version + 1 if isinstance(write, Set) else 0
    return version, partition_of(write.path), layout.parse_state(write.data)


def partition_of(path: str) -> TopicPartition:
    """Return the partition of a state node."""
    *_, name, _, partition, _ = path.split("/")
    return TopicPartition(name, int(partition))
