"""Metadata: who is alive, who leads what, as this broker last heard.

Traps (protocol.md §4): no topics is all of them in version 0, and none of them later, where null is all. A
topic that is not known has error 3, or is made, if it may; a bad name 17; a partition without a leader 5 and
leader -1. A leader that is not in the list of brokers is none. What a client may do is told only if asked.
Who gives an id means it, whatever the name: Java's leaves that empty, not null.
Who asks a broker that has just started, and has not heard of the cluster itself, waits until it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from operator import itemgetter
from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.coordinator import OFFSETS_TOPIC
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.ids import ID_BYTES, id_from_text, id_to_text
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.messages import NO_LEADER, NewTopic, PartitionState

NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: bit n for operation n."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_NO_ID: Final = bytes(ID_BYTES)
_DEFAULT: Final = -1
_ALWAYS_CREATES_BELOW: Final = 4
_NAMES_MAY_BE_NULL: Final = 12
_LOOK_AGAIN_MS: Final = 10
_PATIENCE_MS: Final = 5_000
"""How long an answer waits for the controller's first word: a list without brokers stops librdkafka."""


def handle(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse | None:
    return _when_told(call, body, services, services.now_ms() + _PATIENCE_MS)


def _when_told(
    call: Call, body: t.MetadataRequest, services: Services, ends_ms: int
) -> t.MetadataResponse | None:
    if services.metadata.brokers or services.now_ms() >= ends_ms:
        return _response(call, body, services)
    services.later(call, _LOOK_AGAIN_MS, partial(_when_told, call, body, services, ends_ms))
    return None


def _response(call: Call, body: t.MetadataRequest, services: Services) -> t.MetadataResponse:
    may_create = body.allow_auto_topic_creation or call.version < _ALWAYS_CREATES_BELOW
    topics = _topics(call, body, services, may_create=may_create)
    if body.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    metadata = services.metadata
    return t.MetadataResponse(
        throttle_time_ms=call.throttle_ms,
        brokers=[
            t.MetadataResponseBroker(
                node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack or None
            )
            for each in metadata.brokers.values()
        ],
        cluster_id=services.cluster_id,
        controller_id=metadata.controller_id if metadata.is_alive(metadata.controller_id) else -1,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _topics(
    call: Call, body: t.MetadataRequest, services: Services, *, may_create: bool
) -> list[t.MetadataResponseTopic]:
    if body.topics is None or (call.version == 0 and not body.topics):
        return [_topic(services, name, states) for name, states in _by_topic(services).items()]
    names = [
        services.metadata.topic_names.get(id_to_text(wanted.topic_id)) if _is_by_id(wanted) else wanted.name
        for wanted in body.topics
    ]
    by_topic = _by_topic(services, {name for name in names if name is not None})
    topics = []
    for wanted, name in zip(body.topics, names, strict=True):
        if name is None or (_is_by_id(wanted) and name not in by_topic):
            unknown = t.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.version >= _NAMES_MAY_BE_NULL else "",
                topic_id=wanted.topic_id,
            )
            topics.append(unknown)
            continue
        states = by_topic.get(name)
        if states is None:
            error = _unknown(services, name, may_create=may_create)
            topics.append(t.MetadataResponseTopic(error_code=error, name=name))
        else:
            topics.append(_topic(services, name, states))
    return topics


def _is_by_id(wanted: t.MetadataRequestTopic) -> bool:
    return wanted.name is None or wanted.topic_id != _NO_ID


def _by_topic(
    services: Services, names: Collection[str] | None = None
) -> dict[str, list[tuple[int, PartitionState]]]:
    """The partitions of these topics, or of all: most clients ask for a few of very many."""
    partitions: Iterable[tuple[TopicPartition, PartitionState]] = services.metadata.partitions.items()
    if names is not None:
        partitions = [each for each in partitions if each[0].topic in names]
    found: dict[str, list[tuple[int, PartitionState]]] = {}
    for (topic, partition), state in sorted(partitions, key=itemgetter(0)):
        found.setdefault(topic, []).append((partition, state))
    return found


def _unknown(services: Services, name: str, *, may_create: bool) -> ErrorCode:
    """Why there is no such topic; one that may be made is asked for, and the client asks again."""
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error.code
    if not may_create or not services.settings.broker.auto_create_topics_enable:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name == OFFSETS_TOPIC:
        services.want_offsets_topic()
        return ErrorCode.LEADER_NOT_AVAILABLE
    return services.topic_creation.want(NewTopic(name, _DEFAULT, _DEFAULT))


def _topic(
    services: Services, name: str, states: Iterable[tuple[int, PartitionState]]
) -> t.MetadataResponseTopic:
    topic_id = services.metadata.topic_ids.get(name, "")
    return t.MetadataResponseTopic(
        name=name,
        topic_id=id_from_text(topic_id) if topic_id else _NO_ID,
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
