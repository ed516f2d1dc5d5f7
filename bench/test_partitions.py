"""Three broker processes with many partitions of three replicas: pauses through their whole life.

A cluster starts with one busy topic. While a thread appends to it with acks=all, one record after the other,
the other partitions are created, the brokers are restarted one by one, one is killed (SIGKILL) and started
again, the topics are deleted, and the cluster stops. The longest pause of each broker's event loop is read
from its metrics, and from its last words.

    PARTITIONS=1000       partitions besides the busy one
    PER_TOPIC=25          partitions a topic
    PARTS=restart,kill,delete
    NODES=3

    make bench-partitions PARTITIONS=1000
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.request import urlopen

import pytest

from bench.kafka.usage import cpu_s
from logstore.broker.blocking import BlockingClient
from logstore.broker.client import Client
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.cli import local_cluster
from logstore.disk.errors import EngineError
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
)
from tests.broker.asking import Asker

PARTITIONS = int(os.environ.get("PARTITIONS", "1000"))
PER_TOPIC = int(os.environ.get("PER_TOPIC", "25"))
NODES = int(os.environ.get("NODES", "3"))
PARTS = os.environ.get("PARTS", "restart,kill,delete").split(",")
PAUSE_BAR_S = 0.5 if PARTITIONS <= 1000 else 1.0
PRODUCER_BAR_S = 0.1 if PARTITIONS <= 1000 else 1.0
CREATION_BAR_S = 3.0
STOP_BAR_S = 5.0
PATIENCE_S = 600.0

pytestmark = pytest.mark.timeout(0)
BUSY = "busy"
SETTINGS = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "1",
    "zookeeper.session.timeout.ms": "18000",
    "log.initial.task.delay.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}


class Producer(threading.Thread):
    """Appends one record after the other, and keeps the longest wait."""

    def __init__(self, addresses: list[Address]) -> None:
        super().__init__(daemon=True)
        self._addresses = addresses
        self._ends = threading.Event()
        self.waits: list[float] = []
        self.failures: list[str] = []
        self.began_s = 0.0

    def run(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with Client(self._addresses, timeout_s=PATIENCE_S) as client:
            while not self._ends.is_set():
                self.began_s = time.monotonic()
                try:
                    await client.append(BUSY, b"x" * 100)
                except EngineError as error:
                    self.failures.append(str(error))
                self.waits.append(time.monotonic() - self.began_s)
                await asyncio.sleep(0.005)

    def longest_s(self) -> float:
        """Return the longest wait since the last call."""
        waits, self.waits = self.waits, []
        return max([*waits, time.monotonic() - self.began_s])

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENCE_S)


class Cluster:
    """The processes, and what was measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = local_cluster.start(directory, NODES, SETTINGS, patience_s=PATIENCE_S)
        self.addresses = [Address("127.0.0.1", node.port) for node in self.cluster.nodes]
        self.heard = [0] * NODES
        self.rows: list[tuple[str, float, list[float], float | None]] = []

    def metric(self, number: int, name: str) -> float:
        with urlopen(
            f"http://127.0.0.1:{self.cluster.nodes[number].http_port}/metrics", timeout=PATIENCE_S
        ) as page:
            found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def pause_of(self, number: int) -> float:
        return self.metric(number, "logstore_eventloop_pause_max_seconds")

    def last_pause_of(self, number: int) -> float:
        """Return the longest pause that a broker that ended wrote to its log."""
        words = (self.directory / f"node-{number + 1}.log").read_bytes()[self.heard[number] :].decode()
        self.heard[number] += len(words.encode())
        found = re.findall(r"event loop was blocked for (\d+) ms", words)
        return max(map(int, found), default=0) / 1000

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s, what
            time.sleep(0.2)

    def is_whole(self, partitions: int) -> bool:
        try:
            prefix = "kafka_server_replicamanager_"
            return (
                all(
                    self.metric(number, prefix + "partitioncount") == partitions
                    and self.metric(number, prefix + "underreplicatedpartitions") == 0
                    for number in range(NODES)
                )
                and sum(self.metric(number, prefix + "leadercount") for number in range(NODES)) == partitions
            )
        except OSError:
            return False

    def note(self, what: str, seconds: float, pauses: list[float], wait_s: float | None) -> None:
        self.rows.append((what, seconds, pauses, wait_s))
        waited = f", producer waited {wait_s:.3f} s" if wait_s is not None else ""
        paused = " ".join(f"{each:.3f}" for each in pauses)
        load = os.getloadavg()[0]
        print(
            f"  {what:22} {seconds:7.2f} s, longest pause so far {paused} s{waited} (load {load:.1f})",
            flush=True,
        )

    def processor_s(self) -> float:
        return cpu_s(node.pid for node in self.cluster.nodes)


def topics() -> tuple[NewTopic, ...]:
    return tuple(
        NewTopic(
            f"t{number}", partitions=min(PER_TOPIC, PARTITIONS - number * PER_TOPIC), replication_factor=NODES
        )
        for number in range(-(-PARTITIONS // PER_TOPIC))
    )


async def delete(names: list[str], address: Address) -> None:
    wanted = [t.DeleteTopicsRequestDeleteTopicState(name=name, topic_id=bytes(16)) for name in names]
    async with Asker(address) as asker:
        answer = await asker.ask(t.DeleteTopicsRequest(topic_names=[], topics=wanted, timeout_ms=600_000), 6)
    assert not [each for each in answer.responses if each.error_code], answer


def test_many_partitions(tmp_path: Path) -> None:
    print(f"\n{PARTITIONS} partitions x {NODES} replicas on {NODES} brokers, in {tmp_path}")
    bench = Cluster(tmp_path)
    producer = Producer(bench.addresses)
    everyone = range(NODES)

    def note(what: str, seconds: float, brokers: Iterable[int] = everyone) -> None:
        bench.note(what, seconds, [bench.pause_of(each) for each in brokers], producer.longest_s())

    def start_again(name: str) -> None:
        began = time.monotonic()
        bench.cluster = local_cluster.launch(tmp_path, [name], patience_s=PATIENCE_S)
        ready_s = time.monotonic() - began
        bench.wait("return", lambda: bench.is_whole(PARTITIONS + 1))
        note(f"start of {name} ({ready_s:.1f})", time.monotonic() - began)

    try:
        with BlockingClient(bench.addresses, timeout_s=PATIENCE_S) as client:
            client.create_topic(BUSY, 1, replication_factor=NODES)
            bench.wait("the busy topic", lambda: bench.is_whole(1))
            producer.start()
            time.sleep(2.0)
            note("quiet", 2.0)

            began = time.monotonic()
            answer = client.of_controller(CreateTopicsRequest(topics()))
            assert isinstance(answer, CreateTopicsResponse)
            assert all(not each.error for each in answer.topics.values()), answer
            answered_s = time.monotonic() - began
            bench.wait("creation", lambda: bench.is_whole(PARTITIONS + 1))
            creation_s = time.monotonic() - began
            time.sleep(1.0)
            bench.note("creation (answered)", answered_s, [], None)
            note("creation (all lead)", creation_s)
            before = bench.processor_s()
            time.sleep(10.0)
            idle = (bench.processor_s() - before) / 10 / NODES
            note(f"idle, {idle:.1%} of a core", 10.0)
            if "restart" in PARTS:
                for number in everyone:
                    name = f"node-{number + 1}"
                    began = time.monotonic()
                    local_cluster.send_signal(tmp_path, name, signal.SIGTERM)
                    member = bench.cluster.nodes[number]
                    bench.wait("stop", lambda member=member: not local_cluster.is_running(tmp_path, member))  # type: ignore[misc]
                    stop_s = time.monotonic() - began
                    pauses = [
                        bench.last_pause_of(each) if each == number else bench.pause_of(each)
                        for each in everyone
                    ]
                    bench.note(f"stop of {name}", stop_s, pauses, producer.longest_s())
                    start_again(name)
            if "kill" in PARTS:
                began = time.monotonic()
                local_cluster.send_signal(tmp_path, "node-1", signal.SIGKILL)
                others = [each for each in everyone if each]
                bench.wait(
                    "failover",
                    lambda: (
                        sum(bench.metric(each, "kafka_server_replicamanager_leadercount") for each in others)
                        == PARTITIONS + 1
                    ),
                )
                note("failover of node-1", time.monotonic() - began, others)
                start_again("node-1")
            if "delete" in PARTS:
                began = time.monotonic()
                asyncio.run(delete([each.name for each in topics()], bench.addresses[0]))
                bench.wait("deletion", lambda: bench.is_whole(1))
                note("deletion", time.monotonic() - began)
                time.sleep(5.0)
                note("after the deletion", 5.0)
                assert isinstance(client.of_controller(CreateTopicsRequest(topics())), CreateTopicsResponse)
                bench.wait("creation", lambda: bench.is_whole(PARTITIONS + 1))
                note("second creation", 0.0)
        producer.end()
        began = time.monotonic()
        killed = local_cluster.stop(tmp_path, patience_s=PATIENCE_S)
        stop_s = time.monotonic() - began
        bench.note("stop of all", stop_s, [bench.last_pause_of(each) for each in everyone], None)
        assert not killed
    finally:
        local_cluster.stop(tmp_path, patience_s=0)
    if producer.failures:
        print(f"  failed appends: {len(producer.failures)}, the first: {producer.failures[0]}")
    longest = max(each for _, _, pauses, _ in bench.rows for each in pauses)
    (created,) = (wait_s for what, _, _, wait_s in bench.rows if what.startswith("creation (all"))
    print(
        json.dumps(
            {
                "partitions": PARTITIONS,
                "longest_pause_s": longest,
                "creation_s": creation_s,
                "stop_s": stop_s,
                "producer_wait_s": created,
            }
        )
    )
    assert longest <= PAUSE_BAR_S
    assert created is not None
    assert created <= PRODUCER_BAR_S
    assert creation_s <= CREATION_BAR_S * max(PARTITIONS / 1000, 1)
    assert stop_s <= STOP_BAR_S * max(PARTITIONS / 1000, 1)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-s", "-p", "no:benchmark"]))
