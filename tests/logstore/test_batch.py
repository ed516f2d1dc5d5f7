"""Batches: header, flags, in-place stamping, walking, and the builder's refusals."""

from __future__ import annotations

from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.compact.compaction import encode_empty_batch
from logstore.errors import CorruptBatch, InvalidRecord, UnsupportedCompression
from logstore.format.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    Batch,
    TimestampType,
    encode_batch,
    encode_batch_of_pairs,
    encode_marker_batch,
    set_max_timestamp,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_INT, ControlType, EndTransactionMarker, Header, Record
from tests.logstore.forge import T0, forge, payload, values

blobs = st.one_of(st.none(), st.binary(max_size=80))
record_fields = st.tuples(
    st.one_of(st.just(-1), st.integers(0, 1 << 42)),
    blobs,
    blobs,
    st.lists(st.builds(Header, st.text(max_size=5), blobs), max_size=2).map(tuple),
)


def intact(batch: Batch) -> bool:
    """Whether the checksum is right."""
    try:
        batch.check_crc()
    except CorruptBatch:
        return False
    return True


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.lists(record_fields, min_size=1, max_size=8),
    codec=st.sampled_from(list(Codec)),
    base=st.integers(0, 1 << 62),
)
def test_row_14_round_trip_under_every_codec(rows: list[Any], codec: Codec, base: int) -> None:
    """Row 14: the same records come back, and the header is of the uncompressed ones."""
    records = [Record(base + slot, *row) for slot, row in enumerate(rows)]
    batch = Batch(encode_batch(records, base_offset=base, leader_epoch=3, codec=codec))
    batch.check_crc()
    assert list(batch.records()) == records
    assert (batch.codec, batch.record_count, batch.last_offset) == (codec, len(rows), base + len(rows) - 1)
    assert batch.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert batch.base_timestamp_ms == records[0].timestamp_ms, "the first record's, not the smallest"
    low, high, keyless = batch.check_records()
    assert batch.base_timestamp_ms + low == min(record.timestamp_ms for record in records)
    assert batch.base_timestamp_ms + high == batch.max_timestamp_ms
    assert keyless == sum(record.key is None for record in records)


@pytest.mark.parametrize("codec", list(Codec))
def test_pairs_are_a_shortcut(codec: Codec) -> None:
    """The same bytes as the general encoder's."""
    pairs = [(b"k", b"v"), (None, b"x" * 300), (b"", None)]
    records = [Record(5 + slot, T0, *pair) for slot, pair in enumerate(pairs)]
    quick = encode_batch_of_pairs(pairs, timestamp_ms=T0, base_offset=5, leader_epoch=2, codec=codec)
    assert quick == encode_batch(records, base_offset=5, leader_epoch=2, codec=codec)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("log_append_time", [False, True])
def test_row_1_an_empty_header(transactional: bool, control: bool, log_append_time: bool) -> None:
    """Rows 1, 34: what is left of a batch when every record went keeps its place and its producer's."""
    flags = log_append_time << 3 | transactional << 4 | control << 5
    batch = Batch(
        forge(
            payload(*values(1)),
            base_offset=15,
            leader_epoch=15,
            attributes=flags,
            last_offset_delta=22,
            producer_id=23423,
            producer_epoch=145,
            base_sequence=983,
        )
    )
    empty = Batch(encode_empty_batch(batch))
    empty.check_crc()
    assert (empty.size, empty.record_count, list(empty.records())) == (61, 0, [])
    assert (empty.base_offset, empty.last_offset, empty.leader_epoch) == (15, 37, 15)
    assert (empty.producer_id, empty.producer_epoch) == (23423, 145)
    assert (empty.base_sequence, empty.last_sequence) == (983, 983 + 22)
    assert (empty.base_timestamp_ms, empty.max_timestamp_ms) == (-1, T0)
    assert (empty.is_transactional, empty.is_control) == (transactional, control)
    assert (empty.timestamp_type, empty.codec) == (TimestampType(log_append_time), Codec.NONE)


def test_count_zero_iterates_nothing_whatever_follows() -> None:
    """With no records, what lies behind the header is not looked at."""
    assert list(Batch(forge(b"anything", count=0)).records()) == []


def test_row_2_no_producer() -> None:
    """Row 2."""
    batch = Batch(encode_batch(values(3)))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.last_sequence, batch.has_producer_id) == (-1, False)
    assert [record.sequence for record in batch.records()] == [-1, -1, -1]


def test_row_3_sequences_wrap_inside_a_batch() -> None:
    """Row 3."""
    batch = Batch(encode_batch(values(3), producer_id=9, producer_epoch=25, base_sequence=MAX_INT))
    assert batch.last_sequence == 1
    assert [record.sequence for record in batch.records()] == [MAX_INT, 0, 1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("count", [2, 4, -1])
def test_row_6_a_count_that_lies(codec: Codec, count: int) -> None:
    """Row 6: one more or one less than there are, plain or compressed; or negative."""
    batch = Batch(encode_batch(values(3), codec=codec))
    lying = Batch(forge(bytes(batch.buffer[61:]), attributes=codec, last_offset_delta=2, count=count))
    with pytest.raises(InvalidRecord):
        list(lying.records())


def test_row_8_every_flip_behind_the_crc_is_noticed_and_none_before_it() -> None:
    """Row 8: exhaustive. What lies in front of the checksum only continuity guards."""
    data = encode_batch(values(2), base_offset=0)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            if 8 <= place < 12 or place == 16:
                with pytest.raises(CorruptBatch):
                    Batch(flipped).check_crc()
            else:
                assert intact(Batch(flipped)) == (place < 17), f"byte {place}, bit {bit}"


def test_rows_9_and_10_placing_a_batch_leaves_the_checksum_alone() -> None:
    """Rows 9, 10: offsets and leader epoch lie in front of it; records are renumbered by the base."""
    data = bytearray(encode_batch(values(3), leader_epoch=1))
    set_offsets_and_epoch(data, base_offset=1 << 40, leader_epoch=77)
    batch = Batch(data)
    batch.check_crc()
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1 << 40, (1 << 40) + 2, 77)
    assert [record.offset for record in batch.records()] == [(1 << 40) + slot for slot in range(3)]


def test_row_11_log_append_time_is_every_records_time() -> None:
    """Row 11: type, largest time and checksum change; base time and deltas stay."""
    data = bytearray(encode_batch(values(3)))
    before = Batch(bytes(data))
    set_max_timestamp(data, TimestampType.LOG_APPEND_TIME, T0 + 5)
    batch = Batch(data)
    batch.check_crc()
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in batch.records()] == [T0 + 5] * 3
    assert batch.buffer[61:] == before.buffer[61:]
    assert batch.base_timestamp_ms == before.base_timestamp_ms
    assert batch.crc != before.crc
    set_max_timestamp(data, TimestampType.CREATE_TIME, before.max_timestamp_ms)
    assert bytes(data) == bytes(before.buffer)


def test_row_12_there_is_no_timestamp_type_none() -> None:
    """Kafka's old formats had one; a batch of ours has one of two, whatever its bits."""
    assert [kind.name for kind in TimestampType] == ["CREATE_TIME", "LOG_APPEND_TIME"]
    with pytest.raises(ValueError, match="-1 is not a valid TimestampType"):
        TimestampType(-1)
    for attributes in range(256):
        assert Batch(forge(b"", attributes=attributes, count=0)).timestamp_type in TimestampType


def test_stamping_one_of_several_batches_touches_that_one() -> None:
    """In-place stamping takes a position: its neighbours keep every byte."""
    one = encode_batch(values(2))
    data = bytearray(one * 3)
    set_max_timestamp(data, TimestampType.LOG_APPEND_TIME, 9, position=len(one))
    set_offsets_and_epoch(data, base_offset=50, leader_epoch=4, position=len(one))
    batches = list(walk(data))
    assert bytes(batches[0].buffer) == bytes(batches[2].buffer) == one
    assert (batches[1].base_offset, batches[1].leader_epoch, batches[1].max_timestamp_ms) == (50, 4, 9)
    assert all(map(intact, batches))


def test_row_30_built_with_log_append_time() -> None:
    """Row 30."""
    batch = Batch(encode_batch(values(2), log_append_time_ms=77))
    assert [record.timestamp_ms for record in batch.records()] == [77, 77]
    assert batch.max_timestamp_ms == 77


def test_row_29_largest_time_of_unordered_ones() -> None:
    """Row 29: times 0, 2, 1."""
    records = [Record(slot, time_ms, None, b"") for slot, time_ms in enumerate((0, 2, 1))]
    batch = Batch(encode_batch(records))
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (0, 2)


def test_delete_horizon() -> None:
    """Row 31: the base time holds the horizon, and the records' times are still exact."""
    batch = Batch(encode_batch(values(2), delete_horizon_ms=T0 + 86_400_000))
    assert batch.delete_horizon_ms == T0 + 86_400_000
    assert [record.timestamp_ms for record in batch.records()] == [T0, T0]
    assert Batch(encode_batch(values(2))).delete_horizon_ms is None


def test_kept_last_offset() -> None:
    """Rows 33, 37: compaction drops records; offsets, and the end of the batch, stay."""
    kept = [record for record in values(10) if record.offset in (2, 5)]
    batch = Batch(encode_batch(kept, last_offset=9, producer_id=1, producer_epoch=0, base_sequence=40))
    assert [(record.offset, record.sequence) for record in batch.records()] == [(2, 42), (5, 45)]
    assert (batch.record_count, batch.last_offset, batch.last_sequence) == (2, 9, 49)
    with pytest.raises(ValueError, match="below a record's"):
        encode_batch(kept, last_offset=4)


def test_what_are_no_records_and_no_codec() -> None:
    record = Record(0, T0, b"k", b"v")
    for records in (["text"], [1], [None], record, "text", [(0, T0, b"k", b"v")]):
        with pytest.raises(TypeError, match="records are Records, such as"):
            encode_batch(records)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"codec is a Codec, such as Codec\.GZIP, not 'gzip'"):
        encode_batch([record], codec="gzip")  # type: ignore[arg-type]


def test_rows_13_and_39_a_marker_batch() -> None:
    """Row 39: one control record, 78 bytes."""
    marker = EndTransactionMarker(ControlType.COMMIT, 15)
    data = encode_marker_batch(
        marker, producer_id=7, producer_epoch=50, timestamp_ms=T0, base_offset=983, leader_epoch=347
    )
    batch = Batch(data)
    assert (len(data), batch.base_offset, batch.leader_epoch) == (78, 983, 347)
    assert (batch.is_control, batch.is_transactional, batch.base_sequence) == (True, True, -1)
    (record,) = batch.records()
    assert EndTransactionMarker.parse(record) == marker


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"is_transactional": True}, "needs a producer id"),
        ({"producer_id": 1, "base_sequence": 0}, "needs an epoch"),
        ({"producer_id": 1, "base_sequence": 0, "producer_epoch": 40_000}, "epoch of 0 to 32767, not 40000"),
        ({"producer_id": 1, "base_sequence": 1 << 31, "producer_epoch": 0}, "needs a base sequence"),
        ({"producer_id": 1, "producer_epoch": 0}, "needs a base sequence"),
    ],
)
def test_row_24_builder_refuses_half_a_producer(arguments: dict[str, Any], reason: str) -> None:
    """Row 24."""
    with pytest.raises(ValueError, match=reason):
        encode_batch(values(1), **arguments)


def test_rows_13_and_25_a_control_batch_is_of_control_records() -> None:
    """And a marker's batch is transactional; `encode_marker_batch` sets both flags itself."""
    marker = EndTransactionMarker(ControlType.ABORT, 50).record(0, T0)
    with pytest.raises(ValueError, match="transactional"):
        encode_batch([marker], producer_id=1, producer_epoch=0, is_control=True)
    data = Record(1, T0, b"k", b"v")
    for records in ([data], [marker, data], [data._replace(key=None)]):
        with pytest.raises(ValueError, match="only hold control records"):
            encode_batch(
                records, producer_id=1, producer_epoch=0, is_control=True, is_transactional=True,
            )  # fmt: skip
    batch = Batch(
        encode_batch([marker], producer_id=1, producer_epoch=0, is_control=True, is_transactional=True)
    )
    assert (batch.is_control, batch.is_transactional, batch.base_sequence) == (True, True, -1)


@pytest.mark.parametrize("codec", list(Codec))
def test_row_15_what_is_told_without_keys_and_values(codec: Codec) -> None:
    """Times and null-ness from the check, offsets and times from columns: what reading everything gives."""
    records = [
        Record(7, T0, b"k", b"x" * 500), Record(8, T0 - 5, None, b""), Record(9, T0 + 9, b"", None),
    ]  # fmt: skip
    batch = Batch(encode_batch(records, base_offset=7, codec=codec))
    low, high, keyless = batch.check_records()
    times = [record.timestamp_ms for record in batch.records()]
    assert (T0 + low, T0 + high) == (min(times), max(times))
    assert keyless == sum(record.key is None for record in batch.records())
    pytest.importorskip("pyarrow")
    from logstore.columnar.columnar import decode

    (found,) = decode(batch.buffer, columns=["offset", "timestamp"])
    assert found.schema.names == ["offset", "timestamp"]
    assert found.column("offset").to_pylist() == [record.offset for record in batch.records()]
    assert found.column("timestamp").cast("int64").to_pylist() == times


@pytest.mark.parametrize("count", [1, 4])
def test_a_batch_that_inflates_far_is_checked_by_the_same_rules(count: int) -> None:
    """Its records lie in an array then; those with headers are left to the loop."""
    headers = (Header("name", b"v"), Header("", None))
    rows = [Record(n, 5 + n, b"k", bytes((10 << 20) // count), headers) for n in range(count)]
    good = encode_batch(rows, codec=Codec.GZIP)
    assert Batch(good).check_records() == (0, count - 1, 0)
    inflated = bytearray(Batch(good).payload())
    with pytest.raises(InvalidRecord, match="more than"):
        Batch(good).check_records(max_bytes=len(inflated) - 1)
    inflated[-1] = 2  # of the last header's value, which is null, the length
    with pytest.raises(InvalidRecord):
        Batch(good[:HEADER_BYTES] + compress(Codec.GZIP, inflated)).check_records()


def test_the_limit_is_for_what_inflates() -> None:
    """Uncompressed records are in memory already, also those of a batch among others."""
    plain = encode_batch([Record(0, 5, b"k", bytes(1000))])
    for buffer in (plain, bytearray(plain), plain + plain):
        assert Batch(buffer).check_records(max_bytes=100) == (0, 0, 0)


def test_row_28_nothing_appended_is_no_batch() -> None:
    """Row 28."""
    assert encode_batch([]) == b""
    assert encode_batch_of_pairs([]) == b""


def test_a_batch_spans_at_most_2_to_the_31_offsets() -> None:
    """Deltas are 32 bits wide."""
    fits = [Record(0, T0, None, b""), Record(MAX_INT, T0, None, b"")]
    batch = Batch(encode_batch(fits))
    assert batch.last_offset == assert_type(batch.last_offset_delta, int) == MAX_INT
    assert assert_type(batch.size, int) == assert_type(batch.batch_length, int) + LOG_OVERHEAD
    with pytest.raises(ValueError, match="do not fit"):
        encode_batch(fits, last_offset=MAX_INT + 1)


def test_records_are_bounded() -> None:
    """A caller says how far a batch may unfold; the codec is asked first."""
    batch = Batch(encode_batch([Record(0, T0, None, bytes(100_000))], codec=Codec.ZSTD))
    assert batch.size < 200
    with pytest.raises(InvalidRecord, match="more than 1000"):
        list(batch.records(max_bytes=1000))
    with pytest.raises(InvalidRecord, match="more than 1000"):
        batch.check_records(max_bytes=1000)


def test_unknown_codec() -> None:
    """5 to 7 mean nothing; the header still reads."""
    batch = Batch(forge(payload(*values(1)), attributes=6))
    batch.check_crc()
    with pytest.raises(UnsupportedCompression):
        list(batch.records())


def test_a_view_copies_nothing() -> None:
    """The batch is a window on the caller's bytes."""
    data = bytearray(encode_batch(values(1)) * 2)
    size = len(data) // 2
    batch = Batch(data, size)
    data[size + 20] ^= 0xFF
    assert batch.buffer[20] == data[size + 20]
    assert repr(batch) == f"Batch(0..0, epoch -1, 1 records, {size} bytes)"


# Walking


@pytest.mark.parametrize("left", range(12))
def test_row_41_less_than_offset_and_length_is_the_end(left: int) -> None:
    """Row 41."""
    one = encode_batch(values(1))
    assert len(list(walk(one + one[:left]))) == 1


@pytest.mark.parametrize("size", range(12, 17))
def test_row_41_the_length_is_judged_before_the_magic_is_missed(size: int) -> None:
    """Row 41: 12 to 16 bytes are the end, unless their length is below 14."""
    one = encode_batch(values(1))
    assert list(walk(one[:size])) == []
    with pytest.raises(CorruptBatch, match="length 13"):
        list(walk(forge(b"", length=13)[:size]))


def test_row_47_a_batch_cut_anywhere_ends_the_walk() -> None:
    """Row 47: a torn tail, at every byte, is never an error."""
    one = encode_batch(values(2))
    for cut in range(len(one)):
        assert [batch.size for batch in walk(one + one[:cut])] == [len(one)]


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 13])
def test_row_41_a_length_that_no_batch_has(length: int) -> None:
    """Row 41: corruption, not a torn tail; yet what lies before is yielded."""
    batches = walk(encode_batch(values(1)) + forge(b"", length=length))
    next(batches)
    with pytest.raises(CorruptBatch, match="length"):
        next(batches)


@pytest.mark.parametrize("magic", [-1, 3, 0, 1])
def test_row_41_other_format_versions(magic: int) -> None:
    """Row 41; versions 0 and 1 are Kafka's old ones, which are not read."""
    with pytest.raises(CorruptBatch, match="format version"):
        list(walk(forge(payload(*values(1)), magic=magic)))


def test_row_7_smaller_than_its_own_header() -> None:
    """Row 7: a length from 14 to 48 passes the oldest format's bound but holds no batch of ours."""
    for length in range(14, 49):
        with pytest.raises(CorruptBatch, match="smaller than the header"):
            list(walk(forge(bytes(100), length=length)))


def test_a_cut_batch_of_no_format_is_corruption() -> None:
    """From 17 bytes on the version is there to be judged, torn tail or not."""
    data = forge(payload(*values(1)), magic=3)
    for size in range(17, len(data) + 1):
        with pytest.raises(CorruptBatch, match="format version 3"):
            list(walk(data[:size]))


def test_a_length_past_the_end_is_the_end() -> None:
    """A *too large* length is a partial batch."""
    assert list(walk(forge(bytes(10), length=MAX_INT))) == []


def test_walk_from_a_position() -> None:
    """Reading starts where an index said."""
    one = encode_batch(values(1))
    assert [batch.buffer for batch in walk(one * 3, position=len(one))] == [one, one]


@pytest.mark.parametrize("size", [0, 1, 60])
def test_a_batch_needs_its_header(size: int) -> None:
    """The constructor is asked for one batch and says so if there is none."""
    with pytest.raises(CorruptBatch, match="fewer than a batch header"):
        Batch(encode_batch(values(1))[:size])


def test_a_batch_needs_all_its_bytes() -> None:
    """A view that would end early is never made."""
    with pytest.raises(CorruptBatch, match="are left"):
        Batch(encode_batch(values(1))[:-1])
