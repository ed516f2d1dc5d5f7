"""Both durability levels on the same nodes, and a topic that changes its level.

Each test cuts the power of all machines at once. Promised records must be there afterwards. Without a promise
the partition must stay without a leader, so that a loss is never silent (R2).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk, Profile
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.replication import Durability, Envelope, InProcessCluster, NodeConfig
from logstore.replication.driver import three_nodes
from logstore.replication.effects import Request
from logstore.replication.messages import (
    AlterPartitionRequest,
    LeaderAndIsrRequest,
    NewTopic,
    ProduceResponse,
    ProduceResult,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Create, Get, Set
from logstore.replication.partition import Partition
from logstore.testing.stage import batch

SAFE, PLAIN = TopicPartition("safe", 0), TopicPartition("plain", 0)
BASE = NodeConfig(
    node_id=0,
    zookeeper_session_timeout_ms=6000,
    replica_lag_time_max_ms=6000,
    request_timeout_ms=5000,
    replica_fetch_backoff_ms=200,
)


def cluster(**configs: str) -> InProcessCluster:
    """Three nodes, a topic `safe` of level `synced`, and `plain` with `configs`."""
    made = InProcessCluster(
        three_nodes(base=BASE),
        disk_of=lambda node_id: Strict(),
        log_config=LogConfig(min_insync_replicas=2),
    )
    made.start()
    made.create_topic(NewTopic("safe", assignment=((0, 1, 2),), configs={"durability.level": "synced"}))
    made.create_topic(NewTopic("plain", assignment=((0, 1, 2),), configs=configs))
    return made


def write(
    made: InProcessCluster, topic_partition: TopicPartition, value: bytes, acks: int = -1
) -> ProduceResult:
    reply = made.produce(topic_partition, batch(value), acks=acks, timeout_ms=4000)
    made.run_until(lambda: reply.is_done, 5000)
    assert isinstance(reply.body, ProduceResponse), reply
    return reply.body.partitions[topic_partition]


class Strict(MemoryDisk):
    """A disk that keeps exactly the synced bytes in a power cut."""

    def power_cut(self, random: random.Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        return self.durable_image()


def cut_the_power(made: InProcessCluster) -> None:
    """Cut the power of all machines, keep only synced bytes, and start all machines."""
    for node_id in list(made.nodes):
        made.kill_node(node_id, power_cut=random.Random(0))
    made.start()


def partitions(made: InProcessCluster, topic_partition: TopicPartition) -> list[Partition]:
    return [node.replicas.partitions[topic_partition] for node in made.nodes.values()]


def values(made: InProcessCluster, topic_partition: TopicPartition) -> list[bytes | None]:
    leader = made.leader_of(topic_partition)
    assert leader is not None
    return [
        record.value for record in Log(made.nodes[leader].replicas.partitions[topic_partition].log).read()
    ]


def state(made: InProcessCluster, topic_partition: TopicPartition) -> layout.LeaderAndIsr:
    session_id = made.store.open_session(60_000, made.now_ms)
    outcome, _ = made.store.call(session_id, Get(layout.partition_state_path(topic_partition)), made.now_ms)
    return layout.parse_state(outcome.data)


def switch(made: InProcessCluster, topic: str, level: str) -> None:
    """Write the topic's settings as an operator; the controller's watch fires."""
    data = layout.encode_topic_config({"durability.level": level})
    session_id = made.store.open_session(60_000, made.now_ms)
    outcome, fired = made.store.call(
        session_id, Set(layout.topic_config_path(topic), data, ANY_VERSION), made.now_ms
    )
    if outcome.error is not None:
        outcome, fired = made.store.call(
            session_id, Create(layout.topic_config_path(topic), data, make_parents=True), made.now_ms
        )
    assert outcome.error is None
    made.store_link.fire(fired)


def returns(made: InProcessCluster, topic_partition: TopicPartition) -> bool:
    return made.run_until(lambda: made.leader_of(topic_partition) is not None, 60_000)


def sends(kind: type[object], envelopes: Iterable[Envelope]) -> bool:
    return any(isinstance(e.event, Request) and isinstance(e.event.body, kind) for e in envelopes)


def test_each_acknowledgement_says_the_level_it_reached() -> None:
    made = cluster()
    assert write(made, SAFE, b"a").durability is Durability.SYNCED
    assert write(made, PLAIN, b"a").durability is Durability.REPLICATED
    assert write(made, SAFE, b"b", acks=1).durability is None, "in one page cache: no level at all"


def test_an_acknowledgement_of_a_synced_topic_follows_every_flush() -> None:
    """S1: at that moment it is on the disk of every in-sync replica, and only of the topic that asked."""
    made = cluster()
    assert write(made, SAFE, b"a").error is ErrorCode.NONE
    assert write(made, PLAIN, b"a").error is ErrorCode.NONE
    assert [each.log.recovery_point for each in partitions(made, SAFE)] == [1, 1, 1]
    assert [each.log.recovery_point for each in partitions(made, PLAIN)] == [0, 0, 0]


def test_r2_holds_topic_by_topic() -> None:
    """All machines lose their power: one topic is back whole, the other stays loudly without a leader."""
    made = cluster()
    for number in range(5):
        write(made, SAFE, b"%d" % number)
        write(made, PLAIN, b"%d" % number)
    cut_the_power(made)
    assert returns(made, SAFE)
    assert values(made, SAFE) == [b"0", b"1", b"2", b"3", b"4"]
    assert not returns(made, PLAIN)


def test_a_topic_that_is_switched_is_promised_once_everybody_has_flushed() -> None:
    """Records acknowledged before the switch are covered once the store says so."""
    made = cluster()
    write(made, PLAIN, b"before")
    switch(made, "plain", "synced")
    assert made.run_until(lambda: state(made, PLAIN).all_synced, 30_000)
    assert all(each.log.recovery_point == 1 for each in partitions(made, PLAIN))
    assert write(made, PLAIN, b"after").durability is Durability.SYNCED
    cut_the_power(made)
    assert returns(made, PLAIN)
    assert values(made, PLAIN) == [b"before", b"after"]


def test_a_switch_that_was_not_confirmed_promises_nothing() -> None:
    """Power fails before the leader's report: earlier acknowledged records may be on no disk."""
    made = cluster()
    write(made, PLAIN, b"before")
    made.intercept = lambda envelope: sends(AlterPartitionRequest, [envelope])
    switch(made, "plain", "synced")
    made.advance(4000)
    assert sends(AlterPartitionRequest, made.held)
    assert state(made, PLAIN).durability is Durability.SYNCED
    assert not state(made, PLAIN).all_synced
    made.intercept = lambda envelope: False
    cut_the_power(made)
    assert not returns(made, PLAIN)


def test_the_promise_ends_in_the_store_before_any_replica_hears_of_it() -> None:
    """Else a power cut right after the first weaker acknowledgement would elect a log that lacks it."""
    made = cluster()
    told: list[bool] = []

    def look(envelope: Envelope) -> bool:
        event = envelope.event
        if isinstance(event, Request) and isinstance(event.body, LeaderAndIsrRequest):
            wire = event.body.partitions.get(SAFE)
            if wire is not None and wire.durability is Durability.REPLICATED:
                told.append(state(made, SAFE).all_synced)
        return False

    made.intercept = look
    switch(made, "safe", "replicated")
    made.advance(2000)
    assert told
    assert not any(told)
    assert write(made, SAFE, b"weak").durability is Durability.REPLICATED
    cut_the_power(made)
    assert not returns(made, SAFE)


@pytest.mark.parametrize("heard_first", [0, 1, 2])
def test_a_switch_reaches_the_replicas_in_any_order(heard_first: int) -> None:
    """Meanwhile a follower without the new level does not count; a leader without it is unchanged."""
    made = cluster()
    write(made, PLAIN, b"before")

    def others(envelope: Envelope) -> bool:
        return sends(LeaderAndIsrRequest, [envelope]) and envelope.target != heard_first

    made.intercept = others
    switch(made, "plain", "synced")
    made.settle()
    reply = made.produce(PLAIN, batch(b"meanwhile"), timeout_ms=60_000)
    made.advance(1500)
    if heard_first == 0:
        assert not reply.is_done, "only the leader knows: nobody else's word is good enough"
    made.intercept = lambda envelope: False
    made.release_all()
    made.run_until(lambda: reply.is_done)
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[PLAIN].error is ErrorCode.NONE
    assert made.run_until(lambda: state(made, PLAIN).all_synced, 30_000)


def test_one_default_counts_the_controllers() -> None:
    """Nodes that disagree about the default still give one partition one level."""
    levels: list[Durability] = [Durability.SYNCED, Durability.REPLICATED, Durability.REPLICATED]
    level_of: Callable[[int], Durability] = levels.__getitem__
    made = InProcessCluster(
        [
            NodeConfig(node_id=number, durability=level_of(number), zookeeper_session_timeout_ms=6000)
            for number in range(3)
        ],
        disk_of=lambda node_id: MemoryDisk(),
    )
    made.start()
    made.create_topic(NewTopic("plain", assignment=((0, 1, 2),)))
    made.settle()
    controller = next(node_id for node_id, node in made.nodes.items() if node.controller.is_active)
    assert {each.durability for each in partitions(made, PLAIN)} == {levels[controller]}
    assert write(made, PLAIN, b"a").durability is levels[controller]
