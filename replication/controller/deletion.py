"""Deleting topics: a request node, every replica's confirmation, then the topic's nodes.

    asked    DeleteTopics, or a tool: /admin/delete_topics/<t> appears
    begin    no more elections, leader -2 to all brokers, StopReplica(delete) to the live replicas
    (wait)   until each replica has confirmed; brokers that are down get the request when they return
    end      the partitions' nodes, then in one Multi topic node, settings and, last, the request

A topic under reassignment lives on as usual until that ends; its deletion has not begun. Only the request
node persists, and it is removed last: a new controller finds it and begins again, and the brokers report
which replicas are already deleted. Every write is fenced. After a lost reply the next round reads what is
left and removes that.

Each replica of a topic under deletion is in one of four states:

                    deletion requested        confirmed
    OFFLINE ──────────▶ STARTED ──────────▶ SUCCESSFUL ──▶ (the topic's nodes go when all are here)
       ▲  │                │
       │  └──────┐  ┌──────┘ its broker died, or cannot delete it
       │         ▼  ▼
       └───── INELIGIBLE          the whole topic waits; other topics do not
     its broker is back          (or SUCCESSFUL: it was requested twice, and the second request succeeded)

These are Kafka's replica states from `OfflineReplica` on. The earlier ones need no name here. A transition
that the table does not allow (a repeated answer, a broker that dies after it confirmed) changes nothing.
`Context.deletions` has every topic to be deleted, and `Deletion.blocking` the brokers that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller.assignment import assignment_in
from logstore.replication.controller.channel import Answer
from logstore.replication.controller.context import Context, Steps, Topic
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.procedure import ROUNDS, check_fence, write_all, write_unchanged
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Create, Delete, Get, Outcome, Set, Write

_GONE = (ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID)
"""Answers after which the broker has no replica of the deleted topic; it may have one of a namesake."""

DELETION_DISABLED: Final = "topic deletion is disabled; set delete.topic.enable=true on the brokers"


# --- the replicas of one topic: pure ----------------------------------------------------------


class ReplicaState(Enum):
    OFFLINE = "offline"
    STARTED = "deletion started"
    SUCCESSFUL = "deletion successful"
    INELIGIBLE = "deletion ineligible"


LEGAL: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.OFFLINE: frozenset({ReplicaState.STARTED, ReplicaState.INELIGIBLE}),
    ReplicaState.STARTED: frozenset({ReplicaState.SUCCESSFUL, ReplicaState.INELIGIBLE}),
    ReplicaState.SUCCESSFUL: frozenset(),
    ReplicaState.INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.SUCCESSFUL}),
}
"""The allowed transitions from each state."""


class Replica(NamedTuple):
    topic_partition: TopicPartition
    broker_id: int


_MOST_NAMED: Final = 20


def _named(partitions: Sequence[object]) -> str:
    """Name the first of many partitions: an answer has no room for all names of a large topic."""
    others = len(partitions) - _MOST_NAMED
    return ", ".join(map(str, partitions[:_MOST_NAMED])) + (f" and {others} more" if others > 0 else "")


class Deletion:
    """One topic to be deleted; `waits_for` is the reason why it has not begun, and is empty once it has."""

    def __init__(self, topic_id: str, replicas: Iterable[Replica] = (), *, waits_for: str = "") -> None:
        self.topic_id, self.waits_for = topic_id, waits_for
        self.states = dict.fromkeys(sorted(replicas), ReplicaState.OFFLINE)
        self._obstacles: dict[Replica, str] = {}

    @property
    def has_begun(self) -> bool:
        return not self.waits_for

    @property
    def is_complete(self) -> bool:
        """Whether every replica is confirmed as deleted."""
        return self.has_begun and all(state is ReplicaState.SUCCESSFUL for state in self.states.values())

    @property
    def blocking(self) -> dict[int, str]:
        """The brokers that the topic waits for, and the reason why each cannot delete its replicas."""
        return {
            replica.broker_id: self._obstacles[replica]
            for replica, state in self.states.items()
            if state is ReplicaState.INELIGIBLE
        }

    @property
    def awaited(self) -> str:
        """The reason for a wait: the start condition, brokers that cannot delete, or missing answers."""
        if not self.has_begun:
            return self.waits_for
        is_blocked = bool(self.blocking)
        parts: dict[str, list[str]] = {}
        for (each, broker_id), state in self.states.items():
            if state is ReplicaState.INELIGIBLE:
                why = self._obstacles[Replica(each, broker_id)]
                parts.setdefault(f"broker {broker_id} ({why})", []).append(str(each))
            elif state is not ReplicaState.SUCCESSFUL and not is_blocked:
                parts.setdefault(f"the answer of broker {broker_id}", []).append(str(each))
        return "; ".join(f"{who} for {_named(replicas)}" for who, replicas in parts.items())

    def move(self, replica: Replica, to: ReplicaState, why: str = "") -> bool:
        """Take the replica to another state; False, without a change, if the table does not allow it."""
        state = self.states.get(replica)
        if state is None or to not in LEGAL[state]:
            return False
        self.states[replica] = to
        self._obstacles.pop(replica, None)
        if to is ReplicaState.INELIGIBLE:
            self._obstacles[replica] = why
        return True

    def broker_gone(self, broker_id: int) -> None:
        """Let this broker's replicas wait, except those that it has confirmed."""
        for replica in self.states:
            if replica.broker_id == broker_id:
                self.move(replica, ReplicaState.INELIGIBLE, "not alive")

    def retry(self, obstacle: Callable[[Replica], str]) -> None:
        """Mark the replicas without an `obstacle` (empty text) for another request."""
        for replica, state in self.states.items():
            if state is ReplicaState.INELIGIBLE and not obstacle(replica):
                self.move(replica, ReplicaState.OFFLINE)

    def start(self, obstacle: Callable[[Replica], str]) -> dict[int, list[TopicPartition]]:
        """Return the partitions to delete now, by broker; they become `STARTED`, or `INELIGIBLE`."""
        told: dict[int, list[TopicPartition]] = {}
        for replica, state in self.states.items():
            if state is not ReplicaState.OFFLINE:
                continue
            if why := obstacle(replica):
                self.move(replica, ReplicaState.INELIGIBLE, why)
            else:
                self.move(replica, ReplicaState.STARTED)
                told.setdefault(replica.broker_id, []).append(replica.topic_partition)
        return told


def replicas_in(name: str, node: layout.TopicAssignment) -> list[Replica]:
    """Return the replicas of a topic, with those that are leaving: they may still have a log."""
    found = []
    for partition in node.partitions:
        assignment = assignment_in(node, partition)
        holders = dict.fromkeys((*assignment.replicas, *assignment.leaving))
        found += [Replica(TopicPartition(name, partition), broker_id) for broker_id in holders]
    return found


# --- requests of clients ----------------------------------------------------------------------


def delete_topics(
    context: Context, request: m.DeleteTopicsRequest, results: dict[str, m.AdminResult]
) -> Steps[None]:
    """Write the requests to the store; answered once they are there, before the logs are deleted."""
    pending: dict[str, tuple[Write, ...]] = {}
    for name in dict.fromkeys(request.topics):
        if name in results:
            continue
        known = context.deletions.get(name) or context.topics.get(name)
        if not context.config.delete_topic_enable:
            results[name] = m.AdminResult(ErrorCode.TOPIC_DELETION_DISABLED, DELETION_DISABLED)
        elif known is None:
            message = f"topic {name!r} does not exist"
            results[name] = m.AdminResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        elif request.ids.get(name, known.topic_id) != known.topic_id:
            results[name] = m.AdminResult(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        elif name in context.deletions:
            results[name] = m.AdminResult(ErrorCode.NONE)
        else:
            pending[name] = (Create(layout.delete_topic_path(name), make_parents=True),)

    def done(name: str) -> None:
        results[name] = m.AdminResult(ErrorCode.NONE)

    yield from write_all(context, pending, "could not be marked for deletion", done=done)
    yield from requests_changed(context)


# --- requests in the store --------------------------------------------------------------------


def requests_changed(context: Context) -> Steps[None]:
    """React to `/admin/delete_topics`."""
    yield from learn_requests(context)
    yield from advance(context)


def learn_requests(context: Context) -> Steps[None]:
    """Read the requests, set the watches again, and begin possible deletions, without requests to brokers.

    Requests for unknown topics are removed; all are, if deletion is disabled.
    """
    requested: tuple[str, ...] = ()

    def decide(holder: Outcome, listing: Outcome) -> list[Write]:
        nonlocal requested
        requested = listing.children
        listed: tuple[str, ...] | None = None
        if holder.data:
            listed = context.parsed(layout.DELETE_TOPICS_PATH, holder, layout.parse_delete_topics)
        else:
            context.unreadable.pop(layout.DELETE_TOPICS_PATH, None)
        if not context.config.delete_topic_enable:
            refused: list[Write] = [Delete(layout.delete_topic_path(name)) for name in requested]
            if listed and holder.stat is not None:
                refused.append(Set(layout.DELETE_TOPICS_PATH, b"", holder.stat.version))
            if refused:
                mark("deletion: refused, it is disabled")
            return refused
        if not listed or holder.stat is None:
            return []
        # The old form, a list in the node itself, is rewritten as one child a topic.
        mark("deletion: a list of topics in the node itself")
        children = [Create(layout.delete_topic_path(name)) for name in listed if name not in requested]
        return [*children, Set(layout.DELETE_TOPICS_PATH, b"", holder.stat.version)]

    path = layout.DELETE_TOPICS_PATH
    yield from write_unchanged(
        context, [Get(path, watch=True), Children(path, watch=True)], decide, read_after=True
    )
    for name in [name for name, deletion in context.deletions.items() if not deletion.has_begun]:
        if name not in requested:
            mark("deletion: cancelled while it waited")
            del context.deletions[name]
    yield from _consider(context, requested)


def _consider(context: Context, names: Iterable[str]) -> Steps[None]:
    """Begin the deletion of topics that exist and are not under reassignment."""
    waiting = [
        name for name in names if name not in context.deletions or not context.deletions[name].has_begun
    ]
    reads = yield tuple(Get(layout.topic_path(name)) for name in waiting)
    for name, read in zip(waiting, reads, strict=True):
        if read.stat is None:
            mark("deletion: of a missing topic")
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
        known = context.topics.get(name)
        if known is None or known.topic_id != node.topic_id:
            # A tool may have removed the earlier topic and the request, and made this one, since the request
            # was read.
            (request,) = yield (Get(layout.delete_topic_path(name)),)
            if request.stat is None:
                context.deletions.pop(name, None)
                continue
        if moving := sorted(node.adding_replicas.keys() | node.removing_replicas.keys()):
            mark("deletion: waits for a reassignment")
            context.deletions[name] = Deletion(
                node.topic_id, waits_for=f"the reassignment of partitions [{_named(moving)}]"
            )
        else:
            _begin(context, name, node)


def _begin(context: Context, name: str, node: layout.TopicAssignment) -> None:
    known = context.topics.get(name)
    if known is None or known.topic_id != node.topic_id:
        context.lose_topic(name)
        context.topics[name] = Topic(node.topic_id)
    for partition in node.partitions:
        context.learn_assignment(TopicPartition(name, partition), assignment_in(node, partition))
    context.deletions[name] = Deletion(node.topic_id, replicas_in(name, node))
    context.announce_metadata(context.partitions_of(name))
    for each in context.partitions_of(name):
        context.record(each, "begins to delete the topic", "its deletion is requested in the store")


def is_in_doubt(context: Context, name: str, topic_id: str) -> bool:
    """Return whether the topic to be deleted is gone and this other one has its name.

    The new topic is deleted too if the request still stands (`requests_changed`); until then nothing begins.
    """
    deletion = context.deletions.get(name)
    if deletion is None or deletion.topic_id in ("", topic_id):
        return False
    mark("deletion: another topic has the name")
    context.deletions[name] = Deletion(
        deletion.topic_id, waits_for="a check whether its request still stands"
    )
    return True


def topic_changed(context: Context, name: str) -> Steps[None]:
    """React to a write of a topic that is to be deleted; the watch is set again.

    New partitions are removed again, and the end of a reassignment lets the deletion begin. If another topic
    has the name and the request is gone, the topic is no longer in `Context.deletions`.
    """
    is_another = False

    def decide(read: Outcome) -> tuple[Write, ...]:
        nonlocal is_another
        if read.stat is None:
            return ()
        try:
            node = layout.parse_topic(read.data)
        except CorruptMetadata:
            return ()
        if is_another := is_in_doubt(context, name, node.topic_id):
            return ()
        old = {each.partition for each in context.partitions_of(name)}
        if not old or node.partitions.keys() <= old:
            return ()
        mark("deletion: partitions added meanwhile are removed")
        kept = {partition: node.partitions[partition] for partition in node.partitions if partition in old}
        data = layout.encode_topic(replace(node, partitions=kept))
        return (Set(layout.topic_path(name), data, read.stat.version),)

    reads = [Get(layout.topic_path(name), watch=True)]
    yield from write_unchanged(context, reads, decide, read_after=True)
    if is_another:
        yield from requests_changed(context)
        return
    yield from _consider(context, (name,))
    yield from advance(context)


# --- going on ---------------------------------------------------------------------------------


def resume(context: Context, again: Collection[int] = ()) -> Steps[None]:
    """Repeat the request to brokers that failed to delete their replicas and may succeed now.

    Brokers in `again` report a change themselves. They get the request again even while a response is
    pending: it may be a refusal from before the change, and would not be repeated.
    """
    for deletion in context.deletions.values():
        for replica, state in deletion.states.items():
            if state is ReplicaState.STARTED and replica.broker_id in again:
                mark("deletion: told once more while an answer is awaited")
                _tell(context, replica.broker_id, (replica.topic_partition,))
        deletion.retry(lambda replica: _obstacle(context, replica))
    yield from advance(context)


def _tell(context: Context, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
    order = m.StopReplicaPartition(m.BEING_DELETED, delete=True)
    context.channels[broker_id].enqueue(m.StopReplicaRequest, dict.fromkeys(partitions, order))


def _obstacle(context: Context, replica: Replica) -> str:
    # A failed log dir is not an obstacle: its end would go unnoticed. The broker gets the request and
    # answers.
    return "" if replica.broker_id in context.brokers else "not alive"


def advance(context: Context) -> Steps[None]:
    """Send the orders that are due, and finish the topics whose replicas are all confirmed."""
    was_replaced = False
    for name, deletion in sorted(context.deletions.items()):
        for broker_id, partitions in deletion.start(lambda replica: _obstacle(context, replica)).items():
            _tell(context, broker_id, partitions)
        if deletion.blocking:
            mark("deletion: waits for a broker")
        if deletion.is_complete:
            was_replaced |= not (yield from _remove_nodes(context, name, deletion.topic_id))
            for each in context.partitions_of(name):
                context.record(each, "has deleted the topic", "every replica is confirmed as deleted")
            for channel in context.channels.values():
                # An order may be queued twice. The second one would reach a new topic of this name.
                channel.withdraw(name, m.StopReplicaRequest)
            context.forget_topic(name)
            del context.deletions[name]
    if was_replaced:
        yield from requests_changed(context)


def replicas_stopped(context: Context, answered: Answer) -> Steps[None]:
    """Take a broker's answer to StopReplica: deleted replicas are confirmed, the others must wait."""
    assert isinstance(answered.body, m.StopReplicaResponse)
    if not context.has_incarnation(answered.broker_id, answered.broker_epoch):
        return  # its successor gets a new request
    for each, order in sorted(answered.entry.partitions.items()):
        deletion = context.deletions.get(each.topic)
        assert isinstance(order, m.StopReplicaPartition)
        if deletion is None or order.leader_epoch != m.BEING_DELETED:
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
    """Remove a topic's nodes from the store, its request last; False if another topic has its name."""
    topic, partitions = layout.topic_path(name), f"{layout.topic_path(name)}/partitions"
    config, request = layout.topic_config_path(name), layout.delete_topic_path(name)
    for _ in range(ROUNDS):
        listing, *reads = yield (Children(partitions), Get(topic), Get(config), Get(request))
        if reads[0].stat is not None and (topic_id is None or _is_other(reads[0].data, topic_id)):
            mark("deletion: the topic was replaced in the store")
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
