"""The logs of a node: one thread changes them as a broker's loop does, others do what its pools do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore import Log, LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogClosed, OffsetOutOfRange
from logstore.format.batch import walk
from logstore.log.log_dir_snapshot import snapshot_logs
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.scrub import scrub
from logstore.log.truncate import truncate_to
from logstore.log.upkeep import delete_records
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules.locks import interruptible, locks_of
from tests.turns import Turns

LOGS: Final = tuple(TopicPartition(topic, 0) for topic in ("deleted", "compacted", "plain"))
COMPACTED: Final = LOGS[1]
CALLS: Final = 30
WORKERS: Final = ("flushes", "scrubs", "reads", "snapshots")
KEYS: Final = 3
PICTURES: Final = 3


class Picture(NamedTuple):
    """A disk after a power cut, its logs, and the records of the log that was flushed."""

    disk: MemoryDisk
    logs: set[TopicPartition]
    flushed: TopicPartition
    rows: dict[int, bytes]


@dataclass
class Judge:
    """The results of all calls so far. No lock: one thread runs at a time."""

    dirs: tuple[str, ...] = ("/data",)
    manager: LogManager | None = None
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now_ms: int = 1_000_000
    rows: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    """The records of each log as it is now, below its start too."""
    at: dict[bytes, int] = field(default_factory=dict)
    """The offset of each value that was ever appended."""
    begun: set[bytes] = field(default_factory=set)
    is_over: bool = False
    is_changing: bool = False
    """Whether the loop's thread changes records other than by an append."""
    pictures: list[Picture] = field(default_factory=list)
    durable: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    """The records of logs that a flush made durable and that nothing has removed since."""
    flushed: set[TopicPartition] = field(default_factory=set)
    """Logs of which a flush has ended since that was last told."""

    @property
    def logs(self) -> LogManager:
        assert self.manager is not None
        return self.manager

    def saw(self, offset: int, value: bytes | None) -> None:
        assert value is not None
        assert value in self.begun or self.at[value] == offset, f"{value!r} at {offset}, not {self.at[value]}"

    def has_flushed(self, log: Log, end: int, cuts: int) -> None:
        """A flush of what is below `end` has returned."""
        partition, start = log.partition.topic_partition, log.log_start_offset
        # From here on no line is the engine's: all of it is one moment.
        is_still = log.partition.cuts == cuts and not log.partition.is_closed and not self.is_changing
        if is_still and partition != COMPACTED:
            kept = {each: value for each, value in self.rows[partition].items() if start <= each < end}
            self.durable[partition] = kept
            self.take_picture(partition)

    def take_picture(self, partition: TopicPartition, most: int = PICTURES) -> None:
        """Keep the disk as a power cut would leave it now."""
        if len(self.pictures) < most:
            rows = self.durable[partition]
            self.pictures.append(Picture(self.disk.durable_image(), {*self.rows}, partition, rows))

    def check_pictures(self) -> None:
        """Power cuts have taken nothing."""
        for disk, logs, flushed, rows in self.pictures:
            manager = manager_on(self, self.dirs, disk=disk)
            assert not manager.damaged, f"damaged: {manager.damaged}"
            assert {*manager.logs()} == logs, f"after a power cut: {[*manager.logs()]}, not {logs}"
            found = {each.offset: each.value for each in manager.logs()[flushed].read()}
            assert rows.items() <= found.items(), f"{flushed} has {found} after a power cut, not {rows}"
            manager.abandon()

    def check(self, manager: LogManager, rows: dict[TopicPartition, dict[int, bytes]]) -> None:
        """The logs have these records."""
        assert not manager.damaged, f"damaged: {manager.damaged}"
        found = manager.logs()
        assert {*found} == {*rows}, f"the logs are {[*found]}, not {[*rows]}"
        for each, log in found.items():
            there = {record.offset: record.value for record in log.read()}
            wanted = {offset: value for offset, value in rows[each].items() if offset >= log.log_start_offset}
            if each == COMPACTED:
                newest = {value[:1]: offset for offset, value in sorted(wanted.items())}
                wanted = {offset: wanted[offset] for offset in newest.values()}
                there = {offset: value for offset, value in there.items() if offset in wanted}
            assert there == wanted, f"{each} has {there}, not {wanted}"


class Loop:
    """The thread that changes the logs."""

    def __init__(self, seed: int, judge: Judge) -> None:
        self._rng, self._judge, self._count = random.Random(f"{seed} loop"), judge, 0
        self.changes = [self._cut, self._drop, self._create, self._advance, self._tick, self._delete]
        self.others = [self._append] * 5
        self.calls = CALLS

    def live(self) -> None:
        self._judge.is_changing = True
        for each in LOGS:
            self._make(each)
        for _ in range(self.calls):
            call = self._rng.choice([*self.others, *self.changes])
            self._judge.is_changing = call in self.changes
            if self._judge.is_changing:
                self._judge.durable.clear()
            call()
        self._judge.is_over = True

    def _log(self) -> tuple[TopicPartition, Log] | None:
        there = [*self._judge.logs.logs().items()]
        return self._rng.choice(there) if there else None

    def _make(self, each: TopicPartition) -> None:
        self._judge.logs.get_or_create(each)
        self._judge.rows.setdefault(each, {})

    def _create(self) -> None:
        self._make(self._rng.choice(LOGS))

    def _delete(self) -> None:
        if (found := self._log()) is not None:
            self._judge.logs.delete(found[0])
            del self._judge.rows[found[0]]

    def _append(self) -> None:
        judge = self._judge
        if (found := self._log()) is None:
            return
        self._count += 1
        value = b"%d-%d" % (self._count % KEYS, self._count) + b"." * self._rng.choice([0, 50])
        judge.begun.add(value)
        judge.at[value] = found[1].append(value, key=value[:1]).first_offset
        judge.begun.discard(value)
        judge.rows[found[0]][judge.at[value]] = value

    def _advance(self) -> None:
        if (found := self._log()) is not None:
            found[1].partition.advance_high_watermark(self._rng.randint(0, found[1].log_end_offset))

    def _cut(self) -> None:
        """As a follower: never below the high watermark."""
        if (found := self._log()) is not None:
            log = found[1].partition
            at = self._rng.randint(log.high_watermark, log.log_end_offset)
            truncate_to(log, at)
            rows = self._judge.rows
            rows[found[0]] = {offset: value for offset, value in rows[found[0]].items() if offset < at}

    def _drop(self) -> None:
        if (found := self._log()) is not None and found[0] != COMPACTED:
            log = found[1].partition
            delete_records(log, self._rng.randint(log.log_start_offset, log.high_watermark))

    def _tick(self) -> None:
        self._judge.now_ms += self._rng.choice([1, 1000, 100_000])
        self._judge.logs.tick(self._judge.now_ms)
        self._judge.logs.checkpoint_high_watermarks()


class Worker:
    """A thread of a pool."""

    def __init__(self, seed: int, judge: Judge, what: str) -> None:
        self._rng, self._judge, self._count = random.Random(f"{seed} {what}"), judge, 0
        self._call = getattr(self, f"_{what}")

    def live(self) -> None:
        while not self._judge.is_over:
            there = [*self._judge.logs.logs().values()]
            with suppress(LogClosed):
                self._call(self._rng.choice(there) if there else None)

    def _flushes(self, log: Log | None) -> None:
        if log is not None:
            end, cuts = log.log_end_offset, log.partition.cuts
            log.partition.flush(end)
            assert log.partition.cuts != cuts or log.partition.recovery_point >= end, "not flushed"
            self._judge.flushed.add(log.partition.topic_partition)
            self._judge.has_flushed(log, end, cuts)

    def _scrubs(self, log: Log | None) -> None:
        for step in scrub(log.partition) if log is not None else ():
            assert not step.damages, f"false alarm: {step.damages}"
            assert not step.rebuilt, f"false alarm: {step.rebuilt}"

    def _reads(self, log: Log | None) -> None:
        if log is not None:
            with suppress(OffsetOutOfRange):
                fetched = log.read_bytes(self._rng.randint(log.log_start_offset, log.log_end_offset))
                for batch in walk(fetched.records):
                    batch.check_crc()
                    for record in batch.records():
                        self._judge.saw(record.offset, record.value)

    def _pictures(self, _: Log | None) -> None:
        judge = self._judge
        if judge.durable and self._rng.random() < 0.1:
            judge.take_picture(self._rng.choice(sorted(judge.durable)), 3 * PICTURES)

    def _snapshots(self, _: Log | None) -> None:
        self._count += 1
        judge = self._judge
        target = f"/snapshot-{self._count}"
        snapshot_logs(judge.logs, judge.disk, target, clock=lambda: judge.now_ms, metadata=None)
        manager = manager_on(judge, (target,))
        assert not manager.damaged, f"damaged: {manager.damaged}"
        for log in manager.logs().values():
            for record in log.read():
                judge.saw(record.offset, record.value)
        manager.close()


def manager_on(judge: Judge, dirs: tuple[str, ...], disk: MemoryDisk | None = None) -> LogManager:
    delay_ms = random.Random(dirs[0]).choice([0, 5000])
    plain = LogConfig(segment_bytes=300, index_interval_bytes=0, file_delete_delay_ms=delay_ms)
    compact = LogConfig(
        segment_bytes=200, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0
    )
    return LogManager(
        dirs,
        disk=disk or judge.disk,
        clock=lambda: judge.now_ms,
        random=random.Random(1),
        config=plain,
        configs={COMPACTED.topic: compact},
        settings=LogManagerConfig(log_initial_task_delay_ms=0, log_cleaner_backoff_ms=1),
    )


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of appended records. Raises what is wrong."""
    rng = random.Random(seed)
    judge, share = Judge(), rng.choice([0.02, 0.1, 0.4])
    workers = rng.sample(WORKERS, 2)
    return run_with(seed, rng, judge, share, Loop(seed, judge), workers)


def run_with(
    seed: int, rng: random.Random, judge: Judge, share: float, loop: Loop, workers: Sequence[str]
) -> int:
    """Run the loop beside these workers."""
    lines, turns = random.Random(f"{seed} lines"), Turns(rng, [])

    def add(hand: Loop | Worker) -> None:
        def work() -> None:
            with interruptible(turns, lines, share):
                hand.live()

        turns.add(work)

    with locks_of(turns):
        judge.manager = manager_on(judge, judge.dirs)
        add(loop)
        for what in workers:
            add(Worker(seed, judge, what))
        turns.run()
        judge.check(judge.manager, judge.rows)
        judge.manager.close()
    judge.check_pictures()
    manager = manager_on(judge, judge.dirs)
    judge.check(manager, judge.rows)
    manager.close()
    return len(judge.at)
