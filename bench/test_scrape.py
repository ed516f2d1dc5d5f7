"""A scrape of `/metrics`: three brokers with 1,000 partitions of three replicas, and groups that read them.

Each broker leads a third of the partitions and follows the others. The groups have committed an offset of
every partition, together more than `MOST_OFFSETS` at each coordinator. A whole request is measured, as
Prometheus makes it.

    PARTITIONS=1000
    GROUPS=15             with an offset for each partition

    python -m pytest bench/test_scrape.py -p no:xdist -p no:benchmark -q -s
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from logstore.broker.client import Client
from logstore.broker.limits import Address
from logstore.cli import local_cluster
from logstore.disk.topic_partition import TopicPartition

PARTITIONS = int(os.environ.get("PARTITIONS", "1000"))
GROUPS = int(os.environ.get("GROUPS", "15"))
PER_TOPIC = 25
SCRAPES = 20
BAR_S = 0.1
SETTINGS = {"default.replication.factor": "3", "offsets.topic.num.partitions": "3"}

pytestmark = pytest.mark.timeout(0)


async def fill(addresses: list[Address]) -> None:
    """Create the topics, and commit the offsets."""
    async with Client(addresses, timeout_s=600) as client:
        names = [f"topic-{number:03}" for number in range(PARTITIONS // PER_TOPIC)]
        for name in names:
            await client.create_topic(name, PER_TOPIC)
        offsets = {TopicPartition(name, each): 0 for name in names for each in range(PER_TOPIC)}
        for number in range(GROUPS):
            await client.commit(f"readers-{number}", offsets)


def processor_s(text: str) -> float:
    """Processor time that the broker has used, by its own account."""
    found = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
    assert found is not None, "read from /proc"
    return float(found[1])


def test_a_scrape_is_quick(tmp_path: Path) -> None:
    cluster = local_cluster.start(tmp_path, 3, SETTINGS, patience_s=120)
    try:
        asyncio.run(fill([Address("127.0.0.1", node.port) for node in cluster.nodes]))
        for node in cluster.nodes:
            took_s, used_s, text = [], [], ""
            for _ in range(SCRAPES):
                began_s = time.perf_counter()
                with urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=60) as page:
                    text = page.read().decode()
                took_s.append(time.perf_counter() - began_s)
                used_s.append(processor_s(text))
            median_s = statistics.median(took_s)
            used = (used_s[-1] - used_s[0]) / (SCRAPES - 1)
            told = f"median {median_s * 1000:.0f} ms, longest {max(took_s) * 1000:.0f} ms"
            print(f"\n{node.name}: {text.count(chr(10))} lines, {told}, processor {used * 1000:.0f} ms")
            assert median_s <= BAR_S
    finally:
        local_cluster.stop(tmp_path, patience_s=60)
