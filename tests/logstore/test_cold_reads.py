"""Which reads would wait for a device: whoever runs an event loop has them done elsewhere first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.memory import MemoryFile
from logstore.log.log import Log
from logstore.log.read import is_cold
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
