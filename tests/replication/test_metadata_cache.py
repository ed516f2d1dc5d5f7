"""The metadata cache of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import InProcessCluster
from logstore.replication.driver import three_nodes
from logstore.replication.messages import (
    BrokerEndpoint,
    DeleteTopicsRequest,
    MetadataRequest,
    NewTopic,
    PartitionState,
    UpdateMetadataRequest,
)
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.operations import Create, Delete, Operation

TP = TopicPartition("t", 0)


def state(leader: int, epoch: int, version: int = 0) -> PartitionState:
    return PartitionState(1, leader, epoch, (0, 1), version, (0, 1))


def update(
    partitions: Mapping[TopicPartition, PartitionState],
    brokers: tuple[int, ...] = (0, 1),
    topic_ids: Mapping[str, str] | None = None,
) -> UpdateMetadataRequest:
    live = tuple(BrokerEndpoint(broker, epoch=10 + broker) for broker in brokers)
    return UpdateMetadataRequest(7, 1, -1, partitions, live, topic_ids or {})


def test_brokers_are_replaced_and_partitions_merged() -> None:
    cache = MetadataCache()
    cache.update(update({TP: state(0, 1)}))
    assert (cache.controller_id, cache.leader_of(TP)) == (7, 0)
    assert (cache.is_alive(1), cache.broker_epoch(1)) == (True, 11)
    cache.update(update({}, brokers=(0,)))
    assert cache.leader_of(TP) == 0
    assert (cache.is_alive(1), cache.broker_epoch(1)) == (False, -1)


def test_an_older_state_does_not_replace_a_newer_one() -> None:
    """Updates may arrive in another order."""
    cache = MetadataCache()
    cache.update(update({TP: state(1, 5, 9)}))
    cache.update(update({TP: state(0, 4, 8)}))
    assert cache.leader_of(TP) == 1


def test_a_deleted_topic_leaves_the_cache() -> None:
    """Leader -2."""
    cache = MetadataCache()
    cache.update(update({TP: state(1, 5)}))
    assert cache.update(update({TP: state(-2, 5)})) == [TP]
    assert cache.leader_of(TP) == -1
    assert not cache.partitions


def test_the_id_of_a_deleted_topic_is_forgotten_with_its_last_partition() -> None:
    """Else the cache grows with every topic that there ever was, and a deleted one still has settings."""
    cache = MetadataCache()
    second = TopicPartition("t", 1)
    cache.update(update({TP: state(1, 5), second: state(1, 5)}, topic_ids={"t": "first"}))
    cache.update(update({second: state(-2, 5)}, topic_ids={"t": "first"}))
    assert (cache.topic_ids, cache.topic_names) == ({"t": "first"}, {"first": "t"})
    cache.update(update({TP: state(-2, 5)}, topic_ids={"t": "first"}))
    assert (cache.topic_ids, cache.topic_names) == ({}, {})


def test_a_new_incarnation_of_a_topic_starts_its_epochs_anew() -> None:
    """S59: without topic ids epoch 0 of the new topic would look old for ever."""
    cache = MetadataCache()
    cache.update(update({TP: state(1, 5)}, topic_ids={"t": "first"}))
    cache.update(update({TP: state(0, 0)}, topic_ids={"t": "second"}))
    assert cache.leader_of(TP) == 0


def test_a_replaced_topic_is_a_deleted_one() -> None:
    """Offsets committed for the old topic must not count for the new one."""
    cache = MetadataCache()
    other = TopicPartition("u", 0)
    cache.update(update({TP: state(1, 5), other: state(1, 5)}, topic_ids={"t": "first", "u": "other"}))
    assert not cache.deleted
    assert cache.update(update({TP: state(0, 0)}, topic_ids={"t": "second"})) == []
    replaced = cache.deleted
    assert replaced == (TP,)
    cache.update(update({TP: state(0, 1), other: state(1, 6)}, topic_ids={"t": "second", "u": "other"}))
    assert cache.deleted is replaced, "once"
    cache.update(update({other: state(-2, 6)}, topic_ids={"t": "third"}))
    assert set(cache.deleted) == {TP, other}
    assert cache.topic_ids == {"t": "third"}


def test_a_node_that_was_away_learns_of_a_deletion_by_the_new_topic() -> None:
    """It may be the coordinator of groups that had read the old one."""
    disks = {node_id: MemoryDisk() for node_id in range(3)}
    made = InProcessCluster(three_nodes(), disk_of=disks.__getitem__)
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1),)))
    cache = made.nodes[2].replicas.metadata
    assert made.run_until(lambda: TP in cache.partitions)
    made.isolate(2)
    others = made.nodes[0].replicas.metadata
    assert made.run_until(lambda: 2 not in others.brokers)
    made.administer(DeleteTopicsRequest(("t",)))
    assert made.run_until(lambda: TP not in others.partitions)
    made.advance(10_000)
    made.create_topic(NewTopic("t", assignment=((0, 1),)))
    assert not cache.deleted
    made.heal()
    assert made.run_until(lambda: cache.topic_ids == others.topic_ids)
    assert cache.deleted == (TP,)


def test_a_topic_that_a_full_list_does_not_name_is_a_deleted_one() -> None:
    cache = MetadataCache()
    other = TopicPartition("u", 0)
    cache.update(update({TP: state(1, 5), other: state(1, 5)}, topic_ids={"t": "first", "u": "other"}))
    # A large list comes in parts: only the first one is full, and it names what the others bring.
    assert cache.update(replace(update({}), all_topics=("u", "v"))) == []
    assert cache.deleted == (TP,)
    assert cache.partitions == {other: state(1, 5)}
    assert (cache.topic_ids, cache.topic_names) == ({"u": "other"}, {"other": "u"})
    cache.update(replace(update({}), all_topics=()))
    assert (cache.partitions, cache.topics, cache.topic_ids) == ({}, {}, {})


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_a_node_that_was_away_learns_of_a_deletion_when_it_is_back(is_unreadable: bool) -> None:
    """It holds no replica of the topic. A list of topics is not sent while one of them cannot be read."""
    disks = {node_id: MemoryDisk() for node_id in range(3)}
    made = InProcessCluster(three_nodes(), disk_of=disks.__getitem__)
    made.start()
    for topic in ("t", "kept"):
        made.create_topic(NewTopic(topic, assignment=((0, 1),)))
    cache, others = made.nodes[2].replicas.metadata, made.nodes[0].replicas.metadata
    assert made.run_until(lambda: {"t", "kept"} == cache.topics.keys())
    made.isolate(2)
    assert made.run_until(lambda: 2 not in others.brokers)
    made.administer(DeleteTopicsRequest(("t",)))
    assert made.run_until(lambda: TP not in others.partitions)

    session_id = made.store.open_session(600_000, made.now_ms)

    def by_hand(operation: Operation) -> None:
        outcome, fired = made.store.call(session_id, operation, made.now_ms)
        assert not isinstance(outcome, Exception)
        made.store_link.fire(fired)
        made.advance(10_000)

    made.advance(10_000)  # the deletion ends
    if is_unreadable:
        by_hand(Create("/brokers/topics/broken", b"{"))
    made.heal()
    assert made.run_until(lambda: 2 in others.brokers and cache.brokers == others.brokers)
    made.advance(10_000)
    assert cache.topics.keys() == ({"t", "kept"} if is_unreadable else {"kept"})
    if is_unreadable:
        by_hand(Delete("/brokers/topics/broken"))
    assert cache.topics.keys() == {"kept"}
    assert cache.deleted == (TP,)


def test_a_client_is_told_what_it_asks_for() -> None:
    """The addresses of the brokers, and the leaders of the named topics, or of all."""
    cache = MetadataCache()
    other = TopicPartition("u", 0)
    cache.update(update({TP: state(0, 3), other: state(1, 4)}))
    everything = cache.describe(MetadataRequest())
    assert (everything.controller_id, [broker.broker_id for broker in everything.brokers]) == (7, [0, 1])
    assert everything.partitions == {TP: state(0, 3), other: state(1, 4)}
    assert cache.describe(MetadataRequest(("u", "nowhere"))).partitions == {other: state(1, 4)}


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.tuples(st.sampled_from("ab"), st.integers(0, 2)), st.sampled_from([-2, 0, 1]), max_size=4
            ),
            st.dictionaries(st.sampled_from("ab"), st.sampled_from(["first", "second"])),
        )
    )
)
def test_partitions_by_topic_are_the_same_ones(
    updates: list[tuple[dict[tuple[str, int], int], dict[str, str]]],
) -> None:
    cache = MetadataCache()
    for leaders, topic_ids in updates:
        changed = {TopicPartition(*each): state(leader, 1) for each, leader in leaders.items()}
        ids = {topic: f"{topic_id} of {topic}" for topic, topic_id in topic_ids.items()}
        cache.update(update(changed, topic_ids=ids))
        listed = {
            TopicPartition(topic, number): known
            for topic, numbers in cache.topics.items()
            for number, known in numbers.items()
        }
        assert listed == cache.partitions
        assert all(cache.topics.values()), "a topic without partitions is gone"
        assert cache.topic_names == {topic_id: topic for topic, topic_id in cache.topic_ids.items()}
