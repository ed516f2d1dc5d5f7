"""Segments that an opening replaces: with offsets that do not fit, or with bad bytes below the log start.

The new files are complete and synced before the old ones go (`segment/swap.py`): a crash leaves either.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.disk.marks import mark
from logstore.errors import is_full
from logstore.log.loading import Loading, Split, delete_files, list_files, segment_at
from logstore.log.losses import Loss
from logstore.log.tails import Tail
from logstore.segment.damage import swept
from logstore.segment.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name
from logstore.segment.split import find_runs, leaps_over, leave_out, split
from logstore.segment.swap import swap


def split_segment(loading: Loading, segment: Segment, later: list[int], durable_end: int) -> list[Segment]:
    """Replace a segment whose offsets exceed its base too far by several; none for damage."""
    runs = find_runs(segment.log_file, segment.size, segment.base_offset)
    is_dense = not later and segment.seal is None
    if len(runs) < 2 or (is_dense and leaps_over(runs, durable_end)):
        return []
    written = split(
        loading.disk, loading.directory, loading.config, segment, runs, now_ms=loading.opening.now_ms
    )
    bases = tuple(run.base_offset for run in runs)
    loading.report.splits.append(Split(file_name(segment.base_offset, LOG_SUFFIX), bases))
    return _replace(loading, segment, written)


def _replace(loading: Loading, segment: Segment, written: Sequence[Segment]) -> list[Segment]:
    loading.disk.sync_dir(loading.directory)
    for each in written:
        each.let_go()
    aside = swap(loading.disk, loading.directory, written, [segment])
    list_files(loading)
    delete_files(loading, (path.removeprefix(f"{loading.directory}/") for path in aside))
    del loading.segments[segment.base_offset]
    for each in written:
        placed = segment_at(loading, each.base_offset, size=each.size, modified_ms=each.modified_ms)
        placed.is_settled = segment.is_settled
        loading.segments[each.base_offset] = placed
    return [loading.segments[each.base_offset] for each in written]


def leave_out_deleted(
    loading: Loading, segment: Segment, end: int, next_offset: int, later: list[int]
) -> tuple[bool, Segment | None]:
    """Remove what is bad from byte `end` on, if all of its records were deleted: whether, and what to read.

    A segment below the log start goes, with those before it; retention was about to remove them. In the one
    that holds the log start, the bytes up to the last sound batch that begins below it are left out, and kept
    in quarantine if that has room.
    """
    log_start, name = loading.opening.log_start_offset, file_name(segment.base_offset, LOG_SUFFIX)
    if later and later[0] <= log_start:
        mark("recovery: a damaged segment below the log start goes")
        for base_offset in list(loading.segments.irange(maximum=segment.base_offset)):
            loading.segments.pop(base_offset).let_go()
            loading.recovered.pop(base_offset, None)
            delete_files(loading, (file_name(base_offset, suffix) for suffix in SEGMENT_SUFFIXES))
            loading.disk.sync_dir(loading.directory)
        loading.report.notes.append(
            f"{name} is damaged at byte {end} and lies below the log start {log_start}: it was removed"
        )
        return True, None
    position, behind = _last_below(segment, end, log_start)
    if behind <= next_offset:
        return False, None
    gap = end, position
    loss = Loss(
        at_ms=loading.opening.now_ms,
        who="heal",
        why=f"damaged in {name}; below the log start {log_start}, left out",
        first_offset=next_offset,
        last_offset=behind - 1,
        end_offset=behind,
        size=gap[1] - gap[0],
    )
    try:
        loading.quarantine.enter(loss, tail=Tail(name, segment.log_file, *gap))
    except OSError as error:
        if is_full(error):
            return False, None
        raise
    mark("recovery: damage below the log start is left out")
    loading.report.notes.append(f"bytes {gap[0]} to {gap[1]} were {loss.why}")
    written = leave_out(
        loading.disk, loading.directory, loading.config, segment, gap, now_ms=loading.opening.now_ms
    )
    return True, _replace(loading, segment, [written])[0]


def _last_below(segment: Segment, end: int, log_start: int) -> tuple[int, int]:
    """Position and base of the last sound batch past byte `end` that begins at or below the log start."""
    found = end, -1
    for piece in swept(segment.log_file, segment.size, end):
        columns = piece.positions.tolist(), piece.bases.tolist(), piece.lasts.tolist()
        for position, base, last in zip(*columns, strict=True):
            if position == end:
                if base <= log_start <= last:
                    return found  # its records may count
            elif base > log_start:
                return found
            else:
                found = position, base
    return found
