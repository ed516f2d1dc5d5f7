"""The columnar door: columns are the records that the plain decoder gives, and refuse what it refuses."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar import columnar as module
from logstore.columnar import kernels
from logstore.columnar.columnar import COLUMNS, FIELDS, HEADER_TYPE, decode, encode, schema, table
from logstore.columnar.encoding import RUN_BYTES
from logstore.disk.errors import EngineError
from logstore.disk.files import Buffer
from logstore.errors import CorruptBatch, InvalidRecord, UnsupportedCompression
from logstore.format.batch import (
    Batch,
    encode_batch,
    encode_empty_batch,
    encode_marker_batch,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_INT, MAX_LONG, ControlType, EndTransactionMarker, Header, Record
from logstore.segment.transaction_index import AbortedTransaction
from tests.corpus.test_bad_batches import BAD as BAD_BATCHES
from tests.golden.reading import BATCHES, STREAMS, content
from tests.logstore.forge import T0, forge, payload, values
from tests.logstore.test_record import BAD, raw

ALL = tuple(FIELDS)
PIECE_BYTES = 100_000
Row = tuple[object, ...]

times = st.one_of(st.just(-1), st.integers(0, 1 << 41), st.just(MAX_LONG))
blobs = st.one_of(st.none(), st.binary(max_size=10), st.binary(min_size=60, max_size=150))
headers = st.lists(st.builds(Header, st.text(max_size=8), blobs), max_size=3).map(tuple)


def plain(
    data: bytes, *, start: int | None = None, end: int | None = None, include_control: bool = True
) -> Iterator[Row]:
    """What the plain decoder makes of it, a tuple of all columns a record."""
    for batch in walk(data):
        batch.check_crc()
        if batch.is_control and not include_control:
            continue
        for record in batch.records():
            if (start is None or record.offset >= start) and (end is None or record.offset < end):
                yield (
                    record.offset,
                    record.timestamp_ms,
                    record.key,
                    record.value,
                    [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers],
                    batch.timestamp_type.value,
                    batch.leader_epoch,
                    batch.producer_id,
                    record.sequence,
                )


def rows_of(found: Any) -> list[Row]:
    """The same tuples from a table or record batch of all columns."""
    found.validate(full=True)
    columns = {
        name: (found.column(name).cast(pa.int64()) if name == "timestamp" else found.column(name)).to_pylist()
        for name in ALL
    }
    columns["timestamp"] = [-1 if time is None else time for time in columns["timestamp"]]
    columns["headers"] = [
        [(header["key"], header["value"]) for header in listed or ()] for listed in columns["headers"]
    ]
    return list(zip(*columns.values(), strict=True))


def columnar(data: Buffer, **options: Any) -> list[Row]:
    return rows_of(table(data, columns=ALL, include_control=True, **options))


def verdict(reader: Any) -> object:
    """The rows, or the class of the error."""
    try:
        return list(reader())
    except EngineError as error:
        return type(error)


# --- the same records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", BATCHES, ids=[entry["name"] for entry in BATCHES])
def test_golden_batches(entry: dict[str, Any]) -> None:
    """Every kind of batch that Kafka writes: codecs, sequences, delete horizons, gaps of 2**31, markers."""
    data = content(entry["file"])
    assert columnar(data) == list(plain(data))


@pytest.mark.parametrize("entry", STREAMS, ids=[entry["name"] for entry in STREAMS])
def test_golden_streams(entry: dict[str, Any]) -> None:
    """Several batches in a row, torn tails and damage among them."""
    data = content(entry["file"])
    assert verdict(lambda: columnar(data)) == verdict(lambda: plain(data))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Batches end to end, each of any kind that a log can hold."""
    parts: list[bytes] = []
    offset = draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=5))
        base = offset
        records = []
        for row in rows:
            records.append(Record(offset, *row))
            offset += draw(st.sampled_from([1, 1, 1, 2, 300, 70_000]))
        producer_id, producer_epoch, base_sequence = draw(
            st.sampled_from([(-1, -1, -1), (9, 1, MAX_INT - 1)])
        )
        parts.append(
            encode_batch(
                records,
                base_offset=base,
                leader_epoch=draw(st.integers(-1, 3)),
                codec=draw(st.sampled_from(Codec)),
                log_append_time_ms=draw(st.sampled_from([None, None, 0, T0])),
                delete_horizon_ms=draw(st.sampled_from([None, None, T0 + 5])),
                last_offset=offset + draw(st.integers(0, 2)),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
        offset += 3
    return b"".join(parts)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=batches())
def test_columns_are_the_records(data: bytes) -> None:
    """Null is not empty, times may be none or the broker's, offsets may have gaps; whatever the codec."""
    assert columnar(data) == list(plain(data))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=batches(), start=st.integers(-2, 12), length=st.integers(0, 400), rows=st.integers(1, 5))
def test_a_range_of_offsets(data: bytes, start: int, length: int, rows: int) -> None:
    """Bounds lie inside batches as often as between them; items are never empty, nor larger than wanted."""
    start += Batch(data).base_offset
    end = start + length
    found = list(
        decode(data, columns=ALL, start_offset=start, end_offset=end, include_control=True, max_records=rows)
    )
    assert all(0 < item.num_rows <= rows for item in found)
    assert [row for item in found for row in rows_of(item)] == list(plain(data, start=start, end=end))


def test_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces end anywhere: between batches, in one, in one that is larger than a piece, in a bomb."""
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE_BYTES)
    parts: list[bytes] = []
    offset = 0
    for number in range(40):
        size = (PIECE_BYTES * 3) if number in (7, 31) else PIECE_BYTES // 11
        codec = list(Codec)[number % 5]
        rows = [Record(offset + delta, T0, b"k%d" % delta, bytes(size // 4)) for delta in range(4)]
        parts.append(encode_batch(rows, base_offset=offset, codec=codec))
        offset += 4
    data = b"".join(parts)
    assert columnar(data) == list(plain(data))
    assert columnar(data[:-1]) == list(plain(data[:-1])), "a torn tail ends it quietly"


def test_any_buffer(tmp_path: Path) -> None:
    """Bytes, memory that is written to elsewhere, a memory map; none of it is kept alive."""
    data = encode_batch(values(3))
    expected = list(plain(data))
    (tmp_path / "log").write_bytes(data)
    with (
        (tmp_path / "log").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        found = table(view, columns=ALL)
    assert rows_of(found) == expected
    assert columnar(bytearray(data)) == columnar(memoryview(data)) == expected
    assert table(b"").num_rows == 0
    assert table(b"").schema == schema()


def test_types() -> None:
    """What others build on: exact types, and which of them may be null."""
    assert [str(field.type) for field in FIELDS.values()] == [
        "int64", "timestamp[ms, tz=UTC]", "binary", "binary",
        "list<item: struct<key: binary not null, value: binary>>", "int8", "int32", "int64", "int32",
    ]  # fmt: skip
    nullable = [name for name, field in FIELDS.items() if field.nullable]
    assert nullable == ["timestamp", "key", "value", "headers"]
    assert ALL[: len(COLUMNS)] == COLUMNS


@pytest.mark.parametrize("columns", [("value",), ("headers", "offset"), (), ("sequence",), COLUMNS])
def test_projection(columns: Sequence[str]) -> None:
    """Only what is asked for, in the order asked for, also in a table without rows."""
    data = encode_batch([Record(0, T0, b"k", None, (Header("n", b"v"),)), Record(1, -1, None, b"")])
    whole = table(data, columns=ALL)
    found = table(data, columns=columns)
    assert found.column_names == list(columns)
    assert all(found.column(name).equals(whole.column(name)) for name in columns)
    assert table(b"", columns=columns).column_names == list(columns)


def test_an_unknown_column() -> None:
    with pytest.raises(ValueError, match="unknown column 'partition'; the columns are offset"):
        table(b"", columns=["partition"])


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_bytes": 1 << 31}, {"max_records": 0}])
def test_limits_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        table(b"", **options)


# --- what is left out ---------------------------------------------------------------------------------------


def transactional(base_offset: int, producer_id: int, count: int = 2) -> bytes:
    records = [Record(base_offset + delta, T0, None, b"%d" % producer_id) for delta in range(count)]
    return encode_batch(
        records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id, producer_epoch=0, timestamp_ms=T0, base_offset=base_offset,
    )  # fmt: skip


def test_aborted_transactions_and_markers_are_left_out() -> None:
    """Two producers whose transactions lie in each other: each is judged by its own aborts alone."""
    data = b"".join(
        [
            transactional(0, 1),
            transactional(2, 2),
            encode_batch([Record(4, T0, None, b"plain")], base_offset=4),
            transactional(5, 1),
            marker(7, 1, ControlType.ABORT),
            transactional(8, 1),
            transactional(10, 2),
            marker(12, 1, ControlType.COMMIT),
            marker(13, 2, ControlType.ABORT),
            transactional(14, 2),
            encode_batch(
                [Record(16, T0, None, b"idempotent")],
                base_offset=16, producer_id=2, producer_epoch=0, base_sequence=7,
            ),
        ]
    )  # fmt: skip
    aborted = [AbortedTransaction(2, 2, 13, 0), AbortedTransaction(1, 0, 7, 0)]

    def offsets(**options: Any) -> list[int]:
        found: list[int] = table(data, columns=["offset"], **options).column("offset").to_pylist()
        return found

    assert offsets(aborted=aborted) == [4, 8, 9, 14, 15, 16]
    assert offsets() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 14, 15, 16]
    assert offsets(include_control=True) == list(range(17))
    assert offsets(aborted=aborted, include_control=True) == [4, 7, 8, 9, 12, 13, 14, 15, 16]
    # The last transaction of producer 2 that is known to be aborted says nothing of the one after it.
    assert offsets(aborted=[AbortedTransaction(2, 14, 20, 0)], start_offset=14) == [16]


def test_batches_without_records() -> None:
    """Compaction leaves them; whatever follows such a header is not looked at."""
    kept = encode_empty_batch(Batch(transactional(0, 1)))
    assert columnar(kept + transactional(2, 1)) == list(plain(transactional(2, 1)))
    assert columnar(forge(b"not a record", count=0)) == []


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches(name: str) -> None:
    """The network fuzzer's catalogue: the plain verdict, also behind a good batch."""
    data, _ = BAD_BATCHES[name]
    for stream in (data, encode_batch(values(2)) + data, data + encode_batch(values(2))):
        assert verdict(lambda: columnar(stream, max_bytes=100 << 20)) == verdict(lambda: plain(stream))  # noqa: B023


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", BAD)
def test_reading_rules(name: str, codec: Codec) -> None:
    """Every way for a record to be malformed, in a batch whose checksum is right."""
    body, count = BAD[name]
    with pytest.raises(InvalidRecord):
        columnar(forge(compress(codec, body), attributes=codec, count=count))


def test_what_readers_let_pass() -> None:
    """Any negative length of a nullable field is null, and integers may be needlessly long."""
    odd = forge(raw(attributes=0xFF, key=b"\x0d", value=b"\xff\xff\xff\xff\x0f", offset_delta=b"\x80\0"))
    assert columnar(odd) == list(plain(odd))


def test_an_offset_past_64_bits() -> None:
    """The plain decoder counts on; a column cannot."""
    data = forge(raw(offset_delta=b"\x02"), base_offset=MAX_LONG)
    assert [row[0] for row in plain(data)] == [MAX_LONG + 1]
    with pytest.raises(InvalidRecord, match="64 bits"):
        columnar(data)


def test_times_wrap_as_kafkas_do() -> None:
    records = [Record(0, -1, None, b""), Record(1, MAX_LONG, None, b"")]
    data = forge(payload(*records, base_timestamp_ms=-1), base_timestamp_ms=-1, count=2)
    assert columnar(data) == list(plain(data))


def test_rows_before_the_damage_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a damaged log gets what lies before, by the piece, and then the error."""
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE_BYTES)
    good = encode_batch([Record(0, T0, None, bytes(PIECE_BYTES))])
    for bad, error in ((forge(b""), InvalidRecord), (good[:-1] + b"\x01", CorruptBatch)):
        items = decode(good + good + bad + good)
        assert next(items).num_rows == next(items).num_rows == 1
        with pytest.raises(error):
            next(items)


def test_the_first_fault_is_told() -> None:
    """Streams are decompressed before records are looked at; the error is still that of the first batch."""
    broken = forge(b"no stream", attributes=Codec.GZIP)
    malformed = forge(compress(Codec.GZIP, b""), attributes=Codec.GZIP)
    unknown = forge(b"", attributes=7)
    with pytest.raises(InvalidRecord, match="before the last"):
        columnar(malformed + broken)
    with pytest.raises(InvalidRecord, match="decompress"):
        columnar(broken + malformed)
    with pytest.raises(InvalidRecord, match="before the last"):
        columnar(malformed + unknown)
    with pytest.raises(UnsupportedCompression):
        columnar(unknown + malformed)


def test_a_stream_past_the_limit() -> None:
    data = encode_batch([Record(0, T0, None, bytes(5000))], codec=Codec.GZIP)
    assert table(data, max_bytes=6000).num_rows == 1
    with pytest.raises(InvalidRecord, match="more than 4000"):
        table(data, max_bytes=4000)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    rows=st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=4),
    places=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 3),
    count=st.integers(-1, 1),
    flags=st.sampled_from([0, 0, 8, 64]),
)
def test_mutated_records(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
    places: list[tuple[int, int]],
    cut: int,
    count: int,
    flags: int,
) -> None:
    """Bytes changed and cut under a right checksum: the plain verdict and rows, whatever they say."""
    body = bytearray(payload(*(Record(offset, *row) for offset, row in enumerate(rows))))
    for place, byte in places:
        body[place % len(body)] = byte
    body = body[: len(body) - cut]
    data = forge(bytes(body), count=len(rows) + count, attributes=flags)
    assert verdict(lambda: columnar(data)) == verdict(lambda: plain(data))


@settings(derandomize=True, deadline=None, max_examples=120)
@given(data=batches(), places=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3))
def test_mutated_batches(data: bytes, places: list[tuple[int, int]]) -> None:
    """Bytes changed anywhere: headers too, and streams, mostly with a wrong checksum."""
    changed = bytearray(data)
    for place, byte in places:
        changed[place % len(changed)] = byte
    assert verdict(lambda: columnar(bytes(changed))) == verdict(lambda: plain(bytes(changed)))


def test_memory_that_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory map shows what another process writes, also between the pass that measures and the next."""
    data = bytearray(encode_batch([Record(0, T0, None, b"", (Header("name", b"value"), Header("n", None)))]))
    sound = bytes(data)
    locate_headers = kernels.locate_headers

    for place in range(data.index(b"name") - 2, len(data)):
        for byte in (0, 1, 2, 4, 126, 255):

            def meanwhile(*arguments: Any, place: int = place, byte: int = byte) -> bool:
                data[place] = byte
                return locate_headers(*arguments)

            data[:] = sound
            monkeypatch.setattr(kernels, "locate_headers", meanwhile)
            try:
                found = table(data)
            except InvalidRecord:
                continue
            found.validate(full=True)


# --- columns to batches -------------------------------------------------------------------------------------

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
    list(encode(arrow([(T0, b"k", b"v", (Header("n", b"v"),))])))
    kernels_used = [kernels.locate, kernels.locate_headers, kernels.gather, kernels.plan, kernels.write]
    assert [len(kernel.signatures) for kernel in kernels_used] == [1] * 5  # type: ignore[attr-defined]
