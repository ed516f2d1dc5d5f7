"""Reading files that somebody else is writing: every call of the reader may find them changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore import Log
from logstore.cli.inspection import FileRole, Kind, LogFile, role_of
from logstore.cli.verification import verify_files
from logstore.disk.files import Disk
from logstore.testing.disks import MemoryDisk
from tests.cli.conftest import FIRST, SECOND, SEGMENT_0, THIRD
from tests.logstore.busy import SMALL, Appender, BusyDisk


def live_files(disk: Disk, directory: str) -> list[tuple[str, FileRole]]:
    return [(entry.name, role) for entry in disk.scan(directory) if (role := role_of(entry.name))]


@pytest.mark.parametrize("flush_every", [1, 3, 1000])
def test_a_log_that_grows_and_rolls_is_never_called_damaged(tmp_path: Path, flush_every: int) -> None:
    """Derived files are read before the log they point into, so they cannot look ahead of it."""
    with Log.open(tmp_path / "busy-0", SMALL) as log:
        append = Appender(log, 200, flush_every)
        for _ in range(20):
            append()
        disk = BusyDisk(append)
        while append.appended < append.limit:
            reports = list(
                verify_files(disk, log.partition.directory, live_files(disk, log.partition.directory))
            )
            assert [problem for report in reports for problem in report.problems if problem.is_damage] == []
            assert sum(report.numbers.get("records", 0) for report in reports) > 0


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
    assert (log.tail is None) == (log.valid_end == len(image))
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
