"""What the tests of the group coordinator share."""

from __future__ import annotations

from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    GroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchPartition,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from tests.broker.groups.desk import (
    GROUP,
    RANGE,
    SESSION_MS,
    T0,
    Desk,
)

NO_OFFSET = OffsetFetchPartition()


REQUESTS: dict[str, GroupRequest] = {
    "join": JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=RANGE
    ),
    "sync": SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="x"),
    "heartbeat": HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="x"),
    "leave": LeaveGroupRequest(group_id=GROUP, members=(MemberIdentity(member_id="x"),)),
    "commit": OffsetCommitRequest(group_id=GROUP, partitions={T0: OffsetCommitPartition(committed_offset=1)}),
    "fetch": OffsetFetchRequest((OffsetFetchGroup(GROUP, (T0,)),)),
    "describe": DescribeGroupsRequest((GROUP,)),
    "delete": DeleteGroupsRequest((GROUP,)),
    "delete offsets": OffsetDeleteRequest(GROUP, (T0,)),
}


def delete(desk: Desk, *group_ids: str) -> dict[str, ErrorCode]:
    return dict(desk.answer(DeleteGroupsRequest(group_ids), DeleteGroupsResponse).results)


def listed(desk: Desk, *states: str) -> list[tuple[str, str, str]]:
    answer = desk.answer(ListGroupsRequest(states), ListGroupsResponse)
    assert answer.error_code is ErrorCode.NONE
    return [(each.group_id, each.protocol_type, each.group_state) for each in answer.groups]


def offset_in(desk: Desk, where: TopicPartition = T0) -> int:
    return desk.fetch(where)[where].committed_offset
