"""A drill: real lines through a replicated partition whose leader loses power repeatedly.

    lines ──▶ Producer ──acks=all──▶ leader ──▶ followers     one process, one directory a node
                                       ✗ power cut: unsynced data is lost
                                       ↻ a new leader; the old one returns, reconciles, catches up

Files, system calls and fsyncs are real. The cluster's clock is not: while no message is under way it jumps
to the next deadline, so waiting for the session of a dead leader takes no time.

The account comes from the files alone, after the cluster has stopped: `settle` reads them as any other
program would and relies on neither the engine's memory nor its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import Record
from logstore.log.reader import LogReader
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.durability import Durability
from logstore.replication.effects import Response
from logstore.replication.in_process import Envelope, PendingReply
from logstore.replication.messages import FetchResponse, NewTopic, ProduceResponse
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.partition import Partition
from logstore.testing.disks import VolatileDisk

PARTITION = TopicPartition("demo", 0)
_NO_REBALANCING = ControllerConfig(auto_leader_rebalance_enable=False)
"""Elections happen only because a leader died."""

PRODUCER_ID = 1
# The log remembers this many batches of a producer: with more in flight, duplicates could not be recognised.
IN_FLIGHT = 5
BATCH_RECORDS = 100
SEGMENT_BYTES = 1 << 20
RETRY_MS = 100
STUCK_MS = 10 * 60 * 1000
_PATIENCE_TURNS = 1000
_SLOW = 0.2

_RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
        # The batch before it did not reach this leader: both are sent again, in order.
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class Stuck(EngineError):
    """The cluster made no progress for a long (virtual) time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class Refused(EngineError):
    """The cluster refused a batch with a permanent error."""

    code = ErrorCode.INVALID_REQUEST


class Producer:
    """An idempotent producer: several batches in flight, each sent until it is acknowledged.

    Record i of the input has the key `i`, so that all records differ. After a failure, every batch that is
    not acknowledged is sent again in order, to the current leader. The log recognises duplicates by their
    sequence numbers.
    """

    def __init__(self, lines: Sequence[bytes], record_count: int, batch_records: int) -> None:
        self._lines = lines
        self.record_count = record_count
        self._batch_records = batch_records
        self._next = 0
        self._unacked: dict[int, bytes] = {}
        self._in_flight: dict[int, PendingReply] = {}
        self._resume_at_ms: int | None = None
        self.acked = 0
        self.retries = 0

    @property
    def is_done(self) -> bool:
        return self.acked == self.record_count

    def pump(self, cluster: InProcessCluster) -> None:
        """Process the responses and send what may be sent. Raises `Refused`."""
        for number, reply in list(self._in_flight.items()):
            if reply.is_done:
                del self._in_flight[number]
                self._take(number, reply, cluster.now_ms)
        if cluster.leader_of(PARTITION) is None:
            self._resume_at_ms = cluster.now_ms + RETRY_MS
        if self._resume_at_ms is not None:
            # The others in flight fail for the same reason or are acknowledged: wait for both.
            if self._in_flight or cluster.now_ms < self._resume_at_ms:
                return
            self._resume_at_ms = None
            self.retries += 1
            for number in sorted(self._unacked):
                self._send(cluster, number)
        while self._next < self.record_count and len(self._unacked) < IN_FLIGHT:
            number = self._next
            self._unacked[number] = self._encode(number, cluster.now_ms)
            self._next = min(number + self._batch_records, self.record_count)
            self._send(cluster, number)

    def _send(self, cluster: InProcessCluster, number: int) -> None:
        self._in_flight[number] = cluster.produce(PARTITION, self._unacked[number], acks=-1)

    def _take(self, number: int, reply: PendingReply, now_ms: int) -> None:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # a broken connection: the outcome is unknown
        if isinstance(reply.body, ProduceResponse):
            result = reply.body.partitions[PARTITION]
            error = result.error
            if error is ErrorCode.NONE:
                del self._unacked[number]
                self.acked += min(self._batch_records, self.record_count - number)
                return
            if error not in _RETRIED:
                raise Refused(f"the batch of records {number}… was refused: {error.name} {result.message}")
        self._resume_at_ms = now_ms + RETRY_MS

    def _encode(self, number: int, now_ms: int) -> bytes:
        lines, size = self._lines, len(self._lines)
        end = min(number + self._batch_records, self.record_count)
        return encode_batch(
            [Record(i - number, now_ms, b"%d" % i, lines[i % size]) for i in range(number, end)],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=number,
        )


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One row of the progress table; numbers are -1 for a node that is down."""

    node_id: int
    role: str
    leader_epoch: int = -1
    in_isr: bool = False
    high_watermark: int = -1
    log_end_offset: int = -1


@dataclass(slots=True)
class Tally:
    """Counters of a drill's events."""

    kills: int = 0
    elections: int = 0
    truncations: int = 0
    records_truncated: int = 0
    unsynced_bytes_lost: int = 0


@dataclass(slots=True)
class Plan:
    """The parameters of a drill. `seed` decides when nodes are killed and which unsynced bytes survive.

    `watch` is called after every step, `report` with a sentence after every kill.
    """

    lines: Sequence[bytes]
    record_count: int
    replicas: int
    kills: int
    seed: int
    directory: str
    now_ms: int
    watch: Callable[[Drill], None] = field(default=lambda drill: None)
    report: Callable[[str], None] = field(default=lambda text: None)

    def log_dir_of(self, node_id: int) -> str:
        """Return the log dir of a node."""
        return f"{self.directory}/node-{node_id}"


class Drill:
    """One run: start the cluster, send, kill, restart; then stop, with every replica caught up."""

    def __init__(self, plan: Plan, disk: Disk) -> None:
        self.plan = plan
        self.tally = Tally()
        self._disk = disk
        self._random = random.Random(plan.seed)
        self._store = EmbeddedStore(f"{plan.directory}/metadata", disk=disk)
        # With one replica, only a synced ack promises anything about a power cut.
        durability = Durability.REPLICATED if plan.replicas > 1 else Durability.SYNCED
        self.cluster = InProcessCluster(
            [
                NodeConfig(node_id=node_id, durability=durability, controller=_NO_REBALANCING)
                for node_id in range(plan.replicas)
            ],
            disk_of=lambda _: VolatileDisk(disk),
            log_dirs_of=lambda node_id: (plan.log_dir_of(node_id),),
            log_config=LogConfig(segment_bytes=SEGMENT_BYTES, min_insync_replicas=min(2, plan.replicas)),
            seed=plan.seed,
            now_ms=plan.now_ms,
            store=self._store,
        )
        self.cluster.intercept = self._is_slow
        batch_records = max(1, min(BATCH_RECORDS, plan.record_count // (8 * (plan.kills + 1))))
        self.producer = Producer(plan.lines, plan.record_count, batch_records)

    def run(self) -> int:
        """Carry the plan out and return the last leader.

        Raises `Stuck`, `Refused`, and the errors of the engine.
        """
        self.cluster.start()
        self.cluster.create_topic(NewTopic(PARTITION.topic, 1, self.plan.replicas))
        for kill in range(self.plan.kills):
            due = self.plan.record_count * (kill + 1) // (self.plan.kills + 1)
            self._until(lambda due=due: self.producer.acked >= due and self._all_in_sync())  # type: ignore[misc]
            self._kill_and_return()
        self._until(lambda: self.producer.is_done and self._all_in_sync() and self._all_caught_up())
        leader = self.cluster.leader_of(PARTITION)
        assert leader is not None, "all replicas are in sync, so one leads"
        self.cluster.release_all()
        for node_id in self.cluster.nodes:
            self._count(node_id)
        self.tally.elections -= 1  # the first election replaced no leader
        self.cluster.close()
        self._store.close()
        return leader

    def view(self) -> list[ReplicaView]:
        """Return the current state of each replica."""
        leader = self.cluster.leader_of(PARTITION)
        isr = self._partition(leader).isr.committed if leader is not None else frozenset()
        rows = []
        for node_id in range(self.plan.replicas):
            node = self.cluster.nodes.get(node_id)
            partition = node.replicas.partitions.get(PARTITION) if node else None
            if partition is None:
                rows.append(ReplicaView(node_id, "down"))
                continue
            log = partition.log
            rows.append(
                ReplicaView(
                    node_id,
                    "leader" if node_id == leader else "follower",
                    partition.leader_epoch,
                    node_id in isr,
                    log.high_watermark,
                    log.log_end_offset,
                )
            )
        return rows

    # --- steps ----------------------------------------------------------------------------------

    def _kill_and_return(self) -> None:
        """Cut the leader's power during its work, and restart it while the next leader works."""
        for _ in range(self._random.randrange(40)):
            self._turn()
        # Then wait for a bad moment: another follower holds more than the next leader. Not for ever: without
        # any input left there is none.
        turns = count()
        self._until(
            lambda: (
                self.cluster.leader_of(PARTITION) is not None
                and (self._next_leader_is_behind() or next(turns) > _PATIENCE_TURNS)
            )
        )
        victim = self.cluster.leader_of(PARTITION)
        assert victim is not None, "a leader was just found"
        self._count(victim)
        before = self._log_bytes(victim)
        self.cluster.kill_node(victim, power_cut=self._random)
        self.tally.kills += 1
        lost = before - self._log_bytes(victim)
        self.tally.unsynced_bytes_lost += lost
        acked = self.producer.acked
        returns_at = acked + self.plan.record_count // (4 * (self.plan.kills + 1))
        dead_since_ms = self.cluster.now_ms
        if self.plan.replicas > 1:
            self._until(lambda: self.cluster.leader_of(PARTITION) is not None)
            # Alone, a leader may lack an in-sync replica: then only the restart helps.
            self._until(
                lambda: (
                    self.producer.acked >= min(returns_at, self.plan.record_count)
                    or self.cluster.now_ms > dead_since_ms + STUCK_MS // 10
                )
            )
        leader = self.cluster.leader_of(PARTITION)
        self.plan.report(
            f"{acked:>9,} acked: node {victim} lost its power and {lost:,} unsynced bytes; "
            f"{f'node {leader} leads' if leader is not None else 'no leader until it returns'}"
        )
        self.cluster.start_node(victim)

    def _until(self, reached: Callable[[], bool]) -> None:
        limit_ms = self.cluster.now_ms + STUCK_MS
        acked = self.producer.acked
        while True:
            self.producer.pump(self.cluster)
            if reached():
                return
            self._turn()
            if self.producer.acked > acked:
                acked, limit_ms = self.producer.acked, self.cluster.now_ms + STUCK_MS
            if self.cluster.now_ms > limit_ms:
                raise Stuck(f"no progress after {acked:,} records: {self.view()}")

    def _turn(self) -> None:
        """Deliver one message; if there is none, let time pass to the next deadline."""
        self.producer.pump(self.cluster)
        cluster = self.cluster
        if not cluster.queue:
            cluster.release_all()
        elif cluster.held and self._random.random() < _SLOW:
            cluster.release(cluster.held[0])
        turns = count()
        self.cluster.run_until(lambda: next(turns) > 0)
        self.plan.watch(self)

    def _is_slow(self, envelope: Envelope) -> bool:
        """Delay some responses to followers, so that replicas differ."""
        event = envelope.event
        return (
            isinstance(event, Response)
            and isinstance(event.body, FetchResponse)
            and self._random.random() < _SLOW
        )

    # --- facts ----------------------------------------------------------------------------------

    def _partition(self, node_id: int) -> Partition:
        return self.cluster.nodes[node_id].replicas.partitions[PARTITION]

    def _all_in_sync(self) -> bool:
        leader = self.cluster.leader_of(PARTITION)
        return (
            leader is not None
            and len(self.cluster.nodes) == self.plan.replicas
            and len(self._partition(leader).isr.committed) == self.plan.replicas
        )

    def _next_leader_is_behind(self) -> bool:
        """Whether a follower holds more than the one that would be elected now."""
        leader = self.cluster.leader_of(PARTITION)
        if leader is None or len(self.cluster.nodes) < 3:
            return True
        partition = self._partition(leader)
        successor, *others = [
            self._partition(replica).log.log_end_offset
            for replica in partition.replicas
            if replica != leader and replica in partition.isr.committed
        ]
        return any(other > successor for other in others)

    def _all_caught_up(self) -> bool:
        logs = [self._partition(node_id).log for node_id in self.cluster.nodes]
        end_offset = max(log.log_end_offset for log in logs)
        return all(log.log_end_offset == log.high_watermark == end_offset for log in logs)

    def _count(self, node_id: int) -> None:
        """Add a node's counters, which are lost when it dies."""
        counters = self.cluster.nodes[node_id].replicas.counters
        self.tally.elections += counters.elections_won
        self.tally.truncations += counters.truncations
        self.tally.records_truncated += counters.records_truncated

    def _log_bytes(self, node_id: int) -> int:
        directory = f"{self.plan.log_dir_of(node_id)}/{PARTITION.directory_name}"
        return sum(entry.size for entry in self._disk.scan(directory) if entry.name.endswith(".log"))


# --- the account ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """The comparison of the files with the acknowledged records.

    `lost` counts acknowledged records that are missing or changed, `duplicated` records that occur more
    than once, `foreign` records that were never sent. `divergent_offset` is the first offset at which the
    replicas differ, -1 if they are identical.
    """

    read_back: int
    lost: int
    duplicated: int
    foreign: int
    divergent_offset: int

    @property
    def is_settled(self) -> bool:
        return not (self.lost or self.duplicated or self.foreign) and self.divergent_offset < 0


def settle(
    disk: Disk,
    partition_directories: Sequence[str],
    leader: int,
    *,
    lines: Sequence[bytes],
    acked: int,
) -> Account:
    """Read every replica's files; compare the leader's with the input, and all with one another.

    The first `acked` records of the input were acknowledged; record i has the key `i` and line i modulo
    the number of lines. Raises `DamagedLog` for files that cannot be read to the end.
    """
    seen = bytearray(acked)
    read_back = duplicated = foreign = 0
    for batch in _batches(disk, partition_directories[leader]):
        for record in batch.records():
            read_back += 1
            number = int(record.key) if record.key is not None and record.key.isdigit() else -1
            if not 0 <= number < acked or record.value != lines[number % len(lines)]:
                foreign += 1
            elif seen[number]:
                duplicated += 1
            else:
                seen[number] = 1
    return Account(
        read_back,
        acked - sum(seen),
        duplicated,
        foreign,
        _first_difference([_batches(disk, directory) for directory in partition_directories]),
    )


def _batches(disk: Disk, directory: str) -> Iterator[Batch]:
    return LogReader(directory, disk=disk).batches()


def _first_difference(replicas: Sequence[Iterator[Batch]]) -> int:
    """Return the offset of the first batch that differs between replicas; -1 if there is none."""
    for batches in zip_longest(*replicas):
        present = [batch for batch in batches if batch is not None]
        if len(present) < len(replicas) or any(batch.buffer != present[0].buffer for batch in present):
            return min(batch.base_offset for batch in present)
    return -1
