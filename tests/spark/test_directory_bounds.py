"""Bounds of directories for a stream that asks ninety times a second: looked for when they may have moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from logstore.disk.files import DirectoryEntry, OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.spark.directory_logs import DirectoryLogs
from logstore.spark.errors import DataLoss
from logstore.spark.logs import Bounds, Cause, Missing, OffsetRange
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import planned

TP = TopicPartition("orders", 0)


class CountingDisk(OsDisk):
    """Counts how often a directory is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0

    def scan(self, path: str) -> list[DirectoryEntry]:
        self.listings += 1
        return super().scan(path)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    with Log.open(tmp_path / "node" / "orders-0") as log:
        for number in range(10):
            log.append(b"%d" % number)
    return tmp_path / "node"


def commit(node: Path, high_watermark: int) -> None:
    write_offset_checkpoint(OsDisk(), str(node), HIGH_WATERMARK_CHECKPOINT, {TP: high_watermark})


def test_nothing_is_listed_until_a_high_watermark_moves(node: Path) -> None:
    disk = CountingDisk()
    logs = DirectoryLogs([str(node)], disk=disk)
    commit(node, 4)
    assert logs.bounds([TP]) == {TP: Bounds(0, 4)}
    before = disk.listings
    for _ in range(90):
        assert logs.bounds([TP]) == {TP: Bounds(0, 4)}
    assert disk.listings == before
    commit(node, 7)
    assert logs.bounds([TP]) == {TP: Bounds(0, 7)}
    assert disk.listings > before


def test_a_copy_that_is_not_there_yet_is_looked_at_again(tmp_path: Path) -> None:
    """It leads in a newer epoch; what the former leader called committed comes to it without a word."""
    logs = {name: tmp_path / name / "orders-0" / f"{0:020}.log" for name in ("old", "new")}
    for file in logs.values():
        file.parent.mkdir(parents=True)
    logs["old"].write_bytes(b"".join(batch(offset, 1) for offset in range(12)))
    logs["new"].write_bytes(b"".join(batch(offset, 2) for offset in range(10)))
    commit(tmp_path / "old", 12)
    both = DirectoryLogs([str(tmp_path / "old"), str(tmp_path / "new")])
    assert both.bounds([TP])[TP].end_offset == 10
    with logs["new"].open("ab") as grown:
        grown.write(batch(10, 2) + batch(11, 2) + batch(12, 2))
    assert both.bounds([TP])[TP].end_offset == 12


def batch(offset: int, epoch: int) -> bytes:
    return encode_batch([Record(offset, 1_000, None, b"v")], base_offset=offset, leader_epoch=epoch)


def test_what_was_asked_before_does_not_settle_it(node: Path) -> None:
    """Times and rows are looked up without the watermarks of `bounds`."""
    logs = DirectoryLogs([str(node)])
    commit(node, 4)
    logs.offsets_by_time({TP: 0})
    commit(node, 7)
    assert logs.bounds([TP]) == {TP: Bounds(0, 7)}


def test_a_log_without_a_high_watermark_is_looked_at_each_time(node: Path) -> None:
    logs = DirectoryLogs([str(node)])
    assert logs.bounds([TP]) == {TP: Bounds(0, 10)}
    with Log.open(node / "orders-0") as log:
        log.append(b"more")
    assert logs.bounds([TP]) == {TP: Bounds(0, 11)}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_does_not_read_past_the_readable_end(node: Path, isolation: str) -> None:
    """Not even if `endingOffsets` says so: a record above the high watermark or of an open transaction."""
    options = {"path": str(node), "subscribe": "orders", "isolation": isolation}
    if isolation == "read_uncommitted":
        commit(node, 7)
    else:
        with Log.open(node / "orders-0") as log:
            log.truncate_to(7)
            undecided = encode_batch(
                [Record(0, 5, None, b"")], producer_id=1, producer_epoch=0, base_sequence=0,
                is_transactional=True,
            )  # fmt: skip
            log.append_batches(undecided)
            log.append([b"after", b"it"])

    def plan(end: int, **given: str) -> list[OffsetRange]:
        ending = f'{{"orders":{{"0":{end}}}}}'
        return planned(ReadOptions.parse({**options, "endingOffsets": ending, **given}, streaming=False))

    assert plan(7) == [OffsetRange("orders", 0, 0, 7)]
    with pytest.raises(DataLoss, match=r"offsets 7 to 8 are lost, truncated: .*readable up to offset 7"):
        plan(9)
    assert plan(9, failOnDataLoss="false") == [OffsetRange("orders", 0, 0, 7)]


def test_deleted_records_of_a_batch_are_not_read(tmp_path: Path) -> None:
    """The log start may lie inside a batch; what is below it is lost, once."""
    with Log.open(tmp_path / "orders-0") as log:
        log.append_batches(encode_batch([Record(number, 5, None, b"") for number in range(10)]))
        log.delete_records(6)
    missing: list[Missing] = []
    logs = DirectoryLogs([str(tmp_path)])
    rows = logs.read(OffsetRange("orders", 0, 2, 9), ("offset",), missing)
    assert [offset for batch in rows for offset in batch.column(0).to_pylist()] == [6, 7, 8]
    assert missing == [Missing("orders", 0, 2, 6, Cause.EXPIRED)]
