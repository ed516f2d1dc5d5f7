"""The columnar door: batches to Arrow columns, and Arrow columns to batches, with nothing done per record.

    offset            int64                    timestamp   timestamp[ms, UTC]; null: the record has none
    key, value        binary; null is not empty            the batch's, where its timestamps are LogAppendTime
    headers           list<struct<key: binary, value: binary>>; null: none. Names are bytes, as they were sent
    timestamp_type    int8, 0 CreateTime, 1 LogAppendTime
    leader_epoch      int32                    producer_id int64 and sequence int32, if asked for

What comes out is what `Batch.records` gives, and what it refuses is refused here, with the same error: where
a compiled loop (`kernels.py`) finds a batch unsound, the plain code is asked what is wrong with it. Batches
are walked, checksummed and decompressed one by one, a piece of some megabytes at a time; then a kernel
finds all records of the piece, and one copies each column. Needs the extra `arrow`; the first use in a
process loads the kernels, or compiles them (`warm_up`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.columnar import kernels
from logstore.columnar.kernels import Bytes, Ints, Longs, bytes_of
from logstore.disk.files import Buffer
from logstore.errors import InvalidRecord
from logstore.format.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_DECOMPRESSED_BYTES,
    TRANSACTIONAL,
    Batch,
    seal_batch,
    walk,
)
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_INT, MAX_LONG, NO_TIMESTAMP
from logstore.log.read import FetchedBytes
from logstore.log.stretches import Stretch
from logstore.segment.scan import Fault, scan_buffer
from logstore.segment.transaction_index import AbortedTransaction

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
FIELDS: Final[dict[str, Any]] = {
    field.name: field
    for field in (
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER_TYPE)),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
    )
}
"""Every column there is, by name."""
COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers", "timestamp_type", "leader_epoch")
"""The columns that come unless others are named."""

PIECE_BYTES: Final = 2 << 20
"""Bytes taken at a time, stored or decompressed: enough that what is done once a piece costs nothing."""
RUN_BYTES: Final = 1 << 20
"""Made batches handed on at a time: what an append writes at once."""
BATCH_BYTES: Final = 512 << 10
BATCH_RECORDS: Final = 1 << 16

_LENGTH: Final = Struct(">8xi")  # behind the base offset

Headers: TypeAlias = npt.NDArray[np.void]


def warm_up() -> None:
    """Compile or load all kernels now rather than at the first use; later calls cost next to nothing."""
    kernels.warm_up()
    header = pa.array([[{"key": b"n", "value": b"v"}]], pa.list_(HEADER_TYPE))
    for batches in encode(pa.table({"value": pa.array([b"v"]), "headers": header})):
        table(batches)


# --- batches to columns -------------------------------------------------------------------------------------


def schema(columns: Sequence[str] = COLUMNS) -> Any:
    """The Arrow schema of these columns; `ValueError` for a name that is none."""
    if unknown := [name for name in columns if name not in FIELDS]:
        raise ValueError(f"no column {unknown[0]!r}; there are {', '.join(FIELDS)}")
    return pa.schema([FIELDS[name] for name in columns])


def decode(
    data: Buffer | FetchedBytes | Stretch,
    *,
    columns: Sequence[str] = COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    aborted: Iterable[AbortedTransaction] | None = None,
    include_control: bool = False,
    max_records: int | None = None,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Any]:
    """The records of the batches in `data` as `pyarrow.RecordBatch`es, none of them empty.

    `data` may be a view of a memory map; its memory is not kept. Offsets outside
    [start_offset, end_offset) are left out; of fetched bytes the start is that of the fetch unless it is
    given. Left out are also control batches and the batches of `aborted` transactions, and of those that
    fetched bytes name. Columns that are not named cost nothing. `max_records` bounds the rows of an item;
    `max_bytes`, below 2**31, is how far one batch may decompress.

    A last batch that is cut short ends it quietly, as in `walk`. Raises `CorruptBatch`, `InvalidRecord` or
    `UnsupportedCompression` as reading the records would, after rows of what lies before; the whole of the
    piece at fault, some megabytes, is held back. Checksums of all batches are judged, records only of
    those that are not left out. `InvalidRecord` also for an offset past 64 bits, which no column can hold.
    Of a `Stretch` the checksums have been judged already.
    """
    wanted = schema(columns)
    if not 0 < max_bytes <= MAX_INT:
        raise ValueError(f"max_bytes {max_bytes}: a batch's records have 1 to 2**31 - 1 bytes")
    if max_records is not None and max_records < 1:
        raise ValueError(f"max_records {max_records}: a record batch has at least one")
    if isinstance(data, FetchedBytes):
        start_offset = data.start_offset if start_offset is None else start_offset
        aborted = data.aborted if aborted is None else aborted
        aborted = (*aborted, *data.aborted)
        data = data.records
    choice = _Choice(
        -MAX_LONG - 1 if start_offset is None else min(max(start_offset, -MAX_LONG - 1), MAX_LONG),
        MAX_LONG if end_offset is None else min(max(end_offset - 1, -MAX_LONG - 1), MAX_LONG),
        _by_producer(aborted or ()),
        include_control,
    )
    if isinstance(data, Stretch):
        pieces = _pieces_of_stretch(data, choice, max_bytes)
    else:
        pieces = _pieces(data, choice, max_bytes)
    for piece in pieces:
        rows = _rows(piece, choice, wanted)
        if max_records is None:
            if rows.num_rows:
                yield rows
            continue
        for first in range(0, rows.num_rows, max_records):
            yield rows.slice(first, max_records)


def table(data: Buffer | FetchedBytes | Stretch, *, columns: Sequence[str] = COLUMNS, **options: Any) -> Any:
    """All of `decode` as one `pyarrow.Table`; the same arguments and errors."""
    return pa.Table.from_batches(list(decode(data, columns=columns, **options)), schema(columns))


class _Choice(NamedTuple):
    """Which batches are read, and which of their records."""

    start_offset: int
    last_offset: int
    aborted: dict[int, tuple[list[int], list[int]]]
    include_control: bool

    def of(self, headers: Headers) -> npt.NDArray[np.bool_]:
        """Whether the records of each batch are looked at."""
        base_offsets = headers["base_offset"].astype(np.int64)
        deltas = headers["last_offset_delta"].astype(np.int64)
        last_offsets = base_offsets + deltas
        # A batch whose bounds make no sense is judged by its records.
        senseless = (deltas < 0) | (last_offsets < base_offsets)
        chosen: npt.NDArray[np.bool_] = (headers["record_count"] != 0) & (base_offsets <= self.last_offset)
        chosen &= senseless | (last_offsets >= self.start_offset)
        if not self.include_control:
            chosen &= headers["attributes"] & CONTROL == 0
        if self.aborted:
            for slot in np.flatnonzero(chosen & (headers["attributes"] & TRANSACTIONAL != 0)).tolist():
                chosen[slot] = not self._is_aborted(headers[slot])
        return chosen

    def _is_aborted(self, header: np.void) -> bool:
        if header["attributes"] & CONTROL or (known := self.aborted.get(int(header["producer_id"]))) is None:
            return False
        firsts, lasts = known
        slot = bisect_right(firsts, int(header["base_offset"])) - 1
        return slot >= 0 and bool(header["base_offset"] < lasts[slot])


def _by_producer(aborted: Iterable[AbortedTransaction]) -> dict[int, tuple[list[int], list[int]]]:
    """First and last offsets of each producer's aborted transactions, which never overlap, in order."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for transaction in sorted(aborted):
        firsts, lasts = found.setdefault(transaction.producer_id, ([], []))
        firsts.append(transaction.first_offset)
        lasts.append(transaction.last_offset)
    return found


class _Piece(NamedTuple):
    """Batches whose records lie in `data[starts:ends]`, decompressed; `view` and `positions`: as stored."""

    data: Bytes
    starts: Longs
    ends: Longs
    headers: Headers
    view: Buffer
    positions: Longs
    max_bytes: int

    def judge(self) -> None:
        """Let the plain code say what is wrong."""
        _judge((Batch(self.view, position) for position in self.positions.tolist()), self.max_bytes)


def _judge(batches: Iterable[Batch], max_bytes: int) -> None:
    for batch in batches:
        deque(batch.records(max_bytes=max_bytes), maxlen=0)


def _pieces(data: Buffer, choice: _Choice, max_bytes: int) -> Iterator[_Piece]:
    view = memoryview(data)
    position, window = 0, PIECE_BYTES
    while position < len(view):
        # What a log gives out is one piece: its bytes are quicker to walk than a view of them.
        taken = data if position == 0 and len(view) <= window else view[position : position + window]
        found = scan_buffer(taken, len(taken))
        if len(found.headers):
            chosen = choice.of(found.headers)
            yield from _unpacked(taken, found.headers[chosen], found.positions[chosen], max_bytes)
        position += found.end
        at_end = position + len(taken) - found.end == len(view)
        if found.fault not in (None, Fault.TORN) or (found.fault is Fault.TORN and at_end):
            # Quiet if it is a torn tail, and none of the formats that are not read.
            for batch in walk(view, position=position):
                batch.check_crc()
                raise AssertionError(f"{batch!r} at byte {position} is sound, the scan said {found.fault}")
            return
        # A batch that is larger than the window is taken by itself.
        window = PIECE_BYTES if found.end else LOG_OVERHEAD + _LENGTH.unpack_from(view, position)[0]


def _pieces_of_stretch(stretch: Stretch, choice: _Choice, max_bytes: int) -> Iterator[_Piece]:
    first = 0
    while first < len(stretch.positions):
        after = int(np.searchsorted(stretch.positions, int(stretch.positions[first]) + PIECE_BYTES))
        headers, positions = stretch.headers[first:after], stretch.positions[first:after]
        chosen = choice.of(headers)
        yield from _unpacked(stretch.data, headers[chosen], positions[chosen], max_bytes)
        first = after


def _unpacked(view: Buffer, headers: Headers, positions: Longs, max_bytes: int) -> Iterator[_Piece]:
    if not len(headers):
        return
    starts = positions + HEADER_BYTES
    ends = positions + headers["batch_length"] + LOG_OVERHEAD
    packed = headers["attributes"] & CODEC_MASK != 0
    if not packed.any():
        yield _Piece(bytes_of(view), starts, ends, headers, view, positions, max_bytes)
        return
    first, size = 0, 0
    payloads: list[bytes] = []
    for slot, position in enumerate(positions.tolist()):
        try:
            payloads.append(Batch(view, position).payload(max_bytes=max_bytes))
        except Exception:
            # Whatever lies before it is to blame first.
            _judge((Batch(view, before) for before in positions[first:slot].tolist()), max_bytes)
            raise
        size += len(payloads[-1])
        if size >= PIECE_BYTES or slot == len(positions) - 1:
            sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
            ends = np.cumsum(sizes)
            arena = bytes_of(payloads[0] if len(payloads) == 1 else b"".join(payloads))
            end = slot + 1
            yield _Piece(arena, ends - sizes, ends, headers[first:end], view, positions[first:end], max_bytes)
            first, size, payloads = end, 0, []


class _Buffer:
    """Memory that numpy fills, out of Arrow's pool: that keeps what it gets back, so pages are not new."""

    def __init__(self, count: int, dtype: npt.DTypeLike) -> None:
        self.arrow = pa.allocate_buffer(count * np.dtype(dtype).itemsize)
        self.array: npt.NDArray[Any] = np.frombuffer(self.arrow, dtype)

    def first(self, count: int) -> Any:
        return self.arrow.slice(0, count * self.array.itemsize)


def _rows(piece: _Piece, choice: _Choice, wanted: Any) -> Any:
    headers = piece.headers
    counts = headers["record_count"].astype(np.int64)
    if (counts < 0).any() or (counts * kernels.SMALLEST_RECORD > piece.ends - piece.starts).any():
        piece.judge()
        raise AssertionError("more records than bytes for them, and nothing wrong")
    room = int(counts.sum())
    base_offsets = headers["base_offset"].astype(np.int64)
    by_broker = headers["attributes"] & LOG_APPEND_TIME != 0
    offsets, times = _Buffer(room, np.int64), _Buffer(room, np.int64)
    key_at, value_at, headers_at = (_Buffer(room, np.int64).array for _ in range(3))
    key_size, value_size = (_Buffer(room, np.int32).array for _ in range(2))
    rows = np.empty(len(headers), np.int64)
    totals = np.zeros(kernels.TOTALS, np.int64)
    verdict = kernels.locate(
        piece.data,
        piece.starts,
        piece.ends,
        counts,
        base_offsets,
        headers["base_timestamp"].astype(np.int64),
        headers["max_timestamp"].astype(np.int64),
        by_broker,
        choice.start_offset,
        choice.last_offset,
        offsets.array,
        times.array,
        key_at,
        key_size,
        value_at,
        value_size,
        headers_at,
        rows,
        totals,
    )
    if verdict != kernels.SOUND:
        piece.judge()
        assert verdict == kernels.OFFSET_TOO_LARGE, "the kernel refuses what the plain code takes"
        raise InvalidRecord("a record's offset has more than 64 bits")
    count = int(rows.sum())
    made: dict[str, Any] = {}
    for name in wanted.names:
        match name:
            case "offset":
                made[name] = pa.Array.from_buffers(pa.int64(), count, [None, offsets.first(count)], 0)
            case "timestamp":
                untimed = int(totals[kernels.UNTIMED])
                known = _bitmap(times.array[:count] != NO_TIMESTAMP) if untimed else None
                made[name] = pa.Array.from_buffers(
                    FIELDS[name].type, count, [known, times.first(count)], untimed
                )
            case "key":
                made[name] = _binary(
                    piece.data, key_at[:count], key_size[:count], totals[kernels.KEY_BYTES :]
                )
            case "value":
                made[name] = _binary(
                    piece.data, value_at[:count], value_size[:count], totals[kernels.VALUE_BYTES :]
                )
            case "headers":
                made[name] = _lists(piece.data, headers_at[:count], totals)
            case "timestamp_type":
                made[name] = _repeated(by_broker.astype(np.int8), rows)
            case "leader_epoch":
                made[name] = _repeated(headers["leader_epoch"].astype(np.int32), rows)
            case "producer_id":
                made[name] = _repeated(headers["producer_id"].astype(np.int64), rows)
            case "sequence":
                base = np.repeat(headers["base_sequence"].astype(np.int64), rows)
                deltas = offsets.array[:count] - np.repeat(base_offsets, rows)
                made[name] = pa.array(np.where(base < 0, base, base + deltas & MAX_INT).astype(np.int32))
    return pa.RecordBatch.from_arrays([made[name] for name in wanted.names], schema=wanted)


def _bitmap(valid: npt.NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _repeated(column: npt.NDArray[Any], rows: Longs) -> Any:
    return pa.array(np.repeat(column, rows))


def _binary(data: Bytes, at: Longs, sizes: Ints, totals: Longs) -> Any:
    """A binary column of what lies at these places; `totals` begins with their bytes and their nulls."""
    total, nulls = int(totals[0]), int(totals[1])
    offsets, out = _Buffer(len(at) + 1, np.int32), _Buffer(total, np.uint8)
    kernels.gather(data, at, sizes, offsets.array, out.array)
    known = _bitmap(sizes >= 0) if nulls else None
    return pa.Array.from_buffers(pa.binary(), len(at), [known, offsets.arrow, out.arrow], nulls)


def _lists(data: Bytes, headers_at: Longs, totals: Longs) -> Any:
    kind = FIELDS["headers"].type
    if not totals[kernels.WITH_HEADERS]:
        return pa.nulls(len(headers_at), kind)
    count = int(totals[kernels.HEADERS])
    offsets = _Buffer(len(headers_at) + 1, np.int32)
    name_at, value_at = np.empty(count, np.int64), np.empty(count, np.int64)
    name_size, value_size = np.empty(count, np.int32), np.empty(count, np.int32)
    if not kernels.locate_headers(
        data, headers_at, offsets.array, name_at, name_size, value_at, value_size, totals
    ):
        raise InvalidRecord("headers changed while they were read: somebody writes to this memory")
    names = _binary(data, name_at, name_size, np.array([totals[kernels.NAME_BYTES], 0]))
    values = _binary(data, value_at, value_size, totals[kernels.HEADER_VALUE_BYTES :])
    items = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    nulls = len(headers_at) - int(totals[kernels.WITH_HEADERS])
    known = _bitmap(headers_at >= 0) if nulls else None
    return pa.Array.from_buffers(kind, len(headers_at), [known, offsets.arrow], nulls, children=[items])


# --- columns to batches -------------------------------------------------------------------------------------


def encode(
    rows: Any,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    batch_records: int = BATCH_RECORDS,
    timestamp_ms: int = NO_TIMESTAMP,
) -> Iterator[bytearray]:
    """The rows of a `pyarrow.Table` or `RecordBatch` as ready batches, some of them end to end in each item.

    Columns: `value` and, if they are there, `key`, `timestamp` and `headers`; those of `decode` that an
    append decides anew are passed over. Keys and values are binary or text of any Arrow kind; times are
    timestamps of any unit (finer ones are cut to milliseconds, naive ones are UTC) or whole milliseconds,
    null for none, and `timestamp_ms` where there is no such column. Headers are lists of structs of key
    and value.

    A batch has at most `batch_records` records and `batch_bytes` of them before compression, or one record.
    Base offsets are 0: an append gives offsets. The bytes are those of `encode_batch` of the same records.
    Raises `ValueError` or `TypeError` for columns that are not as said, before anything of their rows is
    returned, and `UnsupportedCompression`.
    """
    if not 0 < batch_bytes <= MAX_INT - HEADER_BYTES or not 0 < batch_records <= MAX_INT:
        raise ValueError(f"batches of {batch_bytes} bytes and {batch_records} records: both are 1 to 2**31")
    if timestamp_ms < NO_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp_ms} ms: -1 means none, others are not negative")
    if unknown := [name for name in rows.schema.names if name not in FIELDS]:
        raise ValueError(f"no column {unknown[0]!r}; there are {', '.join(FIELDS)}")
    if "value" not in rows.schema.names:
        raise ValueError("no column 'value'; let it be null where keys are to be deleted")
    kernels.warm_up()  # who appends what comes out should not wait for the plain check of it
    for part in _parts(rows):
        columns = _Columns.of(part, timestamp_ms)
        yield from _batches(columns, codec, level, batch_bytes, batch_records)


def _parts(rows: Any) -> Iterator[Any]:
    """The rows in chunks that are worth it: small ones of a table are put together."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    pending: list[Any] = []
    size = 0
    chunks = [chunk for chunk in rows.to_batches() if chunk.num_rows]
    for number, chunk in enumerate(chunks):
        pending.append(chunk)
        size += chunk.nbytes
        if size >= PIECE_BYTES or number == len(chunks) - 1:
            yield from pa.Table.from_batches(pending).combine_chunks().to_batches()
            pending, size = [], 0


class Blobs(NamedTuple):
    """A column of bytes or text: row n is `data[at[n] : at[n] + size[n]]`, null below a size of 0."""

    data: Bytes
    at: Longs
    size: Ints

    @classmethod
    def none(cls, count: int) -> Blobs:
        return cls(bytes_of(b""), np.zeros(count, np.int64), np.full(count, -1, np.int32))

    @classmethod
    def of(cls, column: Any, name: str) -> Blobs:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        if pa.types.is_null(kind):
            return cls.none(len(column))
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            width: npt.DTypeLike = np.int32
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            width = np.int64
        elif pa.types.is_fixed_size_binary(kind) or str(kind) in ("binary_view", "string_view"):
            column, width = column.cast(pa.large_binary()), np.int64
        else:
            raise TypeError(f"column {name!r} is {kind}; keys, values and headers are binary or text")
        column.validate()
        if not len(column):
            return cls.none(0)
        _, ends, content = column.buffers()
        first = column.offset
        bounds = np.frombuffer(ends, width)[first : first + len(column) + 1].astype(np.int64)
        data = bytes_of(b"" if content is None else content)
        sizes = np.diff(bounds)
        if bounds[0] < 0 or bounds[-1] > len(data) or sizes.min() < 0:
            raise ValueError(f"column {name!r} has offsets outside its data")
        if sizes.max() > MAX_INT:
            raise ValueError(f"column {name!r} has a row of {sizes.max()} bytes, above 2**31 - 1")
        if column.null_count:
            sizes[~_valid(column)] = -1
        return cls(data, bounds[:-1], sizes.astype(np.int32))


def _valid(column: Any) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return known


class _Columns(NamedTuple):
    """The rows of a part; `list_size` is empty where nobody has headers."""

    times: Longs
    keys: Blobs
    values: Blobs
    list_at: Longs
    list_size: Ints
    names: Blobs
    header_values: Blobs

    @classmethod
    def of(cls, part: Any, timestamp_ms: int) -> _Columns:
        count = part.num_rows
        has = part.schema.names
        return cls(
            _times(part.column("timestamp")) if "timestamp" in has else np.full(count, timestamp_ms),
            Blobs.of(part.column("key"), "key") if "key" in has else Blobs.none(count),
            Blobs.of(part.column("value"), "value"),
            *(_headers(part.column("headers")) if "headers" in has else _NO_HEADERS),
        )


def _times(column: Any) -> Longs:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=kind.unit == "s")
    elif not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise TypeError(f"column 'timestamp' is {kind}; times are timestamps or whole milliseconds")
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(NO_TIMESTAMP)
    times: Longs = np.array(column.cast(pa.int64()).to_numpy(), np.int64)
    if times.min(initial=0) < NO_TIMESTAMP:
        raise ValueError(f"timestamp {times.min()} ms: -1 means none, others are not negative")
    return times


_NO_HEADERS: Final = (np.zeros(0, np.int64), np.zeros(0, np.int32), Blobs.none(0), Blobs.none(0))


def _headers(column: Any) -> tuple[Longs, Ints, Blobs, Blobs]:
    kind = column.type
    if column.null_count == len(column):
        return _NO_HEADERS
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or {
        field.name for field in (kind.value_type if pa.types.is_struct(kind.value_type) else ())
    } != {"key", "value"}:
        raise TypeError(f"column 'headers' is {kind}; headers are lists of structs of key and value")
    column.validate()
    bounds = column.offsets.to_numpy().astype(np.int64)
    items = column.values
    sizes = np.diff(bounds)
    if bounds[0] < 0 or bounds[-1] > len(items) or sizes.min() < 0:
        raise ValueError("column 'headers' has offsets outside its items")
    sizes[~_valid(column)] = 0
    items = items.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
    names, values = Blobs.of(items.field("key"), "headers"), Blobs.of(items.field("value"), "headers")
    if items.null_count or (names.size < 0).any():
        raise ValueError("column 'headers' has a header that is null, or whose key is")
    return bounds[:-1] - bounds[0], sizes.astype(np.int32), names, values


def _batches(
    columns: _Columns, codec: Codec, level: int | None, batch_bytes: int, batch_records: int
) -> Iterator[bytearray]:
    times, keys, values, list_at, list_size, names, header_values = columns
    count = len(times)
    header_bytes = np.empty(len(list_size), np.int64)
    kernels.measure_headers(list_at, list_size, names.size, header_values.size, header_bytes)
    lengths, sizes, latest = (np.empty(count, np.int64) for _ in range(3))
    firsts = np.empty(count + 1, np.int64)
    total = kernels.plan(
        times,
        keys.size,
        values.size,
        header_bytes,
        batch_bytes,
        batch_records,
        lengths,
        firsts,
        sizes,
        latest,
    )
    firsts, sizes, latest = firsts[: total + 1], sizes[:total], latest[:total]
    if sizes.max(initial=0) > MAX_INT - HEADER_BYTES:
        raise ValueError(f"a record of {sizes.max()} bytes does not fit a batch")
    ends = np.cumsum(sizes + HEADER_BYTES)
    batch = 0
    while batch < total:
        # Whole batches of about a run.
        begin = int(ends[batch - 1]) if batch else 0
        until = max(int(np.searchsorted(ends, begin + RUN_BYTES, side="right")), batch + 1)
        bounds = ends[batch:until] - begin
        places = bounds - sizes[batch:until]
        out = bytearray(int(bounds[-1]))
        kernels.write(
            np.frombuffer(out, np.uint8),
            places,
            firsts[batch : until + 1],
            lengths,
            times,
            *keys,
            *values,
            list_at,
            list_size,
            *names,
            *header_values,
        )
        base_times, counts = times[firsts[batch:until]], np.diff(firsts[batch : until + 1])
        yield _sealed(
            out, places - HEADER_BYTES, bounds, base_times, latest[batch:until], counts, codec, level
        )
        batch = until


def _sealed(
    out: bytearray,
    starts: Longs,
    ends: Longs,
    base_times: Longs,
    latest: Longs,
    counts: Longs,
    codec: Codec,
    level: int | None,
) -> bytearray:
    """Give every batch in `out` its header; with a codec, in memory of its own."""
    rows = zip(*(column.tolist() for column in (starts, ends, base_times, latest, counts)), strict=True)
    packed = bytearray()
    for start, end, base_timestamp_ms, max_timestamp_ms, count in rows:
        target = out
        if codec is not Codec.NONE:
            target, body = packed, memoryview(out)[start + HEADER_BYTES : end]
            start = len(packed)
            packed += bytes(HEADER_BYTES)
            packed += compress(codec, body, level)
            end = len(packed)
        seal_batch(
            target,
            start,
            end - start,
            codec=codec,
            base_timestamp_ms=base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            count=count,
        )
    return out if codec is Codec.NONE else packed
