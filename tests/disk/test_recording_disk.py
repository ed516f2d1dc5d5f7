"""The list of operations is what happened, in order, under the names that the files have now."""

from __future__ import annotations

from random import Random

import pytest

from logstore.disk.files import publish, read_small_file
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, Operation, RecordingDisk


def test_every_change_is_recorded_with_its_facts() -> None:
    disk = RecordingDisk(MemoryDisk())
    disk.make_dir("/d")
    file = disk.open("/d/a", create=True)
    file.pwrite(bytearray(b"content"), 3)
    file.truncate(5)
    file.sync(data_only=True)
    disk.rename("/d/a", "/d/b")
    file.pwrite(b"x", 0)
    disk.rename("/d", "/e")
    file.sync()
    file.close()
    disk.remove("/e/b")
    disk.sync_dir("/e")
    disk.lock("/e").release()
    assert disk.operations == [
        Operation("make_dir", "/d"),
        Operation("create", "/d/a"),
        Operation("pwrite", "/d/a", 3, 7, b"content"),
        Operation("truncate", "/d/a", length=5),
        Operation("sync", "/d/a"),
        Operation("rename", "/d/a", target="/d/b"),
        Operation("pwrite", "/d/b", 0, 1, b"x"),
        Operation("rename", "/d", target="/e"),
        Operation("sync", "/e/b"),
        Operation("remove", "/e/b"),
        Operation("sync_dir", "/e"),
        Operation("lock", "/e"),
    ]


def test_reads_are_recorded_on_request() -> None:
    """For tests that something is *not* read: a clean open must not scan its segments."""
    quiet = RecordingDisk(MemoryDisk({"/d/a": b"content"}))
    loud = RecordingDisk(MemoryDisk({"/d/a": b"content"}), reads=True)
    for disk in (quiet, loud):
        assert read_small_file(disk, "/d/a") == b"content"
        disk.scan("/d")
        disk.room("/d")
    assert quiet.operations == []
    assert [operation.name for operation in loud.operations] == [
        "open", "size", "pread", "close", "scan", "room",
    ]  # fmt: skip
    assert loud.operations[2] == Operation("pread", "/d/a", 0, 7)


def test_before_is_called_ahead_of_each_operation() -> None:
    """One run gives the images of a power cut at every point of it."""
    memory = MemoryDisk(directories=["/d"])
    seen: list[tuple[str, dict[str, bytes]]] = []
    disk = RecordingDisk(memory, before=lambda operation: seen.append((operation.name, memory.files())))
    publish(disk, "/d", "small", b"content")
    assert seen == [
        ("create", {}),
        ("truncate", {"/d/small.tmp": b""}),
        ("pwrite", {"/d/small.tmp": b""}),
        ("sync", {"/d/small.tmp": b"content"}),
        ("rename", {"/d/small.tmp": b"content"}),
        ("sync_dir", {"/d/small": b"content"}),
    ]


def test_before_can_stop_the_operation() -> None:
    """A power cut in the middle of a call: nothing of the operation happens, the caller never returns."""

    class Stop(BaseException):
        pass

    memory = MemoryDisk({"/d/small": b"old"})

    def stop(operation: Operation) -> None:
        if operation.name == "rename":
            raise Stop

    with pytest.raises(Stop):
        publish(RecordingDisk(memory, before=stop), "/d", "small", b"new")
    assert memory.power_cut(Random(1)).files()["/d/small"] == b"old"


def test_failed_calls_are_recorded() -> None:
    disk = RecordingDisk(FaultyDisk(MemoryDisk(), [Fault(operation="make_dir")]))
    with pytest.raises(OSError):
        disk.make_dir("/d")
    assert disk.operations == [Operation("make_dir", "/d")]
