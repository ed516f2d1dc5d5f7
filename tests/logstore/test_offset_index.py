"""The offset index: a floor, and what is refused on the way in and on opening."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import MAX_INT
from logstore.errors import CorruptIndex
from logstore.segment.indexes import OffsetIndex, OffsetPosition
from logstore.testing.disks import MemoryDisk

BASE = 45


def index_of(*entries: tuple[int, int], flushed: int = 0) -> OffsetIndex:
    """An index with these (absolute offset, position) entries, the first `flushed` of them in its file."""
    index = OffsetIndex(MemoryDisk(directories=["/data"]), "/data/i", BASE, 1 << 20)
    for number, (offset, position) in enumerate(entries):
        if number == flushed:
            index.flush()
        index.append(offset, position)
    if flushed >= len(entries):
        index.flush()
    return index


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_row_55_lookup(flushed: int) -> None:
    index = index_of((50, 10), (60, 20), (70, 30), flushed=flushed)
    for offset, expected in ((49, (BASE, 0)), (50, (50, 10)), (55, (50, 10)), (60, (60, 20)), (99, (70, 30))):
        assert index.lookup(offset) == expected
    assert index_of().lookup(99) == (BASE, 0)
    assert index_of().last_offset == BASE


def test_row_58_offsets_rise() -> None:
    index = index_of((51, 0))
    for offset in (50, 51):
        with pytest.raises(AssertionError, match="does not rise"):
            index.append(offset, 1)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + MAX_INT + 1])
def test_an_offset_outside_the_segment(offset: int) -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        index_of().append(offset, 0)


def test_the_largest_relative_offset_fits() -> None:
    index = index_of((BASE + MAX_INT, MAX_INT), flushed=1)
    assert index.lookup(BASE + MAX_INT) == (BASE + MAX_INT, MAX_INT)


@pytest.mark.parametrize("flushed", [0, 2, 4])
def test_the_last_position_up_to_a_bound(flushed: int) -> None:
    entries = [OffsetPosition(BASE + slot, at) for slot, at in enumerate((5, 10, 23, 37))]
    index = index_of(*entries, flushed=flushed)
    found = [index.position_before(bound) for bound in (4, 5, 9, 10, 22, 23, 36, 37, 900)]
    assert found == [0, 5, 5, 10, 10, 23, 23, 37, 37]
    assert index_of().position_before(900) == 0


def test_row_63_the_base_offset_itself() -> None:
    """Relative 0 is an entry like any other, also when the file is opened again."""
    disk = MemoryDisk(directories=["/data"])
    index = OffsetIndex(disk, "/data/i", BASE, 1 << 20)
    index.append(BASE, 12)
    index.trim()
    again = OffsetIndex(disk, "/data/i", BASE, 1 << 20)
    again.load()
    assert again.entries() == [(0, 12)]


@pytest.mark.parametrize(
    "entries",
    [
        [(-1, 5)],
        [(1, -5)],
        [(5, 10), (5, 20)],
        [(5, 10), (4, 20)],
        [(5, 10), (6, 10)],
        [(5, 20), (6, 10)],
        [(5, 10), (0, 0), (6, 20)],
        [(2_000_000_000, 1), (-2_000_000_000, 2)],
        [(1, 2_000_000_000), (2, -2_000_000_000)],
    ],
)
def test_what_cannot_be_an_index(entries: list[tuple[int, int]]) -> None:
    disk = MemoryDisk({"/data/i": np.array(entries, OffsetIndex.fields).tobytes()})
    with pytest.raises(CorruptIndex, match="must be rebuilt"):
        OffsetIndex(disk, "/data/i", BASE, 1 << 20).load()


def test_rows_at_once_are_entries_one_by_one() -> None:
    entries = [(50, 0), (52, 8), (60, 30)]
    at_once, singly = index_of((47, 0)), index_of((47, 0))
    at_once.extend(entries)
    for offset, position in entries:
        singly.append(offset, position)
    assert at_once.entries() == singly.entries()


def test_rows_fill_the_index_and_no_more() -> None:
    index = OffsetIndex(MemoryDisk(directories=["/data"]), "/data/i", BASE, 16)
    index.extend([(50, 1), (52, 8), (60, 30)])
    assert index.entries() == [(5, 1), (7, 8)]
    assert index.is_full
    index.extend([(70, 40)])
    assert index.entry_count == 2


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 500), min_size=1, max_size=60),
    target=st.integers(0, 30_000),
    flushed=st.integers(0, 60),
)
def test_lookup_agrees_with_counting(gaps: list[int], target: int, flushed: int) -> None:
    """The search is a shortcut; counting from the left is the definition."""
    offsets = [BASE + offset for offset in accumulate(gaps)]
    index = index_of(*((offset, slot) for slot, offset in enumerate(offsets)), flushed=flushed)
    below = sum(offset <= BASE + target for offset in offsets)
    expected = (offsets[below - 1], below - 1) if below else (BASE, 0)
    assert index.lookup(BASE + target) == expected
    index.truncate_to(BASE + target)
    assert index.entry_count == sum(offset < BASE + target for offset in offsets)
