"""ListGroups: the groups that this broker coordinates; ask every broker for all there are."""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import GroupResponse, ListGroupsRequest, ListGroupsResponse
from logstore.broker.services import Services
from logstore.broker.wire import types as t


def handle(call: Call, body: t.ListGroupsRequest, services: Services) -> None:
    services.ask_group(call, ListGroupsRequest(tuple(body.states_filter)), partial(_response, call))


def _response(call: Call, answer: GroupResponse) -> t.ListGroupsResponse:
    assert isinstance(answer, ListGroupsResponse)
    return t.ListGroupsResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error_code,
        groups=[
            t.ListGroupsResponseListedGroup(
                group_id=each.group_id, protocol_type=each.protocol_type, group_state=each.group_state
            )
            for each in answer.groups
        ],
    )
