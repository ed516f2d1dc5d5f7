"""Creating topics for a client: check, assign, write, and answer once the leaders are persisted.

A topic's node and its settings are written together; whoever finds the node (this controller or the
next) gives its partitions their states, so a crash in between only delays the leaders. An answer
other than NONE means that this request created nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode, InvalidTopic
from logstore.disk.ids import new_id
from logstore.disk.marks import mark
from logstore.disk.topic_partition import check_topic_name
from logstore.replication.controller import assignment
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.errors import InvalidReplicaAssignment, MetadataConflict, TopicExists
from logstore.replication.controller.items import of_all
from logstore.replication.controller.partition_states import ROUNDS, after_failures, check_fence, settle
from logstore.replication.controller.topics import load_topics
from logstore.replication.errors import InvalidRequest
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    NewTopic,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Get, Multi, Set, StoreError


def create_topics(
    context: Context, request: CreateTopicsRequest, results: dict[str, CreateTopicsResult]
) -> Steps[CreateTopicsResponse]:
    """Create what can be created; `results` fills as the fate of each topic becomes certain."""
    planned: dict[str, tuple[NewTopic, layout.TopicAssignment]] = {}
    counts = {topic.name: 0 for topic in request.topics}
    for topic in request.topics:
        counts[topic.name] += 1
    count, taken = 0, by_metric_name(context.topics)
    for topic in request.topics:
        if topic.name in results:
            continue
        try:
            if counts[topic.name] > 1:
                raise InvalidRequest(
                    f"topic {topic.name!r} is listed {counts[topic.name]} times; once is enough"
                )
            if topic.name in context.deletions:
                raise TopicExists(f"topic {topic.name!r} is being deleted; create it once it is gone")
            check_new_topic(topic, taken)
            assignment.check_new_partitions(count + (len(topic.assignment) or topic.partitions))
            node = assign(context, topic)
            count += len(node.partitions)
            planned[topic.name] = (topic, node)
            taken |= by_metric_name([topic.name])
        except EngineError as error:
            results[topic.name] = CreateTopicsResult(error.code, str(error))
    if request.validate_only:
        results |= {name: _created(node) for name, (_, node) in planned.items()}
        return answer(request, results)
    yield from _write(context, planned, results)
    created = [name for name in counts if results[name].error is ErrorCode.NONE]
    stateless = yield from load_topics(context, created)
    yield from settle(context, stateless, after_failures(context))
    return answer(request, results)


def answer(request: CreateTopicsRequest, results: Mapping[str, CreateTopicsResult]) -> CreateTopicsResponse:
    """Also when the term ends half-way: what was created is created."""
    names = [topic.name for topic in request.topics]
    return CreateTopicsResponse(of_all(names, results, CreateTopicsResult))


def _created(node: layout.TopicAssignment) -> CreateTopicsResult:
    replicas = tuple(node.partitions[number] for number in sorted(node.partitions))
    return CreateTopicsResult(ErrorCode.NONE, topic_id=node.topic_id, replicas=replicas)


def check_new_topic(topic: NewTopic, taken: Mapping[str, str]) -> None:
    """Raise what is wrong with the name or the settings; `taken`: the topics there are, `by_metric_name`."""
    check_topic_name(topic.name)
    other = taken.get(_metric_name(topic.name))
    if other == topic.name:
        raise TopicExists(f"topic {topic.name!r} exists")
    if other is not None:
        raise InvalidTopic(f"topic {topic.name!r} collides with {other!r}: '.' and '_' count as the same")
    LogConfig.from_kafka(topic.configs)


def by_metric_name(topics: Iterable[str]) -> dict[str, str]:
    """Topics by what they are called where '.' and '_' count as the same, as in the names of metrics."""
    return {_metric_name(name): name for name in topics}


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def assign(context: Context, topic: NewTopic) -> layout.TopicAssignment:
    """The new topic's node: an id, and the replicas as listed or by the formula asked for."""
    if topic.assignment:
        assignment.check_manual(topic.assignment)
        lists = list(topic.assignment)
    else:
        config = context.config
        partitions = config.num_partitions if topic.partitions == -1 else topic.partitions
        factor = config.default_replication_factor
        if topic.replication_factor != -1:
            factor = topic.replication_factor
        lists = _by_formula(context, topic.spread, partitions, factor)
    return layout.TopicAssignment(new_id(context.random), dict(enumerate(lists)))


def _by_formula(context: Context, formula: str, partitions: int, factor: int) -> list[assignment.Replicas]:
    racks = racks_of(context)
    match formula:
        case "round-robin":
            return assignment.round_robin(list(racks), partitions, factor)
        case "kafka":
            start, shift = (context.random.randrange(max(1, len(racks))) for _ in range(2))
            return assignment.placed(racks, partitions, factor, start=start, shift=shift)
    raise InvalidReplicaAssignment(f"no placement is called {formula!r}; use 'kafka' or 'round-robin'")


def racks_of(context: Context) -> assignment.Racks:
    """The brokers that may be given replicas, in order, and their racks: not those about to stop."""
    brokers = sorted(context.brokers.keys() - context.shutting_down)
    return {broker_id: context.brokers[broker_id].endpoint.rack for broker_id in brokers}


def _write(
    context: Context,
    planned: Mapping[str, tuple[NewTopic, layout.TopicAssignment]],
    results: dict[str, CreateTopicsResult],
) -> Steps[None]:
    remaining = list(planned)
    configs: dict[str, int] = {}
    for _ in range(ROUNDS):
        if not remaining:
            return
        outcomes = yield tuple(_creation(context, *planned[name], configs.get(name)) for name in remaining)
        in_doubt = []
        for name, outcome in zip(remaining, outcomes, strict=True):
            check_fence(outcome)
            if outcome.error is None:
                results[name] = _created(planned[name][1])
            elif outcome.error in (StoreError.NODE_EXISTS, StoreError.CONNECTION_LOSS):
                in_doubt.append(name)
            else:
                raise MetadataConflict(f"the store refused topic {name!r}: {outcome.error.value}")
        # Whose node is it? The id is random: if it is the one we drew, only the reply was lost.
        reads = yield tuple(Get(layout.topic_path(name)) for name in in_doubt)
        left = yield tuple(Get(layout.topic_config_path(name)) for name in in_doubt)
        configs = {name: read.stat.version for name, read in zip(in_doubt, left, strict=True) if read.stat}
        remaining = []
        for name, read in zip(in_doubt, reads, strict=True):
            if read.stat is None:
                remaining.append(name)
            elif read.data == layout.encode_topic(planned[name][1]):
                mark("topics: the reply to a creation was lost")
                results[name] = _created(planned[name][1])
            else:
                mark("topics: somebody else's topic has the name")
                results[name] = CreateTopicsResult(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
    if remaining:
        raise MetadataConflict(f"topics {', '.join(remaining)} could not be written")


def _creation(
    context: Context, topic: NewTopic, node: layout.TopicAssignment, config_version: int | None
) -> Multi:
    """`config_version` is that of settings which a former topic of the name, or a tool, has left."""
    path, settings = layout.topic_config_path(topic.name), layout.encode_topic_config(topic.configs)
    return context.fenced(
        Create(layout.topic_path(topic.name), layout.encode_topic(node), make_parents=True),
        Create(path, settings, make_parents=True)
        if config_version is None
        else Set(path, settings, config_version),
    )
