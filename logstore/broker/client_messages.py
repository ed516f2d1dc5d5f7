"""What our own client asks: the engine's messages ⇄ the wire's, in the newest version that both sides know.

Produce, Fetch, Metadata and CreateTopics here; ListOffsets is what followers ask too
(`interbroker/reads.py`). A client learns less than a broker: of a partition's state only who leads, in which
epoch, and who is in sync.

Fetch has topics by name, so it is asked in version 12 at most: from 13 on they go by their ids, and the tag
in which our nodes tell each other names means nothing to Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from logstore.broker.interbroker import reads
from logstore.broker.interbroker.parts import Partitions, by_topic, error_of, id_from_wire, level_from_wire
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.replication import messages as m

_UNKNOWN = -1
_NEWEST: Final[Mapping[type[Struct], int]] = {
    t.FetchRequest: 12,
    t.FindCoordinatorRequest: 3,  # of one group
}
"""Where it is not the newest version that is served."""


def newest(kind: type[Struct]) -> int:
    """The newest version in which a client asks for this."""
    return _NEWEST.get(kind, API_OF[kind].latest)


def _produce_request(request: m.ProduceRequest) -> t.ProduceRequest:
    return t.ProduceRequest(
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            t.ProduceRequestTopicProduceData(
                name=topic,
                partition_data=[
                    t.ProduceRequestPartitionProduceData(index=partition, records=records)
                    for partition, records in data
                ],
            )
            for topic, data in by_topic(request.records.items()).items()
        ],
        asks_level=True,
    )


def _produce_response(wire: t.ProduceResponse) -> m.ProduceResponse:
    partitions: Partitions[m.ProduceResult] = Partitions()
    for topic in wire.responses:
        for each in topic.partition_responses:
            result = m.ProduceResult(
                error_of(each.error_code),
                each.base_offset,
                each.log_append_time_ms,
                each.log_start_offset,
                each.error_message or "",
                level_from_wire(each.level),
            )
            partitions.put(topic.name, each.index, result)
    return m.ProduceResponse(partitions)


def _fetch_request(request: m.FetchRequest) -> t.FetchRequest:
    return t.FetchRequest(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=reads.isolation_level(request.committed_only),
        topics=[
            t.FetchRequestFetchTopic(
                topic=topic,
                partitions=[
                    t.FetchRequestFetchPartition(
                        partition=partition,
                        current_leader_epoch=each.current_leader_epoch,
                        fetch_offset=each.fetch_offset,
                        partition_max_bytes=each.max_bytes,
                    )
                    for partition, each in wanted
                ],
            )
            for topic, wanted in by_topic(request.partitions.items()).items()
        ],
        rack_id=request.rack or "",
        has_rack=request.rack is not None,
    )


def _fetch_response(wire: t.FetchResponse) -> m.FetchResponse:
    partitions: Partitions[m.FetchResult] = Partitions()
    for topic in wire.responses:
        for each in topic.partitions:
            partitions.put(topic.topic, each.partition_index, reads.fetch_result_of(each))
    return m.FetchResponse(partitions)


def _metadata_request(request: m.MetadataRequest) -> t.MetadataRequest:
    topics = None
    if request.topics is not None:
        topics = [t.MetadataRequestTopic(name=name) for name in request.topics]
    return t.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _metadata_response(wire: t.MetadataResponse) -> m.MetadataResponse:
    partitions: Partitions[m.PartitionState] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            state = m.PartitionState(
                _UNKNOWN,
                each.leader_id,
                each.leader_epoch,
                tuple(each.isr_nodes),
                _UNKNOWN,
                tuple(each.replica_nodes),
            )
            partitions.put(topic.name or "", each.partition_index, state)
    brokers = tuple(
        m.BrokerEndpoint(each.node_id, each.host, each.port, rack=each.rack or "") for each in wire.brokers
    )
    return m.MetadataResponse(brokers, wire.controller_id, partitions)


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


def _create_topics_response(wire: t.CreateTopicsResponse) -> m.CreateTopicsResponse:
    return m.CreateTopicsResponse(
        {
            topic.name: m.CreateTopicsResult(
                error_of(topic.error_code), topic.error_message or "", id_from_wire(topic.topic_id)
            )
            for topic in wire.topics
        }
    )


_TO_WIRE: Final[Mapping[type[Any], Callable[[Any], Struct]]] = {
    m.ProduceRequest: _produce_request,
    m.FetchRequest: _fetch_request,
    m.ListOffsetsRequest: reads.list_offsets_request,
    m.MetadataRequest: _metadata_request,
    m.CreateTopicsRequest: _create_topics_request,
}
_FROM_WIRE: Final[Mapping[type[Struct], Callable[[Any], Any]]] = {
    t.ProduceResponse: _produce_response,
    t.FetchResponse: _fetch_response,
    t.ListOffsetsResponse: reads.list_offsets_response_of,
    t.MetadataResponse: _metadata_response,
    t.CreateTopicsResponse: _create_topics_response,
}


def request_of(body: m.RequestBody) -> Struct:
    """The request as the wire has it. Raises `MalformedMessage` for what it cannot say."""
    return _TO_WIRE[type(body)](body)


def response_of(wire: Struct) -> m.ResponseBody:
    """The answer for the engine. Raises `MalformedMessage` for one that nobody may give."""
    body: m.ResponseBody = _FROM_WIRE[type(wire)](wire)
    return body
