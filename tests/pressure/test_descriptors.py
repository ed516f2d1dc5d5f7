"""A broker at its limit of open files: files go first, connections wait, and nothing fails for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from logstore.broker.client import Client
from logstore.broker.limits import Address
from logstore.broker.producing import Producer
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import CreateTopicsRequest, CreateTopicsResponse, NewTopic
from tests.pressure.process import Served, broker

OPEN_FILES = 200
CROWD = 2 * OPEN_FILES
SAID_BYTES = 100_000


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(110):
            await test()

    asyncio.run(bounded())


async def crowd(address: Address, count: int, stack: AsyncExitStack) -> list[asyncio.StreamWriter]:
    """Connect `count` times and stay; the backlog takes those that are not accepted."""
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(*address)
        stack.callback(writer.close)
        writers.append(writer)
    return writers


async def create(client: Client, topic: str, partitions: int) -> list[TopicPartition]:
    answer = await client.of_controller(CreateTopicsRequest((NewTopic(topic, partitions, 1),)))
    assert isinstance(answer, CreateTopicsResponse)
    assert [result.error for result in answer.topics.values()] == [0]
    return [TopicPartition(topic, number) for number in range(partitions)]


async def serves(node: Served) -> None:
    health = await node.health()
    assert health["ready"], health
    assert health["offline_log_dirs"] == [], health


def test_a_crowd_takes_no_descriptor_of_the_logs(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            # A segment rolls with each batch, and each roll opens files.
            node = broker(tmp_path, open_files=OPEN_FILES, settings={"log.segment.bytes": 1_000})
            await node.start()
            stack.push_async_callback(node.end)
            client = await stack.enter_async_context(Client([node.address]))
            first = await create(client, "first", 2)
            producer = Producer(client, first[0], producer_id=1)
            await producer.send([b"x" * 900])
            async with AsyncExitStack() as strangers:
                await crowd(node.address, CROWD, strangers)
                while (await node.health())["descriptors"]["state"] != "short":
                    await asyncio.sleep(0.05)
                for number in range(1, 51):
                    assert await producer.send([b"x" * 900]) == number
                (second,) = await create(client, "second", 1)
                assert await Producer(client, second, producer_id=2).send([b"y"]) == 0
                await serves(node)
            again = await stack.enter_async_context(Client([node.address]))
            assert await Producer(again, first[1], producer_id=3).send([b"z"]) == 0
            await serves(node)
            assert "accepting paused" in node.said
            assert len(node.said) < SAID_BYTES
            assert await node.end() == 0

    run(test)


def test_files_that_find_no_descriptor_are_refused_and_nothing_goes_offline(tmp_path: Path) -> None:
    """More partitions than descriptors: creating them is refused or done later, the rest is served."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            node = broker(tmp_path, open_files=OPEN_FILES)
            await node.start()
            stack.push_async_callback(node.end)
            client = await stack.enter_async_context(Client([node.address]))
            (first,) = await create(client, "first", 1)
            producer = Producer(client, first, producer_id=1)
            await producer.send([b"x"])
            await create(client, "wide", OPEN_FILES)
            for number in range(1, 20):
                assert await producer.send([b"x"]) == number
            await serves(node)
            assert len(node.said) < SAID_BYTES
            assert await node.end() == 0

    run(test)
