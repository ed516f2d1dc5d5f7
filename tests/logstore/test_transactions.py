"""Transactions in a real log: what committed readers see, and what the log knows."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from logstore.compact.compaction import encode_empty_batch
from logstore.config import LogConfig
from logstore.format.batch import Batch, walk
from logstore.log import append, truncate
from logstore.log.append_fetched import append_as_follower
from logstore.log.read import FetchIsolation, aborted_transactions
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, remove_expired_producers
from logstore.segment.segment import SNAPSHOT_SUFFIX
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndexFile
from logstore.testing.disks import MemoryDisk
from tests.golden.reading import STREAMS, content, named
from tests.logstore.logs import names
from tests.logstore.producing import (
    ABORT,
    COMMIT,
    NOW_MS,
    Clock,
    at,
    committed,
    data,
    end,
    open_since,
    plain,
    produce,
    replica,
)
from tests.logstore.transacting import SMALL, TXN, marker_of, restarted, snapshots, stand_alone


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

        def between(*facts: Any) -> None:
            cut(*facts)
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
