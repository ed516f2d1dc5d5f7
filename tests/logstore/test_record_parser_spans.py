"""Where records lie: the same as decoding them, and no byte is believed before it is there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from logstore.format.record import Header, Record, encode_records
from logstore.format.record_parser import decode_records, find_records

some_bytes = st.none() | st.binary(max_size=5) | st.binary(min_size=60, max_size=70) | st.just(b"x" * 20_000)
rows = st.lists(
    st.tuples(st.integers(1, 20_000), st.integers(0, 1 << 40), some_bytes, some_bytes, st.booleans()),
    max_size=5,
)


def payload_of(rows: list[tuple[int, int, bytes | None, bytes | None, bool]]) -> tuple[bytes, int]:
    offset, records = -1, []
    for gap, time, key, value, has_headers in rows:
        offset += gap
        headers = (Header("name", value), Header("", None)) if has_headers else ()
        records.append(Record(offset, time, key, value, headers))
    parts, count, _, _ = encode_records(records, base_offset=0, base_timestamp_ms=1000)
    return b"".join(parts), count


@given(rows=rows, before=st.binary(max_size=3))
@settings(derandomize=True, max_examples=100, deadline=None)
def test_the_same_as_decoding(
    rows: list[tuple[int, int, bytes | None, bytes | None, bool]], before: bytes
) -> None:
    """In the middle of a chunk as at its start; gaps in the offsets are what compaction leaves."""
    payload, count = payload_of(rows)
    data = before + payload + b"\x00 what follows"
    spans = find_records(data, count, len(before), len(before) + len(payload))
    decoded = list(
        decode_records(
            payload, count, base_offset=0, base_timestamp_ms=1000, log_append_time_ms=None, base_sequence=-1
        )
    )
    assert spans.offset_deltas == [record.offset for record in decoded]
    assert [1000 + delta for delta in spans.time_deltas] == [record.timestamp_ms for record in decoded]
    assert spans.keys == [record.key for record in decoded]
    assert spans.are_tombstones == [record.value is None for record in decoded]
    for start, end, record in zip(spans.bounds, spans.bounds[1:], decoded, strict=False):
        alone = decode_records(
            data[start:end],
            1,
            base_offset=0,
            base_timestamp_ms=1000,
            log_append_time_ms=None,
            base_sequence=-1,
        )
        assert list(alone) == [record]
    assert len(spans.bounds) == count + 1


def test_a_payload_cut_or_changed_anywhere() -> None:
    """`InvalidRecord` and nothing else, whatever byte is missing or wrong; never a key past its record."""
    payload, count = payload_of(
        [(1, 0, b"key", b"value", True), (2, 0, None, b"v" * 300, False), (1, 5, b"k", None, False)]
    )
    for size in range(len(payload)):
        with pytest.raises(InvalidRecord):
            find_records(payload[:size], count, 0, size)
    for position in range(len(payload)):
        for bit in range(8):
            changed = bytearray(payload)
            changed[position] ^= 1 << bit
            try:
                spans = find_records(bytes(changed), count, 0, len(payload))
            except InvalidRecord:
                continue
            assert spans.bounds[-1] == len(payload)
            assert spans.bounds == sorted(spans.bounds)


@pytest.mark.parametrize("count", [0, 2])
def test_the_count_is_held_to(count: int) -> None:
    payload, _ = payload_of([(1, 0, b"key", b"value", False)])
    with pytest.raises(InvalidRecord):
        find_records(payload, count, 0, len(payload))


def test_offsets_that_do_not_rise() -> None:
    payload, _ = payload_of([(1, 0, b"key", b"value", False)])
    with pytest.raises(InvalidRecord, match="offset delta 0 after 0"):
        find_records(payload * 2, 2, 0, len(payload) * 2)
