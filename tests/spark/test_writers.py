"""Writes from Spark: what a user sees of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.broker.threaded import Broker
from logstore.disk.files import OsDisk
from logstore.format.record import Header, Record
from logstore.log.log import Log
from tests.spark.sinks import partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def records(path: Path) -> dict[str, list[Record]]:
    found = {}
    for partition in partitions(OsDisk(), str(path)):
        with Log.open(path / str(partition)) as log:
            found[str(partition)] = list(log.read())
    return found


def count(path: Path) -> int:
    return sum(map(len, records(path).values()))


def appending(rows: DataFrame, **options: Any) -> DataFrameWriter:
    return rows.write.format("logstore").mode("append").options(**options)


def test_a_batch_with_every_column(spark: SparkSession, tmp_path: Path) -> None:
    """Tombstones, headers, times, binaries and text; what has no partition goes by its key."""
    rows = spark.sql(
        "select * from values"
        " ('a', 0, 'k', binary('one'), array(struct('h' as key, binary('1') as value)), timestamp_millis(5)),"
        " ('a', 1, null, null, null, null),"
        " ('b', null, 'k', binary('two'), null, timestamp_millis(7))"
        " as t(topic, partition, key, value, headers, timestamp)"
    )
    appending(rows.coalesce(1), partitions=2, includeTimestamp="true").save(str(tmp_path / "logs"))
    found = records(tmp_path / "logs")
    assert sorted(found) == ["a-0", "a-1", "b-0", "b-1"]
    (first,), (second,) = found["a-0"], found["a-1"]
    assert (first.key, first.value, first.timestamp_ms) == (b"k", b"one", 5)
    assert first.headers == (Header("h", b"1"),)
    assert (second.key, second.value, second.headers) == (None, None, ())
    assert second.timestamp_ms > 1_700_000_000_000
    (third,) = found["b-0"] + found["b-1"]
    assert (third.key, third.value, third.timestamp_ms) == (b"k", b"two", 7)
    left = [entry.name for entry in (tmp_path / "logs.logstore-sink").iterdir()]
    assert left == [], "a write without a name leaves nothing"


def test_a_version_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    logs = tmp_path / "logs"
    for version in (1, 1, 2, 1):
        appending(rows, topic="t", partitions=1, txnAppId="nightly/eu", txnVersion=version).save(str(logs))
    assert count(logs) == 200
    appending(rows, topic="t", txnAppId="another", txnVersion=1).save(str(logs))
    assert count(logs) == 300


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "none"}, "topic none does not exist in .*; set option partitions"),
        ({}, "no topic: set option topic, or add a column topic"),
        ({"topic": "t", "txnAppId": "a"}, "txnAppId and txnVersion identify a write together"),
        ({"topic": "t", "kafka.acks": "1"}, "option kafka.acks is '1'"),
        ({"topic": "t", "partitions": 1, "kafka.max.request.size": 100}, "row 1 of Spark partition 0"),
    ],
)
def test_a_refusal_says_what_to_do(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    """Through all of Spark's wrapping; nothing is left."""
    rows = spark.range(0, 10, 1, 1).selectExpr("repeat('x', 50) as value")
    with pytest.raises(Exception, match=said):
        appending(rows, **options).save(str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


def test_overwriting_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="mode overwrite is not supported: a log is append-only"):
        appending(spark.range(1).selectExpr("'x' as value"), topic="t").mode("overwrite").save(str(tmp_path))


def test_the_complete_mode_of_a_stream_appends(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark's sink for Kafka does: each trigger's whole table, behind the last one's."""
    counts = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=10)
        .load()
        .groupBy()
        .count()
        .selectExpr("cast(count as string) as value")
    )
    logs = tmp_path / "logs"
    for _ in range(2):
        query = (
            counts.writeStream.format("logstore")
            .outputMode("complete")
            .options(topic="t", partitions=1, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(logs))
        )
        query.awaitTermination()
    assert [record.value for record in records(logs)["t-0"]] == [b"10", b"20"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_a_batch_and_a_stream_to_brokers(spark: SparkSession, tmp_path: Path, broker: Broker) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    appending(rows, topic="t", partitions=3, **servers).save()
    staging = {"stagingPath": str(tmp_path / "staging"), "txnAppId": "a", "txnVersion": "5"}
    for _ in range(2):
        appending(rows, topic="t", **servers, **staging).save()
    stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=50).load()
    query = (
        stream.selectExpr("cast(value as string) as value")
        .writeStream.format("logstore")
        .options(topic="t", checkpointLocation=str(tmp_path / "checkpoint"), **servers)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [record.value for partition in range(3) for record in broker.scan("t", partition)]
    assert len(found) == 300 + 300 + 50
    assert sorted(map(int, filter(None, found)))[-1] == 299
    assert (tmp_path / "checkpoint/logstore-sink/ledger").exists()
