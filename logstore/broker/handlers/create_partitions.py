"""CreatePartitions: topics grow to a number of partitions; replicas of the new ones as listed, or placed.

`__consumer_offsets` does not: a group's partition follows from how many there are, and its offsets would not
be where it is looked for. Answered when the controller's broker sees who leads the new ones.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.coordinator import OFFSETS_TOPIC
from logstore.broker.handlers.leading import when_led
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.replication.messages import (
    AdminResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    NewPartitions,
    ResponseBody,
)


def handle(call: Call, body: t.CreatePartitionsRequest, services: Services) -> None:
    """The answer of whoever is not the controller is 41; not more than there are is error 37."""
    topics = {
        topic.name: NewPartitions(
            topic.count, tuple(tuple(each.broker_ids) for each in topic.assignments or ())
        )
        for topic in body.topics
        if topic.name != OFFSETS_TOPIC
    }
    request = CreatePartitionsRequest(topics, body.validate_only)
    services.ask(call, request, partial(_grown, call, body, services))


def _grown(
    call: Call, body: t.CreatePartitionsRequest, services: Services, answer: ResponseBody
) -> t.CreatePartitionsResponse | None:
    assert isinstance(answer, CreatePartitionsResponse)
    grown = {
        topic.name: topic.count
        for topic in body.topics
        if topic.name in answer.topics and answer.topics[topic.name].error is ErrorCode.NONE
    }
    return when_led(
        call,
        services,
        {} if body.validate_only else grown,
        body.timeout_ms,
        partial(_response, call, body, answer),
    )


def _response(
    call: Call, body: t.CreatePartitionsRequest, answer: CreatePartitionsResponse
) -> t.CreatePartitionsResponse:
    results = dict(answer.topics)
    if any(topic.name == OFFSETS_TOPIC for topic in body.topics):
        results[OFFSETS_TOPIC] = AdminResult(
            ErrorCode.INVALID_PARTITIONS, f"{OFFSETS_TOPIC} keeps its partitions: groups would be lost"
        )
    return t.CreatePartitionsResponse(
        throttle_time_ms=call.throttle_ms,
        results=[
            t.CreatePartitionsResponseCreatePartitionsTopicResult(
                name=name, error_code=result.error, error_message=result.message or None
            )
            for name, result in results.items()
        ],
    )
