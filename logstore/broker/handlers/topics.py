"""Administration of topics and partitions, all of it the controller's (`forwarding.at_the_controller`).

A broker that is not the controller and cannot forward answers NOT_CONTROLLER (41), topic by topic.

CreateTopics and CreatePartitions are answered when this broker knows who leads the new partitions, so that
the client's next request is not about an unknown topic. DeleteTopics is answered when this broker no longer
knows the topic. The controller records each of these requests first: the change happens even if the client
leaves.

AlterPartitionReassignments is answered when the change is recorded; ListPartitionReassignments shows its
progress. ElectLeaders elects preferred replicas, or any live ones (unclean); null partitions mean all. A
partition that is led already is ELECTION_NOT_NEEDED (84), and left out if all were asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias, TypeVar

from logstore.broker import configs
from logstore.broker.config_nodes import read_live
from logstore.broker.dispatch import Call, Services
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.links import is_of_broker
from logstore.broker.translation import from_wire, id_from_wire, id_to_wire, to_wire
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication import messages as m

A = TypeVar("A", bound=Struct)

_DEFAULT: Final = -1
_CREATE_WITH_SETTINGS: Final = 5
_DELETE_BY_ID: Final = 6
_ELECT_WITH_ERROR: Final = 1
_PATIENCE_MS: Final = 2_000
"""The longest wait for leaders, and for a forwarded deletion, whatever the client allows. Replicas on brokers
that are down elect none, and a request that another broker forwarded blocks those behind it."""


def _when_led(
    call: Call,
    services: Services,
    partitions: Mapping[str, int],
    timeout_ms: int,
    answer: Callable[[], A | None],
) -> A | None:
    """Return `answer()` when all `partitions` (count by topic) have a leader here, or the time is over.

    A partition that still has no leader is not an error: it was created.
    """

    def are_led() -> bool:
        metadata = services.metadata
        return all(
            metadata.is_alive(metadata.leader_of(TopicPartition(topic, number)))
            for topic, count in partitions.items()
            for number in range(count)
        )

    return services.when(call, are_led, services.now_ms() + min(timeout_ms, _PATIENCE_MS), answer)


# --- CreateTopics -----------------------------------------------------------------------------


def create(call: Call, body: t.CreateTopicsRequest, services: Services) -> None:
    """Create topics, with replicas as listed or placed by the controller.

    An assignment that does not number its partitions from 0 is INVALID_REPLICA_ASSIGNMENT (39); one beside
    counts is INVALID_REQUEST (42); a `segment.bytes` below 1 MiB, or a setting without a value, is
    INVALID_CONFIG (40).
    """
    refused = {topic.name: result for topic in body.topics if (result := _refusal(topic)) is not None}
    request = m.CreateTopicsRequest(
        tuple(_new_topic(topic) for topic in body.topics if topic.name not in refused), body.validate_only
    )

    def created(answer: m.ResponseBody) -> t.CreateTopicsResponse | None:
        assert isinstance(answer, m.CreateTopicsResponse)
        counts = {name: len(result.replicas) for name, result in answer.topics.items()}
        respond = partial(_created, call, body, request, {**answer.topics, **refused}, services)
        return _when_led(call, services, {} if body.validate_only else counts, body.timeout_ms, respond)

    services.runtime.ask_for(call, request, created)


def _refusal(topic: t.CreateTopicsRequestCreatableTopic) -> m.CreateTopicsResult | None:
    unset = [each.name for each in topic.configs if each.value is None]
    if unset:
        return m.CreateTopicsResult(ErrorCode.INVALID_CONFIG, f"{unset[0]} needs a value")
    try:
        configs.check_segment_size(_settings(topic))
    except InvalidConfig as error:
        return m.CreateTopicsResult(error.code, str(error))
    if not topic.assignments:
        return None
    if (topic.num_partitions, topic.replication_factor) != (_DEFAULT, _DEFAULT):
        return m.CreateTopicsResult(
            ErrorCode.INVALID_REQUEST, "with an assignment, partitions and replication factor must be -1"
        )
    if sorted(each.partition_index for each in topic.assignments) != list(range(len(topic.assignments))):
        return m.CreateTopicsResult(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment must number its partitions from 0"
        )
    return None


def _new_topic(topic: t.CreateTopicsRequestCreatableTopic) -> m.NewTopic:
    assignments = sorted(topic.assignments, key=lambda each: each.partition_index)
    return m.NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple(tuple(each.broker_ids) for each in assignments),
        configs=_settings(topic),
    )


def _settings(topic: t.CreateTopicsRequestCreatableTopic) -> dict[str, str]:
    return {each.name: each.value for each in topic.configs if each.value is not None}


def _created(
    call: Call,
    body: t.CreateTopicsRequest,
    request: m.CreateTopicsRequest,
    results: Mapping[str, m.CreateTopicsResult],
    services: Services,
) -> t.CreateTopicsResponse | None:
    """Answer; from version 5 on with the settings of each topic, as DescribeConfigs shows them."""
    made = {topic.name: _result(topic.name, results[topic.name]) for topic in body.topics}
    response = t.CreateTopicsResponse(topics=list(made.values()))
    given = {
        topic.name: topic.configs for topic in request.topics if results[topic.name].error is ErrorCode.NONE
    }
    if call.version < _CREATE_WITH_SETTINGS or not given:
        return response
    services.begin(call, _with_settings(response, made, given, services))
    return None


async def _with_settings(
    response: t.CreateTopicsResponse,
    made: Mapping[str, t.CreateTopicsResponseCreatableTopicResult],
    given: Mapping[str, Mapping[str, str]],
    services: Services,
) -> t.CreateTopicsResponse:
    """Add the settings; none with the reason beside them if the metadata store does not answer."""
    try:
        live = await read_live(services.ask_store, services.node.node_id)
    except EngineError as error:
        for name in given:
            made[name].topic_config_error_code = error.code
        return response
    for name, own in given.items():
        made[name].configs = [
            t.CreateTopicsResponseCreatableTopicConfigs(
                name=each.name,
                value=each.value,
                read_only=each.is_read_only,
                config_source=int(each.source),
            )
            for each in configs.describe_topic(own, live, services.settings)
        ]
    return response


def _result(name: str, result: m.CreateTopicsResult) -> t.CreateTopicsResponseCreatableTopicResult:
    return t.CreateTopicsResponseCreatableTopicResult(
        name=name,
        topic_id=id_to_wire(result.topic_id),
        error_code=result.error,
        error_message=result.message or None,
        num_partitions=len(result.replicas) or -1,
        replication_factor=len(result.replicas[0]) if result.replicas else -1,
    )


# --- DeleteTopics -----------------------------------------------------------------------------


Wanted: TypeAlias = dict[str | bytes, str | m.AdminResult]
"""The name or id that the client gave → the topic's name, or why it cannot be deleted."""


def delete(call: Call, body: t.DeleteTopicsRequest, services: Services) -> t.DeleteTopicsResponse | None:
    """Delete topics by name, or by id from version 6 on.

    A topic that still exists at the request's timeout is REQUEST_TIMED_OUT (7); its deletion continues, for
    instance once a reassignment has ended.
    """
    wanted = _wanted(call, body, services)
    names = tuple(name for name in wanted.values() if isinstance(name, str))
    ids = {name: services.metadata.topic_ids.get(name, "") for name in names}
    if not names:
        return _deleted(ids, wanted, {})
    longest_ms = _PATIENCE_MS if is_of_broker(call.client_id) else LONGEST_WAIT_MS
    ends_ms = services.now_ms() + min(body.timeout_ms, longest_ms)

    def recorded(answer: m.ResponseBody) -> t.DeleteTopicsResponse | None:
        assert isinstance(answer, m.DeleteTopicsResponse)

        def remaining() -> set[str]:
            metadata = services.metadata
            return {
                name
                for name, result in answer.topics.items()
                if result.error is ErrorCode.NONE
                and name in metadata.topics
                and ids[name] in ("", metadata.topic_ids.get(name))
            }

        def respond() -> t.DeleteTopicsResponse:
            late = m.AdminResult(ErrorCode.REQUEST_TIMED_OUT, "the deletion is recorded and continues")
            return _deleted(ids, wanted, {**answer.topics, **dict.fromkeys(remaining(), late)})

        return services.when(call, lambda: not remaining(), ends_ms, respond)

    by_id = {
        name: id_from_wire(key)
        for key, name in wanted.items()
        if isinstance(key, bytes) and isinstance(name, str)
    }
    services.runtime.ask_for(call, m.DeleteTopicsRequest(names, by_id), recorded)
    return None


def _wanted(call: Call, body: t.DeleteTopicsRequest, services: Services) -> Wanted:
    if call.version < _DELETE_BY_ID:
        return {name: name for name in body.topic_names}
    found: Wanted = {}
    for each in body.topics:
        topic_id = id_from_wire(each.topic_id)
        if each.name is not None:
            both = m.AdminResult(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
            found[each.name] = both if topic_id else each.name
            continue
        name = services.metadata.topic_names.get(topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID if topic_id else ErrorCode.INVALID_REQUEST
        found[each.topic_id] = name or m.AdminResult(code, "no topic has this id")
    return found


def _deleted(
    ids: Mapping[str, str], wanted: Wanted, results: Mapping[str, m.AdminResult]
) -> t.DeleteTopicsResponse:
    """Answer with the `ids` that topics had when the request came."""
    responses = []
    for key, name in wanted.items():
        result = results[name] if isinstance(name, str) else name
        topic_id = ids[name] if isinstance(name, str) else ""
        responses.append(
            t.DeleteTopicsResponseDeletableTopicResult(
                name=key if isinstance(key, str) else name if isinstance(name, str) else None,
                topic_id=key if isinstance(key, bytes) else id_to_wire(topic_id),
                error_code=result.error,
                error_message=result.message or None,
            )
        )
    return t.DeleteTopicsResponse(responses=responses)


# --- partitions -------------------------------------------------------------------------------


def create_partitions(call: Call, body: t.CreatePartitionsRequest, services: Services) -> None:
    """Grow topics to a number of partitions; fewer than there are is INVALID_PARTITIONS (37).

    A topic that is listed twice is INVALID_REQUEST (42). `__consumer_offsets` does not grow: a group's
    partition depends on the count, and its offsets would be lost.
    """
    listed = Counter(topic.name for topic in body.topics)
    refused = {
        name: m.AdminResult(ErrorCode.INVALID_REQUEST, "the topic is listed more than once")
        for name, times in listed.items()
        if times > 1
    }
    if OFFSETS_TOPIC in listed:
        refused[OFFSETS_TOPIC] = m.AdminResult(
            ErrorCode.INVALID_PARTITIONS,
            f"the number of partitions of {OFFSETS_TOPIC} is fixed: groups would lose their offsets",
        )
    new = {
        topic.name: m.NewPartitions(topic.count, _assigned(topic))
        for topic in body.topics
        if topic.name not in refused
    }

    def created(answer: m.ResponseBody) -> t.CreatePartitionsResponse | None:
        assert isinstance(answer, m.CreatePartitionsResponse)
        results = {**answer.topics, **refused}
        counts = {name: wanted.total for name, wanted in new.items() if results[name].error is ErrorCode.NONE}
        respond = partial(to_wire, m.CreatePartitionsResponse(results), t.CreatePartitionsResponse)
        return _when_led(call, services, {} if body.validate_only else counts, body.timeout_ms, respond)

    services.runtime.ask_for(call, m.CreatePartitionsRequest(new, body.validate_only), created)


def _assigned(
    topic: t.CreatePartitionsRequestCreatePartitionsTopic,
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each new partition, or nothing: the controller chooses. An empty list is
    refused, as one that names nobody."""
    if topic.assignments is None:
        return ()
    return tuple(tuple(each.broker_ids) for each in topic.assignments) or ((),)


def elect_leaders(
    call: Call, body: t.ElectLeadersRequest, services: Services
) -> t.ElectLeadersResponse | None:
    if not 0 <= body.election_type < len(m.ElectionType):
        return t.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)

    def elected(answer: m.ResponseBody) -> t.ElectLeadersResponse:
        response = to_wire(answer, t.ElectLeadersResponse)
        if call.version < _ELECT_WITH_ERROR:
            response.error_code = 0
        return response

    services.runtime.ask_for(call, from_wire(body, m.ElectLeadersRequest), elected)
    return None


def alter_reassignments(call: Call, body: t.AlterPartitionReassignmentsRequest, services: Services) -> None:
    """Set the replicas that partitions are to have; null cancels a reassignment."""
    request = from_wire(body, m.AlterPartitionReassignmentsRequest)
    services.runtime.ask_for(
        call, request, partial(_with_error_name, kind=t.AlterPartitionReassignmentsResponse)
    )


def list_reassignments(call: Call, body: t.ListPartitionReassignmentsRequest, services: Services) -> None:
    request = from_wire(body, m.ListPartitionReassignmentsRequest)
    services.runtime.ask_for(
        call, request, partial(_with_error_name, kind=t.ListPartitionReassignmentsResponse)
    )


R = TypeVar("R", t.AlterPartitionReassignmentsResponse, t.ListPartitionReassignmentsResponse)


def _with_error_name(answer: m.ResponseBody, kind: type[R]) -> R:
    response = to_wire(answer, kind)
    if response.error_code:
        response.error_message = ErrorCode(response.error_code).name
    return response
