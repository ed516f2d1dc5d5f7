"""Arrow columns to batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar import kernels, writing
from logstore.columnar.columnar import FIELDS, HEADER_TYPE, encode, table
from logstore.columnar.encoding import RUN_BYTES, Columns, batches_by_slot
from logstore.format.batch import (
    Batch,
    encode_batch,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.compression import Codec
from logstore.format.record import Header, Record
from tests.logstore.columnar_data import blobs, columnar, headers, times
from tests.logstore.forge import T0

tables = st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=12)


def arrow(rows: Sequence[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]) -> Any:
    """A table of these rows as `decode` would give it."""
    return pa.table(
        {
            "timestamp": pa.array([None if row[0] < 0 else row[0] for row in rows], FIELDS["timestamp"].type),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": name.encode(), "value": value} for name, value in row[3]] if row[3] else None
                    for row in rows
                ],
                pa.list_(HEADER_TYPE),
            ),
        }
    )


@settings(derandomize=True, deadline=None, max_examples=60)
@given(rows=tables, codec=st.sampled_from(Codec), size=st.sampled_from([1, 200, 1000, 100_000]))
def test_batches_are_those_of_the_plain_encoder(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]], codec: Codec, size: int
) -> None:
    """Byte for byte, wherever the table is cut into batches, and from a slice of a table too."""
    sliced = arrow([*rows[:1], *rows]).slice(1)
    encoded = b"".join(encode(sliced, codec=codec, batch_bytes=size, batch_records=9))
    expected = []
    done = 0
    for batch in walk(encoded):
        records = [Record(delta, *row) for delta, row in enumerate(rows[done : done + batch.record_count])]
        expected.append(encode_batch(records, codec=codec))
        assert batch.record_count <= 9
        assert batch.record_count == 1 or len(batch.payload()) <= size
        done += batch.record_count
    assert b"".join(expected) == encoded
    assert done == len(rows)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    parts=st.lists(tables, min_size=1, max_size=4),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
    data=st.data(),
)
def test_rows_of_a_slot_are_encoded_as_if_alone(
    parts: list[list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]],
    codec: Codec,
    data: st.DataObject,
) -> None:
    """The batches of a slot are those of a table with its rows of all parts, in order."""
    columns = [Columns.of(arrow([*rows[:1], *rows]).slice(1).to_batches()[0], T0) for rows in parts]
    rows = [row for part in parts for row in part]
    slots = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    limits = [1, 200, 300, 100_000]
    found = batches_by_slot(
        columns, np.array(slots), np.array(limits), codec=codec, level=None, batch_records=9
    )
    expected = [
        (
            slot,
            b"".join(
                encode(
                    arrow([row for row, its in zip(rows, slots, strict=True) if its == slot]),
                    codec=codec,
                    batch_bytes=limits[slot],
                    batch_records=9,
                )
            ),
        )
        for slot in sorted(set(slots))
    ]
    assert [(slot, bytes(batches)) for slot, batches in found] == expected


def test_batches_are_filled() -> None:
    """As many records as go in: one more would be too many bytes, or too many records."""
    rows = arrow([(T0, None, bytes(90), ())] * 1000)
    by_bytes = list(walk(b"".join(encode(rows, batch_bytes=1000))))
    assert {batch.record_count for batch in by_bytes[:-1]} == {10}
    by_count = list(walk(b"".join(encode(rows, batch_records=7))))
    assert [batch.record_count for batch in by_count] == [7] * 142 + [6]


def test_pieces_are_whole_batches() -> None:
    """An item is what one append takes; a record larger than that is an item of its own."""
    sizes = (10, RUN_BYTES * 2, 10, 300_000, 300_000, 300_000, 9)
    rows = arrow([(T0, b"k", bytes(size), ()) for size in sizes])
    items = [list(walk(item)) for item in encode(rows, batch_bytes=400_000)]
    assert [[batch.record_count for batch in item] for item in items] == [[1], [1], [2, 1, 2]]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()],
)
def test_kinds_of_bytes(kind: Any) -> None:
    """Text is its UTF-8; null stays null in each of them."""
    cells = ["one", None, "", "zwei und drei ist mehr als zwölf"]
    stored = cells if "string" in str(kind) else [cell and cell.encode() for cell in cells]
    column = pa.array(stored, kind).slice(1)
    encoded = b"".join(encode(pa.table({"key": column, "value": column})))
    expected = [None, b"", "zwei und drei ist mehr als zwölf".encode()]
    assert [record[2:4] for record in Batch(encoded).records()] == [(cell, cell) for cell in expected]


def test_other_columns() -> None:
    """Fixed-size binary, dictionaries, and a column of nothing but nulls, which has no type."""
    rows = pa.table(
        {
            "key": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "value": pa.array(["x", "y", "x"]).dictionary_encode(),
            "headers": pa.nulls(3),
        }
    )
    found = Batch(b"".join(encode(rows))).records()
    assert [(record.key, record.value, record.headers) for record in found] == [
        (b"ab", b"x", ()), (None, b"y", ()), (b"cd", b"x", ()),
    ]  # fmt: skip
    nothing = pa.table({"value": pa.nulls(2)})
    assert [record[2:4] for record in Batch(b"".join(encode(nothing))).records()] == [(None, None)] * 2
    assert list(encode(nothing.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([T0, None], pa.int64()), [T0, -1]),
        (pa.array([5, 7], pa.int32()), [5, 7]),
        (pa.array([5, None], pa.timestamp("s")), [5000, -1]),
        (pa.array([5999, 0], pa.timestamp("us", tz="Europe/Berlin")), [5, 0]),
        (pa.array([T0, None], pa.timestamp("ms", tz="UTC")), [T0, -1]),
        (pa.nulls(2), [-1, -1]),
    ],
)
def test_kinds_of_times(column: Any, expected: list[int]) -> None:
    rows = pa.table({"timestamp": column, "value": pa.array([b"", b""])})
    assert [record.timestamp_ms for record in Batch(b"".join(encode(rows))).records()] == expected


@pytest.mark.parametrize(("unit", "time"), [("s", -1), ("ms", -1), ("us", -1), ("us", -1500), ("ns", -1)])
def test_a_time_before_1970_is_refused(unit: Any, time: int) -> None:
    """A cast would make it 1970, or -1, which means that there is none."""
    rows = pa.table({"value": [b"v"], "timestamp": pa.array([time], pa.timestamp(unit))})
    with pytest.raises(ValueError, match=f"timestamp {time} {unit}: times before 1970"):
        list(encode(rows))


def test_a_time_for_all() -> None:
    rows = pa.table({"value": pa.array([b"a", b"b"])})
    for time in (-1, T0):
        batch = Batch(b"".join(encode(rows, timestamp_ms=time)))
        assert [record.timestamp_ms for record in batch.records()] == [time, time]


def test_small_chunks_are_put_together() -> None:
    """A table made of many record batches of a row each does not become as many batches."""
    one = pa.RecordBatch.from_pydict({"value": [b"v"], "headers": [[{"key": b"n", "value": b"w"}]]})
    encoded = b"".join(encode(pa.Table.from_batches([one] * 100)))
    assert Batch(encoded).record_count == 100
    assert Batch(b"".join(encode(one))).record_count == 1


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        ({"key": [b"k"]}, ValueError, "column 'value' is missing"),
        ({"value": [b"v"], "kye": [b"k"]}, ValueError, "unknown column 'kye'"),
        ({"value": [1]}, TypeError, "column 'value' has type int64"),
        ({"value": [b"v"], "timestamp": [-2]}, ValueError, "-1 means none"),
        ({"value": [b"v"], "timestamp": [1.5]}, TypeError, "column 'timestamp' has type double"),
        ({"value": [b"v"], "headers": [b"h"]}, TypeError, "lists of structs"),
        ({"value": [b"v"], "headers": [[b"h"]]}, TypeError, "lists of structs"),
        ({"value": [b"v"], "headers": [[{"name": b"h", "value": b""}]]}, TypeError, "lists of structs"),
        ({"value": [b"v"], "headers": [[{"key": None, "value": b""}]]}, (ValueError, TypeError), "header"),
        ({"value": [b"v"], "headers": [[{"key": "n", "value": b""}, None]]}, ValueError, "null header"),
    ],
)
def test_columns_that_are_refused(rows: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        list(encode(pa.table(rows)))


def test_a_column_that_is_there_twice() -> None:
    with pytest.raises(ValueError, match="column 'value' is there twice"):
        list(encode(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])))


@pytest.mark.parametrize(
    "options", [{"batch_bytes": 0}, {"batch_bytes": 1 << 31}, {"batch_records": 0}, {"timestamp_ms": -2}]
)
def test_sizes_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        list(encode(pa.table({"value": [b""]}), **options))


def test_offsets_that_leave_their_data() -> None:
    """Arrow arrays can be made of any buffers: nothing outside them is read."""
    backwards = pa.py_buffer(struct.pack("<4i", 0, 3, 1, 4))
    column = pa.Array.from_buffers(pa.binary(), 3, [None, backwards, pa.py_buffer(b"abcd")])
    with pytest.raises(ValueError, match="outside its data"):
        list(encode(pa.table({"value": column})))


@settings(derandomize=True, deadline=None, max_examples=25)
@given(rows=tables, codec=st.sampled_from(Codec))
def test_round_trip(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]], codec: Codec
) -> None:
    """Columns, batches, placed one after another, columns."""
    placed = bytearray()
    offset = 0
    for batch in walk(b"".join(encode(arrow(rows), codec=codec, batch_bytes=300))):
        data = bytearray(batch.buffer)
        set_offsets_and_epoch(data, base_offset=offset, leader_epoch=4)
        placed += data
        offset += batch.record_count
    found = table(placed)
    assert found.column("offset").to_pylist() == list(range(len(rows)))
    assert set(found.column("leader_epoch").to_pylist()) == {4}
    columns = ["timestamp", "key", "value", "headers"]
    assert found.select(columns).combine_chunks().equals(arrow(rows).select(columns))


def test_big_keys() -> None:
    """Keys and values of many megabytes, and lengths whose integers have four bytes."""
    rows = [(T0, bytes(3 << 20), bytes(5 << 20), ()), (T0, b"", None, ())]
    encoded = b"".join(encode(arrow(rows)))
    assert [row[2:4] for row in columnar(encoded)] == [row[1:3] for row in rows]


def test_kernels_are_compiled_once() -> None:
    """Another kind of argument, writable memory say, would be compiled for anew: seconds, in the middle."""
    columnar(b"".join(encode(arrow([(T0, b"k", b"v", (Header("n", b"v"),))]))))
    kernels_used = [kernels.locate, kernels.locate_headers, kernels.gather, writing.plan, writing.write]
    assert [len(kernel.signatures) for kernel in kernels_used] == [1] * 5  # type: ignore[attr-defined]
