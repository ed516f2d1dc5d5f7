"""CreateTopics: the controller makes topics, with replicas as listed or by its formula."""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.call import Call
from broker.services import Services
from broker.wire import types as t
from checkpoint.errors import ErrorCode
from checkpoint.ids import ID_BYTES, id_from_text
from replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    NewTopic,
    ResponseBody,
)

_NO_ID: Final = bytes(ID_BYTES)
_DEFAULT: Final = -1


def handle(call: Call, body: t.CreateTopicsRequest, services: Services) -> None:
    """The answer of whoever is not the controller is 41, topic by topic.

    A topic whose assignment does not number its partitions from 0 on has error 39, one with an assignment
    and counts as well 42.
    """
    refused = {topic.name: result for topic in body.topics if (result := _refusal(topic)) is not None}
    request = CreateTopicsRequest(
        tuple(_new_topic(topic) for topic in body.topics if topic.name not in refused), body.validate_only
    )
    services.ask(call, request, partial(_response, call, body, refused))


def _refusal(topic: t.CreateTopicsRequestCreatableTopic) -> CreateTopicsResult | None:
    if not topic.assignments:
        return None
    if (topic.num_partitions, topic.replication_factor) != (_DEFAULT, _DEFAULT):
        return CreateTopicsResult(
            ErrorCode.INVALID_REQUEST, "with an assignment, leave partitions and replication factor at -1"
        )
    if sorted(each.partition_index for each in topic.assignments) != list(range(len(topic.assignments))):
        return CreateTopicsResult(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment numbers its partitions from 0 on"
        )
    return None


def _new_topic(topic: t.CreateTopicsRequestCreatableTopic) -> NewTopic:
    assignments = sorted(topic.assignments, key=lambda each: each.partition_index)
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple(tuple(each.broker_ids) for each in assignments),
        # A setting without a value has the default.
        configs={each.name: each.value for each in topic.configs if each.value is not None},
    )


def _response(
    call: Call, body: t.CreateTopicsRequest, refused: dict[str, CreateTopicsResult], answer: ResponseBody
) -> t.CreateTopicsResponse:
    assert isinstance(answer, CreateTopicsResponse)
    results = {**answer.topics, **refused}
    return t.CreateTopicsResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[_topic(name, results[name]) for name in dict.fromkeys(topic.name for topic in body.topics)],
    )


def _topic(name: str, result: CreateTopicsResult) -> t.CreateTopicsResponseCreatableTopicResult:
    return t.CreateTopicsResponseCreatableTopicResult(
        name=name,
        topic_id=id_from_text(result.topic_id) if result.topic_id else _NO_ID,
        error_code=result.error,
        error_message=result.message or None,
        num_partitions=len(result.replicas) or -1,
        replication_factor=len(result.replicas[0]) if result.replicas else -1,
    )
