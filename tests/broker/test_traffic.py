"""Counters of requests and records: by topic, as long as the topic exists."""

from __future__ import annotations

import asyncio

from logstore.broker.wire import types as t
from tests.broker.asking import Asker
from tests.broker.handlers.administering import produce
from tests.broker.handlers.data_requests import batch, producing
from tests.broker.nodes import Nodes


def test_the_counters_of_a_deleted_topic_go() -> None:
    """A broker that has seen a million topics has the metrics of those that are left."""

    async def test() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            for name in ("kept", "gone"):
                await nodes.create_topic(name, (0,))
                await produce(nodes, name, 2)
            traffic = nodes.brokers[0].services.traffic
            assert traffic.messages_in == {"kept": 2, "gone": 2}
            async with Asker(nodes.addresses[0]) as client:
                await client.ask(t.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5_000), 5)
            await nodes.until(lambda: "gone" not in traffic.messages_in)
            assert traffic.messages_in == {"kept": 2}
            assert set(traffic.bytes_in) == {"kept"}

    asyncio.run(test())


def test_produce_requests_without_an_answer_are_counted() -> None:
    """acks=0, as metrics agents write: the broker has the records all the same."""

    async def test() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            await nodes.create_topic("orders", (0,))
            traffic = nodes.brokers[0].services.traffic
            data = batch(b"a", b"b")
            async with Asker(nodes.addresses[0]) as client:
                client.send(producing(data, acks=0, topic="orders"), 9)
                await nodes.until(lambda: traffic.messages_in["orders"] == 2)
            assert traffic.bytes_in == {"orders": len(data)}

    asyncio.run(test())
