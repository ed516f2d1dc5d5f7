"""CreateTopics: the controller makes topics, with replicas as listed or by its formula.

From version 5 on the answer says what came of it: partitions, replicas and all settings of each topic, as
DescribeConfigs would tell them. If the settings of all brokers cannot be read just then, the topic is made
and its settings are null, with the reason beside them.

Answered when the controller's broker sees who leads them: what the client asks next is not about an unknown
topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from logstore.broker import configs
from logstore.broker.call import Call
from logstore.broker.config_nodes import read_all_brokers
from logstore.broker.handlers.leading import when_led
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.ids import ID_BYTES, id_from_text
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    NewTopic,
    ResponseBody,
)

_NO_ID: Final = bytes(ID_BYTES)
_DEFAULT: Final = -1
_WITH_SETTINGS: Final = 5


def handle(call: Call, body: t.CreateTopicsRequest, services: Services) -> None:
    """The answer of whoever is not the controller is 41, topic by topic.

    A topic whose assignment does not number its partitions from 0 on has error 39, one with an assignment
    and counts as well 42.
    """
    refused = {topic.name: result for topic in body.topics if (result := _refusal(topic)) is not None}
    request = CreateTopicsRequest(
        tuple(_new_topic(topic) for topic in body.topics if topic.name not in refused), body.validate_only
    )
    services.ask(call, request, partial(_made, call, body, request, refused, services))


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


def _made(
    call: Call,
    body: t.CreateTopicsRequest,
    request: CreateTopicsRequest,
    refused: Mapping[str, CreateTopicsResult],
    services: Services,
    answer: ResponseBody,
) -> t.CreateTopicsResponse | None:
    assert isinstance(answer, CreateTopicsResponse)
    made = {name: len(result.replicas) for name, result in answer.topics.items()}
    return when_led(
        call,
        services,
        {} if body.validate_only else made,
        body.timeout_ms,
        partial(_answer, call, body, request, {**answer.topics, **refused}, services),
    )


def _answer(
    call: Call,
    body: t.CreateTopicsRequest,
    request: CreateTopicsRequest,
    results: Mapping[str, CreateTopicsResult],
    services: Services,
) -> t.CreateTopicsResponse | None:
    made = {name: _result(name, results[name]) for name in dict.fromkeys(topic.name for topic in body.topics)}
    response = t.CreateTopicsResponse(throttle_time_ms=call.throttle_ms, topics=list(made.values()))
    given = {
        topic.name: topic.configs for topic in request.topics if results[topic.name].error is ErrorCode.NONE
    }
    if call.version < _WITH_SETTINGS or not given:
        return response
    services.begin(call, _with_settings(response, made, given, services))
    return None


async def _with_settings(
    response: t.CreateTopicsResponse,
    made: Mapping[str, t.CreateTopicsResponseCreatableTopicResult],
    given: Mapping[str, Mapping[str, str]],
    services: Services,
) -> t.CreateTopicsResponse:
    try:
        of_brokers = await read_all_brokers(services.ask_store)
    except EngineError as error:
        for name in given:
            made[name].configs, made[name].topic_config_error_code = None, error.code
        return response
    for name, own in given.items():
        made[name].configs = [
            t.CreateTopicsResponseCreatableTopicConfigs(
                name=each.name,
                value=each.value,
                read_only=each.is_read_only,
                config_source=int(each.source),
            )
            for each in configs.describe_topic(own, of_brokers, services.settings)
        ]
    return response


def _result(name: str, result: CreateTopicsResult) -> t.CreateTopicsResponseCreatableTopicResult:
    return t.CreateTopicsResponseCreatableTopicResult(
        name=name,
        topic_id=id_from_text(result.topic_id) if result.topic_id else _NO_ID,
        error_code=result.error,
        error_message=result.message or None,
        num_partitions=len(result.replicas) or -1,
        replication_factor=len(result.replicas[0]) if result.replicas else -1,
    )
