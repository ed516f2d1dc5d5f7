"""`brokers drain` over brokers: what it names, and what the cluster says afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from logstore.broker import BrokerCluster
from logstore.cli.operating import wait_until
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(2) as running:
        yield running


def drained(command: Command, cluster: BrokerCluster, broker: int, *more: object) -> Outcome:
    return command("brokers", "drain", broker, "--bootstrap", cluster.bootstrap, "--wait", 30, *more)


def test_a_partition_with_a_single_replica_is_named(command: Command, cluster: BrokerCluster) -> None:
    """The controller does not count it, as in Kafka. It has no leader while the broker is stopped."""
    cluster.create_topic("alone", 12, replication_factor=1)
    cluster.create_topic("both", 2)
    led = [f"alone-{each}" for each in range(12) if cluster.leader("alone", each) == 1]
    assert led
    done = drained(command, cluster, 1, "--json")
    assert (done.code, json.loads(done.out)) == (1, {"broker": 1, "drained": False, "still_leads": led})
    assert wait_until(30, lambda: [cluster.leader("both", each) for each in range(2)] == [2, 2])
    done = drained(command, cluster, 1)
    assert (done.code, done.out) == (1, "")
    assert f"broker 1 still leads {', '.join(led)}: it has the only replica" in done.err
    assert "no leader while its process is stopped" in done.err


def test_many_partitions_are_counted(command: Command, cluster: BrokerCluster) -> None:
    cluster.create_topic("alone", 60, replication_factor=1)
    done = drained(command, cluster, 1)
    assert done.code == 1
    assert " and 10 more (--json names all): it has the only replica" in done.err


def test_a_broker_that_leads_nothing(command: Command, cluster: BrokerCluster) -> None:
    cluster.create_topic("both", 2)
    done = drained(command, cluster, 1)
    assert (done.code, done.out) == (
        0,
        "broker 1 leads no partition; stop its process, or restart it\n",
    )
