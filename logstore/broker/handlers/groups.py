"""Consumer groups: members, committed offsets, administration.

JoinGroup and SyncGroup wait until the group's round ends, and so do the requests behind them on the
connection. The rules of versions are listed in `docs/reference/protocol-traps.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.groups import requests as g
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.handlers.forwarding import asks_groups
from logstore.broker.handlers.metadata import NOT_ASKED
from logstore.broker.translation import from_wire, to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8))
"""Read, delete, describe: bit n for operation n."""
_FIRST: Final = TopicPartition(OFFSETS_TOPIC, 0)
_GROUP, _TRANSACTION = 0, 1
_NO_BROKER: Final = -1
_FIND_FLEXIBLE: Final = 3
_FIND_MANY_KEYS: Final = 4
_JOIN_KNOWN_MEMBER: Final = 4
_JOIN_NULL_NAME: Final = 7
_JOIN_SKIP_ASSIGNMENT: Final = 9
_SYNC_NAMES_PROTOCOL: Final = 5
_LEAVE_MANY: Final = 3
_FETCH_WITH_ERROR: Final = 2
_FETCH_MANY_GROUPS: Final = 8
_MAX_METADATA_BYTES: Final = 1 << 20
"""Limit of a member's metadata in all its protocols. It is kept while the member lives, and a larger group's
record would fit in no batch. More is INVALID_REQUEST (42)."""

heartbeat: Final = asks_groups(g.HeartbeatRequest, t.HeartbeatResponse)
"""Answer REBALANCE_IN_PROGRESS (27) while members must rejoin."""
_ask_to_sync: Final = asks_groups(g.SyncGroupRequest, t.SyncGroupResponse)
list_groups: Final = asks_groups(g.ListGroupsRequest, t.ListGroupsResponse)
"""List the groups that this broker coordinates."""
delete: Final = asks_groups(g.DeleteGroupsRequest, t.DeleteGroupsResponse)
"""Delete groups and their offsets: NON_EMPTY_GROUP (68) with members, GROUP_ID_NOT_FOUND (69) if unknown."""


# --- coordinators -----------------------------------------------------------------------------


def find_coordinator(
    call: Call, body: t.FindCoordinatorRequest, services: Services
) -> t.FindCoordinatorResponse:
    """Name the leader of the partition of `__consumer_offsets` that keeps a group; of several from version 4.

    The topic is created on the first request. Until it has leaders the answer is COORDINATOR_NOT_AVAILABLE
    (15), also while there are too few brokers for `offsets.topic.replication.factor`. A transactional id is
    INVALID_REQUEST (42): with 15 its producer would retry for ever. librdkafka, whose newest
    version is 2, does so with every error but TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53), and shows the
    message; Java's client, since 2.4 with version 3, shows it for other errors only.
    """
    no_transactions = ErrorCode.INVALID_REQUEST
    if call.version < _FIND_FLEXIBLE:
        no_transactions = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if call.version >= _FIND_MANY_KEYS:
        return t.FindCoordinatorResponse(
            coordinators=[
                _find(call, services, body.key_type, key, no_transactions) for key in body.coordinator_keys
            ]
        )
    found = _find(call, services, body.key_type, body.key, no_transactions)
    return t.FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(
    call: Call, services: Services, key_type: int, key: str, no_transactions: ErrorCode
) -> t.FindCoordinatorResponseCoordinator:
    if key_type == _TRANSACTION:
        message = "transactions are not supported; produce without a transactional id"
        return _no_coordinator(key, no_transactions, message)
    if key_type != _GROUP:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}")
    metadata = services.metadata
    home = services.groups.home_of(key)
    if home is None and _FIRST not in metadata.partitions:
        services.want_offsets_topic()
    leader = metadata.brokers.get(metadata.leader_of(home)) if home is not None else None
    address = leader.on(call.listener) if leader is not None else None
    if leader is None or address is None:
        message = f"{home or OFFSETS_TOPIC} has no known leader; try again"
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return t.FindCoordinatorResponseCoordinator(
        key=key, node_id=leader.broker_id, host=address[0], port=address[1]
    )


def _no_coordinator(key: str, error: ErrorCode, message: str) -> t.FindCoordinatorResponseCoordinator:
    return t.FindCoordinatorResponseCoordinator(
        key=key, node_id=_NO_BROKER, port=_NO_BROKER, error_code=error, error_message=message
    )


def consumer_heartbeat(
    call: Call, body: t.ConsumerGroupHeartbeatRequest, services: Services
) -> t.ConsumerGroupHeartbeatResponse:
    """Refuse KIP-848's protocol with UNSUPPORTED_VERSION (35), by which Java and librdkafka fail at once."""
    return t.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="this broker has the classic group protocol only; set group.protocol=classic",
    )


# --- members ----------------------------------------------------------------------------------


def join(call: Call, body: t.JoinGroupRequest, services: Services) -> t.JoinGroupResponse | None:
    """Have a member wait for its group's round; only the leader gets the list of members."""
    if sum(len(each.metadata) for each in body.protocols) > _MAX_METADATA_BYTES:
        return _joined(call, g.JoinGroupResponse(error_code=ErrorCode.INVALID_REQUEST))
    request = from_wire(
        body,
        g.JoinGroupRequest,
        client_id=call.client_id or "",
        client_host=f"/{call.connection.peer}",
        require_known_member_id=call.version >= _JOIN_KNOWN_MEMBER,
        support_skipping_assignment=call.version >= _JOIN_SKIP_ASSIGNMENT,
    )
    services.ask_group(call, request, partial(_joined, call))
    return None


def _joined(call: Call, answer: g.GroupResponse) -> t.JoinGroupResponse:
    response = to_wire(answer, t.JoinGroupResponse)
    if call.version < _JOIN_NULL_NAME:
        response.protocol_name = response.protocol_name or ""
    return response


def sync(call: Call, body: t.SyncGroupRequest, services: Services) -> t.SyncGroupResponse | None:
    """Take the leader's assignment, and give each member its part.

    Without the protocol's type and name, which version 5 requires, it is INCONSISTENT_GROUP_PROTOCOL (23).
    """
    if call.version >= _SYNC_NAMES_PROTOCOL and None in (body.protocol_type, body.protocol_name):
        return t.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _ask_to_sync(call, body, services)
    return None


def leave(call: Call, body: t.LeaveGroupRequest, services: Services) -> None:
    """Remove members, several from version 3 on; before, the one member's error is the answer's."""
    if call.version >= _LEAVE_MANY:
        request = from_wire(body, g.LeaveGroupRequest)
    else:
        request = g.LeaveGroupRequest(
            group_id=body.group_id, members=(g.MemberIdentity(member_id=body.member_id),)
        )

    def left(answer: g.GroupResponse) -> t.LeaveGroupResponse:
        response = to_wire(answer, t.LeaveGroupResponse)
        if call.version < _LEAVE_MANY:
            errors = (response.error_code, *(each.error_code for each in response.members))
            return t.LeaveGroupResponse(error_code=next(filter(None, errors), ErrorCode.NONE))
        return response

    services.ask_group(call, request, left)


def describe(call: Call, body: t.DescribeGroupsRequest, services: Services) -> None:
    """Give state and members of groups, of each once. An unknown group is "Dead", without an error."""
    request = g.DescribeGroupsRequest(tuple(dict.fromkeys(body.groups)))

    def described(answer: g.GroupResponse) -> t.DescribeGroupsResponse:
        response = to_wire(answer, t.DescribeGroupsResponse)
        for group in response.groups:
            is_asked = body.include_authorized_operations and not group.error_code
            group.authorized_operations = GROUP_OPERATIONS if is_asked else NOT_ASKED
        return response

    services.ask_group(call, request, described)


# --- offsets ----------------------------------------------------------------------------------


def offset_commit(call: Call, body: t.OffsetCommitRequest, services: Services) -> None:
    """Commit offsets; the answer comes when every in-sync replica has them.

    Unknown partitions are UNKNOWN_TOPIC_OR_PARTITION (3) and do not affect the others. Versions 2 to 4 may
    give offsets a retention time of their own.
    """

    def committed(answer: g.GroupResponse) -> t.OffsetCommitResponse:
        assert isinstance(answer, g.OffsetCommitResponse)
        topics = _errors(t.OffsetCommitResponseTopic, t.OffsetCommitResponsePartition, body.topics, answer)
        return t.OffsetCommitResponse(topics=topics)

    services.ask_group(call, from_wire(body, g.OffsetCommitRequest), committed)


def offset_delete(call: Call, body: t.OffsetDeleteRequest, services: Services) -> None:
    """Delete committed offsets of topics without subscribers (else GROUP_SUBSCRIBED_TO_TOPIC, 86).

    Unknown partitions are UNKNOWN_TOPIC_OR_PARTITION (3): the offsets of a deleted topic are gone with it.
    """
    request = from_wire(body, g.OffsetDeleteRequest)
    known = tuple(each for each in request.partitions if each in services.metadata.partitions)

    def deleted(answer: g.GroupResponse) -> t.OffsetDeleteResponse:
        assert isinstance(answer, g.OffsetDeleteResponse)
        topics = [] if answer.error_code else body.topics
        return t.OffsetDeleteResponse(
            error_code=answer.error_code,
            topics=_errors(t.OffsetDeleteResponseTopic, t.OffsetDeleteResponsePartition, topics, answer),
        )

    services.ask_group(call, replace(request, partitions=known), deleted)


def _errors(
    topic_kind: Callable[..., Any],
    partition_kind: Callable[..., Any],
    topics: Iterable[Any],
    answer: g.OffsetCommitResponse | g.OffsetDeleteResponse,
) -> list[Any]:
    """List an error for each partition of the request, in its order."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return [
        topic_kind(
            name=topic.name,
            partitions=[
                partition_kind(
                    partition_index=each.partition_index,
                    error_code=answer.partitions.get(
                        TopicPartition(topic.name, each.partition_index), unknown
                    ),
                )
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def offset_fetch(call: Call, body: t.OffsetFetchRequest, services: Services) -> None:
    """Fetch committed offsets, of several groups from version 8 on; null topics mean all that is committed.

    A partition without one has offset -1 and no error. Version 1 has no place for the group's error but its
    partitions.
    """
    if call.version >= _FETCH_MANY_GROUPS:
        request = _each_group_once(from_wire(body, g.OffsetFetchRequest))
    else:
        request = g.OffsetFetchRequest((from_wire(body, g.OffsetFetchGroup),), body.require_stable)

    def fetched(answer: g.GroupResponse) -> t.OffsetFetchResponse:
        if call.version >= _FETCH_MANY_GROUPS:
            return to_wire(answer, t.OffsetFetchResponse)
        assert isinstance(answer, g.OffsetFetchResponse)
        (found,) = answer.groups
        if found.error_code is not ErrorCode.NONE and call.version < _FETCH_WITH_ERROR:
            refused = g.OffsetFetchPartition(error_code=found.error_code)
            found = replace(found, partitions=dict.fromkeys(request.groups[0].partitions or (), refused))
        return to_wire(found, t.OffsetFetchResponse)

    services.ask_group(call, request, fetched)


def _each_group_once(request: g.OffsetFetchRequest) -> g.OffsetFetchRequest:
    """Return the request with all that it asks of a group in one place."""
    wanted: dict[str, dict[TopicPartition, None] | None] = {}
    for group in request.groups:
        partitions = wanted.setdefault(group.group_id, {})
        if partitions is None or group.partitions is None:
            wanted[group.group_id] = None
        else:
            partitions.update(dict.fromkeys(group.partitions))
    groups = (
        g.OffsetFetchGroup(group_id, partitions if partitions is None else tuple(partitions))
        for group_id, partitions in wanted.items()
    )
    return replace(request, groups=tuple(groups))
