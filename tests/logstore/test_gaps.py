"""Gaps that compaction left, in a log whose topic is not compacted any more: no damage explains them."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.errors import DamagedLog
from logstore.format.batch import walk
from logstore.log.append_fetched import append_as_follower
from logstore.log.heal import Mended
from logstore.log.log import Log
from logstore.log.read import read_checked
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, batch, content_of, log_file
from tests.logstore.test_heal import run

CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
BASES = (0, 1, 5, 6, 20, 21, 22)
"""The log after a leader's compaction: gaps before offsets 5 and 20, and before the log end."""


def copied(disk: MemoryDisk, bases: tuple[int, ...] = BASES) -> Log:
    """A follower's log: one segment, whose leader had compacted it before."""
    log = Log.open(DIRECTORY, disk=disk, config=CONFIG)
    for base in bases:
        append_as_follower(log.partition, batch(base, (1,)), leader_epoch=0)
    return log


def served(log: Log, max_bytes: int = 1 << 20) -> list[int]:
    """The base offsets of the batches that a broker serves, from the log start to the log end."""
    found: list[int] = []
    offset = 0
    while offset < log.log_end_offset:
        fetched = read_checked(log.partition, offset, max_bytes)
        found += (batch.base_offset for batch in walk(fetched.records))
        offset = fetched.next_offset
    return found


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_are_read(*, is_reopened: bool, is_sealed: bool, max_bytes: int) -> None:
    disk = MemoryDisk()
    log = copied(disk)
    if is_sealed:
        log.partition.roll()
    if is_reopened:
        log.close()
        log = Log.open(DIRECTORY, disk=disk, config=CONFIG)
    assert served(log, max_bytes) == [*BASES]
    assert log.scrub().damages == ()


def changed(disk: MemoryDisk, log: Log, number: int, base_offset: int) -> None:
    """Give batch `number` of the first segment another base offset, which no checksum covers."""
    size = len(batch(0, (1,)))
    file = disk.open(f"{DIRECTORY}/{log_file(log.log_start_offset)}", write=True)
    file.pwrite(base_offset.to_bytes(8), number * size)


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("bases", [(0, 1, 2, 3, 4, 5, 6), BASES])
def test_a_batch_with_another_offset_is_still_none(bases: tuple[int, ...], *, is_reopened: bool) -> None:
    disk = MemoryDisk()
    log = copied(disk, bases)
    if is_reopened:
        log.close()
        log = Log.open(DIRECTORY, disk=disk, config=CONFIG)
    changed(disk, log, 4, bases[4] + 1)
    with pytest.raises(DamagedLog, match="hole"):
        served(log)
    found = read_checked(log.partition, 0, 1 << 20)
    assert max(batch.base_offset for batch in walk(found.records)) < bases[4]


def test_are_no_reason_to_refuse_what_another_replica_sends() -> None:
    disk = MemoryDisk()
    log, source = copied(disk), copied(MemoryDisk())
    before = content_of(disk, log_file(0))
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    at = 2 * len(batch(0, (1,))) + 70
    file.pwrite(bytes([before[at] ^ 1]), at)
    assert run(log, source, 0)[0] == Mended(True, 1, 1)
    assert content_of(disk, log_file(0)) == before
    assert served(log) == [*BASES]
