"""What the tests of group apis share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from logstore.broker.groups.config import GroupConfig
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from tests.broker.asking import Asker
from tests.broker.groups.desk import subscription
from tests.broker.nodes import Nodes

GROUP = "g"


SESSION_MS = 30_000


Test = Callable[[Nodes, Asker], Awaitable[None]]


def run(test: Test, count: int = 1, groups: GroupConfig | None = None, *, is_ready: bool = True) -> None:
    """Nodes, a topic `t` of one partition, and a connection to whoever coordinates the group."""

    async def bounded() -> None:
        async with asyncio.timeout(90), Nodes(count, groups=groups) as nodes:
            topic_partition = await nodes.create_topic("t", tuple(range(count)))
            caches = [each.node.replicas.metadata for each in nodes.running.values()]
            await nodes.until(lambda: all(topic_partition in cache.partitions for cache in caches))
            node_id = await coordinator_of(nodes) if is_ready else 0
            async with Asker(nodes.addresses[node_id]) as client:
                await test(nodes, client)

    asyncio.run(bounded())


async def coordinator_of(nodes: Nodes, group: str = GROUP) -> int:
    """Who serves the group, once somebody does."""
    while True:
        for node_id in list(nodes.running):
            async with Asker(nodes.addresses[node_id]) as client:
                found = await client.ask(t.FindCoordinatorRequest(key=group), 0)
                if found.error_code == ErrorCode.NONE and found.node_id == node_id:
                    answer = await client.ask(t.DescribeGroupsRequest(groups=[group]), 0)
                    if answer.groups[0].error_code == ErrorCode.NONE:
                        return node_id
        await asyncio.sleep(0.01)


def joining(member_id: str = "", instance_id: str | None = None, **fields: Any) -> t.JoinGroupRequest:
    protocols = [t.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))]
    request: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    return t.JoinGroupRequest(**(request | fields))


def syncing(joined: Any, *, assigns: bool = True, **fields: Any) -> t.SyncGroupRequest:
    assignments = [
        t.SyncGroupRequestAssignment(member_id=each.member_id, assignment=each.member_id.encode())
        for each in joined.members
        if assigns
    ]
    request: dict[str, Any] = {
        "group_id": GROUP,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": assignments,
    }
    return t.SyncGroupRequest(**(request | fields))


async def join(client: Asker, version: int = 5, **fields: Any) -> Any:
    """The answer once the round has ended; whoever needs an id first gets one."""
    answer = await client.ask(joining(**fields), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await client.ask(joining(**(fields | {"member_id": answer.member_id})), version)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer


async def stable(client: Asker, version: int = 5, **fields: Any) -> Any:
    """A group of one member, with its assignment."""
    joined = await join(client, version, **fields)
    synced = await client.ask(syncing(joined), 3)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, joined.member_id.encode())
    return joined


def beating(joined: Any, **fields: Any) -> t.HeartbeatRequest:
    request = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    return t.HeartbeatRequest(**(request | fields))


def committing(
    offset: int = 5, topic: str = "t", partition: int = 0, text: str = "m", **fields: Any
) -> t.OffsetCommitRequest:
    part = t.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=text
    )
    topics = [t.OffsetCommitRequestTopic(name=topic, partitions=[part])]
    return t.OffsetCommitRequest(**({"group_id": GROUP, "topics": topics} | fields))


async def commit(client: Asker, version: int = 5, **fields: Any) -> ErrorCode:
    answer = await client.ask(committing(**fields), version)
    ((partition,),) = (topic.partitions for topic in answer.topics)
    return ErrorCode(partition.error_code)


async def committed(client: Asker, version: int = 5, group: str = GROUP, topic: str = "t") -> Any:
    """What is told of partition 0."""
    if version >= 8:
        wanted = t.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        groups = [t.OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
        answer = await client.ask(t.OffsetFetchRequest(groups=groups), version)
        (found,) = answer.groups
        assert found.group_id == group
    else:
        old = t.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        found = await client.ask(t.OffsetFetchRequest(group_id=group, topics=[old]), version)
    assert found.error_code == ErrorCode.NONE
    ((partition,),) = (each.partitions for each in found.topics)
    return partition
