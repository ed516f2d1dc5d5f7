"""DescribeGroups: state and members. A group that nobody knows is "Dead", which is no error."""

from __future__ import annotations

from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupResponse,
)
from logstore.broker.handlers.metadata import NOT_ASKED
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode

GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8))
"""Read, delete, describe: bit n for operation n."""


def handle(call: Call, body: t.DescribeGroupsRequest, services: Services) -> None:
    request = DescribeGroupsRequest(tuple(body.groups))
    services.ask_group(call, request, partial(_response, call, body))


def _response(call: Call, body: t.DescribeGroupsRequest, answer: GroupResponse) -> t.DescribeGroupsResponse:
    assert isinstance(answer, DescribeGroupsResponse)
    return t.DescribeGroupsResponse(
        throttle_time_ms=call.throttle_ms,
        groups=[_described(each, is_asked=body.include_authorized_operations) for each in answer.groups],
    )


def _described(group: DescribedGroup, *, is_asked: bool) -> t.DescribeGroupsResponseDescribedGroup:
    is_told = is_asked and group.error_code is ErrorCode.NONE
    return t.DescribeGroupsResponseDescribedGroup(
        error_code=group.error_code,
        group_id=group.group_id,
        group_state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=[
            t.DescribeGroupsResponseDescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.member_metadata,
                member_assignment=each.member_assignment,
            )
            for each in group.members
        ],
        authorized_operations=GROUP_OPERATIONS if is_told else NOT_ASKED,
    )
