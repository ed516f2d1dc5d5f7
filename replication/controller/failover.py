"""Becoming the controller, and ceasing to be: the claim, the takeover, the abdication.

    claim       one Multi: create /controller (ephemeral) and raise /controller_epoch
    takeover    watches, with the readings they guard  ·  notices left for the one before are dropped
                brokers, topics, settings  ·  addresses to all  ·  states settled: replicas of the dead
                leave, partitions without a leader get one  ·  everything to everybody  ·  RESUME
    abdicate    one Multi: delete /controller, if the epoch is still ours

The epoch is the fence: every later write of this term checks that `/controller_epoch` has not moved.
A new controller assumes nothing about what the old one managed to say: it reads all states, mends
what the dead left behind and tells every replica everything. Brokers ignore what they knew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.replication.controller import config_changes, elect_leaders, reassigning, topic_deletion
from logstore.replication.controller.broker_changes import meet_brokers, read_brokers
from logstore.replication.controller.broker_defaults import load_broker_defaults
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.notices import drop_notices
from logstore.replication.controller.partition_states import ROUNDS, after_failures, check_fence, settle
from logstore.replication.controller.topics import list_topics, load_topics
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Delete, Get, Multi, Set, StoreError

RESUME: tuple[Callable[[Context], Steps[None]], ...] = (
    reassigning.resume,
    topic_deletion.resume,
    elect_leaders.asked_in_store,
)
"""What the controller before may have left half-done, in the order in which it is taken up: reassignments,
deletions, then preferred elections. Each reads its own request from the store and finds what is done."""


class Claim(NamedTuple):
    """A term: its controller epoch, and the version of `/controller_epoch` that fences it."""

    epoch: int
    epoch_version: int


def claim(node_id: int, session_id: int, now_ms: int) -> Steps[Claim | None]:
    """Try to become the controller; None if somebody else is. A watch on `/controller` is left."""
    attempted = -1
    for _ in range(ROUNDS):
        node, epoch_node = yield (
            Get(layout.CONTROLLER_PATH, watch=True),
            Get(layout.CONTROLLER_EPOCH_PATH),
        )
        epoch = layout.parse_controller_epoch(epoch_node.data) if epoch_node.stat else 0
        if node.stat is not None:
            if node.stat.ephemeral_owner != session_id:
                return None
            if epoch_node.stat is not None and epoch == attempted:
                mark("controller: a claim succeeded though its reply was lost")
                return Claim(epoch, epoch_node.stat.version)
            # Left of a term that we gave up, or overwritten by an operator: start from nothing.
            mark("controller: a claim of ours from before is removed")
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
        # Lost the race, or lost the reply: the next reading tells which.
    raise MetadataConflict("/controller kept changing hands")


def still_mine(node_id: int, session_id: int) -> Steps[bool]:
    """Does `/controller` name this session's node? The watch is set again."""
    (node,) = yield (Get(layout.CONTROLLER_PATH, watch=True),)
    if node.stat is None or node.stat.ephemeral_owner != session_id:
        return False
    return layout.parse_controller(node.data) == node_id


def abdicate(context: Context) -> Steps[None]:
    """Let others try. Whatever this Multi's fate is, the next claim looks at what is there."""
    mark("controller: a term is given up for others to try")
    yield (context.fenced(Delete(layout.CONTROLLER_PATH)),)


def take_over(context: Context) -> Steps[None]:
    """Build the copy from the store, mend the states, tell everybody. Repeatable from the start."""
    context.forget_all()
    yield from _make_directories(context)
    for directory in (layout.ISR_NOTIFICATIONS_PATH, layout.LOG_DIR_EVENTS_PATH):
        yield from drop_notices(context, directory)
    meet_brokers(context, (yield from read_brokers(context)))
    names = yield from list_topics(context)
    yield from load_topics(context, names)
    yield from load_broker_defaults(context)
    yield from config_changes.note_changes(context)
    context.announce_brokers()
    yield from topic_deletion.learn_requests(context)  # before elections: none for what is to go
    yield from settle(context, context.replicas, after_failures(context), announce=False)
    context.announce(context.states, to=context.newcomers, is_full=True)
    context.newcomers.clear()
    for resume in RESUME:
        yield from resume(context)


def _make_directories(context: Context) -> Steps[None]:
    # Their children are watched, and a watch needs a node to sit on.
    for path in (
        layout.BROKER_IDS_PATH,
        layout.TOPICS_PATH,
        layout.TOPIC_CONFIGS_PATH,
        layout.CONFIG_CHANGES_PATH,
        layout.DELETE_TOPICS_PATH,
        layout.ISR_NOTIFICATIONS_PATH,
        layout.LOG_DIR_EVENTS_PATH,
    ):
        for _ in range(ROUNDS):
            (outcome,) = yield (context.fenced(Create(path, make_parents=True)),)
            check_fence(outcome)
            if outcome.error in (None, StoreError.NODE_EXISTS):
                break
        else:
            raise MetadataConflict(f"{path} could not be made")
