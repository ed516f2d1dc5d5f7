"""Every way of starting a node opens its logs with the settings of their topics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import InProcessCluster, NodeConfig
from logstore.replication.messages import NewTopic
from logstore.replication.metastore.operations import Outcome, Stat, StoreError
from logstore.replication.opening_configs import config_reads, configs_in
from logstore.testing import SimulatedCluster

TP = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": "1000"}


def is_as_set(node: object) -> bool:
    """Asked before the node has heard of its topics."""
    log = node.logs.get(TP)  # type: ignore[attr-defined]
    return bool(log.partition.config.segment_bytes == 1000)


def test_of_a_cluster_in_one_process() -> None:
    cluster = InProcessCluster([NodeConfig(node_id=0)], disk_of=lambda _: MemoryDisk())
    cluster.start()
    cluster.create_topic(NewTopic("t", assignment=((0,),), configs=SETTINGS))
    cluster.kill_node(0)
    assert is_as_set(cluster.start_node(0))


def test_of_a_simulated_cluster() -> None:
    cluster = SimulatedCluster(2, seed=3)
    cluster.create_topic("t", configs=SETTINGS)
    cluster.kill(0)
    cluster.restart(0)
    assert is_as_set(cluster._world.hosts[0].node)


def disk_with(*names: str) -> Disk:
    return MemoryDisk({f"/a/{name}/00000000000000000000.log": b"" for name in names})


def test_the_topics_of_all_dirs_that_can_be_read() -> None:
    reads = config_reads(disk_with("b-0", "b-1", "a-0", "a-1.0123-delete"), ["/gone", "/a"])
    assert [(name, each.path) for name, each in reads.items()] == [
        ("a", "/config/topics/a"),
        ("b", "/config/topics/b"),
    ]


NOTHING = Outcome(StoreError.NO_NODE)


@pytest.mark.parametrize("data", [b"rot", b'{"version":1,"config":{"segment.bytes":"none"}}'])
def test_invalid_settings_do_not_count(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    sound = b'{"version":1,"config":{"segment.bytes":"1000"}}'
    found: Mapping[str, Outcome] = {
        "bad": Outcome(data=data, stat=Stat(0, 1)),
        "none": NOTHING,
        "sound": Outcome(data=sound, stat=Stat(0, 1)),
    }
    assert configs_in(found, LogConfig()) == {"sound": LogConfig(segment_bytes=1000)}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the log of topic bad is opened with the default settings"
    ]
