"""Copies of logs as a crash leaves them, cut anywhere."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from logstore import DamagedLog, Log, LogConfig, LogManager
from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.disk.topic_partition import TopicPartition
from logstore.testing import MemoryDisk, crashed_copy, every_cut


def values_in(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


def test_each_cut_leaves_whole_records_and_synced_ones(tmp_path: Path) -> None:
    written = [b"0", b"1" * 100, b"2", b"3" * 40]
    ends = []
    with Log.open(tmp_path / "orders-0") as log:
        log.append(written[0])
        log.append(written[1], sync=True)
        log.append(written[2])
        log.append(written[3])
        for copy in every_cut(log, tmp_path / "cuts"):
            with Log.open(copy.path) as found:
                assert values_in(found) == written[: copy.log_end_offset]
                ends.append(found.log_end_offset)
        assert values_in(log) == written
    assert min(ends) == 2, "what was synced must stay"
    assert max(ends) == 4
    assert len(ends) == 13, "two batches of seven places, of which they share one"
    assert list((tmp_path / "cuts").iterdir()) == []


def test_with_synced_the_cuts_go_deeper(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"0", sync=True)
        assert [copy.log_end_offset for copy in every_cut(log, tmp_path / "a")] == []
        ends = [copy.log_end_offset for copy in every_cut(log, tmp_path / "b", synced=True)]
    assert ends == [0] * 6 + [1]


def test_a_failed_test_keeps_its_copy(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"0")
        for copy in every_cut(log, tmp_path / "cuts"):
            if copy.log_end_offset:
                break
    assert Path(copy.path).is_dir()
    assert Path(copy.path).parent.name.startswith("cut-6-at-")


def test_a_copy_of_a_closed_log_has_no_clean_stop_and_its_recovery_point(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append([b"0", b"1"])
        log.append(b"2")
    copy = crashed_copy(tmp_path / "orders-0", tmp_path / "copy" / "orders-0")
    assert not (Path(copy.path) / CLEAN_SHUTDOWN_FILE).exists()
    assert (copy.log_end_offset, copy.durable_offset, copy.is_damaged) == (3, 3, False)
    assert [(batch.base_offset, batch.next_offset) for batch in copy.batches] == [(0, 2), (2, 3)]
    copy.cut(copy.batches[1].end - 1)
    assert (copy.log_end_offset, copy.is_damaged) == (2, True)
    with pytest.raises(DamagedLog):
        Log.open(copy.path)
    copy.cut(0)
    assert copy.log_end_offset == 0


def test_a_partition_of_a_broker_is_copied_with_its_bounds() -> None:
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1))
    log = manager.get_or_create(TopicPartition("orders", 3))
    log.append([b"0", b"1", b"2"])
    log.partition.set_high_watermark(3)
    log.delete_records(2)
    manager.checkpoint_log_start_offsets()
    copy = crashed_copy(log, "/copy/orders-3")
    with Log.open(copy.path, disk=disk) as found:
        assert (found.log_start_offset, found.log_end_offset) == (2, 3)
    manager.close()


def test_only_the_last_segment_is_cut_and_any_disk_will_do() -> None:
    disk = MemoryDisk()
    with Log.open("/orders-0", LogConfig(segment_bytes=200), disk=disk) as log:
        for number in range(4):
            log.append(b"%d" % number * 60)
        ends = []
        for copy in every_cut(log, "/cuts", synced=True):
            with Log.open(copy.path, disk=disk) as found:
                assert found.log_end_offset == copy.log_end_offset
                ends.append(copy.log_end_offset)
    assert sorted(set(ends)) == [3, 4]


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0"):
        pass
    (tmp_path / "taken-0").mkdir()
    (tmp_path / "taken-0" / "file").touch()
    with pytest.raises(FileExistsError):
        crashed_copy(tmp_path / "orders-0", tmp_path / "taken-0")
    with pytest.raises(ValueError, match="holds no log"):
        crashed_copy(tmp_path / "taken-0", tmp_path / "empty-0")


def test_a_copy_inside_the_log_is_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"placed")
        with pytest.raises(ValueError, match="is in the log itself"):
            crashed_copy(log, tmp_path / "orders-0" / "copy-0")
        with pytest.raises(ValueError, match="is in the log itself"):
            next(every_cut(log, tmp_path / "orders-0" / "cuts"))
    assert not [each for each in (tmp_path / "orders-0").iterdir() if each.is_dir()]


def test_what_holds_no_log_leaves_no_copy(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(ValueError, match="holds no log"):
        crashed_copy(tmp_path / "orders-0", tmp_path / "copy" / "orders-0")
    assert not (tmp_path / "copy").exists()


def test_a_cut_is_within_the_file(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        empty = crashed_copy(log, tmp_path / "empty-0")
        log.append(b"0")
        copy = crashed_copy(log, tmp_path / "copy-0")
    for each, size in ((empty, 0), (copy, copy.batches[0].end)):
        for at in (-size - 1, size + 1):
            with pytest.raises(ValueError, match=f"no cut at {at}: .* has {size} bytes"):
                each.cut(at)
        each.cut(size)
        each.cut(-size)
        assert each.log_end_offset == 0
