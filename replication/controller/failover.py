"""The beginning and end of a controller's term: claim, takeover, abdication.

    claim       one Multi: create /controller (ephemeral) and raise /controller_epoch
    takeover    watches, set by the reads that they guard  ·  notices for the last controller are removed
                brokers, topics, settings  ·  addresses to all  ·  states settled: dead replicas leave the
                ISRs, partitions without a leader get one  ·  everything to all brokers  ·  RESUME
    abdicate    one Multi: delete /controller, if the epoch is still ours

The epoch is the fence: every later write of this term checks that `/controller_epoch` has not changed. A
new controller assumes nothing about the requests of the old one. It reads all states, repairs the states
that dead brokers left behind, and sends every replica its full state; brokers ignore known facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.replication.controller import deletion, elect_leaders, reassignment
from logstore.replication.controller.brokers import load_broker_defaults, meet_brokers, read_brokers
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.procedure import (
    ROUNDS,
    after_failures,
    read_notices,
    remove_notices,
    settle,
    write_all,
)
from logstore.replication.controller.topics import list_topics, load_topics, note_config_changes
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Delete, Get, Multi, Set

RESUME: tuple[Callable[[Context], Steps[None]], ...] = (
    reassignment.resume,
    deletion.resume,
    elect_leaders.asked_in_store,
)
"""The procedures that the last controller may have left half-done, in the order of resumption:
reassignments, deletions, preferred elections. Each reads its requests from the store."""

# Their children are watched, and a watch needs a node.
_DIRECTORIES = (
    layout.BROKER_IDS_PATH,
    layout.TOPICS_PATH,
    layout.TOPIC_CONFIGS_PATH,
    layout.CONFIG_CHANGES_PATH,
    layout.DELETE_TOPICS_PATH,
    layout.ISR_NOTIFICATIONS_PATH,
    layout.LOG_DIR_EVENTS_PATH,
)


class Claim(NamedTuple):
    """A term: its controller epoch, and the version of `/controller_epoch` that fences it."""

    epoch: int
    epoch_version: int


def claim(node_id: int, session_id: int, now_ms: int) -> Steps[Claim | None]:
    """Try to become the controller; None if another node is. A watch on `/controller` is left."""
    attempted = -1
    for _ in range(ROUNDS):
        node, epoch_node = yield (Get(layout.CONTROLLER_PATH, watch=True), Get(layout.CONTROLLER_EPOCH_PATH))
        epoch = layout.parse_controller_epoch(epoch_node.data) if epoch_node.stat else 0
        if node.stat is not None:
            if node.stat.ephemeral_owner != session_id:
                return None
            if epoch_node.stat is not None and epoch == attempted:
                mark("controller: a claim succeeded though its reply was lost")
                return Claim(epoch, epoch_node.stat.version)
            # Left from a term that we gave up, or overwritten by an operator: start from nothing.
            mark("controller: an earlier claim of ours is removed")
            yield (Delete(layout.CONTROLLER_PATH, node.stat.version),)
            continue
        attempted = epoch + 1
        data = layout.encode_controller_epoch(attempted)
        raise_epoch: Create | Set = Create(layout.CONTROLLER_EPOCH_PATH, data)
        if epoch_node.stat is not None:
            raise_epoch = Set(layout.CONTROLLER_EPOCH_PATH, data, epoch_node.stat.version)
        mine = Create(layout.CONTROLLER_PATH, layout.encode_controller(node_id, now_ms), ephemeral=True)
        (outcome,) = yield (Multi((mine, raise_epoch)),)
        if outcome.error is None:
            stat = outcome.results[1].stat
            assert stat is not None
            return Claim(attempted, stat.version)
        # Another node was faster, or the reply is lost: the next read decides.
    raise MetadataConflict(f"{layout.CONTROLLER_PATH} kept changing")


def still_mine(node_id: int, session_id: int) -> Steps[bool]:
    """Return whether `/controller` names this node in this session. The watch is set again."""
    (node,) = yield (Get(layout.CONTROLLER_PATH, watch=True),)
    if node.stat is None or node.stat.ephemeral_owner != session_id:
        return False
    return layout.parse_controller(node.data) == node_id


def abdicate(context: Context) -> Steps[None]:
    """Give up the controller's role. The next claim reads the result of this Multi."""
    mark("controller: abdicates")
    yield (context.fenced(Delete(layout.CONTROLLER_PATH)),)


def take_over(context: Context) -> Steps[None]:
    """Build the copy from the store, repair the states, inform every broker. Repeatable from the start."""
    context.forget_all()
    for path in _DIRECTORIES:
        yield from write_all(context, {path: (Create(path, make_parents=True),)}, "could not be created")
    for directory in (layout.ISR_NOTIFICATIONS_PATH, layout.LOG_DIR_EVENTS_PATH):
        # The steps below read all states and inform all brokers.
        yield from remove_notices(context, (yield from read_notices(context, directory)))
    meet_brokers(context, (yield from read_brokers(context)))
    yield from load_topics(context, (yield from list_topics(context)))
    yield from load_broker_defaults(context)
    yield from note_config_changes(context)
    context.announce_brokers()
    yield from deletion.learn_requests(context)  # before elections: none for topics to be deleted
    reason = f"broker {context.node_id} takes over as the controller"
    yield from settle(
        context, context.replicas, after_failures(context), reason=reason, tell=lambda *partitions: None
    )
    context.announce(context.replicas, to=context.newcomers, is_full=True)
    context.newcomers.clear()
    for resume in RESUME:
        yield from resume(context)
