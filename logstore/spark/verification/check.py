"""One replica, a run of whole segments at a time: what is wrong with it, and digests to compare it by.

    segments   ■───■───■ │ ■───■ │ ■───■───■      a run is one piece of work, some hundred megabytes
    stretches  ├────┼────┼────┼────┼────┼──┤      offsets, the same for every replica of the partition

A run is swept: every batch that is sound and where it belongs is *kept*, all else is a *fault*, with the
offsets that it took away. The digest of a stretch is the sum of a hash of each kept header that begins in it.
A header has its batch's checksum in it, which was right; so equal sums are equal batches, but for chance:
two times 64 bits of a sum, and 32 of a checksum where the headers are equal and the records are not. Sums of
parts add up, so a stretch may lie in several runs, and a segment may end in another place in each replica.

The whole of a segment is walked from its first byte; no index has to be believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.checkpoint.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, File
from logstore.errors import CorruptSeal, DamageKind
from logstore.format.batch import DELETE_HORIZON, LOG_OVERHEAD
from logstore.segment.damage import Listed, judge_chain
from logstore.segment.scan import HEADER_DTYPE, Fault
from logstore.segment.seal import Seal, broken_blocks, read_seal
from logstore.segment.segment import file_name
from logstore.segment.sweep import SWEEP_BYTES, Bad, misplaced, sweep
from logstore.spark.verification.planning import Run, SegmentFile

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

GAPS_TOLD: Final = 50


class Kind(StrEnum):
    """What is wrong. The first group is wrong in itself, the second beside the other replicas."""

    CHECKSUM = "checksum"
    GARBAGE = "garbage"
    ORDER = "order"
    FIT = "fit"
    EPOCH = "epoch"
    GAP = "gap"
    SEAL = "seal"
    UNREADABLE = "unreadable"
    TAIL = "tail"
    """being written, or torn by a crash: a note, not a fault"""

    TOPIC = "topic"
    BYTES = "bytes"
    LEADER_EPOCH = "leader-epoch"
    MISSING = "missing"
    BOUNDARIES = "boundaries"
    BEHIND = "behind"
    RECORDS = "records"


class LocalFault(NamedTuple):
    """Something in one file at byte `position`, `size` bytes of it.

    It takes the offsets [offset, end_offset) away, as far as the batches around it tell; one that is in doubt
    takes none, for other replicas may tell which of two batches it is. `epoch` is -1 where no batch says one.
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
        """Whether what lies in its offsets is known to be bad."""
        return not self.is_doubtful and self.kind is not Kind.TAIL


class Kept(NamedTuple):
    """Batches that are sound and in their place, a row each: segment of the run, position, header."""

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
    """A run, looked at. `gone` names segments that their owner deleted meanwhile."""

    kept: Kept
    faults: list[LocalFault]
    gone: list[str] = field(default_factory=list)


class StretchSum(NamedTuple):
    """How many batches begin in a stretch, the two sums of their hashes, and where the first one lies."""

    batches: int
    one: int
    two: int
    base_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run's task tells; `sums` by number of the stretch.

    `end_offset` is behind the last kept batch (-1: there is none), `gaps` are (offset, end, path, position)
    of offsets that nothing holds, the first of `gap_count`.
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
    gaps: tuple[tuple[int, int, str, int], ...]
    gap_count: int
    is_thinned: bool


def check_run(disk: Disk, run: Run) -> RunReport:
    """Do one piece of work. What cannot be read is told as a fault."""
    found = examine(disk, run)
    kept = found.kept
    bases, ends = kept.bases, kept.ends
    counts = kept.headers["record_count"].astype(np.int64)
    below = bases < run.committed
    gaps, gap_count = ([], 0) if run.expects_gaps else _gaps(run, kept, found.faults)
    thinned = (counts != ends - bases) | (kept.headers["attributes"] & DELETE_HORIZON != 0)
    return RunReport(
        replica=run.replica,
        first_base_offset=run.segments[0].base_offset,
        first_offset=int(bases[0]) if len(bases) else -1,
        end_offset=int(ends[-1]) if len(ends) else -1,
        batches=len(bases),
        records=int(counts.sum()),
        size=sum(segment.size for segment in run.segments),
        faults=tuple(found.faults),
        gone=tuple(found.gone),
        sums=stretch_sums(run, kept.among(below)),
        gaps=tuple(gaps),
        gap_count=gap_count,
        is_thinned=bool(thinned.any()),
    )


# --- digests ------------------------------------------------------------------------------------------------


def header_hashes(headers: npt.NDArray[np.void]) -> Words:
    """Two hashes of each header, n × 2: it is eight words, mixed one after the other (as splitmix64)."""
    padded = np.zeros((len(headers), 64), np.uint8)
    padded[:, : HEADER_DTYPE.itemsize] = headers.view(np.uint8).reshape(len(headers), HEADER_DTYPE.itemsize)
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
    """The sum of each of the run's stretches that has batches, by its number."""
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


# --- sweeping a run -----------------------------------------------------------------------------------------


def examine(disk: Disk, run: Run) -> Examined:
    """Sweep the run's segments and judge what is there. What cannot be read is told as a fault."""
    sweeper = _Sweeper(disk, run)
    for number, segment in enumerate(run.segments):
        sweeper.take(number, segment)
    if run.following is not None and not run.last_byte:
        sweeper.peek(run.following)
    return sweeper.judged()


class _Stray(NamedTuple):
    """Bytes that are no batch, in segment `number` of the run; `is_end`: with them the log ends."""

    number: int
    bad: Bad
    is_end: bool


class _Sweeper:
    """The batches of a run end to end, and who of them is where it belongs."""

    def __init__(self, disk: Disk, run: Run) -> None:
        self._disk, self._run = disk, run
        self._paths = [f"{run.directory}/{file_name(each.base_offset, '.log')}" for each in run.segments]
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

    def take(self, number: int, segment: SegmentFile) -> None:
        run, path = self._run, self._paths[number]
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._gone.append(path)
            return
        except OSError as error:
            self._unreadable(path, segment, error)
            return
        try:
            self._sweep(file, number, segment)
            if not run.is_second_look:
                self._check_seal(file, path, segment)
        except OSError as error:
            self._unreadable(path, segment, error)
        finally:
            file.close()

    def _sweep(self, file: File, number: int, segment: SegmentFile) -> None:
        run = self._run
        successors = [*run.segments[number + 1 :], *([run.following] if run.following else [])]
        size = file.size()
        start = run.first_byte if number == 0 else 0
        end = run.last_byte if run.last_byte and number + 1 == len(run.segments) else size
        found = sweep(file, end, start)
        if (start or end < size) and any(bad.position == start or bad.end == end for bad in found.bad):
            end, found = size, sweep(file, size)  # its owner wrote it anew
        bases, lasts = found.bases, found.lasts
        limit = successors[0].base_offset if successors else MAX_LONG
        self._fits.append(
            (bases >= segment.base_offset) & (lasts - segment.base_offset <= MAX_INT) & (lasts < limit)
        )
        for bad in found.bad:
            is_end = bad.end == end == size and not successors
            self._bad.append(_Stray(number, bad._replace(slot=self._count + bad.slot), is_end))
        self._add(number, found.positions, found.headers)

    def _add(self, number: int, positions: Longs, headers: npt.NDArray[np.void]) -> None:
        self._segments.append(np.full(len(positions), number, np.int64))
        self._positions.append(positions)
        self._headers.append(headers.tobytes())
        self._count += len(positions)

    def peek(self, segment: SegmentFile) -> None:
        """The first batches of the segment behind the run: what its last ones are held against."""
        path = f"{self._run.directory}/{file_name(segment.base_offset, '.log')}"
        try:
            file = self._disk.open(path)
            try:
                found = sweep(file, min(SWEEP_BYTES, segment.size))
            finally:
                file.close()
        except OSError:
            return  # told by the run that it is in
        self._fits.append(
            (found.bases >= segment.base_offset) & (found.lasts - segment.base_offset <= MAX_INT)
        )
        self._add(len(self._run.segments), found.positions, found.headers)

    def _check_seal(self, file: File, path: str, segment: SegmentFile) -> None:
        try:
            seal = read_seal(self._disk, self._run.directory, segment.base_offset)
        except CorruptSeal as error:
            self._sealed.append(self._of_seal(path, segment, 0, 0, str(error)))
            return
        if seal is None:
            return
        self._seals[segment.base_offset] = seal
        if file.size() >= seal.size:
            for start, end in broken_blocks(file, seal):
                text = f"bytes to {end} are not what was sealed"
                self._sealed.append(self._of_seal(path, segment, start, end - start, text))

    def _check_chain(self) -> None:
        """What the seals say of the segments' sizes, and of what has to follow each."""
        run = self._run
        listed = [Listed(*each) for each in (*run.segments, *([run.following] if run.following else []))]
        for damage in judge_chain(listed, self._seals, run.log_start_offset).damages:
            is_gone = damage.kind is DamageKind.SEGMENT_GONE
            end = min((base for base, _ in listed if base > damage.offset), default=damage.offset)
            path = f"{run.directory}/{damage.file}"
            self._sealed.append(
                LocalFault(
                    Kind.SEAL, path, damage.position, 0, damage.offset, end, -1, damage.text, not is_gone
                )
            )

    def _of_seal(self, path: str, segment: SegmentFile, position: int, size: int, text: str) -> LocalFault:
        return LocalFault(Kind.SEAL, path, position, size, segment.base_offset, segment.base_offset, -1, text)

    def _unreadable(self, path: str, segment: SegmentFile, error: OSError) -> None:
        following = self._next_base(self._paths.index(path))
        text = f"cannot be read: {error.strerror or error}"
        fault = LocalFault(Kind.UNREADABLE, path, 0, segment.size, segment.base_offset, following, -1, text)
        self._faults.append(fault)

    def _next_base(self, number: int) -> int:
        """Where the segment behind number `number` begins; the end of all offsets behind the last."""
        segments = (*self._run.segments, *([self._run.following] if self._run.following else ()))
        return segments[number + 1].base_offset if number + 1 < len(segments) else MAX_LONG

    # --- judging ----------------------------------------------------------------------------------

    def judged(self) -> Examined:
        run = self._run
        every = Kept(
            np.concatenate(self._segments),
            np.concatenate(self._positions),
            np.frombuffer(b"".join(self._headers), HEADER_DTYPE),
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
        for slot in wrong:
            is_kept[slot] = False
        own = every.segments < len(run.segments)
        slots = np.flatnonzero(is_kept)
        bases, ends = every.bases, every.ends
        self._tell_wrong(every, wrong, slots, bases, ends)
        self._tell_bad(slots, bases, ends)
        self._tell_doubtful(every, doubtful, bases, ends)
        self._check_chain()
        self._faults += self._sealed
        return Examined(every.among(is_kept & own), self._faults, self._gone)

    def _against_history(self, every: Kept, is_kept: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """The batches, by number, that the epoch checkpoint knows another epoch for, and which."""
        run = self._run
        try:
            history = read_leader_epoch_checkpoint(self._disk, run.directory)
        except CorruptCheckpoint as error:
            path = f"{run.directory}/leader-epoch-checkpoint"
            fault = LocalFault(
                Kind.EPOCH, path, 0, 0, run.log_start_offset, run.log_start_offset, -1, str(error)
            )
            self._faults.append(fault)
            return []
        except OSError:
            return []  # the directory went, or its segments cannot be read either
        if not history:
            return []
        starts = np.array([start for _, start in history], np.int64)
        epochs = np.array([epoch for epoch, _ in history], np.int64)
        bases = every.bases
        slots = np.searchsorted(starts, bases, "right") - 1
        written = every.headers["leader_epoch"].astype(np.int64)
        # Behind the high watermark a running owner may cut and write anew while we read.
        judged = is_kept & (slots >= 0) & (written >= 0) & (bases < run.committed)
        wrong = np.flatnonzero(judged & (epochs[np.maximum(slots, 0)] != written))
        return [(slot, int(epochs[slots[slot]])) for slot in wrong.tolist()]

    def _tell_wrong(
        self, every: Kept, wrong: dict[int, tuple[Kind, str]], slots: Longs, bases: Longs, ends: Longs
    ) -> None:
        """One fault for batches that follow each other and have the same wrong with them."""
        previous: tuple[int, LocalFault] | None = None
        for slot in sorted(wrong):
            number = int(every.segments[slot])
            if number >= len(self._run.segments):
                continue
            kind, text = wrong[slot]
            epoch = int(every.headers["leader_epoch"][slot])
            position = int(every.positions[slot])
            size = int(every.headers["batch_length"][slot]) + LOG_OVERHEAD
            if kind is Kind.EPOCH:
                offset, end_offset = int(bases[slot]), int(ends[slot])
            else:
                offset, end_offset = self._window(slot, slot, slots, bases, ends)
            if previous is not None and previous[0] == slot - 1:
                last = previous[1]
                if (last.kind, last.path, last.epoch, last.text) == (kind, self._paths[number], epoch, text):
                    joined = last._replace(
                        size=position + size - last.position, end_offset=max(end_offset, last.end_offset)
                    )
                    self._faults[-1] = joined
                    previous = slot, joined
                    continue
            fault = LocalFault(kind, self._paths[number], position, size, offset, end_offset, epoch, text)
            self._faults.append(fault)
            previous = slot, fault

    def _tell_doubtful(
        self, every: Kept, doubtful: Sequence[tuple[int, int, Fault]], bases: Longs, ends: Longs
    ) -> None:
        """Of two batches that contradict each other either may be wrong: told of the later one."""
        for before, slot, fault in doubtful:
            number = int(every.segments[slot])
            if number < len(self._run.segments):
                position, epoch = int(every.positions[slot]), int(every.headers["leader_epoch"][slot])
                offset, end_offset = int(min(bases[before], bases[slot])), int(max(ends[before], ends[slot]))
                kind = Kind.ORDER if fault is Fault.OFFSETS else Kind.EPOCH
                self._faults.append(
                    LocalFault(
                        kind, self._paths[number], position, 1, offset, end_offset, epoch, fault.value, True
                    )
                )

    def _tell_bad(self, slots: Longs, bases: Longs, ends: Longs) -> None:
        run = self._run
        for number, (position, end, fault, slot), is_end in self._bad:
            offset, end_offset = self._window(slot - 1, slot, slots, bases, ends)
            text = f"{fault.value}; {end - position} bytes to byte {end} are lost"
            kind = Kind.CHECKSUM if fault is Fault.CHECKSUM else Kind.GARBAGE
            if is_end and (fault is Fault.TORN or (MAX_LONG > run.committed <= offset)):
                kind, text = Kind.TAIL, f"{end - position} bytes to the end: {fault.value}"
            self._faults.append(
                LocalFault(kind, self._paths[number], position, end - position, offset, end_offset, -1, text)
            )

    def _window(self, before: int, after: int, slots: Longs, bases: Longs, ends: Longs) -> tuple[int, int]:
        """Offsets between the last kept batch up to number `before` and the first from `after` on."""
        left = int(np.searchsorted(slots, before, "right" if before < after else "left")) - 1
        right = int(np.searchsorted(slots, after, "left" if before < after else "right"))
        start = int(ends[slots[left]]) if left >= 0 else self._run.segments[0].base_offset
        end = int(bases[slots[right]]) if right < len(slots) else self._next_base(len(self._run.segments) - 1)
        return start, max(start, end)


def _gaps(run: Run, kept: Kept, faults: Sequence[LocalFault]) -> tuple[list[tuple[int, int, str, int]], int]:
    """Offsets within the run that neither a batch nor a fault accounts for."""
    bases, ends = kept.bases, kept.ends
    if not len(bases):
        return [], 0
    first = max(run.segments[0].base_offset, run.log_start_offset)
    before = np.maximum(np.concatenate(([first], ends[:-1])), run.log_start_offset)
    told: list[tuple[int, int, str, int]] = []
    count = 0
    for slot in np.flatnonzero(bases > before).tolist():
        start, end = int(before[slot]), int(bases[slot])
        if any(fault.takes and fault.offset < end and start < fault.end_offset for fault in faults):
            continue
        count += 1
        if len(told) < GAPS_TOLD:
            path = f"{run.directory}/{file_name(run.segments[int(kept.segments[slot])].base_offset, '.log')}"
            told.append((start, end, path, int(kept.positions[slot])))
    return told, count
