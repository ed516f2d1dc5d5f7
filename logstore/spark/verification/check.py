"""Check one replica, a run of whole segments at a time: find its faults, and digest it for comparison.

    segments   ■───■───■ │ ■───■ │ ■───■───■      a run is one task, some hundred megabytes
    stretches  ├────┼────┼────┼────┼────┼──┤      offsets, the same for every replica of the partition

A batch that is sound and belongs where it is is *kept*. All other bytes are a *fault*, with the offsets that
are lost by it. The digest of a stretch is the sum of a hash of each kept header that begins in it. A header
contains its batch's checksum, which was checked. So equal sums mean equal batches, except by chance: twice 64
bits of a sum, and the 32 bits of a checksum if headers are equal and records are not. Sums of parts add up,
so a stretch may span several runs, and replicas may end their segments at different offsets.

Segments are read from their first byte, without indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.checkpoint.entry_files import read_leader_epoch_checkpoint
from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, File, read_small_file
from logstore.errors import CorruptSeal, DamageKind
from logstore.format.batch import DELETE_HORIZON, HEADER_BYTES, LOG_OVERHEAD
from logstore.log.epoch_check import judged_history
from logstore.log.tails import only_zeros
from logstore.segment.damage import (
    SWEEP_BYTES,
    Bad,
    Listed,
    Sweep,
    Verdict,
    judge,
    judge_chain,
    misplaced,
    sweep,
    was_rewritten,
)
from logstore.segment.indexes import TimeIndex
from logstore.segment.scan import Fault, header_dtype
from logstore.segment.seal import Seal, broken_blocks, read_seal
from logstore.segment.segment import file_name
from logstore.spark.directory_files import SegmentSize
from logstore.spark.verification.planning import Run

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_Gap = tuple[int, int, str, int]

GAPS_REPORTED: Final = 50


class Kind(StrEnum):
    """The kind of a fault: first those of one replica, then differences between replicas."""

    CHECKSUM = "checksum"
    GARBAGE = "garbage"
    ORDER = "order"
    FIT = "fit"
    EPOCH = "epoch"
    GAP = "gap"
    SEAL = "seal"
    UNREADABLE = "unreadable"
    TAIL = "tail"
    """being written, or torn by a crash; reported as a note"""

    TOPIC = "topic"
    BYTES = "bytes"
    LEADER_EPOCH = "leader-epoch"
    MISSING = "missing"
    BOUNDARIES = "boundaries"
    BEHIND = "behind"
    RECORDS = "records"


class LocalFault(NamedTuple):
    """A fault in one file: `size` bytes at byte `position`.

    The offsets [offset, end_offset) are lost, judging by the batches around it. A doubtful fault loses none,
    because other replicas may show which of two batches is wrong. `epoch` is -1 if no batch has one.
    """

    kind: Kind
    path: str
    position: int
    size: int
    offset: int
    end_offset: int
    epoch: int
    text: str
    is_doubtful: bool = False

    @property
    def takes(self) -> bool:
        """Whether its offsets are known to be lost."""
        return not self.is_doubtful and self.kind is not Kind.TAIL


class Kept(NamedTuple):
    """Batches that are sound and in their place: segment of the run, position and header of each."""

    segments: Longs
    positions: Longs
    headers: npt.NDArray[np.void]

    @property
    def bases(self) -> Longs:
        bases: Longs = self.headers["base_offset"].astype(np.int64)
        return bases

    @property
    def ends(self) -> Longs:
        ends = self.bases + 1
        ends += self.headers["last_offset_delta"]
        return ends

    def among(self, mask: npt.NDArray[np.bool_]) -> Kept:
        return Kept(self.segments[mask], self.positions[mask], self.headers[mask])


@dataclass(slots=True)
class Examined:
    """The result of reading a run. `gone` names segments that their owner deleted meanwhile."""

    kept: Kept
    faults: list[LocalFault]
    gone: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[tuple[int, int]]:
        """The ranges of offsets [start, end) that are known to be lost."""
        return [(fault.offset, fault.end_offset) for fault in self.faults if fault.takes]


class StretchSum(NamedTuple):
    """The batches that begin in a stretch: their number, the two sums of their hashes, the first place."""

    batches: int
    one: int
    two: int
    base_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run's task; `sums` by number of the stretch.

    `end_offset` is the end of the last kept batch, -1 if there is none. `gaps` are (offset, end, path,
    position) of offsets without a batch: the first `GAPS_REPORTED` of `gap_count`.
    """

    replica: int
    first_base_offset: int
    first_offset: int
    end_offset: int
    batches: int
    records: int
    size: int
    faults: tuple[LocalFault, ...]
    gone: tuple[str, ...]
    sums: dict[int, StretchSum]
    gaps: tuple[_Gap, ...]
    gap_count: int
    is_thinned: bool


def check_run(disk: Disk, run: Run) -> RunReport:
    """Check a run. An I/O error becomes a fault."""
    found = examine(disk, run)
    kept = found.kept
    bases, ends = kept.bases, kept.ends
    counts = kept.headers["record_count"].astype(np.int64)
    below = bases < run.committed
    gaps, gap_count = ([], 0) if run.expects_gaps else _gaps(run, kept, found.lost)
    thinned = (counts != ends - bases) | (kept.headers["attributes"] & DELETE_HORIZON != 0)
    return RunReport(
        replica=run.replica,
        first_base_offset=run.segments[0].base_offset,
        first_offset=int(bases[0]) if len(bases) else -1,
        end_offset=int(ends[-1]) if len(ends) else -1,
        batches=len(bases),
        records=int(counts.sum()),
        size=run.size,
        faults=tuple(found.faults),
        gone=tuple(found.gone),
        sums=stretch_sums(run, kept.among(below)),
        gaps=tuple(gaps),
        gap_count=gap_count,
        is_thinned=bool(thinned.any()),
    )


# --- digests ------------------------------------------------------------------------------------------------


def header_hashes(headers: npt.NDArray[np.void]) -> Words:
    """Return two hashes of each header, n × 2: its eight words mixed in turn, as in splitmix64."""
    padded = np.zeros((len(headers), 64), np.uint8)
    padded[:, :HEADER_BYTES] = headers.view(np.uint8).reshape(len(headers), HEADER_BYTES)
    words = padded.view(np.uint64)
    hashes = np.empty((len(headers), 2), np.uint64)
    for column, seed in enumerate((0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)):
        mixed = np.full(len(headers), seed, np.uint64)
        for word in range(8):
            mixed ^= words[:, word]
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            mixed += np.uint64(seed)
        hashes[:, column] = mixed
    return hashes


def stretch_sums(run: Run, kept: Kept) -> dict[int, StretchSum]:
    """Return the sum of each stretch of the run that has batches, by its number."""
    if not len(kept.headers) or not run.cuts:
        return {}
    stretches = np.searchsorted(np.array(run.cuts, np.int64), kept.bases, "right") - 1
    firsts = np.flatnonzero(np.diff(stretches, prepend=-2))
    sums = np.add.reduceat(header_hashes(kept.headers), firsts, axis=0)
    counts = np.diff(np.append(firsts, len(stretches)))
    return {
        int(stretches[first]): StretchSum(
            int(count),
            int(one),
            int(two),
            run.segments[int(kept.segments[first])].base_offset,
            int(kept.positions[first]),
        )
        for first, count, (one, two) in zip(firsts.tolist(), counts, sums, strict=True)
        if stretches[first] >= 0
    }


# --- reading a run ------------------------------------------------------------------------------------------


def examine(disk: Disk, run: Run) -> Examined:
    """Read the run's segments and judge their batches. An I/O error becomes a fault."""
    sweeper = _Sweeper(disk, run)
    for number, segment in enumerate(run.segments):
        sweeper.take(number, segment)
    if run.following is not None and not run.last_byte:
        sweeper.peek(run.following)
    return sweeper.judged()


class _Stray(NamedTuple):
    """Bytes that are not a sound batch, in segment `number` of the run; `is_end`: they end the log."""

    number: int
    bad: Bad
    is_end: bool


class _Sweeper:
    """Reads the batches of a run, end to end, and judges which of them belong where they are."""

    def __init__(self, disk: Disk, run: Run) -> None:
        self._disk, self._run = disk, run
        self._listed = (*run.segments, *((run.following,) if run.following else ()))
        self._paths = [f"{run.directory}/{file_name(each.base_offset, '.log')}" for each in self._listed]
        self._segments: list[Longs] = [np.empty(0, np.int64)]
        self._positions: list[Longs] = [np.empty(0, np.int64)]
        self._headers: list[bytes] = []
        self._fits: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
        self._bad: list[_Stray] = []
        self._faults: list[LocalFault] = []
        self._sealed: list[LocalFault] = []
        self._seals: dict[int, Seal] = {}
        self._gone: list[str] = []
        self._count = 0

    def take(self, number: int, segment: SegmentSize) -> None:
        """Read a segment. An I/O error becomes a fault."""
        path = self._paths[number]
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._gone.append(path)
            return
        except OSError as error:
            self._unreadable(number, segment, error)
            return
        try:
            self._sweep(file, number, segment)
            if not self._run.is_second_look:
                self._check_seal(file, number, segment)
        except OSError as error:
            self._unreadable(number, segment, error)
        finally:
            file.close()

    def _sweep(self, file: File, number: int, segment: SegmentSize) -> None:
        run = self._run
        size = file.size()
        start = run.first_byte if number == 0 else 0
        end = run.last_byte if run.last_byte and number + 1 == len(run.segments) else size
        found = sweep(file, end, start)
        if (start or end < size) and any(bad.position == start or bad.end == end for bad in found.bad):
            end, found = size, sweep(file, size)  # its owner rewrote it
        is_last = number + 1 == len(self._listed)
        for bad in found.bad:
            is_end = bad.end == end == size and is_last
            if is_end and bad.fault is Fault.SIZE and only_zeros(file, bad.position, size):
                bad = bad._replace(fault=Fault.ZEROS)
            self._bad.append(_Stray(number, bad._replace(slot=self._count + bad.slot), is_end))
        self._add(number, segment, found, self._next_base(number))

    def _add(self, number: int, segment: SegmentSize, found: Sweep, limit: int) -> None:
        """Add the sound batches of a segment; those fit whose offsets lie in it, below `limit`."""
        bases, lasts = found.bases, found.lasts
        fits = (bases >= segment.base_offset) & (lasts - segment.base_offset <= MAX_INT) & (lasts < limit)
        self._fits.append(fits)
        self._segments.append(np.full(len(found.positions), number, np.int64))
        self._positions.append(found.positions)
        self._headers.append(found.headers.tobytes())
        self._count += len(found.positions)

    def peek(self, segment: SegmentSize) -> None:
        """Read the first batches after the run, to compare its last ones with."""
        try:
            with closing(self._disk.open(self._paths[-1])) as file:
                found = sweep(file, min(SWEEP_BYTES, segment.size))
        except OSError:
            return  # reported by the run that has this segment
        self._add(len(self._run.segments), segment, found, MAX_LONG)

    def _next_base(self, number: int) -> int:
        """Return the base offset of the segment after `number`; the largest offset after the last one."""
        return self._listed[number + 1].base_offset if number + 1 < len(self._listed) else MAX_LONG

    def _unreadable(self, number: int, segment: SegmentSize, error: OSError) -> None:
        text = f"unreadable: {error.strerror or error}"
        offsets, path = (segment.base_offset, self._next_base(number)), self._paths[number]
        self._faults.append(LocalFault(Kind.UNREADABLE, path, 0, segment.size, *offsets, -1, text))

    # --- seals ------------------------------------------------------------------------------------

    def _check_seal(self, file: File, number: int, segment: SegmentSize) -> None:
        base = segment.base_offset

        def broken(start: int, size: int, text: str) -> None:
            self._sealed.append(LocalFault(Kind.SEAL, self._paths[number], start, size, base, base, -1, text))

        try:
            seal = read_seal(self._disk, self._run.directory, base)
        except CorruptSeal as error:
            if not error.is_unfinished:
                broken(0, 0, str(error))
            return
        if seal is None:
            return
        size = file.size()
        blocks = list(broken_blocks(file, seal)) if size >= seal.size else []
        if (blocks or size != seal.size) and self._was_rewritten(file, size, number, seal):
            return
        self._seals[base] = seal
        for start, end in blocks:
            broken(start, end - start, f"bytes up to {end} differ from those that were sealed")

    def _was_rewritten(self, file: File, size: int, number: int, seal: Seal) -> bool:
        """Return whether another program has compacted the segment since it was sealed, as `verify` does."""
        following = self._next_base(number)
        if size > seal.size and following == MAX_LONG:
            return False
        path = f"{self._run.directory}/{file_name(seal.base_offset, TimeIndex.suffix)}"
        times = read_small_file(self._disk, path)
        return was_rewritten(file, size, seal, following, is_compacted=self._run.expects_gaps, times=times)

    def _check_chain(self) -> None:
        """Compare the seals with the segments' sizes, and with the segments that follow."""
        listed = [Listed(*each) for each in self._listed]
        for damage in judge_chain(listed, self._seals, self._run.log_start_offset).damages:
            end = min((base for base, _ in listed if base > damage.offset), default=damage.offset)
            path, offset = f"{self._run.directory}/{damage.file}", damage.offset
            is_doubtful = damage.kind is not DamageKind.SEGMENT_GONE
            fault = LocalFault(Kind.SEAL, path, damage.position, 0, offset, end, -1, damage.text, is_doubtful)
            self._sealed.append(fault)

    # --- judging ----------------------------------------------------------------------------------

    def judged(self) -> Examined:
        """Judge all batches together."""
        every = Kept(
            np.concatenate(self._segments),
            np.concatenate(self._positions),
            np.frombuffer(b"".join(self._headers), header_dtype()),
        )
        is_kept = np.concatenate(self._fits)
        wrong: dict[int, tuple[Kind, str]] = {
            slot: (Kind.FIT, Fault.OVERFLOW.value) for slot in np.flatnonzero(~is_kept).tolist()
        }
        slots = np.flatnonzero(is_kept)
        doubtful: list[tuple[int, int, Fault]] = []
        for at, fault, is_certain in misplaced(every.headers[slots]):
            slot = int(slots[at])
            if is_certain:
                wrong[slot] = (Kind.ORDER if fault is Fault.OFFSETS else Kind.EPOCH, fault.value)
                is_kept[slot] = False
            else:
                doubtful.append((int(slots[at - 1]), slot, fault))
        for slot, expected in self._against_history(every, is_kept):
            wrong[slot] = (Kind.EPOCH, f"{Fault.HISTORY.value}: {expected}")
            is_kept[slot] = False
        slots = np.flatnonzero(is_kept)
        bases, ends = every.bases, every.ends
        self._report_wrong(every, wrong, slots, bases, ends)
        self._report_bad(slots, bases, ends)
        self._report_doubtful(every, doubtful, bases, ends)
        self._check_chain()
        own = every.segments < len(self._run.segments)
        return Examined(every.among(is_kept & own), [*self._faults, *self._sealed], self._gone)

    def _against_history(self, every: Kept, is_kept: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return the slots of batches with another epoch than the epoch checkpoint has, and that epoch."""
        run, text = self._run, ""
        try:
            history: Sequence[tuple[int, int]] = read_leader_epoch_checkpoint(self._disk, run.directory)
            wrong = self._unlike(every, is_kept, history)
            if len(wrong) > 1:  # then the file may be
                history, text = judged_history(self._disk, run.directory)
                wrong = self._unlike(every, is_kept, history)
        except CorruptCheckpoint as error:
            wrong, text = [], str(error)
        except OSError:
            return []  # the directory is gone, or its segments are unreadable too
        if text:
            path, start = f"{run.directory}/leader-epoch-checkpoint", run.log_start_offset
            self._faults.append(LocalFault(Kind.EPOCH, path, 0, 0, start, start, -1, text))
        return wrong

    def _unlike(
        self, every: Kept, is_kept: npt.NDArray[np.bool_], history: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        if not history:
            return []
        starts = np.array([start for _, start in history], np.int64)
        epochs = np.array([epoch for epoch, _ in history], np.int64)
        bases = every.bases
        slots = np.searchsorted(starts, bases, "right") - 1
        written = every.headers["leader_epoch"].astype(np.int64)
        # Above the high watermark a running owner may truncate and rewrite while we read.
        judged = is_kept & (slots >= 0) & (written >= 0) & (bases < self._run.committed)
        wrong = np.flatnonzero(judged & (epochs[np.maximum(slots, 0)] != written))
        return [(slot, int(epochs[slots[slot]])) for slot in wrong.tolist()]

    def _report_wrong(
        self, every: Kept, wrong: dict[int, tuple[Kind, str]], slots: Longs, bases: Longs, ends: Longs
    ) -> None:
        """Report batches in the wrong place; neighbours with the same fault are one fault."""
        previous = -2
        for slot in sorted(wrong):
            number = int(every.segments[slot])
            if number >= len(self._run.segments):
                continue
            kind, text = wrong[slot]
            epoch = int(every.headers["leader_epoch"][slot])
            position = int(every.positions[slot])
            size = int(every.headers["batch_length"][slot]) + LOG_OVERHEAD
            if kind is Kind.EPOCH:
                window = int(bases[slot]), int(ends[slot])
            else:
                window = self._window(slot, slot, slots, bases, ends)
            fault = LocalFault(kind, self._paths[number], position, size, *window, epoch, text)
            last = self._faults[-1] if previous == slot - 1 else None
            if last and (last.kind, last.path, last.epoch, last.text) == (kind, fault.path, epoch, text):
                self._faults[-1] = last._replace(
                    size=position + size - last.position, end_offset=max(fault.end_offset, last.end_offset)
                )
            else:
                self._faults.append(fault)
            previous = slot

    def _report_doubtful(
        self, every: Kept, doubtful: Sequence[tuple[int, int, Fault]], bases: Longs, ends: Longs
    ) -> None:
        """Report pairs of batches that contradict each other, at the later one: either may be wrong."""
        for before, slot, fault in doubtful:
            number = int(every.segments[slot])
            if number < len(self._run.segments):
                position, epoch = int(every.positions[slot]), int(every.headers["leader_epoch"][slot])
                window = int(min(bases[before], bases[slot])), int(max(ends[before], ends[slot]))
                kind = Kind.ORDER if fault is Fault.OFFSETS else Kind.EPOCH
                self._faults.append(
                    LocalFault(kind, self._paths[number], position, 1, *window, epoch, fault.value, True)
                )

    def _report_bad(self, slots: Longs, bases: Longs, ends: Longs) -> None:
        """Report bytes that are not a sound batch."""
        committed = self._run.committed
        for number, (position, end, fault, slot), is_end in self._bad:
            window = self._window(slot - 1, slot, slots, bases, ends)
            text = f"{fault.value}; {end - position} bytes up to byte {end} are lost"
            kind = Kind.CHECKSUM if fault is Fault.CHECKSUM else Kind.GARBAGE
            # Without a high watermark, and for what a crash leaves, only the bytes themselves decide.
            is_unknown = fault in (Fault.TORN, Fault.ZEROS) or committed == MAX_LONG
            below_durable = None if is_unknown else window[0] < committed
            if judge(fault, is_end=is_end, below_durable=below_durable) is Verdict.TORN_TAIL:
                kind, text = Kind.TAIL, f"{end - position} bytes to the end: {fault.value}"
            self._faults.append(
                LocalFault(kind, self._paths[number], position, end - position, *window, -1, text)
            )

    def _window(self, before: int, after: int, slots: Longs, bases: Longs, ends: Longs) -> tuple[int, int]:
        """Return the offsets between the last kept batch up to slot `before` and the next from `after`."""
        left = int(np.searchsorted(slots, before, "right" if before < after else "left")) - 1
        right = int(np.searchsorted(slots, after, "left" if before < after else "right"))
        start = int(ends[slots[left]]) if left >= 0 else self._run.segments[0].base_offset
        end = int(bases[slots[right]]) if right < len(slots) else self._next_base(len(self._run.segments) - 1)
        return start, max(start, end)


def _gaps(run: Run, kept: Kept, lost: Sequence[tuple[int, int]]) -> tuple[list[_Gap], int]:
    """Return the offsets within the run that neither a batch nor a fault covers, and their number."""
    bases, ends = kept.bases, kept.ends
    if not len(bases):
        return [], 0
    first = max(run.segments[0].base_offset, run.log_start_offset)
    before = np.maximum(np.concatenate(([first], ends[:-1])), run.log_start_offset)
    reported: list[_Gap] = []
    count = 0
    for slot in np.flatnonzero(bases > before).tolist():
        start, end = int(before[slot]), int(bases[slot])
        if any(first < end and start < last for first, last in lost):
            continue
        count += 1
        if len(reported) < GAPS_REPORTED:
            reported.append((start, end, run.path(int(kept.segments[slot])), int(kept.positions[slot])))
    return reported, count
