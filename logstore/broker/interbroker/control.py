"""What the controller tells brokers: LeaderAndIsr 7, StopReplica 4, UpdateMetadata 8.

Kafka's fields say what they say in Kafka; the rest is in tags. A topic without partition states is told of
for its id or its settings alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from logstore.broker.errors import MalformedMessage
from logstore.broker.interbroker.parts import (
    Partitions,
    by_topic,
    check_name,
    error_of,
    id_from_wire,
    id_to_wire,
)
from logstore.broker.wire import interbroker as w
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    BrokerEndpoint,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

NEWS, ALL_THAT_THERE_IS = 1, 2
"""Kafka's types of LeaderAndIsr."""

_DURABILITIES: Final = (Durability.REPLICATED, Durability.SYNCED)
"""By their numbers on the wire."""


def _durability_of(number: int) -> Durability:
    if not 0 <= number < len(_DURABILITIES):
        raise MalformedMessage(f"{number} is no level of durability")
    return _DURABILITIES[number]


def _topics_to_tell_of(
    partitions: Mapping[TopicPartition, PartitionState], *others: Iterable[str]
) -> dict[str, list[tuple[int, PartitionState]]]:
    topics = by_topic(partitions.items())
    for names in others:
        for name in names:
            topics.setdefault(name, [])
    return topics


# --- LeaderAndIsr -----------------------------------------------------------------------------


def leader_and_isr_request(request: LeaderAndIsrRequest) -> w.LeaderAndIsrRequest:
    topics = _topics_to_tell_of(request.partitions, request.topic_ids, request.configs)
    assigned = None
    if request.assigned is not None:
        listed: dict[tuple[str, str], list[int]] = {}
        for (topic, partition), topic_id in request.assigned.items():
            listed.setdefault((topic, topic_id), []).append(partition)
        assigned = [
            w.LeaderAndIsrRequestAssignedTopic(
                topic_name=topic, topic_id=id_to_wire(topic_id), partition_indexes=partitions
            )
            for (topic, topic_id), partitions in listed.items()
        ]
    return w.LeaderAndIsrRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        type=NEWS if assigned is None else ALL_THAT_THERE_IS,
        topic_states=[
            w.LeaderAndIsrRequestTopicState(
                topic_name=topic,
                topic_id=id_to_wire(request.topic_ids.get(topic, "")),
                partition_states=[_role(partition, state) for partition, state in states],
                configs=_configs(request.configs.get(topic)),
            )
            for topic, states in topics.items()
        ],
        live_leaders=[
            w.LeaderAndIsrRequestLiveLeader(
                broker_id=each.broker_id,
                host_name=each.host,
                port=each.port,
                broker_epoch=each.epoch,
                rack=each.rack,
            )
            for each in request.live_leaders
        ],
        assigned=assigned,
    )


def _configs(settings: Mapping[str, str] | None) -> list[w.LeaderAndIsrRequestConfig] | None:
    if settings is None:
        return None
    return [w.LeaderAndIsrRequestConfig(name=name, value=value) for name, value in settings.items()]


def _role(partition: int, state: PartitionState) -> w.LeaderAndIsrRequestPartitionState:
    return w.LeaderAndIsrRequestPartitionState(
        partition_index=partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
        replicas=list(state.replicas),
        adding_replicas=list(state.adding_replicas),
        removing_replicas=list(state.removing_replicas),
        is_new=state.is_new,
        durability=_DURABILITIES.index(state.durability),
        all_synced=state.all_synced,
        min_insync=state.min_insync,
        eligible=list(state.eligible),
    )


def leader_and_isr_request_of(wire: w.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    partitions: Partitions[PartitionState] = Partitions()
    topic_ids: dict[str, str] = {}
    configs: dict[str, dict[str, str]] = {}
    for topic in wire.topic_states:
        check_name(topic.topic_name)
        for state in topic.partition_states:
            partitions.put(topic.topic_name, state.partition_index, _state_of(state, state.partition_epoch))
        if topic_id := id_from_wire(topic.topic_id):
            topic_ids[topic.topic_name] = topic_id
        if topic.configs is not None:
            configs[topic.topic_name] = {each.name: each.value for each in topic.configs}
    assigned: Partitions[str] | None = None
    if wire.assigned is not None:
        assigned = Partitions()
        for listed in wire.assigned:
            for partition in listed.partition_indexes:
                assigned.put(listed.topic_name, partition, id_from_wire(listed.topic_id))
    return LeaderAndIsrRequest(
        controller_id=wire.controller_id,
        controller_epoch=wire.controller_epoch,
        broker_epoch=wire.broker_epoch,
        partitions=partitions,
        topic_ids=topic_ids,
        live_leaders=tuple(
            BrokerEndpoint(each.broker_id, each.host_name, each.port, each.broker_epoch, each.rack)
            for each in wire.live_leaders
        ),
        configs=configs,
        assigned=assigned,
    )


def _state_of(
    wire: w.LeaderAndIsrRequestPartitionState | w.UpdateMetadataRequestPartitionState, partition_epoch: int
) -> PartitionState:
    return PartitionState(
        controller_epoch=wire.controller_epoch,
        leader=wire.leader,
        leader_epoch=wire.leader_epoch,
        isr=tuple(wire.isr),
        partition_epoch=partition_epoch,
        replicas=tuple(wire.replicas),
        is_new=wire.is_new,
        adding_replicas=tuple(wire.adding_replicas),
        removing_replicas=tuple(wire.removing_replicas),
        durability=_durability_of(wire.durability),
        all_synced=wire.all_synced,
        min_insync=wire.min_insync,
        eligible=tuple(wire.eligible),
    )


def leader_and_isr_response(response: LeaderAndIsrResponse) -> w.LeaderAndIsrResponse:
    return w.LeaderAndIsrResponse(
        error_code=response.error,
        topics=[
            w.LeaderAndIsrResponseTopicError(
                topic_name=topic,
                partition_errors=[
                    w.LeaderAndIsrResponsePartitionError(partition_index=partition, error_code=error)
                    for partition, error in errors
                ],
            )
            for topic, errors in by_topic(response.partitions.items()).items()
        ],
    )


def leader_and_isr_response_of(wire: w.LeaderAndIsrResponse) -> LeaderAndIsrResponse:
    partitions: Partitions[ErrorCode] = Partitions()
    for topic in wire.topics:
        for each in topic.partition_errors:
            partitions.put(topic.topic_name, each.partition_index, error_of(each.error_code))
    return LeaderAndIsrResponse(error_of(wire.error_code), partitions)


# --- StopReplica ------------------------------------------------------------------------------


def stop_replica_request(request: StopReplicaRequest) -> w.StopReplicaRequest:
    topics = by_topic(request.partitions.items())
    for name in request.topic_ids:
        topics.setdefault(name, [])
    return w.StopReplicaRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=[
            w.StopReplicaRequestTopicState(
                topic_name=topic,
                topic_id=id_to_wire(request.topic_ids.get(topic, "")),
                partition_states=[
                    w.StopReplicaRequestPartitionState(
                        partition_index=partition,
                        leader_epoch=each.leader_epoch,
                        delete_partition=each.delete,
                    )
                    for partition, each in partitions
                ],
            )
            for topic, partitions in topics.items()
        ],
    )


def stop_replica_request_of(wire: w.StopReplicaRequest) -> StopReplicaRequest:
    partitions: Partitions[StopReplicaPartition] = Partitions()
    topic_ids: dict[str, str] = {}
    for topic in wire.topic_states:
        check_name(topic.topic_name)
        for each in topic.partition_states:
            partitions.put(
                topic.topic_name,
                each.partition_index,
                StopReplicaPartition(each.leader_epoch, each.delete_partition),
            )
        if topic_id := id_from_wire(topic.topic_id):
            topic_ids[topic.topic_name] = topic_id
    return StopReplicaRequest(
        wire.controller_id, wire.controller_epoch, wire.broker_epoch, partitions, topic_ids
    )


def stop_replica_response(response: StopReplicaResponse) -> w.StopReplicaResponse:
    return w.StopReplicaResponse(
        error_code=response.error,
        partition_errors=[
            w.StopReplicaResponsePartitionError(topic_name=topic, partition_index=partition, error_code=error)
            for (topic, partition), error in response.partitions.items()
        ],
    )


def stop_replica_response_of(wire: w.StopReplicaResponse) -> StopReplicaResponse:
    partitions: Partitions[ErrorCode] = Partitions()
    for each in wire.partition_errors:
        partitions.put(each.topic_name, each.partition_index, error_of(each.error_code))
    return StopReplicaResponse(error_of(wire.error_code), partitions)


# --- UpdateMetadata ---------------------------------------------------------------------------


def update_metadata_request(request: UpdateMetadataRequest) -> w.UpdateMetadataRequest:
    topics = _topics_to_tell_of(request.partitions, request.topic_ids)
    return w.UpdateMetadataRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=[
            w.UpdateMetadataRequestTopicState(
                topic_name=topic,
                topic_id=id_to_wire(request.topic_ids.get(topic, "")),
                partition_states=[_news(partition, state) for partition, state in states],
            )
            for topic, states in topics.items()
        ],
        live_brokers=[
            w.UpdateMetadataRequestBroker(
                id=each.broker_id,
                endpoints=[w.UpdateMetadataRequestEndpoint(host=each.host, port=each.port)],
                rack=each.rack or None,
                broker_epoch=each.epoch,
            )
            for each in request.live_brokers
        ],
        shutting_down=list(request.shutting_down),
    )


def _news(partition: int, state: PartitionState) -> w.UpdateMetadataRequestPartitionState:
    return w.UpdateMetadataRequestPartitionState(
        partition_index=partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=state.partition_epoch,
        replicas=list(state.replicas),
        adding_replicas=list(state.adding_replicas),
        removing_replicas=list(state.removing_replicas),
        is_new=state.is_new,
        durability=_DURABILITIES.index(state.durability),
        all_synced=state.all_synced,
        min_insync=state.min_insync,
        eligible=list(state.eligible),
    )


def update_metadata_request_of(wire: w.UpdateMetadataRequest) -> UpdateMetadataRequest:
    partitions: Partitions[PartitionState] = Partitions()
    topic_ids: dict[str, str] = {}
    for topic in wire.topic_states:
        check_name(topic.topic_name)
        for state in topic.partition_states:
            partitions.put(topic.topic_name, state.partition_index, _state_of(state, state.zk_version))
        if topic_id := id_from_wire(topic.topic_id):
            topic_ids[topic.topic_name] = topic_id
    return UpdateMetadataRequest(
        controller_id=wire.controller_id,
        controller_epoch=wire.controller_epoch,
        broker_epoch=wire.broker_epoch,
        partitions=partitions,
        live_brokers=tuple(_endpoint_of(each) for each in wire.live_brokers),
        topic_ids=topic_ids,
        shutting_down=tuple(wire.shutting_down),
    )


def _endpoint_of(wire: w.UpdateMetadataRequestBroker) -> BrokerEndpoint:
    if len(wire.endpoints) != 1:
        raise MalformedMessage(f"broker {wire.id} has {len(wire.endpoints)} endpoints, and one is known of")
    (endpoint,) = wire.endpoints
    return BrokerEndpoint(wire.id, endpoint.host, endpoint.port, wire.broker_epoch, wire.rack or "")


def update_metadata_response(response: UpdateMetadataResponse) -> w.UpdateMetadataResponse:
    return w.UpdateMetadataResponse(error_code=response.error)


def update_metadata_response_of(wire: w.UpdateMetadataResponse) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(error_of(wire.error_code))
