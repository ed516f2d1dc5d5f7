"""Brokers as users run them: each a process, around one metadata store, on the loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from logstore.broker.limits import parse_address
from logstore.broker.wire import types as t
from tests.broker.asking import Asker
from tests.metadata_server import served

DEADLINE_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "50",
    "controlled.shutdown.retry.backoff.ms": "100",
    "group.initial.rebalance.delay.ms": "100",
    # The fewest that still spread over three brokers.
    "offsets.topic.num.partitions": "6",
    # Every five minutes leadership would go back by itself, perhaps in the middle of a test of just that.
    "auto.leader.rebalance.enable": "false",
}


class _Process:
    """One broker's process; it listens on the same port each time it is started."""

    def __init__(self, node_id: int, directory: Path, store_url: str, settings: Mapping[str, str]) -> None:
        self.address = "127.0.0.1:0"
        self._errors = directory / f"broker-{node_id}.err"
        self._process: subprocess.Popen[str] | None = None
        self._node_id, self._url = node_id, store_url
        self.log_dirs = [str(directory / f"data-{node_id}"), str(directory / f"data-{node_id}-2")]
        self._settings = settings

    def start(self) -> None:
        assert self._process is None, "already running"
        command = [
            *([keeper, "--pdeathsig", "KILL"] if (keeper := shutil.which("setpriv")) else []),
            *(sys.executable, "-m", "logstore.cli.main", "serve", "--node-id", str(self._node_id)),
            *("--listen", self.address, "--log-dirs", ",".join(self.log_dirs), "--metadata", self._url),
            *(part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")),
        ]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def wait_until_ready(self) -> None:
        assert self._process is not None, "started"
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()[-2000:]
        ready = json.loads(line)
        self.address = f"{ready['host']}:{ready['port']}"

    def check(self) -> None:
        """Fail, with its last words, if it has ended by itself."""
        code = self._process.poll() if self._process is not None else None
        assert code is None, f"{self.address} ended with {code}: {self._errors.read_text()[-2000:]}"

    def end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        assert process.stdout is not None
        process.stdout.close()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(DEADLINE_S)
            raise


class Cluster:
    """What clients know of it, and what may befall its brokers. Made by `running`."""

    def __init__(self, processes: Mapping[int, _Process]) -> None:
        self._processes = processes
        self.turns = 0
        """How often a broker was stopped, killed or started."""

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids, in order."""
        return tuple(self._processes)

    @property
    def addresses(self) -> dict[int, str]:
        """`host:port` of each broker; the same after it was started again."""
        return {node_id: process.address for node_id, process in self._processes.items()}

    @property
    def log_dirs(self) -> dict[int, list[str]]:
        """The log dirs of each broker."""
        return {node_id: process.log_dirs for node_id, process in self._processes.items()}

    @property
    def bootstrap(self) -> str:
        """What clients are given as `bootstrap.servers`."""
        return ",".join(self.addresses.values())

    def check(self) -> None:
        """Fail if a broker has ended by itself."""
        for process in self._processes.values():
            process.check()

    def knows(self, topic: str, partitions: int, in_sync: int | None = None) -> bool:
        """Whether each running broker tells clients of so many partitions, with so many (or all) in sync."""
        return asyncio.run(self._knows(topic, partitions, in_sync))

    def is_settled(self) -> bool:
        """Whether every running broker tells clients of just those that run, one of them the controller."""
        return asyncio.run(self._is_settled())

    async def _is_settled(self) -> bool:
        running = {node_id for node_id, process in self._processes.items() if process.is_running}
        for node_id in running:
            async with Asker(parse_address(self.addresses[node_id])) as client:
                found = await client.ask(t.MetadataRequest(topics=[]), 12)
            told = {each.node_id for each in found.brokers}
            if told != running or found.controller_id not in running:
                return False
        return True

    async def _knows(self, topic: str, partitions: int, in_sync: int | None) -> bool:
        for process in self._processes.values():
            if not process.is_running:
                continue
            async with Asker(parse_address(process.address)) as client:
                wanted = [t.MetadataRequestTopic(name=topic)]
                request = t.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
                (found,) = (await client.ask(request, 12)).topics
            if len(found.partitions) != partitions:
                return False
            for each in found.partitions:
                wanted_in_sync = len(each.replica_nodes) if in_sync is None else in_sync
                if each.leader_id < 0 or len(each.isr_nodes) != wanted_in_sync:
                    return False
        return True

    def stop(self, node_id: int) -> None:
        """In order: its partitions move before it ends."""
        self.turns += 1
        self._processes[node_id].end(signal.SIGTERM)

    def kill(self, node_id: int) -> None:
        self.turns += 1
        self._processes[node_id].end(signal.SIGKILL)

    def start(self, node_id: int) -> None:
        """Start it again, and wait until it is registered."""
        self.turns += 1
        self._processes[node_id].start()
        self._processes[node_id].wait_until_ready()


@contextmanager
def running(
    size: int, directory: Path, settings: Mapping[str, str] | None = None, *, first_id: int = 1
) -> Iterator[Cluster]:
    """A cluster of `size` brokers with ids from `first_id` on, whose data and logs lie in `directory`."""
    given = {**_SETTINGS, "offsets.topic.replication.factor": str(size), **(settings or {})}
    with served() as port:
        processes = {
            node_id: _Process(node_id, directory, f"zookeeper://127.0.0.1:{port}/kafka", given)
            for node_id in range(first_id, first_id + size)
        }
        try:
            for process in processes.values():
                process.start()
            for process in processes.values():
                process.wait_until_ready()
            yield Cluster(processes)
        finally:
            for process in processes.values():
                process.end(signal.SIGTERM)
