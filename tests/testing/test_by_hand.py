"""What is done by hand keeps to the fault model: it takes nothing that nobody could give back."""

from __future__ import annotations

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Delete
from logstore.testing import SimulatedCluster
from logstore.testing.by_hand import BY_HAND
from logstore.testing.faults import Decision, others_hold_everything


def test_no_bit_changes_in_the_last_log_that_is_whole() -> None:
    """Out of sync and not eligible: nobody counts on it, and its operator would all the same have it lead,
    since all that were in sync are away, and may be damaged (seed 14603)."""
    cluster = SimulatedCluster(2, min_insync_replicas=1, durability="synced")
    cluster.create_topic("t")
    cluster.kill(0)
    cluster.run_until(lambda: cluster.isr("t") == (1,))
    cluster.kill(1)
    cluster.restart(0)
    cluster.run_until(lambda: cluster.leader("t") is None)
    host = cluster._world.hosts[0]
    world = cluster._world
    assert others_hold_everything(world, host), "nobody counts on it"
    BY_HAND["rot"](world, Decision(world.now_ms, "rot", 0))
    assert host.node is not None
    assert world.tally.power_cuts == 0
    cluster.restart(1)
    cluster.run_until(lambda: cluster.isr("t") == (0, 1))
    BY_HAND["rot"](world, Decision(world.now_ms, "rot", 0))
    assert host.node is None, "where somebody else holds everything, it may"


def test_a_topic_that_is_made_while_a_request_to_delete_it_stands() -> None:
    """It goes as soon as the controller looks, and until then nobody has to move its leaders (seed 19705)."""
    cluster = SimulatedCluster(2)
    observation = cluster._world.observation
    path = layout.delete_topic_path("late")
    observation.topic_written(Create(path), by_hand=True)
    cluster.create_topic("late")
    assert observation.checkers[TopicPartition("late", 0)].is_being_deleted
    observation.topic_written(Delete(path), by_hand=True)
    assert not observation.checkers[TopicPartition("late", 0)].is_being_deleted
    cluster.create_topic("other")
    assert not observation.checkers[TopicPartition("other", 0)].is_being_deleted
