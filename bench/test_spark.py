"""Spark reads a log beside the same rows in its own Parquet, and plans a large read. `make bench-spark`.

Records of 132 bytes in the log (key of 16, value of 105) in Kafka's usual batches of 16 KiB, four
partitions, `local[2]`. Both sides send every row and column to the sink `noop`. RECORDS=1000000 for a
short run.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.bars import ratio_bar
from bench.material import T0, ready_batch
from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from logstore.columnar import columnar
from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import set_offsets_and_epoch
from logstore.format.compression import Codec
from logstore.log.log import Log
from logstore.segment.indexes import OffsetIndex
from logstore.segment.segment import file_name

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

RECORDS = int(os.environ.get("RECORDS", "10_000_000"))
PARTITIONS = 4
_CHUNK = 250_000
_WORDS = [b"GET ", b"POST ", b"/index", b"/cart", b"/item/", b" 200 ", b" 404 ", b"Mozilla/5.0 ", b"user="]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session with Spark's defaults, except for the sockets that docs/spark.md recommends."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.python.unix.domain.socket.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def rows(count: int, seed: int) -> Any:
    """Return rows with distinct keys, and values of words and digits that zstd halves or better."""
    draw = random.Random(seed)
    pool = b"".join(
        draw.choice(_WORDS) if draw.random() < 0.6 else b"%06x" % draw.getrandbits(24) for _ in range(400_000)
    )
    starts = [draw.randrange(len(pool) - 105) for _ in range(count)]
    values = pa.array([pool[start : start + 105] for start in starts], pa.binary())
    keys = pa.array([b"%016x" % draw.getrandbits(64) for _ in range(count)], pa.binary())
    times = pa.array([T0 + number // 10 for number in range(count)], pa.timestamp("ms", tz="UTC"))
    return pa.table({"timestamp": times, "key": keys, "value": values})


def fill(directory: Path, codec: Codec) -> int:
    """Write `RECORDS` records to `PARTITIONS` partitions; return the bytes per record in the log."""
    table = rows(_CHUNK, 1)
    batches = b"".join(columnar.encode(table, codec=codec, batch_bytes=16_000))
    size = 0
    for partition in range(PARTITIONS):
        with Log.open(directory / f"rows-{partition}", LogConfig(segment_bytes=256 << 20)) as log:
            for _ in range(RECORDS // PARTITIONS // _CHUNK):
                log.append_batches(batches)
        size += sum(each.stat().st_size for each in (directory / f"rows-{partition}").glob("*.log"))
    return size // RECORDS


@pytest.mark.parametrize(("codec", "bar"), [(Codec.NONE, 0.9), (Codec.ZSTD, 0.6)])
def test_batch_read_beside_parquet(
    beside: Callable[..., object], scratch: Path, spark: Any, codec: Codec, bar: float
) -> None:
    """From the page cache. The Parquet files are uncompressed and were written by Spark from the same
    read."""
    record_bytes = fill(scratch / "logs", codec)
    ours = spark.read.format("logstore").option("subscribe", "rows").load(str(scratch / "logs"))
    ours.write.option("compression", "none").parquet(str(scratch / "parquet"))
    parquet = spark.read.parquet(str(scratch / "parquet"))
    assert ours.count() == parquet.count() == RECORDS
    beside(
        raw=lambda: parquet.write.format("noop").mode("overwrite").save(),
        ours=lambda: ours.write.format("noop").mode("overwrite").save(),
        name=f"read {RECORDS:,} records of {record_bytes} bytes ({codec.name.lower()}) into Spark",
        rival="Spark, its own Parquet, uncompressed",
        units=RECORDS,
        unit="records/s",
        bar=ratio_bar(bar),
        rounds=5,
    )


BATCH_BYTES = 16_384
LARGE = 20 << 30


def stand_in(log_dir: Path, partitions: int, size: int) -> None:
    """Make a log dir of `size` bytes: complete indexes, sparse `.log` files with only their last MiB.

    Anything that planning should not read is a hole, which would be damage if it were read.
    """
    disk = OsDisk()
    marks: dict[TopicPartition, int] = {}
    batch = bytearray(ready_batch(BATCH_BYTES, 100))
    for partition in range(partitions):
        directory = log_dir / f"large-{partition}"
        directory.mkdir(parents=True)
        in_segment = (100 << 20) // BATCH_BYTES
        offset = 0
        for _ in range(size // partitions // (in_segment * BATCH_BYTES)):
            base_offset, entries = offset, []
            with (directory / file_name(base_offset, ".log")).open("wb") as file:
                file.truncate(in_segment * BATCH_BYTES)
                for number in range(in_segment):
                    set_offsets_and_epoch(batch, base_offset=offset, leader_epoch=0)
                    if number:
                        entries.append((offset + 99 - base_offset, number * BATCH_BYTES))
                    if number == 0 or number >= in_segment - 64:
                        file.seek(number * BATCH_BYTES)
                        file.write(batch)
                    offset += 100
            index = np.array(entries, OffsetIndex.fields)
            (directory / file_name(base_offset, ".index")).write_bytes(index.tobytes())
        marks[TopicPartition("large", partition)] = offset
    write_offset_checkpoint(disk, str(log_dir), HIGH_WATERMARK_CHECKPOINT, marks)


@pytest.mark.parametrize("pieces", [None, 400])
def test_planning_a_large_log(
    figure: Callable[[str, str, str, bool], None], benchmark: Any, scratch: Path, pieces: int | None
) -> None:
    """50 partitions, 20 GB: from options to ranges, as in the planning process."""
    from logstore.spark.read_options import ReadOptions
    from logstore.spark.readers import BatchReader

    stand_in(scratch / "logs", 50, LARGE)
    options = {"path": str(scratch / "logs"), "subscribe": "large"}
    if pieces is not None:
        options["minPartitions"] = str(pieces)
    parsed = ReadOptions.parse(options, streaming=False)
    planned = benchmark.pedantic(lambda: BatchReader(parsed).partitions(), rounds=5, warmup_rounds=1)
    assert len(planned) == (50 if pieces is None else pieces)
    took_s = benchmark.stats.stats.median
    what = "one task a partition" if pieces is None else f"{pieces} tasks"
    figure(f"plan 50 partitions of 20 GiB, {what}", f"{took_s:.2f} s", "≤ 2 s", took_s <= 2)
