"""Records: the reading rules row by row, and that the quick check is the slow reading without its objects."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import (
    MAX_INT,
    MAX_LONG,
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    Header,
    Record,
    add_sequence,
    encode_pairs,
    encode_records,
    subtract_sequence,
)
from logstore.format.record_parser import check_plainly, decode_records
from logstore.format.varint import encode_varint, encode_varlong
from tests.logstore.forge import T0, payload, values

times = st.one_of(st.just(-1), st.integers(0, MAX_LONG))
blobs = st.one_of(st.none(), st.binary(max_size=10), st.binary(min_size=60, max_size=150))
headers = st.lists(st.builds(Header, st.text(max_size=8), blobs), max_size=3).map(tuple)
fields = st.lists(st.tuples(times, blobs, blobs, headers), max_size=6)


def read(data: bytes, count: int, *, base_offset: int = 0, base_timestamp_ms: int = T0) -> list[Record]:
    """The records of an uncompressed payload."""
    return list(
        decode_records(
            data,
            count,
            base_offset=base_offset,
            base_timestamp_ms=base_timestamp_ms,
            log_append_time_ms=None,
            base_sequence=-1,
        )
    )


def raw(
    *,
    length: int | None = None,
    attributes: int = 0,
    timestamp_delta: bytes = b"\0",
    offset_delta: bytes = b"\0",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    header_part: bytes = b"\0",
) -> bytes:
    """A record of these very bytes; its length is true unless it is given."""
    body = bytes((attributes,)) + timestamp_delta + offset_delta + key + value + header_part
    return encode_varint(len(body) if length is None else length) + body


@settings(derandomize=True, deadline=None)
@given(
    rows=fields,
    base_offset=st.sampled_from([0, 7, 1 << 40]),
    gaps=st.lists(st.integers(1, 9000), max_size=6),
)
def test_row_16_round_trip(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]], base_offset: int, gaps: list[int]
) -> None:
    """Row 16: null is not empty, header order and duplicates are kept, times may be anything legal."""
    records: list[Record] = []
    offset = base_offset
    for slot, row in enumerate(rows):
        records.append(Record(offset, *row))
        offset += gaps[slot] if slot < len(gaps) else 1
    base_timestamp_ms = records[0].timestamp_ms if records else -1
    parts, count, last_offset, max_timestamp_ms = encode_records(
        records, base_offset=base_offset, base_timestamp_ms=base_timestamp_ms
    )
    data = b"".join(parts)
    assert count == len(records)
    assert max_timestamp_ms == max((record.timestamp_ms for record in records), default=-1)
    assert last_offset == (records[-1].offset if records else base_offset - 1)
    assert read(data, count, base_offset=base_offset, base_timestamp_ms=base_timestamp_ms) == records


@settings(derandomize=True)
@given(pairs=st.lists(st.tuples(blobs, blobs), max_size=10))
def test_pairs_are_a_shortcut(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    """The quick encoder gives the bytes of the plain one."""
    records = [Record(offset, T0, *pair) for offset, pair in enumerate(pairs)]
    parts, count = encode_pairs(pairs)
    assert (b"".join(parts), count) == (payload(*records), len(records))


def test_varint_borders_of_lengths_and_deltas() -> None:
    """The tables end at 8192; what lies past them takes another way to the same encoding."""
    for size in (0, 63, 64, 8191, 8192, 100_000):
        record = Record(size, T0, bytes(size), bytes(size))
        assert read(payload(record), 1) == [record]
        parts, _ = encode_pairs([(bytes(size), bytes(size))])
        assert read(b"".join(parts), 1) == [record._replace(offset=0)]
    parts, count = encode_pairs([(None, b"")] * 8200)
    assert [record.offset for record in read(b"".join(parts), count)] == list(range(8200))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (5, 3)])
def test_row_23_offsets_must_rise(offsets: tuple[int, int]) -> None:
    """Row 23: an offset not above the record's before."""
    with pytest.raises(ValueError, match="offsets rise"):
        payload(*(Record(offset, T0, None, b"") for offset in offsets))


def test_row_23_times_below_none_are_refused() -> None:
    """Row 23: -1 is no time; -2 is a mistake."""
    with pytest.raises(ValueError, match="-1 means none"):
        payload(Record(0, -2, None, b""))


def test_names_that_are_not_utf8_survive() -> None:
    """Kafka does not check header names: a copy of a batch must have the same bytes."""
    data = raw(header_part=b"\x02" + b"\x04\xff\xfe" + b"\x01")
    (record,) = read(data, 1)
    assert payload(record) == data


# Reading rules, each with the check that must agree

BAD: dict[str, tuple[bytes, int]] = {
    "row 17: more headers than bytes": (raw(header_part=b"\x7e"), 1),
    "row 17: headers negative": (raw(header_part=b"\x01"), 1),
    "row 17: headers, 2**31 - 1": (raw(header_part=encode_varint(MAX_INT)), 1),
    "row 18: key passes the end": (raw(key=b"\x7ek"), 1),
    "row 18: key, 2**31 - 1": (raw(key=encode_varint(MAX_INT)), 1),
    "row 18: key into the next record": (raw(key=b"\x20k") + raw(offset_delta=b"\x02"), 2),
    "row 18: value passes the end": (raw(value=b"\x7ev"), 1),
    "row 18: value, 2**31 - 1": (raw(value=encode_varint(MAX_INT)), 1),
    "row 18: value takes the header count": (raw(value=b"\x04v"), 1),
    "row 18: header name passes the end": (raw(header_part=b"\x02\x7en\x02v"), 1),
    "row 18: header value passes the end": (raw(header_part=b"\x02\x02n\x7ev"), 1),
    "row 18: header value, 2**31 - 1": (raw(header_part=b"\x02\x02n" + encode_varint(MAX_INT)), 1),
    "row 19: header name null": (raw(header_part=b"\x02\x01\x02v"), 1),
    "row 20: length one less": (raw(length=7), 1),
    "row 20: length one more": (raw(length=9) + b"\0", 1),
    "row 20: length negative": (raw(length=-1), 1),
    "row 20: length 0": (raw(length=0), 1),
    "row 20: length 2**31 - 1": (raw(length=MAX_INT), 1),
    "row 21: the data ends inside the time": (raw()[:1] + b"\0\x80", 1),
    "row 21: time of 11 bytes": (raw(timestamp_delta=b"\x80" * 10 + b"\0"), 1),
    "row 21: offset of 6 bytes": (raw(offset_delta=b"\x80" * 5 + b"\0"), 1),
    "row 21: key length of 6 bytes": (raw(key=b"\x80" * 5 + b"\0"), 1),
    "row 21: value length of 6 bytes": (raw(value=b"\x80" * 5 + b"\0"), 1),
    "row 21: length of 6 bytes": (b"\x80" * 5 + raw(), 1),
    "row 6: one record too few": (raw() + raw(offset_delta=b"\x02"), 3),
    "row 6: one record too many": (raw() + raw(offset_delta=b"\x02"), 1),
    "bytes after the last record": (raw() + b"\0", 1),
    "nothing at all": (b"", 1),
}


@pytest.mark.parametrize("reader", [read, check_plainly])
@pytest.mark.parametrize("name", BAD)
def test_row_6_and_rows_17_to_21_reading_rules(name: str, reader: Callable[[bytes, int], object]) -> None:
    """Every way for a record to be malformed is `InvalidRecord`, found by reading and by the check alike."""
    with pytest.raises(InvalidRecord):
        reader(*BAD[name])


@pytest.mark.parametrize("reader", [read, check_plainly])
@pytest.mark.parametrize("cut", range(len(payload(*values(2))) - 1))
def test_cut_anywhere(cut: int, reader: Callable[[bytes, int], object]) -> None:
    """A payload that ends early, at every byte."""
    with pytest.raises(InvalidRecord):
        reader(payload(*values(2))[:cut], 2)


def test_what_readers_let_pass() -> None:
    """Record attributes, any negative length of a nullable field, and needlessly long integers."""
    odd = raw(attributes=0xFF, key=encode_varint(-7), value=encode_varint(-(1 << 31)), offset_delta=b"\x80\0")
    assert read(odd, 1) == [Record(0, T0, None, None)]
    assert check_plainly(odd, 1)[2] == 1
    null_value = raw(header_part=b"\x02\x02n" + encode_varint(-2))
    assert read(null_value, 1)[0].headers == (Header("n", None),)
    assert check_plainly(null_value, 1)[2] == 0


def test_the_check_wants_dense_offsets() -> None:
    """The one rule more that it has: a client's batch has no gaps."""
    sparse = payload(Record(0, T0, None, b""), Record(2, T0, None, b""))
    assert [record.offset for record in read(sparse, 2)] == [0, 2]
    with pytest.raises(InvalidRecord, match="offset delta 2, not 1"):
        check_plainly(sparse, 2)


def test_the_check_reports_times_and_missing_keys() -> None:
    """All that a leader needs to know of a batch whose records are in order."""
    records = [Record(0, T0, b"k", None), Record(1, T0 - 70_000, None, b"v"), Record(2, T0 + 9, b"", b"")]
    assert check_plainly(payload(*records), 3) == (-70_000, 9, 1)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    rows=st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=3),
    places=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
)
def test_check_agrees_with_reading(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]], places: list[tuple[int, int]]
) -> None:
    """The check refuses exactly what reading refuses, and gaps; both raise only `InvalidRecord`."""
    records = [Record(offset, *row) for offset, row in enumerate(rows)]
    data = bytearray(payload(*records))
    for place, byte in places:
        data[place % len(data)] = byte

    def verdict(reader: Callable[[bytes, int], object]) -> object:
        try:
            return reader(bytes(data), len(records))
        except InvalidRecord:
            return None

    decoded = verdict(read)
    dense = isinstance(decoded, list) and [record.offset for record in decoded] == list(range(len(records)))
    summary = verdict(check_plainly)
    assert (summary is not None) == dense
    if isinstance(decoded, list) and summary is not None:
        _, _, keyless = check_plainly(bytes(data), len(records))
        assert keyless == sum(record.key is None for record in decoded)


def test_rows_2_and_3_and_22_no_sequence_unless_the_batch_has_one() -> None:
    """Rows 2, 3, 22."""
    data = payload(*values(3))

    def sequences(base: int) -> Iterator[int]:
        for record in decode_records(
            data, 3, base_offset=0, base_timestamp_ms=T0, log_append_time_ms=None, base_sequence=base
        ):
            yield record.sequence

    assert list(sequences(-1)) == [-1, -1, -1]
    assert list(sequences(MAX_INT)) == [MAX_INT, 0, 1]


@pytest.mark.parametrize(("sequence", "delta", "sum_"), [(5, 5, 10), (MAX_INT, 1, 0), (MAX_INT - 5, 10, 4)])
def test_row_4_add_sequence(sequence: int, delta: int, sum_: int) -> None:
    """Row 4: sequences wrap to 0 after 2**31 - 1."""
    assert add_sequence(sequence, delta) == sum_
    assert subtract_sequence(sum_, delta) == sequence


@pytest.mark.parametrize(("sequence", "delta", "rest"), [(5, 5, 0), (0, 1, MAX_INT)])
def test_row_5_subtract_sequence(sequence: int, delta: int, rest: int) -> None:
    """Row 5."""
    assert subtract_sequence(sequence, delta) == rest


def test_times_wrap_as_kafkas_do() -> None:
    """A record of the largest time after one of none: the delta does not fit 64 bits, the time does."""
    records = [Record(0, -1, None, b""), Record(1, MAX_LONG, None, b"")]
    data = payload(*records, base_timestamp_ms=-1)
    assert encode_varlong(-MAX_LONG - 1) in data
    assert read(data, 2, base_timestamp_ms=-1) == records


# Control records


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_row_13_marker_round_trip(kind: ControlType) -> None:
    """Row 13."""
    marker = EndTransactionMarker(kind, 50)
    record = marker.record(983, T0)
    assert record.value is not None
    assert (record.offset, len(record.value)) == (983, 6)
    assert EndTransactionMarker.parse(record) == marker


def test_row_44_newer_versions_are_read_as_version_0() -> None:
    """Row 44: also with bytes that only a newer version understands."""
    key = struct.pack(">hh", 7, ControlType.COMMIT) + b"more"
    record = Record(0, T0, key, struct.pack(">hi", 9, 4) + b"more")
    assert ControlRecord.parse(key).type is ControlType.COMMIT
    assert EndTransactionMarker.parse(record) == (ControlType.COMMIT, 4)


def test_row_43_unknown_type_is_no_error_until_it_should_end_a_transaction() -> None:
    """Row 43."""
    key = ControlRecord(0, 99).encode()
    assert ControlRecord.parse(key).type is None
    with pytest.raises(InvalidRecord, match="does not end"):
        EndTransactionMarker.parse(Record(0, T0, key, bytes(6)))


def test_row_40_leader_change_is_known_and_ends_nothing() -> None:
    """Row 40."""
    key = ControlRecord(0, 2).encode()
    assert ControlRecord.parse(key).type is ControlType.LEADER_CHANGE
    batch = Batch(encode_batch([Record(0, T0, key, b"")], is_control=True))
    assert (batch.is_control, batch.is_transactional, batch.has_producer_id) == (True, False, False)
    with pytest.raises(InvalidRecord):
        EndTransactionMarker.parse(Record(0, T0, key, bytes(6)))


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", struct.pack(">hh", -1, 0)])
def test_bad_control_keys(key: bytes | None) -> None:
    """Short, missing, or of a negative version."""
    with pytest.raises(InvalidRecord):
        ControlRecord.parse(key)


@pytest.mark.parametrize("value", [None, b"", bytes(5), struct.pack(">hi", -1, 0)])
def test_row_45_bad_marker_values(value: bytes | None) -> None:
    """Row 45."""
    with pytest.raises(InvalidRecord):
        EndTransactionMarker.parse(Record(0, T0, ControlRecord(0, 0).encode(), value))
