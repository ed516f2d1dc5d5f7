"""What tools that show consumer groups see of one."""

from __future__ import annotations

import asyncio

from logstore.broker.embedded_cluster import BrokerCluster
from logstore.broker.limits import Address, parse_address
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from tests.broker.asking import Asker


def progress_of(cluster: BrokerCluster, group: str) -> dict[TopicPartition, int]:
    """The offsets that a group has committed."""
    return asyncio.run(_committed(parse_address(cluster.bootstrap.split(",")[0]), group))


async def _committed(address: Address, group: str) -> dict[TopicPartition, int]:
    async with asyncio.timeout(30):
        async with Asker(address) as client:
            found = await client.ask(t.FindCoordinatorRequest(key=group), 3)
        async with Asker(Address(found.host, found.port)) as client:
            asked = [t.OffsetFetchRequestGroup(group_id=group, topics=None)]
            answer = await client.ask(t.OffsetFetchRequest(groups=asked), 9)
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in answer.groups[0].topics
        for each in topic.partitions
    }
