"""Kafka Streams, Kafka Connect and MirrorMaker 2, from Maven, against brokers of ours.

Each is a program of its own that keeps its state in topics: changelogs, repartitioned records, offsets,
settings, heartbeats.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from bench.kafka.jars import application_jars, compile_java, jars
from bench.kafka.servers import Kafka, eventually, free_port
from logstore.disk.files import wall_clock_ms
from tests.interop.cluster import Cluster
from tests.suites.checks import results_of
from tests.suites.verdict import Result

VERSIONS: Final = ("3.9.1", "4.1.1")
SETTINGS: Final = {"auto.create.topics.enable": "true", "default.replication.factor": "3"}
"""Topics that the checks write to appear with their first record; the applications create theirs."""
_PATIENCE_S: Final = 120
_LINES: Final = 1_000
_SOURCE: Final = Path(__file__).with_name("java") / "CountWords.java"
until: Final = partial(eventually, every_s=0.2, within_s=_PATIENCE_S)

Check = Callable[["Applications"], None]


class Applications:
    """Runs Java programs of a release beside a cluster."""

    def __init__(self, version: str, cluster: Cluster, directory: Path) -> None:
        """Raises `Missing`."""
        self.version, self.cluster, self.directory = version, cluster, directory
        self._classpath = f"{directory}:{application_jars(version)}/*"
        compile_java(application_jars(version), directory, _SOURCE)

    @contextmanager
    def running(self, name: str, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a program until the block ends; what it says goes into `name.txt`."""
        command = ["java", "-Xmx512M", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, program, *arguments]
        with (self.directory / f"{name}.txt").open("w") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, text=True
            )
            try:
                yield process
            finally:
                process.kill()
                process.communicate()

    def said(self, name: str) -> str:
        return (self.directory / f"{name}.txt").read_text()

    def file(self, name: str, settings: Mapping[str, object]) -> str:
        """Write settings; return the file's path."""
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)


def run(version: str, cluster: Cluster, directory: Path) -> dict[str, Result]:
    """Run the applications of a release; return the results by name.

    Raises `Missing` without Java or the jars.
    """
    return results_of(CHECKS, Applications(version, cluster, directory), directory / "applications.txt")


def send(bootstrap: str, topic: str, records: Sequence[tuple[bytes, bytes]], *, time_ms: int) -> None:
    """Append pairs, and wait until all replicas have them."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all")) as producer:
        sent = [
            producer.send(topic, key=key, value=value, headers=[("of", key)], timestamp_ms=time_ms)
            for key, value in records
        ]
        for each in sent:
            each.get(_PATIENCE_S)


def read(bootstrap: str, topic: str, enough: Callable[[list[ConsumerRecord]], bool]) -> list[ConsumerRecord]:
    """Return the records of a topic, in the order of each partition, once they are enough."""
    found: list[ConsumerRecord] = []
    settings = {"auto_offset_reset": "earliest", "group_id": None, "consumer_timeout_ms": 500}
    with closing(KafkaConsumer(topic, bootstrap_servers=bootstrap, **settings)) as consumer:

        def is_enough() -> bool:
            found.extend(consumer)
            return enough(found)

        until(is_enough, f"enough records of {topic}")
    return found


# --- Streams ------------------------------------------------------------------------------------------


def streams_count_words_while_a_broker_dies(applications: Applications) -> None:
    """At least once: no line is lost. A word is counted again only if its task starts anew."""
    cluster, bootstrap = applications.cluster, applications.cluster.bootstrap
    lines = [(b"k%d" % (index % 20), b"every word%d" % (index % 50)) for index in range(_LINES)]
    truth = Counter(word for _, line in lines for word in line.split())
    now_ms = wall_clock_ms()
    rows = [(b"k%d" % index, b"row%d" % index) for index in range(20)]
    send(bootstrap, "rows", rows, time_ms=now_ms - 60_000)  # a line is joined with rows that are older
    send(bootstrap, "lines", lines[: _LINES // 2], time_ms=now_ms)

    def last(records: list[ConsumerRecord]) -> dict[bytes, int]:
        return {each.key: int(each.value) for each in records}

    arguments = (bootstrap, str(applications.directory / "state"), "counting", "at_least_once")
    with applications.running("streams", "CountWords", *arguments) as process:
        read(bootstrap, "counted", lambda records: last(records).get(b"every", 0) >= _LINES // 2)
        victim = cluster.brokers[0]
        cluster.kill(victim)
        try:
            alive = ",".join(address for number, address in cluster.addresses.items() if number != victim)
            send(alive, "lines", lines[_LINES // 2 :], time_ms=now_ms)
        finally:
            cluster.start(victim)
        found = last(read(bootstrap, "counted", lambda records: last(records).get(b"every", 0) >= _LINES))
        assert found.keys() == truth.keys(), found
        assert all(found[word] >= count for word, count in truth.items()), found
        joined = read(bootstrap, "joined", lambda records: len(records) >= _LINES)
        assert all(each.value == b"row" + each.key[1:] for each in joined), joined[:3]
        process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, applications.said("streams")[-2000:]


def streams_exactly_once_is_refused_with_the_reason(applications: Applications) -> None:
    arguments = (str(applications.directory / "state"), "once", "exactly_once_v2")
    with applications.running("once", "CountWords", applications.cluster.bootstrap, *arguments) as process:
        process.wait(_PATIENCE_S)
    assert "transactions are not supported" in applications.said("once")


# --- Connect ------------------------------------------------------------------------------------------


class _Worker:
    """The REST interface of a worker of Connect."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._url + path, data, headers, method=method), timeout=_PATIENCE_S) as answer:
            said = answer.read()
            return json.loads(said) if said else None

    def answers(self) -> bool:
        """Whether it serves. Raises `OSError` before it listens."""
        return bool(self.ask("GET", "/connectors") == [])

    def state(self, name: str) -> str:
        state: str = self.ask("GET", f"/connectors/{name}/status")["connector"]["state"]
        return state


def connect_copies_a_file_and_again_from_the_start(applications: Applications) -> None:
    """A source and a sink; then the sink's offsets are reset, which deletes those of its group."""
    source, sink, port = applications.directory / "in.txt", applications.directory / "out.txt", free_port()
    source.write_text("".join(f"line {index}\n" for index in range(_LINES)))
    converter = "org.apache.kafka.connect.storage.StringConverter"
    stored = {
        f"{what}.storage.{name}": value
        for what in ("offset", "config", "status")
        for name, value in (("topic", f"connect-{what}"), ("replication.factor", 3))
    }
    settings = {
        "bootstrap.servers": applications.cluster.bootstrap,
        "group.id": "connect",
        "key.converter": converter,
        "value.converter": converter,
        "offset.flush.interval.ms": 1000,
        "listeners": f"http://127.0.0.1:{port}",
        **stored,
    }
    worker, path = _Worker(port), applications.file("connect.properties", settings)

    def has_copied(times: int) -> bool:
        return sink.exists() and Counter(sink.read_text().splitlines()) == Counter(
            source.read_text().splitlines() * times
        )

    with applications.running("connect", "org.apache.kafka.connect.cli.ConnectDistributed", path):
        until(worker.answers, "the worker's start")
        reading = {"file": str(source), "topic": "copied", "connector.class": "FileStreamSource"}
        created = {"topic.creation.default.replication.factor": "3", "topic.creation.default.partitions": "2"}
        worker.ask("PUT", "/connectors/reads/config", {**reading, **created, "tasks.max": "1"})
        writing = {"file": str(sink), "topics": "copied", "connector.class": "FileStreamSink"}
        worker.ask("PUT", "/connectors/writes/config", {**writing, "tasks.max": "2"})
        until(lambda: has_copied(1), "the copy")
        worker.ask("PUT", "/connectors/writes/stop")
        until(lambda: worker.state("writes") == "STOPPED", "the sink's stop")
        worker.ask("DELETE", "/connectors/writes/offsets")
        worker.ask("PUT", "/connectors/writes/resume")
        until(lambda: has_copied(2), "the second copy")


# --- MirrorMaker --------------------------------------------------------------------------------------


def mirror_maker_brings_topics_and_groups_of_apache_kafka(applications: Applications) -> None:
    """The records arrive as they were, and the group continues where it was, or a little before."""
    kafka = Kafka(
        applications.directory / "kafka", 1, version=applications.version, jars=jars(applications.version)
    )
    try:
        kafka.start_all()
        _mirror(applications, kafka.bootstrap)
    finally:
        kafka.end_all()


def _mirror(applications: Applications, source: str) -> None:
    bootstrap, time_ms = applications.cluster.bootstrap, wall_clock_ms() - 60_000
    orders = [(b"k%d" % (index % 10), b"order %d" % index) for index in range(_LINES)]
    send(source, "orders", orders, time_ms=time_ms)
    settings = {"group_id": "billing", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with closing(KafkaConsumer("orders", bootstrap_servers=source, **settings)) as consumer:
        for _ in range(_LINES // 2):
            last = next(consumer)
        consumer.commit()
    path = applications.file(
        "mirror.properties",
        {
            "clusters": "old,new",
            "old.bootstrap.servers": source,
            "new.bootstrap.servers": bootstrap,
            "old->new.enabled": "true",
            "topics": "orders",
            "groups": "billing",
            "replication.factor": 1,
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": 1,
            "emit.checkpoints.interval.seconds": 1,
            "refresh.topics.interval.seconds": 2,
            **{f"{what}.storage.replication.factor": 1 for what in ("offset", "config", "status")},
            **{f"{what}.topic.replication.factor": 1 for what in ("checkpoints", "heartbeats")},
            "offset-syncs.topic.replication.factor": 1,
        },
    )
    with applications.running("mirror", "org.apache.kafka.connect.mirror.MirrorMaker", path):
        found = read(bootstrap, "old.orders", lambda records: len(records) >= _LINES)

        with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id="billing")) as consumer:
            mirrored = TopicPartition("old.orders", 0)
            # It knows a few pairs of offsets, and takes the nearest below.
            until(lambda: 0 < (consumer.committed(mirrored) or 0) <= last.offset + 1, "the group's offset")
    assert [each.offset for each in found] == [*range(_LINES)]
    assert [(each.key, each.value) for each in found] == orders
    assert {each.timestamp for each in found} == {time_ms}
    assert all(each.headers == [("of", each.key)] for each in found)


CHECKS: Final[tuple[Check, ...]] = (
    streams_count_words_while_a_broker_dies,
    streams_exactly_once_is_refused_with_the_reason,
    connect_copies_a_file_and_again_from_the_start,
    mirror_maker_brings_topics_and_groups_of_apache_kafka,
)
