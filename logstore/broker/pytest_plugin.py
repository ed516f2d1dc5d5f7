"""The pytest plugin of the broker: real brokers as fixtures, on free loopback ports, stopped after each
test.

    def test_of_mine(kafka_broker: Broker) -> None:
        kafka_broker.create_topic("orders", 3)
        my_program(bootstrap=kafka_broker.bootstrap)

    kafka_broker          one broker in memory
    kafka_broker_on_disk  one broker in the test's `tmp_path`
    kafka_cluster         three in memory, a `BrokerCluster`
    secured_kafka_broker  one in memory with TLS, logins and access control: a `SecuredBroker`
    kafka_settings        their settings under Kafka's names: override it to change them

Each test has its own brokers, so tests may run in any order and in parallel (xdist). A broker that failed
is an error in the teardown, if the test did not notice.

Its entry point is `logstore-broker`, so every pytest run in an environment with this package imports it.
It imports nothing else of the package until a test uses a fixture. `-p no:logstore-broker` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from logstore.broker.embedded_cluster import BrokerCluster
    from logstore.broker.secured import SecuredBroker
    from logstore.broker.threaded import Broker

QUICK: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""Tests do not wait for more group members, and one partition holds their offsets."""


@pytest.fixture
def kafka_settings() -> Mapping[str, str]:
    """Settings of the brokers of the other fixtures; override it for a module, a class or all tests."""
    return {}


@pytest.fixture
def kafka_broker(kafka_settings: Mapping[str, str]) -> Iterator[Broker]:
    """A broker in memory, ready to use: `.bootstrap`, `.create_topic`, `.append`, `.read`, …."""
    from logstore.broker.embedded import BrokerConfig
    from logstore.broker.threaded import Broker

    with Broker(BrokerConfig(settings={**QUICK, **kafka_settings})) as broker:
        yield broker


@pytest.fixture
def kafka_broker_on_disk(kafka_settings: Mapping[str, str], tmp_path: Path) -> Iterator[Broker]:
    """A broker, ready to use, with its logs in `tmp_path / "kafka"`."""
    from logstore.broker.embedded import BrokerConfig
    from logstore.broker.threaded import Broker

    config = BrokerConfig(log_dirs=(str(tmp_path / "kafka"),), settings={**QUICK, **kafka_settings})
    with Broker(config) as broker:
        yield broker


@pytest.fixture
def secured_kafka_broker(kafka_settings: Mapping[str, str], tmp_path: Path) -> Iterator[SecuredBroker]:
    """A broker in memory with TLS, the users `admin` and `alice`, and ACLs; needs the extra `security`."""
    from logstore.disk.extras import require

    require("cryptography")
    from logstore.broker.secured import secured_broker

    directory = tmp_path / "secured-kafka"
    directory.mkdir()
    with secured_broker(directory, {**QUICK, **kafka_settings}) as secured:
        yield secured


@pytest.fixture
def kafka_cluster(kafka_settings: Mapping[str, str]) -> Iterator[BrokerCluster]:
    """Three brokers in memory, ready to use: `.bootstrap`, `.create_topic`, `.kill(1)`, `.start(1)`, …."""
    from logstore.broker.embedded_cluster import BrokerCluster

    with BrokerCluster(3, settings={**QUICK, **kafka_settings}) as cluster:
        yield cluster
