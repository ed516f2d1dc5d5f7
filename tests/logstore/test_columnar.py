"""The columnar door: columns are the records that the plain decoder gives, and refuse what it refuses."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar import columnar as module
from logstore.columnar import kernels
from logstore.columnar.columnar import COLUMNS, FIELDS, decode, schema, table
from logstore.compact.compaction import encode_empty_batch
from logstore.disk.errors import EngineError
from logstore.errors import CorruptBatch, InvalidRecord, UnsupportedCompression
from logstore.format.batch import (
    Batch,
    encode_batch,
    encode_marker_batch,
    walk,
)
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_LONG, ControlType, EndTransactionMarker, Header, Record
from logstore.segment.transaction_index import AbortedTransaction
from tests.corpus.test_bad_batches import BAD as BAD_BATCHES
from tests.golden.reading import BATCHES, STREAMS, content
from tests.logstore.columnar_data import ALL, Row, batches, blobs, columnar, headers, rows_of, times
from tests.logstore.forge import T0, forge, payload, values
from tests.logstore.test_record import BAD, raw

PIECE_BYTES = 100_000


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


def test_columns_keep_no_more_memory_than_they_need() -> None:
    """A reader may collect them: keys have no room for the values beside them."""
    batch = encode_batch([Record(number, T0, b"k", bytes(999)) for number in range(1000)])
    before = pa.total_allocated_bytes()
    kept = list(decode(batch, columns=("key",)))
    assert 5000 <= pa.total_allocated_bytes() - before < 6000
    del kept


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
