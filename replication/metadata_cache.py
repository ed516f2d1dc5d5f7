"""What this node last heard of the whole cluster: who is alive, who leads what.

Written by UpdateMetadata alone. It answers clients' metadata questions, tells "not here" from "does
not exist", and says whether a follower is alive when it asks to join an ISR. Always possibly stale:
nothing that decides over committed records relies on it being fresh.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    BrokerEndpoint,
    MetadataRequest,
    MetadataResponse,
    PartitionState,
    UpdateMetadataRequest,
)


class MetadataCache:
    """Live brokers, partitions and topic ids."""

    def __init__(self) -> None:
        self.controller_id = -1
        self.deleted: tuple[TopicPartition, ...] = ()
        """What the last update that took partitions away has taken away: a tuple of its own each time."""
        self._brokers: dict[int, BrokerEndpoint] = {}
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._topic_ids: dict[str, str] = {}
        self._topic_names: dict[str, str] = {}
        self._shutting_down: frozenset[int] = frozenset()

    @property
    def brokers(self) -> Mapping[int, BrokerEndpoint]:
        """The live ones, by id."""
        return self._brokers

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionState]:
        return self._partitions

    @property
    def topic_ids(self) -> Mapping[str, str]:
        return self._topic_ids

    @property
    def topic_names(self) -> Mapping[str, str]:
        """By id."""
        return self._topic_names

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def may_be_in_sync(self, broker_id: int) -> bool:
        """Whether it may join an ISR: alive, and not about to stop (KIP-841)."""
        return broker_id in self._brokers and broker_id not in self._shutting_down

    def rack_of(self, broker_id: int) -> str | None:
        """The rack of a live broker; None if it is not alive, empty if it has none."""
        endpoint = self._brokers.get(broker_id)
        return endpoint.rack if endpoint is not None else None

    def broker_epoch(self, broker_id: int) -> int:
        """The registered incarnation of a live broker; -1 if unknown."""
        endpoint = self._brokers.get(broker_id)
        return endpoint.epoch if endpoint is not None else -1

    def leader_of(self, topic_partition: TopicPartition) -> int:
        """Who leads; -1 for nobody or unknown."""
        state = self._partitions.get(topic_partition)
        return state.leader if state is not None else NO_LEADER

    def describe(self, request: MetadataRequest) -> MetadataResponse:
        """What a client that looks for leaders is told."""
        wanted = None if request.topics is None else set(request.topics)
        return MetadataResponse(
            tuple(self._brokers.values()),
            self.controller_id,
            {
                topic_partition: state
                for topic_partition, state in self._partitions.items()
                if wanted is None or topic_partition.topic in wanted
            },
        )

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Take over the list of live brokers, merge partitions; returns those that are being deleted.

        A partition's older state never replaces a newer one: updates of one controller may overtake
        each other. A topic id that changed means another incarnation, whose epochs start anew.
        """
        self.controller_id = request.controller_id
        self._brokers = {broker.broker_id: broker for broker in request.live_brokers}
        self._shutting_down = frozenset(request.shutting_down)
        for topic, topic_id in request.topic_ids.items():
            if self._topic_ids.get(topic, topic_id) != topic_id:
                mark("metadata: a topic is another one than before")
                for stale in [known for known in self._partitions if known.topic == topic]:
                    del self._partitions[stale]
                self._topic_names.pop(self._topic_ids[topic], None)
            self._topic_ids[topic] = topic_id
            self._topic_names[topic_id] = topic
        deleted = []
        for topic_partition, state in request.partitions.items():
            if state.leader == BEING_DELETED:
                self._partitions.pop(topic_partition, None)
                mark("metadata: a partition is being deleted")
                deleted.append(topic_partition)
                continue
            known = self._partitions.get(topic_partition)
            if known is None or _version(state) >= _version(known):
                self._partitions[topic_partition] = state
        if deleted:
            self.deleted = tuple(deleted)
        return deleted


def _version(state: PartitionState) -> tuple[int, int, int]:
    return state.leader_epoch, state.partition_epoch, state.controller_epoch
