"""Spark's source gives the verdict of recover, verify, `dump --verify` and the reader on a thousand damages.

One session, one job: each task plans and reads its directories with the reader that Spark calls for a query.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.segment.damage import Verdict
from tests.logstore.test_salvage import damaged
from tests.logstore.verdicts import verified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COUNT = 1000


def finds_damage(directory: str) -> bool:
    """Return whether a read of the directory fails because of damage, or warns of it."""
    from logstore.errors import DamagedLog
    from logstore.spark.errors import DataLoss
    from logstore.spark.logs import LOGGER
    from logstore.spark.read_options import ReadOptions
    from logstore.spark.readers import BatchReader

    warnings: list[str] = []
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    LOGGER.logger.addHandler(heard)
    try:
        reader = BatchReader(ReadOptions.parse({"path": directory, "subscribe": "orders"}, streaming=False))
        for partition in reader.partitions():
            for _ in reader.read(partition):
                pass
    except (DataLoss, DamagedLog):
        return True
    finally:
        LOGGER.logger.removeHandler(heard)
    return any("damage" in each for each in warnings)


@pytest.mark.slow
def test_spark_finds_damage_where_the_others_do(spark: SparkSession, tmp_path: Path) -> None:
    wanted = {}
    for seed in range(COUNT):
        _, _, files = damaged(seed)
        directory = tmp_path / str(seed) / "orders-0"
        directory.mkdir(parents=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
        disk = MemoryDisk({f"/d/orders-0/{name}": content for name, content in files.items()})
        wanted[str(directory)] = verified(disk, "/d/orders-0") is Verdict.DAMAGE
    found = dict(
        spark.sparkContext.parallelize(sorted(wanted), 8)
        .map(lambda each: (each, finds_damage(each)))
        .collect()
    )
    assert sum(found.values()) > COUNT // 2
    assert {each: is_bad for each, is_bad in found.items() if is_bad != wanted[each]} == {}
