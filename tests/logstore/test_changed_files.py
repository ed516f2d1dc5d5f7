"""Files without a checksum that changed after a clean stop: the digests in its marker tell."""

from __future__ import annotations

import pytest

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.scrub import Scrubbed
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import batch
from tests.logstore.producing import ABORT, COMMIT, ORDERS, committed, end, manager_on, plain, produce


def filled(log: Log) -> None:
    """Two leader epochs and two aborted transactions, in one segment."""
    for number in range(2):
        produce(log, 1, 2 * number, count=2)
        plain(log, 2)
        end(log, 1, (ABORT, COMMIT)[number])
        produce(log, 2, 2 * number, count=2)
        end(log, 2, ABORT)
    append_as_leader(log.partition, batch(0, (1,)), leader_epoch=9, now_ms=5000)


def reopened(disk: MemoryDisk, *, is_managed: bool) -> Log:
    if not is_managed:
        return Log.open("/data/orders-0", disk=disk)
    log = manager_on(disk).get_or_create(ORDERS)
    log.partition.set_high_watermark(log.log_end_offset)
    return log


def stopped(*, is_managed: bool) -> tuple[MemoryDisk, list[int]]:
    disk = MemoryDisk(directories=["/data"])
    manager = manager_on(disk) if is_managed else None
    log = manager.get_or_create(ORDERS) if manager is not None else Log.open("/data/orders-0", disk=disk)
    filled(log)
    log.partition.set_high_watermark(log.log_end_offset)
    before = committed(log)
    assert 0 < len(before) < log.log_end_offset
    (manager or log).close()
    return disk, before


@pytest.mark.parametrize("suffix", [LEADER_EPOCH_CHECKPOINT, TRANSACTION_INDEX_SUFFIX])
@pytest.mark.parametrize("is_managed", [True, False])
def test_every_byte(suffix: str, *, is_managed: bool) -> None:
    disk, before = stopped(is_managed=is_managed)
    (path,) = (path for path in disk.files() if path.endswith(suffix))
    right = disk.files()[path]
    for at in range(len(right)):
        damaged = disk.copy()
        damaged.open(path, write=True).pwrite(bytes([right[at] ^ 1]), at)
        log = reopened(damaged, is_managed=is_managed)
        assert damaged.files()[path] == right, at
        assert committed(log) == before
        assert log.scrub()._replace(rebuilt=()) == Scrubbed(log.size, None)


def test_a_sound_stop_reads_nothing_again() -> None:
    disk, _ = stopped(is_managed=True)
    assert reopened(disk, is_managed=True).partition.report.scanned_bytes == 0


def test_a_log_that_began_lower_by_a_checkpoint_that_changed_is_not_refused() -> None:
    disk, before = stopped(is_managed=True)
    path = f"/data/{RECOVERY_POINT_CHECKPOINT}"
    disk.open(path, write=True).pwrite(b"3", len(disk.files()[path]) - 2)
    assert committed(reopened(disk, is_managed=True)) == before
