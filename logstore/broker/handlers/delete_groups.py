"""DeleteGroups: with all that they have committed. One that has members has error 68, an unknown one 69."""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import DeleteGroupsRequest, DeleteGroupsResponse, GroupResponse
from logstore.broker.services import Services
from logstore.broker.wire import types as t


def handle(call: Call, body: t.DeleteGroupsRequest, services: Services) -> None:
    services.ask_group(call, DeleteGroupsRequest(tuple(body.groups_names)), partial(_response, call))


def _response(call: Call, answer: GroupResponse) -> t.DeleteGroupsResponse:
    assert isinstance(answer, DeleteGroupsResponse)
    return t.DeleteGroupsResponse(
        throttle_time_ms=call.throttle_ms,
        results=[
            t.DeleteGroupsResponseDeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in answer.results.items()
        ],
    )
