"""The state-change log on disk: whole lines, whatever happened to the last one."""

from __future__ import annotations

import pytest

from logstore.broker import state_change_file
from logstore.broker.state_change_file import StateChangeFile
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import Side, StateChange, parse_line
from logstore.testing.disks.faulty import Fault, FaultyDisk

CHANGE = StateChange(1_000, 1, Side.BROKER, 2, TopicPartition("t", 0), "becomes leader", 1, 3, 4)
PATH = "state-change.log"


def lines(disk: Disk) -> list[str]:
    file = disk.open(PATH)
    return file.pread(file.size(), 0).decode().splitlines()


def test_lines_are_appended_across_starts() -> None:
    disk = MemoryDisk()
    for _ in range(2):
        log = StateChangeFile(PATH, disk=disk)
        log(CHANGE)
        log(CHANGE)
        log.close()
    assert [parse_line(line) for line in lines(disk)] == [CHANGE] * 4


def test_a_torn_last_line_stays_alone() -> None:
    """The next start begins a new line, or a good one would be lost to the torn one."""
    disk = MemoryDisk()
    disk.open(PATH, create=True, write=True).pwrite(b"[1970-01-01 00:0", 0)
    StateChangeFile(PATH, disk=disk)(CHANGE)
    assert [parse_line(line) for line in lines(disk)] == [None, CHANGE]


def test_a_disk_that_fails_stops_the_log_and_nothing_else() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = StateChangeFile(PATH, disk=disk)
    log(CHANGE)
    disk.inject(Fault(operation="pwrite"))
    log(CHANGE)
    log(CHANGE)
    assert len(lines(disk)) == 1


def test_a_full_file_is_kept_until_the_next_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = StateChangeFile(PATH, disk=disk)
    log(CHANGE)
    monkeypatch.setattr(state_change_file, "MOST_BYTES", 3 * disk.open(PATH).size())
    for _ in range(10):
        log(CHANGE)
    assert [entry.name for entry in disk.scan("") if not entry.is_directory] == [PATH, f"{PATH}.1"]
    assert len(lines(disk)) == 2
    assert disk.open(f"{PATH}.1").size() == 3 * disk.open(PATH).size() // 2
    assert all(parse_line(line) == CHANGE for line in lines(disk))
