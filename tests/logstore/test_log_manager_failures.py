"""Log dirs that fail, are full or damaged; deletion and retention."""

from __future__ import annotations

import errno

import pytest

from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from logstore.config import LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, DamageKind, DiskFull, LogDirOffline, OutOfResources
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.partition_log import PartitionLog
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.logstore.managers import (
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
)


def in_dir(path: str) -> str:
    """Which log dir a path lies in."""
    return path.split("/")[1]


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
        with pytest.raises(LogDirOffline, match="orders-0 is in /a, which is offline"):
            manager.get(ORDERS)
        with pytest.raises(LogDirOffline):
            manager.get_or_create(ORDERS)
        append(second)
        second.flush()
        assert offsets(manager.get(PAYMENTS)) == [0, 1, 2]
        new = manager.get_or_create(TopicPartition("new", 0))
        assert in_dir(new.partition.directory) == "b"

    def test_a_dir_is_reported_once_all_its_logs_are_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A turn may run while a sync thread takes the dir offline. It looks at the logs only once."""
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk, "/a")
        first, second = manager.get_or_create(ORDERS), manager.get_or_create(PAYMENTS)
        append(first)
        reported: list[list[str]] = []
        real = PartitionLog.take_offline

        def take_offline(log: PartitionLog, error: OSError) -> None:
            reported.append(list(manager.failed_dirs))
            real(log, error)

        monkeypatch.setattr(PartitionLog, "take_offline", take_offline)
        disk.inject(Fault(operation="sync", path=lambda path: path.endswith(".log")))
        with pytest.raises(LogDirOffline):
            first.flush()
        assert first.partition.is_offline
        assert second.partition.is_offline
        assert reported
        assert not any(reported)
        assert manager.failed_dirs == ["/a"]

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
        with pytest.raises(LogDirOffline, match=r"every log dir failed: /a: .*; /b: .*Input/output"):
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

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
    def test_a_shortage_of_descriptors_or_memory_is_no_failed_disk(self, code: int) -> None:
        memory, clock = MemoryDisk(), Clock()
        disk = FaultyDisk(memory)
        manager = manager_on(disk, clock=clock)
        log = manager.get_or_create(ORDERS)
        append(log, 2)
        log.flush()
        disk.inject(Fault(operation="open", errno=code, forever=True))
        manager.tick(clock.now_ms + 60_000)
        with pytest.raises(OutOfResources, match=r"cannot create.*ulimit"):
            manager.get_or_create(PAYMENTS)
        assert not manager.offline_dirs
        disk.heal()
        append(log)
        log.flush()
        append(manager.get_or_create(PAYMENTS))
        manager.tick(clock.now_ms + 120_000)
        assert checkpoint(memory, RECOVERY_POINT_CHECKPOINT)[ORDERS] == 3

    def test_a_flush_without_descriptors_syncs_nothing_and_is_repeated(self) -> None:
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        append(log, 2)
        log.partition.segments.active.rest()  # its file has to be opened again
        disk.inject(Fault(operation="open", errno=errno.EMFILE))
        with pytest.raises(OutOfResources, match="nothing was synced"):
            log.flush()
        assert log.partition.recovery_point == 0
        log.flush()
        assert log.partition.recovery_point == 2
        append(log)
        log.partition.segments.active.name_is_durable = False  # as after a roll: the directory is opened
        disk.inject(Fault(operation="sync_dir", errno=errno.EMFILE))
        with pytest.raises(OutOfResources, match="nothing was synced"):
            log.flush()
        log.flush()
        assert log.partition.recovery_point == 3

    @pytest.mark.parametrize("directory", ["/a/orders-0", "/a"])
    def test_a_new_log_without_descriptors_is_made_durable_later(self, directory: str) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk)
        disk.inject(Fault(operation="sync_dir", errno=errno.EMFILE, path=directory.__eq__))
        with pytest.raises(OutOfResources, match="nothing was synced"):
            manager.get_or_create(ORDERS)
        assert not manager.offline_dirs
        log = manager.get_or_create(ORDERS)
        assert log.partition.sync_name is None
        append(log)

    def test_a_start_without_descriptors_opens_nothing_and_says_so(self) -> None:
        memory = MemoryDisk()
        manager = manager_on(memory)
        append(manager.get_or_create(ORDERS))
        manager.close()
        disk = FaultyDisk(memory)
        disk.inject(Fault(operation="open", errno=errno.EMFILE, path=lambda path: path.endswith(".log")))
        with pytest.raises(OutOfResources, match="its logs were not opened"):
            manager_on(disk)
        assert offsets(manager_on(memory).logs()[ORDERS]) == [0]

    def test_a_new_partition_waits_for_room(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = manager_on(disk)
        for operation in ("make_dir", "open"):
            disk.inject(Fault(operation=operation, errno=errno.ENOSPC))
            with pytest.raises(DiskFull, match="cannot create"):
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

    def test_at_once_where_a_directory_cannot_be_renamed(self) -> None:
        """As one in a lower layer of an overlayfs: it came with a container's image."""
        disk = MemoryDisk()
        faulty = FaultyDisk(disk, [Fault(operation="rename", errno=errno.EXDEV, path="/a/orders-0".__eq__)])
        manager = manager_on(faulty)
        append(manager.get_or_create(ORDERS), 3)
        manager.delete(ORDERS)
        assert not manager.offline_dirs
        assert [entry.name for entry in disk.durable_image().scan("/a") if entry.is_directory] == []
        append(manager.get_or_create(ORDERS))

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

    def test_two_directories_of_one_partition_are_named_and_not_used(self) -> None:
        """Somebody copied one into another log dir: nothing tells which has the newer records."""
        disk = MemoryDisk()
        manager = manager_on(disk, "/a", "/b")
        append(manager.get_or_create(ORDERS), 2)
        manager.close()
        for path, data in disk.files().items():
            if path.startswith("/a/orders-0/"):
                copy = path.replace("/a/", "/b/", 1)
                disk.make_dir("/b/orders-0")
                disk.open(copy, create=True).pwrite(data, 0)
        again = manager_on(disk, "/a", "/b")
        assert ORDERS not in again.logs()
        with pytest.raises(DamagedLog, match="orders-0 is in /a/orders-0 and /b/orders-0, and nothing tells"):
            again.get(ORDERS)


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
        for at in (1, 2):  # it tries again, after it has removed producer snapshots
            fault = Fault(
                operation="pwrite", path=lambda path: "start-offset" in path, errno=errno.ENOSPC, at=at
            )
            disk.inject(fault)
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
