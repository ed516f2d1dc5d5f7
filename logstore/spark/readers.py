"""Spark's batch and stream readers. One process plans offset ranges, others read them.

Spark pickles a reader between the two, without what it has open. Filters that Spark hands over narrow a
batch:

    topic = 'orders' and partition in (0, 1)      other partitions are not read
    offset >= 100 and offset < 200                ranges are cut
    timestamp >= '2026-11-20'                     reading starts at the first record at or after that time

Spark applies every filter again, so a filter that is not understood is ignored. An upper bound of time cuts
nothing: a later record may have an earlier time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from logstore.disk.files import SteadyClock
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.brief_errors import briefly
from logstore.spark.broker_logs import BrokerLogs
from logstore.spark.columns import spark_schema
from logstore.spark.errors import InvalidOption
from logstore.spark.logs import LOGGER, Logs, OffsetRange
from logstore.spark.micro_batches import Admission, MicroBatches
from logstore.spark.offsets import flat, nested, of_checkpoint
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import cut, open_logs, plan_batch, read_range
from logstore.spark.worker_memory import spare_loaded

_NO_LIMIT: Final = 2**63 - 1


class RangePartition(InputPartition):
    """A task: read these offsets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def check_schema(options: ReadOptions, schema: Any) -> None:
    """Raise `InvalidOption` if the user gave a schema."""
    if schema != spark_schema(options.columns):
        raise InvalidOption(
            "logstore has a fixed schema: remove .schema(...), choose columns with option columns, then "
            "select and cast"
        )


# --- batches ------------------------------------------------------------------------------------------------


def batch_reader(options: Mapping[str, str], schema: Any) -> DataSourceReader:
    """Return the reader for these options. Raises `InvalidOption`."""
    parsed = ReadOptions.parse(options, streaming=False)
    check_schema(parsed, schema)
    return PushdownReader(parsed) if parsed.pushdown else BatchReader(parsed)


@briefly
class BatchReader(DataSourceReader):
    """Reads one batch: plans with `partitions`, reads each with `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        for name in options.ignored:
            LOGGER.warning("option %s has no effect on a batch read: it is for streams", name)
        with closing(open_logs(options)) as logs:
            pieces = cut(
                self._narrowing.apply(plan_batch(options, logs), logs),
                logs.cut_points,
                min_partitions=options.min_partitions,
                max_records=options.max_records_per_partition,
            )
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # If there are no partitions, Spark calls this with an empty one of its own.
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.wanted)
            spare_loaded()


class PushdownReader(BatchReader):
    """The reader for `pushdown=one_query`.

    Spark keeps the ranges that the last filters left with the frame, for every query of it (decision 086).
    A class of its own because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = Narrowing.of(filters)
        return filters


# --- filters ------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = datetime.resolution * 1000


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The rows that may pass the filters; None for no limit."""

    topics: frozenset[str] | None = None
    first_partition: int = 0
    last_partition: int = _NO_LIMIT
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int = _NO_LIMIT
    start_time_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """Return what all of `filters` together leave."""
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
        """Return what is left of `ranges`, looking times up in `logs`."""
        kept = [
            replace(
                each,
                start_offset=max(each.start_offset, self.first_offset),
                end_offset=min(each.end_offset, self.last_offset + 1),
            )
            for each in ranges
            if self.has(each.topic_partition)
        ]
        kept = [each for each in kept if each.size > 0]
        if self.start_time_ms is None or self.start_time_ms <= 0 or not kept:
            return kept  # a record without a time counts as just before the epoch
        starts = logs.offsets_by_time({each.topic_partition: self.start_time_ms for each in kept})
        return [
            replace(each, start_offset=max(each.start_offset, start))
            for each in kept
            if (start := starts.get(each.topic_partition)) is not None
        ]


def _bounds(condition: Filter, kind: type) -> tuple[Any, Any, frozenset[Any] | None]:
    """Return the smallest and largest passing value, and the set of them if it is listed; None: no limit."""
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


_COLUMNS: Final[dict[str, Callable[[Narrowing, Filter], Narrowing]]] = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _time,
}


# --- streams ------------------------------------------------------------------------------------------------


@briefly
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream: one instance plans all batches of a query, others read their ranges."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        """Never raises, because Spark would show its own error; the first call raises `InvalidOption`."""
        self._given, self._schema = dict(options), schema
        self._opened: tuple[Logs, MicroBatches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_schema": self._schema, "_opened": None}

    @cached_property
    def _options(self) -> ReadOptions:
        options = ReadOptions.parse(self._given, streaming=True)
        check_schema(options, self._schema)
        return options

    def _open(self) -> tuple[Logs, MicroBatches]:
        if self._opened is None:
            logs = open_logs(self._options)
            batches = MicroBatches(self._options, logs, clock_ms=SteadyClock(), pause_s=time.sleep)
            self._opened = logs, batches
        return self._opened

    @property
    def _batches(self) -> MicroBatches:
        return self._open()[1]

    def initialOffset(self) -> dict[str, Any]:
        return nested(self._batches.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        # Never `ReadAllAvailable`: Spark gives that for a query's only batch (`Trigger.Once`).
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return nested(self._batches.latest(of_checkpoint(start), self._limits(limit)))

    def _limits(self, limit: ReadLimit) -> Admission | None:
        """Return the limits of a batch; None to read everything."""
        if isinstance(limit, ReadAllAvailable):
            return None
        options = self._options
        return Admission(
            limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger,
            limit.min_rows if isinstance(limit, ReadMinRows) else options.min_offsets_per_trigger,
            options.max_trigger_delay_ms,
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._batches.fix_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        seen = self._batches.seen
        return None if seen is None else nested(seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RangePartition(each) for each in self._batches.ranges(flat(start), flat(end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition), "Spark passes what `partitions` returned"
        yield from read_range(self._options, partition.wanted)
        spare_loaded()

    def commit(self, end: dict[str, Any]) -> None:
        group, logs = self._options.commit_group, self._open()[0]
        if group is not None and isinstance(logs, BrokerLogs):
            logs.publish(group, flat(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None
