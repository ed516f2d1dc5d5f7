"""Bar 6: three nodes in three processes against a real ZooKeeper server, and every way to part them.

The short run is part of `make test`; `make zookeeper` runs the campaign: minutes, and a table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import Side, StateChange
from tests.broker.processes import PARTITIONS, Cluster, Tally, Verdict, judge_epochs, judge_partition, table

Fault = Callable[[Cluster], Awaitable[str]]


async def controller_killed(cluster: Cluster) -> str:
    return f"controller: {await cluster.killed(await cluster.controller())}"


async def controller_paused(cluster: Cluster) -> str:
    """The active controller goes on as a zombie, with what it was about to say."""
    paused = await cluster.controller()
    what = await cluster.paused(paused)
    assert await cluster.controller() != paused, "another one took over"
    return f"controller: {what}"


async def leader_killed(cluster: Cluster) -> str:
    return f"leader: {await cluster.killed(await cluster.leader(PARTITIONS[0]))}"


async def leader_paused(cluster: Cluster) -> str:
    return f"leader: {await cluster.paused(await cluster.leader(PARTITIONS[1]))}"


async def follower_killed(cluster: Cluster) -> str:
    leader = await cluster.leader(PARTITIONS[2])
    return f"follower: {await cluster.killed(leader % 3 + 1)}"


async def controller_expired(cluster: Cluster) -> str:
    return f"controller: {await cluster.session_ended(await cluster.controller())}"


async def leader_expired(cluster: Cluster) -> str:
    return f"leader: {await cluster.session_ended(await cluster.leader(PARTITIONS[0]))}"


def server_stopped(seconds: float) -> Fault:
    return lambda cluster: cluster.server_stopped(seconds)


def run(directory: Path, faults: list[Fault], *, session_ms: int) -> tuple[list[str], Verdict, float]:
    async def campaign() -> tuple[list[str], Verdict, float]:
        began = time.monotonic()
        async with Cluster(directory, session_ms=session_ms) as cluster:
            lines = await cluster.under_load(faults)
            await cluster.stopped()
            return lines, cluster.judge(), time.monotonic() - began

    return asyncio.run(campaign())


def test_a_server_stopped_a_controller_killed_and_a_zombie(tmp_path: Path) -> None:
    """The short run: nothing acknowledged is lost, doubled or out of order; one leader an epoch.

    The zombie is both: the controller, and, since each node still leads a partition, a leader.
    """
    lines, verdict, seconds = run(
        tmp_path, [server_stopped(3), controller_paused, controller_killed], session_ms=2_000
    )
    print(table(lines, verdict, seconds))
    assert verdict.violations == []
    assert verdict.acked > 100
    assert verdict.read >= verdict.acked
    assert verdict.controllers >= 3, "each of the two controllers that went was replaced"


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_campaign(tmp_path: Path) -> None:
    """All of bar 6: 30 s without the server, expiries, kills, zombies, three rounds of it."""
    around: list[Fault] = [
        controller_expired,
        leader_expired,
        controller_killed,
        controller_paused,
        leader_killed,
        leader_paused,
        follower_killed,
    ]
    lines, verdict, seconds = run(tmp_path, [server_stopped(30), *around * 3], session_ms=3_000)
    print("\n" + table(lines, verdict, seconds))
    assert verdict.violations == []
    assert verdict.controllers >= 10, "three in each round, and the first"


# --- the judges can say no --------------------------------------------------------------------

TP = TopicPartition("orders", 0)
LEADS = StateChange(0, 1, Side.BROKER, 1, TP, "becomes leader", 1, 5, 0)


def test_two_leaders_of_an_epoch_are_seen() -> None:
    """A checker that never fails is not a checker."""
    assert judge_epochs([LEADS, LEADS, replace(LEADS, leader=2, leader_epoch=6, node_id=2)]) == []
    assert judge_epochs([LEADS, replace(LEADS, leader=2, node_id=2)])
    controls = replace(LEADS, side=Side.CONTROLLER, change="writes a state")
    assert judge_epochs([controls, replace(controls, node_id=2)])


GOOD: list[bytes | None] = [b"0-0", b"0-1", b"0-2"]


@pytest.mark.parametrize(
    ("acked", "read", "replicas"),
    [
        ([(0, [b"0-0"]), (1, [b"0-1", b"0-9"])], GOOD, {1: GOOD, 2: GOOD}),
        ([(0, [b"0-0"])], GOOD, {1: [b"0-0", b"0-1", b"0-1"]}),
        ([(0, [b"0-0"])], [], {1: [b"0-1", b"0-0"]}),
        ([(0, [b"0-0"])], [b"0-0", b"0-7"], {1: GOOD}),
        ([(0, [b"0-0"]), (1, [b"0-1"])], GOOD[:1], {1: GOOD[:2], 2: GOOD[:1]}),
        ([(0, [b"0-0"])], GOOD, {1: GOOD, 2: [b"0-0", b"0-2"]}),
    ],
    ids=["lost", "doubled", "out of order", "read but gone", "a replica is short", "replicas differ"],
)
def test_what_is_wrong_with_a_partition_is_seen(
    acked: list[tuple[int, list[bytes]]], read: list[bytes | None], replicas: dict[int, list[bytes | None]]
) -> None:
    assert judge_partition(Tally(acked, read), replicas)


def test_a_partition_that_is_right_is_left_alone() -> None:
    tally = Tally([(0, [b"0-0"]), (1, [b"0-1", b"0-2"])], GOOD[:2])
    assert judge_partition(tally, {1: GOOD, 2: GOOD}) == []
