"""DeleteTopics: by name, or by id from version 6 on; answered when this broker sees the topic no more.

The controller records the request first; from then on the topic goes, whatever becomes of the client. One
that is not gone when the request's time is over has error 7: it will go yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import ID_BYTES, id_from_text, id_to_text
from logstore.replication.messages import AdminResult, DeleteTopicsRequest, DeleteTopicsResponse, ResponseBody

_NO_ID: Final = bytes(ID_BYTES)
_LOOK_AGAIN_MS: Final = 10


def handle(call: Call, body: t.DeleteTopicsRequest, services: Services) -> t.DeleteTopicsResponse | None:
    wanted = _wanted(call, body, services)
    names = tuple(name for name in wanted.values() if isinstance(name, str))
    if not names:
        return _response(call, services, wanted, {})
    ends_ms = services.now_ms() + min(body.timeout_ms, LONGEST_WAIT_MS)
    services.ask(call, DeleteTopicsRequest(names), partial(_recorded, call, services, wanted, ends_ms))
    return None


Wanted = dict[str | bytes, str | AdminResult]
"""What the client named, a name or an id → the topic's name, or why it cannot be deleted."""


def _wanted(call: Call, body: t.DeleteTopicsRequest, services: Services) -> Wanted:
    if call.version < 6:
        return {name: name for name in body.topic_names}
    found: Wanted = {}
    for each in body.topics:
        if each.name is not None:
            named = each.topic_id == _NO_ID
            twice = AdminResult(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
            found[each.name] = each.name if named else twice
            continue
        name = services.metadata.topic_names.get(id_to_text(each.topic_id))
        found[each.topic_id] = name or AdminResult(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    return found


def _recorded(
    call: Call, services: Services, wanted: Wanted, ends_ms: int, answer: ResponseBody
) -> t.DeleteTopicsResponse | None:
    assert isinstance(answer, DeleteTopicsResponse)
    return _when_gone(call, services, wanted, ends_ms, answer.topics)


def _when_gone(
    call: Call, services: Services, wanted: Wanted, ends_ms: int, results: Mapping[str, AdminResult]
) -> t.DeleteTopicsResponse | None:
    there = {each.topic for each in services.metadata.partitions}
    going = {name for name, result in results.items() if result.error is ErrorCode.NONE and name in there}
    if not going:
        return _response(call, services, wanted, results)
    if services.now_ms() >= ends_ms:
        late = AdminResult(ErrorCode.REQUEST_TIMED_OUT, "recorded: it goes when all its replicas can")
        return _response(call, services, wanted, {**results, **dict.fromkeys(going, late)})
    services.later(call, _LOOK_AGAIN_MS, partial(_when_gone, call, services, wanted, ends_ms, results))
    return None


def _response(
    call: Call, services: Services, wanted: Wanted, results: Mapping[str, AdminResult]
) -> t.DeleteTopicsResponse:
    responses = []
    for key, name in wanted.items():
        result = results[name] if isinstance(name, str) else name
        topic_id = services.metadata.topic_ids.get(name, "") if isinstance(name, str) else ""
        responses.append(
            t.DeleteTopicsResponseDeletableTopicResult(
                name=key if isinstance(key, str) else name if isinstance(name, str) else None,
                topic_id=key if isinstance(key, bytes) else id_from_text(topic_id) if topic_id else _NO_ID,
                error_code=result.error,
                error_message=result.message or None,
            )
        )
    return t.DeleteTopicsResponse(throttle_time_ms=call.throttle_ms, responses=responses)
