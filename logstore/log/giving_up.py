"""Judge the end of a segment, accept damage, and cut: removed bytes go to quarantine first.

The ledger entry comes first, then the copy, then the cut (`losses.py`). Whole segments go newest first, each
durably, so that no crash leaves a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from logstore.disk.marks import mark
from logstore.errors import Damage, DamagedLog, DiskFull, is_full
from logstore.log.loading import Cut, Loading, delete_files
from logstore.log.losses import LOST_DIRECTORY, Loss
from logstore.log.tails import Survey, Tail, only_zeros, survey
from logstore.segment.damage import Verdict, ends_whole, judge
from logstore.segment.scan import Fault
from logstore.segment.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name

NOTHING: Final = Survey()


def meet_damage(loading: Loading, *damages: Damage, behind: Survey = NOTHING) -> None:
    """Record the damage if its loss is accepted; otherwise raise `DamagedLog`.

    `behind` counts the sound batches that prove it, where no durable end is known.
    """
    if loading.opening.accept_loss:
        loading.report.damages.extend(damages)
        return
    more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
    if loading.knows_durable_end and loading.opening.was_killed:
        why = "The machine has run since it was written: its process was killed, and that changes no batch."
    elif loading.knows_durable_end:
        why = "It was durable once, so this is no torn end of a write."
    elif behind.batches:
        why = (
            f"{behind.records:,} records up to offset {behind.last_offset} lie behind it, and this directory "
            "has neither a recovery point nor a seal, so they may all have been durable."
        )
    else:
        why = "This directory has neither a recovery point nor a seal, so it may have been durable."
    directory = loading.directory
    raise DamagedLog(
        f"{directory}/{damages[0]}{more}. {why} Nothing was cut. If another replica has the partition, let "
        f"it be fetched from there. `logstore recover {directory} --plan --accept-loss` says what a cut at "
        "the damage takes away, without `--plan` it cuts; the bytes stay in quarantine"
        + (
            f". If another program rewrote the files correctly, run `logstore verify --reseal {directory}`"
            if loading.knows_durable_end
            else "; `--recovery-point N` cuts only what lies at or past offset N"
        ),
        damages,
        behind.last_offset + 1,
    )


def sound_behind(loading: Loading, tail: Tail | None, later: Sequence[int], next_offset: int) -> Survey:
    """Count the intact batches past `next_offset` in the tail and the later segments.

    Nothing is counted if what lies past the durable end goes, sound or not.
    """
    counted = Survey()
    if loading.tail_may_be_torn:
        return counted
    if tail is not None:
        counted = survey(tail.file, tail.from_byte, tail.to_byte)
    for segment in map(loading.segments.__getitem__, later):
        counted = counted.joined(survey(segment.log_file, 0, segment.size))
    return counted if counted.last_offset >= next_offset else Survey()


def judge_tail(
    loading: Loading, tail: Tail, fault: Fault, next_offset: int, durable_end: int, later: Sequence[int]
) -> tuple[Fault, Verdict, Survey]:
    """Judge the end of a segment, whose walk stopped at `fault`: the exact fault, and the batches behind it.

    `next_offset` is the offset where it begins, and `later` are the segments that follow it.
    """
    behind = sound_behind(loading, tail, later, next_offset)
    if fault is Fault.SIZE and only_zeros(tail.file, tail.from_byte, tail.to_byte):
        fault = Fault.ZEROS
    is_torn = fault is Fault.TORN and loading.opening.was_killed
    if is_torn and ends_whole(tail.file, tail.from_byte, tail.to_byte):
        fault = Fault.SIZE
    below_durable = next_offset < durable_end if loading.knows_durable_end else None
    if not below_durable and not loading.tail_may_be_torn:
        below_durable = None
    return fault, judge(fault, is_end=not behind.batches, below_durable=below_durable), behind


def cut_tail(
    loading: Loading,
    segment: Segment,
    tail: Tail,
    later: list[int],
    reason: str,
    end_offset: int,
    durable_end: int,
) -> None:
    """Move the end of a segment and those behind it to quarantine; the log then ends at `end_offset`."""
    loss_id = _quarantine(loading, tail, later, reason, end_offset, durable_end)
    # Before anything that it speaks of goes.
    segment.sealing.remove()
    loading.report.cuts.append(Cut(tail.name, tail.from_byte, tail.to_byte, reason, loss_id))
    # The last first: were this one cut before them, a crash would leave them behind a hole, and
    # a hole may be meant.
    remove_segments(loading, later, "it follows a cut", loss_id)
    segment.log_file.truncate(tail.from_byte)
    segment.size = tail.from_byte


def cut_segments(loading: Loading, bases: list[int], reason: str, end_offset: int, durable_end: int) -> None:
    """Move whole segments to quarantine; the log then ends at `end_offset`."""
    loss_id = _quarantine(loading, None, bases, reason, end_offset, durable_end)
    remove_segments(loading, bases, reason, loss_id)


def _quarantine(
    loading: Loading, tail: Tail | None, bases: list[int], reason: str, end_offset: int, durable_end: int
) -> int | None:
    """Enter the loss of `tail` and of the segments `bases` before they are cut; return its id.

    None if they are empty or preallocated space, or if the disk has no space for an entry about bytes without
    a sound batch.
    """
    moved = [segment for base in bases if (segment := loading.segments[base]).size]
    if tail is None and not moved:
        return None
    zeros = tail is not None and not moved and only_zeros(tail.file, tail.from_byte, tail.to_byte)
    if zeros and loading.config.preallocate:
        return None  # room that nothing was written to
    counted = survey(tail.file, tail.from_byte, tail.to_byte) if tail else Survey()
    for segment in moved:
        segment.sync_log()
        counted = counted.joined(survey(segment.log_file, 0, segment.size))
    loading.report.lost_records += counted.records
    size = sum(segment.size for segment in moved) + (tail.size if tail else 0)
    first_offset = min(end_offset, counted.first_offset) if counted.batches else end_offset
    loss = Loss(
        at_ms=loading.opening.now_ms,
        who="recovery",
        why=reason,
        first_offset=counted.first_offset if counted.batches else end_offset,
        last_offset=counted.last_offset if counted.batches else end_offset - 1,
        end_offset=end_offset,
        records=counted.records,
        batches=counted.batches,
        size=size,
        epochs=counted.epochs,
        below_high_watermark=first_offset < loading.opening.high_watermark,
        below_recovery_point=first_offset < durable_end,
    )
    whole = [(file_name(segment.base_offset, LOG_SUFFIX), segment.size) for segment in moved]
    if zeros:
        mark("recovery: nothing but zeros goes")
        return _note(loading, replace(loss, not_kept="nothing but zeros"))
    try:
        return loading.quarantine.enter(loss, tail=tail, moved=whole).id
    except OSError as error:
        if not is_full(error):
            raise
        if counted.batches or moved:
            raise DiskFull(
                f"{loading.directory}: {counted.records} records from offset {loss.first_offset} on cannot "
                f"stay ({reason}), and there is no room to keep them in quarantine; they were not "
                "touched. Free some space, then open the log again"
            ) from error
    mark("recovery: no room to keep a torn batch")
    return _note(loading, replace(loss, not_kept="no room"))


def _note(loading: Loading, loss: Loss) -> int | None:
    """Enter a loss without a sound batch and without its bytes; None if not even that has room."""
    try:
        return loading.quarantine.enter(loss).id
    except OSError as error:
        if not is_full(error):
            raise
        loading.report.unrecorded.append(f"{loss.size} bytes at offset {loss.end_offset}: {loss.why}")
        return None


def remove_segments(loading: Loading, bases: list[int], reason: str, loss_id: int | None) -> None:
    """Remove whole segments, newest first and each durably, so that no crash leaves a hole."""
    for base in sorted(bases, reverse=True):
        segment = loading.segments.pop(base)
        name = file_name(base, LOG_SUFFIX)
        loading.report.cuts.append(Cut(name, 0, segment.size, reason, loss_id=loss_id))
        if loss_id is not None and segment.size:
            loading.quarantine.take(loss_id, segment)
            loading.report.renamed.append((name, f"{LOST_DIRECTORY}/{loss_id}/{name}"))
        segment.let_go()
        # Also the indexes that this recovery has written: `files` does not list them.
        delete_files(loading, (file_name(base, suffix) for suffix in SEGMENT_SUFFIXES))
        loading.disk.sync_dir(loading.directory)
