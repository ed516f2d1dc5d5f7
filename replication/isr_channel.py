"""ISR proposals to the controller: one request in flight, one proposal for each partition.

    submit ─▶ queue ─▶ AlterPartition to the active controller ─▶ answer to the partition
                 ▲                      │
                 └── after a pause ─────┘ no answer, no longer the controller, stale broker epoch
                     at once: another controller was elected

A proposal stays queued until it is answered by name. Its pending ISR state comes back with the answer, so
that a late answer is recognized by identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.isr import PendingIsr
from logstore.replication.messages import AlterPartitionRequest, AlterPartitionResponse, AlterPartitionResult


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request under way, and the proposals in it."""

    correlation_id: int
    deadline_ms: int
    sent: dict[TopicPartition, PendingIsr]


class IsrChannel:
    """The queue and its one request."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.queue: dict[TopicPartition, PendingIsr] = {}
        """The proposals that are not answered yet. For reading."""
        self.in_flight: InFlight | None = None
        """The request that is not answered yet. For reading."""
        self._not_before_ms = 0

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the request expires or the next one is due; None if nothing is queued."""
        if self.in_flight is not None:
            return self.in_flight.deadline_ms
        return self._not_before_ms if self.queue else None

    def submit(self, topic_partition: TopicPartition, pending: PendingIsr) -> None:
        """Queue a proposal in place of any other for this partition.

        A replaced proposal belongs to an ISR state that is gone: a partition proposes only while nothing is
        pending. If the replaced one is in flight, this one is sent after its answer.
        """
        self.queue[topic_partition] = pending

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Drop a proposal whose ISR state was replaced. One in flight may still be applied."""
        if self.queue.pop(topic_partition, None) is not None:
            mark("isr channel: a proposal is withdrawn")

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Whether a proposal for this partition waits to be sent or answered."""
        return topic_partition in self.queue

    def owns(self, correlation_id: int) -> bool:
        """Whether the request in flight has this correlation id."""
        return self.in_flight is not None and self.in_flight.correlation_id == correlation_id

    def next_request(
        self, next_id: Callable[[], int], broker_epoch: int, now_ms: int
    ) -> tuple[int, AlterPartitionRequest] | None:
        """Return correlation id and body of the request to send now, if any; it is then in flight."""
        if self.in_flight is not None and self.in_flight.deadline_ms <= now_ms:
            mark("isr channel: an answer is overdue")
            self._retry_later(now_ms)
        if self.in_flight is not None or not self.queue or now_ms < self._not_before_ms or broker_epoch < 0:
            return None
        sent = dict(self.queue)
        correlation_id = next_id()
        self.in_flight = InFlight(correlation_id, now_ms + self._config.request_timeout_ms, sent)
        return correlation_id, AlterPartitionRequest(
            self._config.node_id,
            broker_epoch,
            {topic_partition: pending.proposal for topic_partition, pending in sent.items()},
        )

    def on_response(
        self, body: AlterPartitionResponse, now_ms: int
    ) -> list[tuple[TopicPartition, PendingIsr, AlterPartitionResult]]:
        """Return the answers, each with its pending state; answered proposals leave the queue."""
        assert self.in_flight is not None, "ask owns() first"
        sent = self.in_flight.sent
        if body.error is not ErrorCode.NONE:
            mark("isr channel: a request was refused as a whole")
            self._retry_later(now_ms)
            return []
        self.in_flight = None
        answers = []
        for topic_partition, pending in sent.items():
            result = body.partitions.get(topic_partition)
            if result is None:
                self._not_before_ms = now_ms + self._config.alter_partition_retry_ms
                continue
            if self.queue.get(topic_partition) is pending:
                del self.queue[topic_partition]
            answers.append((topic_partition, pending, result))
        return answers

    def resend(self, topic_partition: TopicPartition, pending: PendingIsr, now_ms: int) -> None:
        """Queue the same proposal again, after a pause."""
        self.queue.setdefault(topic_partition, pending)
        self._not_before_ms = now_ms + self._config.alter_partition_retry_ms

    def on_disconnected(self, now_ms: int) -> None:
        """Send the same proposals again: the request may have been applied, or not."""
        mark("isr channel: a connection broke")
        self._retry_later(now_ms)

    def on_new_controller(self) -> None:
        """Send to the new controller at once; the old one may never answer."""
        if self.in_flight is not None:
            mark("isr channel: what was under way goes to a new controller")
        self.in_flight = None
        self._not_before_ms = 0

    def _retry_later(self, now_ms: int) -> None:
        self.in_flight = None
        self._not_before_ms = now_ms + self._config.alter_partition_retry_ms
