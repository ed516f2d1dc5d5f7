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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import parse_address
from logstore.cli.local_cluster import launch, send_signal, start, stop
from logstore.spark.data_source import LogstoreDataSource
from tests.spark.job_kills.nodes import PATIENCE_S, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

TOPIC = "orders"
PARTITIONS = 3
NO_WORKER = "Python worker failed to connect back"


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


class Stream:
    """A query, and what each of its batches gave; one that is run again gives its rows anew."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self._spark, self._checkpoint, self._options = spark, checkpoint, options
        self._batches: dict[int, list[tuple[int, int, bytes]]] = {}
        self._query = self._started()

    def _started(self) -> StreamingQuery:
        rows = self._spark.readStream.format("logstore").options(**self._options, subscribe=TOPIC)
        return (
            rows.option("startingOffsets", "earliest")
            .load()
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._take)
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        found = rows.select("partition", "offset", "value").collect()
        self._batches[batch_id] = [(row.partition, row["offset"], bytes(row.value)) for row in found]

    def restart(self) -> None:
        """Stop it wherever it is, perhaps in the middle of a batch, and start it from its checkpoint."""
        self.stop()
        self._query = self._started()

    def stop(self) -> None:
        self._query.stop()

    def check(self) -> None:
        """Nothing may end it but Spark itself, which waits ten seconds for a Python process and no longer."""
        error = self._query.exception()
        if error is not None:
            assert NO_WORKER in str(error), str(error)
            self._query = self._started()

    def __len__(self) -> int:
        return sum(map(len, list(self._batches.values())))

    @property
    def partitions(self) -> dict[int, list[tuple[int, bytes]]]:
        """What came of each, in the order in which it came."""
        found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
        for _, rows in sorted(self._batches.items()):
            for partition, offset, value in rows:
                found[partition].append((offset, value))
        return found


@contextmanager
def brokers(directory: Path) -> Iterator[str]:
    cluster = start(directory, 3, SETTINGS, patience_s=PATIENCE_S)
    try:
        yield cluster.bootstrap
    finally:
        stop(directory, patience_s=20.0)


def run(spark: SparkSession, directory: Path, *, kills: int, restarts: bool) -> None:
    spark.dataSource.register(LogstoreDataSource)
    with brokers(directory / "cluster") as bootstrap, _client(bootstrap) as client:
        client.create_topic(TOPIC, PARTITIONS, replication_factor=3)
        producers = [Producer(name, bootstrap) for name in ("one", "two")]
        streams = [
            Stream(spark, directory / "checkpoint-1", **{"kafka.bootstrap.servers": bootstrap}),
            Stream(spark, directory / "checkpoint-2", path=f"{directory}/cluster/node-?"),
        ]

        def all_is_read() -> None:
            def holds() -> bool:
                for stream in streams:
                    stream.check()
                return all(len(stream) >= enough for stream in streams)

            enough = sum(len(each.acknowledged) for each in producers)
            wait_for("all rows", holds)

        def all_goes_on() -> None:
            """Every producer has its records acknowledged, and they are read."""
            for producer in producers:
                enough = len(producer.acknowledged) + 50
                wait_for(
                    "acknowledgements",
                    partial(lambda each, least: len(each.acknowledged) >= least, producer, enough),
                )
            all_is_read()

        try:
            all_goes_on()
            for kill in range(kills):
                leader = client.leader(TOPIC, kill % PARTITIONS)
                send_signal(directory / "cluster", f"node-{leader}", signal.SIGKILL)
                for stream in streams if restarts else ():
                    stream.restart()
                all_goes_on()
                launch(directory / "cluster", [f"node-{leader}"], patience_s=PATIENCE_S)
                all_goes_on()
            for producer in producers:
                producer.stop()
            all_is_read()
        finally:
            for stream in streams:
                stream.stop()
    expected: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
    for partition, offset, value in sorted(each for one in producers for each in one.acknowledged):
        expected[partition].append((offset, value))
    for stream in streams:
        assert stream.partitions == expected


def _client(bootstrap: str) -> BlockingClient:
    return BlockingClient([parse_address(each) for each in bootstrap.split(",")], timeout_s=PATIENCE_S)


def test_brokers_and_directories_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """One leader is killed."""
    run(spark, tmp_path, kills=1, restarts=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_through_many_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Ten leaders, one after the other, each of which comes back; the queries are restarted each time."""
    run(spark, tmp_path, kills=10, restarts=True)
