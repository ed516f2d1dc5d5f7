"""Streams in a Spark session: over brokers of this process, restarts, replays, triggers, progress."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.broker.embedded_cluster import BrokerCluster
from logstore.broker.limits import parse_address
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.offsets import lags
from tests.broker.asking import Asker
from tests.spark.groups import progress_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(3, settings={"offsets.topic.num.partitions": "1"}) as running:
        yield running


class Stream:
    """A query over brokers with a checkpoint; what each of its batches had, by batch id."""

    def __init__(self, spark: SparkSession, cluster: BrokerCluster, directory: Path, **options: str) -> None:
        self._spark, self._checkpoint = spark, directory / "checkpoint"
        self._options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "startingOffsets": "earliest",
            "metadataIntervalMs": "0",
            **options,
        }
        self.batches: dict[int, list[tuple[str, int, int, str]]] = {}

    def start(self, **trigger: Any) -> StreamingQuery:
        rows = self._spark.readStream.format("logstore").options(**self._options).load()
        return (
            rows.writeStream.option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._take)
            .trigger(**trigger)
            .start()
        )

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = sorted(
            (row.topic, row.partition, row["offset"], bytes(row.value).decode()) for row in rows.collect()
        )

    def run(self, **trigger: Any) -> None:
        """All there is now, in as many batches as it takes."""
        from pyspark.errors import StreamingQueryException

        while True:
            try:
                query = self.start(**(trigger or {"availableNow": True}))
                assert query.awaitTermination(300), "it has an end"
                return
            except StreamingQueryException as error:
                # Spark waits ten seconds for a Python process, and no longer on a busy machine.
                if "Python worker failed to connect back" not in str(error):
                    raise

    def offsets(self, batch_id: int) -> Any:
        """The end of a batch as it is written down."""
        return json.loads((self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])

    def forget(self, batch_id: int) -> None:
        """As if the process had died before the batch was marked as done."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self._checkpoint / "commits" / name).unlink()

    def forget_plan(self, batch_id: int) -> None:
        """As if it had died before the batch was planned."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self._checkpoint / "offsets" / name).unlink()

    def values(self) -> list[str]:
        return [row[3] for _, rows in sorted(self.batches.items()) for row in rows]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.02)


def delete_topic(cluster: BrokerCluster, topic: str) -> None:
    async def delete() -> None:
        async with asyncio.timeout(30), Asker(parse_address(cluster.bootstrap.split(",")[0])) as client:
            state = t.DeleteTopicsRequestDeleteTopicState(name=topic)
            answer = await client.ask(t.DeleteTopicsRequest(topics=[state], timeout_ms=20_000), 6)
            assert answer.responses[0].error_code == ErrorCode.NONE

    asyncio.run(delete())
    wait_for(lambda: topic not in cluster.topics())


@pytest.fixture
def stream(spark: SparkSession, cluster: BrokerCluster, tmp_path: Path) -> Callable[..., Stream]:
    spark.dataSource.register(LogstoreDataSource)
    return lambda **options: Stream(spark, cluster, tmp_path, **options)


def test_triggers_restarts_and_replays(cluster: BrokerCluster, stream: Callable[..., Stream]) -> None:
    """Batches of a limited size; a restart takes what is new, a replay what its batch had."""
    cluster.create_topic("orders", 2)
    for number in range(6):
        cluster.append("orders", b"a%d" % number, partition=number % 2)
    orders = stream(subscribePattern="ord.*", maxOffsetsPerTrigger="4")
    orders.run()
    assert {batch_id: len(rows) for batch_id, rows in orders.batches.items()} == {0: 4, 1: 2}
    assert sorted(orders.values()) == [f"a{number}" for number in range(6)]
    assert orders.offsets(1) == {"orders": {"0": 3, "1": 3}}

    cluster.append("orders", b"b", partition=1)
    cluster.create_topic("ordinary", 1)
    cluster.append("ordinary", b"c")
    orders.run()
    assert orders.batches[2] == [("orders", 1, 3, "b"), ("ordinary", 0, 0, "c")]

    before = dict(orders.batches)
    cluster.append("orders", b"d", partition=0)
    orders.forget(2)
    orders.run()
    assert orders.batches == {**before, 3: [("orders", 0, 3, "d")]}, "the same rows under the same number"


def test_a_stream_from_latest_loses_nothing_when_its_first_batch_is_run_again(
    cluster: BrokerCluster, stream: Callable[..., Stream]
) -> None:
    """Its first batch is empty and only says where it began; Spark's progress tells how far it is behind."""
    cluster.create_topic("fresh", 1)
    cluster.append("fresh", b"before")
    fresh = stream(subscribe="fresh", startingOffsets="latest", commitGroup="fresh-readers")
    query = fresh.start(processingTime="50 milliseconds")
    try:
        wait_for(lambda: 0 in fresh.batches)
        cluster.append("fresh", b"one")
        query.processAllAvailable()
        progress = next(each for each in query.recentProgress if each.batchId == 1)
        assert [behind.partitions for behind in lags(progress)] == [{TopicPartition("fresh", 0): 0}]
    finally:
        query.stop()
    assert fresh.batches == {0: [], 1: [("fresh", 0, 1, "one")]}
    # Spark tells of a batch's end when it plans the next one.
    wait_for(lambda: progress_of(cluster, "fresh-readers") == {TopicPartition("fresh", 0): 1})

    for batch_id in (0, 1):
        fresh.forget(batch_id)
    fresh.forget_plan(1)
    cluster.append("fresh", b"two")
    fresh.run()
    assert fresh.values() == ["one", "two"]


def test_a_query_of_one_batch_and_a_topic_that_goes(
    cluster: BrokerCluster, stream: Callable[..., Stream]
) -> None:
    """`once` takes all, whatever the limits; a deleted topic ends the query with what to do about it."""
    cluster.create_topic("going", 1)
    for number in range(5):
        cluster.append("going", b"%d" % number)
    going = stream(subscribePattern="go.*", maxOffsetsPerTrigger="2")
    going.run(once=True)
    assert going.values() == ["0", "1", "2", "3", "4"]

    from pyspark.errors import StreamingQueryException

    cluster.append("going", b"lost")
    delete_topic(cluster, "going")
    with pytest.raises(StreamingQueryException, match=r"no longer exist: going-0 \(read up to offset 5\)"):
        going.run()
