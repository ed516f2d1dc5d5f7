"""A world in which nothing happens by itself: the base of the test kit's clusters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from logstore.replication.durability import Durability
from logstore.testing.swarm import COMMAND_NAMES, FAULT_NAMES, Features, Swarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Timeouts and intervals of a cluster's nodes in virtual milliseconds, under Kafka's names."""

    zookeeper_session_timeout_ms: int = 1000
    """A node is dead this long after its last heartbeat."""
    replica_lag_time_max_ms: int = 1000
    """A follower that is behind for longer leaves the ISR."""
    replica_fetch_wait_max_ms: int = 100
    request_timeout_ms: int = 500
    retry_backoff_ms: int = 50
    high_watermark_checkpoint_interval_ms: int = 1000
    log_retention_check_interval_ms: int = 5000


def quiet_swarm(
    seed: int,
    nodes: int,
    *,
    replication_factor: int,
    min_insync_replicas: int,
    durability: Durability,
    timings: Timings,
) -> Swarm:
    """Return a world without faults, clients or operator, on disks that can be made to fail."""
    return Swarm(
        seed=seed,
        nodes=nodes,
        partitions=0,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        durability=durability,
        boot_ids=True,
        reckless=True,
        session_timeout_ms=timings.zookeeper_session_timeout_ms,
        lag_time_max_ms=timings.replica_lag_time_max_ms,
        fetch_wait_ms=timings.replica_fetch_wait_max_ms,
        fetch_max_bytes=1 << 20,
        request_timeout_ms=timings.request_timeout_ms,
        backoff_ms=timings.retry_backoff_ms,
        checkpoint_interval_ms=timings.high_watermark_checkpoint_interval_ms,
        segment_bytes=1 << 20,
        retention_check_interval_ms=timings.log_retention_check_interval_ms,
        delay_ms=1,
        # Nothing draws from these rates; they allow disks to fail.
        rates=dict.fromkeys(FAULT_NAMES, 1.0),
        fault_interval_ms=1,
        command_rates=dict.fromkeys(COMMAND_NAMES, 0.0),
        command_interval_ms=1,
        produce_interval_ms=1,
        producers=0,
        consumers=0,
        features=Features(**{each.name: each.name == "idempotence" for each in fields(Features)}),
    )
