"""Cutting offset ranges into tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.spark.directory_logs import near
from logstore.spark.logs import OffsetRange
from logstore.spark.reading import cut, share_out


def whole(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def tens(wanted: OffsetRange, pieces: int) -> Sequence[int]:
    """Batches of ten offsets; as evenly as that allows."""
    places = list(range(wanted.start_offset // 10 * 10 + 10, wanted.end_offset, 10))
    targets = [wanted.start_offset + wanted.size * piece // pieces for piece in range(1, pieces)]
    return [places[slot] for slot in near(places, targets)]


def nowhere(wanted: OffsetRange, pieces: int) -> Sequence[int]:
    return []


def test_one_task_a_partition_unless_an_option_says_otherwise() -> None:
    """Empty ranges are none."""
    ranges = [whole(0, 0, 1000), whole(1, 5, 5), whole(2, 7, 6), whole(3, 1, 2)]
    assert cut(ranges, tens) == [ranges[0], ranges[3]]
    assert cut(ranges, tens, min_partitions=2) == [ranges[0], ranges[3]]


def test_min_partitions_cut_the_big_ones_where_batches_begin() -> None:
    """Small ones stay whole."""
    pieces = cut([whole(0, 0, 900), whole(1, 0, 100)], tens, min_partitions=4)
    assert pieces == [whole(0, 0, 300), whole(0, 300, 600), whole(0, 600, 900), whole(1, 0, 100)]


@pytest.mark.parametrize(
    ("sizes", "pieces", "expected"),
    [
        ([100], 3, [3]),
        ([900, 100], 4, [3, 1]),
        ([1, 1, 1000], 10, [1, 1, 8]),
        ([5, 5], 3, [2, 2]),
        ([1], 1, [1]),
    ],
)
def test_sharing_out(sizes: list[int], pieces: int, expected: list[int]) -> None:
    """Spark's rule: in proportion, rounded, small ones first set aside."""
    assert share_out(sizes, pieces) == expected


def test_where_nothing_is_known_offsets_are_cut() -> None:
    """A broker does not say where batches begin."""
    assert cut([whole(0, 10, 20)], nowhere, min_partitions=3) == [
        whole(0, 10, 13), whole(0, 13, 16), whole(0, 16, 20),
    ]  # fmt: skip
    assert [each.size for each in cut([whole(0, 0, 10)], nowhere, max_records=4)] == [3, 3, 4]
    assert len(cut([whole(0, 0, 2)], nowhere, min_partitions=50)) == 2


def test_a_cap_takes_no_more_tasks_than_it_must() -> None:
    """Evenly, as Spark's own source does."""
    assert cut([whole(0, 5, 100)], tens, max_records=32) == [
        whole(0, 5, 36), whole(0, 36, 68), whole(0, 68, 100),
    ]  # fmt: skip


@given(
    ranges=st.lists(st.tuples(st.integers(0, 1000), st.integers(-5, 5000)), max_size=6),
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(50, 4000),
    knows=st.booleans(),
)
def test_pieces_cover_the_ranges_exactly(
    ranges: list[tuple[int, int]], min_partitions: int | None, max_records: int | None, knows: bool
) -> None:
    """In order, nothing twice, nothing left out, none empty, none above the cap."""
    given_ranges = [whole(number, start, start + size) for number, (start, size) in enumerate(ranges)]
    pieces = cut(
        given_ranges, tens if knows else nowhere, min_partitions=min_partitions, max_records=max_records
    )
    assert all(each.size > 0 for each in pieces)
    if max_records is not None:
        assert all(each.size <= max_records for each in pieces)
    for each in given_ranges:
        parts = [piece for piece in pieces if piece.partition == each.partition]
        covered = [offset for part in parts for offset in range(part.start_offset, part.end_offset)]
        assert covered == list(range(each.start_offset, each.end_offset))


def test_nearest_places() -> None:
    """Each once, ascending."""
    assert near([0, 10, 20, 30], [4, 6, 24, 26]) == [0, 1, 2, 3]
    assert near([0, 100], [1, 2, 3, 99]) == [0, 1]
    assert near([], [5]) == []
