"""When a log starts a new segment: pure decisions (log-format 4.1)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from logstore.config import MAX_INT, LogConfig

NO_TIMESTAMP = -1


class RollReason(Enum):
    """Why the next append goes into a new segment."""

    SEGMENT_BYTES = "segment.bytes"
    SEGMENT_MS = "segment.ms"
    OFFSET_INDEX_FULL = "offset index full"
    TIME_INDEX_FULL = "time index full"
    OFFSET_OVERFLOW = "offset does not fit the segment"


class ActiveSegment(NamedTuple):
    """What the decision weighs of the active segment.

    `first_timestamp_ms` is the largest record time of its first append, -1 if that had none;
    `created_ms` is when this process made or opened it; `jitter_ms` is its share of
    `segment.jitter.ms`.
    """

    base_offset: int
    size: int
    first_timestamp_ms: int
    created_ms: int
    jitter_ms: int
    offset_index_is_full: bool
    time_index_is_full: bool


class Incoming(NamedTuple):
    """What it weighs of the batches about to be appended."""

    size: int
    max_timestamp_ms: int
    last_offset: int


def roll_reason(
    active: ActiveSegment, incoming: Incoming, config: LogConfig, now_ms: int
) -> RollReason | None:
    """Why the incoming batches start a new segment; None while the active one can take them."""
    if active.size > config.segment_bytes - incoming.size and active.size > 0:
        return RollReason.SEGMENT_BYTES
    if active.size > 0:
        # Records' time against records' time where both are known: last year's data, replayed
        # today, must not roll at every batch, and a stalled clock must not stop rolling.
        waited_ms = (
            incoming.max_timestamp_ms - active.first_timestamp_ms
            if active.first_timestamp_ms >= 0
            else now_ms - active.created_ms
        )
        if waited_ms > config.longest_segment_ms - active.jitter_ms:
            return RollReason.SEGMENT_MS
    if active.offset_index_is_full:
        return RollReason.OFFSET_INDEX_FULL
    if active.time_index_is_full:
        return RollReason.TIME_INDEX_FULL
    if not is_representable(active.base_offset, incoming.last_offset):
        return RollReason.OFFSET_OVERFLOW
    return None


def is_representable(base_offset: int, offset: int) -> bool:
    """Whether `offset` fits the 32-bit relative offsets of a segment that starts at `base_offset`."""
    return 0 <= offset - base_offset <= MAX_INT
