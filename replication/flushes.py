"""Flushes outside the engine's thread: at most one at a time for each partition.

With `synced` durability everything appended is flushed. Otherwise a flush keeps a roll short: a segment is
synced before the next one is made, in the engine's thread, and by then only its last bytes may be left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Sync
from logstore.replication.partition import Partition
from logstore.segment.segment import Segment

AHEAD_BYTES: Final = 16 << 20
"""Unsynced bytes of an active segment after which it is flushed."""
AHEAD_NEAR_THE_END_BYTES: Final = 2 << 20
"""The same for a segment that will soon be full."""


def is_flush_due(active: Segment) -> bool:
    """Return whether a roll would have so much to sync that the segment is flushed before."""
    is_near_the_end = active.size > active.config.segment_bytes - AHEAD_BYTES
    least = AHEAD_NEAR_THE_END_BYTES if is_near_the_end else AHEAD_BYTES
    return active.size - active.synced_bytes >= least


class Flushes:
    """The flushes under way, and the rule for starting another."""

    def __init__(self, emit: Callable[[Sync], None]) -> None:
        self._emit = emit
        self._under_way: set[TopicPartition] = set()
        self._ahead: TopicPartition | None = None
        """The one flushed ahead of its roll. One at a time: `synced` partitions need the threads too."""

    def covers(self, partition: Partition, offset: int) -> bool:
        """Whether a fetch may claim `offset` as held. If a flush is missing, request it."""
        if partition.is_synced and partition.log.recovery_point >= offset:
            return True
        self.want(partition)
        return not partition.is_synced

    def want(self, partition: Partition) -> None:
        """Request a flush if one is due. Requests during a flush share the next one."""
        topic_partition, log = partition.topic_partition, partition.log
        if partition.is_synced:
            is_due = log.recovery_point < log.log_end_offset
        else:
            is_due = self._ahead is None and is_flush_due(log.segments.active)
        if not is_due or topic_partition in self._under_way:
            return
        if not partition.is_synced:
            self._ahead = topic_partition
        self._under_way.add(topic_partition)
        self._emit(Sync(topic_partition, log.log_end_offset))

    def demand(self, topic_partition: TopicPartition, end_offset: int) -> None:
        """Request a flush, due or not, unless one is in progress; the end of that one is reported too."""
        if topic_partition not in self._under_way:
            self._under_way.add(topic_partition)
            self._emit(Sync(topic_partition, end_offset))

    def forget(self, topic_partition: TopicPartition) -> None:
        """End the flush under way, if there is one: it is done, or its replica is gone."""
        self._under_way.discard(topic_partition)
        if self._ahead == topic_partition:
            self._ahead = None
