"""A cluster in one process whose metadata is on a real ZooKeeper server."""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.driver import InProcessCluster, three_nodes
from logstore.replication.messages import NewTopic, ProduceResponse
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
from logstore.testing.stage import batch
from tests.zookeeper import Client

TP = TopicPartition("t", 0)


def test_nodes_in_one_process_elect_and_fail_over(zookeeper_url: str) -> None:
    """Sessions end when nodes stop; between them the server's clock, not the cluster's, counts."""
    disks = [MemoryDisk() for _ in range(3)]
    with BlockingZooKeeperStore(zookeeper_url) as store, Client(zookeeper_url) as witness:
        cluster = InProcessCluster(three_nodes(), disk_of=disks.__getitem__, store=store)
        for node_id in range(3):
            cluster.start_node(node_id)
        cluster.create_topic(NewTopic("t", 1, 3))
        former = cluster.leader_of(TP)
        assert former is not None
        cluster.stop_node(former)
        assert cluster.run_until(lambda: cluster.leader_of(TP) not in (None, former))
        written = cluster.produce(TP, batch(b"a"))
        assert cluster.run_until(lambda: written.is_done)
        assert isinstance(written.body, ProduceResponse)
        assert written.body.partitions[TP].error is ErrorCode.NONE
        state = layout.parse_state(witness.call(Get(layout.partition_state_path(TP))).data)
        assert (state.leader, former in state.isr) == (cluster.leader_of(TP), False)
        cluster.close()
