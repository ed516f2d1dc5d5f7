"""What filters that Spark hands over say of the ranges to read: topics, partitions, offsets, times.

    topic = 'orders' and partition in (0, 1)      other partitions are not read
    offset >= 100 and offset < 200                the range is cut
    timestamp >= '2026-11-20'                     begins at the first record that is so young

Only used to read less: every filter is Spark's to apply again, so what is not understood is passed over.
Upper bounds of time cut nothing: a later record may be older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.logs import Logs, OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Where rows that pass the filters can be; None for no limit."""

    topics: frozenset[str] | None = None
    first_partition: int = 0
    last_partition: int = _LARGEST
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int = _LARGEST
    start_time_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """What all of `filters` together leave."""
        found = cls()
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            narrow = _COLUMNS.get(".".join(path))
            if narrow is not None:
                found = narrow(found, each)
        return found

    def has(self, partition: TopicPartition) -> bool:
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and self.first_partition <= partition.partition <= self.last_partition
        )

    def apply(self, ranges: Sequence[OffsetRange], logs: Logs) -> list[OffsetRange]:
        """What is left of `ranges`; times are looked up in `logs`."""
        kept = [
            replace(
                each,
                start_offset=max(each.start_offset, self.first_offset),
                end_offset=min(each.end_offset, self.last_offset + 1),
            )
            for each in ranges
            if self.has(each.topic_partition)
        ]
        kept = [each for each in kept if each.start_offset < each.end_offset]
        if self.start_time_ms is None or self.start_time_ms <= 0 or not kept:
            return kept  # records without a time count as of just before the epoch
        starts = logs.offsets_by_time({each.topic_partition: self.start_time_ms for each in kept})
        return [
            replace(each, start_offset=max(each.start_offset, start))
            for each in kept
            if (start := starts.get(each.topic_partition)) is not None
        ]


def _bounds(condition: Filter, kind: type) -> tuple[Any, Any, frozenset[Any] | None]:
    """Smallest and largest value that may pass, and all of them where they are listed; None: no limit."""
    match condition:
        case EqualTo(_, value) | EqualNullSafe(_, value) if isinstance(value, kind):
            return value, value, frozenset((value,))
        case In(_, values) if all(isinstance(each, kind) for each in values) and values:
            return min(values), max(values), frozenset(values)
        case GreaterThan(_, value) | GreaterThanOrEqual(_, value) if isinstance(value, kind):
            return value, None, None
        case LessThan(_, value) | LessThanOrEqual(_, value) if isinstance(value, kind):
            return None, value, None
    return None, None, None


def _topic(found: Narrowing, condition: Filter) -> Narrowing:
    listed = _bounds(condition, str)[2]
    if listed is None:
        return found
    return replace(found, topics=listed if found.topics is None else found.topics & listed)


def _partition(found: Narrowing, condition: Filter) -> Narrowing:
    low, high, listed = _bounds(condition, int)
    if listed is not None:
        return replace(found, partitions=listed if found.partitions is None else found.partitions & listed)
    return replace(
        found,
        first_partition=max(found.first_partition, low or 0),
        last_partition=found.last_partition if high is None else min(found.last_partition, high),
    )


def _offset(found: Narrowing, condition: Filter) -> Narrowing:
    low, high, _ = _bounds(condition, int)
    return replace(
        found,
        first_offset=max(found.first_offset, low or 0),
        last_offset=found.last_offset if high is None else min(found.last_offset, high),
    )


def _time(found: Narrowing, condition: Filter) -> Narrowing:
    low = _bounds(condition, datetime)[0]
    if low is None:
        return found
    if low.tzinfo is None:
        low = low.astimezone()
    time_ms = (low - _EPOCH) // _MILLISECOND
    return replace(found, start_time_ms=max(found.start_time_ms or time_ms, time_ms))


_MILLISECOND: Final = datetime.resolution * 1000
_COLUMNS: Final[dict[str, Callable[[Narrowing, Filter], Narrowing]]] = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _time,
}
