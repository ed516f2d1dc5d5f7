"""Both guarantees of the sink under Spark, with a task that fails after it wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from logstore.broker.threaded import Broker
from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.writers import batch_writer, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MARK = "mark"
ROWS = 300


def _wrapped(options: Mapping[str, str]) -> tuple[dict[str, str], Path]:
    given = {name.lower(): value for name, value in options.items()}
    return given, Path(given.pop(MARK))


def _fail_once(mark: Path) -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1 and not mark.exists():
        mark.touch()
        raise OSError("planted: the task is lost after it wrote")


class FailingBatch(DataSourceArrowWriter):
    def __init__(self, writer: Any, mark: Path) -> None:
        self._writer, self._mark = writer, mark

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._writer.write(iterator)
        _fail_once(self._mark)
        return message

    def commit(self, messages: Any) -> None:
        self._writer.commit(messages)


class FailingStream(DataSourceStreamArrowWriter):
    def __init__(self, writer: Any, mark: Path) -> None:
        self._writer, self._mark = writer, mark

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._writer.write(iterator)
        _fail_once(self._mark)
        return message

    def commit(self, messages: Any, batchId: int) -> None:
        self._writer.commit(messages, batchId)


class LosesATask(LogstoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "loses_a_task"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        given, mark = _wrapped(self.options)
        return FailingBatch(batch_writer(given, schema, overwrite), mark)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given, mark = _wrapped(self.options)
        return FailingStream(stream_writer(given, schema, overwrite), mark)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize(("delivery", "most"), [("exactly_once", 1), ("at_least_once", 2)])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_that_is_lost_after_it_wrote(
    spark: SparkSession, tmp_path: Path, broker: Broker, delivery: str, most: int, streaming: bool
) -> None:
    spark.dataSource.register(LosesATask)
    topic = f"t-{delivery}-{streaming}"
    given = {
        **{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "partitions": "3"},
        **{"delivery": delivery, MARK: str(tmp_path / "failed")},
    }
    if streaming:
        source = (
            spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=3).load()
        )
        query = (
            source.selectExpr("cast(value as string) as key", "cast(value as string) as value")
            .writeStream.format("loses_a_task")
            .options(checkpointLocation=str(tmp_path / "checkpoint"), **given)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    else:
        rows = spark.range(0, ROWS, 1, 3).selectExpr(
            "cast(id as string) as key", "cast(id as string) as value"
        )
        rows.write.format("loses_a_task").mode("append").options(**given).save()
    assert (tmp_path / "failed").exists()
    counts = Counter(int(record.value or b"-1") for each in range(3) for record in broker.scan(topic, each))
    assert set(counts) == set(range(ROWS))
    assert max(counts.values()) == most
