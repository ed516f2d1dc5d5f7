"""A planned fault hits the call it was planned for, and no other."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from logstore.disk.files import File, publish, read_small_file
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk


def test_an_operation_that_does_not_exist() -> None:
    """It would match no call, and the test that plans it would pass without a fault."""
    with pytest.raises(
        ValueError, match=r"'fsync' is no operation of a disk or file; name one of .*sync, sync_dir"
    ):
        Fault(operation="fsync")


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (lambda: Fault(at=0), "at is 0; it must be at least 1"),
        (lambda: Fault(errno="EIO"), "errno is an int, not str"),  # type: ignore[arg-type]
        (lambda: Fault(short=-1), "short is -1"),
        (lambda: Fault(operation="sync", short=1), "short is for pwrite, not for sync"),
        (lambda: Fault(path="/d/file"), "path is a function, not str"),  # type: ignore[arg-type]
        (lambda: disk_with("sync"), "inject takes faults, such as .*, not 'sync'"),  # type: ignore[arg-type]
        (lambda: FaultyDisk("/d"), "disk is a Disk, such as .*, not '/d'"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: Callable[[], object], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        plan()


def opened(disk: FaultyDisk) -> File:
    return disk.open("/d/file", create=True)


def disk_with(*plan: Fault) -> FaultyDisk:
    return FaultyDisk(MemoryDisk({"/d/file": b"content"}), plan)


CALLS: dict[str, Callable[[FaultyDisk, File], object]] = {
    "open": lambda disk, file: disk.open("/d/file"),
    "rename": lambda disk, file: disk.rename("/d/file", "/d/other"),
    "remove": lambda disk, file: disk.remove("/d/file"),
    "scan": lambda disk, file: disk.scan("/d"),
    "make_dir": lambda disk, file: disk.make_dir("/e"),
    "remove_dir": lambda disk, file: disk.remove_dir("/empty"),
    "sync_dir": lambda disk, file: disk.sync_dir("/d"),
    "lock": lambda disk, file: disk.lock("/d"),
    "room": lambda disk, file: disk.room("/d"),
    "pread": lambda disk, file: file.pread(1, 0),
    "pwrite": lambda disk, file: file.pwrite(b"C", 0),
    "map": lambda disk, file: file.map(1),
    "truncate": lambda disk, file: file.truncate(0),
    "sync": lambda disk, file: file.sync(),
    "size": lambda disk, file: file.size(),
    "close": lambda disk, file: file.close(),
}


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_each_call_can_fail_with_no_effect(operation: str, number: int) -> None:
    memory = MemoryDisk({"/d/file": b"content"}, directories=["/empty"])
    disk = FaultyDisk(memory)
    file = opened(disk)
    before = memory.files(), memory.scan("/")
    disk.inject(Fault(operation=operation, errno=number))
    with pytest.raises(OSError) as raised:
        CALLS[operation](disk, file)
    expected = errno.EIO if (operation, number) == ("sync", errno.EMFILE) else number  # as the real disk
    assert raised.value.errno == expected
    assert (memory.files(), memory.scan("/")) == before
    assert [name for name, _ in disk.fired] == [operation]
    CALLS[operation](disk, file)


@pytest.mark.parametrize(
    "operation", ["open", "rename", "remove", "make_dir", "remove_dir", "pwrite", "truncate"]
)
def test_each_change_can_happen_and_report_failure(operation: str) -> None:
    """An answer lost on the way: the caller may not conclude that nothing was done."""
    changed = []
    for plan in ([], [Fault(operation=operation, at=2 if operation == "open" else 1, done=True)]):
        memory = MemoryDisk({"/d/file": b"content"}, directories=["/empty"])
        disk = FaultyDisk(memory, plan)
        file = opened(disk)
        if plan:
            with pytest.raises(OSError):
                CALLS[operation](disk, file)
        else:
            CALLS[operation](disk, file)
        changed.append((memory.files(), memory.scan("/")))
    assert changed[0] == changed[1]


def test_the_kth_call_of_any_kind_fails() -> None:
    """A sweep over every call of a workload, from the count of a run without faults."""
    counting = disk_with()
    publish(counting, "/d", "small", b"content")
    assert counting.calls == 6
    assert counting.counts["close"] == 1, "counted by name, but not a place for a fault"
    failed = []
    for k in range(1, counting.calls + 1):
        disk = disk_with(Fault(at=k))
        with pytest.raises(OSError):
            publish(disk, "/d", "small", b"content")
        failed += disk.fired
    assert failed == [
        ("open", "/d/small.tmp"),
        ("truncate", "/d/small.tmp"),
        ("pwrite", "/d/small.tmp"),
        ("sync", "/d/small.tmp"),
        ("rename", "/d/small.tmp"),
        ("sync_dir", "/d"),
    ]


def test_faults_fire_once_or_always() -> None:
    once, forever = (
        disk_with(Fault(operation="pwrite", at=2)),
        disk_with(Fault(operation="pwrite", at=2, forever=True)),
    )
    outcomes = []
    for disk in (once, forever):
        file = opened(disk)
        outcome = ""
        for _ in range(4):
            try:
                file.pwrite(b"x", 0)
                outcome += "."
            except OSError:
                outcome += "F"
        outcomes.append(outcome)
    assert outcomes == [".F..", ".FFF"]
    forever.heal()
    opened(forever).pwrite(b"x", 0)


def test_faults_depend_on_path_and_count_only() -> None:
    disk = disk_with(Fault(operation="pwrite", path=lambda path: path.endswith(".index"), at=2))
    log, index = disk.open("/d/0.log", create=True), disk.open("/d/0.index", create=True)
    for file in (log, index, log):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError, match=r"0\.index"):
        index.pwrite(b"x", 0)
    log.pwrite(b"x", 0)


def test_short_write_keeps_its_prefix() -> None:
    disk = disk_with(Fault(operation="pwrite", short=3, errno=errno.ENOSPC))
    with pytest.raises(OSError) as raised:
        opened(disk).pwrite(memoryview(b"abcdef"), 7)
    assert raised.value.errno == errno.ENOSPC
    assert read_small_file(disk, "/d/file") == b"contentabc"


def test_failed_sync_loses_the_pages() -> None:
    """F1: what a second fsync answers proves nothing about what the first one lost."""
    memory = MemoryDisk({"/d/file": b"content"})
    disk = FaultyDisk(memory, [Fault(operation="sync")])
    file = opened(disk)
    file.pwrite(b"!", 7)
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert memory.files()["/d/file"] == b"content!"
    assert memory.durable_image().files()["/d/file"] == b"content"
