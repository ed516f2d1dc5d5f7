"""Logs that are closed, killed and opened again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.errors import CorruptBatch, DamagedLog, InvalidRecord, LogClosed
from logstore.format.batch import Batch
from logstore.log.append import append_as_leader
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, flush_sealed
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.testing.disks import MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, names
from tests.logstore.plain_logs import (
    NOW_MS,
    SIZE,
    filled,
    new_disk,
    offsets,
    one,
    opened,
    segment_bases,
    transactions,
)


class TestStoppingAndStarting:
    def test_row_195_clean(self) -> None:
        """Nothing is recovered, and the recovery point is the end."""
        disk = new_disk()
        log = filled(40, disk, segment_bytes=10 * SIZE, index_interval_bytes=SIZE)
        entries = [segment.indexes.offsets.entry_count for segment in log.partition.segments]
        log.close()
        again = opened(disk, segment_bytes=10 * SIZE, index_interval_bytes=SIZE)
        assert again.partition.recovery_point == again.log_end_offset == 40
        assert not again.partition.report.scanned_bytes
        assert [segment.indexes.offsets.entry_count for segment in again.partition.segments] == entries

    def test_row_196_unclean(self) -> None:
        """The same content; the recovery point stays until the next flush."""
        disk = new_disk()
        log = filled(25, disk, segment_bytes=10 * SIZE)
        assert log.partition.recovery_point == 20
        again = opened(disk.copy(), segment_bytes=10 * SIZE)
        assert (again.log_end_offset, again.partition.recovery_point) == (25, 20)
        again.flush()
        assert again.partition.recovery_point == 25

    def test_close_is_final_and_harmless_twice(self) -> None:
        log = filled(3)
        log.close()
        log.close()
        calls: list[Callable[[], object]] = [
            lambda: log.append(b"x"),
            lambda: log.read_bytes(0),
            lambda: list(log.read()),
            lambda: log.offset_for_timestamp(0),
            lambda: log.truncate_to(0),
            lambda: truncate_fully_and_start_at(log.partition, 0),
            lambda: log.partition.roll(),
            lambda: log.partition.assign_epoch(9, 3),
            lambda: advance_log_start_offset(log.partition, 1),
        ]
        for call in calls:
            with pytest.raises(LogClosed, match="open it again"):
                call()

    def test_as_a_context(self) -> None:
        disk = new_disk()
        with opened(disk) as log:
            log.append(b"x")
        with opened(disk) as log:
            assert [record.value for record in log.read()] == [b"x"]

    def test_row_201_noise_behind_the_active_segment(self) -> None:
        disk = new_disk()
        filled(10, disk).flush()
        image = disk.durable_image()
        for suffix in (".log", ".index", ".timeindex"):
            file = image.open(f"{DIRECTORY}/{file_name(0, suffix)}", create=True, write=True)
            file.pwrite(b"\xa5" * 100, file.size())
        again = opened(image)
        assert offsets(again) == list(range(10))
        assert [cut.to_byte - cut.from_byte for cut in again.partition.report.cuts] == [100]

    def test_row_202_noise_below_a_start_that_is_higher(self) -> None:
        """Nothing reaches the start any more: the log begins there anew, and goes on."""
        disk = new_disk()
        log = filled(10, disk)
        advance_log_start_offset(log.partition, 4)
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.pwrite(b"\xa5" * 9 * SIZE, SIZE)
        again = opened(image)
        assert (again.log_start_offset, again.log_end_offset) == (4, 4)
        assert [name for name in names(image) if name.endswith((".log", SNAPSHOT_SUFFIX))] == [
            file_name(4, ".log")
        ]
        assert again.append(b"x").first_offset == 4

    def test_row_209_epochs_lost_and_found(self) -> None:
        disk = new_disk()
        log = opened(disk)
        for epoch in (0, 0, 2, 5):
            append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
        image = disk.copy()
        image.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
        assert opened(image).partition.epochs == ((0, 0), (2, 2), (5, 3))

    def test_index_entries_after_a_torn_tail_begin_where_it_was_cut(self) -> None:
        disk = new_disk()
        log = filled(2, disk, index_interval_bytes=SIZE - 1)
        log.append(b"torn" * SIZE)
        left = disk.copy()
        left.open(log.partition.segments.active.path(".log"), write=True).truncate(4 * SIZE)
        again = opened(left, index_interval_bytes=SIZE - 1)
        assert again.log_end_offset == 2
        for _ in range(2):
            again.append_batches(one())
        assert again.partition.segments.active.indexes.offsets.entries() == [(1, SIZE), (3, 3 * SIZE)]

    def test_row_214_an_empty_active_segment(self) -> None:
        disk = new_disk()
        log = filled(3, disk)
        log.partition.roll()
        log.close()
        image = disk.copy()
        for suffix in (".index", ".timeindex"):
            image.remove(f"{DIRECTORY}/{file_name(3, suffix)}")
        again = opened(image)
        assert segment_bases(again) == [0, 3]
        assert again.append(b"x").first_offset == 3


class TestDamageBelowTheRecoveryPoint:
    """What was durable and is not there any more is never cut in silence."""

    def sealed(self) -> MemoryDisk:
        disk = new_disk()
        log = filled(10, disk, segment_bytes=5 * SIZE)
        log.close()
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.pwrite(b"\xa5", 2 * SIZE - 1)
        return image

    def test_after_a_clean_stop_it_shows_when_it_is_read(self) -> None:
        log = opened(self.sealed(), segment_bytes=5 * SIZE)
        assert offsets(log, 2) == [2, 3, 4, 5, 6, 7, 8, 9]
        with pytest.raises(CorruptBatch):
            offsets(log)

    def test_a_lost_index_does_not_let_it_be_cut(self) -> None:
        """The segment is read because its index is missing; the batches behind the bad one stay."""
        image = self.sealed()
        image.remove(f"{DIRECTORY}/{file_name(0, '.index')}")
        before = image.files()[f"{DIRECTORY}/{file_name(0, '.log')}"]
        with pytest.raises(DamagedLog, match=rf"at byte {SIZE} \(offset 1\): bad batch"):
            opened(image, segment_bytes=5 * SIZE)
        assert image.files()[f"{DIRECTORY}/{file_name(0, '.log')}"] == before

    @pytest.mark.parametrize("clean", [True, False])
    def test_aborts_that_cannot_be_read_are_found_again(self, clean: bool) -> None:
        """Nothing else tells a committed reader what to leave out."""
        disk = new_disk()
        log = opened(disk, segment_bytes=300)
        expected = transactions(log)
        log.close()
        image = disk.copy()
        if not clean:
            image.remove(f"{DIRECTORY}/.kafka_cleanshutdown")
        for name in names(image):
            if name.endswith(".txnindex"):
                file = image.open(f"{DIRECTORY}/{name}", write=True)
                file.pwrite(b"\x00\x07", 0)
        again = opened(image, segment_bytes=300)
        assert [entry for each in again.partition.segments for entry in each.aborts.index.entries] == expected

    def test_more_bytes_in_a_segment_that_nobody_reads_again(self) -> None:
        """Its seal tells, at the price of listing the directory."""
        disk = new_disk()
        log = filled(10, disk, segment_bytes=5 * SIZE)
        flush_sealed(log.partition)
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.truncate(5 * SIZE + 7)
        with pytest.raises(DamagedLog, match=rf"longer than sealed: {5 * SIZE + 7} bytes"):
            opened(image, segment_bytes=5 * SIZE)


def test_an_epoch_is_on_disk_before_its_first_batch() -> None:
    """A batch of an epoch that the file does not know could not be told from one of the epoch before."""
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    disk.operations.clear()
    append_as_leader(log.partition, one(), leader_epoch=3, now_ms=NOW_MS)
    calls = [(operation.name, operation.path.rsplit("/", 1)[1]) for operation in disk.operations]
    published = calls.index(("sync_dir", "orders-0"))
    assert ("rename", "leader-epoch-checkpoint.tmp") in calls[:published]
    assert calls.index(("pwrite", file_name(0, ".log"))) > published


def test_a_durable_append_is_one_sync() -> None:
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    log.append(b"a", sync=True)
    disk.operations.clear()
    log.append(b"b", sync=True)
    assert [operation.name for operation in disk.operations] == ["pwrite", "sync"]
    assert log.partition.recovery_point == 2


def test_flush_messages_flushes_by_itself() -> None:
    log = opened(flush_messages=3)
    for expected in (0, 0, 3, 3, 3, 6):
        log.append(b"x")
        assert log.partition.recovery_point == expected


def test_batches_of_other_logs_need_their_place_first() -> None:
    """A batch that has a place in another log is refused: it would look as if it had been there."""
    source = filled(2)
    with pytest.raises(InvalidRecord, match="it must be 0"):
        opened().append(list(source.read_batches())[1])
    assert isinstance(next(source.read_batches()), Batch)


def test_an_epoch_below_the_newest_is_refused() -> None:
    """Behind a batch of a later epoch it would look like a leftover, and recovery would cut it."""
    log = opened()
    append_as_leader(log.partition, one(), leader_epoch=5, now_ms=NOW_MS)
    with pytest.raises(ValueError, match="leader epoch 3 is below 5"):
        append_as_leader(log.partition, one(), leader_epoch=3, now_ms=NOW_MS)
    assert log.log_end_offset == 1
