"""The coordinator: who is asked, what is written, what a successor finds. Each name says its rule."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.errors import CorruptGroupRecord
from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchResponse,
)
from logstore.broker.groups.served import partition_for
from logstore.disk.errors import ErrorCode
from logstore.format.batch import encode_batch_of_pairs, walk
from logstore.format.compression import Codec
from tests.broker.groups.coordinating import NO_OFFSET, REQUESTS, listed, offset_in
from tests.broker.groups.desk import (
    DELAY_MS,
    GROUP,
    PARTITION,
    SESSION_MS,
    T0,
    T1,
    Desk,
)


def error_of(desk: Desk, request: GroupRequest) -> ErrorCode:
    """The error of the answer, wherever it stands in it."""
    answer: Any = desk.answers[desk.ask(request)]
    match answer:
        case OffsetCommitResponse(errors) | DeleteGroupsResponse(errors):
            (error,) = errors.values()
        case OffsetFetchResponse((group,)) | DescribeGroupsResponse((group,)):
            error = group.error_code
        case _:
            error = answer.error_code
    assert isinstance(error, ErrorCode)
    return error


@pytest.mark.parametrize(
    ("group_id", "count", "partition"),
    [
        ("t", 50, 116 % 50),
        ("orders", 50, 31),
        ("billing", 50, 9),
        ("payments", 50, 13),
        ("polygenelubricants", 50, 0),
        ("", 50, 0),
        ("g", 1, 0),
    ],
)
def test_a_group_is_where_the_hash_of_its_name_says(group_id: str, count: int, partition: int) -> None:
    """As `GroupMetadataManager.partitionFor` of Kafka 3.9.1: the absolute value, for a negative hash too."""
    assert partition_for(group_id, count) == partition


def test_a_group_in_another_partition_is_not_served_and_hides_no_offsets() -> None:
    """Earlier versions kept some groups elsewhere, and such old offsets may be loaded last."""
    desk, earlier = Desk(), Desk()
    desk.commit({T0: 7}, group_id="orders")
    earlier.commit({T0: 3, T1: 3}, group_id="orders")
    desk.log.batches[17] = earlier.log.batches[31]
    reader = Desk(log=desk.log, load=False)
    for partition in (31, 17):
        reader.load(partition, 1)
    assert reader.coordinator.misplaced == ["orders"]
    found = reader.fetch(group_id="orders")
    assert {each: value.committed_offset for each, value in found.items()} == {T0: 7}
    reader.load(9, 1)
    assert reader.coordinator.misplaced == []


def test_the_number_of_partitions_is_the_topics_once_it_exists() -> None:
    desk = Desk(offsets_topic_num_partitions=50)
    desk.coordinator.partition_count = 7
    assert desk.coordinator.partition_of("orders") == partition_for("orders", 7)


class TestElections:
    @pytest.mark.parametrize("name", REQUESTS)
    def test_a_group_of_another_node_is_refused(self, name: str) -> None:
        assert error_of(Desk(load=False), REQUESTS[name]) is ErrorCode.NOT_COORDINATOR

    @pytest.mark.parametrize("name", REQUESTS)
    def test_while_its_log_is_read_a_group_is_loading(self, name: str) -> None:
        """Older clients know no such answer to a heartbeat or a sync."""
        desk = Desk(load=False)
        desk.coordinator.begin_load(PARTITION, 0)
        told = {"heartbeat": ErrorCode.NONE, "sync": ErrorCode.REBALANCE_IN_PROGRESS}
        expected = told.get(name, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert error_of(desk, REQUESTS[name]) is expected
        desk.run(desk.coordinator.end_load(PARTITION, 0, desk.now_ms))
        assert error_of(desk, REQUESTS["describe"]) is ErrorCode.NONE

    def test_a_list_may_not_be_whole_while_something_loads(self) -> None:
        desk = Desk(load=False)
        desk.coordinator.begin_load(PARTITION, 0)
        answer = desk.answer(ListGroupsRequest(), ListGroupsResponse)
        assert answer.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @pytest.mark.parametrize("name", [each for each in REQUESTS if each not in ("commit", "fetch")])
    def test_a_group_without_a_name_can_keep_offsets_only(self, name: str) -> None:
        request: Any = REQUESTS[name]
        match request:
            case DescribeGroupsRequest() | DeleteGroupsRequest():
                request = type(request)(("",))
            case OffsetDeleteRequest():
                request = OffsetDeleteRequest("", (T0,))
            case _:
                fields = {each: getattr(request, each) for each in request.__slots__}
                request = type(request)(**(fields | {"group_id": ""}))
        told = {"describe": ErrorCode.NONE, "delete": ErrorCode.GROUP_ID_NOT_FOUND}
        assert error_of(Desk(), request) is told.get(name, ErrorCode.INVALID_GROUP_ID)

    def test_a_group_without_a_name_keeps_offsets(self) -> None:
        desk = Desk()
        assert desk.commit({T0: 5}, group_id="") is ErrorCode.NONE
        assert desk.fetch(T0, group_id="")[T0].committed_offset == 5
        assert desk.successor().fetch(T0, group_id="")[T0].committed_offset == 5

    @pytest.mark.parametrize("group_id", ["x" * 32_768, "\ud800"])
    def test_a_name_that_no_record_can_hold_is_refused(self, group_id: str) -> None:
        assert Desk().commit({T0: 5}, group_id=group_id) is ErrorCode.INVALID_GROUP_ID

    def test_word_of_an_election_that_comes_late_changes_nothing(self) -> None:
        desk = Desk(load=False)
        assert desk.coordinator.begin_load(PARTITION, 5)
        assert not desk.coordinator.begin_load(PARTITION, 5), "the same word again"
        assert not desk.coordinator.begin_load(PARTITION, 4)
        assert desk.coordinator.end_load(PARTITION, 4, desk.now_ms) == []
        assert error_of(desk, REQUESTS["describe"]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        desk.run(desk.coordinator.end_load(PARTITION, 5, desk.now_ms))
        assert desk.coordinator.unload(PARTITION, 4, desk.now_ms) == []
        assert error_of(desk, REQUESTS["describe"]) is ErrorCode.NONE
        desk.coordinator.unload(PARTITION, 6, desk.now_ms)
        assert not desk.coordinator.begin_load(PARTITION, 5)
        assert error_of(desk, REQUESTS["describe"]) is ErrorCode.NOT_COORDINATOR

    def test_a_leader_that_goes_on_in_a_new_epoch_keeps_its_groups(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        assert not desk.coordinator.begin_load(PARTITION, 3)
        assert desk.heartbeat(member.member_id, 1) is ErrorCode.NONE
        desk.holds_appends = True
        desk.commit_later({T0: 1}, generation_id=1, member_id=member.member_id)
        assert desk.held[0].leader_epoch == 3

    def test_loading_begins_anew_in_a_new_epoch(self) -> None:
        """What was read of the log so far may have been cut since."""
        desk, other = Desk(), Desk(load=False)
        desk.commit({T0: 5})
        loader = other.coordinator.begin_load(PARTITION, 1)
        assert loader is not None
        assert other.coordinator.begin_load(PARTITION, 2)
        loader.feed(bytes(desk.log.batches[PARTITION]))
        other.run(other.coordinator.end_load(PARTITION, 1, other.now_ms))
        other.run(other.coordinator.end_load(PARTITION, 2, other.now_ms))
        assert other.fetch(T0) == {T0: NO_OFFSET}

    def test_a_log_that_cannot_be_read_leaves_its_groups_unserved(self) -> None:
        """Better no coordinator than one that has forgotten something."""
        desk = Desk(load=False)
        loader = desk.coordinator.begin_load(PARTITION, 0)
        assert loader is not None
        with pytest.raises(CorruptGroupRecord):
            loader.feed(encode_batch_of_pairs([(b"\0\2\0\1g", b"\0\7")]))
        assert error_of(desk, REQUESTS["fetch"]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_whoever_waits_is_told_when_the_coordinator_moves(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.commit({T0: 1}, generation_id=1, member_id=member.member_id)
        desk.commit({T0: 1}, group_id="empty")
        desk.holds_appends = True
        commit = desk.commit_later({T0: 2}, generation_id=1, member_id=member.member_id)
        deletion = desk.ask(DeleteGroupsRequest(("empty",)))
        joining = desk.join()
        for partition in {PARTITION, partition_for("empty", 50)}:
            desk.run(desk.coordinator.unload(partition, 1, desk.now_ms))
        moved = ErrorCode.NOT_COORDINATOR
        assert desk.joined(joining).error_code is moved
        committed, deleted = desk.answers[commit], desk.answers[deletion]
        assert committed == OffsetCommitResponse({T0: moved})
        assert deleted == DeleteGroupsResponse({"empty": moved})
        desk.release()
        assert error_of(desk, REQUESTS["fetch"]) is moved, "what ended late changed nothing"
        desk.pass_ms(10 * SESSION_MS)

    def test_whoever_waits_for_an_assignment_is_told_too(self) -> None:
        desk = Desk()
        tokens = [desk.join(), desk.join()]
        desk.pass_ms(2 * DELAY_MS)
        leader, follower = map(desk.joined, tokens)
        desk.holds_appends = True
        syncs = [desk.sync(follower), desk.sync(leader, {})]
        desk.run(desk.coordinator.unload(PARTITION, None, desk.now_ms))
        assert [desk.synced(each).error_code for each in syncs] == [ErrorCode.NOT_COORDINATOR] * 2
        desk.release()

    def test_unloading_what_is_not_here_is_nothing(self) -> None:
        desk = Desk(load=False)
        assert desk.coordinator.unload(3, 1, desk.now_ms) == []


class TestFailover:
    @pytest.mark.parametrize("codec", list(Codec))
    def test_the_next_coordinator_has_members_assignments_and_offsets(self, codec: Codec) -> None:
        desk = Desk(offsets_topic_compression_codec=int(codec))
        leader, follower = desk.stable(2)
        desk.commit({T0: 5, T1: 6}, generation_id=1, member_id=leader.member_id)
        assert {each.codec for each in walk(bytes(desk.log.batches[PARTITION]))} == {codec}
        other = desk.successor()
        assert other.heartbeat(follower.member_id, 1) is ErrorCode.NONE
        assert other.synced(other.sync(leader)).assignment == b"0"
        assert other.synced(other.sync(follower)).assignment == b"1"
        found = other.fetch()
        assert {each: value.committed_offset for each, value in found.items()} == {T0: 5, T1: 6}
        assert found[T0].metadata == "m"

    def test_each_member_has_a_whole_session_to_find_it(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.pass_ms(SESSION_MS - 1)
        other = desk.successor()
        other.pass_ms(SESSION_MS - 1)
        assert other.heartbeat(member.member_id, 1) is ErrorCode.NONE
        other.pass_ms(SESSION_MS)
        assert listed(other) == [(GROUP, "consumer", "Empty")]

    def test_a_round_that_was_not_finished_begins_anew(self) -> None:
        desk = Desk()
        leader, follower = desk.stable(2)
        desk.join(member_id=leader.member_id)
        desk.join(member_id=follower.member_id)
        other = desk.successor()
        assert other.heartbeat(leader.member_id, 2) is ErrorCode.ILLEGAL_GENERATION
        assert other.heartbeat(leader.member_id, 1) is ErrorCode.NONE

    def test_an_empty_group_is_as_empty_as_it_was(self) -> None:
        desk = Desk()
        (member,) = desk.stable()
        desk.commit({T0: 5}, generation_id=1, member_id=member.member_id)
        desk.leave(MemberIdentity(member_id=member.member_id))
        other = desk.successor()
        assert listed(other) == [(GROUP, "consumer", "Empty")]
        (again,) = other.stable()
        assert again.generation_id == 3
        assert offset_in(other) == 5

    def test_static_members_are_known_by_their_instance(self) -> None:
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        other = desk.successor()
        again = other.joined(other.join(group_instance_id="i"))
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
        assert other.heartbeat(earlier.member_id, 1, "i") is ErrorCode.FENCED_INSTANCE_ID

    def test_a_later_self_that_the_log_does_not_know_is_not_fenced(self) -> None:
        """It came back in a round that the coordinator before did not end: it is the one that lives."""
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        desk.join()
        later = desk.joined(desk.join(group_instance_id="i"))
        other = desk.successor()
        assert other.heartbeat(later.member_id, 2, "i") is ErrorCode.UNKNOWN_MEMBER_ID
        again = other.joined(other.join(group_instance_id="i"))
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
        assert other.heartbeat(earlier.member_id, 1, "i") is ErrorCode.FENCED_INSTANCE_ID

    def test_another_self_is_fenced_once_the_one_in_the_log_was_heard(self) -> None:
        desk = Desk()
        (earlier,) = desk.stable(group_instance_id="i")
        other = desk.successor()
        assert other.heartbeat(earlier.member_id, 1, "i") is ErrorCode.NONE
        assert other.heartbeat("another", 1, "i") is ErrorCode.FENCED_INSTANCE_ID
