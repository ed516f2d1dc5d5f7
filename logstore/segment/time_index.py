"""Time index: from a time to the offset from which later records lie.

    00000000000000368769.timeindex
    ┌───────────────┬──────────────────┐
    │ timestamp     │ relative offset  │  12 bytes an entry, big-endian int64 and int32.
    │ largest in    │ of the earliest  │  An entry (t, o) made when o's batch had the segment's
    │ the segment   │ batch with it    │  largest time so far: every record later than t lies
    │ so far, ms    │ (its last record)│  after offset o
    └───────────────┴──────────────────┘

One slot stays free for the entry that is made when the segment stops being active. Derived data,
like the offset index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.config import MAX_INT
from logstore.errors import CorruptIndex
from logstore.segment.index_file import IndexFile

NO_TIMESTAMP = -1


class TimestampedOffset(NamedTuple):
    """No record up to `offset` has a time above `timestamp_ms`; -1 when there is no entry."""

    timestamp_ms: int
    offset: int


class TimeIndex(IndexFile):
    """The time index of one segment; offsets in its methods are absolute."""

    dtype: ClassVar[np.dtype[np.void]] = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
    suffix: ClassVar[str] = ".timeindex"

    def _mapped(self) -> None:
        super()._mapped()
        self._columns_changed()

    def _columns_changed(self) -> None:
        self._timestamps = self._entries["timestamp"]

    @property
    def is_full(self) -> bool:
        """Whether only the slot for the last entry of a rolled segment is left."""
        return self._written + len(self._tail) >= self.capacity - 1

    @property
    def last(self) -> TimestampedOffset:
        """The last entry; (-1, base offset) if there is none."""
        last = self._last()
        if last is None:
            return TimestampedOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampedOffset(last[0], self.base_offset + last[1])

    def maybe_append(self, timestamp_ms: int, offset: int, *, is_last: bool = False) -> None:
        """Note that `timestamp_ms` is the largest time up to `offset`; a time already noted is skipped.

        `is_last` may use the slot that is kept for the moment the segment stops being active. Raises
        `OSError` if that was used before and cannot be used again.
        """
        last = self._last()
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
            # The segment stopped being active once before and became so again (a crash took its successor):
            # the slot kept for that was used. A later entry stands for an earlier one, so that gives way.
            self.truncate_entries(self.entry_count - 1)
        self._append(timestamp_ms, relative)

    def extend(self, entries: Iterable[tuple[int, int]]) -> None:
        """`maybe_append` for rows of (time, offset) that do not fall; what no longer fits is left out."""
        room = self.capacity - 1 - self.entry_count
        newest_ms, base_offset = self.last.timestamp_ms, self.base_offset
        rising: list[tuple[int, int]] = []
        for timestamp_ms, offset in entries:
            if timestamp_ms > newest_ms:
                rising.append((timestamp_ms, offset - base_offset))
                newest_ms = timestamp_ms
        self._extend(rising[: max(room, 0)])

    def lookup(self, timestamp_ms: int) -> TimestampedOffset:
        """The entry with the largest time at or below `timestamp_ms`; (-1, base offset) if none."""
        with self._lock:
            tail = self._tail
            if tail and timestamp_ms >= tail[0][0]:
                found = tail[bisect_right(tail, (timestamp_ms, MAX_INT + 1)) - 1]
                return TimestampedOffset(found[0], self.base_offset + found[1])
            slot = bisect_right(self._timestamps, timestamp_ms) - 1
            if slot < 0:
                return TimestampedOffset(NO_TIMESTAMP, self.base_offset)
            timestamp, relative = self._entries[slot]
            return TimestampedOffset(int(timestamp), self.base_offset + int(relative))

    def truncate_to(self, offset: int) -> None:
        """Drop entries with an offset at or past `offset`."""
        relative = offset - self.base_offset
        with self._lock:
            count = bisect_left(self._entries["relative_offset"], relative)
            if count == self._written:
                count += bisect_left(self._tail, relative, key=lambda entry: entry[1])
        self.truncate_entries(count)

    def _check(self, entries: npt.NDArray[np.void]) -> None:
        timestamps, offsets = entries["timestamp"], entries["relative_offset"]
        if not len(entries):
            return
        if offsets[0] < 0 or (timestamps[1:] <= timestamps[:-1]).any() or (offsets[1:] < offsets[:-1]).any():
            raise CorruptIndex(f"{self.path}: times and offsets do not ascend; it must be rebuilt")
