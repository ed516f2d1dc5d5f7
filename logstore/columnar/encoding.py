"""Write Arrow columns as batches: `columnar.encode` without its arguments' checks.

Arrow columns become plain arrays (`Columns`), a kernel assigns records to batches, another one writes their
bytes, and each batch gets its header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.columnar import kernels
from logstore.columnar.kernels import Bytes, Ints, Longs, bytes_of
from logstore.format.batch import HEADER_BYTES, seal_batch
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_INT, NO_TIMESTAMP

RUN_BYTES: Final = 1 << 20
"""Bytes of batches per item: the size of an append's write."""


class Blobs(NamedTuple):
    """A column of bytes or text: row n is `data[at[n] : at[n] + size[n]]`, null if the size is below 0."""

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
            raise TypeError(
                f"column {name!r} has type {kind}; keys, values and headers must be binary or text"
            )
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
        first, end = int(bounds[0]), int(bounds[-1])
        return cls(data[first:end], bounds[:-1] - first, sizes.astype(np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Blobs]) -> Blobs:
        """Return the rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([len(part.data) for part in parts])
        data = np.concatenate([part.data for part in parts])
        data.flags.writeable = False  # as Arrow's memory: kernels are compiled for one of both
        at = np.concatenate([part.at + (end - len(part.data)) for part, end in zip(parts, ends, strict=True)])
        return cls(data, at, np.concatenate([part.size for part in parts]))

    def take(self, rows: Longs) -> Blobs:
        """Return these rows, in this order; no bytes are copied."""
        return Blobs(self.data, self.at[rows], self.size[rows])


def _valid(column: Any) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return known


class Columns(NamedTuple):
    """The rows of a part; `list_size` is empty if no row has headers."""

    times: Longs
    keys: Blobs
    values: Blobs
    list_at: Longs
    list_size: Ints
    names: Blobs
    header_values: Blobs

    @classmethod
    def of(cls, part: Any, timestamp_ms: int) -> Columns:
        count = part.num_rows
        has = part.schema.names
        return cls(
            _times(part.column("timestamp")) if "timestamp" in has else np.full(count, timestamp_ms),
            Blobs.of(part.column("key"), "key") if "key" in has else Blobs.none(count),
            Blobs.of(part.column("value"), "value"),
            *(headers_of(part.column("headers")) if "headers" in has else NO_HEADERS),
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, one part after the other."""
        times = np.concatenate([part.times for part in parts])
        keys, values = (
            Blobs.joined([part.keys for part in parts]),
            Blobs.joined([part.values for part in parts]),
        )
        if not any(len(part.list_size) for part in parts):
            return cls(times, keys, values, *NO_HEADERS)
        ends = np.cumsum([len(part.names.size) for part in parts])
        list_at = [
            part.list_at + (end - len(part.names.size))
            if len(part.list_size)
            else np.zeros(len(part.times), np.int64)
            for part, end in zip(parts, ends, strict=True)
        ]
        list_size = [
            part.list_size if len(part.list_size) else np.zeros(len(part.times), np.int32) for part in parts
        ]
        return cls(
            times,
            keys,
            values,
            np.concatenate(list_at),
            np.concatenate(list_size),
            Blobs.joined([part.names for part in parts]),
            Blobs.joined([part.header_values for part in parts]),
        )

    def take(self, rows: Longs) -> Columns:
        """Return these rows, in this order; no bytes are copied."""
        return self._replace(
            times=self.times[rows],
            keys=self.keys.take(rows),
            values=self.values.take(rows),
            list_at=self.list_at[rows] if len(self.list_size) else self.list_at,
            list_size=self.list_size[rows] if len(self.list_size) else self.list_size,
        )

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and headers, and of the arrays that find them."""
        blobs = (self.keys, self.values, self.names, self.header_values)
        arrays = (self.times, self.list_at, self.list_size, *(array for each in blobs for array in each))
        return sum(array.nbytes for array in arrays)


def _times(column: Any) -> Longs:
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Before the cast, which rounds towards 1970: to 0, or to -1, which means none.
        if (earliest := pc.min(column.cast(pa.int64())).as_py() or 0) < 0:
            raise ValueError(f"timestamp {earliest} {kind.unit}: times before 1970 cannot be stored")
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=kind.unit == "s")
    elif not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise TypeError(f"column 'timestamp' has type {kind}; times must be timestamps or whole milliseconds")
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(NO_TIMESTAMP)
    times: Longs = np.array(column.cast(pa.int64()).to_numpy(), np.int64)
    if times.min(initial=0) < NO_TIMESTAMP:
        raise ValueError(f"timestamp {times.min()} ms: -1 means none, others are not negative")
    return times


NO_HEADERS: Final = (np.zeros(0, np.int64), np.zeros(0, np.int32), Blobs.none(0), Blobs.none(0))


def headers_of(column: Any) -> tuple[Longs, Ints, Blobs, Blobs]:
    kind = column.type
    if column.null_count == len(column):
        return NO_HEADERS
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or {
        field.name for field in (kind.value_type if pa.types.is_struct(kind.value_type) else ())
    } != {"key", "value"}:
        raise TypeError(
            f"column 'headers' has type {kind}; headers must be lists of structs of key and value"
        )
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
        raise ValueError("column 'headers' has a null header or a header with a null key")
    return bounds[:-1] - bounds[0], sizes.astype(np.int32), names, values


def batches_of(
    columns: Columns, codec: Codec, level: int | None, batch_bytes: int, batch_records: int
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
        # Whole batches, about RUN_BYTES.
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
    """Write the header of every batch in `out`; with a codec, into new memory."""
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
