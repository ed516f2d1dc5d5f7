"""What a compaction keeps, batch by batch: rules without a log around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from logstore.compact.compaction import Compaction, Kept, LastBatch, Transactions, map_records
from logstore.compact.offset_map import OffsetMap
from logstore.errors import InvalidRecord
from logstore.format.batch import Batch, TimestampType, encode_batch, encode_marker_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.segment.scan import scan_buffer
from logstore.segment.transaction_index import AbortedTransaction
from tests.logstore.forge import forge, payload

T0 = 1_700_000_000_000
RETENTION_MS = 1000


def batch(base_offset: int, *pairs: tuple[bytes | None, bytes | None], **more: object) -> bytes:
    """Records of those keys and values at `base_offset` and on, a millisecond apart."""
    records = [Record(base_offset + delta, T0 + delta, *pair) for delta, pair in enumerate(pairs)]
    return encode_batch(records, base_offset=base_offset, leader_epoch=4, **more)  # type: ignore[arg-type]


def marker(offset: int, kind: ControlType, producer_id: int, epoch: int = 0) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=T0,
        base_offset=offset,
    )


def filtered(
    data: bytes,
    *,
    dirty: bytes | None = None,
    producers: Mapping[int, LastBatch] | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    end: int = 1 << 40,
    now_ms: int = T0,
) -> tuple[list[Batch], Kept, Compaction]:
    """Compact `data` by the keys of `dirty` (default: all of it); no batch lies at the upper bound."""
    dirty = data if dirty is None else dirty
    offsets = OffsetMap(24 * 101)
    found = scan_buffer(dirty, len(dirty))
    assert map_records(dirty, found, offsets, Transactions(aborted), start_offset=0, end_offset=end)
    offsets.latest_offset = max(offsets.latest_offset, min(end, 1 << 40) - 1)
    rules = Compaction(offsets, Transactions(aborted), producers or {}, now_ms, RETENTION_MS)
    kept = rules.filter(data, scan_buffer(data, len(data)))
    written = b"".join(kept.pieces)
    batches = list(walk(written))
    for each in batches:
        each.check_crc()
    assert [(each.size, each.last_offset, each.max_timestamp_ms) for each in batches] == kept.extents
    return batches, kept, rules


def offsets_in(batches: Sequence[Batch]) -> list[int]:
    return [record.offset for each in batches for record in each.records()]


def test_row_227_later_offsets_win_and_order_stays() -> None:
    data = (
        batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")) + batch(3, (b"c", b"1")) + batch(4, (b"b", b"2"))
    )
    batches, _, rules = filtered(data)
    assert offsets_in(batches) == [2, 3, 4]
    assert (rules.stats.records_read, rules.stats.records_written) == (5, 3)


def test_what_nothing_happened_to_is_copied_verbatim() -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1")) + batch(2, (b"c", b"1"))
    _, kept, _ = filtered(data)
    assert b"".join(kept.pieces) == data
    assert kept.is_unchanged
    assert len(kept.pieces) == 1


CODECS = [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]


@pytest.mark.parametrize("codec", CODECS)
def test_row_32_a_filtered_batch_keeps_its_header(codec: Codec) -> None:
    """Leader epoch, producer, sequences, transactional flag, codec, base and last offset."""
    data = batch(
        7,
        (b"a", b"1"),
        (b"b", b"1"),
        (b"a", b"2"),
        codec=codec,
        producer_id=9,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=True,
    )
    (after,), _, _ = filtered(data)
    before = Batch(data)
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence", "attributes"):
        assert getattr(after, name) == getattr(before, name), name
    assert (after.base_offset, after.last_offset, after.last_sequence) == (7, 9, 13)
    assert [(record.offset, record.timestamp_ms, record.value) for record in after.records()] == [
        (8, T0 + 1, b"1"),
        (9, T0 + 2, b"2"),
    ]


def test_row_32_log_append_time_stays() -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), log_append_time_ms=T0 + 77)
    (after,), _, _ = filtered(data)
    assert after.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in after.records()] == [T0 + 77, T0 + 77]


@pytest.mark.parametrize("gone", [b"a", b"b", b"c"])
def test_row_33_times_are_told_anew(gone: bytes) -> None:
    """The largest time is that of what is left; the base is the first kept record's, deltas follow it."""
    keys = (b"a", b"b", b"c")
    data = batch(0, *((key, b"1") for key in keys)) + batch(3, (gone, b"2"))
    (after, _), _, _ = filtered(data)
    times = [T0 + delta for delta, key in enumerate(keys) if key != gone]
    assert [record.timestamp_ms for record in after.records()] == times
    assert (after.base_timestamp_ms, after.max_timestamp_ms) == (times[0], times[-1])


def test_row_34_all_dropped_but_the_producers_last_batch() -> None:
    """61 bytes with the same offsets, sequences, flags and largest time, and no record."""
    data = batch(5, (b"a", b"1"), (b"a", b"1"), producer_id=9, producer_epoch=3, base_sequence=11)
    batches, _, _ = filtered(data + batch(7, (b"a", b"2")), producers={9: LastBatch(6, 3)})
    empty, _ = batches
    assert (empty.size, empty.record_count, list(empty.records())) == (61, 0, [])
    assert (empty.base_offset, empty.last_offset, empty.last_sequence) == (5, 6, 12)
    assert (empty.producer_id, empty.producer_epoch, empty.max_timestamp_ms) == (9, 3, T0 + 1)
    again, kept, _ = filtered(b"".join(kept_bytes(batches)), producers={9: LastBatch(6, 3)})
    assert kept.is_unchanged
    assert again[0].size == 61


def kept_bytes(batches: Sequence[Batch]) -> list[bytes]:
    return [bytes(each.buffer) for each in batches]


def test_row_35_all_dropped_and_nobody_needs_the_batch() -> None:
    data = batch(0, (b"a", b"1"), producer_id=9, producer_epoch=3, base_sequence=11) + batch(1, (b"a", b"2"))
    batches, _, _ = filtered(data, producers={9: LastBatch(40, 3)})
    assert [each.base_offset for each in batches] == [1]
    _, kept, _ = filtered(batch(0, (None, b"1")))
    assert kept.pieces == []


def test_row_36_an_aborted_batch_is_not_decoded() -> None:
    """Its records are rubbish, and nobody notices: it goes as a whole."""
    rubbish = forge(b"no records", producer_id=3, producer_epoch=0, base_sequence=0, attributes=0x10)
    aborted = [AbortedTransaction(3, 0, 1, 2)]
    batches, _, _ = filtered(rubbish + marker(1, ControlType.ABORT, 3), aborted=aborted)
    assert [each.is_control for each in batches] == [True]
    with pytest.raises(InvalidRecord, match="batch at offset 0"):
        filtered(rubbish)


def test_row_37_offsets_with_gaps_are_kept() -> None:
    """What a compaction left is compacted again."""
    records = [Record(offset, T0, b"%d" % offset, b"v") for offset in (3, 5, 9)]
    data = encode_batch(records, base_offset=2, last_offset=12) + batch(13, (b"5", b"later"))
    batches, _, _ = filtered(data)
    assert offsets_in(batches) == [3, 9, 13]
    assert (batches[0].base_offset, batches[0].last_offset) == (2, 12)


class TestTombstones:
    def test_row_236_old_values_go_and_the_tombstone_gets_its_horizon(self) -> None:
        data = batch(0, (b"a", b"1"), (b"b", b"1")) + batch(2, (b"a", None))
        batches, _, _ = filtered(data)
        assert offsets_in(batches) == [1, 2]
        assert [each.delete_horizon_ms for each in batches] == [None, T0 + RETENTION_MS]
        assert [record.timestamp_ms for record in batches[1].records()] == [T0]

    @pytest.mark.parametrize(
        ("later_ms", "stays"), [(0, True), (RETENTION_MS - 1, True), (RETENTION_MS, False)]
    )
    def test_row_235_it_stays_for_its_time_from_the_first_compaction(
        self, later_ms: int, stays: bool
    ) -> None:
        """However old the record is; a second pass before the horizon changes nothing."""
        first, _, _ = filtered(batch(0, (b"a", None)))
        data = bytes(first[0].buffer) + batch(1, (b"b", b"1"))
        batches, kept, _ = filtered(data, now_ms=T0 + later_ms)
        assert offsets_in(batches) == ([0, 1] if stays else [1])
        assert kept.is_unchanged == stays

    def test_row_31_the_horizon_survives_a_filtering(self) -> None:
        """A batch with a horizon loses another record: times, horizon and flag stay what they were."""
        first, _, _ = filtered(batch(0, (b"a", None), (b"b", b"1"), (b"c", b"1")))
        assert first[0].delete_horizon_ms == T0 + RETENTION_MS
        data = bytes(first[0].buffer) + batch(3, (b"b", b"2"))
        (after, _), _, _ = filtered(data, now_ms=T0 + 5)
        assert after.delete_horizon_ms == T0 + RETENTION_MS
        assert [(record.offset, record.timestamp_ms) for record in after.records()] == [(0, T0), (2, T0 + 2)]
        assert after.max_timestamp_ms == T0 + 2

    def test_a_tombstone_above_the_map_stays(self) -> None:
        data = batch(0, (b"a", None), (b"b", None))
        batches, _, _ = filtered(data, dirty=batch(0, (b"a", b"x")), end=1, now_ms=T0 + 10 * RETENTION_MS)
        assert offsets_in(batches) == [0, 1]


def test_row_237_records_without_a_key_go_and_are_counted() -> None:
    batches, _, rules = filtered(batch(0, (None, b"1"), (b"a", b"1"), (None, None)))
    assert offsets_in(batches) == [1]
    assert rules.stats.unkeyed == 2


def test_row_242_the_batch_at_the_upper_bound_stays() -> None:
    """Nothing in it is left, and yet readers must learn where the log was cleaned to."""
    data = batch(0, (b"a", b"1")) + batch(1, (b"a", None), (None, b"1"))
    batches, _, _ = filtered(data, end=3)
    assert offsets_in(batches) == [1]
    expired = bytes(batches[0].buffer)
    (empty,), _, _ = filtered(expired, end=3, now_ms=T0 + RETENTION_MS)
    assert (empty.record_count, empty.last_offset, empty.delete_horizon_ms) == (0, 2, None)


class TestTransactions:
    ABORTED = (AbortedTransaction(3, 0, 2, 3),)

    @staticmethod
    def data(base_offset: int, producer_id: int, key: bytes = b"a") -> bytes:
        return batch(
            base_offset,
            (key, b"from %d" % producer_id),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=base_offset,
            is_transactional=True,
        )

    def test_row_230_aborted_records_go_at_once_and_the_marker_stays(self) -> None:
        data = self.data(0, 3) + self.data(1, 4, b"b") + marker(2, ControlType.ABORT, 3)
        batches, _, rules = filtered(data, aborted=self.ABORTED)
        assert [(each.base_offset, each.is_control) for each in batches] == [(1, False), (2, True)]
        assert rules.transactions.take_kept() == list(self.ABORTED)

    def test_an_aborted_record_does_not_replace_an_older_one(self) -> None:
        data = batch(0, (b"a", b"0")) + self.data(1, 3) + marker(2, ControlType.ABORT, 3)
        batches, _, _ = filtered(data, aborted=[AbortedTransaction(3, 1, 2, 3)])
        assert offsets_in(batches) == [0, 2]

    @pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
    def test_rows_231_and_232_a_marker_needs_two_more_passes(self, kind: ControlType) -> None:
        """While its data is read it has no horizon; the pass after sets one; a pass past that drops it."""
        aborted = self.ABORTED if kind is ControlType.ABORT else ()
        later = batch(3, (b"a", b"later"))
        first, _, _ = filtered(self.data(0, 3) + marker(2, kind, 3) + later, aborted=aborted)
        assert [(each.base_offset, each.delete_horizon_ms) for each in first] == [(2, None), (3, None)]
        second, _, rules = filtered(b"".join(kept_bytes(first)), aborted=aborted)
        assert second[0].delete_horizon_ms == T0 + RETENTION_MS
        assert EndTransactionMarker.parse(next(second[0].records())).type is kind
        assert rules.transactions.take_kept() == []
        third, kept, _ = filtered(b"".join(kept_bytes(second)), now_ms=T0 + RETENTION_MS - 1)
        assert kept.is_unchanged
        last, _, _ = filtered(b"".join(kept_bytes(third)), now_ms=T0 + RETENTION_MS)
        assert [each.base_offset for each in last] == [3]

    def test_row_233_the_only_trace_of_a_producer_becomes_an_empty_marker(self) -> None:
        producers = {3: LastBatch(-1, 0)}
        later = batch(3, (b"a", b"later"))
        second, _, _ = filtered(marker(2, ControlType.COMMIT, 3) + later)
        data = b"".join(kept_bytes(second))
        third, _, _ = filtered(data, producers=producers, now_ms=T0 + RETENTION_MS)
        assert [(each.record_count, each.is_control) for each in third] == [(0, True), (1, False)]
        again, kept, _ = filtered(b"".join(kept_bytes(third)), producers=producers, now_ms=T0 + RETENTION_MS)
        assert kept.is_unchanged
        assert len(again) == 2
        gone, _, _ = filtered(b"".join(kept_bytes(third)), now_ms=T0 + RETENTION_MS)
        assert [each.base_offset for each in gone] == [3]

    def test_a_fencing_marker_of_an_older_epoch_is_no_trace(self) -> None:
        second, _, _ = filtered(marker(2, ControlType.COMMIT, 3))
        data = b"".join(kept_bytes(second))
        batches, _, _ = filtered(data, producers={3: LastBatch(-1, 1)}, now_ms=T0 + RETENTION_MS)
        assert batches == []


def test_row_238_a_map_with_room_for_one_key_stops_before_the_second() -> None:
    """Inside a batch: what lies behind is not judged."""
    data = batch(0, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"a", b"3"))
    offsets = OffsetMap(24 * 2, load_factor=0.5)
    found = scan_buffer(data, len(data))
    assert not map_records(data, found, offsets, Transactions(()), start_offset=0, end_offset=9)
    assert offsets.latest_offset == 1
    rules = Compaction(offsets, Transactions(()), {}, T0, RETENTION_MS)
    batches = list(walk(b"".join(rules.filter(data, found).pieces)))
    assert offsets_in(batches) == [1, 2, 3]


def test_row_239_counts() -> None:
    """Dirty from 2 to 5 of the offsets 0 to 4, two keys: two are left of the five that were read."""
    data = b"".join(batch(offset, (b"%d" % (offset % 2), b"v")) for offset in range(5))
    offsets = OffsetMap(24 * 101)
    found = scan_buffer(data, len(data))
    assert map_records(data, found, offsets, Transactions(()), start_offset=2, end_offset=5)
    assert offsets.latest_offset + 1 == 5
    rules = Compaction(offsets, Transactions(()), {}, T0, RETENTION_MS)
    rules.filter(data, found)
    assert (rules.stats.records_written, rules.stats.records_read) == (2, 5)


def test_what_lies_past_the_upper_bound_is_not_looked_into() -> None:
    """Rubbish with a right checksum: nobody reads it."""
    data = batch(0, (b"a", b"1")) + forge(b"rubbish", base_offset=1)
    offsets = OffsetMap(24 * 101)
    found = scan_buffer(data, len(data))
    assert map_records(data, found, offsets, Transactions(()), start_offset=0, end_offset=1)
    kept = Compaction(offsets, Transactions(()), {}, T0, RETENTION_MS).filter(data, found)
    assert kept.is_unchanged
    assert b"".join(kept.pieces) == data


def test_times_that_no_leader_lets_in() -> None:
    """Re-encoding such a record is refused as what it is: a bad record."""
    bad = forge(
        payload(Record(0, T0, b"a", None), base_timestamp_ms=T0 + 5), base_timestamp_ms=3, max_timestamp_ms=3
    )
    with pytest.raises(InvalidRecord, match="batch at offset 0"):
        filtered(bad)


def test_row_38_a_batch_may_grow_and_chunks_may_be_of_any_size() -> None:
    """There is no output buffer to be too small: batch by batch comes to the same as all at once."""
    parts = [batch(3 * n, (b"a", None), (b"%d" % n, b"v"), (None, b"x")) for n in range(6)]
    whole, _, _ = filtered(b"".join(parts))
    offsets = OffsetMap(24 * 101)
    data = b"".join(parts)
    assert map_records(
        data, scan_buffer(data, len(data)), offsets, Transactions(()), start_offset=0, end_offset=18
    )
    offsets.latest_offset = 1 << 40
    rules = Compaction(offsets, Transactions(()), {}, T0, RETENTION_MS)
    single = b"".join(b"".join(rules.filter(part, scan_buffer(part, len(part))).pieces) for part in parts)
    assert single == b"".join(kept_bytes(whole))
    assert whole[-1].size > 61, "the tombstone with its horizon is there"
