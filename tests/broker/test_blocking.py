"""The calls of programs without an event loop."""

from __future__ import annotations

from logstore.broker import BlockingClient, Broker, BrokerConfig, Client
from logstore.disk.topic_partition import TopicPartition

QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


def test_blocking_calls_are_those_of_a_client() -> None:
    """Programs without an event loop had no way to the offsets of groups, or by time."""
    shown = {name for name in vars(Client) if not name.startswith("_")}
    assert shown - {*dir(BlockingClient)} == {"ask", "check", "pages", "producer_id"}  # parts of other calls
    with Broker(BrokerConfig(settings=QUICK)) as broker, BlockingClient(broker.bootstrap) as client:
        place = TopicPartition("t", 0)
        client.create_topic("t")
        client.append("t", b"x")
        for calls in (client, broker):
            calls.commit("billing", {place: 1})
            assert calls.committed("billing", [place]) == {place: 1}
            assert (calls.offset(place, -1), calls.offsets({place: 1})) == (1, {place: 0})
            assert calls.cluster_id() == broker.cluster_id()
            assert calls.topic_settings("t")["cleanup.policy"] == "delete"
