"""The two sides: three brokers of Apache Kafka and three of ours, on one ZooKeeper server, a chroot each."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.kafka.asking import ask
from bench.kafka.jars import Missing, jars
from bench.kafka.servers import Kafka, Ours, Servers, eventually
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode as Code
from tests.cluster_judge.views import Partition, Place, Told, View
from tests.wire_judge.sides import RELEASE
from tests.zookeeper import INSTALL, JAR, ZooKeeperServer

BROKERS: Final = (1, 2, 3)
SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "10000",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "50",
    "request.timeout.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "200",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "log.retention.ms": "-1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "num.partitions": "1",
}
"""A session ends long before a silent follower counts as slow: so it is the controller that acts, on both."""
_OF_KAFKA: Final = {
    "replica.socket.timeout.ms": "6000",
    "controller.socket.timeout.ms": "6000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
_OF_OURS: Final = {"replica.selector.class": "rack-aware"}
_JVM: Final = (
    *("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Djava.awt.headless=true",
)
_METADATA: Final = 9


class Side:
    """One cluster, asked over its brokers and over its nodes in ZooKeeper."""

    def __init__(self, name: str, servers: Servers, store: KazooClient) -> None:
        self.name, self.servers, self.store = name, servers, store
        self.paused: set[int] = set()
        self.depositions = 0
        """How often the controller's node was taken away; each is one more controller epoch."""

    @property
    def awake(self) -> tuple[int, ...]:
        """The brokers that run and are not paused."""
        return tuple(each for each in BROKERS if self.servers.is_running(each) and each not in self.paused)

    # --- faults of brokers ----------------------------------------------------------------------

    def end(self, number: int, how: signal.Signals) -> None:
        if self.servers.is_running(number):
            self.resume(number)
            self.servers.end(number, how)

    def start(self, number: int) -> None:
        if not self.servers.is_running(number):
            self.servers.start(number)

    def pause(self, number: int) -> None:
        if number in self.awake:
            self.servers.send(number, signal.SIGSTOP)
            self.paused.add(number)

    def resume(self, number: int) -> None:
        if number in self.paused:
            self.servers.send(number, signal.SIGCONT)
            self.paused.discard(number)

    def make_controller(self, number: int) -> None:
        """Take the controller's node away until this broker has it.

        Each time all brokers know the controller before: Kafka's miss a deletion during a failover."""
        while (found := self.controller()) != number:
            eventually(partial(self._is_told, found), f"{self.name}'s brokers know controller {found}")
            with suppress(NoNodeError):
                self.store.delete("/controller")
                self.depositions += 1

    def _is_told(self, controller: int) -> bool:
        return all(self._told(each, []).controller == controller for each in self.awake)

    # --- asking -------------------------------------------------------------------------------

    def controller(self) -> int:
        """Wait for a controller that is awake, and return it."""
        found = -1

        def is_there() -> bool:
            nonlocal found
            data = self.node("/controller")
            found = json.loads(data)["brokerid"] if data else -1
            return found in self.awake

        eventually(is_there, f"{self.name} has a controller")
        return found

    def ask(self, number: int, request: Struct, version: int) -> Any:
        return ask(self.servers.ports[number], request, version)

    def ask_controller(self, request: Struct, version: int) -> Any:
        return self.ask(self.controller(), request, version)

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition by its node; -1 if there is none."""
        data = self.node(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return int(json.loads(data)["leader"]) if data else -1

    def node(self, path: str) -> bytes | None:
        try:
            found: bytes = self.store.get(path)[0] or b""
        except NoNodeError:
            return None
        return found

    def nodes(self, path: str = "/") -> dict[str, bytes]:
        """Return all nodes at and below a path."""
        found: dict[str, bytes] = {}
        try:
            found[path] = self.store.get(path)[0] or b""
            for name in self.store.get_children(path):
                found |= self.nodes(f"{path.rstrip('/')}/{name}")
        except NoNodeError:
            pass  # it went meanwhile
        return found

    # --- looking ------------------------------------------------------------------------------

    def view(self, topics: Sequence[str]) -> View:
        """Return what brokers tell of these topics, and the nodes."""
        return View(self.awake, {number: self._told(number, topics) for number in self.awake}, self.nodes())

    def _told(self, number: int, topics: Sequence[str]) -> Told:
        wanted = [t.MetadataRequestTopic(name=each) for each in topics]
        request = t.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        found = self.ask(number, request, _METADATA)
        parts = {
            Place(topic.name, part.partition_index): Partition(
                part.error_code,
                part.leader_id,
                part.leader_epoch,
                tuple(part.replica_nodes),
                tuple(sorted(part.isr_nodes)),
                tuple(sorted(part.offline_replicas)),
            )
            for topic in found.topics
            for part in topic.partitions
        }
        errors = {topic.name: topic.error_code for topic in found.topics if topic.error_code}
        return Told(tuple(sorted(each.node_id for each in found.brokers)), found.controller_id, parts, errors)

    def offset(self, leader: int, place: Place, timestamp: int, isolation: int) -> list[int]:
        part = t.ListOffsetsRequestListOffsetsPartition(partition_index=place.partition, timestamp=timestamp)
        topic = t.ListOffsetsRequestListOffsetsTopic(name=place.topic, partitions=[part])
        found = self.ask(
            leader, t.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic]), 5
        )
        return [found.topics[0].partitions[0].error_code, found.topics[0].partitions[0].offset]

    def fetch(self, number: int, place: Place, offset: int) -> Any:
        """Return what a replica has from an offset on, for consumers."""
        part = t.FetchRequestFetchPartition(
            partition=place.partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topic = t.FetchRequestFetchTopic(topic=place.topic, partitions=[part])
        request = t.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
        return self.ask(number, request, 11).responses[0].partitions[0]

    def producers(self, number: int, place: Place) -> list[tuple[int, ...]]:
        """Return the producers that a leader knows: id, epoch, last sequence number."""
        topic = t.DescribeProducersRequestTopicRequest(name=place.topic, partition_indexes=[place.partition])
        found = self.ask(number, t.DescribeProducersRequest(topics=[topic]), 0).topics[0].partitions[0]
        states = found.active_producers
        return sorted((each.producer_id, each.producer_epoch, each.last_sequence) for each in states)

    def log_dirs(self, number: int, topics: Sequence[str]) -> Any:
        found = self.ask(number, t.DescribeLogDirsRequest(topics=None), 1)
        return [
            (result.log_dir, topic.name, part)
            for result in found.results
            for topic in result.topics
            if topic.name in topics
            for part in topic.partitions
        ]

    def heal(self) -> None:
        """Let every broker run."""
        for number in BROKERS:
            self.resume(number)
            self.start(number)

    def remove(self, topics: Sequence[str]) -> None:
        """Delete topics."""
        request = t.DeleteTopicsRequest(topic_names=list(topics), timeout_ms=10_000)

        def are_gone() -> bool:
            found = self.ask_controller(request, 5)
            return all(each.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION for each in found.responses)

        eventually(are_gone, f"{self.name} has deleted {topics}", every_s=0.2)


@contextmanager
def both(directory: Path) -> Iterator[tuple[Side, Side]]:
    """Start the two clusters; yield Kafka's side and ours. Raises `Missing`."""
    found = jars(RELEASE)
    if not JAR.exists():
        raise Missing(f"ZooKeeper is not installed: {INSTALL}")
    server = ZooKeeperServer(directory / "zookeeper")
    with ExitStack() as stack:
        stack.callback(server.kill)
        server.start()
        kafka = Kafka(directory / "kafka", len(BROKERS), version=RELEASE, jars=found)
        kafka.jvm, kafka.settings = _JVM, {**SETTINGS, **_OF_KAFKA}
        ours = Ours(directory / "ours", len(BROKERS))
        ours.settings = {**SETTINGS, **_OF_OURS}
        sides = []
        for name, servers in (("kafka", kafka), ("ours", ours)):
            servers.zookeeper, servers.dirs_each = f"127.0.0.1:{server.port}/{name}", 2
            servers.directory.mkdir(parents=True)
            stack.enter_context(_connected(f"127.0.0.1:{server.port}")).ensure_path(f"/{name}")
            store = stack.enter_context(_connected(servers.zookeeper))
            stack.callback(servers.end_all)
            sides.append(Side(name, servers, store))
            for number in BROKERS:
                servers.start(number)
        for each in (kafka, ours):
            each.wait_until_whole()
        yield sides[0], sides[1]


@contextmanager
def _connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
