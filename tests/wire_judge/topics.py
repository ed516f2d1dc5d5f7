"""Stories of topics: creation, change, deletion, settings, metadata, replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from logstore.broker.wire import types as t
from tests.wire_judge.known import UNKNOWN_ID
from tests.wire_judge.stories import Draw, Known, Step

_TOPIC, _BROKER = 2, 4
_SETTINGS: Final = (
    *(("retention.ms", "5"), ("retention.ms", "-1"), ("retention.ms", "-2"), ("retention.ms", "x")),
    *(("retention.ms", ""), ("retention.ms", None), ("cleanup.policy", "compact,delete")),
    *(("cleanup.policy", "compact"), ("cleanup.policy", "none"), ("cleanup.policy", "")),
    *(("compression.type", "zstd"), ("compression.type", "brotli"), ("no.such.setting", "1")),
    *(("min.insync.replicas", "0"), ("min.insync.replicas", "2"), ("segment.bytes", "1048576")),
    *(("segment.bytes", "13"), ("max.message.bytes", "-1"), ("max.message.bytes", "0")),
    *(("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "logappendtime")),
    *(("unclean.leader.election.enable", "true"), ("unclean.leader.election.enable", "yes")),
    *(("min.cleanable.dirty.ratio", "0.1"), ("min.cleanable.dirty.ratio", "1.5")),
    *(("flush.ms", " 7 "), ("index.interval.bytes", "0"), ("message.format.version", "2.0")),
    *(("delete.retention.ms", "9999999999999999999999"), ("compression.gzip.level", "12")),
    *(("min.compaction.lag.ms", "100"), ("max.compaction.lag.ms", "10"), ("preallocate", "TRUE")),
    ("message.downconversion.enable", "false"),
)
_OF_BROKER: Final = (
    *(("log.retention.ms", "-1"), ("log.cleaner.threads", "1"), ("broker.id", "7"), ("no.such.setting", "1")),
    *(("message.max.bytes", "x"), ("log.cleaner.backoff.ms", "15000"), ("num.io.threads", "0")),
)


def _topics(draw: Draw) -> list[str]:
    return [draw.name("a"), draw.name("b")]


def _topic(draw: Draw) -> str:
    odd = (draw.name("nowhere"), "", "..", "a/b", "x" * 250, "__consumer_offsets")
    return draw.usual(draw.pick(*_topics(draw)), *odd, of=0.85)


def _creatable(draw: Draw, name: str) -> t.CreateTopicsRequestCreatableTopic:
    """Return a topic to create in which mostly nothing, and never more than one thing, is wrong."""
    made = t.CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=draw.pick(1, 2), replication_factor=1
    )
    wrong = draw.usual("", "partitions", "factor", "replicas", "numbers", "setting", "both", of=0.4)
    if wrong == "partitions":
        made.num_partitions = draw.pick(-1, 0, -2)
    elif wrong == "factor":
        made.replication_factor = draw.pick(-1, 0, 2, -3)
    elif wrong == "setting":
        key, value = draw.pick(*_SETTINGS)
        made.configs = [t.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)]
    elif wrong:
        lists = draw.pick([[1]], [[1], [1]])
        if wrong == "replicas":
            lists = draw.pick([[9]], [[1, 1]], [[]], [[-1]])
        made.assignments = [
            t.CreateTopicsRequestCreatableReplicaAssignment(
                partition_index=number + (wrong == "numbers"), broker_ids=replicas
            )
            for number, replicas in enumerate(lists)
        ]
        if wrong != "both":
            made.num_partitions = made.replication_factor = -1
    return made


def create(draw: Draw) -> Step:
    names = dict.fromkeys(_topic(draw) for _ in range(draw.number(1, 2)))
    request = t.CreateTopicsRequest(
        topics=[
            _creatable(draw, name)
            if name in _topics(draw)
            else t.CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in names
        ],
        timeout_ms=30_000,
        validate_only=draw.chance(0.2),
    )

    def learn(response: Any, known: Known) -> None:
        for each in response.topics:
            if each.error_code == 0 and any(each.topic_id):
                known[f"topic {each.name}"] = each.topic_id

    return draw.step(t.CreateTopicsRequest, lambda _: request, learn, least=4)


def grow(draw: Draw) -> Step:
    names = list(dict.fromkeys(_topic(draw) for _ in range(draw.number(1, 2))))
    assigned = draw.usual(None, [], [[1]], [[9]], [[1], [1]], of=0.7)
    request = t.CreatePartitionsRequest(
        topics=[
            t.CreatePartitionsRequestCreatePartitionsTopic(
                name=name,
                count=draw.pick(2, 3, 1, 0, -1),
                assignments=None
                if assigned is None
                else [
                    t.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=each) for each in assigned
                ],
            )
            for name in names
            if name != "__consumer_offsets"
        ],
        timeout_ms=30_000,
        validate_only=draw.chance(0.2),
    )
    return draw.step(t.CreatePartitionsRequest, lambda _: request)


def delete(draw: Draw) -> Step:
    names = [each for each in dict.fromkeys(_topic(draw) for _ in range(2)) if each != "__consumer_offsets"]
    how = draw.usual("name", "id", "both", of=0.5)
    if how != "name":
        names = names[:1]

    def build(known: Known) -> t.DeleteTopicsRequest:
        topics = []
        for name in names:
            topic_id = known.get(f"topic {name}", UNKNOWN_ID) if how in ("id", "both") else bytes(16)
            named = name if how in ("name", "both") else None
            topics.append(t.DeleteTopicsRequestDeleteTopicState(name=named, topic_id=topic_id))
        return t.DeleteTopicsRequest(topic_names=names, topics=topics, timeout_ms=30_000)

    return draw.step(t.DeleteTopicsRequest, build)


def metadata(draw: Draw) -> Step:
    """Ask for topics by name or id, or for all; what other stories have left is not compared."""
    names = [each for each in dict.fromkeys(_topic(draw) for _ in range(2)) if each != "__consumer_offsets"]
    how = draw.usual("name", "id", "all", "none", of=0.6)
    least = {"name": 0, "id": 12, "all": 1, "none": 1}[how]
    creates, authorized, version = (
        draw.chance(0.2),
        draw.chance(0.3),
        draw.version(t.MetadataRequest, least=least),
    )
    if version < 4:
        names = [each for each in names if each in _topics(draw)]

    def build(known: Known) -> t.MetadataRequest:
        topics: list[t.MetadataRequestTopic] | None = []
        if how == "name":
            topics = [t.MetadataRequestTopic(name=name) for name in names]
        elif how == "id":
            ids = [known.get(f"topic {name}", UNKNOWN_ID) for name in names]
            topics = [t.MetadataRequestTopic(topic_id=each, name=None) for each in ids]
        elif how == "all":
            topics = None
        return t.MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=creates,
            include_cluster_authorized_operations=authorized,
            include_topic_authorized_operations=authorized,
        )

    def trim(response: Any) -> None:
        if how == "all" or version == 0:
            response.topics = [each for each in response.topics if each.name in _topics(draw)]

    return draw.at(version, build, trim=trim)


def _resource(draw: Draw) -> tuple[int, str]:
    kind = draw.usual(_TOPIC, _BROKER, 1, 0, of=0.8)
    if kind == _BROKER:
        return kind, draw.usual("1", "", "9", "x", of=0.7)
    return kind, draw.usual(*_topics(draw), draw.name("nowhere"), of=0.85) if kind == _TOPIC else "1"


def describe_configs(draw: Draw) -> Step:
    kind, name = _resource(draw)
    keys: list[str] | None = None
    if kind != _TOPIC or draw.chance(0.6):
        pool = _SETTINGS if kind == _TOPIC else _OF_BROKER
        keys = list(dict.fromkeys(draw.pick(*pool)[0] for _ in range(draw.number(0, 3))))
    if kind != _TOPIC and not keys:
        keys = ["no.such.setting"]
    request = t.DescribeConfigsRequest(
        resources=[
            t.DescribeConfigsRequestDescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
        ],
        include_synonyms=draw.chance(0.5),
        include_documentation=draw.chance(0.1),
    )
    return draw.step(t.DescribeConfigsRequest, lambda _: request)


def alter(draw: Draw) -> Step:
    """Set a topic's settings one by one, or all at once; a broker's only to try."""
    kind, name = _resource(draw)
    pool: Sequence[tuple[str, str | None]] = _SETTINGS if kind == _TOPIC else _OF_BROKER
    if name == draw.name("nowhere") or kind not in (_TOPIC, _BROKER):
        pool = (("flush.ms", "7"),)
    pairs = dict(draw.pick(*pool) for _ in range(draw.usual(1, 2) if kind == _TOPIC else 1))
    only_try = kind == _BROKER or draw.chance(0.2)
    if draw.chance(0.2):
        whole = t.AlterConfigsRequest(
            resources=[
                t.AlterConfigsRequestAlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        t.AlterConfigsRequestAlterableConfig(name=key, value=value)
                        for key, value in pairs.items()
                    ],
                )
            ],
            validate_only=only_try,
        )
        return draw.step(t.AlterConfigsRequest, lambda _: whole)
    changes = []
    for key, value in pairs.items():
        operation = draw.usual(0, 1, 2, 3, of=0.6)
        changes.append(
            t.IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
        )
    resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=changes
    )
    resources = [resource, resource] if draw.chance(0.05) else [resource]
    single = t.IncrementalAlterConfigsRequest(resources=resources, validate_only=only_try)
    return draw.step(t.IncrementalAlterConfigsRequest, lambda _: single)


def elect(draw: Draw) -> Step:
    part = t.ElectLeadersRequestTopicPartitions(topic=_topic(draw), partitions=[draw.usual(0, 1, 9, -1)])
    request = t.ElectLeadersRequest(election_type=draw.pick(0, 1), topic_partitions=[part], timeout_ms=10_000)
    return draw.step(t.ElectLeadersRequest, lambda _: request)


def reassign(draw: Draw) -> Step:
    replicas = draw.pick([1], None, [9], [1, 1], [], [-1], [1, 9])
    part = t.AlterPartitionReassignmentsRequestReassignablePartition(
        partition_index=draw.usual(0, 1, 9), replicas=replicas
    )
    topic = t.AlterPartitionReassignmentsRequestReassignableTopic(name=_topic(draw), partitions=[part])
    request = t.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)
    return draw.step(t.AlterPartitionReassignmentsRequest, lambda _: request)


def list_reassignments(draw: Draw) -> Step:
    topic = t.ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(
        name=_topic(draw), partition_indexes=[draw.usual(0, 1, 9)]
    )
    request = t.ListPartitionReassignmentsRequest(topics=draw.usual([topic], None, []))
    return draw.step(t.ListPartitionReassignmentsRequest, lambda _: request)


def log_dirs(draw: Draw) -> Step:
    names = [each for each in dict.fromkeys(_topic(draw) for _ in range(2)) if each != "__consumer_offsets"]
    asked = [
        t.DescribeLogDirsRequestDescribableLogDirTopic(topic=name, partitions=[draw.usual(0, 1, 9)])
        for name in names
    ]
    request = t.DescribeLogDirsRequest(topics=asked)

    def learn(response: Any, known: Known) -> None:
        for each in response.results:
            known["log dir"] = each.log_dir

    return draw.step(t.DescribeLogDirsRequest, lambda _: request, learn)


def move(draw: Draw) -> Step:
    """Ask for replicas in a log dir: where they are, or where none is."""
    names = [each for each in dict.fromkeys(_topic(draw) for _ in range(2)) if each != "__consumer_offsets"]
    path = draw.usual(None, "/nowhere", "relative", "", of=0.5)
    topics = [
        t.AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=name, partitions=[draw.usual(0, 1, 9, -1)])
        for name in names
    ]

    def build(known: Known) -> t.AlterReplicaLogDirsRequest:
        chosen = known.get("log dir", "/nowhere") if path is None else path
        return t.AlterReplicaLogDirsRequest(
            dirs=[t.AlterReplicaLogDirsRequestAlterReplicaLogDir(path=chosen, topics=topics)]
        )

    return draw.step(t.AlterReplicaLogDirsRequest, build)


STEPS: Final = (
    *(create, create, create, grow, grow, delete, delete, metadata, metadata, metadata),
    *(describe_configs, describe_configs, alter, alter, alter, elect, reassign, list_reassignments, log_dirs),
    *(log_dirs, move),
)


def story(draw: Draw) -> list[Step]:
    """Draw a story of topics."""
    return [create(draw)] + [draw.pick(*STEPS)(draw) for _ in range(draw.number(2, 11))]
