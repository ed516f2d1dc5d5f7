"""The nodes of the metadata store: Kafka's paths and JSON.

    /brokers/ids/<id>                        ephemeral    a live broker; created_txid is its epoch
    /brokers/topics/<t>                      persistent   topic id, replicas of each partition
    /brokers/topics/<t>/partitions/<p>/state persistent   leader, epochs, ISR; written conditionally
    /controller                              ephemeral    the controller
    /controller_epoch                        persistent   the number of controllers so far, as text
    /config/topics/<t>                       persistent   settings that differ from the defaults
    /config/brokers/<default>                persistent   dynamic settings of all brokers
    /config/users/<u>                        persistent   credentials of a user, for SCRAM
    /logstore/login_secret                   persistent   ours: makes the salts of unknown users
    /admin/preferred_replica_election        persistent   a tool's request: elect the preferred leaders
    /isr_change_notification/isr_change_<n>  sequential   partitions whose state Kafka's brokers wrote
    /admin/reassign_partitions               transient    requested replicas of partitions
    /config/changes/config_change_<n>        sequential   notifications of changed settings
    /admin/delete_topics/<t>                 persistent   a topic to be deleted, until it is gone
    /log_dir_event_notification/log_dir_event_<n>         sequential, a broker whose log dir failed
    /cluster/id                              persistent   the cluster's id
    /latest_producer_id_block                persistent   the producer ids that were allocated last

Some fields are ours; Kafka's readers skip them:

* a registration: `clean` and `continues` (the broker lost nothing acknowledged when it last stopped, nor
  since it had one of those epochs), `empty` (one of its log dirs held nothing) and `damaged` (logs that it
  cannot serve);
* a state node: `isr_broker_epochs` (the incarnation of each ISR member that holds every committed record;
  without it a new controller could not distinguish a member from its restarted process, which may hold
  fewer records), `min_insync`, `eligible` and `eligible_broker_epochs` (`controller/election.py`);
* a topic node, during a reassignment: `original_replicas` (the list before it, in its order) and
  `leaving_replicas` (brokers that have not confirmed the deletion of their former replica).

Parsing is liberal (unknown fields, numbers as text, missing optional fields); writing is canonical: one
value, one text. Data that cannot be parsed raises `CorruptMetadata` and is never overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import Durability
from logstore.replication.messages import NO_LEADER, Endpoint
from logstore.replication.metastore.errors import CorruptMetadata

BROKER_IDS_PATH = "/brokers/ids"
TOPICS_PATH = "/brokers/topics"
CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
TOPIC_CONFIGS_PATH = "/config/topics"
DEFAULT_ENTITY = "<default>"
BROKER_DEFAULTS_PATH = f"/config/brokers/{DEFAULT_ENTITY}"
USERS_PATH = "/config/users"
LOGIN_SECRET_PATH = "/logstore/login_secret"
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

LONGEST_NAMES = 60_000
"""Bytes of a path that may be names given by users: the embedded store takes paths of 65,535 bytes."""

UNKNOWN_BROKER_EPOCH = -1
"""The incarnation of this ISR member was not recorded (Kafka wrote the node)."""

LOST_BROKER_EPOCH = -2
"""This ISR member came back without some of the records that it had acknowledged."""

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's names of the security protocols, by number."""

_ENDPOINT = re.compile(r"([\w-]+)://(\[[^]]*\]|[^:/]*):(\d{1,5})", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)

T = TypeVar("T")
Replicas: TypeAlias = tuple[int, ...]


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS_PATH}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS_PATH}/{topic}"


def sanitized(name: str) -> str:
    """Return the name of a user or client as Kafka writes it into paths.

    ZooKeeper has no nodes "." and "..": they are written %2E and %2E%2E, which Kafka reads as the same names.
    """
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return quote(name, safe="-_.").replace("~", "%7E")


def is_short_enough(*names: str) -> bool:
    """Whether a path of the metadata store has room for these names of users, clients or resources."""
    return sum(len(sanitized(name)) for name in names) <= LONGEST_NAMES


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS_PATH}/{topic}"


def partition_state_path(topic_partition: TopicPartition) -> str:
    return f"{TOPICS_PATH}/{topic_partition.topic}/partitions/{topic_partition.partition}/state"


# --- what the nodes hold ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/<id>`: where a broker listens.

    `clean`: nothing acknowledged was lost when it last stopped; False if that is unknown.
    `continues`: earlier broker epochs of this same process, whose sessions expired. It has not stopped since,
    so it lost nothing that it held in them.
    `rack` is empty for none.
    `empty`: one of its log dirs held nothing at all, so synced records may be lost too.
    `damaged`: replicas whose log it found damaged when it started, so some of their records are lost.
    `endpoints`: its named listeners, if it has any; `host` and `port` are those of the first.
    `keeps_topics`: as the controller it refuses to delete topics (`delete.topic.enable=false`).
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
    endpoints: tuple[Endpoint, ...] = ()
    keeps_topics: bool = False


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/<t>`: the replicas of each partition, preferred one first."""

    topic_id: str
    partitions: Mapping[int, Replicas]
    adding_replicas: Mapping[int, Replicas] = field(default_factory=dict)
    removing_replicas: Mapping[int, Replicas] = field(default_factory=dict)
    original_replicas: Mapping[int, Replicas] = field(default_factory=dict)
    leaving_replicas: Mapping[int, Replicas] = field(default_factory=dict)


class Eligible(NamedTuple):
    """A replica outside the ISR that holds every committed record, as this incarnation."""

    replica: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """`…/state`: a partition's leader, its epoch, and the replicas in sync.

    `isr_broker_epochs` is parallel to `isr`. `recovering` marks a leader that was elected outside the ISR and
    has not reported since. For `durability` and `all_synced` see `durability.py`. While fewer than
    `min_insync` (0: any number) are in the ISR, the high watermark stands, and the `eligible` replicas
    outside it may lead too (`controller/election.py`). The node's version is the partition epoch.
    """

    leader: int
    leader_epoch: int
    isr: Replicas
    controller_epoch: int
    isr_broker_epochs: tuple[int, ...] = ()
    recovering: bool = False
    durability: Durability = Durability.REPLICATED
    all_synced: bool = False
    min_insync: int = 0
    eligible: tuple[Eligible, ...] = ()

    def broker_epoch_of(self, member: int) -> int:
        """Return the incarnation of this ISR member that holds every committed record."""
        return self.isr_broker_epochs[self.isr.index(member)]


class ProducerIdBlock(NamedTuple):
    """Producer ids that one broker may allocate: `first` to `last`, inclusive.

    `writer` (ours) identifies the process, across restarts of one broker.
    """

    broker_id: int
    first: int
    last: int
    writer: str = ""


# --- writing ----------------------------------------------------------------------------------


def _encode(version: int | str | None, value: Mapping[str, object], **optional: object) -> bytes:
    """Return canonical JSON: the version, the fields, and the optional ones that are not empty."""
    start = {} if version is None else {"version": version}
    extra = {name: optional[name] for name in optional if optional[name] or optional[name] is False}
    return json.dumps({**start, **value, **extra}, separators=(",", ":"), ensure_ascii=False).encode()


def _list_of(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": each.topic, "partition": each.partition} for each in partitions]


def encode_broker(registration: BrokerRegistration) -> bytes:
    """Encode a registration: in version 1, with a rack in version 3, with named listeners in version 5.

    Readers of versions 3 and 5 go by the endpoints. Version 5 has host and port of the first plain one.
    """
    host: str | None = registration.host
    port = registration.port
    named = registration.endpoints
    endpoints = [f"PLAINTEXT://{host}:{port}"] if registration.rack else []
    if named:
        endpoints = [f"{each.listener}://{_in_url(each.host)}:{each.port}" for each in named]
        plain = (each for each in named if not each.protocol)
        _, host, port, _ = next(plain, Endpoint("", "", -1))
    return _encode(
        5 if named else 3 if registration.rack else 1,
        {
            "host": host or (None if named else ""),
            "port": port,
            "jmx_port": registration.jmx_port,
            "timestamp": str(registration.timestamp_ms),
            "clean": registration.clean,
        },
        continues=list(registration.continues),
        empty=registration.empty or None,
        damaged=_list_of(registration.damaged),
        endpoints=endpoints,
        listener_security_protocol_map={each.listener: SECURITY_PROTOCOLS[each.protocol] for each in named},
        rack=registration.rack,
        keeps_topics=registration.keeps_topics or None,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def encode_topic(topic: TopicAssignment) -> bytes:
    def by_partition(replicas: Mapping[int, Replicas]) -> dict[str, list[int]]:
        return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}

    return _encode(
        3,
        {
            "topic_id": topic.topic_id,
            "partitions": by_partition(topic.partitions),
            "adding_replicas": by_partition(topic.adding_replicas),
            "removing_replicas": by_partition(topic.removing_replicas),
        },
        original_replicas=by_partition(topic.original_replicas),
        leaving_replicas=by_partition(topic.leaving_replicas),
    )


def encode_state(state: LeaderAndIsr) -> bytes:
    has_level = state.durability is not Durability.REPLICATED
    return _encode(
        None,
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        },
        leader_recovery_state=int(state.recovering),
        isr_broker_epochs=list(state.isr_broker_epochs),
        durability=state.durability.value if has_level else None,
        all_synced=state.all_synced if has_level else None,
        min_insync=state.min_insync,
        eligible=[each.replica for each in state.eligible],
        eligible_broker_epochs=[each.broker_epoch for each in state.eligible],
    )


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    return _encode(1, {"brokerid": broker_id, "timestamp": str(now_ms)})


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def encode_log_dir_event(broker_id: int) -> bytes:
    """Encode `event` 1, the only one: a log dir of this broker failed."""
    return _encode(1, {"broker": broker_id, "event": 1})


def encode_reassignment(wanted: Mapping[TopicPartition, Replicas]) -> bytes:
    entries = zip(_list_of(sorted(wanted)), sorted(wanted), strict=True)
    return _encode(1, {"partitions": [{**entry, "replicas": list(wanted[each])} for entry, each in entries]})


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the list of a preferred election or an ISR notification."""
    return _encode(1, {"partitions": _list_of(partitions)})


def encode_config_change(topic: str) -> bytes:
    return encode_entity_change(f"topics/{topic}")


def encode_entity_change(path: str) -> bytes:
    """Encode the notification of changed settings, of `topics/<t>` or `users/<u>`."""
    return _encode(2, {"entity_path": path})


def encode_topic_config(config: Mapping[str, str]) -> bytes:
    return _encode(1, {"config": dict(sorted(config.items()))})


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode("1", {"id": cluster_id})


def encode_producer_ids(block: ProducerIdBlock) -> bytes:
    bounds = {"block_start": str(block.first), "block_end": str(block.last)}
    return _encode(1, {"broker": block.broker_id, **bounds}, writer=block.writer)


# --- parsing ----------------------------------------------------------------------------------


class _Fields:
    """The fields of one JSON object, read by name and type; every error names the node."""

    def __init__(self, data: bytes | dict[str, Any], what: str) -> None:
        self._what = what
        try:
            value = json.loads(data.decode()) if isinstance(data, bytes) else data
        except (ValueError, RecursionError) as error:
            raise CorruptMetadata(f"{what} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CorruptMetadata(f"{what} is not a JSON object")
        self._value: dict[str, Any] = value

    def _wrong(self, name: str, problem: str) -> CorruptMetadata:
        return CorruptMetadata(f"{self._what}: {name!r} {problem}")

    def _typed(self, name: str, kind: type[T], problem: str, default: object = None) -> T:
        value = self._value.get(name, default)
        if not isinstance(value, kind):
            raise self._wrong(name, problem)
        return value

    def _integer(self, name: str, value: object) -> int:
        # bool is an int in Python, and int() accepts digits that Kafka never writes.
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        raise self._wrong(name, "is not a number")

    def _brokers(self, name: str, value: object) -> Replicas:
        if not isinstance(value, list):
            raise self._wrong(name, "is not a list of brokers")
        brokers = tuple(self._integer(name, item) for item in value)
        if len(set(brokers)) != len(brokers) or any(broker < 0 for broker in brokers):
            raise self._wrong(name, "repeats a broker or has a negative one")
        return brokers

    def integer(self, name: str, default: int | None = None) -> int:
        return self._integer(name, self._value.get(name, default))

    def text(self, name: str, default: str | None = None, *, or_null: bool = False) -> str:
        if or_null and self._value.get(name) is None:
            return default or ""
        return self._typed(name, str, "is not a text", default)

    def truth(self, name: str) -> bool:
        return self._typed(name, bool, "is neither true nor false", False)

    def items(self, name: str, default: object = None) -> list[Any]:
        found: list[Any] = self._typed(name, list, "is not a list", default)
        return found

    def integers(self, name: str) -> Replicas:
        return tuple(self._integer(name, item) for item in self.items(name, []))

    def brokers(self, name: str, default: object = None) -> Replicas:
        return self._brokers(name, self._value.get(name, default))

    def replicas(self, name: str, default: object = None) -> dict[int, Replicas]:
        value: dict[str, Any] = self._typed(name, dict, "is not an object", default)
        parsed = {self._integer(name, key): self._brokers(name, value[key]) for key in value}
        if any(partition < 0 for partition in parsed):
            raise self._wrong(name, "has a negative partition")
        return dict(sorted(parsed.items()))

    def objects(self, name: str, default: object = None) -> list[_Fields]:
        return [_Fields(item, f"{self._what}, an item of {name!r},") for item in self.items(name, default)]

    def texts(self, name: str) -> dict[str, str]:
        value: dict[str, Any] = self._typed(name, dict, "is not an object of texts")
        if not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(name, "is not an object of texts")
        return dict(value)

    def topic_partitions(self, name: str, default: object = None) -> tuple[TopicPartition, ...]:
        """Return the listed partitions, each once, in their order."""
        return tuple(dict.fromkeys(item.topic_partition() for item in self.objects(name, default)))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the named listeners; none if there is no map of their protocols."""
        protocols = self._value.get("listener_security_protocol_map")
        if protocols is None:
            return ()
        found = []
        for text in self.items("endpoints"):
            match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
            protocol = self.texts("listener_security_protocol_map").get(match[1]) if match else None
            if match is None or protocol not in SECURITY_PROTOCOLS:
                raise self._wrong("endpoints", f"has {text!r}, which is not a listener with a known protocol")
            host = match[2].removeprefix("[").removesuffix("]")
            found.append(Endpoint(match[1], host, int(match[3]), SECURITY_PROTOCOLS.index(protocol)))
        return tuple(found)

    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.text("topic"), self.integer("partition"))


def parse_broker(data: bytes) -> BrokerRegistration:
    fields = _Fields(data, "the broker registration")
    endpoints = fields.endpoints()
    return BrokerRegistration(
        host=endpoints[0].host if endpoints else fields.text("host"),
        port=endpoints[0].port if endpoints else fields.integer("port"),
        endpoints=endpoints,
        jmx_port=fields.integer("jmx_port", -1),
        timestamp_ms=fields.integer("timestamp", -1),
        clean=fields.truth("clean"),
        empty=fields.truth("empty"),
        continues=fields.integers("continues"),
        damaged=fields.topic_partitions("damaged", []),
        rack=fields.text("rack", "", or_null=True),
        keeps_topics=fields.truth("keeps_topics"),
    )


def parse_topic(data: bytes) -> TopicAssignment:
    """Parse versions 1 (whose topic id is the empty text), 2 and 3."""
    fields = _Fields(data, "the topic node")
    partitions = fields.replicas("partitions")
    if not all(partitions.values()):
        raise CorruptMetadata("the topic node has a partition without replicas")
    optional = ("adding_replicas", "removing_replicas", "original_replicas", "leaving_replicas")
    return TopicAssignment(
        fields.text("topic_id", ""), partitions, *(fields.replicas(name, {}) for name in optional)
    )


def parse_state(data: bytes) -> LeaderAndIsr:
    fields = _Fields(data, "the partition state")
    word = fields.text("durability", Durability.REPLICATED.value)
    if word not in {level.value for level in Durability}:
        raise CorruptMetadata(f"the partition state has an unknown durability {word!r}")
    eligible = fields.brokers("eligible", [])
    eligible_epochs = fields.integers("eligible_broker_epochs")
    state = LeaderAndIsr(
        leader=fields.integer("leader"),
        leader_epoch=fields.integer("leader_epoch"),
        isr=fields.brokers("isr"),
        controller_epoch=fields.integer("controller_epoch"),
        isr_broker_epochs=fields.integers("isr_broker_epochs"),
        recovering=fields.integer("leader_recovery_state", 0) == 1,
        durability=Durability(word),
        all_synced=fields.truth("all_synced"),
        min_insync=fields.integer("min_insync", 0),
    )
    if state.leader < NO_LEADER or state.leader_epoch < 0 or not state.isr:
        raise CorruptMetadata("the partition state has a negative leader or epoch, or an empty ISR")
    if len(state.isr_broker_epochs) != len(state.isr):
        # Kafka rewrote the ISR without knowing our field: its content is void.
        return replace(state, isr_broker_epochs=(UNKNOWN_BROKER_EPOCH,) * len(state.isr))
    is_too_small = len(state.isr) < state.min_insync
    if is_too_small and len(eligible) == len(eligible_epochs) and not set(eligible) & set(state.isr):
        return replace(state, eligible=tuple(map(Eligible, eligible, eligible_epochs)))
    return state  # no eligible replicas, or such a writer left void fields behind


def parse_controller(data: bytes) -> int | None:
    """Return the broker that the node names; None, as if there were no controller, if it is unreadable."""
    try:
        return _Fields(data, "the controller node").integer("brokerid")
    except CorruptMetadata:
        return None


def parse_controller_epoch(data: bytes) -> int:
    text = data.decode("ascii", "replace").strip()
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise CorruptMetadata(f"{CONTROLLER_EPOCH_PATH} holds {text[:40]!r}, which is not an epoch")
    return int(text)


def parse_log_dir_event(data: bytes) -> int:
    """Return the broker whose log dir failed."""
    return _Fields(data, "the log dir event").integer("broker")


def parse_reassignment(data: bytes) -> dict[TopicPartition, Replicas]:
    """Return the lists as written; the controller validates them."""
    entries = _Fields(data, "the reassignment request").objects("partitions", [])
    return {entry.topic_partition(): entry.integers("replicas") for entry in entries}


def parse_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a preferred election or an ISR notification."""
    return _Fields(data, "the list of partitions").topic_partitions("partitions")


def parse_broker_defaults(data: bytes) -> dict[str, str]:
    """Return the dynamic settings of all brokers."""
    return _Fields(data, "the brokers' settings").texts("config")


def parse_delete_topics(data: bytes) -> tuple[str, ...]:
    """Return the topics of a request's old form: a list in `/admin/delete_topics` itself."""
    topics = _Fields(data, "the topics to delete").items("topics")
    if not all(isinstance(topic, str) for topic in topics):
        raise CorruptMetadata("the topics to delete are not a list of texts")
    return tuple(dict.fromkeys(topics))


def parse_entity_change(data: bytes) -> str:
    """Return whose settings changed: `topics/<t>`, `users/<u>/clients/<c>`, ….

    Version 2 has `entity_path`, version 1 type and name. Before that it was the topic's name, bare or as a
    JSON text.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return f"topics/{text.strip(chr(34))}"
    fields = _Fields(data, "the config change")
    if fields.integer("version", 1) == 1:
        return f"{fields.text('entity_type')}/{fields.text('entity_name')}"
    return fields.text("entity_path")


def parse_config_change(data: bytes) -> str | None:
    """Return the topic whose settings changed; None if they are another entity's."""
    kind, _, name = parse_entity_change(data).partition("/")
    return name if kind == "topics" and name and "/" not in name else None


def parse_topic_config(data: bytes) -> dict[str, str]:
    if not data:  # made as the parent of another: `users/ann` of `users/ann/clients/app`
        return {}
    return _Fields(data, "the topic config").texts("config")


def parse_cluster_id(data: bytes) -> str:
    cluster_id = _Fields(data, "the cluster's id").text("id")
    if not cluster_id:
        raise CorruptMetadata("the cluster's id is empty")
    return cluster_id


def parse_producer_ids(data: bytes) -> ProducerIdBlock:
    fields = _Fields(data, "the block of producer ids")
    broker_id, first, last = (fields.integer(name) for name in ("broker", "block_start", "block_end"))
    block = ProducerIdBlock(broker_id, first, last, fields.text("writer", ""))
    if not 0 <= block.first <= block.last:
        raise CorruptMetadata(f"the block of producer ids goes from {block.first} to {block.last}")
    return block
