"""The logs of a node: dirs that fail alone, checkpoints and their schedule, stops, damage, deletion."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE, read_clean_shutdown
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from logstore.checkpoint.identity import MetaProperties, write_meta_properties
from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.disk.files import Disk, OsDisk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, DamageKind, DiskFull, InconsistentTopicId, LogDirOffline
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
TOPIC_ID, OTHER_ID = "AAECAwQFBgcICQoLDA0ODw", "AQECAwQFBgcICQoLDA0ODw"
CONFIG = LogConfig(segment_bytes=300, file_delete_delay_ms=5000)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def manager_on(
    disk: Disk,
    *dirs: str,
    clock: Clock | None = None,
    config: LogConfig = CONFIG,
    boot_id: str = "",
    **topics: LogConfig,
) -> LogManager:
    return LogManager(
        dirs or ("/a",),
        disk=disk,
        clock=clock or Clock(),
        random=random.Random(7),
        config=config,
        configs=topics,
        boot_id=boot_id,
    )


def append(log: Log, count: int = 1) -> None:
    for _ in range(count):
        data = encode_batch([Record(0, 5000, b"k", b"value" * 5)])
        append_as_leader(log.partition, data, leader_epoch=1, now_ms=5000)


def in_dir(path: str) -> str:
    """Which log dir a path lies in."""
    return path.split("/")[1]


def offsets(log: Log | None) -> list[int]:
    assert log is not None
    return [record.offset for record in log.read()]


def checkpoint(disk: MemoryDisk, name: str, directory: str = "/a") -> dict[TopicPartition, int]:
    return dict(read_offset_checkpoint(disk, directory, name))


def test_a_dir_that_holds_only_the_mark_of_its_owner_is_empty() -> None:
    """A broker marks its log dirs before it opens them: that must hide no new disk."""
    disk = MemoryDisk()
    for directory, cluster in (("/new", "c"), ("/used", "c")):
        make_durable_dir(disk, directory)
        write_meta_properties(disk, directory, MetaProperties(node_id=1, cluster_id=cluster))
    manager = manager_on(disk, "/used")
    append(manager.get_or_create(ORDERS))
    manager.abandon()
    assert manager_on(disk, "/new").had_empty_dir
    assert not manager_on(disk, "/used").had_empty_dir


def is_marked_clean(disk: MemoryDisk, directory: str = "/a") -> bool:
    return f"{directory}/{CLEAN_SHUTDOWN_FILE}" in disk.files()


class TestLogs:
    def test_get_and_get_or_create(self) -> None:
        manager = manager_on(MemoryDisk())
        assert manager.get(ORDERS) is None
        log = manager.get_or_create(ORDERS)
        assert manager.get(ORDERS) is manager.get_or_create(ORDERS) is log
        assert list(manager.logs()) == [ORDERS]
        assert log.partition.topic_partition == ORDERS

    def test_a_new_log_goes_where_the_fewest_are(self) -> None:
        manager = manager_on(MemoryDisk(), "/a", "/b", "/c")
        for number in range(6):
            manager.get_or_create(TopicPartition("t", number))
        homes = [log.partition.directory.split("/")[1] for log in manager.logs().values()]
        assert sorted(homes) == ["a", "a", "b", "b", "c", "c"]

    def test_a_new_log_is_durable_as_a_directory(self) -> None:
        disk = MemoryDisk()
        log = manager_on(disk).get_or_create(ORDERS)
        append(log, 2)
        log.flush()
        assert offsets(manager_on(disk.durable_image()).get(ORDERS)) == [0, 1]

    def test_settings_of_topics(self) -> None:
        own = LogConfig(segment_bytes=999)
        disk = MemoryDisk()
        manager = manager_on(disk, orders=own)
        assert manager.get_or_create(ORDERS).partition.config == own
        assert manager.get_or_create(PAYMENTS).partition.config == CONFIG
        assert manager.get_or_create(PAYMENTS, config=own).partition.config == own
        manager.close()
        again = manager_on(disk, orders=own)
        assert [log.partition.config for log in again.logs().values()] == [own, CONFIG]

    def test_row_188_the_topics_id(self) -> None:
        """On disk before the first record; another topic of the same name is refused."""
        disk = MemoryDisk()
        log = manager_on(disk).get_or_create(ORDERS, topic_id=TOPIC_ID)
        assert log.partition.topic_id == TOPIC_ID
        image = disk.durable_image()
        manager = manager_on(image)
        with pytest.raises(InconsistentTopicId, match=r"belongs to topic id.*move the directory away"):
            manager.get_or_create(ORDERS, topic_id=OTHER_ID)
        assert manager.get_or_create(ORDERS, topic_id=TOPIC_ID).partition.topic_id == TOPIC_ID
        assert manager.get_or_create(ORDERS).partition.topic_id == TOPIC_ID

    def test_row_189_a_directory_that_is_no_partition(self) -> None:
        """Better to stop than to guess whose data it is; and everything is let go of."""
        disk = MemoryDisk(directories=["/a/orders-0", "/a/not_a_partition"])
        with pytest.raises(InvalidTopic, match="not_a_partition"):
            manager_on(disk)
        disk.remove_dir("/a/not_a_partition")
        assert list(manager_on(disk).logs()) == [ORDERS]

    def test_dirs_are_given_and_given_once(self) -> None:
        for dirs in ([], ["/a", "/a"]):
            with pytest.raises(ValueError, match="name one or more, each once"):
                LogManager(dirs, disk=MemoryDisk(), clock=Clock(), random=random.Random(1))


class TestStops:
    def test_clean(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        assert not manager.was_clean, "an empty dir may be a new disk in the place of a lost one"
        append(manager.get_or_create(ORDERS), 9)
        manager.close()
        assert is_marked_clean(disk)
        again = manager_on(disk)
        assert again.was_clean
        assert not is_marked_clean(disk), "from now on a crash is an unclean stop"
        log = again.get(ORDERS)
        assert log is not None
        assert (log.partition.recovery_point, log.partition.report.scanned_bytes) == (9, 0)

    def test_unclean(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        append(manager.get_or_create(ORDERS), 9)
        manager.abandon()
        assert not is_marked_clean(disk)
        again = manager_on(disk)
        assert not again.was_clean
        assert offsets(again.get(ORDERS)) == list(range(9))

    def test_a_process_that_is_killed_loses_nothing_while_its_machine_goes_on(self) -> None:
        """Once it could vouch for what was there before it: as for the mark of a clean stop."""
        disk = MemoryDisk()
        first = manager_on(disk, boot_id="one")
        append(first.get_or_create(ORDERS), 9)
        first.abandon()
        second = manager_on(disk, boot_id="one")
        assert not second.was_clean, "the first one found an empty dir, and nobody had put that on record"
        second.vouch()
        append(second.logs()[ORDERS], 1)
        second.abandon()
        third = manager_on(disk, boot_id="one")
        assert third.was_clean
        assert offsets(third.get(ORDERS)) == list(range(10))
        third.abandon()
        fourth = manager_on(disk, boot_id="one")
        assert fourth.was_clean, "who finds it vouched for goes on vouching"
        fourth.abandon()
        assert not manager_on(disk, boot_id="two").was_clean

    def test_who_may_have_lost_something_takes_back_what_others_vouched_for(self) -> None:
        disk = MemoryDisk()
        vouched = manager_on(disk, "/a", "/b", boot_id="one")
        vouched.vouch()
        vouched.abandon()
        manager_on(disk, "/a", "/b", "/new", boot_id="one").abandon()
        assert not manager_on(disk, "/a", "/b", boot_id="one").was_clean

    def test_a_sync_that_failed_is_vouched_for_by_nobody(self) -> None:
        """What was not synced may have been dropped from the page cache, and nothing tells of it later."""
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk, boot_id="one")
        manager.vouch()
        append(manager.get_or_create(ORDERS), 9)
        disk.inject(Fault(operation="sync"))
        with pytest.raises(LogDirOffline):
            manager.logs()[ORDERS].flush()
        manager.abandon()
        assert not manager_on(disk, boot_id="one").was_clean

    def test_a_loss_that_is_accepted_is_vouched_for_by_nobody(self) -> None:
        disk = MemoryDisk()
        vouched = manager_on(disk, boot_id="one")
        vouched.vouch()
        vouched.abandon()
        parts = {"disk": disk, "clock": Clock(), "random": random.Random(7)}
        LogManager(["/a"], **parts, accept_loss=[ORDERS]).abandon()  # type: ignore[arg-type]
        assert not manager_on(disk, boot_id="one").was_clean

    def test_one_dir_that_was_not_clean(self) -> None:
        disk = MemoryDisk()
        manager_on(disk, "/a").close()
        manager_on(disk, "/b").abandon()
        assert not manager_on(disk, "/a", "/b").was_clean

    @pytest.mark.parametrize("content", [b"", b'{"version":0,"brokerEpoch":5,"more":[1]}'])
    def test_row_193_only_the_marks_existence_counts(self, content: bytes) -> None:
        disk = MemoryDisk()
        manager_on(disk).close()
        file = disk.open(f"/a/{CLEAN_SHUTDOWN_FILE}", create=True, write=True)
        file.truncate(0)
        file.pwrite(content, 0)
        found = read_clean_shutdown(disk, "/a")
        assert found is not None
        assert found.broker_epoch == (5 if content else -1)
        assert manager_on(disk).was_clean

    def test_row_192_a_start_that_did_not_finish_leaves_no_mark(self) -> None:
        disk = MemoryDisk(directories=["/a/orders-0", "/a/junk"])
        with pytest.raises(InvalidTopic):
            manager_on(disk)
        assert not is_marked_clean(disk)

    def test_without_the_mark_if_so_asked(self) -> None:
        """A node in doubt must not look intact the next time; its data is flushed all the same."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        append(manager.get_or_create(ORDERS), 2)
        manager.close(mark_clean=False)
        assert not is_marked_clean(disk)
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT) == {ORDERS: 2}

    def test_closing_twice(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        manager.close()
        manager.close()
        manager_on(disk).close()


class TestLocks:
    def test_row_191_a_second_manager(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk, "/a", "/b")
        for dirs in (("/a",), ("/c", "/b")):
            with pytest.raises(DirectoryLocked):
                manager_on(disk, *dirs)
        manager_on(disk, "/c").close()
        manager.close()
        manager_on(disk, "/a", "/b").close()

    def test_on_the_operating_system(self, tmp_path: Path) -> None:
        first = manager_on(OsDisk(), f"{tmp_path}/a")
        append(first.get_or_create(ORDERS), 3)
        with pytest.raises(DirectoryLocked, match=f"{tmp_path}/a"):
            manager_on(OsDisk(), f"{tmp_path}/a")
        first.close()
        second = manager_on(OsDisk(), f"{tmp_path}/a")
        assert offsets(second.get(ORDERS)) == [0, 1, 2]
        second.close()


class TestCheckpoints:
    def test_what_they_hold(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        orders, payments = manager.get_or_create(ORDERS), manager.get_or_create(PAYMENTS)
        append(orders, 9)
        append(payments, 2)
        orders.partition.set_high_watermark(7)
        manager.checkpoint_high_watermarks()
        assert checkpoint(disk, HIGH_WATERMARK_CHECKPOINT) == {ORDERS: 7, PAYMENTS: 0}
        assert manager.checkpointed_high_watermark(ORDERS) == 7
        assert manager.checkpointed_high_watermark(TopicPartition("x", 1)) == 0
        manager.checkpoint_recovery_points()
        sealed = orders.partition.segments[-1].base_offset
        assert 0 < sealed < 9
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT) == {ORDERS: sealed, PAYMENTS: 0}

    def test_row_194_only_starts_inside_a_segment(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        orders, payments = manager.get_or_create(ORDERS), manager.get_or_create(PAYMENTS)
        append(orders, 5)
        append(payments, 5)
        orders.partition.set_high_watermark(5)
        advance_log_start_offset(orders.partition, 2)
        truncate_fully_and_start_at(payments.partition, 40)
        # Written down for as long as no segment says it; the next time it is left out.
        assert checkpoint(disk, LOG_START_OFFSET_CHECKPOINT) == {ORDERS: 2, PAYMENTS: 40}
        manager.checkpoint_log_start_offsets()
        assert checkpoint(disk, LOG_START_OFFSET_CHECKPOINT) == {ORDERS: 2}
        again = manager_on(disk.durable_image())
        assert [log.log_start_offset for log in again.logs().values()] == [2, 40]

    def test_the_schedule(self) -> None:
        """Recovery points and log starts after half a minute, then once a minute, nothing in between."""
        disk, clock = MemoryDisk(), Clock()
        manager = manager_on(disk, clock=clock)
        log = manager.get_or_create(ORDERS)
        append(log, 9)
        manager.tick(clock.now_ms + 29_999)
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT) == {}
        manager.tick(clock.now_ms + 30_000)
        sealed = log.partition.segments[-1].base_offset
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT) == {ORDERS: sealed}
        append(log, 9)
        manager.tick(clock.now_ms + 89_999)
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT) == {ORDERS: sealed}
        manager.tick(clock.now_ms + 90_000)
        assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT)[ORDERS] > sealed

    def test_flush_by_age(self) -> None:
        """`flush.ms` counts from the first look at which there was something to flush."""
        clock = Clock()
        manager = manager_on(MemoryDisk(), clock=clock, config=LogConfig(flush_ms=1000))
        log = manager.get_or_create(ORDERS)
        now = clock.now_ms
        manager.tick(now)
        append(log)
        manager.tick(now + 10)
        append(log)
        manager.tick(now + 1009)
        assert log.partition.recovery_point == 0
        manager.tick(now + 1010)
        assert log.partition.recovery_point == 2
        append(log)
        manager.tick(now + 5000)
        assert log.partition.recovery_point == 2
        manager.tick(now + 6000)
        assert log.partition.recovery_point == 3

    def test_a_high_watermark_that_claims_too_much_is_held_within_the_log(self) -> None:
        """On the disk too, at once: what is appended next, and is not committed, would be after a crash."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        append(manager.get_or_create(ORDERS), 4)
        manager.close()
        for name, expected in (("99", 4), ("3", 3)):
            file = disk.open(f"/a/{HIGH_WATERMARK_CHECKPOINT}", write=True)
            file.truncate(0)
            file.pwrite(f"0\n1\norders 0 {name}\n".encode(), 0)
            manager = manager_on(disk)
            log = manager.get(ORDERS)
            assert log is not None
            assert log.partition.high_watermark == expected
            assert manager.checkpointed_high_watermark(ORDERS) == expected
            assert checkpoint(disk, HIGH_WATERMARK_CHECKPOINT) == {ORDERS: expected}
            manager.close()

    def test_records_where_others_were_lost_have_not_been_committed(self) -> None:
        """The power goes, and with it what was committed; the process dies before the next checkpoint."""
        disk = MemoryDisk()
        manager = manager_on(disk, config=LogConfig())
        log = manager.get_or_create(ORDERS)
        append(log, 2)
        log.flush()
        append(log, 4)
        log.partition.set_high_watermark(6)
        manager.checkpoint_high_watermarks()
        after_the_cut = disk.durable_image()
        manager = manager_on(after_the_cut)
        left = manager.get(ORDERS)
        assert left is not None
        assert left.log_end_offset == 2
        append(left, 3)
        manager = manager_on(after_the_cut.survivor())
        again = manager.get(ORDERS)
        assert again is not None
        assert (again.log_end_offset, again.partition.high_watermark) == (5, 2)

    @pytest.mark.parametrize(
        "name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT]
    )
    @pytest.mark.parametrize("content", [None, b"", b"0\n9\n", b"9\n0\n", b"\xff\xff"])
    def test_one_that_is_missing_or_torn(self, name: str, content: bytes | None) -> None:
        """A bound, never a truth: without it more is read, and no record is lost."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        append(manager.get_or_create(ORDERS), 9)
        manager.tick(10**9)
        manager.abandon()
        if content is None:
            if f"/a/{name}" in disk.files():
                disk.remove(f"/a/{name}")
        else:
            file = disk.open(f"/a/{name}", create=True, write=True)
            file.truncate(0)
            file.pwrite(content, 0)
        again = manager_on(disk)
        assert offsets(again.get(ORDERS)) == list(range(9))

    def test_a_truncation_lowers_it_before_a_byte_goes(self) -> None:
        """Also at the second attempt, when the first one found no room for the checkpoint."""
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        append(log, 9)
        log.flush()
        manager.checkpoint_recovery_points()
        assert checkpoint(memory, RECOVERY_POINT_CHECKPOINT) == {ORDERS: 9}
        disk.inject(
            Fault(operation="pwrite", errno=errno.ENOSPC, path=lambda path: RECOVERY_POINT_CHECKPOINT in path)
        )
        with pytest.raises(DiskFull):
            log.truncate_to(4)
        assert log.log_end_offset == 9
        assert log.truncate_to(4)
        assert checkpoint(memory, RECOVERY_POINT_CHECKPOINT) == {ORDERS: 4}


class TestDirsThatFail:
    def two_dirs(self) -> tuple[FaultyDisk, LogManager, Log, Log]:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk, "/a", "/b")
        first, second = manager.get_or_create(ORDERS), manager.get_or_create(PAYMENTS)
        assert (in_dir(first.partition.directory), in_dir(second.partition.directory)) == ("a", "b")
        append(first, 2)
        append(second, 2)
        return disk, manager, first, second

    def check_only_a_is_offline(self, manager: LogManager, second: Log) -> None:
        assert list(manager.offline_dirs) == ["/a"]
        assert "Input/output error" in manager.offline_dirs["/a"]
        assert list(manager.logs()) == [PAYMENTS]
        with pytest.raises(LogDirOffline, match="orders-0 lives in /a, which is offline"):
            manager.get(ORDERS)
        with pytest.raises(LogDirOffline):
            manager.get_or_create(ORDERS)
        append(second)
        second.flush()
        assert offsets(manager.get(PAYMENTS)) == [0, 1, 2]
        new = manager.get_or_create(TopicPartition("new", 0))
        assert in_dir(new.partition.directory) == "b"

    @pytest.mark.parametrize("operation", ["make_dir", "lock", "scan", "remove", "sync_dir", "open"])
    def test_at_the_start(self, operation: str) -> None:
        memory = MemoryDisk()
        manager = manager_on(memory, "/a", "/b")
        append(manager.get_or_create(ORDERS))
        append(manager.get_or_create(PAYMENTS), 2)
        manager.abandon()
        fault = Fault(operation=operation, path=lambda path: path.startswith("/a"), forever=True)
        manager = manager_on(FaultyDisk(memory, [fault]), "/a", "/b")
        assert list(manager.offline_dirs) == ["/a"]
        second = manager.get(PAYMENTS)
        assert second is not None
        append(second)
        assert offsets(second) == [0, 1, 2]
        manager.close()
        assert not is_marked_clean(memory, "/a")
        assert is_marked_clean(memory, "/b")

    def test_all_of_them_at_the_start(self) -> None:
        disk = FaultyDisk(MemoryDisk(), [Fault(operation="lock", forever=True)])
        with pytest.raises(LogDirOffline, match=r"no log dir can be used: /a: .*; /b: .*Input/output"):
            manager_on(disk, "/a", "/b")

    def test_during_an_append(self) -> None:
        disk, manager, first, second = self.two_dirs()
        disk.inject(Fault(operation="pwrite", path=lambda path: path.startswith("/a")))
        with pytest.raises(LogDirOffline):
            append(first)
        self.check_only_a_is_offline(manager, second)

    def test_every_log_in_it_goes(self) -> None:
        """Nothing of any of them is shown that is not durable."""
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk)
        first, second = manager.get_or_create(ORDERS), manager.get_or_create(PAYMENTS)
        append(first, 2)
        append(second, 3)
        second.flush()
        append(second)
        disk.inject(Fault(operation="sync"))
        with pytest.raises(LogDirOffline):
            first.flush()
        assert second.partition.is_offline
        assert second.read_bytes(3).records == b""
        with pytest.raises(LogDirOffline):
            append(second)
        with pytest.raises(LogDirOffline):
            manager.get(PAYMENTS)

    @pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "rename", "sync_dir"])
    def test_during_a_checkpoint(self, operation: str) -> None:
        disk, manager, _, second = self.two_dirs()
        fault = Fault(operation=operation, path=lambda path: path.startswith("/a") and "orders" not in path)
        disk.inject(fault)
        manager.checkpoint_recovery_points()
        self.check_only_a_is_offline(manager, second)
        manager.checkpoint_high_watermarks()
        memory = disk.inner
        assert isinstance(memory, MemoryDisk)
        assert checkpoint(memory, HIGH_WATERMARK_CHECKPOINT, "/b").keys() >= {PAYMENTS}

    def test_during_a_deletion(self) -> None:
        disk, manager, _, second = self.two_dirs()
        disk.inject(Fault(operation="rename", path=lambda path: path.startswith("/a")))
        with pytest.raises(LogDirOffline, match="went offline moving orders-0"):
            manager.delete(ORDERS)
        assert list(manager.offline_dirs) == ["/a"]
        append(second)

    def test_during_the_stop(self) -> None:
        """The other dir is closed clean; the failed one is recovered at its next start."""
        disk, manager, _, _ = self.two_dirs()
        disk.inject(Fault(operation="sync", path=lambda path: path.startswith("/a")))
        manager.close()
        memory = disk.inner
        assert isinstance(memory, MemoryDisk)
        assert (is_marked_clean(memory, "/a"), is_marked_clean(memory, "/b")) == (False, True)
        disk.heal()
        again = manager_on(disk, "/a", "/b")
        assert not again.offline_dirs
        assert offsets(again.get(PAYMENTS)) == [0, 1]


class TestAFullDisk:
    def test_a_checkpoint_waits_for_room(self) -> None:
        """The old one stands, the logs go on, and the next one is written."""
        memory = MemoryDisk()
        disk, clock = FaultyDisk(memory), Clock()
        manager = manager_on(disk, clock=clock)
        log = manager.get_or_create(ORDERS)
        append(log, 2)
        disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, path=lambda path: "checkpoint" in path))
        manager.tick(clock.now_ms + 60_000)
        assert not manager.offline_dirs
        append(log)
        log.flush()
        manager.tick(clock.now_ms + 120_000)
        assert checkpoint(memory, RECOVERY_POINT_CHECKPOINT) == {ORDERS: 3}

    def test_a_new_partition_waits_for_room(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk)
        for operation in ("make_dir", "open"):
            disk.inject(Fault(operation=operation, errno=errno.ENOSPC))
            with pytest.raises(DiskFull, match="no space to create"):
                manager.get_or_create(ORDERS)
            disk.heal()
            assert not manager.offline_dirs
        append(manager.get_or_create(ORDERS))

    def test_a_stop_lets_go_of_everything(self) -> None:
        """What was flushed is safe; without its last words the next start is unclean."""
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        manager = manager_on(disk, "/a", "/b")
        for partition in (ORDERS, PAYMENTS):
            append(manager.get_or_create(partition), 2)
        disk.inject(
            Fault(
                operation="pwrite", errno=errno.ENOSPC, path=lambda path: path.startswith("/a"), forever=True
            )
        )
        manager.close()
        assert (is_marked_clean(memory, "/a"), is_marked_clean(memory, "/b")) == (False, True)
        again = manager_on(memory.durable_image(), "/a", "/b")
        assert [offsets(log) for log in again.logs().values()] == [[0, 1], [0, 1]]


class TestDamage:
    def damaged_disk(self) -> MemoryDisk:
        """Two partitions; a byte of a synced batch of one of them has changed, and good ones follow."""
        disk = MemoryDisk()
        manager = manager_on(disk, config=LogConfig())
        for partition in (ORDERS, PAYMENTS):
            log = manager.get_or_create(partition)
            append(log, 5)
            log.flush()
        orders = manager.get(ORDERS)
        assert orders is not None
        orders.partition.set_high_watermark(5)
        advance_log_start_offset(orders.partition, 1)
        manager.checkpoint_recovery_points()
        manager.abandon()
        file = disk.open(f"/a/orders-0/{file_name(0, '.log')}", write=True)
        file.pwrite(b"\xa5", 150)
        return disk

    def test_only_the_damaged_partition_is_kept_out(self) -> None:
        disk = self.damaged_disk()
        before = disk.files()[f"/a/orders-0/{file_name(0, '.log')}"]
        manager = manager_on(disk)
        assert list(manager.damaged) == [ORDERS]
        with pytest.raises(DamagedLog, match="bad batch: a batch whose checksum") as caught:
            manager.get(ORDERS)
        with pytest.raises(DamagedLog):
            manager.get_or_create(ORDERS)
        assert [damage.kind for damage in caught.value.damages] == [DamageKind.BAD_BATCH]
        assert offsets(manager.get(PAYMENTS)) == list(range(5))
        assert disk.files()[f"/a/orders-0/{file_name(0, '.log')}"] == before

    @pytest.mark.parametrize("stop", ["close", "abandon"])
    def test_it_stays_damaged(self, stop: str) -> None:
        """What was known of it is kept, so that no later start takes the damage for a torn tail."""
        disk = self.damaged_disk()
        before = disk.files()[f"/a/orders-0/{file_name(0, '.log')}"]
        for _ in range(3):
            manager = manager_on(disk)
            assert list(manager.damaged) == [ORDERS]
            manager.tick(10**9)
            manager.checkpoint_high_watermarks()
            assert checkpoint(disk, RECOVERY_POINT_CHECKPOINT)[ORDERS] == 5
            assert checkpoint(disk, LOG_START_OFFSET_CHECKPOINT)[ORDERS] == 1
            getattr(manager, stop)()
            assert not is_marked_clean(disk)
        assert disk.files()[f"/a/orders-0/{file_name(0, '.log')}"] == before

    def test_a_partition_that_cannot_be_read_at_all(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        for partition in (ORDERS, PAYMENTS):
            append(manager.get_or_create(partition, topic_id=TOPIC_ID))
        manager.close()
        file = disk.open("/a/orders-0/partition.metadata", write=True)
        file.pwrite(b"junk", 0)
        manager = manager_on(disk)
        with pytest.raises(DamagedLog, match=r"orders-0 cannot be opened: .*partition\.metadata"):
            manager.get(ORDERS)
        assert offsets(manager.get(PAYMENTS)) == [0]
        assert manager.topic_ids() == {ORDERS: None, PAYMENTS: TOPIC_ID}

    @pytest.mark.parametrize("fate", ["delete", "set_aside"])
    def test_it_can_be_taken_away(self, fate: str) -> None:
        """Nobody needs it any more: nothing is left that would make every later start an unclean one."""
        disk, clock = self.damaged_disk(), Clock()
        manager = manager_on(disk, clock=clock)
        getattr(manager, fate)(ORDERS)
        assert not manager.damaged
        assert manager.get(ORDERS) is None
        assert ORDERS not in checkpoint(disk, RECOVERY_POINT_CHECKPOINT)
        assert ORDERS not in checkpoint(disk, LOG_START_OFFSET_CHECKPOINT)
        manager.tick(clock.now_ms + 5000)
        left = sorted(entry.name.rpartition("-")[2] for entry in disk.scan("/a") if entry.is_directory)
        assert left == (["3"] if fate == "delete" else ["3", "stray"])
        assert offsets(manager.get_or_create(ORDERS)) == []
        manager.close()
        assert is_marked_clean(disk)
        assert not manager_on(disk).damaged

    def test_a_disk_without_room_keeps_it(self) -> None:
        disk = FaultyDisk(self.damaged_disk())
        manager = manager_on(disk)
        disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC))
        with pytest.raises(DiskFull):
            manager.delete(ORDERS)
        assert list(manager.damaged) == [ORDERS]
        manager.delete(ORDERS)
        assert not manager.damaged

    def test_it_goes_offline_with_its_dir(self) -> None:
        disk = FaultyDisk(self.damaged_disk())
        manager = manager_on(disk)
        disk.inject(Fault(operation="pwrite"))
        with pytest.raises(LogDirOffline):
            manager.delete(ORDERS)
        with pytest.raises(LogDirOffline):
            manager.delete(ORDERS)
        with pytest.raises(LogDirOffline):
            manager.topic_id(ORDERS)
        assert manager.topic_ids() == {}

    def test_whose_it_is(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk, config=LogConfig())
        log = manager.get_or_create(ORDERS, topic_id=TOPIC_ID)
        append(log, 5)
        log.flush()
        manager.checkpoint_recovery_points()
        manager.abandon()
        disk.open(f"/a/orders-0/{file_name(0, '.log')}", write=True).pwrite(b"\xa5", 150)
        manager = manager_on(disk)
        assert list(manager.damaged) == [ORDERS]
        assert manager.topic_id(ORDERS) == TOPIC_ID
        assert manager.topic_id(PAYMENTS) is None
        disk.remove("/a/orders-0/partition.metadata")
        assert manager.topic_id(ORDERS) is None

    def test_a_disk_that_cannot_say_whose_it_is_goes_offline(self) -> None:
        disk = FaultyDisk(self.damaged_disk())
        manager = manager_on(disk)
        disk.inject(Fault(path=lambda path: "partition.metadata" in path))
        with pytest.raises(LogDirOffline, match="reading orders-0"):
            manager.topic_id(ORDERS)
        assert manager.is_offline


class TestDeletion:
    def test_at_once_out_of_sight_and_later_gone(self) -> None:
        disk, clock = MemoryDisk(), Clock()
        manager = manager_on(disk, clock=clock)
        log = manager.get_or_create(ORDERS)
        append(log, 3)
        log.partition.set_high_watermark(2)
        manager.checkpoint_high_watermarks()
        manager.delete(ORDERS)
        assert manager.get(ORDERS) is None
        assert manager.checkpointed_high_watermark(ORDERS) == 0
        (doomed,) = [entry.name for entry in disk.scan("/a") if entry.is_directory]
        assert doomed.startswith("orders-0.")
        assert doomed.endswith("-delete")
        assert len(doomed) == len("orders-0.") + 32 + len("-delete")
        manager.tick(clock.now_ms + 4999)
        assert [entry.name for entry in disk.scan("/a") if entry.is_directory] == [doomed]
        manager.tick(clock.now_ms + 5000)
        assert [entry.name for entry in disk.scan("/a") if entry.is_directory] == []
        manager.delete(ORDERS)

    def test_the_same_name_again_is_a_new_log(self) -> None:
        disk, clock = MemoryDisk(), Clock()
        manager = manager_on(disk, clock=clock)
        append(manager.get_or_create(ORDERS, topic_id=TOPIC_ID), 3)
        manager.delete(ORDERS)
        log = manager.get_or_create(ORDERS, topic_id=OTHER_ID)
        assert (log.log_end_offset, log.partition.topic_id) == (0, OTHER_ID)
        append(log)
        manager.tick(clock.now_ms + 5000)
        assert offsets(log) == [0]

    def test_it_does_not_come_back(self) -> None:
        """Its name is gone durably when the call returns; what is left is removed by the next start."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        append(log, 3)
        log.flush()
        manager.checkpoint_recovery_points()
        manager.delete(ORDERS)
        image = disk.durable_image()
        again = manager_on(image)
        assert not again.logs()
        again.tick(Clock().now_ms + 5000)
        assert [entry.name for entry in image.scan("/a") if entry.is_directory] == []

    def test_row_190_a_name_of_full_length(self) -> None:
        """The whole name has 255 characters, the topic's part is cut."""
        topic = "n" + "o" * 248
        disk = MemoryDisk()
        manager = manager_on(disk)
        manager.get_or_create(TopicPartition(topic, 5))
        manager.delete(TopicPartition(topic, 5))
        (doomed,) = [entry.name for entry in disk.scan("/a") if entry.is_directory]
        assert len(doomed) == 255
        assert doomed.startswith("n" + "o" * 212 + "-5.")

    def test_row_215_a_directory_set_aside_is_not_opened(self) -> None:
        """With or without segments: nothing is made in it, it is no partition, and it goes with a tick."""
        unique = "0" * 32
        log_name = file_name(0, ".log")
        disk = MemoryDisk(
            {f"/a/t-1.{unique}-delete/{log_name}": b"x"}, directories=["/a", f"/a/t-2.{unique}-delete"]
        )
        manager = manager_on(disk)
        assert not manager.logs()
        assert list(disk.scan(f"/a/t-2.{unique}-delete")) == []
        manager.tick(Clock().now_ms)
        assert [entry.name for entry in disk.scan("/a") if entry.is_directory] == []

    def test_what_another_program_set_aside(self) -> None:
        """`-stray` and `-future` are not partitions and not rubbish; `-delete` is removed."""
        unique = "0123456789abcdef" * 2
        stray, future = f"/a/t-1.{unique}-stray", f"/a/t-1.{unique}-future"
        disk = MemoryDisk({f"/a/t-1.{unique}-delete/x": b"", f"{stray}/x": b"", f"{future}/x": b""})
        manager = manager_on(disk)
        manager.tick(Clock().now_ms)
        assert not manager.logs()
        left = [f"/a/{entry.name}" for entry in disk.scan("/a") if entry.is_directory]
        assert left == [future, stray]


class TestRetention:
    OLD = LogConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=5000)

    def filled(self, manager: LogManager, *partitions: TopicPartition) -> list[Log]:
        """Logs with records that are minutes old, all committed."""
        logs = [manager.get_or_create(partition) for partition in partitions]
        for log in logs:
            append(log, 9)
            log.partition.set_high_watermark(9)
        return logs

    def test_the_schedule(self) -> None:
        """Every five minutes, and `deadline_ms` says when something is due, files to unlink among it."""
        disk, clock = MemoryDisk(), Clock()
        manager = manager_on(disk, clock=clock, config=self.OLD)
        manager.tick(clock.now_ms + 30_000)  # the first look, at nothing
        clock.now_ms += 30_000
        (log,) = self.filled(manager, ORDERS)
        start_ms = now_ms = clock.now_ms
        while not any(path.endswith(".deleted") for path in disk.files()):
            before_ms, now_ms = now_ms, manager.deadline_ms
            assert before_ms < now_ms, "a deadline that is not met by a tick"
            manager.tick(now_ms)
        assert (now_ms - start_ms, log.log_start_offset) == (300_000, 9)
        assert manager.deadline_ms == now_ms + 5000
        manager.tick(now_ms + 4999)
        assert any(path.endswith(".deleted") for path in disk.files())
        manager.tick(now_ms + 5000)
        assert not any(path.endswith(".deleted") for path in disk.files())

    def test_compacted_logs_are_the_cleaners(self) -> None:
        """Two who take segments away from one log would have to agree."""
        both = LogConfig(segment_bytes=300, retention_ms=1000, cleanup_policy="compact,delete")
        manager = manager_on(MemoryDisk(), config=self.OLD, payments=both)
        self.filled(manager, ORDERS, PAYMENTS)
        assert list(manager.delete_old_segments(10**6)) == [ORDERS]

    def test_one_that_fails_does_not_stop_the_others(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk, config=self.OLD)
        orders, _ = self.filled(manager, ORDERS, PAYMENTS)
        disk.inject(Fault(operation="pwrite", path=lambda path: "start-offset" in path, errno=errno.ENOSPC))
        assert list(manager.delete_old_segments(10**6)) == [PAYMENTS]
        assert offsets(orders) == list(range(9))
        assert not manager.offline_dirs
        assert list(manager.delete_old_segments(10**6)) == [ORDERS]

    def test_a_dir_that_fails_does_not_stop_the_other(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk, "/a", "/b", config=self.OLD)
        orders, _ = self.filled(manager, ORDERS, PAYMENTS)
        bad = in_dir(orders.partition.directory)
        disk.inject(
            Fault(operation="rename", path=lambda path: in_dir(path) == bad and path.endswith(".log"))
        )
        assert list(manager.delete_old_segments(10**6)) == [PAYMENTS]
        assert list(manager.offline_dirs) == [f"/{bad}"]

    def test_a_clock_that_is_set_back_stops_no_schedule(self) -> None:
        """Else nothing would be checkpointed, or deleted, for as long as the step was wide."""
        disk, clock = MemoryDisk(), Clock()
        clock.now_ms = 10**12
        manager = manager_on(disk, clock=clock)
        append(manager.get_or_create(ORDERS), 9)
        manager.tick(10**6)
        assert ORDERS in checkpoint(disk, RECOVERY_POINT_CHECKPOINT)
