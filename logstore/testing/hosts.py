"""The machines of a simulated cluster: a disk that stays, and the processes that come and go on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig, ReplicaSelector
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import Event
from logstore.replication.messages import BrokerEndpoint
from logstore.replication.node import Node
from logstore.testing.disks.faulty import FaultyDisk
from logstore.testing.recovery_checks import Remains
from logstore.testing.stored import ReplicaView
from logstore.testing.swarm import Swarm

if TYPE_CHECKING:
    from logstore.testing.rotting_disk import Rot


@dataclass(slots=True, eq=False)
class Host:
    """A machine: its disk, and the life of the node that runs on it, if any."""

    node_id: int
    config: NodeConfig
    disk: MemoryDisk
    node: Node | None = None
    life: int = 0
    boot: int = 1
    session_id: int | None = None
    end_notified: int | None = None
    """The session whose end was sent to the node."""
    is_paused: bool = False
    backlog: list[Event] = field(default_factory=list)
    unheard: list[Event] = field(default_factory=list)
    """Events of the store that wait until the node can receive them."""
    outstanding: dict[int, int] = field(default_factory=dict)
    """Requests that wait for a response: correlation id to the node asked."""
    tick_at_ms: int | None = None
    views: dict[TopicPartition, ReplicaView] = field(default_factory=dict)
    seen: dict[TopicPartition, tuple[object, ...]] = field(default_factory=dict)
    live_brokers: Mapping[int, BrokerEndpoint] = field(default_factory=dict)
    """The live brokers, as last seen in its node's metadata."""
    remains: dict[TopicPartition, Remains] = field(default_factory=dict)
    stopped_in_order: bool | None = True
    """Whether the next start must find a clean stop; None: it died while starting, so both are possible."""
    faulty: FaultyDisk | None = None
    """The disk as a running node sees it, where disks may fail."""
    rotten: set[TopicPartition] = field(default_factory=set)
    """Partitions in whose files a bit changed since the last run."""
    rots: list[Rot] = field(default_factory=list)
    """Bytes that rotted on its disk and may not be mended yet; see `rotting`."""
    disk_is_dead: bool = False
    disk_is_full: bool = False
    sync_delay_ms: int = 0
    """How many milliseconds longer than usual a sync takes."""

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of its registration; -1 for none."""
        return self.node.broker_epoch if self.node is not None else -1


def in_turn(partitions: int, factor: int, nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return an assignment: the replicas of partition p are on nodes p, p + 1, … in turn."""
    return tuple(tuple((first + offset) % nodes for offset in range(factor)) for first in range(partitions))


def rack_of(swarm: Swarm, number: int) -> str:
    """Return the rack of a node or a consumer; empty without racks."""
    return f"rack {number % swarm.racks}" if swarm.racks else ""


def node_config(swarm: Swarm, node_id: int) -> NodeConfig:
    """Return the configuration of a node in a seed's cluster."""
    return NodeConfig(
        node_id=node_id,
        durability=swarm.durability,
        zookeeper_session_timeout_ms=swarm.session_timeout_ms,
        registration_retry_ms=swarm.backoff_ms,
        request_timeout_ms=swarm.request_timeout_ms,
        replica_lag_time_max_ms=swarm.lag_time_max_ms,
        replica_lag_max_messages=swarm.lag_max_messages,
        replica_fetch_wait_max_ms=swarm.fetch_wait_ms,
        replica_fetch_max_bytes=swarm.fetch_max_bytes,
        replica_fetch_backoff_ms=swarm.backoff_ms,
        alter_partition_retry_ms=swarm.backoff_ms,
        replica_high_watermark_checkpoint_interval_ms=swarm.checkpoint_interval_ms,
        truncate_on_fetch=swarm.truncate_on_fetch,
        max_incremental_fetch_session_cache_slots=swarm.fetch_sessions,
        controlled_shutdown_retry_backoff_ms=swarm.backoff_ms,
        broker_rack=rack_of(swarm, node_id),
        replica_selector_class=ReplicaSelector.RACK_AWARE if swarm.racks else ReplicaSelector.NONE,
        controller=ControllerConfig(
            request_timeout_ms=swarm.request_timeout_ms,
            retry_backoff_ms=swarm.backoff_ms,
            leader_imbalance_check_interval_seconds=1,
            delete_topic_enable=swarm.delete_topic_enable,
        ),
    )
