"""Since when: the last change of each partition's leader or ISR, and when brokers left, as seen by this one.

Of each broker the departures of the last ten minutes are kept: one that comes and goes restarts for ever.

Leaders and ISRs are what it decided as the controller.

In memory only: a broker that was restarted since knows nothing of it. The state-change log has all of it, and
`logstore timeline` shows it.

Also the transactions that hang, since their last records: these are read off the logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from logstore.log.producer_state import LARGEST_TIMEOUT_MS, OpenTransaction
from logstore.log.read import late_transactions
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.replication.state_change import Side, StateChange

WINDOW_MS: Final = 600_000
MOST_DEPARTURES: Final = 20


class Changed(NamedTuple):
    """A leader and an ISR, since when (epoch ms) they are these, and why."""

    leader: int
    isr: tuple[int, ...]
    since_ms: int
    reason: str


class Since:
    """Fed with state changes of the node, and with its metadata."""

    def __init__(self) -> None:
        self._changed: dict[TopicPartition, Changed] = {}
        self._left: dict[int, int] = {}
        self._departures: dict[int, deque[int]] = {}
        self._live: frozenset[int] = frozenset()
        self._updates = 0
        self._deleted: tuple[TopicPartition, ...] = ()

    def on_change(self, change: StateChange) -> None:
        """Take a controller's decision; one that leaves leader and ISR as they were changes nothing."""
        known = self._changed.get(change.topic_partition)
        if change.side is Side.CONTROLLER and (known is None or known[:2] != (change.leader, change.isr)):
            seen = Changed(change.leader, change.isr, change.time_ms, change.reason)
            self._changed[change.topic_partition] = seen

    def look(self, metadata: MetadataCache, now_ms: int) -> None:
        """Note the brokers that have left since the last look."""
        if metadata.updates == self._updates:
            return
        self._updates = metadata.updates
        live = frozenset(metadata.brokers)
        gone = sorted(self._live - live)
        self._left |= dict.fromkeys(gone, now_ms)
        for broker in gone:
            self._departures.setdefault(broker, deque(maxlen=MOST_DEPARTURES)).append(now_ms)
        self._left = {broker: left_ms for broker, left_ms in self._left.items() if broker not in live}
        self._live = live
        if metadata.deleted is not self._deleted:  # not at each change of one partition among thousands
            self._deleted = metadata.deleted
            for deleted in self._changed.keys() - metadata.partitions.keys():
                del self._changed[deleted]

    def departures(self, now_ms: int) -> list[t.Departures]:
        """Return when brokers left in the last ten minutes."""
        recent = {
            broker: [at_ms for at_ms in times if now_ms - at_ms < WINDOW_MS]
            for broker, times in sorted(self._departures.items())
        }
        return [t.Departures(broker=broker, times_ms=times) for broker, times in recent.items() if times]

    def troubled(self, metadata: MetadataCache) -> list[t.SinceWhen]:
        """Return since when brokers are gone, and partitions without a leader or short of replicas are so."""
        told = [
            t.SinceWhen(name=f"broker {broker}", since_ms=left_ms)
            for broker, left_ms in sorted(self._left.items())
        ]
        for each, changed in sorted(self._changed.items()):
            state = metadata.partitions.get(each)
            if state is None or (state.leader, state.isr) != changed[:2]:
                continue
            if state.leader < 0 or len(state.isr) < len(state.replicas):
                told.append(t.SinceWhen(name=str(each), since_ms=changed.since_ms, reason=changed.reason))
        return told


def hanging_transactions_of(partition: Partition, now_ms: int) -> Sequence[OpenTransaction]:
    """Return the transactions of a partition led here that no coordinator will end, oldest first."""
    return late_transactions(partition.log, now_ms, LARGEST_TIMEOUT_MS) if partition.is_leader else ()


def hanging_transactions(replicas: ReplicaManager, now_ms: int) -> list[t.SinceWhen]:
    """Return the oldest transaction that no coordinator will end, of each partition led here that has one."""
    found = []
    for each, partition in replicas.partitions.items():
        if late := hanging_transactions_of(partition, now_ms):
            oldest = late[0]
            told = f"producer {oldest.producer_id} has one open since offset {oldest.first_offset}"
            found.append(t.SinceWhen(name=str(each), since_ms=oldest.last_timestamp_ms, reason=told))
    return found
