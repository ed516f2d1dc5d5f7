"""Heartbeats, leaving, and the expiry of sessions. Functions over a `Group`."""

from __future__ import annotations

from collections.abc import Hashable

from logstore.broker.groups.answers import Decision
from logstore.broker.groups.group import Group, State
from logstore.broker.groups.rebalance import finish_joining, lose
from logstore.broker.groups.requests import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark


def heartbeat(group: Group, request: HeartbeatRequest, token: Hashable, now_ms: int) -> list[Decision]:
    """Renew a member's session; answer REBALANCE_IN_PROGRESS (27) while it must rejoin."""
    error = group.error_of(request.member_id, request.group_instance_id, request.generation_id)
    if error is ErrorCode.NONE:
        group.members[request.member_id].renew(now_ms)
        if group.state is State.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    group.outbox.answer(token, HeartbeatResponse(error))
    return group.outbox.take()


def leave(group: Group, request: LeaveGroupRequest, token: Hashable, now_ms: int) -> list[Decision]:
    """Remove members, each by its id or by its instance id alone; the others rebalance."""
    if group.state is State.DEAD:
        group.outbox.answer(token, LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return group.outbox.take()
    members = tuple(
        MemberResponse(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            error_code=_leave(group, each, now_ms),
        )
        for each in request.members
    )
    group.outbox.answer(token, LeaveGroupResponse(members=members))
    finish_joining(group, now_ms)
    return group.outbox.take()


def _leave(group: Group, leaving: MemberIdentity, now_ms: int) -> ErrorCode:
    if group.members.pending_ids.pop(leaving.member_id, None) is not None:
        mark("groups: somebody leaves who never joined")
        return ErrorCode.NONE
    member_id = group.members.identified(leaving.member_id, leaving.group_instance_id)
    error = group.members.error_of(member_id, leaving.group_instance_id)
    if error is ErrorCode.NONE:
        lose(group, group.members[member_id], now_ms)
    return error


def tick(group: Group, now_ms: int) -> list[Decision]:
    """Expire ids and sessions, and end phases whose time is over."""
    if group.state is State.DEAD:
        return []
    pending_ids = group.members.pending_ids
    for member_id in [each for each, deadline_ms in pending_ids.items() if deadline_ms <= now_ms]:
        mark("groups: an id that was given out is not used in time")
        del pending_ids[member_id]
    for member in list(group.members):
        if member.can_expire and member.deadline_ms <= now_ms:
            lose(group, member, now_ms)
    late = [each for each in group.members if each.owes_sync]
    if late and now_ms >= group.sync_deadline_ms:
        mark("groups: a member does not ask for its assignment in time")
        for member in late:
            lose(group, member, now_ms)
    finish_joining(group, now_ms)
    return group.outbox.take()


def unload(group: Group) -> list[Decision]:
    """Answer all waiting requests with NOT_COORDINATOR (16): another node is the coordinator now."""
    for member in group.members:
        group.outbox.fail(member, ErrorCode.NOT_COORDINATOR)
    return group.outbox.take()


def set_deleting(group: Group, is_deleting: bool) -> None:
    """Refuse joins while the tombstones are being written; a failed write leaves the group as it was."""
    assert group.state is (State.EMPTY if is_deleting else State.DEAD), group.state
    group.state = State.DEAD if is_deleting else State.EMPTY
