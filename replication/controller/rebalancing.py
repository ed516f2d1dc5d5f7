"""Automatic rebalancing: every so often, leaderships go back to the preferred replicas.

A broker whose preferred partitions are led by others beyond `leader.imbalance.per.broker.percentage` gets
back those that it can lead at once. An election is one event, so none is pending when a check begins.
"""

from __future__ import annotations

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.balance import Seat, imbalances
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.elect_leaders import elect
from logstore.replication.controller.election import preferred_state
from logstore.replication.messages import AdminResult, ElectionType

FIRST_CHECK_MS = 5_000
"""After the beginning of a term; all others come at `leader.imbalance.check.interval.seconds`."""


def rebalance(context: Context) -> Steps[None]:
    """Look at every broker's share, and elect the preferred leaders of those that lost too much of it."""
    context.imbalances = imbalances(_seats(context))
    limit = context.config.leader_imbalance_per_broker_percentage
    homeless = [found for found in context.imbalances.values() if found.exceeds(limit)]
    if any(not found.electable for found in homeless):
        mark("rebalancing: a broker's partitions are led by others and none can go home")
    wanted = [each for found in homeless for each in found.electable]
    if not wanted:
        return
    mark("rebalancing: leaderships go home")
    results: dict[TopicPartition, AdminResult] = {}
    yield from elect(context, ElectionType.PREFERRED, wanted, results, reason="rebalancing")


def _seats(context: Context) -> list[Seat]:
    """Every partition that has a leader or had one; its copy is good enough, an election reads again."""
    seats = []
    for each, known in context.states.items():
        if each.topic in context.deletions:
            continue
        replicas = context.replicas[each]
        may_go_home = (
            not context.is_reassigning(each)
            and preferred_state(known.state, replicas, context.staying(each), context.epoch) is not None
        )
        seats.append(Seat(each, replicas[0], known.state.leader, may_go_home))
    return seats
