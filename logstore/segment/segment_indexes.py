"""The offset index and the time index of one segment, together: open, check, rebuild and cut them.

`IndexEntries` applies the rule of `indexes.py` to the columns of thousands of batches, while a segment is
scanned to rebuild both.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.errors import CorruptIndex, Damage, DamageKind
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC
from logstore.lazily import np
from logstore.segment.indexes import (
    NO_TIMESTAMP,
    Entries,
    IndexFile,
    Int64s,
    OffsetIndex,
    TimeIndex,
    TimestampedOffset,
    rising,
)
from logstore.segment.scan import Scanned, scan

if TYPE_CHECKING:
    from logstore.segment.segment import Segment

_PLACE: Final = Struct(">qi4xb6xi8xq18x")
"""Base offset, length, magic, last offset delta and largest time in the header of a batch."""


class SegmentIndexes:
    """The offset index and the time index of one segment, opened with the first use.

    Methods raise `OSError`.
    """

    def __init__(self, segment: Segment, *, is_new: bool) -> None:
        self._segment = segment
        self._open: tuple[OffsetIndex, TimeIndex] | None = self._fresh() if is_new else None
        self.rebuilt: list[Damage] = []
        """The index files that were rebuilt since the log was opened; the log's segments share the list."""
        self.hints: dict[int, int] = {}
        """Offsets that reads ended at, with their positions."""

    def _fresh(self) -> tuple[OffsetIndex, TimeIndex]:
        segment, limit = self._segment, self._segment.config.segment_index_bytes
        return (
            OffsetIndex(segment.disk, segment.path(OffsetIndex.suffix), segment.base_offset, limit),
            TimeIndex(segment.disk, segment.path(TimeIndex.suffix), segment.base_offset, limit),
        )

    def renew_locks(self) -> None:
        """Make locks that no thread holds, in a forked child."""
        for index in self._open or ():
            index.lock = threading.RLock()

    @property
    def are_open(self) -> bool:
        """Whether they are in use; entries may wait in memory then."""
        return self._open is not None

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index."""
        return (self._open or self._loaded())[0]

    @property
    def times(self) -> TimeIndex:
        """The time index."""
        return (self._open or self._loaded())[1]

    def _loaded(self) -> tuple[OffsetIndex, TimeIndex]:
        with self._segment.lock:
            if self._open is None:
                self._segment.check_held()
                offsets, times = self._fresh()
                suffix = OffsetIndex.suffix
                try:
                    crc = offsets.load()
                    self._check_offsets(offsets, crc)
                    suffix = TimeIndex.suffix
                    crc = times.load()
                    self._check_times(offsets, times, crc)
                except FileNotFoundError:
                    self._rebuild(offsets, times)
                    self._tell(suffix, "the file is missing")
                except CorruptIndex as error:
                    self._rebuild(offsets, times)
                    self._tell(suffix, str(error))
                self._open = offsets, times
            return self._open

    def _check_offsets(self, offsets: OffsetIndex, crc: int) -> None:
        """Find cheap contradictions between an index file and the `.log`; deeper ones show at a lookup."""
        segment, last = self._segment, offsets.last_entry()
        if last is not None and last[1] >= segment.size:
            raise CorruptIndex(f"{offsets.path} points past the end of the log")
        if segment.seal is not None and crc != segment.seal.offsets_crc:
            raise CorruptIndex(f"{offsets.path} is not as it was sealed")

    def _check_times(self, offsets: OffsetIndex, times: TimeIndex, crc: int) -> None:
        segment, last = self._segment, times.last
        if segment.size and last.timestamp_ms < 0 and segment.first_timestamp_ms > 0:
            # A closed segment with record times has at least the entry made when it was closed. The entry of
            # time 0 and the first offset is all zeros, like the end of a preallocated file.
            raise CorruptIndex(f"{times.path} is empty although records have times")
        if segment.seal is not None:
            if crc != segment.seal.times_crc:
                raise CorruptIndex(f"{times.path} is not as it was sealed")
        elif last.timestamp_ms >= 0 and self._time_at(offsets, last.offset) != last.timestamp_ms:
            # Retention and new entries depend on it.
            raise CorruptIndex(f"{times.path}: no batch has the time of the last entry")

    def _time_at(self, offsets: OffsetIndex, offset: int) -> int | None:
        """Return the largest time of the batch that holds `offset`; None if no batch is found for it."""
        segment = self._segment
        position = offsets.lookup(offset).position
        with segment.log_for_reading() as file:
            while position < segment.size:
                header = file.pread(HEADER_BYTES, position)
                if len(header) < HEADER_BYTES:
                    return None
                base_offset, size, magic, delta, timestamp_ms = _PLACE.unpack(header)
                if magic != MAGIC or size <= 0 or base_offset > offset:
                    return None
                if offset <= base_offset + delta:
                    return int(timestamp_ms)
                position += size + LOG_OVERHEAD
        return None

    def time_floor(self, timestamp_ms: int) -> TimestampedOffset:
        """Return the entry with the largest time at or below `timestamp_ms`, compared with its batch."""
        floor = self.times.lookup(timestamp_ms)
        if floor.timestamp_ms >= 0 and self._time_at(self.offsets, floor.offset) != floor.timestamp_ms:
            with self._segment.lock:
                # Looked up again: a cut that came between is no fault of the index.
                floor = self.times.lookup(timestamp_ms)
                if floor.timestamp_ms >= 0 and (
                    self._time_at(self.offsets, floor.offset) != floor.timestamp_ms
                ):
                    self.rebuild(TimeIndex.suffix, "no batch has the time of an entry")
                    floor = self.times.lookup(timestamp_ms)
        return floor

    def _tell(self, suffix: str, text: str) -> None:
        base_offset = self._segment.base_offset
        self.rebuilt.append(
            Damage(DamageKind.DERIVED, f"{base_offset:020d}{suffix}", 0, base_offset, text, 0)
        )

    def _rebuild(self, offsets: OffsetIndex, times: TimeIndex) -> tuple[int, int] | None:
        """Return the largest record time with its offset; None if a batch is damaged."""
        segment = self._segment
        found, fault = IndexEntries(segment.base_offset, segment.config.index_interval_bytes), None
        with segment.log_for_reading() as file:
            for scanned in scan(file, 0, segment.size, base_offset=segment.base_offset):
                found.add(scanned)
                fault = scanned.fault
        found.finish()
        offsets.replace(found.offset_entries, durably=segment.is_settled)
        times.replace(found.time_entries, durably=segment.is_settled)
        return None if fault is not None else (found.max_timestamp_ms, found.offset_of_max_timestamp)

    def rebuild(self, suffix: str, why: str) -> None:
        """Rebuild both indexes from the `.log`, and enter the file with that suffix in `rebuilt`."""
        with self._segment.lock:
            largest = self._rebuild(*(self._open or self._loaded()))
            self._tell(suffix, why)
            self.hints.clear()
            self._segment.indexes_changed(largest)

    def settle(self, found: IndexEntries) -> list[str]:
        """Replace the indexes by the results of a walk over the segment; return the replaced suffixes.

        The files are only compared with it, not read again to be rebuilt. One that is missing is written.
        """
        renewed = []
        segment = self._segment
        with segment.lock:
            segment.check_held()
            was_open = self._open is not None
            offsets, times = self._open or self._fresh()
            for index, entries in ((offsets, found.offset_entries), (times, found.time_entries)):
                stands = True
                try:
                    if not was_open:
                        index.load()
                except (FileNotFoundError, CorruptIndex):
                    stands = False
                if not stands or index.entries() != entries.tolist():
                    index.replace(entries, durably=segment.is_settled)
                    renewed.append(index.suffix)
                index.trim()
            self._open = offsets, times
            self.hints.clear()
            segment.indexes_changed((found.max_timestamp_ms, found.offset_of_max_timestamp))
            segment.last_position_without_entry = segment.size + segment.config.index_interval_bytes
        return renewed

    @property
    def are_full(self) -> bool:
        """Whether one of them takes no more entries."""
        offsets, times = self._open or self._loaded()
        return offsets.is_full or times.is_full

    def extend(self, offsets: Sequence[tuple[int, int]], times: Sequence[tuple[int, int]]) -> bool:
        """Add rows of (offset, position) and of (time, offset), as many as fit.

        Returns whether `write_behind` has something to write.
        """
        by_offset, by_time = self._open or self._loaded()
        are_many = by_offset.extend(offsets)
        return by_time.extend(times) or are_many

    def write_behind(self) -> None:
        """Write the entries in memory to the files if they are many."""
        self.offsets.write_behind()
        self.times.write_behind()

    def reaches(self, offset: int) -> bool:
        """Return whether an entry is at or past `offset`."""
        offsets, times = self.offsets, self.times
        return bool(
            (offsets.entry_count and offsets.last_offset >= offset)
            or (times.entry_count and times.last.offset >= offset)
        )

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of offsets at or past `offset`."""
        offsets, times = self._open or self._loaded()
        self.hints.clear()
        offsets.truncate_to(offset)
        times.truncate_to(offset)

    def finish(self, max_timestamp_ms: int, offset: int) -> None:
        """Add the last time entry, and cut the files to their contents."""
        self.times.maybe_append(max_timestamp_ms, offset, is_last=True)
        self.offsets.trim()
        self.times.trim()

    def sync(self) -> None:
        """Make the files' content survive power loss."""
        self.offsets.sync()
        self.times.sync()

    def close(self) -> None:
        """Write all entries and close the files."""
        for index in self._open or ():
            index.close()

    def let_go(self) -> None:
        """Drop the files without writing.

        Their maps are dropped at once: a reader may be about to look something up in one, and the next user
        of the file may cut it. A read of a map past the end of its file kills the process.
        """
        opened, self._open = self._open or (), None  # first: an interrupt must not leave one that is let go
        for index in opened:
            index.let_go()
        self.hints.clear()

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the entries in the offset index and in the time index."""
        offsets, times = self._open or self._loaded()
        return offsets.entry_count * offsets.layout.size, times.entry_count * times.layout.size


# --- the entries that a scan gives ---------------------------------------------------------------------


class IndexState(NamedTuple):
    """The rule's state: the last entry's position, and the largest time with its batch's last offset."""

    last_position: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int


class DueEntries(NamedTuple):
    """The entries that some batches give, as columns of equal length, and the state after them."""

    offsets: Int64s
    positions: Int64s
    timestamps: Int64s
    timestamp_offsets: Int64s
    state: IndexState


def due_entries(
    state: IndexState, interval_bytes: int, positions: Int64s, last_offsets: Int64s, times: Int64s
) -> DueEntries:
    """Apply the rule to the next batches (at least one), given as columns in log order."""
    slots, last_position = _due_slots(state.last_position, interval_bytes, positions)
    running = np.maximum.accumulate(np.maximum(times, state.max_timestamp_ms))
    # For each batch, the earliest one that had the largest time so far; -1: it was seen before.
    rises = rising(running, state.max_timestamp_ms)
    earliest = np.maximum.accumulate(np.where(rises, np.arange(len(running)), -1))
    holders = np.where(earliest < 0, state.offset_of_max_timestamp, last_offsets[earliest])
    return DueEntries(
        last_offsets[slots],
        positions[slots],
        running[slots],
        holders[slots],
        IndexState(last_position, int(running[-1]), int(holders[-1])),
    )


def _steps(column: Int64s, before: int) -> Int64s:
    """The difference of each value to the one before it."""
    # np.diff(column, prepend=before) takes 23 µs for three values, this one 1.
    steps = column.copy()
    steps[0] -= before
    steps[1:] -= column[:-1]
    return steps


def _due_slots(last: int, interval_bytes: int, positions: Int64s) -> tuple[Int64s, int]:
    if (_steps(positions, last) > interval_bytes).all():
        return np.arange(len(positions)), int(positions[-1])
    rows = positions.tolist()
    slots: list[int] = []
    slot = bisect_right(rows, last + interval_bytes)
    while slot < len(rows):
        slots.append(slot)
        last = rows[slot]
        slot = bisect_right(rows, last + interval_bytes, slot + 1)
    return np.array(slots, np.int64), last


class IndexEntries:
    """The index entries of a whole segment, gathered while its batches are scanned."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._state = IndexState(0, NO_TIMESTAMP, base_offset)
        self._offset_entries: list[Entries] = []
        self._time_entries: list[Entries] = []
        self._last_time_entry = NO_TIMESTAMP

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record time so far; -1 if no record has one."""
        return self._state.max_timestamp_ms

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the earliest batch that has it."""
        return self._state.offset_of_max_timestamp

    def add(self, found: Scanned) -> None:
        """Add the entries of the next batches."""
        if not len(found.headers):
            return
        times = found.headers["max_timestamp"].astype(np.int64)
        due = due_entries(self._state, self._interval_bytes, found.positions, found.last_offsets, times)
        self._state = due.state
        self._offset_entries.append(_table(OffsetIndex, due.offsets - self._base_offset, due.positions))
        self._add_time_entries(due.timestamps, due.timestamp_offsets)

    def finish(self) -> None:
        """Add the time entry that a segment gets when it stops being active."""
        self._add_time_entries(np.array([self.max_timestamp_ms]), np.array([self.offset_of_max_timestamp]))

    @property
    def offset_entries(self) -> Entries:
        """Rows of `OffsetIndex.fields`."""
        return _joined(self._offset_entries, OffsetIndex)

    @property
    def time_entries(self) -> Entries:
        """Rows of `TimeIndex.fields`."""
        return _joined(self._time_entries, TimeIndex)

    def _add_time_entries(self, times: Int64s, offsets: Int64s) -> None:
        rises = rising(times, self._last_time_entry)
        if rises.any():
            relative = offsets[rises] - self._base_offset
            self._time_entries.append(_table(TimeIndex, times[rises], relative))
            self._last_time_entry = int(times[-1])


def _table(index: type[IndexFile], *columns: Int64s) -> Entries:
    table = np.empty(len(columns[0]), index.fields)
    for (name, _), column in zip(index.fields, columns, strict=True):
        table[name] = column
    return table


def _joined(tables: list[Entries], index: type[IndexFile]) -> Entries:
    # Not np.concatenate: it turns big-endian columns into native ones.
    return np.frombuffer(b"".join(table.tobytes() for table in tables), index.fields)
