"""Rounds of kill -9 and SIGSTOP at three brokers in three processes, with clients at work all the while.

    leader      kill -9 of the leader of partition 0          two        two brokers, one after the other
    controller  kill -9 of the controller                     pause      SIGSTOP of a leader for longer than
    follower    kill -9 of a broker that leads no partition 0            its session, then SIGCONT
    store       kill -9 of the metadata store (ours only)
    renew       new certificates for all brokers, which run on (a secured cluster only)

A round begins with all replicas in sync and ends with all in sync again. Measured: how long a partition was
without a leader that another broker knows of, from the fault on.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cryptography import x509

from logstore.broker import Client
from logstore.broker.limits import Address
from logstore.cli.certs import make_certificates
from logstore.cli.cluster_file import LocalCluster, read_cluster_file
from logstore.cli.local_cluster import launch, send_signal, start, stop
from logstore.disk.errors import EngineError
from logstore.replication.messages import MetadataRequest, MetadataResponse
from tests.access import Access, access_to
from tests.kill9.verdict import violations
from tests.kill9.workload import TOPIC, Workload

SESSION_MS = 3_000
PARTITIONS = 6
NODES = 3
RENEW = "renew"
FAULTS = ("leader", "controller", "follower", "two", "pause", "store")
PATIENCE_S = 120.0
"""Nothing takes so long but for a defect; a machine under load may be slow."""
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.backoff.ms": "100",
    "request.timeout.ms": "5000",
    "group.initial.rebalance.delay.ms": "500",
}


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one: `without_leader_s` at the worst partition."""

    number: int
    fault: str
    victims: str
    without_leader_s: float
    whole_again_s: float


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one broker tells it."""

    controller: int
    leaders: dict[int, int]
    isrs: dict[int, list[int]]
    brokers: set[int]


class Campaign:
    """One cluster and its clients. `tell_of` gets each round as it ends."""

    def __init__(
        self,
        directory: Path,
        *,
        metadata: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
        is_secured: bool = False,
    ) -> None:
        self.directory = directory
        self.cluster: LocalCluster = start(
            directory,
            NODES,
            {**SETTINGS, **settings},
            patience_s=PATIENCE_S,
            metadata=metadata,
            is_secured=is_secured,
        )
        self.access = access_to(self.cluster, directory)
        self._down: set[int] = set()

    def close(self) -> None:
        for number in range(1, NODES + 1):
            send_signal(self.directory, f"node-{number}", signal.SIGCONT)
        stop(self.directory, patience_s=30.0)

    # --- looking ------------------------------------------------------------------------------

    def view(self) -> View | None:
        """What the first broker that answers knows; None if none does."""
        return next((view for number in range(1, NODES + 1) if (view := self._view_of(number))), None)

    def _view_of(self, number: int) -> View | None:
        if number in self._down:
            return None
        try:
            return asyncio.run(_view(Address("127.0.0.1", self.cluster.nodes[number - 1].port), self.access))
        except EngineError:
            return None

    def wait_until_whole(self) -> None:
        """Until every broker says that everybody is in sync: one that was paused knows old things."""
        self.wait_for(
            "all replicas in sync",
            lambda _: all(
                view is not None and self.is_whole(view) for view in map(self._view_of, range(1, NODES + 1))
            ),
        )

    def wait_for(self, what: str, holds: Callable[[View], bool]) -> float:
        """Until a broker tells so; the seconds that it took."""
        began_s = time.monotonic()
        while True:
            view = self.view()
            if view is not None and holds(view):
                return time.monotonic() - began_s
            assert time.monotonic() - began_s < PATIENCE_S, f"{what} did not happen; last seen: {view}"
            time.sleep(0.02)

    def is_whole(self, view: View) -> bool:
        return (
            len(view.brokers) == NODES
            and len(view.leaders) == PARTITIONS
            and all(len(isr) == NODES for isr in view.isrs.values())
            and all(leader > 0 for leader in view.leaders.values())
        )

    def is_led_elsewhere(self, view: View) -> bool:
        """Whether every partition has a leader, and none that is down."""
        return len(view.leaders) == PARTITIONS and all(
            leader > 0 and leader not in self._down for leader in view.leaders.values()
        )

    # --- faults -------------------------------------------------------------------------------

    def round(self, number: int, fault: str) -> Round:
        """Inject it, see it overcome, mend what it broke."""
        view = self.view()
        assert view is not None
        victims = self._victims(fault, view)
        if fault == RENEW:
            self._renew()
        without_s = 0.0
        for victim in victims:
            without_s = max(without_s, self._strike(fault, victim))
        began_s = time.monotonic()
        self._mend(fault, victims)
        self.wait_until_whole()
        return Round(number, fault, ", ".join(map(str, victims)), without_s, time.monotonic() - began_s)

    def _renew(self) -> None:
        """Replace the brokers' certificate, and wait until each presents the new one on both listeners."""
        [store] = make_certificates(self.directory / "tls", {"broker": ["localhost", "127.0.0.1"]})
        new = x509.load_pem_x509_certificate(store.read_bytes()).serial_number
        context = ssl._create_unverified_context()
        ports = [port for node in self.cluster.nodes for port in (node.port, node.brokers_port)]
        began_s = time.monotonic()
        while ports:
            assert time.monotonic() - began_s < PATIENCE_S, f"ports {ports} present the former certificate"
            if _serial(ports[0], context) == new:
                ports.pop(0)
            else:
                time.sleep(0.05)

    def _victims(self, fault: str, view: View) -> list[int | str]:
        leader = view.leaders[0]
        others = [number for number in range(1, NODES + 1) if number != leader]
        match fault:
            case "leader" | "pause":
                return [leader]
            case "controller":
                return [view.controller]
            case "follower":
                return [next((each for each in others if each != view.controller), others[0])]
            case "two":
                return [leader, others[0]]
            case "store":
                return ["metadata"]
        assert fault == RENEW
        return []

    def _strike(self, fault: str, victim: int | str) -> float:
        """The seconds until every partition is led by somebody else than the victim."""
        if isinstance(victim, str):
            send_signal(self.directory, victim, signal.SIGKILL)
            return 0.0
        name = f"node-{victim}"
        send_signal(self.directory, name, signal.SIGSTOP if fault == "pause" else signal.SIGKILL)
        self._down.add(victim)
        taken_s = self.wait_for("another leader", self.is_led_elsewhere)
        if fault == "two":  # in turn: the first is back before the second goes
            self._mend(fault, [victim])
            self.wait_until_whole()
        return taken_s

    def _mend(self, fault: str, victims: list[int | str]) -> None:
        names = []
        for victim in victims:
            if isinstance(victim, str):
                names.append(victim)
            elif victim in self._down:
                self._down.discard(victim)
                if fault == "pause":
                    send_signal(self.directory, f"node-{victim}", signal.SIGCONT)
                else:
                    names.append(f"node-{victim}")
        if names:
            launch(self.directory, names, patience_s=PATIENCE_S)
            found = read_cluster_file(self.directory)
            assert found is not None
            self.cluster = found


def _serial(port: int, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that this port presents."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as tls:
        presented = tls.getpeercert(binary_form=True)
        assert presented is not None
        return x509.load_der_x509_certificate(presented).serial_number


async def _view(address: Address, access: Access) -> View:
    async with Client([address], security=access.ours, timeout_s=2) as client:
        answer = await client.ask(address, MetadataRequest((TOPIC,)))
        assert isinstance(answer, MetadataResponse)
        partitions = {each.partition: found for each, found in answer.partitions.items()}
        return View(
            answer.controller_id,
            {number: each.leader for number, each in partitions.items()},
            {number: [*each.isr] for number, each in partitions.items()},
            {each.broker_id for each in answer.brokers},
        )


def create_topic(access: Access) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient(access.librdkafka)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])[TOPIC].result(60)


def wait_for_clients(workload: Workload) -> None:
    """Until records of each partition are consumed."""
    began_s = time.monotonic()
    while len(workload.consumed_up_to()) < PARTITIONS:
        assert not workload.seen.failures, workload.seen.failures
        assert time.monotonic() - began_s < PATIENCE_S, "nothing is consumed"
        time.sleep(0.05)


def consume_all(workload: Workload, log: dict[int, dict[int, bytes]]) -> None:
    """Let the consumers come to the end of the log, and stop them; the verdict says what is missing."""
    ends = {partition: max(records, default=-1) + 1 for partition, records in log.items()}
    began_s = time.monotonic()
    while workload.consumed_up_to() != ends:
        if time.monotonic() - began_s > PATIENCE_S:
            break
        time.sleep(0.1)
    workload.stop_consuming(PATIENCE_S)


def read_all(access: Access) -> dict[int, dict[int, bytes]]:
    """Everything that is committed, by partition and offset, read anew."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            **access.librdkafka,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}
    unread = set(found)
    try:
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in found])
        deadline_s = time.monotonic() + PATIENCE_S
        while unread:
            assert time.monotonic() < deadline_s, f"the ends of partitions {unread} are not reached"
            for record in consumer.consume(1000, 1.0):
                partition, offset, value = record.partition(), record.offset(), record.value()
                assert partition is not None
                if (error := record.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    unread.discard(partition)
                    continue
                assert offset is not None
                assert isinstance(value, bytes)
                found[partition][offset] = value
    finally:
        consumer.close()
    return found


@contextmanager
def campaign(directory: Path, *, metadata: str = "", is_secured: bool = False) -> Iterator[Campaign]:
    running = Campaign(directory, metadata=metadata, is_secured=is_secured)
    try:
        yield running
    finally:
        running.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    acknowledged: int
    consumed: int
    violations: list[str]
    raised: int
    """how often librdkafka raised its producer epoch"""


def run(
    directory: Path,
    faults: list[str],
    *,
    metadata: str = "",
    is_secured: bool = False,
    tell_of: Callable[[Round], None] = lambda each: None,
) -> Outcome:
    """Carry out these faults, one a round, and judge."""
    with campaign(directory, metadata=metadata, is_secured=is_secured) as running:
        create_topic(running.access)
        running.wait_until_whole()
        workload = Workload(running.access, PARTITIONS)
        wait_for_clients(workload)
        for number, fault in enumerate(faults, 1):
            tell_of(running.round(number, fault))
        return judged(workload, running.access)


def judged(workload: Workload, access: Access) -> Outcome:
    """Stop the clients, and hold what they saw against the logs."""
    workload.stop_producing(PATIENCE_S)
    log = read_all(access)
    consume_all(workload, log)
    seen = workload.seen
    return Outcome(
        sum(map(len, seen.acknowledged.values())),
        sum(map(len, seen.consumed.values())),
        violations(seen, log),
        len(seen.raised),
    )


def conclude(violations: Sequence[object], home: str) -> None:
    """Print the first violations and keep the cluster's directory; without any, remove the directory."""
    for violation in violations[:50]:
        print(f"  {violation}", flush=True)
    if violations:
        print(f"  logs and messages of the brokers are kept in {home}", flush=True)
    else:
        shutil.rmtree(home)
