"""The requests of a follower to one leader, and the state of each partition. Pure.

                    add
                     │ truncate_on_fetch, or no epochs          │ else
                     ▼                                          ▼
    ┌──────────▶ FETCHING ◀──────────────────── done ────── TRUNCATING ─┐ OffsetForLeaderEpoch, truncate,
    │                │  ▲ diverging: truncate, continue           └─────┘ again until it is final
    │   out of range │
    │                ▼
    └─ truncate ─ ASKING_END ── our log is not longer ──▶ ASKING_START ── continue, or restart there

    errors: the same state, delayed · fenced, failed disk: failed, until it is added again

One request is in flight at a time. Every change of a partition makes a new `FetchState`. An answer is valid
only while the partition still has the same object: this drops answers for an older position, an older epoch
or a removed partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.java_hash import java_hash
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

FollowerRequest = FetchRequest | OffsetForLeaderEpochRequest | ListOffsetsRequest

_WAIT_WHILE_FLUSHING_MS = 10
"""The longest wait of a fetch without the partitions whose flush will end soon."""


class Phase(Enum):
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    ASKING_END = "asking for the leader's log end offset"
    ASKING_START = "asking for the leader's log start offset"


@dataclass(frozen=True, slots=True, eq=False)
class FetchState:
    """The state of one partition towards its leader, in one leader epoch."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    phase: Phase
    delayed_until_ms: int = 0

    def is_ready(self, now_ms: int) -> bool:
        return self.delayed_until_ms <= now_ms

    def at(self, fetch_offset: int, last_fetched_epoch: int) -> FetchState:
        """Return the state that fetches from this offset."""
        return FetchState(self.leader_epoch, fetch_offset, last_fetched_epoch, Phase.FETCHING)

    def asking(self, phase: Phase) -> FetchState:
        return replace(self, phase=phase, delayed_until_ms=0)

    def delayed(self, until_ms: int) -> FetchState:
        return replace(self, delayed_until_ms=until_ms)


@dataclass(frozen=True, slots=True)
class InFlight:
    """The request in flight, with the state of each partition that it was built from."""

    correlation_id: int
    deadline_ms: int
    body: FollowerRequest
    sent: Mapping[TopicPartition, FetchState]


class Fetcher:
    """The partitions that this node fetches from one leader, or a share of them."""

    def __init__(self, leader_id: int, config: NodeConfig) -> None:
        self.leader_id = leader_id
        self._config = config
        self._states: dict[TopicPartition, FetchState] = {}
        self._asked_ms = 0
        self.in_flight: InFlight | None = None

    @property
    def states(self) -> Mapping[TopicPartition, FetchState]:
        return self._states

    def put(self, topic_partition: TopicPartition, state: FetchState) -> None:
        """Add a partition, or replace its state; its position in the order stays."""
        self._states[topic_partition] = state

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Drop a partition, and with it a request that has no partitions left."""
        removed = self._states.pop(topic_partition, None) is not None
        if self.in_flight is not None and not any(True for _ in self._current(self.in_flight)):
            mark("fetcher: what was asked concerns nobody any more")
            self.in_flight = None
        return removed

    def move_to_back(self, topic_partition: TopicPartition) -> None:
        """Let the other partitions go first in the next request: a response has limited room."""
        self._states[topic_partition] = self._states.pop(topic_partition)

    def delay(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delay the partition by one back-off, in its current phase."""
        state = self._states[topic_partition]
        self._states[topic_partition] = state.delayed(now_ms + self._config.replica_fetch_backoff_ms)

    def finish(self, in_flight: InFlight) -> list[tuple[TopicPartition, FetchState]]:
        """End the request; returns the partitions whose state has not changed since it was built."""
        if self.in_flight is in_flight:
            self.in_flight = None
        return list(self._current(in_flight))

    def _current(self, in_flight: InFlight) -> Iterator[tuple[TopicPartition, FetchState]]:
        for topic_partition, state in in_flight.sent.items():
            if self._states.get(topic_partition) is state:
                yield topic_partition, state

    def expire(self, now_ms: int) -> None:
        """Give up a request that is overdue, and delay its partitions."""
        if self.in_flight is not None and self.in_flight.deadline_ms <= now_ms:
            mark("fetcher: the leader's answer is overdue")
            for topic_partition, _ in self.finish(self.in_flight):
                self.delay(topic_partition, now_ms)

    def next_request(
        self,
        next_id: Callable[[], int],
        broker_epoch: int,
        now_ms: int,
        *,
        may_fetch: Callable[[TopicPartition, FetchState], bool],
        log_start_of: Callable[[TopicPartition], int],
        is_synced: Callable[[TopicPartition], bool],
        topic_id_of: Callable[[TopicPartition], str],
    ) -> InFlight | None:
        """Return the request to send now; None if one is in flight or nothing is due.

        Reconciling precedes fetching. `may_fetch` is False for a partition whose log is not flushed up to
        the fetch offset; `is_synced` selects the partitions to which that applies.
        """
        self._asked_ms = now_ms
        if self.in_flight is not None:
            return None
        ready = {
            topic_partition: state
            for topic_partition, state in self._states.items()
            if state.is_ready(now_ms)
        }
        body: FollowerRequest
        if sent := _in_phase(ready, Phase.TRUNCATING):
            body = self._epoch_request(sent)
        elif sent := _in_phase(ready, Phase.ASKING_END, Phase.ASKING_START):
            body = self._bounds_request(sent)
        else:
            sent = {
                topic_partition: state
                for topic_partition, state in ready.items()
                if may_fetch(topic_partition, state)
            }
            max_wait_ms = self._config.replica_fetch_wait_max_ms
            if len(sent) < len(ready):
                # The others go with the next request: the leader must not hold this one for long.
                mark("fetcher: a fetch goes without those that are being flushed")
                max_wait_ms = min(max_wait_ms, _WAIT_WHILE_FLUSHING_MS)
            body = self._fetch_request(sent, broker_epoch, max_wait_ms, log_start_of, is_synced, topic_id_of)
        if not sent:
            return None
        self.in_flight = InFlight(next_id(), now_ms + self._config.request_timeout_ms, body, sent)
        return self.in_flight

    def _epoch_request(self, sent: Mapping[TopicPartition, FetchState]) -> OffsetForLeaderEpochRequest:
        return OffsetForLeaderEpochRequest(
            self._config.node_id,
            {
                topic_partition: EpochQuery(state.leader_epoch, state.last_fetched_epoch)
                for topic_partition, state in sent.items()
            },
        )

    def _bounds_request(self, sent: Mapping[TopicPartition, FetchState]) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            self._config.node_id,
            {
                topic_partition: ListOffsetsPartition(
                    LATEST_TIMESTAMP if state.phase is Phase.ASKING_END else EARLIEST_TIMESTAMP,
                    state.leader_epoch,
                )
                for topic_partition, state in sent.items()
            },
        )

    def _fetch_request(
        self,
        sent: Mapping[TopicPartition, FetchState],
        broker_epoch: int,
        max_wait_ms: int,
        log_start_of: Callable[[TopicPartition], int],
        is_synced: Callable[[TopicPartition], bool],
        topic_id_of: Callable[[TopicPartition], str],
    ) -> FetchRequest:
        config = self._config
        return FetchRequest(
            replica_id=config.node_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partitions={
                topic_partition: FetchPartition(
                    state.fetch_offset,
                    config.replica_fetch_max_bytes,
                    current_leader_epoch=state.leader_epoch,
                    last_fetched_epoch=state.last_fetched_epoch if config.truncate_on_fetch else -1,
                    log_start_offset=log_start_of(topic_partition),
                    topic_id=topic_id_of(topic_partition),
                    is_synced=is_synced(topic_partition),
                )
                for topic_partition, state in sent.items()
            },
            broker_epoch=broker_epoch,
        )

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the request in flight expires or the next delayed partition is due."""
        if self.in_flight is not None:
            return self.in_flight.deadline_ms
        # A partition that was due at the last call, but not sent, waits for a flush and not for a time.
        later = (state.delayed_until_ms for state in self._states.values())
        return min((until_ms for until_ms in later if until_ms > self._asked_ms), default=None)


def fetcher_number(topic_partition: TopicPartition, count: int) -> int:
    """Return which of a leader's `count` fetchers has the partition: Kafka's choice, by a Java hash."""
    key = (31 * java_hash(topic_partition.topic) + topic_partition.partition) & 0xFFFFFFFF
    if key >= 1 << 31:
        key = (1 << 32) - key  # the absolute value of a negative int
    return key % (1 << 31) % count


def _in_phase(ready: Mapping[TopicPartition, FetchState], *phases: Phase) -> dict[TopicPartition, FetchState]:
    return {topic_partition: state for topic_partition, state in ready.items() if state.phase in phases}
