"""Many records at once: Python finds where each one starts, numpy what lies in it, and the rest is cutting.

`record.decode_records` takes every integer of every record by hand. Here that is done for the lengths
alone, because each is needed to find the next; all other fields are read a column at a time. What is out of
the ordinary, integers longer than any sound batch has or anything malformed, is left to the plain decoder,
which is the authority and knows what to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from logstore.errors import InvalidRecord
from logstore.format.record import MAX_INT, Header, Record, decode_headers

Longs = npt.NDArray[np.int64]

WORTH_IT: Final = 100
"""Records below which the plain decoder is quicker."""
AT_ONCE: Final = 1 << 16
"""Records above which they are not all made at once: a batch may hold millions."""
_FAR: Final = 1 << 62
# By the first of two bytes of a length: what it adds to the length, and those two bytes.
_LOW: Final[tuple[int, ...]] = tuple(2 + ((byte & 0x7F) >> 1) for byte in range(256))


class _Unusual(Exception):
    """Not for here."""


def decode_bulk(
    data: bytes,
    count: int,
    *,
    base_offset: int,
    base_timestamp_ms: int,
    log_append_time_ms: int | None,
    base_sequence: int,
) -> Iterator[Record] | None:
    """What `decode_records` would give; None where it is for that to give, or to refuse."""
    if not WORTH_IT <= count <= AT_ONCE or abs(base_offset) > _FAR or abs(base_timestamp_ms) > _FAR:
        return None
    try:
        starts = np.array(_starts(data, count), np.int64)
        raw = np.frombuffer(data, np.uint8)
        lengths, at = _integers(raw, starts[:-1], 3)
        ends = at + lengths
        if (ends != starts[1:]).any():
            return None
        time_deltas, at = _integers(raw, at + 1, 7)
        deltas, at = _integers(raw, at, 4)
        keys, at = _blobs(data, raw, at)
        values, at = _blobs(data, raw, at)
        headers = _headers(data, raw, at, ends)
    except (IndexError, _Unusual, InvalidRecord):
        return None
    times: Iterable[int]
    if log_append_time_ms is None:
        times = (base_timestamp_ms + time_deltas).tolist()
    else:
        times = repeat(log_append_time_ms)
    sequences: Iterable[int] = repeat(base_sequence)
    if base_sequence >= 0:
        sequences = (base_sequence + deltas & MAX_INT).tolist()
    rows = zip((base_offset + deltas).tolist(), times, keys, values, headers, sequences, strict=False)
    return map(tuple.__new__, repeat(Record), rows)


def _starts(data: bytes, count: int) -> list[int]:
    """Where each record starts, and where the last one ends, which must be the end."""
    starts: list[int] = []
    add = starts.append
    low = _LOW
    position = 0
    for _ in range(count):
        add(position)
        # The lowest bit is the sign; what follows a negative length is found out by whoever reads it again.
        length = data[position]
        if length < 0x80:
            position += 1 + (length >> 1)
        elif (high := data[position + 1]) < 0x80:
            position += low[length] + (high << 6)
        elif (top := data[position + 2]) < 0x80:
            position += 1 + low[length] + ((high & 0x7F) << 6) + (top << 13)
        else:
            raise _Unusual
    if position != len(data):
        raise _Unusual
    add(position)
    return starts


def _integers(raw: npt.NDArray[np.uint8], at: Longs, max_bytes: int) -> tuple[Longs, Longs]:
    """The integers at these places and the places behind them."""
    first = raw[at]
    at = at + 1
    zigzag = first.astype(np.int64)
    longer = np.flatnonzero(first >= 0x80)
    if len(longer):
        zigzag &= 0x7F
        for shift in range(7, 7 * max_bytes, 7):
            group = raw[at[longer]]
            at[longer] += 1
            zigzag[longer] |= (group & 0x7F).astype(np.int64) << shift
            longer = longer[group >= 0x80]
            if not len(longer):
                break
        else:
            raise _Unusual
    return zigzag >> 1 ^ -(zigzag & 1), at


def _blobs(data: bytes, raw: npt.NDArray[np.uint8], at: Longs) -> tuple[Iterable[bytes | None], Longs]:
    """The nullable bytes at these places and the places behind them."""
    sizes, starts = _integers(raw, at, 4)
    known = sizes >= 0
    if known.all():
        ends = starts + sizes
        # Cut one by one, while they are used: a place past the end is found before anybody uses them.
        return (data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)), ends
    if not known.any():
        return repeat(None), starts
    ends = starts + np.maximum(sizes, 0)
    rows = zip(known.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return (data[start:end] if is_known else None for is_known, start, end in rows), ends


def _headers(data: bytes, raw: npt.NDArray[np.uint8], at: Longs, ends: Longs) -> Iterable[tuple[Header, ...]]:
    """The headers at these places; they are all that is left of their records."""
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
