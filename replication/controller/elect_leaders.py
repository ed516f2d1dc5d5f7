"""Requested elections: of the preferred leaders, or unclean ones (KIP-460), and automatic rebalancing.

    client          ElectLeaders ─────────────────────────┐
    tool            /admin/preferred_replica_election ────┼──► elect ──► state nodes ──► results
    rebalancing     every few minutes ────────────────────┘

Each partition is decided on its state as read right before the write. A leader that changes its ISR in
between makes the write fail, and the new state is decided on again. The node in the store is removed once its
elections are over, whatever their results. A controller that dies before that leaves it to the next one,
which starts again: a preferred replica that leads already is left alone.

Rebalancing gives a broker its leaderships back when others lead more than
`leader.imbalance.per.broker.percentage` of its preferred partitions:

    broker 1 is preferred by 10 partitions; 3 are led by others; 1 of these could return now

    ratio            3 / 10     Kafka's ratio: shows an imbalance
    electable ratio  1 / 10     the part that an election would correct now

After a broker has died, or while it lacks records, its ratio is high and nothing can be done about it. So
only partitions that can go home are elected (KAFKA-9866).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller import election
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.procedure import Notice, elected_state, of_all, remove_notices, settle
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import Get

FIRST_CHECK_MS = 5_000
"""The first balance check of a term; the next ones come every `leader.imbalance.check.interval.seconds`."""

_NOT_NEEDED = m.AdminResult(ErrorCode.ELECTION_NOT_NEEDED, "the partition has that leader already")


# --- balance: pure ----------------------------------------------------------------------------


class Seat(NamedTuple):
    """A partition's preferred and present leader, and whether the preferred one could lead now."""

    topic_partition: TopicPartition
    preferred: int
    leader: int
    is_electable: bool


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The partitions that prefer one broker: how many, those led by others, and those it could lead now."""

    total: int
    astray: tuple[TopicPartition, ...]
    electable: tuple[TopicPartition, ...]

    def exceeds(self, percentage: int) -> bool:
        """Return whether others lead more than `percentage` per cent, in whole numbers: 10 % is 10 %."""
        return 100 * len(self.astray) > percentage * self.total


def imbalances(seats: Iterable[Seat]) -> dict[int, Imbalance]:
    """Return the imbalance of each preferred broker, in ascending order of brokers and partitions."""
    by_preferred: dict[int, list[Seat]] = {}
    for seat in sorted(seats):
        by_preferred.setdefault(seat.preferred, []).append(seat)
    found = {}
    for preferred, seated in sorted(by_preferred.items()):
        astray = [seat for seat in seated if seat.leader != preferred]
        found[preferred] = Imbalance(
            len(seated),
            tuple(seat.topic_partition for seat in astray),
            tuple(seat.topic_partition for seat in astray if seat.is_electable),
        )
    return found


# --- the three ways to an election ------------------------------------------------------------


def elect_leaders(
    context: Context, request: m.ElectLeadersRequest, results: dict[TopicPartition, m.AdminResult]
) -> Steps[m.ElectLeadersResponse]:
    """Serve a client. A request for all partitions gets results only for those that needed an election."""
    wanted = request.partitions
    if wanted is None:
        wanted = tuple(each for each in context.replicas if each.topic not in context.deletions)
    is_unclean = request.election_type is m.ElectionType.UNCLEAN
    reason = "an unclean election was asked for" if is_unclean else "asked for"
    yield from elect(context, request.election_type, wanted, results, reason=reason)
    return answer(request, results)


def answer(
    request: m.ElectLeadersRequest,
    results: dict[TopicPartition, m.AdminResult],
    error: ErrorCode = ErrorCode.NONE,
) -> m.ElectLeadersResponse:
    """Return the answer, also if the term ended half-way."""
    if request.partitions is None:
        told = {each: result for each, result in results.items() if result != _NOT_NEEDED}
        return m.ElectLeadersResponse(error, told)
    return m.ElectLeadersResponse(error, of_all(request.partitions, results, m.AdminResult))


def refuse(
    request: m.ElectLeadersRequest, results: dict[TopicPartition, m.AdminResult]
) -> m.ElectLeadersResponse:
    return answer(request, results, ErrorCode.NOT_CONTROLLER)


def asked_in_store(context: Context) -> Steps[None]:
    """Serve a tool that wrote `/admin/preferred_replica_election`. Also part of every takeover."""
    path = layout.PREFERRED_ELECTION_PATH
    (node,) = yield (Get(path, watch=True),)
    if node.stat is None:
        return
    wanted = context.parsed(path, node, layout.parse_partitions)
    if wanted is None:
        mark("elect leaders: the list of a preferred election is unreadable")
    notice = Notice(path, node.data, node.stat)
    try:
        yield from elect(context, m.ElectionType.PREFERRED, wanted or (), {}, reason="asked for in the store")
    except MetadataConflict:
        # The tool waits for the removal, and may write its request again.
        yield from remove_notices(context, [notice])
        raise
    yield from remove_notices(context, [notice])


def rebalance(context: Context) -> Steps[None]:
    """Check every broker's share, and elect the preferred leaders of those that lead too little of it."""
    context.imbalances = imbalances(_seats(context))
    limit = context.config.leader_imbalance_per_broker_percentage
    homeless = [found for found in context.imbalances.values() if found.exceeds(limit)]
    if any(not found.electable for found in homeless):
        mark("rebalancing: a broker can take back none of its partitions")
    wanted = [each for found in homeless for each in found.electable]
    if wanted:
        mark("rebalancing: leaderships return to preferred replicas")
        yield from elect(context, m.ElectionType.PREFERRED, wanted, {}, reason="rebalancing")


def _seats(context: Context) -> list[Seat]:
    """Return every partition that has, or had, a leader. The copy is good enough: elections read again."""
    seats = []
    for each, known in context.states.items():
        if each.topic in context.deletions:
            continue
        replicas = context.replicas[each]
        staying = context.staying(each)
        may_go_home = not context.is_reassigning(each) and (
            election.preferred_state(known.state, replicas, staying, context.epoch) is not None
        )
        seats.append(Seat(each, replicas[0], known.state.leader, may_go_home))
    return seats


def elect(
    context: Context,
    election_type: m.ElectionType,
    wanted: Iterable[TopicPartition],
    results: dict[TopicPartition, m.AdminResult],
    *,
    reason: str,
) -> Steps[None]:
    """Elect leaders where needed and possible; `results` gets each partition's result once it is certain.

    Partitions that have a result already, from a first try of the same event, are left alone.
    """
    undecided = []
    for each in wanted:
        if each in results:
            continue
        if each not in context.replicas:
            message = f"partition {each} does not exist"
            results[each] = m.AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        elif each.topic in context.deletions:
            mark("elect leaders: the topic is being deleted")
            message = f"topic {each.topic!r} is being deleted"
            results[each] = m.AdminResult(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        else:
            undecided.append(each)
    decide_one = _preferred if election_type is m.ElectionType.PREFERRED else _unclean

    def decide(each: TopicPartition, state: LeaderAndIsr | None) -> LeaderAndIsr | None:
        verdict = decide_one(context, each, state)
        if isinstance(verdict, LeaderAndIsr):
            return verdict
        results[each] = verdict
        return None

    def done(each: TopicPartition) -> None:
        results[each] = m.AdminResult(ErrorCode.NONE)

    yield from settle(context, undecided, decide, reason=reason, on_change=done)
    for each in undecided:  # those left out by `settle`
        message = "the partition's state in the metadata store cannot be read; repair or remove the node"
        results.setdefault(each, m.AdminResult(ErrorCode.UNKNOWN_SERVER_ERROR, message))


def _preferred(
    context: Context, topic_partition: TopicPartition, state: LeaderAndIsr | None
) -> LeaderAndIsr | m.AdminResult:
    replicas = context.replicas[topic_partition]
    if state is not None and state.leader == replicas[0]:
        return _NOT_NEEDED
    elected = None
    if state is not None:
        elected = election.preferred_state(state, replicas, context.staying(topic_partition), context.epoch)
    if elected is None:
        mark("elect leaders: the preferred replica may not lead")
        message = f"broker {replicas[0]} is not alive and in sync; start it and let it catch up"
        return m.AdminResult(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    return elected


def _unclean(
    context: Context, topic_partition: TopicPartition, state: LeaderAndIsr | None
) -> LeaderAndIsr | m.AdminResult:
    if state is not None and state.leader != m.NO_LEADER and state.leader in context.live(topic_partition):
        return _NOT_NEEDED
    elected = state and elected_state(context, topic_partition, state, unclean_enabled=True)
    if elected is None or elected.leader == m.NO_LEADER:
        message = "no live replica has a usable log; start a broker that has one"
        return m.AdminResult(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    mark("elect leaders: an out-of-sync replica leads at a client's request")
    return elected
