"""SyncGroup: the leader hands in the assignment, and everybody waits here for their part of it.

From version 5 on the protocol's type and name are compared, and told: clients compare them too.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import GroupResponse, SyncGroupRequest, SyncGroupResponse
from logstore.broker.services import Services
from logstore.broker.wire import types as t


def handle(call: Call, body: t.SyncGroupRequest, services: Services) -> None:
    request = SyncGroupRequest(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
        assignments={each.member_id: each.assignment for each in body.assignments},
    )
    services.ask_group(call, request, partial(_response, call))


def _response(call: Call, answer: GroupResponse) -> t.SyncGroupResponse:
    assert isinstance(answer, SyncGroupResponse)
    return t.SyncGroupResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error_code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
