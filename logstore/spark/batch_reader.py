"""A batch read: offset ranges planned in one process, and read in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from logstore.spark.columns import RowMaker, read_columns, spark_schema
from logstore.spark.errors import InvalidOption
from logstore.spark.logs import Logs, Missing, OffsetRange
from logstore.spark.losses import LOGGER, raise_on_loss, report
from logstore.spark.offsets import ending, starting, times_of
from logstore.spark.opening import open_logs
from logstore.spark.pushdown import Narrowing
from logstore.spark.ranges import cut
from logstore.spark.read_options import ReadOptions


class RangePartition(InputPartition):
    """A task: read these offsets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def batch_reader(options: Mapping[str, str], schema: Any) -> DataSourceReader:
    """The reader for these options. Raises `InvalidOption`."""
    parsed = ReadOptions.parse(options, streaming=False)
    check_schema(parsed, schema)
    return PushdownReader(parsed) if parsed.pushdown else BatchReader(parsed)


def check_schema(options: ReadOptions, schema: Any) -> None:
    """Raise `InvalidOption` for a schema of the user's own."""
    if schema != spark_schema(options.columns):
        raise InvalidOption(
            "logstore has a fixed schema: leave .schema(...) out, name columns with option columns, "
            "then select and cast what comes"
        )


class BatchReader(DataSourceReader):
    """Plans with `partitions`, reads with `read`; pickled in between."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        for name in self._options.ignored:
            LOGGER.warning("option %s is for streams and does nothing in a batch read", name)
        logs = open_logs(self._options)
        try:
            ranges = self._narrowing.apply(plan_batch(self._options, logs), logs)
            pieces = cut(
                ranges,
                logs.cut_points,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        finally:
            logs.close()
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark calls with a partition of nothing where there is none.
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.wanted)


class PushdownReader(BatchReader):
    """With option `pushdown`: Spark calls this only if `spark.sql.python.filterPushdown.enabled` is set.

    And refuses the read if it is not, which is why it is a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = Narrowing.of(filters)
        return filters


def plan_batch(options: ReadOptions, logs: Logs) -> list[OffsetRange]:
    """The offsets that a batch reads, a range a partition. Raises `EngineError`s of options and logs."""
    available = logs.partitions()
    options.selection.check(available, ", ".join(options.paths) or options.bootstrap_servers)
    bounds = logs.bounds(options.selection.choose(available))
    found = [
        logs.offsets_by_time(times) if (times := times_of(position, bounds)) else {}
        for position in (options.starting, options.ending)
    ]
    starts = starting(options.starting, bounds, found[0], latest_if_none=options.latest_if_no_time)
    ends = ending(options.ending, bounds, found[1])
    return [OffsetRange(each.topic, each.partition, starts[each], ends[each]) for each in sorted(bounds)]


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[Any]:
    """The rows of a range as Spark's record batches, in order of offset.

    Raises `DataLoss` for rows that are gone if `options` say so, and `EngineError` for what cannot be read.
    """
    maker = RowMaker(wanted.topic, wanted.partition, options.columns)
    missing: list[Missing] = []
    rows = judged = 0
    logs = open_logs(options)
    try:
        for batch in logs.read(wanted, read_columns(options.columns), missing):
            rows += batch.num_rows
            yield maker.rows(batch)
            judged = _judge(options, missing, judged)
        _judge(options, missing, judged)
    finally:
        logs.close()
    report(wanted, rows, missing)


def _judge(options: ReadOptions, missing: list[Missing], judged: int) -> int:
    if options.fail_on_data_loss:
        raise_on_loss(missing[judged:])
    return len(missing)
