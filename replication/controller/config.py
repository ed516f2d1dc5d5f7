"""Settings of the controller, checked once. Names are Kafka's where it has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.config import MAX_INT, check_settings, setting
from logstore.replication.durability import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Settings of one broker's controller. Durations are in milliseconds."""

    request_timeout_ms: int = setting(
        30_000,
        "Time after which a broker or the store counts as not answering (`controller.socket.timeout.ms` "
        "in Kafka).",
        low=1,
        high=MAX_INT,
    )
    retry_backoff_ms: int = setting(
        100, "Pause between two attempts of a request, a read or a failed event.", low=1, high=MAX_INT
    )
    event_retries: int = setting(
        3, "Attempts for a failed event before the controller resigns.", low=0, high=MAX_INT
    )
    partitions_per_request: int = setting(
        50,
        "Most partitions in one request to a broker; ten times as many if it only tells their leaders.",
        low=1,
        high=MAX_INT,
    )
    partitions_per_transaction: int = setting(
        50, "Most partitions whose states are written to the store in one transaction.", low=1, high=MAX_INT
    )
    num_partitions: int = setting(1, "Partitions of a topic created with -1.", low=1, high=MAX_INT)
    default_replication_factor: int = setting(1, "Replicas of a topic created with -1.", low=1, high=MAX_INT)
    delete_topic_enable: bool = setting(
        True, "Allow topic deletion. If false, deletion requests are discarded."
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Default of the topic setting: elect a replica outside the ISR if no member of the ISR is available.",
    )
    durability: Durability = setting(
        Durability.REPLICATED, "Default of the topic setting `durability.level`."
    )
    min_insync_replicas: int = setting(
        1, "Default of the topic setting `min.insync.replicas`.", low=1, high=MAX_INT
    )
    min_insync_wall: bool = setting(
        True, "Hold the high watermark while fewer than `min.insync.replicas` replicas are in sync."
    )
    auto_leader_rebalance_enable: bool = setting(True, "Move leadership back to preferred replicas.")
    leader_imbalance_check_interval_seconds: int = setting(300, "Interval of that check, in seconds.", low=1)
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "Percentage of a broker's preferred partitions that may be led elsewhere before leadership "
        "moves back.",
        low=0,
        high=MAX_INT,
    )
    elect_unclean_restarted_last_member: bool = setting(
        False,
        "Let the last ISR member lead again alone after a stop that may have lost acknowledged records. "
        "False keeps such a partition offline, so that the loss is noticed. Partitions at level "
        "`synced` are elected anyway: an unclean stop loses no acknowledged record of them.",
    )

    def __post_init__(self) -> None:
        """Raise `InvalidConfig` for a value out of range."""
        check_settings(self)
