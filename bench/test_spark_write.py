"""Spark writes a log beside a sink that discards the rows. `make bench-spark`.

Rows of 132 bytes (key of 12, value of 120), eight Spark partitions to eight of the topic, `local[2]`. Both
sides get the same Arrow batches in Python. RECORDS=1000000 for a short run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from bench import test_spark
from bench.bars import ratio_bar
from bench.test_spark import RECORDS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

PARTITIONS = 8
spark = test_spark.spark


class ThrownAway(DataSource):
    """A sink that discards the rows in Python."""

    @classmethod
    def name(cls) -> str:
        return "thrown_away"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return ThrownAwayWriter()


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class ThrownAwayWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "columns", "codec", "bar"),
    [
        ("by key", ["key", "value"], "none", 0.4),
        ("without keys", ["value"], "none", 0.4),
        ("by key, zstd", ["key", "value"], "zstd", 0.25),
    ],
)
def test_batch_write(
    beside: Callable[..., object],
    scratch: Path,
    spark: Any,
    name: str,
    columns: list[str],
    codec: str,
    bar: float,
) -> None:
    """Staged, published and synced: everything that a user waits for."""
    spark.dataSource.register(ThrownAway)
    rows = spark.range(0, RECORDS, 1, PARTITIONS).selectExpr(
        "lpad(cast(id as string), 12, '0') as key",
        "repeat(substr(md5(cast(id as string)), 1, 12), 10) as value",
    )
    writer = rows.select(*columns).write.mode("append").option("topic", "t")
    writer = writer.option("partitions", PARTITIONS).option("kafka.compression.type", codec)
    beside(
        raw=lambda: writer.format("thrown_away").save(),
        ours=lambda: writer.format("logstore").save(str(scratch / "logs")),
        name=f"write {RECORDS:,} rows of 132 bytes from Spark, {name}",
        rival="Spark, a writer in Python that throws them away",
        units=RECORDS,
        unit="rows/s",
        bar=ratio_bar(bar),
        rounds=3,
        after=lambda: shutil.rmtree(scratch / "logs", ignore_errors=True),
    )
