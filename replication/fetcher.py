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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.fetch_sessions import next_epoch
from logstore.replication.java_hash import absolute, java_hash
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    FIRST_SESSION_EPOCH,
    LATEST_TIMESTAMP,
    NO_SESSION,
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

    def at(self, fetch_offset: int, last_fetched_epoch: int) -> FetchState:
        """Return the state that fetches from this offset."""
        return FetchState(self.leader_epoch, fetch_offset, last_fetched_epoch, Phase.FETCHING)

    def asking(self, phase: Phase) -> FetchState:
        return replace(self, phase=phase, delayed_until_ms=0)

    def delayed(self, until_ms: int) -> FetchState:
        return replace(self, delayed_until_ms=until_ms)


@dataclass(frozen=True, slots=True)
class InFlight:
    """The request in flight, with the state of each partition that it was built from.

    For a fetch these are all partitions of its session, whether it names them or not.
    """

    correlation_id: int
    deadline_ms: int
    body: FollowerRequest
    sent: Mapping[TopicPartition, FetchState]


class LogFacts(NamedTuple):
    """The facts about the follower's log that a fetch states."""

    log_start_offset: int
    topic_id: str
    is_synced: bool


class Fetcher:
    """The partitions that this node fetches from one leader, or a share of them.

    A fetch is part of a session (KIP-227): after a full request, the next ones name only partitions that
    changed. So the cost of a request depends on what changed, not on how many partitions there are.
    """

    def __init__(self, leader_id: int, config: NodeConfig) -> None:
        self.leader_id = leader_id
        self.in_flight: InFlight | None = None
        self._config = config
        self._states: dict[TopicPartition, FetchState] = {}
        self._truncating: dict[TopicPartition, None] = {}
        self._asking: dict[TopicPartition, None] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Partitions whose place in the session may have to change."""
        self._delayed: list[tuple[int, int, TopicPartition, FetchState]] = []
        self._paused: set[TopicPartition] = set()
        """Partitions whose delay has not ended. The clock may step back: an ended delay stays ended."""
        self._sequence = 0
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_SESSION_EPOCH
        """The epoch of the next fetch."""
        self._in_session: dict[TopicPartition, FetchState] = {}
        self._told: dict[TopicPartition, FetchPartition] = {}
        """The last description of each partition that the leader got in the session."""
        self._current = 0
        """How many partitions of the request in flight still have the state it was built from."""

    @property
    def states(self) -> Mapping[TopicPartition, FetchState]:
        return self._states

    def put(self, topic_partition: TopicPartition, state: FetchState) -> None:
        """Add a partition, or replace its state; its position in the order stays."""
        if self._states.get(topic_partition) is state:
            return
        self._states[topic_partition] = state
        self._changed[topic_partition] = None
        self._truncating.pop(topic_partition, None)
        self._asking.pop(topic_partition, None)
        if state.delayed_until_ms:
            self._sequence += 1
            heappush(self._delayed, (state.delayed_until_ms, self._sequence, topic_partition, state))
            self._paused.add(topic_partition)
        else:
            self._queue(topic_partition, state)

    def _queue(self, topic_partition: TopicPartition, state: FetchState) -> None:
        self._changed[topic_partition] = None
        self._paused.discard(topic_partition)
        if state.phase is Phase.TRUNCATING:
            self._truncating[topic_partition] = None
        elif state.phase is not Phase.FETCHING:
            self._asking[topic_partition] = None

    def touch(self, topic_partition: TopicPartition) -> None:
        """Tell the leader if the partition's log start, topic id or durability level has changed."""
        if topic_partition in self._states:
            self._changed[topic_partition] = None

    def ask_again(self, topic_partition: TopicPartition) -> None:
        """Name the partition in the next fetch, because an answer about it was dropped."""
        self._told.pop(topic_partition, None)
        self.touch(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Drop a partition, and with it a request that has no partitions left."""
        state = self._states.pop(topic_partition, None)
        if state is None:
            return False
        self._changed[topic_partition] = None
        self._paused.discard(topic_partition)
        self._told.pop(topic_partition, None)  # if it comes back, its log may know less than before
        self._truncating.pop(topic_partition, None)
        self._asking.pop(topic_partition, None)
        if self.in_flight is not None and self.in_flight.sent.get(topic_partition) is state:
            self._current -= 1
            if not self._current:
                mark("fetcher: what was asked concerns nobody any more")
                self._give_up(self.in_flight)
        return True

    def move_to_back(self, topic_partition: TopicPartition) -> None:
        """Put the partition last in the next full request, because a response has a limited size."""
        self._states[topic_partition] = self._states.pop(topic_partition)

    def delay(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delay the partition by one back-off, in its current phase."""
        state = self._states[topic_partition]
        self.put(topic_partition, state.delayed(now_ms + self._config.replica_fetch_backoff_ms))

    def hold_back(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Leave a partition out of the next fetch, and of later ones for a back-off."""
        state = self._states.get(topic_partition)
        if self.in_flight is not None or state is None or state.phase is not Phase.FETCHING:
            return
        if topic_partition not in self._paused or state.delayed_until_ms <= now_ms:
            self.delay(topic_partition, now_ms)

    # --- the end of a request -----------------------------------------------------------------

    def finish(self, in_flight: InFlight) -> None:
        """End the request, because its answer has arrived."""
        if self.in_flight is in_flight:
            self.in_flight = None

    def give_up(self, in_flight: InFlight, now_ms: int) -> None:
        """End the request without an answer, and delay its partitions. The next fetch starts a session."""
        current = [known for known, state in in_flight.sent.items() if self._states.get(known) is state]
        self._give_up(in_flight)
        for topic_partition in current:
            self.delay(topic_partition, now_ms)

    def _give_up(self, in_flight: InFlight) -> None:
        self.finish(in_flight)
        if isinstance(in_flight.body, FetchRequest):
            # The leader may have served it, or may yet.
            self.restart_session(self._session_id)

    def restart_session(self, session_id: int = NO_SESSION) -> None:
        """Fetch in full next time; the leader then closes the session with this id, if it has it."""
        self._session_id, self._session_epoch = session_id, FIRST_SESSION_EPOCH
        self._in_session, self._told = {}, {}
        self._changed = dict.fromkeys(self._states)

    def joined(self, session_id: int) -> None:
        """Take over the session of a response; 0 for none."""
        if session_id == NO_SESSION:
            self.restart_session()
        else:
            self._session_id = session_id
            self._session_epoch = next_epoch(self._session_epoch)

    def state_of(self, in_flight: InFlight, topic_partition: TopicPartition) -> FetchState | None:
        """Return the state that the request was built from, if the partition still has it."""
        state = in_flight.sent.get(topic_partition)
        return state if state is not None and self._states.get(topic_partition) is state else None

    def expire(self, now_ms: int) -> None:
        """Give up a request that is overdue, and delay its partitions."""
        if self.in_flight is not None and self.in_flight.deadline_ms <= now_ms:
            mark("fetcher: the leader's answer is overdue")
            self.give_up(self.in_flight, now_ms)

    # --- the next request ---------------------------------------------------------------------

    def next_request(
        self,
        next_id: Callable[[], int],
        broker_epoch: int,
        now_ms: int,
        *,
        may_fetch: Callable[[TopicPartition, FetchState], bool],
        describe: Callable[[TopicPartition], LogFacts],
    ) -> InFlight | None:
        """Return the request to send now; None if one is in flight or nothing is due.

        Reconciling precedes fetching. `may_fetch` is False for a partition whose log is not flushed up to
        the fetch offset.
        """
        if self.in_flight is not None:
            return None
        self._end_delays(now_ms)
        body: FollowerRequest
        sent: Mapping[TopicPartition, FetchState]
        if self._truncating:
            sent = {known: self._states[known] for known in self._truncating}
            body = self._epoch_request(sent)
        elif self._asking:
            sent = {known: self._states[known] for known in self._asking}
            body = self._bounds_request(sent)
        else:
            body = self._fetch_request(broker_epoch, may_fetch, describe)
            sent = self._in_session
        if not sent and not (isinstance(body, FetchRequest) and body.forgotten):
            return None
        self._current = len(sent)
        self.in_flight = InFlight(next_id(), now_ms + self._config.request_timeout_ms, body, sent)
        return self.in_flight

    def _end_delays(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, topic_partition, state = heappop(self._delayed)
            if self._states.get(topic_partition) is state:
                self._queue(topic_partition, state)

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
        broker_epoch: int,
        may_fetch: Callable[[TopicPartition, FetchState], bool],
        describe: Callable[[TopicPartition], LogFacts],
    ) -> FetchRequest:
        config = self._config
        changed, self._changed = self._changed, {}
        if self._session_epoch == FIRST_SESSION_EPOCH and changed:
            changed = dict.fromkeys(known for known in self._states if known in changed)
        partitions: dict[TopicPartition, FetchPartition] = {}
        forgotten: list[TopicPartition] = []
        max_wait_ms = config.replica_fetch_wait_max_ms
        for topic_partition in changed:
            state = self._states.get(topic_partition)
            is_due = state is not None and topic_partition not in self._paused
            if state is not None and is_due and state.phase is Phase.FETCHING:
                if may_fetch(topic_partition, state):
                    wanted = self._wanted(state, describe(topic_partition))
                    if self._told.get(topic_partition) != wanted:
                        partitions[topic_partition] = self._told[topic_partition] = wanted
                    self._in_session[topic_partition] = state
                    continue
                # It goes with a later request: the leader must not hold this one for long.
                mark("fetcher: a fetch goes without those that are being flushed")
                max_wait_ms = min(max_wait_ms, _WAIT_WHILE_FLUSHING_MS)
                self._changed[topic_partition] = None
            if self._in_session.pop(topic_partition, None) is not None:
                self._told.pop(topic_partition, None)
                forgotten.append(topic_partition)
        return FetchRequest(
            replica_id=config.node_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partitions=partitions,
            broker_epoch=broker_epoch,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            forgotten=tuple(forgotten),
            uses_ids=True,
        )

    def _wanted(self, state: FetchState, facts: LogFacts) -> FetchPartition:
        return FetchPartition(
            state.fetch_offset,
            self._config.replica_fetch_max_bytes,
            current_leader_epoch=state.leader_epoch,
            last_fetched_epoch=state.last_fetched_epoch if self._config.truncate_on_fetch else -1,
            log_start_offset=facts.log_start_offset,
            topic_id=facts.topic_id,
            is_synced=facts.is_synced,
        )

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the request in flight expires or the next delayed partition is due."""
        if self.in_flight is not None:
            return self.in_flight.deadline_ms
        while self._delayed and self._states.get(self._delayed[0][2]) is not self._delayed[0][3]:
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None


def fetcher_number(topic_partition: TopicPartition, count: int) -> int:
    """Return which of a leader's `count` fetchers has the partition: Kafka's choice, by a Java hash."""
    key = (31 * java_hash(topic_partition.topic) + topic_partition.partition) & 0xFFFFFFFF
    return absolute(key) % count
