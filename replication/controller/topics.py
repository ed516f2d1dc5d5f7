"""Topics as the store has them: which exist, where their replicas are, how they are configured.

A topic may be made by this controller, by a tool that writes the store directly, or by a controller
that died half-way. All three look the same here: a topic node appears, and its partitions get the
states that they lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.config import LogConfig
from logstore.disk.errors import InvalidTopic
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.errors import InvalidConfig
from logstore.replication.controller import topic_deletion
from logstore.replication.controller.context import Context, Steps, Topic
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.partition_states import after_failures, settle
from logstore.replication.controller.reassignment import assignment_in
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Children, Get, Outcome


def list_topics(context: Context) -> Steps[list[str]]:
    """The names under `/brokers/topics` that are topic names; the watch is set again."""
    (listing,) = yield (Children(layout.TOPICS_PATH, watch=True),)
    if listing.stat is None:
        raise MetadataConflict(f"{layout.TOPICS_PATH} is gone")
    for path in list(context.unreadable):
        directory, _, name = path.rpartition("/")
        if directory == layout.TOPICS_PATH and name not in listing.children:
            del context.unreadable[path]
    names = []
    for name in listing.children:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            context.unreadable[layout.topic_path(name)] = str(error)
            continue
        names.append(name)
    return names


def load_topics(context: Context, names: Iterable[str]) -> Steps[list[TopicPartition]]:
    """Read these topics' nodes and settings, watches set again. Returns their partitions without a state.

    Not those that are new to us: an event that starts again has met them, and must settle them still.
    """
    wanted = list(names)
    nodes = yield tuple(Get(layout.topic_path(name), watch=True) for name in wanted)
    configs = yield tuple(Get(layout.topic_config_path(name), watch=True) for name in wanted)
    stateless: list[TopicPartition] = []
    is_in_doubt = False
    for name, node, config in zip(wanted, nodes, configs, strict=True):
        assignment = _parse_topic(context, name, node)
        if assignment is None:
            if node.stat is None and name not in context.deletions:
                context.lose_topic(name)
            continue
        settings = _parse_config(context, name, config)
        if name in context.topics and context.topics[name].topic_id != assignment.topic_id:
            # Replaced behind our back: the states that we know are of its former namesake.
            context.lose_topic(name)
        is_in_doubt |= topic_deletion.is_in_doubt(context, name, assignment.topic_id)
        context.topics[name] = Topic(assignment.topic_id, settings)
        for partition in assignment.partitions:
            topic_partition = TopicPartition(name, partition)
            # A list that changed or shrank is a reassignment's or a deletion's business.
            if topic_partition not in context.replicas:
                context.learn_assignment(topic_partition, assignment_in(assignment, partition))
            if topic_partition not in context.states:
                stateless.append(topic_partition)
    if is_in_doubt:
        yield from topic_deletion.requests_changed(context)
    return stateless


def _parse_topic(context: Context, name: str, node: Outcome) -> layout.TopicAssignment | None:
    path = layout.topic_path(name)
    context.unreadable.pop(path, None)
    if node.stat is None:
        return None
    try:
        return layout.parse_topic(node.data)
    except CorruptMetadata as error:
        context.unreadable[path] = str(error)
        return None


def _parse_config(context: Context, name: str, node: Outcome) -> Mapping[str, str]:
    """The settings that brokers will understand; any other is reported and has no effect.

    A broker takes no role with a setting that makes no sense to it, so one word written by a tool could
    take the topic's leaders away. A node that cannot be read at all changes nothing.
    """
    path = layout.topic_config_path(name)
    context.unreadable.pop(path, None)
    if node.stat is None:
        return {}
    known = context.topics.get(name)
    try:
        settings = layout.parse_topic_config(node.data)
    except CorruptMetadata as error:
        context.unreadable[path] = str(error)
        return known.config if known is not None else {}
    usable: dict[str, str] = {}
    for setting, value in sorted(settings.items()):
        try:
            LogConfig.from_kafka({**usable, setting: value})
        except InvalidConfig as error:
            context.unreadable[path] = str(error)
        else:
            usable[setting] = value
    return usable


def topics_changed(context: Context) -> Steps[None]:
    """React to names that appeared in, or vanished from, `/brokers/topics`."""
    names = yield from list_topics(context)
    # Those that are to be deleted have a watch of their own, and that is the deletion's business.
    for topic in sorted(context.topics.keys() - set(names) - context.deletions.keys()):
        context.lose_topic(topic)
    unsettled = {each.topic for each in context.replicas.keys() - context.states.keys()}
    wanted = [name for name in names if name not in context.topics or name in unsettled]
    stateless = yield from load_topics(context, wanted)
    yield from settle(context, stateless, after_failures(context))


def topic_changed(context: Context, topic: str) -> Steps[None]:
    """React to a topic node that was written: only partitions that are new matter here."""
    if topic in context.deletions:
        yield from topic_deletion.topic_changed(context, topic)
        if topic in context.deletions or topic not in context.topics:
            return
    stateless = yield from load_topics(context, [topic])
    yield from settle(context, stateless, after_failures(context))


def topic_config_changed(context: Context, topic: str) -> Steps[None]:
    """Hand a topic's new settings to its replicas; they may allow an election, or ask for another level."""
    yield from load_topics(context, [topic])
    partitions = context.partitions_of(topic)
    context.announce(partitions)
    yield from settle(context, partitions, after_failures(context))
