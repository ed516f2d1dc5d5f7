"""Adding partitions to topics for a client: check, place, write the topic node, give the new ones leaders.

The topic node is written over just what was read, and the old lists in it stay as they are. A tool may write
the node as well (`topics.topic_changed`): whoever finds partitions without a state gives them one, so a
crash in between only delays the leaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.marks import mark
from logstore.replication.controller import assignment
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    MetadataConflict,
    ReassignmentInProgress,
)
from logstore.replication.controller.items import of_all, one_by_one
from logstore.replication.controller.partition_states import ROUNDS, after_failures, check_fence, settle
from logstore.replication.controller.topic_creation import racks_of
from logstore.replication.controller.topics import load_topics
from logstore.replication.errors import UnknownTopicOrPartition
from logstore.replication.messages import (
    AdminResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    NewPartitions,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get, Set


def create_partitions(
    context: Context, request: CreatePartitionsRequest, results: dict[str, AdminResult]
) -> Steps[CreatePartitionsResponse]:
    """Give each topic the partitions it lacks; answered when they have their first states."""
    carry_out = partial(_extend, context, validate_only=request.validate_only)
    yield from one_by_one(request.topics, results, carry_out)
    if request.validate_only:
        return answer(request, results)
    extended = [name for name in request.topics if results[name].error is ErrorCode.NONE]
    stateless = yield from load_topics(context, extended)
    yield from settle(context, stateless, after_failures(context))
    return answer(request, results)


def answer(request: CreatePartitionsRequest, results: Mapping[str, AdminResult]) -> CreatePartitionsResponse:
    """Also when the term ends half-way."""
    return CreatePartitionsResponse(of_all(request.topics, results, AdminResult))


def _extend(context: Context, name: str, wanted: NewPartitions, *, validate_only: bool) -> Steps[None]:
    path = layout.topic_path(name)
    attempted = b""
    for _ in range(ROUNDS):
        # Before the read: what a client calls a topic may be no path, or another node's.
        if name not in context.topics:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        (read,) = yield (Get(path),)
        if read.stat is None or name not in context.topics:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        if read.data == attempted:
            mark("partitions: the reply to their creation was lost")
            return
        if name in context.deletions:
            raise InvalidTopic(f"topic {name!r} is being deleted")
        node = layout.parse_topic(read.data)
        if moving := sorted(node.adding_replicas.keys() | node.removing_replicas.keys()):
            raise ReassignmentInProgress(
                f"partitions {moving} of {name!r} are being reassigned; wait, or call that off"
            )
        new = _new_partitions(context, node, wanted)
        if validate_only:
            return
        data = layout.encode_topic(replace(node, partitions={**node.partitions, **new}))
        (outcome,) = yield (context.fenced(Set(path, data, read.stat.version)),)
        check_fence(outcome)
        if outcome.error is None:
            return
        attempted = data
    raise MetadataConflict(f"the topic node of {name} kept changing")


def _new_partitions(
    context: Context, node: layout.TopicAssignment, wanted: NewPartitions
) -> Mapping[int, assignment.Replicas]:
    assignment.check_new_partitions(wanted.total - len(node.partitions))
    if not wanted.assignment:
        return assignment.added_partitions(node.partitions, racks_of(context), wanted.total)
    _check_lists(node, wanted.total, wanted.assignment)
    return dict(enumerate(wanted.assignment, len(node.partitions)))


def _check_lists(node: layout.TopicAssignment, total: int, lists: Sequence[assignment.Replicas]) -> None:
    existing = len(node.partitions)
    if total <= existing:
        raise InvalidPartitions(
            f"the topic has {existing} partitions and cannot go to {total}: they only grow"
        )
    if len(lists) != total - existing:
        raise InvalidReplicaAssignment(
            f"{len(lists)} lists of replicas for {total - existing} new partitions: give one for each"
        )
    assignment.check_manual(lists)
    if len(lists[0]) != len(node.partitions[0]):
        raise InvalidReplicaAssignment(
            f"{len(lists[0])} replicas for the new partitions, partition 0 has {len(node.partitions[0])}"
        )
