"""The export job beside the same table written by Spark: log to Parquet. `make bench-spark`.

Rows, session and sizes as in bench/test_spark.py; zstd on both sides. RECORDS=1000000 for a short run.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from bench.bars import rate_bar
from bench.test_spark import RECORDS, fill, spark
from logstore.format.compression import Codec
from logstore.spark.jobs.command import main

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

BAR = 900_000


def test_export_beside_sparks_writer(beside: Callable[..., object], scratch: Path, spark: Any) -> None:
    """From the page cache. The job runs in the existing session: starting one is not measured."""
    record_bytes = fill(scratch / "logs", Codec.NONE)
    table = spark.read.format("logstore").options(subscribe="rows", maxRecordsPerPartition=1 << 20)
    columns = ["key", "value", "offset", "timestamp", "timestampType", "topic", "partition"]

    def by_spark() -> None:
        frame = table.load(str(scratch / "logs")).selectExpr(*columns, "cast(timestamp as date) as date")
        writer = frame.write.partitionBy("topic", "partition", "date").option("compression", "zstd")
        writer.parquet(str(scratch / "spark"))

    def export() -> None:
        with redirect_stdout(io.StringIO()):
            assert main(["export", str(scratch / "logs"), "--output", str(scratch / "export")]) == 0

    def clear() -> None:
        for name in ("spark", "export"):
            shutil.rmtree(scratch / name, ignore_errors=True)

    beside(
        raw=by_spark,
        ours=export,
        name=f"export {RECORDS:,} records of {record_bytes} bytes to Parquet (zstd)",
        rival="Spark's own writer behind our source",
        units=RECORDS,
        unit="records/s",
        bar=rate_bar(BAR, f"≥ {BAR:,} records/s"),
        rounds=3,
        before=clear,
        after=clear,
    )
