"""Pending requests to each broker: one queue per incarnation, one request in flight.

    enqueue ──► [ entry ][ entry ][ entry ] ──► in flight ──► answered
                  newest       oldest │            │ timeout, disconnect, error
                                      └────────────┘ back to the head, sent again after a back-off

An entry becomes a request: it has a kind (LeaderAndIsr, UpdateMetadata, StopReplica) and partitions. A large
one is sent in parts, one after the other: a broker handles a request in one turn, and serves others between
two. The body is built when it is sent, so it lists the live brokers of that moment. A partition that is
enqueued again is removed from older entries of the same kind: only its last state matters. Requests are sent
until they are answered or the broker's incarnation is gone; a slow broker delays only itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import Send

ControlRequest: TypeAlias = m.LeaderAndIsrRequest | m.UpdateMetadataRequest | m.StopReplicaRequest
ControlResponse: TypeAlias = m.LeaderAndIsrResponse | m.UpdateMetadataResponse | m.StopReplicaResponse

_RESPONSES = {
    m.LeaderAndIsrRequest: m.LeaderAndIsrResponse,
    m.UpdateMetadataRequest: m.UpdateMetadataResponse,
    m.StopReplicaRequest: m.StopReplicaResponse,
}


_METADATA_FACTOR = 10
"""An UpdateMetadata may list that many more partitions: a broker only keeps them."""


@dataclass(slots=True)
class Entry:
    """A future request: its kind, and its content for each partition.

    `is_full`: a LeaderAndIsr that also names every partition of the broker, or an UpdateMetadata that names
    every topic, as of its sending.
    """

    kind: type[ControlRequest]
    partitions: dict[TopicPartition, m.PartitionState | m.StopReplicaPartition] = field(default_factory=dict)
    is_full: bool = False

    def part(self, most: int) -> Entry:
        """Remove and return the first `most` partitions as a separate entry, which takes `is_full` along."""
        first = dict(islice(self.partitions.items(), most))
        for topic_partition in first:
            del self.partitions[topic_partition]
        is_full, self.is_full = self.is_full, False
        return Entry(self.kind, first, is_full)

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> bool:
        """Remove these partitions from the request; return whether it had any of them."""
        # Key views meet in the time of the smaller one: a large entry costs a small one nothing.
        found = self.partitions.keys() & topic_partitions
        for topic_partition in found:
            del self.partitions[topic_partition]
        return bool(found)


class _InFlight(NamedTuple):
    correlation_id: int
    entry: Entry
    deadline_ms: int


class Answer(NamedTuple):
    """A broker's answer that ended a request, and the entry of that request."""

    broker_id: int
    broker_epoch: int
    body: ControlResponse
    entry: Entry


Build: TypeAlias = Callable[[int, int, Entry], m.RequestBody]
"""(broker id, broker epoch, entry) → the request with the present facts."""


class Channel:
    """The queue for one incarnation of one broker."""

    def __init__(self, broker_id: int, broker_epoch: int, config: ControllerConfig) -> None:
        self.broker_id, self.broker_epoch = broker_id, broker_epoch
        self._config = config
        self._queue: deque[Entry] = deque()
        self._in_flight: _InFlight | None = None
        self._not_before_ms = 0

    def enqueue(
        self,
        kind: type[ControlRequest],
        partitions: Mapping[TopicPartition, m.PartitionState | m.StopReplicaPartition],
        *,
        is_full: bool = False,
    ) -> None:
        for entry in self._queue:
            if entry.kind is kind and entry.drop(partitions.keys()):
                mark("channel: a queued state is replaced by a newer one")
        if self._queue and self._queue[-1].kind is kind:
            self._queue[-1].partitions.update(partitions)
            self._queue[-1].is_full |= is_full
        else:
            self._queue.append(Entry(kind, dict(partitions), is_full))
        self._drop_empty()

    def withdraw(self, topic: str, kind: type[ControlRequest] | None = None) -> None:
        """Remove a topic that is gone from requests (of one kind): they would be sent with its namesake's id.

        The request in flight loses it too, because it may be sent again.
        """
        entries = [*self._queue, self._in_flight.entry] if self._in_flight is not None else [*self._queue]
        for entry in entries:
            if kind is None or entry.kind is kind:
                entry.drop([each for each in entry.partitions if each.topic == topic])
        self._drop_empty()

    def _drop_empty(self) -> None:
        # An empty UpdateMetadata still brings the live brokers. But any that waits will bring the list of
        # its own sending: the oldest is enough, and must keep its place in front.
        kept: deque[Entry] = deque()
        metadata_waits = False
        for entry in self._queue:
            is_metadata = entry.kind is m.UpdateMetadataRequest
            if entry.partitions or entry.is_full or (is_metadata and not metadata_waits):
                kept.append(entry)
            metadata_waits |= is_metadata
        self._queue = kept

    def pump(self, now_ms: int, next_id: Callable[[], int], build: Build) -> Send | None:
        """Return the next request, if one is due; an overdue answer is given up first."""
        if self._in_flight is not None and now_ms >= self._in_flight.deadline_ms:
            mark("channel: a request timed out")
            self._take_back(now_ms)
        if self._in_flight is not None or not self._queue or now_ms < self._not_before_ms:
            return None
        entry = self._queue[0]
        most = self._config.partitions_per_request
        if entry.kind is m.UpdateMetadataRequest:
            most *= _METADATA_FACTOR
        if len(entry.partitions) > most:
            mark("channel: a large request is sent in parts")
            entry = entry.part(most)
        else:
            self._queue.popleft()
        body = build(self.broker_id, self.broker_epoch, entry)
        self._in_flight = _InFlight(next_id(), entry, now_ms + self._config.request_timeout_ms)
        return Send(self.broker_id, self._in_flight.correlation_id, body)

    def answered(self, correlation_id: int, body: m.ResponseBody, now_ms: int) -> Answer | None:
        """Take the answer to the request in flight; None if it is another's, or to be sent again."""
        if self._in_flight is None or self._in_flight.correlation_id != correlation_id:
            mark("channel: an outdated answer")
            return None
        if not isinstance(body, _RESPONSES[self._in_flight.entry.kind]):
            self._take_back(now_ms)
            return None
        assert isinstance(body, m.LeaderAndIsrResponse | m.UpdateMetadataResponse | m.StopReplicaResponse)
        if body.error not in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH):
            mark("channel: a broker refuses a request as a whole")
            # STALE_BROKER_EPOCH: its registration is on its way to us. Other errors may pass.
            self._take_back(now_ms)
            return None
        entry, self._in_flight = self._in_flight.entry, None
        return Answer(self.broker_id, self.broker_epoch, body, entry)

    def disconnected(self, correlation_id: int, now_ms: int) -> None:
        if self._in_flight is not None and self._in_flight.correlation_id == correlation_id:
            self._take_back(now_ms)

    def _take_back(self, now_ms: int) -> None:
        assert self._in_flight is not None
        entry = self._in_flight.entry
        for waiting in self._queue:
            if waiting.kind is entry.kind and entry.drop(waiting.partitions.keys()):
                mark("channel: a failed request is not sent again, a newer state is queued")
        self._queue.appendleft(entry)
        self._drop_empty()
        self._in_flight = None
        self._not_before_ms = now_ms + self._config.retry_backoff_ms

    @property
    def deadline_ms(self) -> int | None:
        if self._in_flight is not None:
            return self._in_flight.deadline_ms
        return self._not_before_ms if self._queue else None
