"""Ten nodes, ten thousand partitions of three replicas, one core: the cost of a dead node and a new
controller.

All nodes, their logs (on disks in memory) and the store run in this process, so each figure is the CPU
time of the whole cluster. `SCALE_PARTITIONS=1000` for a quick look. Memory is that of Python objects
(`tracemalloc`) without the content of the disks, over all replicas.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from collections.abc import Callable

import pytest

from logstore.disk import memory
from logstore.disk.memory import MemoryDisk
from logstore.replication.config import NodeConfig
from logstore.replication.controller.context import Context
from logstore.replication.driver import InProcessCluster
from logstore.replication.messages import CreateTopicsRequest, CreateTopicsResponse, NewTopic

NODES = 10
PARTITIONS = int(os.environ.get("SCALE_PARTITIONS", "10000"))
PARTITIONS_A_TOPIC = 100
REPLICAS = 3
DEATH_BAR_SECONDS = 5.0
START_BAR_SECONDS = 10.0
MEMORY_BAR_KIB = 20.0


def controller_of(cluster: InProcessCluster) -> int | None:
    return next((number for number, node in cluster.nodes.items() if node.controller.is_active), None)


def context_of(cluster: InProcessCluster) -> Context:
    number = controller_of(cluster)
    assert number is not None
    context = cluster.nodes[number].controller.context
    assert context is not None
    return context


def ten_nodes() -> InProcessCluster:
    cluster = InProcessCluster(
        [NodeConfig(node_id=number) for number in range(NODES)], disk_of=lambda _: MemoryDisk()
    )
    cluster.start()
    assert cluster.run_until(
        lambda: controller_of(cluster) is not None and len(context_of(cluster).brokers) == NODES
    )
    return cluster


def create(cluster: InProcessCluster, partitions: int) -> None:
    topics = tuple(
        NewTopic(f"t{number}", partitions=PARTITIONS_A_TOPIC, replication_factor=REPLICAS)
        for number in range(partitions // PARTITIONS_A_TOPIC)
    )
    number = controller_of(cluster)
    assert number is not None
    answered = cluster.call(CreateTopicsRequest(topics), number)
    assert isinstance(answered, CreateTopicsResponse)
    assert all(not result.error for result in answered.topics.values())
    cluster.advance(1000)
    led = sum(each.is_leader for node in cluster.nodes.values() for each in node.replicas.partitions.values())
    assert led == partitions


def cpu_seconds(action: Callable[[], None]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def everybody_leads(cluster: InProcessCluster, partitions: int) -> bool:
    states = context_of(cluster).states
    return len(states) == partitions and all(
        known.state.leader in cluster.nodes
        and (mine := cluster.nodes[known.state.leader].replicas.partitions.get(each)) is not None
        and mine.is_leader
        and mine.leader_epoch == known.state.leader_epoch
        for each, known in states.items()
    )


def until_everybody_leads(cluster: InProcessCluster) -> None:
    # Not checked at each message: that would be most of the cost.
    while not everybody_leads(cluster, PARTITIONS):
        for _ in range(500):
            if not cluster.step():
                cluster.advance(1)


def test_a_death_a_takeover_and_idling() -> None:
    cluster = ten_nodes()
    creating = cpu_seconds(lambda: create(cluster, PARTITIONS))
    idling = cpu_seconds(lambda: cluster.advance(10_000)) / 10 / NODES
    number = controller_of(cluster)
    assert number is not None
    victim = (number + 1) % NODES

    def die() -> None:
        cluster.kill_node(victim, expire_session=True)
        until_everybody_leads(cluster)

    death = cpu_seconds(die)

    def take_over() -> None:
        cluster.kill_node(number, expire_session=True)
        assert cluster.run_until(lambda: controller_of(cluster) is not None)
        until_everybody_leads(cluster)

    takeover = cpu_seconds(take_over)
    print(
        f"\n{PARTITIONS:,} partitions x {REPLICAS} on {NODES} nodes, CPU of the whole cluster: "
        f"creating {creating:.1f} s, idling {idling:.1%} of a core a node, "
        f"a death {death:.1f} s (bar {DEATH_BAR_SECONDS:.0f}), "
        f"a death of the controller and its successor's start {takeover:.1f} s (bar {START_BAR_SECONDS:.0f})"
    )
    assert death <= DEATH_BAR_SECONDS
    assert takeover <= START_BAR_SECONDS


def test_memory_of_an_idle_partition() -> None:
    partitions = min(PARTITIONS, 2000)
    cluster = ten_nodes()
    gc.collect()
    tracemalloc.start()
    try:
        create(cluster, partitions)
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(inclusive=False, filename_pattern=memory.__file__)]
        )
    finally:
        tracemalloc.stop()
    kib = sum(each.size for each in traces.statistics("filename")) / 1024 / (partitions * REPLICAS)
    print(f"\n{kib:.1f} KiB a replica (bar {MEMORY_BAR_KIB:.0f})")
    assert kib <= MEMORY_BAR_KIB


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-s", "-p", "no:benchmark"]))
