"""A broker or a client of one event loop, and calls on another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from logstore.broker import AsyncBroker, Broker, Client
from logstore.broker.errors import RequestFailed

Call = Callable[[Client], Awaitable[object]]

CALLS: list[Call] = [
    lambda client: client.append("orders", b"placed", timeout=0.1),
    lambda client: client.read("orders", timeout=0.1),
    lambda client: client.topics(timeout=0.1),
    lambda client: client.durability("orders", 0, 0, timeout=0.1),
    lambda client: client.wait_for("orders", 0, 0, timeout=0.1),
]


async def refused(client: Client) -> None:
    """Its answers would arrive on the other loop, which does not run: the call waited for its timeout."""
    for call in CALLS:
        with pytest.raises(RequestFailed, match="another event loop"):
            await call(client)


def test_a_broker_is_called_on_its_loop_alone() -> None:
    async def begun() -> AsyncBroker:
        broker = AsyncBroker()
        await broker.start()
        await broker.create_topic("orders")
        await broker.append("orders", b"placed")
        return broker

    with asyncio.Runner() as its_own, asyncio.Runner() as another:
        broker = its_own.run(begun())
        another.run(refused(broker))
        assert len(its_own.run(broker.read("orders"))) == 1
        its_own.run(broker.stop())


def test_so_is_a_client() -> None:
    with Broker() as broker, asyncio.Runner() as its_own, asyncio.Runner() as another:
        broker.create_topic("orders")
        client = Client(broker.bootstrap)
        its_own.run(client.append("orders", b"placed"))
        another.run(refused(client))
        assert its_own.run(client.read("orders"))
        its_own.run(client.close())


def test_a_broker_in_a_thread_is_called_from_any() -> None:
    async def call(broker: Broker) -> None:
        broker.append("orders", b"placed")

    with Broker() as broker:
        broker.create_topic("orders")
        for _ in range(2):
            asyncio.run(call(broker))
        assert len(broker.read("orders")) == 2
