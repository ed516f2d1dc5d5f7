"""What the tests of administration share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes

TOPIC, BROKER = 2, 4


Test = Callable[[Nodes, Asker], Awaitable[None]]


def run(test: Test, count: int = 2, log_dirs: tuple[str, ...] = ("data",)) -> None:
    """Some nodes with these log dirs, and a connection to the controller."""

    async def bounded() -> None:
        made = Nodes(count)
        made.log_dirs = list(log_dirs)
        async with asyncio.timeout(90), made as nodes:
            await nodes.until(lambda: nodes.controller() >= 0)
            controller = nodes.controller()
            metadata = nodes.running[controller].node.replicas.metadata
            await nodes.until(lambda: len(metadata.brokers) == count)
            async with Asker(nodes.addresses[controller]) as client:
                await test(nodes, client)

    asyncio.run(bounded())


def creatable(name: str, replicas: Sequence[Sequence[int]], settings: Mapping[str, str]) -> Any:
    """Return a topic of a CreateTopics request, with the replicas of each partition."""
    return t.CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            t.CreateTopicsRequestCreatableReplicaAssignment(partition_index=number, broker_ids=list(each))
            for number, each in enumerate(replicas)
        ],
        configs=[
            t.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
            for key, value in settings.items()
        ],
    )


async def create(nodes: Nodes, client: Asker, name: str, *replicas: tuple[int, ...], **configs: str) -> Any:
    topic = creatable(name, replicas, {key.replace("_", "."): value for key, value in configs.items()})
    answer = await client.ask(t.CreateTopicsRequest(topics=[topic]), 7)
    made = answer.topics[0]
    if made.error_code == ErrorCode.NONE:
        wanted = {TopicPartition(name, number) for number in range(len(replicas))}
        for runtime in nodes.running.values():
            known = runtime.node.replicas.metadata.partitions
            await nodes.until(partial(wanted.issubset, known))
        await nodes.until(lambda: len(nodes.isr(TopicPartition(name, 0))) == len(replicas[0]))
    return made


async def produce(nodes: Nodes, name: str, count: int) -> None:
    await send(nodes, name, encode_batch([Record(number, 5, None, b"x") for number in range(count)]))


async def send(nodes: Nodes, name: str, batch: bytes) -> None:
    """Produce one batch to partition 0."""
    leader = nodes.leader(TopicPartition(name, 0))
    data = t.ProduceRequestPartitionProduceData(index=0, records=batch)
    topic = t.ProduceRequestTopicProduceData(name=name, partition_data=[data])
    async with Asker(nodes.addresses[leader]) as client:
        answer = await client.ask(t.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


# --- who is asked -------------------------------------------------------------------------------


async def leaders(client: Asker, name: str) -> list[int]:
    """Of a topic's partitions, as a client is told; none if it is told of an error."""
    (topic,) = (await client.ask(t.MetadataRequest(topics=[t.MetadataRequestTopic(name=name)]), 12)).topics
    return [each.leader_id for each in topic.partitions if not each.error_code]
