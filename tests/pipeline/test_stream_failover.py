"""One topic, two streams: over its brokers, and over their directories, while leaders are killed.

Three brokers in processes of their own, idempotent producers that never pause, kill -9. Both streams must
give the same rows, each once and in order, and exactly those that were acknowledged.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.blocking import BlockingClient
from broker.limits import parse_address
from pipeline.data_source import LogstoreDataSource
from tools.local_cluster import launch, start, stop, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOPIC = "orders"
PARTITIONS = 3
PATIENCE_S = 120.0
SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "replica.fetch.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "request.timeout.ms": "5000",
}


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} never came"
        time.sleep(0.05)


class Producer:
    """Appends in a thread, some records at a time, to every partition in turn, until told to stop."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self._name, self._bootstrap = name, bootstrap
        self._enough = threading.Event()
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            addresses = [parse_address(each) for each in self._bootstrap.split(",")]
            with BlockingClient(addresses, timeout_s=PATIENCE_S) as client:
                number = 0
                while not self._enough.is_set():
                    partition = number % PARTITIONS
                    values = [f"{self._name} {number} {each}".encode() for each in range(10)]
                    placed = client.append(TOPIC, values, partition=partition)
                    self.acknowledged += [
                        (partition, each.offset, value) for each, value in zip(placed, values, strict=True)
                    ]
                    number += 1
                    self._enough.wait(0.01)
        except BaseException as error:
            self.failures.append(error)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert not self.failures, self.failures


class Rows:
    """What a stream gave, in the order in which it came, by partition."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}

    def take(self, rows: DataFrame, _batch_id: int) -> None:
        for row in rows.select("partition", "offset", "value").collect():
            self.partitions[row.partition].append((row["offset"], bytes(row.value)))

    def __len__(self) -> int:
        return sum(map(len, self.partitions.values()))


@contextmanager
def brokers(directory: Path) -> Iterator[str]:
    cluster = start(directory, 3, SETTINGS, patience_s=PATIENCE_S)
    try:
        yield cluster.bootstrap
    finally:
        stop(directory, patience_s=20.0)


def run(spark: SparkSession, directory: Path, kills: int) -> None:
    spark.dataSource.register(LogstoreDataSource)
    with brokers(directory / "cluster") as bootstrap, _client(bootstrap) as client:
        client.create_topic(TOPIC, PARTITIONS, replication_factor=3)
        sources = {
            "brokers": {"kafka.bootstrap.servers": bootstrap},
            "directories": {"path": f"{directory}/cluster/node-?"},
        }
        found = {name: Rows() for name in sources}
        producers = [Producer(name, bootstrap) for name in ("one", "two")]
        queries = []
        try:
            for name, options in sources.items():
                rows = spark.readStream.format("logstore").options(**options).option("subscribe", TOPIC)
                queries.append(
                    rows.option("startingOffsets", "earliest")
                    .load()
                    .writeStream.option("checkpointLocation", f"{directory}/checkpoint-{name}")
                    .foreachBatch(found[name].take)
                    .trigger(processingTime="100 milliseconds")
                    .start()
                )

            def goes_on() -> None:
                """All write, and all that is written now is read."""
                written = [len(each.acknowledged) + 50 for each in producers]
                wait_for(
                    "acknowledgements",
                    lambda: all(
                        len(each.acknowledged) >= enough
                        for each, enough in zip(producers, written, strict=True)
                    ),
                )
                enough = sum(len(each.acknowledged) for each in producers)
                wait_for("rows", lambda: all(len(rows) >= enough for rows in found.values()))

            goes_on()
            for kill in range(kills):
                leader = client.leader(TOPIC, kill % PARTITIONS)
                tell(directory / "cluster", f"node-{leader}", signal.SIGKILL)
                goes_on()
                launch(directory / "cluster", [f"node-{leader}"], patience_s=PATIENCE_S)
                goes_on()
            for producer in producers:
                producer.stop()
            total = sum(len(each.acknowledged) for each in producers)
            wait_for("the last rows", lambda: all(len(rows) >= total for rows in found.values()))
            for query in queries:
                query.processAllAvailable()
                assert query.exception() is None
        finally:
            for query in queries:
                query.stop()
        acknowledged = sorted(each for producer in producers for each in producer.acknowledged)
        expected: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
        for partition, offset, value in acknowledged:
            expected[partition].append((offset, value))
        assert found["brokers"].partitions == expected
        assert found["directories"].partitions == expected


def _client(bootstrap: str) -> BlockingClient:
    return BlockingClient([parse_address(each) for each in bootstrap.split(",")], timeout_s=PATIENCE_S)


@pytest.mark.timeout(400)
def test_brokers_and_directories_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """One leader is killed."""
    run(spark, tmp_path, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_through_many_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Ten leaders, one after the other, each of which comes back: `make spark` runs it."""
    run(spark, tmp_path, kills=10)
