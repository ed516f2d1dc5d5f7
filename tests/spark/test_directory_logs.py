"""Bare directories: which copy is read, how far, and what is said of what cannot be had."""

from __future__ import annotations

import logging
import os
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logstore import Log, LogGone, encode_batch
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import META_PROPERTIES
from logstore.config import LogConfig
from logstore.disk.files import DirectoryEntry, Disk, OsDisk
from logstore.disk.memory import MemoryFile
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_marker_batch, set_offsets_and_epoch
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.spark.directory_logs import DirectoryLogs, expand
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.logs import Bounds, Cause, Missing, OffsetRange
from logstore.spark.read_options import Isolation
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import BATCH_0, BATCH_3, BATCH_5, batch, log_file, put

ORDERS = TopicPartition("orders", 0)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def disk_of(directories: dict[str, dict[str, bytes]]) -> MemoryDisk:
    """A disk with these files in these directories."""
    disk = MemoryDisk()
    for directory, files in directories.items():
        disk.make_dir(directory)
        for name, content in files.items():
            put(disk, name, content, directory)
    return disk


def high_watermark(disk: Disk, log_dir: str, offset: int) -> None:
    write_offset_checkpoint(disk, log_dir, HIGH_WATERMARK_CHECKPOINT, {ORDERS: offset})


def logs_of(disk: Disk, *paths: str, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> DirectoryLogs:
    return DirectoryLogs(paths or ["/data"], isolation=isolation, disk=disk)


def bounds(logs: DirectoryLogs) -> Bounds:
    return logs.bounds([ORDERS])[ORDERS]


def read(
    logs: DirectoryLogs, start: int, end: int, columns: Sequence[str] = ("offset",)
) -> tuple[list[Any], list[Missing]]:
    """The rows of a range as columns of one table, and what is missing."""
    missing: list[Missing] = []
    rows = list(logs.read(OffsetRange("orders", 0, start, end), columns, missing))
    assert all(each.num_rows for each in rows)
    table = pa.Table.from_batches(rows) if rows else None
    return [] if table is None else table.column(0).to_pylist(), missing


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- where --------------------------------------------------------------------------------------------------


def test_a_log_dir_and_a_partitions_directory() -> None:
    """What is set aside, and what no log dir has, is passed over."""
    empty = {log_file(0): b""}
    disk = disk_of(
        {
            "/data/orders-0": empty,
            "/data/orders-10": empty,
            "/data/a.b_c-1": {},
            "/data/orders-2.0123456789abcdef0123456789abcdef-delete": empty,
            "/data/.logstore-sink": {},
            "/data/lost+found": {},
        }
    )
    assert [str(each) for each in logs_of(disk).partitions()] == ["a.b_c-1", "orders-0", "orders-10"]
    assert logs_of(disk, "/data/orders-0").partitions() == [ORDERS]
    assert logs_of(disk, "/data/orders-0", "/data/orders-0").partitions() == [ORDERS]


def test_paths_that_cannot_be() -> None:
    """A name that is not there, another file system, a glob that matches nothing."""
    with pytest.raises(LogGone, match=r"/data is not a directory; name a log dir"):
        logs_of(MemoryDisk()).partitions()
    with pytest.raises(InvalidOption, match="mount it on every executor"):
        expand("s3a://bucket/logs")
    with pytest.raises(InvalidOption, match=r"nothing matches path '/nowhere/at/all/\*'"):
        expand("/nowhere/at/all/*")
    with pytest.raises(UnknownTopic, match="orders-0 does not exist"):
        logs_of(disk_of({"/data": {}})).bounds([ORDERS])


def test_planning_does_not_list_all_partitions_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log dir with ten times as many takes ten times as long, and not a hundred times."""
    count, listed = 60, Counter[str]()
    partitions = [TopicPartition("orders", number) for number in range(count)]
    disk = disk_of({f"/data/{each.directory_name}": {log_file(0): BATCH_0} for each in partitions})
    scan = MemoryDisk.scan

    def counted(self: MemoryDisk, directory: str) -> list[DirectoryEntry]:
        listed[directory] += 1
        return scan(self, directory)

    monkeypatch.setattr(MemoryDisk, "scan", counted)
    logs = logs_of(disk)
    found = logs.bounds(partitions)
    logs.topic_ids(partitions)
    for each, (start, end) in found.items():
        logs.later_epochs(each, 0)
        logs.cut_points(OffsetRange(each.topic, each.partition, start, end), 2)
    assert listed["/data"] == 1


def test_a_partition_that_has_moved_is_found_again() -> None:
    """To another log dir, after it was listed."""
    disk = disk_of({"/old/orders-0": {log_file(0): BATCH_0}, "/new": {}})
    logs = logs_of(disk, "/old", "/new")
    assert bounds(logs) == Bounds(0, 3)
    disk.rename("/old/orders-0", "/new/orders-0")
    assert logs.directory(ORDERS) == "/new/orders-0"
    assert read(logs, 0, 3)[0] == [0, 1, 2]


def test_a_relative_path_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoints of a partition's directory are in the directory above it, not in /."""
    with Log.open(tmp_path / "orders-0") as log:
        log.append([b"committed", b"not committed"])
    write_offset_checkpoint(OsDisk(), str(tmp_path), HIGH_WATERMARK_CHECKPOINT, {ORDERS: 1})
    monkeypatch.chdir(tmp_path)
    assert bounds(DirectoryLogs(["orders-0"])) == bounds(DirectoryLogs(["."])) == (0, 1)
    assert bounds(DirectoryLogs(["orders-*"])) == (0, 1)


def test_globs_and_urls(tmp_path: Path) -> None:
    """As Spark's own sources take them; in order of name."""
    for name in ("node-2", "node-1", "other"):
        (tmp_path / name).mkdir()
    assert expand(f"{tmp_path}/node-*") == [f"{tmp_path}/node-1", f"{tmp_path}/node-2"]
    assert expand(f"file://{tmp_path}/") == [str(tmp_path)]
    assert expand(f"file:{tmp_path}") == [str(tmp_path)]
    assert expand("file:///a%20b") == ["/a b"]  # as a sink writes there
    assert expand("/") == ["/"]


# --- how far ------------------------------------------------------------------------------------------------


def test_the_end_is_the_high_watermark() -> None:
    """What lies behind it may still be taken back."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + BATCH_3 + BATCH_5}})
    high_watermark(disk, "/data", 5)
    assert bounds(logs_of(disk)) == (0, 5)
    assert bounds(logs_of(disk, "/data/orders-0")) == (0, 5)


@pytest.mark.parametrize("owned", [False, True])
def test_without_a_watermark_the_end_is_the_end(owned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Of a log that stands alone all is read; where a node left no watermark that is said, once."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + BATCH_3[:-1]}})
    if owned:
        put(disk, META_PROPERTIES, b"version=1\nnode.id=1\n", "/data")
    logs = logs_of(disk)
    assert [bounds(logs), bounds(logs)] == [(0, 3), (0, 3)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * owned


def test_a_watermark_file_that_cannot_be_read_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A hint that is lost hides no record."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0}, "/data": {HIGH_WATERMARK_CHECKPOINT: b"?"}})
    assert bounds(logs_of(disk)) == (0, 3)
    assert "cannot read the high watermarks of /data" in caplog.text


def test_the_start_is_the_log_start() -> None:
    """The first segment's base, or what the owner wrote down if that is more."""
    disk = disk_of({"/data/orders-0": {log_file(3): BATCH_3, log_file(5): BATCH_5}})
    assert bounds(logs_of(disk)) == (3, 7)
    write_offset_checkpoint(disk, "/data", LOG_START_OFFSET_CHECKPOINT, {ORDERS: 6})
    assert bounds(logs_of(disk)) == (6, 7)


def test_bounds_move_on_with_the_log() -> None:
    """Asked again, what came since counts; a cut and a deletion too."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0}})
    logs = logs_of(disk)
    seen = [bounds(logs)]
    for files in (
        {log_file(0): BATCH_0 + BATCH_3},
        {log_file(0): BATCH_0 + BATCH_3, log_file(5): BATCH_5},
        {log_file(0): BATCH_0},
        {log_file(9): batch(9, (1,))},
    ):
        for entry in disk.scan("/data/orders-0"):
            disk.remove(f"/data/orders-0/{entry.name}")
        for name, content in files.items():
            put(disk, name, content, "/data/orders-0")
        seen.append(bounds(logs))
    assert seen == [(0, 3), (0, 5), (0, 7), (0, 3), (9, 10)]


def test_an_empty_log() -> None:
    """A directory without a segment, and a segment without a batch."""
    assert bounds(logs_of(disk_of({"/data/orders-0": {}}))) == (0, 0)
    assert bounds(logs_of(disk_of({"/data/orders-0": {log_file(7): b""}}))) == (7, 7)


# --- copies -------------------------------------------------------------------------------------------------

LATE = batch(3, (9,), epoch=5, value=b"late")
STALE = batch(3, (8, 8, 8, 8), epoch=1, value=b"stale")


def test_of_copies_the_newest_epoch_is_read_then_the_longest() -> None:
    """A longer tail of an older epoch was cut by whoever led later."""
    disk = disk_of(
        {
            "/a/orders-0": {log_file(0): BATCH_0 + STALE},
            "/b/orders-0": {log_file(0): BATCH_0},
            "/c/orders-0": {log_file(0): BATCH_0 + LATE},
        }
    )
    logs = logs_of(disk, "/a", "/b", "/c")
    assert bounds(logs) == (0, 4)
    assert read(logs, 0, 4, ["value"])[0][-1] == b"late 3"
    assert bounds(logs_of(disk, "/a", "/b")) == (0, 7)


@pytest.mark.parametrize("end", [b"", bytes(200), BATCH_5[:40]], ids=["empty", "zeros", "torn"])
def test_a_copy_without_a_batch_in_its_last_segment_keeps_its_epoch(end: bytes) -> None:
    """It has just rolled, or lost what it wrote after that; the epoch is that of the segment before."""
    disk = disk_of(
        {
            "/a/orders-0": {log_file(0): BATCH_0 + STALE},
            "/b/orders-0": {log_file(0): BATCH_0 + LATE, log_file(4): end},
        }
    )
    assert bounds(logs_of(disk, "/a", "/b")) == (0, 4)
    assert read(logs_of(disk, "/a", "/b"), 3, 4, ["value"])[0] == [b"late 3"]


def test_a_copy_that_retention_emptied_has_the_epoch_of_its_checkpoint() -> None:
    disk = disk_of({"/a/orders-0": {log_file(0): BATCH_0 + STALE}, "/b/orders-0": {log_file(9): b""}})
    assert bounds(logs_of(disk, "/a", "/b")) == (0, 7)
    write_leader_epoch_checkpoint(disk, "/b/orders-0", [(5, 3)])
    assert bounds(logs_of(disk, "/a", "/b")) == (9, 9)


@pytest.mark.parametrize("batches", [0, 4, 9])
def test_an_index_of_more_than_the_log_has(tmp_path: Path, batches: int) -> None:
    """A power cut took the end of the log and left its index."""
    with Log.open(tmp_path / "orders-0", LogConfig(index_interval_bytes=200)) as log:
        for _ in range(10):
            log.append(bytes(100))
    file = tmp_path / "orders-0" / log_file(0)
    os.truncate(file, file.stat().st_size // 10 * batches + (50 if batches else 0))
    assert bounds(DirectoryLogs([str(tmp_path)])) == (0, batches)


def test_the_highest_watermark_of_the_copies_counts() -> None:
    """A follower hears of it later; that of a copy that stayed behind cannot move the end of a newer one."""
    disk = disk_of(
        {
            "/a/orders-0": {log_file(0): BATCH_0 + BATCH_3},
            "/b/orders-0": {log_file(0): BATCH_0 + BATCH_3 + BATCH_5},
        }
    )
    high_watermark(disk, "/a", 5)
    high_watermark(disk, "/b", 3)
    assert bounds(logs_of(disk, "/a", "/b")) == (0, 5)
    disk = disk_of(
        {"/a/orders-0": {log_file(0): BATCH_0 + STALE}, "/c/orders-0": {log_file(0): BATCH_0 + LATE}}
    )
    high_watermark(disk, "/a", 7)
    assert bounds(logs_of(disk, "/a", "/c")) == (0, 4)


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_rows_of_any_range(tmp_path: Path, codec: Codec) -> None:
    """Several segments, any codec, ranges that begin and end inside of batches."""
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for first in range(0, 400, 8):
            records = [Record(number, 1000 + number, None, b"%d" % (first + number)) for number in range(8)]
            log.append_batches(encode_batch(records, codec=codec))
        assert len(list((tmp_path / "orders-0").glob("*.log"))) > 3
    logs = DirectoryLogs([str(tmp_path)])
    assert bounds(logs) == (0, 400)
    for start, end in ((0, 400), (3, 7), (5, 100), (123, 399), (399, 400)):
        values, missing = read(logs, start, end, ["value"])
        assert values == [b"%d" % number for number in range(start, end)]
        assert missing == []


def test_the_segment_of_each_record(tmp_path: Path) -> None:
    """The base offset of the file that it lies in."""
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for number in range(100):
            log.append([b"%d" % number])
    bases = sorted(int(path.stem) for path in (tmp_path / "orders-0").glob("*.log"))
    segments, _ = read(DirectoryLogs([str(tmp_path)]), 0, 100, ["segment"])
    assert segments == [max(base for base in bases if base <= offset) for offset in range(100)]
    assert read(DirectoryLogs([str(tmp_path)]), 20, 22, ["offset", "segment"])[0] == [20, 21]


def test_compaction_gaps_are_no_loss() -> None:
    """They are reported, and how many offsets they are."""
    disk = disk_of(
        {"/data/orders-0": {log_file(0): BATCH_0 + BATCH_5, log_file(20): batch(33, (1,), epoch=1)}}
    )
    rows, missing = read(logs_of(disk), 1, 34)
    assert rows == [1, 2, 5, 6, 33]
    assert [(each.cause, each.offsets) for each in missing] == [(Cause.COMPACTED, 2 + 26)]
    assert not missing[0].cause.is_loss


def test_offsets_below_the_start_have_expired() -> None:
    """Retention came between planning and reading, or the offsets were old."""
    disk = disk_of({"/data/orders-0": {log_file(3): BATCH_3, log_file(5): BATCH_5}})
    assert read(logs_of(disk), 1, 6) == ([3, 4, 5], [Missing("orders", 0, 1, 3, Cause.EXPIRED)])
    assert read(logs_of(disk), 0, 2) == ([], [Missing("orders", 0, 0, 2, Cause.EXPIRED)])


def test_a_deleted_partition_has_expired() -> None:
    """Its directory went since it was planned."""
    disk = disk_of({"/data": {}})
    rows, missing = read(logs_of(disk), 1, 6)
    assert (rows, missing[0][:5]) == ([], ("orders", 0, 1, 6, Cause.EXPIRED))
    assert "orders-0 does not exist" in missing[0].detail


@pytest.mark.parametrize("tail", [b"", BATCH_5[:-1], bytes(100)])
def test_offsets_past_the_end_were_cut(tail: bytes) -> None:
    """The log ends before the range does, cleanly or in a torn batch."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + BATCH_3 + tail}})
    rows, missing = read(logs_of(disk), 4, 7)
    assert rows == [4]
    assert [each[2:5] for each in missing] == [
        (5, 7, Cause.TRUNCATED if tail != bytes(100) else Cause.DAMAGED)
    ]
    assert read(logs_of(disk), 6, 8)[1][0][2:4] == (6, 8)


def test_a_log_that_ends_below_its_watermark_has_lost_its_tail() -> None:
    """Committed records are not silently fewer: the range reaches to the watermark, the read says so."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + BATCH_3[:-1]}})
    high_watermark(disk, "/data", 5)
    assert bounds(logs_of(disk)) == (0, 5)
    rows, missing = read(logs_of(disk), 0, 5)
    assert (rows, [each[2:5] for each in missing]) == ([0, 1, 2], [(3, 5, Cause.TRUNCATED)])


def test_a_damaged_batch_between_sound_ones() -> None:
    """Its offsets are lost and named, with file and byte; the others come."""
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + flipped(BATCH_3, 70) + BATCH_5}})
    rows, missing = read(logs_of(disk), 0, 7)
    assert rows == [0, 1, 2, 5, 6]
    assert [each[2:5] for each in missing] == [(3, 5, Cause.DAMAGED)]
    assert f"{log_file(0)} at byte {len(BATCH_0)}" in missing[0].detail
    assert read(logs_of(disk), 0, 3) == ([0, 1, 2], [])
    assert read(logs_of(disk), 5, 7) == ([5, 6], [])
    assert bounds(logs_of(disk)) == (0, 7)


def test_damage_and_a_gap_are_told_apart() -> None:
    """What a damage took is not counted as compacted too."""
    files = {log_file(0): BATCH_0 + flipped(BATCH_3, 70) + BATCH_5 + batch(10, (1,), epoch=1)}
    missing = read(logs_of(disk_of({"/data/orders-0": files})), 0, 11)[1]
    assert [(each.cause, each.offsets) for each in missing] == [(Cause.DAMAGED, 2), (Cause.COMPACTED, 3)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_that_cannot_be_read_are_damage(codec: Codec) -> None:
    """A right checksum over wrong records: that batch alone is lost, its neighbours' rows come once."""
    from logstore.format.batch import seal_batch

    bad = bytearray(61 + 40)
    bad[61:] = b"\xff" * 40
    seal_batch(bad, 0, len(bad), codec=codec, base_timestamp_ms=1, max_timestamp_ms=1, count=2)
    set_offsets_and_epoch(bad, base_offset=3, leader_epoch=1)
    disk = disk_of({"/data/orders-0": {log_file(0): BATCH_0 + bytes(bad) + BATCH_5}})
    rows, missing = read(logs_of(disk), 0, 7, ("offset", "value"))
    assert rows == [0, 1, 2, 5, 6]
    assert [each[2:5] for each in missing] == [(3, 5, Cause.DAMAGED)]
    assert read(logs_of(disk), 0, 7) == ([*range(7)], []), "offsets alone come from the headers"


# --- transactions -------------------------------------------------------------------------------------------


def transactional(offset: int, producer_id: int, count: int = 2) -> bytes:
    records = [Record(offset + each, 1000, None, b"%d" % (offset + each)) for each in range(count)]
    return encode_batch(
        records, base_offset=offset, leader_epoch=0, producer_id=producer_id, producer_epoch=0,
        base_sequence=0, is_transactional=True,
    )  # fmt: skip


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    made = encode_marker_batch(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=5,
        base_offset=offset, leader_epoch=0,
    )  # fmt: skip
    return bytes(made)


TRANSACTIONS = (
    transactional(0, 1),
    transactional(2, 2),
    marker(4, 1, ControlType.ABORT),
    transactional(5, 1),
    transactional(7, 3),
    marker(9, 2, ControlType.COMMIT),
    marker(10, 1, ControlType.COMMIT),
    batch(11, (1, 1)),
)


@pytest.mark.parametrize("split", range(len(TRANSACTIONS) + 1))
def test_committed_reads_end_at_the_last_stable_offset(split: int) -> None:
    """Producer 3 is undecided; what producer 1 aborted is left out, wherever the segments are cut."""
    files = {log_file(0): b"".join(TRANSACTIONS[:split])}
    if split < len(TRANSACTIONS):
        base = int.from_bytes(TRANSACTIONS[split][:8], "big")
        files[log_file(base)] = b"".join(TRANSACTIONS[split:])
    disk = disk_of({"/data/orders-0": files})
    everything, committed = logs_of(disk), logs_of(disk, isolation=Isolation.READ_COMMITTED)
    assert (bounds(everything), bounds(committed)) == ((0, 13), (0, 7))
    assert read(everything, 0, 13)[0] == [0, 1, 2, 3, 5, 6, 7, 8, 11, 12]
    rows, missing = read(committed, 0, 7)
    assert rows == [2, 3, 5, 6]
    assert [(each.cause, each.offsets) for each in missing] == [(Cause.ABORTED, 2)]


@pytest.mark.parametrize("mark", [0, 2, 4, 5, 7, 9, 10, 11, 13])
def test_the_last_stable_offset_is_as_of_the_watermark(mark: int) -> None:
    """A marker behind it decides nothing yet."""
    disk = disk_of({"/data/orders-0": {log_file(0): b"".join(TRANSACTIONS)}})
    high_watermark(disk, "/data", mark)
    expected = {0: 0, 2: 0, 4: 0, 5: 2, 7: 2, 9: 2, 10: 5, 11: 7, 13: 7}[mark]
    assert bounds(logs_of(disk, isolation=Isolation.READ_COMMITTED)) == (0, expected)


def test_the_last_stable_offset_moves_on() -> None:
    """Asked again at every trigger of a stream."""
    disk = disk_of({"/data/orders-0": {log_file(0): b"".join(TRANSACTIONS)}})
    logs = logs_of(disk, isolation=Isolation.READ_COMMITTED)
    seen = []
    for mark in (5, 9, 10, 13, 5):
        high_watermark(disk, "/data", mark)
        seen.append(bounds(logs).end_offset)
    assert seen == [2, 2, 5, 7, 2]


def test_transactions_of_a_real_log(tmp_path: Path) -> None:
    """Snapshots, transaction indexes and batches together say what `Log.read` says, again and again."""
    from random import Random

    from logstore import FetchIsolation

    random = Random(5)
    logs = DirectoryLogs([str(tmp_path)], isolation=Isolation.READ_COMMITTED)
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        sequences = dict.fromkeys(range(4), 0)
        is_open: set[int] = set()
        for step in range(300):
            producer = random.randrange(4)
            if producer in is_open and random.random() < 0.4:
                log.end_transaction(producer, 0, commit=random.random() < 0.5)
                is_open.discard(producer)
            else:
                data = encode_batch(
                    [Record(0, 1000, None, b"%d" % step)], producer_id=producer, producer_epoch=0,
                    base_sequence=sequences[producer], is_transactional=True,
                )  # fmt: skip
                log.append_batches(data)
                sequences[producer] += 1
                is_open.add(producer)
            if step % 30 == 29:
                log.flush()
                start, end = bounds(logs)
                expected = [each.offset for each in log.read(isolation=FetchIsolation.TXN_COMMITTED)]
                assert read(logs, start, end)[0] == expected
                for first in range(start, end, 17):
                    part = read(
                        DirectoryLogs([str(tmp_path)], isolation=Isolation.READ_COMMITTED), first, end
                    )[0]
                    assert part == [offset for offset in expected if offset >= first]


# --- time and cuts ------------------------------------------------------------------------------------------


def test_offsets_by_time(tmp_path: Path) -> None:
    """The first record that is so young, in order of offset, with and without the indexes."""
    times = [1000, 5000, 2000, 3000, 9000, 4000, 9000, 12000]
    with Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=300, index_interval_bytes=1)) as log:
        for time_ms in times:
            log.append_batches(encode_batch([Record(0, time_ms, None, bytes(50))]))
    for keep in (True, False):
        if not keep:
            for path in (tmp_path / "orders-0").glob("*index"):
                path.unlink()
        logs = DirectoryLogs([str(tmp_path)])
        for asked in (0, 1000, 1001, 3000, 5000, 5001, 9000, 9001, 12000, 12001):
            expected = next((offset for offset, time in enumerate(times) if time >= asked), None)
            assert logs.offsets_by_time({ORDERS: asked}) == {ORDERS: expected}


def test_time_indexes_past_the_recovery_point_are_no_evidence(tmp_path: Path) -> None:
    """A power cut left a part of them; a segment that seems too old may have the record."""
    times = [1000, 1500, 5000, 6000, 7000, 9000]
    with Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=350, index_interval_bytes=1)) as log:
        for time_ms in times:
            log.append_batches(encode_batch([Record(0, time_ms, None, bytes(30))]))
    (tmp_path / "orders-0" / RECOVERY_POINT_CHECKPOINT).unlink()
    cut = min((tmp_path / "orders-0").glob("*.timeindex"))
    os.truncate(cut, 12)
    logs = DirectoryLogs([str(tmp_path)])
    for synced in (0, 2):
        write_offset_checkpoint(OsDisk(), str(tmp_path), RECOVERY_POINT_CHECKPOINT, {ORDERS: synced})
        for asked in (1500, 5000, 5001):
            expected = next(offset for offset, time in enumerate(times) if time >= asked)
            assert logs.offsets_by_time({ORDERS: asked}) == {ORDERS: expected}


def test_cut_points_are_where_batches_begin(tmp_path: Path) -> None:
    """As many as asked for, about evenly, each the base of a batch; without indexes, of a segment."""
    bases = set()
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for number in range(300):
            bases.add(log.log_end_offset)
            log.append([b"%d" % number] * (number % 3 + 1))
        end = log.log_end_offset
    logs = DirectoryLogs([str(tmp_path)])
    wanted = OffsetRange("orders", 0, 0, end)
    for pieces in (2, 5, 8):
        cuts = logs.cut_points(wanted, pieces)
        assert len(cuts) == pieces - 1
        assert cuts == sorted(cuts)
        assert set(cuts) <= bases
        sizes = [second - first for first, second in zip([0, *cuts], [*cuts, end], strict=True)]
        assert max(sizes) < 3 * end / pieces
    part = OffsetRange("orders", 0, end // 3, end // 2)
    assert all(part.start_offset < cut < part.end_offset for cut in logs.cut_points(part, 4))
    for path in (tmp_path / "orders-0").glob("*index"):
        path.unlink()
    segments = {int(path.stem) for path in (tmp_path / "orders-0").glob("*.log")}
    assert set(logs.cut_points(wanted, 4)) <= segments


def test_a_stretch_is_let_go_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory, with pages that are there already, then serves the next read."""
    batches = [batch(number, [1000], value=b"v" * 400_000) for number in range(12)]
    disk = disk_of({"/data/orders-0": {log_file(0): b"".join(batches)}})
    held: list[weakref.ref[Any]] = []
    pread = MemoryFile.pread

    def tracked(file: MemoryFile, size: int, position: int) -> Any:
        if size < 100_000:
            return pread(file, size, position)
        assert all(each() is None for each in held)
        data = np.frombuffer(pread(file, size, position), np.uint8)
        held.append(weakref.ref(data))
        return data

    monkeypatch.setattr(MemoryFile, "pread", tracked)
    missing: list[Missing] = []
    rows = sum(
        each.num_rows for each in logs_of(disk).read(OffsetRange("orders", 0, 0, 12), ["value"], missing)
    )
    assert (rows, missing, len(held)) == (12, [], 3)
