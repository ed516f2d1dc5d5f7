"""Offsets in JSON, and what positions come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.errors import InvalidOption, NoMatchingTime
from logstore.spark.logs import Bounds
from logstore.spark.offsets import (
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    ending,
    flat,
    format_offsets,
    nested,
    parse_offsets,
    parse_partitions,
    starting,
    times_of,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
BOUNDS = {A0: Bounds(5, 10), A1: Bounds(0, 100)}


def test_json_as_spark_writes_it() -> None:
    """Topics in order of name, partitions in order of number, no blanks."""
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3}
    assert format_offsets(offsets) == '{"a":{"9":3,"10":2},"b":{"0":1}}'
    assert format_offsets({}) == "{}"


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-1"]), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**63 - 1),
    )
)
def test_json_there_and_back(offsets: dict[TopicPartition, int]) -> None:
    """What one run wrote, the next one reads."""
    assert parse_offsets(format_offsets(offsets), "x") == offsets == flat(nested(offsets))


def test_partitions() -> None:
    """Sorted, each once."""
    assert parse_partitions('{"b":[1,0,1],"a":[3]}', "assign") == (
        TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("b", 1),
    )  # fmt: skip


def test_starting() -> None:
    """Each position, within the bounds or not: what lies outside is for the read to report."""
    assert starting(Earliest(), BOUNDS, {}, latest_if_none=False) == {A0: 5, A1: 0}
    assert starting(Latest(), BOUNDS, {}, latest_if_none=False) == {A0: 10, A1: 100}
    offsets = AtOffsets({A0: -2, A1: -1}, "startingOffsets")
    assert starting(offsets, BOUNDS, {}, latest_if_none=False) == {A0: 5, A1: 100}
    offsets = AtOffsets({A0: 2, A1: 200}, "startingOffsets")
    assert starting(offsets, BOUNDS, {}, latest_if_none=False) == {A0: 2, A1: 200}


def test_starting_by_time() -> None:
    """No record that young: an error, or the end, as the strategy says."""
    position = AtTime(1000, "startingTimestamp")
    assert times_of(position, BOUNDS) == {A0: 1000, A1: 1000}
    assert starting(position, BOUNDS, {A0: 7, A1: 50}, latest_if_none=False) == {A0: 7, A1: 50}
    assert starting(position, BOUNDS, {A0: None, A1: 50}, latest_if_none=True) == {A0: 10, A1: 50}
    with pytest.raises(NoMatchingTime, match=r"a-0 has no record at or after 1000 ms .*to latest"):
        starting(position, BOUNDS, {A0: None, A1: 50}, latest_if_none=False)


@pytest.mark.parametrize(("time_ms", "start"), [(-1, {A0: 10, A1: 100}), (-2, {A0: 5, A1: 0})])
def test_a_time_that_is_a_name(time_ms: int, start: dict[TopicPartition, int]) -> None:
    """-1 latest, -2 earliest: nothing is looked up, and neither needs a record."""
    for position in (AtTime(time_ms, "x"), AtTimes(dict.fromkeys(BOUNDS, time_ms), "x")):
        assert times_of(position, BOUNDS) == {}
        assert starting(position, BOUNDS, {}, latest_if_none=False) == start
        assert ending(position, BOUNDS, {}) == start
    mixed = AtTimes({A0: -1, A1: 7}, "x")
    assert times_of(mixed, BOUNDS) == {A1: 7}
    assert starting(mixed, BOUNDS, {A1: 9}, latest_if_none=False) == {A0: 10, A1: 9}


def test_ending() -> None:
    """No match means the end."""
    assert ending(Latest(), BOUNDS, {}) == {A0: 10, A1: 100}
    assert ending(AtOffsets({A0: 7, A1: -1}, "endingOffsets"), BOUNDS, {}) == {A0: 7, A1: 100}
    times = AtTimes({A0: 1, A1: 2}, "endingOffsetsByTimestamp")
    assert times_of(times, BOUNDS) == {A0: 1, A1: 2}
    assert ending(times, BOUNDS, {A0: 6, A1: None}) == {A0: 6, A1: 100}


@pytest.mark.parametrize("named", [{A0: 1}, {A0: 1, A1: 1, TopicPartition("b", 0): 1}, {}])
def test_all_partitions_must_be_named(named: dict[TopicPartition, int]) -> None:
    """One that is forgotten would begin somewhere."""
    with pytest.raises(InvalidOption, match="must name exactly the partitions that are read"):
        starting(AtOffsets(named, "startingOffsets"), BOUNDS, {}, latest_if_none=False)
    with pytest.raises(InvalidOption, match="option endingOffsets must name"):
        ending(AtOffsets(named, "endingOffsets"), BOUNDS, {})
    with pytest.raises(InvalidOption):
        times_of(AtTimes(named, "startingOffsetsByTimestamp"), BOUNDS)
