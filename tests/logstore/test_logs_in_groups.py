"""Many logs at once: what they cost in fsyncs, and what a crash leaves of new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from threading import Thread

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.log.log_dir import one_by_one
from logstore.log.manager import LogManager
from logstore.testing.disks.recording import RecordingDisk

NOW_MS = 1_700_000_000_000
COUNT = 40
PARTITIONS = [TopicPartition("t", number) for number in range(COUNT)]
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


def manager_on(
    disk: MemoryDisk | RecordingDisk, run_all: Callable[[Sequence[Callable[[], None]]], None] = one_by_one
) -> LogManager:
    return LogManager(["data"], disk=disk, clock=lambda: NOW_MS, random=Random(0), run_all=run_all)


def syncs(disk: RecordingDisk) -> Counter[str]:
    return Counter(each.name for each in disk.operations if "sync" in each.name)


def begin(manager: LogManager, *, leads: bool) -> list[Log]:
    logs = [manager.get_or_begin(each, topic_id=TOPIC_ID) for each in PARTITIONS]
    for log in logs if leads else ():
        log.partition.assign_epoch(0, 0)
    return logs


@pytest.mark.parametrize(("leads", "a_log"), [(True, 3), (False, 2)])
def test_new_logs_share_the_fsync_of_their_dir(leads: bool, a_log: int) -> None:
    """Topic id, epoch and directory are an fsync each; it was six for a leader, four for a follower."""
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    disk.operations.clear()
    logs = begin(manager, leads=leads)
    assert not syncs(disk), "nothing waits for the disk where roles are taken"
    for log in logs:
        log.flush()
    assert syncs(disk).total() == a_log * COUNT + 1
    for log in logs:
        log.flush()
    assert syncs(disk).total() == a_log * COUNT + 1, "once"


def test_a_log_without_a_record_is_closed_without_a_call() -> None:
    """It was ten calls: an empty snapshot and two empty index files, for each of a thousand logs."""
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    for log in begin(manager, leads=False):
        log.flush()
    disk.operations.clear()
    manager.close()
    assert not [each for each in disk.operations if "/t-" in each.path]
    again = manager_on(disk)
    log = again.logs()[PARTITIONS[0]]
    assert not log.partition.report.rebuilt
    assert log.append(b"x").last_offset == 0
    again.close()


def test_an_opening_syncs_the_directory_of_a_log_once() -> None:
    """The epoch that an empty log began is dropped: with a new file, its fsync, and that of the directory."""
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    for log in begin(manager, leads=True):
        log.flush()
    manager.close()
    disk.operations.clear()
    again = manager_on(disk)
    assert not again.logs()[PARTITIONS[0]].partition.epochs
    of_logs = Counter(each.name for each in disk.operations if "/t-" in each.path and "sync" in each.name)
    assert of_logs == {"sync": COUNT, "sync_dir": COUNT}
    again.close()


def test_deleting_many_logs_costs_the_fsyncs_of_one() -> None:
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    for each in PARTITIONS:
        manager.get_or_create(each, topic_id=TOPIC_ID)
    manager.checkpoint_high_watermarks()
    manager.checkpoint_recovery_points()
    disk.operations.clear()
    manager.delete(PARTITIONS[0])
    of_one = syncs(disk).total()
    disk.operations.clear()
    manager.delete(*PARTITIONS[1:])
    assert syncs(disk).total() == of_one
    assert not manager.logs()


def test_deleted_logs_are_unlinked_a_few_at_a_time() -> None:
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    for each in PARTITIONS:
        manager.get_or_create(each)
    manager.delete(*PARTITIONS)
    ticks, later_ms = 0, NOW_MS + 10 * 60_000
    while any(entry.name.endswith("-delete") for entry in disk.scan("data")):
        disk.operations.clear()
        manager.tick(later_ms)
        assert len([each for each in disk.operations if each.name == "remove_dir"]) <= 10
        ticks += 1
        assert ticks < 100
    assert ticks >= COUNT / 10


def test_closing_empty_logs_syncs_nothing_of_them() -> None:
    disk = RecordingDisk(MemoryDisk())
    manager = manager_on(disk)
    for each in PARTITIONS:
        manager.get_or_create(each, topic_id=TOPIC_ID)
    disk.operations.clear()
    manager.close()
    assert syncs(disk).total() < COUNT, "the checkpoints and the marker only"
    again = manager_on(disk)
    assert again.was_clean
    assert list(again.logs()) == sorted(PARTITIONS)


def test_a_power_cut_leaves_a_new_log_whole_or_not_at_all_once_it_is_flushed() -> None:
    disk = MemoryDisk()
    first, second = PARTITIONS[:2]
    manager = manager_on(disk)
    logs = [manager.get_or_begin(each, topic_id=TOPIC_ID).partition for each in (first, second)]
    for log in logs:
        log.assign_epoch(3, 0)
    logs[0].flush()
    after = manager_on(disk.durable_image())
    found = after.logs()
    assert found[first].partition.topic_id == TOPIC_ID
    assert found[first].partition.latest_epoch in (3, -1)
    left = found.get(second)
    assert left is None or left.partition.topic_id is None, "its own files were not synced"


def test_logs_are_opened_and_closed_in_threads() -> None:
    def in_threads(actions: Sequence[Callable[[], None]]) -> None:
        threads = [Thread(target=act) for act in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    disk = MemoryDisk()
    manager = manager_on(disk, in_threads)
    for each in PARTITIONS:
        manager.get_or_create(each, topic_id=TOPIC_ID)
    manager.close()
    again = manager_on(disk, in_threads)
    assert again.was_clean
    assert list(again.logs()) == sorted(PARTITIONS)
    assert {log.partition.topic_id for log in again.logs().values()} == {TOPIC_ID}
