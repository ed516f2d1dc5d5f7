"""Heartbeat: a member lives, and hears whether its group rebalances (27) or has gone on without it."""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import GroupResponse, HeartbeatRequest, HeartbeatResponse
from logstore.broker.services import Services
from logstore.broker.wire import types as t


def handle(call: Call, body: t.HeartbeatRequest, services: Services) -> None:
    request = HeartbeatRequest(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
    )
    services.ask_group(call, request, partial(_response, call))


def _response(call: Call, answer: GroupResponse) -> t.HeartbeatResponse:
    assert isinstance(answer, HeartbeatResponse)
    return t.HeartbeatResponse(throttle_time_ms=call.throttle_ms, error_code=answer.error_code)
