"""DeleteGroups: with all that they have committed. One that has members has error 68, an unknown one 69."""

from __future__ import annotations

from functools import partial

from broker.call import Call
from broker.groups.requests import DeleteGroupsRequest, DeleteGroupsResponse, GroupResponse
from broker.services import Services
from broker.wire import types as t


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
