"""In which boot a dir's owner ran: what tells a process that was killed from a machine that stopped."""

from __future__ import annotations

import sys

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.running import RUNNING_FILE, boot_id, has_run_on, remove_running, write_running


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(directories=["/a"])


def test_running_file_names_one_boot(disk: MemoryDisk) -> None:
    assert not has_run_on(disk, "/a", "one")
    write_running(disk, "/a", "one")
    assert has_run_on(disk, "/a", "one")
    assert not has_run_on(disk, "/a", "two")
    write_running(disk, "/a", "2")
    assert has_run_on(disk, "/a", "2"), "a shorter one leaves nothing of the longer one before it"


def test_unknown_boot_never_matches(disk: MemoryDisk) -> None:
    write_running(disk, "/a", "")
    assert not has_run_on(disk, "/a", "")


def test_running_file_is_removed(disk: MemoryDisk) -> None:
    write_running(disk, "/a", "one")
    remove_running(disk, "/a")
    remove_running(disk, "/a")
    assert not has_run_on(disk, "/a", "one")


@pytest.mark.parametrize("content", [b"", b'{"boot":"on', b"[]", b'{"boot":1}', b"\xff", b"[" * 100_000])
def test_unreadable_running_file_is_ignored(disk: MemoryDisk, content: bytes) -> None:
    file = disk.open(f"/a/{RUNNING_FILE}", create=True, write=True)
    file.pwrite(content, 0)
    file.close()
    assert not has_run_on(disk, "/a", "one")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_boot_id_is_constant_and_not_empty() -> None:
    assert boot_id() == boot_id() != ""
