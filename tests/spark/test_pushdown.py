"""Filters read less; never less than they let pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.logs import Logs, OffsetRange
from logstore.spark.readers import Narrowing

RANGES = [OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 50, 100), OffsetRange("b", 0, 0, 10)]
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000


class Times:
    """Each record is a millisecond younger than the one before it, from noon on; those of b are older."""

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return {
            partition: None if partition.topic == "b" else max(time_ms - NOON_MS, 0)
            for partition, time_ms in times_ms.items()
        }


def left(*filters: Filter) -> list[tuple[Any, ...]]:
    kept = Narrowing.of(filters).apply(RANGES, cast(Logs, Times()))
    return [(each.topic, each.partition, each.start_offset, each.end_offset) for each in kept]


ALL = [("a", 0, 0, 100), ("a", 1, 50, 100), ("b", 0, 0, 10)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ALL),
        ([EqualTo(("topic",), "a")], ALL[:2]),
        ([EqualNullSafe(("topic",), "b")], ALL[2:]),
        ([In(("topic",), ("a", "c")), EqualTo(("partition",), 1)], ALL[1:2]),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], []),
        ([In(("partition",), (1, 2))], ALL[1:2]),
        ([GreaterThan(("partition",), 0)], ALL),  # 0 itself is for Spark to leave out
        ([GreaterThanOrEqual(("partition",), 1)], ALL[1:2]),
        ([LessThan(("partition",), 1)], ALL),
        ([LessThanOrEqual(("partition",), 0)], [ALL[0], ALL[2]]),
        ([GreaterThanOrEqual(("offset",), 60)], [("a", 0, 60, 100), ("a", 1, 60, 100)]),
        ([LessThanOrEqual(("offset",), 60)], [("a", 0, 0, 61), ("a", 1, 50, 61), ALL[2]]),
        ([EqualTo(("offset",), 9)], [("a", 0, 9, 10), ("b", 0, 9, 10)]),
        ([In(("offset",), (70, 60))], [("a", 0, 60, 71), ("a", 1, 60, 71)]),
        ([GreaterThan(("offset",), -5), LessThan(("offset",), 2**40)], ALL),
        ([GreaterThanOrEqual(("timestamp",), NOON)], ALL[:2]),
        (
            [GreaterThan(("timestamp",), NOON.replace(microsecond=70_999))],
            [("a", 0, 70, 100), ("a", 1, 70, 100)],
        ),
        ([LessThan(("timestamp",), NOON)], ALL),
        ([EqualTo(("timestamp",), datetime(1969, 12, 31, tzinfo=UTC))], ALL),
        ([Not(EqualTo(("topic",), "a"))], ALL),
        ([IsNotNull(("topic",)), StringStartsWith(("topic",), "a")], ALL),
        ([EqualTo(("key",), b"x"), EqualTo(("headers", "key"), "x")], ALL),
        ([EqualTo(("topic",), None)], ALL),
    ],
    ids=lambda value: None,
)
def test_what_is_left_to_read(filters: list[Filter], expected: list[tuple[Any, ...]]) -> None:
    """Every filter is applied again by Spark, so too much is no fault; too little would be."""
    assert left(*filters) == expected
