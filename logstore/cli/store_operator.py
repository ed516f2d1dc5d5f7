"""`Operator` over the metadata store: each change is a node that the active controller carries out.

A write whose reply is lost is not repeated: the error says so and names the command that shows the outcome.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import typer

from logstore.arguments import whole_number
from logstore.broker.configs import REPLICATION_RATES
from logstore.cli.cluster_plans import BadPlan, Plan, check_topics
from logstore.cli.cluster_state import Cluster, Session, read_cluster
from logstore.cli.throttles import Rates, rates_in
from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.controller import assignment as placement
from logstore.replication.controller.deletion import DELETION_DISABLED
from logstore.replication.controller.topics import by_metric_name, check_new_topic
from logstore.replication.messages import NewTopic
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Get,
    Multi,
    Outcome,
    Set,
    StoreError,
    put,
)

_MIN_ISR = "min.insync.replicas"
_LOOK = "logstore topics describe"
_LIST = "logstore reassign list"


class NotWritten(EngineError):
    """The metadata store did not accept a write, or its reply was lost."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def own_min_isr(cluster: Cluster) -> dict[str, int]:
    """Return `min.insync.replicas` of the topics that have their own; the brokers' default is not here."""
    return {
        name: least
        for name, topic in cluster.topics.items()
        if (least := whole_number(topic.config.get(_MIN_ISR, ""), 0)) is not None
    }


def _check(settings: Mapping[str, str]) -> None:
    """Raise `BadPlan` for settings that no topic has: a refusal, as that of brokers."""
    try:
        LogConfig.from_kafka(settings)
    except InvalidConfig as error:
        raise BadPlan(str(error)) from error


class StoreOperator:
    """The cluster by a session with its metadata store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._with_settings: Cluster | None = None
        """The cluster as it was last read with settings."""

    def read(
        self, topics: Iterable[str] | None = None, *, settings: bool = False, may_hide_moves: bool = False
    ) -> Cluster:
        cluster = read_cluster(self._session, topics, settings=settings)
        if settings:
            self._with_settings = cluster
        return cluster

    def _topics(self) -> Iterable[str]:
        return self.read(may_hide_moves=True).topics

    def min_isr(self, topics: Sequence[str]) -> Mapping[str, int]:
        known = self._with_settings
        is_known = known is not None and known.topics.keys() >= set(topics)
        return own_min_isr(known if known is not None and is_known else self.read(topics, settings=True))

    def create(
        self,
        name: str,
        settings: Mapping[str, str],
        partitions: int | None,
        replication_factor: int | None,
        assignment: Sequence[tuple[int, ...]] | None,
    ) -> str:
        _check(settings)
        draw = random.SystemRandom()
        cluster = self.read(())
        existing = self._session.read(Children(layout.TOPICS_PATH)).children
        check_new_topic(NewTopic(name, configs=settings), by_metric_name(existing))
        if assignment is not None:
            if unknown := sorted({broker for each in assignment for broker in each} - cluster.brokers.keys()):
                raise typer.BadParameter(f"--replica-assignment: brokers {unknown} are not alive")
            lists = list(assignment)
            placement.check_manual(lists, cluster.brokers)
        else:
            start, shift = (draw.randrange(max(1, len(cluster.brokers))) for _ in range(2))
            lists = placement.placed(
                cluster.racks, partitions or 1, replication_factor or 1, start=start, shift=shift
            )
        node = layout.TopicAssignment(new_id(draw), dict(enumerate(lists)))
        nodes = {
            layout.topic_config_path(name): layout.encode_topic_config(settings),
            layout.topic_path(name): layout.encode_topic(node),
        }
        creation = Multi(tuple(Create(path, data, make_parents=True) for path, data in nodes.items()))
        check_written(self._session.call(creation), f"topic {name}", _LOOK)
        return node.topic_id

    def delete(self, name: str) -> None:
        cluster = self.read((name,))
        check_topics(cluster, (name,), self._topics)
        controller = cluster.brokers.get(cluster.controller) if cluster.controller is not None else None
        if controller is not None and controller.keeps_topics:
            raise BadPlan(f"{name} is not deleted: {DELETION_DISABLED}")
        outcome = self._session.call(Create(layout.delete_topic_path(name), make_parents=True))
        if outcome.error is not StoreError.NODE_EXISTS:
            check_written(outcome, f"the deletion of {name}", "logstore topics list")

    def alter(
        self, name: str, partitions: int | None, changed: Mapping[str, str], dropped: Collection[str]
    ) -> None:
        cluster = self.read((name,), settings=True)
        check_topics(cluster, (name,), self._topics)
        if name in cluster.doomed:
            raise BadPlan(f"{name} is being deleted")
        topic = cluster.topics[name]
        writes: list[Create | Set] = []
        if partitions is not None:
            if topic.assignment.adding_replicas or topic.assignment.removing_replicas:
                raise BadPlan(f"{name} is being reassigned; add partitions when that is over")
            existing = topic.assignment.partitions
            added = placement.added_partitions(existing, cluster.racks, partitions)
            # The rest of the node stays, above all the brokers that have a replica yet to delete.
            grown = replace(topic.assignment, partitions={**existing, **added})
            writes.append(Set(layout.topic_path(name), layout.encode_topic(grown), topic.version))
        if changed or dropped:
            if unknown := sorted(set(dropped) - topic.config.keys()):
                raise BadPlan(f"{name} has no setting {', '.join(unknown)} of its own")
            kept = {key: value for key, value in topic.config.items() if key not in dropped}
            settings = {**kept, **changed}
            _check(settings)
            data, path = layout.encode_topic_config(settings), layout.topic_config_path(name)
            writes.append(put(path, data, topic.config_version if topic.config_version >= 0 else None))
            notice = layout.encode_config_change(name)
            writes.append(Create(layout.CONFIG_CHANGE_PREFIX, notice, sequential=True, make_parents=True))
        check_written(self._session.call(Multi(tuple(writes))), f"the change of {name}", _LOOK)

    def elect(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        path = layout.PREFERRED_ELECTION_PATH
        outcome = self._session.call(Create(path, layout.encode_partitions(partitions), make_parents=True))
        if outcome.error is StoreError.NODE_EXISTS:
            raise NotWritten("a preferred election is in progress; try again when it has finished")
        check_written(outcome, "the election", _LOOK)
        return {}

    def is_electing(self) -> bool:
        return self._session.read(Get(layout.PREFERRED_ELECTION_PATH)).stat is not None

    def move(self, plan: Plan, *, may_join: bool) -> None:
        self._move(plan, "the reassignment", "logstore reassign verify", may_join=may_join)

    def move_back(self, plan: Plan) -> None:
        self._move(plan, "the cancellation", _LOOK, may_join=True)

    def moving(self) -> Collection[TopicPartition]:
        node = self._session.read(Get(layout.REASSIGNMENT_PATH))
        if node.stat is None:
            return frozenset()
        try:
            return frozenset(layout.parse_reassignment(node.data))
        except CorruptMetadata:
            return frozenset()  # the controller treats such a node as empty, too

    def limit_replication(self, brokers: Iterable[int], rate: int | None) -> None:
        for broker in brokers:
            entity = f"brokers/{broker}"
            path = f"/config/{entity}"
            node = self._session.read(Get(path))
            now = layout.parse_topic_config(node.data) if node.stat is not None else {}
            wanted = {name: value for name, value in now.items() if name not in REPLICATION_RATES}
            if rate is not None:
                wanted |= dict.fromkeys(REPLICATION_RATES, str(rate))
            if wanted == now:
                continue
            write = put(path, layout.encode_topic_config(wanted), node.version)
            notice = layout.encode_entity_change(entity)
            told = Create(layout.CONFIG_CHANGE_PREFIX, notice, sequential=True, make_parents=True)
            check_written(self._session.call(Multi((write, told))), f"the throttle of broker {broker}", _LIST)

    def replication_rates(self, brokers: Iterable[int]) -> dict[int, Rates]:
        every = self._settings(layout.DEFAULT_ENTITY)
        return {
            broker: rates_in(every | self._settings(str(broker)), REPLICATION_RATES) for broker in brokers
        }

    def _settings(self, broker: str) -> dict[str, str]:
        node = self._session.read(Get(f"/config/brokers/{broker}"))
        return dict(layout.parse_topic_config(node.data)) if node.stat is not None else {}

    def _move(self, wanted: Plan, what: str, how_to_look: str, *, may_join: bool) -> None:
        path = layout.REASSIGNMENT_PATH
        node = self._session.read(Get(path))
        if node.stat is not None and not may_join:
            raise NotWritten(
                "a reassignment is in progress: try again when it has ended, or add to it with --additional"
            )
        merged = {**layout.parse_reassignment(node.data), **wanted} if node.stat is not None else wanted
        write = put(path, layout.encode_reassignment(merged), node.version)
        check_written(self._session.call(write), what, how_to_look)


def check_written(outcome: Outcome, what: str, how_to_look: str) -> None:
    """Raise `NotWritten` unless the store accepted a write."""
    match outcome.error:
        case None:
            return
        case StoreError.CONNECTION_LOSS:
            why = f"the reply was lost, so the outcome is unknown; check it with {how_to_look}"
        case StoreError.BAD_VERSION | StoreError.NODE_EXISTS | StoreError.NO_NODE:
            why = "another program changed it meanwhile; nothing was written, try again"
        case error:
            why = f"the metadata store refused it: {error.value}"
    raise NotWritten(f"{what}: {why}")
