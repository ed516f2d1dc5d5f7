"""Offset index: from an offset to the position of a batch at or before it.

    00000000000000368769.index              named for the segment's base offset
    ┌──────────────────┬─────────────────┐
    │ relative offset  │ position        │  8 bytes an entry, two big-endian int32; both ascend.
    │ of the batch's   │ of that batch   │  About one entry per `index.interval.bytes` of log,
    │ last record      │ in the .log     │  none for the first batch
    └──────────────────┴─────────────────┘

Derived data without a checksum: an entry says where to start looking, never what is there. After a
crash the file may be stale, short or zero; `recovery.py` rebuilds what lies above the recovery
point, and `segment.py` checks the batch that an entry names before it believes the entry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.config import MAX_INT
from logstore.errors import CorruptIndex
from logstore.segment.index_file import IndexFile


class OffsetPosition(NamedTuple):
    """The batch that ends with `offset` starts at byte `position` of the `.log`."""

    offset: int
    position: int


class OffsetIndex(IndexFile):
    """The offset index of one segment; offsets in its methods are absolute."""

    dtype: ClassVar[np.dtype[np.void]] = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
    suffix: ClassVar[str] = ".index"

    def _mapped(self) -> None:
        super()._mapped()
        self._columns_changed()

    def _columns_changed(self) -> None:
        self._offsets = self._entries["relative_offset"]
        self._positions = self._entries["position"]

    @property
    def is_full(self) -> bool:
        return self._written + len(self._tail) >= self.capacity

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if there is none."""
        last = self._last()
        return self.base_offset + last[0] if last else self.base_offset

    def append(self, offset: int, position: int) -> None:
        """Note that the batch at `position` ends with `offset`, which is above all before it."""
        relative = offset - self.base_offset
        assert 0 <= relative <= MAX_INT, f"{self.path}: offset {offset} does not fit the segment"
        last = self._last()
        assert last is None or relative > last[0], f"{self.path}: offset {offset} does not rise"
        self._append(relative, position)

    def extend(self, entries: Sequence[tuple[int, int]]) -> None:
        """`append` for rows of rising (offset, position); what no longer fits the index is left out."""
        room = self.capacity - self.entry_count
        if entries and room > 0:
            assert self.entry_count == 0 or entries[0][0] > self.last_offset, f"{self.path}: offsets go back"
            base_offset = self.base_offset
            assert entries[-1][0] - base_offset <= MAX_INT, f"{self.path}: {entries[-1][0]} does not fit"
            self._extend([(offset - base_offset, position) for offset, position in entries[:room]])

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the largest offset at or below `offset`; (base offset, 0) if none."""
        relative = offset - self.base_offset
        with self._lock:
            tail = self._tail
            if tail and relative >= tail[0][0]:
                # Positions are non-negative and below 2**31, so this sorts after any real entry.
                found = tail[bisect_right(tail, (relative, MAX_INT + 1)) - 1]
                return OffsetPosition(self.base_offset + found[0], found[1])
            # bisect, not np.searchsorted: numpy first copies a big-endian column, whole, at every
            # lookup. 1.3 M entries: 620 µs against 1.3 µs (bench/test_index_lookup.py).
            slot = bisect_right(self._offsets, relative) - 1
            if slot < 0:
                return OffsetPosition(self.base_offset, 0)
            return OffsetPosition(self.base_offset + int(self._offsets[slot]), int(self._positions[slot]))

    def upper_bound(self, start: OffsetPosition, size: int) -> OffsetPosition | None:
        """The first entry whose position is at or past `start.position + size`; None if none."""
        limit = start.position + size
        with self._lock:
            slot = bisect_left(self._positions, limit)
            if slot < self._written:
                return OffsetPosition(self.base_offset + int(self._offsets[slot]), int(self._positions[slot]))
            for relative, position in self._tail:
                if position >= limit:
                    return OffsetPosition(self.base_offset + relative, position)
        return None

    def truncate_to(self, offset: int) -> None:
        """Drop entries with an offset at or past `offset`."""
        relative = offset - self.base_offset
        with self._lock:
            count = bisect_left(self._offsets, relative)
            if count == self._written:
                count += bisect_left(self._tail, (relative, -1))
        self.truncate_entries(count)

    @classmethod
    def position_in(cls, data: bytes, relative_offset: int) -> int:
        """Where to begin to look for an offset, says an index file's content; 0 if it does not say.

        Hearsay: zeros of preallocation and part of an entry at the end are left out, nothing else is checked.
        """
        size = cls.dtype.itemsize
        used = len(data.rstrip(b"\0"))
        entries = np.frombuffer(data, cls.dtype, min(-(-used // size), len(data) // size))
        slot = bisect_right(entries["relative_offset"], relative_offset) - 1
        return int(entries["position"][slot]) if slot >= 0 else 0

    def _check(self, entries: npt.NDArray[np.void]) -> None:
        offsets, positions = entries["relative_offset"], entries["position"]
        if not len(entries):
            return
        if (
            offsets[0] < 0
            or positions[0] < 0
            # Compared, not subtracted: a difference of two int32 can wrap around.
            or (offsets[1:] <= offsets[:-1]).any()
            or (positions[1:] <= positions[:-1]).any()
        ):
            raise CorruptIndex(f"{self.path}: offsets and positions do not both ascend; it must be rebuilt")
