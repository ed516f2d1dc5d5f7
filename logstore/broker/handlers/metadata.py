"""Requests about the cluster: Metadata, DescribeCluster.

Metadata without topics means all of them in version 0, and none later, where null means all. An unknown
topic is UNKNOWN_TOPIC_OR_PARTITION (3), or is created if it may be; a bad name is INVALID_TOPIC_EXCEPTION
(17); a partition without a leader is LEADER_NOT_AVAILABLE (5), with leader -1. A leader that is not among
the live brokers counts as none. Addresses are those of the listener that was asked. A topic id takes
precedence over a name: Java's client leaves the name empty, not null. A broker that has just started delays
its answer until the controller has sent it the cluster's metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.topic_creation import MOST_OF_ONE_REQUEST
from logstore.broker.translation import NO_ID, id_to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import check_topic_name
from logstore.replication.messages import NO_LEADER, NewTopic, PartitionState

NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: bit n for operation n."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_DEFAULT: Final = -1
_ALWAYS_CREATES_BELOW: Final = 4
_NAMES_MAY_BE_NULL: Final = 12
_KNOWS_LISTENERS: Final = 6
PARTITIONS_A_TURN: Final = 250
"""Partitions and unknown topics of one answer that are looked up before other connections have their turn."""
ANSWERED_LATE_MS: Final = 1_000
"""Delay of the answer to a request for more new topics than it may queue: about the time in which those are
created. Its client asks again at once."""
_NUMBER: Final = itemgetter(0)
_PATIENCE_MS: Final = 5_000
"""The longest wait for the controller's first update: librdkafka stops at an empty list of brokers."""


def handle(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse | None:
    ends_ms = services.now_ms() + _PATIENCE_MS
    respond = partial(_respond, call, body, services)
    return services.when(call, lambda: bool(services.metadata.brokers), ends_ms, respond)


def _respond(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse | None:
    """Return the answer, or take several turns for it: other connections have theirs in between.

    Each topic is shown as it is at its turn, but leaders and brokers as they are in the last one. A closed
    connection ends it.
    """
    updates = services.metadata.updates
    found: list[t.MetadataResponseTopic] = []
    unknown: list[str] = []
    remaining = _topics(call, body, services, unknown)

    def answer() -> t.MetadataResponse | None:
        respond = partial(_response, call, body, services, found, updates)
        if len(unknown) <= MOST_OF_ONE_REQUEST:
            return respond()
        services.later(call, ANSWERED_LATE_MS, respond)
        return None

    async def go_on() -> t.MetadataResponse | None:
        while not _is_done(remaining, found):
            await asyncio.sleep(0)
            if call.connection.is_closing:
                return None
        return answer()

    if _is_done(remaining, found):
        return answer()
    services.begin(call, go_on())
    return None


def _is_done(remaining: Iterator[t.MetadataResponseTopic], found: list[t.MetadataResponseTopic]) -> bool:
    """Move a turn's worth of topics; return whether they were the last ones."""
    size = 0
    for topic in remaining:
        found.append(topic)
        size += 1 + len(topic.partitions)
        if size >= PARTITIONS_A_TURN:
            return False
    return True


def _response(
    call: Call,
    body: t.MetadataRequest,
    services: Services,
    topics: list[t.MetadataResponseTopic],
    updates: int,
) -> t.MetadataResponse:
    """Return the answer; `topics` were looked up after as many `updates` of the metadata, or later."""
    if updates != services.metadata.updates:
        _leave_out_departed(services, topics)
    _leave_out_unreachable(call, services, topics)
    if body.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    metadata = services.metadata
    return t.MetadataResponse(
        brokers=[
            t.MetadataResponseBroker(
                node_id=each.broker_id, host=found[0], port=found[1], rack=each.rack or None
            )
            for each in metadata.brokers.values()
            if (found := each.on(call.listener)) is not None
        ],
        cluster_id=services.cluster_id,
        controller_id=_controller_id(services),
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _topics(
    call: Call, body: t.MetadataRequest, services: Services, unknown: list[str]
) -> Iterator[t.MetadataResponseTopic]:
    """Yield all topics that are asked for, each once. `unknown` gets names that may be new, at most one more
    than can be queued for creation.
    """
    metadata, creation = services.metadata, services.topic_creation
    if body.topics is None or (call.version == 0 and not body.topics):
        for topic in sorted(metadata.topics):
            if topic in metadata.topics:  # still
                yield _topic(services, topic)
        return
    may_create = body.allow_auto_topic_creation or call.version < _ALWAYS_CREATES_BELOW
    may_create = may_create and services.settings.broker.auto_create_topics_enable
    shown: set[object] = set()
    for wanted in body.topics:
        is_by_id = wanted.name is None or wanted.topic_id != NO_ID
        name = metadata.topic_names.get(id_to_text(wanted.topic_id)) if is_by_id else wanted.name
        key = wanted.topic_id if name is None else name
        if key in shown:
            continue
        shown.add(key)
        if name is not None and name in metadata.topics:
            yield _topic(services, name)
        elif name is None or is_by_id:
            yield t.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.version >= _NAMES_MAY_BE_NULL else "",
                topic_id=wanted.topic_id,
            )
        else:
            if may_create and len(unknown) <= MOST_OF_ONE_REQUEST and not creation.is_known(name):
                unknown.append(name)
            may_queue = len(unknown) <= MOST_OF_ONE_REQUEST
            error = _unknown(services, name, may_create=may_create, may_queue=may_queue)
            yield t.MetadataResponseTopic(error_code=error, name=name)


def _unknown(services: Services, name: str, *, may_create: bool, may_queue: bool) -> ErrorCode:
    """Return the error for an unknown topic. If it may be created, creation is requested: clients retry.

    Without `may_queue` this request has asked for enough; the client's next one asks for more.
    """
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error.code
    if not may_create:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name == OFFSETS_TOPIC:
        services.want_offsets_topic()
        return ErrorCode.LEADER_NOT_AVAILABLE
    if not may_queue:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return services.topic_creation.want(NewTopic(name, _DEFAULT, _DEFAULT))


def _topic(services: Services, name: str) -> t.MetadataResponseTopic:
    metadata, partitions = services.metadata, services.shown.get(name)
    if partitions is None:
        partitions = services.shown[name] = [
            _partition(metadata.brokers, number, state)
            for number, state in sorted(metadata.topics[name].items(), key=_NUMBER)
        ]
    return t.MetadataResponseTopic(
        name=name,
        topic_id=id_to_wire(metadata.topic_ids.get(name, "")),
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
    )


def _partition(brokers: Collection[int], number: int, state: PartitionState) -> t.MetadataResponsePartition:
    has_leader = state.leader in brokers
    return t.MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=[each for each in state.replicas if each not in brokers],
    )


def _leave_out_departed(services: Services, topics: Iterable[t.MetadataResponseTopic]) -> None:
    """Show no leader that has left since its topic was looked up."""
    brokers = services.metadata.brokers
    for topic in topics:
        topic.partitions = list(map(copy, topic.partitions))
        for partition in topic.partitions:
            if partition.leader_id not in brokers and partition.leader_id != NO_LEADER:
                partition.error_code, partition.leader_id = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
            partition.offline_replicas = [each for each in partition.replica_nodes if each not in brokers]


def _leave_out_unreachable(call: Call, services: Services, topics: Iterable[t.MetadataResponseTopic]) -> None:
    """Show no leader that does not have the client's listener: LISTENER_NOT_FOUND (72), before 6 code 5."""
    lacking = [
        each.broker_id for each in services.metadata.brokers.values() if each.on(call.listener) is None
    ]
    error = ErrorCode.LISTENER_NOT_FOUND
    if call.version < _KNOWS_LISTENERS:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    for topic in topics if lacking else ():
        topic.partitions = list(map(copy, topic.partitions))
        for partition in topic.partitions:
            if partition.leader_id in lacking:
                partition.error_code, partition.leader_id = error, NO_LEADER


def _controller_id(services: Services) -> int:
    metadata = services.metadata
    return metadata.controller_id if metadata.is_alive(metadata.controller_id) else -1


def describe_cluster(
    call: Call, body: t.DescribeClusterRequest, services: Services
) -> t.DescribeClusterResponse:
    """List brokers, controller and cluster id. There are no endpoints of controllers alone (2)."""
    if body.endpoint_type != _BROKERS:
        is_known = body.endpoint_type == _CONTROLLERS
        return t.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if is_known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="the controller is one of the brokers: ask for endpoint type 1",
        )
    asked = body.include_cluster_authorized_operations
    return t.DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=_controller_id(services),
        brokers=[
            t.DescribeClusterResponseDescribeClusterBroker(
                broker_id=each.broker_id,
                host=found[0],
                port=found[1],
                rack=each.rack or None,
                is_stopping=services.metadata.is_stopping(each.broker_id),
            )
            for each in services.metadata.brokers.values()
            if (found := each.on(call.listener)) is not None
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )
