"""Settings that contradict each other are refused when they are made, by Kafka's names."""

from __future__ import annotations

import pytest

from logstore.errors import InvalidConfig
from replication.config import NodeConfig
from replication.controller.config import ControllerConfig


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"node_id": -1}, "broker.id"),
        ({"request_timeout_ms": 0}, "request.timeout.ms"),
        ({"replica_fetch_wait_max_ms": 600, "replica_lag_time_max_ms": 500}, "replica.lag.time.max.ms"),
        ({"replica_fetch_wait_max_ms": 600, "request_timeout_ms": 500}, "request.timeout.ms"),
    ],
)
def test_a_node_refuses(settings: dict[str, int], name: str) -> None:
    """An idle follower would leave the ISR, or its every fetch would time out: better not to start."""
    with pytest.raises(InvalidConfig, match=name):
        NodeConfig(**{"node_id": 0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"num_partitions": 0}, {"event_retries": -1}])
def test_a_controller_refuses(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match=r"num\.partitions|event\.retries"):
        ControllerConfig(**settings)  # type: ignore[arg-type]
