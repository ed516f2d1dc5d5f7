"""JoinGroup: a member waits here until the round of its group ends; what follows on its connection waits too.

Traps (protocol.md §4): from version 4 on a member without an id is given one first (79); the leader alone is
told what all members said; from version 7 on the protocol's type is repeated, and its name is null in errors
where it was empty before; version 0 has one time for both the session and the round.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.requests import GroupResponse, JoinGroupRequest, JoinGroupResponse, Protocol
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode

_ID_COMES_FIRST: Final = 4
_NAME_MAY_BE_NULL: Final = 7
_MAY_SKIP_ASSIGNMENT: Final = 9
_MOST_BYTES_SAID: Final = 1 << 20
"""So much may a member say of itself in all its protocols: it is kept while the member lives, and the record
of a group with more to say would fit in no batch. More has error 42."""


def handle(call: Call, body: t.JoinGroupRequest, services: Services) -> t.JoinGroupResponse | None:
    if sum(len(each.metadata) for each in body.protocols) > _MOST_BYTES_SAID:
        return _response(call, JoinGroupResponse(error_code=ErrorCode.INVALID_REQUEST))
    request = JoinGroupRequest(
        group_id=body.group_id,
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(each.name, each.metadata) for each in body.protocols),
        client_id=call.client_id or "",
        client_host=f"/{call.connection.peer}",
        require_known_member_id=call.version >= _ID_COMES_FIRST,
        support_skipping_assignment=call.version >= _MAY_SKIP_ASSIGNMENT,
    )
    services.ask_group(call, request, partial(_response, call))
    return None


def _response(call: Call, answer: GroupResponse) -> t.JoinGroupResponse:
    assert isinstance(answer, JoinGroupResponse)
    name = answer.protocol_name
    return t.JoinGroupResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error_code,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=name if call.version >= _NAME_MAY_BE_NULL else name or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            t.JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=each.metadata
            )
            for each in answer.members
        ],
    )
