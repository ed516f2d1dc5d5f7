"""Opening the directory of one log: finish what was interrupted, judge what may be torn, repair the rest.

    *.deleted                 removed: they were on their way out
    *.cleaned                 removed: a rewrite that never finished
    *.swap                    all there: the rewrite is completed; else removed
    N.index without N.log     removed
    N.seal                    held against its segment and the next one; the last segment's removed
    N.log                     a segment; from the durable end on, read and checked batch by batch; split,
                              if its offsets do not fit it (`split.py`)
    leader-epoch-checkpoint   completed from the batches, cut to the log's bounds
    N.snapshot                strays removed, the newest sound one loaded, the rest replayed

What a crash can leave: the segments that were not synced may end anywhere and hold zeros or bytes of
another time. The walk keeps the longest run of whole batches whose checksums, offsets and epochs
follow one another. The durable end is the recovery point, or the end of the last segment whose seal
stands if that is higher. Past it the first batch that does not fit is a torn tail, and it is cut with all
that follows. Below it the same finding is damage, and so is a log that ends there: bytes that were once
synced are not there any more. Nothing is cut then; `DamagedLog` says where, unless the loss is accepted.
What is cut is first entered in the loss ledger and kept in quarantine (`losses.py`).

Every step leaves a directory that this same procedure opens: a crash in the middle of it costs a
repetition. What was accepted is synced before the first read is answered (no reader may see a record
that the next power cut takes away). Sources: log-format 6, reliability 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from sortedcontainers import SortedDict

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from logstore.config import MAX_INT, MAX_LONG, LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import TEMPORARY_SUFFIX, DirectoryEntry, Disk, read_small_file, remove_if_exists
from logstore.disk.marks import mark
from logstore.errors import (
    CorruptBatch,
    CorruptIndex,
    CorruptSeal,
    Damage,
    DamagedLog,
    DamageKind,
    DiskFull,
    is_full,
)
from logstore.format.crc import crc32c
from logstore.log.losses import LOST_DIRECTORY, Loss, Quarantine, Survey, Tail, only_zeros, survey
from logstore.log.producer_snapshots import ProducerSnapshots, replay_into
from logstore.log.producer_state import CompletedTransaction, ProducerState
from logstore.segment.damage import Listed, Verdict, judge, judge_chain
from logstore.segment.deleted_files import DELETED_SUFFIX
from logstore.segment.epochs import EpochEntry, LeaderEpochCache
from logstore.segment.indexes import IndexEntries, OffsetIndex, TimeIndex
from logstore.segment.scan import Fault, Scanned, check_history, scan
from logstore.segment.seal import SEAL_SUFFIX, decode_seal, read_seal
from logstore.segment.segment import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    Segment,
    file_name,
)
from logstore.segment.segments import end_offset_of
from logstore.segment.split import find_runs, leaps_over, split
from logstore.segment.swap import CLEANED_SUFFIX, SWAP_SUFFIX, give_names, swap
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes [from_byte, to_byte) of `file` were cut off, because of `reason`."""

    file: str
    from_byte: int
    to_byte: int
    reason: str
    loss_id: int | None = None
    """Its entry in the loss ledger; None if there was nothing in it, or no room for the entry."""


class Split(NamedTuple):
    """A segment `file`, whose offsets did not fit it, became segments at `bases`."""

    file: str
    bases: tuple[int, ...]


@dataclass(slots=True)
class RecoveryReport:
    """What opening the directory did, file names relative to it. `damages` are those that were accepted.

    `unrecorded` are torn ends without a sound batch that were cut on a disk too full to note it.
    """

    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    scanned_bytes: int = 0
    unrecorded: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LoadedLog:
    """A log as it stands on the disk."""

    segments: SortedDict[int, Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: ProducerSnapshots
    quarantine: Quarantine
    report: RecoveryReport


Progress = Callable[[int, int], None]
"""Told bytes judged so far and bytes to judge in all."""


Jitter: TypeAlias = Callable[[int], int]
"""Draws milliseconds from [0, bound); 0 for a bound of 0."""


def _no_jitter(_bound_ms: int) -> int:
    return 0


def _no_progress(_done: int, _total: int) -> None:
    return


def load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    is_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    high_watermark: int = 0,
    jitter_ms: Jitter = _no_jitter,
    progress: Progress | None = None,
    producer_expiration_ms: int = MAX_LONG,
    closed_at: int | None = None,
    accept_loss: bool = False,
) -> LoadedLog:
    """Open the log in `directory`, which this process has locked.

    `is_clean` says that the last owner stopped in order, at log end offset `closed_at` if that is known;
    `recovery_point` and `log_start_offset` are what its checkpoints say (0 for none), and
    `high_watermark`, which only tells how bad a loss is. A producer of a snapshot that has been idle for
    `producer_expiration_ms` is forgotten. Raises `OSError`, `DamagedLog` if batches that were synced are
    gone or changed (no batch was touched then), and `DiskFull` if sound batches have to be cut and there
    is no room to keep them in quarantine. With `accept_loss` the log is cut where the damage begins, and
    the report says so.
    """

    def loader() -> _Loader:
        made = _Loader(disk, directory, config, now_ms, high_watermark, jitter_ms, progress or _no_progress)
        made.producer_expiration_ms, made.accept_loss = producer_expiration_ms, accept_loss
        made.clear_leftovers()
        made.open_segments()
        return made

    first = loader()
    try:
        return first.recover(is_clean, recovery_point, log_start_offset, closed_at)
    except CorruptBatch as error:  # in a segment that did not have to be read again
        if not accept_loss:
            raise DamagedLog(f"{directory}: {error}") from error
    # Once more, reading all of it: the walk finds it again, and cuts there.
    for segment in first.segments.values():
        segment.let_go()
    again = loader()
    again.reads_all = True
    return again.recover(False, recovery_point, log_start_offset, None)


class _Loader:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        now_ms: int,
        high_watermark: int,
        jitter_ms: Jitter,
        progress: Progress,
    ) -> None:
        self.accept_loss = False
        self.reads_all = False
        self.disk = disk
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.high_watermark = high_watermark
        self.quarantine = Quarantine(disk, directory)
        self.jitter_ms = jitter_ms
        self.progress = progress
        self.producer_expiration_ms = MAX_LONG
        self.report = RecoveryReport()
        self.segments: SortedDict[int, Segment] = SortedDict()
        self.files: dict[str, DirectoryEntry] = {}
        self.epochs = LeaderEpochCache()
        self.producers = ProducerState()
        self._epochs_on_disk: tuple[tuple[int, int], ...] | None = None
        self.recovered: dict[int, bool] = {}
        """Segments that were read batch by batch → whether producers wrote in them."""

    # --- leftovers --------------------------------------------------------------------------------

    def clear_leftovers(self) -> None:
        """Finish or undo what the last owner was in the middle of (log-format 6.2, steps 1 to 5)."""
        entries = self._list()
        if any(entry.name == LOST_DIRECTORY for entry in entries):
            self.quarantine.due_ms = self.now_ms
        self._delete(name for name in self.files if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)))
        cleaned = self._offsets_of(CLEANED_SUFFIX)
        if cleaned:
            # Several new segments become `.swap` from the last one down: one that is still `.cleaned`
            # proves that no swap had begun, so its later siblings are unfinished too.
            lowest = min(cleaned.values())
            undone = [name for name, offset in self._offsets_of(SWAP_SUFFIX).items() if offset >= lowest]
            self._delete(undone)
            if undone:
                # Durably, before the proof goes: of a `.swap` that came back alone nobody could tell that
                # it was to be undone.
                self.disk.sync_dir(self.directory)
            self._delete(cleaned)
        self._finish_swap()

    def _list(self) -> list[DirectoryEntry]:
        entries = self.disk.scan(self.directory)
        self.files = {entry.name: entry for entry in entries if not entry.is_directory}
        return entries

    def _finish_swap(self) -> None:
        swaps = self._offsets_of(SWAP_SUFFIX)
        new_logs = {offset: name for name, offset in swaps.items() if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
        if new_logs:
            low = min(new_logs)
            high = max(self._end_of(name, offset) for offset, name in new_logs.items())
            # The olds go durably before the new ones take their names: a power cut between must
            # not leave both (S8).
            self._delete(
                name
                for name in self.files
                if not name.endswith(SWAP_SUFFIX) and low <= _offset_or_none(name) < high
            )
            self.disk.sync_dir(self.directory)
        for base_offset in sorted(set(swaps.values())):
            give_names(self.disk, self.directory, base_offset)
        self.report.renamed.extend((name, name.removesuffix(SWAP_SUFFIX)) for name in sorted(swaps))
        if swaps:
            self._list()

    def _end_of(self, name: str, base_offset: int) -> int:
        file = self.disk.open(f"{self.directory}/{name}")
        end_offset = base_offset
        try:
            for scanned in scan(file, 0, file.size(), base_offset=base_offset):
                if len(scanned.headers):
                    end_offset = int(scanned.last_offsets[-1]) + 1
        finally:
            file.close()
        # Its seal knows better: the last records of what it replaces may have had no heirs.
        seal_name = file_name(base_offset, SEAL_SUFFIX) + SWAP_SUFFIX
        sealed = read_small_file(self.disk, f"{self.directory}/{seal_name}")
        if sealed is not None:
            try:
                end_offset = max(end_offset, decode_seal(sealed, base_offset=base_offset).successor)
            except CorruptSeal:
                pass  # as if there were none
        return end_offset

    def _offsets_of(self, suffix: str) -> dict[str, int]:
        found = {name: offset_in(name) for name in self.files if name.endswith(suffix)}
        return {name: offset for name, offset in found.items() if offset is not None}

    def _delete(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            if remove_if_exists(self.disk, f"{self.directory}/{name}"):
                self.report.deleted.append(name)
            self.files.pop(name, None)

    # --- segments ---------------------------------------------------------------------------------

    def open_segments(self) -> None:
        """Every `.log` is a segment; an index without one is rubbish (step 6)."""
        logs = self._offsets_of(LOG_SUFFIX)
        bases = set(logs.values())
        self._delete(
            name
            for suffix in SEGMENT_SUFFIXES
            for name, offset in self._offsets_of(suffix).items()
            if offset not in bases
        )
        for name, base_offset in sorted(logs.items()):
            entry = self.files[name]
            if entry.size > MAX_INT:
                raise DamagedLog(
                    f"{self.directory}/{name} has {entry.size} bytes; no segment has more than {MAX_INT}, "
                    "because its indexes could not point past that. Nothing was changed"
                )
            self.segments[base_offset] = self._segment(
                base_offset, size=entry.size, modified_ms=entry.modified_ms
            )

    def _segment(self, base_offset: int, *, size: int, modified_ms: int = 0, is_new: bool = False) -> Segment:
        return Segment(
            self.disk,
            self.directory,
            base_offset,
            self.config,
            size=size,
            now_ms=self.now_ms,
            jitter_ms=self.jitter_ms(self.config.longest_jitter_ms),
            is_new=is_new,
            modified_ms=modified_ms,
        )

    # --- recovery ---------------------------------------------------------------------------------

    def recover(
        self, is_clean: bool, recovery_point: int, log_start_offset: int, closed_at: int | None
    ) -> LoadedLog:
        """Judge the segments that need it and settle everything derived from them (6.2 and 6.3)."""
        epochs_are_sound = self._read_epochs()
        had_segments = bool(self.segments)
        durable_end, doubtful = self._judge_seals(recovery_point, log_start_offset)
        is_clean = is_clean and self._tail_is_whole() and closed_at in (None, self._end_offset())
        first = len(self.segments)  # of those that are read in any case
        if not epochs_are_sound or self.reads_all:
            mark("recovery: every segment is read, its epochs cannot be trusted")
            first = 0
        elif not is_clean:
            first = max(self.segments.bisect_right(durable_end) - 1, 0)
        first = min(first, doubtful)
        for segment in self.segments.values()[:first]:
            segment.is_settled = True
        first_base = self.segments.keys()[first] if first < len(self.segments) else MAX_LONG
        self._recover_unindexed(first)
        self._recover_from(first_base, durable_end)
        self._check_end(durable_end, log_start_offset)
        log_end_offset = self._end_offset()
        if had_segments and log_end_offset < log_start_offset:
            mark("recovery: the log start lies past what is left")
            # The log lost what lies between: nothing below its start may come back. Kept all the
            # same, for the checkpoint that says so may be another log's.
            reason = f"the log start {log_start_offset} lies past the log end"
            self._cut_segments(list(self.segments), reason, log_start_offset, durable_end)
            self.epochs.clear()
        if not self.segments:
            mark("recovery: not one segment is left")
            remove_if_exists(self.disk, f"{self.directory}/{file_name(log_start_offset, LOG_SUFFIX)}")
            self.segments[log_start_offset] = self._segment(log_start_offset, size=0, is_new=True)
        log_end_offset = self._end_offset()
        first_base = next(iter(self.segments))
        start = max(log_start_offset, first_base)
        self._settle_epochs(log_end_offset, log_start_offset)
        snapshots = self._load_producers(is_clean, start, log_end_offset)
        self._settle_seals()
        self.disk.sync_dir(self.directory)
        for segment in self.segments.values():
            segment.name_is_durable = True
        return LoadedLog(
            segments=self.segments,
            log_start_offset=start,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset if is_clean and had_segments else min(durable_end, log_end_offset),
            epochs=self.epochs,
            producers=self.producers,
            snapshots=snapshots,
            quarantine=self.quarantine,
            report=self.report,
        )

    def _end_offset(self) -> int:
        return end_offset_of(self.segments.peekitem(-1)[1]) if self.segments else 0

    def _tail_is_whole(self) -> bool:
        """Whether the last segment ends with a whole batch, as a clean stop leaves it.

        Cheap: from the last index entry on. A marker that says clean over a log that is not (a copy,
        a file cut by hand) must not be believed: appends would land behind bytes that are no batch.
        """
        if not self.segments:
            return True
        segment: Segment = self.segments.peekitem(-1)[1]
        end = start = segment.indexes.offsets.lookup(segment.indexes.offsets.last_offset).position
        for scanned in scan(segment.log_file, start, segment.size, base_offset=segment.base_offset):
            end = scanned.end
            if scanned.fault is not None:
                return False
        return end == segment.size

    def _recover_unindexed(self, stop: int) -> None:
        """Read what does not have to be read, where an index is lost that tells more than where to look.

        Of the first `stop` segments, those are one without its offset index (6.2, step 6), one whose
        aborted transactions cannot be read, and one whose offsets may not fit it. All of it was durable, so
        a fault in it is damage.
        """
        bases = list(self.segments)
        for number, (base_offset, following) in enumerate(zip(bases[:stop], [*bases[1:], 0], strict=False)):
            segment = self.segments[base_offset]
            unindexed = segment.size and file_name(base_offset, OffsetIndex.suffix) not in self.files
            # Told without reading, and asked once: what was read gets a seal, which knows where it ends.
            ends_by = segment.seal.end_offset if segment.seal is not None else following
            may_overflow = ends_by - 1 - base_offset > MAX_INT
            if unindexed or may_overflow or not self._aborts_are_sound(segment):
                _, was_cut = self._recover_segment(
                    segment,
                    next_offset=base_offset,
                    durable_end=MAX_LONG,
                    total=segment.size,
                    later=bases[number + 1 :],
                )
                if was_cut:
                    return

    def _aborts_are_sound(self, segment: Segment) -> bool:
        exists = file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in self.files
        if segment.seal is None and not exists:
            return True
        try:
            entries = segment.aborts.index.entries
        except CorruptIndex:
            return False
        if segment.seal is None:
            return True
        return crc32c(b"".join(entry.encode() for entry in entries)) == segment.seal.aborts_crc

    def _recover_from(self, first_base: int, durable_end: int) -> None:
        """Read every segment from the one at `first_base` on; cut at the first fault."""
        todo = [(base, self.segments[base]) for base in self.segments.irange(first_base)]
        total = sum(segment.size for _, segment in todo)
        next_offset = todo[0][0] if todo else 0
        for number, (base_offset, segment) in enumerate(todo):
            later = [base for base, _ in todo[number + 1 :]]
            if base_offset < next_offset:
                # It begins inside its predecessor: what it holds was written before a truncation.
                lost = [base_offset, *later]
                if base_offset < durable_end and self._bytes_in(lost):
                    text = f"it begins below offset {next_offset}, where the segment before it ends"
                    name = file_name(base_offset, LOG_SUFFIX)
                    self._meet(Damage(DamageKind.OVERLAP, name, 0, base_offset, text, self._bytes_in(lost)))
                reason = "it overlaps the segment before it"
                self._cut_segments(lost, reason, next_offset, durable_end)
                return
            next_offset, was_cut = self._recover_segment(
                segment, next_offset=base_offset, durable_end=durable_end, total=total, later=later
            )
            if was_cut:
                return

    def _recover_segment(
        self,
        segment: Segment,
        *,
        next_offset: int,
        durable_end: int,
        total: int,
        later: list[int],
    ) -> tuple[int, bool]:
        """Walk one segment, rebuild its indexes, cut it at a fault; (end offset, whether it was cut).

        `later` are the bases of the segments behind it; they go with what is cut.
        """
        found = IndexEntries(segment.base_offset, self.config.index_interval_bytes)
        fault: Fault | None = None
        end = 0
        has_producers = False
        log_name = file_name(segment.base_offset, LOG_SUFFIX)
        new_epochs = LeaderEpochCache(self.epochs.entries)
        history = [EpochEntry(*entry) for entry in self._epochs_on_disk or ()]
        for scanned in scan(
            segment.log_file,
            0,
            segment.size,
            base_offset=segment.base_offset,
            leader_epoch=self.epochs.epoch_for_offset(segment.base_offset - 1),
        ):
            scanned = check_history(
                scanned,
                history,
                next_offset=next_offset,
                durable_end=durable_end,
                # Only the active segment is never compacted.
                is_dense=not later and segment.seal is None,
            )
            found.add(scanned)
            has_producers = has_producers or bool((scanned.headers["producer_id"] >= 0).any())
            _assign_epochs(new_epochs, scanned)
            if len(scanned.headers):
                next_offset = int(scanned.last_offsets[-1]) + 1
            self.report.scanned_bytes += scanned.end - end
            end, fault = scanned.end, scanned.fault
            self.progress(self.report.scanned_bytes, total)
            if fault is not None:
                break
        if fault is Fault.OVERFLOW and (new := self._split(segment, later, durable_end)):
            was_cut = False
            for number, each in enumerate(new):
                next_offset, was_cut = self._recover_segment(
                    each,
                    next_offset=each.base_offset,
                    durable_end=durable_end,
                    total=total + segment.size,
                    later=[*(other.base_offset for other in new[number + 1 :]), *later],
                )
                if was_cut:
                    break
            return next_offset, was_cut
        found.finish()
        self.epochs = new_epochs
        self.recovered[segment.base_offset] = has_producers
        cut = segment.size - end
        if cut:
            mark("recovery: a tail is cut")
            fault = fault or Fault.TORN
            if judge(fault, is_end=True, below_durable=next_offset < durable_end) is Verdict.DAMAGE:
                mark("recovery: damage below what had been synced")
                kind = _KINDS.get(fault, DamageKind.BAD_BATCH)
                lost = cut + self._bytes_in(later)
                self._meet(Damage(kind, log_name, end, next_offset, fault.value, lost))
            tail = Tail(log_name, segment.log_file, end, segment.size)
            loss_id = self._quarantined(tail, later, fault.value, next_offset, durable_end)
            # Before anything that it speaks of goes.
            segment.unseal()
            self.report.cuts.append(Cut(log_name, end, end + cut, fault.value, loss_id))
            # The last first: were this one cut before them, a crash would leave them behind a hole, and
            # a hole may be meant.
            self._remove_segments(later, "it follows a cut", loss_id)
            segment.log_file.truncate(end)
            segment.size = end
        suffixes = (OffsetIndex.suffix, TimeIndex.suffix)
        names = {suffix: file_name(segment.base_offset, suffix) for suffix in suffixes}
        missing = [suffix for suffix, name in names.items() if name not in self.files]
        if rebuilt := segment.indexes.settle(found, missing):
            mark("recovery: an index is built anew")
        self.report.rebuilt.extend(names[suffix] for suffix in rebuilt)
        # What was accepted must be on the disk before anybody reads it.
        segment.sync_log()
        return next_offset, bool(cut)

    def _split(self, segment: Segment, later: list[int], durable_end: int) -> list[Segment]:
        """Let segments whose offsets fit them take the place of one that grew too long; none for damage."""
        runs = find_runs(segment.log_file, segment.size, segment.base_offset)
        is_dense = not later and segment.seal is None
        if len(runs) < 2 or (is_dense and leaps_over(runs, durable_end)):
            return []
        written = split(self.disk, self.directory, self.config, segment, runs, now_ms=self.now_ms)
        self.disk.sync_dir(self.directory)
        for each in written:
            each.let_go()
        aside = swap(self.disk, self.directory, written, [segment])
        self._list()
        self._delete(path.removeprefix(f"{self.directory}/") for path in aside)
        del self.segments[segment.base_offset]
        for each in written:
            placed = self._segment(each.base_offset, size=each.size, modified_ms=each.modified_ms)
            placed.is_settled = segment.is_settled
            self.segments[each.base_offset] = placed
        bases = tuple(run.base_offset for run in runs)
        self.report.splits.append(Split(file_name(segment.base_offset, LOG_SUFFIX), bases))
        return [self.segments[base] for base in bases]

    # --- damage -------------------------------------------------------------------------------------

    def _meet(self, *damages: Damage) -> None:
        """Go on past damage if its loss is accepted. Raises `DamagedLog`."""
        if not self.accept_loss:
            more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
            raise DamagedLog(
                f"{self.directory}/{damages[0]}{more}. What was durable is gone; nothing was cut. "
                "Fetch the partition from another replica; or give up what lies behind with "
                "`logstore recover --accept-loss`; or, if somebody else rewrote these files and they are as "
                "they should be, say so with `logstore verify --reseal`",
                damages,
            )
        self.report.damages.extend(damages)

    def _bytes_in(self, bases: Iterable[int]) -> int:
        return sum(self.segments[base].size for base in bases)

    def _check_end(self, durable_end: int, log_start_offset: int) -> None:
        """A log that ends below what was durable has lost it, even if nothing else is wrong with it."""
        end_offset = self._end_offset()
        if self.report.damages or max(end_offset, log_start_offset) >= durable_end:
            return
        name, position = file_name(end_offset, LOG_SUFFIX), 0
        if self.segments:
            base_offset, segment = self.segments.peekitem(-1)
            name, position = file_name(base_offset, LOG_SUFFIX), segment.size
        text = f"the log ends here, and everything up to offset {durable_end} was durable"
        self._meet(Damage(DamageKind.END_LOST, name, position, end_offset, text, 0))

    # --- seals --------------------------------------------------------------------------------------

    def _judge_seals(self, recovery_point: int, log_start_offset: int) -> tuple[int, int]:
        """Read every seal and hold it against what is there.

        Returns up to which offset everything was durable, and the number of the first segment that has to
        be read whatever else is known of it.
        """
        for base_offset, segment in self.segments.items():
            if file_name(base_offset, SEAL_SUFFIX) in self.files:
                try:
                    segment.seal = read_seal(self.disk, self.directory, base_offset)
                except CorruptSeal as error:
                    self.report.notes.append(f"{error}; it counts for nothing")
                    self._delete([file_name(base_offset, SEAL_SUFFIX)])
        listed = [Listed(base_offset, segment.size) for base_offset, segment in self.segments.items()]
        seals = {base: segment.seal for base, segment in self.segments.items() if segment.seal is not None}
        chain = judge_chain(listed, seals, log_start_offset)
        durable_end = max(recovery_point, chain.durable_end)
        if not chain.damages:
            self._remove_segments(chain.replaced, "a later segment took its place", None)
            return durable_end, len(self.segments)
        self._meet(*chain.damages)
        base_offset, segment = self.segments.peekitem(chain.whole)
        segment.unseal()
        first = chain.damages[0]
        later = [base for base in self.segments if base > base_offset]
        self._cut_segments(later, first.text, first.offset, durable_end)
        return durable_end, chain.whole

    def _settle_seals(self) -> None:
        """Seal what was read, and is complete, and has no seal; let the last segment have none.

        A seal names the base that really follows: of one whose successor was being replaced that is the
        segment that stayed.
        """
        bases = list(self.segments)
        for base_offset, successor in pairwise(bases):
            segment = self.segments[base_offset]
            if segment.seal is None and base_offset in self.recovered:
                segment.sync_indexes()
                segment.make_seal(end_offset_of(segment), successor)
            else:
                segment.follow_with(successor)
        if bases:
            self.segments[bases[-1]].unseal()

    def _cut_segments(self, bases: list[int], reason: str, end_offset: int, durable_end: int) -> None:
        """Drop whole segments, into quarantine; the log then ends at `end_offset`."""
        loss_id = self._quarantined(None, bases, reason, end_offset, durable_end)
        self._remove_segments(bases, reason, loss_id)

    def _quarantined(
        self, tail: Tail | None, bases: list[int], reason: str, end_offset: int, durable_end: int
    ) -> int | None:
        """Enter what is about to be cut: `tail`, and the segments `bases`; the loss's id.

        None if they are empty or room that was preallocated, or if no room is left to note that bytes
        without a sound batch go.
        """
        moved = [segment for base in bases if (segment := self.segments[base]).size]
        if tail is None and not moved:
            return None
        zeros = tail is not None and not moved and only_zeros(tail.file, tail.from_byte, tail.to_byte)
        if zeros and self.config.preallocate:
            return None  # room that nothing was written to
        counted = survey(tail.file, tail.from_byte, tail.to_byte) if tail else Survey()
        for segment in moved:
            segment.sync_log()
            counted = counted.joined(survey(segment.log_file, 0, segment.size))
        size = sum(segment.size for segment in moved) + (tail.to_byte - tail.from_byte if tail else 0)
        first_offset = min(end_offset, counted.first_offset) if counted.batches else end_offset
        loss = Loss(
            at_ms=self.now_ms,
            who="recovery",
            why=reason,
            first_offset=counted.first_offset if counted.batches else end_offset,
            last_offset=counted.last_offset if counted.batches else end_offset - 1,
            end_offset=end_offset,
            records=counted.records,
            batches=counted.batches,
            size=size,
            epochs=counted.epochs,
            below_high_watermark=first_offset < self.high_watermark,
            below_recovery_point=first_offset < durable_end,
        )
        whole = [(file_name(segment.base_offset, LOG_SUFFIX), segment.size) for segment in moved]
        if zeros:
            mark("recovery: nothing but zeros goes")
            return self._note(replace(loss, not_kept="nothing but zeros"))
        try:
            return self.quarantine.enter(loss, tail=tail, moved=whole).id
        except OSError as error:
            if not is_full(error):
                raise
            if counted.batches or moved:
                raise DiskFull(
                    f"{self.directory}: {counted.records} records from offset {loss.first_offset} on cannot "
                    f"stay ({reason}), and there is no room to keep them in quarantine; they were not "
                    "touched. Make room, then open it again"
                ) from error
        mark("recovery: no room to keep a torn batch")
        return self._note(replace(loss, not_kept="no room"))

    def _note(self, loss: Loss) -> int | None:
        """Enter a loss without a sound batch and without its bytes; None if not even that has room."""
        try:
            return self.quarantine.enter(loss).id
        except OSError as error:
            if not is_full(error):
                raise
            self.report.unrecorded.append(f"{loss.size} bytes at offset {loss.end_offset}: {loss.why}")
            return None

    def _remove_segments(self, bases: list[int], reason: str, loss_id: int | None) -> None:
        """Drop whole segments, newest first and each durably, so that no crash leaves a hole."""
        for base in sorted(bases, reverse=True):
            segment = self.segments.pop(base)
            name = file_name(base, LOG_SUFFIX)
            self.report.cuts.append(Cut(name, 0, segment.size, reason, loss_id=loss_id))
            if loss_id is not None and segment.size:
                self.quarantine.take(loss_id, segment)
                self.report.renamed.append((name, f"{LOST_DIRECTORY}/{loss_id}/{name}"))
            segment.let_go()
            # Also the indexes that this recovery has made: they are not in the list of what was found.
            self._delete(file_name(base, suffix) for suffix in SEGMENT_SUFFIXES)
            self.disk.sync_dir(self.directory)

    # --- epochs -------------------------------------------------------------------------------------

    def _read_epochs(self) -> bool:
        """Take over the epoch file; False if it does not parse, and the batches must tell."""
        try:
            self.epochs = LeaderEpochCache(read_leader_epoch_checkpoint(self.disk, self.directory))
        except CorruptCheckpoint:
            self.report.rebuilt.append(LEADER_EPOCH_CHECKPOINT)
            self.epochs = LeaderEpochCache()
            return False
        self._epochs_on_disk = self.epochs.entries
        return True

    def _settle_epochs(self, log_end_offset: int, log_start_offset: int) -> None:
        """Cut the history to the log's bounds: late writes of it may have been lost (step 8).

        From the start first: in an empty log that moves the newest epoch up to the log end, where the other
        cut takes it. The other way round the next opening would take it, and two openings were not one.
        """
        holds_older = log_start_offset == log_end_offset and any(each.size for each in self.segments.values())
        self.epochs.truncate_from_start(log_start_offset)
        self.epochs.truncate_from_end(log_end_offset, spare_first=holds_older)
        if self.epochs.entries != (self._epochs_on_disk or ()) or self._epochs_on_disk is None:
            mark("recovery: the epoch checkpoint is written anew")
            write_leader_epoch_checkpoint(self.disk, self.directory, self.epochs.entries)

    # --- producers ----------------------------------------------------------------------------------

    def _load_producers(
        self, is_clean: bool, log_start_offset: int, log_end_offset: int
    ) -> ProducerSnapshots:
        """The producers' state at the end, from a snapshot and what follows it (log-format 5.6)."""
        bases = list(self.segments)
        snapshots = ProducerSnapshots(self.disk, self.directory, self._offsets_of(SNAPSHOT_SUFFIX).values())
        strays = snapshots.remove_strays(bases, log_start_offset, log_end_offset)
        if strays:
            mark("recovery: producer snapshots that fit nothing go")
        self.report.deleted.extend(file_name(offset, SNAPSHOT_SUFFIX) for offset in strays)
        marks = [base for base in bases[-2:] if base > log_start_offset]
        if is_clean and not snapshots.offsets and not self.recovered:
            # A directory without snapshots that was closed in order never had a producer worth one.
            mark("recovery: closed in order, and never had a producer")
            self.producers = ProducerState(end_offset=log_end_offset)
            for offset in (*marks, log_end_offset):
                if offset > log_start_offset:
                    snapshots.take(self.producers, offset)
            return snapshots
        rewritten = [base for base in self.recovered if self.recovered[base]]
        # Segments that were read again get a new transaction index, so the replay starts before them.
        at_most = min([log_end_offset, *rewritten])
        if rewritten:
            mark("recovery: producers are read again from a segment that had to be")
            snapshots.remove_above(at_most)
        # Not from the log start on: a transaction may be open since before it, in a batch that is still here.
        self.producers = snapshots.newest(
            at_most=at_most, above=bases[0], now_ms=self.now_ms, expiration_ms=self.producer_expiration_ms
        )
        for (base_offset, segment), ends_by in zip(
            self.segments.items(), [*bases[1:], log_end_offset], strict=True
        ):
            if base_offset in marks:
                snapshots.take(self.producers, base_offset)
            self._replay(segment, ends_by)
        self.producers.end_offset = log_end_offset
        if log_end_offset > log_start_offset:
            snapshots.take(self.producers, log_end_offset)
        return snapshots

    def _replay(self, segment: Segment, ends_by: int) -> None:
        has_producers = self.recovered.get(segment.base_offset)
        if has_producers is None:  # not read by this recovery: the snapshot says whether it has to be
            if ends_by > self.producers.end_offset:
                replay_into(self.producers, segment)
            return
        aborted: list[AbortedTransaction] = []

        def note(completed: CompletedTransaction) -> None:
            if (entry := completed.index_entry()) is not None:
                aborted.append(entry)

        if has_producers:
            replay_into(self.producers, segment, note)
        segment.aborts.replace(aborted)


_KINDS = {Fault.EPOCHS: DamageKind.EPOCH_BACK, Fault.HOLE: DamageKind.HOLE}


def offset_in(name: str) -> int | None:
    """The offset a file is named for: the digits before its first dot; None if there are none."""
    digits = name.split(".", 1)[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def _offset_or_none(name: str) -> int:
    offset = offset_in(name)
    return -1 if offset is None else offset


def _assign_epochs(epochs: LeaderEpochCache, scanned: Scanned) -> None:
    column = scanned.headers["leader_epoch"]
    if not len(column):
        return
    latest = epochs.latest_epoch
    if int(column.max()) <= latest:
        return
    previous = latest
    values, bases = column.tolist(), scanned.headers["base_offset"]
    for slot, epoch in enumerate(values):
        if epoch > previous:
            epochs.assign(epoch, int(bases[slot]))
            previous = epoch
