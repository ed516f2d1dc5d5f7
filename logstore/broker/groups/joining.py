"""JoinGroup: how members enter a group, rejoin it, and replace their predecessors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from logstore.broker.groups.answers import Decision
from logstore.broker.groups.group import Group, Replacement, State
from logstore.broker.groups.members import Member, rebalance_timeout_ms
from logstore.broker.groups.rebalance import finish_joining, prepare_rebalance
from logstore.broker.groups.requests import NO_MEMBER_ID, JoinGroupRequest, JoinGroupResponse
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation: it cannot send heartbeats meanwhile."""


def join(
    group: Group, request: JoinGroupRequest, token: Hashable, now_ms: int, *, id_suffix: str
) -> list[Decision]:
    """Let a member join or rejoin; `id_suffix` makes a new member's id unique.

    The answer comes when the join phase ends. Errors: MEMBER_ID_REQUIRED (79) with an id to join with,
    GROUP_MAX_SIZE_REACHED (81), FENCED_INSTANCE_ID (82), UNKNOWN_MEMBER_ID (25),
    INCONSISTENT_GROUP_PROTOCOL (23) without a common protocol, COORDINATOR_NOT_AVAILABLE (15) to retry.
    """
    member_id = request.member_id
    if group.state is State.DEAD:
        mark("groups: somebody joins a group that is being deleted")
        _refuse(group, request, token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif not _has_room_for(group, request):
        mark("groups: a member finds the group full")
        group.members.pending_ids.pop(member_id, None)
        if member := group.members.get(member_id):
            group.remove(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
        group.outbox.answer(token, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not _supports(group, request):
        _refuse(group, request, token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif member_id == NO_MEMBER_ID:
        _join_new(group, request, token, now_ms, id_suffix)
    elif member_id not in group.members.pending_ids:
        _rejoin(group, request, token, now_ms)
    elif request.group_instance_id is not None:
        # Only dynamic members are given ids to join with.
        _refuse(group, request, token, ErrorCode.UNKNOWN_MEMBER_ID)
    else:
        del group.members.pending_ids[member_id]
        _add(group, member_id, request, token, now_ms)
    finish_joining(group, now_ms)
    return group.outbox.take()


def _refuse(group: Group, request: JoinGroupRequest, token: Hashable, error: ErrorCode) -> None:
    group.outbox.answer(token, JoinGroupResponse(error_code=error, member_id=request.member_id))


def _has_room_for(group: Group, request: JoinGroupRequest) -> bool:
    """Known members have a place; during a join phase, places go to the first who join it."""
    most = group.config.group_max_size
    member = group.members.get(group.members.identified(request.member_id, request.group_instance_id))
    match group.state:
        case State.PREPARING_REBALANCE:
            has_joined = member is not None and member.join_token is not None
            # Few members in all: then those that have joined, which takes a count, are few, too.
            return has_joined or len(group.members) < most or group.members.joined_count < most
        case State.COMPLETING_REBALANCE | State.STABLE:
            return member is not None or len(group.members) < most
    return True


def _supports(group: Group, request: JoinGroupRequest) -> bool:
    """Return whether the member and all others have a protocol in common."""
    if group.state is State.EMPTY:
        return bool(request.protocol_type and request.protocols)
    if request.protocol_type != group.protocol_type:
        return False
    common = group.members.common_protocols()
    return any(common is None or each.name in common for each in request.protocols)


def _join_new(group: Group, request: JoinGroupRequest, token: Hashable, now_ms: int, id_suffix: str) -> None:
    instance_id = request.group_instance_id
    member_id = f"{request.client_id if instance_id is None else instance_id}-{id_suffix}"
    earlier_id = group.members.id_of_instance(instance_id)
    if earlier_id is not None:
        _replace_static(group, group.members[earlier_id], member_id, request, token, now_ms)
    elif instance_id is None and request.require_known_member_id:
        group.members.pending_ids[member_id] = now_ms + request.session_timeout_ms
        error = ErrorCode.MEMBER_ID_REQUIRED
        group.outbox.answer(token, JoinGroupResponse(error_code=error, member_id=member_id))
    else:
        _add(group, member_id, request, token, now_ms)


def _rejoin(group: Group, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
    error = group.members.error_of(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        _refuse(group, request, token, error)
        return
    member = group.members[request.member_id]
    is_leader = member.member_id == group.leader_id
    match group.state:
        case State.PREPARING_REBALANCE:
            _update(group, member, request, token)
        case State.COMPLETING_REBALANCE if member.protocols == request.protocols:
            mark("groups: a member joins again, its answer was lost")
            group.outbox.answer(token, group.joined(member, with_members=is_leader))
        case State.STABLE if member.protocols == request.protocols and not is_leader:
            group.outbox.answer(token, group.joined(member))
        case _:
            # Its subscription changed; or it is the leader and has seen that topics changed.
            _update(group, member, request, token)
            prepare_rebalance(group, now_ms)


def _add(group: Group, member_id: str, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.state is State.PREPARING_REBALANCE and group.generation == 0:
        group.joining.has_new_members = True
    member = Member(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        rebalance_timeout_ms(request),
        request.session_timeout_ms,
        request.protocols,
        now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
        join_token=token,
        is_new=True,
    )
    group.members.add(member)
    prepare_rebalance(group, now_ms)


def _update(group: Group, member: Member, request: JoinGroupRequest, token: Hashable) -> None:
    group.members.subscribe(member, request.protocols)
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    member.session_timeout_ms = request.session_timeout_ms
    if member.join_token is not None:
        # The client has given up on the earlier request; its connection may still wait for the answer.
        mark("groups: a join is overtaken by the next one of its member")
        group.outbox.fail_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.join_token = token


def _replace_static(
    group: Group, earlier: Member, member_id: str, request: JoinGroupRequest, token: Hashable, now_ms: int
) -> None:
    leader_id = group.leader_id
    group.outbox.fail(earlier, ErrorCode.FENCED_INSTANCE_ID)
    session_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if earlier.is_new else request.session_timeout_ms
    member = replace(
        earlier,
        member_id=member_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        deadline_ms=now_ms + session_ms,
        join_token=token,
        is_restored=False,
    )
    group.members.replace(earlier.member_id, member)
    if group.state is State.STABLE and group.members.voted_protocol() == group.protocol_name:
        mark("groups: a static member comes back to a stable group")
        ticket = group.persist({each.member_id: each.assignment for each in group.members})
        skips = request.support_skipping_assignment
        group.replacements[ticket] = Replacement(member, group.generation, leader_id, skips)
    elif group.state is not State.PREPARING_REBALANCE:
        # The leader may be assigning partitions to the earlier id right now.
        mark("groups: a static member comes back while assignments are made, or votes otherwise")
        prepare_rebalance(group, now_ms)
