"""The offset index and the time index of a segment: files of fixed-size entries, mapped for lookups.

    00000000000000368769.index              named for the segment's base offset
    ┌──────────────────┬─────────────────┐
    │ relative offset  │ position        │  8 bytes an entry, two big-endian int32; both ascend.
    │ of the batch's   │ of that batch   │  About one entry per `index.interval.bytes` of log,
    │ last record      │ in the .log     │  none for the first batch
    └──────────────────┴─────────────────┘
    00000000000000368769.timeindex
    ┌───────────────┬──────────────────┐
    │ timestamp     │ relative offset  │  12 bytes an entry, big-endian int64 and int32.
    │ largest in    │ of the earliest  │  An entry (t, o) is made when o's batch had the segment's
    │ the segment   │ batch with it    │  largest time so far: every record later than t lies
    │ so far, ms    │ (its last record)│  after offset o
    └───────────────┴──────────────────┘

Both are derived from the `.log` and have no checksum: an entry is only a position at which to start a
search. `segments.py` checks the batch that an entry names. After a crash a file may be stale, short or
zero; recovery rebuilds what lies above the recovery point.

New entries gather in memory and reach the file with one `pwrite` for hundreds of them, on a flush, a roll
and a close: a system call an entry would cost more than the batch it points to. Nothing is ever written
through the map (a full disk would kill the process), and the map is dropped before the file shrinks (a read
past its end would, too). Kafka preallocates its files; zeros at their end are ignored.

A batch gets entries once more than `index.interval.bytes` lie between the last entry's batch and it; the
first batch of a segment never does. A time entry is left out while the largest time has not risen, and the
time index keeps one slot for the entry that is made when the segment stops being active. `Segment.append`
applies this rule batch by batch, `segment_indexes.py` to the columns of thousands of batches.
"""

from __future__ import annotations

import posixpath
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from logstore.config import MAX_INT
from logstore.disk.files import Disk, File, publish, remove_if_exists
from logstore.errors import CorruptIndex
from logstore.format.crc import crc32c
from logstore.lazily import np

if TYPE_CHECKING:
    import numpy.typing as npt

    pass

Int64s: TypeAlias = "npt.NDArray[np.int64]"
Entries: TypeAlias = "npt.NDArray[np.void]"
Column: TypeAlias = "Int64s | tuple[()]"

NO_TIMESTAMP = -1
WRITE_BEHIND_ENTRIES = 512


def entries_of(data: bytes, index: type[IndexFile]) -> Entries:
    """Return the whole entries of a file's content, without the zeros of a preallocated file."""
    used, size = len(data.rstrip(b"\0")), index.layout.size
    return np.frombuffer(data, index.fields, min(-(-used // size), len(data) // size))


class IndexFile:
    """Entries of two columns, the first of which ascends. Safe for one writer and many readers.

    Methods raise `OSError` unless documented otherwise. The file is created by the first write, so an index
    that never had an entry has no file until `flush`.
    """

    layout: ClassVar[Struct]
    fields: ClassVar[list[tuple[str, str]]]
    """The two columns of `layout` as numpy describes them: name and type."""
    suffix: ClassVar[str]
    offset_column: ClassVar[int]
    reserved: ClassVar[int]
    """Slots that are kept for the moment the segment stops being active."""

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self.capacity = max_bytes // self.layout.size
        self.lock = threading.RLock()
        self._file: File | None = None
        self._written = 0
        self._tail: list[tuple[int, int]] = []
        self._last: tuple[int, int] | None = None
        """The last entry of the file as it was loaded or written: the map shows later changes of the disk."""
        self.crc = 0
        """The CRC-32C of the entries in the file, as they were loaded or written."""
        self._is_let_go = False
        self._map: tuple[Column, Column] | None = None

    # --- reading --------------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        """Entries in the file and in memory."""
        return self._written + len(self._tail)

    @property
    def is_full(self) -> bool:
        """Whether only the reserved slot is left, if any: the next append needs a new segment."""
        return self._written + len(self._tail) >= self.capacity - self.reserved

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries as stored: offsets are relative."""
        with self.lock:
            columns = (np.asarray(column).tolist() for column in self._columns)
            return [*zip(*columns, strict=True), *self._tail]

    def entry(self, slot: int) -> tuple[int, int]:
        """Return entry number `slot` as stored. Raises `IndexError` beyond the last."""
        with self.lock:
            if not 0 <= slot < self.entry_count:
                raise IndexError(f"{self.path} has {self.entry_count} entries, none numbered {slot}")
            return self._entry(slot)

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot < self._written:
            first, second = self._columns
            return int(first[slot]), int(second[slot])
        return self._tail[slot - self._written]

    @property
    def written(self) -> tuple[int, int]:
        """The bytes of the entries in the file, and their CRC-32C as they were loaded or written."""
        with self.lock:
            return self._written * self.layout.size, self.crc

    def last_entry(self) -> tuple[int, int] | None:
        """Return the last entry as stored; None if there is none."""
        return self._tail[-1] if self._tail else self._last

    def _floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose first column is at or below `key`."""
        with self.lock:
            tail = self._tail
            if tail and key >= tail[0][0]:
                # The second column is below 2**31, so this sorts after any real entry.
                return tail[bisect_right(tail, (key, MAX_INT + 1)) - 1]
            # bisect, not np.searchsorted: numpy first copies a big-endian column, whole, at every
            # lookup. 1.3 M entries: 620 µs against 1.3 µs (bench/test_index_lookup.py).
            slot = bisect_right(self._columns[0], key) - 1
            return self._entry(slot) if slot >= 0 else None

    # --- opening --------------------------------------------------------------------------------

    def load(self) -> int:
        """Take over the entries of an existing file; returns the CRC-32C of its content.

        Raises `CorruptIndex` if they cannot belong to this segment: rebuild the index then.
        """
        file = self._disk.open(self.path, write=True)
        try:
            size = file.size()
            if size % self.layout.size:
                raise CorruptIndex(f"{self.path}: {size} bytes are not whole entries of {self.layout.size}")
            data = file.pread(size, 0)
            entries = entries_of(data, type(self))
            if len(entries) and not self._are_sane(*self._columns_of(entries)):
                raise CorruptIndex(f"{self.path}: the entries do not ascend; the index must be rebuilt")
        except CorruptIndex:
            file.close()
            raise
        with self.lock:
            self._file, self._written = file, len(entries)
            self._tail.clear()
            self._map = None
            self._last = entries[-1].item() if self._written else None
            self.crc = crc32c(entries.tobytes())
        return crc32c(data)

    @staticmethod
    def _are_sane(first: npt.NDArray[np.signedinteger], second: npt.NDArray[np.signedinteger]) -> bool:
        raise NotImplementedError

    @property
    def _columns(self) -> tuple[Column, Column]:
        """The entries of the file, mapped when they are first looked at. The caller holds the lock."""
        if self._file is None or self._written == 0:
            return (), ()
        if self._map is None:
            data = self._file.map(self._written * self.layout.size)
            self._map = self._columns_of(np.frombuffer(data, self.fields, count=self._written))
        return self._map

    @classmethod
    def _columns_of(cls, entries: Entries) -> tuple[Int64s, Int64s]:
        (first, _), (second, _) = cls.fields
        return entries[first], entries[second]

    # --- writing --------------------------------------------------------------------------------

    def _extend(self, rows: Sequence[tuple[int, int]]) -> bool:
        """Add rows as stored; return whether `write_behind` has something to write."""
        assert self.entry_count + len(rows) <= self.capacity, f"{self.path}: appending to a full index"
        with self.lock:
            self._tail += rows
        return len(self._tail) >= WRITE_BEHIND_ENTRIES

    def write_behind(self) -> None:
        """Write the entries in memory to the file if they are many; on an error they stay in memory."""
        if len(self._tail) >= WRITE_BEHIND_ENTRIES:
            with self.lock:
                self._write_tail()

    def replace(self, entries: Entries | Sequence[tuple[int, int]], *, durably: bool = False) -> None:
        """Replace all entries by `entries`: the index was rebuilt from its log.

        `durably`: wholly or not at all, and safe when it returns. For a segment that recovery will not
        read again, and half an index would be used as if complete. If it fails, this object has its former
        entries, and `written` differs from the file unless that is as before.
        """
        fresh = np.asarray(entries, self.fields)
        data = fresh.tobytes()
        with self.lock:
            if durably:
                publish(self._disk, *posixpath.split(self.path), data)
                file = self._disk.open(self.path, write=True)
                self._close()
                self._file = file
            else:
                file = self._open()
                if data:
                    file.pwrite(data, 0)
                self._map = None  # before the file shrinks
                file.truncate(len(data))
            self._tail, self._map = [], None
            self._written = len(fresh)
            self.crc = crc32c(data)
            self._last = fresh[-1].item() if self._written else None

    def flush(self) -> None:
        """Write all entries to the file, which then exists; not yet durable. Does nothing after `let_go`."""
        with self.lock:
            self._flush()

    def sync(self) -> None:
        """`flush`, and make the file's content survive power loss."""
        with self.lock:
            if file := self._flush():
                file.sync()

    def _flush(self) -> File | None:
        if self._is_let_go:
            return None
        file = self._open()
        self._write_tail()
        return file

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose offset is at or past `offset`."""
        relative, column = offset - self.base_offset, self.offset_column
        with self.lock:
            count = bisect_left(self._columns[column], relative)
            if count == self._written:
                count += bisect_left(self._tail, relative, key=itemgetter(column))
            self._truncate(count)

    def _truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= self._written:
            del self._tail[count - self._written :]
        else:
            self._shrink(count)

    def _write_tail(self) -> None:
        if not self._tail:
            return
        tail = self._tail
        data = b"".join([self.layout.pack(*row) for row in tail])
        self._open().pwrite(data, self._written * self.layout.size)
        self._tail, self._map = [], None
        self._written += len(tail)
        self._last = tail[-1]
        self.crc = crc32c(data, self.crc)

    def _shrink(self, count: int) -> None:
        if count != self._written:
            self.crc = crc32c(self._open().pread(count * self.layout.size, 0)) if count else 0
        self._tail.clear()
        self._map = None
        self._written = count
        if self._file is not None:
            self._file.truncate(count * self.layout.size)
        self._last = self._entry(count - 1) if count else None

    def _open(self) -> File:
        assert not self._is_let_go, f"{self.path}: written to after let_go"
        if self._file is None:
            self._file = self._disk.open(self.path, create=True, write=True)
            # What a crash or another program left under this name is not ours: entries start at 0.
            self._file.truncate(self._written * self.layout.size)
        return self._file

    # --- closing --------------------------------------------------------------------------------

    def trim(self) -> None:
        """Write all entries and cut a preallocated zero tail: the segment is no longer active."""
        with self.lock:
            file = self._open()
            self._write_tail()
            if file.size() != self._written * self.layout.size:
                self._shrink(self._written)

    def close(self) -> None:
        """Write all entries and close the file."""
        with self.lock:
            if self._tail:
                self._write_tail()
            self._close()

    def let_go(self) -> None:
        """Drop the file and its map permanently, without writing; later lookups find nothing.

        Another object may open the file again and cut it. This one's map must be dropped before
        that, and a late flush must not create the file anew.
        """
        with self.lock:
            self._is_let_go = True
            self._forget()

    def _close(self) -> None:
        file = self._file
        self._forget()
        if file is not None:
            file.close()

    def _forget(self) -> None:
        self._tail.clear()
        self._map = None
        self._written, self._last, self.crc = 0, None, 0
        self._file = None

    def delete(self) -> None:
        """Close the file and unlink it, if it exists."""
        with self.lock:
            self._close()
        remove_if_exists(self._disk, self.path)


class OffsetPosition(NamedTuple):
    """The batch that ends with `offset` starts at byte `position` of the `.log`."""

    offset: int
    position: int


def _as_many_as_fit(index: IndexFile, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return rows[: max(0, index.capacity - index.reserved - index.entry_count)]


class OffsetIndex(IndexFile):
    """The offset index of one segment. Offsets are absolute in all methods but `entries`."""

    layout: ClassVar[Struct] = Struct(">ii")
    fields: ClassVar[list[tuple[str, str]]] = [("relative_offset", ">i4"), ("position", ">i4")]
    suffix: ClassVar[str] = ".index"
    offset_column: ClassVar[int] = 0
    reserved: ClassVar[int] = 0

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if there is none."""
        last = self.last_entry()
        return self.base_offset + last[0] if last else self.base_offset

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batch at `position` ends with `offset`, which is above all before it."""
        relative = offset - self.base_offset
        assert 0 <= relative <= MAX_INT, f"{self.path}: offset {offset} does not fit the segment"
        last = self.last_entry()
        assert last is None or relative > last[0], f"{self.path}: offset {offset} does not rise"
        self._extend([(relative, position)])

    def extend(self, entries: Sequence[tuple[int, int]]) -> bool:
        """`append` for rows of rising (offset, position); rows that exceed the capacity are left out.

        Returns whether `write_behind` has something to write.
        """
        base_offset, last = self.base_offset, self.last_entry()
        rows = [(offset - base_offset, position) for offset, position in entries]
        assert not rows or last is None or rows[0][0] > last[0], f"{self.path}: offsets go back"
        assert not rows or rows[-1][0] <= MAX_INT, f"{self.path}: {entries[-1][0]} does not fit"
        return self._extend(_as_many_as_fit(self, rows))

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the entry with the largest offset at or below `offset`; (base offset, 0) if none."""
        found = self._floor(offset - self.base_offset)
        if found is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + found[0], found[1])

    def position_before(self, position: int) -> int:
        """Return the largest position of an entry at or below `position`; 0 if there is none."""
        with self.lock:
            tail = self._tail
            if tail and position >= tail[0][1]:
                return tail[bisect_right(tail, position, key=itemgetter(1)) - 1][1]
            positions = self._columns[1]
            slot = bisect_right(positions, position) - 1
            return int(positions[slot]) if slot >= 0 else 0

    @classmethod
    def position_in(cls, data: bytes, relative_offset: int) -> int:
        """Return the position to start a search for an offset, by an index file's content; 0 if unknown.

        A hint: zeros and part of an entry at the end are ignored, nothing else is checked.
        """
        entries = entries_of(data, cls)
        slot = bisect_right(entries["relative_offset"], relative_offset) - 1
        return int(entries["position"][slot]) if slot >= 0 else 0

    @staticmethod
    def _are_sane(first: npt.NDArray[np.signedinteger], second: npt.NDArray[np.signedinteger]) -> bool:
        # Compared, not subtracted: a difference of two int32 can wrap around.
        rises = (first[1:] > first[:-1]).all() and (second[1:] > second[:-1]).all()
        return bool(first[0] >= 0 and second[0] >= 0 and rises)


class TimestampedOffset(NamedTuple):
    """No record up to `offset` has a time above `timestamp_ms`; -1 when there is no entry."""

    timestamp_ms: int
    offset: int


class TimeIndex(IndexFile):
    """The time index of one segment. Offsets are absolute in all methods but `entries`."""

    layout: ClassVar[Struct] = Struct(">qi")
    fields: ClassVar[list[tuple[str, str]]] = [("timestamp", ">i8"), ("relative_offset", ">i4")]
    suffix: ClassVar[str] = ".timeindex"
    offset_column: ClassVar[int] = 1
    reserved: ClassVar[int] = 1

    @property
    def last(self) -> TimestampedOffset:
        """The last entry; (-1, base offset) if there is none."""
        return self._absolute(self.last_entry())

    def _absolute(self, entry: tuple[int, int] | None) -> TimestampedOffset:
        if entry is None:
            return TimestampedOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampedOffset(entry[0], self.base_offset + entry[1])

    def maybe_append(self, timestamp_ms: int, offset: int, *, is_last: bool = False) -> None:
        """Add an entry: `timestamp_ms` is the largest time up to `offset`. A time that is there is skipped.

        `is_last` may use the reserved slot.
        """
        last = self.last_entry()
        if last is None:
            if timestamp_ms < 0:
                return
        elif timestamp_ms <= last[0]:
            assert timestamp_ms == last[0], f"{self.path}: time {timestamp_ms} goes back"
            return
        relative = offset - self.base_offset
        assert 0 <= relative <= MAX_INT, f"{self.path}: offset {offset} does not fit the segment"
        assert last is None or relative >= last[1], f"{self.path}: offset {offset} goes back"
        assert not self.is_full or is_last, f"{self.path} is full"
        if self.entry_count == self.capacity:
            # The segment was inactive once before (a crash took its successor), so the reserved slot is
            # used. A later entry stands for an earlier one: it takes its place.
            with self.lock:
                self._truncate(self.entry_count - 1)
        self._extend([(timestamp_ms, relative)])

    def extend(self, entries: Iterable[tuple[int, int]]) -> bool:
        """`maybe_append` for rows of (time, offset) that do not fall; excess rows are dropped.

        Returns whether `write_behind` has something to write.
        """
        base_offset, last = self.base_offset, self.last_entry()
        newest_ms = NO_TIMESTAMP if last is None else last[0]
        rising: list[tuple[int, int]] = []
        for timestamp_ms, offset in entries:
            if timestamp_ms > newest_ms:
                rising.append((timestamp_ms, offset - base_offset))
                newest_ms = timestamp_ms
        return self._extend(_as_many_as_fit(self, rising))

    def lookup(self, timestamp_ms: int) -> TimestampedOffset:
        """Return the entry with the largest time at or below `timestamp_ms`; (-1, base offset) if none."""
        return self._absolute(self._floor(timestamp_ms))

    @staticmethod
    def _are_sane(first: npt.NDArray[np.signedinteger], second: npt.NDArray[np.signedinteger]) -> bool:
        return bool(second[0] >= 0 and (first[1:] > first[:-1]).all() and (second[1:] >= second[:-1]).all())


def rising(times: Int64s, before: int) -> npt.NDArray[np.bool_]:
    """Where each time is larger than the one before it; their difference may not fit into 64 bits."""
    rises = np.empty(len(times), np.bool_)
    rises[:1] = times[:1] > before
    np.greater(times[1:], times[:-1], out=rises[1:])
    return rises
