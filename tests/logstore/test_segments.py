"""Who holds an offset, who comes before and after: the map that every read and every roll goes through."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from logstore.config import LogConfig
from logstore.segment.segment import Segment
from logstore.segment.segments import Segments
from logstore.testing.disks import MemoryDisk

BASES = (0, 1000, 2400, 3100)


def made(*bases: int, size: int = 0) -> list[Segment]:
    disk = MemoryDisk(directories=["/data/orders-0"])
    return [Segment(disk, "/data/orders-0", base, LogConfig(), size=size, now_ms=0) for base in bases]


def base_of(segment: Segment | None) -> int | None:
    return None if segment is None else segment.base_offset


def test_row_97_floor_lower_and_higher() -> None:
    """Floor takes the very offset, the other two do not; `since` begins at the floor."""
    segments = Segments(made(*BASES))
    assert [base_of(segments.floor(offset)) for offset in (0, 999, 1000, 5000)] == [0, 0, 1000, 3100]
    assert [base_of(segments.lower(offset)) for offset in (0, 1, 1000, 1001)] == [None, 0, 0, 1000]
    assert [base_of(segments.higher(offset)) for offset in (0, 999, 1000, 3100)] == [1000, 1000, 2400, None]
    assert [segment.base_offset for segment in segments.since(2399)] == [1000, 2400, 3100]
    assert [base_of(segments.get(offset)) for offset in (1000, 1001, 9999)] == [1000, None, None]

    later = Segments(made(100, 200))
    assert base_of(later.floor(99)) is None
    assert [segment.base_offset for segment in later.since(99)] == [100, 200]


def test_row_98_the_total_size_does_not_overflow() -> None:
    """More than 2^31 bytes in several segments."""
    assert Segments(made(*BASES, size=2**31 - 1)).size == 4 * (2**31 - 1)


def test_a_segment_added_is_seen_by_a_reader_on_its_way() -> None:
    """A roll costs no copy: who walks the segments comes to the new one."""
    segments = Segments(made(0))
    walk = segments.since(0)
    assert base_of(next(walk)) == 0
    segments.append(made(10)[0])
    assert base_of(next(walk)) == 10
    assert segments.active.base_offset == 10
    with pytest.raises(AssertionError, match="does not follow"):
        segments.append(made(10)[0])


def test_a_replacement_leaves_readers_theirs() -> None:
    """Compaction and retention change what comes next, not what a reader holds."""
    before = made(*BASES)
    segments = Segments(before)
    merged = made(1000)
    after = segments.replacing(before[1:3], merged)
    assert [segment.base_offset for segment in after] == [0, 1000, 3100]
    assert after.get(1000) is merged[0]
    assert after.active is before[3]
    assert [segment.base_offset for segment in segments] == list(BASES)
    assert [segment.base_offset for segment in segments.replacing(before[2:])] == [0, 1000]


def test_row_164_a_base_that_is_taken_or_below() -> None:
    """Two segments never share a base, and a new one follows the others: a promise of our own code."""
    segments = Segments(made(0, 10))
    for base in (10, 5, 0):
        with pytest.raises(AssertionError, match="does not follow"):
            segments.append(made(base)[0])
    disk = MemoryDisk(directories=["/data/orders-0"])
    for is_taken in (False, True):
        with pytest.raises(FileExistsError) if is_taken else nullcontext():
            Segment(disk, "/data/orders-0", 20, LogConfig(), size=0, now_ms=0, is_new=True)
