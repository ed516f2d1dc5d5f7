"""The replicas of a topic that is being deleted: where each stands, and who is to be asked next. Pure.

                    told to delete            confirmed
    OFFLINE ──────────▶ STARTED ──────────▶ SUCCESSFUL ──▶ (the topic's nodes go when all are here)
       ▲  │                │
       │  └──────┐  ┌──────┘ its broker died, or said that it cannot
       │         ▼  ▼
       └───── INELIGIBLE          the whole topic waits; other topics do not
     its broker is back          (or SUCCESSFUL: it had been told twice, and could the second time)

These are Kafka's replica states from `OfflineReplica` on. The ones before need no name here: a partition
without a state node is new, one whose state names no leader is offline, and who lives says the rest. What
the table does not allow (an answer that comes twice, a broker that dies after it confirmed) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from logstore.disk.topic_partition import TopicPartition


class ReplicaState(Enum):
    OFFLINE = "offline"
    STARTED = "deletion started"
    SUCCESSFUL = "deletion successful"
    INELIGIBLE = "deletion ineligible"


LEGAL: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.OFFLINE: frozenset({ReplicaState.STARTED, ReplicaState.INELIGIBLE}),
    ReplicaState.STARTED: frozenset({ReplicaState.SUCCESSFUL, ReplicaState.INELIGIBLE}),
    ReplicaState.SUCCESSFUL: frozenset(),
    ReplicaState.INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.SUCCESSFUL}),
}
"""Where a replica may go from each state."""


class Replica(NamedTuple):
    topic_partition: TopicPartition
    broker_id: int


class Deletion:
    """One topic that somebody wants deleted; `waits_for` says why it has not begun, empty once it has."""

    def __init__(self, topic_id: str, replicas: Iterable[Replica] = (), *, waits_for: str = "") -> None:
        self.topic_id, self.waits_for = topic_id, waits_for
        self.states = dict.fromkeys(sorted(replicas), ReplicaState.OFFLINE)
        self._obstacles: dict[Replica, str] = {}

    @property
    def has_begun(self) -> bool:
        return not self.waits_for

    @property
    def is_complete(self) -> bool:
        """Whether every replica has confirmed that it is gone."""
        return self.has_begun and all(state is ReplicaState.SUCCESSFUL for state in self.states.values())

    @property
    def blocking(self) -> dict[int, str]:
        """The brokers that keep the topic waiting, and why each cannot delete its replicas."""
        return {
            replica.broker_id: self._obstacles[replica]
            for replica, state in self.states.items()
            if state is ReplicaState.INELIGIBLE
        }

    def move(self, replica: Replica, to: ReplicaState, why: str = "") -> bool:
        """Take the replica to another state; False, and nothing changes, where the table has no way."""
        state = self.states.get(replica)
        if state is None or to not in LEGAL[state]:
            return False
        self.states[replica] = to
        self._obstacles.pop(replica, None)
        if to is ReplicaState.INELIGIBLE:
            self._obstacles[replica] = why
        return True

    def broker_gone(self, broker_id: int) -> None:
        """Whatever this broker was to delete has to wait; what it confirmed is gone for good."""
        for replica in self.states:
            if replica.broker_id == broker_id:
                self.move(replica, ReplicaState.INELIGIBLE, "not alive")

    def retry(self, obstacle: Callable[[Replica], str]) -> None:
        """Those that nothing stands in the way of any more (`obstacle` is empty) may be asked again."""
        for replica, state in self.states.items():
            if state is ReplicaState.INELIGIBLE and not obstacle(replica):
                self.move(replica, ReplicaState.OFFLINE)

    def start(self, obstacle: Callable[[Replica], str]) -> dict[int, list[TopicPartition]]:
        """Whom to tell now, by broker: those are `STARTED`; the ones with an obstacle are `INELIGIBLE`."""
        told: dict[int, list[TopicPartition]] = {}
        for replica, state in self.states.items():
            if state is not ReplicaState.OFFLINE:
                continue
            if why := obstacle(replica):
                self.move(replica, ReplicaState.INELIGIBLE, why)
            else:
                self.move(replica, ReplicaState.STARTED)
                told.setdefault(replica.broker_id, []).append(replica.topic_partition)
        return told
