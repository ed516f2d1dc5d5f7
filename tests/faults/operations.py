"""What a log does, as operations under which a disk may fail, and what must be found after each failure.

An operation is prepared on a disk that works. Then it runs, and one call of it to the disk fails. What the
log holds afterwards, `found`, is judged by records:

    needed      must be there although the operation failed: what it had no business to touch
    possible    may be there; in this order, each at its offset, without a gap but at the front
                (compaction leaves others: `may_leave_gaps`)

After a success `possible` is exactly what is there. Records that were synced survive a loss of power, too,
and so does what the operation was told is durable before it failed: `World.acknowledged`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple, TypeAlias

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass, run
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, set_offsets_and_epoch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.losses import KEPT_MS
from logstore.log.manager import LogManager
from logstore.log.producer_state import AppendOrigin
from logstore.log.tails import sound_batches
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.undo import put_back
from logstore.log.upkeep import advance_log_start_offset, expire_losses
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk

ROOT = "/data"
DIRECTORY = f"{ROOT}/orders-0"
ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=400, index_interval_bytes=60, segment_index_bytes=240, file_delete_delay_ms=1000
)
COMPACT = replace(CONFIG, cleanup_policy="compact")


class Row(NamedTuple):
    """One record, as readers see it; a marker has no value to show."""

    offset: int
    value: bytes | None


Rows: TypeAlias = tuple[Row, ...]


def rows_of(log: Log) -> Rows:
    """Every record that the log serves, in order."""
    return tuple(Row(record.offset, record.value) for record in log.read())


def rows_on(memory: MemoryDisk) -> frozenset[Row]:
    """Every record in a sound batch of a `.log` file, those in quarantine among them."""
    found: set[Row] = set()
    for path, data in memory.files().items():
        if path.startswith(f"{DIRECTORY}/") and path.endswith(".log"):
            for scanned in sound_batches(memory.open(path), 0, len(data)):
                batches = [Batch(data, position) for position in scanned.positions.tolist()]
                found.update(
                    Row(record.offset, record.value)
                    for batch in batches
                    if not batch.is_control
                    for record in batch.records()
                )
    return frozenset(found)


class World:
    """A disk that may fail, and a log on it: one that stands alone, or one of a log dir's."""

    def __init__(self, *, config: LogConfig = CONFIG, is_managed: bool = False) -> None:
        self.memory = MemoryDisk(directories=[ROOT])
        self.faulty = FaultyDisk(self.memory)
        self.config = config
        self.is_managed = is_managed
        self.now_ms = NOW_MS
        self.accept_loss = False
        """Whether the next opening cuts a log that is damaged."""
        self.acknowledged: list[Row] = []
        """What the operation was told is durable."""
        self.manager: LogManager | None = None
        self.open(self.faulty)

    def open(self, disk: Disk) -> None:
        """Open the log through `disk`; raises what opening raises."""
        self.log: Log
        if self.is_managed:
            self.manager = LogManager(
                [ROOT], disk=disk, clock=lambda: self.now_ms, random=Random(1), config=self.config
            )
            log = self.manager.get(ORDERS)
            self.log = log if log is not None else self.manager.get_or_create(ORDERS)
            self.log.partition.set_high_watermark(self.log.log_end_offset)
        else:
            self.log = Log.open(
                DIRECTORY, self.config, disk=disk, clock=lambda: self.now_ms, accept_loss=self.accept_loss
            )

    def abandon(self) -> None:
        """The stop that a killed process makes: its locks go, nothing is written."""
        if self.manager is not None:
            self.manager.abandon()
        elif hasattr(self, "log"):
            self.log.partition.abandon()
            self.log.partition.owner._lock.release()  # type: ignore[attr-defined]

    # --- steps ------------------------------------------------------------------------------------

    def append(self, count: int = 1, *, sync: bool = False, age_ms: int = 0) -> None:
        """`count` records in one batch, named for their offsets."""
        self.log.append(self.values(count), timestamp_ms=self.now_ms - age_ms, sync=sync)

    def values(self, count: int) -> list[bytes | None]:
        end = self.log.log_end_offset
        return [b"value %d" % (end + number) for number in range(count)]

    def fill(self, batches: int = 6, *, sync: bool = True, age_ms: int = 0) -> None:
        """Several segments of batches of two."""
        for _ in range(batches):
            self.append(2, age_ms=age_ms)
        if sync:
            self.log.flush()

    def put(self, *keys: bytes, age_ms: int = 0) -> None:
        """A batch of records with these keys, which their values name as well."""
        end = self.log.log_end_offset
        pairs = [(key, b"%s at %d" % (key, end + number)) for number, key in enumerate(keys)]
        self.log.append(pairs, timestamp_ms=self.now_ms - age_ms)

    def fill_keyed(self, batches: int = 9, *, age_ms: int = 0) -> None:
        """Several segments: three keys again and again, and between them some that come once."""
        for number in range(batches):
            once = b"once %d" % self.log.log_end_offset
            self.put(b"key %d" % (number % 3), once if number % 4 == 0 else b"key 0", age_ms=age_ms)
        self.log.flush()
        self.log.partition.set_high_watermark(self.log.log_end_offset)


def follower_batch(base_offset: int, count: int, *, epoch: int = 0) -> bytes:
    """A leader's batch, as a follower is sent it."""
    records = [
        Record(base_offset + number, NOW_MS, None, b"value %d" % (base_offset + number))
        for number in range(count)
    ]
    return encode_batch(records, base_offset=base_offset, leader_epoch=epoch)


Rule: TypeAlias = Callable[[Rows], Rows]


def all_of(before: Rows) -> Rows:
    return before


def below(offset: int) -> Rule:
    return lambda before: tuple(row for row in before if row.offset < offset)


def at_or_past(offset: int) -> Rule:
    return lambda before: tuple(row for row in before if row.offset >= offset)


def none_of(before: Rows) -> Rows:
    return ()


def and_new(count: int) -> Rule:
    """What was there, and `count` records behind it."""

    def rule(before: Rows) -> Rows:
        end = before[-1].offset + 1 if before else 0
        return (*before, *(Row(end + number, b"value %d" % (end + number)) for number in range(count)))

    return rule


def last_of_each_key(before: Rows) -> Rows:
    """Of what `World.put` has written."""
    last = {row.value.split(b" at ")[0]: row for row in before if row.value is not None}
    return tuple(sorted(last.values()))


@dataclass(frozen=True)
class Operation:
    """`act` on a world that `prepare` has made; see the module's docstring for the rules."""

    name: str
    prepare: Callable[[World], object]
    act: Callable[[World], object]
    needed: Rule = all_of
    possible: Rule = all_of
    makes_durable: bool = False
    """Whether a success means that all of it survives a loss of power."""
    ends_open: bool = True
    """Whether the log still takes appends after a success."""
    may_leave_gaps: bool = False
    """Whether records may go from between others."""
    keeps_what_it_cuts: bool = False
    """Whether all that was there before is in the log, in quarantine, or noted as not kept."""
    errors: tuple[type[Exception], ...] = (EngineError,)
    """What it documents to raise for a bad disk."""
    is_managed: bool = False
    config: LogConfig = field(default_factory=lambda: CONFIG)


def _append_transaction(world: World) -> None:
    for sequence in range(2):
        data = encode_batch(
            [Record(0, NOW_MS, None, world.values(1)[0])],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        append_as_leader(world.log.partition, data, leader_epoch=0, now_ms=NOW_MS)
    marker = encode_marker_batch(
        EndTransactionMarker(ControlType.ABORT, 0), producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS
    )
    append_as_leader(
        world.log.partition, marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
    )


def _assign_epoch(world: World) -> None:
    world.log.partition.assign_epoch(3, world.log.log_end_offset)


def _restart(world: World) -> None:
    truncate_fully_and_start_at(world.log.partition, 40)


def _follow(world: World) -> None:
    end = world.log.log_end_offset
    data = b"".join(follower_batch(end + 2 * number, 2, epoch=1) for number in range(3))
    append_as_follower(world.log.partition, data, leader_epoch=1)


def _batches(world: World) -> None:
    end = world.log.log_end_offset
    batches = []
    for number in range(3):
        data = bytearray(follower_batch(end + 2 * number, 2))
        set_offsets_and_epoch(data, base_offset=0, leader_epoch=-1)
        batches.append(bytes(data))
    world.log.append_batches(b"".join(batches), sync=True)


def _torn(world: World) -> None:
    """A crash: the last segment ends inside a batch, an index is short, a checkpoint was being written."""
    world.fill()
    world.append(3)
    world.abandon()
    last = max(path for path in world.memory.files() if path.endswith(".log"))
    file = world.memory.open(last, write=True)
    file.pwrite(follower_batch(15, 2)[:-5], file.size())
    left_over = f"{DIRECTORY}/recovery-point-offset-checkpoint.tmp"
    world.memory.open(left_over, create=True, write=True).pwrite(b"0\n1\nord", 0)


def _killed(world: World) -> None:
    world.fill()
    world.abandon()


def _closed(world: World) -> None:
    world.fill()
    (world.manager or world.log).close()


def _reopen(world: World) -> None:
    world.open(world.faulty)


def _close(world: World) -> None:
    (world.manager or world.log).close()


def _old_and_new(world: World) -> None:
    """Half of the segments are older than the log keeps them."""
    world.fill(4, age_ms=8 * 86_400_000)
    world.fill(4)


def _manager(world: World) -> LogManager:
    assert world.manager is not None
    return world.manager


def _checkpoint(world: World) -> None:
    manager = _manager(world)
    manager.checkpoint_high_watermarks()
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()


def _create(world: World) -> None:
    _manager(world).get_or_create(TopicPartition("other", 3), topic_id="AAECAwQFBgcICQoLDA0ODw")


def _delete_other(world: World) -> None:
    manager = _manager(world)
    manager.delete(TopicPartition("other", 3))
    world.now_ms += 2000
    manager.tick(world.now_ms)


def _prepare_other(world: World) -> None:
    world.fill()
    other = _manager(world).get_or_create(TopicPartition("other", 3))
    other.append([b"a", b"b"], sync=True)


def _lagging(world: World) -> None:
    world.fill()
    world.log.partition.set_high_watermark(6)


def _tick(world: World) -> None:
    world.now_ms += 400_000
    _manager(world).tick(world.now_ms)


def _deleted_meanwhile(world: World) -> None:
    _old_and_new(world)
    world.log.maintain()


def _late(world: World) -> None:
    world.now_ms += 5000
    world.log.maintain(world.now_ms)


def _append_each(world: World) -> None:
    """Values one by one, by the short way where it is open, over a roll or two."""
    for _ in range(12):
        world.log.append(world.values(1)[0])


def _append_each_durably(world: World) -> None:
    for _ in range(6):
        (value,) = world.values(1)
        info = world.log.append(value, sync=True)
        world.acknowledged.append(Row(info.first_offset, value))


def _transaction_under_way(world: World) -> None:
    world.fill()
    data = encode_batch(
        [Record(0, NOW_MS, None, world.values(1)[0])],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    world.log.append_batches(data, sync=True)


def _compaction_that_is_cut_off(world: World) -> None:
    """The log is truncated after the pass has read of it and before it has written."""
    steps = compaction_pass(
        world.log.partition,
        cleanable_of(world.log.partition, NOW_MS),
        CleanerConfig(io_buffer_size=1024),
        now_ms=NOW_MS,
    )
    with closing(steps):
        next(steps)
        world.log.truncate_to(10)
        assert run(steps).was_aborted


def _compaction_that_is_dropped(world: World) -> None:
    """In the middle of the first segment that it writes."""
    steps = compaction_pass(
        world.log.partition,
        cleanable_of(world.log.partition, NOW_MS),
        CleanerConfig(io_buffer_size=1024),
        now_ms=NOW_MS,
    )
    with closing(steps):
        while not any(name.endswith(".cleaned") for name in world.memory.files()):
            next(steps)


def _keyed_old_and_new(world: World) -> None:
    world.fill_keyed(4, age_ms=8 * 86_400_000)
    world.fill_keyed()


def _cut(world: World) -> None:
    world.fill()
    world.log.truncate_to(4)


def _cut_inside_a_batch(world: World) -> None:
    world.fill()
    world.log.truncate_to(5)


def _undo(world: World) -> None:
    put_back(world.log.partition, 1)


def _late_for_losses(world: World) -> None:
    world.now_ms += KEPT_MS
    expire_losses(world.log.partition, world.now_ms)


def _damaged(world: World) -> None:
    """Killed, and then a bit of a sealed segment flips; what is behind it can only be cut."""
    _killed(world)
    second = sorted(path for path in world.memory.files() if path.endswith(".log"))[1]
    file = world.memory.open(second, write=True)
    at = file.size() - 3
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.sync()
    world.accept_loss = True


def _with_a_hole(world: World) -> None:
    """Killed, and then a segment is gone."""
    _killed(world)
    world.memory.remove(sorted(path for path in world.memory.files() if path.endswith(".log"))[1])
    world.memory.sync_dir(DIRECTORY)
    world.accept_loss = True


def _interrupted_swap(suffix: str) -> Callable[[World], None]:
    """A compaction that is killed when it is about to rename the first file of this kind."""

    def prepare(world: World) -> None:
        world.fill_keyed()
        world.faulty.inject(Fault(operation="rename", path=lambda path: path.endswith(suffix)))
        try:
            world.log.compact()
        except LogDirOffline:
            pass
        assert any(path.endswith(".swap") for path in world.memory.files())
        world.faulty.heal()
        world.abandon()

    return prepare


OPERATIONS: Sequence[Operation] = (
    Operation("append", lambda w: w.fill(), lambda w: w.append(2), possible=and_new(2)),
    Operation(
        "append durably", lambda w: w.fill(), lambda w: w.append(2, sync=True), possible=and_new(2),
        makes_durable=True,
    ),
    Operation(
        "append that rolls", lambda w: w.fill(4), lambda w: w.append(16), possible=and_new(16)
    ),
    Operation(
        "append batches that roll, durably", lambda w: w.fill(), _batches, possible=and_new(6),
        makes_durable=True,
    ),
    Operation("append an aborted transaction", lambda w: w.fill(), _append_transaction, possible=and_new(2)),
    Operation("append as a follower", lambda w: w.fill(), _follow, possible=and_new(6)),
    Operation("assign an epoch", lambda w: w.fill(), _assign_epoch),
    Operation("roll", lambda w: w.fill(5, sync=False), lambda w: w.log.partition.roll(), makes_durable=True),
    Operation("flush", lambda w: w.fill(sync=False), lambda w: w.log.flush(), makes_durable=True),
    Operation(
        "truncate inside a segment", lambda w: w.fill(), lambda w: w.log.truncate_to(10),
        needed=below(10), makes_durable=True, keeps_what_it_cuts=True,
    ),
    Operation(
        "truncate across segments", lambda w: w.fill(), lambda w: w.log.truncate_to(4),
        needed=below(4), makes_durable=True, keeps_what_it_cuts=True,
    ),
    Operation(
        "truncate inside a batch", lambda w: w.fill(), lambda w: w.log.truncate_to(5),
        needed=below(4), makes_durable=True, keeps_what_it_cuts=True,
    ),
    Operation(
        "truncate to the start", lambda w: w.fill(), lambda w: w.log.truncate_to(0), needed=none_of,
        makes_durable=True, keeps_what_it_cuts=True,
    ),
    Operation(
        "restart at an offset", lambda w: w.fill(), _restart,
        needed=none_of, makes_durable=True, keeps_what_it_cuts=True,
    ),
    Operation(
        "advance the log start", lambda w: w.fill(), lambda w: advance_log_start_offset(w.log.partition, 5),
        needed=at_or_past(5),
    ),
    Operation("delete records", lambda w: w.fill(), lambda w: w.log.delete_records(7), needed=at_or_past(7)),
    Operation("retention", _old_and_new, lambda w: w.log.maintain(), needed=at_or_past(8)),
    Operation("removal of what was deleted", _deleted_meanwhile, _late),
    Operation("close", lambda w: w.fill(sync=False), _close, makes_durable=True, ends_open=False),
    Operation("open after a clean stop", _closed, _reopen),
    Operation("open after a crash", _torn, _reopen, makes_durable=True),
    Operation("find by time", lambda w: w.fill(), lambda w: w.log.offset_for_timestamp(NOW_MS)),
    Operation("read", lambda w: w.fill(), lambda w: rows_of(w.log)),
    Operation("open a log dir", _closed, _reopen, is_managed=True),
    Operation("open a log dir after a crash", _killed, _reopen, is_managed=True),
    # Closing a log dir raises nothing: the mark of a clean stop is missing, and the next start recovers it.
    Operation("close a log dir", lambda w: w.fill(sync=False), _close, is_managed=True, ends_open=False),
    Operation("write the checkpoints", lambda w: w.fill(), _checkpoint, is_managed=True),
    Operation("create a partition", lambda w: w.fill(), _create, is_managed=True),
    Operation("delete a partition", _prepare_other, _delete_other, is_managed=True),
    Operation("tick", _old_and_new, _tick, needed=at_or_past(8), is_managed=True),
    Operation("cut below the high watermark", _lagging, lambda w: w.log.truncate_to(4), needed=below(4),
              is_managed=True, makes_durable=True, keeps_what_it_cuts=True),
    Operation(
        "append value after value", lambda w: w.fill(), _append_each, possible=and_new(12)
    ),
    Operation(
        "append value after value, durably", lambda w: w.fill(), _append_each_durably, possible=and_new(6),
        makes_durable=True,
    ),
    Operation(
        "append many values", lambda w: w.fill(), lambda w: w.log.append(w.values(30), sync=True),
        possible=and_new(30), makes_durable=True, config=replace(CONFIG, max_message_bytes=300),
    ),
    Operation(
        "commit", _transaction_under_way, lambda w: w.log.end_transaction(7, 0, commit=True),
    ),
    Operation(
        "abort", _transaction_under_way, lambda w: w.log.end_transaction(7, 0, commit=False),
    ),
    Operation(
        "compact", lambda w: w.fill_keyed(), lambda w: w.log.compact(), needed=last_of_each_key,
        makes_durable=True, may_leave_gaps=True, config=COMPACT,
    ),
    Operation(
        "compact, cut off by a truncation", lambda w: w.fill_keyed(), _compaction_that_is_cut_off,
        needed=below(10), makes_durable=True, keeps_what_it_cuts=True, config=COMPACT,
    ),
    Operation(
        "compact, dropped on the way", lambda w: w.fill_keyed(), _compaction_that_is_dropped,
        makes_durable=True, config=COMPACT,
    ),
    Operation(
        "maintain with a compaction due", _keyed_old_and_new, lambda w: w.log.maintain(),
        needed=lambda before: at_or_past(8)(last_of_each_key(before)), may_leave_gaps=True,
        config=replace(COMPACT, cleanup_policy="compact,delete"),
    ),
    Operation(
        "tick with a compaction due", lambda w: w.fill_keyed(), _tick, needed=last_of_each_key,
        may_leave_gaps=True, is_managed=True, config=COMPACT,
    ),
    Operation(
        "open with a swap begun", _interrupted_swap(".index.cleaned"), _reopen, makes_durable=True,
        config=COMPACT,
    ),
    Operation(
        "open with a swap that stands", _interrupted_swap(".log"), _reopen, makes_durable=True,
        config=COMPACT,
    ),
    Operation(
        "open with a swap about done", _interrupted_swap(".log.swap"), _reopen, makes_durable=True,
        config=COMPACT,
    ),
    # `put_back` says so of a quarantine that cannot be read.
    Operation(
        "undo a truncation", _cut, _undo, possible=and_new(8), makes_durable=True, keeps_what_it_cuts=True,
        errors=(EngineError, OSError),
    ),
    Operation(
        "undo a truncation inside a batch", _cut_inside_a_batch, _undo, possible=and_new(8),
        makes_durable=True, keeps_what_it_cuts=True, errors=(EngineError, OSError),
    ),
    Operation("expire losses", _cut, _late_for_losses),
    Operation(
        "open a damaged log and accept it", _damaged, _reopen, makes_durable=True,
        keeps_what_it_cuts=True,
    ),
    Operation(
        "open a log with a hole and accept it", _with_a_hole, _reopen, makes_durable=True,
        keeps_what_it_cuts=True,
    ),
)  # fmt: skip
