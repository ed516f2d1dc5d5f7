"""Elections that somebody asks for: of the preferred leaders, or unclean ones (KIP-460).

    client          ElectLeaders ─────────────────────────┐
    tool            /admin/preferred_replica_election ────┼──► elect ──► state nodes ──► results
    rebalancing     every few minutes ────────────────────┘

Each partition is decided on its state as read right before the write; a leader that changes its ISR in
between makes the write fail, and what it left is decided on again. The node is removed once its elections
are over, whatever became of them; a controller that dies before that leaves it, and the next one begins
anew: whoever leads already is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import election
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.items import of_all
from logstore.replication.controller.notices import Notice, remove_notices
from logstore.replication.controller.partition_states import settle
from logstore.replication.messages import (
    NO_LEADER,
    AdminResult,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Get

_NOT_NEEDED = AdminResult(ErrorCode.ELECTION_NOT_NEEDED, "it has that leader already")


def elect_leaders(
    context: Context, request: ElectLeadersRequest, results: dict[TopicPartition, AdminResult]
) -> Steps[ElectLeadersResponse]:
    """Serve a client. Asked for all partitions, it hears only of those that needed an election."""
    wanted = request.partitions
    if wanted is None:
        wanted = tuple(each for each in context.replicas if each.topic not in context.deletions)
    yield from elect(context, request.election_type, wanted, results, reason="asked for")
    return answer(request, results)


def answer(
    request: ElectLeadersRequest,
    results: dict[TopicPartition, AdminResult],
    error: ErrorCode = ErrorCode.NONE,
) -> ElectLeadersResponse:
    """What became of each partition; of those that nothing is known of, that another controller may help."""
    if request.partitions is None:
        told = {each: result for each, result in results.items() if result != _NOT_NEEDED}
        return ElectLeadersResponse(error, told)
    return ElectLeadersResponse(error, of_all(request.partitions, results, AdminResult))


def refuse(request: ElectLeadersRequest, results: dict[TopicPartition, AdminResult]) -> ElectLeadersResponse:
    return answer(request, results, ErrorCode.NOT_CONTROLLER)


def asked_in_store(context: Context) -> Steps[None]:
    """Serve a tool that wrote `/admin/preferred_replica_election`. Also part of every takeover."""
    path = layout.PREFERRED_ELECTION_PATH
    (node,) = yield (Get(path, watch=True),)
    if node.stat is None:
        return
    notice = Notice(path, node.data, node.stat)
    context.unreadable.pop(path, None)
    wanted: tuple[TopicPartition, ...] = ()
    try:
        wanted = layout.parse_partitions(node.data)
    except CorruptMetadata as error:
        mark("elect leaders: the list of a preferred election makes no sense")
        context.unreadable[path] = str(error)
    try:
        yield from elect(context, ElectionType.PREFERRED, wanted, {}, reason="asked for in the store")
    except MetadataConflict:
        # The tool waits for the node to go, and may ask again.
        yield from remove_notices(context, [notice])
        raise
    yield from remove_notices(context, [notice])


def elect(
    context: Context,
    election_type: ElectionType,
    wanted: Iterable[TopicPartition],
    results: dict[TopicPartition, AdminResult],
    *,
    reason: str,
) -> Steps[None]:
    """Elect where it is needed and possible; `results` fills as each partition's fate becomes certain.

    Partitions that have a result already are left alone: it was given by a first try of the same event.
    """
    undecided = []
    for each in wanted:
        if each in results:
            continue
        if each not in context.replicas:
            message = "no such partition; list the topics"
            results[each] = AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        elif each.topic in context.deletions:
            mark("elect leaders: the topic is being deleted")
            message = f"topic {each.topic!r} is being deleted"
            results[each] = AdminResult(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        else:
            undecided.append(each)
    decide_one = _preferred if election_type is ElectionType.PREFERRED else _unclean

    def decide(each: TopicPartition, state: layout.LeaderAndIsr | None) -> layout.LeaderAndIsr | None:
        verdict = decide_one(context, each, state)
        if isinstance(verdict, layout.LeaderAndIsr):
            return verdict
        results[each] = verdict
        return None

    def done(each: TopicPartition) -> None:
        results[each] = AdminResult(ErrorCode.NONE)

    yield from settle(context, undecided, decide, reason=reason, on_change=done)
    for each in undecided:
        # Left out by `settle`: the state node cannot be understood.
        message = "its state in the metadata store cannot be read; mend or remove the node"
        results.setdefault(each, AdminResult(ErrorCode.UNKNOWN_SERVER_ERROR, message))


def _preferred(
    context: Context, topic_partition: TopicPartition, state: layout.LeaderAndIsr | None
) -> layout.LeaderAndIsr | AdminResult:
    replicas = context.replicas[topic_partition]
    if state is not None and state.leader == replicas[0]:
        return _NOT_NEEDED
    elected = None
    if state is not None:
        elected = election.preferred_state(state, replicas, context.staying(topic_partition), context.epoch)
    if elected is None:
        mark("elect leaders: the preferred replica may not lead")
        message = f"broker {replicas[0]} is not alive and in sync; start it and let it catch up"
        return AdminResult(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    return elected


def _unclean(
    context: Context, topic_partition: TopicPartition, state: layout.LeaderAndIsr | None
) -> layout.LeaderAndIsr | AdminResult:
    if state is not None and state.leader != NO_LEADER and state.leader in context.live(topic_partition):
        return _NOT_NEEDED
    elected = None
    if state is not None:
        elected = election.next_state(
            state,
            context.replicas[topic_partition],
            context.live(topic_partition),
            context.epoch,
            shutting_down=context.shutting_down,
            failed=context.failed(topic_partition),
            refusing=context.refusing_brokers(topic_partition),
            unclean_enabled=True,
        )
    if elected is None or elected.leader == NO_LEADER:
        message = "no replica is alive with a log that can be used; start one"
        return AdminResult(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    mark("elect leaders: somebody out of sync leads because a client asked")
    return elected
