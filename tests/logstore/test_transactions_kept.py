"""Snapshots, recovery, expiry and markers of transactions."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import (
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogDirOffline,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from logstore.log.append import maybe_start_verification
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.producer_state import OpenTransaction, ProducerStateConfig
from logstore.log.read import late_transactions
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, remove_expired_producers
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import names, put
from tests.logstore.producing import (
    ABORT,
    COMMIT,
    NOW_MS,
    ORDERS,
    Clock,
    at,
    data,
    end,
    manager_on,
    open_since,
    plain,
    produce,
    replica,
)
from tests.logstore.transacting import DIRECTORY, SMALL, TXN, marker_of, restarted, snapshots, stand_alone

VERIFYING = ProducerStateConfig()


class TestSnapshots:
    def test_rolls_and_a_clean_stop_take_one(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk, SMALL)
        log = manager.get_or_create(ORDERS)
        for sequence in range(10):
            produce(log, 1, sequence, transaction=False)
        bases = [segment.base_offset for segment in log.partition.segments]
        assert snapshots(disk) == bases[1:]
        manager.close()
        assert snapshots(disk) == [*bases[1:], 10]
        log = restarted(disk)
        assert log.partition.producers()[0].last_sequence == 9
        assert not log.partition.report.scanned_bytes

    def test_row_142_not_twice_at_one_offset(self) -> None:
        disk = MemoryDisk()
        log = replica(disk)
        produce(log, 1, 0, transaction=False)
        log.partition.roll()
        log.partition.roll()
        log.close()
        assert snapshots(disk) == [1]

    def test_row_212_the_last_two_segments_get_one(self) -> None:
        """All lost, and the stop unclean: replayed from the start, and taken on the way and at the end."""
        disk = MemoryDisk()
        log = replica(disk, SMALL)
        for sequence in range(12):
            produce(log, 1, sequence, transaction=False)
        bases = [segment.base_offset for segment in log.partition.segments]
        image = disk.copy()
        for offset in snapshots(image):
            image.remove(f"{DIRECTORY}/{file_name(offset, SNAPSHOT_SUFFIX)}")
        again = manager_on(image, SMALL).get(ORDERS)
        assert again is not None
        assert snapshots(image) == [*bases[-2:], 12]
        assert [entry.last_sequence for entry in again.partition.producers()] == [11]

    def test_a_clean_stop_without_one_reads_the_batches(self) -> None:
        """A log with batches is closed with one: it was lost. To Kafka, such a log has no producers."""
        disk = MemoryDisk()
        manager = manager_on(disk, SMALL)
        log = manager.get_or_create(ORDERS)
        for sequence in range(12):
            produce(log, 1, sequence, transaction=False)
        bases = [segment.base_offset for segment in log.partition.segments]
        manager.close()
        for offset in snapshots(disk):
            disk.remove(f"{DIRECTORY}/{file_name(offset, SNAPSHOT_SUFFIX)}")
        again = manager_on(disk, SMALL).get(ORDERS)
        assert again is not None
        assert [entry.last_sequence for entry in again.partition.producers()] == [11]
        assert snapshots(disk) == [*bases[-2:], 12]

    @pytest.mark.parametrize("damage", [b"", b"\0\1", b"noise" * 40])
    def test_row_145_a_torn_one_is_deleted_and_an_older_one_replayed_from(self, damage: bytes) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk, SMALL)
        log = manager.get_or_create(ORDERS)
        for sequence in range(12):
            produce(log, 1, sequence, transaction=False)
        manager.close()
        for spoiled in (1, 2, len(snapshots(disk))):
            image = disk.copy()
            for offset in snapshots(image)[-spoiled:]:
                put(image, file_name(offset, SNAPSHOT_SUFFIX), damage)
            again = manager_on(image, SMALL).get(ORDERS)
            assert again is not None
            assert [entry.last_sequence for entry in again.partition.producers()] == [11]
            assert damage not in [image.files()[f"{DIRECTORY}/{name}"] for name in names(image)
                                  if name.endswith(SNAPSHOT_SUFFIX)]  # fmt: skip

    def test_row_147_one_above_the_log_end_goes(self) -> None:
        disk = MemoryDisk()
        log = replica(disk)
        produce(log, 1, 0, transaction=False)
        log.close()
        sound = disk.files()[f"{DIRECTORY}/{file_name(1, SNAPSHOT_SUFFIX)}"]
        for content_of_it in (sound, b"x"):
            image = disk.copy()
            put(image, file_name(50, SNAPSHOT_SUFFIX), content_of_it)
            again = manager_on(image).get(ORDERS)
            assert again is not None
            assert 50 not in snapshots(image)
            assert [entry.last_sequence for entry in again.partition.producers()] == [0]
            assert produce(again, 1, 1, transaction=False).first_offset == 1

    def test_row_213_a_start_inside_a_segment_and_past_one(self) -> None:
        """Deleted records leave their producers known as long as their bytes are there."""
        disk = MemoryDisk()
        log = replica(disk)
        produce(log, 1, 0, transaction=False)
        produce(log, 2, 0, transaction=False)
        log.partition.set_high_watermark(2)
        advance_log_start_offset(log.partition, 1)
        assert [entry.producer_id for entry in log.partition.producers()] == [1, 2]
        again = restarted(disk, LogConfig())
        assert [entry.producer_id for entry in again.partition.producers()] == [1, 2]
        log.partition.roll()
        log.close()
        image = disk.copy()
        for name in names(image):
            if name.startswith(f"{0:020d}.") or name.endswith(SNAPSHOT_SUFFIX):
                image.remove(f"{DIRECTORY}/{name}")
        put(image, file_name(1, ".log"), at(data(2, 0, transaction=False), 1))
        gone = restarted(image, LogConfig())
        assert (gone.log_start_offset, [entry.producer_id for entry in gone.partition.producers()]) == (
            1,
            [2],
        )


class TestRecovery:
    @pytest.mark.parametrize("earlier", [False, True])
    def test_row_90_aborts_are_found_again(self, earlier: bool) -> None:
        """Two transactions that end in the other order, and one of them may be open since before."""
        disk = MemoryDisk()
        log = replica(disk)
        truncate_fully_and_start_at(log.partition, 70)
        if earlier:
            append_as_follower(log.partition, at(data(2, 0), 75), leader_epoch=0)
            log.partition.roll()
        batches = [data(1, 0, count=2), data(2, 1, count=2), data(3, 0, count=2, transaction=False)]
        batches += [marker_of(2, ABORT), marker_of(1, COMMIT)]
        for offset, each in zip((100, 102, 104, 106, 107), batches, strict=True):
            append_as_follower(log.partition, at(each, offset), leader_epoch=0)
        expected = (AbortedTransaction(2, 75 if earlier else 102, 106, 100),)
        assert log.partition.segments[-1].aborts.index.entries == expected
        image = disk.copy()
        for name in names(image):
            if name.endswith(".txnindex"):
                image.remove(f"{DIRECTORY}/{name}")
        again = restarted(image, LogConfig())
        assert again.partition.segments[-1].aborts.index.entries == expected
        assert (again.partition.producer_state.end_offset, open_since(again)) == (108, [])

    @pytest.mark.parametrize("lost", ["all", "snapshots and the last segment's index"])
    def test_rows_210_and_211_indexes_and_snapshots_lost(self, lost: str) -> None:
        """Four producers over many segments; replayed from the start the aborts are the same."""
        disk = MemoryDisk()
        config = LogConfig(segment_bytes=600)
        manager = manager_on(disk, config)
        log = manager.get_or_create(ORDERS)
        for producer_id, sequence, count in (
            (1, 0, 5), (0, 0, 3), (2, 0, 2), (1, 5, 4), (3, 0, 3), (0, 0, 2), (1, 9, 10),
        ):  # fmt: skip
            if producer_id:
                produce(log, producer_id, sequence, count=count)
            else:
                plain(log, count)
        assert end(log, 1, ABORT).last_offset == 29
        produce(log, 2, 2, count=6)
        produce(log, 4, 0, count=3)
        end(log, 3, COMMIT)
        for count in (5, 5, 5, 5, 5, 5, 4):
            plain(log, count)
        assert end(log, 2, ABORT).last_offset == 74
        expected = [AbortedTransaction(1, 0, 29, 8), AbortedTransaction(2, 8, 74, 36)]

        def entries(of: Log) -> list[AbortedTransaction]:
            return [entry for each in of.partition.segments for entry in each.aborts.index.entries]

        assert entries(log) == expected
        last = log.partition.segments[-1].base_offset
        if lost != "all":
            log.partition.roll()
            manager.checkpoint_recovery_points()
            last = log.partition.segments[-2].base_offset
        image = disk.copy()
        for name in names(image):
            gone = name.endswith(".txnindex") and (lost == "all" or int(name[:20]) >= last)
            if gone or name.endswith(SNAPSHOT_SUFFIX):
                image.remove(f"{DIRECTORY}/{name}")
        if lost == "all":
            image.remove("/data/recovery-point-offset-checkpoint")
        else:
            file = image.open("/data/recovery-point-offset-checkpoint", write=True)
            file.truncate(0)
            file.pwrite(b"0\n1\norders 0 %d\n" % last, 0)
        again = manager_on(image, config).get(ORDERS)
        assert again is not None
        assert entries(again) == expected
        assert open_since(again) == [(4, 36)]
        known = sorted((e.producer_id, e.last_sequence) for e in again.partition.producers())
        assert known == [(1, 18), (2, 7), (3, 2), (4, 2)]

    def test_rows_136_and_137_what_followers_append(self) -> None:
        """Sequences again at new offsets, gaps in them, several producers in one append: all is kept."""
        log = replica()
        first = at(data(1, 0, transaction=False), 0) + at(data(2, 5, transaction=False, epoch=3), 1)
        second = at(data(1, 0, transaction=False), 2) + at(data(1, 40, transaction=False), 3)
        for each in (first, second):
            append_as_follower(log.partition, each, leader_epoch=0)
        assert log.read_bytes(0).records == first + second
        fields = [(b.producer_id, b.producer_epoch, b.base_sequence) for b in log.read_batches()]
        assert fields == [(1, 0, 0), (2, 3, 5), (1, 0, 0), (1, 0, 40)]
        assert [(e.producer_id, e.epoch, e.last_sequence) for e in log.partition.producers()] == [
            (1, 0, 40),
            (2, 3, 5),
        ]

    def test_rows_134_and_135_a_batch_sent_again(self) -> None:
        """Answered with its offsets, nothing appended; a part of it, or the sixth last, is out of order."""
        log = replica()
        for sequence in range(6):
            produce(log, 1, sequence, transaction=False)
        first = produce(log, 1, 6, count=3, transaction=False)
        assert produce(log, 1, 6, count=3, transaction=False) == first._replace(is_duplicate=True)
        assert produce(log, 1, 2, transaction=False).first_offset == 2
        for sequence, count in ((7, 2), (1, 1), (6, 2), (6, 4)):
            with pytest.raises(OutOfOrderSequence):
                produce(log, 1, sequence, count=count, transaction=False)
        assert log.log_end_offset == 9


class TestExpiry:
    def test_row_141_on_the_managers_tick(self) -> None:
        """Idle producers go, one with a transaction open stays, and the next sequence is free."""
        clock = Clock()
        config = ProducerStateConfig(
            producer_id_expiration_ms=1000,
            producer_id_expiration_check_interval_ms=300,
            transaction_partition_verification_enable=False,
        )
        manager = manager_on(MemoryDisk(), producers=config, clock=clock)
        log = manager.get_or_create(ORDERS)
        produce(log, 1, 0, transaction=False)
        produce(log, 2, 0)
        for now_ms, known in ((NOW_MS + 900, [1, 2]), (NOW_MS + 1100, [1, 2]), (NOW_MS + 1200, [2])):
            clock.now_ms = now_ms
            assert manager.deadline_ms <= NOW_MS + 1200
            manager.tick(now_ms)
            assert [entry.producer_id for entry in log.partition.producers()] == known, "checked every 300 ms"
        assert produce(log, 1, 77, transaction=False).first_offset == 2

    @pytest.mark.parametrize("clean", [True, False])
    def test_row_141_when_a_log_is_opened(self, clean: bool) -> None:
        """By a snapshot after a clean stop; after a crash by batches, and the next start forgets no more."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        produce(log, 1, 0, transaction=False)
        produce(log, 2, 0)
        if clean:
            manager.close()
        day_ms = 86_400_000
        for later_ms, known in ((day_ms - 1, [1, 2]), (day_ms, [2])):
            again = manager_on(disk.copy(), clock=Clock(NOW_MS + later_ms)).get(ORDERS)
            assert again is not None
            assert [entry.producer_id for entry in again.partition.producers()] == known

    def test_row_141_in_a_log_that_stands_alone(self) -> None:
        """Nobody ticks it; its owner calls `maintain`."""
        log = stand_alone(retention_ms=-1)
        produce(log, 1, 0, transaction=False)
        produce(log, 2, 0)
        for later_ms, known in ((86_399_999, [1, 2]), (86_400_000, [2])):
            log.maintain(NOW_MS + later_ms)
            assert [entry.producer_id for entry in log.partition.producers()] == known

    def test_settings_are_checked(self) -> None:
        with pytest.raises(InvalidConfig, match=r"producer\.id\.expiration\.ms is 0"):
            ProducerStateConfig(producer_id_expiration_ms=0)

    def test_late_transactions(self) -> None:
        """Open five minutes past the largest timeout: no coordinator will end it any more."""
        log = replica()
        produce(log, 1, 0)
        limit_ms = NOW_MS + 60_000 + 300_000
        assert late_transactions(log.partition, limit_ms, 60_000) == ()
        assert late_transactions(log.partition, limit_ms + 1, 60_000) == (OpenTransaction(1, 0, 0, NOW_MS),)
        end(log, 1, ABORT)
        assert late_transactions(log.partition, limit_ms + 1, 60_000) == ()


class TestVerification:
    def test_row_150_a_transaction_begins_with_a_guard(self) -> None:
        log = replica(producers=VERIFYING)
        with pytest.raises(InvalidTransactionState, match="no transaction is open"):
            produce(log, 1, 0)
        guard = maybe_start_verification(log.partition, 1, 0, 0)
        other = maybe_start_verification(log.partition, 2, 0, 0)
        for wrong in (None, other):
            with pytest.raises(InvalidTransactionState):
                produce(log, 1, 0, guard=wrong)
        assert produce(log, 1, 0, guard=guard).first_offset == 0
        assert maybe_start_verification(log.partition, 1, 1, 0) is None, "it is open: nothing to verify"
        assert produce(log, 1, 1).first_offset == 1
        end(log, 1, COMMIT)
        with pytest.raises(InvalidTransactionState):
            produce(log, 1, 2, guard=guard)

    def test_row_150_an_abort_spends_the_guard(self) -> None:
        """The coordinator gave up meanwhile: what was verified before is not any more."""
        log = replica(producers=VERIFYING)
        guard = maybe_start_verification(log.partition, 1, 0, 0)
        end(log, 1, ABORT)
        with pytest.raises(InvalidTransactionState):
            produce(log, 1, 0, guard=guard)
        assert len(log.partition.guards) == 0

    def test_row_150_switched_off(self) -> None:
        log = replica(producers=VERIFYING)
        maybe_start_verification(log.partition, 1, 0, 0)
        log.partition.producer_config = ProducerStateConfig(transaction_partition_verification_enable=False)
        assert maybe_start_verification(log.partition, 1, 0, 0) is None
        produce(log, 1, 0)
        assert len(log.partition.guards) == 0

    def test_what_needs_no_guard(self) -> None:
        """Batches outside of transactions, repeats, markers, and what a leader sends to its followers."""
        log = replica(producers=VERIFYING)
        produce(log, 1, 0, transaction=False)
        guard = maybe_start_verification(log.partition, 2, 0, 0)
        produce(log, 2, 0, guard=guard)
        end(log, 2, COMMIT)
        assert produce(log, 2, 0).is_duplicate
        append_as_follower(log.partition, at(data(3, 0), log.log_end_offset), leader_epoch=0)

    def test_row_151_the_lowest_verified_sequence_comes_first(self) -> None:
        """Requests of one producer overtake each other while they are verified."""
        log = replica(producers=VERIFYING)
        guard = maybe_start_verification(log.partition, 1, 4, 0)
        assert maybe_start_verification(log.partition, 1, 0, 0) == guard
        with pytest.raises(OutOfOrderSequence, match="sequence 4 before 0"):
            produce(log, 1, 4, guard=guard)
        assert len(log.partition.guards) == 1, "the entry is kept"
        produce(log, 1, 0, count=4, guard=guard)
        produce(log, 1, 4)

    def test_row_152_a_first_append_may_have_any_sequence(self) -> None:
        """Nothing is known of the producer here any more, and its coordinator knows the transaction."""
        log = replica(producers=VERIFYING)
        guard = maybe_start_verification(log.partition, 1, 17, 3)
        assert produce(log, 1, 17, epoch=3, guard=guard).first_offset == 0

    def test_guards_expire_with_their_producers(self) -> None:
        clock = Clock()
        log = replica(producers=VERIFYING, clock=clock)
        guard = maybe_start_verification(log.partition, 1, 0, 0)
        remove_expired_producers(log.partition, NOW_MS + 86_400_000)
        with pytest.raises(InvalidTransactionState):
            produce(log, 1, 0, guard=guard)


class TestMarkers:
    def test_rows_133_138_and_139_coordinators(self) -> None:
        """Through the log's own face: fenced by epoch and by coordinator, also after a restart."""
        disk = MemoryDisk()
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        for coordinator_epoch in (1, 1, 2):
            end(log, 1, COMMIT, epoch=3, coordinator_epoch=coordinator_epoch)
        assert log.partition.segments[0].aborts.index.entries == ()
        manager.close()
        again = manager_on(disk).get(ORDERS)
        for each in (again,):
            assert each is not None
            with pytest.raises(TransactionCoordinatorFenced):
                end(each, 1, COMMIT, epoch=3, coordinator_epoch=1)
            with pytest.raises(InvalidProducerEpoch):
                end(each, 1, COMMIT, epoch=2, coordinator_epoch=2)
            assert each.log_end_offset == 3

    def test_a_commit_writes_no_index(self) -> None:
        disk = MemoryDisk()
        log = replica(disk)
        produce(log, 1, 0)
        end(log, 1, COMMIT)
        assert not any(name.endswith(".txnindex") for name in names(disk))
        produce(log, 1, 1)
        end(log, 1, ABORT)
        assert any(name.endswith(".txnindex") for name in names(disk))

    def test_a_damaged_disk_is_not_silent(self) -> None:
        """A read whose aborts cannot be told is an error, not a read without aborts."""
        log = replica()
        produce(log, 1, 0)
        end(log, 1, ABORT)
        log.partition.set_high_watermark(2)

        def broken(*_: object) -> None:
            raise OSError(5, "Input/output error")

        segment = log.partition.segments[0]
        segment.aborts._index = None
        segment.disk = type("Broken", (), {"open": broken})()
        with pytest.raises(LogDirOffline):
            log.read_bytes(0, isolation=TXN)


def test_several_topics_share_nothing() -> None:
    """A producer id is the same in every partition that it writes to; its state is not."""
    manager = manager_on(MemoryDisk())
    orders, other = manager.get_or_create(ORDERS), manager.get_or_create(TopicPartition("other", 0))
    produce(orders, 1, 0)
    produce(other, 1, 40)
    end(orders, 1, ABORT)
    assert (open_since(orders), open_since(other)) == ([], [(1, 0)])
