"""Decide whether a fault is fair: whether other replicas still hold all committed records."""

from __future__ import annotations

from logstore.replication.durability import Durability
from logstore.testing.hosts import Host
from logstore.testing.world import World


def others_hold_everything(world: World, victim: Host, *, or_may_lead: bool = False) -> bool:
    """Whether each partition of `victim` has another sound ISR member: alive, with a sound disk and log.

    Its partitions are those in whose ISR it is. With `or_may_lead`, all that it has a replica of count:
    if no ISR member is sound, an operator would elect it.
    """
    for topic_partition, checker in world.checkers.items():
        state = checker.state
        if state is None:
            continue
        if victim.node_id not in (*state.isr, *(checker.replicas if or_may_lead else ())):
            continue
        others = [
            member
            for member in state.isr
            if member != victim.node_id
            and not world.hosts[member].disk_is_dead
            and (node := world.hosts[member].node) is not None
            and node.broker_epoch == state.broker_epoch_of(member)
            and topic_partition not in node.logs.damaged
        ]
        if not others:
            return False
    return True


def may_lose_power(world: World, victim: Host) -> bool:
    """Whether all acknowledged records certainly survive if this machine loses its unsynced data."""
    swarm = world.swarm
    if swarm.reckless or swarm.durability is Durability.SYNCED:
        return True
    return others_hold_everything(world, victim)
