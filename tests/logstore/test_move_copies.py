"""Copies of logs that no move can use, and their entries in the checkpoints of the log dir."""

from __future__ import annotations

from contextlib import suppress

import pytest

from logstore.disk.copying import remove_tree
from logstore.disk.files import DirectoryEntry, Disk
from logstore.log.manager import LogManager
from logstore.log.mirror import CannotRead
from logstore.segment.segment import file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.logstore.managers import ORDERS, OTHER_ID, TOPIC_ID, append, manager_on, offsets
from tests.logstore.test_moves import DIRS, DeadDir, directories, filled, home

# --- copies without a use -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_synced", [False, True])
def test_the_copy_of_a_topic_that_was_created_again_starts_no_move(has_synced: bool) -> None:
    """Its log dir was offline meanwhile, so nobody could remove it."""
    disk = MemoryDisk()
    manager, _ = filled(disk)
    manager.moves.begin(ORDERS, "/b")
    if has_synced:
        manager.moves.under_way[ORDERS].copying().step(1000)
        manager.moves.under_way[ORDERS].copying().sync()
    manager.abandon()
    without_b = manager_on(DeadDir(disk, "/b"), *DIRS)
    without_b.delete(ORDERS)
    append(without_b.get_or_create(ORDERS, topic_id=OTHER_ID), 2)
    without_b.close()
    again = manager_on(disk, *DIRS)
    assert not again.moves.under_way
    assert (home(again), offsets(again.get(ORDERS))) == ("/a", [0, 1])
    again.tick(2_000_000)
    assert directories(disk) == ["/a/orders-0"]


def test_a_copy_whose_topic_id_cannot_be_read_goes_on() -> None:
    disk = MemoryDisk()
    manager, _ = filled(disk)
    manager.moves.begin(ORDERS, "/b")
    manager.close()
    (copy,) = (path for path in directories(disk) if path.endswith("-future"))
    disk.open(f"{copy}/partition.metadata", write=True).pwrite(b"?", 0)
    again = manager_on(disk, *DIRS)
    again.moves.carry_out(ORDERS)
    assert (home(again), offsets(again.get(ORDERS))) == ("/b", list(range(8)))
    assert manager_on(disk.durable_image(), *DIRS).topic_id(ORDERS) == TOPIC_ID


def test_a_disk_that_fails_as_the_topic_id_of_a_copy_is_read_is_offline() -> None:
    disk = MemoryDisk()
    manager, _ = filled(disk)
    manager.moves.begin(ORDERS, "/b")
    manager.close()
    bad = FaultyDisk(disk, [Fault(path=lambda path: path.endswith("-future/partition.metadata"))])
    again = manager_on(bad, *DIRS)
    assert list(again.offline_dirs) == ["/b"]
    assert (home(again), offsets(again.get(ORDERS))) == ("/a", list(range(8)))


def damaged_with_a_copy() -> tuple[MemoryDisk, LogManager, bytes]:
    """A log that is damaged at a start, while a copy of it is in /b; and its first segment as it was."""
    disk = MemoryDisk()
    manager, _ = filled(disk)
    manager.moves.begin(ORDERS, "/b")
    manager.close()
    path = f"/a/orders-0/{file_name(0, '.log')}"
    sound = disk.files()[path]
    disk.open(path, write=True).truncate(40)
    again = manager_on(disk, *DIRS)
    assert list(again.damaged) == [ORDERS]
    assert not again.moves.under_way
    return disk, again, sound


def test_the_move_of_a_damaged_log_goes_on_when_it_is_opened() -> None:
    disk, manager, sound = damaged_with_a_copy()
    disk.open(f"/a/orders-0/{file_name(0, '.log')}", write=True).pwrite(sound, 0)
    manager.reopen(ORDERS)
    assert not manager.moves.begin(ORDERS, "/b"), "it is on its way, with the copy that was there"
    assert len(directories(disk)) == 2
    manager.moves.carry_out(ORDERS)
    assert (home(manager), offsets(manager.get(ORDERS))) == ("/b", list(range(8)))


def test_the_copy_of_a_damaged_log_goes_with_it() -> None:
    disk, manager, _ = damaged_with_a_copy()
    manager.delete(ORDERS)
    manager.tick(2_000_000)
    assert directories(disk) == []


def test_a_new_log_does_not_take_over_a_copy_that_is_there() -> None:
    disk = MemoryDisk()
    manager, _ = filled(disk)
    manager.moves.begin(ORDERS, "/b")
    manager.abandon()
    without_b = manager_on(DeadDir(disk, "/b"), *DIRS)
    without_b.delete(ORDERS)
    without_b.close()
    again = manager_on(disk, *DIRS)
    append(again.get_or_create(ORDERS), 2)
    again.close()
    assert not manager_on(disk, *DIRS).moves.under_way


def test_what_was_removed_is_whole_in_the_copy_after_a_power_cut() -> None:
    """A file in quarantine had its size in the copy before the cut, but not its content."""
    disk = MemoryDisk()
    manager, log = filled(disk)
    log.truncate_to(7)
    append(log)
    log.flush()
    manager.moves.begin(ORDERS, "/b")
    manager.moves.under_way[ORDERS].copying()
    (piece,) = log.losses()[0].pieces
    copy = f"{manager.moves.under_way[ORDERS].directory}/lost/1"
    disk.make_dir(copy)
    disk.open(f"{copy}/{piece.file}", create=True, write=True).pwrite(bytes(piece.size), 0)
    manager.close()
    again = manager_on(disk, *DIRS)
    again.moves.carry_out(ORDERS)
    files = disk.files()
    assert files[f"/b/orders-0/lost/1/{piece.file}"].strip(b"\0"), "its records are there"


def test_a_move_that_ends_during_a_flush_leaves_no_copy() -> None:
    """A thread copies what is in quarantine while the event loop ends the move."""

    class EndsTheMove(MemoryDisk):
        ended = False

        def scan(self, directory: str) -> list[DirectoryEntry]:
            found = super().scan(directory)
            if directory == "/a/orders-0/lost":
                self.ended = True
                manager.moves.cancel(ORDERS)
            return found

    disk = EndsTheMove()
    manager, log = filled(disk)
    log.truncate_to(7)
    manager.moves.begin(ORDERS, "/b")
    mirror = manager.moves.under_way[ORDERS].copying()
    mirror.step(1 << 20)
    with suppress(CannotRead, OSError):
        mirror.sync()
    assert disk.ended
    manager.tick(2_000_000)
    assert directories(disk) == ["/a/orders-0"]
    manager.close()
    assert not manager_on(disk, *DIRS).moves.under_way


# --- entries of a copy in the checkpoints ---------------------------------------------------------------


def copied(disk: Disk, source: str, target: str) -> LogManager:
    """A manager whose log is being copied; the checkpoints of the other dir have its entries."""
    manager = manager_on(disk, *DIRS)
    manager.moves.preferred[ORDERS] = source
    log = manager.get_or_create(ORDERS, topic_id=TOPIC_ID)
    append(log, 8)
    log.flush()
    log.partition.set_high_watermark(7)
    manager.moves.begin(ORDERS, target)
    moving = manager.moves.under_way[ORDERS]
    moving.copying().step(1 << 20)
    moving.copying().sync()
    moving.target.checkpoints.expect(log.partition)
    return manager


def test_a_deleted_log_is_not_missing_where_its_copy_was() -> None:
    """Its topic was deleted while the copy's dir was offline, whose checkpoints knew of the log."""
    disk = MemoryDisk()
    copied(disk, "/a", "/b").abandon()
    without_b = manager_on(DeadDir(disk, "/b"), *DIRS)
    without_b.delete(ORDERS)
    without_b.tick(2_000_000)
    without_b.close()
    again = manager_on(disk, *DIRS)
    assert not again.damaged
    again.moves.forget_all_but([])
    again.tick(1_000_001)
    again.abandon()
    last = manager_on(disk.durable_image(), *DIRS)
    assert not last.damaged
    assert offsets(last.get_or_create(ORDERS)) == []


def test_a_move_that_ends_leaves_no_entries_in_the_checkpoints() -> None:
    disk = MemoryDisk()
    manager = copied(disk, "/a", "/b")
    manager.moves.cancel(ORDERS)
    manager.tick(1_000_001)
    manager.abandon()
    without_b = manager_on(DeadDir(disk, "/b"), *DIRS)
    without_b.delete(ORDERS)
    without_b.tick(2_000_000)
    without_b.close()
    assert not manager_on(disk, *DIRS).damaged


def test_a_log_that_is_gone_is_missing_though_there_is_a_copy() -> None:
    disk = MemoryDisk()
    manager = copied(disk, "/a", "/b")
    manager.checkpoint_recovery_points()
    manager.abandon()
    remove_tree(disk, "/a/orders-0")
    assert list(manager_on(disk, *DIRS).damaged) == [ORDERS]


def test_the_high_watermark_of_a_log_is_that_of_its_own_dir() -> None:
    """The log is cut while it moves to a dir that comes first in the list."""
    manager = copied(MemoryDisk(), "/b", "/a")
    log = manager.logs()[ORDERS]
    log.truncate_to(3)
    append(log, 5)
    assert log.partition.high_watermark == 3
    manager.checkpoint_high_watermarks()
    assert manager.checkpointed_high_watermark(ORDERS) == 3
