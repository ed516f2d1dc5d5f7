"""Descriptors that are held back, and a disk that gives them up when there are no others."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.disk import files
from logstore.disk.descriptors import MOST_HELD_BACK, DescriptorLimit, Spares, open_descriptors
from logstore.disk.files import OsDisk

AT_THE_LIMIT = """
import os, resource, sys
from logstore.disk.files import OsDisk, publish, read_small_file
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
disk, directory = OsDisk(), sys.argv[1]
publish(disk, directory, "before", b"1")
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError as error:
    assert error.errno == 24, error
for number in range(50):
    publish(disk, directory, "small", b"%d" % number)
    assert read_small_file(disk, f"{directory}/small") == b"%d" % number
    assert len(disk.scan(directory)) == 2
kept = []
try:
    while True:
        kept.append(disk.open(f"{directory}/{len(kept)}", create=True, write=True))
except OSError as error:
    assert error.errno == 24, error
for _ in range(50):
    disk.sync_dir(directory)
    assert len(disk.scan(directory)) == 2 + len(kept)
    try:
        disk.open(f"{directory}/small")
    except OSError as error:
        assert error.errno == 24, error
print(len(kept))
"""


def test_a_disk_at_the_limit_still_publishes_opens_a_few_and_then_syncs_directories(tmp_path: Path) -> None:
    """In a process of its own, since the limit is the process's."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_LIMIT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 8


def test_spares_go_one_by_one_and_only_for_want_of_a_descriptor() -> None:
    spares, calls = Spares(4), 0

    def short(until: int, code: int) -> int:
        nonlocal calls
        calls += 1
        if calls <= until:
            raise OSError(code, os.strerror(code))
        return calls

    before = open_descriptors()
    spares.refill()
    assert before is not None
    assert open_descriptors() == before + 4
    assert spares.run(lambda: short(3, errno.EMFILE), leave=1) == 4
    assert open_descriptors() == before + 1
    calls = 0
    with pytest.raises(OSError, match="No such"):
        spares.run(lambda: short(1, errno.ENOENT))
    assert (calls, open_descriptors()) == (1, before + 4)
    calls = 0
    with pytest.raises(OSError, match="Too many open files"):
        spares.run(lambda: short(99, errno.ENFILE), leave=1)
    assert (calls, open_descriptors()) == (5, before + 1)
    calls = 0
    with pytest.raises(OSError, match="Too many open files"):
        spares.run(lambda: short(99, errno.ENFILE), leave=0)
    assert (calls, open_descriptors()) == (6, before)


def test_connections_leave_a_quarter_to_files_and_at_most_a_thousand() -> None:
    assert DescriptorLimit(1024, 256).room_for_others == 768
    assert MOST_HELD_BACK == 1_000


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EAGAIN])
def test_an_fsync_without_memory_is_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Anywhere else such an error means that nothing was done; of a sync nobody knows what was written."""

    def sync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "_data_sync", sync)
    monkeypatch.setattr(files, "_sync", sync)
    file = OsDisk().open(str(tmp_path / "file"), create=True, write=True)
    for data_only in (False, True):
        with pytest.raises(OSError, match="not synced") as failed:
            file.sync(data_only=data_only)
        assert failed.value.errno == errno.EIO
    with pytest.raises(OSError, match="not synced"):
        OsDisk().sync_dir(str(tmp_path))
    file.close()


STANDARD_STREAMS_CLOSED = """
import os, sys
from logstore.disk.files import OsDisk
for descriptor in range(3):
    os.close(descriptor)
file = OsDisk().open(sys.argv[1], create=True, write=True)
file.pwrite(b"a batch", 0)
for descriptor in range(3):
    try:
        os.write(descriptor, b"Fatal Python error: " * 10_000)
    except OSError:
        pass
"""


def test_no_file_gets_the_number_of_a_standard_stream(tmp_path: Path) -> None:
    """A line for a closed stderr overwrote the log, or filled a spare pipe and then waited for ever."""
    path = tmp_path / "log"
    code = [sys.executable, "-c", STANDARD_STREAMS_CLOSED, str(path)]
    assert subprocess.run(code, timeout=20, check=False).returncode == 0
    assert path.read_bytes() == b"a batch"
