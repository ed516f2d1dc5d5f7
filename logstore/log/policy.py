"""When a log starts a new segment: pure decisions (log-format 4.1)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from logstore.config import MAX_INT, LogConfig
from logstore.disk.marks import mark

NO_TIMESTAMP = -1


class RollReason(Enum):
    """Why the next append goes into a new segment."""

    SEGMENT_BYTES = "segment.bytes"
    SEGMENT_MS = "segment.ms"
    INDEX_FULL = "segment.index.bytes"
    OFFSET_OVERFLOW = "offset does not fit the segment"


class ActiveSegment(Protocol):
    """What the decision weighs of the active segment.

    `first_timestamp_ms` is the largest record time of its first append, -1 if that had none;
    `created_ms` is when this process made or opened it; `jitter_ms` is its share of
    `segment.jitter.ms`.
    """

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp_ms(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def jitter_ms(self) -> int: ...
    @property
    def index_is_full(self) -> bool: ...


class Incoming(NamedTuple):
    """What it weighs of the batches about to be appended."""

    size: int
    max_timestamp_ms: int
    last_offset: int


def roll_reason(
    active: ActiveSegment, incoming: Incoming, config: LogConfig, now_ms: int
) -> RollReason | None:
    """Why the incoming batches start a new segment; None while the active one can take them."""
    if active.size > 0:
        if active.size > config.segment_bytes - incoming.size:
            mark("roll: the segment has its size")
            return RollReason.SEGMENT_BYTES
        # Records' time against records' time where both are known: last year's data, replayed
        # today, must not roll at every batch, and a stalled clock must not stop rolling.
        first_ms = active.first_timestamp_ms
        waited_ms = incoming.max_timestamp_ms - first_ms if first_ms >= 0 else now_ms - active.created_ms
        if waited_ms > config.longest_segment_ms - active.jitter_ms:
            return RollReason.SEGMENT_MS
    if active.index_is_full:
        mark("roll: an index is full")
        return RollReason.INDEX_FULL
    if not 0 <= incoming.last_offset - active.base_offset <= MAX_INT:
        return RollReason.OFFSET_OVERFLOW
    return None
