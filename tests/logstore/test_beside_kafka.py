"""Differences from Kafka's log that tests/judge has found, and that are better as they are."""

from __future__ import annotations

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass, run
from logstore.config import LogConfig
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, walk
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.read import FetchIsolation, offset_for_timestamp
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import MemoryDisk
from tests.logstore.plain_logs import NOW_MS, SIZE, filled, offsets, one, opened, segment_bases
from tests.logstore.producing import ABORT, ORDERS, at, data, end, manager_on, produce, replica


def test_a_follower_takes_more_than_a_segment_at_once() -> None:
    """Its leader had taken the batches one by one, and a follower that refuses them never goes on."""
    log = opened(segment_bytes=2 * SIZE)
    sent = b"".join(at(one(), offset) for offset in range(5))
    append_as_follower(log.partition, sent, leader_epoch=0)
    assert (offsets(log), segment_bases(log)) == ([0, 1, 2, 3, 4], [0])


def test_a_follower_takes_what_its_leader_took_outside_of_a_transaction() -> None:
    log = replica()
    produce(log, 7, 0)
    append_as_follower(log.partition, at(data(7, 1, transaction=False), 1), leader_epoch=0)
    assert log.log_end_offset == 2
    (entry,) = log.partition.producers()
    assert entry.transaction_first_offset == 0


def test_a_time_is_looked_for_in_later_segments_too() -> None:
    """The record with that time in the first segment lies below the log start."""
    log = opened()
    for time in (2000, 1000):
        log.append_batches(one(time=time))
    log.partition.roll()
    log.append_batches(one(time=1500))
    advance_log_start_offset(log.partition, 1)
    found = offset_for_timestamp(log.partition, 1500)
    assert found is not None
    assert found.offset == 2


def test_readers_of_committed_data_never_end_below_the_log_start() -> None:
    """The transaction that is open began below it, and the log start lies inside of a batch."""
    log = replica()
    produce(log, 7, 0, count=3)
    log.partition.set_high_watermark(3)
    advance_log_start_offset(log.partition, 2)
    assert log.partition.last_stable_offset == 2


def test_what_lies_behind_a_marker_in_its_append_does_not_count_for_it() -> None:
    """Recovery reads the batches one by one, and makes the same entry."""
    log = replica()
    produce(log, 7, 0)
    marker = encode_marker_batch(
        EndTransactionMarker(ControlType.ABORT, 0),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=1,
        leader_epoch=0,
    )
    append_as_follower(log.partition, marker + at(data(8, 0), 5), leader_epoch=0)
    assert log.partition.segments.active.aborts.index.entries == (AbortedTransaction(7, 0, 1, 2),)


def test_no_segment_counts_as_clean_and_as_dirty() -> None:
    """The dirty part begins at the log start, inside of the first segment."""
    log = filled(4, cleanup_policy="delete")
    log.partition.roll()
    advance_log_start_offset(log.partition, 2)
    found = cleanable_of(log.partition, NOW_MS)
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (2, 0, 4 * SIZE)


def test_a_transaction_below_the_log_start_stays_aborted() -> None:
    """Its data lies below the log start, in a segment that is compacted; the marker is kept beside it."""
    log: Log = manager_on(MemoryDisk(), LogConfig(cleanup_policy="compact")).get_or_create(ORDERS)
    keyed = [Record(0, NOW_MS, b"key", b"aborted")]
    append_as_follower(log.partition, at(_of_a_transaction(keyed), 0), leader_epoch=0)
    end(log, 7, ABORT)
    keyed = [Record(0, NOW_MS, b"other", b"plain")]
    append_as_follower(log.partition, at(encode_batch(keyed), 2), leader_epoch=0)
    log.partition.roll()
    log.partition.set_high_watermark(3)
    advance_log_start_offset(log.partition, 2)
    run(compaction_pass(log.partition, cleanable_of(log.partition, NOW_MS), CleanerConfig(), now_ms=NOW_MS))
    segment = log.partition.segments.first
    batches: list[Batch] = list(walk(segment.log_file.pread(segment.size, 0)))
    marker = batches[-2]
    assert marker.is_control
    assert marker.delete_horizon_ms is None
    assert next(log.read(isolation=FetchIsolation.TXN_COMMITTED)).value == b"plain"


def _of_a_transaction(records: list[Record]) -> bytes:
    return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
