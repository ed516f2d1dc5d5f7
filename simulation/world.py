"""A cluster under one seed: real nodes over real logs, and everything around them that can go wrong.

    heap of (time, tie, number, callback) ─▶ one callback at a time, at its virtual millisecond
        │
        ├─ network   delay · loss · doubling · overtaking · cuts, one way or both
        ├─ store     the real tree behind the same kind of network: calls lost, or applied and the
        │            answer lost; sessions end by virtual time; watches go before later answers
        ├─ hosts     a disk, and on it lives of a node: killed, without power, paused, stopped, started
        └─ clients   whoever asked `call` for a request to be carried to a node

Nodes, logs, controller and store are the production code, unchanged; only the disk is the one in memory.
After each turn of a node its replicas are looked at and handed to the checkers, before anybody else can
hear what the turn said. The seed is the only source of chance, so the same seed gives the same run, and
`trace_hash` says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

from checkpoint.disks.faulty import Fault, FaultyDisk
from checkpoint.disks.memory import MemoryDisk
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from logstore.config import LogConfig
from logstore.errors import LogDirOffline
from logstore.log import Log
from logstore.log_manager import LogManager
from logstore.log_manager_config import LogManagerConfig
from replication.config import NodeConfig
from replication.controller.config import ControllerConfig
from replication.effects import (
    ClientRequest,
    CloseSession,
    Disconnected,
    Effect,
    Event,
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
from replication.messages import (
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    RequestBody,
    ResponseBody,
)
from replication.metastore import layout
from replication.metastore.memory import MemoryStore
from replication.metastore.operations import Create, Get, Multi, Operation, Outcome, Set, StoreError
from replication.node import Node
from simulation.checkers import (
    PartitionChecker,
    Remains,
    ReplicaView,
    Stored,
    Violation,
    check_epochs,
    check_recovery,
    parse,
)
from simulation.describe import describe
from simulation.swarm import Swarm, stream

STORE = -1
TOPIC = "t"
LOG_DIR = "data"
START_MS = 1_000_000
_EVERYTHING = 1 << 30
_RECENT = 60

# Answers that say for certain that nothing was appended. Not among them: NOT_LEADER_OR_FOLLOWER, which is
# also what a waiting acks=all hears when its leader steps down.
_NEVER_APPENDED = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)


@dataclass(slots=True, eq=False)
class Host:
    """A machine: its disk, and the life of the node that runs on it, if one does."""

    node_id: int
    config: NodeConfig
    disk: MemoryDisk
    node: Node | None = None
    life: int = 0
    session_id: int | None = None
    told_of_end: int | None = None
    """The session whose end is on its way to the node, or was heard."""
    is_paused: bool = False
    backlog: list[Event] = field(default_factory=list)
    unheard: list[Event] = field(default_factory=list)
    """What the store has to say while it cannot be heard."""
    outstanding: dict[int, int] = field(default_factory=dict)
    tick_at_ms: int | None = None
    views: dict[TopicPartition, ReplicaView] = field(default_factory=dict)
    seen: dict[TopicPartition, tuple[object, ...]] = field(default_factory=dict)
    remains: dict[TopicPartition, Remains] = field(default_factory=dict)
    stopped_in_order: bool = True
    faulty: FaultyDisk | None = None
    """What a node sees of the disk while it runs, where disks may fail."""
    disk_is_dead: bool = False

    @property
    def broker_epoch(self) -> int:
        return self.node.broker_epoch if self.node is not None else -1


@dataclass(slots=True, eq=False)
class Call:
    """A client's request on its way; `on_end` hears the answer, or None if none will come."""

    token: int
    node_id: int
    life: int
    body: RequestBody
    on_end: Callable[[ResponseBody | None], None]
    is_single: bool = True
    """Sent once and never again: an error that says "not appended" is then the last word."""
    is_over: bool = False


@dataclass(slots=True)
class Tally:
    """What happened in a run; for people, and to see that the faults did happen."""

    events: int = 0
    turns: int = 0
    kills: int = 0
    power_cuts: int = 0
    stops: int = 0
    pauses: int = 0
    cuts: int = 0
    sessions_expired: int = 0
    depositions: int = 0
    dead_disks: int = 0
    elections: int = 0
    unclean_elections: int = 0
    truncations: int = 0
    batches_deleted: int = 0
    isr_changes: int = 0
    sent: int = 0
    acked: int = 0
    consumed: int = 0
    operator_elections: int = 0


class World:
    """One seed's cluster. `start_all`, then `step` as long as there is something to do."""

    def __init__(self, swarm: Swarm, *, trace: Callable[[str], None] | None = None) -> None:
        seed = swarm.seed
        self.swarm = swarm
        self.now_ms = START_MS
        self.tally = Tally()
        self.is_calm = True
        """No message is lost, late or doubled while this holds."""
        self._trace = trace
        self.recent: deque[tuple[int, object]] = deque(maxlen=_RECENT)
        self._digest = blake2b(digest_size=16)
        self._heap: list[tuple[int, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._ties = stream(seed, "ties")
        self._net = stream(seed, "network")
        self._store_net = stream(seed, "store network")
        self._disks = stream(seed, "disks")
        self._lives = stream(seed, "lives")
        self._lanes: dict[tuple[int, int], tuple[int, float]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.store = MemoryStore()
        self._store_tick_at_ms: int | None = None
        self._operator = self.store.open_session(_EVERYTHING, self.now_ms)
        self._next_token = 0
        self._calls: dict[int, Call] = {}
        self.unclean_allowed: set[TopicPartition] = set()
        self.log_config = LogConfig(
            segment_bytes=swarm.segment_bytes,
            segment_index_bytes=512,
            index_interval_bytes=300,
            retention_bytes=swarm.retention_bytes,
            retention_ms=-1,
            file_delete_delay_ms=2 * swarm.retention_check_interval_ms,
        )
        self.log_settings = LogManagerConfig(
            topic_defaults=self.log_config,
            log_retention_check_interval_ms=swarm.retention_check_interval_ms,
            log_initial_task_delay_ms=swarm.retention_check_interval_ms,
        )
        self.hosts = {
            node_id: Host(node_id, _node_config(swarm, node_id), MemoryDisk(clock=lambda: self.now_ms))
            for node_id in range(swarm.nodes)
        }
        self.checkers: dict[TopicPartition, PartitionChecker] = {}

    def expect(self, topic_partition: TopicPartition, replicas: tuple[int, ...]) -> PartitionChecker:
        """Judge this partition from now on."""
        checker = PartitionChecker(
            str(topic_partition),
            replicas,
            min_insync=self.swarm.min_insync_replicas,
            unclean_allowed=lambda: topic_partition in self.unclean_allowed,
            incarnation=lambda node_id: self.hosts[node_id].broker_epoch,
        )
        self.checkers[topic_partition] = checker
        return checker

    # --- time ---------------------------------------------------------------------------------

    def at(self, delay_ms: int, callback: Callable[..., None], *arguments: object) -> None:
        """Call back in `delay_ms`; among callbacks of one millisecond the seed decides."""
        self._push(self.now_ms + delay_ms, self._ties.random(), callback, arguments)

    def _push(
        self, at_ms: int, tie: float, callback: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        self._number += 1
        heappush(self._heap, (at_ms, tie, self._number, callback, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is left to happen."""
        if not self._heap:
            return False
        at_ms, _, _, callback, arguments = heappop(self._heap)
        self.now_ms = at_ms
        self.tally.events += 1
        callback(*arguments)
        return True

    def note(self, *facts: object) -> None:
        """Enter something into the trace: into its hash at once, as text only if somebody asks."""
        self.recent.append((self.now_ms, facts))
        if self._trace is not None:
            self._trace(f"{self.now_ms - START_MS:>7} {describe(facts)}")

    def _stamp(self, text: str) -> None:
        self._digest.update(text.encode())

    def trace_hash(self) -> str:
        """The digest of all that happened so far, and of what the disks and the store now hold."""
        digest = self._digest.copy()
        for host in self.hosts.values():
            for path, content in host.disk.files().items():
                digest.update(f"{host.node_id}{path}{len(content)}".encode())
                digest.update(content)
        for path, node in self.store.tree.nodes():
            digest.update(f"{path}{node.version}".encode())
            digest.update(node.data)
        return digest.hexdigest()

    # --- hosts --------------------------------------------------------------------------------

    @property
    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.node is not None]

    def start(self, host: Host) -> None:
        """Start a node; its logs are recovered if need be, and what is found is judged."""
        assert host.node is None, f"node {host.node_id} runs"
        host.life += 1
        self.note(host.node_id, "starts, life", host.life)
        self._stamp(f"start{host.node_id}")
        if self.swarm.dead_disks:
            host.faulty = FaultyDisk(host.disk)
        try:
            logs = LogManager(
                [LOG_DIR],
                disk=host.faulty if host.faulty is not None else host.disk,
                clock=lambda: self.now_ms,
                random=Random(self._lives.getrandbits(64)),
                settings=self.log_settings,
            )
        except Exception as error:
            raise Violation("I1", f"node {host.node_id} cannot open its logs: {error!r}") from error
        self._judge_remains(host, logs)
        host.stopped_in_order = False
        host.node = Node(
            host.config,
            logs,
            random=Random(self._lives.getrandbits(64)),
            log_config=self.log_config,
        )
        self._turn(host, host.node.start)
        self._heartbeat(host, host.life)

    def _judge_remains(self, host: Host, logs: LogManager) -> None:
        held_something = any(remains.batches for remains in host.remains.values())
        if held_something and logs.was_clean != host.stopped_in_order:
            raise Violation("I14", f"node {host.node_id}: it takes its last stop for what it was not")
        host.views, host.seen = {}, {}
        found = logs.logs()
        for topic_partition, remains in host.remains.items():
            log = found.get(topic_partition)
            after = read_all(log) if log is not None else None
            check_recovery(
                remains,
                after,
                log_start=log.log_start_offset if log is not None else 0,
                log_end=log.log_end_offset if log is not None else 0,
                epochs=log.epochs if log is not None else (),
            )
        host.remains = {}
        for topic_partition, log in found.items():
            view = host.views[topic_partition] = ReplicaView(host.node_id, host.life)
            self._look(host, topic_partition, log, view, is_leader=False, leader_epoch=-1, may_be_cut=False)

    def _end_life(self, host: Host) -> None:
        host.node = None
        host.session_id = None
        host.is_paused = False
        host.backlog.clear()
        host.unheard.clear()
        host.outstanding.clear()
        host.tick_at_ms = None
        for checker in self.checkers.values():
            checker.replica_gone(host.node_id)
        for other in self.hosts.values():
            for correlation_id, target in list(other.outstanding.items()):
                if target == host.node_id:
                    self._break_off(other, target, correlation_id)
        for call in list(self._calls.values()):
            if call.node_id == host.node_id:
                self.at(self._delay(self._net), self._end_call, call, None)

    def _leave_remains(self, host: Host, *, cache_survives: bool) -> None:
        if host.node is None:  # a machine whose node is down already loses its power
            host.remains = {
                topic_partition: Remains(
                    left.name,
                    left.batches,
                    left.log_start,
                    left.durable_end,
                    cache_survived=False,
                    disk_died=left.disk_died,
                )
                for topic_partition, left in host.remains.items()
            }
            return
        for topic_partition, log in host.node.logs.logs().items():
            view = host.views.get(topic_partition)
            host.remains[topic_partition] = Remains(
                f"{topic_partition} on node {host.node_id}",
                tuple(view.batches) if view is not None else (),
                log.log_start_offset,
                log.recovery_point,
                cache_survives,
                host.disk_is_dead,
            )

    def kill(self, host: Host) -> None:
        """End the process: memory is gone, the page cache stays. A dead disk takes the machine with it."""
        assert host.node is not None
        if host.disk_is_dead:
            self.cut_power(host)
            return
        self.note(host.node_id, "is killed")
        self._stamp(f"kill{host.node_id}")
        self.tally.kills += 1
        self._leave_remains(host, cache_survives=True)
        host.node.logs.abandon()
        self._end_life(host)

    def cut_power(self, host: Host) -> None:
        """The machine loses its power: of what was not synced any legal part is left."""
        self.note(host.node_id, "loses its power")
        self._stamp(f"power{host.node_id}")
        self.tally.power_cuts += 1
        self._leave_remains(host, cache_survives=False)
        if host.node is not None:
            host.node.logs.abandon()
        host.disk = host.disk.power_cut(self._disks)
        host.disk_is_dead = False
        if host.node is not None:
            self._end_life(host)

    def fail_disk(self, host: Host, operation: str | None) -> None:
        """From now on this kind of call fails (None: any) until the machine is started anew."""
        assert host.faulty is not None, "a seed without dead disks"
        self.note(host.node_id, "has a dead disk:", operation or "all", "fails")
        self._stamp(f"disk{host.node_id}")
        self.tally.dead_disks += 1
        host.disk_is_dead = True
        host.faulty.inject(Fault(operation=operation, forever=True))

    def stop(self, host: Host) -> None:
        """End the process in order: its session is given up, its logs are closed."""
        assert host.node is not None
        if host.disk_is_dead:
            self._turn(host, host.node.stop)
            self.cut_power(host)
            return
        self.note(host.node_id, "is stopped")
        self._stamp(f"stop{host.node_id}")
        self.tally.stops += 1
        self._turn(host, host.node.stop)
        is_clean = host.node.is_clean
        host.node.logs.close(mark_clean=is_clean)
        self._leave_remains(host, cache_survives=True)
        host.stopped_in_order = is_clean
        self._end_life(host)

    def pause(self, host: Host) -> None:
        """The process stands still: it hears nothing, does nothing, and knows nothing of it."""
        self.note(host.node_id, "stands still")
        self.tally.pauses += 1
        host.is_paused = True

    def resume(self, host: Host) -> None:
        """It goes on where it was; what came meanwhile is heard at once."""
        if not host.is_paused:
            return
        self.note(host.node_id, "goes on")
        host.is_paused = False
        backlog, host.backlog = host.backlog, []
        for event in backlog:
            self._receive(host, event)
        self._tick(host, host.life, None)

    def flush(self, host: Host, *, sealed_only: bool) -> None:
        """Make a node's logs durable, wholly or up to the active segments."""
        assert host.node is not None
        logs = host.node.logs
        if sealed_only:
            logs.checkpoint_recovery_points()
        else:
            for log in logs.logs().values():
                with suppress(*((LogDirOffline,) if host.disk_is_dead else ())):
                    log.flush()
        self._stamp(f"flush{host.node_id}")

    # --- a node's turn ------------------------------------------------------------------------

    def _turn(self, host: Host, action: Callable[..., list[Effect]], *arguments: object) -> None:
        self.tally.turns += 1
        try:
            effects = action(*arguments, self.now_ms)
        except Exception as error:
            raise Violation(
                "A1", f"node {host.node_id} broke a promise of its own: {type(error).__name__}: {error}"
            ) from error
        self._observe(host)
        if effects:
            self._carry_out(host, effects)
        if host.node is not None:
            self._schedule_tick(host)

    def _receive(self, host: Host, event: Event) -> None:
        if host.node is None:
            return
        if host.is_paused:
            host.backlog.append(event)
            return
        self.note(host.node_id, "◀", event)
        self._stamp(f"{self.now_ms}{host.node_id}{type(event).__name__}")
        if isinstance(event, Response | Disconnected):
            host.outstanding.pop(event.correlation_id, None)
        elif isinstance(event, SessionExpired) and event.session_id == host.session_id:
            host.session_id = None
        self._turn(host, host.node.receive, event)

    def _schedule_tick(self, host: Host) -> None:
        assert host.node is not None
        deadline_ms = host.node.deadline_ms
        if deadline_ms is None:
            return
        at_ms = max(deadline_ms, self.now_ms + 1)
        if host.tick_at_ms is None or at_ms < host.tick_at_ms:
            host.tick_at_ms = at_ms
            self._push(at_ms, self._ties.random(), self._tick, (host, host.life, at_ms))

    def _tick(self, host: Host, life: int, at_ms: int | None) -> None:
        if host.life != life or host.node is None or host.is_paused or at_ms not in (None, host.tick_at_ms):
            self.tally.events -= 1
            return
        host.tick_at_ms = None
        deadline_ms = host.node.deadline_ms
        if deadline_ms is None or deadline_ms > self.now_ms:
            self.tally.events -= 1
            self._schedule_tick(host)
            return
        self.note(host.node_id, "ticks")
        self._stamp(f"{self.now_ms}{host.node_id}tick")
        self._turn(host, host.node.tick)

    # --- looking at replicas ------------------------------------------------------------------

    def _observe(self, host: Host) -> None:
        node = host.node
        assert node is not None
        truncations = node.replicas.counters.truncations
        for topic_partition in node.replicas.offline:
            if topic_partition in host.views:
                host.views[topic_partition].is_leader = False
        for topic_partition, partition in node.replicas.partitions.items():
            log = partition.log
            seen = (
                log.log_end_offset,
                log.high_watermark,
                partition.leader_epoch,
                partition.is_leader,
                truncations,
                log.log_start_offset,
            )
            before = host.seen.get(topic_partition)
            if before == seen:
                continue
            host.seen[topic_partition] = seen
            view = host.views.get(topic_partition)
            if view is None:
                view = host.views[topic_partition] = ReplicaView(host.node_id, host.life)
            self._look(
                host,
                topic_partition,
                log,
                view,
                is_leader=partition.is_leader,
                leader_epoch=partition.leader_epoch,
                may_be_cut=before is None or before[4] != truncations,
            )

    def _look(
        self,
        host: Host,
        topic_partition: TopicPartition,
        log: Log,
        view: ReplicaView,
        *,
        is_leader: bool,
        leader_epoch: int,
        may_be_cut: bool,
    ) -> None:
        self._forget_deleted(view, log.log_start_offset)
        known = len(view.batches)
        cut_to: int | None = None
        log_end = log.log_end_offset
        if (may_be_cut and not host.disk_is_dead) or log_end < view.log_end:
            found = read_all(log)
            first_new = 0
            for one, other in zip(view.batches, found, strict=False):
                if one != other:
                    break
                first_new += 1
            if first_new < known:
                cut_to = view.batches[first_new].base
                self.tally.truncations += 1
                check_epochs(f"{topic_partition} on node {host.node_id}", found, log.epochs)
            view.batches[first_new:] = found[first_new:]
        else:
            first_new = known
            if log_end > view.log_end or not known:
                view.batches += read_from(log, max(view.log_end, log.log_start_offset))
        before = view.high_watermark
        view.log_start, view.log_end = log.log_start_offset, log_end
        view.high_watermark = log.high_watermark
        view.leader_epoch, view.is_leader = leader_epoch, is_leader
        self._stamp(f"{log_end},{view.high_watermark},{leader_epoch},{is_leader}")
        if self._trace is not None:
            self.note("      ", topic_partition, view)
        checker = self.checkers.get(topic_partition)
        if checker is not None:
            checker.replica_changed(view, first_new=first_new, cut_to=cut_to, high_watermark_before=before)

    def _forget_deleted(self, view: ReplicaView, log_start: int) -> None:
        """What retention took away is neither there nor cut: the log begins behind it now."""
        gone = sum(batch.end <= log_start for batch in view.batches)
        self.tally.batches_deleted += gone
        del view.batches[:gone]

    # --- effects ------------------------------------------------------------------------------

    def _carry_out(self, host: Host, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target, correlation_id, body):
                    host.outstanding[correlation_id] = target
                    self._send(host, target, Request(host.node_id, correlation_id, body))
                case Respond(target, correlation_id, body):
                    self._respond(host, target, Response(host.node_id, correlation_id, body))
                case Reply(token, body, close):
                    self._reply(host, token, body, close=close)
                case StoreCall():
                    self._call_store(host, effect)
                case Sync():
                    self.at(self._delay(self._disks), self._sync, host, host.life, effect)
                case OpenSession(timeout_ms):
                    self.at(self._delay(self._store_net), self._open_session, host, host.life, timeout_ms)
                case CloseSession(session_id):
                    host.session_id = None
                    self.at(self._delay(self._store_net), self._close_session, session_id)

    def _sync(self, host: Host, life: int, effect: Sync) -> None:
        if host.life != life or host.node is None:
            return
        failure = ""
        try:
            log = host.node.logs.get(effect.topic_partition)
            if log is not None:
                log.flush()
        except LogDirOffline as error:
            if not host.disk_is_dead:
                raise
            failure = str(error)
        self._receive(host, SyncDone(effect.topic_partition, effect.end_offset, failure))

    # --- network ------------------------------------------------------------------------------

    def _delay(self, random: Random) -> int:
        swarm = self.swarm
        if self.is_calm:
            return 1 + int(random.random() * 2)
        delay_ms = 1 + int(random.expovariate(1.0 / swarm.delay_ms))
        if swarm.slow_rate and random.random() < swarm.slow_rate:
            delay_ms += random.randrange(2 * swarm.request_timeout_ms)
        return delay_ms

    def _along(
        self, source: int, target: int, delay_ms: int, callback: Callable[..., None], *arguments: object
    ) -> None:
        """Schedule an arrival; those of one connection keep their order, where the seed wants that."""
        at_ms = self.now_ms + delay_ms
        if self.swarm.features.reordering and STORE not in (source, target) and not self.is_calm:
            self._push(at_ms, self._ties.random(), callback, arguments)
            return
        last_ms, tie = self._lanes.get((source, target), (0, 0.0))
        if at_ms > last_ms:
            tie = self._ties.random()
        else:
            at_ms = last_ms
        self._lanes[source, target] = at_ms, tie
        self._push(at_ms, tie, callback, arguments)

    def _is_lost(self) -> bool:
        return not self.is_calm and self._net.random() < self.swarm.drop_rate

    def _copies(self) -> int:
        return 2 if not self.is_calm and self._net.random() < self.swarm.duplicate_rate else 1

    def _send(self, host: Host, target: int, request: Request) -> None:
        other = self.hosts[target]
        if self._is_lost():
            self._lose(host, host.life, target, request.correlation_id)
            return
        for _ in range(self._copies()):
            self._along(
                host.node_id,
                target,
                self._delay(self._net),
                self._arrive,
                host,
                host.life,
                other,
                other.life,
                request,
            )

    def _arrive(self, source: Host, source_life: int, target: Host, life: int, request: Request) -> None:
        if (source.node_id, target.node_id) in self.cuts:
            self._lose(source, source_life, target.node_id, request.correlation_id)
        elif target.life != life or target.node is None:
            self._break_off(source, target.node_id, request.correlation_id)
        else:
            self._receive(target, request)

    def _lose(self, source: Host, life: int, target: int, correlation_id: int) -> None:
        """A request or its answer is lost: the sender hears of it, or waits in vain."""
        if source.life == life and self._net.random() < 0.6:
            self._break_off(source, target, correlation_id)

    def _break_off(self, source: Host, target: int, correlation_id: int) -> None:
        if source.outstanding.pop(correlation_id, None) is not None:
            self.at(
                self._delay(self._net), self._hear, source, source.life, Disconnected(target, correlation_id)
            )

    def _hear(self, host: Host, life: int, event: Event) -> None:
        if host.life == life:
            self._receive(host, event)

    def _respond(self, host: Host, target: int, response: Response) -> None:
        other = self.hosts[target]
        if self._is_lost():
            self._lose(other, other.life, host.node_id, response.correlation_id)
            return
        for _ in range(self._copies()):
            self._along(
                host.node_id,
                target,
                self._delay(self._net),
                self._answered,
                host,
                other,
                other.life,
                response,
            )

    def _answered(self, source: Host, target: Host, life: int, response: Response) -> None:
        if target.life != life:
            return
        if (source.node_id, target.node_id) in self.cuts:
            self._lose(target, life, source.node_id, response.correlation_id)
        else:
            self._receive(target, response)

    # --- clients ------------------------------------------------------------------------------

    def call(
        self,
        node_id: int,
        body: RequestBody,
        on_end: Callable[[ResponseBody | None], None],
        *,
        timeout_ms: int,
        is_single: bool = True,
    ) -> None:
        """Carry a client's request to a node; `on_end` is called once, with None if nothing came back."""
        self._next_token += 1
        host = self.hosts[node_id]
        call = Call(self._next_token, node_id, host.life, body, on_end, is_single)
        self._calls[call.token] = call
        self.at(timeout_ms, self._give_up, call)
        if self._is_lost():
            return
        copies = 1 if is_single and isinstance(body, ProduceRequest) else self._copies()
        for _ in range(copies):
            self.at(self._delay(self._net), self._client_arrives, host, call)

    def _client_arrives(self, host: Host, call: Call) -> None:
        if host.node is None or host.life != call.life:
            self.at(self._delay(self._net), self._end_call, call, None)
        else:
            self._receive(host, ClientRequest(call, call.body))

    def _reply(self, host: Host, token: object, body: ResponseBody | None, *, close: bool) -> None:
        assert isinstance(token, Call), "tokens are given out here"
        self._judge_reply(host, token, body)
        if self._is_lost():
            return
        self.at(self._delay(self._net), self._end_call, token, body)

    def _judge_reply(self, host: Host, call: Call, body: ResponseBody | None) -> None:
        assert host.node is not None
        if isinstance(body, FetchResponse):
            for topic_partition, result in body.partitions.items():
                if result.records:
                    self.checkers[topic_partition].served(
                        host.views[topic_partition], parse(bytes(result.records))
                    )
        elif isinstance(body, ProduceResponse) and isinstance(call.body, ProduceRequest):
            for topic_partition, produced in body.partitions.items():
                checker = self.checkers[topic_partition]
                identity = call.body.records[topic_partition][17:]
                if produced.error is ErrorCode.NONE and call.body.acks == -1:
                    self.tally.acked += 1
                    partition = host.node.replicas.partitions.get(topic_partition)
                    checker.acknowledged(
                        identity,
                        produced.base_offset,
                        host.views[topic_partition],
                        # None: its disk failed later in this turn.
                        isr_size=len(partition.isr.maximal if partition is not None else checker.replicas),
                    )
                elif produced.error in _NEVER_APPENDED and call.is_single:
                    checker.refused(identity)

    def _give_up(self, call: Call) -> None:
        if call.is_over:
            self.tally.events -= 1
        else:
            self._end_call(call, None)

    def _end_call(self, call: Call, body: ResponseBody | None) -> None:
        if call.is_over:
            return
        call.is_over = True
        del self._calls[call.token]
        self._stamp(f"{self.now_ms}{type(body).__name__}")
        call.on_end(body)

    # --- the metadata store -------------------------------------------------------------------

    def reaches_store(self, host: Host) -> bool:
        return (host.node_id, STORE) not in self.cuts

    def hears_store(self, host: Host) -> bool:
        return (STORE, host.node_id) not in self.cuts

    def _is_store_call_lost(self) -> bool:
        return not self.is_calm and self._store_net.random() < self.swarm.store_loss_rate

    def _call_store(self, host: Host, call: StoreCall) -> None:
        if self._is_store_call_lost():
            self._answer_from_store(
                host, host.life, StoreReply(call.call_id, Outcome(StoreError.CONNECTION_LOSS))
            )
            return
        self._along(
            host.node_id, STORE, self._delay(self._store_net), self._serve_store, host, host.life, call
        )

    def _serve_store(self, host: Host, life: int, call: StoreCall) -> None:
        outcome = Outcome(StoreError.CONNECTION_LOSS)
        if self.reaches_store(host):
            outcome, fired = self.store.call(call.session_id, call.operation, self.now_ms)
            self._stamp(f"{self.now_ms}{host.node_id}{outcome.error}")
            self.note("store ◀", host.node_id, call.operation, "gives", outcome.error or "success")
            if outcome.error is None:
                self._judge_writes(call.operation, outcome)
            # Before the outcome: whoever reads later must have heard of the change.
            self._fire(fired)
            if self._is_store_call_lost():
                outcome = Outcome(StoreError.CONNECTION_LOSS)
        self._answer_from_store(host, life, StoreReply(call.call_id, outcome))
        self._schedule_store_tick()

    def _answer_from_store(self, host: Host, life: int, event: Event) -> None:
        if host.life == life:
            self._along(
                STORE, host.node_id, self._delay(self._store_net), self._from_store, host, life, event
            )

    def _from_store(self, host: Host, life: int, event: Event) -> None:
        if host.life != life or host.node is None:
            return
        if self.hears_store(host):
            self._receive(host, event)
        elif isinstance(event, StoreReply):
            lost = StoreReply(event.call_id, Outcome(StoreError.CONNECTION_LOSS))
            if self.swarm.features.store_losses or self._store_net.random() < 0.5:
                self._receive(host, lost)  # its own connection tells it; else it waits in vain
        else:
            host.unheard.append(event)

    def _hear_store(self, host: Host) -> None:
        """The store is heard again: what it had to say comes first, unless the session is over."""
        if host.node is None or not self.hears_store(host):
            return
        unheard, host.unheard = host.unheard, []
        for event in unheard:
            if host.node is not None:
                self._receive(host, event)

    def _judge_writes(self, operation: Operation, outcome: Outcome) -> None:
        writes = operation.writes if isinstance(operation, Multi) else (operation,)
        results = outcome.results if isinstance(operation, Multi) else (outcome,)
        for write, result in zip(writes, results, strict=True):
            if not isinstance(write, Set | Create) or not write.path.endswith("/state"):
                continue
            for topic_partition, checker in self.checkers.items():
                if layout.partition_state_path(topic_partition) == write.path:
                    assert result.stat is not None
                    self._judge_state(checker, write, result.stat.version)

    def _judge_state(self, checker: PartitionChecker, write: Set | Create, version: int) -> None:
        state = layout.parse_state(write.data)
        old, unclean = checker.state, checker.unclean_elections
        epoch_node, _ = self.store.tree.apply(self._operator, Get(layout.CONTROLLER_EPOCH_PATH))
        checker.state_written(
            state,
            version,
            expected_version=write.version if isinstance(write, Set) else None,
            controller_epoch=layout.parse_controller_epoch(epoch_node.data),
        )
        self.tally.elections += old is None or (state.leader_epoch != old.leader_epoch and state.leader >= 0)
        self.tally.isr_changes += old is not None and set(state.isr) != set(old.isr)
        self.tally.unclean_elections += checker.unclean_elections - unclean

    def write_as_operator(self, operation: Operation) -> Outcome:
        """What an operator's tool writes to the store."""
        outcome, fired = self.store.call(self._operator, operation, self.now_ms)
        self._fire(fired)
        return outcome

    def read_as_operator(self, path: str) -> Outcome:
        return self.store.call(self._operator, Get(path), self.now_ms)[0]

    def _fire(self, fired: Iterable[WatchFired]) -> None:
        for watch in fired:
            for host in self.hosts.values():
                if host.session_id == watch.session_id:
                    self._answer_from_store(host, host.life, watch)

    # --- sessions -----------------------------------------------------------------------------

    def _open_session(self, host: Host, life: int, timeout_ms: int) -> None:
        if host.life != life or host.node is None:
            return
        if host.is_paused or not self.reaches_store(host) or not self.hears_store(host):
            self.at(timeout_ms // 4, self._open_session, host, life, timeout_ms)
            return
        session_id = self.store.open_session(timeout_ms, self.now_ms)
        host.session_id = session_id
        self._answer_from_store(host, life, SessionOpened(session_id))
        self._schedule_store_tick()

    def _close_session(self, session_id: int) -> None:
        self._fire(self.store.close_session(session_id))

    def _heartbeat(self, host: Host, life: int) -> None:
        """A sign of life, three in a session's timeout; who is heard of too late learns that it is over."""
        if host.life != life or host.node is None:
            return
        self.at(host.config.zookeeper_session_timeout_ms // 3, self._heartbeat, host, life)
        if host.session_id is None or host.is_paused or not self.reaches_store(host):
            return
        if not self.store.heartbeat(host.session_id, self.now_ms):
            self._tell_expired(host, host.session_id)

    def _tell_expired(self, host: Host, session_id: int) -> None:
        if host.told_of_end == session_id:
            return
        host.told_of_end = session_id
        self._answer_from_store(host, host.life, SessionExpired(session_id))

    def _schedule_store_tick(self) -> None:
        deadline_ms = self.store.deadline_ms
        if deadline_ms is not None and (
            self._store_tick_at_ms is None or deadline_ms < self._store_tick_at_ms
        ):
            self._store_tick_at_ms = max(deadline_ms, self.now_ms + 1)
            self._push(
                self._store_tick_at_ms, self._ties.random(), self._tick_store, (self._store_tick_at_ms,)
            )

    def _tick_store(self, at_ms: int) -> None:
        if at_ms != self._store_tick_at_ms:
            self.tally.events -= 1
            return
        self._store_tick_at_ms = None
        expired, fired = self.store.tick(self.now_ms)
        for session_id in expired:
            self.tally.sessions_expired += 1
            self.note("store", "ends session", session_id)
            for host in self.hosts.values():
                if host.session_id == session_id and host.node is not None:
                    self._tell_expired(host, session_id)
        self._fire(fired)
        self._schedule_store_tick()

    def expire(self, session_id: int) -> None:
        """The store gives a session up; whoever had it hears so at its next sign of life."""
        self.tally.sessions_expired += 1
        self.note("store", "gives up session", session_id)
        self._stamp(f"expire{session_id}")
        self._fire(self.store.close_session(session_id))

    # --- cuts ---------------------------------------------------------------------------------

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Nothing gets through in these directions."""
        pairs = sorted(set(pairs))
        self.note("cut", pairs)
        self.tally.cuts += 1
        self.cuts.update(pairs)

    def mend(self, pairs: Iterable[tuple[int, int]]) -> None:
        """These directions work again."""
        pairs = sorted(set(pairs))
        self.note("mended", pairs)
        self.cuts.difference_update(pairs)
        for host in self.hosts.values():
            if host.unheard:
                self._hear_store(host)


def read_all(log: Log) -> list[Stored]:
    """Every batch of a log."""
    return read_from(log, log.log_start_offset)


def read_from(log: Log, offset: int) -> list[Stored]:
    """The batches of a log from `offset` on; a read goes no further than the end of a segment."""
    found: list[Stored] = []
    while records := log.read_bytes(offset, _EVERYTHING).records:
        found += parse(records)
        offset = found[-1].end
    return found


def _node_config(swarm: Swarm, node_id: int) -> NodeConfig:
    return NodeConfig(
        node_id=node_id,
        durability=swarm.durability,
        zookeeper_session_timeout_ms=swarm.session_timeout_ms,
        registration_retry_ms=swarm.backoff_ms,
        request_timeout_ms=swarm.request_timeout_ms,
        replica_lag_time_max_ms=swarm.lag_time_max_ms,
        replica_lag_max_messages=swarm.lag_max_messages,
        replica_fetch_wait_max_ms=swarm.fetch_wait_ms,
        replica_fetch_max_bytes=swarm.fetch_max_bytes,
        replica_fetch_backoff_ms=swarm.backoff_ms,
        alter_partition_retry_ms=swarm.backoff_ms,
        high_watermark_checkpoint_interval_ms=swarm.checkpoint_interval_ms,
        truncate_on_fetch=swarm.truncate_on_fetch,
        controller=ControllerConfig(
            request_timeout_ms=swarm.request_timeout_ms, retry_backoff_ms=swarm.backoff_ms
        ),
    )
