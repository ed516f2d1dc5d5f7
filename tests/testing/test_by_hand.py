"""What is done by hand keeps to the fault model: it takes nothing that nobody could give back."""

from __future__ import annotations

from logstore.disk.topic_partition import TopicPartition
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.replication.messages import DeleteTopicsRequest
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


def test_a_log_deleted_from_a_dead_disk_is_not_expected_after_its_replacement() -> None:
    """Only writes fail on that disk, and a deletion writes nothing. The topic's node goes a moment later, and
    by then the machine is being repaired (`--seed 7700265 --events 3000` at commit ab23198)."""
    cluster = SimulatedCluster(2, seed=3)
    cluster.create_topic("t", replication_factor=2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    other = 1 - (cluster.controller() or 0)
    host = cluster._world.hosts[other]
    topic_partition = TopicPartition("t", 0)
    cluster.fail_disk(other, "pwrite")
    assert topic_partition in host.views
    cluster.administer(DeleteTopicsRequest(("t",)))
    node = host.node
    assert node is not None
    cluster.run_until(lambda: topic_partition not in node.logs.logs())
    cluster.run_for(1)
    assert topic_partition in cluster._world.checkers, "the controller has not removed the topic yet"
    assert topic_partition not in host.views
    cluster.power_cut(other)
    cluster.restart(other)
    cluster.run_until(lambda: topic_partition not in cluster._world.checkers)


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


def test_a_log_that_begins_anew_below_its_start_has_nothing_synced_from_there_on() -> None:
    """An earlier life had synced it up to its start, where it was empty (seed 626534)."""
    cluster = SimulatedCluster(2)
    cluster.create_topic("t", replication_factor=2)
    host = cluster._world.hosts[1]
    topic_partition = TopicPartition("t", 0)
    cluster.run_until(lambda: topic_partition in host.views)
    assert host.node is not None
    log = host.node.replicas.partitions[topic_partition].log
    observed = []
    for start in (6, 8, 5):
        truncate_fully_and_start_at(log, start)
        if start == 6:
            host.views[topic_partition].synced_before = 6
        cluster._world.observation.look(host)
        observed.append(host.views[topic_partition].synced_before)
    assert observed == [6, 6, 5]


def test_nobody_wipes_a_topic_while_a_node_runs() -> None:
    """One that was down already is started before the entries go: a controller that has just read them would
    give the topic of the same name replicas of the old one (seed 1022648)."""
    for is_started in (False, True):
        cluster = SimulatedCluster(2)
        cluster.create_topic("side-0", replication_factor=2)
        world = cluster._world
        path = layout.topic_path("side-0")
        before = world.store_link.read_as_operator(path).data
        BY_HAND["wipe_topic"](world, Decision(world.now_ms, "wipe_topic", 0, for_ms=100, chance=0.5))
        assert all(host.node is None for host in world.hosts.values())
        if is_started:
            cluster.restart(0)
        cluster.run_for(200)
        assert (world.store_link.read_as_operator(path).data == before) is is_started
        assert all(host.node is not None for host in world.hosts.values())
