"""The pytest plugin: real brokers for users' own tests, on free ports of the loopback, gone when the test is.

    def test_of_mine(kafka_broker: Broker) -> None:
        kafka_broker.create_topic("orders", 3)
        my_program(bootstrap=kafka_broker.bootstrap)

    kafka_broker          in memory
    kafka_broker_on_disk  in the test's `tmp_path`
    kafka_cluster         three in memory, a `BrokerCluster`
    kafka_settings        what they are told, under Kafka's names: override it to say more

Each test has its own, so tests may run in any order and side by side (xdist). A broker that could not go on
is an error of the test's teardown, if the test did not notice.

It is found by its entry point (`logstore-broker`), so every run of pytest in an environment with this package
imports it: nothing else of the package is imported before a test asks for a fixture. `-p no:logstore-broker`
leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from logstore.broker.embedded import Broker
    from logstore.broker.embedded_cluster import BrokerCluster

QUICK: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""Tests have no time to wait for more members, and one partition holds their offsets."""


@pytest.fixture
def kafka_settings() -> Mapping[str, str]:
    """Settings of the brokers that other fixtures start; override it for a module, a class or all tests."""
    return {}


@pytest.fixture
def kafka_broker(kafka_settings: Mapping[str, str]) -> Iterator[Broker]:
    """A broker in memory that is ready: `.bootstrap`, `.create_topic`, `.append`, `.read`, …."""
    from logstore.broker.embedded import Broker, BrokerConfig

    with Broker(BrokerConfig(settings={**QUICK, **kafka_settings})) as broker:
        yield broker


@pytest.fixture
def kafka_broker_on_disk(kafka_settings: Mapping[str, str], tmp_path: Path) -> Iterator[Broker]:
    """A broker that is ready, with its logs in `tmp_path / "kafka"`."""
    from logstore.broker.embedded import Broker, BrokerConfig

    config = BrokerConfig(log_dirs=(str(tmp_path / "kafka"),), settings={**QUICK, **kafka_settings})
    with Broker(config) as broker:
        yield broker


@pytest.fixture
def kafka_cluster(kafka_settings: Mapping[str, str]) -> Iterator[BrokerCluster]:
    """Three brokers in memory that are ready: `.bootstrap`, `.create_topic`, `.kill(1)`, `.start(1)`, …."""
    from logstore.broker.embedded_cluster import BrokerCluster

    with BrokerCluster(3, settings={**QUICK, **kafka_settings}) as cluster:
        yield cluster
