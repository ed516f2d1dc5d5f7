"""Where the cluster's metadata lives in the store, and what each node holds: Kafka's paths and JSON.

    /brokers/ids/<id>                        ephemeral    a live broker; created_txid is its epoch
    /brokers/topics/<t>                      persistent   topic id, replicas of each partition
    /brokers/topics/<t>/partitions/<p>/state persistent   leader, epochs, ISR; written conditionally
    /controller                              ephemeral    who the controller is
    /controller_epoch                        persistent   how many controllers there were, as text
    /config/topics/<t>                       persistent   settings that differ from the defaults
    /config/brokers/<default>                persistent   settings of all brokers, changed while they run
    /admin/preferred_replica_election        persistent   a tool's wish: these partitions go back home
    /isr_change_notification/isr_change_<n>  sequential   partitions whose state somebody else wrote
    /admin/reassign_partitions               transient    replicas that partitions are to have
    /config/changes/config_change_<n>        sequential   whose settings changed, for those who watch
    /admin/delete_topics/<t>                 persistent   a topic that is to be deleted, until it is gone
    /log_dir_event_notification/log_dir_event_<n>         sequential, a broker whose log dir failed
    /cluster/id                              persistent   which cluster this is
    /latest_producer_id_block                persistent   the producer ids that were handed out last

Fields beyond Kafka's, which its readers skip: `clean` and `continues` in a registration (what this
broker had acknowledged was not lost when it last stopped, nor since it had one of those epochs),
`empty` and `damaged` there (a log dir that held nothing, and logs that it cannot serve) and
`isr_broker_epochs` in a state node (which incarnation of each ISR member is known to hold every
committed record: without it, a controller that takes over could not tell a member from its own
restarted, perhaps emptier, successor), `min_insync`, `eligible` and `eligible_broker_epochs` there
(`controller/election.py`), and in a topic node, while a partition is being reassigned,
`original_replicas` (its list before, in its order) and `leaving_replicas` (brokers that have not
confirmed the deletion of a replica that they are to have no more).

Parsing is liberal (unknown fields, numbers as text, missing optional fields); writing is canonical:
one value, one text. What cannot be understood raises `CorruptMetadata` and is never overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import Durability
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.errors import CorruptMetadata

BROKER_IDS_PATH = "/brokers/ids"
TOPICS_PATH = "/brokers/topics"
CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
TOPIC_CONFIGS_PATH = "/config/topics"
BROKER_DEFAULTS_PATH = "/config/brokers/<default>"
PREFERRED_ELECTION_PATH = "/admin/preferred_replica_election"
ISR_NOTIFICATIONS_PATH = "/isr_change_notification"
ISR_NOTIFICATION_PREFIX = f"{ISR_NOTIFICATIONS_PATH}/isr_change_"
REASSIGNMENT_PATH = "/admin/reassign_partitions"
DELETE_TOPICS_PATH = "/admin/delete_topics"
CONFIG_CHANGES_PATH = "/config/changes"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES_PATH}/config_change_"
CLUSTER_ID_PATH = "/cluster/id"
PRODUCER_IDS_PATH = "/latest_producer_id_block"
LOG_DIR_EVENTS_PATH = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS_PATH}/log_dir_event_"

UNKNOWN_BROKER_EPOCH = -1
"""Nobody recorded which incarnation this ISR member is (a node that Kafka wrote)."""

LOST_BROKER_EPOCH = -2
"""This ISR member came back without all that it had acknowledged."""

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS_PATH}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS_PATH}/{topic}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS_PATH}/{topic}"


def partition_state_path(topic_partition: TopicPartition) -> str:
    return f"{TOPICS_PATH}/{topic_partition.topic}/partitions/{topic_partition.partition}/state"


# --- what the nodes hold ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/<id>`: where a broker listens.

    `clean`: nothing acknowledged was lost when it last stopped; False when it cannot be told. `empty`: one of
    its log dirs held nothing at all, so that it may have lost what was synced too.
    `rack` is empty for none.
    `continues`: broker epochs that this very process had before its session ran out: it never
    stopped since, so it lost nothing of what it held as any of them.
    `damaged`: replicas whose log it found damaged when it started: of these it lost something.
    """

    host: str
    port: int
    jmx_port: int = -1
    timestamp_ms: int = -1
    clean: bool = False
    continues: tuple[int, ...] = ()
    rack: str = ""
    empty: bool = False
    damaged: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/<t>`: the replicas of each partition, preferred one first."""

    topic_id: str
    partitions: Mapping[int, tuple[int, ...]]
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    original_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    leaving_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class Eligible(NamedTuple):
    """A replica outside the ISR that holds every committed record, as this incarnation."""

    replica: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """`…/state`: who leads a partition, since which decision, and who is in sync.

    `isr_broker_epochs` is parallel to `isr`; `recovering` marks a leader that was elected outside
    the ISR and has not reported since; for `durability` and `all_synced` see `durability.py`. While fewer
    than `min_insync` (0: any) are in the ISR, the high watermark stands, and `eligible` are those outside
    it that may lead too (`controller/election.py`). The node's version is the partition epoch.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    isr_broker_epochs: tuple[int, ...] = ()
    recovering: bool = False
    durability: Durability = Durability.REPLICATED
    all_synced: bool = False
    min_insync: int = 0
    eligible: tuple[Eligible, ...] = ()

    def broker_epoch_of(self, member: int) -> int:
        """The incarnation of this ISR member that holds every committed record."""
        return self.isr_broker_epochs[self.isr.index(member)]


class ProducerIdBlock(NamedTuple):
    """Producer ids that one broker may hand out: `first` to `last`, both of them.

    `writer` (ours) tells two lives of one broker apart.
    """

    broker_id: int
    first: int
    last: int
    writer: str = ""


# --- writing ----------------------------------------------------------------------------------


def _encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def encode_broker(registration: BrokerRegistration) -> bytes:
    value: dict[str, object] = {
        "version": 1,
        "host": registration.host,
        "port": registration.port,
        "jmx_port": registration.jmx_port,
        "timestamp": str(registration.timestamp_ms),
        "clean": registration.clean,
    }
    if registration.continues:
        value["continues"] = list(registration.continues)
    if registration.empty:
        value["empty"] = True
    if registration.damaged:
        value["damaged"] = _list_of(registration.damaged)
    if registration.rack:
        # Version 3 is the first with racks, and its readers go by the endpoints.
        value["version"] = 3
        value["endpoints"] = [f"PLAINTEXT://{registration.host}:{registration.port}"]
        value["rack"] = registration.rack
    return _encode(value)


def encode_topic(topic: TopicAssignment) -> bytes:
    def by_partition(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
        return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}

    value: dict[str, object] = {
        "version": 3,
        "topic_id": topic.topic_id,
        "partitions": by_partition(topic.partitions),
        "adding_replicas": by_partition(topic.adding_replicas),
        "removing_replicas": by_partition(topic.removing_replicas),
    }
    if topic.original_replicas:
        value["original_replicas"] = by_partition(topic.original_replicas)
    if topic.leaving_replicas:
        value["leaving_replicas"] = by_partition(topic.leaving_replicas)
    return _encode(value)


def encode_state(state: LeaderAndIsr) -> bytes:
    value: dict[str, object] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovering:
        value["leader_recovery_state"] = 1
    if state.isr_broker_epochs:
        value["isr_broker_epochs"] = list(state.isr_broker_epochs)
    if state.durability is not Durability.REPLICATED:
        value["durability"] = state.durability.value
        value["all_synced"] = state.all_synced
    if state.min_insync:
        value["min_insync"] = state.min_insync
    if state.eligible:
        value["eligible"] = [each.replica for each in state.eligible]
        value["eligible_broker_epochs"] = [each.broker_epoch for each in state.eligible]
    return _encode(value)


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    return _encode({"version": 1, "brokerid": broker_id, "timestamp": str(now_ms)})


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def encode_log_dir_event(broker_id: int) -> bytes:
    """`event` 1, the only one there is: a log dir of this broker failed."""
    return _encode({"version": 1, "broker": broker_id, "event": 1})


def encode_reassignment(wanted: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
    partitions = [
        {"topic": each.topic, "partition": each.partition, "replicas": list(wanted[each])}
        for each in sorted(wanted)
    ]
    return _encode({"version": 1, "partitions": partitions})


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """A list of partitions: what a preferred election, and an ISR notification, holds."""
    return _encode({"version": 1, "partitions": _list_of(partitions)})


def _list_of(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": each.topic, "partition": each.partition} for each in partitions]


def encode_config_change(topic: str) -> bytes:
    return _encode({"version": 2, "entity_path": f"topics/{topic}"})


def encode_topic_config(config: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": {name: config[name] for name in sorted(config)}})


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def encode_producer_ids(block: ProducerIdBlock) -> bytes:
    value: dict[str, object] = {
        "version": 1,
        "broker": block.broker_id,
        "block_start": str(block.first),
        "block_end": str(block.last),
    }
    if block.writer:
        value["writer"] = block.writer
    return _encode(value)


# --- parsing ----------------------------------------------------------------------------------


class _Fields:
    """The fields of one JSON object, asked for by name and type; every complaint names the node."""

    def __init__(self, data: bytes | dict[str, Any], what: str) -> None:
        self._what = what
        try:
            value = json.loads(data.decode()) if isinstance(data, bytes) else data
        except (ValueError, RecursionError) as error:
            raise CorruptMetadata(f"{what} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CorruptMetadata(f"{what} is not a JSON object")
        self._value: dict[str, Any] = value

    def integer(self, name: str, default: int | None = None) -> int:
        return self._integer(name, self._value.get(name, default))

    def text(self, name: str, default: str | None = None, *, or_null: bool = False) -> str:
        value = self._value.get(name, default)
        if or_null and value is None:
            return default or ""
        if not isinstance(value, str):
            raise CorruptMetadata(f"{self._what} has no text in {name!r}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._value.get(name, default)
        if not isinstance(value, bool):
            raise CorruptMetadata(f"{self._what} has neither true nor false in {name!r}")
        return value

    def brokers(self, name: str, *, optional: bool = False) -> tuple[int, ...]:
        return self._brokers(name, self._value.get(name, [] if optional else None))

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._value.get(name, [])
        if not isinstance(value, list):
            raise CorruptMetadata(f"{self._what} has no list in {name!r}")
        return tuple(self._integer(name, item) for item in value)

    def replicas(self, name: str, *, optional: bool = False) -> dict[int, tuple[int, ...]]:
        value = self._value.get(name, {} if optional else None)
        if not isinstance(value, dict):
            raise CorruptMetadata(f"{self._what} has no object in {name!r}")
        parsed = {self._integer(name, key): self._brokers(name, value[key]) for key in value}
        if any(partition < 0 for partition in parsed):
            raise CorruptMetadata(f"{self._what} has a negative partition in {name!r}")
        return {partition: parsed[partition] for partition in sorted(parsed)}

    def objects(self, name: str) -> list[_Fields]:
        value = self._value.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise CorruptMetadata(f"{self._what} has no list of objects in {name!r}")
        return [_Fields(item, self._what) for item in value]

    def text_list(self, name: str) -> tuple[str, ...]:
        value = self._value.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CorruptMetadata(f"{self._what} has no list of texts in {name!r}")
        return tuple(dict.fromkeys(value))

    def texts(self, name: str) -> dict[str, str]:
        value = self._value.get(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise CorruptMetadata(f"{self._what} has no object of texts in {name!r}")
        return dict(value)

    def topic_partitions(self, name: str, *, optional: bool = False) -> tuple[TopicPartition, ...]:
        value = self._value.get(name, [] if optional else None)
        if not isinstance(value, list):
            raise CorruptMetadata(f"{self._what} has no list in {name!r}")
        found: dict[TopicPartition, None] = {}
        for item in value:
            if not isinstance(item, dict) or not isinstance(item.get("topic"), str):
                raise CorruptMetadata(f"{self._what} has an item without a topic in {name!r}")
            found[TopicPartition(item["topic"], self._integer("partition", item.get("partition")))] = None
        return tuple(found)

    def _brokers(self, name: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise CorruptMetadata(f"{self._what} has no list of brokers in {name!r}")
        brokers = tuple(self._integer(name, item) for item in value)
        if len(set(brokers)) != len(brokers) or any(broker < 0 for broker in brokers):
            raise CorruptMetadata(f"{self._what} repeats a broker or names a negative one in {name!r}")
        return brokers

    def _integer(self, name: str, value: object) -> int:
        # bool is an int to Python, and int() takes digits that no Kafka ever wrote.
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        raise CorruptMetadata(f"{self._what} has no number in {name!r}")


def parse_broker(data: bytes) -> BrokerRegistration:
    fields = _Fields(data, "the broker registration")
    return BrokerRegistration(
        host=fields.text("host"),
        port=fields.integer("port"),
        jmx_port=fields.integer("jmx_port", -1),
        timestamp_ms=fields.integer("timestamp", -1),
        clean=fields.truth("clean", False),
        empty=fields.truth("empty", False),
        continues=fields.integers("continues"),
        damaged=fields.topic_partitions("damaged", optional=True),
        rack=fields.text("rack", "", or_null=True),
    )


def parse_topic(data: bytes) -> TopicAssignment:
    """Versions 1 (no topic id: the empty text), 2 and 3."""
    fields = _Fields(data, "the topic node")
    partitions = fields.replicas("partitions")
    if not all(partitions.values()):
        raise CorruptMetadata("the topic node has a partition without replicas")
    return TopicAssignment(
        topic_id=fields.text("topic_id", ""),
        partitions=partitions,
        adding_replicas=fields.replicas("adding_replicas", optional=True),
        removing_replicas=fields.replicas("removing_replicas", optional=True),
        original_replicas=fields.replicas("original_replicas", optional=True),
        leaving_replicas=fields.replicas("leaving_replicas", optional=True),
    )


def _durability(word: str) -> Durability:
    try:
        return Durability(word)
    except ValueError as error:
        raise CorruptMetadata(f"the partition state has a durability of {word!r}") from error


def parse_state(data: bytes) -> LeaderAndIsr:
    fields = _Fields(data, "the partition state")
    eligible = fields.brokers("eligible", optional=True)
    eligible_epochs = fields.integers("eligible_broker_epochs")
    state = LeaderAndIsr(
        leader=fields.integer("leader"),
        leader_epoch=fields.integer("leader_epoch"),
        isr=fields.brokers("isr"),
        controller_epoch=fields.integer("controller_epoch"),
        isr_broker_epochs=fields.integers("isr_broker_epochs"),
        recovering=fields.integer("leader_recovery_state", 0) == 1,
        durability=_durability(fields.text("durability", Durability.REPLICATED.value)),
        all_synced=fields.truth("all_synced", False),
        min_insync=fields.integer("min_insync", 0),
    )
    if state.leader < NO_LEADER or state.leader_epoch < 0 or not state.isr:
        raise CorruptMetadata("the partition state has a negative leader or epoch, or an empty ISR")
    if len(state.isr_broker_epochs) != len(state.isr):
        # Kafka rewrote the ISR without knowing of our field: what it recorded is void.
        unknown = (UNKNOWN_BROKER_EPOCH,) * len(state.isr)
        return replace(state, isr_broker_epochs=unknown)
    is_too_small = len(state.isr) < state.min_insync
    if is_too_small and len(eligible) == len(eligible_epochs) and not set(eligible) & set(state.isr):
        return replace(state, eligible=tuple(map(Eligible, eligible, eligible_epochs)))
    return state  # nobody is remembered, or fields of ours were left behind by such a writer


def parse_controller(data: bytes) -> int | None:
    """The broker that the node names; None if it cannot be understood, which counts as nobody."""
    try:
        return _Fields(data, "the controller node").integer("brokerid")
    except CorruptMetadata:
        return None


def parse_controller_epoch(data: bytes) -> int:
    text = data.decode("ascii", "replace").strip()
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise CorruptMetadata(f"{CONTROLLER_EPOCH_PATH} holds {text[:40]!r}, which is no epoch")
    return int(text)


def parse_log_dir_event(data: bytes) -> int:
    """The broker whose log dir failed."""
    return _Fields(data, "the log dir event").integer("broker")


def parse_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """The lists as they were written: whether they make sense is for the controller to say."""
    wanted = {}
    for entry in _Fields(data, "the reassignment request").objects("partitions"):
        topic_partition = TopicPartition(entry.text("topic"), entry.integer("partition"))
        wanted[topic_partition] = entry.integers("replicas")
    return wanted


def parse_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a preferred election or an ISR notification, each once, in their order."""
    return _Fields(data, "the list of partitions").topic_partitions("partitions")


def parse_broker_defaults(data: bytes) -> dict[str, str]:
    """Settings of all brokers, as the tools change them while brokers run."""
    return _Fields(data, "the brokers' settings").texts("config")


def parse_delete_topics(data: bytes) -> tuple[str, ...]:
    """The old form of a request: topics listed in `/admin/delete_topics` itself."""
    return _Fields(data, "the topics to delete").text_list("topics")


def parse_config_change(data: bytes) -> str | None:
    """The topic whose settings changed; None if they are another entity's.

    Version 2 has `entity_path`, version 1 type and name; before that it was the topic's name, bare or as
    a JSON text.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return text.strip('"') or None
    fields = _Fields(data, "the config change")
    if fields.integer("version", 1) == 1:
        return fields.text("entity_name") if fields.text("entity_type") == "topics" else None
    kind, _, name = fields.text("entity_path").partition("/")
    return name if kind == "topics" and name and "/" not in name else None


def parse_topic_config(data: bytes) -> dict[str, str]:
    return _Fields(data, "the topic config").texts("config")


def parse_cluster_id(data: bytes) -> str:
    fields = _Fields(data, "the cluster's id")
    cluster_id = fields.text("id")
    if not cluster_id:
        raise CorruptMetadata("the cluster's id is empty")
    return cluster_id


def parse_producer_ids(data: bytes) -> ProducerIdBlock:
    fields = _Fields(data, "the block of producer ids")
    block = ProducerIdBlock(
        fields.integer("broker"),
        fields.integer("block_start"),
        fields.integer("block_end"),
        fields.text("writer", ""),
    )
    if not 0 <= block.first <= block.last:
        raise CorruptMetadata(f"the block of producer ids goes from {block.first} to {block.last}")
    return block
