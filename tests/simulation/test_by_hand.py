"""What is done by hand keeps to the fault model: it takes nothing that nobody could give back."""

from __future__ import annotations

from simulation import SimulatedCluster
from simulation.by_hand import BY_HAND
from simulation.faults import Decision


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
    host = cluster._host(0)
    world = cluster._world
    assert world.others_hold_everything(host), "nobody counts on it"
    BY_HAND["rot"](world, Decision(world.now_ms, "rot", 0))
    assert host.node is not None
    assert world.tally.power_cuts == 0
    cluster.restart(1)
    cluster.run_until(lambda: cluster.isr("t") == (0, 1))
    BY_HAND["rot"](world, Decision(world.now_ms, "rot", 0))
    assert host.node is None, "where somebody else holds everything, it may"
