"""Flushes of partitions with `synced` durability: at most one under way for each partition."""

from __future__ import annotations

from collections.abc import Callable

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Sync
from logstore.replication.partition import Partition


class Flushes:
    """The flushes under way, and the rule for starting another."""

    def __init__(self, emit: Callable[[Sync], None]) -> None:
        self._emit = emit
        self._under_way: set[TopicPartition] = set()

    def covers(self, partition: Partition, offset: int) -> bool:
        """Whether a fetch may claim `offset` as held. If a flush is missing, request it."""
        if not partition.is_synced or partition.log.recovery_point >= offset:
            return True
        self.want(partition)
        return False

    def want(self, partition: Partition) -> None:
        """Request a flush of what is not durable yet. Requests during a flush share the next one."""
        topic_partition, log = partition.topic_partition, partition.log
        if (
            partition.is_synced
            and log.recovery_point < log.log_end_offset
            and topic_partition not in self._under_way
        ):
            self._under_way.add(topic_partition)
            self._emit(Sync(topic_partition, log.log_end_offset))

    def forget(self, topic_partition: TopicPartition) -> None:
        """End the flush under way, if there is one: it is done, or its replica is gone."""
        self._under_way.discard(topic_partition)
