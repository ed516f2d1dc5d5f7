"""Write Arrow columns as batches: `columnar.encode` without its arguments' checks.

Arrow columns become plain arrays (`Columns`), a kernel assigns records to batches, another one writes their
bytes, and each batch gets its header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.columnar import writing
from logstore.columnar.kernels import Bytes, Ints, Longs, bytes_of
from logstore.format.batch import HEADER_BYTES, seal_batch
from logstore.format.compression import Codec, compress
from logstore.format.record import MAX_INT, NO_TIMESTAMP

Room = TypeVar("Room", bytearray, memoryview)

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
    """Yield the rows as batches of at most `batch_bytes`, about `RUN_BYTES` of them per item."""
    slots, limits = np.zeros(len(columns.times), np.int64), np.array([batch_bytes])
    plan = _Plan.of([columns], slots, limits, batch_records)
    ends, firsts = np.cumsum(plan.sizes + HEADER_BYTES), np.cumsum(plan.counts) - plan.counts
    positions, written = ends - plan.sizes, np.zeros_like(ends)
    batch = 0
    while batch < len(ends):
        # Whole batches, about RUN_BYTES.
        begin = int(ends[batch - 1]) if batch else 0
        until = max(int(np.searchsorted(ends, begin + RUN_BYTES, side="right")), batch + 1)
        out = bytearray(int(ends[until - 1]) - begin)
        last = int(firsts[until - 1] + plan.counts[until - 1])
        plan.write(out, begin, columns, range(int(firsts[batch]), last), positions, written)
        run = np.arange(batch, until)
        yield _sealed(out, plan, run, ends[run] - begin, codec, level)
        batch = until


def batches_by_slot(
    parts: Sequence[Columns],
    slots: Longs,
    limits: Longs,
    *,
    codec: Codec,
    level: int | None,
    batch_records: int,
) -> Iterator[tuple[int, bytearray | memoryview]]:
    """Yield, slot by slot, the batches of the rows that go there, in the order of the rows.

    `slots` has the slot of each row of all parts; a slot's batches have at most `limits[slot]` bytes.
    """
    plan = _Plan.of(parts, slots, limits, batch_records)
    order = np.argsort(plan.slots, kind="stable")  # stable: a slot's batches stay in order
    ends = np.cumsum(plan.sizes[order] + HEADER_BYTES)
    positions, written = np.empty_like(ends), np.zeros_like(ends)
    positions[order] = ends - plan.sizes[order]
    out = bytearray(int(ends[-1]) if len(ends) else 0)
    before = 0
    for part in parts:
        # In the order of the rows: memory is read once and in sequence, and is written in one stream a slot.
        plan.write(out, 0, part, range(len(part.times)), positions, written, before=before)
        before += len(part.times)
    bounds = [*np.flatnonzero(np.diff(plan.slots[order], prepend=-1)).tolist(), len(order)]
    for first, until in pairwise(bounds):
        begin = int(ends[first - 1]) if first else 0
        piece, run = memoryview(out)[begin : int(ends[until - 1])], order[first:until]
        yield int(plan.slots[run[0]]), _sealed(piece, plan, run, ends[first:until] - begin, codec, level)


class _Plan(NamedTuple):
    """The batches of rows: of each row its length and its batch, of each batch what its header says."""

    lengths: Longs
    batch_of: Longs
    slots: Longs
    base_times: Longs
    counts: Longs
    sizes: Longs
    """Bytes of a batch's records."""
    latest: Longs

    @classmethod
    def of(cls, parts: Sequence[Columns], slots: Longs, limits: Longs, batch_records: int) -> _Plan:
        lengths, batch_of, *batches = (np.empty(len(slots), np.int64) for _ in range(7))
        total = writing.plan(
            slots,
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.keys.size for part in parts]),
            np.concatenate([part.values.size for part in parts]),
            _header_bytes(parts),
            limits,
            batch_records,
            np.full(len(limits), -1, np.int64),
            lengths,
            batch_of,
            *batches,
        )
        plan = cls(lengths, batch_of, *(array[:total] for array in batches))
        if plan.sizes.max(initial=0) > MAX_INT - HEADER_BYTES:
            raise ValueError(f"a record of {plan.sizes.max()} bytes does not fit a batch")
        return plan

    def write(
        self,
        out: bytearray,
        origin: int,
        part: Columns,
        rows: range,
        positions: Longs,
        written: Longs,
        *,
        before: int = 0,
    ) -> None:
        """Write these rows of `part` with `writing.write`; the parts before it have `before` rows."""
        times, keys, values, list_at, list_size, names, header_values = part
        writing.write(
            np.frombuffer(out, np.uint8),
            origin,
            rows.start,
            rows.stop,
            positions,
            written,
            self.batch_of[before:],
            self.base_times,
            self.lengths[before:],
            times,
            *keys,
            *values,
            list_at,
            list_size,
            *names,
            *header_values,
        )


def _header_bytes(parts: Sequence[Columns]) -> Longs:
    """Return the bytes of every record's headers with their count; of no record if none has headers."""
    if not any(len(part.list_size) for part in parts):
        return np.zeros(0, np.int64)
    sizes = [np.ones(len(part.times), np.int64) for part in parts]
    for part, found in zip(parts, sizes, strict=True):
        if len(part.list_size):
            writing.measure_headers(
                part.list_at, part.list_size, part.names.size, part.header_values.size, found
            )
    return np.concatenate(sizes)


def _sealed(
    out: Room, plan: _Plan, run: Longs, ends: Longs, codec: Codec, level: int | None
) -> Room | bytearray:
    """Write the headers of the plan's batches `run`, which end at `ends`; with a codec, into new memory."""
    starts = ends - plan.sizes[run] - HEADER_BYTES
    columns = (starts, ends, plan.base_times[run], plan.latest[run], plan.counts[run])
    packed = bytearray()
    target: bytearray | memoryview
    for start, end, base_timestamp_ms, max_timestamp_ms, count in zip(
        *(column.tolist() for column in columns), strict=True
    ):
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
