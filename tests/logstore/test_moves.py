"""Logs that move between the log dirs of a node: copy, swap, failing disks, and what a start finds."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

import pytest

from logstore.checkpoint.entry_files import LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from logstore.disk.errors import EngineError, ErrorCode, InvalidTopic
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition, future_name, partition_of_future
from logstore.errors import DamagedLog, DiskFull, LogDirOffline
from logstore.log.loading import ARRIVING, LEAVING
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.mirror import CannotRead, Copy, Mirror, is_of, left_of
from logstore.log.moves import Found, LogDirNotFound, NoSuchReplica, the_log_among
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.logstore.managers import (
    ORDERS,
    PAYMENTS,
    TOPIC_ID,
    append,
    checkpoint,
    manager_on,
    offsets,
)

DIRS = ("/a", "/b")


def filled(disk: Disk, count: int = 8) -> tuple[LogManager, Log]:
    """A manager of two log dirs, with a log of several segments in /a."""
    manager = manager_on(disk, *DIRS)
    log = manager.get_or_create(ORDERS, topic_id=TOPIC_ID)
    append(log, count)
    log.flush()
    return manager, log


def move(manager: LogManager, path: str = "/b") -> None:
    manager.moves.begin(ORDERS, path)
    manager.moves.carry_out(ORDERS)


def home(manager: LogManager) -> str:
    log_dir = manager.moves.home_of(ORDERS)
    assert log_dir is not None
    return log_dir.path


def directories(disk: MemoryDisk) -> list[str]:
    return [f"{path}/{each.name}" for path in DIRS for each in disk.scan(path) if each.is_directory]


# --- decisions ----------------------------------------------------------------------------------------


MARKS = list(product((False, True), repeat=2))


@pytest.mark.parametrize("first", MARKS)
@pytest.mark.parametrize("second", MARKS)
def test_two_directories_of_one_name_have_one_log_or_none(
    first: tuple[bool, bool], second: tuple[bool, bool]
) -> None:
    """Marks are (leaving, arriving). The answer does not depend on the order of the log dirs."""
    found = [Found("/a", *first), Found("/b", *second)]
    log = the_log_among(found)
    assert log == the_log_among(found[::-1])
    if first == second:
        assert log is None, "nothing tells them apart"
    elif first[0] != second[0]:
        assert log is found[first[0]], "the one that is not leaving"
    elif not first[0]:
        assert log is found[first[1]], "the one that has not come from elsewhere: the swap was given up"
    else:
        assert log is found[second[1]], "the one that had come from the other before it was to leave"


def test_a_copy_is_void_when_its_segment_is_cut_or_replaced() -> None:
    _, log = filled(MemoryDisk())
    sealed, active = log.partition.segments.first, log.partition.segments.active
    copies = {each.base_offset: Copy(each, (0, 0), each.seal, each.size) for each in log.partition.segments}
    assert is_of(copies[sealed.base_offset], sealed, (2, 0)), "its seal says that it was not cut"
    assert is_of(copies[active.base_offset], active, (0, 0))
    assert not is_of(copies[active.base_offset], active, (2, 0))
    assert not is_of(copies[sealed.base_offset], active, (0, 0))
    left = left_of(copies, iter(log.partition.segments), active)
    assert (left.missing, left.unfinished) == (0, len(log.partition.segments) - 1)
    assert left_of({}, iter(log.partition.segments), active).missing == log.size


def test_the_name_of_a_copy() -> None:
    name = future_name(ORDERS, "0" * 32)
    assert name == f"orders-0.{'0' * 32}-future"
    assert partition_of_future(name) == ORDERS
    assert partition_of_future("orders-0") is None
    assert partition_of_future(f"orders-0.{'0' * 32}-delete") is None
    with pytest.raises(InvalidTopic, match="cannot move to another log dir: the name of its copy"):
        future_name(TopicPartition("t" * 240, 0), "0" * 32)


# --- a move -------------------------------------------------------------------------------------------


def test_a_log_moves_with_everything_that_belongs_to_it() -> None:
    disk = MemoryDisk()
    manager, log = filled(disk)
    log.partition.set_high_watermark(7)
    advance_log_start_offset(log.partition, 4)
    log.truncate_to(7)
    append(log)
    before = (offsets(log), log.losses(), log.partition.epochs, log.partition.producers())
    assert before[1], "the cut is in the ledger"
    move(manager)
    assert manager.get(ORDERS) is log, "the same log, in another place"
    assert log.partition.directory == "/b/orders-0"
    assert (offsets(log), log.losses(), log.partition.epochs, log.partition.producers()) == before
    assert log.partition.quarantine.open(before[1][0], before[1][0].pieces[0]) is not None
    append(log, 5)
    log.flush()
    after = offsets(log)
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT, "/b")[ORDERS] == log.log_end_offset
    assert checkpoint(disk, LOG_START_OFFSET_CHECKPOINT, "/b")[ORDERS] == 4
    assert ORDERS not in checkpoint(disk, RECOVERY_POINT_CHECKPOINT, "/a")
    manager.tick(2_000_000)
    assert directories(disk) == ["/b/orders-0"]
    manager.close()
    again = manager_on(disk, *DIRS)
    assert again.was_clean
    opened = again.get(ORDERS)
    assert opened is not None
    assert (offsets(opened), opened.losses()) == (after, before[1])
    assert opened.partition.topic_id == TOPIC_ID
    report = opened.partition.report
    assert [*report.cuts, *report.rebuilt, *report.notes] == []


@pytest.mark.parametrize("seed", range(40))
def test_a_move_among_all_that_happens_to_a_log(seed: int) -> None:
    """Appends, cuts, deletions and restarts between the steps: the log is what it would be without a move."""
    rng = Random(seed)
    disk = MemoryDisk()
    manager, log = filled(disk, rng.randrange(1, 12))
    manager.moves.begin(ORDERS, "/b")
    for _ in range(30):
        what = rng.randrange(8)
        moving = manager.moves.under_way.get(ORDERS)
        if what == 0 and log.log_end_offset > log.log_start_offset:
            log.truncate_to(rng.randrange(log.log_start_offset, log.log_end_offset))
        elif what == 1:
            log.partition.set_high_watermark(log.log_end_offset)
            advance_log_start_offset(
                log.partition, rng.randint(log.log_start_offset, log.partition.high_watermark)
            )
        elif what == 2:
            manager.delete_old_segments(1_000_000)
        elif what == 3:
            log.partition.roll()
        elif what == 4 and moving is not None:
            moving.copying().step(rng.choice((100, 1000)))
        elif what == 5 and moving is not None:
            moving.copying().sync()
        elif what == 6 and rng.random() < 0.3:
            found = offsets(log)
            log.flush()
            if rng.random() < 0.5:
                manager.close()
            else:
                manager.abandon()
            manager = manager_on(disk, *DIRS)
            log = manager.logs()[ORDERS]
            assert offsets(log) == found
        else:
            append(log, rng.randrange(1, 4))
            log.flush()
    expected, losses = [(each.offset, each.value) for each in log.read()], log.losses()
    manager.moves.carry_out(ORDERS)
    assert home(manager) == "/b"
    for each in (manager, manager_on(disk.durable_image(), *DIRS)):
        moved = each.logs()[ORDERS]
        assert [(record.offset, record.value) for record in moved.read()] == expected
        assert (moved.losses(), moved.log_start_offset) == (losses, log.log_start_offset)
        assert not each.damaged


def test_a_move_goes_on_after_a_restart_where_it_was() -> None:
    disk = MemoryDisk()
    manager, _ = filled(disk, 20)
    manager.moves.begin(ORDERS, "/b")
    mirror = manager.moves.under_way[ORDERS].copying()
    mirror.step(1000)
    mirror.sync()
    copied = sum(1 for path in disk.files() if "-future/" in path and path.endswith(".seal"))
    assert copied > 1
    manager.close()
    again = manager_on(disk, *DIRS)
    moving = again.moves.under_way[ORDERS]
    assert moving.target.path == "/b"
    whole = [each for each in again.logs()[ORDERS].partition.segments][:copied]
    assert moving.copying().size == sum(each.size for each in whole), "what was durable is not copied again"
    again.moves.carry_out(ORDERS)
    assert offsets(again.get(ORDERS)) == list(range(20))


def test_what_a_move_asks_for() -> None:
    disk = MemoryDisk()
    manager, _ = filled(disk)
    moves = manager.moves
    with pytest.raises(
        LogDirNotFound, match="/c is not a log dir of this broker, which has /a, /b"
    ) as refused:
        moves.begin(ORDERS, "/c")
    assert refused.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    assert not moves.begin(ORDERS, "/a/"), "it is there"
    assert moves.begin(ORDERS, "/b/")
    assert not moves.begin(ORDERS, "/b"), "it is on its way"
    assert moves.begin(ORDERS, "/a"), "the move ends"
    assert not moves.under_way
    assert not moves.begin(ORDERS, "/a")
    moves.begin(ORDERS, "/b")
    manager.delete(ORDERS)
    assert not moves.under_way
    manager.tick(2_000_000)
    assert directories(disk) == []
    with pytest.raises(NoSuchReplica) as absent:
        moves.begin(PAYMENTS, "/b")
    assert absent.value.code is ErrorCode.REPLICA_NOT_AVAILABLE
    assert manager.get_or_create(PAYMENTS).partition.directory == "/b/payments-3", "as it was named"
    assert not moves.preferred


def test_a_log_that_moves_is_not_compacted() -> None:
    manager, _ = filled(MemoryDisk())
    assert ORDERS in manager.cleaner._logs()
    manager.moves.begin(ORDERS, "/b")
    assert ORDERS not in manager.cleaner._logs()


# --- failing disks ------------------------------------------------------------------------------------


def faulty() -> tuple[MemoryDisk, FaultyDisk, LogManager, Log]:
    inner = MemoryDisk()
    disk = FaultyDisk(inner)
    return inner, disk, *filled(disk)


def test_a_full_target_leaves_the_log_where_it_is() -> None:
    _, disk, manager, log = faulty()
    full = Fault(
        operation="pwrite", path=lambda path: path.startswith("/b"), errno=errno.ENOSPC, forever=True
    )
    manager.moves.begin(ORDERS, "/b")
    disk.inject(full)
    with pytest.raises(DiskFull, match=r"/b: the disk is full .*; orders-0 stays in /a"):
        manager.moves.carry_out(ORDERS)
    append(log)
    assert (home(manager), offsets(log), manager.offline_dirs) == ("/a", list(range(9)), {})
    disk.heal()
    manager.moves.carry_out(ORDERS)
    assert (home(manager), offsets(log)) == ("/b", list(range(9)))


def in_b(path: str) -> bool:
    return path.startswith("/b")


def calls_of_a_move() -> int:
    _, disk, manager, _ = faulty()
    before = disk.calls
    move(manager)
    return disk.calls - before


KINDS = ("EIO", "EIO, done", "ENOSPC")


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_move_may_fail(kind: str) -> None:
    """The log goes on in one of its dirs, or the dir is offline; a start finds every record, once."""
    check_calls(kind, range(1 + KINDS.index(kind), calls_of_a_move() + 1, len(KINDS)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_a_move_may_fail_in_every_way(kind: str) -> None:
    check_calls(kind, range(1, calls_of_a_move() + 1))


def check_calls(kind: str, numbers: range) -> None:
    """Let one of these calls of a move fail, each in its turn."""
    for number in numbers:
        inner, disk, manager, log = faulty()
        error = errno.ENOSPC if kind == "ENOSPC" else errno.EIO
        disk.inject(Fault(at=number, errno=error, done=kind == "EIO, done"))
        end = 8
        with suppress(EngineError, CannotRead):
            move(manager)
        disk.heal()
        if not log.partition.is_offline:
            append(log)
            log.flush()
            end += 1
            assert offsets(log) == list(range(end)), (number, disk.fired)
        manager.abandon()
        for image in (inner, inner.durable_image()):
            again = manager_on(image, *DIRS)
            assert not again.damaged, (number, disk.fired, again.damaged)
            assert offsets(again.get(ORDERS)) == list(range(end)), (number, disk.fired)
            homes = [path for path in directories(image) if path.endswith("/orders-0")]
            assert len(homes) == 1, (number, disk.fired)
            again.abandon()


def test_a_target_that_dies_is_offline_and_the_log_goes_on() -> None:
    _, disk, manager, log = faulty()
    manager.moves.begin(ORDERS, "/b")
    disk.inject(Fault(path=in_b, forever=True))
    with pytest.raises(LogDirOffline, match="/b went offline while orders-0 was copied to it"):
        manager.moves.carry_out(ORDERS)
    assert (list(manager.offline_dirs), manager.moves.under_way) == (["/b"], {})
    append(log)
    assert offsets(log) == list(range(9))
    with pytest.raises(LogDirOffline, match="/b is offline"):
        manager.moves.begin(ORDERS, "/b")


def swapped_by_half() -> MemoryDisk:
    """A disk as of a process that ended between the two renames."""
    inner = MemoryDisk()
    disk = FaultyDisk(inner)
    manager, _ = filled(disk)
    disk.inject(Fault(operation="rename", path=lambda path: path == "/a/orders-0"))
    move(manager)
    assert list(manager.offline_dirs) == ["/a"], "its disk refused the second rename"
    log = manager.logs()[ORDERS]
    append(log)
    log.flush()
    manager.abandon()
    files = inner.files()
    assert f"/a/orders-0/{LEAVING}" in files
    assert f"/b/orders-0/{ARRIVING}" in files
    return inner


class DeadDir(FaultyDisk):
    """A disk under which a log dir cannot be used."""

    def __init__(self, inner: Disk, path: str) -> None:
        super().__init__(inner, [Fault(path=lambda each: each.startswith(path), forever=True)])


def test_the_newer_of_two_directories_is_the_log() -> None:
    disk = swapped_by_half()
    manager = manager_on(disk, *DIRS)
    assert (home(manager), offsets(manager.get(ORDERS))) == ("/b", list(range(9)))
    manager.tick(2_000_000)
    assert directories(disk) == ["/b/orders-0"]
    assert not {LEAVING, ARRIVING} & {each.name for each in disk.scan("/b/orders-0")}


def test_two_directories_of_one_log_that_nothing_tells_apart_are_left_alone() -> None:
    """As when log dirs of two brokers are put together. Neither is used until one has been moved away."""
    disk = MemoryDisk()
    for path, count in zip(DIRS, (8, 3), strict=True):
        manager = manager_on(disk, path)
        append(manager.get_or_create(ORDERS, topic_id=TOPIC_ID), count)
        manager.close()
    manager = manager_on(disk, *DIRS)
    with pytest.raises(DamagedLog, match="/a/orders-0 and /b/orders-0, and nothing tells which is newer"):
        manager.get_or_create(ORDERS)
    assert (manager.logs(), manager.moves.home_of(ORDERS)) == ({}, None)
    manager.close()
    disk.rename("/b/orders-0", "/kept")
    again = manager_on(disk, *DIRS)
    assert (home(again), offsets(again.get(ORDERS))) == ("/a", list(range(8)))


def test_the_older_directory_is_kept_if_the_newer_is_damaged() -> None:
    disk = swapped_by_half()
    path = f"/b/orders-0/{file_name(0, '.log')}"
    disk.open(path, write=True).truncate(disk.open(path).size() - 40)
    manager = manager_on(disk, *DIRS)
    with pytest.raises(DamagedLog):
        manager.get(ORDERS)
    manager.tick(2_000_000)
    newer, older = sorted(directories(disk), reverse=True)
    assert newer == "/b/orders-0"
    assert older.endswith("-stray")


def test_a_log_that_was_leaving_is_not_opened_while_the_other_dir_is_offline() -> None:
    """It lacks a record. Where other replicas have it, the controller lets it be used; then it is the log."""
    disk = swapped_by_half()
    manager = manager_on(DeadDir(disk, "/b"), *DIRS)
    assert list(manager.offline_dirs) == ["/b"]
    for _ in range(2):
        with pytest.raises(DamagedLog, match="A newer copy may be in /b, which is offline"):
            manager.get(ORDERS)
        with pytest.raises(DamagedLog, match="A newer copy may be in /b"):
            manager.reopen(ORDERS)
    log = manager.reopen(ORDERS, accept_loss=True)
    append(log, 5)
    log.flush()
    manager.abandon()
    again = manager_on(disk, *DIRS)
    assert (home(again), offsets(again.get(ORDERS))) == ("/a", list(range(13)))


def test_a_log_that_arrived_keeps_its_mark_while_the_other_dir_is_offline() -> None:
    disk = swapped_by_half()
    for _ in range(2):
        manager = manager_on(DeadDir(disk, "/a"), *DIRS)
        append(manager.logs()[ORDERS])
        manager.logs()[ORDERS].flush()
        manager.abandon()
    again = manager_on(disk, *DIRS)
    assert (home(again), offsets(again.get(ORDERS))) == ("/b", list(range(11)))


def test_a_damaged_segment_stays_damaged() -> None:
    """The copy has the bytes and the seal of the segment: what is wrong is still known there."""
    disk = MemoryDisk()
    manager, log = filled(disk)
    path = f"/a/orders-0/{file_name(0, '.log')}"
    file = disk.open(path, write=True)
    file.pwrite(b"\xff", 80)
    move(manager)
    seal = log.partition.segments.first.seal
    assert seal is not None
    assert disk.files()["/b/orders-0/" + file_name(0, ".log")][80] == 0xFF


class Meanwhile(MemoryDisk):
    """A disk; another thread does something during one of its calls."""

    def __init__(self, operation: str, path: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._due, self._act = (operation, path), act

    def _is_due(self, *call: str) -> None:
        if call == self._due:
            self._due = ("", "")
            self._act()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._is_due("rename", target)

    def make_dir(self, path: str) -> None:
        super().make_dir(path)
        self._is_due("make_dir", path)


def fail(manager: LogManager, path: str) -> None:
    """Take a log dir offline, as a flush of another log in it does, in a thread."""
    manager.moves.check_dir(path).take_offline(OSError(errno.EIO, "in a thread"))


def test_a_log_does_not_move_into_a_dir_that_fails_during_the_swap() -> None:
    disk = Meanwhile("rename", "/b/orders-0", lambda: fail(manager, "/b"))
    manager, log = filled(disk)
    with pytest.raises(LogDirOffline, match="/b went offline when orders-0 was to be renamed in it"):
        move(manager)
    assert (home(manager), list(manager.offline_dirs)) == ("/a", ["/b"])
    append(log)
    log.flush()
    manager.abandon()
    again = manager_on(disk, *DIRS)
    assert (home(again), offsets(again.get(ORDERS))) == ("/a", list(range(9)))


def test_a_log_that_has_moved_into_a_dir_that_failed_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last moment: its dir fails when the log is there, but not yet among the dir's logs."""
    disk = MemoryDisk()
    manager, log = filled(disk)
    relocate = Mirror.relocate

    def relocated(*arguments: Any) -> None:
        relocate(*arguments)
        fail(manager, "/b")

    monkeypatch.setattr(Mirror, "relocate", relocated)
    with suppress(LogDirOffline):
        move(manager)
    assert log.partition.is_offline
    with pytest.raises(LogDirOffline):
        manager.get(ORDERS)
    assert directories(disk) == ["/a/orders-0", "/b/orders-0"], "the older one may be all that is left"


def test_a_log_that_is_made_in_a_dir_that_fails_meanwhile_is_offline() -> None:
    disk = Meanwhile("make_dir", "/a/orders-0", lambda: fail(manager, "/a"))
    manager = manager_on(disk, *DIRS)
    with pytest.raises(LogDirOffline):
        manager.get_or_create(ORDERS)
    assert manager.get_or_create(PAYMENTS).partition.directory == "/b/payments-3"
