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
from logstore.replication.rates import LimitedRate, Windows

ALL: Final = "*"


class Throttle(LimitedRate):
    """One side's throttle on one broker: of the listed replicas, those out of sync have to wait."""

    def __init__(self, windows: Windows, node_id: int, listed: Callable[[LogConfig], str]) -> None:
        """`listed` returns the list of this side among a topic's settings."""
        super().__init__(windows)
        self._node_id, self._listed = node_id, listed

    def lists(self, partition: Partition) -> bool:
        """Return whether this broker's replica is throttled on this side."""
        text = self._listed(partition.log.config)
        return bool(text) and covers(text, partition.topic_partition.partition, self._node_id)


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
