"""A compiled walk over batches: lengths, headers and checksums, 0.1 µs a small batch.

CRC-32C is one instruction of x86-64 processors (SSE 4.2). It takes three cycles, and another one can begin at
each of them: so the checksums of three batches are computed at a time. Elsewhere `is_available` is False, and
callers walk in Python, with the checksums of a library. `segment/scan.py` chooses.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from logstore.columnar.kernels import Bytes, Longs, bytes_of, kernel
from logstore.disk.files import Buffer
from logstore.format.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD

Checksums: TypeAlias = npt.NDArray[np.uint32]

SMALLEST_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD
_ONES: Final = cast(int, np.uint64(0xFFFF_FFFF))
_LANES: Final = 3


def _step(bits: int) -> Any:
    """An intrinsic: the checksum over a checksum's state and the next bytes at a position."""
    word, state = ir.IntType(bits), ir.IntType(64 if bits == 64 else 32)

    def step(_context: Any, crc: Any, data: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            before, array, position = arguments
            start = context.make_array(signature.args[1])(context, builder, array).data
            place = builder.bitcast(builder.gep(start, [position]), word.as_pointer())
            function = builder.module.declare_intrinsic(
                f"llvm.x86.sse42.crc32.{state.width}.{bits}", (), ir.FunctionType(state, [state, word])
            )
            narrow = builder.trunc(before, state) if state.width < 64 else before
            after = builder.call(function, [narrow, builder.load(place, align=1)])
            return builder.zext(after, ir.IntType(64)) if state.width < 64 else after

        return types.uint64(types.uint64, data, types.int64), code

    return intrinsic(step)


_eight: Final = _step(64)
_one: Final = _step(8)


@kernel
def _length(data: Bytes, at: int) -> int:
    """The length field, which is signed."""
    length = 0
    for number in range(at + 8, at + 12):
        length = length << 8 | int(data[number])
    return length - (length >> 31 << 32)


@kernel
def _base_offset(data: Bytes, at: int) -> int:
    offset = np.uint64(0)
    for number in range(at, at + 8):
        offset = offset << np.uint64(8) | np.uint64(data[number])
    return np.int64(offset)  # type: ignore[return-value]


@kernel
def _whole(data: Bytes, limit: int, end_offset: int) -> tuple[int, int]:
    position = 0
    last = -1
    while position + HEADER_BYTES <= limit:
        length = _length(data, position)
        end = position + LOG_OVERHEAD + length
        if end > limit or length <= 0 or _base_offset(data, position) >= end_offset:
            break
        last = position
        position = end
    return position, last


@kernel
def _count(data: Bytes, total: int) -> int:
    """How many batches `_walk` finds."""
    at = 0
    count = 0
    while at + HEADER_BYTES <= total:
        length = _length(data, at)
        at += LOG_OVERHEAD + length
        if length < SMALLEST_LENGTH or at > total:
            break
        count += 1
    return count


@kernel
def _checksums(data: Bytes, starts: Longs, ends: Longs, checksums: Checksums, first: int) -> None:
    """Compute the checksums of three batches, `data[starts:ends]`."""
    one = two = three = _ONES
    at, second, third = starts[0], starts[1], starts[2]
    words = min(ends[0] - at, ends[1] - second, ends[2] - third) >> 3
    for _ in range(words):
        one = _eight(one, data, at)
        two = _eight(two, data, second)
        three = _eight(three, data, third)
        at += 8
        second += 8
        third += 8
    checksums[first] = _rest(one, data, at, ends[0])
    checksums[first + 1] = _rest(two, data, second, ends[1])
    checksums[first + 2] = _rest(three, data, third, ends[2])


@kernel
def _rest(crc: int, data: Bytes, at: int, end: int) -> int:
    while at + 8 <= end:
        crc = _eight(crc, data, at)
        at += 8
    while at < end:
        crc = _one(crc, data, at)
        at += 1
    return np.uint32(crc) ^ np.uint32(_ONES)  # type: ignore[return-value]


@kernel
def _walk(
    data: Bytes, total: int, headers: Bytes, checksums: Checksums, starts: Longs, ends: Longs
) -> tuple[int, int, bool]:
    at = 0
    count = 0
    is_bad = False
    while at + HEADER_BYTES <= total:
        length = _length(data, at)
        end = at + LOG_OVERHEAD + length
        is_bad = length < SMALLEST_LENGTH
        # The batches were counted before: memory that another process writes may hold more by now.
        if is_bad or end > total or count == len(checksums):
            break
        for number in range(HEADER_BYTES):
            headers[count * HEADER_BYTES + number] = data[at + number]
        lane = count % _LANES
        starts[lane] = at + CRC_START
        ends[lane] = end
        count += 1
        at = end
        if lane == _LANES - 1:
            _checksums(data, starts, ends, checksums, count - _LANES)
    for lane in range(count % _LANES):
        checksums[count - count % _LANES + lane] = _rest(_ONES, data, starts[lane], ends[lane])
    return count, at, is_bad


def is_available() -> bool:
    """Return whether this processor has the instruction."""
    return bool(llvm.get_host_cpu_features().get("sse4.2"))


def walk_batches(data: Buffer, total: int) -> tuple[bytes, Checksums, int, bool]:
    """Walk the whole batches in the first `total` bytes of `data`.

    Returns their headers end to end, the computed checksums, the end of the last batch, and whether a length
    that no batch can have follows it.
    """
    array = bytes_of(data)
    # Room for as many as might be there would be megabytes, and clearing their pages costs more than a walk.
    room = _count(array, total)
    headers, checksums = np.empty(room * HEADER_BYTES, np.uint8), np.empty(room, np.uint32)
    lanes = np.empty((2, _LANES), np.int64)
    count, end, is_bad = _walk(array, total, headers, checksums, lanes[0], lanes[1])
    return headers[: count * HEADER_BYTES].tobytes(), checksums[:count], end, is_bad


def whole_batches(data: Buffer, limit: int, end_offset: int) -> tuple[int, int]:
    """Return where the whole batches below `end_offset` in the first `limit` bytes end, and the last begins.

    -1 if there is none. Reads only base offsets and lengths, and does not judge them.
    """
    return _whole(bytes_of(data), limit, end_offset)
