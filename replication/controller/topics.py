"""Topics: the ones in the store, new ones, more partitions, changed settings.

    CreateTopics      ──▶ check, assign ──▶ topic node + settings ──▶ first states ──▶ answer
    CreatePartitions  ──▶ check, assign ──▶ topic node ──▶ first states ──▶ answer
    AlterConfigs      ──▶ check ──▶ settings + notification ──▶ answer; the watch ──▶ LeaderAndIsr
    a tool's write    ──▶ the watch ──▶ read ──▶ first states

A topic may be created by this controller, by a tool that writes to the store, or by a controller that died
half-way. All three look the same here: a topic node appears, and its partitions get the states that they
lack. So a crash after the first write only delays the leaders. An error in an answer means that the request
created nothing. Existing lists of a topic node are never changed here.

The notification of changed settings (`/config/changes`) is for Kafka's brokers and tools. One that a tool
writes, in any of Kafka's forms, is followed too. Old ones are removed when a new one arrives, 15 minutes
after they were first seen: until then a broker that was away may still want to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode, InvalidTopic
from logstore.disk.ids import new_id
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.errors import InvalidConfig
from logstore.format.state_records import CLUSTER_METADATA
from logstore.replication import messages as m
from logstore.replication.controller import assignment, deletion, reassignment
from logstore.replication.controller.assignment import assignment_in
from logstore.replication.controller.context import Context, Steps, Topic
from logstore.replication.controller.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    MetadataConflict,
    ReassignmentInProgress,
    TopicExists,
)
from logstore.replication.controller.procedure import (
    ROUNDS,
    Notice,
    after_failures,
    check_fence,
    one_by_one,
    read_notices,
    remove_notices,
    settle,
    write_unchanged,
)
from logstore.replication.errors import InvalidRequest, UnknownTopicOrPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Get,
    Multi,
    Outcome,
    Set,
    StoreError,
    Write,
    put,
)

CHANGE_EXPIRATION_MS = 15 * 60 * 1000


# --- what the store has -----------------------------------------------------------------------


def list_topics(context: Context) -> Steps[list[str]]:
    """Return the valid topic names under `/brokers/topics`; the watch is set again."""
    (listing,) = yield (Children(layout.TOPICS_PATH, watch=True),)
    if listing.stat is None:
        raise MetadataConflict(f"{layout.TOPICS_PATH} is missing")
    for path in list(context.unreadable):
        directory, _, name = path.rpartition("/")
        if directory == layout.TOPICS_PATH and name not in listing.children:
            del context.unreadable[path]
    invalid = set()
    for name in listing.children:
        try:
            if name not in context.topics:
                check_topic_name(name)
        except InvalidTopic as error:
            context.unreadable[layout.topic_path(name)] = str(error)
            invalid.add(name)
    return [name for name in listing.children if name not in invalid]


def load_topics(context: Context, names: Iterable[str]) -> Steps[list[TopicPartition]]:
    """Read these topics' nodes and settings, watches set again; return their partitions without a state.

    Partitions that we knew before count too: an event that starts again must still settle them.
    """
    wanted = list(names)
    nodes = yield tuple(Get(layout.topic_path(name), watch=True) for name in wanted)
    configs = yield tuple(Get(layout.topic_config_path(name), watch=True) for name in wanted)
    stateless: list[TopicPartition] = []
    is_in_doubt = False
    for name, read, config in zip(wanted, nodes, configs, strict=True):
        node = context.parsed(layout.topic_path(name), read, layout.parse_topic)
        if node is None:
            if read.stat is None and name not in context.deletions:
                context.lose_topic(name)
            continue
        settings = _usable_settings(context, name, config)
        if name in context.topics and context.topics[name].topic_id != node.topic_id:
            # Replaced behind our back: the states that we know are of its former namesake.
            context.lose_topic(name)
        is_in_doubt |= deletion.is_in_doubt(context, name, node.topic_id)
        context.topics[name] = Topic(node.topic_id, settings)
        for partition in node.partitions:
            topic_partition = TopicPartition(name, partition)
            # Changed and missing lists are handled by reassignment and deletion.
            if topic_partition not in context.replicas:
                context.learn_assignment(topic_partition, assignment_in(node, partition))
            if topic_partition not in context.states:
                stateless.append(topic_partition)
    if is_in_doubt:
        yield from deletion.requests_changed(context)
    return stateless


def _usable_settings(context: Context, name: str, node: Outcome) -> Mapping[str, str]:
    """Return the settings that brokers understand; others are reported and have no effect.

    A broker refuses a role with an invalid setting, so one typo of a tool could take away the topic's
    leaders. A node that cannot be read changes nothing.
    """
    path = layout.topic_config_path(name)
    settings = context.parsed(path, node, layout.parse_topic_config)
    if settings is None:
        known = context.topics.get(name)
        return known.config if known is not None and node.stat is not None else {}
    usable: dict[str, str] = {}
    for setting, value in sorted(settings.items()):
        try:
            LogConfig.from_kafka({**usable, setting: value})
        except InvalidConfig as error:
            context.unreadable[path] = str(error)
        else:
            usable[setting] = value
    return usable


def load_and_settle(context: Context, names: Iterable[str], *, are_new: bool = False) -> Steps[None]:
    """Read these topics and give their partitions the states that they lack.

    `are_new`: no partition is expected to have one, so none is read before its first is written.
    """
    stateless = yield from load_topics(context, names)
    reason = "it had no state yet"
    yield from settle(context, stateless, after_failures(context), reason=reason, from_copy=are_new)
    context.send_withheld_lists()
    # Without a live replica there is no first state. Clients must still see the partition.
    context.announce_metadata(each for each in stateless if each not in context.states)


def topics_changed(context: Context) -> Steps[None]:
    """React to names that appeared in, or vanished from, `/brokers/topics`."""
    names = yield from list_topics(context)
    listed = set(names)
    # Topics under deletion have a watch of their own (`deletion.topic_changed`).
    gone = [name for name in context.topics if name not in listed and name not in context.deletions]
    for topic in sorted(gone):
        context.lose_topic(topic)
    unsettled: set[str] = set()
    if len(context.states) < len(context.replicas):  # each state is that of a known partition
        unsettled = {each.topic for each in context.replicas.keys() - context.states.keys()}
    yield from load_and_settle(
        context, [name for name in names if name not in context.topics or name in unsettled]
    )
    yield from reassignment.strike_lost(context)


def topic_changed(context: Context, topic: str) -> Steps[None]:
    """React to a topic node that was written or removed: only new partitions matter here."""
    if topic in context.deletions:
        yield from deletion.topic_changed(context, topic)
        if topic in context.deletions or topic not in context.topics:
            return
    yield from load_and_settle(context, [topic])
    yield from reassignment.strike_lost(context)


def topic_config_changed(context: Context, topic: str) -> Steps[None]:
    """Send a topic's new settings to its replicas; they may allow an election, or change the level."""
    yield from load_topics(context, [topic])
    partitions = context.partitions_of(topic)
    context.announce(partitions)
    yield from settle(context, partitions, after_failures(context), reason="the topic's settings changed")


# --- creating topics --------------------------------------------------------------------------


def create_topics(
    context: Context, request: m.CreateTopicsRequest, results: dict[str, m.CreateTopicsResult]
) -> Steps[None]:
    """Create the valid topics; answered when their leaders are in the store."""
    planned: dict[str, tuple[m.NewTopic, layout.TopicAssignment]] = {}
    listed = Counter(topic.name for topic in request.topics)
    count, taken = 0, by_metric_name(context.topics)
    for topic in request.topics:
        if topic.name in results:
            continue
        try:
            if listed[topic.name] > 1:
                raise InvalidRequest(
                    f"topic {topic.name!r} is listed {listed[topic.name]} times; list it once"
                )
            if topic.name in context.deletions:
                raise TopicExists(f"topic {topic.name!r} is being deleted; create it again afterwards")
            check_new_topic(topic, taken)
            assignment.check_new_partitions(count + (len(topic.assignment) or topic.partitions))
            node = assign(context, topic)
            _creation(context, topic, node, None)  # it may be too large
            count += len(node.partitions)
            planned[topic.name] = (topic, node)
            taken |= by_metric_name([topic.name])
        except EngineError as error:
            results[topic.name] = m.CreateTopicsResult(error.code, str(error))
    if request.validate_only:
        results |= {name: _created(node) for name, (_, node) in planned.items()}
        return
    yield from _write_topics(context, planned, results)
    made = [name for name in listed if results[name].error is ErrorCode.NONE]
    yield from load_and_settle(context, made, are_new=True)


def _created(node: layout.TopicAssignment) -> m.CreateTopicsResult:
    replicas = tuple(node.partitions[number] for number in sorted(node.partitions))
    return m.CreateTopicsResult(ErrorCode.NONE, topic_id=node.topic_id, replicas=replicas)


def check_new_topic(topic: m.NewTopic, taken: Mapping[str, str]) -> None:
    """Raise an error for an invalid name or setting; `taken` has the existing topics, `by_metric_name`."""
    check_topic_name(topic.name)
    if topic.name == CLUSTER_METADATA:
        raise InvalidTopic(f"{topic.name} is the name of KRaft's metadata, which is read from its directory")
    other = taken.get(_metric_name(topic.name))
    if other == topic.name:
        raise TopicExists(f"topic {topic.name!r} exists")
    if other is not None:
        raise InvalidTopic(f"topic {topic.name!r} collides with {other!r}: '.' and '_' count as the same")
    LogConfig.from_kafka(topic.configs)


def by_metric_name(topics: Iterable[str]) -> dict[str, str]:
    """Return topics by their names in metrics, where '.' and '_' are the same."""
    return {_metric_name(name): name for name in topics}


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def assign(context: Context, topic: m.NewTopic) -> layout.TopicAssignment:
    """Return the new topic's node: an id, and the replicas as listed or by the requested formula."""
    if topic.assignment:
        assignment.check_manual(topic.assignment, context.brokers)
        lists = list(topic.assignment)
    else:
        config = context.config
        partitions = config.num_partitions if topic.partitions == -1 else topic.partitions
        factor = topic.replication_factor
        if factor == -1:
            factor = config.default_replication_factor
        try:
            lists = _by_formula(context, topic.spread, partitions, factor)
        except InvalidReplicationFactor as error:
            raise _with_those_that_stop(context, factor) or error from None
    return layout.TopicAssignment(new_id(context.random), dict(enumerate(lists)))


def _by_formula(context: Context, formula: str, partitions: int, factor: int) -> list[assignment.Replicas]:
    racks = _racks_of(context)
    match formula:
        case "round-robin":
            return assignment.round_robin(list(racks), partitions, factor)
        case "kafka":
            start, shift = (context.random.randrange(max(1, len(racks))) for _ in range(2))
            return assignment.placed(racks, partitions, factor, start=start, shift=shift)
    raise InvalidReplicaAssignment(f"unknown placement {formula!r}; use 'kafka' or 'round-robin'")


def _with_those_that_stop(context: Context, factor: int) -> InvalidReplicationFactor | None:
    """Return the error that tells which live brokers get no replicas; None without such brokers."""
    stopping = sorted(context.brokers.keys() & context.shutting_down)
    if not stopping or factor <= 0:
        return None
    return InvalidReplicationFactor(
        f"replication factor {factor} is larger than the number of brokers that can get a replica "
        f"({len(context.brokers) - len(stopping)}): {len(stopping)} of {len(context.brokers)} live brokers "
        f"shut down or are drained ({', '.join(map(str, stopping))}). Restart those, start more, or lower it"
    )


def _racks_of(context: Context) -> assignment.Racks:
    """Return the brokers that may get replicas, in order, and their racks: not those shutting down."""
    brokers = sorted(context.brokers.keys() - context.shutting_down)
    return {broker_id: context.brokers[broker_id].endpoint.rack for broker_id in brokers}


def _write_topics(
    context: Context,
    planned: Mapping[str, tuple[m.NewTopic, layout.TopicAssignment]],
    results: dict[str, m.CreateTopicsResult],
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
        # The topic id is random: a node with the id that we drew is ours, and only the reply was lost.
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
                mark("topics: another writer's topic has the name")
                results[name] = m.CreateTopicsResult(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
    if remaining:
        raise MetadataConflict(f"topics {', '.join(remaining)} could not be written")


def _creation(
    context: Context, topic: m.NewTopic, node: layout.TopicAssignment, config_version: int | None
) -> Multi:
    """Return the writes of a new topic; `config_version` is that of settings already in the store.

    Raises `WriteTooLarge`.
    """
    path, settings = layout.topic_config_path(topic.name), layout.encode_topic_config(topic.configs)
    return context.fenced(
        Create(layout.topic_path(topic.name), layout.encode_topic(node), make_parents=True),
        put(path, settings, config_version),
    )


# --- adding partitions ------------------------------------------------------------------------


def create_partitions(
    context: Context, request: m.CreatePartitionsRequest, results: dict[str, m.AdminResult]
) -> Steps[None]:
    """Add partitions to each topic; answered when their first states are in the store."""

    def extend(name: str, wanted: m.NewPartitions) -> Steps[None]:
        _check_alive(context, name)
        attempted = b""

        def decide(read: Outcome) -> tuple[Write, ...]:
            nonlocal attempted
            if read.stat is None:
                raise _unknown(name)
            if read.data == attempted:
                mark("partitions: the reply to their creation was lost")
                return ()
            if name in context.deletions:
                raise _being_deleted(name)
            node = layout.parse_topic(read.data)
            if moving := sorted(node.adding_replicas.keys() | node.removing_replicas.keys()):
                raise ReassignmentInProgress(
                    f"partitions {moving} of {name!r} are being reassigned; wait, or cancel the reassignment"
                )
            new = _new_partitions(context, node, wanted)
            if request.validate_only:
                return ()
            attempted = layout.encode_topic(replace(node, partitions={**node.partitions, **new}))
            return (Set(layout.topic_path(name), attempted, read.stat.version),)

        yield from write_unchanged(context, [Get(layout.topic_path(name))], decide)

    yield from one_by_one(request.topics, results, extend)
    if not request.validate_only:
        yield from load_and_settle(
            context, [name for name in request.topics if results[name].error is ErrorCode.NONE]
        )


def _new_partitions(
    context: Context, node: layout.TopicAssignment, wanted: m.NewPartitions
) -> Mapping[int, assignment.Replicas]:
    existing, lists = len(node.partitions), wanted.assignment
    count = wanted.total - existing
    assignment.check_new_partitions(count)
    if not lists:
        try:
            return assignment.added_partitions(node.partitions, _racks_of(context), wanted.total)
        except InvalidReplicationFactor as error:
            raise _with_those_that_stop(context, len(node.partitions[0])) or error from None
    assignment.check_growth(existing, wanted.total)
    if len(lists) != count:
        raise InvalidReplicaAssignment(
            f"{len(lists)} replica lists for {count} new partitions; give one for each"
        )
    assignment.check_manual(lists, context.brokers)
    if len(lists[0]) != len(node.partitions[0]):
        raise InvalidReplicaAssignment(
            f"{len(lists[0])} replicas for the new partitions, but partition 0 has {len(node.partitions[0])}"
        )
    return dict(enumerate(lists, existing))


def _check_alive(context: Context, name: str) -> None:
    # Before any read: a client's topic name may be an invalid path, or the path of another node.
    if name not in context.topics:
        raise _unknown(name)


def _unknown(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"topic {name!r} does not exist")


def _being_deleted(name: str) -> InvalidTopic:
    return InvalidTopic(f"topic {name!r} is being deleted")


# --- settings ---------------------------------------------------------------------------------


def alter_configs(
    context: Context, request: m.AlterConfigsRequest, results: dict[str, m.AdminResult]
) -> Steps[None]:
    """Change settings of each topic; answered when they are in the store, the replicas get them at once."""

    def alter(name: str, changes: Mapping[str, str | None]) -> Steps[None]:
        _check_alive(context, name)
        if name in context.deletions:
            raise _being_deleted(name)
        path = layout.topic_config_path(name)
        attempts = 0

        def decide(read: Outcome) -> tuple[Write, ...]:
            nonlocal attempts
            if attempts:
                mark("configs: another writer was faster, or the reply was lost")
            settings = layout.parse_topic_config(read.data) if read.stat is not None else {}
            merged = {**settings, **changes}
            wanted = {key: value for key, value in merged.items() if value is not None}
            LogConfig.from_kafka(wanted)
            if request.validate_only or wanted == settings:
                return ()  # nothing to change, or written already and only the reply was lost
            attempts += 1
            data, prefix = layout.encode_config_change(name), layout.CONFIG_CHANGE_PREFIX
            return (
                put(path, layout.encode_topic_config(wanted), read.version),
                Create(prefix, data, sequential=True, make_parents=True),
            )

        yield from write_unchanged(context, [Get(path)], decide)

    yield from one_by_one(request.topics, results, alter)


def config_changes_noticed(context: Context) -> Steps[None]:
    """React to `/config/changes`: read the named settings again, remove expired notifications."""
    notices = yield from read_notices(context, layout.CONFIG_CHANGES_PATH)
    seen, now_ms = context.config_changes, context.now()
    expired: list[Notice] = []
    for notice in notices:
        if notice.path not in seen:
            topic = context.parsed(notice.path, notice.outcome(), layout.parse_config_change)
            if topic in context.topics and not context.is_being_deleted(topic):
                yield from topic_config_changed(context, topic)
            seen[notice.path] = now_ms  # only now: an event that starts again must not find it done
        elif now_ms - seen[notice.path] > CHANGE_EXPIRATION_MS:
            expired.append(notice)
    if expired:
        mark("configs: expired notifications are removed")
    yield from remove_notices(context, expired)
    for path in sorted(seen.keys() - {notice.path for notice in notices if notice not in expired}):
        del seen[path]


def note_config_changes(context: Context) -> Steps[None]:
    """Record the existing notifications and set the watch; a takeover reads all settings anyway."""
    notices = yield from read_notices(context, layout.CONFIG_CHANGES_PATH)
    context.config_changes = {notice.path: context.now() for notice in notices}
