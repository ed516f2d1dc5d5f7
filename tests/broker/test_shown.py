"""Brokers and clients as a session at the prompt shows them, and what is said if they are copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from logstore.broker import AsyncBroker, BlockingClient, Broker, BrokerCluster, SharedQueue


def test_each_says_where_it_is() -> None:
    broker = Broker()
    assert repr(broker) == "Broker(1, not started)"
    assert repr(AsyncBroker()) == "AsyncBroker(1, not started)"
    with broker:
        with BlockingClient([broker.bootstrap, "127.0.0.1:1"]) as client:
            assert repr(client) == f"BlockingClient({broker.bootstrap})"
        assert repr(client) == f"BlockingClient({broker.bootstrap}, closed)"
        assert repr(broker) == f"Broker(1, {broker.bootstrap})"
    assert repr(broker) == "Broker(1, down)"


def test_a_shared_queue_says_where_it_is(kafka_broker: Broker) -> None:
    with SharedQueue(kafka_broker, "jobs") as queue:
        assert repr(queue) == f"SharedQueue('jobs', {kafka_broker!r})"
    assert repr(queue) == "SharedQueue('jobs', closed)"
    with SharedQueue.connect(kafka_broker.bootstrap, "jobs") as queue:
        assert repr(queue) == f"SharedQueue('jobs', BlockingClient({kafka_broker.bootstrap}))"


def test_a_cluster_says_which_brokers_run() -> None:
    with BrokerCluster(2) as cluster:
        cluster.stop(1)
        assert repr(cluster) == f"BrokerCluster({cluster.brokers[2]!r})"
    assert repr(cluster) == "BrokerCluster(none running)"


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_none_can_be_copied(copied: Callable[[object], object]) -> None:
    with BrokerCluster(1) as cluster, BlockingClient([cluster.bootstrap]) as client:
        for each in (cluster, cluster.brokers[1], AsyncBroker(), client):
            with pytest.raises(TypeError, match=f"{type(each).__name__} objects cannot be pickled"):
                copied(each)
