"""Settings of the coordinator, under Kafka's names."""

from __future__ import annotations

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.errors import InvalidConfig
from logstore.format.compression import Codec


def test_defaults_are_kafkas() -> None:
    config = GroupConfig()
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6_000, 1_800_000)
    assert config.offsets_retention_ms == 7 * 86_400_000
    assert config.codec is Codec.NONE
    assert config.topic_settings == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_max_size", 0),
        ("offsets_topic_num_partitions", 0),
        ("offsets_topic_compression_codec", 5),
        ("offsets_retention_minutes", 0),
        ("group_initial_rebalance_delay_ms", -1),
        ("group_min_session_timeout_ms", 1_800_001),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidConfig):
        GroupConfig(**{name: value})
