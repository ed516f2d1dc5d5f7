"""Placement formulas: the documented examples, then the properties behind them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.disk.errors import EngineError
from logstore.replication.controller.assignment import (
    MOST_NEW_PARTITIONS,
    added_partitions,
    check_manual,
    check_new_partitions,
    interleave_racks,
    placed,
    round_robin,
    spread,
    spread_over_racks,
)
from logstore.replication.controller.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
)

RACKS = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def test_round_robin_formula() -> None:
    assert round_robin([30, 10, 20], 4, 2) == [(10, 20), (20, 30), (30, 10), (10, 20)]


def test_spread_worked_example() -> None:
    """Five brokers, three replicas, start and shift 0: the table that Kafka's own comment gives."""
    assert spread(range(5), 10, 3, start=0, shift=0) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_round_robin_and_spread_agree_for_the_first_round() -> None:
    assert spread(range(5), 5, 3, start=0, shift=0) == round_robin(range(5), 5, 3)


def test_racks_worked_example() -> None:
    assert interleave_racks(RACKS) == [0, 3, 1, 5, 4, 2]
    assert spread_over_racks(RACKS, 7, 3, start=0, shift=0) == [
        (0, 3, 1),
        (3, 1, 5),
        (1, 5, 4),
        (5, 4, 2),
        (4, 2, 0),
        (2, 0, 3),
        (0, 4, 2),
    ]


@settings(derandomize=True, max_examples=200)
@given(data=st.data(), brokers=st.integers(1, 12), partitions=st.integers(1, 40))
def test_spread_is_valid_and_even(data: st.DataObject, brokers: int, partitions: int) -> None:
    """Each broker once a partition; leaders differ by one at most, whatever the starting points."""
    factor = data.draw(st.integers(1, brokers))
    start, shift = data.draw(st.integers(0, brokers - 1)), data.draw(st.integers(0, brokers - 1))
    lists = spread(range(brokers), partitions, factor, start=start, shift=shift)
    assert all(len(set(replicas)) == factor for replicas in lists)
    leaders = Counter(replicas[0] for replicas in lists)
    counts = [leaders[broker] for broker in range(brokers)]
    assert max(counts) - min(counts) <= 1


@settings(derandomize=True, max_examples=200)
@given(data=st.data(), racks=st.lists(st.sampled_from("abcd"), min_size=1, max_size=10))
def test_every_partition_covers_as_many_racks_as_it_can(data: st.DataObject, racks: list[str]) -> None:
    by_broker: dict[int, str | None] = dict(enumerate(racks))
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = (data.draw(st.integers(0, len(racks) - 1)) for _ in range(2))
    for replicas in spread_over_racks(by_broker, 15, factor, start=start, shift=shift):
        assert len(set(replicas)) == factor
        assert len({by_broker[broker] for broker in replicas}) == min(factor, len(set(racks)))


def test_spread_falls_on_all_others_when_a_broker_dies() -> None:
    """The point of the shift: the second replicas of broker 0's partitions are on every other broker."""
    lists = spread(range(5), 20, 3, start=0, shift=0)
    assert {replicas[1] for replicas in lists if replicas[0] == 0} == {1, 2, 3, 4}


def test_added_partitions_go_on_where_the_old_ones_stopped() -> None:
    old = dict(enumerate(spread(range(5), 3, 3, start=0, shift=0)))
    assert added_partitions(old, dict.fromkeys(range(5)), 5) == {3: (3, 4, 0), 4: (4, 0, 1)}
    gone = added_partitions({0: (9,)}, {1: None, 2: ""}, 2)
    assert gone == {1: (2,)}, "the old head is gone: start at the first"


def test_placed_goes_by_racks_if_there_are_any() -> None:
    racks = {3: "b", 0: "a", 1: "a", 2: "b"}
    by_racks = placed(racks, 4, 2, start=1, shift=0)
    assert by_racks == spread_over_racks(racks, 4, 2, start=1, shift=0)
    assert all(len({racks[broker] for broker in replicas}) == 2 for replicas in by_racks)
    without = placed({3: None, 0: "", 1: None, 2: None}, 4, 2, start=1, shift=0)
    assert without == spread(range(4), 4, 2, start=1, shift=0)
    with pytest.raises(InvalidReplicationFactor, match=r"\[2\]"):
        placed({0: "a", 2: ""}, 1, 1, start=0, shift=0)
    added = added_partitions({0: (0, 2)}, racks, 5)
    assert all(len({racks[broker] for broker in replicas}) == 2 for replicas in added.values())


@pytest.mark.parametrize(
    ("partitions", "factor", "error"),
    [(0, 1, InvalidPartitions), (-3, 1, InvalidPartitions), (1, 0, InvalidReplicationFactor),
     (1, 4, InvalidReplicationFactor)],
)  # fmt: skip
def test_counts_that_cannot_be(partitions: int, factor: int, error: type[EngineError]) -> None:
    with pytest.raises(error):
        round_robin(range(3), partitions, factor)
    with pytest.raises(error):
        spread(range(3), partitions, factor, start=0, shift=0)
    with pytest.raises(error):
        spread_over_racks(dict.fromkeys(range(3), "a"), partitions, factor, start=0, shift=0)


def test_more_new_partitions_than_one_request_may_ask_for() -> None:
    """One small request must not create a million directories."""
    check_new_partitions(MOST_NEW_PARTITIONS)
    with pytest.raises(InvalidPartitions, match="use several requests"):
        check_new_partitions(MOST_NEW_PARTITIONS + 1)


def test_half_known_racks_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match=r"\[1\]"):
        spread_over_racks({0: "a", 1: None}, 1, 1, start=0, shift=0)


def test_growing_needs_something_to_grow_from() -> None:
    with pytest.raises(InvalidReplicaAssignment):
        added_partitions({1: (1,)}, {1: None}, 3)
    with pytest.raises(InvalidPartitions, match="cannot shrink"):
        added_partitions({0: (1,), 1: (1,)}, {1: None}, 2)


@pytest.mark.parametrize("lists", [[], [()], [(1, 2), (1,)], [(1, 1)], [(1, -1)], [(1, 3)]])
def test_manual_lists_that_are_wrong(lists: list[tuple[int, ...]]) -> None:
    with pytest.raises(InvalidReplicaAssignment):
        check_manual(lists, {1, 2})
    check_manual([(1, 2), (2, 1)], {1, 2})
