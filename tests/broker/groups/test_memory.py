"""What the members of all groups may take: counted, bounded, and given back."""

from __future__ import annotations

from logstore.broker.groups.coordinator import UNDELIVERED_MS
from logstore.broker.groups.group import State
from logstore.broker.groups.members import MEMBER_BYTES
from logstore.broker.groups.requests import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, Protocol
from logstore.disk.errors import ErrorCode
from tests.broker.groups.desk import DELAY_MS, GROUP, Desk

KIB = 1 << 10


def protocols(size: int) -> tuple[Protocol, ...]:
    return (Protocol("range", bytes(size)),)


def test_all_groups_together_have_a_bound_and_a_refused_member_may_try_again() -> None:
    desk = Desk(group_coordinator_max_bytes=100 * KIB)
    tokens = [desk.join(group_id=f"g{number}", protocols=protocols(10 * KIB)) for number in range(12)]
    desk.pass_ms(2 * DELAY_MS)
    errors = [desk.joined(token).error_code for token in tokens]
    assert errors == [ErrorCode.NONE] * 9 + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
    assert desk.coordinator.refused_joins == 3
    assert desk.coordinator.memory <= 100 * KIB
    gone = MemberIdentity(member_id=desk.joined(tokens[0]).member_id)
    desk.answer(LeaveGroupRequest(group_id="g0", members=(gone,)), LeaveGroupResponse)
    again = desk.join(group_id="g11", protocols=protocols(10 * KIB))
    desk.pass_ms(2 * DELAY_MS)
    assert desk.joined(again).error_code is ErrorCode.NONE


def test_one_group_has_a_bound() -> None:
    desk = Desk(group_max_bytes=30 * KIB)
    tokens = [desk.join(protocols=protocols(10 * KIB)) for _ in range(3)]
    desk.pass_ms(2 * DELAY_MS)
    errors = sorted(desk.joined(token).error_code for token in tokens)
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    other = desk.join(group_id="other", protocols=protocols(10 * KIB))
    desk.pass_ms(2 * DELAY_MS)
    assert desk.joined(other).error_code is ErrorCode.NONE


def test_a_member_that_joins_again_counts_once() -> None:
    desk = Desk(group_max_bytes=15 * KIB)
    (member,) = desk.stable(protocols=protocols(10 * KIB))
    before = desk.coordinator.memory
    token = desk.join(member_id=member.member_id, protocols=protocols(11 * KIB))
    desk.pass_ms(2 * DELAY_MS)
    assert desk.joined(token).error_code is ErrorCode.NONE
    assert desk.coordinator.memory == before + KIB


def test_a_static_member_that_comes_back_counts_once() -> None:
    """Without its member id, which died with its process; its group would wait for it in vain."""
    desk = Desk(group_max_bytes=15 * KIB)
    desk.stable(protocols=protocols(10 * KIB), group_instance_id="i")
    token = desk.join(protocols=protocols(10 * KIB), group_instance_id="i")
    desk.pass_ms(2 * DELAY_MS)
    assert desk.joined(token).error_code is ErrorCode.NONE


def test_the_memory_of_whoever_goes_comes_back() -> None:
    desk = Desk()
    members = desk.stable(3, protocols=protocols(KIB))
    held = desk.coordinator.memory
    assert 3 * (KIB + MEMBER_BYTES) <= held <= 3 * (KIB + MEMBER_BYTES + 100)
    desk.leave(MemberIdentity(member_id=members[0].member_id))
    assert desk.coordinator.memory < held * 0.7
    desk.pass_ms(10 * 60_000)
    assert desk.coordinator.memory == 0
    desk.stable(2, protocols=protocols(KIB))
    for partition in range(desk.config.offsets_topic_num_partitions):
        desk.run(desk.coordinator.unload(partition, 1, desk.now_ms))
    assert desk.coordinator.memory == 0


def test_a_member_whose_join_found_its_connection_closed_has_a_short_session() -> None:
    """300 of these kept a broker's memory for half an hour: the longest session a member may ask for."""
    desk = Desk()
    token = desk.join(session_timeout_ms=1_800_000, protocols=protocols(KIB))
    desk.pass_ms(2 * DELAY_MS)
    member_id = desk.joined(token).member_id
    desk.coordinator.undelivered(GROUP, member_id, desk.now_ms)
    desk.coordinator.undelivered(GROUP, "unknown", desk.now_ms)
    desk.coordinator.undelivered("unknown", member_id, desk.now_ms)
    desk.pass_ms(UNDELIVERED_MS + 1)
    assert desk.coordinator.states[State.EMPTY] == 1
    assert desk.coordinator.memory == 0


def test_a_member_that_shows_itself_has_its_whole_session() -> None:
    desk = Desk()
    token = desk.join(session_timeout_ms=60_000)
    desk.pass_ms(2 * DELAY_MS)
    joined = desk.joined(token)
    desk.coordinator.undelivered(GROUP, joined.member_id, desk.now_ms)
    desk.sync(joined, {joined.member_id: b"0"})
    assert desk.heartbeat(joined.member_id, joined.generation_id) is ErrorCode.NONE
    desk.pass_ms(59_000)
    assert desk.heartbeat(joined.member_id, joined.generation_id) is ErrorCode.NONE
