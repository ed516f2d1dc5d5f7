"""A broker, its store and one honest producer; strangers attack them one way after another.

For each attack: how long the producer's sends take, beside how long they take in quiet; how far the memory of
the processes grows; and whether everything is still alive and well afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.producing import Producer
from logstore.disk.topic_partition import TopicPartition
from tests.pressure.attacks import ON_BROKERS, ON_STORES, coordinated
from tests.pressure.process import ROOT, Served, broker, store

MEMORY_MIB: Final = {
    "bombs": 320,  # a batch inflates to 100 MiB, and is joined and copied
    "connections": 200,
    "joins": 200,  # group.coordinator.max.bytes, and requests under way
    "frames": 64,
    "topics": 96,
    "pipelines": 128,
    "store_writes": 256,  # the tree, a snapshot of it in pieces and as a whole, and requests under way
    "store_reads": 64,
}
"""How far a process may grow during an attack."""
TIMES_QUIET: Final = 5.0
_SETTINGS: Final = {
    "offsets.topic.replication.factor": 1,
    "zookeeper.session.timeout.ms": 6_000,
    "num.partitions": 1,
    "default.replication.factor": 1,
}


@dataclass(slots=True)
class Sends:
    """What one producer saw."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("inf")


@dataclass(slots=True)
class Outcome:
    attack: str
    quiet: Sends
    under: Sends
    grew_mib: dict[str, float]
    problems: list[str]

    def __str__(self) -> str:
        return (
            f"{self.attack:13} sends {len(self.under.seconds):5}, failed {len(self.under.failed)}; p50 "
            f"{1000 * self.quiet.quantile(0.5):6.1f} -> {1000 * self.under.quantile(0.5):6.1f} ms, p99 "
            f"{1000 * self.quiet.quantile(0.99):6.1f} -> {1000 * self.under.quantile(0.99):6.1f} ms; grew "
            + ", ".join(f"{name} {grown:.0f} MiB" for name, grown in self.grew_mib.items())
            + "".join(f"\n    {problem}" for problem in self.problems)
        )


async def _send(producer: Producer, sends: Sends, number: int) -> None:
    began = time.perf_counter()
    try:
        await producer.send([b"%d" % number])
    except (RequestRefused, RequestUnanswered) as error:
        sends.failed.append(str(error))
    else:
        sends.seconds.append(time.perf_counter() - began)


async def measured(
    producer: Producer, number: int, processes: list[Served]
) -> tuple[Sends, dict[str, float]]:
    """Send so many batches, fifty a second at most; also the largest memory of each process meanwhile."""
    sends, largest = Sends(), dict.fromkeys((each.name for each in processes), 0.0)
    for index in range(number):
        await _send(producer, sends, index)
        for each in processes:
            if each.is_running:
                largest[each.name] = max(largest[each.name], each.resident_mib)
        await asyncio.sleep(0.02)
    return sends, largest


@asynccontextmanager
async def attacked(name: str, address: Address) -> AsyncIterator[None]:
    """Attack from a process of its own meanwhile."""
    command = [sys.executable, "-m", "tests.pressure", "attack", name, address.host, str(address.port)]
    attacker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert attacker.stdout is not None
        await attacker.stdout.readline()  # it has begun
        await asyncio.sleep(1.0)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            attacker.kill()
        await attacker.wait()


async def under(attack: str, directory: Path, *, sends: int) -> Outcome:
    """Run one attack on a fresh broker and a fresh store."""
    async with AsyncExitStack() as stack:
        keeper = store(directory)
        await keeper.start()
        stack.push_async_callback(keeper.end)
        url = f"zookeeper://{keeper.address}/cluster"
        node = broker(directory, metadata=url, settings=_SETTINGS)
        await node.start()
        stack.push_async_callback(node.end)
        limits = Limits(request_timeout_ms=10_000)
        client = await stack.enter_async_context(Client([node.address], limits=limits))
        for topic in ("honest", "bombed"):
            await client.create_topic(topic, partitions=1, replication_factor=1)
        await coordinated(node.address)
        producer = Producer(client, TopicPartition("honest", 0), producer_id=1)
        processes = [node, keeper]
        await measured(producer, 20, processes)  # warm
        epoch = (await node.health())["broker_epoch"]
        quiet, before = await measured(producer, sends, processes)
        target = keeper.address if attack in ON_STORES else node.address
        async with attacked(attack, target):
            seen, largest = await measured(producer, sends, processes)
        problems = [f"{each.name} died: {each.said[-500:]}" for each in processes if not each.is_running]
        if not problems:
            after, _ = await measured(producer, 20, processes)
            health = await node.health()
            problems += after.failed
            if not health["ready"] or health["offline_log_dirs"]:
                problems.append(f"afterwards: {health}")
            if health["broker_epoch"] != epoch:
                problems.append(f"the broker's session ended: epoch {epoch}, now {health['broker_epoch']}")
        grew = {name: largest[name] - before[name] for name in largest}
        problems += [
            f"{name} grew by {grown:.0f} MiB; the bound is {MEMORY_MIB[attack]}"
            for name, grown in grew.items()
            if grown > MEMORY_MIB[attack]
        ]
        problems += seen.failed
        problems += [
            f"{each.name} wrote {len(each.said)} bytes" for each in processes if len(each.said) > 1 << 20
        ]
        return Outcome(attack, quiet, seen, grew, problems)


def is_slow(outcome: Outcome) -> bool:
    """Whether the 99th percentile exceeds what other clients may notice."""
    return outcome.under.quantile(0.99) > TIMES_QUIET * outcome.quiet.quantile(0.99)


ATTACKS: Final = (*ON_BROKERS, *ON_STORES)


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < hard else soft, hard))
