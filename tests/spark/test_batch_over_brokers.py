"""Batch reads of brokers in a Spark session: the same rows as from their directories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.broker.embedded_cluster import BrokerCluster
from logstore.spark.data_source import LogstoreDataSource

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


def test_brokers_and_directories_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """All columns, several tasks a partition, offsets, times, and a pattern."""
    spark.dataSource.register(LogstoreDataSource)
    settings = {"replica.high.watermark.checkpoint.interval.ms": "100"}
    with BrokerCluster(2, settings=settings, directory=str(tmp_path / "cluster")) as cluster:
        cluster.create_topic("orders", 2)
        cluster.create_topic("other", 1)
        for number in range(60):
            headers = [("n", b"%d" % number)] if number % 3 == 0 else []
            cluster.append("orders", b"v%d" % number, key=b"k%d" % number, headers=headers)
        cluster.append("other", b"not read")

        def read(**options: str) -> list[Row]:
            reader = spark.read.format("logstore").options(subscribePattern="or.*", **options)
            return reader.load().orderBy("partition", "offset").collect()

        common = {"includeHeaders": "true", "columns": "*,leaderEpoch", "minPartitions": "5"}
        brokers = {"kafka.bootstrap.servers": cluster.bootstrap}
        rows = read(**brokers, **common)
        assert sorted(bytes(row.value) for row in rows) == sorted(b"v%d" % number for number in range(60))
        assert {row.leaderEpoch for row in rows} == {0}
        assert [row.headers is None for row in rows].count(False) == 20

        directories = {"path": f"{tmp_path}/cluster/broker-?"}
        deadline_s = time.monotonic() + 60
        while len(found := read(**directories, **common)) < 60:
            assert time.monotonic() < deadline_s, "high watermarks are written down every 100 ms"
        assert found == rows

        middle = {"startingOffsets": '{"orders":{"0":3,"1":-2}}', "endingOffsets": '{"orders":{"0":7,"1":2}}'}
        part = [row for row in rows if row["offset"] in (range(3, 7) if row.partition == 0 else range(2))]
        assert read(**brokers, **middle, **common) == part
        after = {"startingTimestamp": str(int(part[0].timestamp.timestamp() * 1000))}
        assert part[0] in read(**brokers, **after, **common)
