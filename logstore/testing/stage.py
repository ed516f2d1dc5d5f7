"""A stage for failure schedules: replicas under a script that acts as controller, network and clock.

    stage = Stage("AB")
    stage.elect("A", isr="AB")        the controller's request, to all or to those named by `to`
    stage.append("A", acks=1)         a client writes one record
    stage.fetch("B")                  B's fetch reaches its leader, and the answer returns
    stage.fetch("B", answer=False)    … the answer stays on the wire
    stage.power_cut("B"); stage.start("B")

Nothing moves without the script: a message stays on `wire` until the script delivers, holds or drops it. Each
action adds one line to the transcript, with the resulting state in the notation of the schedules: the epoch
of each record, then the high watermark.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import groupby

from logstore.arguments import as_int, as_offset, as_str
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.replication import orders, serving
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Client, Effect, Peer, Reply, Respond, Send
from logstore.replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    BrokerEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    RequestBody,
    ResponseBody,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from logstore.replication.partition import ACKS_ALL, Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.node_checks import check_node
from logstore.testing.role_flushes import finished

TP = TopicPartition("t", 0)
CONTROLLER = 99
CONSUMER = -1


def batch(*values: bytes) -> bytes:
    """Return a client's encoded batch, one record for each value."""
    return encode_batch([Record(number, 0, None, value) for number, value in enumerate(values)])


@dataclass(frozen=True, eq=False)
class Message:
    """A message on the wire between replicas, or to the controller."""

    source: int
    target: int
    correlation_id: int
    body: RequestBody | ResponseBody
    is_request: bool


class Pending:
    """A client's append, with its result once there is one."""

    def __init__(self) -> None:
        self.result: ProduceResult | None = None

    @property
    def error(self) -> ErrorCode | None:
        """None while the client waits."""
        return self.result.error if self.result is not None else None


def _is_down(name: str) -> ValueError:
    return ValueError(f"{name} is down: start it first")


class Stage:
    """Replicas of one partition, called A, B, C … (brokers 0, 1, 2 …)."""

    fetch_sessions = 0
    """How many fetch sessions a leader keeps; without any, a fetch says all there is to say."""

    def __init__(
        self,
        names: str = "ABC",
        *,
        min_insync: int = 1,
        config: NodeConfig | None = None,
        first_epoch: int = 0,
    ) -> None:
        if not names or names != "".join(dict.fromkeys(names)):
            raise ValueError(f"names is {names!r}: give each replica a letter of its own, such as ABC")
        base = config or NodeConfig(node_id=0, replica_fetch_wait_max_ms=0, replica_lag_time_max_ms=10_000)
        base = replace(base, max_incremental_fetch_session_cache_slots=self.fetch_sessions)
        self.names = names
        self.now_ms = 1_000_000
        self.wire: list[Message] = []
        self.transcript: list[str] = []
        self.log_config = LogConfig(min_insync_replicas=min_insync)
        self.configs = [replace(base, node_id=number) for number in range(len(names))]
        self.disks = [MemoryDisk() for _ in names]
        self.managers: list[ReplicaManager | None] = [None for _ in names]
        self.logs: list[LogManager | None] = [None for _ in names]
        self.broker_epochs = [0 for _ in names]
        self.state = PartitionState(1, -1, first_epoch - 1, (), -1, tuple(range(len(names))))
        self._next_id = 0
        self._written = 0
        self._clients: dict[int, Pending] = {}
        self.promised: dict[bytes, Pending] = {}
        """What was written with acks=all."""
        self._replies: dict[int, ResponseBody | None] = {}
        self._told: dict[int, FetchPartition] = {}
        """What a fetch session knows that is not in the next request."""
        for name in names:
            self.start(name)
        self.transcript.clear()

    # --- who is who ---------------------------------------------------------------------------

    def number(self, name: str) -> int:
        """Return the broker id of a replica: A is 0."""
        if as_str(name, "a replica") not in tuple(self.names):
            raise ValueError(f"no replica {name!r}; the stage has {', '.join(self.names)}")
        return self.names.index(name)

    def manager(self, name: str) -> ReplicaManager:
        """Return the replica manager of a running replica."""
        manager = self.managers[self.number(name)]
        if manager is None:
            raise _is_down(name)
        return manager

    def partition(self, name: str) -> Partition:
        """Return a running replica's partition, once it has a role."""
        return self.manager(name).partitions[TP]

    def log(self, name: str) -> Log:
        """Return a running replica's log."""
        log = self.find_log(name)
        if log is None:
            raise ValueError(f"{name} has no log before its first role; elect a leader")
        return log

    def find_log(self, name: str) -> Log | None:
        """Return a running replica's log; None before its first role."""
        return self._logs(name).logs().get(TP)

    def _logs(self, name: str) -> LogManager:
        logs = self.logs[self.number(name)]
        if logs is None:
            raise _is_down(name)
        return logs

    def values(self, name: str) -> list[bytes | None]:
        """Return the values in the replica's log, from its start."""
        return [record.value for record in self.log(name).read()]

    def picture(self, name: str) -> str:
        """`A = 0 0 1 | hw 2`, `A = 0x5 1 | hw 2` for long runs, or `A down`."""
        manager = self.managers[self.number(name)]
        if manager is None:
            return f"{name} down"
        if TP not in manager.partitions:
            return f"{name} new"
        epochs, _, high_watermark = str(manager.partitions[TP]).partition(" = ")[2].partition(" | ")
        runs = []
        for epoch, run in groupby(epochs.split()):
            count = len(list(run))
            runs.append(f"{epoch}x{count}" if count > 3 else " ".join([epoch] * count))
        return f"{name} = {' '.join(runs)} | {high_watermark}"

    def lost(self) -> list[bytes]:
        """Return the values acknowledged with acks=all that the stored leader's log lacks."""
        held = self.values(self.names[self.state.leader])
        return [
            value
            for value, pending in self.promised.items()
            if pending.error is ErrorCode.NONE and value not in held
        ]

    def note(self, action: str) -> None:
        """Add a line to the transcript, and check the invariants of every node."""
        for manager in self.managers:
            if manager is not None:
                check_node(manager)
        pictures = "; ".join(self.picture(name) for name in self.names)
        self.transcript.append(f"{action:<35} {pictures}")

    def check(self, expected: str) -> None:
        """Compare the transcript, spaces aside."""
        told = [" ".join(line.split()) for line in self.transcript]
        wanted = [" ".join(line.split()) for line in expected.strip().splitlines() if line.strip()]
        assert told == wanted, "\n" + "\n".join(self.transcript)

    # --- processes ----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start the process: recover the logs, register the broker again; it has no role yet."""
        number = self.number(name)
        if self.managers[number] is not None:
            raise ValueError(f"{name} is running: kill it first")
        logs = LogManager(
            ["data"],
            disk=self.disks[number],
            clock=lambda: self.now_ms,
            random=random.Random(number),
            config=self.log_config,
        )
        self.logs[number] = logs
        self.broker_epochs[number] += 1
        manager = ReplicaManager(
            self.configs[number], logs, next_id=self._take_id, default_config=self.log_config
        )
        self.managers[number] = manager
        self._carry_out(number, orders.registered(manager, self.broker_epochs[number], self.now_ms))
        self.tell_who_lives()
        self.note(f"{name} starts")

    def kill(self, name: str) -> None:
        """Kill the process; written data stays."""
        self._drop_process(name)
        self.note(f"{name} dies")

    def power_cut(self, name: str) -> None:
        """Cut the machine's power; data that was not synced is lost."""
        self._logs(name)  # it is running
        self.disks[self.number(name)] = self.disks[self.number(name)].durable_image()
        self._drop_process(name)
        self.note(f"{name} loses power")

    def checkpoint(self, name: str) -> None:
        """Write the replica's high watermark checkpoint."""
        self._logs(name).checkpoint_high_watermarks()
        self.note(f"{name} checkpoints its hw")

    def _drop_process(self, name: str) -> None:
        number = self.number(name)
        self._logs(name).abandon()
        self.logs[number] = self.managers[number] = None
        self.wire = [message for message in self.wire if number not in (message.source, message.target)]
        self.tell_who_lives()

    # --- the controller -----------------------------------------------------------------------

    def elect(self, leader: str | None, *, isr: str, to: str | None = None) -> None:
        """Write a new leader and epoch to the store; send them to the running replicas, or to `to` only."""
        self.state = replace(
            self.state,
            leader=-1 if leader is None else self.number(leader),
            leader_epoch=self.state.leader_epoch + 1,
            isr=tuple(map(self.number, isr)),
            partition_epoch=self.state.partition_epoch + 1,
        )
        for name in to if to is not None else self.running():
            self.tell_state(name, self.state)
        self.note(
            f"{leader or 'nobody'} leads e{self.state.leader_epoch}, ISR {isr}"
            + (f", told {to or 'nobody'}" if to is not None else "")
        )

    def replace_controller(self) -> None:
        """Let another controller take over, in a new controller epoch; it has told nobody yet."""
        self.state = replace(self.state, controller_epoch=self.state.controller_epoch + 1)

    def tell(self, name: str) -> ErrorCode:
        """Send the persisted state to one replica."""
        code = self.tell_state(name, self.state)
        self.note(f"{name} hears of e{self.state.leader_epoch}")
        return code

    def tell_state(self, name: str, state: PartitionState) -> ErrorCode:
        """Send any state, for instance an old one, without a line in the transcript."""
        number = self.number(name)
        body = LeaderAndIsrRequest(
            CONTROLLER, state.controller_epoch, self.broker_epochs[number], {TP: state}
        )
        response = self._ask(number, body)
        assert isinstance(response, LeaderAndIsrResponse)
        return response.partitions[TP] if response.error is ErrorCode.NONE else response.error

    def _ask(
        self, number: int, body: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    ) -> ResponseBody:
        manager = self.manager(self.names[number])
        peer = Peer(CONTROLLER, self._take_id())
        if isinstance(body, LeaderAndIsrRequest):
            effects = orders.leader_and_isr(manager, peer, body, self.now_ms)
            effects = finished(manager, effects, self.now_ms)
        elif isinstance(body, StopReplicaRequest):
            effects = orders.stop_replica(manager, peer, body, self.now_ms)
        else:
            effects = orders.update_metadata(manager, peer, body, self.now_ms)
        found = [e for e in effects if isinstance(e, Respond) and e.correlation_id == peer.correlation_id]
        self._carry_out(number, [e for e in effects if e not in found])
        return found[0].body

    def stop_replica(self, name: str, *, leader_epoch: int) -> ErrorCode:
        """Send the order to stop the replica and delete its log; `BEING_DELETED` with the topic."""
        number = self.number(name)
        order = {TP: StopReplicaPartition(leader_epoch, delete=True)}
        body = StopReplicaRequest(CONTROLLER, self.state.controller_epoch, self.broker_epochs[number], order)
        response = self._ask(number, body)
        assert isinstance(response, StopReplicaResponse)
        self.note(f"{name} deletes its replica")
        return response.partitions[TP] if response.error is ErrorCode.NONE else response.error

    def tell_who_lives(self, *, alive: str | None = None) -> None:
        """Send the live brokers to every running replica."""
        living = self.running() if alive is None else alive
        endpoints = tuple(
            BrokerEndpoint(self.number(name), epoch=self.broker_epochs[self.number(name)]) for name in living
        )
        for name in self.running():
            body = UpdateMetadataRequest(CONTROLLER, self.state.controller_epoch, -1, {}, endpoints)
            self._ask(self.number(name), body)

    def running(self) -> str:
        """Return the names of the running replicas."""
        return "".join(name for name in self.names if self.managers[self.number(name)] is not None)

    def proposal(self) -> Message | None:
        """Return the ISR proposal on the wire, if there is one."""
        return next((m for m in self.wire if isinstance(m.body, AlterPartitionRequest)), None)

    def _taken_proposal(self) -> Message:
        message = self.proposal()
        if message is None:
            raise AssertionError("no ISR proposal is on the wire")
        return self.take(message)

    def persist_isr(self, *, answer: bool = True) -> None:
        """Persist the ISR proposal on the wire; without `answer` the leader gets no answer."""
        message = self._taken_proposal()
        assert isinstance(message.body, AlterPartitionRequest)
        wanted = message.body.partitions[TP]
        state = self.state
        if wanted.leader_epoch != state.leader_epoch:
            result = AlterPartitionResult(ErrorCode.FENCED_LEADER_EPOCH)
        elif wanted.partition_epoch != state.partition_epoch:
            result = AlterPartitionResult(ErrorCode.INVALID_UPDATE_VERSION)
        else:
            self.state = state = replace(state, isr=wanted.new_isr, partition_epoch=state.partition_epoch + 1)
            result = AlterPartitionResult(
                ErrorCode.NONE, state.leader, state.leader_epoch, state.isr, state.partition_epoch
            )
        if answer:
            self.answer_isr(message, result)
        members = "".join(self.names[member] for member in wanted.new_isr)
        verdict = result.error.name if result.error else "stored"
        self.note(f"ISR {members} {verdict}" + ("" if answer else ", not answered"))

    def refuse_isr(self, error: ErrorCode) -> None:
        """Refuse the ISR proposal on the wire."""
        self.answer_isr(self._taken_proposal(), AlterPartitionResult(error))
        self.note(f"ISR refused: {error.name}")

    def answer_isr(self, message: Message, result: AlterPartitionResult) -> None:
        """Send `result` to the leader."""
        manager = self.managers[message.source]
        assert manager is not None
        body = AlterPartitionResponse(ErrorCode.NONE, {TP: result})
        self._carry_out(message.source, manager.on_response(message.correlation_id, body, self.now_ms))

    # --- clients ------------------------------------------------------------------------------

    def append(
        self, name: str, count: int = 1, *, acks: int | str = 1, value: bytes | None = None
    ) -> Pending:
        """Write `count` records as a client, each in its own batch; returns the last append.

        Without `value` each has the number of the record as its value.
        """
        needed = ACKS_ALL if acks == "all" else as_offset(acks, "acks")
        if not isinstance(value, bytes | None):
            raise TypeError(f"value is bytes, not {type(value).__name__} ({value!r:.100})")
        pending = Pending()
        for _ in range(as_int(count, "count", least=1)):
            pending = self._append(name, needed, value if value is not None else b"%d" % self._written)
        self.note(f"{name} takes {count}, acks={'all' if needed < 0 else needed}")
        return pending

    def _append(self, name: str, acks: int, value: bytes) -> Pending:
        self._written += 1
        token = self._take_id()
        pending = self._clients[token] = Pending()
        if acks == ACKS_ALL:
            self.promised[value] = pending
        request = ProduceRequest({TP: batch(value)}, acks, 30_000)
        self._carry_out(
            self.number(name), serving.produce(self.manager(name), Client(token), request, self.now_ms)
        )
        return pending

    def consume(self, name: str, offset: int) -> FetchResult:
        """Read as a consumer that does not wait."""
        at = as_offset(offset)
        request = FetchRequest(CONSUMER, 0, 1, 1 << 20, {TP: FetchPartition(at, 1 << 20)})
        token = self._take_id()
        self._carry_out(
            self.number(name), serving.fetch(self.manager(name), Client(token), request, self.now_ms)
        )
        body = self._replies.pop(token)
        assert isinstance(body, FetchResponse)
        return body.partitions[TP]

    def list_offset(self, name: str, timestamp: int) -> ListOffsetsResult:
        """Ask for an offset as a consumer."""
        request = ListOffsetsRequest(CONSUMER, {TP: ListOffsetsPartition(timestamp)})
        token = self._take_id()
        self._carry_out(
            self.number(name), serving.list_offsets(self.manager(name), Client(token), request, self.now_ms)
        )
        body = self._replies.pop(token)
        assert isinstance(body, ListOffsetsResponse)
        return body.partitions[TP]

    # --- the network --------------------------------------------------------------------------

    def request_of(self, name: str) -> Message:
        """Return the last request on the wire from `name` to its leader."""
        sent = self._requests_of(name)
        if not sent:
            raise AssertionError(f"no request of {name} to its leader is on the wire")
        return sent[-1]

    def is_asking(self, name: str) -> bool:
        """Whether a request from `name` to its leader is on the wire."""
        return bool(self._requests_of(name))

    def _requests_of(self, name: str) -> list[Message]:
        number = self.number(name)
        return [m for m in self.wire if m.is_request and m.source == number and m.target != CONTROLLER]

    def take(self, message: Message) -> Message:
        """Take a message off the wire; `deliver` delivers it later, if at all."""
        self.wire.remove(message)
        return message

    def deliver(self, message: Message) -> None:
        """Deliver a message now, even one that has left the wire: a late copy."""
        if message in self.wire:
            self.wire.remove(message)
        manager = self.managers[message.target]
        if manager is None:
            return
        body = message.body
        if not message.is_request:
            assert not isinstance(body, LeaderAndIsrResponse)
            self._carry_out(
                message.target,
                manager.on_response(message.correlation_id, body, self.now_ms),  # type: ignore[arg-type]
            )
            return
        peer = Peer(message.source, message.correlation_id)
        match body:
            case FetchRequest():
                effects = serving.fetch(manager, peer, body, self.now_ms)
            case ListOffsetsRequest():
                effects = serving.list_offsets(manager, peer, body, self.now_ms)
            case OffsetForLeaderEpochRequest():
                effects = serving.offset_for_leader_epoch(manager, peer, body, self.now_ms)
            case _:
                raise AssertionError(f"{type(body).__name__} between replicas")
        self._carry_out(message.target, effects)

    def answer_to(self, message: Message) -> Message | None:
        """Return the answer to a request, if it is on the wire."""
        return next(
            (m for m in self.wire if not m.is_request and m.correlation_id == message.correlation_id), None
        )

    def fetch(self, name: str, *, answer: bool = True) -> Message | None:
        """Run one round of `name` with its leader; returns the answer if it is kept back.

        The round may be a fetch, or a question about an epoch or a bound.
        """
        request = self.request_of(name)
        self.deliver(request)
        response = self.answer_to(request)
        if response is not None and answer:
            self.deliver(response)
        what = ""
        if isinstance(request.body, FetchRequest):
            wanted = request.body.partitions.get(TP) or self._told[request.body.session_id]
            if response is not None and isinstance(response.body, FetchResponse):
                self._told[response.body.session_id] = wanted
            what = f" at {wanted.fetch_offset}"
            if wanted.last_fetched_epoch >= 0:
                what += f" (e{wanted.last_fetched_epoch})"
        verb = "fetches" if isinstance(request.body, FetchRequest) else "asks"
        outcome = self.outcome(response.body) if response is not None else ": waits"
        self.note(f"{name} {verb}{what}{outcome}" + ("" if answer else ", not answered"))
        return None if answer else response

    @staticmethod
    def outcome(body: RequestBody | ResponseBody) -> str:
        """Return `: diverging(1,4)`, the name of an error, or an empty text."""
        if not isinstance(body, FetchResponse):
            return ""
        result = body.partitions.get(TP)
        if result is None:
            return f": {body.error.name}" if body.error else ""
        if result.error is not ErrorCode.NONE:
            return f": {result.error.name}"
        if result.diverging_epoch is not None:
            return f": diverging({result.diverging_epoch.epoch},{result.diverging_epoch.end_offset})"
        return ""

    def replicate(self, *names: str, rounds: int = 3) -> None:
        """Run several rounds of each replica without lines in the transcript."""
        kept = list(self.transcript)
        for _ in range(rounds):
            for name in names:
                self.fetch(name)
        self.transcript = kept

    def advance(self, duration_ms: int) -> None:
        """Let time pass for every replica."""
        self.now_ms += as_int(duration_ms, "duration_ms")
        for number, manager in enumerate(self.managers):
            if manager is not None:
                self._carry_out(number, manager.tick(self.now_ms))
        self.note(f"{duration_ms} ms pass")

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _carry_out(self, number: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target, correlation_id, body):
                    self.wire.append(Message(number, target, correlation_id, body, True))
                case Respond(target, correlation_id, body):
                    self.wire.append(Message(number, target, correlation_id, body, False))
                case Reply(token, body, _):
                    assert isinstance(token, int)
                    if token in self._clients:
                        assert self._clients[token].result is None, "answered twice"
                        assert isinstance(body, ProduceResponse)
                        self._clients[token].result = body.partitions[TP]
                    else:
                        self._replies[token] = body
                case _:
                    raise AssertionError(f"a replica manager with {effect}")
