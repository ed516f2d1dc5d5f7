"""Cost of idle partitions and of waiting and abandoned fetches, as ratios within one run.

Three nodes in this process, on disks in memory: each figure is the processor time of the whole cluster.
`IDLE_PARTITIONS=5000` for more. The bars: throughput beside idle partitions at least 0.9 of that without;
idling at most 2 % of a core a broker; a produce beside 1,000 waiting fetches at most twice one without.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication.driver import InProcessCluster, three_nodes
from logstore.replication.effects import Abandoned, Client, ClientRequest
from logstore.replication.messages import (
    FetchPartition,
    FetchRequest,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
)

IDLE = int(os.environ.get("IDLE_PARTITIONS", "1000"))
PRODUCES = 300
WAITERS = 1000
IDLE_SECONDS = 30
BUSY, OTHER = TopicPartition("busy", 0), TopicPartition("other", 0)
THROUGHPUT_BAR, IDLE_BAR, WAITING_BAR = 0.9, 0.02, 2.0


def cluster_of(idle: int) -> InProcessCluster:
    cluster = InProcessCluster(three_nodes(), disk_of=lambda _: MemoryDisk())
    cluster.start()
    for number in range(idle // 100):
        cluster.create_topic(NewTopic(f"idle{number}", partitions=100, replication_factor=3))
    for busy in (BUSY, OTHER):
        cluster.create_topic(NewTopic(busy.topic, assignment=((0, 1, 2),)))
    cluster.advance(5_000)
    return cluster


def produce(cluster: InProcessCluster) -> float:
    """Append with acks=all, one batch after the other; returns the seconds of processor time of one."""
    records = encode_batch([Record(0, 0, None, bytes(100))])
    began = time.process_time()
    for _ in range(PRODUCES):
        body = cluster.call(ProduceRequest({BUSY: records}, -1, 30_000), 0)
        assert isinstance(body, ProduceResponse)
        assert body.partitions[BUSY].error.value == 0
    return (time.process_time() - began) / PRODUCES


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(5))


def test_idle_partitions_beside_a_busy_one() -> None:
    alone, beside = cluster_of(0), cluster_of(IDLE)
    without, with_idle = best(lambda: produce(alone)), best(lambda: produce(beside))
    ratio = without / with_idle
    print(f"\nacks=all: {without * 1e6:.0f} us alone, {with_idle * 1e6:.0f} beside {IDLE} idle: {ratio:.2f}")
    assert ratio >= THROUGHPUT_BAR


def test_idling() -> None:
    cluster = cluster_of(IDLE)
    began = time.process_time()
    cluster.advance(IDLE_SECONDS * 1000)
    share = (time.process_time() - began) / IDLE_SECONDS / 3
    print(f"\n{IDLE} idle partitions: {share:.2%} of a core a broker")
    assert share <= IDLE_BAR


@pytest.mark.parametrize("kind", ["elsewhere", "for many bytes", "abandoned", "abandoned in sessions"])
def test_a_produce_beside_waiting_fetches(kind: str) -> None:
    cluster = cluster_of(0)
    without = best(lambda: produce(cluster))
    end = cluster.nodes[0].replicas.partitions[BUSY].log.log_end_offset
    wanted = {
        "elsewhere": {OTHER: FetchPartition(0, 1 << 20)},
        "for many bytes": {BUSY: FetchPartition(end, 1 << 30)},
    }.get(kind, {BUSY: FetchPartition(end, 1 << 20), OTHER: FetchPartition(0, 1 << 20)})
    node = cluster.nodes[0]
    for number in range(WAITERS):
        token = -1 - number
        body = FetchRequest(
            -1,
            300_000,
            1 << 29 if kind == "for many bytes" else 1,
            1 << 30,
            wanted,
            session_epoch=0 if kind == "abandoned in sessions" else -1,
        )
        node.receive(ClientRequest(token, body), cluster.now_ms)
        if kind.startswith("abandoned"):
            node.receive(Abandoned(Client(token)), cluster.now_ms)
    assert node.replicas.waiting.fetches.delayed >= (0 if kind.startswith("abandoned") else WAITERS)
    beside = best(lambda: produce(cluster))
    print(f"\n{WAITERS} fetches {kind}: {without * 1e6:.0f} us a produce without, {beside * 1e6:.0f} with")
    assert beside <= WAITING_BAR * without
