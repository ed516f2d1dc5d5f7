"""The time index: from where on records may be as late as asked."""

from __future__ import annotations

import numpy as np
import pytest

from logstore.errors import CorruptIndex
from logstore.segment.indexes import TimeIndex
from logstore.testing.disks import MemoryDisk

BASE = 45


def index_of(*entries: tuple[int, int], flushed: int = 0, limit: int = 1 << 20) -> TimeIndex:
    """An index with these (time, absolute offset) entries, the first `flushed` of them in its file."""
    index = TimeIndex(MemoryDisk(directories=["/data"]), "/data/i", BASE, limit)
    for number, (time, offset) in enumerate(entries):
        if number == flushed:
            index.flush()
        index.maybe_append(time, offset)
    if flushed >= len(entries):
        index.flush()
    return index


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_row_64_lookup(flushed: int) -> None:
    index = index_of((10, BASE + 10), (20, BASE + 20), (30, BASE + 30), flushed=flushed)
    assert index.lookup(9) == (-1, BASE)
    assert index.lookup(10) == (10, BASE + 10)
    assert index.lookup(25) == (20, BASE + 20)
    assert index.lookup(30) == (30, BASE + 30)
    assert index.lookup(10**15) == (30, BASE + 30)
    assert index_of().lookup(5) == (-1, BASE)
    assert index_of().last == (-1, BASE)


def test_row_65_one_slot_is_kept_for_the_roll() -> None:
    index = index_of((1, 46), (2, 47), limit=12 * 3)
    assert index.capacity == 3
    assert index.is_full
    with pytest.raises(AssertionError, match="full"):
        index.maybe_append(3, 48)
    index.maybe_append(3, 48, is_last=True)
    assert index.entry_count == 3


@pytest.mark.parametrize("flushed", [0, 3])
def test_the_kept_slot_is_used_again_when_a_segment_ends_twice(flushed: int) -> None:
    """A crash may take a segment's successor: it is active again, and closes its books a second time."""
    index = index_of((1, 46), (2, 47), limit=12 * 3)
    index.maybe_append(3, 48, is_last=True)
    if flushed:
        index.flush()
    index.maybe_append(9, 52, is_last=True)
    assert index.last == (9, 52)
    assert [index.entry(slot) for slot in range(index.entry_count)] == [(1, 1), (2, 2), (9, 7)]


def test_row_66_offsets_do_not_fall() -> None:
    index = index_of((10, 60))
    with pytest.raises(AssertionError, match="goes back"):
        index.maybe_append(11, 59)
    index.maybe_append(11, 60)
    assert index.entry_count == 2, "the same offset with a later time is an entry"


def test_a_time_that_falls_is_refused() -> None:
    with pytest.raises(AssertionError, match="time 9 goes back"):
        index_of((10, 60)).maybe_append(9, 61)


def test_row_67_an_equal_time_adds_nothing() -> None:
    index = index_of((10, 60))
    index.maybe_append(10, 70)
    assert index.entries() == [(10, 15)]


def test_records_without_times_leave_it_empty() -> None:
    assert index_of((-1, 50)).entry_count == 0
    assert index_of((0, 50)).entry_count == 1


@pytest.mark.parametrize(
    "entries",
    [
        [(10, -1)],
        [(10, 5), (9, 6)],
        [(10, 5), (10, 6)],
        [(10, 5), (11, 4)],
        [(2**63 - 1, 1), (-(2**63), 2)],
        [(1, 2_000_000_000), (2, -2_000_000_000)],
    ],
)
def test_row_68_what_cannot_be_an_index(entries: list[tuple[int, int]]) -> None:
    disk = MemoryDisk({"/data/i": np.array(entries, TimeIndex.fields).tobytes()})
    with pytest.raises(CorruptIndex, match="must be rebuilt"):
        TimeIndex(disk, "/data/i", BASE, 1 << 20).load()


@pytest.mark.parametrize("flushed", [0, 2, 4])
def test_truncate_drops_entries_by_offset(flushed: int) -> None:
    """Several times may share an offset; all of them go with it."""
    entries = ((1, 50), (2, 60), (3, 60), (4, 70))
    for offset, left in ((71, 4), (70, 3), (61, 3), (60, 1), (51, 1), (50, 0), (BASE, 0)):
        index = index_of(*entries, flushed=flushed)
        index.truncate_to(offset)
        assert index.entry_count == left, f"truncated to {offset}"
        index.maybe_append(100, 80)
        assert index.last == (100, 80)


def test_rows_at_once_are_entries_one_by_one() -> None:
    """Times that do not rise are skipped, and the last slot is kept."""
    entries = [(5, 50), (7, 52), (7, 55), (9, 60), (12, 61)]
    at_once, singly = index_of((5, 46), limit=12 * 4), index_of((5, 46), limit=12 * 4)
    at_once.extend(entries)
    for time, offset in entries:
        if not singly.is_full:
            singly.maybe_append(time, offset)
    assert at_once.entries() == singly.entries() == [(5, 1), (7, 7), (9, 15)]
    assert at_once.is_full


def test_rows_of_records_without_times() -> None:
    index = index_of()
    index.extend([(-1, 50), (-1, 51)])
    assert index.entry_count == 0
