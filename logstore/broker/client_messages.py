"""The client's requests: the engine's messages ⇄ the wire's, in the newest version of both sides.

A client learns less than a broker: of a partition only its leader, leader epoch, replicas and ISR.

Fetch names topics, so version 12 is the newest: version 13 identifies topics by id, and only our brokers
understand our tag for names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from logstore.broker import node_messages
from logstore.broker.translation import Translation, distinct, id_from_wire
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.format.batch import walk
from logstore.format.record import Record
from logstore.replication import messages as m

_UNKNOWN = -1
_DELETED_WITHIN_MS: Final = 60_000
"""As long as creations may take by default."""
_NEWEST: Final[Mapping[type[Struct], int]] = {
    t.FetchRequest: 12,
    t.FindCoordinatorRequest: 3,  # of one group
    t.OffsetFetchRequest: 7,  # likewise
}
"""Requests that this client sends in an older version than the newest one served."""


_CHECKED: Final = Translation(checks=True)


def newest(kind: type[Struct]) -> int:
    """Return the newest version in which a client sends this request."""
    return _NEWEST.get(kind, API_OF[kind].latest)


def _checked(kind: type[Any]) -> Callable[[Struct], Any]:
    return lambda wire: _CHECKED.from_wire(wire, kind)


def _fetch_request(request: m.FetchRequest) -> t.FetchRequest:
    """As a broker's request, by the names of topics, which this version has."""
    wire = node_messages.fetch_request(request)
    wire.replica_state = None
    for topic in wire.topics:
        topic.topic, topic.topic_name = topic.topic_name, ""
    return wire


def _produce_request(request: m.ProduceRequest) -> t.ProduceRequest:
    wire = _CHECKED.to_wire(request, t.ProduceRequest)
    wire.asks_level = True
    return wire


def _fetch_response(wire: t.FetchResponse) -> m.FetchResponse:
    for topic in wire.responses:
        topic.topic_name = topic.topic
    return _CHECKED.from_wire(wire, m.FetchResponse)


def _metadata_request(request: m.MetadataRequest) -> t.MetadataRequest:
    topics = None
    if request.topics is not None:
        topics = [t.MetadataRequestTopic(name=name) for name in request.topics]
    return t.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _metadata_response(wire: t.MetadataResponse) -> m.MetadataResponse:
    def state(each: t.MetadataResponsePartition) -> m.PartitionState:
        isr, replicas = tuple(each.isr_nodes), tuple(each.replica_nodes)
        return m.PartitionState(_UNKNOWN, each.leader_id, each.leader_epoch, isr, _UNKNOWN, replicas)

    partitions = distinct(
        (topic.name or "", each.partition_index, state(each))
        for topic in wire.topics
        for each in topic.partitions
    )
    brokers = tuple(
        m.BrokerEndpoint(each.node_id, each.host, each.port, rack=each.rack or "") for each in wire.brokers
    )
    topic_ids = {each.name or "": found for each in wire.topics if (found := id_from_wire(each.topic_id))}
    return m.MetadataResponse(brokers, wire.controller_id, partitions, topic_ids)


def _create_topics_request(request: m.CreateTopicsRequest) -> t.CreateTopicsRequest:
    return t.CreateTopicsRequest(
        topics=[_new_topic(topic) for topic in request.topics], validate_only=request.validate_only
    )


def _new_topic(topic: m.NewTopic) -> t.CreateTopicsRequestCreatableTopic:
    return t.CreateTopicsRequestCreatableTopic(
        name=topic.name,
        num_partitions=_UNKNOWN if topic.assignment else topic.partitions,
        replication_factor=_UNKNOWN if topic.assignment else topic.replication_factor,
        assignments=[
            t.CreateTopicsRequestCreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(topic.assignment)
        ],
        configs=[
            t.CreateTopicsRequestCreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _delete_topics_request(request: m.DeleteTopicsRequest) -> t.DeleteTopicsRequest:
    return t.DeleteTopicsRequest(
        topic_names=list(request.topics),
        topics=[t.DeleteTopicsRequestDeleteTopicState(name=name) for name in request.topics],
        timeout_ms=_DELETED_WITHIN_MS,
    )


def _delete_topics_response(wire: t.DeleteTopicsResponse) -> m.DeleteTopicsResponse:
    return m.DeleteTopicsResponse(
        {
            each.name or "": m.AdminResult(ErrorCode(each.error_code), each.error_message or "")
            for each in wire.responses
        }
    )


_Convert: TypeAlias = Callable[[Any], Any]
_MESSAGES: Final[Mapping[type[Any], tuple[_Convert, type[Struct], _Convert]]] = {
    m.ProduceRequest: (_produce_request, t.ProduceResponse, _checked(m.ProduceResponse)),
    m.FetchRequest: (_fetch_request, t.FetchResponse, _fetch_response),
    m.ListOffsetsRequest: (node_messages.to_wire, t.ListOffsetsResponse, node_messages.response_of),
    m.OffsetForLeaderEpochRequest: (
        node_messages.to_wire,
        t.OffsetForLeaderEpochResponse,
        node_messages.response_of,
    ),
    m.MetadataRequest: (_metadata_request, t.MetadataResponse, _metadata_response),
    m.CreateTopicsRequest: (
        _create_topics_request,
        t.CreateTopicsResponse,
        _checked(m.CreateTopicsResponse),
    ),
    m.DeleteTopicsRequest: (_delete_topics_request, t.DeleteTopicsResponse, _delete_topics_response),
}
"""How each request is written, and how its response is read."""
_READERS: Final = {response: read for _, response, read in _MESSAGES.values()}


def request_of(body: m.RequestBody) -> Struct:
    """Return the request in its wire form. Raises `MalformedMessage` if the wire format cannot express it."""
    wire: Struct = _MESSAGES[type(body)][0](body)
    return wire


def response_of(wire: Struct) -> m.ResponseBody:
    """Return the response for the engine. Raises `MalformedMessage` for an invalid one."""
    body: m.ResponseBody = _READERS[type(wire)](wire)
    return body


def records_in(result: m.FetchResult, position: int) -> tuple[list[Record], int]:
    """Return the records of a fetch from `position` on, and the next offset to read.

    Raises `CorruptBatch` for a batch whose checksum does not match.
    """
    found: list[Record] = []
    for batch in walk(result.records):
        batch.check_crc()
        if not batch.is_control:
            found += [record for record in batch.records() if record.offset >= position]
        position = max(position, batch.next_offset)
    return found, position


def is_not_controller(answer: Any) -> bool:
    """Return whether a broker refused a request because it is not the controller."""
    topics = getattr(answer, "topics", {})
    of_all = bool(topics) and all(each.error is ErrorCode.NOT_CONTROLLER for each in topics.values())
    return of_all or getattr(answer, "error", ErrorCode.NONE) is ErrorCode.NOT_CONTROLLER
