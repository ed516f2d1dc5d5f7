"""One group's committed offsets: in the log, on their way there, past their use. Pure.

    stage ──▶ the append ──▶ complete    it counts from here on
                       └───▶ fail        as if it had never been

An offset counts once the log has it, never before: who reads it may act on it, and the next coordinator
must know it too. Each remembers the offset of the record that holds it, so that what was written later
wins, in whatever order one hears of it. Removed is what a tombstone has been written for, and only then.

Offsets in transactions are staged by producer until its marker says what becomes of them.
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
    """`record_offset` is that of the batch in `__consumer_offsets` which says so."""

    record_offset: int
    value: OffsetAndMetadata


class Offsets:
    """How far a group has come, partition by partition."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, _Committed] = {}
        self._pending: Counter[TopicPartition] = Counter()
        """How many appends are under way."""
        self._by_producer: dict[int, dict[TopicPartition, _Committed]] = {}
        """What open transactions have committed."""

    @property
    def is_empty(self) -> bool:
        """Nothing is committed, nothing may be soon."""
        return not (self._committed or self._pending or self._by_producer)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Whatever has a record in the log, or may have one soon."""
        open_ones = (each for staged in self._by_producer.values() for each in staged)
        return list(dict.fromkeys((*self._committed, *self._pending, *open_ones)))

    def get(self, topic_partition: TopicPartition) -> OffsetAndMetadata | None:
        found = self._committed.get(topic_partition)
        return found.value if found is not None else None

    def fetch(
        self, wanted: Collection[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, OffsetFetchPartition]:
        """What a group is told; all that is committed for None.

        With `require_stable` a partition whose offset may change at any moment is refused, to be asked again.
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
        """Whether an append or a transaction is about to change it."""
        return topic_partition in self._pending or any(
            topic_partition in staged for staged in self._by_producer.values()
        )

    # --- committing ---------------------------------------------------------------------------

    def stage(self, partitions: Iterable[TopicPartition]) -> None:
        """Their new offsets are being written."""
        self._pending.update(tuple(partitions))  # not a mapping: a Counter would add its values

    def complete(self, values: dict[TopicPartition, OffsetAndMetadata], record_offset: int) -> None:
        """What was staged is in the log, in the batch at `record_offset`."""
        self._unstage(values)
        for topic_partition, value in values.items():
            self.put(topic_partition, value, record_offset)

    def fail(self, partitions: Iterable[TopicPartition]) -> None:
        """What was staged is not in the log, or not known to be."""
        self._unstage(partitions)

    def _unstage(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._pending[topic_partition] -= 1
            if not self._pending[topic_partition]:
                del self._pending[topic_partition]

    def put(self, topic_partition: TopicPartition, value: OffsetAndMetadata, record_offset: int) -> None:
        """The log says so at `record_offset`; what it says later than that stands."""
        known = self._committed.get(topic_partition)
        if known is None or known.record_offset <= record_offset:
            self._committed[topic_partition] = _Committed(record_offset, value)

    def remove(self, partitions: Iterable[TopicPartition], record_offset: int) -> None:
        """Their tombstones are in the log at `record_offset`; what was committed later stays."""
        for topic_partition in partitions:
            known = self._committed.get(topic_partition)
            if known is not None and known.record_offset <= record_offset:
                del self._committed[topic_partition]
            for staged in self._by_producer.values():
                staged.pop(topic_partition, None)

    # --- transactions -------------------------------------------------------------------------

    def put_in_transaction(
        self,
        producer_id: int,
        topic_partition: TopicPartition,
        value: OffsetAndMetadata | None,
        record_offset: int,
    ) -> None:
        """The log says so, if this producer's transaction is committed; None takes it back."""
        staged = self._by_producer.setdefault(producer_id, {})
        if value is None:
            staged.pop(topic_partition, None)
        else:
            staged[topic_partition] = _Committed(record_offset, value)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The marker is in the log: what this producer has staged counts, as of when it was, or is gone."""
        staged = self._by_producer.pop(producer_id, {})
        if is_commit:
            for topic_partition, committed in staged.items():
                self.put(topic_partition, committed.value, committed.record_offset)

    # --- expiry -------------------------------------------------------------------------------

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """What nobody has used for `retention_ms` (KIP-211), or has reached an end of its own.

        An offset is in use while its group has members; if it is stable, only in topics that one of them
        reads. Else it was last used when it was committed, or when the last member left, if that was later.
        What is being committed at this moment stays.
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
