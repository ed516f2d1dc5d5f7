"""The seam between Spark and whatever holds the log: partitions, how far they may be read, and their rows.

    Logs ─┬─ DirectoryLogs   bare log dirs and partition directories (directory_logs.py)
          └─ BrokerLogs      brokers, by Kafka's protocol (broker_logs.py)

A `Logs` is made from options in every process that needs one: the one that plans, and each that runs a
task. What travels between them is an `OffsetRange`. Nothing here knows of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from logstore.disk.topic_partition import TopicPartition


class Bounds(NamedTuple):
    """What of a partition can be read: from its log start up to the high watermark or last stable offset."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A piece of work: the offsets [start_offset, end_offset) of a partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.topic_partition} from {self.start_offset} to {self.end_offset}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Cause(StrEnum):
    """Why offsets of a range gave no rows. The first two are no loss."""

    COMPACTED = "compacted"
    ABORTED = "aborted"
    EXPIRED = "expired"
    """below the log start: retention or somebody deleted them"""
    DAMAGED = "damaged"
    TRUNCATED = "truncated"
    """past the end of the log, which was longer when the range was planned"""

    @property
    def is_loss(self) -> bool:
        return self not in (Cause.COMPACTED, Cause.ABORTED)


class Missing(NamedTuple):
    """Offsets [start_offset, end_offset) that were asked for and gave no rows, and why.

    What compaction and aborts took lies scattered: one item a range, from the first to the last, and
    `number` says how many.
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
        """How many they are."""
        return self.end_offset - self.start_offset if self.number is None else self.number


Headers: TypeAlias = Any
"""Batch headers as `logstore.segment.scan` has them: a numpy array of `HEADER_DTYPE`."""


class Logs(Protocol):
    """For one thread. What cannot be reached or read raises an `EngineError` that says what to do."""

    def partitions(self) -> Sequence[TopicPartition]:
        """Every partition there is now, sorted. May look at directories or ask brokers each time."""

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """What can be read of each now. Cheap: it is asked at every trigger of a stream."""

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset whose record is at least that young, None if there is none."""

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        """About `pieces` - 1 offsets within the range, ascending, where reading may begin without waste."""

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        """The rows as `pyarrow.RecordBatch`es of `logstore.columnar.columnar` columns, in order of offset.

        What gives no rows is appended to `missing`; whether that is an error is the caller's to say.
        """

    def close(self) -> None: ...
