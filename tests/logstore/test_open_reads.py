"""Opening after a crash reads what lies above the recovery point, once, and nothing of what lies below.

Bytes are counted at the disk, so the answer does not depend on the machine.
"""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.log.log import Log
from logstore.segment.segment import file_name
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=500)
T0 = 1_700_000_000_000
HEADER_BYTES = 61


def crashed(*, segments: int, unflushed: int) -> tuple[MemoryDisk, int]:
    """The disk of a log of so many segments, and its recovery point; values above it were not synced."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: T0)
    while len(log.partition.segments) < segments:
        log.append([b"v" * 100] * 7)
    log.flush()
    log.partition.roll()
    recovery_point = log.partition.recovery_point
    for number in range(unflushed):
        log.append(b"u%d" % number)
    return disk.copy(), recovery_point


def bytes_read(disk: MemoryDisk) -> tuple[dict[str, int], Log]:
    """By file of the log, when it is opened."""
    read: dict[str, int] = {}

    def count(operation: Operation) -> None:
        if operation.name in ("pread", "map"):
            name = operation.path.rsplit("/", 1)[1]
            read[name] = read.get(name, 0) + operation.length

    counting = RecordingDisk(disk.copy(), before=count, reads=True)
    return read, Log.open(DIRECTORY, CONFIG, disk=counting, clock=lambda: T0)


@pytest.mark.parametrize("segments", [2, 40, 160])
def test_only_what_is_above_the_recovery_point_is_read(segments: int) -> None:
    disk, recovery_point = crashed(segments=segments, unflushed=20)
    read, log = bytes_read(disk)
    assert log.log_end_offset == recovery_point + 20
    logs = {name: size for name, size in read.items() if name.endswith(".log")}
    active = log.partition.segments[-1]
    assert active.base_offset == recovery_point
    # But for some headers, beside the entries of the epoch file.
    below = {name: size for name, size in logs.items() if name != file_name(recovery_point, ".log")}
    assert len(below) <= 2
    assert sum(below.values()) <= 4 * (500 + HEADER_BYTES), below
    # Once by the walk. The end is looked up, and the batches beside the entries of the epoch file, before the
    # walk and after it: from an index entry on each.
    look_ups = 6 * (500 + HEADER_BYTES)
    assert active.size <= logs[file_name(recovery_point, ".log")] <= active.size + look_ups


def test_how_much_is_read_does_not_grow_with_the_log() -> None:
    """All files together, indexes, snapshots and checkpoints too; of each segment only its seal is read."""
    totals = []
    for segments in (5, 40, 160):
        disk, _ = crashed(segments=segments, unflushed=20)
        read, _log = bytes_read(disk)
        seals = [size for name, size in read.items() if name.endswith(".seal")]
        assert max(seals, default=0) <= 64
        totals.append(sum(read.values()) - sum(seals))
    assert max(totals) - min(totals) <= 200, totals
