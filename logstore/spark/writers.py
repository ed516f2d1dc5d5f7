"""Spark's batch and stream writers.

`delivery=exactly_once`: tasks stage rows in files, the commit publishes them (`sink.py`).
`delivery=at_least_once`: tasks send rows to the leaders (`direct.py`), and there is nothing left to commit.

Spark creates a batch's writer once and pickles it into tasks and commit. It creates a stream's writer anew in
each of them; there only the tasks' messages carry the query's id and the batch's number to the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from logstore.spark.brief_errors import briefly
from logstore.spark.errors import InvalidOption, WriteRefused
from logstore.spark.ledger import remove_staged
from logstore.spark.publishing import Message
from logstore.spark.sink import (
    Sink,
    knock,
    ledger_of_one_write,
    ledger_of_stream,
    ledger_of_transaction,
    os_sink,
)
from logstore.spark.sink_rows import check_columns
from logstore.spark.worker_memory import spare_loaded
from logstore.spark.write_options import Delivery, WriteOptions

if TYPE_CHECKING:
    from pyspark import TaskContext

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_ONLY: Final = 0
"""The number of the only publication of a write without a name."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's message in Spark's wrapper."""

    message: Message


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """The message of a task whose rows are in the topic already."""

    rows: int


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer for `df.write.format("logstore")`, mode append.

    Raises as `WriteOptions.parse`, and `RequestUnanswered` if no broker takes a connection.
    """
    if overwrite:
        raise WriteRefused(
            "mode overwrite is not supported: a log is append-only. Use mode append; to replace records, "
            "delete the topic or its records first"
        )
    parsed = _checked(options, schema, streaming=False)
    knock(parsed)
    return DirectBatchWriter(parsed) if _is_direct(parsed) else BatchWriter(parsed)


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return the writer for `df.writeStream.format("logstore")`. Raises as `WriteOptions.parse`.

    Output mode complete appends too, as in Spark's Kafka sink; Spark refuses mode update for Python sinks.
    """
    parsed = _checked(options, schema, streaming=True)
    return DirectStreamWriter(parsed) if _is_direct(parsed) else StreamWriter(parsed)


def _is_direct(options: WriteOptions) -> bool:
    return options.delivery is Delivery.AT_LEAST_ONCE


@briefly
class BatchWriter(DataSourceArrowWriter):
    """Writes a batch exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        """Raises `InvalidOption`."""
        self._options = options
        if self._options.transaction is not None:
            self._ledger = ledger_of_transaction(self._options)
            self._number = self._options.transaction[1]
        else:
            self._ledger = ledger_of_one_write(self._options, Random(), f"{gettempdir()}/logstore-sink")
            self._number = _ONLY

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _stage(self._options, iterator, self._ledger, self._number)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        os_sink(self._options).commit(_of(messages), self._ledger, self._number)
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        os_sink(self._options).abort(_of(messages), self._ledger, self._number)
        self._forget()

    def _forget(self) -> None:
        # Nothing reads the ledger of a write without a name again.
        if self._options.transaction is None:
            remove_staged(os_sink(self._options).disk, self._ledger)


@briefly
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _task()
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise InvalidOption(f"Spark passes no query id ({_QUERY_ID}): use Spark 4.2 or newer")
        return _stage(self._options, iterator, ledger_of_stream(self._options, query_id), int(batch_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        found = _of(messages)
        assert found, "at least one task has written"
        self._sink().commit(found, found[0].ledger, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Without a message the ledger is unknown; the next commit removes what dead tasks have staged.
        if found := _of(messages):
            self._sink().abort(found, found[0].ledger, batchId)

    def _sink(self) -> Sink:
        return os_sink(self._options)


@briefly
class _Direct:
    """Writes at least once: the rows are in the topic when a task ends."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from logstore.spark.direct import write_directly

        context = _task()
        number = context.partitionId()
        turn = number + context.taskAttemptId()
        rows = write_directly(self._options, iterator, spark_partition=number, turn=turn)
        spare_loaded()
        return Sent(rows)


class DirectBatchWriter(_Direct, DataSourceArrowWriter):
    """Writes a batch at least once."""


class DirectStreamWriter(_Direct, DataSourceStreamArrowWriter):
    """Writes the batches of a stream at least once."""


def _checked(options: Mapping[str, str], schema: Any, *, streaming: bool) -> WriteOptions:
    parsed = WriteOptions.parse(options, streaming=streaming)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, parsed)
    return parsed


def _task() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a task has a context"
    return context


def _stage(options: WriteOptions, batches: Iterator[Any], ledger: str, number: int) -> Written:
    context = _task()
    message = os_sink(options).stage(
        batches,
        ledger,
        number,
        spark_partition=context.partitionId(),
        attempt=context.taskAttemptId(),
        random=Random(),
    )
    spare_loaded()
    return Written(message)


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    return [each.message for each in messages if isinstance(each, Written)]
