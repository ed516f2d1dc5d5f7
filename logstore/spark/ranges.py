"""Offset ranges to Spark partitions: how many each is cut into, and where.

    [0 ────────────────── 900)  orders-0        maxRecordsPerPartition: even pieces of at most so many offsets
    [0 ── 100)                  orders-1        minPartitions: the big ones are cut until there are so many
         ▲      ▲      ▲
         cut by bytes, where an index or a segment says that a batch begins

One task a partition unless an option says otherwise, as in Spark's own source for Kafka, whose rule of
sharing out `minPartitions` this is. Pure but for asking where reading may begin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from logstore.spark.logs import OffsetRange

CutPoints = Callable[[OffsetRange, int], Sequence[int]]
"""`Logs.cut_points`."""


def cut(
    ranges: Iterable[OffsetRange],
    cut_points: CutPoints,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """The pieces in order; empty ranges are left out.

    No piece has more than `max_records` offsets, and there are no more pieces than that takes, unless
    `min_partitions` asks for about so many.
    """
    ranges = [each for each in ranges if size_of(each) > 0]
    if max_records is not None:
        ranges = [piece for each in ranges for piece in _even(each, -(-size_of(each) // max_records))]
    if min_partitions is not None and len(ranges) < min_partitions:
        shares = share_out([size_of(each) for each in ranges], min_partitions)
        ranges = [
            piece
            for each, pieces in zip(ranges, shares, strict=True)
            for piece in _divided(each, pieces, cut_points)
        ]
    return ranges


def size_of(wanted: OffsetRange) -> int:
    """Its offsets; 0 or less if it is empty."""
    return wanted.end_offset - wanted.start_offset


def share_out(sizes: Sequence[int], pieces: int) -> list[int]:
    """Into how many each is cut so that there are about `pieces`: small ones stay whole, the rest by size."""
    total = sum(sizes)
    small = {slot for slot, size in enumerate(sizes) if _share(size, total, pieces) == 1}
    left = total - sum(sizes[slot] for slot in small)
    wanted = max(pieces - len(small), 1)
    return [1 if slot in small else _share(size, left, wanted) for slot, size in enumerate(sizes)]


def _share(size: int, total: int, pieces: int) -> int:
    return max((2 * size * pieces + total) // (2 * total), 1)


def _divided(wanted: OffsetRange, pieces: int, cut_points: CutPoints) -> list[OffsetRange]:
    """About equal pieces by what `cut_points` says; by offsets where it says too little."""
    pieces = min(pieces, size_of(wanted))
    if pieces < 2:
        return [wanted]
    cuts = [offset for offset in cut_points(wanted, pieces) if _is_inside(offset, wanted)]
    return _at(wanted, cuts) if len(cuts) == pieces - 1 else _even(wanted, pieces)


def _even(wanted: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Equal pieces by offsets. One that begins inside a batch reads that batch and no more in vain."""
    size = size_of(wanted)
    return _at(wanted, [wanted.start_offset + size * piece // pieces for piece in range(1, pieces)])


def _is_inside(offset: int, wanted: OffsetRange) -> bool:
    return wanted.start_offset < offset < wanted.end_offset


def _at(wanted: OffsetRange, cuts: Iterable[int]) -> list[OffsetRange]:
    bounds = [wanted.start_offset, *cuts, wanted.end_offset]
    return [
        replace(wanted, start_offset=start, end_offset=end) for start, end in pairwise(bounds) if start < end
    ]


def near(places: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Slots of the places nearest to each of `wanted`, ascending, each once; both ascend."""
    found: list[int] = []
    for target in wanted:
        slot = bisect_left(places, target)
        if slot == len(places) or (slot and target - places[slot - 1] <= places[slot] - target):
            slot -= 1
        if slot >= 0 and (not found or slot > found[-1]):
            found.append(slot)
    return found
