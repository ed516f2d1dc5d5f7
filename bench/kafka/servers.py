"""Clusters of ours and of Apache Kafka's: each broker is a process, on free loopback ports.

    ours    `logstore serve`, one process a broker; with three brokers a metadata store beside them
    Kafka   KRaft; one broker is its own controller, three have a process with the controller beside them

Processes end with the one that started them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench.kafka import asking
from logstore.cli.ports import free_ports

SESSION_MS: Final = 6_000
"""How long a broker may be silent before others take its place; the same for both."""
DEADLINE_S: Final = 300.0
_ROOT: Final = Path(__file__).parents[2]
_CLUSTER_ID: Final = "bG9nc3RvcmUtYmVuY2gxMg"
_CONTROLLER: Final = 100

# The JVM options of `kafka-server-start.sh`.
_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)


def free_port() -> int:
    return free_ports(1)[0]


def eventually(
    holds: Callable[[], bool], what: str, *, every_s: float = 0.01, within_s: float = DEADLINE_S
) -> None:
    """Wait until `holds`; an `OSError` counts as no. Raises `TimeoutError`."""
    end = time.monotonic() + within_s
    while True:
        try:
            if holds():
                return
        except OSError as error:
            last: OSError | None = error
        else:
            last = None
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s") from last
        time.sleep(every_s)


class Servers(ABC):
    """The processes of one cluster. Broker ids count from 1."""

    name: str
    settings: Mapping[str, str] = MappingProxyType({})
    """Settings of the brokers, beside those of `start`."""
    zookeeper: str = ""
    """`host:port/chroot` of a ZooKeeper server that is to be the metadata store; empty: one of their own."""
    dirs_each: int = 1
    """Log dirs of a broker."""
    more_listeners: Sequence[str] = ()
    """Listeners beside the plain one, of a cluster of one broker: `NAME://127.0.0.1:PORT`."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory, self.count = directory, count
        self.ports = {number: free_port() for number in range(1, count + 1)}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def start(self, number: int) -> None:
        """Start a broker; returns before it serves."""

    @abstractmethod
    def start_others(self) -> None:
        """Start what the brokers need beside them, if anything."""

    def listeners(self, number: int) -> str:
        return ",".join([f"PLAINTEXT://127.0.0.1:{self.ports[number]}", *self.more_listeners])

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def broker_pids(self) -> list[int]:
        return [each.pid for name, each in self._running.items() if name.startswith("broker-")]

    @property
    def pids(self) -> list[int]:
        """All processes, with the metadata store's or the controller's."""
        return [each.pid for each in self._running.values()]

    def start_all(self) -> None:
        """Start everything; returns when every broker lists all of them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.start_others()
        for number in self.ports:
            self.start(number)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        for number in self.ports:
            self.wait_until_ready(number)

    def wait_until_ready(self, number: int) -> None:
        """Wait until the broker lists all brokers."""
        eventually(lambda: self._lists_all(number), f"{self.name} broker {number} lists {self.count} brokers")

    def _lists_all(self, number: int) -> bool:
        process = self._running[f"broker-{number}"]
        if process.poll() is not None:
            raise RuntimeError(
                f"{self.name} broker {number} has ended: see {self.directory}/broker-{number}.err"
            )
        return len(asking.brokers(self.ports[number])[0]) == self.count

    def log_dirs(self, number: int) -> list[Path]:
        """Return the log dirs of a broker."""
        return [self.directory / f"data-{number}{'b' * index}" for index in range(self.dirs_each)]

    def is_running(self, number: int) -> bool:
        return f"broker-{number}" in self._running

    def send(self, number: int, how: signal.Signals) -> None:
        """Send a signal that does not end a broker."""
        self._running[f"broker-{number}"].send_signal(how)

    def end(self, number: int, how: signal.Signals) -> None:
        """Stop or kill a broker, and wait for its end."""
        self._end(f"broker-{number}", how)

    def end_all(self) -> None:
        """Kill everything that still runs."""
        for name in list(self._running):
            self._end(name, signal.SIGKILL)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._running.pop(name)
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _run(self, name: str, command: Sequence[str]) -> None:
        leash = [keeper, "--pdeathsig", "KILL"] if (keeper := shutil.which("setpriv")) else []
        with (self.directory / f"{name}.err").open("ab") as errors:
            self._running[name] = subprocess.Popen(
                [*leash, *command], stdout=errors, stderr=errors, cwd=_ROOT
            )


class Ours(Servers):
    """`logstore serve` on this interpreter."""

    name = "ours"
    program = "logstore.cli.main"

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory, count)
        self._store_port = free_port()

    def start_others(self) -> None:
        if self.count > 1 and not self.zookeeper:
            command = ["metadata-store", str(self.directory / "store")]
            self._logstore("store", *command, "--listen", f"127.0.0.1:{self._store_port}")

    def start(self, number: int) -> None:
        store = self.zookeeper or f"127.0.0.1:{self._store_port}"
        metadata = f"zookeeper://{store}" if self.zookeeper or self.count > 1 else "embedded"
        settings = {
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.num.partitions": "6",
            "group.initial.rebalance.delay.ms": "0",
            **self.settings,
        }
        self._logstore(
            f"broker-{number}",
            *("serve", "--node-id", str(number), "--set", f"listeners={self.listeners(number)}"),
            *("--log-dirs", ",".join(map(str, self.log_dirs(number))), "--metadata", metadata),
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
        )

    def _logstore(self, name: str, *arguments: str) -> None:
        self._run(name, [sys.executable, "-m", self.program, *arguments])


class Kafka(Servers):
    """Apache Kafka of a version whose jars are in a directory."""

    jvm: Sequence[str] = _JVM

    def __init__(self, directory: Path, count: int, *, version: str, jars: Path) -> None:
        super().__init__(directory, count)
        self.name = f"Kafka {version}"
        self._classpath = f"{jars}/*"
        self._controller_port = free_port()

    def start_others(self) -> None:
        if self.count > 1 and not self.zookeeper:
            listener = f"CONTROLLER://127.0.0.1:{self._controller_port}"
            own = {"process.roles": "controller", "listeners": listener}
            own["log.dirs"] = str(self.directory / "data-controller")
            self._format_and_run("controller", _CONTROLLER, own)

    def start(self, number: int) -> None:
        listeners = self.listeners(number)
        own = {"listeners": listeners, "advertised.listeners": listeners}
        own["log.dirs"] = ",".join(map(str, self.log_dirs(number)))
        if self.zookeeper:
            self._run_on_zookeeper(number, own)
            return
        own["process.roles"] = "broker"
        if self.count == 1:
            controller = f"CONTROLLER://127.0.0.1:{self._controller_port}"
            own |= {"process.roles": "broker,controller", "listeners": f"{listeners},{controller}"}
        self._format_and_run(f"broker-{number}", number, own)

    def _run_on_zookeeper(self, number: int, own: Mapping[str, str]) -> None:
        settings = {
            "broker.id": str(number),
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **self.settings,
            **own,
        }
        self._run_java(f"broker-{number}", self._properties(f"broker-{number}", settings))

    def _format_and_run(self, name: str, node_id: int, own: Mapping[str, str]) -> None:
        voter = _CONTROLLER if self.count > 1 else 1
        settings = {
            "node.id": str(node_id),
            "controller.quorum.voters": f"{voter}@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "broker.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.num.partitions": "6",
            "offsets.topic.replication.factor": str(min(3, self.count)),
            "group.initial.rebalance.delay.ms": "0",
            **self.settings,
            **own,
        }
        is_new = not (self.directory / f"{name}.properties").exists()
        file = self._properties(name, settings)
        if is_new:
            java = ["java", "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
            command = [*java, "-t", _CLUSTER_ID, "-c", str(file)]
            subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        self._run_java(name, file)

    def _properties(self, name: str, settings: Mapping[str, str]) -> Path:
        file = self.directory / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return file

    def _run_java(self, name: str, properties: Path) -> None:
        self._run(name, ["java", *self.jvm, "-cp", self._classpath, "kafka.Kafka", str(properties)])
