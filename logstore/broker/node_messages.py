"""Messages between brokers: the engine's (`replication/messages.py`) ⇄ the wire's (`wire/interbroker.py`).

Brokers send the newest version of each message (`Api.latest`), so no field of the engine's messages is lost.
Kafka's fields mean what they mean in Kafka; the rest is in tags. Topics and partitions are checked on the way
in, because they become names of directories.

A follower identifies itself (`replica_state`, `replica_id`) and otherwise asks as any consumer does. Fetch 16
names topics in a tag, and by id where it is known. AlterPartition 3 names them in a tag too; ids are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logstore.broker.errors import MalformedMessage
from logstore.broker.translation import (
    ByHand,
    Translation,
    by_topic,
    check_name,
    distinct,
    id_from_wire,
    id_to_wire,
)
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m

INCREMENTAL, FULL = 1, 2
"""Kafka's types of LeaderAndIsr and UpdateMetadata."""
_UNKNOWN_EPOCH: Final = -1


# --- what has another shape -------------------------------------------------------------------


def _assigned(request: m.LeaderAndIsrRequest) -> list[w.LeaderAndIsrRequestAssignedTopic] | None:
    if request.assigned is None:
        return None
    listed: dict[tuple[str, str], list[int]] = {}
    for (topic, partition), topic_id in request.assigned.items():
        listed.setdefault((topic, topic_id), []).append(partition)
    return [
        w.LeaderAndIsrRequestAssignedTopic(
            topic_name=topic, topic_id=id_to_wire(topic_id), partition_indexes=partitions
        )
        for (topic, topic_id), partitions in listed.items()
    ]


def _assigned_of(wire: w.LeaderAndIsrRequest) -> dict[TopicPartition, str] | None:
    if wire.assigned is None:
        return None
    return distinct(
        (topic.topic_name, partition, id_from_wire(topic.topic_id))
        for topic in wire.assigned
        for partition in topic.partition_indexes
    )


def _topic_ids_of(wire: Any) -> dict[str, str]:
    topic_ids = {}
    for topic in wire.topic_states:
        check_name(topic.topic_name)
        if topic_id := id_from_wire(topic.topic_id):
            topic_ids[topic.topic_name] = topic_id
    return topic_ids


def _configs_of(wire: w.LeaderAndIsrRequest) -> dict[str, dict[str, str]]:
    return {
        topic.topic_name: {each.name: each.value for each in topic.configs}
        for topic in wire.topic_states
        if topic.configs is not None
    }


def _live_brokers(request: m.UpdateMetadataRequest) -> list[w.UpdateMetadataRequestBroker]:
    return [
        w.UpdateMetadataRequestBroker(
            id=each.broker_id,
            endpoints=[
                w.UpdateMetadataRequestEndpoint(
                    host=one.host, port=one.port, listener=one.listener, security_protocol=one.protocol
                )
                for one in each.endpoints or (m.Endpoint("", each.host, each.port),)
            ],
            rack=each.rack or None,
            broker_epoch=each.epoch,
        )
        for each in request.live_brokers
    ]


def _live_brokers_of(wire: w.UpdateMetadataRequest) -> tuple[m.BrokerEndpoint, ...]:
    found = []
    for each in wire.live_brokers:
        if not each.endpoints:
            raise MalformedMessage(f"broker {each.id} has no endpoint")
        first = each.endpoints[0]
        named = tuple(
            m.Endpoint(one.listener, one.host, one.port, one.security_protocol)
            for one in each.endpoints
            if one.listener
        )
        found.append(
            m.BrokerEndpoint(each.id, first.host, first.port, each.broker_epoch, each.rack or "", named)
        )
    return tuple(found)


def _all_topics(request: m.UpdateMetadataRequest) -> list[str] | None:
    return None if request.all_topics is None else list(request.all_topics)


def _all_topics_of(wire: w.UpdateMetadataRequest) -> tuple[str, ...] | None:
    return None if wire.all_topics is None else tuple(wire.all_topics)


def _members(proposal: m.IsrProposal) -> list[t.AlterPartitionRequestBrokerState]:
    """The proposed ISR. Without broker epochs, each one is sent as unknown."""
    epochs = proposal.broker_epochs or (_UNKNOWN_EPOCH,) * len(proposal.new_isr)
    return [
        t.AlterPartitionRequestBrokerState(broker_id=member, broker_epoch=epoch)
        for member, epoch in zip(proposal.new_isr, epochs, strict=True)
    ]


def _isr_of(wire: t.AlterPartitionRequestPartitionData) -> tuple[int, ...]:
    return tuple(member.broker_id for member in wire.new_isr_with_epochs)


def _epochs_of(wire: t.AlterPartitionRequestPartitionData) -> tuple[int, ...]:
    """The broker epochs; none if all are unknown, because the controller treats both alike."""
    epochs = tuple(member.broker_epoch for member in wire.new_isr_with_epochs)
    return epochs if any(epoch != _UNKNOWN_EPOCH for epoch in epochs) else ()


_BY_HAND: Final[ByHand] = {
    (m.LeaderAndIsrRequest, "assigned"): ("assigned", _assigned, _assigned_of),
    (m.LeaderAndIsrRequest, "topic_ids"): ("", None, _topic_ids_of),
    (m.LeaderAndIsrRequest, "configs"): ("", None, _configs_of),
    (m.StopReplicaRequest, "topic_ids"): ("", None, _topic_ids_of),
    (m.UpdateMetadataRequest, "topic_ids"): ("", None, _topic_ids_of),
    (m.UpdateMetadataRequest, "live_brokers"): ("live_brokers", _live_brokers, _live_brokers_of),
    (m.UpdateMetadataRequest, "all_topics"): ("all_topics", _all_topics, _all_topics_of),
    (m.BrokerEndpoint, "endpoints"): ("", None, lambda wire: ()),
    (m.FetchResponse, "topic_ids"): ("", None, lambda wire: {}),
    (m.IsrProposal, "new_isr"): ("new_isr_with_epochs", _members, _isr_of),
    (m.IsrProposal, "broker_epochs"): ("", None, _epochs_of),
}
"""`_add_topics` writes ids and settings of topics; `_members` writes both fields of a proposal."""
_NODES: Final = Translation(_BY_HAND, checks=True)


_NAMES: Final = (
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "AlterPartition",
    "ControlledShutdown",
    "Fetch",
    "ListOffsets",
    "OffsetForLeaderEpoch",
)
_KINDS: Final[Mapping[type[Any], type[Struct]]] = {
    getattr(m, name + side): getattr(w, name + side, None) or getattr(t, name + side)
    for name in _NAMES
    for side in ("Request", "Response")
}
_ENGINE_KINDS: Final = {wire: engine for engine, wire in _KINDS.items() if wire is not t.FetchRequest}


def to_wire(body: m.RequestBody | m.ResponseBody) -> Struct:
    """Return a message to another broker. Raises `MalformedMessage` if the wire format cannot express it.

    Numbers that are too large show when it is encoded.
    """
    if isinstance(body, m.FetchRequest):
        return fetch_request(body)
    wire = _NODES.to_wire(body, _KINDS[type(body)])
    if isinstance(body, m.LeaderAndIsrRequest | m.StopReplicaRequest | m.UpdateMetadataRequest):
        _add_topics(body, wire)
    return wire


def request_of(wire: Struct) -> m.RequestBody:
    """Return a request of another broker. Raises `MalformedMessage` for an invalid one."""
    request: m.RequestBody = _from_wire(wire)
    return request


def response_of(wire: Struct) -> m.ResponseBody:
    """Return a response of another broker. Raises `MalformedMessage` for an invalid one."""
    response: m.ResponseBody = _from_wire(wire)
    return response


def _from_wire(wire: Struct) -> Any:
    kind = _ENGINE_KINDS.get(type(wire))
    if kind is None:
        raise MalformedMessage(f"{type(wire).__name__} is not a message between brokers")
    return _NODES.from_wire(wire, kind)


def _add_topics(body: Any, wire: Any) -> None:
    """Add ids and settings of topics; a topic without partition states is listed for these alone."""
    kind = type(wire).FIELDS["topic_states"].element
    topics = {topic.topic_name: topic for topic in wire.topic_states}
    configs = getattr(body, "configs", {})
    for name in dict.fromkeys([*body.topic_ids, *configs]):
        if name not in topics:
            topics[name] = kind(topic_name=name)
            wire.topic_states.append(topics[name])
    for name, topic_id in body.topic_ids.items():
        topics[name].topic_id = id_to_wire(topic_id)
    for name, settings in configs.items():
        topics[name].configs = [
            w.LeaderAndIsrRequestConfig(name=setting, value=value) for setting, value in settings.items()
        ]
    if isinstance(wire, w.LeaderAndIsrRequest):
        wire.type = INCREMENTAL if wire.assigned is None else FULL
    elif isinstance(wire, w.UpdateMetadataRequest):
        wire.type = INCREMENTAL if wire.all_topics is None else FULL


def fetch_request(request: m.FetchRequest) -> t.FetchRequest:
    """Return a fetch by names and ids of topics, as brokers ask each other."""
    topics: dict[tuple[str, str], t.FetchRequestFetchTopic] = {}
    for (topic, partition), wanted in request.partitions.items():
        listed = topics.get((topic, wanted.topic_id))
        if listed is None:
            listed = topics[topic, wanted.topic_id] = t.FetchRequestFetchTopic(
                topic_name=topic, topic_id=id_to_wire(wanted.topic_id)
            )
        listed.partitions.append(
            t.FetchRequestFetchPartition(
                partition=partition,
                current_leader_epoch=wanted.current_leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                log_start_offset=wanted.log_start_offset,
                partition_max_bytes=wanted.max_bytes,
                is_synced=wanted.is_synced,
            )
        )
    return t.FetchRequest(
        replica_state=t.FetchRequestReplicaState(
            replica_id=request.replica_id, replica_epoch=request.broker_epoch
        ),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=int(request.committed_only),
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=list(topics.values()),
        forgotten_topics_data=[
            t.FetchRequestForgottenTopic(topic_name=topic, partitions=[number for number, _ in partitions])
            for topic, partitions in by_topic((known, None) for known in request.forgotten).items()
        ],
        rack_id=request.rack or "",
        has_rack=request.rack is not None,
    )
