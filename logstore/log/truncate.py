"""Truncate a log, or restart it at another offset; the removed bytes go to quarantine first.

    enter the loss in the ledger → copy or move the bytes → lower the recovery point → delete later segments
    → cut the last one → note in the ledger that it is done → rebuild the producer state → forget epochs

Each step is durable before the next one starts. After a crash between any two of them the log opens with its
old content or a prefix of it, and the missing part lies in quarantine. These are rules S4 and S5 of the
page docs/durability.md.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from functools import partial

from logstore.disk.marks import mark
from logstore.errors import CorruptBatch, OutOfResources
from logstore.log.derived import check_aborts, rebuild_producers
from logstore.log.interrupts import changing
from logstore.log.losses import Loss, Who
from logstore.log.partition_log import PartitionLog, is_dense
from logstore.log.tails import Survey, Tail, survey
from logstore.segment.cutting import CutPlace, place_of_cut, truncate_segment
from logstore.segment.epochs import LeaderEpochCache
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name
from logstore.segment.segments import Segments, last_before


def truncate_to(log: PartitionLog, offset: int, *, why: str = "its owner cut it") -> bool:
    """Remove everything at or past `offset`, which becomes the log end; False if nothing was there.

    The batch that holds `offset` goes as a whole, so some records below it may go too. Damaged bytes in front
    of the cut stay, as damage of the offsets up to it (`log.met`). The removed records are entered in the
    loss ledger with `why` and kept in quarantine. Durable when it returns. Even if no record goes, epochs
    that start at the log end are forgotten: their leader has written nothing. Raises `ValueError` for a
    negative offset, `DiskFull` with nothing changed if there is no room in quarantine, and `LogDirOffline`.
    """
    if offset < 0:
        raise ValueError(f"cannot truncate to offset {offset}")
    with log.group_commit.exclusive(), changing(log, "a truncation"):
        log.stretch = None
        if offset >= log.log_end_offset:
            mark("truncation: at the end, epochs without a batch go")
            _forget_epochs_from(log, log.log_end_offset)
            return False
        if offset < max(log.log_start_offset, log.segments.first.base_offset):
            # Nothing left would be served, and records below the log start are no history to continue.
            mark("truncation: below the log start, the log begins anew")
            _restart_at(log, offset, why)
            return True
        if offset < log.segments.active.base_offset:
            mark("truncation: whole segments go")
            log.generation += 1
        floor = log.segments.floor(offset)
        assert floor is not None, f"{log!r}: no segment at or below {offset}"
        log.guarded(floor.make_own)
        log.rebuilt += log.guarded(lambda: check_aborts(log, floor, log.cuts))
        place = log.guarded(lambda: _place_of(log, floor, offset))
        loss = log.guarded(lambda: _keep_from(log, floor, place, offset, why))
        # Lowered durably before a byte goes: after a crash, new bytes at these offsets must not count as
        # synced or committed because the old ones did; and a log that ends below its recovery point has
        # lost records.
        end_offset = offset if place.is_across else place.end_offset
        log.lower_bounds(end_offset)
        # The batch that holds `offset` goes as a whole: readers must not meet it while it goes.
        log.log_end_offset = min(offset, max(end_offset, log.log_start_offset))
        # Readers of committed data wait: an abort marker may go while its records stay, undecided then.
        log.producer_state.end_offset = log.log_start_offset
        log.or_offline(lambda: _cut(log, floor, place, offset, loss))
        log.log_end_offset = offset
        _move_readers(log, end_offset)
        rebuild_producers(log, offset)
        log.met += place.damages
        if end_offset < offset or place.is_across:
            _begin_past_a_gap(log, offset, end_offset)
        # Last, because a full disk may refuse it: the same call again then does the rest.
        _forget_epochs_from(log, offset)
        if offset > log.log_start_offset:
            log.guarded(lambda: log.snapshots.take(log.producer_state, offset))
        return True


def truncate_fully_and_start_at(
    log: PartitionLog, offset: int, *, why: str = "its owner started it anew"
) -> None:
    """Remove everything and restart the log, empty, at `offset`. Durable when it returns.

    The removed records are entered in the loss ledger with `why`. Segments that hold anything at or past
    `offset` go to quarantine; those below it are only noted: a follower restarts above its end because its
    leader has deleted the records below. Raises `ValueError` for a negative offset, `DiskFull` with nothing
    changed if there is no room for the entry, and `LogDirOffline`.
    """
    if offset < 0:
        raise ValueError(f"cannot start at offset {offset}")
    with log.group_commit.exclusive(), changing(log, "a restart of the log"):
        _restart_at(log, offset, why)


# --- the cut ----------------------------------------------------------------------------------------


def _place_of(log: PartitionLog, floor: Segment, offset: int) -> CutPlace:
    return place_of_cut(
        floor,
        offset,
        end_offset=_end_of(log, floor),
        history=log.epochs,
        is_dense=is_dense(log),
    )


def _cut(log: PartitionLog, floor: Segment, place: CutPlace, offset: int, loss: Loss | None) -> None:
    log.cuts += 1
    # Before its segment is cut, or becomes the last one again: a seal that survives the cut describes
    # bytes that are gone.
    floor.sealing.remove()
    later = [segment for segment in log.segments if segment.base_offset > offset]
    _drop(log, later, dict.fromkeys((segment.base_offset for segment in later), loss))
    log.segments = log.segments.replacing(later)
    truncate_segment(floor, place, offset, log.clock())
    floor.sync_log()
    log.disk.sync_dir(log.directory)
    _note(log, loss)
    log.cuts += 1


def _note(log: PartitionLog, loss: Loss | None) -> None:
    """Tell readers in other processes that the bytes are gone, before others take their place."""
    if loss is not None:
        log.quarantine.note_done(loss, log.clock())


def _drop(log: PartitionLog, segments: Sequence[Segment], losses: Mapping[int, Loss | None]) -> None:
    # Newest first, each one durably gone before the next: no crash may leave a later segment behind a
    # hole, because a hole is legal and the segment behind it would come back.
    for segment in reversed(segments):
        loss = losses.get(segment.base_offset)
        if loss is not None and segment.size:
            log.quarantine.take(loss.id, segment)
        else:
            segment.delete()
        log.disk.sync_dir(log.directory)


def _begin_past_a_gap(log: PartitionLog, offset: int, end_offset: int) -> None:
    """Start a segment at the log end, past the last batch: from now on the file names say so too.

    Durably, because the recovery point may rise to the log end from now on.
    """
    try:
        log.roll_at(offset, log.clock(), end_offset=end_offset)
    except OutOfResources as error:
        log.fail(OSError(errno.ENOSPC, str(error), log.directory))
    log.or_offline(lambda: log.disk.sync_dir(log.directory))
    log.segments.active.name_is_durable = True


def _restart_at(log: PartitionLog, offset: int, why: str) -> None:
    log.generation += 1
    held = [segment for segment in log.segments if segment.size]
    kept = [segment for segment in held if _end_of(log, segment) > offset]
    loss = log.guarded(lambda: _enter_restart(log, offset, why, held, kept)) if held else None
    # To 0: the segments go one by one, and a crash may leave any of them as the last.
    recovery_point = min(log.recovery_point, offset)
    bounds = log.recovery_point, log.replicated_offset, log.first_dirty_offset
    goes_down = offset < log.log_start_offset
    try:
        log.lower_bounds(0)
        # Without a segment only the checkpoint says after a crash where the log starts. The new start, if it
        # is not lower: the remaining segments then lie below it, and the next open removes them.
        log.publish_log_start(max(log.log_start_offset, offset))
    except OutOfResources:
        mark("restart of a log: no room for it, all stays as it was")
        log.recovery_point, log.replicated_offset, log.first_dirty_offset = bounds
        raise
    log.log_end_offset = log.replicated_offset = log.log_start_offset = offset

    def start_anew() -> None:
        _drop(log, tuple(log.segments), dict.fromkeys((segment.base_offset for segment in kept), loss))
        _note(log, loss)
        log.segments = Segments([log.new_segment(offset, log.clock())])
        log.disk.sync_dir(log.directory)
        log.segments.active.name_is_durable = True

    log.or_offline(start_anew)
    _move_readers(log, offset)
    log.recovery_point = recovery_point
    rebuild_producers(log, offset)
    if goes_down:
        # A start above the log end would make recovery remove, after a crash, the records written from now
        # on.
        mark("restart of a log: its start goes down")
        log.or_offline(lambda: log.owner.log_start_moved(log))
    log.change_epochs(lambda epochs: epochs.clear())


def _move_readers(log: PartitionLog, offset: int) -> None:
    # After the cut, and before other records may take the offsets: what a reader fetched until now may be
    # gone. Cursors durably: after a crash, one that is past the cut would skip those other records.
    # Not below the log start, which may lie inside the batch that went whole.
    log.or_offline(lambda: log.cursors.lower(max(offset, log.log_start_offset)))
    log.waiters.truncated(offset)


# --- derived state ----------------------------------------------------------------------------------


def _forget_epochs_from(log: PartitionLog, offset: int) -> None:
    """Forget the epochs that start at the log end, `offset`: their leaders have written nothing here.

    If the log start has reached the end, the epoch of the last batch in the files below stays: no older one
    may be written behind it. Only that epoch: no other log knows an epoch that wrote nothing, and a follower
    that keeps one diverges from its leader for ever.
    """

    def forget(epochs: LeaderEpochCache) -> bool:
        before = epochs.entries
        if not epochs.truncate_from_end(offset):
            return False
        if offset == log.log_start_offset and (below := _epoch_before(log, offset)) >= 0:
            epochs.assign(below, offset)
        return epochs.entries != before

    log.change_epochs(forget)


def _epoch_before(log: PartitionLog, offset: int) -> int:
    """Return the epoch in the header of the last batch below `offset`; -1 if there is none."""
    for segment in reversed(list(log.segments)):
        try:
            last = log.or_offline(partial(last_before, segment, offset)) if segment.size else None
        except CorruptBatch:
            mark("truncation: an epoch below the log start is that of the last sound batch")
            return log.or_offline(partial(survey, segment.log_file, 0, segment.size)).epochs[1]
        if last is not None:
            return last.leader_epoch
    return -1


def _end_of(log: PartitionLog, segment: Segment) -> int:
    """Return where the next segment begins, or the log ends, without reading a byte."""
    following = log.segments.higher(segment.base_offset)
    return log.log_end_offset if following is None else following.base_offset


# --- the loss ---------------------------------------------------------------------------------------


def _keep_from(log: PartitionLog, holder: Segment, place: CutPlace, offset: int, why: str) -> Loss | None:
    """Enter the loss of a cut at `offset` and copy the removed part of a segment; returns it."""
    later = [segment for segment in log.segments.since(offset) if segment is not holder and segment.size]
    counted, tail = Survey(), None
    if place.position < holder.size:
        tail = Tail(file_name(holder.base_offset, LOG_SUFFIX), holder.log_file, place.position, holder.size)
        counted = survey(tail.file, tail.from_byte, tail.to_byte)
    elif not later:
        return None
    first_offset = offset if tail is not None else later[0].base_offset
    moved_records = log.log_end_offset - later[0].base_offset if later else 0
    return _enter_loss(
        log,
        "truncation",
        why,
        end_offset=offset,
        first_offset=counted.first_offset if counted.batches else first_offset,
        records=counted.records + moved_records,
        batches=None if later else counted.batches,
        tail=tail,
        moved=later,
    )


def _enter_restart(
    log: PartitionLog, offset: int, why: str, held: list[Segment], kept: list[Segment]
) -> Loss:
    first_offset = held[0].base_offset
    return _enter_loss(
        log,
        "restart",
        why,
        end_offset=offset,
        first_offset=first_offset,
        records=log.log_end_offset - first_offset,
        moved=kept,
        size=sum(segment.size for segment in held),
        not_kept="" if len(kept) == len(held) else f"records below {offset}, where the log restarts",
    )


def _enter_loss(
    log: PartitionLog,
    who: Who,
    why: str,
    *,
    end_offset: int,
    first_offset: int,
    records: int,
    batches: int | None = None,
    tail: Tail | None = None,
    moved: Sequence[Segment],
    size: int | None = None,
    not_kept: str = "",
) -> Loss:
    last_offset, recovery_point = log.log_end_offset - 1, log.recovery_point
    if moved:
        # A copy is synced; segments that are moved have to be, too.
        log.sync_segments(log.log_end_offset)
    kept = sum(segment.size for segment in moved) + (tail.to_byte - tail.from_byte if tail else 0)
    loss = Loss(
        at_ms=log.clock(),
        who=who,
        why=why,
        first_offset=first_offset,
        last_offset=last_offset,
        end_offset=end_offset,
        records=records,
        batches=batches,
        size=kept if size is None else size,
        epochs=(log.epoch_for_offset(first_offset), log.epoch_for_offset(last_offset)),
        below_high_watermark=first_offset < log.high_watermark,
        below_recovery_point=first_offset < recovery_point,
        not_kept=not_kept,
    )
    whole = [(file_name(segment.base_offset, LOG_SUFFIX), segment.size) for segment in moved]
    return log.quarantine.enter(loss, tail=tail, moved=whole)
