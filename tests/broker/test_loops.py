"""A broker or a client of one event loop, and calls on another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.broker import AsyncBroker, BlockingClient, Broker, BrokerConfig, Client, RequestRefused
from logstore.broker.errors import RequestFailed
from logstore.disk.reentry import Flag

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


def test_a_blocking_client_works_where_a_loop_runs() -> None:
    """As in a cell of a notebook: `Runner.run() cannot be called from a running event loop`."""

    async def cell() -> None:
        with BlockingClient(broker.bootstrap) as client:
            client.append("orders", [b"1", b"2"])
            assert [record.value for record in client.scan("orders")] == [b"1", b"2"]
            with pytest.raises(RequestRefused):
                client.append("payments", b"3", timeout=0.1)

    with Broker(BrokerConfig(settings={"auto.create.topics.enable": "false"})) as broker:
        broker.create_topic("orders")
        asyncio.run(cell())


def test_an_interrupt_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cell() -> None:
        with Broker() as broker, BlockingClient(broker.bootstrap) as client:
            broker.create_topic("orders")
            records = client.scan("orders", follow=True)
            with monkeypatch.context() as patched:
                patched.setattr(Flag, "wait", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(records)
            client.append("orders", b"placed")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    asyncio.run(cell())


def test_a_blocking_client_leaves_the_threads_own_loop_alone() -> None:
    """A program that has set one finds it afterwards: a client took it, and left none."""
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    try:
        with Broker() as broker, BlockingClient(broker.bootstrap) as client:
            client.metadata()
        assert asyncio.get_event_loop() is own
    finally:
        asyncio.set_event_loop(None)
        own.close()


def test_a_call_during_another_one_is_refused_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raised `This event loop is already running`, and its record was appended all the same."""

    async def topics(_: Client) -> dict[str, int]:
        with ThreadPoolExecutor(1) as thread:
            for call in (thread.submit(client.append, "orders", b"refused"), thread.submit(client.close)):
                with pytest.raises(RequestFailed, match="a client for each thread"):
                    call.result()
        return {}

    with Broker() as broker, BlockingClient(broker.bootstrap) as client:
        broker.create_topic("orders")
        with monkeypatch.context() as patched:
            patched.setattr(Client, "topics", topics)
            client.topics()
        client.append("orders", b"placed")
        assert [record.value for record in client.scan("orders")] == [b"placed"]


def test_greenlets_in_the_place_of_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After gevent's `patch_all()`, the start of a broker never returned, and a client's call raised
    `Runner.run() cannot be called from a running event loop` and was served later."""

    async def greenlet() -> None:
        client.append("orders", b"refused")

    with Broker() as broker, BlockingClient(broker.bootstrap) as client:
        broker.create_topic("orders")
        with monkeypatch.context() as patched:
            patched.setattr("threading.get_native_id", lambda: 7)
            with pytest.raises(RuntimeError, match="gevent"):
                Broker().start()
            with pytest.raises(RuntimeError, match="gevent"):
                asyncio.run(greenlet())
        client.append("orders", b"placed")
        assert [record.value for record in client.scan("orders")] == [b"placed"]
