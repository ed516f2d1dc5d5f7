"""Reassignment as a procedure: what is asked for, two fenced writes, and the confirmations.

    asked    AlterPartitionReassignments, or a list in /admin/reassign_partitions; the latest counts
    begin    topic node: target and origin in one list   + state: a new leader epoch  ─▶ LeaderAndIsr to all
    (wait)   until all of the target is in sync; looked at after every ISR change and broker start
    end      topic node: the target; the rest `leaving`  + state: led by the target   ─▶ LeaderAndIsr to it
    (leave)  StopReplica(delete) to the rest until each has confirmed; topic node: who did is struck off

Begin and end are one Multi each over both nodes, behind the controller's fence. So there is nothing half-way
for a crash to leave: the store says "not begun", "begun", or "ended, these still have to confirm", and a
controller that takes over goes on from there (`resume`) without knowing what the last one managed to say.
Replicas are deleted only once the store excludes them from list, leadership and ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.channel import Answer
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.eligible import with_eligible, with_min_insync
from logstore.replication.controller.errors import (
    InvalidReplicaAssignment,
    MetadataConflict,
    NoReassignmentInProgress,
)
from logstore.replication.controller.items import of_all
from logstore.replication.controller.partition_states import (
    ROUNDS,
    after_failures,
    check_fence,
    learn_state,
    settle,
)
from logstore.replication.controller.reassignment import (
    Assignment,
    assignment_in,
    closing_state,
    opening_state,
    with_assignment,
)
from logstore.replication.errors import UnknownTopicOrPartition
from logstore.replication.messages import (
    NO_EPOCH,
    AdminResult,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Delete, Get, Outcome, Set

_NO_REPLICA_THERE = (ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID)
"""Answers to a deletion after which the broker has no replica of that topic id."""

Wanted: TypeAlias = Mapping[TopicPartition, tuple[int, ...]]


# --- asked by a client ------------------------------------------------------------------------


def alter_reassignments(
    context: Context,
    request: AlterPartitionReassignmentsRequest,
    results: dict[TopicPartition, AdminResult],
) -> Steps[AlterPartitionReassignmentsResponse]:
    """Begin or call off each; answered when that is in the store, the copying comes after."""
    for each, wanted in sorted(request.partitions.items(), key=lambda item: item[0]):
        if each in results:
            continue
        try:
            target = _checked_target(context, each, wanted)
        except EngineError as error:
            results[each] = AdminResult(error.code, str(error))
            continue
        if each in context.requested:
            # Out of the list in the store first: a controller that takes over would follow that.
            mark("reassignment: a client overrules a request in the store")
            yield from _strike(context, {each: None})
        if (yield from _begin(context, each, target)):
            results[each] = AdminResult(ErrorCode.NONE)
        elif each not in context.replicas:
            results[each] = AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{each} is gone")
        else:
            results[each] = AdminResult(ErrorCode.UNKNOWN_SERVER_ERROR, _unreadable(context, each))
    yield from advance(context, request.partitions)
    return answer(request, results)


def answer(
    request: AlterPartitionReassignmentsRequest, results: Mapping[TopicPartition, AdminResult]
) -> AlterPartitionReassignmentsResponse:
    """Also when the term ends half-way."""
    error = ErrorCode.NONE if request.partitions.keys() <= results.keys() else ErrorCode.NOT_CONTROLLER
    return AlterPartitionReassignmentsResponse(error, of_all(request.partitions, results, AdminResult))


def list_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest, results: object
) -> Steps[ListPartitionReassignmentsResponse]:
    """What is under way, of all partitions or of those asked for."""
    yield ()
    asked = context.assignments if request.partitions is None else request.partitions
    ongoing = {
        each: OngoingReassignment(found.replicas, found.adding, found.removing)
        for each in sorted(asked)
        if (found := context.assignments.get(each)) is not None and found.is_reassigning
    }
    return ListPartitionReassignmentsResponse(ErrorCode.NONE, ongoing)


def _unreadable(context: Context, topic_partition: TopicPartition) -> str:
    paths = layout.topic_path(topic_partition.topic), layout.partition_state_path(topic_partition)
    return "; ".join(f"{path}: {context.unreadable[path]}" for path in paths if path in context.unreadable)


def _checked_target(
    context: Context, topic_partition: TopicPartition, wanted: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Raises what is wrong with a client's wish; a broker to be added must be alive when it is asked for."""
    # What a deletion waits for can be called off: else a target that never comes would hold it up for ever.
    _check_exists(context, topic_partition, deletion_waits=wanted is None)
    assignment = context.assignment_of(topic_partition)
    if wanted is None:
        if not assignment.is_reassigning:
            raise NoReassignmentInProgress(f"{topic_partition} is not being reassigned: nothing to call off")
        mark("reassignment: called off")
        return assignment.origin
    check_replicas(wanted)
    adding = [each for each in wanted if each not in assignment.origin]
    if dead := [each for each in adding if each not in context.brokers]:
        raise InvalidReplicaAssignment(f"brokers {dead} are not alive; start them or choose others")
    return wanted


def _check_exists(context: Context, topic_partition: TopicPartition, *, deletion_waits: bool) -> None:
    """Raise `UnknownTopicOrPartition`; `deletion_waits` overlooks one that has not begun."""
    if topic_partition not in context.replicas:
        raise UnknownTopicOrPartition(f"there is no partition {topic_partition}")
    deletion = context.deletions.get(topic_partition.topic)
    if deletion is not None and (deletion.has_begun or not deletion_waits):
        raise UnknownTopicOrPartition(f"topic {topic_partition.topic!r} is to be deleted")


def check_replicas(replicas: tuple[int, ...]) -> None:
    """Raise `InvalidReplicaAssignment` unless this can be the list of a partition."""
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        raise InvalidReplicaAssignment(
            f"replicas {list(replicas)}: name at least one broker, each once, none negative"
        )


# --- asked in the store -----------------------------------------------------------------------


def requests_changed(context: Context) -> Steps[None]:
    """React to `/admin/reassign_partitions`: begin what is news, strike off what cannot be or is done."""
    wanted = yield from _read_requests(context)
    done: dict[TopicPartition, tuple[int, ...] | None] = {}
    for each, target in wanted.items():
        try:
            check_replicas(target)
            _check_exists(context, each, deletion_waits=False)
            yield from _begin(context, each, target)
        except (InvalidReplicaAssignment, UnknownTopicOrPartition) as error:
            mark("reassignment: a request in the store makes no sense")
            context.record(each, "refuses a reassignment", str(error))
            done[each] = target
    yield from advance(context, wanted)
    begun = {each: target for each, target in wanted.items() if each not in done}
    done.update({each: to for each, to in begun.items() if context.assignment_of(each).is_at(to)})
    if done or not wanted:
        yield from _strike(context, done)


def _read_requests(context: Context) -> Steps[Wanted]:
    """The list, the watch set again. One that cannot be read is reported, left, and counts as empty."""
    (read,) = yield (Get(layout.REASSIGNMENT_PATH, watch=True),)
    wanted = _parse_requests(context, read) or {}
    context.requested = dict(wanted)
    return wanted


def _parse_requests(context: Context, read: Outcome) -> Wanted | None:
    context.unreadable.pop(layout.REASSIGNMENT_PATH, None)
    if read.stat is None:
        return None
    try:
        return layout.parse_reassignment(read.data)
    except CorruptMetadata as error:
        mark("reassignment: the request in the store cannot be read")
        context.unreadable[layout.REASSIGNMENT_PATH] = str(error)
        return None


def _strike(context: Context, done: Mapping[TopicPartition, tuple[int, ...] | None]) -> Steps[None]:
    """Take entries off the list in the store, those with this target (None: any); remove it when empty."""
    for _ in range(ROUNDS):
        (read,) = yield (Get(layout.REASSIGNMENT_PATH),)
        wanted = _parse_requests(context, read)
        if wanted is None:
            break
        # Another target is a later request, which the watch tells of.
        kept = {each: to for each, to in wanted.items() if each not in done or done[each] not in (None, to)}
        if kept and kept == wanted:
            break
        assert read.stat is not None, "it was parsed"
        write = (
            Set(layout.REASSIGNMENT_PATH, layout.encode_reassignment(kept), read.stat.version)
            if kept
            else Delete(layout.REASSIGNMENT_PATH, read.stat.version)
        )
        (outcome,) = yield (context.fenced(write),)
        check_fence(outcome)
    else:
        raise MetadataConflict(f"{layout.REASSIGNMENT_PATH} kept changing")
    for each in done:
        context.requested.pop(each, None)


# --- the two steps ----------------------------------------------------------------------------

_Step: TypeAlias = Callable[
    [Assignment, KnownState | None], tuple[Assignment, layout.LeaderAndIsr | None] | None
]
"""(assignment, state if any) as persisted → what both are to be, a state of None stays; None: no step."""


def _begin(context: Context, topic_partition: TopicPartition, target: tuple[int, ...]) -> Steps[bool]:
    """Head for `target` from wherever the partition is; False if it is gone, or its nodes cannot be read."""

    def step(
        assignment: Assignment, known: KnownState | None
    ) -> tuple[Assignment, layout.LeaderAndIsr | None] | None:
        after = assignment.reassign_to(target, known.state.isr if known else ())
        if after == assignment:
            return None
        if set(after.leaving) - set(assignment.leaving):
            mark("reassignment: replicas of an earlier target leave")
        if set(after.replicas) - set(target) - set(after.origin):
            mark("reassignment: a replica of an earlier target is in sync and stays for now")
        state = opening_state(assignment, after, known.state, context.epoch) if known else None
        if known is not None and state is not None:
            state = _with_memory(context, topic_partition, after, known.state, state)
        return after, state

    yield from _take_step(context, topic_partition, step, "begins a reassignment")
    if topic_partition in context.replicas and topic_partition not in context.states:
        # It never had a leader; one of the new replicas may be its first.
        mark("reassignment: of a partition without a state")
        yield from settle(context, (topic_partition,), after_failures(context))
    return topic_partition in context.replicas and context.assignment_of(topic_partition).target == target


def advance(context: Context, topic_partitions: Iterable[TopicPartition] | None = None) -> Steps[None]:
    """End the reassignments, of all partitions or of these, whose target is in sync."""
    some = context.assignments if topic_partitions is None else topic_partitions
    ended: dict[TopicPartition, tuple[int, ...] | None] = {}
    for each in sorted(some):
        if not context.is_reassigning(each):
            continue
        known = context.states.get(each)
        if known is None or _closing(context, each, context.assignment_of(each), known) is None:
            continue
        target = context.assignment_of(each).target

        def step(
            assignment: Assignment, known: KnownState | None, each: TopicPartition = each
        ) -> tuple[Assignment, layout.LeaderAndIsr | None] | None:
            if known is None or not assignment.is_reassigning:
                return None
            state = _closing(context, each, assignment, known)
            return None if state is None else (assignment.finished(), state)

        yield from _take_step(context, each, step, "ends a reassignment")
        if not context.is_reassigning(each):
            ended[each] = target
    if ended.keys() & context.requested.keys():
        yield from _strike(context, ended)


def _closing(
    context: Context, topic_partition: TopicPartition, assignment: Assignment, known: KnownState
) -> layout.LeaderAndIsr | None:
    state = closing_state(
        assignment, known.state, context.live(topic_partition), context.shutting_down, context.epoch
    )
    if state is not None and state.leader != known.state.leader:
        mark("reassignment: leadership moves to the target")
    if state is None:
        return None
    return _with_memory(context, topic_partition, assignment.finished(), known.state, state)


def _with_memory(
    context: Context,
    topic_partition: TopicPartition,
    after: Assignment,
    before: layout.LeaderAndIsr,
    state: layout.LeaderAndIsr,
) -> layout.LeaderAndIsr:
    """`state` as it goes with the assignment `after`: its replicas alone are remembered, and counted."""
    kept = with_eligible(before, state, after.replicas)
    return with_min_insync(kept, context.min_insync(topic_partition, after), after.replicas, context.epoch)


def _take_step(context: Context, topic_partition: TopicPartition, step: _Step, change: str) -> Steps[None]:
    """Write assignment and state together, over just what was read, and tell whoever is concerned.

    Whatever turns out to be news to us is told as well: the write may be our own, its reply lost.
    """
    topic_path = layout.topic_path(topic_partition.topic)
    state_path = layout.partition_state_path(topic_partition)
    is_news = False
    for _ in range(ROUNDS):
        node_read, state_read = yield (Get(topic_path), Get(state_path))
        node = _parse_node(context, topic_path, node_read)
        if node is None or topic_partition.partition not in node.partitions:
            return
        before = assignment_in(node, topic_partition.partition)
        told = context.states.get(topic_partition)
        known = learn_state(context, topic_partition, state_read)
        is_news |= context.learn_assignment(topic_partition, before) or known != told
        planned = None if state_path in context.unreadable else step(before, known)
        if planned is None:
            if is_news:
                mark("reassignment: a step was taken before we knew")
                _tell(context, topic_partition)
            return
        after, state = planned
        assert node_read.stat is not None, "it was parsed"
        data = layout.encode_topic(with_assignment(node, topic_partition.partition, after))
        writes = [Set(topic_path, data, node_read.stat.version)]
        if state is not None:
            assert known is not None, "a state follows upon a state"
            writes.append(Set(state_path, layout.encode_state(state), known.partition_epoch))
        (outcome,) = yield (context.fenced(*writes),)
        check_fence(outcome)
        if outcome.error is not None:
            mark("reassignment: a step is taken once more")
            continue
        context.learn_assignment(topic_partition, after)
        if state is not None:
            stat = outcome.results[2].stat
            assert stat is not None
            context.states[topic_partition] = KnownState(state, stat.version)
        context.record(topic_partition, change, f"replicas {list(after.target)} are wanted")
        _tell(context, topic_partition)
        return
    raise MetadataConflict(f"the assignment of {topic_partition} kept changing")


def _parse_node(context: Context, path: str, read: Outcome) -> layout.TopicAssignment | None:
    if read.stat is None:
        return None
    try:
        return layout.parse_topic(read.data)
    except CorruptMetadata as error:
        context.unreadable[path] = str(error)
        return None


def _tell(context: Context, topic_partition: TopicPartition) -> None:
    context.announce((topic_partition,))
    stop_leaving(context, (topic_partition,))


# --- those who leave --------------------------------------------------------------------------


def stop_leaving(
    context: Context,
    topic_partitions: Iterable[TopicPartition] | None = None,
    *,
    to: Collection[int] | None = None,
) -> None:
    """Tell brokers, all if `to` is None, to delete the replicas that leave them.

    A topic that is being deleted has orders of its own for them, which one of ours would replace.
    """
    for each in sorted(context.assignments if topic_partitions is None else topic_partitions):
        if context.is_being_deleted(each.topic):
            continue
        known = context.states.get(each)
        leader_epoch = known.state.leader_epoch if known is not None else NO_EPOCH
        for broker_id in context.assignment_of(each).leaving:
            if broker_id in context.brokers and (to is None or broker_id in to):
                context.stop_epochs[each, broker_id] = leader_epoch
                order = {each: StopReplicaPartition(leader_epoch, delete=True)}
                context.channels[broker_id].enqueue(StopReplicaRequest, order)


def deletions_answered(context: Context, answered: Answer) -> Steps[None]:
    """A broker answered StopReplica: strike off the replicas that it has no more."""
    assert isinstance(answered.body, StopReplicaResponse)
    broker_id = answered.broker_id
    gone: dict[str, list[TopicPartition]] = {}
    for each, order in sorted(answered.entry.partitions.items()):
        if each not in context.assignments or broker_id not in context.assignments[each].leaving:
            continue
        assert isinstance(order, StopReplicaPartition)
        error = answered.body.partitions.get(each, ErrorCode.UNKNOWN_SERVER_ERROR)
        if not order.delete or order.leader_epoch != context.stop_epochs.get((each, broker_id)):
            mark("reassignment: the answer to an earlier deletion")
        elif error in _NO_REPLICA_THERE:
            gone.setdefault(each.topic, []).append(each)
    for topic, partitions in gone.items():
        yield from _strike_off(context, broker_id, topic, partitions)


def _strike_off(
    context: Context, broker_id: int, topic: str, partitions: Collection[TopicPartition]
) -> Steps[None]:
    path = layout.topic_path(topic)
    for _ in range(ROUNDS):
        (read,) = yield (Get(path),)
        node = _parse_node(context, path, read)
        if node is None:
            return
        after = node
        for each in partitions:
            if each.partition in node.partitions:
                left = assignment_in(after, each.partition).confirmed(broker_id)
                after = with_assignment(after, each.partition, left)
        if after != node:
            assert read.stat is not None, "it was parsed"
            (outcome,) = yield (context.fenced(Set(path, layout.encode_topic(after), read.stat.version)),)
            check_fence(outcome)
            if outcome.error is not None:
                continue
        for each in partitions:
            if each in context.replicas and each.partition in after.partitions:
                context.learn_assignment(each, assignment_in(after, each.partition))
                context.stop_epochs.pop((each, broker_id), None)
                context.offline_replicas.get(broker_id, set()).discard(each)
                context.record(each, "hears that a replica is deleted", f"broker {broker_id}")
        return
    raise MetadataConflict(f"the topic node of {topic} kept changing")


# --- going on ---------------------------------------------------------------------------------


def resume(context: Context) -> Steps[None]:
    """Go on where the last controller stopped, all states and assignments having been read and told."""
    stop_leaving(context)
    yield from requests_changed(context)
    yield from advance(context)
