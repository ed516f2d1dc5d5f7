"""A stream as Spark reads it: offsets planned in one process for the query's life, ranges read in others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from logstore.broker.clock import SteadyClock
from logstore.spark.admission import Admission
from logstore.spark.batch_reader import RangePartition, check_schema, read_range
from logstore.spark.broker_logs import BrokerLogs
from logstore.spark.logs import Logs
from logstore.spark.micro_batches import MicroBatches
from logstore.spark.offsets import flat, nested
from logstore.spark.opening import open_logs
from logstore.spark.read_options import ReadOptions

_NO_LIMIT: Final = 2**63 - 1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches, and reads the ranges of one; pickled in between, without what is open."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        """Raises `InvalidOption`."""
        self._options = ReadOptions.parse(options, streaming=True)
        check_schema(self._options, schema)
        self._opened: tuple[Logs, MicroBatches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_opened": None}

    @property
    def _logs(self) -> Logs:
        return self._open()[0]

    @property
    def _batches(self) -> MicroBatches:
        return self._open()[1]

    def _open(self) -> tuple[Logs, MicroBatches]:
        if self._opened is None:
            logs = open_logs(self._options)
            batches = MicroBatches(self._options, logs, clock_ms=SteadyClock(), pause_s=time.sleep)
            self._opened = logs, batches
        return self._opened

    # --- offsets --------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return nested(self._batches.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        # Never `ReadAllAvailable`, by which a query's only batch is known (`Trigger.Once`).
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return nested(self._batches.latest(flat(start), self._limits(limit)))

    def _limits(self, limit: ReadLimit) -> Admission | None:
        """None: everything there is."""
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

    # --- rows -----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RangePartition(each) for each in self._batches.ranges(flat(start), flat(end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition), "of `partitions`"
        return read_range(self._options, partition.wanted)

    # --- the end --------------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        group, logs = self._options.commit_group, self._logs
        if group is not None and isinstance(logs, BrokerLogs):
            logs.publish(group, flat(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None
