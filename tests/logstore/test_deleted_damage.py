"""Damage in bytes whose records were deleted: it costs nothing, and no replica is needed to go on."""

from __future__ import annotations

import pytest

from logstore.checkpoint.entry_files import (
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.config import LogConfig
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog
from logstore.log.log import Log
from logstore.segment.segment import LOG_SUFFIX, file_name

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=60, segment_index_bytes=240)
LARGE = LogConfig(segment_bytes=4000, index_interval_bytes=60, segment_index_bytes=240)


def opened(disk: MemoryDisk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: 1000)


def filled(log_start: int = 6) -> tuple[MemoryDisk, list[int], int]:
    """A log that was killed: its disk, its segments' base offsets, the bytes of a batch; each holds four."""
    disk = MemoryDisk(directories=["/data"])
    log = opened(disk)
    for number in range(15):
        log.append(b"%02d" % number * 30)
    log.flush()
    log.delete_records(log_start)
    bases = [segment.base_offset for segment in log.partition.segments.since(0)]
    size = log.partition.segments[0].size // (bases[1] - bases[0])
    log.partition.abandon()
    # As if nothing had been checkpointed since the first segment: an opening reads everything.
    disk.remove(f"{DIRECTORY}/{RECOVERY_POINT_CHECKPOINT}")
    assert read_offset_checkpoint(disk, DIRECTORY, RECOVERY_POINT_CHECKPOINT) == {}
    return disk, bases, size


def flip(disk: MemoryDisk, base_offset: int, position: int) -> None:
    file = disk.open(f"{DIRECTORY}/{file_name(base_offset, LOG_SUFFIX)}", write=True)
    file.pwrite(bytes((file.pread(1, position)[0] ^ 1,)), position)
    file.close()


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.read()]


def unindexed(disk: MemoryDisk, base_offset: int) -> None:
    """An opening reads a sealed segment without its index."""
    disk.remove(f"{DIRECTORY}/{file_name(base_offset, '.index')}")


def test_of_a_segment_that_holds_the_log_start_they_are_left_out() -> None:
    disk, bases, size = filled()
    flip(disk, bases[1], size + 70)
    unindexed(disk, bases[1])
    with opened(disk) as log:
        assert (log.log_start_offset, offsets(log)) == (6, list(range(6, 15)))
        (loss,) = log.losses()
        assert (loss.who, loss.first_offset, loss.last_offset, loss.size) == ("heal", 5, 5, size)
        assert "below the log start 6" in loss.why
        assert log.scrub().damages == ()
        log.append(b"more")
    with opened(disk) as log:
        assert offsets(log) == list(range(6, 16))
        assert len(log.losses()) == 1


def test_of_several_bad_batches_one_of_another_epoch() -> None:
    """Its checksum is right, and its place is wrong: it goes with the others."""
    disk, bases, size = filled(log_start=7)
    flip(disk, bases[1], 70)
    flip(disk, bases[1], size + 15)
    unindexed(disk, bases[1])
    with opened(disk) as log:
        assert offsets(log) == list(range(7, 15))
        assert [(loss.first_offset, loss.last_offset) for loss in log.losses()] == [(4, 6)]


def test_a_segment_below_the_log_start_goes() -> None:
    disk, bases, _ = filled()
    flip(disk, bases[0], 70)
    unindexed(disk, bases[0])
    with opened(disk) as log:
        assert offsets(log) == list(range(6, 15))
        assert log.partition.segments.first.base_offset == bases[1]
        assert log.losses() == []


@pytest.mark.parametrize("slot", [2, 3])
def test_a_record_that_counts_is_still_damage(slot: int) -> None:
    """Of the batch that holds the log start, and of those behind it, records are served."""
    disk, bases, size = filled()
    flip(disk, bases[1], slot * size + 70)
    unindexed(disk, bases[1])
    before = dict(disk.files())
    with pytest.raises(DamagedLog):
        opened(disk)
    logs = {path: data for path, data in disk.files().items() if path.endswith(LOG_SUFFIX)}
    assert logs == {path: data for path, data in before.items() if path.endswith(LOG_SUFFIX)}


def test_an_open_log_leaves_them_out_when_it_is_scrubbed() -> None:
    """No replica is needed for that; `maintain` removes segments below the log start."""
    disk = MemoryDisk(directories=["/data"])
    with opened(disk) as log:
        for number in range(15):
            log.append(b"%02d" % number * 30)
        log.flush()
        log.delete_records(6)
        bases = [segment.base_offset for segment in log.partition.segments.since(0)]
        size = log.partition.segments[0].size // bases[1]
        flip(disk, bases[0], 70)
        flip(disk, bases[1], size + 70)
        done = log.scrub()
        assert done.damages == ()
        (left_out,) = done.rebuilt
        assert (left_out.offset, left_out.file) == (5, file_name(bases[1], LOG_SUFFIX))
        assert "were deleted" in left_out.text
        assert log.scrub().rebuilt == ()
        assert offsets(log) == list(range(6, 15))
        flip(disk, bases[1], 2 * size + 70)
        assert [each.offset for each in log.scrub().damages] == [bases[1] + 3], "that one counts"


def of_ten(recovery_point: int, *, log_start: int) -> MemoryDisk:
    """A disk with a segment of ten batches, which lost its power."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LARGE, disk=disk, clock=lambda: 1000)
    for number in range(10):
        log.append(b"%02d" % number * 30)
    log.flush()
    log.delete_records(log_start)
    log.partition.abandon()
    write_offset_checkpoint(
        disk, DIRECTORY, RECOVERY_POINT_CHECKPOINT, {TopicPartition("orders", 0): recovery_point}
    )
    return disk


def size_of_one(disk: MemoryDisk) -> int:
    return len(disk.files()[f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}"]) // 10


def leaping_over(recovery_point: int, *, log_start: int) -> MemoryDisk:
    """The same disk without the batches of the offsets 3 to 5."""
    disk = of_ten(recovery_point, log_start=log_start)
    size = size_of_one(disk)
    file = disk.open(f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}", write=True)
    behind = file.pread(4 * size, 6 * size)
    file.truncate(3 * size)
    file.pwrite(behind, 3 * size)
    file.close()
    return disk


def test_what_was_left_out_around_the_recovery_point_is_no_hole() -> None:
    """No batch ends at the recovery point of before: its records were deleted, and rotted."""
    disk = leaping_over(4, log_start=7)
    with Log.open(DIRECTORY, LARGE, disk=disk, clock=lambda: 1000) as log:
        assert offsets(log) == [7, 8, 9]


def test_records_that_count_and_are_gone_at_the_recovery_point_are_a_hole() -> None:
    disk = leaping_over(4, log_start=2)
    with pytest.raises(DamagedLog, match="begins past offsets that were durable"):
        Log.open(DIRECTORY, LARGE, disk=disk, clock=lambda: 1000)


@pytest.mark.parametrize("recovery_point", [1, 4, 7])
@pytest.mark.parametrize("log_start", [0, 7])
def test_an_offset_that_rotted_below_the_recovery_point_takes_no_record_along(
    recovery_point: int, log_start: int
) -> None:
    """No checksum covers it. A batch that seems to lie past a gap made what follows it look like the torn end
    of a write (seed 618919)."""
    written = of_ten(recovery_point, log_start=log_start)
    size = size_of_one(written)
    for offset in range(recovery_point):
        for bit in (0, 1, 2, 3, 4, 11, 31, 32, 62):
            disk, seeming = written.copy(), offset ^ 1 << bit
            file = disk.open(f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}", write=True)
            file.pwrite(seeming.to_bytes(8, "big"), offset * size)
            file.close()
            try:
                with Log.open(DIRECTORY, LARGE, disk=disk, clock=lambda: 1000) as log:
                    assert (offsets(log), log.log_end_offset) == ([7, 8, 9], 10), (offset, bit)
                    assert log_start == 7
            except DamagedLog:
                assert log_start == 0 or seeming == 7, "a batch that may hold the log start is not left out"
                assert size_of_one(disk) == size
