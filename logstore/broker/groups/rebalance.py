"""Rebalances: how the join phase of a group begins and ends. Functions over a `Group`."""

from __future__ import annotations

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.group import Group, State
from logstore.broker.groups.join_phase import JoinPhase
from logstore.broker.groups.members import Member, restored
from logstore.broker.groups.records import GroupMetadata
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark


def prepare_rebalance(group: Group, now_ms: int) -> None:
    """Begin a join phase, unless one is open."""
    if group.state is State.PREPARING_REBALANCE:
        return
    if group.state is State.COMPLETING_REBALANCE:
        end_syncing(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    for member in group.members:
        member.owes_sync = False
    longest_ms = group.members.longest_rebalance_ms
    if group.state is State.EMPTY:
        delay_ms = group.config.group_initial_rebalance_delay_ms
        group.joining = JoinPhase.first(now_ms, delay_ms=delay_ms, longest_ms=longest_ms)
    else:
        group.joining = JoinPhase(now_ms + longest_ms)
    group.become(State.PREPARING_REBALANCE, now_ms)


def finish_joining(group: Group, now_ms: int) -> None:
    """End the join phase if all have joined or its time is up; every public method ends with it."""
    if group.state is not State.PREPARING_REBALANCE:
        return
    all_joined = not group.members.pending_ids and all(each.join_token is not None for each in group.members)
    initial_delay_ms = group.config.group_initial_rebalance_delay_ms
    if group.joining.is_over(now_ms, all_joined=all_joined, initial_delay_ms=initial_delay_ms):
        _complete_join(group, now_ms)


def _complete_join(group: Group, now_ms: int) -> None:
    for member in list(group.members):
        if member.join_token is None and member.group_instance_id is None:
            mark("groups: a member did not join in time")
            group.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
    if group.members and not group.members.elect_leader():
        group.joining.wait_for_static_members(now_ms, group.members.longest_rebalance_ms)
        return
    group.generation += 1
    if not group.members:
        group.protocol_name = group.members.leader_id = None
        group.learn_topics()
        group.become(State.EMPTY, now_ms)
        group.persist({})
        return
    group.protocol_name = group.members.voted_protocol()
    group.learn_topics()
    group.become(State.COMPLETING_REBALANCE, now_ms)
    group.sync_deadline_ms = now_ms + group.members.longest_rebalance_ms
    for member in group.members:
        if member.join_token is not None:
            response = group.joined(member, with_members=member.member_id == group.leader_id)
            group.outbox.answer(member.join_token, response)
            member.join_token = None
        member.renew(now_ms)
        member.is_new, member.owes_sync = False, True


def end_syncing(group: Group, error: ErrorCode, now_ms: int) -> None:
    """Answer all SyncGroup requests that wait with an error and drop the assignments."""
    group.proposal = None
    for member in group.members:
        group.members.assign(member, b"")
        if member.sync_token is not None:
            group.outbox.fail_sync(member, error)
            member.renew(now_ms)


def lose(group: Group, member: Member, now_ms: int) -> None:
    group.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
    prepare_rebalance(group, now_ms)


def loaded(group_id: str, metadata: GroupMetadata, config: GroupConfig, now_ms: int) -> Group:
    """Return the group as the log has it; each member has a full session from now on."""
    group = Group(group_id, config, now_ms)
    group.generation = metadata.generation
    group.protocol_type = metadata.protocol_type or None
    group.protocol_name = metadata.protocol
    for each in metadata.members:
        group.members.add(restored(each, metadata.protocol, now_ms))
    group.members.leader_id = metadata.leader
    group.state = State.STABLE if group.members else State.EMPTY
    group.state_timestamp_ms = metadata.state_timestamp_ms
    group.learn_topics()
    if len(group.members) > config.group_max_size:
        mark("groups: a loaded group is larger than it may be")
        prepare_rebalance(group, now_ms)
    return group
