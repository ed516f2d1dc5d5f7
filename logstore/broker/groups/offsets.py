"""The committed offsets of one group: in the log, being written, expired. Pure.

    stage ──▶ append ──▶ complete    it counts from here on
                   └───▶ fail        as if it had never been

An offset counts once the log has it, never before: a client that reads it may act on it, so the next
coordinator must know it too. Each value remembers the offset of its record, so the later record wins
whatever the order of notices. An offset is removed once its tombstone is written, and only then.

Offsets committed in a transaction are kept by producer until the transaction marker arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from logstore.broker.groups.group import CONSUMER, Group, State
from logstore.broker.groups.records import OffsetAndMetadata
from logstore.broker.groups.requests import OffsetFetchPartition
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

_NONE: Final = OffsetFetchPartition()
_UNSTABLE: Final = OffsetFetchPartition(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)


@dataclass(frozen=True, slots=True)
class _Committed:
    """A committed value; `record_offset` is that of its batch in `__consumer_offsets`."""

    record_offset: int
    value: OffsetAndMetadata


class Offsets:
    """The committed offsets of a group, by partition."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, _Committed] = {}
        self._pending: Counter[TopicPartition] = Counter()
        """How many appends are in flight, by partition."""
        self._by_producer: dict[int, dict[TopicPartition, _Committed]] = {}
        """Offsets committed in open transactions, by producer id."""

    @property
    def is_empty(self) -> bool:
        """Whether no offset is committed and none is being committed."""
        return not (self._committed or self._pending or self._by_producer)

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that have a record in the log, or may have one soon."""
        open_ones = (each for staged in self._by_producer.values() for each in staged)
        return list(dict.fromkeys((*self._committed, *self._pending, *open_ones)))

    @property
    def committed(self) -> list[tuple[TopicPartition, int]]:
        """All partitions with a committed offset, and that offset."""
        return [(each, committed.value.offset) for each, committed in self._committed.items()]

    @property
    def count(self) -> int:
        """The number of committed offsets."""
        return len(self._committed)

    def get(self, topic_partition: TopicPartition) -> OffsetAndMetadata | None:
        found = self._committed.get(topic_partition)
        return found.value if found is not None else None

    def fetch(
        self, wanted: Collection[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, OffsetFetchPartition]:
        """Return the committed offsets of `wanted`; None asks for all.

        With `require_stable` a partition whose offset is being changed gets UNSTABLE_OFFSET_COMMIT (88),
        which clients retry.
        """
        return {
            each: _UNSTABLE if require_stable and self.is_unstable(each) else self._told(each)
            for each in (wanted if wanted is not None else self._committed)
        }

    def _told(self, topic_partition: TopicPartition) -> OffsetFetchPartition:
        value = self.get(topic_partition)
        if value is None:
            return _NONE
        return OffsetFetchPartition(
            committed_offset=value.offset, committed_leader_epoch=value.leader_epoch, metadata=value.metadata
        )

    def is_unstable(self, topic_partition: TopicPartition) -> bool:
        """Return whether an append or an open transaction may change the offset."""
        return topic_partition in self._pending or any(
            topic_partition in staged for staged in self._by_producer.values()
        )

    # --- committing ---------------------------------------------------------------------------

    def stage(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that new offsets of these partitions are being written."""
        self._pending.update(tuple(partitions))  # not a mapping: a Counter would add its values

    def complete(self, values: dict[TopicPartition, OffsetAndMetadata], record_offset: int) -> None:
        """Commit staged values: the log has them in the batch at `record_offset`."""
        self._unstage(values)
        for topic_partition, value in values.items():
            self.put(topic_partition, value, record_offset)

    def fail(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop staged values: they are not known to be in the log."""
        self._unstage(partitions)

    def _unstage(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._pending[topic_partition] -= 1
            if not self._pending[topic_partition]:
                del self._pending[topic_partition]

    def put(self, topic_partition: TopicPartition, value: OffsetAndMetadata, record_offset: int) -> None:
        """Take a value that the log has at `record_offset`, unless a later one is known."""
        known = self._committed.get(topic_partition)
        if known is None or known.record_offset <= record_offset:
            self._committed[topic_partition] = _Committed(record_offset, value)

    def remove(self, partitions: Iterable[TopicPartition], record_offset: int) -> None:
        """Remove offsets, also of open transactions, that were committed up to `record_offset`."""
        for topic_partition in partitions:
            self.take_tombstone(topic_partition, record_offset)
            for staged in self._by_producer.values():
                staged.pop(topic_partition, None)

    def take_tombstone(self, topic_partition: TopicPartition, record_offset: int) -> None:
        """Take a tombstone that the log has at `record_offset`: later commits stay, and open transactions."""
        known = self._committed.get(topic_partition)
        if known is not None and known.record_offset <= record_offset:
            del self._committed[topic_partition]

    # --- transactions -------------------------------------------------------------------------

    def put_in_transaction(
        self,
        producer_id: int,
        topic_partition: TopicPartition,
        value: OffsetAndMetadata | None,
        record_offset: int,
    ) -> None:
        """Take a value of an open transaction; None removes the staged value."""
        staged = self._by_producer.setdefault(producer_id, {})
        if value is None:
            staged.pop(topic_partition, None)
        else:
            staged[topic_partition] = _Committed(record_offset, value)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or drop what this producer has staged: its transaction marker is in the log."""
        staged = self._by_producer.pop(producer_id, {})
        if is_commit:
            for topic_partition, committed in staged.items():
                self.put(topic_partition, committed.value, committed.record_offset)

    # --- expiry -------------------------------------------------------------------------------

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Return the offsets that are unused for `retention_ms` (KIP-211) or past their own expiry time.

        An offset is in use while its group has members; in a stable group, only in topics that a member
        subscribes to. Otherwise it was last used when it was committed, or when the last member left, if
        that was later. Offsets that are being committed stay.
        """
        idle_since_ms, some_are_read = -1, False
        if group.protocol_type is not None:
            if group.state is State.EMPTY:
                idle_since_ms = group.state_timestamp_ms
            elif group.state is State.STABLE and group.protocol_type == CONSUMER:
                some_are_read = True
            else:
                return []
        return [
            each
            for each, committed in self._committed.items()
            if each not in self._pending
            and not (some_are_read and group.reads(each.topic))
            and now_ms >= _end_ms(committed.value, idle_since_ms, retention_ms)
        ]


def _end_ms(value: OffsetAndMetadata, idle_since_ms: int, retention_ms: int) -> int:
    if value.expire_timestamp_ms >= 0:
        return value.expire_timestamp_ms
    return max(idle_since_ms, value.commit_timestamp_ms) + retention_ms
