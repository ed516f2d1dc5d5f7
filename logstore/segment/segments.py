"""The segments of one log, in order: who holds an offset, who comes next, how many bytes in all.

    bases      0     1000    2400    3100
    segments   ■──────■───────■───────■       the last one is active
               floor(1700) = 1000, higher(1700) = 2400, between(1700, 3000) = 1000, 2400

One writer, under the log's lock; readers take no lock. A segment is added in place, at the end, where a
reader that searches meanwhile either sees it or does not; that costs the same for ten segments and for
ten thousand. Every other change makes new `Segments`, and a reader goes on in those that it began with.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence

from logstore.segment.segment import Segment


class Segments:
    """At least one segment; base offsets ascend. Offsets are absolute."""

    __slots__ = ("_bases", "_segments", "active")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in self._segments]
        assert self._bases == sorted(set(self._bases)), f"base offsets {self._bases} do not ascend"
        self.active: Segment = self._segments[-1]
        """The segment that takes appends."""

    def __repr__(self) -> str:
        return f"Segments({self._bases})"

    def __len__(self) -> int:
        return len(self._bases)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._segments[0]

    @property
    def size(self) -> int:
        """Bytes in all `.log` files."""
        return sum(segment.size for segment in self._segments)

    # --- looking up -------------------------------------------------------------------------------

    def get(self, base_offset: int) -> Segment | None:
        """The segment that begins at `base_offset`."""
        slot = bisect_left(self._bases, base_offset)
        found = self._bases[slot : slot + 1] == [base_offset]
        return self._segments[slot] if found else None

    def floor(self, offset: int) -> Segment | None:
        """The last segment that begins at or below `offset`."""
        slot = bisect_right(self._bases, offset) - 1
        return self._segments[slot] if slot >= 0 else None

    def lower(self, offset: int) -> Segment | None:
        """The last segment that begins below `offset`."""
        slot = bisect_left(self._bases, offset) - 1
        return self._segments[slot] if slot >= 0 else None

    def higher(self, offset: int) -> Segment | None:
        """The first segment that begins above `offset`."""
        slot = bisect_right(self._bases, offset)
        return self._segments[slot] if slot < len(self._bases) else None

    def since(self, offset: int) -> Iterator[Segment]:
        """The segment that may hold `offset` (the first, if all begin above it) and all after it."""
        slot = max(bisect_right(self._bases, offset) - 1, 0)
        while slot < len(self._bases):
            yield self._segments[slot]
            slot += 1

    def between(self, start_offset: int, end_offset: int) -> Sequence[Segment]:
        """Those that may hold offsets in [start_offset, end_offset); `ValueError` if that is reversed."""
        if end_offset < start_offset:
            raise ValueError(f"offsets [{start_offset}, {end_offset}) are reversed")
        if end_offset == start_offset:
            return ()
        first = max(bisect_right(self._bases, start_offset) - 1, 0)
        return self._segments[first : bisect_left(self._bases, end_offset)]

    # --- changing ---------------------------------------------------------------------------------

    def append(self, segment: Segment) -> None:
        """Add a segment behind the last one; it is the active one now."""
        assert segment.base_offset > self._bases[-1], f"{segment!r} does not follow {self._bases[-1]}"
        # In this order: whoever finds the base finds the segment.
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def replacing(self, old: Collection[Segment], new: Iterable[Segment] = ()) -> Segments:
        """These segments with `new` in the place of `old`."""
        gone = {segment.base_offset for segment in old}
        kept = [segment for segment in self._segments if segment.base_offset not in gone]
        return Segments(sorted([*kept, *new], key=lambda segment: segment.base_offset))
