"""What the active controller knows: a copy of the store, and what it owes the brokers.

Everything here can be thrown away and read again; a controller that resigns does just that. The
copy is never evidence for a write: procedures read a state node again right before they decide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.balance import Imbalance
from logstore.replication.controller.channel import Channels, ControlRequest, Entry
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.deletion import Deletion
from logstore.replication.controller.election import Incarnation
from logstore.replication.controller.reassignment import Assignment
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    BEING_DELETED,
    NO_EPOCH,
    NO_LEADER,
    BrokerEndpoint,
    LeaderAndIsrRequest,
    PartitionState,
    RequestBody,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore.layout import CONTROLLER_EPOCH_PATH, TOPICS_PATH, LeaderAndIsr
from logstore.replication.metastore.operations import Check, Create, Delete, Multi, Operation, Outcome, Set
from logstore.replication.state_change import Side, Sink, StateChange, unheard

UNCLEAN_ELECTION = "unclean.leader.election.enable"
DURABILITY_LEVEL = "durability.level"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

Result = TypeVar("Result")
Steps: TypeAlias = Generator[tuple[Operation, ...], tuple[Outcome, ...], Result]
"""A procedure: it yields store operations, issued together, and is resumed with their outcomes.

Reads that were lost are repeated underneath it; a write that was lost comes back as
`CONNECTION_LOSS`, and the procedure must find out what became of it.
"""


class Broker(NamedTuple):
    """A live, registered broker."""

    endpoint: BrokerEndpoint
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
        """`now` gives the time of the event that is being served, epoch milliseconds."""
        self.node_id, self.epoch, self.config = node_id, epoch, config
        self.random = random_source
        self.now, self._state_changes = now, state_changes
        self._fence = Check(CONTROLLER_EPOCH_PATH, epoch_version)
        self.forget_all()

    def forget_all(self) -> None:
        """Back to knowing nothing, for a takeover that starts again."""
        self.channels = Channels(self.config)
        self.brokers: dict[int, Broker] = {}
        self.newcomers: set[int] = set()
        """Brokers that were met and not yet told their roles: kept here in case the event fails half-way.

        Their first word is about all of their roles, and comes when every state accounts for them."""
        self.shutting_down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.assignments: dict[TopicPartition, Assignment] = {}
        """More about the replicas of those partitions whose list is in motion, see `assignment_of`."""
        self.stop_epochs: dict[tuple[TopicPartition, int], int] = {}
        """The leader epoch in which a broker was last told to delete the replica that leaves it."""
        self.requested: dict[TopicPartition, tuple[int, ...]] = {}
        """What `/admin/reassign_partitions` asks for."""
        self.states: dict[TopicPartition, KnownState] = {}
        self.broker_defaults: dict[str, str] = {}
        """Settings of all brokers that were changed while they run."""
        self.imbalances: Mapping[int, Imbalance] = {}
        """What the last check of balance found, by preferred broker; for metrics."""
        self.offline_replicas: dict[int, set[TopicPartition]] = {}
        """Replicas on live brokers that could not take their role, by broker; until they have taken one."""
        self.refusing: dict[int, set[TopicPartition]] = {}
        """Those of which only the word was heard, by broker: a registration that names a damaged log, until a
        role is taken; or a refusal, while the event that writes it off waits for its turn."""
        self.deletions: dict[str, Deletion] = {}
        """Topics that are to be deleted, and what each waits for: they are not balanced any more."""
        self.config_changes: dict[str, int] = {}
        """Notifications of changed settings, and since when we know of each, epoch milliseconds."""
        self.unreadable: dict[str, str] = {}
        """Nodes that could not be understood, and why. They are left alone and reported."""

    # --- the store ----------------------------------------------------------------------------

    def fenced(self, *writes: Create | Set | Delete | Check) -> Multi:
        """These writes, provided that no other controller was elected since."""
        return Multi((self._fence, *writes))

    # --- brokers and partitions ---------------------------------------------------------------

    def live(self, topic_partition: TopicPartition) -> dict[int, Incarnation]:
        """The brokers that can serve this partition, and whether each kept all that it had acknowledged."""
        known = self.states.get(topic_partition)
        keeps_all = self.config.elect_unclean_restarted_last_member or (
            # On disk before it counted: no unclean stop can have cost it (reliability R2). A disk that was
            # exchanged for an empty one can.
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
        """The brokers that live and cannot use their replica of this partition."""
        return sorted(each for each, failed in self.offline_replicas.items() if topic_partition in failed)

    def refusers(self, broker_id: int) -> set[TopicPartition]:
        """The replicas of this broker whose last word heard was that they cannot take their role."""
        return self.offline_replicas.get(broker_id, set()) | self.refusing.get(broker_id, set())

    def refusing_brokers(self, topic_partition: TopicPartition) -> list[int]:
        """The brokers whose last word heard was that they cannot use their replica of this partition."""
        return [each for each in sorted(self.brokers) if topic_partition in self.refusers(each)]

    def staying(self, topic_partition: TopicPartition) -> dict[int, Incarnation]:
        """Of the brokers that can serve this partition, those that do not shut down."""
        live = self.live(topic_partition)
        return {broker_id: live[broker_id] for broker_id in live if broker_id not in self.shutting_down}

    def assignment_of(self, topic_partition: TopicPartition) -> Assignment:
        """A known partition's replicas, and where they are going."""
        return self.assignments.get(topic_partition) or Assignment(self.replicas[topic_partition])

    def learn_assignment(self, topic_partition: TopicPartition, assignment: Assignment) -> bool:
        """Take over what the topic node says of a partition; False if it is no news."""
        is_news = topic_partition not in self.replicas or self.assignment_of(topic_partition) != assignment
        self.replicas[topic_partition] = assignment.replicas
        self.assignments.pop(topic_partition, None)
        if assignment != Assignment(assignment.replicas):
            self.assignments[topic_partition] = assignment
        return is_news

    def is_reassigning(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's replicas are being moved. Until then its topic cannot be deleted."""
        assignment = self.assignments.get(topic_partition)
        return assignment is not None and assignment.is_reassigning

    def is_being_deleted(self, topic: str) -> bool:
        """Whether the topic's deletion has begun: no election, no role, no proposal is for it any more."""
        deletion = self.deletions.get(topic)
        return deletion is not None and deletion.has_begun

    def unclean_enabled(self, topic: str) -> bool:
        """The topic's word on unclean election, else that for all brokers, else ours; read at every use."""
        word = self.topics[topic].config.get(UNCLEAN_ELECTION, self.broker_defaults.get(UNCLEAN_ELECTION))
        return self.config.unclean_leader_election_enable if word is None else word.lower() == "true"

    def durability(self, topic: str) -> Durability:
        """The level that the topic asks for, else the broker's; read at every use."""
        word = self.topics[topic].config.get(DURABILITY_LEVEL)
        return self.config.durability if word is None else Durability(word.strip())

    def min_insync(self, topic_partition: TopicPartition, assignment: Assignment | None = None) -> int:
        """How many must be in sync for the high watermark to move, 0 for any; read at every use.

        Never more than there are replicas, those not counted that a reassignment (`assignment` if it is
        not the one in force) is bringing in.
        """
        if not self.config.min_insync_wall:
            return 0
        word = self.topics[topic_partition.topic].config.get(MIN_INSYNC_REPLICAS)
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
        """Forget a topic that the store has no more, or has another one of, by nobody's order to us.

        Its replicas are strays from now on. Nothing is deleted: every broker is told what is assigned to
        it, and sets aside what is not. What waits to be said of the topic would be of its namesake.
        """
        lost = self.partitions_of(topic)
        if not lost:
            self.forget_topic(topic)
            return
        mark("topics: one is gone from the store, or is another one, and nobody asked us")
        states = {each: self._deleted_state(each) for each in lost}
        for each in lost:
            self.record(each, "forgets the topic", "its node is gone from the store, or another topic's")
        self.forget_topic(topic)
        for broker_id in sorted(self.brokers):
            self.channels[broker_id].withdraw(topic)
            self.channels[broker_id].enqueue(UpdateMetadataRequest, states)
        self.announce((), is_full=True)

    def record(self, topic_partition: TopicPartition, change: str, reason: str = "") -> None:
        """Enter a decision into the state-change log, with the state that it led to."""
        known = self.states.get(topic_partition)
        state = known.state if known is not None else None
        self._state_changes(
            StateChange(
                self.now(),
                self.node_id,
                Side.CONTROLLER,
                self.epoch,
                topic_partition,
                change,
                leader=state.leader if state is not None else NO_LEADER,
                leader_epoch=state.leader_epoch if state is not None else NO_EPOCH,
                partition_epoch=known.partition_epoch if known is not None else -1,
                isr=state.isr if state is not None else (),
                replicas=self.replicas.get(topic_partition, ()),
                reason=reason,
            )
        )

    # --- what brokers are told ----------------------------------------------------------------

    def announce(
        self,
        topic_partitions: Iterable[TopicPartition],
        *,
        to: Collection[int] | None = None,
        new: Collection[TopicPartition] = (),
        is_full: bool = False,
    ) -> None:
        """Tell replicas what they are to be, and every broker where the leaders are.

        `to` restricts both to some brokers, None leaves only newcomers out, who get everything soon;
        `new` are partitions that nobody can have had before;
        `is_full` says that these are all there are, so that brokers learn which logs nobody assigned.
        Metadata comes after, but a broker that has just been met got `announce_brokers` first: a
        follower must know its leader's address.
        """
        known = [each for each in sorted(topic_partitions) if each in self.states]
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
                self.channels[broker_id].enqueue(LeaderAndIsrRequest, mine, is_full=is_full)
        self.announce_metadata(known, to=told)

    def announce_metadata(
        self, topic_partitions: Iterable[TopicPartition], *, to: Collection[int] | None = None
    ) -> None:
        """Tell brokers, all if `to` is None, who leads these partitions, or that their topic goes."""
        states = {
            each: self._wire_state(each)
            for each in sorted(topic_partitions)
            if each in self.states or self.is_being_deleted(each.topic)
        }
        for broker_id in sorted(self.brokers):
            if states and (to is None or broker_id in to):
                self.channels[broker_id].enqueue(UpdateMetadataRequest, states)

    def announce_brokers(self) -> None:
        """Tell every broker which brokers live."""
        for broker_id in sorted(self.brokers):
            self.channels[broker_id].enqueue(UpdateMetadataRequest, {})

    @property
    def unreadable_topics(self) -> list[str]:
        """Names under `/brokers/topics` of which nobody can say what they mean."""
        nodes = (path.rpartition("/") for path in self.unreadable)
        return sorted(name for directory, _, name in nodes if directory == TOPICS_PATH)

    def assigned_to(self, broker_id: int) -> dict[TopicPartition, str] | None:
        """Every partition with a replica on this broker, and its topic's id; None if nobody can say.

        Members of an ISR count whatever the assignment says by now, and so do replicas that leave and
        topics that are being deleted: those go by orders of their own. A topic node that cannot be read
        may name any broker.
        """
        if self.unreadable_topics:
            mark("controller: a topic that cannot be read keeps every log from counting as a stray")
            return None
        return {
            each: self.topics[each.topic].topic_id
            for each, replicas in sorted(self.replicas.items())
            if broker_id in replicas
            or (each in self.states and broker_id in self.states[each].state.isr)
            or (each in self.assignments and broker_id in self.assignments[each].leaving)
        }

    def _wire_state(self, topic_partition: TopicPartition, *, is_new: bool = False) -> PartitionState:
        assignment = self.assignment_of(topic_partition)
        if self.is_being_deleted(topic_partition.topic):
            # A controller that takes over does not read the states of what is to go.
            return self._deleted_state(topic_partition)
        state, partition_epoch = self.states[topic_partition]
        return PartitionState(
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

    def _deleted_state(self, topic_partition: TopicPartition) -> PartitionState:
        replicas = self.replicas[topic_partition]
        return PartitionState(self.epoch, BEING_DELETED, NO_EPOCH, (), -1, replicas)

    def build(self, broker_id: int, broker_epoch: int, entry: Entry) -> RequestBody:
        """The request for `entry`, with the brokers, topic ids and settings of this moment."""
        kind: type[ControlRequest] = entry.kind
        partitions = entry.partitions
        states = {each: value for each, value in partitions.items() if isinstance(value, PartitionState)}
        topics = {each.topic: self.topics[each.topic] for each in partitions if each.topic in self.topics}
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        if kind is LeaderAndIsrRequest:
            leaders = sorted({state.leader for state in states.values()} & self.brokers.keys())
            return LeaderAndIsrRequest(
                controller_id=self.node_id,
                controller_epoch=self.epoch,
                broker_epoch=broker_epoch,
                partitions=states,
                topic_ids=topic_ids,
                live_leaders=tuple(self.brokers[leader].endpoint for leader in leaders),
                configs={name: topic.config for name, topic in topics.items()},
                assigned=self.assigned_to(broker_id) if entry.is_full else None,
            )
        if kind is UpdateMetadataRequest:
            return UpdateMetadataRequest(
                controller_id=self.node_id,
                controller_epoch=self.epoch,
                broker_epoch=broker_epoch,
                partitions=states,
                live_brokers=tuple(broker.endpoint for _, broker in sorted(self.brokers.items())),
                topic_ids=topic_ids,
                shutting_down=tuple(sorted(self.shutting_down)),
            )
        return StopReplicaRequest(
            controller_id=self.node_id,
            controller_epoch=self.epoch,
            broker_epoch=broker_epoch,
            partitions={
                each: value for each, value in partitions.items() if isinstance(value, StopReplicaPartition)
            },
            topic_ids=topic_ids,
        )
