"""Compute the part of a log that a compaction can clean, and decide whether a pass is due. Pure.

     log start        first dirty       first uncleanable     log end
         ▼                 ▼                   ▼                 ▼
    ─────●─────────────────●───────────────────●─────────────────●
           compacted before    the dirty part      too young, undecided,
                                                   or the active segment
         └──── clean bytes ┘── cleanable bytes ┘       ratio = cleanable / (clean + cleanable)

A pass maps the keys of the dirty part and rewrites everything before its end. The unit is a segment: one
record that is too young keeps its whole segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from logstore.config import MAX_INT, LogConfig
from logstore.log.partition_log import PartitionLog
from logstore.log.retention import StoredSegment
from logstore.log.upkeep import compacted_up_to


class DatedSegment(StoredSegment, Protocol):
    """A stored segment with the time of its first records (-1 for none)."""

    @property
    def first_timestamp_ms(self) -> int: ...


class Cleanable(NamedTuple):
    """The scope of a pass; offsets as in the picture, sizes in bytes.

    `must_be_cleaned`: records of the dirty part are older than `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    must_be_cleaned: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of the bytes that a pass would read."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Return whether the log is dirty enough for a pass."""
        if not self.cleanable_bytes:
            return False
        return self.must_be_cleaned or self.dirty_ratio > config.min_cleanable_dirty_ratio


def first_dirty(checkpoint: int, log_start_offset: int, log_end_offset: int) -> int:
    """Return the start of the dirty part; with a checkpoint outside the log, all of it is dirty."""
    return checkpoint if log_start_offset <= checkpoint <= log_end_offset else log_start_offset


def cleanable(
    segments: Sequence[DatedSegment],
    config: LogConfig,
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> Cleanable:
    """Find the cleanable part of `segments`: all of a log, in order, the active one last."""
    *sealed, active = segments
    end_offsets = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, end in zip(sealed, end_offsets, strict=True) if end > first_dirty_offset]
    bound = min(active.base_offset, last_stable_offset)
    if config.min_compaction_lag_ms > 0:
        oldest_ms = now_ms - config.min_compaction_lag_ms
        young = (segment.base_offset for segment in dirty if segment.largest_timestamp_ms > oldest_ms)
        bound = min(bound, next(young, bound))
    # The bound may lie inside a segment, which then stays as it is.
    bases = [segment.base_offset for segment in segments if segment.base_offset <= bound]
    first_uncleanable = bases[-1] if bases else bound
    going = [segment for segment in dirty if segment.base_offset < first_uncleanable]
    clean = [segment for segment, end in zip(sealed, end_offsets, strict=True) if end <= first_dirty_offset]
    first_times = [segment.first_timestamp_ms for segment in going]
    earliest_ms = min((time for time in first_times if time > 0), default=now_ms)
    return Cleanable(
        first_dirty_offset,
        first_uncleanable,
        sum(segment.size for segment in clean),
        sum(segment.size for segment in going),
        earliest_ms < now_ms - config.max_compaction_lag_ms,
    )


class IndexSizes(Protocol):
    """Bytes of the entries in a segment's offset index and in its time index."""

    @property
    def sizes(self) -> tuple[int, int]: ...


def cleanable_of(log: PartitionLog, now_ms: int) -> Cleanable:
    """Measure a log in its current state. A first dirty offset outside of the log is corrected, durably.

    Raises `DiskFull`, `LogDirOffline`.
    """
    log.check_writable()
    first_dirty_offset = first_dirty(log.first_dirty_offset, log.log_start_offset, log.log_end_offset)
    if first_dirty_offset != log.first_dirty_offset:
        compacted_up_to(log, first_dirty_offset, generation=log.generation)
    return log.guarded(
        lambda: cleanable(
            tuple(log.segments),
            log.config,
            first_dirty_offset=first_dirty_offset,
            last_stable_offset=log.last_stable_offset,
            now_ms=now_ms,
        )
    )


class GroupedSegment(Protocol):
    """The facts that grouping weighs; all sizes in bytes."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def indexes(self) -> IndexSizes: ...


G = TypeVar("G", bound=GroupedSegment)


def group_segments(segments: Iterable[G], config: LogConfig, end_offset: int) -> list[list[G]]:
    """Group runs of `segments` that one segment can replace; `end_offset` follows the last one.

    A run's logs and indexes together fit the limits of one segment, and so do its offsets, as far as the
    next segment's base tells; an empty segment joins any run.
    """
    ordered = list(segments)
    end_offsets = [*(segment.base_offset for segment in ordered[1:]), end_offset]
    groups: list[list[G]] = []
    log_bytes, index_bytes = 0, (0, 0)
    for segment, end in zip(ordered, end_offsets, strict=True):
        sizes = segment.indexes.sizes
        together = index_bytes[0] + sizes[0], index_bytes[1] + sizes[1]
        fits = (
            groups
            and log_bytes + segment.size <= config.segment_bytes
            and max(together) <= config.segment_index_bytes
            and (segment.size == 0 or end - 1 - groups[-1][0].base_offset <= MAX_INT)
        )
        if not fits:
            groups.append([])
            log_bytes, together = 0, sizes
        groups[-1].append(segment)
        log_bytes += segment.size
        index_bytes = together
    return groups
