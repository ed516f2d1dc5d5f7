"""Putting back what was cut: byte for byte where it was, or not at all and with a reason."""

from __future__ import annotations

import errno
from random import Random

import pytest

from logstore.disk.files import Disk
from logstore.errors import CannotUndo, DiskFull, LogDirOffline
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.losses import KEPT_MS, Standing
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.undo import copy_out, put_back
from logstore.log.upkeep import expire_losses
from logstore.testing.disks import FaultyDisk, MemoryDisk, Profile, RecordingDisk
from logstore.testing.disks.faulty import Fault
from tests.logstore.ledgers import NOW_MS, SMALL, filled
from tests.logstore.logs import BATCH_0, BATCH_3, BATCH_5, DIRECTORY, batch, disk_with, log_file


def opened(disk: Disk, path: str = DIRECTORY) -> Log:
    return Log.open(path, SMALL, disk=disk, clock=lambda: NOW_MS)


def logs_of(disk: MemoryDisk) -> dict[str, bytes]:
    """Every `.log` of the partition, quarantine left out."""
    return {
        path: data for path, data in disk.files().items() if path.endswith(".log") and "/lost/" not in path
    }


@pytest.mark.parametrize("offset", range(0, 16))
def test_a_truncation_undone_was_never_made(offset: int) -> None:
    """Inside a batch, between two, across segments, to zero: the same files, byte for byte."""
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    before, epochs = logs_of(disk), log.partition.epochs
    log.truncate_to(offset)
    (loss,) = log.losses()
    assert put_back(log.partition, loss.id) == loss.size
    assert (logs_of(disk), log.partition.epochs, log.log_end_offset) == (before, epochs, 16)
    assert log.partition.recovery_point == 16, "durable when it returns"
    assert [loss.standing for loss in log.losses()] == [Standing.RESTORED]
    again = opened(disk.durable_image())
    assert (again.log_end_offset, again.partition.report.cuts) == (16, [])


def test_segments_come_back_as_they_were_rolled() -> None:
    """Whoever undoes may not know why a segment began where it did: by hand, by time, by other settings."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, disk=disk, clock=lambda: NOW_MS)
    for number in range(6):
        append_as_follower(log.partition, batch(2 * number, (1, 2)), leader_epoch=0)
        if number % 2:
            log.partition.roll()
    before = logs_of(disk)
    log.truncate_to(2)
    put_back(log.partition, 1)
    assert logs_of(disk) == {path: data for path, data in before.items() if data}


def test_several_are_undone_newest_first() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    before = logs_of(disk)
    for offset in (12, 7, 2):
        log.truncate_to(offset)
    with pytest.raises(CannotUndo, match="ends at 2, and loss 1 begins at 12"):
        put_back(log.partition, 1)
    for loss_id in (3, 2, 1):
        put_back(log.partition, loss_id)
    assert logs_of(disk) == before


def test_a_restart_undone() -> None:
    """At zero, so that it fits: every segment comes back as the segment it was."""
    disk = disk_with({log_file(0): BATCH_0 + BATCH_3, log_file(5): BATCH_5})
    log = opened(disk)
    log.flush()
    truncate_fully_and_start_at(log.partition, 0)
    put_back(log.partition, 1)
    assert logs_of(disk) == {
        f"{DIRECTORY}/{log_file(0)}": BATCH_0 + BATCH_3,
        f"{DIRECTORY}/{log_file(5)}": BATCH_5,
    }


class TestItDoesNotFit:
    """Nothing is changed, and the message says what can be done."""

    def refused(self, log: Log, match: str, loss_id: int = 1) -> None:
        before = (log.log_end_offset, log.size, log.partition.epochs)
        with pytest.raises(CannotUndo, match=match):
            put_back(log.partition, loss_id)
        assert (log.log_end_offset, log.size, log.partition.epochs) == before

    def test_other_batches_have_its_offsets(self) -> None:
        log = filled(MemoryDisk(directories=["/data"]))
        log.truncate_to(4)
        append_as_follower(log.partition, batch(4, (1, 2), epoch=3), leader_epoch=3)
        self.refused(log, "other batches at offset 4.*--as")

    def test_a_newer_leadership(self) -> None:
        """It has written nothing yet, but it will, at these offsets."""
        log = filled(MemoryDisk(directories=["/data"]))
        log.truncate_to(4)
        log.partition.assign_epoch(7, 4)
        self.refused(log, "has reached leader epoch 7.*--as")

    def test_the_log_starts_above_it(self) -> None:
        log = filled(MemoryDisk(directories=["/data"]))
        log.truncate_to(4)
        truncate_fully_and_start_at(log.partition, 40)
        self.refused(log, "other batches|ends at 40")

    def test_a_torn_tail(self) -> None:
        log = opened(disk_with({log_file(0): BATCH_0 + BATCH_3[:-1]}))
        self.refused(log, "the file ends inside a batch")

    def test_a_bit_flipped_in_quarantine(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        log.truncate_to(4)
        file = disk.open(f"{DIRECTORY}/lost/1/{log_file(6)}", write=True)
        byte = file.pread(1, 70)[0]
        file.pwrite(bytes([byte ^ 1]), 70)
        self.refused(log, "checksum does not match")

    def test_bytes_that_are_not_there(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        log.truncate_to(4)
        self.refused(log, "no loss 2", loss_id=2)
        disk.remove(f"{DIRECTORY}/lost/1/{log_file(6)}")
        self.refused(log, "missing")
        expire_losses(log.partition, NOW_MS + KEPT_MS)
        self.refused(log, "expired")
        truncate_fully_and_start_at(log.partition, 40)
        self.refused(log, "not kept", loss_id=2)

    def test_twice(self) -> None:
        log = filled(MemoryDisk(directories=["/data"]))
        log.truncate_to(4)
        put_back(log.partition, 1)
        self.refused(log, "restored")


def test_a_crash_while_undoing() -> None:
    """Whatever was put back stays, and the same call does the rest, from any image."""
    base = MemoryDisk(directories=["/data"])
    log = filled(base)
    whole = b"".join(bytes(each.buffer) for each in log.read_batches())
    log.truncate_to(5)
    log.close()
    images: list[MemoryDisk] = []
    for seed in range(3):
        random = Random(seed)
        disk = base.copy()

        def draw(_: object, disk: MemoryDisk = disk, random: Random = random) -> None:
            images.extend(disk.image(random, profile) for profile in Profile)

        undoing = opened(RecordingDisk(disk, before=draw))
        put_back(undoing.partition, 1)
    assert len(images) > 100
    for number, image in enumerate(images):
        again = opened(image)
        assert again.log_start_offset == 0
        kept = b"".join(bytes(each.buffer) for each in again.read_batches())
        assert whole.startswith(kept), f"image {number}"
        if again.losses()[0].standing is not Standing.RESTORED:
            put_back(again.partition, 1)
        assert b"".join(bytes(each.buffer) for each in again.read_batches()) == whole, f"image {number}"
        assert again.losses()[0].standing is Standing.RESTORED


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_call_of_a_cut_and_its_undo_fails_once(number: int) -> None:
    """Whichever it is: what was durable is served or kept, and the undo can be called again."""
    calls = 0
    for at in range(1, 400):
        memory = MemoryDisk(directories=["/data"])
        disk = FaultyDisk(memory)
        log = filled(disk)
        whole = [bytes(each.buffer) for each in log.read_batches()]
        disk.inject(Fault(at=at, errno=number))
        try:
            log.truncate_to(5)
            put_back(log.partition, 1)
        except (DiskFull, LogDirOffline, OSError):
            pass
        if not disk.fired:
            break
        calls = at
        again = opened(memory.durable_image())
        for loss in again.losses():
            if loss.standing is not Standing.RESTORED:
                put_back(again.partition, loss.id)
        found = [bytes(each.buffer) for each in again.read_batches()]
        assert found == whole, f"call {at}: {disk.fired}"
    assert calls > 50


class TestCopyOut:
    def test_into_a_log_of_its_own(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        lost = [bytes(each.buffer) for each in log.read_batches(6)]
        log.truncate_to(6)
        append_as_follower(log.partition, batch(6, (1, 2), epoch=5), leader_epoch=5)
        found = opened(disk, "/data/found-0")
        copied = copy_out(log.partition.quarantine, 1, found.partition)
        assert (copied.records, copied.left_out_bytes) == (10, 0)
        assert [bytes(each.buffer) for each in found.read_batches()] == lost
        assert (found.log_start_offset, found.partition.recovery_point) == (6, 16)
        assert log.losses()[0].standing is Standing.QUARANTINED

    def test_only_what_is_sound(self) -> None:
        broken = bytearray(BATCH_3)
        broken[-1] ^= 1
        points = {"recovery-point-offset-checkpoint": b"0\n1\norders 0 0\n"}
        disk = disk_with({log_file(0): BATCH_0 + bytes(broken) + BATCH_5} | points)
        log = opened(disk)
        found = opened(disk, "/data/found-0")
        copied = copy_out(log.partition.quarantine, 1, found.partition)
        assert (copied.records, copied.left_out_bytes) == (2, len(BATCH_3))
        assert [bytes(each.buffer) for each in found.read_batches()] == [BATCH_5]

    def test_not_into_a_log_that_has_something(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        log.truncate_to(6)
        with pytest.raises(CannotUndo, match="not empty"):
            copy_out(log.partition.quarantine, 1, log.partition)
