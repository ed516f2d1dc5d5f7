"""Records decoded with numpy: the same as the loop gives, or None."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar.python_rows import locate_rows
from logstore.errors import InvalidRecord
from logstore.format import record_columns, record_parser
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import MAX_INT, MAX_LONG, Header, Record
from logstore.format.record_columns import use_compiled_locator
from logstore.format.record_parser import (
    NUMPY_UP_TO,
    decode_columns,
    decode_pairs,
    decode_plainly,
    decode_values,
)
from tests.logstore.forge import T0, forge, payload, values
from tests.logstore.test_record import BAD, blobs, headers, raw

times = st.one_of(st.just(-1), st.integers(0, 1 << 41), st.just(MAX_LONG))


@pytest.fixture(autouse=True, params=[None, locate_rows], ids=["numpy", "compiled"])
def locator(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with numpy, and with the compiled code that does the same (decision 019)."""
    use_compiled_locator(request.param)
    yield
    use_compiled_locator(None)


def is_compiled() -> bool:
    return record_columns._Installed.locate is not None


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every example would need a hundred records."""
    monkeypatch.setattr(record_parser, "NUMPY_FROM", 1)


def both(
    data: bytes,
    count: int,
    *,
    base_offset: int = 0,
    base_timestamp_ms: int = T0,
    log_append_time_ms: int | None = None,
    base_sequence: int = -1,
) -> tuple[list[Record] | None, list[Record] | None]:
    """The records by numpy (None: it gave up) and by the loop (None: refused)."""
    fields = base_offset, base_timestamp_ms, log_append_time_ms, base_sequence
    taken: list[Iterator[Record] | None] = []

    def counted(*arguments: Any) -> Iterator[Record] | None:
        taken.append(decode_columns(*arguments))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_parser, "decode_columns", counted)
        decoded = record_parser.decode_records(
            data,
            count,
            base_offset=base_offset,
            base_timestamp_ms=base_timestamp_ms,
            log_append_time_ms=log_append_time_ms,
            base_sequence=base_sequence,
        )
    found = list(decoded) if taken and taken[0] is not None else None
    try:
        plain = list(decode_plainly(data, count, *fields))
    except InvalidRecord:
        plain = None
        for decode in (decode_values, decode_pairs):
            with pytest.raises(InvalidRecord):
                list[object](decode(data, count))
    if plain is not None:
        assert list(decode_values(data, count)) == [record.value for record in plain]
        assert list(decode_pairs(data, count)) == [(record.key, record.value) for record in plain]
    return found, plain


def test_the_end_of_a_guess_inside_of_a_number_is_no_reason_to_give_up() -> None:
    """Two records of different sizes; twice the size of the first ends in the second, before a large byte."""
    rows = (
        Record(0, -1, None, bytes(6), (Header("", None),)),
        Record(1, -1, None, None, (Header("\x80", None), Header("", b"\0\0\x80"))),
    )
    found, plain = both(payload(*rows), 2)
    assert found == plain is not None


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
    """Integers of one to three bytes; numpy leaves a record above a megabyte to the loop."""
    records = [Record(slot, T0, bytes(size), None if slot else bytes(size)) for slot in range(2)]
    found, plain = both(payload(*records), 2)
    assert plain == records
    assert found == (records if size < 1 << 19 or is_compiled() else None)


@pytest.mark.parametrize(
    ("count", "odd"),
    [(8200, None), *((count, odd) for count in (1, 2, 64, 65, 130) for odd in (None, 0, 1, 63, 64, -1))],
)
def test_records_of_one_size_but_for_one(count: int, odd: int | None) -> None:
    """Where all are even their places are guessed, and the guess is checked."""
    sizes = [50] * count
    if odd is not None and odd < count:
        sizes[odd] = 49
    data = payload(*(Record(slot, T0, None, bytes(size)) for slot, size in enumerate(sizes)))
    found, plain = both(data, count)
    assert found == plain
    assert plain is not None
    assert [len(record.value or b"") for record in plain] == sizes
    is_even = len(set(sizes[:64])) == 1 and len(set(sizes[64:])) < 2 and count <= 8192
    assert (record_columns._even_starts(data, count) is not None) == is_even


def test_needlessly_long_integers() -> None:
    """Legal, and rare enough for either decoder."""
    odd = raw(attributes=0xFF, key=b"\x0d", value=b"\x83\0", offset_delta=b"\x80\0")
    assert both(odd, 1) == ([Record(0, T0, None, None)], [Record(0, T0, None, None)])
    found, plain = both(raw(offset_delta=b"\x82\x80\x80\x80\0"), 1)
    assert found == (plain if is_compiled() else None)


def test_batches_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are read by numpy, small and very large ones by the loop; the records are the same."""
    calls: list[int] = []

    def counted(data: bytes, count: int, *fields: Any) -> Iterator[Record] | None:
        calls.append(count)
        return decode_columns(data, count, *fields)

    monkeypatch.setattr(record_parser, "decode_columns", counted)
    monkeypatch.setattr(record_parser, "NUMPY_FROM", 100)
    for count in (99, 100, 1000, NUMPY_UP_TO + 1):
        records = values(count)
        batch = Batch(encode_batch(records))
        assert list(batch.records()) == records
        found = decode_columns(batch.payload(), count, 0, T0, None, -1)
        assert found is not None
        assert list(found) == records
    assert calls == [100, 1000]


def test_records_before_the_damage_come_first() -> None:
    """A reader gets what lies before a bad record, as ever."""
    batch = Batch(forge(payload(*values(300))[:-1], count=300))
    records = batch.records()
    assert [next(records).offset for _ in range(299)] == list(range(299))
    with pytest.raises(InvalidRecord):
        next(records)
