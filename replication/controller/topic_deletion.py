"""Deleting topics: a request node, every replica's word that it is gone, then the nodes.

    asked    DeleteTopics, or a tool: /admin/delete_topics/<t> appears
    begin    no more elections, leader -2 to everybody, StopReplica(delete) to the replicas that live
    (wait)   until each replica has confirmed; those on dead brokers are asked when these return
    end      the partitions' nodes, then in one Multi topic node, settings and, last, the request

A topic with a reassignment under way waits for its end as any other topic would live; nothing has begun then.
All that lasts is the request node, which goes last: whoever takes over finds it, begins anew, and hears of
replicas already gone that they are gone. Every write is fenced. What became of a write whose reply is
lost is not asked: the next round reads what is left and removes that.

`Context.deletions` has every topic that waits, and by `Deletion.blocking` for whom.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.channel import Answer
from logstore.replication.controller.context import Context, Steps, Topic
from logstore.replication.controller.deletion import Deletion, Replica, ReplicaState
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.items import of_all
from logstore.replication.controller.partition_states import ROUNDS, check_fence
from logstore.replication.controller.reassignment import assignment_in
from logstore.replication.messages import (
    BEING_DELETED,
    AdminResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Create, Delete, Get, Set, StoreError

_GONE = (ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID)
"""Answers after which the broker has nothing of the topic that was meant; another of its name it may have."""


# --- asked by a client ------------------------------------------------------------------------


def delete_topics(
    context: Context, request: DeleteTopicsRequest, results: dict[str, AdminResult]
) -> Steps[DeleteTopicsResponse]:
    """Record what is to be deleted; answered when that is in the store, the logs go after."""
    pending: list[str] = []
    for name in dict.fromkeys(request.topics):
        if name in results:
            continue
        if not context.config.delete_topic_enable:
            message = "topics cannot be deleted here: set delete.topic.enable on the brokers"
            results[name] = AdminResult(ErrorCode.TOPIC_DELETION_DISABLED, message)
        elif name in context.deletions:
            results[name] = AdminResult(ErrorCode.NONE)
        elif name not in context.topics:
            results[name] = AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        else:
            pending.append(name)
    for _ in range(ROUNDS):
        outcomes = yield tuple(
            context.fenced(Create(layout.delete_topic_path(name), make_parents=True)) for name in pending
        )
        unsure = []
        for name, outcome in zip(pending, outcomes, strict=True):
            check_fence(outcome)
            if outcome.error in (None, StoreError.NODE_EXISTS):
                results[name] = AdminResult(ErrorCode.NONE)
            else:
                unsure.append(name)
        pending = unsure
        if not pending:
            break
    else:
        raise MetadataConflict(f"the deletion of {', '.join(pending)} could not be recorded")
    yield from requests_changed(context)
    return answer(request, results)


def answer(request: DeleteTopicsRequest, results: Mapping[str, AdminResult]) -> DeleteTopicsResponse:
    """Also when the term ends half-way."""
    return DeleteTopicsResponse(of_all(request.topics, results, AdminResult))


# --- asked in the store -----------------------------------------------------------------------


def requests_changed(context: Context) -> Steps[None]:
    """React to `/admin/delete_topics`."""
    yield from learn_requests(context)
    yield from advance(context)


def learn_requests(context: Context) -> Steps[None]:
    """Read what is to be deleted, the watches set again, and begin what can begin; nobody is told yet
    to delete anything. Requests for topics that are not there are removed, and all if deletion is off."""
    for _ in range(ROUNDS):
        holder, listing = yield (
            Get(layout.DELETE_TOPICS_PATH, watch=True),
            Children(layout.DELETE_TOPICS_PATH, watch=True),
        )
        listed = _listed(context, holder.data)
        if not listed or holder.stat is None:
            break
        # The old form, a list in the node itself: from now on one child a topic, like all others.
        mark("deletion: a list of topics in the node itself")
        children = [Create(layout.delete_topic_path(name)) for name in listed if name not in listing.children]
        empty = Set(layout.DELETE_TOPICS_PATH, b"", holder.stat.version)
        (outcome,) = yield (context.fenced(*children, empty),)
        check_fence(outcome)
    else:
        raise MetadataConflict(f"{layout.DELETE_TOPICS_PATH} kept changing")
    if not context.config.delete_topic_enable:
        yield from _remove_requests(context, listing.children)
        return
    for name in [name for name, deletion in context.deletions.items() if not deletion.has_begun]:
        if name not in listing.children:
            mark("deletion: called off while it waited")
            del context.deletions[name]
    yield from _consider(context, listing.children)


def _listed(context: Context, data: bytes) -> tuple[str, ...]:
    context.unreadable.pop(layout.DELETE_TOPICS_PATH, None)
    if not data:
        return ()
    try:
        return layout.parse_delete_topics(data)
    except CorruptMetadata as error:
        context.unreadable[layout.DELETE_TOPICS_PATH] = str(error)
        return ()


def _remove_requests(context: Context, names: Iterable[str]) -> Steps[None]:
    mark("deletion: refused, it is switched off")
    # One whose removal is lost is met again with the next request, or by the next controller.
    outcomes = yield tuple(context.fenced(Delete(layout.delete_topic_path(name))) for name in names)
    for outcome in outcomes:
        check_fence(outcome)


def _consider(context: Context, names: Iterable[str]) -> Steps[None]:
    """Begin the deletion of those that exist and whose replicas are not in motion."""
    waiting = [
        name for name in names if name not in context.deletions or not context.deletions[name].has_begun
    ]
    reads = yield tuple(Get(layout.topic_path(name)) for name in waiting)
    for name, read in zip(waiting, reads, strict=True):
        if read.stat is None:
            mark("deletion: of a topic that is not there")
            context.deletions.pop(name, None)
            context.lose_topic(name)
            if not (yield from _remove_nodes(context, name)):
                yield from _consider(context, (name,))
            continue
        try:
            node = layout.parse_topic(read.data)
        except CorruptMetadata as error:
            context.deletions[name] = Deletion("", waits_for=f"its node cannot be read: {error}")
            continue
        if moving := sorted(node.adding_replicas.keys() | node.removing_replicas.keys()):
            mark("deletion: waits for a reassignment")
            context.deletions[name] = Deletion(
                node.topic_id, waits_for=f"the reassignment of partitions {moving}"
            )
        else:
            _begin(context, name, node)


def _begin(context: Context, name: str, node: layout.TopicAssignment) -> None:
    replicas = []
    known = context.topics.get(name)
    if known is None or known.topic_id != node.topic_id:
        context.lose_topic(name)
        context.topics[name] = Topic(node.topic_id)
    for partition in node.partitions:
        each, assignment = TopicPartition(name, partition), assignment_in(node, partition)
        context.learn_assignment(each, assignment)
        # One that is leaving may have a log still.
        holders = dict.fromkeys((*assignment.replicas, *assignment.leaving))
        replicas += [Replica(each, broker_id) for broker_id in holders]
    context.deletions[name] = Deletion(node.topic_id, replicas)
    context.announce_metadata(context.partitions_of(name))
    for each in context.partitions_of(name):
        context.record(each, "begins to delete the topic")


def is_in_doubt(context: Context, name: str, topic_id: str) -> bool:
    """Whether the topic that is to be deleted is gone, and this other one has its name: it goes too if there
    still is a request (`requests_changed`), and until then nothing has begun."""
    deletion = context.deletions.get(name)
    if deletion is None or deletion.topic_id in ("", topic_id):
        return False
    mark("deletion: another topic has the name by now")
    context.deletions[name] = Deletion(deletion.topic_id, waits_for="a look whether its request still stands")
    return True


def topic_changed(context: Context, name: str) -> Steps[None]:
    """A topic that is to be deleted was written: new partitions are taken back, and the end of a
    reassignment lets the deletion begin. If another one has its name by now, and the request is gone, it is
    in `Context.deletions` no more. The watch is set again."""
    for _ in range(ROUNDS):
        (read,) = yield (Get(layout.topic_path(name), watch=True),)
        if read.stat is None:
            break
        try:
            node = layout.parse_topic(read.data)
        except CorruptMetadata:
            break
        if is_in_doubt(context, name, node.topic_id):
            yield from requests_changed(context)
            return
        old = {each.partition for each in context.partitions_of(name)}
        if not old or node.partitions.keys() <= old:
            break
        mark("deletion: partitions that were added meanwhile are taken back")
        kept = {partition: node.partitions[partition] for partition in node.partitions if partition in old}
        data = layout.encode_topic(replace(node, partitions=kept))
        (outcome,) = yield (context.fenced(Set(layout.topic_path(name), data, read.stat.version)),)
        check_fence(outcome)
    else:
        raise MetadataConflict(f"the topic node of {name} kept changing")
    yield from _consider(context, (name,))
    yield from advance(context)


# --- going on ---------------------------------------------------------------------------------


def resume(context: Context, again: Collection[int] = ()) -> Steps[None]:
    """Ask those again who could not delete their replicas and may be able to now.

    Of the brokers `again`, which say so themselves, also those whose refusal may still be on its way: it
    would be the older word, and nobody would ask again.
    """
    for deletion in context.deletions.values():
        for replica, state in deletion.states.items():
            if state is ReplicaState.STARTED and replica.broker_id in again:
                mark("deletion: told once more while an answer is awaited")
                _tell(context, replica.broker_id, (replica.topic_partition,))
        deletion.retry(lambda replica: _obstacle(context, replica))
    yield from advance(context)


def _tell(context: Context, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
    order = StopReplicaPartition(BEING_DELETED, delete=True)
    context.channels[broker_id].enqueue(StopReplicaRequest, dict.fromkeys(partitions, order))


def _obstacle(context: Context, replica: Replica) -> str:
    # A log dir that failed is no obstacle that we could know the end of: the broker is asked, and says so.
    return "" if replica.broker_id in context.brokers else "not alive"


def advance(context: Context) -> Steps[None]:
    """Tell who has not been told, and end what every replica has confirmed."""
    was_replaced = False
    for name, deletion in sorted(context.deletions.items()):
        for broker_id, partitions in deletion.start(lambda replica: _obstacle(context, replica)).items():
            _tell(context, broker_id, partitions)
        if deletion.blocking:
            mark("deletion: waits for a broker")
        if deletion.is_complete:
            was_replaced |= not (yield from _remove_nodes(context, name, deletion.topic_id))
            for each in context.partitions_of(name):
                context.record(each, "has deleted the topic")
            context.forget_topic(name)
            del context.deletions[name]
    if was_replaced:
        yield from requests_changed(context)


def replicas_stopped(context: Context, answered: Answer) -> Steps[None]:
    """A broker answered StopReplica: what it deleted is gone, what it could not has to wait."""
    assert isinstance(answered.body, StopReplicaResponse)
    broker = context.brokers.get(answered.broker_id)
    if broker is None or broker.endpoint.epoch != answered.broker_epoch:
        return  # its successor is asked again
    for each, order in sorted(answered.entry.partitions.items()):
        deletion = context.deletions.get(each.topic)
        assert isinstance(order, StopReplicaPartition)
        if deletion is None or order.leader_epoch != BEING_DELETED:
            continue
        error = answered.body.partitions.get(each, ErrorCode.UNKNOWN_SERVER_ERROR)
        replica = Replica(each, answered.broker_id)
        if error in _GONE:
            deletion.move(replica, ReplicaState.SUCCESSFUL)
        else:
            mark("deletion: a broker cannot delete its replica")
            deletion.move(replica, ReplicaState.INELIGIBLE, error.name)
    yield from advance(context)


def _remove_nodes(context: Context, name: str, topic_id: str | None = None) -> Steps[bool]:
    """Remove what is left of a topic in the store, its request last; False if it is another topic by now."""
    topic, partitions = layout.topic_path(name), f"{layout.topic_path(name)}/partitions"
    config, request = layout.topic_config_path(name), layout.delete_topic_path(name)
    for _ in range(ROUNDS):
        listing, *reads = yield (Children(partitions), Get(topic), Get(config), Get(request))
        node = reads[0]
        if node.stat is not None and (topic_id is None or _is_other(node.data, topic_id)):
            mark("deletion: the topic was replaced behind our back")
            return False
        if listing.children:
            paths = [f"{partitions}/{child}" for child in listing.children]
            below = yield tuple(Children(path) for path in paths)
            outcomes = yield tuple(
                context.fenced(*(Delete(f"{path}/{child}") for child in found.children), Delete(path))
                for path, found in zip(paths, below, strict=True)
            )
            for outcome in outcomes:
                check_fence(outcome)
            continue
        left = [partitions] if listing.stat is not None else []
        left += [path for path, read in zip((topic, config, request), reads, strict=True) if read.stat]
        if not left:
            return True
        (outcome,) = yield (context.fenced(*map(Delete, left)),)
        check_fence(outcome)
        if outcome.error is None:
            return True
    raise MetadataConflict(f"the nodes of topic {name} could not be removed")


def _is_other(data: bytes, topic_id: str) -> bool:
    try:
        return layout.parse_topic(data).topic_id != topic_id
    except CorruptMetadata:
        return False
