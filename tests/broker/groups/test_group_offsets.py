"""Commits, fetches, deletion and expiry of a group's offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.records import GroupKey, decode_key
from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.log.append import validate_and_assign
from tests.broker.groups.coordinating import NO_OFFSET, REQUESTS, delete, listed, offset_in
from tests.broker.groups.desk import (
    GROUP,
    PARTITION,
    SESSION_MS,
    T0,
    T1,
    Desk,
)

U0 = TopicPartition("u", 0)


RETENTION_MS = 10_080 * 60_000


CHECK_MS = 600_000


def delete_offsets(desk: Desk, *partitions: TopicPartition) -> OffsetDeleteResponse:
    return desk.answer(OffsetDeleteRequest(GROUP, partitions), OffsetDeleteResponse)


class TestCommits:
    def test_anybody_commits_while_the_group_is_empty(self) -> None:
        desk = Desk()
        assert desk.commit({T0: 5}) is ErrorCode.NONE
        (member,) = desk.stable()
        assert desk.commit({T0: 6}) is ErrorCode.UNKNOWN_MEMBER_ID
        desk.leave(MemberIdentity(member_id=member.member_id))
        assert desk.commit({T0: 7}) is ErrorCode.NONE
        assert desk.commit({T0: 8}, generation_id=0) is ErrorCode.UNKNOWN_MEMBER_ID, "nobody's generation"
        assert offset_in(desk) == 7

    @pytest.mark.parametrize(
        ("more", "error"),
        [
            ({"generation_id": 1}, ErrorCode.NONE),
            ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
            ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
            ({}, ErrorCode.ILLEGAL_GENERATION),
            ({"generation_id": 1, "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generation_id": 1, "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_a_member_commits_in_its_generation(self, more: dict[str, Any], error: ErrorCode) -> None:
        desk = Desk()
        (member,) = desk.stable()
        assert desk.commit({T0: 5}, **({"member_id": member.member_id} | more)) is error

    def test_a_generation_of_a_group_that_is_not_there_is_refused(self) -> None:
        desk = Desk()
        assert desk.commit({T0: 5}, generation_id=1, member_id="x") is ErrorCode.ILLEGAL_GENERATION
        assert listed(desk) == []

    def test_a_member_may_commit_while_a_round_is_joined_but_not_while_assignments_are_made(self) -> None:
        """It commits what it has read before it gives its partitions up."""
        desk = Desk()
        (member,) = desk.stable()
        desk.join()
        mine = {"generation_id": 1, "member_id": member.member_id}
        assert desk.commit({T0: 5}, **mine) is ErrorCode.NONE
        desk.join(member_id=member.member_id)
        assert desk.commit({T0: 6}, **mine | {"generation_id": 2}) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_an_offset_is_told_once_it_is_written(self) -> None:
        desk = Desk()
        desk.holds_appends = True
        token = desk.commit_later({T0: 5})
        assert token not in desk.answers
        assert desk.fetch(T0) == {T0: NO_OFFSET}
        unstable = OffsetFetchPartition(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert desk.fetch(T0, require_stable=True) == {T0: unstable}
        desk.release()
        assert desk.answers[token] == OffsetCommitResponse({T0: ErrorCode.NONE})
        assert desk.fetch(T0, require_stable=True)[T0].committed_offset == 5

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
            (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
            (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        ],
    )
    def test_a_commit_that_cannot_be_written_had_never_been(self, error: ErrorCode, told: ErrorCode) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.append_error = error
        assert desk.commit({T0: 6}) is told
        assert offset_in(desk) == 5
        assert desk.fetch(T0, require_stable=True)[T0].committed_offset == 5

    def test_partitions_that_cannot_be_recorded_are_refused_alone(self) -> None:
        desk = Desk(offset_metadata_max_bytes=4)
        long_name = TopicPartition("x" * 250, 0)
        texts = {T0: "four", T1: "fiver", U0: "\N{GRINNING FACE}" * 3, long_name: ""}
        partitions = {
            each: OffsetCommitPartition(committed_offset=1, committed_metadata=text)
            for each, text in texts.items()
        }
        answer = desk.answer(OffsetCommitRequest(group_id=GROUP, partitions=partitions), OffsetCommitResponse)
        assert answer.partitions == {
            T0: ErrorCode.NONE,
            T1: ErrorCode.OFFSET_METADATA_TOO_LARGE,
            U0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
            long_name: ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert list(desk.fetch()) == [T0]

    def test_a_commit_of_nothing_is_nothing(self) -> None:
        desk = Desk()
        answer = desk.answer(OffsetCommitRequest(group_id=GROUP, partitions={}), OffsetCommitResponse)
        assert answer.partitions == {}
        assert listed(desk) == []

    def test_null_metadata_is_kept_as_none_at_all(self) -> None:
        desk = Desk()
        desk.ask(REQUESTS["commit"])
        assert desk.fetch(T0)[T0] == OffsetFetchPartition(committed_offset=1)

    def test_a_retention_of_its_own_ends_an_offset(self) -> None:
        """`retention_time_ms`, versions 2 to 4."""
        desk = Desk()
        desk.commit({T0: 5}, retention_time_ms=CHECK_MS)
        desk.commit({T1: 5})
        other = desk.successor()
        for each in (desk, other):
            each.pass_ms(2 * CHECK_MS)
            assert list(each.fetch()) == [T1]

    def test_a_retention_beyond_all_times_never_ends(self) -> None:
        """No time after it can be stored: the commit was begun, and never ended."""
        desk = Desk()
        assert desk.commit({T0: 5}, retention_time_ms=2**63 - 1) is ErrorCode.NONE
        for each in (desk, desk.successor()):
            each.pass_ms(2 * RETENTION_MS)
            assert list(each.fetch()) == [T0]

    def test_a_time_of_its_own_counts_for_expiry(self) -> None:
        desk = Desk()
        old_ms = desk.now_ms - RETENTION_MS
        partitions = {T0: OffsetCommitPartition(committed_offset=1, commit_timestamp_ms=old_ms)}
        desk.ask(OffsetCommitRequest(group_id=GROUP, partitions=partitions))
        desk.pass_ms(CHECK_MS)
        assert desk.fetch() == {}


class TestFetching:
    def test_several_groups_in_one_request(self) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.commit({T1: 6}, group_id="h")
        groups = (OffsetFetchGroup(GROUP, (T0, T1)), OffsetFetchGroup("h"), OffsetFetchGroup("none", (T0,)))
        found = desk.answer(OffsetFetchRequest(groups), OffsetFetchResponse).groups
        assert [
            (each.group_id, {where: value.committed_offset for where, value in each.partitions.items()})
            for each in found
        ] == [(GROUP, {T0: 5, T1: -1}), ("h", {T1: 6}), ("none", {T0: -1})]

    def test_groups_of_other_nodes_are_refused_alone(self) -> None:
        desk = Desk(load=False)
        desk.load(PARTITION, 0)
        groups = (OffsetFetchGroup(GROUP, (T0,)), OffsetFetchGroup("t", (T0,)))
        found = desk.answer(OffsetFetchRequest(groups), OffsetFetchResponse).groups
        assert [each.error_code for each in found] == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]


class TestListing:
    def test_groups_are_listed_by_state_in_any_case(self) -> None:
        desk = Desk()
        desk.stable()
        desk.commit({T0: 1}, group_id="h")
        assert sorted(listed(desk)) == [(GROUP, "consumer", "Stable"), ("h", "", "Empty")]
        assert listed(desk, "stable", "Dead") == [(GROUP, "consumer", "Stable")]
        assert listed(desk, "none") == []


class TestDeletion:
    def test_an_empty_group_goes_with_its_offsets(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.commit({T0: 5}, generation_id=1, member_id=member.member_id)
        assert delete(desk, GROUP, "none") == {
            GROUP: ErrorCode.NON_EMPTY_GROUP,
            "none": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        desk.leave(MemberIdentity(member_id=member.member_id))
        assert delete(desk, GROUP) == {GROUP: ErrorCode.NONE}
        for each in (desk, desk.successor()):
            assert listed(each) == []
            assert each.fetch(T0) == {T0: NO_OFFSET}
        assert delete(desk, GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}

    def test_a_group_goes_whole_or_not_at_all(self) -> None:
        """One batch, if it is not large: a power cut leaves no group without its offsets."""
        desk = Desk()
        (member,) = desk.stable()
        desk.leave(MemberIdentity(member_id=member.member_id))
        desk.commit({T0: 5, T1: 6})
        before = len(list(walk(bytes(desk.log.batches[PARTITION]))))
        delete(desk, GROUP)
        batches = list(walk(bytes(desk.log.batches[PARTITION])))
        assert len(batches) == before + 1
        assert batches[-1].record_count == 3

    def test_a_deletion_is_answered_once_it_is_written(self) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.commit({T0: 6}, group_id="h")
        desk.holds_appends = True
        token = desk.ask(DeleteGroupsRequest((GROUP, "h", "none", "h")))
        assert desk.joined(desk.join()).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert desk.commit({T0: 7}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert desk.heartbeat("x", 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert desk.leave().error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert delete(desk, GROUP) == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert delete_offsets(desk, T0).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert offset_in(desk) == 5, "it is not gone yet"
        first, second = desk.held
        desk.held = []
        desk.end_append(first)
        assert token not in desk.answers
        desk.end_append(second, ErrorCode.NOT_ENOUGH_REPLICAS)
        results = {
            GROUP: ErrorCode.NONE,
            "h": ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "none": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert desk.answers[token] == DeleteGroupsResponse(results)

    def test_a_deletion_that_cannot_be_written_did_not_happen(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.leave(MemberIdentity(member_id=member.member_id))
        desk.commit({T0: 5})
        desk.append_error = ErrorCode.REQUEST_TIMED_OUT
        assert delete(desk, GROUP) == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        desk.append_error = ErrorCode.NONE
        assert listed(desk) == [(GROUP, "consumer", "Empty")]
        assert offset_in(desk) == 5
        assert desk.stable()[0].error_code is ErrorCode.NONE

    def test_what_is_being_committed_goes_too(self) -> None:
        """Its record lies before the tombstone."""
        desk = Desk()
        desk.holds_appends = True
        commit = desk.commit_later({T0: 5})
        desk.ask(DeleteGroupsRequest((GROUP,)))
        desk.release()
        assert desk.answers[commit] == OffsetCommitResponse({T0: ErrorCode.NONE})
        for each in (desk, desk.successor()):
            assert each.fetch(T0) == {T0: NO_OFFSET}

    def test_nothing_is_written_of_a_group_of_which_the_log_has_nothing(self) -> None:
        desk = Desk()
        desk.join(require_known_member_id=True)
        assert delete(desk, GROUP, "none") == {GROUP: ErrorCode.NONE, "none": ErrorCode.GROUP_ID_NOT_FOUND}
        assert desk.log.batches == {}

    def test_deleting_no_groups_is_answered(self) -> None:
        assert delete(Desk()) == {}

    def test_offsets_of_an_empty_group_go(self) -> None:
        desk = Desk()
        desk.commit({T0: 5, T1: 6})
        answer = delete_offsets(desk, T0, U0)
        assert answer == OffsetDeleteResponse(partitions={T0: ErrorCode.NONE, U0: ErrorCode.NONE})
        for each in (desk, desk.successor()):
            assert list(each.fetch()) == [T1]

    def test_offsets_that_a_member_reads_stay(self) -> None:
        desk = Desk()
        desk.commit({T0: 5, U0: 6})
        desk.stable()
        answer = delete_offsets(desk, T0, U0)
        assert answer.partitions == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: ErrorCode.NONE}
        assert list(desk.fetch()) == [T0]

    def test_offsets_of_members_that_are_no_consumers_stay(self) -> None:
        desk = Desk()
        desk.stable(protocol_type="connect")
        assert delete_offsets(desk, T0).error_code is ErrorCode.NON_EMPTY_GROUP

    def test_offsets_of_a_group_that_is_not_there(self) -> None:
        assert delete_offsets(Desk(), T0).error_code is ErrorCode.GROUP_ID_NOT_FOUND

    def test_offsets_whose_tombstones_cannot_be_written_stay(self) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        assert delete_offsets(desk, T0).partitions == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert offset_in(desk) == 5

    def test_offsets_of_partitions_that_are_deleted_go(self) -> None:
        """A topic made anew under the same name begins at 0."""
        desk = Desk()
        desk.stable()
        desk.commit({T0: 5, U0: 6}, group_id="h")
        desk.run(desk.coordinator.topic_partitions_deleted([T0, T1], desk.now_ms))
        for each in (desk, desk.successor()):
            assert list(each.fetch(group_id="h")) == [U0]

    def test_tombstones_of_deleted_partitions_are_written_later_if_they_cannot_be_now(self) -> None:
        desk = Desk()
        desk.commit({T0: 5, T1: 5, U0: 6})
        desk.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        desk.run(desk.coordinator.topic_partitions_deleted([T0, T1], desk.now_ms))
        assert list(desk.fetch()) == [U0]
        desk.append_error = ErrorCode.NONE
        desk.commit({T1: 1})  # the topic was made anew
        desk.pass_ms(2 * CHECK_MS)
        for each in (desk, desk.successor()):
            assert {key: value.committed_offset for key, value in each.fetch().items()} == {T1: 1, U0: 6}


MANY = tuple(TopicPartition(f"orders-of-region-{number % 25:02d}", number // 25) for number in range(25_000))
TOPIC_CONFIG = LogConfig.from_kafka(GroupConfig().topic_settings)


SOME = MANY[:6_000]
"""Three pieces."""


def much_committed(partitions: Sequence[TopicPartition], *, is_known: bool = True) -> Desk:
    """A group with these offsets, which has had members if `is_known`. Its later appends are held."""
    desk = Desk()
    if is_known:
        (member,) = desk.stable()
        desk.leave(MemberIdentity(member_id=member.member_id))
    for at in range(0, len(partitions), 1000):
        assert desk.commit(dict.fromkeys(partitions[at : at + 1000], 7)) is ErrorCode.NONE
    desk.holds_appends = True
    return desk


class TestManyOffsets:
    @pytest.mark.parametrize("is_known", [True, False])
    def test_a_group_is_deleted_in_pieces_that_the_topic_takes(self, is_known: bool) -> None:
        """In one batch, its tombstones would be more than `max.message.bytes`."""
        desk = much_committed(MANY, is_known=is_known)
        token = desk.ask(DeleteGroupsRequest((GROUP,)))
        assert 10 < len(desk.held) < 100
        for append in desk.held:
            validate_and_assign(append.batch, next_offset=0, leader_epoch=0, now_ms=1, config=TOPIC_CONFIG)
        keys = [
            decode_key(record.key)
            for append in desk.held
            for each in walk(append.batch)
            for record in each.records()
            if record.key is not None
        ]
        of_group = [isinstance(each, GroupKey) for each in keys]
        assert of_group == [False] * len(MANY) + [True] * is_known, "the group is the last"
        *first, last = desk.held
        desk.held = []
        for append in first:
            desk.end_append(append)
        assert token not in desk.answers
        assert desk.commit({T0: 1}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        desk.end_append(last)
        assert desk.answers[token] == DeleteGroupsResponse({GROUP: ErrorCode.NONE})
        for each in (desk, desk.successor()):
            assert listed(each) == []
            assert each.fetch() == {}

    @pytest.mark.parametrize("failed", [0, 1, 2])
    def test_a_piece_that_cannot_be_written_stays_until_the_next_try(self, failed: int) -> None:
        desk = much_committed(SOME)
        token = desk.ask(DeleteGroupsRequest((GROUP,)))
        held, desk.held = desk.held, []
        for append in held:
            is_failed = append is held[failed]
            desk.end_append(append, ErrorCode.NOT_ENOUGH_REPLICAS if is_failed else ErrorCode.NONE)
        assert desk.answers[token] == DeleteGroupsResponse({GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE})
        left = set(desk.fetch())
        assert 0 < len(left) < 3_000
        assert set(desk.successor().fetch()) == left
        desk.holds_appends = False
        assert delete(desk, GROUP) == {GROUP: ErrorCode.NONE}
        for each in (desk, desk.successor()):
            assert listed(each) == []
            assert each.fetch() == {}

    def test_many_offsets_expire(self) -> None:
        """The next check removes offsets that one could not. A commit in between stays."""
        desk = much_committed(SOME)
        desk.holds_appends = False
        desk.pass_ms(RETENTION_MS - CHECK_MS)
        desk.holds_appends = True
        desk.pass_ms(2 * CHECK_MS)
        held, desk.held = desk.held, []
        assert len(held) == 3
        for append in held:
            is_failed = append is held[1]
            desk.end_append(append, ErrorCode.NOT_ENOUGH_REPLICAS if is_failed else ErrorCode.NONE)
        assert 0 < len(desk.fetch()) < 3_000
        desk.holds_appends = False
        assert desk.commit({SOME[0]: 9}) is ErrorCode.NONE
        desk.pass_ms(CHECK_MS)
        for each in (desk, desk.successor()):
            assert {key: value.committed_offset for key, value in each.fetch().items()} == {SOME[0]: 9}

    def test_a_commit_after_the_decision_outlives_every_piece(self) -> None:
        desk = much_committed(SOME, is_known=False)
        token = desk.ask(OffsetDeleteRequest(GROUP, SOME))
        commit = desk.commit_later({SOME[-1]: 9})
        desk.release()
        assert desk.answers[commit] == OffsetCommitResponse({SOME[-1]: ErrorCode.NONE})
        assert desk.answers[token] == OffsetDeleteResponse(partitions=dict.fromkeys(SOME, ErrorCode.NONE))
        for each in (desk, desk.successor()):
            assert {key: value.committed_offset for key, value in each.fetch().items()} == {SOME[-1]: 9}


class TestExpiry:
    def test_offsets_expire_a_retention_after_the_group_was_empty(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.commit({T0: 5}, generation_id=1, member_id=member.member_id)
        desk.pass_ms(SESSION_MS)
        desk.pass_ms(RETENTION_MS - CHECK_MS)
        assert offset_in(desk) == 5
        desk.pass_ms(2 * CHECK_MS)
        for each in (desk, desk.successor()):
            assert listed(each) == []
            assert each.fetch() == {}

    def test_a_successor_counts_from_when_the_group_was_empty(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.commit({T0: 5}, generation_id=1, member_id=member.member_id)
        desk.pass_ms(SESSION_MS + RETENTION_MS - 2 * CHECK_MS)
        other = desk.successor()
        other.pass_ms(4 * CHECK_MS)
        assert other.fetch() == {}

    def test_a_group_without_offsets_goes_at_the_next_look(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.leave(MemberIdentity(member_id=member.member_id))
        desk.pass_ms(CHECK_MS)
        assert listed(desk) == listed(desk.successor()) == []

    def test_tombstones_that_cannot_be_written_are_tried_again(self) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        desk.pass_ms(RETENTION_MS + CHECK_MS)
        assert offset_in(desk) == 5
        desk.append_error = ErrorCode.NONE
        desk.pass_ms(CHECK_MS)
        assert desk.fetch() == {}

    def test_a_group_that_is_being_deleted_is_left_alone(self) -> None:
        desk = Desk()
        desk.commit({T0: 5})
        desk.holds_appends = True
        desk.ask(DeleteGroupsRequest((GROUP,)))
        desk.pass_ms(RETENTION_MS + CHECK_MS)
        assert len(desk.held) == 1

    def test_the_time_of_the_next_look_is_always_known(self) -> None:
        desk = Desk()
        assert desk.coordinator.deadline_ms == desk.now_ms + CHECK_MS
        (member,) = desk.stable()
        assert desk.coordinator.deadline_ms <= desk.now_ms + SESSION_MS
        assert desk.coordinator.tick(desk.now_ms) == [], "too early is harmless"
        assert desk.heartbeat(member.member_id, 1) is ErrorCode.NONE


def test_a_leave_of_a_group_that_is_not_there_names_everybody() -> None:
    answer = Desk().answer(REQUESTS["leave"], LeaveGroupResponse)
    assert [each.member_id for each in answer.members] == ["x"]


class Name(str):
    """A topic's name that counts with how many others it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_long_list_of_offsets_to_delete_is_not_compared_with_all_that_are_there() -> None:
    """A broker serves nobody else meanwhile."""
    desk, count = Desk(), 300
    desk.commit({TopicPartition("t", number): 1 for number in range(count)})
    asked = tuple(TopicPartition(Name("t"), number) for number in range(count))
    Name.compared = 0
    desk.answer(OffsetDeleteRequest(GROUP, asked), OffsetDeleteResponse)
    assert desk.fetch() == {}
    assert Name.compared < 20 * count
