"""Find the byte at which a segment is cut to end at an offset, also where its bytes are damaged.

    ┼ batch, ends at 57 ┼ ░░░░ bad ░░░░ ┼ batch 70 ┼ batch 74 ┤       cut to 60
                                        ↑ here

Bad bytes do not tell which of them held offsets below the cut. So all sound batches below the cut stay, all
sound ones at or past it go, and bad bytes between the two stay: as damage of the offsets up to the cut, that
is mended like any other. Bad bytes whose offsets begin at the cut go with what follows them.

A cut goes by the batches, not by their headers alone: no checksum covers the offset of a batch, and a wrong
one would move the cut. The batches between an index entry and the cut are checked; if one of them is not in
order, the whole segment is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.config import MAX_LONG
from logstore.disk.marks import mark
from logstore.errors import CorruptBatch, Damage
from logstore.format.batch import LOG_OVERHEAD, Batch
from logstore.lazily import np
from logstore.segment.damage import Expected, judge_segment, swept
from logstore.segment.epochs import EpochEntry, is_of_its_epoch
from logstore.segment.segment import Segment
from logstore.segment.segments import Located, walk_from


class CutPlace(NamedTuple):
    """The byte `position` at which a segment is cut; the last intact batch before it ends at `end_offset`.

    `damages`: what is bad in front of it. If `is_across`, the last of them reaches from `end_offset` up to
    the cut.
    """

    position: int
    end_offset: int
    damages: tuple[Damage, ...] = ()
    is_across: bool = False


def place_of_cut(
    segment: Segment,
    offset: int,
    *,
    end_offset: int = MAX_LONG,
    history: Sequence[EpochEntry] = (),
    is_dense: bool = True,
) -> CutPlace:
    """Return where to cut the segment, which ends by `end_offset`, so that the log ends at `offset`.

    The batch that holds `offset` goes as a whole. `history`: the epochs of the log. `is_dense`: nothing was
    compacted. Raises `OSError`.
    """
    try:
        place = _by_index(segment, offset, history, is_dense=is_dense)
    except CorruptBatch:
        place = None
    return place or _by_judging(segment, offset, end_offset, history)


def truncate_segment(segment: Segment, place: CutPlace, offset: int, now_ms: int) -> int:
    """Cut the segment at `place`, the place of `offset`; return the bytes cut.

    Not yet durable: sync the log after it.
    """
    with segment.lock:
        if place.is_across:
            segment.sealing.has_bad_bytes = True
        elif place.position == segment.size:
            return 0
        return segment.cut(place.position, offset, now_ms)


def _by_index(
    segment: Segment, offset: int, history: Sequence[EpochEntry], *, is_dense: bool
) -> CutPlace | None:
    """Walk from the index entry before `offset` to the cut; None if a batch is not sound or not in order."""
    position, end_offset, before = 0, segment.base_offset, None
    for located in walk_from(segment, offset - 1):
        if before is not None:
            gap = located.base_offset - (before.last_offset + 1)
            if gap < 0 or (gap and is_dense):
                return None
        if not _is_sound(segment, located, history):
            return None
        if located.last_offset >= offset:
            return CutPlace(located.position, end_offset)
        position, end_offset, before = located.position + located.size, located.last_offset + 1, located
        if end_offset == offset:
            break
    return CutPlace(position, end_offset) if end_offset == offset or position == segment.size else None


def _is_sound(segment: Segment, located: Located, history: Sequence[EpochEntry]) -> bool:
    Batch(segment.log_file.pread(located.size, located.position)).check_crc()
    return located.base_offset >= segment.base_offset and is_of_its_epoch(
        located.base_offset, located.leader_epoch, history
    )


def _by_judging(segment: Segment, offset: int, end_offset: int, history: Sequence[EpochEntry]) -> CutPlace:
    mark("truncation: the whole segment is judged")
    damages: tuple[Damage, ...] = ()
    expected = Expected(segment.base_offset, segment.size, end_offset, None, history)
    for step in judge_segment(segment.log_file, expected):
        damages = step.damages
    position, end = segment.size, segment.base_offset
    for piece in swept(segment.log_file, segment.size):
        ends = piece.positions + piece.headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
        is_sound = np.ones(len(ends), np.bool_)
        for bad in damages:
            is_sound &= (piece.positions >= bad.end_position) | (ends <= bad.position)
        lasts = piece.lasts
        below = np.flatnonzero(is_sound & (lasts < offset))
        past = np.flatnonzero(is_sound & (lasts >= offset))
        if len(below):
            end = int(lasts[below[-1]]) + 1
        if len(past):
            position = int(piece.positions[past[0]])
            break
    before = [bad for bad in damages if bad.offset < offset and bad.position < position]
    if before and before[-1].end_position >= position:
        mark("truncation: damage stays in front of the cut")
        before[-1] = before[-1]._replace(end_offset=offset)
        return CutPlace(position, end, tuple(before), is_across=True)
    # Bad bytes whose offsets begin at the cut go.
    position = min([position, *(bad.position for bad in damages if bad.offset >= offset)])
    return CutPlace(position, end, tuple(before))
