"""Logs whose directories or first segments somebody has taken away: they are damaged, not shorter."""

from __future__ import annotations

import pytest

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT
from logstore.config import LogConfig
from logstore.disk.copying import remove_tree
from logstore.errors import DamagedLog
from logstore.log.log import Log
from logstore.testing.disks import MemoryDisk
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.logstore.managers import ORDERS, PAYMENTS, TOPIC_ID, append, checkpoint, manager_on


def without_orders() -> MemoryDisk:
    """Two logs of five records each; the directory of one is gone."""
    disk = MemoryDisk()
    manager = manager_on(disk)
    for partition in (ORDERS, PAYMENTS):
        append(manager.get_or_create(partition, topic_id=TOPIC_ID), 5)
    manager.close()
    disk.rename("/a/orders-0", "/taken")
    return disk


def test_a_log_that_is_gone_is_damaged_at_each_start_until_it_is_back() -> None:
    disk = without_orders()
    for _ in range(2):
        manager = manager_on(disk)
        with pytest.raises(DamagedLog, match="the directory is gone, and everything up to offset 5"):
            manager.get_or_create(ORDERS)
        with pytest.raises(DamagedLog, match="make an empty one"):
            manager.reopen(ORDERS)
        assert list(manager.damaged) == [ORDERS]
        assert manager.topic_ids() == {ORDERS: None, PAYMENTS: TOPIC_ID}
        assert list(manager.logs()) == [PAYMENTS]
        assert not manager.offline_dirs
        manager.close()
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT)[ORDERS] == 5
    disk.rename("/taken", "/a/orders-0")
    manager = manager_on(disk)
    assert not manager.damaged
    assert manager.logs()[ORDERS].log_end_offset == 5


def test_its_loss_is_accepted_and_it_begins_anew() -> None:
    disk = without_orders()
    manager = manager_on(disk)
    log = manager.reopen(ORDERS, accept_loss=True)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.partition.report.wrong == []
    append(log)
    manager.close()
    assert manager_on(disk).logs()[ORDERS].log_end_offset == 1


@pytest.mark.parametrize("fate", ["delete", "set_aside"])
def test_it_can_be_deleted(fate: str) -> None:
    disk = without_orders()
    manager = manager_on(disk)
    getattr(manager, fate)(ORDERS)
    assert not manager.offline_dirs
    assert not manager.damaged
    manager.close()
    assert ORDERS not in checkpoint(disk, RECOVERY_POINT_CHECKPOINT)
    assert not manager_on(disk).damaged


def test_a_deletion_that_another_program_had_begun_is_none() -> None:
    disk = without_orders()
    disk.rename("/taken", f"/a/orders-0.{'0' * 32}-delete")
    assert not manager_on(disk).damaged


def test_it_may_be_in_a_log_dir_that_failed() -> None:
    inner = without_orders()
    disk = FaultyDisk(inner)
    disk.inject(Fault(operation="scan", path="/b".__eq__))
    manager = manager_on(disk, "/a", "/b")
    assert list(manager.offline_dirs) == ["/b"]
    assert not manager.damaged


def test_a_deletion_leaves_nothing_to_miss() -> None:
    disk = without_orders()
    manager = manager_on(disk)
    manager.delete(PAYMENTS)
    manager.abandon()
    for entry in disk.scan("/a"):
        if entry.is_directory:
            remove_tree(disk, f"/a/{entry.name}")
    assert list(manager_on(disk).damaged) == [ORDERS]


def test_a_deletion_of_a_log_that_has_moved_leaves_nothing_to_miss() -> None:
    """Its entry in the log dir that it left is written again with the others only."""
    disk = MemoryDisk()
    manager = manager_on(disk, "/a", "/b")
    append(manager.get_or_create(ORDERS), 5)
    manager.logs()[ORDERS].flush()
    manager.checkpoint_recovery_points()
    manager.moves.begin(ORDERS, "/b")
    manager.moves.carry_out(ORDERS)
    manager.delete(ORDERS)
    manager.abandon()
    for path in ("/a", "/b"):
        for entry in disk.scan(path):
            if entry.is_directory:
                remove_tree(disk, f"{path}/{entry.name}")
    assert not manager_on(disk, "/a", "/b").damaged


def test_a_first_segment_that_is_gone_after_a_clean_stop() -> None:
    """The log would begin at the next one, as after retention."""
    disk = MemoryDisk()
    manager = manager_on(disk)
    append(manager.get_or_create(ORDERS), 20)
    second = manager.logs()[ORDERS].partition.segments[1].base_offset
    manager.close()
    for entry in disk.scan("/a/orders-0"):
        if entry.name.startswith(f"{0:020d}"):
            disk.remove(f"/a/orders-0/{entry.name}")
    manager = manager_on(disk)
    with pytest.raises(DamagedLog, match=f"at or below offset 0, and its first segment begins at {second}"):
        manager.get(ORDERS)
    log = manager.reopen(ORDERS, accept_loss=True)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0), "another replica has all of it"
    assert log.losses()[0].records == 20 - second


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_first_segment_of_a_log_without_a_manager(number: int) -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=300, retention_ms=-1, file_delete_delay_ms=0)
    with Log.open("/a-0", config, disk=disk) as log:
        append(log, 20)
        bases = [segment.base_offset for segment in log.partition.segments]
        log.delete_records(bases[number] + (number > 0))
        log.maintain()
        assert log.partition.segments.first.base_offset == bases[number]
    with Log.open("/a-0", config, disk=disk):
        pass
    disk.remove(f"/a-0/{bases[number]:020d}.log")
    with pytest.raises(DamagedLog, match="segment gone"):
        Log.open("/a-0", config, disk=disk)
