"""The state-change log on disk: whole lines, whatever happened to the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.broker import state_change_file
from logstore.broker.limits import Address
from logstore.broker.process import ServeOptions, state_change_sink
from logstore.broker.state_change_file import OFF, StateChangeFile, default_path
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


@pytest.mark.parametrize("written", [True, False], ids=["a short write", "no write"])
def test_lines_that_the_disk_refuses_are_counted(caplog: pytest.LogCaptureFixture, written: bool) -> None:
    """The log goes on with whole lines once there is room again: a full disk is when it is wanted."""
    disk = FaultyDisk(MemoryDisk())
    log = StateChangeFile(PATH, disk=disk)
    log(CHANGE)
    size = disk.open(PATH).size()
    for _ in range(2):
        disk.inject(Fault(operation="pwrite"))
        log(CHANGE)
        if written:
            disk.inner.open(PATH, write=True).pwrite(b"x" * (size + 50), size)
    log(CHANGE)
    log(CHANGE)
    assert [parse_line(line) for line in lines(disk)] == [CHANGE] * 3
    assert [each.message.partition(": ")[2].partition(":")[0] for each in caplog.records] == [
        "decisions are not written",
        "written again; 2 lines are missing",
    ]


def test_a_file_that_cannot_be_opened_is_tried_again() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = StateChangeFile(PATH, disk=disk)
    disk.inject(Fault(operation="open"))
    log(CHANGE)
    log(CHANGE)
    assert len(lines(disk)) == 1


@pytest.mark.parametrize(
    ("asked", "files"),
    [(None, ["data.state-changes"]), ("changes.log", ["changes.log"]), (OFF, [])],
    ids=["by default beside the first log dir", "where asked", "off"],
)
def test_where_a_broker_keeps_it(asked: str | None, files: list[str]) -> None:
    disk = MemoryDisk()
    options = ServeOptions(
        node_id=1, listen=Address("127.0.0.1", 0), log_dirs=("data/", "more"), state_change_log=asked
    )
    sink = state_change_sink(options, disk=disk)
    assert [each.name for each in disk.scan("")] == (files if asked else [])
    sink(CHANGE)
    assert [each.name for each in disk.scan("") if not each.is_directory] == files


def test_the_file_is_never_inside_the_log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "data")
    beside = str(tmp_path / "data.state-changes")
    assert [default_path((each,)) for each in (".", "./", "inner/..", "../data/.")] == [beside] * 4
    assert default_path(("data/1/", "data/2")) == "data/1.state-changes"


def test_a_place_that_cannot_be_is_refused_at_the_start() -> None:
    disk = FaultyDisk(MemoryDisk())
    disk.inject(Fault(operation="open"))
    options = ServeOptions(
        node_id=1, listen=Address("127.0.0.1", 0), log_dirs=("data",), state_change_log="changes.log"
    )
    with pytest.raises(OSError, match=r"changes\.log \(state\.change\.log\): Input/output error"):
        state_change_sink(options, disk=disk)


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
