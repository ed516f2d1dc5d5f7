"""Distinguish a torn tail from damage. All callers use this module for that decision.

    ├ batch ┼ batch ┼ ░░░░░░ ┼ batch ┼ batch ┼ 0 0 0 ┤
                      bad                      bad: no batch that could be read; behind it one may follow

`judge` classifies a bad stretch. Recovery, `verify`, `dump --verify`, readers and the Spark verification
job ask it, and differ only in what they know (a durable point, the bytes behind) and in what they do.

A scan ends at the first fault, because what recovery may keep ends there. `sweep` continues: behind a batch
whose length can be followed, else at the next place where an intact batch begins. Checksums show whether a
batch is sound. They do not cover its offset and epoch, so they cannot show whether it is in its place:
`misplaced` compares each batch with its neighbours, and `judge_chain` each segment with the seals.

    0.log  ── 0.seal: 4,096 bytes, ends at 40, then 40 ──►  40.log  ── 40.seal: …, then 90 ──►  90.log

A crash leaves three things that contradict a seal and are not damage: a seal beside the last segment (its
successor never became durable), more bytes behind it there (appended after a roll that failed), and an empty
segment below the successor that a seal names (it was being replaced, because the log continued higher up).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.disk.files import File
from logstore.errors import CorruptBatch, Damage, DamageKind
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, Batch
from logstore.segment.scan import CHUNK_BYTES, HEADER_DTYPE, Fault, last_offsets_of, scan_buffer
from logstore.segment.seal import Seal

SWEEP_BYTES: Final = 4 << 20
_LENGTH: Final = Struct(">8xi")
_MAGIC_AT: Final = 16
_MAGIC_BYTE: Final = bytes([MAGIC])


class Verdict(Enum):
    """The nature of a stretch of bytes."""

    SOUND = "sound"
    TORN_TAIL = "torn tail"
    """A crash or a running writer leaves it; nothing that was durable is missing."""
    DAMAGE = "damage"


def judge(fault: Fault | None, *, is_end: bool, below_durable: bool | None) -> Verdict:
    """Judge the bytes at which a walk over a segment's batches stopped, with `fault`.

    `is_end`: nothing sound follows them, in this segment or a later one. `below_durable`: whether they hold
    offsets that were synced; None if no durable point is known. Then only a batch that is cut short, or
    zeros, count as a torn tail.
    """
    if fault is None:
        return Verdict.SOUND
    if not is_end or below_durable:
        return Verdict.DAMAGE
    is_usual = fault in (Fault.TORN, Fault.ZEROS)
    return Verdict.TORN_TAIL if is_usual or below_durable is False else Verdict.DAMAGE


# --- single batches ---------------------------------------------------------------------------------


def batch_at(file: File, position: int, end: int) -> Batch | None:
    """Return the batch at byte `position` by its length field, if it ends by `end`. Checksum not checked.

    Raises `OSError`.
    """
    header = file.pread(HEADER_BYTES, position)
    if len(header) < HEADER_BYTES:
        return None
    size = LOG_OVERHEAD + _LENGTH.unpack_from(header)[0]
    if not HEADER_BYTES <= size <= end - position:
        return None
    try:
        return Batch(file.pread(size, position))
    except CorruptBatch:
        return None


def sound_batch(file: File, position: int, end: int, lowest_offset: int | None = None) -> Batch | None:
    """Return the batch at byte `position` if its checksum is right and it ends by `end`.

    With `lowest_offset` its offsets must rise from there. Raises `OSError`.
    """
    batch = batch_at(file, position, end)
    return batch if batch is not None and _is_intact(batch, lowest_offset) else None


def find_batch(file: File, position: int, end: int, *, lowest_offset: int | None = None) -> int | None:
    """Return the position of the first intact batch behind byte `position` that ends by `end`; None if none.

    For bytes without a structure to follow: every byte is tried. With `lowest_offset` only batches whose
    offsets rise from there count. Raises `OSError`.
    """
    start = position + 1
    while start + HEADER_BYTES <= end:
        chunk = file.pread(min(CHUNK_BYTES, end - start), start)
        untried = len(chunk) - HEADER_BYTES + 1
        if untried <= 0:  # the file became shorter meanwhile
            return None
        at = chunk.find(_MAGIC_BYTE, _MAGIC_AT) - _MAGIC_AT
        while 0 <= at < untried:
            size = LOG_OVERHEAD + _LENGTH.unpack_from(chunk, at)[0]
            if HEADER_BYTES <= size <= end - start - at:
                whole = at + size <= len(chunk)
                data = chunk[at : at + size] if whole else file.pread(size, start + at)
                if len(data) == size and _is_intact(Batch(data), lowest_offset):
                    return start + at
            at = chunk.find(_MAGIC_BYTE, at + _MAGIC_AT + 1) - _MAGIC_AT
        start += untried
    return None


def _is_intact(batch: Batch, lowest_offset: int | None) -> bool:
    if lowest_offset is not None and not lowest_offset <= batch.base_offset <= batch.last_offset:
        return False
    try:
        batch.check_crc()
    except CorruptBatch:
        return False
    return True


# --- a whole file -----------------------------------------------------------------------------------


class Bad(NamedTuple):
    """Bytes [position, end) are no sound batch. `slot`: the number of the batch that follows them."""

    position: int
    end: int
    fault: Fault
    slot: int


class Sweep(NamedTuple):
    """The sound batches of a file, in its order: a row each in both columns, n int64 and n `HEADER_DTYPE`."""

    positions: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    bad: list[Bad]

    @property
    def bases(self) -> npt.NDArray[np.int64]:
        """The base offset of each batch."""
        bases: npt.NDArray[np.int64] = self.headers["base_offset"].astype(np.int64)
        return bases

    @property
    def lasts(self) -> npt.NDArray[np.int64]:
        """The last offset of each batch."""
        return last_offsets_of(self.headers)


def sweep(file: File, size: int, position: int = 0) -> Sweep:
    """Find every sound batch in bytes [position, size) of `file`, past every fault.

    Takes the memory of the headers. Raises `OSError`.
    """
    positions: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    headers: list[bytes] = []
    bad: list[Bad] = []
    slot = 0
    window = SWEEP_BYTES
    while position < size:
        data = file.pread(min(window, size - position), position)
        if not data:  # cut by its owner meanwhile
            break
        found = scan_buffer(data, len(data))
        positions.append(found.positions + position)
        headers.append(found.headers.tobytes())
        slot += len(found.headers)
        position += found.end
        fault, left = found.fault, len(data) - found.end
        if fault is Fault.TORN:
            if found.end and position + left < size:
                window = SWEEP_BYTES
                continue  # torn by the window
            whole = LOG_OVERHEAD + _LENGTH.unpack_from(data, found.end)[0] if left >= HEADER_BYTES else 0
            if left < whole <= size - position:
                window = whole
                continue
        window = SWEEP_BYTES
        if fault is not None:
            end = _next_sound(file, position, size)
            bad.append(Bad(position, end, fault, slot))
            position = end
    table = np.frombuffer(b"".join(headers), HEADER_DTYPE)
    return Sweep(np.concatenate(positions), table, bad)


def _next_sound(file: File, position: int, size: int) -> int:
    """The position of the next intact batch behind the bad bytes at `position`; `size` if there is none."""
    header = file.pread(HEADER_BYTES, position)
    if len(header) == HEADER_BYTES:
        end: int = position + LOG_OVERHEAD + _LENGTH.unpack_from(header)[0]
        # By its length first: a record's value may be a batch too.
        if end == size or (position < end < size and sound_batch(file, end, size) is not None):
            return end
    found = find_batch(file, position, size)
    return size if found is None else found


class Misplaced(NamedTuple):
    """Batch number `slot` is not in its place; if not `is_certain`, it may be the one before it."""

    slot: int
    fault: Fault
    is_certain: bool


def misplaced(headers: npt.NDArray[np.void]) -> Iterator[Misplaced]:
    """Find the batches that are not in their place: `OFFSETS` or `EPOCHS`.

    Offsets must rise, epochs must not fall (-1: unknown). Of two neighbours that contradict each other the
    misplaced one is the one that does not fit the batches around them either.
    """
    bases = headers["base_offset"].astype(np.int64)
    lasts = last_offsets_of(headers)
    epochs = headers["leader_epoch"].astype(np.int64)
    known = np.maximum.accumulate(epochs)
    rises = (bases[1:] > lasts[:-1]) & ((epochs[1:] == -1) | (epochs[1:] >= known[:-1]))
    if (lasts >= bases).all() and rises.all():
        return
    first, last, epoch = bases.tolist(), lasts.tolist(), epochs.tolist()

    def fault(before: int, after: int) -> Fault | None:
        if first[after] <= last[before]:
            return Fault.OFFSETS
        return Fault.EPOCHS if -1 < epoch[after] < epoch[before] else None

    kept: list[int] = []
    for slot in range(len(first)):
        if last[slot] < first[slot]:
            yield Misplaced(slot, Fault.OFFSETS, True)
            continue
        found = fault(kept[-1], slot) if kept else None
        if found is None:
            kept.append(slot)
            continue
        fits_without_last = len(kept) < 2 or fault(kept[-2], slot) is None
        next_follows_last = slot + 1 == len(first) or fault(kept[-1], slot + 1) is None
        if not fits_without_last:
            yield Misplaced(slot, found, True)
        elif next_follows_last:
            yield Misplaced(slot, found, False)
            kept.append(slot)
        else:
            yield Misplaced(kept.pop(), found, True)
            kept.append(slot)


# --- a whole directory ------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A segment as the directory lists it; sizes in bytes."""

    base_offset: int
    size: int


class Chain(NamedTuple):
    """The result of a comparison with the seals: everything below `durable_end` was synced once.

    `replaced` are bases of empty segments that others have replaced; `whole` counts the segments up to the
    one that the first damage is in or follows.
    """

    damages: list[Damage]
    durable_end: int
    replaced: list[int]
    whole: int


def judge_chain(segments: Sequence[Listed], seals: Mapping[int, Seal], log_start_offset: int) -> Chain:
    """Compare each seal with its segment and the next one, oldest first.

    A hole wholly below the log start is not damage: an interrupted deletion leaves it.
    """
    damages: list[Damage] = []
    replaced: list[int] = []
    durable_end = 0
    whole = len(segments)
    for number, (base_offset, size) in enumerate(segments):
        seal = seals.get(base_offset)
        if seal is None:
            continue
        durable_end = seal.end_offset
        behind = segments[number + 1 :]
        damages += _of_size(seal, size, behind)
        empties = 0
        while empties < len(behind) and behind[empties] < (seal.successor, 0) and not behind[empties].size:
            empties += 1
        following = behind[empties:]
        if following and following[0].base_offset > log_start_offset:
            replaced += [each.base_offset for each in behind[:empties]]
            damages += _of_successor(seal, following)
        if damages:
            whole = min(whole, number)
    return Chain(damages, durable_end, replaced, whole)


def _of_size(seal: Seal, size: int, behind: Sequence[Listed]) -> Iterable[Damage]:
    if size < seal.size:
        text = f"{size} bytes where {seal.size} were sealed"
        kind = DamageKind.SHORTER
    elif size > seal.size and behind:
        text = f"{size} bytes where {seal.size} were sealed, and later segments follow"
        kind = DamageKind.LONGER
    else:
        return
    # Only a walk over the batches finds its valid bytes.
    yield Damage(kind, _log_name(seal.base_offset), 0, seal.base_offset, text, size + _bytes_in(behind))


def _of_successor(seal: Seal, following: Sequence[Listed]) -> Iterable[Damage]:
    found = following[0].base_offset
    lost = _bytes_in(following)
    sealed, missing = _log_name(seal.base_offset), _log_name(seal.successor)
    if found > seal.successor:
        text = f"it should follow {sealed}, and {_log_name(found)} does"
        yield Damage(DamageKind.SEGMENT_GONE, missing, 0, seal.end_offset, text, lost)
    elif found < seal.successor:
        text = f"{missing} should follow {sealed}, and this does"
        yield Damage(DamageKind.OVERLAP, _log_name(found), 0, found, text, lost)


def _bytes_in(segments: Sequence[Listed]) -> int:
    return sum(each.size for each in segments)


def _log_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"
