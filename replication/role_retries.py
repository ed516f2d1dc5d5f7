"""Roles refused because of a full disk, and the time to request them again.

Nothing has failed, so the role may work later. The pause doubles with each refusal, up to a limit, and starts
over once a role succeeds.
"""

from __future__ import annotations

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition

_LONGEST_PAUSE = 60
"""The longest pause between two attempts, in units of the first pause."""


class RoleRetries:
    """The refused roles, and the time of the next attempt."""

    def __init__(self, first_pause_ms: int) -> None:
        self.deadline_ms: int | None = None
        self._first_pause_ms = self._pause_ms = first_pause_ms
        self._refused: set[TopicPartition] = set()

    def refused(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Note a role that the full disk prevented."""
        mark("replica manager: a role is refused for want of room")
        self._refused.add(topic_partition)
        if self.deadline_ms is None:
            self.deadline_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE * self._first_pause_ms)

    def succeeded(self, topic_partition: TopicPartition) -> None:
        """Record that the partition has space again."""
        if topic_partition in self._refused:
            self._refused.remove(topic_partition)
            self._pause_ms = self._first_pause_ms

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop a partition whose log failed meanwhile."""
        self._refused.discard(topic_partition)

    def is_due(self, now_ms: int) -> bool:
        """Whether to ask for roles now; True once for each deadline."""
        if self.deadline_ms is None or self.deadline_ms > now_ms:
            return False
        self.deadline_ms = None
        return bool(self._refused)
