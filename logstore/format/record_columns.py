"""Find the fields of many records at once with numpy: of one batch, or of many small batches.

It takes ordinary records only. On malformed ones, and on integers longer than sound batches have, it gives
up: then the loop of `record_parser.py` decides and explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from logstore.errors import InvalidRecord
from logstore.format.record import Header, Record
from logstore.format.record_headers import decode_headers
from logstore.format.varint import decode_varint, decode_varlong
from logstore.lazily import np

if TYPE_CHECKING:
    import numpy.typing as npt

Longs: TypeAlias = "npt.NDArray[np.int64]"
Ints: TypeAlias = "npt.NDArray[np.int32]"

COPIED_TOGETHER_BYTES: Final = 1 << 20
"""Up to so many bytes of keys or values of one size become objects together; others one by one, at use."""
_FAR: Final = 1 << 48
"""Larger time deltas are unusual: their sums may need more than 64 bits."""


class _Unusual(Exception):
    """Leave these records to the loop."""


class Columns(NamedTuple):
    """The fields of n records. Keys and values are made as they are iterated, once."""

    time_deltas: Longs
    deltas: Longs
    keys: Iterable[bytes | None]
    values: Iterable[bytes | None]
    headers: Iterable[tuple[Header, ...]]


def records_of(
    columns: Columns, offsets: Longs, times: Iterable[int], sequences: Iterable[int]
) -> Iterator[Record]:
    """Return the records with these fields; times and sequences may be endless."""
    _, _, keys, values, headers = columns
    rows = zip(offsets.tolist(), times, keys, values, headers, sequences, strict=False)
    return map(tuple.__new__, repeat(Record), rows)


class Located(NamedTuple):
    """Where the fields of n records are; sizes of -1 are nulls, a position of -1 means no headers."""

    time_deltas: Longs
    deltas: Longs
    key_at: Longs
    key_sizes: Ints
    value_at: Longs
    value_sizes: Ints
    headers_at: Longs


Locator: TypeAlias = "Callable[[bytes, Longs, Longs, Longs], Located | None]"
"""Finds the fields of the records of batches, by their starts, ends and counts; None: it refuses one."""


class _Installed:
    locate: Locator | None = None


def use_compiled_locator(locate: Locator | None) -> None:
    """Install compiled code that finds fields, for the whole process; None: none."""
    _Installed.locate = locate


def find_columns(data: bytes, count: int) -> Columns | None:
    """Return the fields of the `count` records that fill `data`; None: leave them to the loop."""
    if _Installed.locate is not None:
        start, end, counts = np.array([[0], [len(data)], [count]], np.int64)
        return _compiled(_Installed.locate, data, start, end, counts)
    try:
        raw = np.frombuffer(data, np.uint8)
        found = _ends(raw, _even_starts(data, count)) or _ends(raw, np.array(_starts(data, count), np.int64))
        return None if found is None else _fields(data, raw, *found)
    except (IndexError, _Unusual, InvalidRecord):
        return None


def find_columns_of_many(data: bytes, starts: Longs, ends: Longs, counts: Longs) -> Columns | None:
    """Return the fields of the records of many batches, each in `data[start:end]`.

    None: leave them to the loop. Takes as many steps as the largest count: for batches of few records.
    """
    try:
        raw = np.frombuffer(data, np.uint8)
        if (counts == 1).all() and (alike := _alike(data, raw, starts, ends)):
            return alike
        if _Installed.locate is not None:
            return _compiled(_Installed.locate, data, starts, ends, counts)
        rows = np.cumsum(counts) - counts
        total = int(counts.sum())
        record_at, record_ends = np.empty(total, np.int64), np.empty(total, np.int64)
        at = starts
        for number in range(int(counts.max(initial=0))):
            if number:
                more = np.flatnonzero(counts > number)
                rows, ends, counts, at = rows[more], ends[more], counts[more], at[more]
            lengths, at = _integers(raw, at, 4)
            record_at[rows + number] = at
            at = at + lengths
            is_last = counts == number + 1
            if (lengths < 0).any() or (at > ends).any() or (at[is_last] != ends[is_last]).any():
                return None
            record_ends[rows + number] = at
        return _fields(data, raw, record_ends, record_at)
    except (IndexError, _Unusual, InvalidRecord):
        return None


def _compiled(locate: Locator, data: bytes, starts: Longs, ends: Longs, counts: Longs) -> Columns | None:
    found = locate(data, starts, ends, counts)
    if (
        found is None
        or not -_FAR < found.time_deltas.min(initial=0) <= found.time_deltas.max(initial=0) < _FAR
    ):
        return None
    headers: Iterable[tuple[Header, ...]] = repeat(())
    if (found.headers_at >= 0).any():
        headers = [
            decode_headers(data, at, len(data))[0] if at >= 0 else () for at in found.headers_at.tolist()
        ]
    keys = _taken(data, found.key_at, found.key_sizes)
    values = _taken(data, found.value_at, found.value_sizes)
    return Columns(found.time_deltas, found.deltas, keys, values, headers)


def _alike(data: bytes, raw: npt.NDArray[np.uint8], starts: Longs, ends: Longs) -> Columns | None:
    """The fields of records, each in `data[start:end]`, if they differ in the bytes of their values only."""
    count, first, end = len(starts), int(starts[0]), int(ends[0])
    length, at = decode_varint(data, first)
    has_its_size = at + length == end
    time_delta, at = decode_varlong(data, at + 1)
    delta, at = decode_varint(data, at)
    key_size, at = decode_varint(data, at)
    key = data[at : at + key_size] if key_size >= 0 else None
    size, at = decode_varint(data, at + max(key_size, 0))
    before = data[first:at]
    if not (
        has_its_size
        and 0 < size * count <= COPIED_TOGETHER_BYTES
        and at + size + 1 == end
        and -_FAR < time_delta < _FAR
        and (ends - starts == end - first).all()
        and _everywhere(data, len(before))[starts].tobytes() == before * count
        and not raw[ends - 1].any()  # no headers
    ):
        return None
    values: list[bytes] = _everywhere(data, size)[starts + len(before)].tolist()
    return Columns(np.full(count, time_delta), np.full(count, delta), repeat(key, count), values, repeat(()))


def _fields(data: bytes, raw: npt.NDArray[np.uint8], ends: Longs, at: Longs) -> Columns:
    """The fields of records whose lengths end at `at`."""
    time_deltas, at = _integers(raw, at + 1, 7)
    deltas, at = _integers(raw, at, 4)
    keys, at = _blobs(data, raw, at)
    values, at = _blobs(data, raw, at)
    return Columns(time_deltas, deltas, keys, values, _headers(data, raw, at, ends))


def find_places(data: bytes, count: int, apart: int) -> tuple[list[int], list[int]] | None:
    """Return offset deltas and positions of the first of the `count` records that fill `data`, and of others.

    There is one for each piece of `apart` bytes in which a record begins. None for unusual records.
    """
    try:
        starts = np.array(_starts(data, count)[:-1], np.int64)
        chosen = np.concatenate(([0], np.flatnonzero(np.diff(starts // apart)) + 1))
        raw = np.frombuffer(data, np.uint8)
        _, at = _integers(raw, starts[chosen], 3)
        _, at = _integers(raw, at + 1, 7)
        deltas, _ = _integers(raw, at, 4)
    except (IndexError, _Unusual):
        return None
    if count < 1 or deltas[0] < 0 or (np.diff(deltas) <= 0).any():
        return None
    # Offsets below that of the first record are looked for at the first mark, too.
    return [0, *deltas[1:].tolist()], starts[chosen].tolist()


def _ends(raw: npt.NDArray[np.uint8], starts: Longs | None) -> tuple[Longs, Longs] | None:
    """The end of each record and the position after its length; None if these are not their starts."""
    if starts is None:
        return None
    lengths, at = _integers(raw, starts[:-1], 3)
    ends = at + lengths
    return (ends, at) if (ends == starts[1:]).all() else None


def _even_starts(data: bytes, count: int) -> Longs | None:
    """Guess where the records lie, as if all had the size of the first but for the bytes of their deltas.

    None if they are not that even. Offset deltas from 64 on have two bytes.
    """
    length, at = decode_varint(data, 0)
    size, border = at + length, min(count, 64)
    middle = border * size
    length, at = decode_varint(data, middle) if border < count and 0 < middle < len(data) else (0, middle)
    larger = at - middle + length
    if size <= 0 or larger < 0 or middle + (count - border) * larger != len(data):
        return None
    numbers = np.arange(count + 1, dtype=np.int64)
    return np.where(numbers <= border, numbers * size, middle + (numbers - border) * larger)


def _starts(data: bytes, count: int) -> list[int]:
    """The position of each record, and the end of the last one, which must be the end of `data`."""
    starts: list[int] = []
    add = starts.append
    position = 0
    for _ in range(count):
        add(position)
        # The lowest bit is the sign; a negative length shows when the lengths are read again.
        length = data[position]
        if length < 0x80:
            position += 1 + (length >> 1)
        elif (high := data[position + 1]) < 0x80:
            position += 2 + ((length & 0x7F) >> 1) + (high << 6)
        elif (top := data[position + 2]) < 0x80:
            position += 3 + ((length & 0x7F) >> 1) + ((high & 0x7F) << 6) + (top << 13)
        else:
            raise _Unusual
    if position != len(data):
        raise _Unusual
    add(position)
    return starts


def _integers(raw: npt.NDArray[np.uint8], at: Longs, max_bytes: int) -> tuple[Longs, Longs]:
    """The integers at these positions and the positions after them."""
    first = raw[at]
    at = at + 1
    largest = first.max(initial=0)
    if largest <= 1:
        return -first.astype(np.int64), at  # 0 and -1: most time deltas, and the sizes of nulls
    zigzag = first.astype(np.int64)
    if largest >= 0x80:
        is_long = first >> 7
        second = raw[at] * is_long
        if second.max() >= 0x80:
            return _long_integers(raw, at - 1, max_bytes)
        zigzag &= 0x7F
        zigzag |= second.astype(np.int64) << 7
        at += is_long
    return zigzag >> 1 ^ -(zigzag & 1), at


def _long_integers(raw: npt.NDArray[np.uint8], at: Longs, max_bytes: int) -> tuple[Longs, Longs]:
    """`_integers` where some have three bytes or more."""
    zigzag, at = np.zeros(len(at), np.int64), at.copy()
    longer: slice | npt.NDArray[np.intp] = slice(None)
    for shift in range(0, 7 * max_bytes, 7):
        group = raw[at[longer]]
        at[longer] += 1
        zigzag[longer] |= (group & 0x7F).astype(np.int64) << shift
        more = group >= 0x80
        if not more.any():
            return zigzag >> 1 ^ -(zigzag & 1), at
        longer = np.flatnonzero(more) if isinstance(longer, slice) else longer[more]
    raise _Unusual


def _blobs(data: bytes, raw: npt.NDArray[np.uint8], at: Longs) -> tuple[Iterable[bytes | None], Longs]:
    """The nullable bytes at these positions and the positions after them."""
    sizes, starts = _integers(raw, at, 4)
    return _taken(data, starts, sizes), starts + np.maximum(sizes, 0)


def _taken(data: bytes, starts: Longs, sizes: Longs | Ints) -> Iterable[bytes | None]:
    """The nullable bytes of these sizes."""
    known = sizes >= 0
    if not known.any():
        return repeat(None, len(sizes))
    ends = starts + sizes
    # Sliced one by one, at use: the memory of one is that of the next, if nobody keeps them.
    if known.all():
        size = int(sizes[0])
        if 0 < size * len(sizes) <= COPIED_TOGETHER_BYTES and size <= len(data) and (sizes == size).all():
            together: list[bytes] = _everywhere(data, size)[starts].tolist()
            return together
        return (data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    rows = zip(known.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return (data[start:end] if is_known else None for is_known, start, end in rows)


def _everywhere(data: bytes, size: int) -> npt.NDArray[np.void]:
    """An array of the `size` bytes at every position, without a copy; indexing copies many at once."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))


def _headers(data: bytes, raw: npt.NDArray[np.uint8], at: Longs, ends: Longs) -> Iterable[tuple[Header, ...]]:
    """The headers at these positions, which must end their records."""
    some = np.flatnonzero(raw[at])
    after = at + 1
    found: list[tuple[Header, ...]] = []
    if len(some):
        found = [()] * len(at)
        for row in some.tolist():
            found[row], after[row] = decode_headers(data, int(at[row]), int(ends[row]))
    if (after != ends).any():
        raise _Unusual
    return found or repeat(())
