"""Replication throttles (KIP-73): a limit for the bytes per second that move to replicas out of sync.

    leader     leaves a listed partition out of what a follower gets, unless it is in the ISR
    follower   does not ask for a listed partition that lags behind its leader's high watermark

Each side has a rate for its broker, and for each topic a list of the replicas that count and may be held
back: `partition:broker,…`, or `*` for all. Replicas in sync are never held back, so a throttle does not slow
producers; what they replicate counts, as in Kafka. Nothing is held back before the rate is exceeded, so one
answer may exceed it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from logstore.config import LogConfig
from logstore.replication.config import NodeConfig
from logstore.replication.partition import Partition
from logstore.replication.rates import SimpleRate, Windows

ALL: Final = "*"


class Throttle:
    """One side's throttle on one broker."""

    def __init__(self, windows: Windows, node_id: int, listed: Callable[[LogConfig], str]) -> None:
        """`listed` returns the list of this side among a topic's settings."""
        self.bound: int | None = None
        """Bytes a second; None if nothing is throttled."""
        self._node_id, self._listed, self._windows = node_id, listed, windows
        self._rate = SimpleRate(windows)

    def limit(self, bound: int | None) -> None:
        """Set the limit. Bytes moved under the previous one still count."""
        if self.bound is None:
            self._rate = SimpleRate(self._windows)
        self.bound = bound

    def lists(self, partition: Partition) -> bool:
        """Return whether this broker's replica is throttled on this side."""
        text = self._listed(partition.log.config)
        return bool(text) and covers(text, partition.topic_partition.partition, self._node_id)

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of listed replicas."""
        self._rate.record(size, now_ms)

    def per_second(self, now_ms: int) -> float:
        """Return the bytes a second of listed replicas."""
        return self._rate.per_second(now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether listed replicas out of sync have to wait."""
        return self.bound is not None and self._rate.per_second(now_ms) > self.bound


def replication_windows(config: NodeConfig) -> Windows:
    """Return the windows in which a node measures replication."""
    return Windows(config.replication_quota_window_num, 1000 * config.replication_quota_window_size_seconds)


def leader_throttle(windows: Windows, node_id: int) -> Throttle:
    """Return the throttle of a broker's data to followers."""
    return Throttle(windows, node_id, lambda config: config.leader_replication_throttled_replicas)


def follower_throttle(windows: Windows, node_id: int) -> Throttle:
    """Return the throttle of a broker's fetches as a follower."""
    return Throttle(windows, node_id, lambda config: config.follower_replication_throttled_replicas)


@lru_cache(maxsize=1 << 12)
def _replicas(text: str) -> frozenset[tuple[int, int]]:
    pairs = (each.split(":") for each in text.split(","))
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)


def covers(text: str, partition: int, broker: int) -> bool:
    """Return whether a valid, non-empty list has the replica of a partition on a broker."""
    return text == ALL or (partition, broker) in _replicas(text)
