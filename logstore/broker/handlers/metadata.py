"""Requests about the cluster: Metadata, DescribeCluster.

Metadata without topics means all of them in version 0, and none later, where null means all. An unknown
topic is UNKNOWN_TOPIC_OR_PARTITION (3), or is created if it may be; a bad name is INVALID_TOPIC_EXCEPTION
(17); a partition without a leader is LEADER_NOT_AVAILABLE (5), with leader -1. A leader that is not among
the live brokers counts as none. Addresses are those of the listener that was asked. A topic id takes
precedence over a name: Java's client leaves the name empty, not null. A broker that has just started delays
its answer until the controller has sent it the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from operator import itemgetter
from typing import Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.topic_creation import MOST_OF_ONE_REQUEST
from logstore.broker.translation import NO_ID, by_topic, id_to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.messages import NO_LEADER, NewTopic, PartitionState

NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: bit n for operation n."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_BROKERS: Final = 1
_DEFAULT: Final = -1
_ALWAYS_CREATES_BELOW: Final = 4
_NAMES_MAY_BE_NULL: Final = 12
_KNOWS_LISTENERS: Final = 6
_PATIENCE_MS: Final = 5_000
"""The longest wait for the controller's first update: librdkafka stops at an empty list of brokers."""


def handle(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse | None:
    ends_ms = services.now_ms() + _PATIENCE_MS
    respond = partial(_response, call, body, services)
    return services.when(call, lambda: bool(services.metadata.brokers), ends_ms, respond)


def _response(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse:
    may_create = body.allow_auto_topic_creation or call.version < _ALWAYS_CREATES_BELOW
    topics = _topics(call, body, services, may_create=may_create)
    _leave_out_unreachable(call, services, topics)
    if body.include_topic_authorized_operations:
        for topic in topics:
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
    call: Call, body: t.MetadataRequest, services: Services, *, may_create: bool
) -> list[t.MetadataResponseTopic]:
    if body.topics is None or (call.version == 0 and not body.topics):
        return [_topic(services, name, states) for name, states in _topics_of(services).items()]
    names = [
        services.metadata.topic_names.get(id_to_text(wanted.topic_id)) if _is_by_id(wanted) else wanted.name
        for wanted in body.topics
    ]
    known = _topics_of(services, {name for name in names if name is not None})
    most_queued = services.topic_creation.queued + MOST_OF_ONE_REQUEST
    topics = []
    for wanted, name in zip(body.topics, names, strict=True):
        if name is None or (_is_by_id(wanted) and name not in known):
            unknown = t.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.version >= _NAMES_MAY_BE_NULL else "",
                topic_id=wanted.topic_id,
            )
            topics.append(unknown)
            continue
        states = known.get(name)
        if states is None:
            may_queue = services.topic_creation.queued < most_queued or services.topic_creation.is_known(name)
            error = _unknown(services, name, may_create=may_create, may_queue=may_queue)
            topics.append(t.MetadataResponseTopic(error_code=error, name=name))
        else:
            topics.append(_topic(services, name, states))
    return topics


def _is_by_id(wanted: t.MetadataRequestTopic) -> bool:
    return wanted.name is None or wanted.topic_id != NO_ID


def _topics_of(
    services: Services, names: Collection[str] | None = None
) -> dict[str, list[tuple[int, PartitionState]]]:
    """Return the partitions of these topics, or of all: most clients ask for a few of very many."""
    partitions: Iterable[tuple[TopicPartition, PartitionState]] = services.metadata.partitions.items()
    if names is not None:
        partitions = [each for each in partitions if each[0].topic in names]
    return by_topic(sorted(partitions, key=itemgetter(0)))


def _unknown(services: Services, name: str, *, may_create: bool, may_queue: bool) -> ErrorCode:
    """Return the error for an unknown topic. If it may be created, creation is requested: clients retry.

    Without `may_queue` this request has asked for enough; the client's next one asks for more.
    """
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error.code
    if not may_create or not services.settings.broker.auto_create_topics_enable:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name == OFFSETS_TOPIC:
        services.want_offsets_topic()
        return ErrorCode.LEADER_NOT_AVAILABLE
    if not may_queue:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return services.topic_creation.want(NewTopic(name, _DEFAULT, _DEFAULT))


def _topic(
    services: Services, name: str, states: Iterable[tuple[int, PartitionState]]
) -> t.MetadataResponseTopic:
    topic_id = services.metadata.topic_ids.get(name, "")
    return t.MetadataResponseTopic(
        name=name,
        topic_id=id_to_wire(topic_id),
        is_internal=name in INTERNAL_TOPICS,
        partitions=[_partition(services, number, state) for number, state in states],
    )


def _partition(services: Services, number: int, state: PartitionState) -> t.MetadataResponsePartition:
    metadata = services.metadata
    has_leader = metadata.is_alive(state.leader)
    return t.MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=[each for each in state.replicas if not metadata.is_alive(each)],
    )


def _leave_out_unreachable(call: Call, services: Services, topics: Iterable[t.MetadataResponseTopic]) -> None:
    """Show no leader that does not have the client's listener: LISTENER_NOT_FOUND (72), before 6 code 5."""
    lacking = [
        each.broker_id for each in services.metadata.brokers.values() if each.on(call.listener) is None
    ]
    error = ErrorCode.LISTENER_NOT_FOUND
    if call.version < _KNOWS_LISTENERS:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    for topic in topics if lacking else ():
        for partition in topic.partitions:
            if partition.leader_id in lacking:
                partition.error_code, partition.leader_id = error, NO_LEADER


def _controller_id(services: Services) -> int:
    metadata = services.metadata
    return metadata.controller_id if metadata.is_alive(metadata.controller_id) else -1


def describe_cluster(
    call: Call, body: t.DescribeClusterRequest, services: Services
) -> t.DescribeClusterResponse:
    """List brokers, controller and cluster id. Endpoints of controllers (2) are INVALID_REQUEST (42)."""
    if body.endpoint_type != _BROKERS:
        return t.DescribeClusterResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="the controller is one of the brokers: ask for endpoint type 1",
            endpoint_type=body.endpoint_type,
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
