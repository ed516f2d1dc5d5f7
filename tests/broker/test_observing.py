"""/metrics, /healthz, /livez: over a real broker, over one that loads, over a loop that does not turn."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logstore.broker.health import Loading, alive, health, partition_directories
from logstore.broker.http import HttpServer, Page, Route
from logstore.broker.limits import Address
from logstore.broker.metrics import Watched, gather, page
from logstore.broker.traffic import BOUNDS_S
from logstore.compact.cleaner import PartitionCleaning
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import UnsupportedCompression
from logstore.replication.state_change import Side, StateChange
from tests.broker.groups.desk import T0, T1, Desk
from tests.broker.nodes import Nodes

LOOPBACK = Address("127.0.0.1", 0)


def read(address: Address, path: str) -> tuple[int, str, bytes]:
    """Status, type, body."""
    request = f"http://{address}{path}"
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def values(body: bytes) -> dict[str, float]:
    """Every sample by its name and labels, as a dashboard would ask for it."""
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_cluster_is_watched_under_the_usual_names() -> None:
    async def run() -> None:
        async with asyncio.timeout(60), Nodes(2) as nodes:
            topic_partition = await nodes.create_topic("orders", (0, 1))
            leader = nodes.running[nodes.leader(topic_partition)].node
            controller = nodes.running[nodes.controller()].node
            seen = values(page(Watched(leader)).content)
            manager = "kafka_server_replicamanager_"
            assert seen[manager + "partitioncount"] == 1
            assert seen[manager + "leadercount"] == 1
            assert seen[manager + "underreplicatedpartitions"] == 0
            assert seen['kafka_log_log_logendoffset{partition="0",topic="orders"}'] == 0
            assert seen["kafka_server_kafkaserver_brokerstate"] == 3
            cluster = values(page(Watched(controller)).content)
            prefix = "kafka_controller_kafkacontroller_"
            assert cluster[prefix + "activecontrollercount"] == 1
            assert cluster[prefix + "activebrokercount"] == 2
            assert cluster[prefix + "offlinepartitionscount"] == 0
            other = next(number for number in nodes.running if number != leader.node_id)
            await nodes.kill(other)
            await nodes.until(
                lambda: any(each.is_under_replicated for each in leader.replicas.partitions.values())
            )
            after = values(page(Watched(leader)).content)
            assert after[manager + "underreplicatedpartitions"] == 1
            assert after[manager + "underminisrpartitioncount"] == 1

    asyncio.run(run())


def test_groups_are_counted_by_state() -> None:
    desk = Desk()
    desk.stable()
    desk.commit({T0: 5, T1: 6}, group_id="offsets only")
    seen = values(page(Watched(groups=desk.coordinator)).content)
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    assert seen[prefix + "numgroups"] == 2
    assert seen[prefix + "numgroupsstable"] == 1
    assert seen[prefix + "numgroupsempty"] == 1
    assert seen[prefix + "numgroupspreparingrebalance"] == 0
    assert seen[prefix + "numoffsets"] == 2
    assert seen[prefix + "loadingpartitions"] == 0
    loading = Desk(load=False)
    loading.coordinator.begin_load(0, 0)
    assert values(page(Watched(groups=loading.coordinator)).content)[prefix + "loadingpartitions"] == 1


def test_requests_are_counted_and_timed() -> None:
    broker = Watched()
    for seconds in (0.0001, 0.003, 99.0):
        broker.traffic.answered("Produce", seconds)
    broker.traffic.errors["Produce", "NOT_LEADER_OR_FOLLOWER"] += 2
    broker.traffic.bytes_in["orders"] += 500
    seen = values(page(broker).content)
    assert seen['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 3
    time = "kafka_network_requestmetrics_totaltime_seconds"
    assert seen[time + '_bucket{le="0.0005",request="Produce"}'] == 1
    assert seen[time + '_bucket{le="0.005",request="Produce"}'] == 2
    assert seen[time + f'_bucket{{le="{BOUNDS_S[-1]}",request="Produce"}}'] == 2
    assert seen[time + '_count{request="Produce"}'] == 3
    assert seen[time + '_sum{request="Produce"}'] == pytest.approx(99.0031)
    errors = 'kafka_network_requestmetrics_errors_total{error="NOT_LEADER_OR_FOLLOWER",request="Produce"}'
    assert seen[errors] == 2
    assert seen['kafka_server_brokertopicmetrics_bytesin_total{topic="orders"}'] == 500
    assert seen["kafka_server_socketservermetrics_connections_refused_total"] == 0


def test_elections_are_those_that_this_controller_decided() -> None:
    def change(side: Side, what: str) -> StateChange:
        return StateChange(0, 1, side, 1, TopicPartition("t", 0), what, 1, 1, 1)

    broker = Watched()
    for each in (
        change(Side.CONTROLLER, "elects a leader"),
        change(Side.CONTROLLER, "elects a leader outside the ISR"),
        change(Side.CONTROLLER, "changes the ISR"),
        change(Side.BROKER, "elects a leader"),
    ):
        broker.elections(each)
    seen = values(page(broker).content)
    assert seen["kafka_controller_controllerstats_leaderelections_total"] == 2
    assert seen["kafka_controller_controllerstats_uncleanleaderelections_total"] == 1


def test_a_failed_compaction_is_shown() -> None:
    """The log of the partition grows meanwhile; nobody was told."""

    async def run() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            node = nodes.running[0].node
            name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
            assert values(page(Watched(node)).content)[name] == 0
            failing = PartitionCleaning(error=UnsupportedCompression("zstd is not installed"))
            node.logs.cleaner.partitions[TopicPartition("t", 0)] = failing
            assert values(page(Watched(node)).content)[name] == 1
            facts = json.loads(health(Watched(node), Loading([])).content)
            assert facts["failed_compactions"] == {"t-0": "zstd is not installed"}

    asyncio.run(run())


# --- health -------------------------------------------------------------------------------------


def test_a_broker_is_ready_from_registration_to_stop() -> None:
    async def run() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes:
            node = nodes.running[0].node
            ready = health(Watched(node), Loading([]))
            assert ready.status is HTTPStatus.OK
            assert json.loads(ready.content) == {
                "alive": True,
                "ready": True,
                "state": "running",
                "broker_epoch": node.broker_epoch,
                "offline_log_dirs": [],
                "full_log_dirs": [],
                "damaged_partitions": {},
                "failed_partitions": {},
                "failed_compactions": {},
            }
            stopping = health(Watched(node), Loading([]), is_stopping=True)
            assert stopping.status is HTTPStatus.SERVICE_UNAVAILABLE
            assert json.loads(stopping.content)["state"] == "stopping"

    asyncio.run(run())


def test_loading_is_told_in_percent() -> None:
    disk = MemoryDisk(directories=["/a", "/a/t-0", "/a/t-1", "/a/t-2.123-delete", "/a/junk", "/b", "/b/u-7"])
    found = partition_directories(disk, ["/a", "/b", "/gone"])
    assert found == ["/a/t-0", "/a/t-1", "/b/u-7"]
    loading = Loading([*found, "/b/u-8"])
    told = []
    for directory, done, total in (("/a/t-0", 1, 2), ("/a/t-1", 0, 0), ("/b/u-7", 3, 4)):
        loading(directory, done, total)
        told.append(loading.percent)
    assert told == [12.5, 50.0, 68.8]
    answer = health(Watched(), loading)
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(answer.content) == {
        "alive": True,
        "ready": False,
        "state": "recovering",
        "percent": 68.8,
        "log": "/b/u-7",
    }
    loading.is_over = True
    assert loading.percent == 100.0


# --- the port -----------------------------------------------------------------------------------


def test_pages_are_served_and_what_is_not_there_is_named() -> None:
    def broken() -> Page:
        raise KeyError("x")

    async def run() -> None:
        routes: dict[str, Route] = {
            "/livez": alive,
            "/metrics": lambda: gather(Watched()),
            "/broken": broken,
        }
        server = HttpServer(LOOPBACK, routes)
        try:
            status, kind, body = await asyncio.to_thread(read, server.address, "/livez")
            assert (status, kind, json.loads(body)) == (200, "application/json", {"alive": True})
            status, kind, body = await asyncio.to_thread(read, server.address, "/metrics?format=text")
            assert status == 200
            assert kind.startswith("text/plain; version=")
            assert b"kafka_server_socketservermetrics_connection_count 0.0" in body
            status, _, body = await asyncio.to_thread(read, server.address, "/")
            assert (status, body) == (
                404,
                b'{"error": "not found; known paths: /broken, /livez, /metrics"}\n',
            )
            status, _, body = await asyncio.to_thread(read, server.address, "/broken")
            assert (status, body) == (500, b'{"error": "internal error"}\n')
        finally:
            await asyncio.to_thread(server.close)

    asyncio.run(run())


def test_a_scrape_lets_the_loop_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of partitions all metrics take a tenth of a second."""
    monkeypatch.setattr("logstore.broker.metrics.PIECE_S", 0.0)
    turns: list[int] = []

    def on_loop(act: Callable[[], Any]) -> Any:
        found = act()
        turns.append(len(found))
        return found

    told = gather(Watched())(on_loop).content
    assert values(told).keys() == values(page(Watched()).content).keys()
    assert len(turns) > 10
    assert max(turns) == 1


def test_a_loop_that_does_not_turn_is_told_of() -> None:
    """The answer comes from elsewhere: whoever kills what hangs must learn that it hangs."""

    async def run() -> None:
        server = HttpServer(LOOPBACK, {"/livez": alive}, patience_s=0.01)
        answers: list[tuple[int, str, bytes]] = []
        reader = threading.Thread(target=lambda: answers.append(read(server.address, "/livez")))
        reader.start()
        reader.join(30)  # on the loop: it does not turn meanwhile
        await asyncio.to_thread(server.close)
        ((status, _, body),) = answers
        assert status == 503
        assert json.loads(body)["alive"] is False

    asyncio.run(run())
