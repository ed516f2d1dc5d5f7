"""Compiled loops over the records of batches: find and check them. `writing.py` writes them.

    locate          find or copy every key and value of many batches, with offset, time and headers
    gather          copy names or values of headers end to end, as in an Arrow column
    warm_up         check records from clients with compiled code

The rules are those of `record_parser.py`, and tests compare both. A kernel only detects a violation; then the
caller runs the plain code, which raises the error. Lengths and counts are untrusted: no byte is read before
it is known to lie within its record, and a record within its batch.

numba (extra `arrow`) compiles the kernels for this machine at the first use, and caches them beside the
module or in the user's cache directory. `columnar.warm_up` does this at a time of the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from logstore.disk.files import Buffer
from logstore.format.record_parser import RecordsSummary, use_compiled

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]

F = TypeVar("F", bound=Callable[..., Any])

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("the kernels have to be compiled, and the environment has NUMBA_DISABLE_JIT")

SOUND: Final = 0
MALFORMED: Final = 1
OFFSET_TOO_LARGE: Final = 2

# The counters of `locate`, a slot each.
KEY_BYTES: Final = 0
NULL_KEYS: Final = 1
VALUE_BYTES: Final = 2
NULL_VALUES: Final = 3
UNTIMED: Final = 4
WITH_HEADERS: Final = 5
HEADERS: Final = 6
NAME_BYTES: Final = 7
HEADER_VALUE_BYTES: Final = 8
NULL_HEADER_VALUES: Final = 9
TOTALS: Final = 10

SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers, including its length."""
_UNSIGNED: Final = (1 << 63) - 1


long = cast("Callable[[Any], int]", np.int64)


def kernel(function: F, **options: str) -> F:
    """Compile `function` at its first call, and cache the code for the next process.

    It cannot make arrays: numba's runtime is off. With it, an inlined function counts references to its
    arrays, in atomic instructions that take longer than finding a record.
    """
    njit: Any = partial(numba.njit, nogil=True, _nrt=False, **options)
    try:
        return cast(F, njit(cache=True)(function))
    except RuntimeError:
        # Neither this directory nor the user's is writable: every process compiles for itself.
        return cast(F, njit()(function))


def inner(function: F) -> F:
    """Compile inline, for the innermost loops, where a call costs more than the arithmetic."""
    return kernel(function, inline="always")


def _copy_code(_context: Any, out: Any, out_at: Any, data: Any, at: Any, size: Any) -> Any:
    """`out[out_at : out_at + size] = data[at : at + size]` with memcpy: unchecked."""
    move: Any = raw_memcpy

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into, into_at, taken, taken_at, count = arguments
        target = context.make_array(signature.args[0])(context, builder, into).data
        source = context.make_array(signature.args[2])(context, builder, taken).data
        move(builder, builder.gep(target, [into_at]), builder.gep(source, [taken_at]), count, 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), code


copy: Any = intrinsic(_copy_code)


# --- integers -----------------------------------------------------------------------------------------------


@inner
def _sum(left: int, right: int) -> int:
    """Add and wrap to 64 bits. Not `+`: the compiler assumes that a signed sum never wraps."""
    return long(np.uint64(left) + np.uint64(right))


@inner
def difference(left: int, right: int) -> int:
    return long(np.uint64(left) - np.uint64(right))


@kernel
def _long_varint(data: Bytes, position: int, end: int, max_bytes: int) -> tuple[int, int]:
    zigzag = long(0)
    shift = 0
    for _ in range(max_bytes):
        if position >= end:
            return long(0), -1
        byte = long(data[position])
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            if max_bytes == 5:
                zigzag &= 0xFFFF_FFFF
            return (zigzag >> 1 & _UNSIGNED) ^ -(zigzag & 1), position
        shift += 7
    return long(0), -1


@inner
def _zigzag(data: Bytes, position: int, end: int, max_bytes: int) -> tuple[int, int]:
    if position < end:
        byte = long(data[position])
        if byte < 0x80:
            return byte >> 1 ^ -(byte & 1), position + 1
        if position + 1 < end:
            high = long(data[position + 1])
            if high < 0x80:
                byte = byte & 0x7F | high << 7
                return byte >> 1 ^ -(byte & 1), position + 2
    return _long_varint(data, position, end, max_bytes)


@inner
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at `position` and the position after it; -1 if it does not end by `end`."""
    return _zigzag(data, position, end, 5)


@inner
def _varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    return _zigzag(data, position, end, 10)


@inner
def _field(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The size of the nullable bytes at `position` (-1: null) and where they start, -1 if past `end`."""
    size, position = _varint(data, position, end)
    if position < 0 or size > end - position:
        return long(0), -1
    return max(size, long(-1)), position


@kernel
def _skip_headers(data: Bytes, position: int, end: int, totals: Longs) -> int:
    """The position after the headers at `position`; -1 if they are malformed. What they hold is counted."""
    count, position = _varint(data, position, end)
    if position < 0 or count < 0 or count > end - position:
        return -1
    for _ in range(count):
        size, position = _field(data, position, end)
        if position < 0 or size < 0:
            return -1
        position += size
        totals[NAME_BYTES] += size
        size, position = _field(data, position, end)
        if position < 0:
            return -1
        if size < 0:
            totals[NULL_HEADER_VALUES] += 1
        else:
            position += size
            totals[HEADER_VALUE_BYTES] += size
    totals[HEADERS] += count
    return position


# --- reading ------------------------------------------------------------------------------------------------


@inner
def _keep(
    row: int,
    data: Bytes,
    start: int,
    size: int,
    at: Longs,
    sizes: Ints,
    ends: Ints,
    out: Bytes,
    used: int,
) -> int:
    """Keep a key or a value, each in arrays that are not empty: its position, its size, and its bytes.

    The bytes follow the `used` ones of those before it, as in an Arrow column; returns how many there are.
    """
    if len(at):
        at[row] = start
    if len(sizes):
        sizes[row] = size
    size = max(size, long(0))
    if len(ends):
        copy(out, used, data, start, size)
        ends[row + 1] = used + size
    return used + size


@kernel
def locate(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    counts: Longs,
    base_offsets: Longs,
    base_times: Longs,
    max_times: Longs,
    by_broker: npt.NDArray[np.bool_],
    start_offset: int,
    last_offset: int,
    offsets: Longs,
    times: Longs,
    key_at: Longs,
    key_size: Ints,
    key_ends: Ints,
    keys: Bytes,
    value_at: Longs,
    value_size: Ints,
    value_ends: Ints,
    values: Bytes,
    headers_at: Longs,
    rows: Longs,
    totals: Longs,
    ignored: Longs,
) -> int:
    """Find the records of the batches with records in `data[starts:ends]`.

    `counts`, `base_offsets`, `base_times` and `max_times` come from their headers; with the broker's clock
    `max_times` is the time of every record. Records outside [start_offset, last_offset] are checked and left
    out. Fills in per record: offset, time, what `_keep` does with key and value, position of the header count
    (-1: none); per batch: the number of its records; `totals`: the counters; `ignored`: those of records that
    are left out.
    Returns `SOUND`, or the fault of the first bad batch. The columns must have room for all records, which
    have at least `SMALLEST_RECORD` bytes each, and `keys` and `values` for the bytes of all batches.
    """
    row = 0
    key_bytes = value_bytes = long(0)
    null_keys = null_values = untimed = with_headers = 0
    for batch in range(len(starts)):
        position = starts[batch]
        end = ends[batch]
        base_offset = base_offsets[batch]
        base_time = base_times[batch]
        max_time = max_times[batch]
        is_broker_time = by_broker[batch]
        first_row = row
        for _ in range(counts[batch]):
            length, position = _varint(data, position, end)
            if position < 0 or length < 0 or length > end - position:
                return MALFORMED
            record_end = position + length
            delta, position = _varlong(data, position + 1, record_end)
            if position < 0:
                return MALFORMED
            time = max_time if is_broker_time else _sum(base_time, delta)
            delta, position = _varint(data, position, record_end)
            if position < 0:
                return MALFORMED
            offset = _sum(base_offset, delta)
            if (offset < base_offset) != (delta < 0):
                return OFFSET_TOO_LARGE
            key_length, key_start = _field(data, position, record_end)
            if key_start < 0:
                return MALFORMED
            value_length, value_start = _field(data, key_start + max(key_length, 0), record_end)
            if value_start < 0:
                return MALFORMED
            header_start = value_start + max(value_length, 0)
            wanted = start_offset <= offset <= last_offset
            if header_start >= record_end:
                return MALFORMED
            if data[header_start] == 0:
                position = header_start + 1
                header_start = -1
            else:
                position = _skip_headers(data, header_start, record_end, totals if wanted else ignored)
            if position != record_end:
                return MALFORMED
            if wanted:
                offsets[row] = offset
                times[row] = time
                key_bytes = _keep(
                    row, data, key_start, key_length, key_at, key_size, key_ends, keys, key_bytes
                )
                value_bytes = _keep(
                    row,
                    data,
                    value_start,
                    value_length,
                    value_at,
                    value_size,
                    value_ends,
                    values,
                    value_bytes,
                )
                headers_at[row] = header_start
                row += 1
                null_keys += key_length < 0
                null_values += value_length < 0
                untimed += time == -1
                with_headers += header_start >= 0
        if position != end and counts[batch] > 0:
            return MALFORMED
        rows[batch] = row - first_row
    # Once, not per record: memory that may be anybody's cannot stay in registers.
    totals[KEY_BYTES] += key_bytes
    totals[NULL_KEYS] += null_keys
    totals[VALUE_BYTES] += value_bytes
    totals[NULL_VALUES] += null_values
    totals[UNTIMED] += untimed
    totals[WITH_HEADERS] += with_headers
    return SOUND


@kernel
def gather(data: Bytes, at: Longs, sizes: Ints, out_offsets: Ints, out: Bytes) -> None:
    """Copy `data[at : at + size]` of every row into `out`, end to end; sizes below 0 copy nothing."""
    written = 0
    out_offsets[0] = 0
    for row in range(len(at)):
        start = at[row]
        size = max(sizes[row], 0)
        copy(out, written, data, start, size)
        written += size
        out_offsets[row + 1] = written


@kernel
def locate_headers(
    data: Bytes,
    headers_at: Longs,
    list_offsets: Ints,
    name_at: Longs,
    name_size: Ints,
    value_at: Longs,
    value_size: Ints,
    totals: Longs,
) -> bool:
    """Find the headers at the positions that `locate` found: a row per header, and a row per record.

    Returns False if they differ from its counters: another thread writes to this memory.
    """
    end = len(data)
    header = 0
    name_bytes = 0
    value_bytes = 0
    null_values = 0
    list_offsets[0] = 0
    for row in range(len(headers_at)):
        position = headers_at[row]
        if position >= 0:
            count, position = _varint(data, position, end)
            if position < 0 or count > len(name_at) - header:
                return False
            for _ in range(count):
                size, position = _field(data, position, end)
                if position < 0 or size < 0:
                    return False
                name_at[header] = position
                name_size[header] = size
                name_bytes += size
                size, position = _field(data, position + size, end)
                if position < 0:
                    return False
                value_at[header] = position
                value_size[header] = size
                value_bytes += max(size, 0)
                null_values += size < 0
                position += max(size, 0)
                header += 1
        list_offsets[row + 1] = header
    same = header == totals[HEADERS] and name_bytes == totals[NAME_BYTES]
    same = same and value_bytes == totals[HEADER_VALUE_BYTES] and null_values == totals[NULL_HEADER_VALUES]
    return bool(same)


@kernel
def _check(data: Bytes, position: int, end: int, count: int, ignored: Longs) -> tuple[bool, int, int, int]:
    earliest = long(_UNSIGNED)
    latest = -earliest - 1
    keyless = 0
    for expected in range(count):
        length, position = _varint(data, position, end)
        if position < 0 or length < 0 or length > end - position:
            return False, 0, 0, 0
        record_end = position + length
        time_delta, position = _varlong(data, position + 1, record_end)
        if position < 0:
            return False, 0, 0, 0
        delta, position = _varint(data, position, record_end)
        if position < 0 or delta != expected:
            return False, 0, 0, 0
        key_size, position = _field(data, position, record_end)
        if position < 0:
            return False, 0, 0, 0
        value_size, position = _field(data, position + max(key_size, 0), record_end)
        if position < 0:
            return False, 0, 0, 0
        position += max(value_size, 0)
        if position >= record_end:
            return False, 0, 0, 0
        if data[position] == 0:
            position += 1
        else:
            position = _skip_headers(data, position, record_end, ignored)
        if position != record_end:
            return False, 0, 0, 0
        earliest = min(earliest, time_delta)
        latest = max(latest, time_delta)
        keyless += key_size < 0
    return position == end, earliest, latest, keyless


@kernel
def _check_many(
    data: Bytes, starts: Longs, ends: Longs, counts: Longs, summaries: Longs, ignored: Longs
) -> bool:
    for batch in range(len(starts)):
        sound, earliest, latest, keyless = _check(data, starts[batch], ends[batch], counts[batch], ignored)
        if not sound:
            return False
        summaries[batch, 0] = earliest
        summaries[batch, 1] = latest
        summaries[batch, 2] = keyless
    return True


class _Check:
    """`record_parser.CompiledCheck`."""

    def __init__(self) -> None:
        self._ignored = np.zeros(TOTALS, np.int64)
        """Counters that any thread may write, and nobody reads."""

    def one(self, data: Buffer, count: int, position: int, end: int) -> RecordsSummary | None:
        sound, *summary = _check(bytes_of(data), position, end, count, self._ignored)
        return (summary[0], summary[1], summary[2]) if sound else None

    def many(self, data: Buffer, starts: Longs, ends: Longs, counts: Longs) -> Longs | None:
        summaries = np.empty((len(starts), 3), np.int64)
        sound = _check_many(bytes_of(data), starts, ends, counts, summaries, self._ignored)
        return summaries if sound else None


def bytes_of(buffer: Buffer) -> Bytes:
    """Return an array over `buffer` for the kernels, without a copy."""
    array: Bytes = np.frombuffer(buffer, np.uint8)
    if type(buffer) is not bytes:
        # Read-only in any case: a kernel is compiled anew for every type of argument.
        array.flags.writeable = False
    return array


@cache
def warm_up() -> None:
    """Install the compiled check of clients' records for the whole process.

    Takes seconds if nothing was compiled yet, otherwise the time of an import; later calls return at once.
    """
    check = _Check()
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    one = check.one(record, 1, 0, len(record))
    start, end, count = np.array([[0], [len(record)], [1]], np.int64)
    many = check.many(record, start, end, count)
    assert one == (0, 0, 1)
    assert many is not None
    use_compiled(check)
