"""Settings of the group coordinator, under Kafka's broker names; frozen, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from logstore.config import MAX_INT, MAX_SHORT, check_settings, setting
from logstore.errors import InvalidConfig
from logstore.format.compression import Codec

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The coordinator's settings. Times are milliseconds unless named minutes; sizes are bytes.

    Raises `InvalidConfig` for a value outside its range and for contradictory settings.
    """

    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout that a member may ask for.", low=0, high=MAX_INT, at="JoinGroup"
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout that a member may ask for.", low=0, high=MAX_INT, at="JoinGroup"
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "Time that the first rebalance of an empty group waits for more members.",
        low=0,
        high=MAX_INT,
        at="JoinGroup",
    )
    group_max_size: int = setting(MAX_INT, "Most members of a group.", low=1, high=MAX_INT, at="JoinGroup")
    group_max_bytes: int = setting(
        32 << 20,
        "Most memory of one group's members, in bytes; more is GROUP_MAX_SIZE_REACHED (81).",
        low=1,
        at="JoinGroup",
    )
    group_coordinator_max_bytes: int = setting(
        128 << 20,
        "Most memory of all groups' members, in bytes; more is COORDINATOR_LOAD_IN_PROGRESS (14), retriable.",
        low=1,
        at="JoinGroup",
    )
    offset_metadata_max_bytes: int = setting(
        4_096,
        "Longest metadata text of a committed offset, in UTF-16 units.",
        low=0,
        high=MAX_INT,
        at="OffsetCommit",
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, "Time that a commit waits for the in-sync replicas.", low=1, high=MAX_INT, at="appends"
    )
    offsets_retention_minutes: int = setting(
        10_080, "Time that unused offsets are kept.", low=1, high=MAX_INT, at="`Coordinator.tick`"
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval at which expired offsets are removed.", low=1, at="`Coordinator.tick`"
    )
    offsets_load_buffer_size: int = setting(
        5_242_880,
        "Bytes of the log that are read at a time while a partition is loaded.",
        low=1,
        high=MAX_INT,
        at="loading",
    )
    offsets_topic_num_partitions: int = setting(
        50, "Partitions of __consumer_offsets at creation.", low=1, high=MAX_INT, at="creation"
    )
    offsets_topic_replication_factor: int = setting(
        3, "Replicas of __consumer_offsets at creation.", low=1, high=MAX_SHORT, at="creation"
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "Segment size of __consumer_offsets at creation.", low=1, high=MAX_INT, at="creation"
    )
    offsets_topic_compression_codec: int = setting(
        0,
        "Codec of the coordinator's records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        low=0,
        high=4,
        at="appends",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfig(
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) is above "
                f"group.max.session.timeout.ms ({self.group_max_session_timeout_ms}): no member could join"
            )

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes` in milliseconds."""
        return self.offsets_retention_minutes * _MINUTE_MS

    @property
    def codec(self) -> Codec:
        """The codec of the coordinator's records."""
        return Codec(self.offsets_topic_compression_codec)

    @property
    def topic_settings(self) -> dict[str, str]:
        """The topic settings of __consumer_offsets at creation."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.offsets_topic_segment_bytes),
        }
