"""The imbalance of each broker, in whole numbers, with both ratios."""

from __future__ import annotations

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.elect_leaders import Imbalance, Seat, imbalances


def seat(partition: int, preferred: int, leader: int, *, electable: bool = True) -> Seat:
    return Seat(TopicPartition("t", partition), preferred, leader, electable)


def test_ratios_by_preferred_broker() -> None:
    """Partitions whose preferred replica is dead count in Kafka's ratio, not in the electable one."""
    found = imbalances(
        [
            seat(0, 1, 1),
            seat(1, 1, 2),
            seat(2, 1, 2, electable=False),
            seat(3, 1, -1, electable=False),
            seat(4, 2, 2),
        ]
    )
    assert list(found) == [1, 2]
    assert found[1].total == 4
    assert found[1].electable == (TopicPartition("t", 1),)
    assert found[1].astray == tuple(TopicPartition("t", partition) for partition in (1, 2, 3))
    assert found[2].astray == ()


@pytest.mark.parametrize(
    ("astray", "total", "percentage", "expected"),
    [(1, 10, 10, False), (2, 10, 10, True), (3, 10, 30, False), (1, 1000, 0, True), (0, 5, 0, False)],
)
def test_the_bound_is_strict(astray: int, total: int, percentage: int, expected: bool) -> None:
    """A tenth is not more than 10 %; 3 of 10 is exactly 30 %, without rounding errors."""
    lost = tuple(TopicPartition("t", partition) for partition in range(astray))
    assert Imbalance(total, lost, lost).exceeds(percentage) is expected


def test_order_does_not_matter() -> None:
    seats = [seat(2, 2, 1), seat(0, 1, 2), seat(1, 2, 2)]
    assert imbalances(seats) == imbalances(reversed(seats))
    assert list(imbalances(seats)) == [1, 2]
