"""Transactions in a real log: what committed readers see, and what the log knows."""

from __future__ import annotations

import threading
from typing import Any

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
from logstore.format.batch import Batch, encode_empty_batch, walk
from logstore.format.record import ControlType
from logstore.log import append, truncate
from logstore.log.append import append_as_follower, maybe_start_verification
from logstore.log.log import Log
from logstore.log.producer_state import OpenTransaction, ProducerStateConfig
from logstore.log.read import FetchIsolation, aborted_transactions, late_transactions
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, remove_expired_producers
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndexFile
from logstore.testing.disks import MemoryDisk
from tests.golden.reading import STREAMS, content, named
from tests.logstore.logs import names, put
from tests.logstore.producing import (
    ABORT,
    COMMIT,
    NOW_MS,
    ORDERS,
    Clock,
    at,
    committed,
    data,
    end,
    manager_on,
    open_since,
    plain,
    produce,
    replica,
)

TXN = FetchIsolation.TXN_COMMITTED
DIRECTORY = "/data/orders-0"
VERIFYING = ProducerStateConfig()
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)


def stand_alone(disk: MemoryDisk | None = None, **settings: Any) -> Log:
    disk = disk or MemoryDisk(directories=["/data"])
    return Log.open(DIRECTORY, LogConfig(**settings), disk=disk, clock=lambda: NOW_MS)


def restarted(disk: MemoryDisk, config: LogConfig = SMALL, **more: Any) -> Log:
    """The log as the next owner finds it after a power cut that took nothing."""
    log = manager_on(disk.copy(), config, **more).get(ORDERS)
    assert log is not None
    return log


class TestLastStableOffset:
    def test_row_156_it_waits_for_the_marker_to_be_replicated(self) -> None:
        """Not for the marker to be written: the high watermark has to pass it."""
        log = replica()
        produce(log, 1, 0, count=5)
        plain(log, 3)
        produce(log, 2, 0, count=2)
        produce(log, 1, 5, count=4)
        log.partition.set_high_watermark(log.log_end_offset)
        assert log.partition.last_stable_offset == 0
        end(log, 1, COMMIT)
        assert log.partition.last_stable_offset == 0
        log.partition.set_high_watermark(14)
        assert log.partition.last_stable_offset == 0, "the marker at 14 is not below it"
        log.partition.set_high_watermark(15)
        assert log.partition.last_stable_offset == 8
        end(log, 2, ABORT)
        assert log.partition.last_stable_offset == 8
        log.partition.set_high_watermark(log.log_end_offset)
        assert log.partition.last_stable_offset == log.log_end_offset == 16

    def test_rows_131_and_132_the_oldest_undecided_transaction(self) -> None:
        """Three producers; what is stored with an abort is the oldest *other* open one."""
        log = replica()
        for producer_id in (1, 2, 3):
            produce(log, producer_id, 0)
        assert open_since(log) == [(1, 0), (2, 1), (3, 2)]
        for producer_id, first in ((1, 1), (3, 1), (2, None)):
            end(log, producer_id, ABORT)
            assert log.partition.producer_state.first_undecided_offset == first
            assert log.partition.producer_state.first_unstable_offset == 0
        stored = log.partition.segments[0].aborts.index.entries
        assert [entry.last_stable_offset for entry in stored] == [1, 1, 6]
        for high_watermark, first in ((3, 0), (4, 1), (5, 1), (6, None)):
            log.partition.set_high_watermark(high_watermark)
            assert log.partition.producer_state.first_unstable_offset == first

    def test_row_186_it_is_raised_to_the_log_start(self) -> None:
        log = replica()
        produce(log, 1, 0)
        plain(log, 9)
        log.partition.set_high_watermark(10)
        for start in (5, 8):
            advance_log_start_offset(log.partition, start)
            assert log.partition.last_stable_offset == start
            assert committed(log) == []
        end(log, 1, COMMIT)
        log.partition.set_high_watermark(11)
        assert committed(log) == [8, 9]

    def test_the_bound_of_every_read(self) -> None:
        """Bytes, records and times: all of them end there, and reading at it is no error."""
        log = replica()
        plain(log, 2)
        produce(log, 1, 0)
        plain(log)
        log.partition.set_high_watermark(4)
        assert log.partition.last_stable_offset == 2
        assert log.read_bytes(0, isolation=TXN).next_offset == 2
        for offset in (2, 3, 4):
            assert log.read_bytes(offset, isolation=TXN).records == b""
        assert committed(log) == [0, 1]
        found = log.offset_for_timestamp(NOW_MS, isolation=TXN)
        assert found is not None
        assert found.offset == 0
        advance_log_start_offset(log.partition, 2)
        assert log.offset_for_timestamp(NOW_MS, isolation=TXN) is None
        assert log.offset_for_timestamp(NOW_MS) is not None

    def test_a_log_that_stands_alone_needs_no_other_replica(self) -> None:
        log = stand_alone()
        produce(log, 1, 0)
        log.append(b"plain")
        assert (log.partition.high_watermark, log.partition.last_stable_offset) == (2, 0)
        log.end_transaction(1, 0, commit=True)
        assert log.partition.last_stable_offset == 3
        assert committed(log) == [0, 1]

    def test_a_batch_is_not_stable_before_its_producer_is_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log end moves first; a reader between the two steps must not take it for committed."""
        log = stand_alone()
        log.append(b"plain")
        seen: list[int] = []
        note = append._note_producers

        def between(partition: Any, batches: Any) -> None:
            assert log.log_end_offset == 2
            seen.extend(committed(log))
            note(partition, batches)

        monkeypatch.setattr(append, "_note_producers", between)
        produce(log, 1, 0)
        assert seen == [0]

    def test_a_truncation_does_not_show_what_it_reopens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The abort goes before its data does: in between the data must not look committed."""
        log = stand_alone()
        produce(log, 1, 0)
        plain(log)
        end(log, 1, ABORT)
        seen: list[list[int]] = []
        cut = truncate._cut

        def between(partition: Any, offset: int, loss_id: int | None) -> None:
            cut(partition, offset, loss_id)
            seen.append(committed(log))

        monkeypatch.setattr(truncate, "_cut", between)
        log.truncate_to(2)
        assert seen == [[]]
        assert open_since(log) == [(1, 0)]


class TestReadCommitted:
    def test_aborted_data_is_left_out(self) -> None:
        log = stand_alone()
        produce(log, 1, 0)  # 0
        produce(log, 2, 0)  # 1
        plain(log)  # 2
        log.end_transaction(1, 0, commit=False)  # 3
        produce(log, 1, 1)  # 4: a new transaction of the same producer
        log.end_transaction(2, 0, commit=True)  # 5
        log.end_transaction(1, 0, commit=True)  # 6
        produce(log, 1, 2, transaction=False)  # 7
        assert committed(log) == [1, 2, 4, 7]
        assert [record.offset for record in log.read()] == [0, 1, 2, 4, 7]
        kinds = [(batch.base_offset, batch.is_control) for batch in log.read_batches(isolation=TXN)]
        assert kinds == [
            (1, False), (2, False), (3, True), (4, False), (5, True), (6, True), (7, False),
        ]  # fmt: skip

    def test_what_a_brokers_fetch_answers(self) -> None:
        """Bytes as they lie in the file, and beside them whose data the client has to drop."""
        log = stand_alone()
        produce(log, 1, 0)
        log.end_transaction(1, 0, commit=False)
        fetched = log.read_bytes(0, isolation=TXN)
        assert [batch.base_offset for batch in walk(fetched.records)] == [0, 1]
        assert fetched.aborted == (AbortedTransaction(1, 0, 1, 2),)
        assert log.read_bytes(0).aborted == ()
        assert log.read_bytes(0, 1, isolation=TXN).aborted == fetched.aborted
        assert log.read_bytes(2, isolation=TXN).aborted == ()

    def test_columns_are_no_way_around_it(self) -> None:
        pytest.importorskip("pyarrow")
        log = stand_alone()
        produce(log, 1, 0)
        log.end_transaction(1, 0, commit=False)
        produce(log, 1, 1)
        log.end_transaction(1, 0, commit=True)
        produce(log, 1, 2)
        for isolation, expected in ((TXN, [2]), (FetchIsolation.LOG_END, [0, 2, 4])):
            found = log.read_arrow(columns=["offset"], isolation=isolation)
            assert [offset for part in found for offset in part.column("offset").to_pylist()] == expected

    @pytest.mark.parametrize("start", range(0, 40, 3))
    def test_a_transaction_that_spans_segments(self, start: int) -> None:
        """Its abort stands in the index of the segment of its marker, far behind what is fetched."""
        disk = MemoryDisk()
        log = replica(disk, SMALL)
        for sequence in range(10):
            produce(log, 1, sequence)
            plain(log, 3)
        end(log, 1, ABORT)
        log.partition.set_high_watermark(log.log_end_offset)
        bases = [segment.base_offset for segment in log.partition.segments]
        assert len(bases) > 5
        assert [each.aborts.index.size_bytes > 0 for each in log.partition.segments].index(True) == len(
            bases
        ) - 1
        expected = [offset for offset in range(start, 40) if offset % 4]
        assert committed(log, start) == expected
        assert log.read_bytes(start, 1, isolation=TXN).aborted == (AbortedTransaction(1, 0, 40, 41),)
        log.flush()
        again = restarted(disk)
        again.partition.set_high_watermark(again.log_end_offset)
        assert committed(again, start) == expected

    def test_the_walk_of_the_indexes_ends_when_it_is_complete(self) -> None:
        """Later segments are not asked: an abort whose stable offset covers the fetch came first."""
        log = replica(None, SMALL)
        for _ in range(6):
            produce(log, 1, 0, epoch=log.log_end_offset)
            end(log, 1, ABORT, epoch=log.log_end_offset - 1)
            plain(log, 2)
        log.partition.set_high_watermark(log.log_end_offset)
        asked: list[int] = []
        for segment in list(log.partition.segments)[1:]:
            segment.aborts._index = None
        original = TransactionIndexFile.index

        class Watching:
            def __get__(self, aborts: Any, owner: Any = None) -> Any:
                asked.append(aborts._segment.base_offset)
                return original.__get__(aborts, owner)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionIndexFile, "index", Watching())
            assert len(aborted_transactions(log.partition, 0, 1)) == 1
        assert asked == [0]

    def test_a_log_that_starts_inside_a_transaction(self) -> None:
        """What is left of it is dropped as its beginning would have been, or shown."""
        for kind, expected in ((ABORT, [3, 5]), (COMMIT, [3, 4, 5])):
            disk = MemoryDisk()
            log = replica(disk)
            produce(log, 1, 0, count=3)
            plain(log)
            produce(log, 1, 3)
            plain(log)
            log.partition.set_high_watermark(6)
            advance_log_start_offset(log.partition, 2)
            for each in (log, restarted(disk, LogConfig())):
                each.partition.set_high_watermark(6)
                assert each.partition.last_stable_offset == 2
                assert open_since(each) == [(1, 0)]
                end(each, 1, kind)
                each.partition.set_high_watermark(7)
                assert committed(each, 3) == expected
                assert committed(each, 2) == ([2] if kind is COMMIT else []) + expected

    def test_after_compaction(self) -> None:
        """Aborted data gone, its marker emptied, a committed marker gone: nothing more, nothing less."""
        kept = [
            at(data(2, 0), 1),
            at(encode_empty_batch(Batch(marker_of(1, ABORT))), 3),
            at(data(1, 1), 4),
        ]
        log = replica()
        for each in kept:
            append_as_follower(log.partition, each, leader_epoch=0)
        append_as_follower(log.partition, at(marker_of(1, COMMIT), 6), leader_epoch=0)
        append_as_follower(log.partition, at(marker_of(2, COMMIT), 9), leader_epoch=0)
        log.partition.set_high_watermark(10)
        assert log.partition.last_stable_offset == 10
        assert committed(log) == [1, 4]

    def test_the_golden_stream(self) -> None:
        """What Kafka's own classes say of these bytes."""
        entry = named(STREAMS, "stream-transactions")
        log = replica()
        append_as_follower(log.partition, content(entry["file"]), leader_epoch=9)
        assert committed(log) == []
        log.partition.set_high_watermark(log.log_end_offset)
        assert log.partition.last_stable_offset == entry["last_stable_offset_when_hw_is_leo"]
        assert committed(log) == entry["committed_offsets"]

    def test_committed_readers_beside_a_writer(self) -> None:
        """No lock, no wrong record: what is aborted is never seen, whatever the reader's luck."""
        log = stand_alone(segment_bytes=2000)
        stop = threading.Event()
        wrong: list[int] = []

        def read() -> None:
            while not stop.is_set():
                wrong.extend(record.offset for record in log.read(isolation=TXN) if record.value == b"2")

        reader = threading.Thread(target=read)
        reader.start()
        for sequence in range(150):
            produce(log, 2, sequence)
            produce(log, 3, sequence)
            log.end_transaction(2, 0, commit=False)
            log.end_transaction(3, 0, commit=True)
        stop.set()
        reader.join()
        assert wrong == []
        assert len(committed(log)) == 150


def marker_of(producer_id: int, kind: ControlType) -> bytes:
    """A marker as a leader writes it."""
    log = replica()
    end(log, producer_id, kind)
    return log.read_bytes(0).records


class TestAfterTruncation:
    def test_row_149_the_transaction_is_open_again(self) -> None:
        """Truncated between its first batch and its marker, also if its producer was forgotten meanwhile."""
        for forgotten in (False, True):
            clock = Clock()
            log = replica(None, LogConfig(), clock=clock)
            plain(log, 99)
            produce(log, 1, 0)
            plain(log, 5)
            end(log, 1, COMMIT)
            log.partition.set_high_watermark(106)
            assert log.partition.producer_state.first_unstable_offset is None
            if forgotten:
                remove_expired_producers(log.partition, NOW_MS + 100_000_000)
                assert not log.partition.producers()
            assert log.truncate_to(105)
            assert open_since(log) == [(1, 99)]
            assert log.partition.last_stable_offset == 99
            assert end(log, 1, COMMIT).last_offset == 105

    def test_row_148_truncated_fully(self) -> None:
        """Every snapshot goes, the state is empty, and it ends at the new start."""
        disk = MemoryDisk()
        log = replica(disk, SMALL)
        for sequence in range(12):
            produce(log, 1, sequence, transaction=False)
        assert any(name.endswith(SNAPSHOT_SUFFIX) for name in names(disk))
        truncate_fully_and_start_at(log.partition, 9)
        assert not any(name.endswith(SNAPSHOT_SUFFIX) for name in names(disk))
        assert (log.partition.producers(), log.partition.producer_state.end_offset) == ((), 9)
        assert produce(log, 1, 55).first_offset == 9

    def test_a_snapshot_is_taken_at_the_cut(self) -> None:
        disk = MemoryDisk()
        log = replica(disk, LogConfig())
        for sequence in range(4):
            produce(log, 1, sequence, transaction=False)
        log.truncate_to(2)
        assert snapshots(disk) == [2]
        assert restarted(disk, LogConfig()).partition.producers()[0].last_sequence == 1

    def test_an_abort_that_was_cut_away_leaves_nothing_to_sync(self) -> None:
        """Its index went with it; the next roll syncs what is there."""
        log = replica()
        plain(log)
        produce(log, 1, 0)
        end(log, 1, ABORT)
        log.truncate_to(2)
        log.partition.roll()
        end(log, 1, ABORT)
        log.partition.set_high_watermark(3)
        assert committed(log) == [0]

    def test_decided_below_the_high_watermark_stays_decided(self) -> None:
        """The state is made anew; that a marker is replicated must not get lost on the way."""
        log = replica()
        produce(log, 1, 0)
        end(log, 1, COMMIT)
        plain(log, 3)
        log.partition.set_high_watermark(2)
        log.truncate_to(4)
        assert log.partition.last_stable_offset == 2


def snapshots(disk: MemoryDisk) -> list[int]:
    return sorted(int(name[:20]) for name in names(disk) if name.endswith(SNAPSHOT_SUFFIX))


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

    def test_a_clean_stop_without_one_is_a_log_without_producers(self) -> None:
        """Nothing is read: empty ones at the last two bases and at the end."""
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
        assert again.partition.producers() == ()
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
            assert not [name for name in image.files() if name.endswith("recovery-point-offset-checkpoint")]
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

    def test_row_141_when_a_snapshot_is_loaded(self) -> None:
        disk = MemoryDisk()
        manager = manager_on(disk)
        log = manager.get_or_create(ORDERS)
        produce(log, 1, 0, transaction=False)
        produce(log, 2, 0)
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
