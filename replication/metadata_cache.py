"""This node's latest metadata of the whole cluster: live brokers, leaders, topic ids.

Only UpdateMetadata writes it. It answers metadata requests of clients, distinguishes "not here" from "does
not exist", and reports whether a follower that is to join an ISR is alive. It may be stale: no decision
over committed records relies on it.
"""

from __future__ import annotations

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
    """Live brokers, partitions and topic ids. Read the mappings; only `update` changes them."""

    def __init__(self) -> None:
        self.controller_id = -1
        self.brokers: dict[int, BrokerEndpoint] = {}
        """The live brokers, by id."""
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.topics: dict[str, dict[int, PartitionState]] = {}
        """The same by topic and number: most clients ask for a few of very many."""
        self.topic_ids: dict[str, str] = {}
        """Topic ids by name."""
        self.topic_names: dict[str, str] = {}
        """Topic names by id."""
        self.deleted: tuple[TopicPartition, ...] = ()
        """Partitions that the latest such update removed, also for another topic of that name: a new tuple
        each time."""
        self.updates = 0
        """How often `update` was called."""
        self._shutting_down: frozenset[int] = frozenset()

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker is registered."""
        return broker_id in self.brokers

    def may_be_in_sync(self, broker_id: int) -> bool:
        """Whether it may join an ISR: alive, and not about to stop (KIP-841)."""
        return broker_id in self.brokers and broker_id not in self._shutting_down

    def is_stopping(self, broker_id: int) -> bool:
        """Whether it is in a controlled shutdown: its leaderships go to others."""
        return broker_id in self._shutting_down

    def next_broker(self, broker_id: int) -> int:
        """Return the live broker with the next higher id, wrapping around; `broker_id` if none is live."""
        ids = sorted(self.brokers)
        return next((each for each in ids if each > broker_id), ids[0] if ids else broker_id)

    @property
    def in_sync_candidates(self) -> frozenset[int]:
        """The brokers that may join an ISR, as `may_be_in_sync`."""
        return frozenset(self.brokers).difference(self._shutting_down)

    def rack_of(self, broker_id: int) -> str | None:
        """Return the rack of a live broker, empty if it has none; None if it is not alive."""
        endpoint = self.brokers.get(broker_id)
        return endpoint.rack if endpoint is not None else None

    def broker_epoch(self, broker_id: int) -> int:
        """Return the registered incarnation of a live broker; -1 if unknown."""
        endpoint = self.brokers.get(broker_id)
        return endpoint.epoch if endpoint is not None else -1

    def leader_of(self, topic_partition: TopicPartition) -> int:
        """Return the leader; -1 if there is none or it is unknown."""
        state = self.partitions.get(topic_partition)
        return state.leader if state is not None else NO_LEADER

    def describe(self, request: MetadataRequest) -> MetadataResponse:
        """Return brokers and leaders for a client."""
        partitions = (
            self.partitions.copy()
            if request.topics is None
            else {
                TopicPartition(topic, number): state
                for topic in request.topics
                for number, state in self.topics.get(topic, {}).items()
            }
        )
        return MetadataResponse(tuple(self.brokers.values()), self.controller_id, partitions)

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Replace the live brokers, merge the partitions; returns the partitions being deleted.

        An older state never replaces a newer one: updates of one controller may arrive in another order. A
        changed topic id means another topic of the same name, whose epochs start again. A topic that a full
        list does not name was deleted while this broker could not hear of it.
        """
        self.updates += 1
        self.controller_id = request.controller_id
        self.brokers = {broker.broker_id: broker for broker in request.live_brokers}
        self._shutting_down = frozenset(request.shutting_down)
        gone: list[TopicPartition] = []
        if request.all_topics is not None:
            for topic in sorted(self.topics.keys() - request.all_topics):
                mark("metadata: a topic was deleted unheard")
                gone += self._forget(topic)
        for topic, topic_id in request.topic_ids.items():
            if self.topic_ids.get(topic, topic_id) != topic_id:
                mark("metadata: a topic is another one than before")
                gone += self._forget(topic)
            self.topic_ids[topic] = topic_id
            self.topic_names[topic_id] = topic
        deleted = []
        for topic_partition, state in request.partitions.items():
            topic, number = topic_partition
            if state.leader == BEING_DELETED:
                mark("metadata: a partition is being deleted")
                deleted.append(topic_partition)
                if self.partitions.pop(topic_partition, None) is not None:
                    del self.topics[topic][number]
                continue
            known = self.partitions.get(topic_partition)
            if known is None or _version(state) >= _version(known):
                self.partitions[topic_partition] = state
                self.topics.setdefault(topic, {})[number] = state
        if gone or deleted:
            self.deleted = (*gone, *deleted)
            for topic in {each.topic for each in deleted}:
                if not self.topics.get(topic):
                    self._forget(topic)
        return deleted

    def _forget(self, topic: str) -> list[TopicPartition]:
        """Remove a topic; return the partitions that it had."""
        partitions = [TopicPartition(topic, number) for number in self.topics.pop(topic, {})]
        for each in partitions:
            del self.partitions[each]
        self.topic_names.pop(self.topic_ids.pop(topic, ""), None)
        return partitions


def _version(state: PartitionState) -> tuple[int, int, int]:
    return state.leader_epoch, state.partition_epoch, state.controller_epoch
