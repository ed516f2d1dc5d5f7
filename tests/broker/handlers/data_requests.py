"""What the tests of data apis share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from logstore.replication.config import NodeConfig
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes

TP = TopicPartition("t", 0)


def run(
    test: Callable[[Nodes, Asker], Awaitable[None]], count: int = 1, base: NodeConfig | None = None
) -> None:
    """Some nodes, a topic `t` of one partition that node 0 leads, and a connection to that one."""

    async def bounded() -> None:
        async with asyncio.timeout(60), Nodes(count, base=base) as nodes:
            await nodes.create_topic("t", tuple(range(count)))
            caches = [each.node.replicas.metadata for each in nodes.running.values()]
            await nodes.until(lambda: all(TP in cache.partitions for cache in caches))
            async with Asker(nodes.addresses[0]) as client:
                await test(nodes, client)

    asyncio.run(bounded())


def batch(*values: bytes, time_ms: int = 1000, codec: Codec = Codec.NONE, step_ms: int = 1) -> bytes:
    records = [Record(number, time_ms + number * step_ms, None, value) for number, value in enumerate(values)]
    return encode_batch(records, codec=codec)


def producing(data: bytes | None, *, acks: int = 1, topic: str = "t", partition: int = 0) -> t.ProduceRequest:
    part = t.ProduceRequestPartitionProduceData(index=partition, records=data)
    return t.ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        topic_data=[t.ProduceRequestTopicProduceData(name=topic, partition_data=[part])],
    )


async def produce(
    client: Asker, data: bytes | None, version: int = 9, **fields: Any
) -> t.ProduceResponsePartitionProduceResponse:
    answer = await client.ask(producing(data, **fields), version)
    ((partition,),) = (topic.partition_responses for topic in answer.responses)
    assert isinstance(partition, t.ProduceResponsePartitionProduceResponse)
    return partition
