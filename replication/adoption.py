"""Take over the metadata of a Kafka cluster from its directories. Pure.

    __cluster_metadata (KRaft)      records ─▶ Image: topics, ids, partitions, ISR, settings
    partition directories (older)   facts of each directory ─▶ Image, with the ISR as far as the logs tell
    Image ─▶ the nodes of a metadata store of ours

No partition gets a leader: the controller elects one from the ISR when the brokers are there. A leader epoch
is never below one that a log has seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from logstore.disk.topic_partition import TopicPartition
from logstore.format.state_records import Decoded
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr, ProducerIdBlock, TopicAssignment

_TOPIC_RESOURCE: Final = 2
_UNCHANGED: Final = -2
_FIRST_CONTROLLER_EPOCH: Final = 0
_PRODUCER_ID_BLOCK: Final = 1000
"""As many ids a broker of Kafka takes at once."""


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """A partition as Kafka's metadata, or its directories, describe it; `is_moving`: to other replicas."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int = 0
    is_moving: bool = False


@dataclass(slots=True)
class AdoptedTopic:
    """A topic with its settings under Kafka's names."""

    topic_id: str
    partitions: dict[int, AdoptedPartition] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Image:
    """The metadata of a cluster. `notes` list what is not taken over, one sentence each."""

    cluster_id: str
    topics: dict[str, AdoptedTopic] = field(default_factory=dict)
    next_producer_id: int = 0
    notes: list[str] = field(default_factory=list)


class Directory(NamedTuple):
    """The facts in a partition directory: broker, topic id, newest epoch, log end, largest producer id.

    `undecided_since` is the first offset of a transaction that has not ended.
    """

    broker_id: int
    topic_partition: TopicPartition
    topic_id: str | None
    latest_epoch: int
    log_end_offset: int
    largest_producer_id: int = -1
    undecided_since: int | None = None


def image_of_records(cluster_id: str, records: Iterable[Decoded]) -> Image:
    """Replay the records of `__cluster_metadata`; those of a transaction count once it has ended."""
    image = Image(cluster_id)
    names: dict[str, str] = {}
    pending: list[Decoded] | None = None
    for record in records:
        if record.name == "BeginTransactionRecord":
            pending = []
        elif record.name == "AbortTransactionRecord":
            pending = None
        elif record.name == "EndTransactionRecord":
            for each in pending or ():
                _apply(image, names, each)
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            _apply(image, names, record)
    moving = sorted(
        f"{name}-{number}"
        for name, topic in image.topics.items()
        for number, partition in topic.partitions.items()
        if partition.is_moving
    )
    if moving:
        image.notes.append(f"being reassigned, all listed replicas are kept: {', '.join(moving)}")
    return image


def _apply(image: Image, names: dict[str, str], record: Decoded) -> None:
    data: Mapping[str, Any] = record.data or {}
    topic = image.topics.get(names.get(data.get("topicId", ""), ""))
    match record.name:
        case "TopicRecord":
            image.topics[data["name"]] = AdoptedTopic(data["topicId"])
            names[data["topicId"]] = data["name"]
        case "RemoveTopicRecord":
            image.topics.pop(names.pop(data["topicId"], ""), None)
        case "PartitionRecord" if topic is not None:
            topic.partitions[data["partitionId"]] = AdoptedPartition(
                tuple(data["replicas"]),
                tuple(data["isr"]),
                data["leaderEpoch"],
                bool(data["addingReplicas"] or data["removingReplicas"]),
            )
        case "PartitionChangeRecord" if topic is not None and data["partitionId"] in topic.partitions:
            topic.partitions[data["partitionId"]] = _changed(topic.partitions[data["partitionId"]], data)
        case "ConfigRecord" if data["resourceType"] == _TOPIC_RESOURCE:
            owner = image.topics.get(data["resourceName"])
            if owner is not None and data["value"] is None:
                owner.settings.pop(data["name"], None)
            elif owner is not None:
                owner.settings[data["name"]] = data["value"]
        case "ConfigRecord" if data["value"] is not None:
            image.notes.append(f"a broker's setting is not taken over: {data['name']}={data['value']}")
        case "ProducerIdsRecord":
            image.next_producer_id = max(image.next_producer_id, data["nextProducerId"])
        case "ClientQuotaRecord" | "UserScramCredentialRecord" | "AccessControlEntryRecord" as kind:
            image.notes.append(f"not taken over: {kind}")


def _changed(partition: AdoptedPartition, data: Mapping[str, Any]) -> AdoptedPartition:
    """Apply a change, whose absent fields stay; a leader that is named begins a leader epoch."""
    moves = data.get("addingReplicas"), data.get("removingReplicas")
    return replace(
        partition,
        replicas=tuple(data.get("replicas") or partition.replicas),
        isr=tuple(data.get("isr") or partition.isr),
        leader_epoch=partition.leader_epoch + (data.get("leader", _UNCHANGED) != _UNCHANGED),
        is_moving=partition.is_moving if moves == (None, None) else any(moves),
    )


def image_of_directories(cluster_id: str, directories: Iterable[Directory]) -> Image:
    """Construct the metadata from the partition directories of all brokers.

    The replicas are the brokers that have the directory, the ISR those whose log goes furthest.
    """
    image = Image(cluster_id)
    found: dict[TopicPartition, list[Directory]] = {}
    for each in directories:
        found.setdefault(each.topic_partition, []).append(each)
    for (name, number), copies in sorted(found.items()):
        topic_id = next((each.topic_id for each in copies if each.topic_id), None)
        if topic_id is None:
            image.notes.append(f"{name}-{number} has no partition.metadata, so no topic id: left out")
            continue
        topic = image.topics.setdefault(name, AdoptedTopic(topic_id))
        if topic_id != topic.topic_id or any(each.topic_id not in (None, topic_id) for each in copies):
            image.notes.append(f"{name}-{number} belongs to another topic of that name: left out")
            continue
        furthest = max((each.latest_epoch, each.log_end_offset) for each in copies)
        topic.partitions[number] = AdoptedPartition(
            tuple(sorted(each.broker_id for each in copies)),
            tuple(
                sorted(
                    each.broker_id for each in copies if (each.latest_epoch, each.log_end_offset) == furthest
                )
            ),
        )
    image.notes.append("topics' settings are not in the directories: set them again")
    return image


def raise_numbers(image: Image, directories: Iterable[Directory]) -> None:
    """Raise leader epochs and producer ids above those that a log has seen.

    The next leader must have a higher epoch. If a new producer had the id of one that a log knows, its first
    batches would be taken for repeats of that one's, and not written.
    """
    for each in directories:
        seen_block = each.largest_producer_id // _PRODUCER_ID_BLOCK
        image.next_producer_id = max(image.next_producer_id, (seen_block + 1) * _PRODUCER_ID_BLOCK)
        topic = image.topics.get(each.topic_partition.topic)
        partition = topic.partitions.get(each.topic_partition.partition) if topic is not None else None
        if topic is not None and partition is not None and each.latest_epoch > partition.leader_epoch:
            raised = replace(partition, leader_epoch=each.latest_epoch)
            topic.partitions[each.topic_partition.partition] = raised


def leave_out_lost(image: Image, directories: Iterable[Directory], brokers: Collection[int]) -> None:
    """Take members out of the ISR whose directory is missing, if another member has one.

    `brokers` are those whose log dirs are here. As the leader, such a member would have an empty log.
    """
    there = {(each.topic_partition, each.broker_id) for each in directories}
    for name, topic in image.topics.items():
        for number, partition in topic.partitions.items():
            name_of = TopicPartition(name, number)
            has_log = [each for each in partition.isr if each not in brokers or (name_of, each) in there]
            if has_log and any((name_of, each) in there for each in has_log):
                topic.partitions[number] = replace(partition, isr=tuple(has_log))


def nodes_of(image: Image) -> dict[str, bytes]:
    """Return the nodes of a metadata store with this image, parents before children."""
    nodes = {layout.CLUSTER_ID_PATH: layout.encode_cluster_id(image.cluster_id)}
    for name, topic in sorted(image.topics.items()):
        if not topic.partitions:
            continue
        replicas = {number: partition.replicas for number, partition in sorted(topic.partitions.items())}
        nodes[layout.topic_path(name)] = layout.encode_topic(TopicAssignment(topic.topic_id, replicas))
        nodes[layout.topic_config_path(name)] = layout.encode_topic_config(topic.settings)
        for number, partition in sorted(topic.partitions.items()):
            state = LeaderAndIsr(NO_LEADER, partition.leader_epoch, partition.isr, _FIRST_CONTROLLER_EPOCH)
            nodes[layout.partition_state_path(TopicPartition(name, number))] = layout.encode_state(state)
    if image.next_producer_id:
        block = ProducerIdBlock(-1, 0, image.next_producer_id - 1)
        nodes[layout.PRODUCER_IDS_PATH] = layout.encode_producer_ids(block)
    return nodes
