"""Logs whose directories or first segments somebody has taken away: they are damaged, not shorter."""

from __future__ import annotations

import pytest

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, write_leader_epoch_checkpoint
from logstore.config import LogConfig
from logstore.disk.copying import remove_tree
from logstore.errors import DamagedLog
from logstore.log.log import Log
from logstore.testing.disks import MemoryDisk
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.logstore.managers import ORDERS, PAYMENTS, TOPIC_ID, append, checkpoint, manager_on

SMALL = LogConfig(segment_bytes=300, retention_ms=-1, file_delete_delay_ms=0)


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
    with Log.open("/a-0", SMALL, disk=disk) as log:
        append(log, 20)
        bases = [segment.base_offset for segment in log.partition.segments]
        log.delete_records(bases[number] + (number > 0))
        log.maintain()
        assert log.partition.segments.first.base_offset == bases[number]
    with Log.open("/a-0", SMALL, disk=disk):
        pass
    disk.remove(f"/a-0/{bases[number]:020d}.log")
    with pytest.raises(DamagedLog, match="segment gone"):
        Log.open("/a-0", SMALL, disk=disk)


def _killed(disk: MemoryDisk, *, deletes: int = 0) -> list[int]:
    """Leave a log of several segments, killed; returns their base offsets."""
    log = Log.open("/a-0", SMALL, disk=disk)
    append(log, 20)
    bases = [segment.base_offset for segment in log.partition.segments]
    if deletes:
        log.delete_records(bases[deletes] + 1)
        log.maintain()
    log.partition.abandon()
    return bases


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_first_segment_that_is_gone_after_a_kill(number: int) -> None:
    """The log start is written before a segment below it goes."""
    disk = MemoryDisk()
    bases = _killed(disk, deletes=number)
    for entry in disk.scan("/a-0"):
        if entry.name.startswith(f"{bases[number]:020d}"):
            disk.remove(f"/a-0/{entry.name}")
    for _ in range(2):
        with pytest.raises(DamagedLog, match=f"its first segment begins at {bases[number + 1]}"):
            Log.open("/a-0", SMALL, disk=disk)


def test_a_first_segment_that_is_gone_and_other_files_that_changed() -> None:
    """The marker of the clean stop proves nothing then; the log start and the epochs do."""
    disk = MemoryDisk()
    second = _killed(disk)[1]
    Log.open("/a-0", SMALL, disk=disk).close()
    disk.remove(f"/a-0/{0:020d}.log")
    disk.remove(f"/a-0/{second:020d}.snapshot")
    with pytest.raises(DamagedLog, match=f"its first segment begins at {second}"):
        Log.open("/a-0", SMALL, disk=disk)


@pytest.mark.parametrize("is_clean", [False, True])
def test_what_follows_a_first_segment_that_is_gone_is_kept(is_clean: bool) -> None:
    """A log that stands alone has no replica to fetch it from."""
    disk = MemoryDisk()
    second = _killed(disk)[1]
    if is_clean:
        Log.open("/a-0", SMALL, disk=disk).close()
    disk.remove(f"/a-0/{0:020d}.log")
    for accept_loss in (True, False):
        log = Log.open("/a-0", SMALL, disk=disk, accept_loss=accept_loss)
        assert len(log.partition.report.damages) == accept_loss
        assert [record.offset for record in log.read()] == [*range(second, 20)]
        log.partition.abandon()


@pytest.mark.parametrize("is_known", [False, True])
def test_another_program_that_deleted_segments_meanwhile(is_known: bool) -> None:
    """Kafka knows nothing of the log start in the directory; it moves the first epoch."""
    disk = MemoryDisk()
    second = _killed(disk)[1]
    disk.remove(f"/a-0/{0:020d}.log")
    if is_known:
        write_leader_epoch_checkpoint(disk, "/a-0", [(0, second)])
    else:
        disk.remove("/a-0/leader-epoch-checkpoint")
    with Log.open("/a-0", SMALL, disk=disk) as log:
        assert log.log_start_offset == second


def test_a_cut_that_leaves_a_gap_at_the_beginning() -> None:
    """The batch of the log start goes as a whole, and the first segment is named for the log end."""
    disk = MemoryDisk()
    log = Log.open("/a-0", SMALL, disk=disk)
    log.append([b"a"] * 3)
    log.delete_records(1)
    log.truncate_to(2)
    append(log, 20)
    log.partition.abandon()
    with Log.open("/a-0", SMALL, disk=disk) as log:
        assert [record.offset for record in log.read()] == [*range(2, 22)]
