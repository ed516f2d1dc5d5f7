"""Settings of one node, under Kafka's names for brokers; checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from logstore.config import MAX_INT, LogConfig, check_settings, setting
from logstore.errors import InvalidConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.durability import Durability
from logstore.replication.messages import Endpoint


class LagCriterion(Enum):
    """The start of the time that `replica.lag.time.max.ms` limits, for a follower behind the leader's end.

    CAUGHT_UP  when it was last at the end as of then (Kafka since 0.9); checked twice in that time
    SILENCE    its last fetch, at any offset (Kafka 0.8); checked once in that time
    """

    CAUGHT_UP = "caught-up"
    SILENCE = "silence"


class ReplicaSelector(Enum):
    """The replica that serves a consumer: the leader, or an in-sync replica in its rack (KIP-392)."""

    NONE = "none"
    RACK_AWARE = "rack-aware"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Settings of one node. Times are milliseconds, sizes bytes.

    `durability` is the level of topics without `durability.level`; the default of the controller's broker
    counts. `replica_lag_criterion` and `replica_lag_max_messages` (-1 for off) each remove a follower from
    the ISR. `min_insync_wall` holds the high watermark while fewer than `min.insync.replicas` are in sync, as
    Kafka does since 3.7; it is also on if only the controller has it on. Without `truncate_on_fetch`
    followers reconcile by OffsetForLeaderEpoch before they fetch, as brokers older than 2.7 do.
    """

    node_id: int
    host: str = ""
    broker_rack: str = setting(
        "", "Rack of the broker. Used to spread replicas and to select nearby replicas for consumers."
    )
    port: int = 0
    endpoints: tuple[Endpoint, ...] = ()
    """Named listeners, the one for brokers first; empty for a single plain one."""
    durability: Durability = setting(
        Durability.REPLICATED,
        "Durability level of topics without `durability.level`: `replicated` or `synced`.",
    )
    zookeeper_session_timeout_ms: int = setting(
        18_000,
        "Time without contact after which the metadata store expires the broker's session.",
        low=1,
        high=MAX_INT,
    )
    registration_retry_ms: int = setting(
        500, "Pause between attempts to register in the metadata store.", low=1, high=MAX_INT
    )
    request_timeout_ms: int = setting(
        30_000, "Time after which a request to another broker counts as failed.", low=1, high=MAX_INT
    )
    replica_lag_time_max_ms: int = setting(30_000, "Time a follower may lag before it leaves the ISR.", low=1)
    replica_lag_max_messages: int = setting(
        -1, "Messages a follower may lag before it leaves the ISR; -1 disables this check.", low=-1
    )
    replica_lag_criterion: LagCriterion = setting(LagCriterion.CAUGHT_UP, "How follower lag is measured.")
    min_insync_wall: bool = setting(
        True,
        "Hold the high watermark while fewer than `min.insync.replicas` replicas are in sync, as Kafka "
        "does since 3.7.",
    )
    replica_selector_class: ReplicaSelector = setting(
        ReplicaSelector.NONE,
        "How consumers are directed to replicas; `rack-aware` prefers in-sync replicas in the "
        "consumer's rack.",
    )
    num_replica_fetchers: int = setting(
        1, "Fetchers for each leader a broker follows.", low=1, high=MAX_INT, at="changes"
    )
    replica_fetch_wait_max_ms: int = setting(
        500, "Longest time a leader may hold a follower's fetch.", low=0, high=MAX_INT
    )
    replica_fetch_min_bytes: int = setting(1, "Bytes a follower's fetch waits for.", low=0, high=MAX_INT)
    replica_fetch_max_bytes: int = setting(
        1 << 20,
        "Bytes fetched per partition and request; one larger batch is still returned.",
        low=1,
        high=MAX_INT,
    )
    replica_fetch_response_max_bytes: int = setting(
        10 << 20, "Bytes fetched per request.", low=1, high=MAX_INT
    )
    replica_fetch_backoff_ms: int = setting(1000, "Pause after a failed fetch.", low=1, high=MAX_INT)
    alter_partition_retry_ms: int = setting(50, "Pause before an ISR change is retried.", low=1, high=MAX_INT)
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, "Interval at which high watermarks are written to disk.", low=1
    )
    fetch_purgatory_purge_interval_requests: int = setting(
        1000, "Completed fetches kept before the list of waiting fetches is purged.", low=0, high=MAX_INT
    )
    producer_purgatory_purge_interval_requests: int = setting(
        1000, "Completed produces kept before the list of waiting produces is purged.", low=0, high=MAX_INT
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000,
        "Fetch sessions kept; readers without one fetch in full. 0 disables fetch sessions.",
        low=0,
        high=MAX_INT,
    )
    replication_quota_window_num: int = setting(
        11, "Samples in which the rate of throttled replication is measured.", low=1, high=MAX_INT
    )
    replication_quota_window_size_seconds: int = setting(1, "Length of such a sample.", low=1, high=MAX_INT)
    truncate_on_fetch: bool = setting(
        True,
        "Detect divergence in the fetch itself. If false, followers send OffsetForLeaderEpoch first, as "
        "brokers before 2.7 do.",
    )
    controlled_shutdown_enable: bool = setting(True, "Move leadership away before the broker stops.")
    controlled_shutdown_max_retries: int = setting(
        3, "Attempts to move leadership away.", low=1, high=MAX_INT
    )
    controlled_shutdown_retry_backoff_ms: int = setting(5000, "Pause between these attempts.", low=1)
    controller: ControllerConfig = field(default_factory=ControllerConfig)

    def __post_init__(self) -> None:
        for name, number in (("broker.id", self.node_id), ("port", self.port)):
            if not 0 <= number <= MAX_INT:
                raise InvalidConfig(f"{name} is {number}; it must be 0 to {MAX_INT}")
        check_settings(self)
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise InvalidConfig(
                f"replica.fetch.wait.max.ms ({self.replica_fetch_wait_max_ms}) is above "
                f"replica.lag.time.max.ms ({self.replica_lag_time_max_ms}): "
                "idle followers would leave and rejoin the ISR"
            )
        if self.replica_fetch_wait_max_ms > self.request_timeout_ms:
            raise InvalidConfig(
                f"replica.fetch.wait.max.ms ({self.replica_fetch_wait_max_ms}) is above "
                f"request.timeout.ms ({self.request_timeout_ms}): every idle fetch would time out"
            )


def topic_config(settings: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """Return a topic's settings; a default that contradicts them does not count for it."""
    try:
        return LogConfig.from_kafka(settings, base=defaults)
    except InvalidConfig:
        plain = LogConfig()
        lags = plain.min_compaction_lag_ms, plain.max_compaction_lag_ms
        free = replace(defaults, min_compaction_lag_ms=lags[0], max_compaction_lag_ms=lags[1])
        return LogConfig.from_kafka(settings, base=free)
