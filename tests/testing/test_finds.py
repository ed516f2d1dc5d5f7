"""What long runs found and short ones hardly ever meet again, each as a story of its own."""

from __future__ import annotations

import errno
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.testing import disk_faults
from logstore.testing.disks.faulty import Fault, FaultyDisk

TP = TopicPartition("t", 0)


def open_logs(disk: MemoryDisk) -> LogManager:
    return LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))


def test_a_checkpointed_high_watermark_goes_down_with_the_log() -> None:
    """After an unclean election a log is cut below what was committed once. If the process dies before
    the next checkpoint, the records written since must not pass for committed (seed 5228)."""
    disk = MemoryDisk()
    logs = open_logs(disk)
    log = logs.get_or_create(TP)
    for number in range(5):
        batch = encode_batch([Record(0, 0, None, b"old")])
        append_as_leader(log.partition, batch, leader_epoch=0, now_ms=number)
    log.partition.set_high_watermark(5)
    logs.checkpoint_high_watermarks()
    log.truncate_to(2)
    for number in range(4):
        batch = encode_batch([Record(0, 0, None, b"new")])
        append_as_leader(log.partition, batch, leader_epoch=1, now_ms=number)
    logs.abandon()
    found = open_logs(disk).get(TP)
    assert found is not None
    assert found.log_end_offset == 6
    assert found.partition.high_watermark == 2


def test_a_deletion_that_a_full_disk_refuses_changes_nothing_and_works_later() -> None:
    """The refusal came after the log had gone: its replica counted as failed, for good, and what the
    checkpoints said of it stayed for a namesake (seed 573)."""
    inner = MemoryDisk()
    disk = FaultyDisk(inner)
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_create(TP)
    append_as_leader(log.partition, encode_batch([Record(0, 0, None, b"old")]), leader_epoch=0, now_ms=0)
    log.flush()
    logs.checkpoint_recovery_points()
    log.partition.set_high_watermark(1)
    logs.checkpoint_high_watermarks()
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    with pytest.raises(DiskFull, match="Free some space"):
        logs.delete(TP)
    assert logs.get(TP) is log
    assert not logs.offline_dirs
    disk.heal()
    logs.delete(TP)
    assert logs.get(TP) is None
    assert logs.checkpointed_high_watermark(TP) == 0


def test_a_log_that_has_no_room_to_begin_anew_stays_as_it_was() -> None:
    """The high watermark had gone down to 0 by then, below the log's start (seed 1265)."""
    disk = FaultyDisk(MemoryDisk())
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_create(TP)
    truncate_fully_and_start_at(log.partition, 5)
    logs.checkpoint_recovery_points()
    bounds = (
        log.log_start_offset,
        log.partition.high_watermark,
        log.log_end_offset,
        log.partition.recovery_point,
    )
    assert bounds == (5, 5, 5, 5)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    with pytest.raises(DiskFull):
        truncate_fully_and_start_at(log.partition, 9)
    assert (
        log.log_start_offset,
        log.partition.high_watermark,
        log.log_end_offset,
        log.partition.recovery_point,
    ) == bounds
    disk.heal()
    truncate_fully_and_start_at(log.partition, 9)
    assert (log.log_start_offset, log.partition.high_watermark, log.log_end_offset) == (9, 9, 9)


def test_a_flush_of_a_new_log_on_a_full_disk() -> None:
    """A new log has its topic id written with its first sync: the simulation ended with `DiskFull` (seed
    3899). Nothing is synced, and the next flush does it; without a full disk the error is none to expect."""
    disk = FaultyDisk(MemoryDisk())
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    log = logs.get_or_begin(TP, topic_id="AAECAwQFBgcICQoLDA0ODw")
    append_as_leader(log.partition, encode_batch([Record(0, 0, None, b"new")]), leader_epoch=0, now_ms=0)
    host: Any = SimpleNamespace(node_id=1, node=SimpleNamespace(logs=logs), disk_is_dead=False)
    time: Any = SimpleNamespace(stamp=lambda _: None)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    host.disk_is_full = False
    with pytest.raises(DiskFull):
        disk_faults.flush(time, host, sealed_only=False)
    host.disk_is_full = True
    disk_faults.flush(time, host, sealed_only=False)
    assert log.partition.recovery_point == 0
    disk.heal()
    disk_faults.flush(time, host, sealed_only=False)
    assert log.partition.recovery_point == 1
