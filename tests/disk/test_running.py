"""In which boot a dir's owner ran: what tells a process that was killed from a machine that stopped."""

from __future__ import annotations

import sys

import pytest

from logstore.disk.files import boot_id
from logstore.disk.memory import MemoryDisk
from logstore.disk.running import RUNNING_FILE, has_run_on, remove_running, write_running


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(directories=["/a"])


def test_only_the_boot_that_is_named_counts(disk: MemoryDisk) -> None:
    assert not has_run_on(disk, "/a", "one")
    write_running(disk, "/a", "one")
    assert has_run_on(disk, "/a", "one")
    assert not has_run_on(disk, "/a", "two")
    write_running(disk, "/a", "2")
    assert has_run_on(disk, "/a", "2"), "a shorter one leaves nothing of the longer one before it"


def test_a_boot_that_cannot_be_told_is_never_the_same(disk: MemoryDisk) -> None:
    write_running(disk, "/a", "")
    assert not has_run_on(disk, "/a", "")


def test_it_is_taken_back(disk: MemoryDisk) -> None:
    write_running(disk, "/a", "one")
    remove_running(disk, "/a")
    remove_running(disk, "/a")
    assert not has_run_on(disk, "/a", "one")


@pytest.mark.parametrize("content", [b"", b'{"boot":"on', b"[]", b'{"boot":1}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_says_nothing(disk: MemoryDisk, content: bytes) -> None:
    file = disk.open(f"/a/{RUNNING_FILE}", create=True, write=True)
    file.pwrite(content, 0)
    file.close()
    assert not has_run_on(disk, "/a", "one")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_this_boot_has_a_name() -> None:
    assert boot_id() == boot_id() != ""
