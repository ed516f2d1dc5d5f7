"""The cluster according to the metadata store, and the session of one command with the store.

    --metadata zookeeper://host:port[,host:port]/chroot ─▶ Session ─▶ Cluster (brokers, topics, states)

Each command reads everything anew. Decisions are in `cluster_plans.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from logstore.disk.errors import EngineError, ErrorCode, InvalidTopic
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.controller.deletion import Deletion, replicas_in
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from logstore.replication.metastore.memory import MetadataStore
from logstore.replication.metastore.operations import Children, Get, Operation, Outcome, StoreError

if TYPE_CHECKING:
    from logstore.broker.security.store import StoreSecurity

SESSION_TIMEOUT_MS = 10_000
_TRIES = 3


class MetadataUnavailable(EngineError):
    """The metadata store does not answer, or the session has expired."""

    code = ErrorCode.BROKER_NOT_AVAILABLE


class ClosableStore(MetadataStore, Protocol):
    """A metadata store behind connections."""

    def read_many(self, session_id: int, reads: Sequence[Get]) -> list[Outcome]:
        """Read nodes, many at a time."""

    def close(self) -> None:
        """Close every connection."""


class Session:
    """A blocking session with the store, for one command."""

    def __init__(self, store: ClosableStore) -> None:
        self._store = store
        self._id = store.open_session(SESSION_TIMEOUT_MS, self._now_ms)

    @property
    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def read(self, operation: Get | Children) -> Outcome:
        """Read; repeat it if the reply is lost. Raises `MetadataUnavailable`."""
        for _ in range(_TRIES):
            outcome = self.call(operation)
            if outcome.error is not StoreError.CONNECTION_LOSS:
                return outcome
        raise MetadataUnavailable("the metadata store does not answer; check that it is running")

    def read_many(self, paths: Iterable[str]) -> dict[str, Outcome]:
        """Read the data of nodes, many at a time. Raises as `read`."""
        reads = [Get(path) for path in paths]
        return {
            each.path: outcome if outcome.error in (None, StoreError.NO_NODE) else self.read(each)
            for each, outcome in zip(reads, self._store.read_many(self._id, reads), strict=True)
        }

    def call(self, operation: Operation) -> Outcome:
        """Send one operation once; CONNECTION_LOSS means that it may have been applied."""
        outcome, _ = self._store.call(self._id, operation, self._now_ms)
        if outcome.error is StoreError.SESSION_EXPIRED:
            raise MetadataUnavailable("the session with the metadata store expired; run the command again")
        return outcome

    def close(self) -> None:
        """End the session."""
        self._store.close_session(self._id)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's nodes in the store."""

    assignment: TopicAssignment
    config: Mapping[str, str]
    version: int
    """Version of the topic's node."""
    config_version: int
    """Version of the settings' node; -1 if there is none."""


class Motion(NamedTuple):
    """The replicas that a reassignment is adding and removing; both empty if nothing moves."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


_NO_STATE: Final = LeaderAndIsr(leader=-1, leader_epoch=-1, isr=(), controller_epoch=-1)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A reading of the cluster. `unreadable` has the reason for each node that could not be parsed."""

    brokers: Mapping[int, BrokerRegistration]
    topics: Mapping[str, Topic]
    states: Mapping[TopicPartition, LeaderAndIsr]
    controller: int | None
    doomed: Mapping[str, str] = field(default_factory=dict)
    """Topics that are being deleted, and what each waits for; empty if that is unknown."""
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def racks(self) -> Mapping[int, str | None]:
        """The rack of each broker."""
        return {broker_id: broker.rack for broker_id, broker in sorted(self.brokers.items())}

    def partitions(
        self, topics: Iterable[str] | None = None
    ) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
        """Yield every partition, of all topics or of these, and its replicas, in order."""
        for name in sorted(self.topics if topics is None else topics):
            for partition, replicas in sorted(self.topics[name].assignment.partitions.items()):
                yield TopicPartition(name, partition), replicas

    def replicas(self, each: TopicPartition) -> tuple[int, ...]:
        """Return the replicas of a partition, in order."""
        return self.topics[each.topic].assignment.partitions[each.partition]

    def state(self, each: TopicPartition) -> LeaderAndIsr:
        """Return the state of a partition; by default one without a leader and an ISR."""
        return self.states.get(each, _NO_STATE)

    def motion(self, each: TopicPartition) -> Motion:
        """Return how a partition's replicas move."""
        known = self.topics[each.topic].assignment
        return Motion(
            known.adding_replicas.get(each.partition, ()), known.removing_replicas.get(each.partition, ())
        )


class _Attempts(logging.Handler):
    """Prints no line for each attempt to connect or to write, and keeps why the last one failed."""

    failure = ""

    def emit(self, record: logging.LogRecord) -> None:
        said, _, reason = record.getMessage().partition("Connection dropped: ")
        if reason:
            self.failure = f"The last attempt to connect: {reason.removeprefix('socket connection error: ')}"
        elif said.startswith("ZooKeeper refused"):
            self.failure = said


_attempts: Final = _Attempts()
OPENING_S: Final = 10.0
"""How long a command waits for a session of the metadata store: a server may be starting again."""


def with_attempt(error: Exception) -> str:
    """Return the text of an error, and if it is one of the store, what its client said last."""
    is_of_store = isinstance(error, MetadataStoreFailed | MetadataUnavailable)
    if not is_of_store or not _attempts.failure:
        return str(error)
    return f"{error}. {_attempts.failure}"


def quieten_kazoo() -> None:
    """Print no line for each attempt to connect to ZooKeeper."""
    for name in ("kazoo", "logstore.replication.metastore"):
        logging.getLogger(name).addHandler(_attempts)


def open_store(metadata: str, security: StoreSecurity | None = None) -> ClosableStore:
    """Connect to a store. Raises `InvalidConfig`, and `ValueError` for an invalid address."""
    from logstore.broker.security.store import access_of
    from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
    from logstore.replication.metastore.zookeeper_access import OPEN

    quieten_kazoo()
    access = access_of(security) if security is not None else OPEN
    return BlockingZooKeeperStore(metadata, opening_s=OPENING_S, access=access)


@contextmanager
def session(metadata: str, security: StoreSecurity | None = None) -> Iterator[Session]:
    """Open a session with the store at `metadata`.

    Raises `MetadataStoreFailed`, `InvalidConfig` and `ValueError`.
    """
    with closing(open_store(metadata, security)) as store, closing(Session(store)) as opened:
        _attempts.failure = ""  # it is connected: an earlier failure explains no later one
        yield opened


def read_cluster(session: Session, topics: Iterable[str] | None = None, *, settings: bool = False) -> Cluster:
    """Read brokers, topics and states; with `topics`, only those: each partition is a node to read.

    With `settings`, the topics' own settings, too.

    Each node is consistent in itself; together they are not a snapshot.
    """
    unreadable: dict[str, str] = {}
    brokers: dict[int, BrokerRegistration] = {}
    ids = session.read(Children(layout.BROKER_IDS_PATH)).children
    registered = {layout.broker_path(int(id_)): int(id_) for id_ in ids if id_.isascii() and id_.isdecimal()}
    for path, node in session.read_many(registered).items():
        if node.stat is not None:
            with _reported(unreadable, path):
                brokers[registered[path]] = layout.parse_broker(node.data)
    wanted: list[str] = []
    for name in (
        session.read(Children(layout.TOPICS_PATH)).children if topics is None else sorted(set(topics))
    ):
        try:
            check_topic_name(name)
            wanted.append(name)
        except InvalidTopic as error:
            unreadable[layout.topic_path(name)] = str(error)
    known = _read_topics(session, wanted, unreadable, settings=settings)
    paths = {
        layout.partition_state_path(each): each
        for each in (
            TopicPartition(name, number) for name in known for number in known[name].assignment.partitions
        )
    }
    states: dict[TopicPartition, LeaderAndIsr] = {}
    for path, state in session.read_many(paths).items():
        if state.stat is not None:
            with _reported(unreadable, path):
                states[paths[path]] = layout.parse_state(state.data)
    controller = session.read(Get(layout.CONTROLLER_PATH))
    holder = layout.parse_controller(controller.data) if controller.stat is not None else None
    requested = session.read(Children(layout.DELETE_TOPICS_PATH)).children
    doomed = {name: _awaited(name, known.get(name), brokers) for name in sorted(requested)}
    return Cluster(brokers, known, states, holder, doomed, unreadable)


def _awaited(name: str, topic: Topic | None, brokers: Collection[int]) -> str:
    """Return what the deletion of a topic waits for, as far as the store tells: not who has confirmed."""
    if topic is None:
        return ""
    node = topic.assignment
    if moving := sorted(node.adding_replicas.keys() | node.removing_replicas.keys()):
        return f"the reassignment of partitions {moving}"
    deletion = Deletion(node.topic_id, replicas_in(name, node))
    deletion.start(lambda replica: "" if replica.broker_id in brokers else "not alive")
    return deletion.awaited


def _read_topics(
    session: Session, names: Sequence[str], unreadable: dict[str, str], *, settings: bool
) -> dict[str, Topic]:
    nodes = session.read_many(map(layout.topic_path, names))
    configs = session.read_many(map(layout.topic_config_path, names if settings else ()))
    found = {}
    for name in names:
        path, config_path = layout.topic_path(name), layout.topic_config_path(name)
        if (stat := nodes[path].stat) is None:
            continue
        config: Mapping[str, str] = {}
        config_version = -1
        if config_path in configs and (own := configs[config_path].stat) is not None:
            config_version = own.version
            with _reported(unreadable, config_path):
                config = layout.parse_topic_config(configs[config_path].data)
        with _reported(unreadable, path):
            assignment = layout.parse_topic(nodes[path].data)
            found[name] = Topic(assignment, config, stat.version, config_version)
    return found


@contextmanager
def _reported(unreadable: dict[str, str], path: str) -> Iterator[None]:
    try:
        yield
    except CorruptMetadata as error:
        unreadable[path] = str(error)
