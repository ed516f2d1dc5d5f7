"""Contradictory settings are refused at construction, under Kafka's names."""

from __future__ import annotations

import pytest

from logstore.errors import InvalidConfig
from logstore.replication.config import LagCriterion, NodeConfig, ReplicaSelector
from logstore.replication.controller.config import ControllerConfig


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"node_id": -1}, "broker.id"),
        ({"request_timeout_ms": 0}, "request.timeout.ms"),
        ({"num_replica_fetchers": 0}, "num.replica.fetchers"),
        ({"replica_fetch_wait_max_ms": 600, "replica_lag_time_max_ms": 500}, "replica.lag.time.max.ms"),
        ({"replica_fetch_wait_max_ms": 600, "request_timeout_ms": 500}, "request.timeout.ms"),
    ],
)
def test_a_node_refuses(settings: dict[str, int], name: str) -> None:
    """An idle follower would leave the ISR, or every fetch of it would time out: the node does not start."""
    with pytest.raises(InvalidConfig, match=name):
        NodeConfig(**{"node_id": 0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_node_refuses_numbers_that_no_request_can_carry(number: int) -> None:
    with pytest.raises(InvalidConfig, match=f"broker.id is {number}; it must be 0 to"):
        NodeConfig(node_id=number)
    with pytest.raises(InvalidConfig, match=f"port is {number}; it must be 0 to"):
        NodeConfig(node_id=0, port=number)


@pytest.mark.parametrize("settings", [{"num_partitions": 0}, {"event_retries": -1}])
def test_a_controller_refuses(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match=r"num\.partitions|event\.retries"):
        ControllerConfig(**settings)  # type: ignore[arg-type]


def test_1_20_defaults_are_kafkas() -> None:
    """1.20: the defaults of a node."""
    config = NodeConfig(node_id=0)
    assert config.replica_lag_time_max_ms == 30_000
    assert config.replica_lag_max_messages == -1, "removed in 0.9"
    assert (config.replica_fetch_wait_max_ms, config.replica_fetch_min_bytes) == (500, 1)
    assert (config.replica_fetch_max_bytes, config.replica_fetch_response_max_bytes) == (1 << 20, 10 << 20)
    assert (config.replica_fetch_backoff_ms, config.num_replica_fetchers) == (1000, 1)
    assert config.replica_high_watermark_checkpoint_interval_ms == 5000
    assert config.fetch_purgatory_purge_interval_requests == 1000
    assert config.producer_purgatory_purge_interval_requests == 1000
    assert config.request_timeout_ms == 30_000
    assert config.replica_lag_criterion is LagCriterion.CAUGHT_UP
    assert config.replica_selector_class is ReplicaSelector.NONE
    assert config.min_insync_wall
