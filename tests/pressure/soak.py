"""A broker in use for a long time: topics, groups and connections come and go, and nothing is left of them.

After a warm-up the process is measured at equal distances, each time with nothing under way. What grows from
the first to the last measurement by more than its allowance is a leak.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from logstore.broker.client import Client
from logstore.broker.producing import Producer
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from tests.broker.asking import Asker
from tests.pressure.process import Served, broker

_SETTINGS: Final = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 100,
    "log.retention.bytes": 200_000,
    "log.segment.bytes": 50_000,
    "log.retention.check.interval.ms": 1_000,
    "log.cleaner.backoff.ms": 1_000,
    # Each round has producers of its own. A log remembers one for a day: 2 KiB.
    "producer.id.expiration.ms": 10_000,
    "producer.id.expiration.check.interval.ms": 5_000,
}
_SETTLED_S: Final = 3.0


class Use(NamedTuple):
    """What a process uses."""

    memory_mib: float
    descriptors: int
    threads: int
    files: int

    @classmethod
    def of(cls, node: Served, directory: Path) -> Use:
        files = sum(1 for path in directory.rglob("*") if path.is_file())
        return cls(node.resident_mib, node.descriptors, node.threads, files)


ALLOWED: Final = Use(24.0, 12, 2, 24)
"""How far each may lie above the first measurement: segments and pages come and go."""


@dataclass(slots=True)
class Soak:
    rounds: int
    measured: list[Use]

    @property
    def problems(self) -> list[str]:
        first, last = self.measured[0], self.measured[-1]
        return [
            f"{name} grew from {before:g} to {after:g}"
            for name, before, after, allowed in zip(Use._fields, first, last, ALLOWED, strict=True)
            if after - before > allowed
        ]


async def churn(node: Served, client: Client, number: int) -> None:
    """One round: a topic, a few groups and a crowd of connections, from birth to death."""
    topic = f"churn-{number % 7}"
    await client.create_topic(topic, partitions=3, replication_factor=1)
    for partition in range(3):
        producer = Producer(client, TopicPartition(topic, partition), producer_id=number * 3 + partition)
        await producer.send([bytes(500)] * 20)
    async with Asker(node.address) as admin:
        await admin.ask(t.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    steady = Producer(client, TopicPartition("steady", 0), producer_id=1_000_000 + number)
    await steady.send([bytes(1_000)] * 10)
    await asyncio.gather(*(group(node, f"group-{number % 5}-{each}") for each in range(3)))
    async with AsyncExitStack() as crowd:
        for _ in range(20):
            each = await crowd.enter_async_context(Asker(node.address))
            await each.ask(t.ApiVersionsRequest(), 0)


async def group(node: Served, group_id: str) -> None:
    """A member that joins and leaves, on a connection of its own."""
    async with Asker(node.address) as member:
        request = t.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[t.JoinGroupRequestProtocol(name="range", metadata=bytes(100))],
        )
        joined = await member.ask(request, 3)
        if joined.error_code == 0:
            leaving = t.LeaveGroupRequest(group_id=group_id, member_id=joined.member_id)
            await member.ask(leaving, 2)


async def soak(directory: Path, *, minutes: float, measurements: int = 8, rounds: int | None = None) -> Soak:
    """Churn for so long, or for so many rounds between two measurements."""
    async with AsyncExitStack() as stack:
        node = broker(directory, settings=_SETTINGS)
        await node.start()
        stack.push_async_callback(node.end)
        client = await stack.enter_async_context(Client([node.address]))
        await client.create_topic("steady", partitions=1, replication_factor=1)
        done, found = 0, Soak(0, [])
        for _ in range(measurements + 1):
            ends_s = time.monotonic() + 60 * minutes / (measurements + 1)
            until = done + rounds if rounds is not None else None
            while done < until if until is not None else time.monotonic() < ends_s:
                await churn(node, client, done)
                done += 1
            await asyncio.sleep(_SETTLED_S)  # files of deleted topics go after a delay
            found.measured.append(Use.of(node, directory))
            print(f"round {done}: {found.measured[-1]}", flush=True)
        assert (await node.health())["ready"], node.said[-2000:]
        found.rounds = done
        del found.measured[0]  # warming up: everything is used for the first time
        return found
