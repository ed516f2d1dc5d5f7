"""The active controller's state: a copy of the metadata store, and the updates that each broker must get.

All of it can be discarded and read again; a controller that resigns does so. The copy is never
evidence for a write: a procedure reads a state node again right before it decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.controller.assignment import Assignment
from logstore.replication.controller.channel import Channel, Entry
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.election import Incarnation
from logstore.replication.durability import DURABILITY_LEVEL, Durability
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.layout import CONTROLLER_EPOCH_PATH, TOPICS_PATH, LeaderAndIsr
from logstore.replication.metastore.operations import Check, Multi, Operation, Outcome, Write, check_size
from logstore.replication.state_change import Side, Sink, StateChange, unheard

if TYPE_CHECKING:  # their procedures need the context
    from logstore.replication.controller.deletion import Deletion
    from logstore.replication.controller.elect_leaders import Imbalance

UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

Result = TypeVar("Result")
Parsed = TypeVar("Parsed")
Steps: TypeAlias = Generator[tuple[Operation, ...], tuple[Outcome, ...], Result]
"""A procedure: it yields store operations, which are issued together, and is resumed with their outcomes.

The controller repeats reads whose reply was lost. A write whose reply was lost comes back as
`CONNECTION_LOSS`; the procedure must find out whether it was applied.
"""


class Broker(NamedTuple):
    """A live, registered broker."""

    endpoint: m.BrokerEndpoint
    clean: bool
    continues: tuple[int, ...] = ()
    empty: bool = False
    damaged: tuple[TopicPartition, ...] = ()


class KnownState(NamedTuple):
    """A state node as last seen or written."""

    state: LeaderAndIsr
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    topic_id: str
    config: Mapping[str, str] = field(default_factory=dict)


class Context:
    """One term of one controller: from its claim of `/controller` to its resignation."""

    def __init__(
        self,
        node_id: int,
        epoch: int,
        epoch_version: int,
        config: ControllerConfig,
        random_source: random.Random,
        *,
        now: Callable[[], int],
        state_changes: Sink = unheard,
    ) -> None:
        """`now` gives the time of the event that is being served, in epoch milliseconds."""
        self.node_id, self.epoch, self.config = node_id, epoch, config
        self.random = random_source
        self.now, self._state_changes = now, state_changes
        self._fence = Check(CONTROLLER_EPOCH_PATH, epoch_version)
        self.forget_all()

    def forget_all(self) -> None:
        """Drop the cached state before a takeover is repeated."""
        self.channels: dict[int, Channel] = {}
        """The requests for each live broker's incarnation."""
        self.brokers: dict[int, Broker] = {}
        self.newcomers: set[int] = set()
        """New brokers that have not got their roles yet; kept in case the event fails half-way.

        The first request to each lists all of its roles, and is sent when every state accounts for it."""
        self.shutting_down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.assignments: dict[TopicPartition, Assignment] = {}
        """The full assignment of partitions whose replicas are moving, see `assignment_of`."""
        self.stop_epochs: dict[tuple[TopicPartition, int], int] = {}
        """The leader epoch of the last order to a broker to delete a replica that leaves it."""
        self.requested: dict[TopicPartition, tuple[int, ...]] = {}
        """The content of `/admin/reassign_partitions`."""
        self.states: dict[TopicPartition, KnownState] = {}
        self.broker_defaults: dict[str, str] = {}
        """Dynamic settings of all brokers."""
        self.imbalances: Mapping[int, Imbalance] = {}
        """The result of the last balance check, by preferred broker; for metrics."""
        self.offline_replicas: dict[int, set[TopicPartition]] = {}
        """Replicas on live brokers that could not take their role, by broker; until they take one."""
        self.refusing: dict[int, set[TopicPartition]] = {}
        """Replicas reported as unusable and not yet in `offline_replicas`, by broker.

        Either the registration names a damaged log and no role has been taken since, or a refusal was
        received and its event is still queued."""
        self.deletions: dict[str, Deletion] = {}
        """Topics to be deleted, and the state of each deletion. They are not balanced."""
        self.config_changes: dict[str, int] = {}
        """Config change notifications, and when each was first seen, in epoch milliseconds."""
        self.unreadable: dict[str, str] = {}
        """Nodes that could not be parsed, and why. They are reported and never overwritten."""
        self._has_withheld_lists = False

    # --- the store ----------------------------------------------------------------------------

    def fenced(self, *writes: Write) -> Multi:
        """Return a Multi of these writes that fails if another controller has been elected.

        Raises `WriteTooLarge`.
        """
        check_size(*writes)
        return Multi((self._fence, *writes))

    def parsed(
        self, path: str, read: Outcome, parse: Callable[[bytes], Parsed], *, report_as: str = ""
    ) -> Parsed | None:
        """Return the parsed data of a node; None if it is missing, or unreadable and so reported.

        A report about one of many short-lived nodes is kept under `report_as`, their directory.
        """
        self.unreadable.pop(path, None)
        if read.stat is None:
            return None
        try:
            return parse(read.data)
        except CorruptMetadata as error:
            self.unreadable[report_as or path] = str(error)
            return None

    # --- brokers and partitions ---------------------------------------------------------------

    def has_incarnation(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether this very incarnation of the broker is registered now."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.endpoint.epoch == broker_epoch

    def live(self, topic_partition: TopicPartition) -> dict[int, Incarnation]:
        """Return the brokers that can serve this partition, and whether each kept all it acknowledged."""
        known = self.states.get(topic_partition)
        # Records of a partition at level `synced` were on disk before they counted, so an unclean stop
        # cannot lose them. A replaced, empty disk can.
        keeps_all = self.config.elect_unclean_restarted_last_member or (
            known is not None and known.state.all_synced
        )
        return {
            broker_id: Incarnation(
                broker.endpoint.epoch,
                (broker.clean or (keeps_all and not broker.empty)) and topic_partition not in broker.damaged,
                broker.continues,
            )
            for broker_id, broker in sorted(self.brokers.items())
            if topic_partition not in self.offline_replicas.get(broker_id, ())
        }

    def failed(self, topic_partition: TopicPartition) -> list[int]:
        """Return the live brokers that cannot use their replica of this partition."""
        return sorted(each for each, failed in self.offline_replicas.items() if topic_partition in failed)

    def refusers(self, broker_id: int) -> set[TopicPartition]:
        """Return the replicas that this broker last reported as unusable."""
        return self.offline_replicas.get(broker_id, set()) | self.refusing.get(broker_id, set())

    def refusing_brokers(self, topic_partition: TopicPartition) -> list[int]:
        """Return the brokers that last reported their replica of this partition as unusable."""
        return [each for each in sorted(self.brokers) if topic_partition in self.refusers(each)]

    def staying(self, topic_partition: TopicPartition) -> dict[int, Incarnation]:
        """Return `live` without the brokers that are shutting down."""
        live = self.live(topic_partition)
        return {broker_id: live[broker_id] for broker_id in live if broker_id not in self.shutting_down}

    def assignment_of(self, topic_partition: TopicPartition) -> Assignment:
        """Return a known partition's replicas and where they are moving."""
        return self.assignments.get(topic_partition) or Assignment(self.replicas[topic_partition])

    def learn_assignment(self, topic_partition: TopicPartition, assignment: Assignment) -> bool:
        """Take over the topic node's assignment of a partition; return whether it was new."""
        is_news = topic_partition not in self.replicas or self.assignment_of(topic_partition) != assignment
        self.replicas[topic_partition] = assignment.replicas
        self.assignments.pop(topic_partition, None)
        if assignment != Assignment(assignment.replicas):
            self.assignments[topic_partition] = assignment
        return is_news

    def is_reassigning(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition is being reassigned, which holds back its topic's deletion."""
        assignment = self.assignments.get(topic_partition)
        return assignment is not None and assignment.is_reassigning

    def is_being_deleted(self, topic: str) -> bool:
        """Return whether the topic's deletion has begun: no elections, roles or ISR changes any more."""
        deletion = self.deletions.get(topic)
        return deletion is not None and deletion.has_begun

    def unclean_enabled(self, topic: str) -> bool:
        """Return whether unclean election is allowed by the topic, else by all brokers, else by this node."""
        word = self.topics[topic].config.get(UNCLEAN_ELECTION, self.broker_defaults.get(UNCLEAN_ELECTION))
        return self.config.unclean_leader_election_enable if word is None else word.lower() == "true"

    def durability(self, topic: str) -> Durability:
        """Return the durability level of the topic, else the broker's default."""
        word = self.topics[topic].config.get(DURABILITY_LEVEL)
        return self.config.durability if word is None else Durability(word.strip())

    def min_insync(self, topic_partition: TopicPartition, assignment: Assignment | None = None) -> int:
        """Return how many replicas must be in sync for the high watermark to move; 0 for any number.

        Never more than the number of replicas, without those that a reassignment is adding.
        `assignment` replaces the current one.
        """
        if not self.config.min_insync_wall:
            return 0
        own = self.topics[topic_partition.topic].config
        word = own.get(MIN_INSYNC_REPLICAS, self.broker_defaults.get(MIN_INSYNC_REPLICAS))
        asked = self.config.min_insync_replicas if word is None else int(word)
        after = assignment or self.assignment_of(topic_partition)
        wanted = min(asked, len(after.replicas) - len(after.adding))
        return wanted if wanted > 1 else 0

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return sorted(topic_partition for topic_partition in self.replicas if topic_partition.topic == topic)

    def forget_topic(self, topic: str) -> None:
        for topic_partition in self.partitions_of(topic):
            for broker_id in self.assignment_of(topic_partition).leaving:
                self.stop_epochs.pop((topic_partition, broker_id), None)
            del self.replicas[topic_partition]
            self.assignments.pop(topic_partition, None)
            self.states.pop(topic_partition, None)
            for offline in self.offline_replicas.values():
                offline.discard(topic_partition)
        self.topics.pop(topic, None)

    def lose_topic(self, topic: str) -> None:
        """Remove a topic that vanished from the store, or was replaced there, without a request.

        Its replicas become strays. Nothing is deleted: every broker gets the list of its assigned
        partitions and sets aside the others. Queued requests about the topic are withdrawn; they would
        reach its namesake.
        """
        lost = self.partitions_of(topic)
        if not lost:
            self.forget_topic(topic)
            return
        mark("topics: one vanished or was replaced without a request")
        states = {each: self._deleted_state(each) for each in lost}
        for each in lost:
            self.record(each, "drops the topic", "its node is gone from the store, or another topic's")
        self.forget_topic(topic)
        for broker_id in sorted(self.brokers):
            self.channels[broker_id].withdraw(topic)
            self.channels[broker_id].enqueue(m.UpdateMetadataRequest, states)
        self.announce((), is_full=True)

    def record(self, topic_partition: TopicPartition, change: str, reason: str) -> None:
        """Write a decision to the state-change log, with the resulting state."""
        state, partition_epoch = self.states.get(topic_partition) or (None, -1)
        self._state_changes(
            StateChange(
                self.now(),
                self.node_id,
                Side.CONTROLLER,
                self.epoch,
                topic_partition,
                change,
                leader=state.leader if state else m.NO_LEADER,
                leader_epoch=state.leader_epoch if state else m.NO_EPOCH,
                partition_epoch=partition_epoch,
                isr=state.isr if state else (),
                replicas=self.replicas.get(topic_partition, ()),
                reason=reason,
            )
        )

    # --- requests to brokers ------------------------------------------------------------------

    def announce(
        self,
        topic_partitions: Iterable[TopicPartition],
        *,
        to: Collection[int] | None = None,
        new: Collection[TopicPartition] = (),
        is_full: bool = False,
    ) -> None:
        """Send replicas their roles, and every broker the leaders.

        `to` restricts both to some brokers; None means all but newcomers, which get everything soon.
        `new` are partitions that no broker can have had before.
        `is_full` says that these are all partitions, so that brokers can recognize strays.
        A new broker must have got `announce_brokers` first: a follower needs its leader's address.
        """
        topic_partitions = sorted(topic_partitions)
        known = [each for each in topic_partitions if each in self.states]
        told = [
            broker_id
            for broker_id in sorted(self.brokers)
            if (broker_id not in self.newcomers if to is None else broker_id in to)
        ]
        for broker_id in told:
            mine = {
                each: self._wire_state(each, is_new=each in new)
                for each in known
                if broker_id in self.replicas[each] and not self.is_being_deleted(each.topic)
            }
            if mine or is_full:
                self.channels[broker_id].enqueue(m.LeaderAndIsrRequest, mine, is_full=is_full)
        self.announce_metadata(topic_partitions, to=told)

    def announce_metadata(
        self, topic_partitions: Iterable[TopicPartition], *, to: Collection[int] | None = None
    ) -> None:
        """Send brokers (all if `to` is None) the leaders of these partitions, or that they have none, or
        their deletion."""
        states = {each: self._wire_state(each) for each in sorted(topic_partitions) if each in self.replicas}
        for broker_id in sorted(self.brokers):
            if states and (to is None or broker_id in to):
                self.channels[broker_id].enqueue(m.UpdateMetadataRequest, states)

    def announce_brokers(self, *, is_full: bool = False) -> None:
        """Send every broker the list of live brokers; newcomers, or all if `is_full`, that of topics too.

        A newcomer may have been here before, and missed deletions.
        """
        for broker_id in sorted(self.brokers):
            channel = self.channels[broker_id]
            channel.enqueue(m.UpdateMetadataRequest, {}, is_full=is_full or broker_id in self.newcomers)

    @property
    def unreadable_topics(self) -> list[str]:
        """The names under `/brokers/topics` whose nodes cannot be parsed."""
        nodes = (path.rpartition("/") for path in self.unreadable)
        return sorted(name for directory, _, name in nodes if directory == TOPICS_PATH)

    def assigned_to(self, broker_id: int) -> dict[TopicPartition, str]:
        """Return every partition with a replica on this broker, and its topic's id.

        ISR members, leaving replicas and topics under deletion count too: they have orders of their own.
        """
        return {
            each: self.topics[each.topic].topic_id
            for each, replicas in sorted(self.replicas.items())
            if broker_id in replicas
            or (each in self.states and broker_id in self.states[each].state.isr)
            or (each in self.assignments and broker_id in self.assignments[each].leaving)
        }

    def send_withheld_lists(self) -> None:
        """Send every broker the full lists, if one had to go without and all topics can be read now."""
        if self._has_withheld_lists and not _are_of_topics(self.unreadable):
            mark("controller: the lists of partitions are known again")
            self._has_withheld_lists = False
            self.announce((), is_full=True)
            self.announce_brokers(is_full=True)

    def _wire_state(self, topic_partition: TopicPartition, *, is_new: bool = False) -> m.PartitionState:
        if self.is_being_deleted(topic_partition.topic):
            # After a takeover the states of such topics have not been read.
            return self._deleted_state(topic_partition)
        if topic_partition not in self.states:
            # No replica was alive since its creation. Older than each state that it will have.
            return m.PartitionState(
                self.epoch, m.NO_LEADER, m.NO_EPOCH, (), -1, self.replicas[topic_partition]
            )
        assignment = self.assignment_of(topic_partition)
        state, partition_epoch = self.states[topic_partition]
        return m.PartitionState(
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            partition_epoch=partition_epoch,
            replicas=assignment.replicas,
            is_new=is_new,
            adding_replicas=assignment.adding,
            removing_replicas=assignment.removing,
            durability=state.durability,
            all_synced=state.all_synced,
            min_insync=state.min_insync,
            eligible=tuple(each.replica for each in state.eligible),
        )

    def _deleted_state(self, topic_partition: TopicPartition) -> m.PartitionState:
        return m.PartitionState(
            self.epoch, m.BEING_DELETED, m.NO_EPOCH, (), -1, self.replicas[topic_partition]
        )

    def build(self, broker_id: int, broker_epoch: int, entry: Entry) -> m.RequestBody:
        """Return the request for `entry`, with the current brokers, topic ids and settings."""
        states = {each: word for each, word in entry.partitions.items() if isinstance(word, m.PartitionState)}
        orders = {
            each: word for each, word in entry.partitions.items() if isinstance(word, m.StopReplicaPartition)
        }
        topics = {
            each.topic: self.topics[each.topic] for each in entry.partitions if each.topic in self.topics
        }
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        sender = (self.node_id, self.epoch, broker_epoch)
        lists_all = entry.is_full
        if lists_all and _are_of_topics(self.unreadable):
            # A topic node that cannot be read may name any broker, so no list is complete. Nor is one while
            # a state cannot be read: it does not record what this broker may have lost.
            mark("controller: with an unreadable topic no log counts as a stray")
            self._has_withheld_lists, lists_all = True, False
        if entry.kind is m.StopReplicaRequest:
            return m.StopReplicaRequest(*sender, partitions=orders, topic_ids=topic_ids)
        if entry.kind is m.UpdateMetadataRequest:
            return m.UpdateMetadataRequest(
                *sender,
                partitions=states,
                live_brokers=tuple(broker.endpoint for _, broker in sorted(self.brokers.items())),
                topic_ids=topic_ids,
                shutting_down=tuple(sorted(self.shutting_down)),
                all_topics=tuple(self.topics) if lists_all else None,
            )
        leaders = sorted({state.leader for state in states.values()} & self.brokers.keys())
        return m.LeaderAndIsrRequest(
            *sender,
            partitions=states,
            topic_ids=topic_ids,
            live_leaders=tuple(self.brokers[leader].endpoint for leader in leaders),
            configs={name: topic.config for name, topic in topics.items()},
            assigned=self.assigned_to(broker_id) if lists_all else None,
        )


def _are_of_topics(paths: Iterable[str]) -> bool:
    """Return whether one of the nodes at these paths is a topic's, or the state of a partition."""
    return any(path.startswith(f"{TOPICS_PATH}/") for path in paths)
