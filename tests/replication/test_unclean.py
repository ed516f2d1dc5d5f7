"""Unclean elections on whole clusters: what they lose, and what their absence keeps."""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.replication import InProcessCluster, NodeConfig, PendingReply
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import three_nodes
from logstore.replication.messages import NewTopic, ProduceResponse
from logstore.replication.metastore import layout
from logstore.replication.metastore.memory import MemoryStore
from logstore.testing.stage import batch

TP = TopicPartition("t", 0)


def cluster(*, broker_allows: bool, topic_says: str = "") -> InProcessCluster:
    """Nodes 0, 1, 2; `t` lies on 0 and 1, node 2 takes the controller's part when they are gone."""
    base = NodeConfig(
        node_id=0,
        zookeeper_session_timeout_ms=2_000,
        replica_lag_time_max_ms=2_000,
        request_timeout_ms=1_000,
        replica_fetch_backoff_ms=200,
        controller=ControllerConfig(unclean_leader_election_enable=broker_allows),
    )
    made = InProcessCluster(three_nodes(base=base), disk_of=lambda node_id: MemoryDisk())
    made.start()
    configs = {"unclean.leader.election.enable": topic_says} if topic_says else {}
    made.create_topic(NewTopic("t", assignment=((0, 1),), configs=configs))
    return made


def write(made: InProcessCluster, value: bytes, acks: int = 1) -> ErrorCode:
    reply: PendingReply = made.produce(TP, batch(value), acks=acks, timeout_ms=500)
    made.run_until(lambda: reply.is_done, 2_000)
    assert isinstance(reply.body, ProduceResponse)
    return reply.body.partitions[TP].error


def values(made: InProcessCluster, node_id: int) -> list[bytes | None]:
    return [record.value for record in Log(made.nodes[node_id].replicas.partitions[TP].log).read()]


def view(made: InProcessCluster) -> tuple[int, tuple[int, ...]]:
    assert isinstance(made.store, MemoryStore)
    nodes = dict(made.store.tree.nodes())
    state = layout.parse_state(nodes[layout.partition_state_path(TP)].data)
    return state.leader, state.isr


def only_the_dead_leader_has_it(made: InProcessCluster) -> None:
    """1 was away when the second was written, and 0, which has it, dies; then 1 comes back."""
    assert write(made, b"first", acks=-1) is ErrorCode.NONE
    made.advance(1_000)
    made.stop_node(1)
    made.advance(3_000)
    assert write(made, b"second") is ErrorCode.NONE
    made.kill_node(0)
    made.advance(5_000)
    made.start_node(1)
    made.advance(5_000)


@pytest.mark.parametrize(("broker_allows", "topic_says"), [(True, ""), (False, "true")])
def test_enabled_the_second_is_lost_and_the_third_is_readable(broker_allows: bool, topic_says: str) -> None:
    """unclean enabled: 2 messages, second only on the dead leader; third readable after it"""
    made = cluster(broker_allows=broker_allows, topic_says=topic_says)
    only_the_dead_leader_has_it(made)
    assert view(made) == (1, (1,))
    assert write(made, b"third") is ErrorCode.NONE
    assert values(made, 1) == [b"first", b"third"]
    made.start_node(0)
    made.advance(5_000)
    assert values(made, 0) == [b"first", b"third"], "the loser follows, and its own is set aside"
    assert made.nodes[0].replicas.counters.records_truncated == 1


@pytest.mark.parametrize(("broker_allows", "topic_says"), [(False, ""), (True, "false")])
def test_disabled_nobody_leads_until_it_returns(broker_allows: bool, topic_says: str) -> None:
    """unclean disabled: produce fails, leader -1, ISR = dead one; returns when it returns"""
    made = cluster(broker_allows=broker_allows, topic_says=topic_says)
    assert write(made, b"first", acks=-1) is ErrorCode.NONE
    made.advance(1_000)
    made.stop_node(1)
    made.advance(3_000)
    assert write(made, b"second") is ErrorCode.NONE
    made.stop_node(0)
    made.advance(5_000)
    made.start_node(1)
    made.advance(5_000)
    assert view(made) == (-1, (0,))
    assert write(made, b"third") is not ErrorCode.NONE
    made.start_node(0)
    made.advance(5_000)
    assert view(made)[0] == 0
    assert write(made, b"third", acks=-1) is ErrorCode.NONE
    made.advance(1_000)
    assert values(made, 0) == values(made, 1) == [b"first", b"second", b"third"]
