"""Records read a column at a time: what the plain decoder gives, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from logstore.format import bulk_records
from logstore.format.batch import Batch, encode_batch
from logstore.format.bulk_records import decode_bulk
from logstore.format.record import MAX_INT, MAX_LONG, Header, Record, decode_records
from tests.logstore.forge import T0, forge, payload, values
from tests.logstore.test_record import BAD, blobs, headers, raw

times = st.one_of(st.just(-1), st.integers(0, 1 << 41), st.just(MAX_LONG))


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every example would need a hundred records."""
    monkeypatch.setattr(bulk_records, "WORTH_IT", 1)


def both(data: bytes, count: int, **fields: Any) -> tuple[list[Record] | None, list[Record] | None]:
    """The records in bulk (None: not for here) and plainly (None: refused)."""
    fields = {
        "base_offset": 0, "base_timestamp_ms": T0, "log_append_time_ms": None, "base_sequence": -1, **fields,
    }  # fmt: skip
    found = decode_bulk(data, count, **fields)
    try:
        plain = list(decode_records(data, count, **fields))
    except InvalidRecord:
        plain = None
    return None if found is None else list(found), plain


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    rows=st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=8),
    gaps=st.lists(st.sampled_from([1, 2, 200, 70_000]), min_size=8, max_size=8),
    base_offset=st.sampled_from([0, 1 << 40, MAX_LONG - 9]),
    append_time=st.sampled_from([None, 5]),
    sequence=st.sampled_from([-1, 0, MAX_INT - 2]),
)
def test_sound_records(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
    gaps: list[int],
    base_offset: int,
    append_time: int | None,
    sequence: int,
) -> None:
    """Null is not empty, headers are kept, times may be none or the broker's, sequences wrap."""
    offsets = [sum(gaps[:slot]) for slot in range(len(rows))]
    data = payload(*(Record(offset, *row) for offset, row in zip(offsets, rows, strict=True)))
    found, plain = both(
        data, len(rows), base_offset=base_offset, log_append_time_ms=append_time, base_sequence=sequence
    )
    assert plain is not None
    far = base_offset > 1 << 62 or any(row[0] == MAX_LONG for row in rows)
    assert found == plain or (far and found is None)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    rows=st.lists(st.tuples(st.integers(-1, 1 << 41), blobs, blobs, headers), min_size=1, max_size=4),
    places=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.integers(0, 2),
    count=st.integers(-1, 1),
)
def test_mutated_records(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
    places: list[tuple[int, int]],
    cut: int,
    count: int,
) -> None:
    """Nothing is made of what the plain decoder refuses, and nothing else of what it takes."""
    data = bytearray(payload(*(Record(offset, *row) for offset, row in enumerate(rows))))
    for place, byte in places:
        data[place % len(data)] = byte
    found, plain = both(bytes(data[: len(data) - cut]), len(rows) + count)
    assert found is None or found == plain


@pytest.mark.parametrize("name", BAD)
def test_reading_rules(name: str) -> None:
    """Malformed records are for the plain decoder to refuse, also behind sound ones."""
    data, count = BAD[name]
    assert both(data, count) == (None, None)
    assert both(payload(*values(3)) + data, count + 3) == (None, None)


@pytest.mark.parametrize("size", [0, 63, 64, 8191, 8192, 1 << 20, 1 << 21])
def test_lengths_of_one_byte_and_more(size: int) -> None:
    """Integers of one to three bytes; a record above a megabyte is read plainly."""
    records = [Record(slot, T0, bytes(size), None if slot else bytes(size)) for slot in range(2)]
    found, plain = both(payload(*records), 2)
    assert plain == records
    assert found == (records if size < 1 << 19 else None)


def test_needlessly_long_integers() -> None:
    """Legal, and rare enough for either decoder."""
    odd = raw(attributes=0xFF, key=b"\x0d", value=b"\x83\0", offset_delta=b"\x80\0")
    assert both(odd, 1) == ([Record(0, T0, None, None)], [Record(0, T0, None, None)])
    assert both(raw(offset_delta=b"\x82\x80\x80\x80\0"), 1)[0] is None


def test_batches_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches take this way, small and very large ones the other, and readers see no difference."""
    calls: list[int] = []

    def counted(data: bytes, count: int, **fields: Any) -> object:
        calls.append(count)
        return decode_bulk(data, count, **fields)

    monkeypatch.setattr("logstore.format.batch.decode_bulk", counted)
    monkeypatch.setattr(bulk_records, "WORTH_IT", 100)
    for count, is_bulk in ((99, False), (100, True), (1000, True), ((1 << 16) + 1, False)):
        records = values(count)
        batch = Batch(encode_batch(records))
        assert list(batch.records()) == records
        plain_fields: dict[str, Any] = {
            "base_offset": 0, "base_timestamp_ms": T0, "log_append_time_ms": None, "base_sequence": -1,
        }  # fmt: skip
        assert (decode_bulk(batch.payload(), count, **plain_fields) is not None) == is_bulk
    assert calls == [99, 100, 1000, (1 << 16) + 1]


def test_records_before_the_damage_come_first() -> None:
    """A reader gets what lies before a bad record, as ever."""
    batch = Batch(forge(payload(*values(300))[:-1], count=300))
    records = batch.records()
    assert [next(records).offset for _ in range(299)] == list(range(299))
    with pytest.raises(InvalidRecord):
        next(records)
