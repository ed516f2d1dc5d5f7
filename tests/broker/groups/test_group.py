"""One group's automaton: rounds, static members, sessions. Each name says its rule."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.groups.joining import NEW_MEMBER_JOIN_TIMEOUT_MS
from logstore.broker.groups.requests import (
    JoinGroupResponse,
    MemberIdentity,
    Protocol,
)
from logstore.disk.errors import ErrorCode
from tests.broker.groups.desk import (
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Desk,
    subscription,
)
from tests.broker.groups.joining_kit import ROUND_ROBIN, described, keep_alive, state

STICKY = Protocol("sticky", subscription("t"))


class TestJoining:
    def test_a_member_without_an_id_is_given_one_first(self) -> None:
        """KIP-394: whoever gives up and joins again does not leave a ghost behind."""
        desk = Desk()
        first = desk.joined(desk.join(require_known_member_id=True))
        assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
        assert first.member_id.startswith("c-")
        assert state(desk) == "Empty", "it is no member yet"
        token = desk.join(member_id=first.member_id, require_known_member_id=True)
        desk.pass_ms(DELAY_MS)
        assert desk.joined(token).error_code is ErrorCode.NONE
        assert desk.joined(token).member_id == first.member_id

    def test_ids_differ(self) -> None:
        desk = Desk()
        ids = {desk.joined(desk.join(require_known_member_id=True)).member_id for _ in range(20)}
        assert len(ids) == 20

    def test_an_id_that_is_not_used_within_a_session_is_forgotten(self) -> None:
        desk = Desk()
        member_id = desk.joined(desk.join(require_known_member_id=True)).member_id
        desk.pass_ms(SESSION_MS)
        refused = desk.joined(desk.join(member_id=member_id))
        assert refused.error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_round_waits_for_ids_that_were_given_out(self) -> None:
        """Whoever was told to join with it is about to."""
        desk = Desk()
        (leader,) = desk.stable()
        pending = desk.joined(desk.join(require_known_member_id=True)).member_id
        token = desk.join(member_id=leader.member_id)
        assert token not in desk.answers
        other = desk.join(member_id=pending)
        assert len(desk.joined(token).members) == 2
        assert desk.joined(other).members == ()

    def test_an_id_that_was_given_out_leaves_and_the_round_goes_on(self) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        pending = desk.joined(desk.join(require_known_member_id=True)).member_id
        token = desk.join(member_id=leader.member_id)
        assert desk.leave(MemberIdentity(member_id=pending)).members[0].error_code is ErrorCode.NONE
        assert desk.joined(token).error_code is ErrorCode.NONE

    def test_an_id_that_was_given_out_is_not_for_static_members(self) -> None:
        desk = Desk()
        member_id = desk.joined(desk.join(require_known_member_id=True)).member_id
        refused = desk.joined(desk.join(member_id=member_id, group_instance_id="i"))
        assert refused.error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_older_clients_and_static_members_get_in_at_once(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join(group_instance_id="i", require_known_member_id=True)]
        desk.pass_ms(2 * DELAY_MS)
        assert [desk.joined(each).error_code for each in tokens] == [ErrorCode.NONE, ErrorCode.NONE]
        assert desk.joined(tokens[1]).member_id.startswith("i-")

    @pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
    def test_a_session_timeout_out_of_bounds_is_refused(self, session_ms: int) -> None:
        desk = Desk()
        refused = desk.joined(desk.join(session_timeout_ms=session_ms, member_id="x"))
        assert (refused.error_code, refused.member_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, "x")

    def test_an_id_that_nobody_knows_is_refused(self) -> None:
        desk = Desk()
        assert desk.joined(desk.join(member_id="x")).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        desk.stable()
        assert desk.joined(desk.join(member_id="x")).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.parametrize(
        "wanted",
        [
            {"protocol_type": "connect"},
            {"protocols": (STICKY,)},
            {"protocols": ()},
        ],
        ids=["another type", "nothing in common", "none"],
    )
    def test_a_protocol_that_others_do_not_know_is_refused(self, wanted: dict[str, object]) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        assert desk.joined(desk.join(**wanted)).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert desk.heartbeat(leader.member_id, 1) is ErrorCode.NONE, "nobody noticed"

    @pytest.mark.parametrize("wanted", [{"protocol_type": ""}, {"protocols": ()}])
    def test_the_first_member_names_a_type_and_a_protocol(self, wanted: dict[str, object]) -> None:
        desk = Desk()
        assert desk.joined(desk.join(**wanted)).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert state(desk) == "Dead", "the group was not made"

    def test_texts_that_no_record_can_hold_are_refused(self) -> None:
        desk = Desk()
        long = "x" * 32_740
        for wanted in ({"client_id": long}, {"client_host": "\ud800"}, {"group_instance_id": long}):
            assert desk.joined(desk.join(**wanted)).error_code is ErrorCode.INVALID_REQUEST

    def test_the_first_round_waits_for_more_members(self) -> None:
        """`group.initial.rebalance.delay.ms`, once more for each delay in which somebody came."""
        desk = Desk()
        first = desk.join()
        desk.pass_ms(DELAY_MS - 1)
        second = desk.join()
        desk.pass_ms(1)
        assert first not in desk.answers, "somebody came: another delay"
        desk.pass_ms(DELAY_MS)
        assert desk.joined(first).generation_id == desk.joined(second).generation_id == 1
        assert desk.now_ms == START_MS + 2 * DELAY_MS

    def test_the_first_round_does_not_wait_longer_than_the_rebalance_timeout(self) -> None:
        desk = Desk()
        tokens = [desk.join(rebalance_timeout_ms=7_000, member_id="")]
        for _ in range(10):
            desk.pass_ms(1_000)
            if tokens[0] not in desk.answers:
                tokens.append(desk.join(rebalance_timeout_ms=7_000))
        assert desk.joined(tokens[0]).generation_id == 1
        assert len(tokens) == 7, "one a second; delays of 3 s, 3 s, and the second that is left"

    def test_without_a_delay_the_first_member_is_served_at_once(self) -> None:
        desk = Desk(group_initial_rebalance_delay_ms=0)
        assert desk.joined(desk.join()).generation_id == 1

    def test_only_the_leader_is_told_what_all_members_said(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join(group_instance_id="i")]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        assert leader.leader == follower.leader == leader.member_id
        assert [(each.member_id, each.group_instance_id, each.metadata) for each in leader.members] == [
            (leader.member_id, None, RANGE[0].metadata),
            (follower.member_id, "i", RANGE[0].metadata),
        ]
        assert follower.members == ()
        assert (follower.protocol_type, follower.protocol_name) == ("consumer", "range")

    def test_the_protocol_is_voted_for_among_those_that_all_know(self) -> None:
        desk = Desk()
        lists = ([STICKY, RANGE[0], ROUND_ROBIN], [ROUND_ROBIN, RANGE[0]], [RANGE[0], ROUND_ROBIN])
        tokens = [desk.join(protocols=tuple(each)) for each in lists]
        desk.pass_ms(2 * DELAY_MS)
        assert desk.joined(tokens[0]).protocol_name == "range", "not sticky: the second does not know it"

    def test_a_tied_vote_goes_to_the_oldest_member(self) -> None:
        desk = Desk()
        tokens = [desk.join(protocols=(ROUND_ROBIN, RANGE[0])), desk.join(protocols=(RANGE[0], ROUND_ROBIN))]
        desk.pass_ms(2 * DELAY_MS)
        assert desk.joined(tokens[0]).protocol_name == "roundrobin"

    def test_the_second_join_of_a_member_answers_the_first(self) -> None:
        """Its connection may still be read by somebody who would wait for ever."""
        desk = Desk()
        members = desk.stable(2)
        token = desk.join(member_id=members[0].member_id)
        again = desk.join(member_id=members[0].member_id)
        assert desk.joined(token).error_code is ErrorCode.REBALANCE_IN_PROGRESS
        desk.join(member_id=members[1].member_id)
        assert desk.joined(again).error_code is ErrorCode.NONE

    def test_a_join_whose_answer_was_lost_is_answered_again(self) -> None:
        """While assignments are made: with the same generation, and the leader with all members."""
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        for token in tokens:
            first = desk.joined(token)
            assert desk.joined(desk.join(member_id=first.member_id)) == first
        assert state(desk) == "CompletingRebalance"

    def test_other_subscriptions_begin_a_round_while_assignments_are_made(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        waiting = desk.sync(follower)
        desk.join(member_id=leader.member_id, protocols=(Protocol("range", subscription("u")),))
        assert desk.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
        assert state(desk) == "PreparingRebalance"

    def test_a_follower_that_joins_a_stable_group_unchanged_disturbs_nobody(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        again = desk.joined(desk.join(member_id=follower.member_id))
        assert (again.generation_id, again.leader) == (1, leader.member_id)
        assert desk.synced(desk.sync(again)).assignment == b"1"

    def test_a_leader_that_joins_a_stable_group_begins_a_round(self) -> None:
        """It has seen that topics changed."""
        desk = Desk()
        leader, follower = desk.stable(2)
        token = desk.join(member_id=leader.member_id)
        assert token not in desk.answers
        assert desk.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        desk.join(member_id=follower.member_id)
        assert desk.joined(token).generation_id == 2

    def test_a_follower_with_another_subscription_begins_a_round(self) -> None:
        desk = Desk()
        _, follower = desk.stable(2)
        desk.join(member_id=follower.member_id, protocols=(Protocol("range", subscription("u")),))
        assert state(desk) == "PreparingRebalance"

    def test_version_0_has_one_timeout_for_both(self) -> None:
        desk = Desk()
        leader, _ = desk.stable(2, rebalance_timeout_ms=-1)
        token = desk.join(member_id=leader.member_id, rebalance_timeout_ms=-1)
        desk.pass_ms(SESSION_MS)
        assert len(desk.joined(token).members) == 1


class TestRounds:
    def test_who_does_not_join_within_the_rebalance_timeout_is_out(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        token = desk.join(member_id=leader.member_id)
        for _ in range(REBALANCE_MS * 2 // SESSION_MS):
            assert token not in desk.answers
            desk.pass_ms(SESSION_MS // 2)
            desk.heartbeat(follower.member_id, 1)
        assert [each.member_id for each in desk.joined(token).members] == [leader.member_id]
        assert desk.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_leader_that_does_not_join_is_replaced(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2, group_instance_id=None)
        token = desk.join(member_id=follower.member_id, protocols=(Protocol("range", subscription("u")),))
        desk.pass_ms(SESSION_MS)
        assert desk.joined(token).leader == follower.member_id != leader.member_id

    def test_a_static_leader_that_does_not_join_in_time_stays_but_does_not_lead(self) -> None:
        desk = Desk()
        tokens = [
            desk.join(group_instance_id="a", session_timeout_ms=1_000_000),
            desk.join(group_instance_id="b", session_timeout_ms=1_000_000),
        ]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = desk.settle(*tokens)
        token = desk.join(
            member_id=follower.member_id,
            group_instance_id="b",
            session_timeout_ms=1_000_000,
            protocols=(Protocol("range", subscription("u")),),
        )
        desk.pass_ms(REBALANCE_MS)
        again = desk.joined(token)
        assert again.leader == follower.member_id
        assert {each.member_id for each in again.members} == {leader.member_id, follower.member_id}

    def test_a_round_that_nobody_joins_waits_until_static_members_expire(self) -> None:
        desk = Desk()
        static, dynamic = desk.join(group_instance_id="a", session_timeout_ms=200_000), desk.join()
        desk.pass_ms(2 * DELAY_MS)
        desk.settle(static, dynamic)
        desk.pass_ms(SESSION_MS)  # the dynamic one is silent: a round begins
        assert state(desk) == "PreparingRebalance"
        desk.pass_ms(2 * REBALANCE_MS)
        assert state(desk) == "PreparingRebalance", "nobody has joined, and one has a session left"
        desk.pass_ms(200_000)
        assert state(desk) == "Empty"

    def test_a_round_that_nobody_joins_does_not_spin(self) -> None:
        """A rebalance timeout of 0 is the client's choice; the loop is ours."""
        desk = Desk()
        wanted = {"session_timeout_ms": 200_000, "rebalance_timeout_ms": 0}
        static, dynamic = desk.join(group_instance_id="a", **wanted), desk.join()
        desk.pass_ms(2 * DELAY_MS)
        desk.settle(static, dynamic)
        desk.leave(MemberIdentity(member_id=desk.joined(dynamic).member_id))
        assert state(desk) == "PreparingRebalance"
        desk.pass_ms(10_000)
        assert state(desk) == "PreparingRebalance", "its place is kept"

    def test_the_group_is_empty_when_the_last_member_has_left_and_the_generation_has_risen(self) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        desk.leave(MemberIdentity(member_id=leader.member_id))
        group = described(desk)
        assert (group.group_state, group.protocol_type, group.members) == ("Empty", "consumer", ())
        (again,) = desk.stable()
        assert again.generation_id == 3

    def test_a_new_member_may_wait_longer_than_its_session(self) -> None:
        """It cannot send heartbeats while it waits; but not for ever."""
        desk = Desk()
        leader = desk.stable(rebalance_timeout_ms=1_000_000)[0]
        token = desk.join(rebalance_timeout_ms=1_000_000)
        keep_alive(desk, leader, rounds=(NEW_MEMBER_JOIN_TIMEOUT_MS - 1) // (SESSION_MS // 2))
        assert token not in desk.answers
        keep_alive(desk, leader)
        refused = desk.joined(token)
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")

    def test_a_known_member_that_waits_does_not_expire(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        token = desk.join(member_id=leader.member_id)
        for _ in range(8):
            desk.pass_ms(SESSION_MS // 2)
            desk.heartbeat(follower.member_id, 1)
        assert token not in desk.answers
        desk.join(member_id=follower.member_id)
        assert len(desk.joined(token).members) == 2

    def test_a_full_group_takes_nobody_else(self) -> None:
        desk = Desk(group_max_size=2)
        desk.stable(2)
        refused = desk.joined(desk.join())
        assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")

    def test_a_full_round_takes_nobody_else(self) -> None:
        desk = Desk(group_max_size=2)
        tokens = [desk.join() for _ in range(3)]
        assert desk.joined(tokens[2]).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        desk.pass_ms(2 * DELAY_MS)
        assert len(desk.joined(tokens[0]).members) == 2

    def test_a_full_group_takes_a_static_member_back(self) -> None:
        desk = Desk(group_max_size=1)
        desk.stable(group_instance_id="i")
        assert desk.joined(desk.join(group_instance_id="i")).error_code is ErrorCode.NONE

    def test_a_loaded_group_that_is_too_large_loses_those_who_come_last(self) -> None:
        desk = Desk()
        members = desk.stable(3)
        other = desk.successor(group_max_size=2)
        assert other.heartbeat(members[0].member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        tokens = [other.join(member_id=each.member_id) for each in members]
        assert other.joined(tokens[2]).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert [other.joined(each).error_code for each in tokens[:2]] == [ErrorCode.NONE] * 2


class TestSyncing:
    def test_everybody_gets_what_the_leader_says_once_it_is_written(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        early = desk.sync(follower)
        assert early not in desk.answers
        desk.holds_appends = True
        own = desk.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
        assert early not in desk.answers, "the log does not have it yet"
        desk.release()
        assert (desk.synced(early).assignment, desk.synced(own).assignment) == (b"F", b"L")
        assert desk.synced(early).protocol_name == "range"
        assert desk.synced(desk.sync(follower)).assignment == b"F", "and at any time later"

    def test_a_member_that_the_leader_forgot_gets_nothing(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        desk.sync(leader, {leader.member_id: b"L", "stranger": b"S"})
        assert desk.synced(desk.sync(follower)).assignment == b""

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
            (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
            (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
            (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        ],
    )
    def test_an_assignment_that_cannot_be_written_is_nobodys(self, error: ErrorCode, told: ErrorCode) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        desk.append_error = error
        early = desk.sync(follower)
        own = desk.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
        assert desk.synced(early).error_code is desk.synced(own).error_code is told
        assert state(desk) == "PreparingRebalance"

    def test_a_generation_has_one_assignment(self) -> None:
        """The leader's first one is on its way to the log; the next coordinator would read the second."""
        desk = Desk()
        token = desk.join()
        desk.pass_ms(DELAY_MS)
        leader = desk.joined(token)
        desk.holds_appends = True
        first = desk.sync(leader, {leader.member_id: b"1"})
        second = desk.sync(leader, {leader.member_id: b"2"})
        assert desk.synced(first).error_code is ErrorCode.REBALANCE_IN_PROGRESS
        assert len(desk.held) == 1
        desk.release()
        assert desk.synced(second).assignment == b"1"
        other = desk.successor()
        assert other.synced(other.sync(leader)).assignment == b"1"

    def test_a_round_that_begins_while_an_assignment_is_written_goes_on(self) -> None:
        desk = Desk()
        token = desk.join()
        desk.pass_ms(DELAY_MS)
        leader = desk.joined(token)
        desk.holds_appends = True
        waiting = desk.sync(leader, {leader.member_id: b"1"})
        other = desk.join()
        assert desk.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
        desk.release()
        assert state(desk) == "PreparingRebalance"
        desk.join(member_id=leader.member_id)
        assert desk.joined(other).generation_id == 2

    def test_who_does_not_sync_within_the_rebalance_timeout_is_out(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        waiting = desk.sync(follower)
        keep_alive(desk, leader, rounds=2 * REBALANCE_MS // SESSION_MS)
        assert desk.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
        assert desk.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_new_round_ends_the_time_to_sync_of_the_last_one(self) -> None:
        """A member that never asked for its assignment, and joins the new round in time, is in it."""
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        desk.sync(leader, {leader.member_id: b"1"})
        keep_alive(desk, leader, follower, rounds=REBALANCE_MS // SESSION_MS)
        waiting = [desk.join(), desk.join(member_id=follower.member_id)]
        keep_alive(desk, leader, rounds=REBALANCE_MS // SESSION_MS + 1)
        waiting.append(desk.join(member_id=leader.member_id))
        assert {desk.joined(token).generation_id for token in waiting} == {2}

    @pytest.mark.parametrize(
        ("more", "error"),
        [
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.NONE),
        ],
    )
    def test_who_syncs_must_be_of_this_group(self, more: dict[str, Any], error: ErrorCode) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        assert desk.synced(desk.sync(leader, **more)).error_code is error

    def test_a_sync_of_another_generation_or_in_a_round_is_refused(self) -> None:
        desk = Desk()
        (leader,) = desk.stable()
        old = JoinGroupResponse(generation_id=0, member_id=leader.member_id)
        assert desk.synced(desk.sync(old)).error_code is ErrorCode.ILLEGAL_GENERATION
        desk.join()
        assert desk.synced(desk.sync(leader)).error_code is ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_member_that_leaves_while_it_waits_is_answered(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        follower = desk.joined(tokens[1])
        waiting = desk.sync(follower)
        desk.leave(MemberIdentity(member_id=follower.member_id))
        assert desk.synced(waiting).error_code is ErrorCode.UNKNOWN_MEMBER_ID
