"""Threads of one program at one log, and what must hold for the records that they append and read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

# A turn that ends in an import would keep its lock.
import logstore.compact.compaction_pass
import logstore.log.heal
import logstore.log.scrub
import logstore.log.snapshot  # noqa: F401
from logstore import Log, LogConfig, Record
from logstore.errors import LogClosed, OffsetOutOfRange
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules.locks import interruptible, locks_of
from tests.turns import Turns

DIRECTORY: Final = "/data/orders-0"
THREADS: Final = 3
FLAVOURS: Final = ("appends", "syncs", "cuts", "deletions", "followers", "closes", "compaction", "upkeep")
KEYS: Final = 3
LAST: Final = b"the last one"
PICTURES: Final = 4
CALLS: Final = {"syncs": 2, "compaction": 30}
"""Other numbers than 12. Who sleeps through a sync is woken by the next one: only the last one hangs."""


@dataclass
class Judge:
    """The results of all calls so far. No lock: one thread runs at a time."""

    log: Log | None = None
    begun: set[bytes] = field(default_factory=set)
    """Values of appends that have not returned."""
    refused: set[bytes] = field(default_factory=set)
    placed: dict[bytes, int] = field(default_factory=dict)
    seen: dict[bytes, int] = field(default_factory=dict)
    cuts: int = 0
    open_cuts: int = 0
    committed: dict[str, int] = field(default_factory=dict)
    deleted: int = 0
    """Below this offset records may be gone."""
    synced: dict[str, int] = field(default_factory=dict)
    """The commits of cursors that are durable."""
    pictures: list[tuple[MemoryDisk, int, dict[str, int]]] = field(default_factory=list)
    """Disks after power cuts, each with the end of its durable records, and its durable commits."""

    def saw(self, offset: int, value: bytes | None) -> None:
        """A read returned a record."""
        assert value is not None
        at = self.placed.get(value, self.seen.get(value))
        assert at is not None or value in self.begun, f"invented: {value!r} at {offset}"
        assert at in (None, offset), f"moved: {value!r} at {offset}, appended at {at}"
        self.seen[value] = offset

    def appended(self, values: Sequence[bytes], offsets: Sequence[int]) -> None:
        """An append has returned."""
        for offset, value in zip(offsets, values, strict=True):
            assert self.seen.get(value, offset) == offset, (
                f"{value!r} was read at {self.seen[value]}, is at {offset}"
            )
            self.placed[value] = offset
            self.begun.discard(value)

    def was_refused(self, values: Sequence[bytes]) -> None:
        """An append has failed. Batches before a refused one stay."""
        self.begun.discard(values[-1])
        self.refused.add(values[-1])
        assert not self.refused & self.seen.keys(), f"{values} were read and are not there"

    def is_durable(self, disk: MemoryDisk, end: int) -> None:
        """Keep a picture of the disk. What is below `end` is durable, in a log that nobody cuts."""
        if len(self.pictures) < PICTURES:
            self.pictures.append((disk.durable_image(), end, self.synced.copy()))

    def check_pictures(self, config: LogConfig) -> None:
        """Power cuts have taken nothing."""
        for disk, end, synced in self.pictures:
            with Log.open(DIRECTORY, config, disk=disk) as log:
                found, committed, last = _rows(log), log.cursors(), log.log_end_offset
            lost = {
                value: offset
                for value, offset in self.placed.items()
                if self.deleted <= offset < end and found.get(offset) != value
            }
            assert not lost, f"lost in a power cut: {lost}"
            late = {name for name, offset in synced.items() if committed.get(name, -1) < min(offset, last)}
            assert not late, f"commits lost in a power cut: {late}"

    @property
    def end(self) -> int:
        return max(self.placed.values(), default=-1) + 1


class Caller:
    """One thread."""

    def __init__(self, number: int, seed: int, judge: Judge, flavour: str, share: float) -> None:
        self._number, self._judge, self._flavour, self._share = number, judge, flavour, share
        self._rng, self._lines = random.Random(f"{seed} {number}"), random.Random(f"{seed} lines {number}")
        self._count = 0
        self.turns: Turns | None = None
        self.disk: MemoryDisk | None = None

    @property
    def _is_compacted(self) -> bool:
        return self._flavour == "compaction"

    @property
    def _log(self) -> Log:
        assert self._judge.log is not None
        return self._judge.log

    def live(self) -> None:
        assert self.turns is not None
        usual = [self._append, self._append, self._read, self._get, self._ends, self._flush]
        calls = {
            "syncs": [self._append, self._flush],
            "cuts": [*usual, self._cut],
            "deletions": [*usual, self._delete, self._maintain],
            "compaction": [*usual, self._compact, self._maintain],
            "closes": [*usual, self._commit],
            "upkeep": [*usual, self._commit, self._commit, self._scrub, self._copy, self._maintain],
        }.get(self._flavour, usual)
        with interruptible(self.turns, self._lines, self._share):
            if self._flavour == "followers" and self._number:
                self._follow()
                return
            with suppress(LogClosed) if self._flavour == "closes" else nullcontext():
                for number in range(CALLS.get(self._flavour, 12)):
                    self._rng.choice(calls)()
                    if self._flavour == "closes" and not self._number and number == 6:
                        self._log.close()
                        self._judge.synced = self._judge.committed.copy()
                        self._is_durable(self._judge.end)
            if self._flavour == "followers":
                self._log.append(LAST)

    def _follow(self) -> None:
        """Read to the last record, for which a follower waits without a time limit."""
        start = min(self._rng.choice([0, 0, 3]), self._log.log_end_offset)
        expected = start
        for record in self._log.follow(start):
            assert record.offset == expected, f"followed to {record.offset}, not {expected}"
            expected += 1
            if record.value == LAST:
                return
            self._judge.saw(record.offset, record.value)

    def _append(self) -> None:
        rng, judge = self._rng, self._judge
        values = []
        most = 1 if self._flavour == "cuts" else 3  # a cut inside of a batch leaves a gap
        for _ in range(rng.choice([1, 1, most])):
            self._count += 1
            values.append(b"%d-%d" % (self._number, self._count) + b"." * rng.choice([0, 0, 50]))
        judge.begun |= set(values)
        cuts, sync = (judge.cuts, judge.open_cuts), rng.random() < (0.9 if self._flavour == "syncs" else 0.3)
        rows = [(_key_of(value), value) for value in values] if self._is_compacted else values
        try:
            info = self._log.append(rows[0] if len(rows) == 1 else rows, sync=sync)
        except LogClosed:
            judge.was_refused(values)
            raise
        judge.appended(values, info.offsets)
        if sync and cuts == (judge.cuts, 0) and self._flavour != "deletions":
            assert self._log.is_synced(info.last_offset), "not synced"
            self._is_durable(info.last_offset + 1)

    def _bounds(self) -> tuple[int, int]:
        start = self._rng.randrange(self._judge.end + 1)
        return start, start + self._rng.choice([1, 5, 1000])

    def _checked(self, read: Callable[[], list[tuple[int, bytes | None]]], start: int, end: int) -> None:
        judge = self._judge
        is_quiet, cuts, known = not judge.open_cuts, judge.cuts, self._log.log_end_offset
        try:
            found = read()
        except OffsetOutOfRange:
            if is_quiet and judge.cuts == cuts and judge.deleted <= start < known:
                raise
            return
        for offset, value in found:
            judge.saw(offset, value)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"out of order: {offsets}"
        if self._is_compacted:
            return
        if is_quiet and judge.cuts == cuts:
            assert offsets == list(range(start, start + len(found))), f"from {start}: {offsets}"
            assert start + len(found) >= min(end, known), f"ends early: {start} to {end}, {known}: {offsets}"

    def _read(self) -> None:
        start, end = self._bounds()
        how = self._rng.choice(["read", "values", "reverse", "batches"])
        self._checked(partial(self._rows, how, start, end), start, end)

    def _rows(self, how: str, start: int, end: int) -> list[tuple[int, bytes | None]]:
        log = self._log
        if how == "values" and not self._is_compacted:
            return list(enumerate(log.read_values(start, end), start))
        if how == "reverse":
            return [(each.offset, each.value) for each in log.read_reverse(start, end)][::-1]
        if how == "batches":
            return [
                (each.offset, each.value)
                for batch in log.read_batches(start, end)
                for each in batch.records()
                if start <= each.offset < end
            ]
        return [(each.offset, each.value) for each in log.read(start, end)]

    def _get(self) -> None:
        offset = self._rng.randrange(self._judge.end + 1)
        known, cuts = self._log.log_end_offset, self._judge.cuts
        if offset < known or self._judge.open_cuts or cuts:
            self._checked(partial(self._row, offset), offset, offset + 1)

    def _row(self, offset: int) -> list[tuple[int, bytes | None]]:
        record: Record | None = self._log.get(offset)
        return [] if record is None else [(record.offset, record.value)]

    def _ends(self) -> None:
        log = self._log
        for found in (log.last(), log.first()):
            if found is not None:
                self._judge.saw(found.offset, found.value)
        assert len(log) >= 0
        log.offset_for_timestamp(0)

    def _flush(self) -> None:
        end = self._log.log_end_offset
        self._log.flush()
        self._is_durable(end)

    def _is_durable(self, end: int) -> None:
        if self._flavour not in ("cuts", "compaction"):
            assert self.disk is not None
            self._judge.is_durable(self.disk, end)

    def _cut(self) -> None:
        judge = self._judge
        offset = max(judge.end - self._rng.randrange(6), 0)
        judge.open_cuts += 1
        judge.cuts += 1
        self._log.truncate_to(offset)
        judge.open_cuts -= 1

    def _delete(self) -> None:
        offset = max(self._log.log_end_offset - self._rng.randrange(8), 0)
        self._judge.deleted = max(self._judge.deleted, offset)
        self._log.delete_records(offset)

    def _commit(self) -> None:
        name = f"cursor-{self._number}"
        cursor = self._log.cursor(name)
        for record in cursor.read(self._rng.choice([1, 3])):
            self._judge.saw(record.offset, record.value)
        committed = cursor.commit(sync=(sync := self._rng.random() < 0.3))
        assert committed >= self._judge.committed.get(name, 0), "went back"
        self._judge.committed[name] = committed
        if sync:
            self._judge.synced[name] = committed
            self._is_durable(0)
        assert self._log.cursor(name).position == committed

    def _scrub(self) -> None:
        found = self._log.scrub()
        assert not found.damages, f"false alarm: {found.damages}"

    def _copy(self) -> None:
        """A copy has everything that was there when its call began."""
        end = self._log.log_end_offset
        self._count += 1
        path = Path(f"/data/copy-{self._number}-{self._count}-0")
        self._log.snapshot(path)
        assert self.disk is not None
        with Log.open(path, disk=self.disk) as copy:
            rows = _rows(copy)
        assert list(rows) == list(range(len(rows))), f"a gap in the copy: {list(rows)}"
        assert len(rows) >= end, f"the copy ends at {len(rows)}, the log ended at {end}"
        for offset, value in rows.items():
            self._judge.saw(offset, value)

    def _compact(self) -> None:
        self._log.compact()

    def _maintain(self) -> None:
        self._log.maintain()


def run(seed: int, flavour: str | None = None) -> int:
    """Run the schedule of a seed; return the number of appended records. Raises what is wrong."""
    rng, judge = random.Random(seed), Judge()
    flavour = flavour or rng.choice(FLAVOURS)
    callers = [Caller(each, seed, judge, flavour, rng.choice([0.02, 0.1, 0.4])) for each in range(THREADS)]
    turns = Turns(rng, [caller.live for caller in callers])
    disk = MemoryDisk()
    config = LogConfig(
        cleanup_policy="compact" if flavour == "compaction" else "delete",
        segment_bytes=200 if flavour == "compaction" else rng.choice([300, 1000, 1 << 20]),
        index_interval_bytes=rng.choice([0, 200]),
    )
    with locks_of(turns):
        judge.log = Log.open(DIRECTORY, config, disk=disk)
        for caller in callers:
            caller.turns, caller.disk = turns, disk
        turns.run()
        left = None if flavour == "closes" else _rows(judge.log)
        judge.log.close()
    judge.check_pictures(config)
    with Log.open(DIRECTORY, config, disk=disk) as log:
        found = _rows(log)
        assert log.cursors() == judge.committed
    assert left in (None, found), "a restart changed the log"
    for offset, value in found.items():
        if value != LAST:
            judge.saw(offset, value)
    if flavour == "compaction":
        newest = {_key_of(value): value for value, _ in sorted(judge.placed.items(), key=itemgetter(1))}
        assert set(newest.values()) <= set(found.values()), f"lost: {newest}"
    elif flavour not in ("cuts", "deletions"):
        lost = {value for value, offset in judge.placed.items() if found.get(offset) != value}
        assert not lost, f"lost: {lost}"
    return len(judge.placed)


def _key_of(value: bytes) -> bytes:
    return b"%d" % (sum(value) % KEYS)


def _rows(log: Log) -> dict[int, bytes | None]:
    return {each.offset: each.value for each in log.read()}
