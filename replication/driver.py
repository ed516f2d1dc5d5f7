"""Several nodes in one process: carries their effects out, one message at a time, in order.

    nodes ──effects──▶ queue (first in, first out) ──events──▶ nodes
                         │ `intercept` may hold, drop or double any of it
    clock ── set by the caller, or jumping to the next deadline while the queue is empty
    store ── answers at once; its replies and watches travel through the queue like all else

For a program that embeds its replicas, for transcripts of failure schedules, and for the demo. There
are no threads here and nobody waits: with a virtual clock (`run_until`, `advance`) a test of minutes
takes milliseconds; with a real one the caller passes the time to `poll` and sleeps until the deadline
it returns.

A killed node is dropped as it stands: its logs are not closed, nobody is told but those who wait for an
answer of its, and its store session lives on until its timeout. With a power cut its disk loses what
was not synced as well.
"""

from __future__ import annotations

import random as random_module
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.log.manager import LogManager
from logstore.replication.config import NodeConfig
from logstore.replication.effects import (
    ClientRequest,
    CloseSession,
    Disconnected,
    Effect,
    Event,
    Halt,
    OpenSession,
    Reply,
    Request,
    Respond,
    Response,
    Send,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreReply,
    Sync,
    SyncDone,
    WatchFired,
)
from logstore.replication.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchPartition,
    FetchRequest,
    NewTopic,
    ProduceRequest,
    RequestBody,
    ResponseBody,
)
from logstore.replication.metastore.memory import MemoryStore, MetadataStore
from logstore.replication.metastore.operations import Outcome, StoreError
from logstore.replication.node import Node
from logstore.replication.state_change import Sink, unheard

LOG_DIR = "data"
_LONGEST_DEPARTURE_MS = 3_600_000
"""Attempts and pauses end long before: a bound for a node that would never be ready."""


class PowerCut(Protocol):
    """A disk that can lose its power (`logstore/testing/disks/`): what is left of it comes back."""

    def power_cut(self, random: random_module.Random) -> Disk: ...


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """One event on its way; `source` is None for the store, the disk and clients.

    `life` is the life of the target it was meant for: connections do not outlive a process.
    """

    source: int | None
    target: int
    event: Event
    life: int

    def __str__(self) -> str:
        body = getattr(self.event, "body", self.event)
        return f"{'·' if self.source is None else self.source} → {self.target}  {type(body).__name__}"


@dataclass(slots=True, eq=False)
class PendingReply:
    """What a client waits for. `body` is None while it waits, after acks=0, and when it was cut off."""

    node_id: int
    body: ResponseBody | None = None
    is_done: bool = False
    is_disconnected: bool = False


@dataclass(slots=True)
class _Slot:
    """One node's place: what stays when the process dies."""

    config: NodeConfig
    disk: Disk
    log_dirs: tuple[str, ...]
    life: int = 0
    node: Node | None = None
    session_id: int | None = None
    outstanding: dict[int, int] = field(default_factory=dict)  # our requests: correlation id -> target


class InProcessCluster:
    """Nodes, their disks, one metadata store, one queue, one clock."""

    def __init__(
        self,
        configs: Iterable[NodeConfig],
        *,
        disk_of: Callable[[int], Disk],
        seed: int = 0,
        now_ms: int = 1_000_000_000_000,
        log_config: LogConfig | None = None,
        log_dirs_of: Callable[[int], tuple[str, ...]] = lambda node_id: (LOG_DIR,),
        store: MetadataStore | None = None,
        state_changes: Sink = unheard,
    ) -> None:
        """No node runs yet: see `start_node`. Sessions of `store` are kept alive by this driver.

        `state_changes` hears of every decision about a partition, of all nodes in their order.
        """
        self._state_changes = state_changes
        self.now_ms = now_ms
        self.store: MetadataStore = store if store is not None else MemoryStore()
        self.queue: deque[Envelope] = deque()
        self.held: list[Envelope] = []
        self.intercept: Callable[[Envelope], bool] = lambda envelope: False
        """Asked about each message as it is sent; True puts it aside into `held`."""
        self.halted: dict[int, str] = {}
        """Nodes that ended themselves because no log dir was left, and why; until they are started again."""
        self._random = random_module.Random(seed)
        self._log_config = log_config if log_config is not None else LogConfig()
        self._slots = {
            config.node_id: _Slot(config, disk_of(config.node_id), log_dirs_of(config.node_id))
            for config in configs
        }
        self._cut_links: set[frozenset[int]] = set()
        self._cut_from_store: set[int] = set()
        self._late_watches: list[tuple[int, WatchFired]] = []
        self._clients: dict[int, PendingReply] = {}
        self._next_token = 0

    # --- nodes --------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The running ones."""
        return {node_id: slot.node for node_id, slot in self._slots.items() if slot.node is not None}

    def disk(self, node_id: int) -> Disk:
        """The node's disk; another one after each power cut."""
        return self._slots[node_id].disk

    def replace_disk(self, node_id: int, disk: Disk) -> None:
        """Put another disk into the machine of a node that does not run."""
        assert self._slots[node_id].node is None, f"node {node_id} is running"
        self._slots[node_id].disk = disk

    def start_node(self, node_id: int) -> Node:
        """Open the node's logs (recovering them if need be) and let it join."""
        slot = self._slots[node_id]
        assert slot.node is None, f"node {node_id} is running"
        logs = LogManager(
            slot.log_dirs,
            disk=slot.disk,
            clock=lambda: self.now_ms,
            random=random_module.Random(self._random.getrandbits(64)),
            config=self._log_config,
        )
        slot.life += 1
        self.halted.pop(node_id, None)
        slot.node = Node(
            slot.config,
            logs,
            random=random_module.Random(self._random.getrandbits(64)),
            log_config=self._log_config,
            state_changes=self._state_changes,
        )
        self._carry_out(node_id, slot.node.start(self.now_ms))
        return slot.node

    def start(self) -> None:
        """Start every node that is not running."""
        for node_id, slot in self._slots.items():
            if slot.node is None:
                self.start_node(node_id)

    def kill_node(
        self, node_id: int, *, power_cut: random_module.Random | None = None, expire_session: bool = False
    ) -> None:
        """End a node's process, with `power_cut` its machine: what was not synced may be gone.

        `power_cut` draws what survives. `expire_session` lets the store know at once instead of
        after the session's timeout.
        """
        slot = self._slots[node_id]
        assert slot.node is not None, f"node {node_id} is not running"
        logs, slot.node = slot.node.logs, None
        slot.outstanding.clear()
        if power_cut is not None:
            disk: PowerCut = slot.disk  # type: ignore[assignment]  # an AttributeError says so otherwise
            slot.disk = disk.power_cut(power_cut)
        logs.abandon()
        session_id, slot.session_id = slot.session_id, None
        if expire_session and session_id is not None:
            self._fire(self.store.close_session(session_id))
        self._break_off(node_id)

    def _break_off(self, node_id: int) -> None:
        """The process is gone: whoever waits for an answer of its hears that its connection broke."""
        for other_id, other in self._slots.items():
            for correlation_id, target in list(other.outstanding.items()):
                if target == node_id:
                    self._disconnect(other_id, node_id, correlation_id)
        for reply in self._clients.values():
            if reply.node_id == node_id:
                reply.is_done = reply.is_disconnected = True
        self._clients = {token: reply for token, reply in self._clients.items() if not reply.is_done}

    def begin_shutdown(self, node_id: int) -> None:
        """Let a node ask the controller to move what it leads; it runs on until `stop_node`.

        With a real clock: `poll` until `nodes[node_id].is_ready_to_stop`, then `stop_node`.
        """
        slot = self._slots[node_id]
        assert slot.node is not None, f"node {node_id} is not running"
        self._carry_out(node_id, slot.node.begin_shutdown(self.now_ms))

    def stop_node(self, node_id: int, *, controlled: bool = False) -> None:
        """Stop a node in order: its roles end, its logs are closed, its session ends.

        They get the mark of a clean stop, unless the node cannot vouch for what its start found. With
        `controlled` its leaderships are moved first, which takes messages and, should the controller not
        answer, virtual time (`begin_shutdown` is for those who have a real clock).
        """
        slot = self._slots[node_id]
        node = slot.node
        assert node is not None, f"node {node_id} is not running"
        if controlled:
            self.begin_shutdown(node_id)
            self.run_until(lambda: node.is_ready_to_stop, _LONGEST_DEPARTURE_MS)
        self._carry_out(node_id, node.stop(self.now_ms))
        node.logs.close(mark_clean=node.is_clean)
        self._carry_out(node_id, node.leave(self.now_ms))
        slot.node, slot.session_id = None, None
        slot.outstanding.clear()
        self._break_off(node_id)

    def close(self) -> None:
        """Stop every node."""
        for node_id in list(self.nodes):
            self.stop_node(node_id)

    # --- the network --------------------------------------------------------------------------

    def isolate(self, node_id: int) -> None:
        """Cut a node from all others and from the store; clients still reach it."""
        self._cut_links |= {frozenset((node_id, other)) for other in self._slots if other != node_id}
        self._cut_from_store.add(node_id)

    def heal(self) -> None:
        """Mend every cut. Who lost its session meanwhile learns it now."""
        self._cut_links.clear()
        for node_id in sorted(self._cut_from_store):
            session_id = self._slots[node_id].session_id
            if session_id is not None and not self.store.heartbeat(session_id, self.now_ms):
                self._expire(node_id)
        self._cut_from_store.clear()
        late, self._late_watches = self._late_watches, []
        for node_id, watch in late:
            if self._slots[node_id].session_id == watch.session_id:
                self._post(None, node_id, watch)

    def release(self, envelope: Envelope) -> None:
        """Put a held message back, at the end of the queue."""
        self.held.remove(envelope)
        self.queue.append(envelope)

    def release_all(self) -> None:
        """Put every held message back, in the order they were sent."""
        self.queue.extend(self.held)
        self.held.clear()

    def _post(self, source: int | None, target: int, event: Event) -> None:
        envelope = Envelope(source, target, event, self._slots[target].life)
        if self.intercept(envelope):
            self.held.append(envelope)
        else:
            self.queue.append(envelope)

    def _disconnect(self, node_id: int, peer: int, correlation_id: int) -> None:
        self._slots[node_id].outstanding.pop(correlation_id, None)
        self._post(None, node_id, Disconnected(peer, correlation_id))

    def deliver(self, envelope: Envelope) -> None:
        """Hand one message to its target now, wherever it comes from."""
        slot = self._slots.get(envelope.target)
        event = envelope.event
        node = slot.node if slot is not None and slot.life == envelope.life else None
        if isinstance(event, Request) and envelope.source is not None:
            if frozenset((envelope.source, envelope.target)) in self._cut_links:
                return
            if node is None:
                self._disconnect(envelope.source, envelope.target, event.correlation_id)
                return
        if slot is None or node is None:
            if isinstance(event, ClientRequest):
                self._answer_client(event.token, None, is_disconnected=True)
            return
        if isinstance(event, Response):
            if frozenset((event.source, envelope.target)) in self._cut_links:
                return
            slot.outstanding.pop(event.correlation_id, None)
        if isinstance(event, SessionOpened):
            slot.session_id = event.session_id
        self._carry_out(envelope.target, node.receive(event, self.now_ms))

    # --- effects ------------------------------------------------------------------------------

    def _carry_out(self, node_id: int, effects: Iterable[Effect]) -> None:
        slot = self._slots[node_id]
        for effect in effects:
            match effect:
                case Send(target, correlation_id, body):
                    slot.outstanding[correlation_id] = target
                    if target in self._slots:
                        self._post(node_id, target, Request(node_id, correlation_id, body))
                    else:
                        self._disconnect(node_id, target, correlation_id)
                case Respond(target, correlation_id, body):
                    self._post(node_id, target, Response(node_id, correlation_id, body))
                case Reply(token, body, close):
                    assert isinstance(token, int), "tokens are given out here"
                    self._answer_client(token, body, is_disconnected=close)
                case OpenSession(timeout_ms):
                    session_id = self.store.open_session(timeout_ms, self.now_ms)
                    slot.session_id = session_id
                    self._post(None, node_id, SessionOpened(session_id))
                case CloseSession(session_id):
                    self._fire(self.store.close_session(session_id))
                case StoreCall():
                    self._call_store(node_id, effect)
                case Sync():
                    self._post(None, node_id, self._flush(slot, effect))
                case Halt(reason):
                    self.halted[node_id] = reason
                    self.kill_node(node_id)

    def _call_store(self, node_id: int, call: StoreCall) -> None:
        if node_id in self._cut_from_store:
            lost = Outcome(StoreError.CONNECTION_LOSS)
            self._post(None, node_id, StoreReply(call.call_id, lost))
            return
        outcome, fired = self.store.call(call.session_id, call.operation, self.now_ms)
        self._fire(fired)
        self._post(None, node_id, StoreReply(call.call_id, outcome))

    def _flush(self, slot: _Slot, effect: Sync) -> SyncDone:
        assert slot.node is not None, "effects come from a running node"
        try:
            log = slot.node.logs.get(effect.topic_partition)
            if log is not None:
                log.flush()
        except (LogDirOffline, OSError) as error:
            return SyncDone(effect.topic_partition, effect.end_offset, str(error))
        return SyncDone(effect.topic_partition, effect.end_offset)

    def _fire(self, watches: Iterable[WatchFired]) -> None:
        owners = {slot.session_id: node_id for node_id, slot in self._slots.items() if slot.node is not None}
        for watch in watches:
            owner = owners.get(watch.session_id)
            if owner is None:
                continue
            if owner in self._cut_from_store:
                self._late_watches.append((owner, watch))  # a session that survives misses none
            else:
                self._post(None, owner, watch)

    def _expire(self, node_id: int) -> None:
        session_id, self._slots[node_id].session_id = self._slots[node_id].session_id, None
        if session_id is not None:
            self._post(None, node_id, SessionExpired(session_id))

    def _answer_client(self, token: object, body: ResponseBody | None, *, is_disconnected: bool) -> None:
        assert isinstance(token, int), "tokens are given out here"
        reply = self._clients.pop(token, None)
        if reply is not None:
            reply.body, reply.is_done, reply.is_disconnected = body, True, is_disconnected

    # --- time ---------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When something will happen by itself; None if never."""
        deadlines = [node.deadline_ms for node in self.nodes.values()]
        deadlines.append(self.store.deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def step(self) -> bool:
        """Deliver the next message; False if there is none."""
        if not self.queue:
            return False
        self.deliver(self.queue.popleft())
        return True

    def settle(self, *, limit: int = 1_000_000) -> None:
        """Deliver everything, while the clock stands still."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"{limit} messages and no end: two nodes answer each other for ever")

    def poll(self, now_ms: int) -> int | None:
        """Bring the cluster up to `now_ms`; when it wants to be called again (None: no need)."""
        self._set_clock(now_ms)
        self.settle()
        return self.deadline_ms

    def _set_clock(self, now_ms: int) -> None:
        assert now_ms >= self.now_ms, "the clock of a cluster does not go back"
        self.now_ms = now_ms
        for node_id, slot in self._slots.items():
            if slot.session_id is not None and slot.node is not None and node_id not in self._cut_from_store:
                self.store.heartbeat(slot.session_id, now_ms)
        expired, fired = self.store.tick(now_ms)
        for node_id, slot in self._slots.items():
            if slot.session_id in expired and slot.node is not None and node_id not in self._cut_from_store:
                self._expire(node_id)
        self._fire(fired)
        for node_id, node in self.nodes.items():
            deadline_ms = node.deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._carry_out(node_id, node.tick(now_ms))

    def run_until(self, predicate: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Run until `predicate` holds; False if it does not within `limit_ms` of virtual time."""
        end_ms = self.now_ms + limit_ms
        while not predicate():
            if self.step():
                continue
            deadline_ms = self.deadline_ms
            if self.now_ms >= end_ms:
                return False
            # A deadline that has passed was ticked; whoever still names it gets the next millisecond.
            following_ms = end_ms if deadline_ms is None else max(deadline_ms, self.now_ms + 1)
            self._set_clock(min(following_ms, end_ms))
        return True

    def advance(self, duration_ms: int) -> None:
        """Let time pass, everything that falls due included."""
        self.run_until(lambda: False, duration_ms)
        self.settle()

    # --- clients ------------------------------------------------------------------------------

    def client(self, request: RequestBody, node_id: int) -> PendingReply:
        """Send a client's request to a node; the reply fills in as the cluster runs."""
        self._next_token += 1
        token = self._next_token
        reply = self._clients[token] = PendingReply(node_id)
        self._post(None, node_id, ClientRequest(token, request))
        return reply

    def call(self, request: RequestBody, node_id: int, *, limit_ms: int = 60_000) -> ResponseBody | None:
        """Send a client's request and run until it is answered; None if it was not."""
        reply = self.client(request, node_id)
        self.run_until(lambda: reply.is_done, limit_ms)
        return reply.body

    def produce(
        self, topic_partition: TopicPartition, records: bytes, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> PendingReply:
        """Send a ready batch to whoever leads as far as is known, or else to any node (which will refuse)."""
        leader = self.leader_of(topic_partition)
        if leader is None:
            leader = next(iter(self.nodes), next(iter(self._slots)))
        return self.client(ProduceRequest({topic_partition: records}, acks, timeout_ms), leader)

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        node_id: int | None = None,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 0,
    ) -> PendingReply:
        """Read as a consumer, from `node_id` or whoever leads."""
        if node_id is None:
            node_id = self.leader_of(topic_partition)
        if node_id is None:
            node_id = next(iter(self.nodes), next(iter(self._slots)))
        wanted = FetchPartition(offset, max_bytes)
        return self.client(FetchRequest(-1, max_wait_ms, 1, max_bytes, {topic_partition: wanted}), node_id)

    def create_topic(self, topic: NewTopic, *, timeout_ms: int = 60_000) -> CreateTopicsResponse:
        """Create a topic and wait until each of its partitions has a leader that knows it.

        Raises `TimeoutError` if that does not happen in time, `ValueError` if the topic is refused.
        """
        body = self.administer(CreateTopicsRequest((topic,)), timeout_ms=timeout_ms)
        if not isinstance(body, CreateTopicsResponse):
            raise TimeoutError(f"the controller did not answer about {topic.name}")
        result = body.topics[topic.name]
        if result.error:
            raise ValueError(f"{topic.name} was refused: {result.error.name} {result.message}")
        count = len(topic.assignment) or topic.partitions
        partitions = [TopicPartition(topic.name, number) for number in range(count)]
        if not self.run_until(
            lambda: all(self.leader_of(known) is not None for known in partitions), timeout_ms
        ):
            raise TimeoutError(f"{topic.name} has partitions without a leader")
        return body

    def reassign(
        self, topic_partition: TopicPartition, replicas: tuple[int, ...] | None, *, timeout_ms: int = 60_000
    ) -> None:
        """Move a partition to these nodes, preferred leader first, and wait until it is there.

        None calls off what is under way. Raises `TimeoutError` if it is not there in time (it goes on),
        `ValueError` if it is refused.
        """
        asked = AlterPartitionReassignmentsRequest({topic_partition: replicas})
        body = self.administer(asked, timeout_ms=timeout_ms)
        if not isinstance(body, AlterPartitionReassignmentsResponse):
            raise TimeoutError(f"the controller did not answer about {topic_partition}")
        result = body.partitions[topic_partition]
        if result.error:
            raise ValueError(f"{topic_partition} was refused: {result.error.name} {result.message}")

        def is_there() -> bool:
            contexts = [node.controller.context for node in self.nodes.values()]
            return any(context and not context.is_reassigning(topic_partition) for context in contexts)

        if not self.run_until(is_there, timeout_ms):
            raise TimeoutError(f"{topic_partition} has not reached {replicas} yet")

    def _find_controller(self, timeout_ms: int) -> int:
        def controllers() -> list[int]:
            return [node_id for node_id, node in self.nodes.items() if node.controller.is_active]

        if not self.run_until(lambda: bool(controllers()), timeout_ms):
            raise TimeoutError("no controller was elected")
        return controllers()[0]

    def administer(self, request: RequestBody, *, timeout_ms: int = 60_000) -> ResponseBody | None:
        """Ask the controller, once there is one; None if it does not answer. Raises `TimeoutError`."""
        return self.call(request, self._find_controller(timeout_ms), limit_ms=timeout_ms)

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Who leads in the newest epoch that any running node acts in; None for nobody."""
        best: tuple[int, int] | None = None
        for node_id, node in self.nodes.items():
            partition = node.replicas.partitions.get(topic_partition)
            if (
                partition is not None
                and partition.is_leader
                and (best is None or partition.leader_epoch > best[0])
            ):
                best = partition.leader_epoch, node_id
        return best[1] if best is not None else None

    def describe(self, topic_partition: TopicPartition) -> list[str]:
        """Each running replica in the notation of the schedules: `1 = 0 0 1 | hw 3`."""
        return [
            str(node.replicas.partitions[topic_partition])
            for node in self.nodes.values()
            if topic_partition in node.replicas.partitions
        ]


def three_nodes(*, base: NodeConfig | None = None) -> list[NodeConfig]:
    """Configurations of nodes 0, 1 and 2, otherwise like `base`."""
    base = base if base is not None else NodeConfig(node_id=0)
    return [replace(base, node_id=node_id) for node_id in range(3)]
