"""Since when something is wrong, as a broker has seen it."""

from __future__ import annotations

from typing import Any

from logstore.broker.since import Since
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import BEING_DELETED, BrokerEndpoint, PartitionState, UpdateMetadataRequest
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.state_change import Side, StateChange

ORDERS = TopicPartition("orders", 0)


def change(
    time_ms: int, leader: int, isr: tuple[int, ...], reason: str, side: Side = Side.CONTROLLER
) -> StateChange:
    return StateChange(time_ms, 1, side, 1, ORDERS, "changes", leader, 1, 1, isr, (1, 2), reason)


def metadata(cache: MetadataCache, live: tuple[int, ...], leader: int, isr: tuple[int, ...]) -> MetadataCache:
    state = PartitionState(1, leader, cache.updates + 1, isr, cache.updates + 1, (1, 2))
    endpoints = tuple(BrokerEndpoint(broker, "host", 9092, 1) for broker in live)
    cache.update(UpdateMetadataRequest(1, 1, -1, {ORDERS: state}, endpoints))
    return cache


def test_a_broker_that_left_and_came_back() -> None:
    since, cache = Since(), MetadataCache()
    since.look(metadata(cache, (1, 2), 1, (1, 2)), 1_000)
    since.look(metadata(cache, (1,), 1, (1, 2)), 5_000)
    since.look(cache, 9_000)
    assert since.troubled(cache) == [t.SinceWhen(name="broker 2", since_ms=5_000)]
    since.look(metadata(cache, (1, 2), 1, (1, 2)), 10_000)
    assert since.troubled(cache) == []


def test_departures_of_the_last_minutes() -> None:
    since, cache = Since(), MetadataCache()
    for minute in range(0, 30, 4):
        since.look(metadata(cache, (1, 2), 1, (1, 2)), minute * 60_000)
        since.look(metadata(cache, (1,), 1, (1, 2)), (minute + 2) * 60_000)
    (told,) = since.departures(30 * 60_000)
    assert (told.broker, told.times_ms) == (2, [1_320_000, 1_560_000, 1_800_000])
    assert since.departures(40 * 60_000) == []


def test_the_first_of_decisions_that_change_nothing_counts() -> None:
    since, cache = Since(), MetadataCache()
    since.on_change(change(1_000, 1, (1, 2), "it is new"))
    since.on_change(change(2_000, 1, (1,), "broker 2 fell behind"))
    since.on_change(change(3_000, 1, (1,), "said again"))
    since.on_change(change(4_000, -1, (), "what a broker did", Side.BROKER))
    since.look(metadata(cache, (1, 2), 1, (1,)), 5_000)
    (told,) = since.troubled(cache)
    assert (told.name, told.since_ms, told.reason) == ("orders-0", 2_000, "broker 2 fell behind")
    since.look(metadata(cache, (1, 2), 1, (1, 2)), 6_000)
    assert since.troubled(cache) == [], "another broker made it whole"


def test_partitions_are_compared_only_when_one_was_deleted() -> None:
    """With 20,000 of them each change of one ISR held the controller's event loop for 4.5 ms."""

    class Watched(dict[TopicPartition, PartitionState]):
        looks = 0

        def keys(self) -> Any:
            self.looks += 1
            return super().keys()

    since, cache = Since(), MetadataCache()
    cache.partitions = watched = Watched()
    since.on_change(change(1_000, 1, (1,), "broker 2 fell behind"))
    for time_ms in range(2_000, 5_000, 1_000):
        since.look(metadata(cache, (1, 2), 1, (1,)), time_ms)
    assert (watched.looks, len(since.troubled(cache))) == (0, 1)
    since.look(metadata(cache, (1, 2), BEING_DELETED, ()), 5_000)
    metadata(cache, (1, 2), 1, (1,))
    assert since.troubled(cache) == [], "of a former topic"
