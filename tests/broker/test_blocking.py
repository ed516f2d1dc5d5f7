"""The calls of programs without an event loop."""

from __future__ import annotations

import errno
import gc

import pytest

from logstore.broker import BlockingClient, Broker, BrokerConfig, Client, blocking
from logstore.broker.loop import SteadyLoop
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


def test_a_client_without_descriptors_for_its_loop_says_so_and_works_later(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Python warned that the call "was never awaited", too."""
    outcomes: list[OSError] = [OSError(errno.EMFILE, "Too many open files")]

    def loop() -> SteadyLoop:
        if outcomes:
            raise outcomes.pop()
        return SteadyLoop()

    monkeypatch.setattr(blocking, "SteadyLoop", loop)
    with Broker(BrokerConfig(settings=QUICK)) as broker, BlockingClient(broker.bootstrap) as client:
        broker.create_topic("t")
        with pytest.raises(OSError, match="Too many open files"):
            client.append("t", b"x")
        gc.collect()
        assert recwarn.list == []
        assert client.append("t", b"x").offset == 0
