"""What a leader lets in and how it stamps it; what a follower checks. Rows: docs/reference/behaviours.md."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    OffsetsOutOfOrder,
    RecordTooLarge,
    UnexpectedAppendOffset,
)
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, set_offsets_and_epoch, walk
from logstore.format.compression import Codec
from logstore.format.record import MAX_LONG, ControlType, EndTransactionMarker, Record
from logstore.log.append import MAX_RECORDS, Prepared, validate_and_assign
from logstore.log.append_fetched import analyse_follower_batches
from logstore.log.producer_state import AppendOrigin
from tests.logstore.forge import T0, forge, payload, values

CONFIG = LogConfig()
COMPACTED = LogConfig(cleanup_policy="compact")
LOG_APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")


def validate(
    data: bytes, config: LogConfig = CONFIG, *, origin: AppendOrigin = AppendOrigin.CLIENT
) -> Prepared:
    """As a leader of epoch 7 with its log end at 1234567 would, at time T0."""
    return validate_and_assign(
        data, next_offset=1_234_567, leader_epoch=7, now_ms=T0, config=config, origin=origin
    )


# A leader


def test_row_113_offsets_are_given_in_place() -> None:
    """Row 113: base offset and epoch are stamped; every other byte is the producer's."""
    data = encode_batch(values(3))
    validated = validate(data)
    batch = Batch(validated.data)
    batch.check_crc()
    assert [record.offset for record in batch.records()] == [1_234_567, 1_234_568, 1_234_569]
    assert batch.leader_epoch == 7
    assert (validated.first_offset, validated.last_offset) == (1_234_567, 1_234_569)
    assert (validated.max_timestamp_ms, validated.log_append_time_ms) == (T0, -1)
    assert bytes(validated.data[8:12]) + bytes(validated.data[16:]) == data[8:12] + data[16:]
    assert data == encode_batch(values(3)), "the caller's bytes are left alone"


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.integers(-1, 1 << 42), st.binary(max_size=9), st.binary(max_size=99)),
        min_size=1,
        max_size=5,
    ),
    codec=st.sampled_from(list(Codec)),
    target=st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    log_append_time=st.booleans(),
)
def test_rows_107_and_111_and_112_what_was_sent_is_what_is_stored(
    rows: list[tuple[int, bytes, bytes]], codec: Codec, target: str, log_append_time: bool
) -> None:
    """Rows 107, 111, 112, every codec to every target: records, producer fields and sequences survive."""
    records = [Record(offset, *row) for offset, row in enumerate(rows)]
    sent = encode_batch(records, codec=codec, producer_id=5, producer_epoch=2, base_sequence=99)
    config = replace(LOG_APPEND_TIME if log_append_time else CONFIG, compression_type=target)
    stored = Batch(validate(sent, config).data)
    stored.check_crc()
    wanted = {"producer": codec, "uncompressed": Codec.NONE}
    expected = wanted[target] if target in wanted else Codec[target.upper()]
    assert stored.codec is expected
    assert (stored.producer_id, stored.producer_epoch, stored.base_sequence) == (5, 2, 99)
    assert [(record.key, record.value) for record in stored.records()] == [row[1:] for row in rows]
    times = [T0 if log_append_time else row[0] for row in rows]
    assert [record.timestamp_ms for record in stored.records()] == times
    assert stored.max_timestamp_ms == max(times)
    if expected is codec:
        assert stored.buffer[61:] == sent[61:], "nothing was recompressed"


def test_row_99_a_batch_must_start_at_0() -> None:
    """Row 99."""
    with pytest.raises(InvalidRecord, match="base offset is 5"):
        validate(encode_batch([Record(5, T0, None, b"")], base_offset=5))


def test_row_100_one_batch_an_append() -> None:
    """Row 100; and nothing at all, or bytes after the batch, are refused likewise."""
    one = encode_batch(values(1))
    for data, reason in ((one + one, "more than one"), (b"", "no batch"), (one + b"\0", "1 bytes after")):
        with pytest.raises(InvalidRecord, match=reason):
            validate(data)
    with pytest.raises(CorruptBatch):
        validate(one[:-1])


def test_row_101_empty_batch() -> None:
    """Row 101."""
    with pytest.raises(InvalidRecord):
        validate(forge(b"", count=0, last_offset_delta=-1))


@pytest.mark.parametrize("lie", [(0, 3), (15, 3), (-3, 3), (5, 6), (1, 2), (2, 2), (-1, 0), (2, -1)])
def test_row_102_last_offset_delta_and_count_that_lie(lie: tuple[int, int]) -> None:
    """Row 102: three records; only (2, 3) is the truth."""
    three = payload(*values(3))
    validate(forge(three, last_offset_delta=2, count=3))
    with pytest.raises(InvalidRecord):
        validate(forge(three, last_offset_delta=lie[0], count=lie[1]))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_offset_deltas_are_dense(codec: Codec) -> None:
    """Kafka checks a compressed batch; a plain one with gaps would give two records one offset."""
    sparse = encode_batch([Record(1, T0, None, b""), Record(2, T0, None, b"")], codec=codec)
    with pytest.raises(InvalidRecord, match="offset delta 1, not 0"):
        validate(forge(sparse[61:], attributes=codec, last_offset_delta=1, count=2))


def test_row_103_producer_fields_that_contradict_each_other() -> None:
    """Row 103, and a transaction of nobody, which no producer sends."""
    one = payload(*values(1))
    for data in (
        forge(one, producer_id=1, producer_epoch=0, base_sequence=-1),
        forge(one, producer_id=1, producer_epoch=-1, base_sequence=0),
        forge(one, attributes=1 << 4),
    ):
        with pytest.raises(InvalidRecord):
            validate(data)


def test_rows_54_and_104_control_batches_are_for_coordinators() -> None:
    """Rows 54, 104: refused from a client; a coordinator's is taken, and never recompressed."""
    marker = encode_marker_batch(
        EndTransactionMarker(ControlType.ABORT, 3), producer_id=1, producer_epoch=0, timestamp_ms=T0
    )
    with pytest.raises(InvalidRecord, match="control batch"):
        validate(marker)
    compacted = replace(COMPACTED, compression_type="gzip")
    stored = Batch(validate(marker, compacted, origin=AppendOrigin.COORDINATOR).data)
    assert (stored.codec, stored.is_control) == (Codec.NONE, True)


def test_a_delete_horizon_is_not_for_clients() -> None:
    """Ours: it would let compaction drop tombstones that no consumer has seen."""
    with pytest.raises(InvalidRecord, match="delete horizon"):
        validate(encode_batch(values(1), delete_horizon_ms=T0))


def test_row_105_compacted_topics_need_keys() -> None:
    """Row 105: every record at fault is listed by its place in the batch."""
    keyed, keyless = Record(0, T0, b"k", b""), Record(0, T0, None, b"")
    with pytest.raises(InvalidRecord) as caught:
        validate(encode_batch([keyless, keyed._replace(offset=1)]), COMPACTED)
    assert [error.batch_index for error in caught.value.record_errors] == [0]
    with pytest.raises(InvalidRecord) as caught:
        validate(encode_batch([keyed, keyless._replace(offset=1)], codec=Codec.GZIP), COMPACTED)
    assert [error.batch_index for error in caught.value.record_errors] == [1]
    validate(encode_batch([keyed]), COMPACTED)


@pytest.mark.parametrize("side", [-1, 1])
def test_row_106_timestamp_window(side: int) -> None:
    """Row 106: 1000 ms away is in, 1001 ms is out, before and after."""
    config = replace(CONFIG, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    validate(encode_batch([Record(0, T0 + side * 1000, None, b"")]), config)
    with pytest.raises(InvalidTimestamp) as caught:
        validate(encode_batch([Record(0, T0, None, b""), Record(1, T0 + side * 1001, None, b"")]), config)
    assert [error.batch_index for error in caught.value.record_errors] == [1]


def test_row_107_the_window_is_for_the_producers_clock_only() -> None:
    """Row 107: under LogAppendTime the producer's time may be anything; all records get ours."""
    config = replace(LOG_APPEND_TIME, message_timestamp_before_max_ms=1, message_timestamp_after_max_ms=1)
    data = encode_batch([Record(0, 5, None, b""), Record(1, 1 << 42, None, b"")])
    validated = validate(data, config)
    assert [record.timestamp_ms for record in Batch(validated.data).records()] == [T0, T0]
    assert (validated.max_timestamp_ms, validated.log_append_time_ms) == (T0, T0)
    assert len(validated.data) == len(data)


def test_row_108_timestamps_take_precedence_and_each_record_has_one_error() -> None:
    """Row 108; of a record itself, the missing key is looked for first."""
    config = replace(COMPACTED, message_timestamp_after_max_ms=1000)
    records = [Record(0, T0, None, b""), Record(1, T0 + 1001, b"k", b""), Record(2, T0 + 2000, None, b"")]
    with pytest.raises(InvalidTimestamp) as caught:
        validate(encode_batch(records), config)
    assert [error.batch_index for error in caught.value.record_errors] == [0, 1, 2]
    with pytest.raises(InvalidRecord, match="needs a key"):
        validate(encode_batch([Record(0, T0 + 2000, None, b"")]), config)


def test_row_109_log_append_time_bit_on_a_create_time_topic() -> None:
    """Row 109."""
    with pytest.raises(InvalidTimestamp):
        validate(encode_batch(values(1), log_append_time_ms=T0))


def test_row_110_no_timestamp_is_always_in_time() -> None:
    """Row 110: also beside records that have one."""
    config = replace(CONFIG, message_timestamp_before_max_ms=0, message_timestamp_after_max_ms=0)
    assert validate(encode_batch(values(2, timestamp_ms=-1)), config).max_timestamp_ms == -1
    mixed = [Record(0, -1, None, b""), Record(1, T0, None, b""), Record(2, -1, None, b"")]
    assert validate(encode_batch(mixed), config).max_timestamp_ms == T0


def test_times_below_none_or_past_64_bits_are_refused() -> None:
    """Ours: Java's arithmetic wraps, and a negative time would stop the time index."""
    one = payload(*values(1))
    for base_ms in (-2, -(1 << 63), MAX_LONG - 3):
        with pytest.raises(InvalidTimestamp):
            validate(forge(payload(Record(0, T0 + 9, None, b"")), base_timestamp_ms=base_ms))
    negative = payload(Record(0, 0, None, b""), base_timestamp_ms=100)
    with pytest.raises(InvalidTimestamp):
        validate(forge(negative, base_timestamp_ms=3))
    validate(forge(one))


def test_the_largest_time_is_counted_not_believed() -> None:
    """MaxTimestamp is the true maximum of the records, whatever the header claimed."""
    records = [Record(0, T0, None, b""), Record(1, T0 + 50, None, b""), Record(2, T0 - 9, None, b"")]
    validated = validate(forge(payload(*records), last_offset_delta=2, count=3, max_timestamp_ms=12))
    batch = Batch(validated.data)
    batch.check_crc()
    assert batch.max_timestamp_ms == validated.max_timestamp_ms == T0 + 50


def test_a_time_that_only_wrapping_can_reach() -> None:
    """The largest time after a record of none: its delta is 2**63, and still the time is right."""
    records = [Record(0, -1, None, b""), Record(1, MAX_LONG, None, b"")]
    assert validate(encode_batch(records)).max_timestamp_ms == MAX_LONG


def test_row_115_size_is_judged_before_anything_is_read() -> None:
    """Row 115: exactly the limit is in."""
    data = encode_batch(values(1))
    validate(data, LogConfig(max_message_bytes=len(data)))
    with pytest.raises(RecordTooLarge) as caught:
        validate(data[:-1] + b"\xff", LogConfig(max_message_bytes=len(data) - 1))
    assert (caught.value.size_bytes, caught.value.max_message_bytes) == (len(data), len(data) - 1)


def test_size_is_judged_again_after_recompression() -> None:
    """Unfolded, the batch may pass the limit that it met."""
    data = encode_batch([Record(0, T0, None, bytes(5000))], codec=Codec.ZSTD)
    with pytest.raises(RecordTooLarge):
        validate(data, LogConfig(max_message_bytes=1000, compression_type="uncompressed"))


def test_row_111_same_codec_at_another_level_is_left_alone() -> None:
    """Row 111."""
    data = encode_batch(values(50), codec=Codec.GZIP, level=1)
    config = LogConfig(compression_type="gzip", compression_gzip_level=9)
    assert validate(data, config).data[61:] == data[61:]


def test_a_bomb_is_refused_without_being_unfolded() -> None:
    """A batch within max.message.bytes may still stand for a gigabyte."""
    data = encode_batch([Record(0, T0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    with pytest.raises(InvalidRecord, match="more than 1000"):
        validate_and_assign(
            data, next_offset=0, leader_epoch=0, now_ms=T0, config=CONFIG, max_decompressed_bytes=1000
        )


# A follower


def at(offset: int, *, count: int = 1, epoch: int = 0) -> bytes:
    """A batch of the leader's at `offset`."""
    data = bytearray(encode_batch(values(count)))
    set_offsets_and_epoch(data, base_offset=offset, leader_epoch=epoch)
    return bytes(data)


def test_bytes_are_kept() -> None:
    """A follower's log is its leader's, byte for byte."""
    data = at(0, count=2) + at(2, count=3, epoch=1)
    found = analyse_follower_batches(data, next_offset=0, leader_epoch=1)
    assert found is not None
    assert found.data is data
    assert (found.first_offset, found.last_offset) == (0, 4)
    assert found.max_timestamp_ms == T0
    assert list(found.extents) == [(batch.size, batch.last_offset, T0) for batch in walk(data)]
    assert [batch.leader_epoch for batch in found.batches] == [0, 1]


def test_any_torn_tail_is_cut_off() -> None:
    """A fetch ends where its byte limit was: the last batch may be cut anywhere."""
    whole, last = at(0), at(1)
    for cut in range(len(last)):
        found = analyse_follower_batches(whole + last[:cut], next_offset=0, leader_epoch=0)
        assert found is not None
        assert (bytes(found.data), found.last_offset) == (whole, 0)
        assert analyse_follower_batches(last[:cut], next_offset=1, leader_epoch=0) is None


def test_row_117_offsets_must_rise() -> None:
    """Row 117."""
    data = b"".join(at(offset) for offset in (0, 1, 3, 2, 4))
    with pytest.raises(OffsetsOutOfOrder):
        analyse_follower_batches(data, next_offset=0, leader_epoch=0)
    with pytest.raises(OffsetsOutOfOrder):
        analyse_follower_batches(at(0, count=3) + at(2), next_offset=0, leader_epoch=0)


@pytest.mark.parametrize(("offset", "count", "end"), [(0, 1, 2), (4, 3, 7), (1, 5, 2)])
def test_rows_118_and_119_below_the_end_of_the_log(offset: int, count: int, end: int) -> None:
    """Rows 118, 119: the error tells the fetcher what it was sent."""
    with pytest.raises(UnexpectedAppendOffset) as caught:
        analyse_follower_batches(at(offset, count=count), next_offset=end, leader_epoch=0)
    assert (caught.value.first_offset, caught.value.last_offset) == (offset, offset + count - 1)


def test_row_120_gaps_are_legal() -> None:
    """Row 120: compaction leaves them, in front and between."""
    found = analyse_follower_batches(at(10) + at(20), next_offset=3, leader_epoch=0)
    assert found is not None
    assert (found.first_offset, found.last_offset) == (10, 20)


def test_row_115_a_follower_has_no_size_limit() -> None:
    """Row 115: the leader has judged; a follower with another setting must not fall out of the ISR."""
    assert analyse_follower_batches(at(0, count=5000), next_offset=0, leader_epoch=0) is not None


def test_an_epoch_from_the_future() -> None:
    """A fetch answered by a leader we do not follow yet."""
    with pytest.raises(InvalidRecord, match="epoch 6, above the leader's epoch 5"):
        analyse_follower_batches(at(0, epoch=5) + at(1, epoch=6), next_offset=0, leader_epoch=5)


def test_epochs_that_go_back() -> None:
    """No checksum covers the epoch; a log whose epochs fall would truncate its followers wrongly."""
    with pytest.raises(CorruptBatch, match="epoch 3 after epoch 4"):
        analyse_follower_batches(at(0, epoch=4) + at(1, epoch=3), next_offset=0, leader_epoch=5)
    with pytest.raises(CorruptBatch, match="epoch 3 after epoch 4"):
        analyse_follower_batches(at(0, epoch=3), next_offset=0, leader_epoch=5, latest_epoch=4)
    unknown = analyse_follower_batches(at(0, epoch=-1), next_offset=0, leader_epoch=5, latest_epoch=4)
    assert unknown is not None, "-1 says nothing, so it contradicts nothing"


def test_any_damage_refuses_the_whole_fetch() -> None:
    """Nothing is written unless all of it is good: a flip behind the checksum, in either batch."""
    data = at(0) + at(1)
    for place in range(len(data)):
        if place % len(at(0)) < 17:
            continue
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptBatch):
            analyse_follower_batches(damaged, next_offset=0, leader_epoch=0)


@pytest.mark.parametrize(
    "data",
    [
        forge(payload(*values(1)), base_offset=-1),
        forge(payload(*values(1)), last_offset_delta=-1),
        forge(payload(*values(1)), base_offset=MAX_LONG),
        forge(payload(*values(1)), base_offset=MAX_LONG - 2, last_offset_delta=2),
        forge(payload(*values(1)), count=-1),
    ],
)
def test_bounds_that_no_batch_can_have(data: bytes) -> None:
    """Right checksum, impossible offsets: a log that took them could never be read again."""
    with pytest.raises(InvalidRecord):
        analyse_follower_batches(data, next_offset=0, leader_epoch=0)


def test_emptied_batches_pass() -> None:
    """Pitfall 30: compaction leaves batches with a count of 0, and a follower has to take them."""
    found = analyse_follower_batches(forge(b"", count=0, last_offset_delta=4), next_offset=0, leader_epoch=0)
    assert found is not None
    assert found.last_offset == 4


def test_a_leaders_output_is_a_followers_input() -> None:
    """The two halves agree: what a leader stamps, a follower takes unchanged."""
    log = b""
    end = 0
    for count in (1, 3, 2):
        validated = validate_and_assign(
            encode_batch(values(count)), next_offset=end, leader_epoch=2, now_ms=T0, config=CONFIG
        )
        log += validated.data
        end = validated.last_offset + 1
    found = analyse_follower_batches(log, next_offset=0, leader_epoch=2)
    assert found is not None
    assert found.last_offset == end - 1 == 5
    assert [batch.base_offset for batch in walk(log)] == [0, 1, 4]


def test_rows_29_and_114_where_the_largest_time_is() -> None:
    """As coarse as a batch: the last offset of the earliest one that holds it."""
    times = ((0, 2, 1), (2, 0), (1, 3), (3, 3))
    data, offset = b"", 0
    for each in times:
        records = [Record(offset + slot, T0 + time, None, b"") for slot, time in enumerate(each)]
        data += encode_batch(records, base_offset=offset, leader_epoch=0)
        offset += len(each)
    for count, expected in ((1, (2, 2)), (2, (2, 2)), (3, (3, 6)), (4, (3, 6))):
        size = sum(batch.size for batch in list(walk(data))[:count])
        found = analyse_follower_batches(data[:size], next_offset=0, leader_epoch=0)
        assert found is not None
        holders = [last for _, last, time in found.extents if time == found.max_timestamp_ms]
        assert (found.max_timestamp_ms - T0, holders[0]) == expected


def test_more_records_than_a_batch_may_have_are_refused_before_they_are_unpacked() -> None:
    """A MiB of zstd can hold millions of empty records: seconds of work, gigabytes if recompressed."""
    count, codec = MAX_RECORDS + 1, Codec.ZSTD
    bomb = forge(b"no stream", attributes=codec, count=count, last_offset_delta=count - 1)
    with pytest.raises(InvalidRecord, match="the limit is"):
        validate_and_assign(bomb, next_offset=0, leader_epoch=0, now_ms=T0, config=LogConfig())
    at_most = forge(b"no stream", attributes=codec, count=count - 1, last_offset_delta=count - 2)
    with pytest.raises(InvalidRecord, match="zstd"):
        validate_and_assign(at_most, next_offset=0, leader_epoch=0, now_ms=T0, config=LogConfig())
