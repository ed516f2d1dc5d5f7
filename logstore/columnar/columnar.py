"""Convert batches to Arrow columns, and Arrow columns to batches, without Python code per record.

    offset            int64                    timestamp   timestamp[ms, UTC]; null: no timestamp
    key, value        binary; null is not empty            the batch's, where its timestamps are LogAppendTime
    headers           list<struct<key: binary, value: binary>>; null: none. Names are bytes, as sent
    timestamp_type    int8, 0 CreateTime, 1 LogAppendTime
    leader_epoch      int32                    producer_id int64 and sequence int32, if asked for

The rows and the errors are those of `Batch.records`: if a compiled loop (`kernels.py`) finds a malformed
batch, the plain code reads it and raises its error. Batches are walked, checksummed and decompressed one by
one, some megabytes at a time; then one kernel finds all records of the piece, and another copies each column.
Needs the extra `arrow`. The first use in a process loads or compiles the kernels (`warm_up`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.columnar import kernels, python_rows
from logstore.columnar.encoding import Columns, batches_of
from logstore.columnar.frames import frames
from logstore.columnar.kernels import Bytes, Ints, Longs, bytes_of
from logstore.disk.files import Buffer
from logstore.errors import CorruptBatch, InvalidRecord
from logstore.format.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_DECOMPRESSED_BYTES,
    TRANSACTIONAL,
    Batch,
    walk,
)
from logstore.format.compression import Codec
from logstore.format.record import MAX_INT, MAX_LONG, NO_TIMESTAMP
from logstore.log.read import FetchedBytes
from logstore.log.read_committed import Spans, is_aborted, spans_by_producer
from logstore.log.stretches import STRETCH_BYTES, Stretch
from logstore.segment.scan import Fault, Scanned, scan_buffer, use_compiled
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
"""All columns, by name."""
COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers", "timestamp_type", "leader_epoch")
"""The default columns."""

PIECE_BYTES: Final = 2 << 20
"""Bytes per piece, stored or decompressed. Pieces of a stretch are as long as the stretch."""
_ARENA_MARGIN_BYTES: Final = 1 << 20
"""A batch that decompresses to no more than this fits behind a piece that is not full."""
BATCH_BYTES: Final = 512 << 10
BATCH_RECORDS: Final = 1 << 16

_LENGTH: Final = Struct(">8xi")  # behind the base offset

_NOWHERE: Final = np.empty(0, np.int64)
_Arrays: TypeAlias = tuple[Longs, Ints, Ints, Bytes]
_UNWANTED: Final[_Arrays] = (_NOWHERE, np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint8))
"""The arrays of a column that `locate` leaves out."""

Headers: TypeAlias = npt.NDArray[np.void]


def warm_up() -> None:
    """Compile or load all kernels now rather than at the first use, and let appends and reads use them.

    It holds for the whole process; later calls return at once.
    """
    kernels.warm_up()
    python_rows.warm_up()
    use_compiled()
    header = pa.array([[{"key": b"n", "value": b"v"}]], pa.list_(HEADER_TYPE))
    for batches in encode(pa.table({"value": pa.array([b"v"]), "headers": header})):
        table(batches)


# --- batches to columns -------------------------------------------------------------------------------------


def schema(columns: Sequence[str] = COLUMNS) -> Any:
    """Return the Arrow schema of these columns.

    Raises `ValueError` for an unknown name, `TypeError` for a text or what is no collection.
    """
    if isinstance(columns, str | bytes) or not isinstance(columns, Collection):
        raise TypeError(f"columns is a list of names, such as ['offset'], not {columns!r:.100}")
    if unknown := [name for name in columns if name not in FIELDS]:
        raise ValueError(f"unknown column {unknown[0]!r}; the columns are {', '.join(FIELDS)}")
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
    """Yield the records of the batches in `data` as `pyarrow.RecordBatch`es, none of them empty.

    `data` may be a view of a memory map; its memory is not kept. Offsets outside
    [start_offset, end_offset) are left out; for fetched bytes the default start is that of the fetch. Control
    batches and batches of `aborted` transactions, also those that fetched bytes name, are left out. Columns
    that are not named cost nothing. `max_records` limits the rows of an item; `max_bytes`, below 2**31,
    limits the decompressed size of a batch.

    A last batch that is cut short ends it silently, as in `walk`. Raises `CorruptBatch`, `InvalidRecord` or
    `UnsupportedCompression` as reading the records would, after the rows of the pieces before; a piece is
    some megabytes. Checksums of all batches are checked (those of a `Stretch` were checked before), records
    only of batches that are not left out. `InvalidRecord` also for an offset beyond 64 bits, and
    `CorruptBatch` for fetched bytes whose offsets do not rise.
    """
    wanted = schema(columns)
    if not 0 < max_bytes <= MAX_INT:
        raise ValueError(f"max_bytes {max_bytes} is out of range (1 to 2**31 - 1)")
    if max_records is not None and max_records < 1:
        raise ValueError(f"max_records {max_records} is out of range (1 or more)")
    is_of_log = isinstance(data, FetchedBytes)
    if isinstance(data, FetchedBytes):
        start_offset = data.start_offset if start_offset is None else start_offset
        aborted = data.aborted if aborted is None else aborted
        aborted = (*aborted, *data.aborted)
        data = data.records
    choice = _Choice(
        -MAX_LONG - 1 if start_offset is None else min(max(start_offset, -MAX_LONG - 1), MAX_LONG),
        MAX_LONG if end_offset is None else min(max(end_offset - 1, -MAX_LONG - 1), MAX_LONG),
        spans_by_producer(aborted or ()),
        include_control,
    )
    if isinstance(data, Stretch):
        pieces = _pieces_of_stretch(data, choice, max_bytes)
    else:
        pieces = _pieces(data, choice, max_bytes, is_in_order=is_of_log)
    for piece in pieces:
        rows = _rows(piece, choice, wanted)
        if max_records is None:
            if rows.num_rows:
                yield rows
            continue
        for first in range(0, rows.num_rows, max_records):
            yield rows.slice(first, max_records)


def table(data: Buffer | FetchedBytes | Stretch, *, columns: Sequence[str] = COLUMNS, **options: Any) -> Any:
    """Return all of `decode` as one `pyarrow.Table`; the same arguments and errors."""
    return pa.Table.from_batches(list(decode(data, columns=columns, **options)), schema(columns))


class _Choice(NamedTuple):
    """The batches and records to read."""

    start_offset: int
    last_offset: int
    aborted: Spans
    include_control: bool

    def of(self, headers: Headers) -> npt.NDArray[np.bool_]:
        """Tell for each batch whether its records are read."""
        base_offsets = headers["base_offset"].astype(np.int64)
        deltas = headers["last_offset_delta"].astype(np.int64)
        last_offsets = base_offsets + deltas
        # A batch with senseless bounds is judged by its records.
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
        if header["attributes"] & CONTROL:
            return False
        return is_aborted(self.aborted, int(header["producer_id"]), int(header["base_offset"]))


class _Piece(NamedTuple):
    """Batches with their decompressed records in `data[starts:ends]`; `view` and `positions`: as stored."""

    data: Bytes
    starts: Longs
    ends: Longs
    headers: Headers
    view: Buffer
    positions: Longs
    max_bytes: int

    def judge(self) -> None:
        """Raise the plain code's error."""
        _judge((Batch(self.view, position) for position in self.positions.tolist()), self.max_bytes)


def _judge(batches: Iterable[Batch], max_bytes: int) -> None:
    for batch in batches:
        deque(batch.records(max_bytes=max_bytes), maxlen=0)


def _pieces(data: Buffer, choice: _Choice, max_bytes: int, *, is_in_order: bool) -> Iterator[_Piece]:
    view = memoryview(data)
    position, window = 0, PIECE_BYTES
    while position < len(view):
        # A log's reads are one piece: its bytes are faster to walk than a view of them.
        taken = data if position == 0 and len(view) <= window else view[position : position + window]
        found = scan_buffer(taken, len(taken))
        if len(found.headers):
            if is_in_order:
                _check_order(found)
            chosen = choice.of(found.headers)
            yield from _unpacked(taken, found.headers[chosen], found.positions[chosen], max_bytes)
        position += found.end
        at_end = position + len(taken) - found.end == len(view)
        if found.fault not in (None, Fault.TORN) or (found.fault is Fault.TORN and at_end):
            # Silent for a torn tail; raises for other formats.
            for batch in walk(view, position=position):
                batch.check_crc()
                raise AssertionError(
                    f"{batch!r} at byte {position} is sound, but the scan found {found.fault}"
                )
            return
        # A batch that is larger than the window is read by itself.
        window = PIECE_BYTES if found.end else LOG_OVERHEAD + _LENGTH.unpack_from(view, position)[0]


def _check_order(found: Scanned) -> None:
    """Raise `CorruptBatch` where offsets do not rise: no checksum covers that of a batch."""
    base_offsets = found.headers["base_offset"]
    falls = np.flatnonzero(base_offsets[1:] <= found.last_offsets[:-1])
    if len(falls):
        raise CorruptBatch(
            f"the batch at offset {base_offsets[falls[0] + 1]} does not follow the batch before it; "
            "verify the log, or fetch it from another replica"
        )


def _pieces_of_stretch(stretch: Stretch, choice: _Choice, max_bytes: int) -> Iterator[_Piece]:
    chosen = choice.of(stretch.headers)
    return _unpacked(stretch.data, stretch.headers[chosen], stretch.positions[chosen], max_bytes)


def _unpacked(view: Buffer, headers: Headers, positions: Longs, max_bytes: int) -> Iterator[_Piece]:
    if not len(headers):
        return
    starts = positions + HEADER_BYTES
    ends = positions + headers["batch_length"] + LOG_OVERHEAD
    packed = headers["attributes"] & CODEC_MASK != 0
    if not packed.any():
        yield _Piece(bytes_of(view), starts, ends, headers, view, positions, max_bytes)
        return
    yield from _decompressed(view, headers, positions, max_bytes)


def _decompressed(view: Buffer, headers: Headers, positions: Longs, max_bytes: int) -> Iterator[_Piece]:
    most = min(max(PIECE_BYTES, len(view)), STRETCH_BYTES)  # one batch may have a gigabyte
    arena = _Buffer(most + _ARENA_MARGIN_BYTES, np.uint8).array
    is_zstd = (headers["attributes"] & CODEC_MASK == Codec.ZSTD).tolist()
    after = (positions + headers["batch_length"] + LOG_OVERHEAD).tolist()
    first = used = 0
    ends: list[int] = []

    def piece(records: Bytes, ends: Sequence[int], first: int, end: int) -> _Piece:
        found = np.array(ends, np.int64)
        starts = np.concatenate(([0], found[:-1]))
        return _Piece(records, starts, found, headers[first:end], view, positions[first:end], max_bytes)

    with frames(bytes_of(view), arena) as zstd:
        for slot, position in enumerate(positions.tolist()):
            size: int | None = None
            if zstd is not None and is_zstd[slot]:
                room = min(len(arena) - used, max_bytes)
                size = zstd.decompress(position + HEADER_BYTES, after[slot], used, room)
            if size is None:
                try:
                    payload = Batch(view, position).payload(max_bytes=max_bytes)
                except Exception:
                    # An error in a batch before it comes first.
                    _judge((Batch(view, before) for before in positions[first:slot].tolist()), max_bytes)
                    raise
                size = len(payload)
                if size > len(arena) - used:
                    if ends:
                        yield piece(bytes_of(arena.data), ends, first, slot)
                    yield piece(bytes_of(payload), [size], slot, slot + 1)
                    first, used, ends = slot + 1, 0, []
                    continue
                arena[used : used + size] = bytes_of(payload)
            used += size
            ends.append(used)
            if used >= most or slot == len(positions) - 1:
                yield piece(bytes_of(arena.data), ends, first, slot + 1)
                first, used, ends = slot + 1, 0, []


class _Buffer:
    """Memory from Arrow's pool, filled by numpy: the pool reuses pages."""

    def __init__(self, count: int, dtype: npt.DTypeLike) -> None:
        self.arrow = pa.allocate_buffer(count * np.dtype(dtype).itemsize, resizable=True)
        self.array: npt.NDArray[Any] = np.frombuffer(self.arrow, dtype)

    def first(self, count: int) -> Any:
        return self.arrow.slice(0, count * self.array.itemsize)


class _Cells:
    """The keys or values of a piece, which `locate` copies from `size` bytes of records."""

    def __init__(self, records: int, size: int) -> None:
        self._ends, self._bytes = _Buffer(records + 1, np.int32), _Buffer(size, np.uint8)
        self._sizes = np.empty(records, np.int32)
        self._ends.array[0] = 0
        self.arrays: _Arrays = (_NOWHERE, self._sizes, self._ends.array, self._bytes.array)
        """For `locate`; of no use once there is a column."""

    def column(self, count: int, totals: Longs) -> Any:
        """The column of the first `count` cells; `totals` begins with their bytes and nulls."""
        used, nulls = int(totals[0]), int(totals[1])
        found = self._bytes.arrow
        if used < found.size - found.size // 8:
            # A reader may keep the column: then not with room for all of the piece.
            found.resize(used, shrink_to_fit=True)
        known = _bitmap(self._sizes[:count] >= 0) if nulls else None
        return pa.Array.from_buffers(
            pa.binary(), count, [known, self._ends.first(count + 1), found.slice(0, used)], nulls
        )


def _rows(piece: _Piece, choice: _Choice, wanted: Any) -> Any:
    headers = piece.headers
    counts = headers["record_count"].astype(np.int64)
    if (counts < 0).any() or (counts * kernels.SMALLEST_RECORD > piece.ends - piece.starts).any():
        piece.judge()
        raise AssertionError("more records than fit the bytes, yet the plain code found no fault")
    room = int(counts.sum())
    base_offsets = headers["base_offset"].astype(np.int64)
    by_broker = headers["attributes"] & LOG_APPEND_TIME != 0
    offsets, times = _Buffer(room, np.int64), _Buffer(room, np.int64)
    stored = int((piece.ends - piece.starts).sum())
    cells = {name: _Cells(room, stored) for name in ("key", "value") if name in wanted.names}
    keys: _Arrays = cells["key"].arrays if "key" in cells else _UNWANTED
    values: _Arrays = cells["value"].arrays if "value" in cells else _UNWANTED
    headers_at = _Buffer(room, np.int64).array
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
        *keys,
        *values,
        headers_at,
        rows,
        totals,
        np.empty(kernels.TOTALS, np.int64),
    )
    if verdict != kernels.SOUND:
        piece.judge()
        assert verdict == kernels.OFFSET_TOO_LARGE, "the kernel refused a batch that the plain code accepts"
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
                made[name] = cells[name].column(count, totals[kernels.KEY_BYTES :])
            case "value":
                made[name] = cells[name].column(count, totals[kernels.VALUE_BYTES :])
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
    """A binary column of the bytes at these positions; `totals` begins with their bytes and nulls."""
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
        raise InvalidRecord("headers changed while they were read: another thread writes to this memory")
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
    """Yield the rows of a `pyarrow.Table` or `RecordBatch` as batches, several end to end per item.

    Columns: `value` and optionally `key`, `timestamp` and `headers`; other columns of `decode` are ignored,
    because an append sets them. Keys and values are binary or text of any Arrow type. Times are timestamps
    of any unit (finer ones are cut to milliseconds, naive ones are UTC) or whole milliseconds, null for
    none; without the column, `timestamp_ms`. Headers are lists of structs of key and value.

    A batch has at most `batch_records` records and `batch_bytes` before compression, or one record. Base
    offsets are 0: an append sets them. The bytes are those of `encode_batch`. Raises `ValueError` or
    `TypeError` for other columns, before any of their rows are yielded, `TypeError` for other `rows` or a
    `codec` that is none, and `UnsupportedCompression`.
    """
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise TypeError(
            f"{type(rows).__name__} cannot be encoded: rows must be a pyarrow.Table or a pyarrow.RecordBatch"
        )
    if not isinstance(codec, int):
        raise TypeError(f"codec is {codec!r}: it must be a Codec, such as Codec.GZIP")
    if not 0 < batch_bytes <= MAX_INT - HEADER_BYTES or not 0 < batch_records <= MAX_INT:
        raise ValueError(
            f"batch_bytes {batch_bytes} or batch_records {batch_records} is out of range (1 to 2**31)"
        )
    if timestamp_ms < NO_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp_ms} ms: -1 means none, others are not negative")
    names = rows.schema.names
    if unknown := [name for name in names if name not in FIELDS]:
        raise ValueError(f"unknown column {unknown[0]!r}; the columns are {', '.join(FIELDS)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"column {twice[0]!r} is there twice")
    if "value" not in rows.schema.names:
        raise ValueError("column 'value' is missing; use null values to delete keys")
    kernels.warm_up()  # for the checks of the appends that follow
    for part in _parts(rows):
        columns = Columns.of(part, timestamp_ms)
        yield from batches_of(columns, codec, level, batch_bytes, batch_records)


def _parts(rows: Any) -> Iterator[Any]:
    """The rows in chunks; small chunks of a table are joined."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    pending: list[Any] = []
    size = 0
    chunks = [chunk for chunk in rows.to_batches() if chunk.num_rows]
    for number, chunk in enumerate(chunks):
        pending.append(chunk)
        try:
            size += chunk.nbytes
        except pa.ArrowTypeError:  # of views, before pyarrow 24
            size += chunk.get_total_buffer_size()
        if size >= PIECE_BYTES or number == len(chunks) - 1:
            yield from pa.Table.from_batches(pending).combine_chunks().to_batches()
            pending, size = [], 0
