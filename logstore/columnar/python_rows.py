"""Compiled code for a program's records: the lists of values and pairs that it appends, and what it reads.

`warm_up` installs it for the whole process (decision 019). Bytes and rows are those of the plain code.
"""

from __future__ import annotations

import marshal
from functools import cache
from typing import Any, Final

import numpy as np

from logstore.columnar.kernels import (
    SMALLEST_RECORD,
    SOUND,
    TOTALS,
    Bytes,
    bytes_of,
    inner,
    kernel,
    locate,
    long,
)
from logstore.columnar.writing import put_field, put_varint, varint_bytes
from logstore.format.record import MAX_INT, use_compiled_encoder
from logstore.format.record_columns import Located, Longs, use_compiled_locator

_MOST_AROUND: Final = 23
"""The most bytes of a record around its key and value: four varints of five bytes, and three bytes more."""
_FORMAT: Final = 2
"""The last format of `marshal` without references to earlier objects."""
_LISTED: Final = 5
"""Where the rows begin in a marshalled list: behind its type and its length."""


@inner
def _marshalled(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The size of the nullable bytes at `at` (-1: None) and where they start; -1: there is something else."""
    if at < end and data[at] == ord("N"):
        return long(-1), at + 1
    if end - at < 5 or data[at] != ord("s"):
        return long(0), -1
    size = long(data[at + 1]) | long(data[at + 2]) << 8 | long(data[at + 3]) << 16 | long(data[at + 4]) << 24
    return (size, at + 5) if size <= end - at - 5 else (long(0), -1)


@kernel
def _write(data: Bytes, count: int, has_keys: bool, out: Bytes, position: int) -> tuple[int, int]:
    """Write the `count` values, or pairs, of a marshalled list as records at one time and deltas 0, 1, 2…

    Returns the end of the records, -1 if there is something else in the list, and how many have no key. `out`
    has room for `_MOST_AROUND` bytes a record more than `data` has.
    """
    end = len(data)
    at = _LISTED
    keyless = 0
    for row in range(count):
        key_size, key_at = long(-1), at
        if has_keys:
            if end - at < 5 or data[at] != ord("("):
                return -1, 0
            if data[at + 1] != 2 or data[at + 2] or data[at + 3] or data[at + 4]:
                return -1, 0
            key_size, key_at = _marshalled(data, at + 5, end)
        value_size, value_at = _marshalled(data, key_at + max(key_size, 0), end)
        if key_at < 0 or value_at < 0:
            return -1, 0
        at = value_at + max(value_size, 0)
        length = 3 + varint_bytes(row) + varint_bytes(key_size) + max(key_size, 0)
        length += varint_bytes(value_size) + max(value_size, 0)
        position = put_varint(out, position, length)
        out[position] = 0
        out[position + 1] = 0
        position = put_varint(out, position + 2, row)
        position = put_field(out, position, data, key_at, key_size)
        position = put_field(out, position, data, value_at, value_size)
        out[position] = 0
        position += 1
        keyless += key_size < 0
    return position if at == end else -1, keyless


def encode_rows(rows: list[Any], room: int) -> tuple[bytearray, int] | None:
    """`record.encode_rows`. `marshal` hands all rows to the kernel in one call; it never reads anything."""
    try:
        listed = marshal.dumps(rows, _FORMAT)
    except ValueError:  # there are objects among them
        return None
    records = bytearray(room + len(listed) + _MOST_AROUND * len(rows))
    out = np.frombuffer(records, np.uint8)
    end, keyless = _write(bytes_of(listed), len(rows), type(rows[0]) is tuple, out, room)
    del out
    if end < 0:
        return None
    del records[end:]
    return records, keyless


def locate_rows(data: bytes, starts: Longs, ends: Longs, counts: Longs) -> Located | None:
    """`record_columns.Locator`."""
    if (counts < 0).any() or (counts * SMALLEST_RECORD > ends - starts).any():
        return None
    batches, records = len(starts), int(counts.sum())
    zeros = np.zeros(batches, np.int64)
    deltas, time_deltas, key_at, value_at, headers_at = np.empty((5, records), np.int64)
    key_sizes, value_sizes = np.empty((2, records), np.int32)
    no_ends, no_bytes = np.empty(0, np.int32), np.empty(0, np.uint8)
    verdict = locate(
        bytes_of(data),
        starts,
        ends,
        counts,
        zeros,
        zeros,
        zeros,
        np.zeros(batches, np.bool_),
        -MAX_INT - 1,
        MAX_INT,
        deltas,
        time_deltas,
        key_at,
        key_sizes,
        no_ends,
        no_bytes,
        value_at,
        value_sizes,
        no_ends,
        no_bytes,
        headers_at,
        np.empty(batches, np.int64),
        np.zeros(TOTALS, np.int64),
        np.empty(TOTALS, np.int64),
    )
    if verdict != SOUND:
        return None
    return Located(time_deltas, deltas, key_at, key_sizes, value_at, value_sizes, headers_at)


@cache
def warm_up() -> None:
    """Install the compiled encoder and reader of a program's records for the whole process.

    Takes seconds if nothing was compiled yet, otherwise the time of an import; later calls return at once.
    """
    encoded = encode_rows([b"v"], 0)
    assert encoded == (bytearray((14, 0, 0, 0, 1, 2)) + b"v\0", 1)
    use_compiled_encoder(encode_rows)
    located = locate_rows(bytes((12, 0, 0, 0, 1, 1, 0)), *np.array([[0], [7], [1]]))
    assert located is not None
    use_compiled_locator(locate_rows)
