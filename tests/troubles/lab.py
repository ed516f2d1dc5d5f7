"""Three broker processes and their store, to be broken and mended; `health` and `why` in this process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logstore.broker import BlockingClient
from logstore.cli.cluster_file import ClusterFailed, LocalCluster, State, existing, write
from logstore.cli.local_cluster import end, launch, send_signal, start, state_of, stop
from logstore.cli.main import run
from logstore.cli.operating import wait_until
from logstore.disk.errors import EngineError

PATIENCE_S = 90.0
"""Nothing takes so long but for a defect; a machine under load may be slow."""
SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "request.timeout.ms": "5000",
}


class Outcome(NamedTuple):
    """How one command line ended; `facts` are its lines with --json."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Trouble:
    """One trouble: how it comes about, what has to be said of it, and the step that ends it.

    `subject`, `says` and `step` are found in the first trouble of `health`, and in one of `why`. `wrong` is
    advice that must not be given. `cure` does what the step says.
    """

    name: str
    cause: Callable[[Lab], None]
    subject: str
    says: str
    step: str
    why: str
    cure: Callable[[Lab], None]
    settings: Mapping[str, str] | None = None
    wrong: tuple[str, ...] = ()
    needs_mount: bool = False
    evidence: str = ""


class Lab:
    """A cluster of three brokers, and what is done to it."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.cluster = _started(directory, {**SETTINGS, **settings})
        self.kept: dict[str, Any] = {}
        """What a cause leaves for its cure."""
        self.closing: list[Callable[[], object]] = []

    def close(self) -> None:
        for each in reversed(self.closing):
            each()
        stop(self.directory, patience_s=0)

    # --- asking -------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The brokers that may answer; all, if none is running."""
        nodes = existing(self.directory).nodes
        awake = [node for node in nodes if state_of(self.directory, node) is State.RUNNING]
        return ",".join(f"127.0.0.1:{node.port}" for node in awake or nodes)

    def run(self, *words: object) -> Outcome:
        """Run a command line in this process."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run([str(word) for word in words])
        return Outcome(code, out.getvalue(), err.getvalue())

    def ask(self, *words: object) -> Outcome:
        """Run a command line that must not fail, over brokers."""
        outcome = self.run(*words, "--bootstrap", self.bootstrap)
        assert outcome.code == 0, outcome
        return outcome

    def health(self) -> list[dict[str, Any]]:
        return self.run("health", "--json", "--watch", 3, "--bootstrap", self.bootstrap).facts

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        assert wait_until(PATIENCE_S, holds), (
            f"{what}: not in {PATIENCE_S:.0f} s; health says {self.health()}"
        )

    def wait_until_sound(self) -> None:
        self.wait_for("nothing is wrong", lambda: not self.health())

    # --- doing --------------------------------------------------------------------------------

    def create(self, topic: str, assignment: str = "", **settings: str) -> None:
        """Create a topic with three replicas, or on the brokers of `assignment`."""
        replicas = ("--replica-assignment", assignment) if assignment else ("--replication-factor", 3)
        configs = [
            word
            for name, value in settings.items()
            for word in ("--config", f"{name.replace('_', '.')}={value}")
        ]
        self.ask("topics", "create", topic, *replicas, *configs, "--wait", 60)
        self.wait_until_sound()

    def append(self, topic: str, *values: bytes) -> None:
        with BlockingClient(self.bootstrap) as client:
            client.append(topic, list(values), timeout=PATIENCE_S)

    def kill(self, *numbers: int) -> None:
        end(self.directory, [f"node-{number}" for number in numbers], patience_s=0)

    def stop(self, *numbers: int) -> None:
        end(self.directory, [f"node-{number}" for number in numbers], patience_s=PATIENCE_S)

    def start(self, *numbers: int) -> None:
        launch(self.directory, [f"node-{number}" for number in numbers], patience_s=PATIENCE_S)

    def pause(self, *numbers: int) -> None:
        for number in numbers:
            send_signal(self.directory, f"node-{number}", signal.SIGSTOP)

    def resume(self, *numbers: int) -> None:
        for number in numbers:
            send_signal(self.directory, f"node-{number}", signal.SIGCONT)

    def home(self, number: int) -> Path:
        return self.directory / f"node-{number}"

    def set(self, **changed: str) -> None:
        """Change settings of brokers that start from now on; names with `_` for dots."""
        cluster = existing(self.directory)
        names = {name.replace("_", "."): value for name, value in changed.items()}
        write(self.directory, replace(cluster, settings={**cluster.settings, **names}))

    def unset(self, name: str) -> None:
        """Take a setting of brokers back."""
        cluster = existing(self.directory)
        write(
            self.directory,
            replace(cluster, settings={k: v for k, v in cluster.settings.items() if k != name}),
        )

    def start_store(self) -> None:
        launch(self.directory, ["metadata"], patience_s=PATIENCE_S)

    def filler(self, number: int) -> Path:
        """A file that takes the room of a broker's disk; brokers leave it alone beside partitions."""
        return self.home(number) / "filler.bin"

    def fill(self, number: int, leaving: int) -> None:
        """Take all room of a broker's disk but this much."""
        status = os.statvfs(self.home(number))
        with self.filler(number).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - leaving)

    def append_until_refused(self, topic: str) -> None:
        """Append until the broker has no room."""
        with BlockingClient(self.bootstrap) as client:
            for _ in range(1000):
                try:
                    client.append(topic, [bytes(100_000)], timeout=3.0)
                except EngineError:
                    return
        raise AssertionError("a full disk takes everything")

    def read(self, topic: str) -> None:
        """Read a partition from its beginning, as far as its leader serves it."""
        offset = 0
        with BlockingClient(self.bootstrap) as client:
            try:
                while records := client.read(topic, 0, offset, timeout=5.0):
                    offset = records[-1].offset + 1
            except EngineError:
                pass  # it is damaged: the broker has noticed

    def leader(self, topic: str) -> int:
        (facts,) = self.ask("topics", "describe", topic, "--json").facts
        return int(facts["leader"])

    def controller(self) -> int:
        facts = self.ask("brokers", "list", "--json").facts
        return next((int(each["broker"]) for each in facts if each["is_controller"]), -1)


def _started(directory: Path, settings: Mapping[str, str]) -> LocalCluster:
    """Start three brokers; again with other ports if another program has taken one meanwhile."""
    while True:
        try:
            return start(directory, 3, settings, patience_s=PATIENCE_S)
        except ClusterFailed as error:
            if "Address already in use" not in str(error):
                raise
            (directory / "cluster.json").unlink()


@contextmanager
def lab(
    directory: Path, settings: Mapping[str, str] | None = None, *, small_disk: bool = False
) -> Iterator[Lab]:
    """Whatever is left running is ended. With `small_disk`, broker 3 has a file system of 64 MiB."""
    with ExitStack() as stack:
        if small_disk:
            home = directory / "node-3"
            home.mkdir(parents=True)
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={64 << 20}", "tmpfs", str(home)], check=False
            )
            if mounted.returncode:
                pytest.skip("a small file system needs the permission to mount (root)")
            stack.callback(subprocess.run, ["umount", "-l", str(home)], check=True)
        made = Lab(directory, settings or {})
        stack.callback(made.close)
        yield made
