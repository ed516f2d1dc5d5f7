"""One broker at a time on one log dir: ours, or Apache Kafka 3.9 in ZooKeeper mode. The metadata store stays.

    store    `logstore metadata-store`
    ours     `logstore serve --config server.properties`
    kafka    `kafka.Kafka server.properties`

Both read the same settings and serve at the same address, so a client does not see who it is.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from bench.kafka.jars import jars
from bench.kafka.servers import Servers, eventually, free_port

RELEASE: Final = "3.9.1"
BROKER: Final = 1
LOGSTORE: Final = (sys.executable, "-m", "logstore.cli.main")
_COMMON: Final = {
    "broker.id": str(BROKER),
    "zookeeper.session.timeout.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
_OF_KAFKA: Final = {
    "log.initial.task.delay.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class Owner(Enum):
    """The program that serves the directory."""

    OURS = "ours"
    KAFKA = "kafka"


class Machine(Servers):
    """The processes; `owner` is what `start` starts. Raises `Missing` without Java or the jars."""

    name = "the machine"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 1)
        self.owner = Owner.OURS
        self.log_dir = directory / "data"
        self._classes = jars(RELEASE)
        self._store = f"127.0.0.1:{free_port()}"

    def start_others(self) -> None:
        """Start the metadata store."""
        store = str(self.directory / "store")
        self._run("store", [*LOGSTORE, "metadata-store", store, "--listen", self._store])

    def start(self, number: int) -> None:
        """Start the owner, once the session of the one before it is over: Kafka does not wait for that."""
        eventually(self._is_free, "the end of the last broker's session")
        settings = {
            **_COMMON,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[number]}",
            "zookeeper.connect": self._store,
            "log.dirs": str(self.log_dir),
            **(_OF_KAFKA if self.owner is Owner.KAFKA else {}),
        }
        file = self.directory / f"{self.owner.value}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", "-Xmx512M", "-XX:TieredStopAtLevel=1", "-cp", f"{self._classes}/*", "kafka.Kafka"]
        command = java if self.owner is Owner.KAFKA else [*LOGSTORE, "serve", "--config"]
        self._run(f"broker-{number}", [*command, str(file)])

    def _is_free(self) -> bool:
        client = KazooClient(self._store, timeout=2)
        client.start(timeout=60)
        try:
            return client.exists(f"/brokers/ids/{BROKER}") is None
        finally:
            client.stop()
            client.close()
