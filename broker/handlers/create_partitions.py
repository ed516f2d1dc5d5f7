"""CreatePartitions: topics grow to a number of partitions; replicas of the new ones as listed, or placed."""

from __future__ import annotations

from functools import partial

from broker.call import Call
from broker.services import Services
from broker.wire import types as t
from replication.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    NewPartitions,
    ResponseBody,
)


def handle(call: Call, body: t.CreatePartitionsRequest, services: Services) -> None:
    """Whoever is not the controller says so (41); not more than there are is error 37."""
    topics = {
        topic.name: NewPartitions(
            topic.count, tuple(tuple(each.broker_ids) for each in topic.assignments or ())
        )
        for topic in body.topics
    }
    services.ask(call, CreatePartitionsRequest(topics, body.validate_only), partial(_response, call))


def _response(call: Call, answer: ResponseBody) -> t.CreatePartitionsResponse:
    assert isinstance(answer, CreatePartitionsResponse)
    return t.CreatePartitionsResponse(
        throttle_time_ms=call.throttle_ms,
        results=[
            t.CreatePartitionsResponseCreatePartitionsTopicResult(
                name=name, error_code=result.error, error_message=result.message or None
            )
            for name, result in answer.topics.items()
        ],
    )
