"""LeaveGroup: members go, without their session having to run out.

From version 3 on several at once, static ones by their instance ids alone, each with an error of its own.
Before, one, whose error is the answer's.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.requests import (
    GroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode

_MANY: Final = 3


def handle(call: Call, body: t.LeaveGroupRequest, services: Services) -> None:
    members = [MemberIdentity(member_id=body.member_id)]
    if call.version >= _MANY:
        members = [
            MemberIdentity(member_id=each.member_id, group_instance_id=each.group_instance_id)
            for each in body.members
        ]
    request = LeaveGroupRequest(group_id=body.group_id, members=tuple(members))
    services.ask_group(call, request, partial(_response, call))


def _response(call: Call, answer: GroupResponse) -> t.LeaveGroupResponse:
    assert isinstance(answer, LeaveGroupResponse)
    if call.version < _MANY:
        errors = [answer.error_code, *(each.error_code for each in answer.members)]
        return t.LeaveGroupResponse(
            throttle_time_ms=call.throttle_ms,
            error_code=next((each for each in errors if each is not ErrorCode.NONE), ErrorCode.NONE),
        )
    return t.LeaveGroupResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error_code,
        members=[
            t.LeaveGroupResponseMemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=each.error_code,
            )
            for each in answer.members
        ],
    )
