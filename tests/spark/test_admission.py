"""How much a trigger takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.micro_batches import Admission, within

A, B, C = (TopicPartition("t", partition) for partition in range(3))


def test_what_there_is_is_shared_out_in_proportion_to_the_lag() -> None:
    """The example of the module."""
    start = {A: 100, B: 0, C: 7}
    end = {A: 2100, B: 400, C: 10}
    taken = within(600, start, end)
    assert {each: offset - start[each] for each, offset in taken.items()} == {A: 499, B: 99, C: 1}


def test_what_fits_is_taken_whole() -> None:
    start, end = {A: 1, B: 2}, {A: 4, B: 9}
    assert within(10, start, end) == end
    assert Admission().admitted(start, end) == end
    assert Admission(max_offsets=9).admitted(start, end) != end


def test_a_limit_below_the_number_of_partitions_starves_none() -> None:
    assert within(1, {A: 0, B: 0, C: 0}, {A: 5, B: 5000, C: 0}) == {A: 1, B: 1, C: 0}


def test_an_end_that_went_back_is_no_lag() -> None:
    """The log was cut: that is for others to judge, and takes nothing from the rest."""
    assert within(10, {A: 50, B: 0}, {A: 20, B: 100}) == {A: 20, B: 10}


sizes = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1, max_size=8)


@settings(derandomize=True)
@given(sizes=sizes, limit=st.integers(1, 2**42))
def test_limits_hold_and_every_lag_shrinks(sizes: list[tuple[int, int]], limit: int) -> None:
    """Never past the end, never more than the limit but for the one offset that nobody is denied."""
    start = {TopicPartition("t", slot): first for slot, (first, _) in enumerate(sizes)}
    end = {TopicPartition("t", slot): first + size for slot, (first, size) in enumerate(sizes)}
    taken = within(limit, start, end)
    for each, offset in taken.items():
        assert start[each] <= offset <= end[each]
        assert offset > start[each] or end[each] == start[each], "it goes on everywhere"
    assert sum(taken.values()) - sum(start.values()) <= limit + len(sizes) - 1
    total = sum(end.values()) - sum(start.values())
    if total > limit:
        for each, offset in taken.items():
            exact = limit * (end[each] - start[each]) / total
            assert abs(offset - start[each] - exact) <= 1 + exact * 1e-9, "in proportion"


@pytest.mark.parametrize(
    ("waited_ms", "lag", "due"),
    [
        (None, 0, True),  # the first batch does not wait
        (0, 99, False),
        (999, 99, False),
        (1000, 99, True),
        (0, 100, True),
    ],
)
def test_a_batch_is_due_when_there_is_enough_or_time_is_up(
    waited_ms: int | None, lag: int, due: bool
) -> None:
    admission = Admission(min_offsets=100, max_delay_ms=1000)
    assert admission.is_due({A: 5, B: 0}, {A: 5, B: lag}, waited_ms) is due


def test_without_a_minimum_every_batch_is_due() -> None:
    assert Admission(max_delay_ms=1000).is_due({A: 5}, {A: 5}, 0)
