"""Reading files that somebody else is writing: every call of the reader may find them changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.disk import Buffer, DirectoryEntry, Disk, File, Lock, OsDisk
from checkpoint.disks import MemoryDisk
from logstore import Log, LogConfig
from tests.tools.conftest import FIRST, SECOND, SEGMENT_0, THIRD
from tools.inspection import FileRole, Kind, LogFile, PartitionReader, Tail, role_of
from tools.verification import verify_files


class BusyDisk:
    """A disk whose owner does one more thing before the calls of a reader, which may only read."""

    def __init__(self, owner: Callable[[], None], every: int = 3) -> None:
        self._inner = OsDisk()
        self._owner = owner
        self._calls = count(1)
        self._every = every

    def act(self) -> None:
        if next(self._calls) % self._every == 0:
            self._owner()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> BusyFile:
        if create or exclusive or write:
            raise AssertionError(f"a reader opened {path} for writing")
        self.act()
        return BusyFile(self._inner.open(path), self)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        self.act()
        return self._inner.scan(directory)

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"a reader renamed {source}")

    def remove(self, path: str) -> None:
        raise AssertionError(f"a reader removed {path}")

    def make_dir(self, path: str) -> None:
        raise AssertionError(f"a reader made {path}")

    def remove_dir(self, path: str) -> None:
        raise AssertionError(f"a reader removed {path}")

    def sync_dir(self, directory: str) -> None:
        raise AssertionError(f"a reader synced {directory}")

    def lock(self, directory: str) -> Lock:
        raise AssertionError(f"a reader locked {directory}")

    def free(self, directory: str) -> int:
        return self._inner.free(directory)


class BusyFile:
    """Lets its owner act before each read; refuses all else."""

    def __init__(self, inner: File, disk: BusyDisk) -> None:
        self._inner = inner
        self._disk = disk

    def pread(self, size: int, at: int) -> bytes:
        self._disk.act()
        return self._inner.pread(size, at)

    def size(self) -> int:
        self._disk.act()
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()

    def pwrite(self, data: Buffer, at: int) -> None:
        raise AssertionError("a reader wrote")

    def truncate(self, size: int) -> None:
        raise AssertionError("a reader cut a file")

    def map(self, size: int) -> memoryview:
        raise AssertionError("a reader mapped a file that may shrink")

    def sync(self, *, data_only: bool = False) -> None:
        raise AssertionError("a reader synced")


def live_files(disk: Disk, directory: str) -> list[tuple[str, FileRole]]:
    return [(entry.name, role) for entry in disk.scan(directory) if (role := role_of(entry.name))]


SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0)


class Appender:
    """Appends the records 0, 1, 2… one by one, `limit` of them."""

    def __init__(self, log: Log, limit: int, flush_every: int = 7) -> None:
        self.log, self.limit, self.flush_every = log, limit, flush_every
        self.appended = 0

    def __call__(self) -> None:
        if self.appended < self.limit:
            self.log.append(b"%d" % self.appended, timestamp_ms=1000 + self.appended)
            self.appended += 1
            if self.appended % self.flush_every == 0:
                self.log.flush()


@pytest.mark.parametrize("flush_every", [1, 3, 1000])
def test_a_log_that_grows_and_rolls_is_never_called_damaged(tmp_path: Path, flush_every: int) -> None:
    """Derived files are read before the log they point into, so they cannot look ahead of it."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        append = Appender(log, 200, flush_every)
        for _ in range(20):
            append()
        disk = BusyDisk(append)
        while append.appended < append.limit:
            reports = list(verify_files(disk, log.directory, live_files(disk, log.directory)))
            assert [problem for report in reports for problem in report.problems if problem.is_damage] == []
            assert sum(report.numbers.get("records", 0) for report in reports) > 0


def test_a_follower_of_a_growing_log_sees_each_record_once(tmp_path: Path) -> None:
    """However reads and appends interleave: in order, nothing twice, nothing left out."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        append = Appender(log, 200)
        reader = PartitionReader(BusyDisk(append), log.directory)
        seen: list[bytes | None] = []
        while len(seen) < append.limit:
            seen += [record.value for batch in reader.batches() for record in batch.records()]
        assert seen == [b"%d" % number for number in range(append.limit)]


def test_a_log_that_is_cut_and_deleted_meanwhile_ends_the_reading_quietly(tmp_path: Path) -> None:
    """Truncation and deletion under a reader: what it has seen was true, and it does not fail."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        log.append([b"%d" % number for number in range(5)])
        for number in range(40):
            log.append(b"%d" % number)
        ends = iter(range(40, 0, -3))

        def cut() -> None:
            log.truncate_to(next(ends, 0))

        reader = PartitionReader(BusyDisk(cut, every=5), log.directory)
        offsets = [record.offset for batch in reader.batches() for record in batch.records()]
        assert offsets == list(range(len(offsets)))
        assert log.log_end_offset < 40


@given(cut=st.integers(0, len(FIRST + SECOND + THIRD)), tail=st.binary(max_size=30))
@settings(derandomize=True, max_examples=300)
def test_any_cut_gives_the_longest_run_of_whole_batches(cut: int, tail: bytes) -> None:
    """Whatever the file ends with, what is given out is exactly what is whole."""
    image = (FIRST + SECOND + THIRD)[:cut] + bytes(len(tail))
    disk = MemoryDisk()
    disk.make_dir("d")
    file = disk.open(f"d/{SEGMENT_0}.log", create=True, write=True)
    file.pwrite(image, 0)
    log = LogFile(file, 0)
    found = [batch.data for batch in log.batches() if batch.fault is None]
    ends = [0, len(FIRST), len(FIRST + SECOND), len(FIRST + SECOND + THIRD)]
    # Zeros behind the cut may stand for the zeros that were cut off.
    whole = max(end for end in ends if image[:end] == (FIRST + SECOND + THIRD)[:end] and end <= len(image))
    assert b"".join(found) == image[:whole]
    assert log.valid_end >= whole
    assert (log.tail is Tail.END) == (log.valid_end == len(image))
    file.close()


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (f"{SEGMENT_0}.log", FileRole(Kind.LOG, 0)),
        (f"{42:020d}.timeindex.swap", FileRole(Kind.TIME_INDEX, 42, "swap")),
        (f"{42:020d}.snapshot.deleted", FileRole(Kind.PRODUCER_SNAPSHOT, 42, "deleted")),
        ("cleaner-offset-checkpoint", FileRole(Kind.OFFSET_CHECKPOINT)),
        (".kafka_cleanshutdown", FileRole(Kind.CLEAN_SHUTDOWN)),
        ("leader-epoch-checkpoint.tmp", None),
        (".lock", None),
        (f"{SEGMENT_0}.log.gz", None),
        ("x0.log", None),
        ("٣.log", None),
    ],
)
def test_roles(name: str, role: FileRole | None) -> None:
    """By name alone, and only by names that a log directory has."""
    assert role_of(name) == role
