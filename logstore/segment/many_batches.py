"""Walk over many small batches at once with numpy, without compiled code.

Each place is a guess, and each guess is checked: a batch begins where the one before it ends. Where guesses
fail, callers walk on in Python, batch by batch, with the same results.

All checksums are computed as one. The state of a CRC that starts at zero stays zero over zeros, and is zero
again after bytes that are followed by their own checksum. So in a copy, each header up to the attributes,
where a checksum begins, is overwritten with the checksum of the batch before it and zeros. The state at the
end of the copy is then zero. One bad batch always leaves another state. Several bad batches cancel each other
as rarely as damage keeps a checksum: in one of 2**32 cases (decision 113).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from logstore.disk.files import Buffer
from logstore.format.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, MAGIC_END
from logstore.format.crc import crc32c
from logstore.lazily import np

if TYPE_CHECKING:
    import numpy.typing as npt

Longs: TypeAlias = "npt.NDArray[np.int64]"

FEWEST: Final = 128
"""Fewer batches are walked faster in Python."""
SMALL_BYTES: Final = 1 << 10
"""Larger batches are checked faster one by one, without a copy."""
BLOCK_BYTES: Final = 1 << 18
"""The most bytes that are walked at once: their copy stays in the caches of a processor."""
_LENGTH_AT: Final = 8
_EPOCH_AT: Final = 12
_LAST_OFFSET_DELTA_AT: Final = 23
_LENGTH: Final = Struct(">8xi")
_ALL_ONES: Final = 0xFFFF_FFFF
"""The first state of a CRC-32C; its last state is inverted, too."""
_FRAME: Final = [("checksum", "<u4"), ("zeros", f"V{CRC_START - 4}"), ("first bytes", "<u4")]
"""The bytes that replace a header: the checksum of the batch before it, zeros, and the first bytes that this
batch's checksum covers. Those are inverted, so that a CRC from state zero is that from the first state."""
_FRAME_BYTES: Final = f"V{CRC_START + 4}"
_spare: Final[list[bytearray]] = []
"""Copies that are not in use. Fresh memory costs more page faults than all else here."""


def walk_many(data: Buffer) -> tuple[bytes, npt.NDArray[np.uint32], int]:
    """Walk the small and sound batches that `data`, of at most `BLOCK_BYTES`, begins with.

    Returns their headers end to end, their checksums, and the end of the last one; 0 if there are few, or a
    bad one among them. More may follow.
    """
    starts, end = find_batches(data, len(data))
    if not end:
        return b"", np.empty(0, np.uint32), 0
    headers = _everywhere(data, f"V{HEADER_BYTES}")[starts].tobytes()
    stored = _field(headers, ">u4", MAGIC_END).astype(np.uint32)
    if not _checksums_match(data, starts, end, stored, _field(headers, "<u4", CRC_START)):
        return b"", np.empty(0, np.uint32), 0
    return headers, stored, end


def find_batches(data: Buffer, size: int, *, largest: int = SMALL_BYTES) -> tuple[Longs, int]:
    """Return the positions of small batches that `data[:size]` begins with, and the end of the last one.

    Small: the first one has at most `largest` bytes.

    0 if there are few, or if they are hard to find. More may follow. Checks that they lie end to end, and
    nothing else.
    """
    first = LOG_OVERHEAD + _LENGTH.unpack_from(data)[0] if size >= HEADER_BYTES else 0
    if not HEADER_BYTES <= first <= largest or min(first, SMALL_BYTES) * FEWEST > size:
        return np.empty(0, np.int64), 0
    count = size // first
    if (np.ndarray(count, ">i4", data, _LENGTH_AT, (first,)) == first - LOG_OVERHEAD).all():
        return np.arange(0, count * first, first), count * first
    # Of several sizes: they are where a magic is, with epoch and upper half of the offset as at first.
    magics = np.frombuffer(data, np.uint8)[MAGIC_END - 1 : size - HEADER_BYTES + MAGIC_END]
    starts = np.flatnonzero(magics == MAGIC)
    for at in (0, _EPOCH_AT):
        starts = starts[_everywhere(data, "<u4", at)[starts] == np.frombuffer(data, "<u4", 1, at)]
    sizes = _everywhere(data, ">i4", _LENGTH_AT)[starts] + np.int64(LOG_OVERHEAD)
    ends = starts + sizes
    is_next = (np.append(0, ends[:-1]) == starts) & (sizes >= HEADER_BYTES) & (ends <= size)
    found = len(starts) if is_next.all() else int(is_next.argmin())
    return (starts[:found], int(ends[found - 1])) if found >= FEWEST else (np.empty(0, np.int64), 0)


def base_offsets_at(data: Buffer, starts: Longs) -> Longs:
    """Return the base offsets of the batches at these positions."""
    return _everywhere(data, ">i8")[starts].astype(np.int64)


def are_headers(data: Buffer, starts: Longs) -> npt.NDArray[np.bool_]:
    """Return whether there is the header of a batch at each of these positions: its magic and last offset."""
    magics, deltas = _everywhere(data, "u1", MAGIC_END - 1), _everywhere(data, ">i4", _LAST_OFFSET_DELTA_AT)
    found: npt.NDArray[np.bool_] = (magics[starts] == MAGIC) & (deltas[starts] >= 0)
    return found


def _checksums_match(
    data: Buffer, starts: Longs, end: int, stored: npt.NDArray[np.uint32], first_bytes: npt.NDArray[np.uint32]
) -> bool:
    """Whether the batches at `starts`, the last of which ends at `end`, have these checksums.

    `first_bytes` are the first four that each checksum covers.
    """
    copy = _spare.pop() if _spare else bytearray(BLOCK_BYTES + 4)
    copy[:end] = memoryview(data)[:end]
    frames = np.zeros(len(starts), _FRAME)
    frames["checksum"][1:] = ~stored[:-1]
    frames["first bytes"] = ~first_bytes
    _everywhere(copy, _FRAME_BYTES)[starts] = frames.view(_FRAME_BYTES)
    copy[end : end + 4] = (int(stored[-1]) ^ _ALL_ONES).to_bytes(4, "little")
    # The function inverts what it is given, and its result.
    is_zero = crc32c(memoryview(copy)[: end + 4], _ALL_ONES) == _ALL_ONES
    _spare.append(copy)
    return is_zero


def _everywhere(data: Buffer, kind: str, at: int = 0) -> npt.NDArray[Any]:
    """An array of the values `at` bytes after each byte of `data`, without a copy."""
    return np.ndarray(len(data) - at - np.dtype(kind).itemsize + 1, kind, data, at, (1,))


def _field(headers: bytes, kind: str, at: int) -> npt.NDArray[Any]:
    """An array of the values `at` bytes after the start of each header, without a copy."""
    return np.ndarray(len(headers) // HEADER_BYTES, kind, headers, at, (HEADER_BYTES,))
