"""How much a micro-batch takes: whether it is due at all, and how far it goes in each partition.

    minOffsetsPerTrigger   wait for so many offsets, but no longer than maxTriggerDelay since the last batch
    maxOffsetsPerTrigger   take about so many, shared out in proportion to the lag

    lag       ████████████████████ 2000      ████ 400      ▏ 3          maxOffsetsPerTrigger=600
    taken     █████ 499                      ▉ 99          ▏ 1

Pure; the rules are those of Spark's own source for Kafka, in whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.offsets import Offsets


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of a trigger, in offsets; None for no limit. `max_delay_ms` belongs to `min_offsets`."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0

    def is_due(self, start: Offsets, end: Offsets, waited_ms: int | None) -> bool:
        """Whether a batch is to be made. `waited_ms` since the last one; None: there was none yet."""
        if self.min_offsets is None or waited_ms is None or waited_ms >= self.max_delay_ms:
            return True
        return sum(lags(start, end).values()) >= self.min_offsets

    def admitted(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Where a batch from `start` ends, no further than `end`."""
        return dict(end) if self.max_offsets is None else within(self.max_offsets, start, end)


def lags(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """How many offsets each partition of `end` is behind it; none where `start` is past it."""
    return {each: max(offset - start[each], 0) for each, offset in end.items()}


def within(limit: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Ends that are about `limit` offsets away from `start`, in proportion to what there is.

    One offset at least of each partition that has any: a small one must not starve beside large ones.
    So there may be more than `limit` where it is smaller than the number of partitions.
    """
    behind = lags(start, end)
    total = sum(behind.values())
    if total <= limit:
        return dict(end)
    return {
        each: start[each] + max(limit * lag // total, 1) if lag else end[each] for each, lag in behind.items()
    }
