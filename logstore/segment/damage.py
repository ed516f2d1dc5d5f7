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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.config import MAX_LONG
from logstore.disk.files import File, Readable
from logstore.errors import CorruptBatch, Damage, DamageKind
from logstore.format.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, Batch
from logstore.format.crc import crc32c
from logstore.lazily import np
from logstore.segment.epochs import EpochEntry
from logstore.segment.indexes import TimeIndex, entries_of
from logstore.segment.scan import (
    CHUNK_BYTES,
    Fault,
    Scanned,
    header_dtype,
    last_offsets_of,
    scan,
    scan_buffer,
)
from logstore.segment.seal import Seal, compared_blocks

if TYPE_CHECKING:
    import numpy.typing as npt

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


def check_leap(found: Scanned, file: Readable, size: int, next_offset: int, durable_end: int) -> Scanned:
    """Cut `found` before its last batch if that has leapt past the durable one behind it.

    A batch's offset lies outside its checksum. Where offsets do not rise, either may be wrong; the one
    before, if offsets are missing below it and the other one continues what came before both. `next_offset`
    continues what came before `found`. Raises `OSError`.
    """
    if found.fault is not Fault.OFFSETS or not len(found.headers):
        return found
    behind, last = batch_at(file, found.end, size), len(found.headers) - 1
    expected = int(found.last_offsets[last - 1]) + 1 if last else next_offset
    if behind is None or not expected <= behind.base_offset <= durable_end:
        return found
    return found.until(last, Fault.OFFSETS) if found.headers["base_offset"][last] > expected else found


# --- single batches ---------------------------------------------------------------------------------


def ends_whole(file: Readable, position: int, end: int) -> bool:
    """Return whether bytes [position, end) are a batch but for its length field. Raises `OSError`."""
    data = file.pread(end - position, position)
    if len(data) < HEADER_BYTES:
        return False
    return bool(crc32c(data[CRC_START:]) == np.frombuffer(data, header_dtype(), 1)["crc"][0])


def batch_at(file: Readable, position: int, end: int) -> Batch | None:
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


def sound_batch(file: Readable, position: int, end: int, lowest_offset: int | None = None) -> Batch | None:
    """Return the batch at byte `position` if its checksum is right and it ends by `end`.

    With `lowest_offset` its offsets must rise from there. Raises `OSError`.
    """
    batch = batch_at(file, position, end)
    return batch if batch is not None and _is_intact(batch, lowest_offset) else None


def find_batch(file: Readable, position: int, end: int, *, lowest_offset: int | None = None) -> int | None:
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
    """Bytes [position, end) without an intact batch. `slot`: the number of the batch after them."""

    position: int
    end: int
    fault: Fault
    slot: int


class Sweep(NamedTuple):
    """The sound batches of a file, in its order: n rows in both: int64 and `header_dtype()`."""

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


def sweep(file: Readable, size: int, position: int = 0) -> Sweep:
    """Find every sound batch in bytes [position, size) of `file`, past every fault.

    Takes the memory of the headers. Raises `OSError`.
    """
    positions: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    headers: list[bytes] = []
    bad: list[Bad] = []
    count = 0
    for piece in swept(file, size, position):
        positions.append(piece.positions)
        headers.append(piece.headers.tobytes())
        bad += [each._replace(slot=count + each.slot) for each in piece.bad]
        count += len(piece.headers)
    table = np.frombuffer(b"".join(headers), header_dtype())
    return Sweep(np.concatenate(positions), table, bad)


def swept(file: Readable, size: int, position: int = 0) -> Iterator[Sweep]:
    """Yield the results of `sweep` in pieces of some megabytes; bad bytes end a piece. Raises `OSError`."""
    window = SWEEP_BYTES
    while position < size:
        data = file.pread(min(window, size - position), position)
        if not data:  # cut by its owner meanwhile
            return
        found = scan_buffer(data, len(data))
        start, position = position, position + found.end
        fault, left = found.fault, len(data) - found.end
        grown = SWEEP_BYTES
        if fault is Fault.TORN:
            whole = LOG_OVERHEAD + _LENGTH.unpack_from(data, found.end)[0] if left >= HEADER_BYTES else 0
            if found.end and position + left < size:
                fault = None  # torn by the window
            elif left < whole <= size - position:
                fault, grown = None, whole
        bad: list[Bad] = []
        if fault is not None:
            end = _next_sound(file, position, size)
            bad.append(Bad(position, end, fault, len(found.headers)))
            position = end
        window = grown
        if len(found.headers) or bad:
            yield Sweep(found.positions + start, found.headers, bad)


def _next_sound(file: Readable, position: int, size: int) -> int:
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
    """Find the batches that are out of place: `OFFSETS` or `EPOCHS`.

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


# --- a segment of a log ----------------------------------------------------------------------------


class Judged(NamedTuple):
    """The result of a step of `judge_segment`: `size` bytes were read, up to byte `position`."""

    size: int
    position: int
    damages: tuple[Damage, ...] = ()


class Expected(NamedTuple):
    """The facts to judge a segment by: base, size, end of its offsets, seal and epoch history."""

    base_offset: int
    size: int
    end_offset: int
    seal: Seal | None = None
    history: Sequence[EpochEntry] = ()


def judge_segment(file: File, expected: Expected, position: int = 0) -> Iterator[Judged]:
    """Compare a segment with its seal, or batch by batch if it has none or differs from it.

    Yields after each step of some megabytes; the last step carries the damages. A sealed segment may be
    judged from byte `position` on. Raises `OSError`.
    """
    seal = expected.seal
    broken: list[tuple[int, int]] = []
    if seal is not None:
        for start, end, is_right in compared_blocks(file, seal, position):
            if not is_right:
                broken.append((start, end))
            yield Judged(end - start, 0 if broken else end)
        if not broken and expected.size == seal.size:
            return
    walk = _SegmentWalk(expected, broken)
    for piece in swept(file, expected.size):
        before = walk.end
        walk.take(piece)
        yield Judged(walk.end - before, 0)
    yield Judged(0, expected.size, walk.damages())


class _SegmentWalk:
    """Finds the stretches of a segment that are not what was written, a piece of it at a time."""

    def __init__(self, expected: Expected, broken: Sequence[tuple[int, int]]) -> None:
        self._expected = expected
        self._name = _log_name(expected.base_offset)
        self._history_starts = np.array([entry.start_offset for entry in expected.history], np.int64)
        self._history_epochs = np.array([entry.epoch for entry in expected.history], np.int64)
        self._broken = {block: (MAX_LONG, -1) for block in broken}
        """Blocks that differ from the seal → the offsets of the sound batches that lie in them."""
        self._damages: list[Damage] = []
        self._open: tuple[int, int, Fault] | None = None
        self._next_offset = expected.base_offset
        self.end = 0

    def take(self, piece: Sweep) -> None:
        """Judge the next batches."""
        bases, lasts = piece.bases, piece.lasts
        faults = self._faults(piece, bases, lasts)
        for bad in piece.bad:
            faults.setdefault(bad.slot, bad.fault)
        sizes = piece.headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
        first = 0
        for slot in sorted(faults):
            self._sound(piece.positions[first:slot], sizes[first:slot], bases[first:slot], lasts[first:slot])
            at = int(piece.positions[slot]) if slot < len(bases) else piece.bad[0].position
            self._open = self._open or (at, self._next_offset, faults[slot])
            first = slot + 1
        self._sound(piece.positions[first:], sizes[first:], bases[first:], lasts[first:])
        self.end = piece.bad[-1].end if piece.bad else int(piece.positions[-1] + sizes[-1])

    def _faults(
        self, piece: Sweep, bases: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
    ) -> dict[int, Fault]:
        """Return the sound batches that are not in their place, by number."""
        faults: dict[int, Fault] = {}
        for wrong in misplaced(piece.headers):
            faults[wrong.slot] = wrong.fault
            if not wrong.is_certain:
                faults.setdefault(wrong.slot - 1, wrong.fault)
        outside = (bases < self._next_offset) | (lasts < bases) | (lasts >= self._expected.end_offset)
        for slot in np.flatnonzero(outside).tolist():
            faults.setdefault(slot, Fault.OFFSETS)
        if len(self._history_starts):
            slots = np.searchsorted(self._history_starts, bases, "right") - 1
            epochs = piece.headers["leader_epoch"]
            wrong = (slots >= 0) & (epochs >= 0) & (self._history_epochs[slots] != epochs)
            for slot in np.flatnonzero(wrong).tolist():
                faults.setdefault(slot, Fault.HISTORY)
        return faults

    def _sound(
        self,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        bases: npt.NDArray[np.int64],
        lasts: npt.NDArray[np.int64],
    ) -> None:
        if not len(bases):
            return
        self._close(int(positions[0]), int(bases[0]))
        self._next_offset = int(lasts[-1]) + 1
        for (start, end), (low, high) in self._broken.items():
            inside = (positions < end) & (positions + sizes > start)
            if inside.any():
                low, high = min(low, int(bases[inside][0])), max(high, int(lasts[inside][-1]) + 1)
                self._broken[start, end] = low, high

    def _close(self, position: int, offset: int) -> None:
        if self._open is None:
            return
        start, first, fault = self._open
        self._open = None
        kind = DamageKind.EPOCH_BACK if fault is Fault.EPOCHS else DamageKind.BAD_BATCH
        self._damages.append(
            Damage(kind, self._name, start, first, fault.value, position - start, position, offset)
        )

    def damages(self) -> tuple[Damage, ...]:
        """Return the damages of the whole segment, by position."""
        expected = self._expected
        end_offset = expected.end_offset if expected.seal is None else expected.seal.end_offset
        if self._open is None and self.end < expected.size:  # it became shorter
            self._open = self.end, self._next_offset, Fault.TORN
        self._close(expected.size, end_offset)
        if expected.seal is not None and expected.size != expected.seal.size:
            kind = DamageKind.SHORTER if expected.size < expected.seal.size else DamageKind.LONGER
            text = f"{expected.size} bytes where {expected.seal.size} were sealed"
            place = expected.size, self._next_offset
            self._damages.append(Damage(kind, self._name, *place, text, 0, expected.size, end_offset))
        for (start, end), (low, high) in self._broken.items():
            if not any(each.position < end and start < each.end_position for each in self._damages):
                text = f"bytes {start} to {end} differ from the sealed content, though every batch is sound"
                self._damages.append(
                    Damage(DamageKind.CHANGED, self._name, start, low, text, end - start, end, high)
                )
        return tuple(sorted(self._damages, key=lambda each: each.position))


def was_rewritten(
    file: File, size: int, seal: Seal, next_base: int, *, is_compacted: bool, times: bytes | None
) -> bool:
    """Return whether another program has rewritten a segment, intact, since it was sealed.

    A seal speaks for the bytes it was made of. If Kafka's cleaner has rewritten the segment since, every
    batch is sound, in order, and below `next_base`, the base of the next segment. A segment that ends lower
    than it was sealed has a gap, too, or its log `is_compacted`: otherwise its end may have been cut off.
    An empty segment, or one whose whole blocks are all as sealed, may be a file that lost its end with the
    power. A cleaner replaces the indexes with the segment, a loss of power does not: `times`, the content of
    the `.timeindex`, decides. Raises `OSError`.
    """
    next_offset = seal.base_offset
    has_gap, end = False, 0
    for found in scan(file, 0, size, base_offset=seal.base_offset):
        if len(found.headers):
            bases = found.headers["base_offset"].astype(np.int64)
            expected = np.concatenate(([next_offset], found.last_offsets[:-1] + 1))
            has_gap = has_gap or bool((bases > expected).any())
            next_offset = int(found.last_offsets[-1]) + 1
        end = found.end
        if found.fault is not None:
            return False
    if end != size or next_offset > next_base:
        return False
    if size == seal.size:
        return is_compacted
    if next_offset >= seal.end_offset:
        return True
    if is_compacted and times is not None and _ends_with(times, seal, next_offset):
        return True
    whole = list(islice(compared_blocks(file, seal), size // seal.block_bytes))
    is_cut = not size or (bool(whole) and all(is_right for _, _, is_right in whole))
    return (is_compacted or has_gap) and not is_cut


def _ends_with(times: bytes, seal: Seal, end_offset: int) -> bool:
    """Return whether a time index is not the sealed one, and ends below `end_offset`."""
    entries = entries_of(times, TimeIndex)
    is_inside = not len(entries) or seal.base_offset + int(entries[-1]["relative_offset"]) < end_offset
    return is_inside and crc32c(times) != seal.times_crc


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


def judge_chain(
    segments: Sequence[Listed],
    seals: Mapping[int, Seal],
    log_start_offset: int,
    is_merged: Callable[[int, int], bool] = lambda gone, following: False,
) -> Chain:
    """Compare each seal with its segment and the next one, oldest first.

    A hole wholly below the log start is not damage: an interrupted deletion leaves it. Nor is one of which
    `is_merged(gone, following)` says that another program compacted it away: no segment with the base `gone`
    is there, and the next base is `following`.
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
            found = following[0].base_offset
            is_gap = found > seal.successor
            if found != seal.successor and not (is_gap and is_merged(seal.successor, found)):
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
