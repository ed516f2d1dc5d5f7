"""The logs of a node: dirs that fail alone, checkpoints and their schedule, stops, damage, deletion."""

from __future__ import annotations

import errno
import random
import sys
from pathlib import Path

import pytest

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE, read_clean_shutdown
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from logstore.checkpoint.identity import MetaProperties, write_meta_properties
from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.disk.files import OsDisk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, InconsistentTopicId, LogDirOffline
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at, truncate_to
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import Segment
from logstore.segment.segments import Segments
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.descriptors import open_below
from tests.logstore.managers import (
    CONFIG,
    ORDERS,
    OTHER_ID,
    PAYMENTS,
    TOPIC_ID,
    Clock,
    append,
    checkpoint,
    is_marked_clean,
    manager_on,
    offsets,
    rot,
)


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

    def test_the_root_of_a_file_system_is_an_empty_log_dir(self) -> None:
        """A broker refused to start on the mount point of an ext4."""
        disk = MemoryDisk(directories=["/a/lost+found"])
        assert manager_on(disk).had_empty_dir

    def test_row_189_a_directory_that_is_no_partition(self) -> None:
        """Better to stop than to guess whose data it is; and everything is let go of."""
        disk = MemoryDisk(directories=["/a/orders-0", "/a/not_a_partition"])
        with pytest.raises(InvalidTopic, match="not_a_partition"):
            manager_on(disk)
        disk.remove_dir("/a/not_a_partition")
        assert list(manager_on(disk).logs()) == [ORDERS]

    def test_dirs_are_given_and_given_once(self) -> None:
        for dirs in ([], ["/a", "/a"]):
            with pytest.raises(ValueError, match="give at least one, each only once"):
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

    @pytest.mark.parametrize(
        "where", ["records", "a length", "the last records", "the last length", "an epoch"]
    )
    def test_bytes_that_changed_under_a_process_that_was_killed_are_no_torn_tail(self, where: str) -> None:
        """A kill cuts a batch short; it changes no byte. Cut and called clean, the log could be elected with
        less than it had acknowledged."""
        disk = MemoryDisk()
        first = manager_on(disk, boot_id="one", config=LogConfig())
        first.vouch()
        log = first.get_or_create(ORDERS)
        append(log, 9)
        first.abandon()
        size = len(disk.files()["/a/orders-0/00000000000000000000.log"]) // 9
        slot = 8 if "last" in where else 4
        position = size * slot + {"records": 70, "length": 9, "epoch": 14}[where.rsplit(maxsplit=1)[-1]]
        rot(disk, "/a/orders-0/00000000000000000000.log", position)
        second = manager_on(disk, boot_id="one", config=LogConfig())
        (damage,) = second.damaged[ORDERS].damages
        assert (damage.offset, damage.position) == (slot, slot * size)
        assert "its process was killed" in str(second.damaged[ORDERS])
        second.abandon()
        third = manager_on(disk, boot_id="two", config=LogConfig())
        end = slot + (where == "an epoch")
        assert offsets(third.get(ORDERS)) == list(range(end)), "a power cut may leave anything"

    @pytest.mark.skipif(sys.platform != "linux", reason="it lists its descriptors")
    def test_a_log_that_was_refused_keeps_no_file_open(self, tmp_path: Path) -> None:
        """Kept with the error, they would stay open, and mapped while the next opening cuts them."""
        parts = {"disk": OsDisk(), "clock": Clock(), "random": random.Random(7)}
        manager = LogManager([str(tmp_path)], **parts)  # type: ignore[arg-type]
        append(manager.get_or_create(ORDERS), 9)
        manager.logs()[ORDERS].flush()
        manager.tick(1 << 50)
        manager.abandon()
        path = tmp_path / "orders-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:300] + bytes(300) + path.read_bytes()[600:])
        again = LogManager([str(tmp_path)], **parts)  # type: ignore[arg-type]
        assert ORDERS in again.damaged
        assert open_below(path.parent) == 0
        again.abandon()

    def test_a_write_that_a_kill_cut_short_is_a_torn_tail(self) -> None:
        disk = MemoryDisk()
        first = manager_on(disk, boot_id="one", config=LogConfig())
        first.vouch()
        append(first.get_or_create(ORDERS), 9)
        first.abandon()
        file = disk.open("/a/orders-0/00000000000000000000.log", write=True)
        file.truncate(file.size() - 7)
        file.close()
        second = manager_on(disk, boot_id="one", config=LogConfig())
        assert second.was_clean
        assert offsets(second.get(ORDERS)) == list(range(8))

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

    def test_a_log_start_is_written_without_a_look_at_the_other_logs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retention may move those of all logs at once."""
        manager, looks = manager_on(MemoryDisk()), 0
        logs = [manager.get_or_create(TopicPartition("orders", number)) for number in range(50)]
        first = vars(Segments)["first"].fget

        def look(segments: Segments) -> Segment:
            nonlocal looks
            looks += 1
            found: Segment = first(segments)
            return found

        append(logs[7], 5)
        logs[7].partition.set_high_watermark(5)
        monkeypatch.setattr(Segments, "first", property(look))
        advance_log_start_offset(logs[7].partition, 2)
        assert looks < 10

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

    def test_a_truncation_lowers_the_checkpointed_high_watermark(self) -> None:
        """At once: what is appended there, and is not committed, would be after a kill."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        append(log, 4)
        log.partition.set_high_watermark(4)
        manager.checkpoint_high_watermarks()
        truncate_to(log.partition, 2)
        assert checkpoint(disk, HIGH_WATERMARK_CHECKPOINT) == {ORDERS: 2}

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
