"""Walk the batches of a `.log` file: thousands of headers at once, every checksum, no records.

numpy walks over many small batches (`many_batches.py`), or compiled code does, where it is loaded
(`use_compiled`), also over many large ones. Python walks over others by their length fields, with one step
and one CRC-32C a batch.
Everything else is numpy on a table of the headers: order, epochs, index entries. Recovery, index rebuilds and
verification need no more, and it is nearly as fast as reading and checksumming.

The walk ends at the first bytes that are not a batch in its place, and reports the fault. `damage.judge`
decides whether that is a torn tail or damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.files import Buffer, File
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC
from logstore.format.crc import crc32c
from logstore.lazily import np
from logstore.segment.epochs import EpochEntry
from logstore.segment.many_batches import BLOCK_BYTES, walk_many
from logstore.signals import held_back, may_raise

if TYPE_CHECKING:
    import numpy.typing as npt

CHUNK_BYTES = 2 << 20
_BATCHES_AN_ITEM = 4096
MANY_BYTES = 1 << 13
"""So many bytes may hold enough batches to walk over them at once."""
COMPILED_BELOW_BYTES = 1 << 11
"""Compiled code walks from batch to batch faster; a library computes the checksum of a large one faster."""
COMPILED_FROM_BATCHES = 16
"""Compiled code computes the checksums of so many large batches faster as well: three at a time."""
_HEADER_FIELDS = [
    ("base_offset", ">i8"),
    ("batch_length", ">i4"),
    ("leader_epoch", ">i4"),
    ("magic", "i1"),
    ("crc", ">u4"),
    ("attributes", ">i2"),
    ("last_offset_delta", ">i4"),
    ("base_timestamp", ">i8"),
    ("max_timestamp", ">i8"),
    ("producer_id", ">i8"),
    ("producer_epoch", ">i2"),
    ("base_sequence", ">i4"),
    ("record_count", ">i4"),
]
_LENGTH = Struct(">8xi")  # behind the base offset


@cache
def header_dtype() -> np.dtype[np.void]:
    """Return the type of a batch header: `HEADER_BYTES` with a field for each of format v2."""
    return np.dtype(_HEADER_FIELDS)


class Fault(Enum):
    """The reason for a walk to stop before the end of the file."""

    TORN = "the file ends inside a batch"
    ZEROS = "zero bytes to the end of the file"
    SIZE = "a length field that no batch can have"
    CHECKSUM = "a batch whose checksum does not match"
    MAGIC = "a batch of another format"
    OFFSETS = "a batch whose offsets do not rise"
    OVERFLOW = "a batch whose offsets do not fit the segment"
    EPOCHS = "a batch of an older leader epoch than the one before it"
    HISTORY = "a batch of another leader epoch than the epoch checkpoint has for it"
    HOLE = "a batch that begins past offsets that were durable"


def last_offsets_of(headers: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the last offset of each batch."""
    offsets: npt.NDArray[np.int64] = headers["base_offset"].astype(np.int64)
    offsets += headers["last_offset_delta"]
    return offsets


class Scanned(NamedTuple):
    """Whole, valid batches that lie end to end.

    `positions` are their first bytes in the file (n int64), `headers` their fields (n of `header_dtype()`),
    `end` is the end of the last one. `fault` is the reason that nothing follows; None where the walk
    continues or the file ends.
    """

    positions: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    end: int
    fault: Fault | None

    def until(self, slot: int, fault: Fault) -> Scanned:
        """Return the batches before number `slot`, which has `fault`."""
        return Scanned(self.positions[:slot], self.headers[:slot], int(self.positions[slot]), fault)

    @property
    def last_offsets(self) -> npt.NDArray[np.int64]:
        """The last offset of each batch."""
        return last_offsets_of(self.headers)


def extents_of(headers: npt.NDArray[np.void]) -> list[tuple[int, int, int]]:
    """Each batch's size, last offset and largest timestamp, as `Segment.append` takes them."""
    sizes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
    largest = headers["max_timestamp"]
    return list(zip(sizes.tolist(), last_offsets_of(headers).tolist(), largest.tolist(), strict=True))


def scan(
    file: File,
    position: int,
    end: int,
    *,
    base_offset: int,
    next_offset: int | None = None,
    leader_epoch: int = -1,
) -> Iterator[Scanned]:
    """Walk the batches of `file` in bytes [position, end), thousands an item.

    Offsets must rise from `next_offset` (default: `base_offset`, the segment's) and fit the segment;
    leader epochs, where known, may not go back below `leader_epoch`. The last item carries the fault,
    if there is one; an item may be empty. Raises `OSError`.
    """
    next_offset = base_offset if next_offset is None else next_offset
    fault: Fault | None = None
    while position < end and fault is None:
        walk = _Walk(position)
        while position < end and fault is None and len(walk) < _BATCHES_AN_ITEM:
            fault = walk.read(file, end)
            position = walk.end
        found = _check_order(walk.checked(fault), base_offset, next_offset, leader_epoch)
        if len(found.headers):
            next_offset = int(found.last_offsets[-1]) + 1
            leader_epoch = max(leader_epoch, int(found.headers["leader_epoch"].max()))
        fault = found.fault
        yield found


def scan_buffer(data: Buffer, size: int) -> Scanned:
    """Return the batches in the first `size` bytes of `data`; checksums are checked, offsets are not.

    The fault is TORN where the last batch is cut short.
    """
    walk = _Walk(0)
    walk.end, fault = walk.walk(data, 0, size)
    return walk.checked(fault or (Fault.TORN if walk.end < size else None))


def scan_chunks(
    file: File, position: int, end: int, *, base_offset: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[bytes, Scanned]]:
    """`scan`, with the bytes: each item is a chunk of the file and the whole batches it begins with.

    `positions` and `end` are relative to the chunk, which is `chunk_bytes` long, or as long as a batch that
    is longer. The last item carries the fault, if there is one: TORN also where the file is shorter than
    `end`. Raises `OSError`.
    """
    next_offset, leader_epoch, size = base_offset, -1, chunk_bytes
    while position < end:
        wanted = min(size, end - position)
        chunk = file.pread(wanted, position)
        found = scan_buffer(chunk, len(chunk))
        if len(chunk) < wanted:
            found = found._replace(fault=found.fault or Fault.TORN)
        elif found.end > 0 and found.fault is Fault.TORN:
            found = found._replace(fault=None)  # torn by the chunk, perhaps
        elif found.fault is Fault.TORN and HEADER_BYTES <= len(chunk) < end - position:
            size = LOG_OVERHEAD + _LENGTH.unpack_from(chunk)[0]
            if len(chunk) < size <= end - position:
                continue
        size = chunk_bytes
        found = _check_order(found, base_offset, next_offset, leader_epoch)
        yield chunk, found
        if found.fault is not None:
            return
        next_offset = int(found.last_offsets[-1]) + 1
        leader_epoch = max(leader_epoch, int(found.headers["leader_epoch"].max()))
        position += found.end


def compiled_search(data: Buffer, size: int) -> Callable[[Buffer, int, int], tuple[int, int]] | None:
    """Return `walking.whole_batches` if it is loaded and finds the batches that `data` begins with faster."""
    return _Compiled.whole if _begins_below(data, size, COMPILED_BELOW_BYTES) else None


class _Compiled:
    walk: Callable[[Buffer, int], tuple[bytes, npt.NDArray[np.uint32], int, bool]] | None = None
    whole: Callable[[Buffer, int, int], tuple[int, int]] | None = None
    is_refused = False


def use_compiled(*, wanted: bool = True) -> bool:
    """Walk with compiled code from now on, in the whole process; False if it cannot be had here.

    Takes the time to import numba, and some more for the first time on a machine. With `wanted=False` the
    walk is in Python again.
    """
    if not wanted:
        _Compiled.walk = _Compiled.whole = None
    elif _Compiled.walk is None and not _Compiled.is_refused:
        # numba that was interrupted fails at every later use, or swallows the interrupt.
        with held_back(*may_raise()):
            _load_compiled()
    return _Compiled.walk is not None


def _load_compiled() -> None:
    try:
        from logstore.columnar import walking
    except ImportError:  # without the extra `arrow`
        _Compiled.is_refused = True
        return
    _Compiled.is_refused = not walking.is_available()
    if not _Compiled.is_refused:
        walking.walk_batches(b"", 0)
        walking.whole_batches(b"", 0, 0)
        _Compiled.walk, _Compiled.whole = walking.walk_batches, walking.whole_batches


class _Walk:
    """Batches found by their length fields, with the checksums computed on the way."""

    def __init__(self, position: int) -> None:
        self.begin = self.end = position
        self._headers: list[Buffer] = []
        self._checksums: list[npt.NDArray[np.uint32]] = []

    def __len__(self) -> int:
        return sum(map(len, self._checksums))

    def read(self, file: File, end: int) -> Fault | None:
        """Walk one more chunk; return the reason if no batch can follow it before byte `end`."""
        at = self.end
        chunk = file.pread(min(CHUNK_BYTES, end - at), at)
        walked, fault = self.walk(chunk, at, len(chunk))
        if walked == at and fault is None:
            # Not one whole batch: read as many bytes as its length field says, if the file has them.
            if len(chunk) < HEADER_BYTES:
                return Fault.TORN
            size = LOG_OVERHEAD + _LENGTH.unpack_from(chunk)[0]
            if at + size > end:
                return Fault.TORN
            chunk = file.pread(size, at)
            walked, fault = self.walk(chunk, at, len(chunk))
            if walked == at and fault is None:
                return Fault.TORN
        self.end = walked
        return fault

    def walk(self, chunk: Buffer, at: int, total: int) -> tuple[int, Fault | None]:
        """Walk the first `total` bytes of `chunk`, which lies at byte `at`.

        Returns the end of its whole batches, and the fault there, if there is one.
        """
        longest = max(COMPILED_BELOW_BYTES, total // COMPILED_FROM_BATCHES)
        if _Compiled.walk is not None and _begins_below(chunk, total, longest):
            headers, computed, end, is_bad = _Compiled.walk(chunk, total)
            self._headers.append(headers)
            self._checksums.append(computed)
            return at + end, Fault.SIZE if is_bad else None
        view = memoryview(chunk)[:total]
        last_start = total - HEADER_BYTES
        length_at, checksum = _LENGTH.unpack_from, crc32c
        checksums: list[int] = []
        add_header, add_checksum = self._headers.append, checksums.append
        fault: Fault | None = None
        start = 0
        while total - start >= MANY_BYTES and (found := walk_many(view[start : start + BLOCK_BYTES]))[2]:
            self._headers.append(found[0])
            self._checksums.append(found[1])
            start += found[2]
        while start <= last_start:
            end = start + LOG_OVERHEAD + length_at(chunk, start)[0]
            if not start + HEADER_BYTES <= end <= total:
                fault = Fault.SIZE if end <= total else None
                break
            add_checksum(checksum(view[start + 21 : end]))
            add_header(chunk[start : start + HEADER_BYTES])
            start = end
        self._checksums.append(np.array(checksums, np.uint32))
        return at + start, fault

    def checked(self, fault: Fault | None) -> Scanned:
        """Return the batches walked so far, up to the first one with a wrong checksum or format."""
        headers = np.frombuffer(b"".join(self._headers), header_dtype())
        sizes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
        positions = self.begin + np.cumsum(sizes) - sizes
        bad = (headers["magic"] != MAGIC) | (
            headers["crc"] != np.concatenate([np.empty(0, np.uint32), *self._checksums])
        )
        if not bad.any():
            return Scanned(positions, headers, self.end, fault)
        first = int(bad.argmax())
        fault = Fault.MAGIC if headers["magic"][first] != MAGIC else Fault.CHECKSUM
        return Scanned(positions, headers, self.end, fault).until(first, fault)


def _begins_below(chunk: Buffer, total: int, size: int) -> bool:
    """Return whether the first batch is smaller than `size`, as the others probably are."""
    return total >= HEADER_BYTES and _LENGTH.unpack_from(chunk)[0] < size


class OrderFaults(NamedTuple):
    """Per batch: whether its offsets do not rise, its epoch is older, its offsets exceed the segment."""

    offsets: npt.NDArray[np.bool_]
    epochs: npt.NDArray[np.bool_]
    overflows: npt.NDArray[np.bool_]

    def first(self) -> int | None:
        """Return the number of the first batch that is out of order."""
        wrong = self.offsets | self.epochs | self.overflows
        return int(wrong.argmax()) if wrong.any() else None


def order_faults(found: Scanned, base_offset: int, next_offset: int, leader_epoch: int) -> OrderFaults:
    """Compare each batch with the one before it; the first one with `next_offset` and `leader_epoch`."""
    bases = found.headers["base_offset"].astype(np.int64)
    lasts = found.last_offsets
    floors = np.empty(len(bases), np.int64)
    floors[:1] = next_offset
    floors[1:] = lasts[:-1] + 1
    epochs = found.headers["leader_epoch"].astype(np.int64)
    newest = np.maximum.accumulate(np.maximum(epochs, leader_epoch))
    return OrderFaults(
        (bases < floors) | (lasts < bases),  # a sum that overflowed is negative: it fails here too
        (epochs < newest) & (epochs != -1),  # -1: unknown; less is no epoch
        lasts - base_offset > MAX_INT,
    )


def _check_order(found: Scanned, base_offset: int, next_offset: int, leader_epoch: int) -> Scanned:
    """Cut `found` before the first batch that does not follow the one before it."""
    faults = order_faults(found, base_offset, next_offset, leader_epoch)
    first = faults.first()
    if first is None:
        return found
    if faults.offsets[first]:
        return found.until(first, Fault.OFFSETS)
    return found.until(first, Fault.EPOCHS if faults.epochs[first] else Fault.OVERFLOW)


def check_end(found: Scanned, base_offset: int, ends_by: int) -> Scanned:
    """Cut `found` before the first batch that reaches into the next segment, which begins at `ends_by`.

    Both segments were durable, so the batch has a wrong offset. No segment has to be split for it.
    """
    is_past = found.last_offsets >= ends_by
    if is_past.any():
        return found.until(int(is_past.argmax()), Fault.OFFSETS)
    if found.fault is Fault.OVERFLOW and ends_by - 1 - base_offset <= MAX_INT:
        return found._replace(fault=Fault.OFFSETS)
    return found


def check_history(
    found: Scanned,
    history: Sequence[EpochEntry],
    *,
    next_offset: int,
    durable_end: int,
    history_end: int = MAX_LONG,
    is_dense: bool,
    log_start_offset: int = 0,
) -> Scanned:
    """Cut `found` before the first batch that differs from what was durable below `durable_end`.

    Base offset and leader epoch lie outside a batch's checksum. `history` (epochs and their start offsets;
    empty if unknown) was written before its batches, and tells of those below `history_end`. Where nothing
    was removed between the batches (`is_dense`), none leaps over the durable end, and none past a gap holds
    it. One that follows its predecessor may hold it: a truncation inside of a batch leaves such a checkpoint
    (Kafka's `UnifiedLog.truncateTo`), and an operator may give such an offset.
    Damage below `log_start_offset` may have been left out; then the batch behind it begins there or below. Of
    a batch past a gap and one that does not follow it, the first is the wrong one.
    """
    count = len(found.headers)
    if not count:
        return found
    bases = found.headers["base_offset"].astype(np.int64)
    if is_dense:
        ends_before = np.append(next_offset, found.last_offsets[:-1] + 1)
        leaps = (ends_before < durable_end) & (bases >= max(durable_end, log_start_offset + 1))
        if durable_end > log_start_offset:  # the log start may lie inside of a batch
            leaps |= (bases > ends_before) & (bases < durable_end) & (found.last_offsets >= durable_end)
        if found.fault is Fault.OFFSETS:
            leaps[-1] |= ends_before[-1] < min(durable_end, bases[-1])
        if leaps.any():
            return check_history(
                found.until(int(leaps.argmax()), Fault.HOLE),
                history,
                next_offset=next_offset,
                durable_end=durable_end,
                history_end=history_end,
                is_dense=False,
            )
    if history:
        starts = np.array([entry.start_offset for entry in history], np.int64)
        epochs = np.array([entry.epoch for entry in history], np.int64)
        slots = np.searchsorted(starts, bases, "right") - 1
        written = found.headers["leader_epoch"]
        wrong = (slots >= 0) & (bases < history_end) & (written >= 0) & (epochs[slots] != written)
        if wrong.any():
            return found.until(int(wrong.argmax()), Fault.HISTORY)
    return found
