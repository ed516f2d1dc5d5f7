"""Lookups by time find what brokers find: the first record, or marker of a transaction, that is so young."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from logstore import Log, LogConfig, encode_batch
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.spark.directory_logs import DirectoryLogs
from logstore.spark.read_options import ReadOptions, Selection
from logstore.spark.reading import open_logs
from tests.spark.jobs.conftest import NOON_MS
from tests.spark.jobs.in_process import InProcess

ORDERS = TopicPartition("orders", 0)


def test_offsets_by_time_are_those_of_the_log(tmp_path: Path) -> None:
    """The marker that ends a transaction has a time too, and brokers return its offset."""
    now_ms = 1000
    with Log.open(
        tmp_path / "orders-0", LogConfig(segment_bytes=2000, index_interval_bytes=200), clock=lambda: now_ms
    ) as log:
        for sequence, commit in enumerate((True, False)):
            data = encode_batch(
                [Record(0, 1000 + sequence, None, b"")], producer_id=1, producer_epoch=0,
                base_sequence=sequence, is_transactional=True,
            )  # fmt: skip
            log.append_batches(data)
            now_ms += 5000
            log.end_transaction(1, 0, commit=commit)
        logs = DirectoryLogs([str(tmp_path)])
        for asked in (1000, 1001, 5000, 6000, 6001, 11_000, 11_001):
            expected = log.offset_for_timestamp(asked)
            assert logs.offsets_by_time({ORDERS: asked}) == {ORDERS: expected and expected.offset}, asked


def test_markers_have_times_in_the_tier_too(tmp_path: Path) -> None:
    """As in the live log: an offset by time does not change when a segment is tiered."""
    pytest.importorskip("fsspec", reason="needs the extra `tier`")
    from logstore.spark.jobs.tier import Tiering
    from logstore.spark.tier import Tier

    url, now_ms = f"memory://{tmp_path}/tier", NOON_MS
    with Log.open(tmp_path / "data" / "orders-0", LogConfig(segment_bytes=200), clock=lambda: now_ms) as log:
        for sequence in range(6):
            data = encode_batch(
                [Record(0, NOON_MS, b"k", b"v")], producer_id=1, producer_epoch=0,
                base_sequence=sequence, is_transactional=True,
            )  # fmt: skip
            log.append_batches(data)
            now_ms += 1000
            log.end_transaction(1, 0, commit=sequence % 2 > 0)
    given = {"path": str(tmp_path / "data"), "subscribe": "orders"}

    def by_time(**tier: str) -> list[int | None]:
        with closing(open_logs(ReadOptions.parse({**given, **tier}, streaming=False))) as logs:
            asked = range(NOON_MS, NOON_MS + 7000, 500)
            return [logs.offsets_by_time({ORDERS: time_ms})[ORDERS] for time_ms in asked]

    live = by_time()
    assert live[:5] == [0, 1, 1, 3, 3]
    with InProcess() as workers:
        Tiering((str(tmp_path / "data"),), Selection(pattern=".*"), url, False).run(workers)
    assert Tier(url).manifest(ORDERS).bounds.end_offset > 6
    assert by_time(tier=url) == live
