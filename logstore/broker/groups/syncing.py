"""SyncGroup: how the leader's assignment reaches the log, then the members. Functions over a `Group`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from logstore.broker.groups.answers import Decision
from logstore.broker.groups.group import Group, Replacement, State
from logstore.broker.groups.members import Member
from logstore.broker.groups.rebalance import end_syncing, finish_joining, prepare_rebalance
from logstore.broker.groups.requests import JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark


def sync(group: Group, request: SyncGroupRequest, token: Hashable, now_ms: int) -> list[Decision]:
    """Give a member its assignment once there is one; the leader's request carries all of them."""
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        group.outbox.answer(token, SyncGroupResponse(error_code=error))
        return group.outbox.take()
    member = group.members[request.member_id]
    member.owes_sync = False
    if member.sync_token is not None and group.state is not State.STABLE:
        mark("groups: a sync is overtaken by the next one of its member")
        group.outbox.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.sync_token = token
    if group.state is State.STABLE:
        answer_sync(group, member, now_ms)
    elif member.member_id == group.leader_id:
        _propose(group, request)
    return group.outbox.take()


def _sync_error(group: Group, request: SyncGroupRequest) -> ErrorCode:
    error = group.error_of(request.member_id, request.group_instance_id, request.generation_id)
    if error is not ErrorCode.NONE:
        return error
    is_same_type = request.protocol_type in (None, group.protocol_type)
    if not is_same_type or request.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _propose(group: Group, request: SyncGroupRequest) -> None:
    if group.proposal is not None:
        # The first assignment is being written; a generation has only one.
        mark("groups: the leader assigns again while its assignment is written")
        return
    assignments = {each.member_id: request.assignments.get(each.member_id, b"") for each in group.members}
    group.proposal = (group.persist(assignments), assignments)


def answer_sync(group: Group, member: Member, now_ms: int) -> None:
    response = SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
    group.outbox.answer(member.sync_token, response)
    member.sync_token = None
    member.renew(now_ms)


def persisted(group: Group, ticket: int, error: ErrorCode, now_ms: int) -> list[Decision]:
    """Report the outcome of a `Persist`; `error` goes to waiting members, NONE if the log has it.

    No request waits for an empty generation: if its write is lost, the previous one is loaded and expires.
    """
    if group.proposal is not None and group.proposal[0] == ticket:
        _assigned(group, group.proposal[1], error, now_ms)
    elif replacement := group.replacements.pop(ticket, None):
        _replaced(group, replacement, error, now_ms)
    finish_joining(group, now_ms)
    return group.outbox.take()


def _assigned(group: Group, assignments: dict[str, bytes], error: ErrorCode, now_ms: int) -> None:
    assert group.state is State.COMPLETING_REBALANCE, group.state
    if error is not ErrorCode.NONE:
        mark("groups: an assignment could not be written")
        end_syncing(group, error, now_ms)
        prepare_rebalance(group, now_ms)
        return
    group.proposal = None
    group.become(State.STABLE, now_ms)
    for member in group.members:
        group.members.assign(member, assignments[member.member_id])
        if member.sync_token is not None:
            answer_sync(group, member, now_ms)


def _replaced(group: Group, replacement: Replacement, error: ErrorCode, now_ms: int) -> None:
    member = replacement.member
    if (
        group.members.get(member.member_id) is not member
        or member.join_token is None
        or group.state is not State.STABLE
        or group.generation != replacement.generation
    ):
        # It was replaced again or left, or a rebalance began and will answer it.
        mark("groups: a static member's return is overtaken while it is written")
        return
    member.renew(now_ms)
    if error is not ErrorCode.NONE:
        # It keeps the place until its process asks again. The log may have the write after all, and the
        # earlier process must not be served again: the next coordinator would fence it.
        mark("groups: a static member's return could not be written")
        response = JoinGroupResponse(error_code=error)
    elif replacement.skips_assignment:
        is_leader = member.member_id == group.leader_id
        response = replace(group.joined(member, with_members=is_leader), skip_assignment=is_leader)
    else:
        # An older client that reads that it leads would assign, and a stable group ignores assignments.
        response = replace(group.joined(member), leader=replacement.leader_id or "")
    group.outbox.answer(member.join_token, response)
    member.join_token = None
