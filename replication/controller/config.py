"""Settings of the controller, checked once. Names follow Kafka's where it has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.errors import InvalidConfig
from logstore.replication.durability import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """One broker's part as a possible controller. Durations in milliseconds."""

    request_timeout_ms: int = 30_000
    """`controller.socket.timeout.ms`: when a broker, or the store, counts as not answering."""

    retry_backoff_ms: int = 100
    """Between two tries of a request, a read or a failed event."""

    event_retries: int = 3
    """How often a failed event is tried again before the controller resigns."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    """What a topic gets that asks for -1 of either."""

    delete_topic_enable: bool = True
    """Off: requests to delete a topic are removed and nothing else happens."""

    unclean_leader_election_enable: bool = False
    """For topics that do not say: may a replica outside the ISR lead when no member can?"""

    durability: Durability = Durability.REPLICATED
    """For topics that do not say (`durability.level`)."""

    min_insync_replicas: int = 1
    """For topics that do not say (`min.insync.replicas`)."""

    min_insync_wall: bool = True
    """Whether the high watermark stands while fewer than `min.insync.replicas` are in sync."""

    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    """How many of a broker's preferred partitions others may lead before those go back that can."""

    elect_unclean_restarted_last_member: bool = False
    """May the last ISR member lead again by itself after a stop that lost acknowledged records?

    False keeps such a partition offline, so that the loss is loud. Partitions whose ISR members all sync
    before they count (durability `synced`) are elected anyway: an unclean stop loses nothing acknowledged.
    """

    def __post_init__(self) -> None:
        for name in (
            "request_timeout_ms",
            "retry_backoff_ms",
            "num_partitions",
            "default_replication_factor",
            "leader_imbalance_check_interval_seconds",
        ):
            if getattr(self, name) < 1:
                raise InvalidConfig(
                    f"{name.replace('_', '.')} is {getattr(self, name)}; it must be at least 1"
                )
        for name in ("event_retries", "leader_imbalance_per_broker_percentage"):
            if getattr(self, name) < 0:
                raise InvalidConfig(
                    f"{name.replace('_', '.')} is {getattr(self, name)}; it must not be negative"
                )
