"""Which reads would wait for a device: whoever runs an event loop has them done elsewhere first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.memory import MemoryFile
from logstore.errors import DamagedLog
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.log import read
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.read import FetchedBytes, is_cold, read_checked
from logstore.segment.segments import walk_from
from logstore.testing.disks import MemoryDisk

DIRECTORY = "t-0"


def test_what_was_dropped_from_the_page_cache_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    disk = OsDisk()
    file = disk.open(path, create=True)
    file.pwrite(bytes(1 << 20), 0)
    file.sync()
    if file.is_cached(1 << 20, 0) is None:
        pytest.skip("this platform or file system cannot tell")
    assert file.is_cached(1 << 20, 0)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if file.is_cached(1 << 20, 0):
        pytest.skip("a file system in memory drops nothing")
    file.pread(1 << 20, 0)
    assert file.is_cached(1 << 20, 0)


class _Telling(MemoryDisk):
    """Its files say of their cache what the test says."""

    answer: bool | None = True


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> _Telling:
    disk = _Telling()

    def is_cached(self: MemoryFile, size: int, at: int) -> bool | None:
        assert size > 0
        assert at >= 0
        return disk.answer

    monkeypatch.setattr(MemoryFile, "is_cached", is_cached)
    return disk


def test_the_end_of_a_log_is_never_cold_and_the_rest_as_the_files_say(disk: _Telling) -> None:
    with Log.open(DIRECTORY, disk=disk, config=LogConfig(segment_bytes=400)) as log:
        for _ in range(20):
            log.append(b"x" * 100)
        end = log.log_end_offset
        for answer, old, active in ((True, False, False), (False, True, True), (None, True, False)):
            disk.answer = answer
            assert is_cold(log.partition, 0, 1000) is old
            assert is_cold(log.partition, end - 1, 1000) is active, (
                "where nobody can tell, the active segment is warm"
            )
            assert not is_cold(log.partition, end, 1000), "there is nothing to read"
            assert not is_cold(log.partition, end + 1, 1000)
    assert not is_cold(log.partition, 0, 1000), "a read would raise"


@pytest.mark.parametrize("value_bytes", [60, 6000], ids=["small batches", "large ones"])
def test_bytes_that_change_in_the_page_cache_are_not_served(disk: _Telling, value_bytes: int) -> None:
    """They were appended and read before, left the page cache, and another reader brought others there."""
    config = LogConfig(segment_bytes=40 * value_bytes)
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 0)
    for number in range(60):
        log.append(b"%d" % number * (value_bytes // 2))
    disk.answer = True
    for segment in (log.partition.segments.first, log.partition.segments.active):
        start = segment.base_offset
        for _ in range(2):
            assert read_checked(log.partition, start).records
        file = disk.open(segment.path(".log"), write=True)
        file.pwrite(bytes([file.pread(1, 80)[0] ^ 1]), 80)
        with pytest.raises(DamagedLog, match="checksum"):
            read_checked(log.partition, start)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_one_by_one_as_by_a_table(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bits of any byte changed: the same is refused, and named the same."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/t-0", LogConfig(cleanup_policy=policy), disk=disk, clock=lambda: 0)
    for number in range(12):
        data = encode_batch([Record(0, 1, b"k", b"%02d" % number)])
        append_as_leader(log.partition, data, leader_epoch=number // 4, now_ms=0)
    file = disk.open(log.partition.segments.active.path(".log"), write=True)
    size = file.size() // 12

    def outcome(*, by_table: bool) -> FetchedBytes | str:
        monkeypatch.setattr(read, "_MANY_BYTES", 0 if by_table else 1 << 30)
        try:
            return read_checked(log.partition, 4)
        except DamagedLog as error:
            return str(error)

    refused = 0
    for at in range(4 * size, 7 * size):
        for bit in (0, 7):
            before = file.pread(1, at)
            file.pwrite(bytes([before[0] ^ 1 << bit]), at)
            found = outcome(by_table=False)
            assert found == outcome(by_table=True), (at, bit)
            refused += isinstance(found, str) or len(found.records) < 8 * size
            file.pwrite(before, at)
    assert refused > 5 * size
    assert outcome(by_table=False) == outcome(by_table=True)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("is_continued", [False, True])
def test_a_batch_that_begins_below_the_end_of_the_one_before(policy: str, is_continued: bool) -> None:
    """Its base offset has rotted from 1 to 0, and no checksum covers it: its records would be others."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/t-0", LogConfig(cleanup_policy=policy), disk=disk, clock=lambda: 0)
    for rows in (1, 2):
        records = [Record(each, 1, b"k", b"%d of %d" % (each, rows)) for each in range(rows)]
        append_as_leader(log.partition, encode_batch(records), leader_epoch=0, now_ms=0)
    if is_continued:
        assert read_checked(log.partition, 0, 1).next_offset == 1
    file = disk.open(log.partition.segments.active.path(".log"), write=True)
    (at,) = (each.position for each in walk_from(log.partition.segments.active, 1) if each.base_offset == 1)
    file.pwrite(b"\0", at + 7)
    with pytest.raises(DamagedLog, match="below 1"):
        read_checked(log.partition, 1, 200)


@pytest.mark.parametrize("max_bytes", [1 << 20, 300])
def test_any_bit_of_the_last_batch_of_a_read(max_bytes: int) -> None:
    """What comes before it is served; a read from it on says that it is damaged."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/t-0", LogConfig(), disk=disk, clock=lambda: 0)
    for number in range(3 if max_bytes > 300 else 9):
        log.append(b"%02d" % number, key=b"k")
    whole = read_checked(log.partition, 0, max_bytes)
    last = max(batch.base_offset for batch in walk(whole.records))
    size = len(whole.records) // (last + 1)
    file = disk.open(log.partition.segments.active.path(".log"), write=True)
    for at in range(last * size, (last + 1) * size):
        for bit in range(8):
            before = file.pread(1, at)
            file.pwrite(bytes([before[0] ^ 1 << bit]), at)
            found = read_checked(log.partition, 0, max_bytes)
            assert found.records == whole.records[: last * size], (at, bit)
            with pytest.raises(DamagedLog):
                read_checked(log.partition, found.next_offset, max_bytes)
            file.pwrite(before, at)
    assert read_checked(log.partition, 0, max_bytes) == whole
