"""Decide which of a log's oldest segments are deleted, and why. Pure.

      ┌──────┬──────┬──────┬──────┬──────┬────────┐
      │ goes │ goes │ goes │ stays│      │ active │
      └──────┴──────┴──────┴──────┴──────┴────────┘
       log start ─▶  size ─▶ time ─▶ the first survivor: nothing behind it is looked at

Three passes in this order, each going on where the one before it ended: what lies below the log start
offset, what the log can lose without falling below `retention.bytes`, what is older than `retention.ms`.
A pass ends at the first segment that it does not take, so what is left is always one run without a hole.
No segment goes that reaches past the high watermark, and the last one does not if it is empty.

Age is the distance from a record's time to the wall clock, and wall clocks jump: see `believed_ms` and
docs/decisions/013.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from logstore.config import LogConfig
from logstore.disk.marks import mark

LONGEST_STEP_MS: Final = 24 * 3_600_000
"""How far past its last reading the wall clock is believed."""


class DeletionReason(Enum):
    """Why a segment is deleted."""

    LOG_START = "below the log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class Expired(NamedTuple):
    """The segment at `base_offset` with `size` bytes, and the reason for its deletion."""

    base_offset: int
    size: int
    reason: DeletionReason


class StoredSegment(Protocol):
    """The facts of a segment that the decision uses; bytes, and epoch milliseconds."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp_ms(self) -> int: ...


def expired(
    segments: Sequence[StoredSegment],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
    unread_from: int | None = None,
) -> list[Expired]:
    """Return the segments to delete, oldest first; `segments` are all segments, in order.

    With `retain.for.cursors`, what lies at or past `unread_from` stays, whatever its age and size.
    Times are asked for only as far as the last pass comes.
    """
    end_offsets = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    sizes = [segment.size for segment in segments]
    bytes_from = [*accumulate(reversed(sizes), initial=0)][::-1]
    last = len(segments) - 1
    going: list[Expired] = []

    def run(reason: DeletionReason, takes: Callable[[int], bool]) -> None:
        while (slot := len(going)) <= last and end_offsets[slot] <= high_watermark:
            is_last_and_empty = slot == last and sizes[slot] == 0
            if is_last_and_empty or not takes(slot):
                return
            if reason is DeletionReason.SIZE:
                mark("retention: a segment goes for its size")
            elif reason is DeletionReason.LOG_START:
                mark("retention: a segment goes that lies below the log start")
            going.append(Expired(segments[slot].base_offset, sizes[slot], reason))

    run(DeletionReason.LOG_START, lambda slot: slot < last and end_offsets[slot] <= log_start_offset)
    if config.retain_for_cursors and unread_from is not None:
        high_watermark = min(high_watermark, unread_from)
    if config.is_deleted:
        if config.retention_bytes >= 0:
            # Never below the limit: the segment that crosses it stays.
            run(DeletionReason.SIZE, lambda slot: bytes_from[slot + 1] >= config.retention_bytes)
        if config.retention_ms >= 0:
            run(
                DeletionReason.TIME,
                lambda slot: now_ms - segments[slot].largest_timestamp_ms > config.retention_ms,
            )
    return going


def believed_ms(now_ms: int, last_ms: int) -> int:
    """Return the time for the computation of ages; `last_ms` is the clock's time at the previous check.

    A clock that says years have gone by since then may be wrong, and what is deleted for it is gone:
    so far it is believed by a day only. At the next check it is, if it still says so.
    """
    return min(now_ms, last_ms + LONGEST_STEP_MS)
