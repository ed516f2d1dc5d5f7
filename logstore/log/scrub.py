"""Scrub a log: read all of it, a few megabytes a step, and find the bytes that differ from the written ones.

    sealed segment     every block against the seal; if one differs, and at the first time, batch by batch
    other segments     batch by batch, to the end that the segment has when its turn comes

`scrub` is a generator, so its caller decides when the next step runs and how much may be read a second. Each
step names the place from which another scrub can continue. Appends, reads, compaction and truncation go on
meanwhile: what is found in a segment counts only if nothing was cut from the log since its first byte was
read, otherwise the segment is read again. `damage.judge_segment` decides what is damage.

While a process has a log, nobody else writes to it. But before, Kafka's cleaner may have rewritten a sealed
segment of a log that was compacted, without a change of its size, which an opening does not see. So the first
time that this process compares such a segment with its seal, a difference is no damage if every batch is
sound and in order; the segment is sealed anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore.config import MAX_LONG
from logstore.errors import Damage, DamageKind, LogClosed
from logstore.log.derived import check_log_files, check_segment_files
from logstore.log.partition_log import PartitionLog, is_dense
from logstore.segment.damage import Expected, judge_segment
from logstore.segment.seal import SEAL_SUFFIX
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name


class Cursor(NamedTuple):
    """A place in a log: byte `position` of the segment at `base_offset`, or of the next one behind it."""

    base_offset: int = 0
    position: int = 0


class Scrubbed(NamedTuple):
    """The result of a step, or of several: `size` bytes of batches were read.

    A second pass over a segment, batch by batch, does not count again.

    `cursor` is the place to continue from; None at the end of the log. `damages` are in records; `rebuilt`
    are derived files that differed from the log and were rebuilt, by this step or by reads before it.
    """

    size: int
    cursor: Cursor | None
    damages: tuple[Damage, ...] = ()
    rebuilt: tuple[Damage, ...] = ()


def scrub(log: PartitionLog, cursor: Cursor | None = None) -> Iterator[Scrubbed]:
    """Yield after each step, which reads one to four megabytes (or one batch, if that is larger).

    A damaged stretch is reported once, when the end of its segment is reached. Raises `LogClosed` if the log
    was closed meanwhile, and `OSError` if the disk cannot be read.
    """
    base_offset, position = cursor or Cursor()
    while (segment := log.segments.higher(base_offset - 1)) is not None:
        if segment.base_offset != base_offset:
            position = 0
        base_offset, cuts = segment.base_offset, log.cuts
        following = log.segments.higher(base_offset)
        if following is not None and following.base_offset <= log.log_start_offset:
            base_offset += 1  # its records were deleted, and retention removes it soon
            continue
        for step in _scrub_segment(log, segment, position):
            if log.is_closed:
                raise LogClosed(f"{log.directory} was closed; open it again")
            if step.damages:
                with log.lock:  # a cut that is under way ends first
                    is_same = log.cuts == cuts and log.segments.get(base_offset) is segment
                if not is_same:
                    position = 0
                    break  # it was cut or replaced: once more, as it is now
            yield step
        else:
            base_offset, position = base_offset + 1, 0
    yield Scrubbed(0, None, (), (*check_log_files(log), *_rebuilt_by_reads(log)))


def _rebuilt_by_reads(log: PartitionLog) -> list[Damage]:
    found = log.rebuilt.copy()
    del log.rebuilt[: len(found)]
    return found


def _scrub_segment(log: PartitionLog, segment: Segment, position: int) -> Iterator[Scrubbed]:
    base_offset, seal, cuts = segment.base_offset, segment.seal, log.cuts
    following = log.segments.higher(base_offset)
    expected = Expected(
        base_offset,
        segment.size,
        MAX_LONG if following is None else following.base_offset,
        seal,
        log.epochs,
    )
    is_damaged = is_rewritten = False
    may_be_rewritten = seal is not None and not is_dense(log) and not segment.sealing.is_proven
    start = position if seal is not None else 0
    first_read = start - start % seal.block_bytes if seal is not None else 0
    uncounted = max(expected.size - first_read, 0)
    try:
        with segment.log_for_reading() as file:
            for step in judge_segment(file, expected, start):
                damages = step.damages
                if may_be_rewritten and damages and all(each.kind is DamageKind.CHANGED for each in damages):
                    is_rewritten, damages = True, ()
                is_damaged |= bool(damages)
                size = min(step.size, uncounted)
                uncounted -= size
                yield Scrubbed(size, _behind(segment, step.position, damages), damages)
            if is_rewritten:
                yield Scrubbed(0, Cursor(base_offset, segment.size), (), _sealed_anew(log, segment))
            elif not is_damaged and not position:
                segment.sealing.is_proven = True
            if seal is not None and not (is_damaged or is_rewritten or segment.was_walked):
                # Bytes that rotted before they were sealed agree with their seal. They were just read.
                for step in judge_segment(file, expected._replace(seal=None)):
                    is_damaged |= bool(step.damages)
                    yield Scrubbed(0, _behind(segment, expected.size, step.damages), step.damages)
        if not is_damaged:
            yield from _scrub_files(log, segment)
            with log.lock:
                segment.was_walked = seal is not None and not is_rewritten and log.cuts == cuts
    except FileNotFoundError:
        name, end_offset = file_name(base_offset, LOG_SUFFIX), expected.end_offset
        text = "the file is missing"
        damage = Damage(DamageKind.SEGMENT_GONE, name, 0, base_offset, text, segment.size, -1, end_offset)
        yield Scrubbed(0, _behind(segment, 0, (damage,)), (damage,))


def _behind(segment: Segment, position: int, damages: tuple[Damage, ...]) -> Cursor:
    """Return where to continue: at `position`, or behind a segment whose damages are known."""
    return Cursor(segment.base_offset + 1) if damages else Cursor(segment.base_offset, position)


def _sealed_anew(log: PartitionLog, segment: Segment) -> tuple[Damage, ...]:
    """Make the seal of a segment that another program has rewritten; nothing if it was cut meanwhile."""
    cuts, old = log.cuts, segment.seal
    segment.sealing.prepare()
    with log.lock:
        following = log.segments.higher(segment.base_offset)
        is_here = log.segments.get(segment.base_offset) is segment and log.cuts == cuts
        if log.is_closed or not is_here or old is None or following is None or segment.seal is not old:
            return ()
        log.guarded(segment.sealing.remove)
        log.guarded(lambda: segment.sealing.make(old.end_offset, following.base_offset))
        log.guarded(lambda: log.disk.sync_dir(log.directory))
    name = file_name(segment.base_offset, SEAL_SUFFIX)
    text = "another program compacted the segment, and every batch is sound"
    return (Damage(DamageKind.DERIVED, name, 0, segment.base_offset, text, 0),)


def _scrub_files(log: PartitionLog, segment: Segment) -> Iterator[Scrubbed]:
    """Compare the derived files, which are read whole, after the last byte of the `.log`."""
    end, steps = Cursor(segment.base_offset, segment.size), check_segment_files(log, segment)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            if stop.value:
                yield Scrubbed(0, end, (), tuple(stop.value))
            return
        yield Scrubbed(0, end)


def scrub_for(log: PartitionLog, cursor: Cursor | None, max_bytes: int) -> Scrubbed:
    """Run the steps of `scrub` from `cursor` on until `max_bytes` were read or the log ends.

    A segment that is read batch by batch is read to its end: nothing inside of it could be continued from.
    """
    start = cursor or Cursor()
    reached: Cursor | None = start
    size, damages, rebuilt = 0, list[Damage](), list[Damage]()
    for step in scrub(log, start):
        size, reached = size + step.size, step.cursor
        damages += step.damages
        rebuilt += step.rebuilt
        if size >= max_bytes and reached != start and (reached is None or reached.position or step.damages):
            break
    return Scrubbed(size, reached, tuple(damages), tuple(rebuilt))
