"""Keep a log small and durable on schedule: move its start, delete old segments, swap in compacted ones,
flush.

The log start is published before a segment below it is renamed, oldest first, and files are unlinked later
(docs/durability.md, rule S6); a swap follows `swap.py` (rule S7). Which segments go is decided elsewhere:
`retention.py` and `compact/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from logstore.disk.marks import mark
from logstore.errors import OffsetOutOfRange, PolicyViolation
from logstore.log.interrupts import DELETING, changing, start_at
from logstore.log.partition_log import PartitionLog
from logstore.log.retention import Expired, believed_ms, expired
from logstore.segment.segment import Segment
from logstore.segment.swap import swap

# --- the log start ----------------------------------------------------------------------------------


def advance_log_start_offset(log: PartitionLog, offset: int) -> bool:
    """Stop serving records below `offset`; False if the log already starts there or later.

    Raises `OffsetOutOfRange` past the high watermark.
    """
    with log.lock:
        log.check_writable()
        if offset > log.high_watermark:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
        if offset <= log.log_start_offset:
            return False
        # Published before anything below it is forgotten: after a crash in between, records must not be
        # served whose epochs are gone. The recovery point stays: nothing was synced here.
        start_at(log, offset)
        return True


def delete_records(log: PartitionLog, offset: int) -> int:
    """Stop serving records below `offset` (-1: the high watermark); returns the log start offset.

    Durable when it returns. Segments that hold nothing else go with the next `delete_old_segments`. Raises
    `PolicyViolation` if `cleanup.policy` lacks delete, `OffsetOutOfRange` for another negative offset and
    past the high watermark, `DiskFull` or `LogDirOffline`.
    """
    if not log.config.is_deleted:
        kept = "are deleted by key; send tombstones, or" if log.config.is_compacted else "are all kept;"
        raise PolicyViolation(
            f"{log.topic_partition} has cleanup.policy={log.config.cleanup_policy}: "
            f"records {kept} add delete to the policy"
        )
    with changing(log, DELETING):
        wanted = log.high_watermark if offset == -1 else offset
        if wanted < 0:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
        advance_log_start_offset(log, wanted)
        return log.log_start_offset


# --- retention --------------------------------------------------------------------------------------


def delete_old_segments(log: PartitionLog, now_ms: int) -> tuple[Expired, ...]:
    """Delete the segments that retention releases (`retention.py`); returns them with the reasons.

    The log start offset is durably above them before the first one is renamed. Their files stay as `.deleted`
    for `file.delete.delay.ms`, until `remove_deleted_files`. `now_ms` is the wall clock; a jump of more than
    a day since the last call counts as one day. Raises `DiskFull` (the next call does the rest) or
    `LogDirOffline`.
    """
    log.check_writable()
    trusted_ms = believed_ms(now_ms, log.last_retention_ms)
    log.last_retention_ms = now_ms
    with log.lock:
        if not _expired(log, trusted_ms):
            return ()
    with log.group_commit.exclusive(), changing(log, "retention"):
        going = _expired(log, trusted_ms)
        if len(going) == len(log.segments):
            mark("retention: the active segment goes too")
            log.roll_at(log.log_end_offset, now_ms)
            # Its name too, before the others go: a directory without a segment has no epochs either.
            log.or_offline(lambda: log.disk.sync_dir(log.directory))
            log.segments.active.name_is_durable = True
        first_left = log.segments.higher(going[-1].base_offset) if going else None
        if first_left is not None:
            # Published first: if the power fails now, some of the old segments may come back with a hole
            # between them; nothing below the log start offset is ever served.
            advance_log_start_offset(log, first_left.base_offset)
            log.or_offline(lambda: _set_aside(log, {each.base_offset for each in going}, now_ms))
        return tuple(going)


def _expired(log: PartitionLog, now_ms: int) -> list[Expired]:
    return log.guarded(
        lambda: expired(
            tuple(log.segments),
            log.config,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            now_ms=now_ms,
            unread_from=log.cursors.slowest,
        )
    )


def _set_aside(log: PartitionLog, bases: Set[int], now_ms: int) -> None:
    going = [segment for segment in log.segments if segment.base_offset in bases]
    for segment in going:
        log.deleted_files.add(segment.set_aside(), now_ms, log.config.file_delete_delay_ms)
        log.snapshots.remove(segment.base_offset)
    # Durably gone before the log starts above them: from then on its owner may forget the log start,
    # because the first segment tells it.
    log.disk.sync_dir(log.directory)
    log.segments = log.segments.replacing(going)


def remove_deleted_files(log: PartitionLog, now_ms: int) -> int:
    """Unlink the files whose delay is over; returns their number. Raises `LogDirOffline`."""
    with log.lock:
        return log.guarded(lambda: log.deleted_files.remove_due(now_ms))


def expire_losses(log: PartitionLog, now_ms: int) -> int:
    """Remove the quarantined bytes of losses older than a week; returns how many. Their entries stay.

    Raises `DiskFull` or `LogDirOffline`.
    """
    with log.lock:
        if now_ms < log.quarantine.due_ms:
            return 0
        log.check_writable()
        return log.guarded(lambda: log.quarantine.expire(now_ms))


def remove_expired_producers(log: PartitionLog, now_ms: int) -> None:
    """Forget producers and guards that have been idle for `producer.id.expiration.ms`."""
    with log.lock:
        expiration_ms = log.producer_config.producer_id_expiration_ms
        log.producer_state.remove_expired(now_ms, expiration_ms)
        log.guards.remove_expired(now_ms, expiration_ms)


# --- flushing ---------------------------------------------------------------------------------------


def flush_by_age(log: PartitionLog, now_ms: int) -> None:
    """Flush if a record that is not durable was first seen by this function `flush.ms` ago."""
    if log.recovery_point >= log.log_end_offset:
        log.unflushed = None
        return
    offset, since_ms = log.unflushed or (-1, now_ms)
    if log.recovery_point > offset:
        offset, since_ms = log.log_end_offset, now_ms
    since_ms = min(since_ms, now_ms)  # the clock may have been set back
    log.unflushed = offset, since_ms
    if now_ms - since_ms >= log.config.flush_ms:
        log.flush()
        log.unflushed = None


def flush_sealed(log: PartitionLog) -> None:
    """Make every segment but the active one survive power loss."""
    base_offset = log.segments.active.base_offset
    if log.recovery_point < base_offset:
        log.sync_up_to(base_offset)
        log.guarded(lambda: log.owner.flushed(log))


# --- compaction -------------------------------------------------------------------------------------


def holds(log: PartitionLog, segments: Iterable[Segment], generation: int) -> bool:
    """Return whether the log still has exactly these segments, without a truncation since `generation`."""
    current = log.segments
    is_same = not log.is_closed and log.generation == generation
    return is_same and all(current.get(each.base_offset) is each for each in segments)


def replace_segments(
    log: PartitionLog, old: Sequence[Segment], new: Sequence[Segment], *, generation: int, now_ms: int
) -> bool:
    """Put `new`, written as `.cleaned` and synced, in the place of `old` (`swap.py`).

    False, with nothing changed, unless the log `holds` all of `old`. Raises `LogDirOffline`.
    """
    with log.group_commit.exclusive(), changing(log, "a replacement of segments"):
        if not holds(log, old, generation):
            return False
        successor = log.segments.higher(old[-1].base_offset)
        assert successor is not None, "the active segment cannot be replaced"
        for segment in new:
            segment.let_go()
        aside = log.or_offline(lambda: swap(log.disk, log.directory, new, old))
        log.deleted_files.add(aside, now_ms, log.config.file_delete_delay_ms)
        placed = [_placed(log, segment) for segment in new]
        log.replacements += 1
        log.segments = log.segments.replacing(old, placed)
        gone = {segment.base_offset for segment in old} - {segment.base_offset for segment in placed}
        for base_offset in sorted(gone):
            log.or_offline(lambda base=base_offset: log.snapshots.remove(base))  # type: ignore[misc]
        # A roll may have replaced an empty active segment during the pass.
        log.or_offline(lambda: placed[-1].sealing.follow_with(successor.base_offset))
        return True


def _placed(log: PartitionLog, cleaned: Segment) -> Segment:
    """Return a segment over the files of `cleaned`, which have their final names now."""
    segment = Segment(
        log.disk,
        log.directory,
        cleaned.base_offset,
        log.config,
        size=cleaned.size,
        now_ms=cleaned.created_ms,
        modified_ms=cleaned.modified_ms,
    )
    segment.seal, segment.indexes.rebuilt = cleaned.seal, log.rebuilt
    return segment


def compacted_up_to(log: PartitionLog, offset: int, *, generation: int) -> bool:
    """Record durably that the next compaction starts at `offset`; False if the log was cut meanwhile.

    Raises `DiskFull`, `LogDirOffline`.
    """
    with log.lock:
        log.check_writable()
        if generation != log.generation:
            return False
        log.first_dirty_offset = offset
        log.guarded(lambda: log.owner.compacted(log))
        return True
