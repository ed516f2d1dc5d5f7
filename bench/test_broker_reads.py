"""Read rows of one range from a broker in its own process, beside the same rows from its directory.

A million records of 132 bytes in batches of 64 KiB, uncompressed and zstd: the work of a Spark task
without Spark. `python -m pytest bench/test_broker_reads.py -p no:xdist --benchmark-only`
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import parse_address
from logstore.cli.local_cluster import start, stop
from logstore.columnar.columnar import encode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.format.compression import Codec
from logstore.spark.logs import OffsetRange
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import open_logs

pytestmark = pytest.mark.timeout(600)

RECORDS = 1_000_000
_CHUNK = 10_000
_COLUMNS = ("key", "value", "offset", "timestamp", "timestamp_type")
_SETTINGS = {"min.insync.replicas": "1", "replica.high.watermark.checkpoint.interval.ms": "100"}


@pytest.fixture(scope="module", params=[Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name.lower())
def sources(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Options for a read from the broker and from its directory."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    values = [(b"GET /item/%d 200 " % number) * 6 for number in range(_CHUNK)]
    keys = [b"user=%08d" % number for number in range(_CHUNK)]
    rows = pa.table({"key": keys, "value": [value[:105] for value in values]})
    batches = [
        bytes(batch.buffer)
        for run in encode(rows, codec=request.param, batch_bytes=64 << 10)
        for batch in walk(run)
    ]
    cluster = start(directory, 1, _SETTINGS, patience_s=60)
    try:
        with BlockingClient([parse_address(cluster.bootstrap)]) as client:
            client.create_topic("rows", 1, replication_factor=1)
            for _ in range(RECORDS // _CHUNK):
                for batch in batches:
                    client.produce(TopicPartition("rows", 0), batch)
        yield {
            "broker": {"kafka.bootstrap.servers": cluster.bootstrap},
            "directory": {"path": str(directory / "node-1")},
        }
    finally:
        stop(directory, patience_s=20)


@pytest.mark.parametrize("source", ["broker", "directory"])
def test_rows_of_a_range(benchmark: Any, sources: dict[str, dict[str, str]], source: str) -> None:
    logs = open_logs(ReadOptions.parse({**sources[source], "subscribe": "rows"}, streaming=None))
    wanted = OffsetRange("rows", 0, 0, RECORDS)

    def read() -> None:
        assert sum(rows.num_rows for rows in logs.read(wanted, _COLUMNS, [])) == RECORDS

    try:
        benchmark.pedantic(read, rounds=5, warmup_rounds=1)
        benchmark.extra_info["million rows a second"] = RECORDS / benchmark.stats.stats.min / 1e6
    finally:
        logs.close()
