"""Reads and writes of Spark beside what a user would take instead: `python -m bench.spark_table`.

    read    a directory, beside ready Arrow batches from Python and beside Parquet; a broker, beside Spark's
            connector for Kafka
    count   the same, without keys and values
    write   to a broker at least once and exactly once, beside Spark's Kafka sink

Records of 132 bytes in batches of 16 KiB, four partitions (writes: eight), `local[2]`. The sides of a row
take turns; figures are medians of ROUNDS=3 after a warm-up. Processor seconds are those of the driver, the
JVM and all workers, without the broker; the share of the driver passed while no task ran: plans and commits.
RECORDS=1000000 for a short run. Spark's connector comes from Maven; without it its rows are left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.kafka.jars import Missing, connector_jars
from bench.kafka.usage import load
from bench.test_spark import PARTITIONS, RECORDS, rows
from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import parse_address
from logstore.cli.local_cluster import start, stop
from logstore.columnar import columnar
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.format.compression import Codec
from logstore.spark import session
from logstore.spark.logs import OffsetRange
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import read_range

ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
_CHUNK: Final = 250_000
_SOME: Final = "key,value,offset"
_ALL: Final = "key,value,topic,partition,offset,timestamp,timestampType"
_WRITTEN_PARTITIONS: Final = 8
_WATCHED_S: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SETTINGS: Final = {"min.insync.replicas": "1", "replica.high.watermark.checkpoint.interval.ms": "100"}

Side = tuple[str, Callable[[], object]]


class Took(NamedTuple):
    """A run: wall clock, processor time, and the part of it without a task; seconds."""

    wall: float
    processor: float
    driver: float


# --- measuring ----------------------------------------------------------------------------------------------


def tree_cpu_s(root: int, excluded: frozenset[int]) -> float:
    """Return the processor time of a process and those it started, ended ones too; none of `excluded`."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended: its parent has its time
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [root]
    while left:
        pid = left.pop()
        if pid not in excluded:
            total += ticks.get(pid, 0)
            left += children.get(pid, ())
    return total / _TICKS


def took(spark: Any, work: Callable[[], object], excluded: frozenset[int]) -> Took:
    """Run `work` once."""
    tracker, ended = spark.sparkContext.statusTracker(), Event()
    spent = alone = 0.0

    def used_s() -> float:
        return tree_cpu_s(os.getpid(), excluded) - time.thread_time()  # without that of the watching thread

    def watch() -> None:
        nonlocal spent, alone
        before, was_alone, is_last = used_s(), True, False
        while not is_last:
            is_last = ended.wait(_WATCHED_S)
            now, is_alone = used_s(), not tracker.getActiveStageIds()
            passed = max(now - before, 0.0)  # a process that nobody waits for takes its time with it
            spent += passed
            alone += passed * (was_alone + is_alone) / 2
            before, was_alone = now, is_alone

    watcher, started = Thread(target=watch), time.perf_counter()
    watcher.start()
    try:
        work()
        wall = time.perf_counter() - started
    finally:
        ended.set()
        watcher.join()
    return Took(wall, spent, alone)


def compare(spark: Any, what: str, sides: Sequence[Side], excluded: frozenset[int]) -> None:
    """Print a row of the table for each side."""
    found: dict[str, list[Took]] = {name: [] for name, _ in sides}
    for turn in range(ROUNDS + 1):
        for name, work in sides:
            measured = took(spark, work, excluded)
            if turn:
                found[name].append(measured)
    first = median(each.wall for each in found[sides[0][0]])
    for name, _ in sides:
        wall, processor, driver = (median(each) for each in zip(*found[name], strict=True))
        figures = (
            what, name, f"{wall:.2f}", f"{RECORDS / wall / 1e6:.2f}", f"{first / wall:.2f}",
            f"{processor:.1f}", f"{100 * driver / max(processor, 0.01):.0f} %", f"{load():.1f}",
        )  # fmt: skip
        print(f"| {' | '.join(figures)} |", flush=True)


# --- sides --------------------------------------------------------------------------------------------------


class Ready(DataSource):
    """Rows that are ready: one Arrow batch of the file `batch`, given again and again."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        with pa.ipc.open_file(self.options["batch"]) as file:
            return from_arrow_schema(file.schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(self.options["batch"], int(self.options["records"]))


class ReadyReader(DataSourceReader):
    def __init__(self, path: str, records: int) -> None:
        self._path, self._records = path, records

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        left = self._records // PARTITIONS
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def save_ready(path: Path, source: Mapping[str, str], columns: str) -> None:
    """Write the first rows that our source gives to Spark."""
    options = ReadOptions.parse({**source, "subscribe": "rows", "columns": columns}, streaming=False)
    batch = next(read_range(options, OffsetRange("rows", 0, 0, RECORDS // PARTITIONS)))
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)


def fill(client: BlockingClient, codec: Codec) -> None:
    """Write `RECORDS` records to the topic `rows`."""
    client.create_topic("rows", PARTITIONS, replication_factor=1, settings={"retention.ms": "-1"})
    data = columnar.encode(rows(_CHUNK, 1), codec=codec, batch_bytes=16_000)
    batches = [bytes(batch.buffer) for run in data for batch in walk(run)]
    for number in range(PARTITIONS):
        for _ in range(RECORDS // PARTITIONS // _CHUNK):
            for batch in batches:
                client.produce(TopicPartition("rows", number), batch)


def sink(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def reads(spark: Any, home: Path, bootstrap: str, codec: Codec, excluded: frozenset[int]) -> None:
    """Measure reads of a topic from its directory and from its broker."""
    path = {"path": str(home / "cluster" / "node-1")}
    name = codec.name.lower()

    def ours(columns: str, source: Mapping[str, str]) -> Any:
        return (
            spark.read.format("logstore")
            .options(**source)
            .option("subscribe", "rows")
            .option("columns", columns)
            .load()
        )

    for columns in (_SOME, _ALL):
        what = f"{name}, {'key, value, offset' if columns == _SOME else 'all columns'}"
        table, batch = str(home / f"{name}-{len(columns)}.parquet"), home / f"{name}-{len(columns)}.arrow"
        ours(columns, path).write.option("compression", name).parquet(table)
        save_ready(batch, path, columns)
        ready = spark.read.format("ready").option("batch", str(batch)).option("records", RECORDS).load()
        parquet = spark.read.parquet(table)
        frame = ours(columns, path)
        assert frame.count() == ready.count() == parquet.count() == RECORDS
        sides: list[Side] = [
            ("ours, directory", partial(sink, frame)),
            ("ready Arrow batches", partial(sink, ready)),
            ("Parquet", partial(sink, parquet)),
        ]
        compare(spark, f"read {what}", sides, excluded)
    counted, parquet = ours("offset", path), spark.read.parquet(str(home / f"{name}-{len(_ALL)}.parquet"))
    both: list[Side] = [("ours, columns=offset", counted.count), ("Parquet", parquet.count)]
    compare(spark, f"count(), {name}", both, excluded)
    kafka = {"kafka.bootstrap.servers": bootstrap}
    for columns in (_SOME, _ALL):
        frame = ours(columns, kafka)
        sides = [("ours, broker", partial(sink, frame))]
        if has_connector(spark):
            theirs = spark.read.format("kafka").options(**kafka).option("subscribe", "rows")
            theirs = theirs.option("startingOffsets", "earliest").load().select(*columns.split(","))
            sides.append(("Spark's connector", partial(sink, theirs)))
        what = "key, value, offset" if columns == _SOME else "all columns"
        compare(spark, f"read a broker, {name}, {what}", sides, excluded)


def writes(spark: Any, client: BlockingClient, bootstrap: str, codec: str, excluded: frozenset[int]) -> None:
    """Measure writes to new topics of a broker."""
    frame = spark.range(0, RECORDS, 1, _WRITTEN_PARTITIONS).selectExpr(
        "lpad(cast(id as string), 12, '0') as key",
        "repeat(substr(md5(cast(id as string)), 1, 12), 10) as value",
    )
    made = iter(range(1_000_000))

    def write(kind: str, options: Mapping[str, str]) -> None:
        topic = f"written-{codec}-{next(made)}"
        client.create_topic(topic, _WRITTEN_PARTITIONS, replication_factor=1)
        writer = frame.write.format(kind).mode("append").options(**options).option("topic", topic)
        writer = writer.option("kafka.compression.type", codec)
        writer.option("kafka.bootstrap.servers", bootstrap).save()

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as staging:
        sides: list[Side] = [
            ("ours, at least once", lambda: write("logstore", {"delivery": "at_least_once"})),
            ("ours, exactly once", lambda: write("logstore", {"stagingPath": staging})),
        ]
        if has_connector(spark):
            sides.append(("Spark's sink, at least once", lambda: write("kafka", {})))
        compare(spark, f"write to a broker, {codec}", sides, excluded)


def has_connector(spark: Any) -> bool:
    return "spark-sql-kafka" in str(spark.conf.get("spark.jars", ""))


@contextmanager
def broker(home: Path) -> Iterator[tuple[str, frozenset[int]]]:
    """A broker in a process of its own: its address, and the processes to leave out."""
    cluster = start(home / "cluster", 1, _SETTINGS, patience_s=60)
    try:
        yield cluster.bootstrap, frozenset(each.pid for each in cluster.processes)
    finally:
        stop(home / "cluster", patience_s=60)


def main() -> int:
    try:
        jars = ",".join(map(str, connector_jars()))
    except Missing as error:
        print(f"without Spark's connector: {error}", file=sys.stderr)
        jars = ""
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "4g", "spark.jars": jars}
    spark = session("bench", master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Ready)
    print(f"{RECORDS:,} records, median of {ROUNDS}, {os.cpu_count()} cores\n")
    print("| what | side | s | M rows/s | × the first | processor s | driver's share | load |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for codec in (Codec.NONE, Codec.ZSTD):
        with (
            tempfile.TemporaryDirectory(prefix="bench-spark-") as directory,
            broker(Path(directory)) as (bootstrap, excluded),
            BlockingClient([parse_address(bootstrap)]) as client,
        ):
            fill(client, codec)
            reads(spark, Path(directory), bootstrap, codec, excluded)
            writes(spark, client, bootstrap, codec.name.lower(), excluded)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
