"""Static members; how members stay, leave and are described."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from logstore.broker.groups.members import Members, restored
from logstore.broker.groups.records import MemberMetadata
from logstore.broker.groups.requests import (
    MemberIdentity,
    Protocol,
)
from logstore.disk.errors import ErrorCode
from tests.broker.groups.desk import (
    DELAY_MS,
    RANGE,
    SESSION_MS,
    T0,
    Desk,
)
from tests.broker.groups.joining_kit import ROUND_ROBIN, described, keep_alive, state


class TestStaticMembers:
    """KIP-345."""

    def test_one_that_comes_back_takes_its_place_without_a_round(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join(group_instance_id="i")]
        desk.pass_ms(2 * DELAY_MS)
        leader, earlier = desk.settle(*tokens)
        again = desk.joined(desk.join(group_instance_id="i", client_host="/other"))
        assert (again.error_code, again.generation_id, again.leader) == (ErrorCode.NONE, 1, leader.member_id)
        assert again.member_id not in ("", earlier.member_id)
        assert desk.synced(desk.sync(again, group_instance_id="i")).assignment == b"1"
        assert desk.heartbeat(leader.member_id, 1) is ErrorCode.NONE, "the others did not notice"
        assert {each.client_host for each in described(desk).members} == {"/h", "/other"}

    def test_its_earlier_self_is_fenced_everywhere(self) -> None:
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        desk.join(group_instance_id="i")
        old = {"member_id": earlier.member_id, "group_instance_id": "i"}
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert desk.heartbeat(earlier.member_id, 1, "i") is fenced
        assert desk.joined(desk.join(**old)).error_code is fenced
        assert desk.synced(desk.sync(earlier, group_instance_id="i")).error_code is fenced
        assert desk.commit({T0: 1}, generation_id=1, **old) is fenced
        assert desk.leave(MemberIdentity(**old)).members[0].error_code is fenced

    def test_an_instance_that_nobody_knows_is_refused(self) -> None:
        desk = Desk()
        (member,) = desk.stable(group_instance_id="i")
        assert desk.heartbeat(member.member_id, 1, "j") is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_return_is_answered_once_it_is_written(self) -> None:
        """Else the next coordinator would fence the new self."""
        desk = Desk()
        desk.stable(group_instance_id="i")
        desk.holds_appends = True
        token = desk.join(group_instance_id="i")
        assert token not in desk.answers
        desk.release()
        again = desk.joined(token)
        other = desk.successor()
        assert other.heartbeat(again.member_id, 1, "i") is ErrorCode.NONE

    @pytest.mark.parametrize("reaches_log", [False, True])
    def test_a_return_that_may_not_be_written_is_made_again(self, reaches_log: bool) -> None:
        """The earlier self is not served meanwhile: the next coordinator might fence it."""
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        desk.holds_appends = True
        token = desk.join(group_instance_id="i")
        (append,) = desk.held
        desk.held, desk.holds_appends = [], False
        desk.end_append(append, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, reaches_log=reaches_log)
        refused = desk.joined(token)
        assert (refused.error_code, refused.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        assert desk.heartbeat(earlier.member_id, 1, "i") is ErrorCode.FENCED_INSTANCE_ID
        again = desk.joined(desk.join(group_instance_id="i"))
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
        assert desk.synced(desk.sync(again, group_instance_id="i")).assignment == b"0"
        other = desk.successor()
        assert other.heartbeat(again.member_id, 1, "i") is ErrorCode.NONE

    @pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
    def test_two_returns_while_the_first_is_written(self, error: ErrorCode) -> None:
        desk = Desk()
        desk.stable(group_instance_id="i")
        desk.holds_appends = True
        tokens = [desk.join(group_instance_id="i") for _ in range(2)]
        assert desk.joined(tokens[0]).error_code is ErrorCode.FENCED_INSTANCE_ID
        first, second = desk.held
        desk.held = []
        desk.end_append(first, error)
        assert tokens[1] not in desk.answers
        desk.end_append(second)
        again = desk.joined(tokens[1])
        assert desk.heartbeat(again.member_id, 1, "i") is ErrorCode.NONE

    @pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
    def test_a_round_that_begins_while_a_return_is_written_answers_it(self, error: ErrorCode) -> None:
        desk = Desk()
        desk.stable(group_instance_id="i")
        desk.holds_appends = True
        token, other = desk.join(group_instance_id="i"), desk.join()
        assert desk.joined(token).generation_id == desk.joined(other).generation_id == 2
        desk.release(error)
        assert desk.heartbeat(desk.joined(token).member_id, 2, "i") is ErrorCode.NONE

    def test_a_leader_that_comes_back_does_not_assign(self) -> None:
        """Older clients by being told that another leads, newer ones by word (version 9)."""
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        old = desk.joined(desk.join(group_instance_id="i"))
        assert (old.leader, old.members, old.skip_assignment) == (earlier.member_id, (), False)
        new = desk.joined(desk.join(group_instance_id="i", support_skipping_assignment=True))
        assert (new.leader, len(new.members), new.skip_assignment) == (new.member_id, 1, True)
        assert desk.synced(desk.sync(new, group_instance_id="i")).assignment == b"0"

    def test_a_follower_that_comes_back_is_told_to_skip_nothing(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join(group_instance_id="i")]
        desk.pass_ms(2 * DELAY_MS)
        desk.settle(*tokens)
        again = desk.joined(desk.join(group_instance_id="i", support_skipping_assignment=True))
        assert (again.skip_assignment, again.members) == (False, ())

    def test_one_that_comes_back_while_assignments_are_made_begins_a_round(self) -> None:
        """The leader is assigning to the earlier self."""
        desk = Desk()
        tokens = [desk.join(), desk.join(group_instance_id="i")]
        desk.pass_ms(2 * DELAY_MS)
        leader, earlier = map(desk.joined, tokens)
        waiting = desk.sync(earlier, group_instance_id="i")
        token = desk.join(group_instance_id="i")
        assert desk.synced(waiting).error_code is ErrorCode.FENCED_INSTANCE_ID
        desk.join(member_id=leader.member_id)
        assert desk.joined(token).generation_id == 2

    def test_one_that_comes_back_in_a_round_takes_the_place_of_its_earlier_self(self) -> None:
        desk = Desk()
        first, second = desk.join(group_instance_id="i"), desk.join(group_instance_id="i")
        fenced = desk.joined(first)
        assert fenced.error_code is ErrorCode.FENCED_INSTANCE_ID
        desk.pass_ms(2 * DELAY_MS)
        assert len(desk.joined(second).members) == 1

    def test_one_that_comes_back_and_votes_otherwise_begins_a_round(self) -> None:
        desk = Desk()
        both = (RANGE[0], ROUND_ROBIN)
        desk.stable(group_instance_id="i", protocols=both)
        token = desk.join(group_instance_id="i", protocols=both[::-1])
        assert (desk.joined(token).generation_id, desk.joined(token).protocol_name) == (2, "roundrobin")

    def test_a_new_one_begins_a_round(self) -> None:
        desk = Desk()
        (leader,) = desk.stable(group_instance_id="i")
        desk.join(group_instance_id="j")
        assert desk.heartbeat(leader.member_id, 1, "i") is ErrorCode.REBALANCE_IN_PROGRESS

    def test_an_operator_removes_one_by_its_instance_id(self) -> None:
        desk = Desk()
        desk.stable(group_instance_id="i")
        known, unknown = MemberIdentity(group_instance_id="i"), MemberIdentity(group_instance_id="j")
        left = desk.leave(known, unknown, MemberIdentity())
        assert left.error_code is ErrorCode.NONE
        assert [(each.group_instance_id, each.error_code) for each in left.members] == [
            ("i", ErrorCode.NONE),
            ("j", ErrorCode.UNKNOWN_MEMBER_ID),
            (None, ErrorCode.UNKNOWN_MEMBER_ID),
        ]
        assert state(desk) == "Empty"


class TestStayingAndLeaving:
    def test_heartbeats_keep_a_member_alive(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        keep_alive(desk, member, rounds=20)
        assert state(desk) == "Stable"
        desk.pass_ms(SESSION_MS - 1)
        assert state(desk) == "Stable"
        desk.pass_ms(1)
        assert state(desk) == "Empty"
        assert desk.heartbeat(member.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_commits_keep_a_member_alive(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        for _ in range(5):
            desk.pass_ms(SESSION_MS - 1)
            assert desk.commit({T0: 1}, generation_id=1, member_id=member.member_id) is ErrorCode.NONE

    def test_a_heartbeat_while_assignments_are_made_is_well(self) -> None:
        desk = Desk()
        token = desk.join()
        desk.pass_ms(DELAY_MS)
        assert desk.heartbeat(desk.joined(token).member_id, 1) is ErrorCode.NONE

    def test_heartbeats_of_others_are_refused(self) -> None:
        desk = Desk()
        assert desk.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID, "no such group"
        (member,) = desk.stable()
        assert desk.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert desk.heartbeat(member.member_id, 0) is ErrorCode.ILLEGAL_GENERATION

    def test_a_silent_member_begins_a_round(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        keep_alive(desk, leader, rounds=2)
        assert desk.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        assert desk.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_members_leave_one_by_one_or_together(self) -> None:
        desk = Desk()
        first, second, third = desk.stable(3)
        leaving = (first.member_id, "x", second.member_id)
        left = desk.leave(*(MemberIdentity(member_id=each) for each in leaving))
        assert [each.error_code for each in left.members] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NONE,
        ]
        again = desk.joined(desk.join(member_id=third.member_id))
        assert (again.leader, again.generation_id) == (third.member_id, 2)

    def test_nobody_leaves_a_group_that_is_not_there(self) -> None:
        left = Desk().leave(MemberIdentity(member_id="x"))
        assert left.error_code is ErrorCode.NONE
        assert left.members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_round_ends_when_the_last_one_it_waits_for_leaves(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        token = desk.join(member_id=leader.member_id)
        desk.leave(MemberIdentity(member_id=follower.member_id))
        assert desk.joined(token).generation_id == 2

    def test_a_member_that_leaves_while_it_joins_is_answered(self) -> None:
        desk = Desk()
        leader, _ = desk.stable(2)
        token = desk.join(member_id=leader.member_id)
        desk.leave(MemberIdentity(member_id=leader.member_id))
        assert desk.joined(token).error_code is ErrorCode.UNKNOWN_MEMBER_ID


class TestDescribing:
    def test_members_are_told_of_with_their_assignment_in_a_stable_group_only(self) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        group = described(desk)
        assert (group.group_state, group.protocol_type) == ("Stable", "consumer")
        assert group.protocol_data == "range"
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (leader.member_id, "c", "/h")
        assert (member.member_metadata, member.member_assignment) == (RANGE[0].metadata, b"0")
        desk.join()
        group = described(desk)
        assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
        assert [each.member_assignment for each in group.members] == [b"", b""]

    def test_a_group_that_is_not_there_is_dead(self) -> None:
        group = described(Desk())
        assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Dead")


def test_a_request_of_a_member_does_not_look_at_all_others() -> None:
    """A fleet of a thousand consumers joins one after the other: a look at all took ten seconds a round."""
    desk, count, steps = Desk(), 300, 0

    def count_steps(*_: object) -> None:
        nonlocal steps
        steps += 1

    def calls_of(act: Callable[[], object]) -> int:
        nonlocal steps
        steps = 0
        sys.setprofile(count_steps)
        act()
        sys.setprofile(None)
        return steps

    tokens = [desk.join() for _ in range(count - 1)]
    assert calls_of(lambda: tokens.append(desk.join())) < 3 * count
    desk.pass_ms(2 * DELAY_MS)
    joined = [desk.joined(token) for token in tokens]
    desk.sync(joined[0], {each.member_id: b"a" for each in joined})
    assert calls_of(lambda: desk.sync(joined[1])) < count
    ids = [each.member_id for each in joined]
    desk.join(member_id=ids[2], protocols=(*RANGE, Protocol("other", b"")))
    assert calls_of(lambda: desk.join(member_id=ids[3])) < count
    assert calls_of(lambda: desk.leave(MemberIdentity(member_id=ids[4]))) < count


def test_a_member_that_a_record_names_twice_counts_once() -> None:
    """Foreign or damaged records: the tallies would have no common protocol."""
    metadata = MemberMetadata("m", None, "client", "host", 1, 1, b"", b"")
    members = Members()
    for _ in range(2):
        members.add(restored(metadata, "range", 0))
    assert (len(members), members.common_protocols()) == (1, {"range"})
    members.remove(members["m"])
    assert (members.size, members.common_protocols()) == (0, None)
