"""Reassignment: replicas move to other brokers (`assignment.Assignment` draws the lists).

    asked    AlterPartitionReassignments, or a list in /admin/reassign_partitions; the latest request counts
    begin    topic node: target and origin in one list   + state: a new leader epoch  ─▶ LeaderAndIsr to all
    (wait)   until the whole target is in sync; checked after every ISR change and broker start
    end      topic node: the target; the rest `leaving`  + state: led by the target   ─▶ LeaderAndIsr to it
    (leave)  StopReplica(delete) to the rest until each has confirmed; topic node: `leaving` shrinks

Begin and end are one fenced Multi each, over both nodes. So a crash leaves nothing half-way: the store
holds "not begun", "begun", or "ended, these have to confirm", and the next controller continues from there
(`resume`), regardless of the requests that the last one sent. Replicas are deleted only once the store
excludes them from list, leadership and ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller.assignment import (
    Assignment,
    are_distinct,
    assignment_in,
    with_assignment,
    without,
)
from logstore.replication.controller.channel import Answer
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.election import (
    Incarnation,
    Standing,
    in_new_epoch,
    reassigned_leader,
    standing,
    with_eligible,
    with_min_insync,
)
from logstore.replication.controller.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from logstore.replication.controller.procedure import (
    after_failures,
    learn_state,
    of_all,
    one_by_one,
    settle,
    version_written,
    write_unchanged,
)
from logstore.replication.errors import UnknownTopicOrPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import WriteTooLarge
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import Delete, Get, Outcome, Set, Write

Wanted: TypeAlias = Mapping[TopicPartition, tuple[int, ...]]

_NO_REPLICA_THERE = (ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID)
"""Answers to a deletion after which the broker has no replica of that topic id."""


# --- the states that go with it: pure ---------------------------------------------------------


def opening_state(
    before: Assignment, after: Assignment, state: LeaderAndIsr, controller_epoch: int
) -> LeaderAndIsr | None:
    """Return the state that goes with new members; None if there are none.

    Its new leader epoch outdates every earlier order, above all one to delete a replica that now returns.
    """
    if set(before.replicas) == set(after.replicas) and set(before.adding) == set(after.adding):
        return None
    return replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def closing_state(
    assignment: Assignment,
    state: LeaderAndIsr,
    live: Mapping[int, Incarnation],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Return the state that ends the reassignment; None while it must wait.

    The whole target must be in sync, and one of it alive to lead. Leader and ISR change in one epoch: no
    leader acts on a list that still admits the leaving replicas.
    """
    target = assignment.target
    if not set(target) <= set(state.isr):
        return None
    recorded = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    intact = [each for each in target if standing(recorded[each], live.get(each)) is Standing.INTACT]
    leader: int | None = state.leader
    if leader not in intact:
        leader = reassigned_leader(target, state.isr, without(intact, shutting_down))
    if leader is None:
        return None
    isr = tuple(each for each in state.isr if each in target)
    still_recovering = state.recovering and leader == state.leader
    return in_new_epoch(state, leader, isr, recorded, controller_epoch, recovering=still_recovering)


# --- requests of clients ----------------------------------------------------------------------


def alter_reassignments(
    context: Context,
    request: m.AlterPartitionReassignmentsRequest,
    results: dict[TopicPartition, m.AdminResult],
) -> Steps[m.AlterPartitionReassignmentsResponse]:
    """Begin or cancel each reassignment; answered once that is in the store, before the data is copied."""

    def carry_out(each: TopicPartition, wanted: tuple[int, ...] | None) -> Steps[m.AdminResult | None]:
        target = _checked_target(context, each, wanted)
        if each in context.requested:
            # Out of the list in the store first: a controller that takes over would follow that.
            mark("reassignment: a client replaces a request in the store")
            yield from _strike(context, {each: None})
        if (yield from _begin(context, each, target)):
            return None
        if each not in context.replicas:
            return m.AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{each} no longer exists")
        paths = layout.topic_path(each.topic), layout.partition_state_path(each)
        reasons = (f"{path}: {context.unreadable[path]}" for path in paths if path in context.unreadable)
        return m.AdminResult(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(reasons))

    yield from one_by_one(request.partitions, results, carry_out)
    yield from advance(context, request.partitions)
    return answer(request, results)


def answer(
    request: m.AlterPartitionReassignmentsRequest, results: Mapping[TopicPartition, m.AdminResult]
) -> m.AlterPartitionReassignmentsResponse:
    """Return the answer, also if the term ended half-way."""
    error = ErrorCode.NONE if request.partitions.keys() <= results.keys() else ErrorCode.NOT_CONTROLLER
    return m.AlterPartitionReassignmentsResponse(error, of_all(request.partitions, results, m.AdminResult))


def list_reassignments(
    context: Context, request: m.ListPartitionReassignmentsRequest, results: object
) -> Steps[m.ListPartitionReassignmentsResponse]:
    """Answer with the reassignments under way, of all partitions or of the given ones.

    If all are asked for, the topics that are being deleted come with them.
    """
    yield ()
    asked = context.assignments if request.partitions is None else request.partitions
    ongoing = {
        each: m.OngoingReassignment(found.replicas, found.adding, found.removing)
        for each in sorted(asked)
        if (found := context.assignments.get(each)) is not None and found.is_reassigning
    }
    deletions = {name: found.awaited for name, found in sorted(context.deletions.items())}
    return m.ListPartitionReassignmentsResponse(
        ErrorCode.NONE, ongoing, deletions if request.partitions is None else {}
    )


def _checked_target(
    context: Context, topic_partition: TopicPartition, wanted: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the target of a client's request, or raise an error; brokers to be added must be alive."""
    # A reassignment can be cancelled while the topic's deletion waits for it: its target may never come.
    _check_exists(context, topic_partition, deletion_waits=wanted is None)
    assignment = context.assignment_of(topic_partition)
    if wanted is None:
        if not assignment.is_reassigning:
            raise NoReassignmentInProgress(f"{topic_partition} is not being reassigned; nothing to cancel")
        mark("reassignment: cancelled")
        return assignment.origin
    _check_replicas(wanted)
    adding = [each for each in wanted if each not in assignment.origin]
    if dead := [each for each in adding if each not in context.brokers]:
        raise InvalidReplicaAssignment(f"brokers {dead} are not alive; start them or choose others")
    return wanted


def _check_exists(context: Context, topic_partition: TopicPartition, *, deletion_waits: bool) -> None:
    """Raise `UnknownTopicOrPartition`; `deletion_waits` accepts a topic whose deletion has not begun."""
    if topic_partition not in context.replicas:
        raise UnknownTopicOrPartition(f"partition {topic_partition} does not exist")
    deletion = context.deletions.get(topic_partition.topic)
    if deletion is not None and (deletion.has_begun or not deletion_waits):
        raise UnknownTopicOrPartition(f"topic {topic_partition.topic!r} is marked for deletion")


def _check_replicas(replicas: tuple[int, ...]) -> None:
    if not are_distinct(replicas):
        raise InvalidReplicaAssignment(
            f"replicas {list(replicas)}: list at least one broker, each once, none negative"
        )


# --- requests in the store --------------------------------------------------------------------


def requests_changed(context: Context) -> Steps[None]:
    """React to `/admin/reassign_partitions`: begin new entries, remove those that are invalid or done.

    A list that cannot be read is reported, left in place, and counts as empty.
    """
    (read,) = yield (Get(layout.REASSIGNMENT_PATH, watch=True),)
    wanted = _parse_requests(context, read) or {}
    context.requested = dict(wanted)
    done: dict[TopicPartition, tuple[int, ...] | None] = {}
    for each, target in wanted.items():
        try:
            _check_replicas(target)
            _check_exists(context, each, deletion_waits=False)
            yield from _begin(context, each, target)
        except (InvalidReplicaAssignment, UnknownTopicOrPartition, WriteTooLarge) as error:
            mark("reassignment: a request in the store is invalid")
            context.record(each, "refuses a reassignment", str(error))
            done[each] = target
    yield from advance(context, wanted)
    begun = {each: target for each, target in wanted.items() if each not in done}
    done.update({each: to for each, to in begun.items() if context.assignment_of(each).is_at(to)})
    if done or not wanted:
        yield from _strike(context, done)


def _parse_requests(context: Context, read: Outcome) -> Wanted | None:
    wanted = context.parsed(layout.REASSIGNMENT_PATH, read, layout.parse_reassignment)
    if wanted is None and read.stat is not None:
        mark("reassignment: the request in the store cannot be read")
    return wanted


def _strike(context: Context, done: Mapping[TopicPartition, tuple[int, ...] | None]) -> Steps[None]:
    """Remove entries with this target (None: any) from the list in the store, and the list once empty."""

    def decide(read: Outcome) -> tuple[Write, ...]:
        wanted = _parse_requests(context, read)
        if wanted is None or read.stat is None:
            return ()
        # Another target is a later request; the watch announces it.
        kept = {each: to for each, to in wanted.items() if each not in done or done[each] not in (None, to)}
        if not kept:
            return (Delete(layout.REASSIGNMENT_PATH, read.stat.version),)
        if kept == wanted:
            return ()
        return (Set(layout.REASSIGNMENT_PATH, layout.encode_reassignment(kept), read.stat.version),)

    yield from write_unchanged(context, [Get(layout.REASSIGNMENT_PATH)], decide, read_after=True)
    for each in done:
        context.requested.pop(each, None)


def strike_lost(context: Context) -> Steps[None]:
    """Remove the requests for partitions that are gone with their topics from the list in the store."""
    lost = {each: None for each in context.requested if each not in context.replicas}
    if lost:
        mark("reassignment: the topic of a request has vanished")
        yield from _strike(context, lost)


# --- the two steps ----------------------------------------------------------------------------

Planned: TypeAlias = tuple[Assignment, LeaderAndIsr | None]
_Step: TypeAlias = Callable[[Assignment, KnownState | None], Planned | None]
"""(assignment, state if any) as persisted → both as they should be, unchanged: None; None: no step."""


def _begin(context: Context, topic_partition: TopicPartition, target: tuple[int, ...]) -> Steps[bool]:
    """Begin or redirect a move to `target`; False if the partition is gone, or its nodes are unreadable."""

    def step(assignment: Assignment, known: KnownState | None) -> Planned | None:
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
        yield from settle(
            context, (topic_partition,), after_failures(context), reason="one of its new replicas may lead"
        )
    return topic_partition in context.replicas and context.assignment_of(topic_partition).target == target


def advance(context: Context, topic_partitions: Iterable[TopicPartition] | None = None) -> Steps[None]:
    """End the reassignments, of all partitions or of these, whose target is in sync."""
    some = context.assignments if topic_partitions is None else topic_partitions
    ended: dict[TopicPartition, tuple[int, ...] | None] = {}
    for each in sorted(some):

        def step(
            assignment: Assignment, known: KnownState | None, each: TopicPartition = each
        ) -> Planned | None:
            if known is None or not assignment.is_reassigning:
                return None
            state = _closing(context, each, assignment, known)
            return None if state is None else (assignment.finished(), state)

        if not context.is_reassigning(each):
            continue
        assignment = context.assignment_of(each)
        if step(assignment, context.states.get(each)) is None:
            continue
        yield from _take_step(context, each, step, "ends a reassignment")
        if not context.is_reassigning(each):
            ended[each] = assignment.target
    if ended.keys() & context.requested.keys():
        yield from _strike(context, ended)


def _closing(
    context: Context, topic_partition: TopicPartition, assignment: Assignment, known: KnownState
) -> LeaderAndIsr | None:
    state = closing_state(
        assignment, known.state, context.live(topic_partition), context.shutting_down, context.epoch
    )
    if state is None:
        return None
    if state.leader != known.state.leader:
        mark("reassignment: leadership moves to the target")
    return _with_memory(context, topic_partition, assignment.finished(), known.state, state)


def _with_memory(
    context: Context,
    topic_partition: TopicPartition,
    after: Assignment,
    before: LeaderAndIsr,
    state: LeaderAndIsr,
) -> LeaderAndIsr:
    """Return `state` as it goes with the assignment `after`: only its replicas are eligible, and counted."""
    kept = with_eligible(before, state, after.replicas)
    return with_min_insync(kept, context.min_insync(topic_partition, after), after.replicas, context.epoch)


def _take_step(context: Context, topic_partition: TopicPartition, step: _Step, change: str) -> Steps[None]:
    """Write assignment and state together, over exactly what was read, and announce them to the brokers.

    A reading that is new to us is announced as well: it may be our own write, its reply lost.
    """
    topic_path = layout.topic_path(topic_partition.topic)
    state_path = layout.partition_state_path(topic_partition)
    planned: Planned | None = None
    is_gone = is_news = False

    def decide(node_read: Outcome, state_read: Outcome) -> list[Write]:
        nonlocal planned, is_gone, is_news
        node = context.parsed(topic_path, node_read, layout.parse_topic)
        is_gone = node is None or topic_partition.partition not in node.partitions
        if node is None or node_read.stat is None or is_gone:
            return []
        before = assignment_in(node, topic_partition.partition)
        told = context.states.get(topic_partition)
        known = learn_state(context, topic_partition, state_read)
        is_news |= context.learn_assignment(topic_partition, before) or known != told
        planned = None if state_path in context.unreadable else step(before, known)
        if planned is None:
            return []
        after, state = planned
        data = layout.encode_topic(with_assignment(node, topic_partition.partition, after))
        writes: list[Write] = [Set(topic_path, data, node_read.stat.version)]
        if state is not None:
            assert known is not None, "a state follows upon a state"
            writes.append(Set(state_path, layout.encode_state(state), known.partition_epoch))
        return writes

    outcome = yield from write_unchanged(context, [Get(topic_path), Get(state_path)], decide)
    if outcome is not None and planned is not None:
        after, state = planned
        context.learn_assignment(topic_partition, after)
        if state is not None:
            context.states[topic_partition] = KnownState(state, version_written(outcome))
        context.record(topic_partition, change, f"replicas {list(after.target)} are wanted")
    elif is_gone or not is_news:
        return
    else:
        mark("reassignment: a step was already in the store")
    _tell(context, topic_partition)


def _tell(context: Context, topic_partition: TopicPartition) -> None:
    context.announce((topic_partition,))
    stop_leaving(context, (topic_partition,))


# --- replicas that leave ----------------------------------------------------------------------


def stop_leaving(
    context: Context,
    topic_partitions: Iterable[TopicPartition] | None = None,
    *,
    to: Collection[int] | None = None,
) -> None:
    """Order brokers, all if `to` is None, to delete their leaving replicas.

    A topic under deletion is skipped: its own orders cover these replicas, and ours would replace them.
    """
    for each in sorted(context.assignments if topic_partitions is None else topic_partitions):
        if context.is_being_deleted(each.topic):
            continue
        known = context.states.get(each)
        leader_epoch = known.state.leader_epoch if known is not None else m.NO_EPOCH
        for broker_id in context.assignment_of(each).leaving:
            if broker_id in context.brokers and (to is None or broker_id in to):
                context.stop_epochs[each, broker_id] = leader_epoch
                order = {each: m.StopReplicaPartition(leader_epoch, delete=True)}
                context.channels[broker_id].enqueue(m.StopReplicaRequest, order)


def deletions_answered(context: Context, answered: Answer) -> Steps[None]:
    """Take a broker's answer to StopReplica: the replicas that it no longer has leave the topic node."""
    assert isinstance(answered.body, m.StopReplicaResponse)
    broker_id = answered.broker_id
    gone: dict[str, list[TopicPartition]] = {}
    for each, order in sorted(answered.entry.partitions.items()):
        if each not in context.assignments or broker_id not in context.assignments[each].leaving:
            continue
        assert isinstance(order, m.StopReplicaPartition)
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
    after: layout.TopicAssignment | None = None

    def decide(read: Outcome) -> tuple[Write, ...]:
        nonlocal after
        node = after = context.parsed(path, read, layout.parse_topic)
        if node is None or after is None or read.stat is None:
            return ()
        for each in partitions:
            if each.partition in node.partitions:
                left = assignment_in(after, each.partition).confirmed(broker_id)
                after = with_assignment(after, each.partition, left)
        return () if after == node else (Set(path, layout.encode_topic(after), read.stat.version),)

    yield from write_unchanged(context, [Get(path)], decide)
    for each in partitions:
        if after is not None and each in context.replicas and each.partition in after.partitions:
            context.learn_assignment(each, assignment_in(after, each.partition))
            context.stop_epochs.pop((each, broker_id), None)
            context.offline_replicas.get(broker_id, set()).discard(each)
            context.record(each, "confirms a replica's deletion", f"broker {broker_id}")


def resume(context: Context) -> Steps[None]:
    """Continue from the last controller's position, once all states and assignments have been announced."""
    stop_leaving(context)
    yield from requests_changed(context)
    yield from advance(context)
