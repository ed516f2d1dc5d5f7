"""Open the directory of one log: complete interrupted operations, check what may be torn, rebuild the rest.

    leftovers                 removed or completed (`loading.py`)
    N.seal                    compared with its segment and the next one; the last segment's is removed
    N.log                     a segment; from the durable end on, read and checked batch by batch; split,
                              if its offsets do not fit it (`split.py`)
    leader-epoch-checkpoint   compared with the batches (`epoch_check.py`), completed, cut to the log's bounds
    N.snapshot                strays removed, the newest sound one loaded, the rest replayed

After a crash, segments that were not synced may end anywhere and hold zeros or old bytes. The walk keeps the
longest run of whole batches whose checksums, offsets and epochs follow one another. The durable end is the
recovery point, or the end of the last segment with a valid seal if that is higher. Past it, the first batch
that does not fit is a torn tail, which is cut with everything behind it. Below it, the same finding is
damage, and so is a log that ends there: synced bytes are missing. Then nothing is cut, and `DamagedLog` names
the place, unless the loss is accepted. In a directory without a recovery point and without seals, such as a
partition that was copied from a Kafka broker, sound batches behind a bad one make it damage. Removed bytes go
to the loss ledger and to quarantine first (`giving_up.py`).

Every step leaves a directory that this same procedure opens: a crash in the middle costs a repetition.
Accepted batches are synced before the first read: no reader may see a record that the next power cut takes
away.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint
from logstore.config import MAX_INT, MAX_LONG, LogConfig
from logstore.disk.files import Disk, put_in_place, remove_if_exists
from logstore.disk.marks import mark
from logstore.errors import CorruptBatch, CorruptIndex, Damage, DamagedLog, DamageKind
from logstore.log.cursor_file import CURSORS_FILE, CursorFile, load_cursors
from logstore.log.epoch_check import assign_epochs, check_epochs, read_epochs
from logstore.log.giving_up import cut_segments, cut_tail, judge_tail, meet_damage, sound_behind
from logstore.log.loading import (
    Jitter,
    LoadedLog,
    Loading,
    Opening,
    Progress,
    bytes_in,
    clear_leftovers,
    log_end_of,
    offsets_of,
    open_segments,
    segment_at,
)
from logstore.log.losses import Quarantine
from logstore.log.opening_seals import check_blocks, judge_seals, settle_seals
from logstore.log.producer_snapshots import ProducerSnapshots, replay_into
from logstore.log.producer_state import CompletedTransaction
from logstore.log.replacing import leave_out_deleted, split_segment
from logstore.log.tails import Tail
from logstore.segment.damage import Bad, Verdict, check_leap
from logstore.segment.epochs import LeaderEpochCache
from logstore.segment.indexes import OffsetIndex, TimeIndex
from logstore.segment.scan import Fault, check_end, check_history, scan
from logstore.segment.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_name
from logstore.segment.segment_indexes import IndexEntries
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction


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
    recovery_point: int | None,
    log_start_offset: int,
    now_ms: int,
    high_watermark: int = 0,
    first_dirty_offset: int = 0,
    jitter_ms: Jitter = _no_jitter,
    progress: Progress | None = None,
    producer_expiration_ms: int = MAX_LONG,
    closed_at: int | None = None,
    starts_by: int | None = None,
    is_start_certain: bool = True,
    keeps_rest: bool = False,
    changed: Collection[str] = (),
    accept_loss: bool = False,
    is_new: bool = False,
    reads_all: bool = False,
    was_killed: bool = False,
) -> LoadedLog:
    """Open the log in `directory`, which this process has locked.

    `is_clean`: the last owner stopped in order, at log end offset `closed_at`, as far as it is known; since
    then the files `changed`. It had a segment that begins at or below `starts_by`, if this is known; unless
    `is_start_certain`, the epochs must say so too. With `keeps_rest` the segments behind a loss there stay,
    because there is no replica to fetch them from.
    `recovery_point`, `log_start_offset`, `high_watermark` and `first_dirty_offset` come from its checkpoints
    (0 for none); the high watermark only tells how bad a loss is. A `recovery_point` of None: there is no
    checkpoint, so only seals tell what was durable, and without them sound batches behind a bad one.
    Producers that have been idle for `producer_expiration_ms` are forgotten. Raises `OSError`, `DamagedLog`
    if synced batches are gone or changed (no batch was touched then), and `DiskFull` if sound batches must be
    cut and there is no room for them in quarantine. With `accept_loss` the log is cut where the damage
    begins, and the report lists it.
    `is_new`: the directory was just made, and the caller makes it durable with the rest of the new log.
    `was_killed`: the last owner's process ended, and its machine did not. Then every write is there, the last
    one perhaps cut short; any other bad batch is damage, durable or not.
    """
    opening = Opening(
        disk,
        directory,
        config,
        now_ms,
        high_watermark,
        jitter_ms,
        progress or _no_progress,
        producer_expiration_ms,
        accept_loss,
        reads_all=reads_all,
        is_new=is_new,
        was_killed=was_killed,
        log_start_offset=log_start_offset,
        first_dirty_offset=first_dirty_offset,
        starts_by=starts_by,
        is_start_certain=is_start_certain,
        keeps_rest=keeps_rest,
        changed=changed,
    )
    first = _begin(opening)
    try:
        return _recover(first, is_clean, recovery_point, log_start_offset, closed_at)
    except BaseException as error:
        # The next opening may cut files that are mapped here.
        for segment in first.segments.values():
            segment.let_go()
        if not isinstance(error, CorruptBatch):
            raise
        if not accept_loss:  # in a segment that did not have to be read again
            raise DamagedLog(f"{directory}: {error}") from error
    # Once more, reading all of it: the walk finds it again and cuts there.
    again = _begin(opening._replace(reads_all=True))
    return _recover(again, False, recovery_point, log_start_offset, None)


def _begin(opening: Opening) -> Loading:
    loading = Loading(opening)
    clear_leftovers(loading)
    open_segments(loading)
    return loading


def _recover(
    loading: Loading,
    is_clean: bool,
    recovery_point: int | None,
    log_start_offset: int,
    closed_at: int | None,
) -> LoadedLog:
    """Check the segments that need it and settle everything derived from them."""
    epochs_are_sound = read_epochs(loading)
    had_segments = bool(loading.segments)
    durable_end, doubtful = judge_seals(loading, recovery_point, log_start_offset)
    _check_start(loading, durable_end)
    is_clean = is_clean and _tail_is_whole(loading) and closed_at in (None, log_end_of(loading))
    if not (is_clean and closed_at is not None):  # otherwise a digest has just proven the file
        check_epochs(loading, log_start_offset, durable_end, is_clean=is_clean)
    reads_all = loading.opening.reads_all or not epochs_are_sound
    first = first_to_read(
        list(loading.segments), durable_end, doubtful, is_clean=is_clean, reads_all=reads_all
    )
    changed = loading.opening.changed
    if first == len(loading.segments) and any(name.endswith(TRANSACTION_INDEX_SUFFIX) for name in changed):
        first = max(first - 1, 0)  # that of the last segment: others are compared with their seals
    for segment in loading.segments.values()[:first]:
        segment.is_settled = True
    first_base = loading.segments.keys()[first] if first < len(loading.segments) else MAX_LONG
    _recover_unindexed(loading, first)
    _recover_from(loading, first_base, durable_end)
    _check_end(loading, durable_end, log_start_offset)
    log_end_offset = log_end_of(loading)
    if had_segments and log_end_offset < log_start_offset:
        mark("recovery: the log start lies past what is left")
        # The log lost what lies between: nothing below its start may come back. Kept all the
        # same, for the checkpoint that says so may be another log's.
        reason = f"the log start {log_start_offset} lies past the log end"
        cut_segments(loading, list(loading.segments), reason, log_start_offset, durable_end)
    if not loading.segments:
        mark("recovery: not one segment is left")
        remove_if_exists(loading.disk, f"{loading.directory}/{file_name(log_start_offset, LOG_SUFFIX)}")
        loading.segments[log_start_offset] = segment_at(loading, log_start_offset, size=0, is_new=True)
    log_end_offset, first_dirty_offset = log_end_of(loading), loading.opening.first_dirty_offset
    first_base = next(iter(loading.segments))
    if not loading.opening.is_new:
        # It may have been a sealed one, and will be appended to.
        loading.segments.peekitem(-1)[1].make_own()
    start = max(log_start_offset, first_base)
    _settle_epochs(loading, log_end_offset, log_start_offset)
    snapshots = _load_producers(loading, start, log_end_offset)
    settle_seals(loading)
    cursors = _settle_cursors(loading, log_end_offset, is_clean)
    if not loading.opening.is_new:
        loading.disk.sync_dir(loading.directory)
        for segment in loading.segments.values():
            segment.name_is_durable = True
    return LoadedLog(
        segments=loading.segments,
        log_start_offset=start,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if is_clean and had_segments else min(durable_end, log_end_offset),
        epochs=loading.epochs,
        producers=loading.producers,
        snapshots=snapshots,
        quarantine=loading.quarantine,
        cursors=cursors,
        report=loading.report,
        # Past the log end it is of records that are gone.
        first_dirty_offset=first_dirty_offset if first_dirty_offset <= log_end_offset else start,
    )


def _settle_cursors(loading: Loading, log_end_offset: int, is_clean: bool) -> CursorFile:
    if CURSORS_FILE not in loading.files:
        return CursorFile(loading.disk, loading.directory)
    cursors, found = load_cursors(loading.disk, loading.directory, log_end_offset, is_clean=is_clean)
    if found.unreadable:
        loading.report.notes.append(
            f"{CURSORS_FILE}: {len(found.unreadable)} damaged lines were left out, the first is line "
            f"{found.unreadable[0]}; a cursor returns to its commit before, or to the log start"
        )
    if found.unreadable or found.is_torn or cursors.offsets != found.offsets:
        loading.report.rebuilt.append(CURSORS_FILE)
    return cursors


def first_to_read(
    bases: Sequence[int], durable_end: int, doubtful: int, *, is_clean: bool, reads_all: bool
) -> int:
    """Return the number of the first segment that must be read; their number if none must. Pure."""
    if reads_all:
        mark("recovery: every segment is read, its epochs cannot be trusted")
        return 0
    first = len(bases) if is_clean else max(bisect_right(bases, durable_end) - 1, 0)
    return min(first, doubtful)


def _tail_is_whole(loading: Loading) -> bool:
    """Return whether the last segment ends with a whole batch, as a clean stop leaves it.

    Cheap: from the last index entry on. A marker that says clean over a log that is not (a copy,
    a file cut by hand) must not be believed: appends would land behind bytes that are no batch.
    """
    if not loading.segments:
        return True
    segment: Segment = loading.segments.peekitem(-1)[1]
    end = start = segment.indexes.offsets.lookup(segment.indexes.offsets.last_offset).position
    for scanned in scan(segment.log_file, start, segment.size, base_offset=segment.base_offset):
        end = scanned.end
        if scanned.fault is not None:
            return False
    return end == segment.size


def _recover_unindexed(loading: Loading, stop: int) -> None:
    """Read what does not have to be read, where an index is lost that tells more than where to look.

    Of the first `stop` segments, those are one without its offset index (6.2, step 6), one whose
    aborted transactions cannot be read, and one whose offsets may not fit it. All of it was durable, so
    a fault in it is damage.
    """
    bases = list(loading.segments)
    for number, (base_offset, following) in enumerate(zip(bases[:stop], [*bases[1:], 0], strict=False)):
        segment = loading.segments[base_offset]
        unindexed = segment.size and file_name(base_offset, OffsetIndex.suffix) not in loading.files
        # Told without reading, and asked once: what was read gets a seal, which knows where it ends.
        ends_by = segment.seal.end_offset if segment.seal is not None else following
        may_overflow = ends_by - 1 - base_offset > MAX_INT
        if unindexed or may_overflow or not _aborts_are_sound(loading, segment):
            _, was_cut = _recover_segment(
                loading,
                segment,
                next_offset=base_offset,
                durable_end=MAX_LONG,
                total=segment.size,
                later=bases[number + 1 :],
            )
            if was_cut:
                return


def _aborts_are_sound(loading: Loading, segment: Segment) -> bool:
    exists = file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in loading.files
    if segment.seal is None and not exists:
        return True
    try:
        _ = segment.aborts.index
    except CorruptIndex:
        return False
    return True


def _recover_from(loading: Loading, first_base: int, durable_end: int) -> None:
    """Read every segment from `first_base` on; cut at the first fault."""
    todo = [(base, loading.segments[base]) for base in loading.segments.irange(first_base)]
    total = sum(segment.size for _, segment in todo)
    next_offset = todo[0][0] if todo else 0
    for number, (base_offset, segment) in enumerate(todo):
        later = [base for base, _ in todo[number + 1 :]]
        if base_offset < next_offset:
            # It begins inside its predecessor: what it holds was written before a truncation.
            lost = [base_offset, *later]
            # All of them count: the offset that they lie below may be the wrong one.
            behind = sound_behind(loading, None, lost, 0)
            if bytes_in(loading, lost) and (base_offset < durable_end or behind.batches):
                text = f"it begins below offset {next_offset}, where the segment before it ends"
                name = file_name(base_offset, LOG_SUFFIX)
                damage = Damage(DamageKind.OVERLAP, name, 0, base_offset, text, bytes_in(loading, lost))
                meet_damage(loading, damage, behind=behind)
            reason = "it overlaps the segment before it"
            cut_segments(loading, lost, reason, next_offset, durable_end)
            return
        next_offset, was_cut = _recover_segment(
            loading, segment, next_offset=base_offset, durable_end=durable_end, total=total, later=later
        )
        if was_cut:
            return


class _Walked(NamedTuple):
    """A segment's batches that fit, which end at byte `end` and `next_offset`; `fault` lies there."""

    end: int
    next_offset: int
    fault: Fault | None
    epochs: LeaderEpochCache
    indexed: IndexEntries
    has_producers: bool


def _recover_segment(
    loading: Loading,
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
    segment.make_own()
    walked = _walk(loading, segment, next_offset, durable_end, total, later)
    # Where nothing is known to be durable, an offset that leaps is as likely a wrong one.
    is_overflow = walked.fault is Fault.OVERFLOW and loading.knows_durable_end
    if is_overflow and (new := split_segment(loading, segment, later, durable_end)):
        return _recover_parts(loading, new, durable_end, total + segment.size, later)
    if walked.fault is None:
        check_blocks(loading, segment)
    walked.indexed.finish()
    loading.epochs = walked.epochs
    loading.recovered[segment.base_offset] = walked.has_producers
    is_cut = walked.end < segment.size
    if is_cut:
        mark("recovery: a tail is cut")
        tail = Tail(file_name(segment.base_offset, LOG_SUFFIX), segment.log_file, walked.end, segment.size)
        fault, verdict, behind = judge_tail(
            loading, tail, walked.fault or Fault.TORN, walked.next_offset, durable_end, later
        )
        if verdict is Verdict.DAMAGE:
            was_deleted, again = leave_out_deleted(loading, segment, walked.end, walked.next_offset, later)
            if again is not None:
                return _recover_parts(loading, [again], durable_end, total, later)
            if was_deleted:
                return later[0], False
            mark("recovery: damage below what had been synced")
            kind, lost = _KINDS.get(fault, DamageKind.BAD_BATCH), tail.size + bytes_in(loading, later)
            damage = Damage(kind, tail.name, walked.end, walked.next_offset, fault.value, lost)
            meet_damage(loading, damage, behind=behind)
        cut_tail(loading, segment, tail, later, fault.value, walked.next_offset, durable_end)
    suffixes = (OffsetIndex.suffix, TimeIndex.suffix)
    names = {suffix: file_name(segment.base_offset, suffix) for suffix in suffixes}
    if rebuilt := segment.indexes.settle(walked.indexed):
        mark("recovery: an index is built anew")
    loading.report.rebuilt.extend(names[suffix] for suffix in rebuilt)
    # Accepted bytes must be durable before a reader sees them.
    segment.sync_log()
    return walked.next_offset, is_cut


def _recover_parts(
    loading: Loading, parts: list[Segment], durable_end: int, total: int, later: list[int]
) -> tuple[int, bool]:
    """Recover the segments that took the place of one, as `_recover_segment`."""
    next_offset, was_cut = 0, False
    for number, segment in enumerate(parts):
        next_offset, was_cut = _recover_segment(
            loading,
            segment,
            next_offset=segment.base_offset,
            durable_end=durable_end,
            total=total,
            later=[*(other.base_offset for other in parts[number + 1 :]), *later],
        )
        if was_cut:
            break
    return next_offset, was_cut


def _walk(
    loading: Loading, segment: Segment, next_offset: int, durable_end: int, total: int, later: list[int]
) -> _Walked:
    """Read a segment up to the first batch that does not fit. Nothing is changed but the report."""
    found = IndexEntries(segment.base_offset, loading.config.index_interval_bytes)
    fault: Fault | None = None
    end = 0
    has_producers = False
    epochs = loading.epochs.copy()
    is_durable = bool(later) and later[0] < durable_end + (segment.seal is not None)
    for scanned in scan(
        segment.log_file,
        0,
        segment.size,
        base_offset=segment.base_offset,
        leader_epoch=loading.epochs.epoch_for_offset(segment.base_offset - 1),
    ):
        scanned = check_history(
            scanned,
            loading.epochs_on_disk or (),
            next_offset=next_offset,
            # An epoch is in the checkpoint before its first batch is in the log.
            durable_end=durable_end if loading.knows_durable_end else MAX_LONG,
            history_end=durable_end if loading.tail_may_be_torn else MAX_LONG,
            # Only the active segment is never compacted.
            is_dense=loading.knows_durable_end and not later and segment.seal is None,
            log_start_offset=loading.opening.log_start_offset,
        )
        if is_durable:  # or a wrong offset would put all that follows past the durable end
            scanned = check_end(scanned, segment.base_offset, later[0])
        scanned = check_leap(scanned, segment.log_file, segment.size, next_offset, durable_end)
        found.add(scanned)
        has_producers = has_producers or bool((scanned.headers["producer_id"] >= 0).any())
        assign_epochs(epochs, scanned)
        if len(scanned.headers):
            next_offset = int(scanned.last_offsets[-1]) + 1
        loading.report.scanned_bytes += scanned.end - end
        end, fault = scanned.end, scanned.fault
        loading.opening.progress(loading.report.scanned_bytes, total)
        if fault is not None:
            break
    return _Walked(end, next_offset, fault, epochs, found, has_producers)


def _check_start(loading: Loading, durable_end: int) -> None:
    """Report a log whose first segment began lower when it was in use: the ones below it are gone."""
    starts_by = loading.opening.starts_by
    first_base = next(iter(loading.segments), 0)
    if starts_by is None or first_base <= starts_by:
        return
    if not loading.opening.is_start_certain and not is_first_gone(
        first_base, loading.epochs_on_disk or (), loading.quarantine
    ):
        return
    text = f"the log began at or below offset {starts_by}, and its first segment begins at {first_base}"
    name, lost = file_name(starts_by, LOG_SUFFIX), bytes_in(loading, list(loading.segments))
    meet_damage(loading, Damage(DamageKind.SEGMENT_GONE, name, 0, starts_by, text, lost))
    if loading.opening.keeps_rest:
        loading.epochs.truncate_from_start(first_base)  # from now on it begins here
        return
    cut_segments(loading, list(loading.segments), text, starts_by, durable_end)


def is_first_gone(first_base: int, epochs: Sequence[tuple[int, int]], quarantine: Quarantine) -> bool:
    """Return whether the segments below `first_base` are gone from a log that was not closed.

    The log start in its directory is below `first_base`. Its owner moves the log start and the first epoch
    before it deletes a segment. Both must be below: another program, which knows nothing of that log start,
    may have had the directory since. A cut inside the batch of the log start leaves both there, and is in the
    ledger. Raises `OSError`.
    """
    first_epoch = next((start_offset for _, start_offset in epochs), first_base)
    return first_epoch < first_base and all(loss.end_offset != first_base for loss in quarantine.losses())


def _check_end(loading: Loading, durable_end: int, log_start_offset: int) -> None:
    """Report a log that ends below the durable end: it has lost records, even without another fault."""
    end_offset = log_end_of(loading)
    if loading.report.damages or max(end_offset, log_start_offset) >= durable_end:
        return
    name, position = file_name(end_offset, LOG_SUFFIX), 0
    if loading.segments:
        base_offset, segment = loading.segments.peekitem(-1)
        name, position = file_name(base_offset, LOG_SUFFIX), segment.size
    text = f"the log ends here, and everything up to offset {durable_end} was durable"
    meet_damage(loading, Damage(DamageKind.END_LOST, name, position, end_offset, text, 0))


def _settle_epochs(loading: Loading, log_end_offset: int, log_start_offset: int) -> None:
    """Cut the epoch history to the log's bounds: its last writes may have been lost.

    The file is durable with the directory, which is synced before the log is used.

    From the start first: in an empty log that moves the newest epoch up to the log end, where the other
    cut takes it. The other way round the next opening would take it, and two openings were not one.
    """
    holds_older = log_start_offset == log_end_offset and any(each.size for each in loading.segments.values())
    loading.epochs.truncate_from_start(log_start_offset)
    loading.epochs.truncate_from_end(log_end_offset, spare_first=holds_older)
    if loading.epochs.entries != (loading.epochs_on_disk or ()) or loading.epochs_on_disk is None:
        mark("recovery: the epoch checkpoint is written anew")
        data = format_leader_epoch_checkpoint(loading.epochs.entries)
        put_in_place(loading.disk, loading.directory, LEADER_EPOCH_CHECKPOINT, data)


def _load_producers(loading: Loading, log_start_offset: int, log_end_offset: int) -> ProducerSnapshots:
    """The producers' state at the end, from a snapshot and what follows it."""
    bases = list(loading.segments)
    snapshots = ProducerSnapshots(
        loading.disk, loading.directory, offsets_of(loading, SNAPSHOT_SUFFIX).values()
    )
    strays = snapshots.remove_corrupt() if loading.opening.reads_all else []
    strays += snapshots.remove_strays(bases, log_start_offset, log_end_offset)
    if strays:
        mark("recovery: producer snapshots that fit nothing go")
    loading.report.deleted.extend(file_name(offset, SNAPSHOT_SUFFIX) for offset in strays)
    marks = [base for base in bases[-2:] if base > log_start_offset]
    rewritten = [base for base in loading.recovered if loading.recovered[base]]
    # Segments that were read again get a new transaction index, so the replay starts before them.
    at_most = min([log_end_offset, *rewritten])
    if rewritten:
        mark("recovery: producers are read again from a segment that had to be")
        snapshots.remove_above(at_most)
    # Not from the log start on: a transaction may be open since before it, in a batch that is still here.
    loading.producers = snapshots.newest(
        at_most=at_most,
        above=bases[0],
        now_ms=loading.opening.now_ms,
        expiration_ms=loading.opening.producer_expiration_ms,
    )
    for (base_offset, segment), ends_by in zip(
        loading.segments.items(), [*bases[1:], log_end_offset], strict=True
    ):
        if base_offset in marks:
            snapshots.take(loading.producers, base_offset)
        _replay(loading, segment, ends_by)
    loading.producers.remove_expired(loading.opening.now_ms, loading.opening.producer_expiration_ms)
    loading.producers.end_offset = log_end_offset
    if log_end_offset > log_start_offset:
        snapshots.take(loading.producers, log_end_offset)
    return snapshots


def _replay(loading: Loading, segment: Segment, ends_by: int) -> None:
    has_producers = loading.recovered.get(segment.base_offset)
    if has_producers is None:  # not read by this recovery: the snapshot says whether it has to be
        if ends_by > loading.producers.end_offset:
            name, offset = file_name(segment.base_offset, LOG_SUFFIX), segment.base_offset

            def meet(bad: Bad) -> None:
                damage = Damage(DamageKind.BAD_BATCH, name, bad.position, offset, bad.fault.value, 0)
                loading.report.met.append(damage)

            replay_into(loading.producers, segment, on_bad=meet)
        return
    aborted: list[AbortedTransaction] = []

    def note(completed: CompletedTransaction) -> None:
        if (entry := completed.index_entry()) is not None:
            aborted.append(entry)

    if has_producers:
        replay_into(loading.producers, segment, note)
    segment.aborts.replace(aborted)


_KINDS = {Fault.EPOCHS: DamageKind.EPOCH_BACK, Fault.HOLE: DamageKind.HOLE}
