"""Sinks on disks in memory, rows for them, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from logstore.disk.errors import InvalidTopic
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.log.log import Log
from logstore.spark.publishing import Message, Target
from logstore.spark.sink import Sink, topic_config
from logstore.spark.targets import DirectoryTarget
from logstore.spark.write_options import WriteOptions

NOW_MS = 1_700_000_000_000
LOGS = "/data/logs"
LEDGER = "/data/sink/query-1"


def options(**given: str) -> WriteOptions:
    return WriteOptions.parse({"path": LOGS, "topic": "t", **given}, streaming=False)


def on_memory(disk: Disk, seed: int = 0, **given: str) -> Sink:
    """A sink that appends to log dirs on `disk`, the same at every run."""
    random = Random(seed)

    def open_target(parsed: WriteOptions, disk: Disk) -> Target:
        assert parsed.path is not None
        return DirectoryTarget(
            disk,
            parsed.path,
            config=topic_config(parsed),
            clock=lambda: NOW_MS,
            random=random,
            pause=lambda: None,
        )

    return Sink(options(**given), disk, open_target)


def rows(values: Sequence[str], **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values), **columns})


def staged(
    sink: Sink,
    number: int,
    batches: Sequence[pa.RecordBatch],
    *,
    spark_partition: int = 0,
    attempt: int = 0,
    ledger: str = LEDGER,
) -> Message:
    return sink.stage(
        batches,
        ledger,
        number,
        spark_partition=spark_partition,
        attempt=attempt,
        random=Random(f"{number} {spark_partition} {attempt}"),
        now_ms=lambda: NOW_MS,
    )


def partitions(disk: Disk, path: str = LOGS) -> Iterator[TopicPartition]:
    for entry in disk.scan(path):
        try:
            yield parse_directory_name(entry.name)
        except InvalidTopic:
            continue


def values(disk: Disk, path: str = LOGS) -> dict[str, list[str]]:
    """What every partition holds, in order."""
    found = {}
    for partition in partitions(disk, path):
        with Log.open(f"{path}/{partition}", disk=disk, clock=lambda: NOW_MS) as log:
            found[str(partition)] = [(record.value or b"").decode() for record in log.read()]
    return found
