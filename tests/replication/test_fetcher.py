"""The requests of a follower, and the answers that still apply. Pure."""

from __future__ import annotations

from itertools import count

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.fetcher import Fetcher, FetchState, InFlight, LogFacts, Phase, fetcher_number
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
CONFIG = NodeConfig(node_id=1)
BACKOFF_MS = CONFIG.replica_fetch_backoff_ms


class Asking:
    """A fetcher with what it needs around it."""

    def __init__(self, config: NodeConfig = CONFIG) -> None:
        self.fetcher = Fetcher(0, config)
        self.held_back: set[TopicPartition] = set()
        self._ids = count(1)

    def ask(self, now_ms: int = 0) -> InFlight | None:
        self.fetcher.expire(now_ms)
        return self.fetcher.next_request(
            lambda: next(self._ids),
            7,
            now_ms,
            may_fetch=lambda topic_partition, state: topic_partition not in self.held_back,
            describe=lambda topic_partition: LogFacts(3, "", False),
        )

    def fetch(self, now_ms: int = 0) -> FetchRequest:
        in_flight = self.ask(now_ms)
        assert in_flight is not None
        assert isinstance(in_flight.body, FetchRequest)
        return in_flight.body

    def answered(self, session_id: int) -> None:
        """The answer arrives: it is of this session."""
        assert self.fetcher.in_flight is not None
        self.fetcher.joined(session_id)
        self.fetcher.finish(self.fetcher.in_flight)

    def current(self, in_flight: InFlight) -> list[TopicPartition]:
        """The partitions to which an answer to this request still applies."""
        return [known for known in in_flight.sent if self.fetcher.state_of(in_flight, known) is not None]


def state(offset: int = 10, epoch: int = 2, phase: Phase = Phase.FETCHING) -> FetchState:
    return FetchState(5, offset, epoch, phase)


def test_a_fetch_names_epochs_positions_and_this_life() -> None:
    """KIP-320, KIP-595, KIP-903: current epoch, last fetched epoch, log start, broker epoch."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    in_flight = asking.ask()
    assert in_flight is not None
    assert isinstance(in_flight.body, FetchRequest)
    assert in_flight.body.replica_id == 1
    assert in_flight.body.broker_epoch == 7
    wanted = in_flight.body.partitions[P0]
    assert (wanted.fetch_offset, wanted.current_leader_epoch) == (10, 5)
    assert (wanted.last_fetched_epoch, wanted.log_start_offset) == (2, 3)


def test_1_20_a_fetch_asks_for_what_the_settings_say() -> None:
    """replica.fetch.wait.max.ms, .min.bytes, .max.bytes and .response.max.bytes, read when it is sent."""
    config = NodeConfig(
        node_id=1,
        replica_fetch_wait_max_ms=70,
        replica_fetch_min_bytes=3,
        replica_fetch_max_bytes=5000,
        replica_fetch_response_max_bytes=9000,
    )
    asking = Asking(config)
    asking.fetcher.put(P0, state())
    in_flight = asking.ask()
    assert in_flight is not None
    body = in_flight.body
    assert isinstance(body, FetchRequest)
    assert (body.max_wait_ms, body.min_bytes, body.max_bytes) == (70, 3, 9000)
    assert body.partitions[P0].max_bytes == 5000


def test_one_request_at_a_time() -> None:
    asking = Asking()
    asking.fetcher.put(P0, state())
    first = asking.ask()
    assert first is not None
    assert asking.ask() is None
    assert asking.current(first) == [P0]
    asking.fetcher.finish(first)
    assert asking.ask() is not None


def test_reconciling_comes_before_bounds_and_bounds_before_fetching() -> None:
    """3.1: a partition that does not know its place must not wait behind a parked fetch of another."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    asking.fetcher.put(P1, state(phase=Phase.ASKING_END))
    asking.fetcher.put(P2, state(phase=Phase.TRUNCATING))
    first = asking.ask()
    assert first is not None
    assert isinstance(first.body, OffsetForLeaderEpochRequest)
    assert first.body.partitions[P2].leader_epoch == 2
    assert first.body.partitions[P2].current_leader_epoch == 5
    assert list(first.sent) == [P2]
    asking.fetcher.finish(first)
    asking.fetcher.remove(P2)
    asking.fetcher.put(P0, state(phase=Phase.ASKING_START))
    second = asking.ask()
    assert second is not None
    assert isinstance(second.body, ListOffsetsRequest)
    assert second.body.partitions[P1].timestamp == LATEST_TIMESTAMP
    assert second.body.partitions[P0].timestamp == EARLIEST_TIMESTAMP


def test_an_answer_is_for_the_state_it_was_asked_from() -> None:
    """S16, S17, 6.5: removed, moved or in another epoch since: not for us."""
    asking = Asking()
    for partition in (P0, P1, P2):
        asking.fetcher.put(partition, state())
    in_flight = asking.ask()
    assert in_flight is not None
    asking.fetcher.remove(P0)
    asking.fetcher.put(P0, state())  # the same values, another life
    asking.fetcher.put(P1, state(offset=11))
    assert asking.current(in_flight) == [P2]


def test_a_request_that_concerns_nobody_any_more_is_given_up() -> None:
    """A change of roles must not wait for a fetch that waits at, or was lost on the way to, an old leader."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    old = asking.ask()
    assert old is not None
    asking.fetcher.remove(P0)
    asking.fetcher.put(P0, state())
    new = asking.ask()
    assert new is not None
    assert asking.current(old) == [], "the late answer finds nobody"
    asking.fetcher.finish(old)
    assert asking.fetcher.in_flight is new, "and does not end the request under way"


def test_in_a_session_a_fetch_names_what_changed() -> None:
    """KIP-227: a partition is named once, and again when its position changes; the rest is understood."""
    asking = Asking()
    for partition in (P0, P1, P2):
        asking.fetcher.put(partition, state())
    first = asking.fetch()
    assert (first.session_id, first.session_epoch, len(first.partitions)) == (0, 0, 3)
    asking.answered(7)
    asking.fetcher.put(P1, state(offset=11))
    asking.fetcher.delay(P2, 0)
    second = asking.fetch()
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert (list(second.partitions), second.forgotten) == ([P1], (P2,))
    asking.answered(7)
    third = asking.fetch(BACKOFF_MS)
    assert (third.session_epoch, list(third.partitions), third.forgotten) == (2, [P2], ())
    asking.answered(7)
    fourth = asking.fetch(BACKOFF_MS)
    assert (fourth.session_epoch, fourth.partitions, fourth.forgotten) == (3, {}, ())


def test_a_partition_that_comes_back_is_named_again() -> None:
    """Found by the simulation: the leader had told the high watermark to the former role."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    asking.fetcher.put(P1, state())
    asking.fetch()
    asking.fetcher.remove(P0)
    asking.fetcher.put(P0, state())
    asking.answered(7)
    assert list(asking.fetch().partitions) == [P0]


def test_a_request_without_an_answer_ends_the_session() -> None:
    """The leader may have served it, and moved on to the next epoch, or not."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    asking.fetch()
    asking.answered(7)
    asking.fetch()
    in_flight = asking.fetcher.in_flight
    assert in_flight is not None
    asking.fetcher.give_up(in_flight, 0)
    again = asking.fetch(BACKOFF_MS)
    assert (again.session_id, again.session_epoch, list(again.partitions)) == (7, 0, [P0])


def test_delay_keeps_the_phase() -> None:
    """6.5: UNKNOWN_LEADER_EPOCH and other errors pause a partition in the state it is in."""
    asking = Asking()
    asking.fetcher.put(P0, state(phase=Phase.TRUNCATING))
    asking.fetcher.put(P1, state())
    asking.fetcher.delay(P0, 100)
    in_flight = asking.ask(100)
    assert in_flight is not None
    assert list(in_flight.sent) == [P1], "only the one is delayed"
    asking.fetcher.joined(0)
    asking.fetcher.finish(in_flight)
    asking.fetcher.remove(P1)
    assert asking.ask(100 + BACKOFF_MS - 1) is None
    assert asking.fetcher.deadline_ms == 100 + BACKOFF_MS
    again = asking.ask(100 + BACKOFF_MS)
    assert again is not None
    assert isinstance(again.body, OffsetForLeaderEpochRequest)


def test_an_unanswered_request_times_out_and_all_of_it_pauses() -> None:
    """6.5: request fails: nothing is sent until the back-off is over."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    assert asking.ask(0) is not None
    timeout_ms = CONFIG.request_timeout_ms
    assert asking.fetcher.deadline_ms == timeout_ms
    assert asking.ask(timeout_ms - 1) is None
    assert asking.ask(timeout_ms) is None
    assert asking.ask(timeout_ms + BACKOFF_MS) is not None


def test_partitions_take_turns() -> None:
    """A response has limited room: a partition that got records goes to the back."""
    asking = Asking()
    for partition in (P0, P1):
        asking.fetcher.put(partition, state())
    asking.fetcher.move_to_back(P0)
    in_flight = asking.ask()
    assert in_flight is not None
    assert list(in_flight.sent) == [P1, P0]


def test_a_partition_that_waits_for_its_flush_neither_fetches_nor_wakes() -> None:
    """SYNCED durability: a fetch claims what is below it, so it waits; the flush wakes it, not the clock."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    asking.held_back.add(P0)
    assert asking.ask() is None
    assert asking.fetcher.deadline_ms is None
    asking.held_back.clear()
    assert asking.ask() is not None


def test_without_truncate_on_fetch_the_last_epoch_is_not_named() -> None:
    """Such a follower has reconciled before; the leader is not to judge again."""
    asking = Asking(NodeConfig(node_id=1, truncate_on_fetch=False))
    asking.fetcher.put(P0, state())
    in_flight = asking.ask()
    assert in_flight is not None
    assert isinstance(in_flight.body, FetchRequest)
    assert in_flight.body.partitions[P0].last_fetched_epoch == -1


@pytest.mark.parametrize(
    ("topic", "partition", "count", "number"),
    [
        # Java: "t".hashCode() is 116, "orders".hashCode() -1008770331, and of "polygenelubricants" it is
        # Integer.MIN_VALUE, which has no absolute value: 0.
        ("t", 0, 4, 0),
        ("t", 3, 10, 9),
        ("orders", 0, 7, 6),
        ("polygenelubricants", 0, 5, 0),
        ("anything", 5, 1, 0),
    ],
)
def test_6_5_every_partition_on_thread_hash_mod_n(
    topic: str, partition: int, count: int, number: int
) -> None:
    """3.7: `abs(31 * hash(topic) + partition) mod num.replica.fetchers`, with Java's hash of a text."""
    assert fetcher_number(TopicPartition(topic, partition), count) == number


def test_a_fetch_without_those_that_are_being_flushed_is_not_kept_for_long() -> None:
    """An idle partition beside it held a `synced` one up for `replica.fetch.wait.max.ms` at every batch."""
    asking = Asking()
    asking.fetcher.put(P0, state())
    asking.fetcher.put(P1, state())
    asking.held_back.add(P0)
    in_flight = asking.ask()
    assert in_flight is not None
    assert isinstance(in_flight.body, FetchRequest)
    assert in_flight.body.partitions.keys() == {P1}
    assert in_flight.body.max_wait_ms <= 10
