"""The interface between Spark and a log's storage: partitions, readable bounds, rows, and lost records.

    Logs ─┬─ DirectoryLogs   bare log dirs and partition directories (directory_logs.py)
          └─ BrokerLogs      brokers, over Kafka's protocol (broker_logs.py)

Every process that reads makes its own `Logs` from the options: the planner, and each task. Only
`OffsetRange`s travel between them. Nothing here imports Spark.

`failOnDataLoss=true` raises `DataLoss` at the first lost record; `false` logs a warning for each loss. Either
way, a range with missing offsets logs one line of JSON on the logger `logstore.pipeline`: at WARNING if
records were lost, at INFO if only compaction or aborted transactions removed them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from logstore.disk.topic_partition import TopicPartition
from logstore.loggers import logger_of
from logstore.spark.errors import DataLoss

LOGGER: Final = logger_of("logstore.pipeline")


class Bounds(NamedTuple):
    """The readable offsets of a partition: from its log start to its high watermark or last stable offset."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A unit of work: the offsets [start_offset, end_offset) of one partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.topic_partition} from {self.start_offset} to {self.end_offset}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of offsets; 0 or less if the range is empty."""
        return self.end_offset - self.start_offset

    def lost(self, start: int, end: int, cause: Cause, detail: str = "") -> Missing:
        """Return the offsets [start, end) of this range as missing."""
        return Missing(self.topic, self.partition, start, end, cause, detail)


class Cause(StrEnum):
    """The reason why offsets of a range have no rows. The first two are not losses."""

    COMPACTED = "compacted"
    ABORTED = "aborted"
    EXPIRED = "expired"
    """below the log start: deleted by retention or on request"""
    DAMAGED = "damaged"
    TRUNCATED = "truncated"
    """past the end of the log, which was longer when the range was planned"""

    @property
    def is_loss(self) -> bool:
        return self not in (Cause.COMPACTED, Cause.ABORTED)


class Missing(NamedTuple):
    """Requested offsets [start_offset, end_offset) without rows, and the cause.

    Compaction and aborted transactions remove scattered offsets. They are one item per range, from the first
    to the last such offset, and `number` counts them.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    cause: Cause
    detail: str = ""
    number: int | None = None

    @property
    def offsets(self) -> int:
        """The number of missing offsets."""
        return self.end_offset - self.start_offset if self.number is None else self.number


Headers: TypeAlias = Any
"""Batch headers as `logstore.segment.scan` has them: a numpy array of `header_dtype()`."""


class Logs(Protocol):
    """A readable set of partitions, for one thread. An unreachable source raises an `EngineError`."""

    def partitions(self) -> Sequence[TopicPartition]:
        """List every partition, sorted. Each call may scan directories or query brokers."""

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Return the readable bounds of each partition now. Cheap: a stream calls this at every trigger."""

    def topic_ids(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Return the topic id of each partition that is there and has one."""

    def later_epochs(self, partition: TopicPartition, epoch: int) -> Sequence[tuple[int, int]]:
        """Return leader epochs after `epoch` with their start offsets, ascending: one, or all of them."""

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the offset of the first record at or after each time, None if there is none."""

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        """Return about `pieces` - 1 ascending offsets in the range at which a batch begins."""

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        """Yield the rows in offset order, as `pyarrow.RecordBatch`es of `logstore.columnar.columnar` columns.

        Offsets without rows are appended to `missing`; the caller decides whether they are an error.
        """

    def close(self) -> None: ...


# --- lost records -------------------------------------------------------------------------------------------

_WHY: Final = {
    Cause.EXPIRED: "they are below the log start: deleted by retention or on request",
    Cause.DAMAGED: "the log is damaged there; another replica may have a sound copy",
    Cause.TRUNCATED: "the log ends before them: it was truncated, or lost its tail",
}


def describe(missing: Missing) -> str:
    """Return one line that names the lost offsets and the cause."""
    detail = f" ({missing.detail})" if missing.detail else ""
    if not missing.offsets:
        return (
            f"{missing.topic}-{missing.partition}: damage before offset {missing.end_offset} costs no record"
            + detail
        )
    return (
        f"{missing.topic}-{missing.partition}: offsets {missing.start_offset} to {missing.end_offset - 1} "
        f"are lost, {missing.cause.value}: {_WHY[missing.cause]}{detail}"
    )


def raise_on_loss(missing: Iterable[Missing]) -> None:
    """Raise `DataLoss` for the first item that is a loss of records."""
    for each in missing:
        if each.cause.is_loss and each.offsets:
            raise DataLoss(f"{describe(each)}. Set failOnDataLoss to false to continue without them")


def report(wanted: OffsetRange, rows: int, missing: Sequence[Missing]) -> None:
    """Log the offsets of a range that have no rows; log nothing if there are none."""
    losses = [each for each in missing if each.cause.is_loss]
    for each in losses:
        LOGGER.warning("%s", describe(each))
    if missing:
        LOGGER.log(logging.WARNING if losses else logging.INFO, "%s", as_json(wanted, rows, missing))


def as_json(wanted: OffsetRange, rows: int, missing: Sequence[Missing]) -> str:
    """Return the report of a range as one line of JSON."""
    facts = [
        {
            "cause": each.cause.value,
            "start_offset": each.start_offset,
            "end_offset": each.end_offset,
            "offsets": each.offsets,
            **({"detail": each.detail} if each.detail else {}),
        }
        for each in missing
    ]
    bounds = {"start_offset": wanted.start_offset, "end_offset": wanted.end_offset}
    place = {"topic": wanted.topic, "partition": wanted.partition}
    return json.dumps({"event": "range", **place, **bounds, "rows": rows, "missing": facts})
