"""The file of a local cluster: its processes, ports and settings, and the locks of its writers."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from logstore.cli.certs import write_secret
from logstore.disk.errors import EngineError, ErrorCode

FILE: Final = "cluster.json"
STORE: Final = "metadata"
SUPERVISOR: Final = "supervisor"
_LOCK: Final = "cluster.lock"
_STARTING: Final = "cluster.starting"


class ClusterFailed(EngineError):
    """The cluster cannot be started or stopped; the message includes the remedy."""

    code = ErrorCode.BROKER_NOT_AVAILABLE


class State(StrEnum):
    """The state of a member's process. A paused one (SIGSTOP) exists and answers no request."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Member:
    """A process: the store or a broker. `pid` 0: it is not running.

    `brokers_port` is the port on which the brokers of a secured cluster talk to each other, 0 without.
    `stays_down`: it was stopped or killed by a command, so the supervisor does not start it. `settings` are
    of this broker alone, and take the place of the cluster's.
    """

    name: str
    port: int
    http_port: int = 0
    pid: int = 0
    brokers_port: int = 0
    stays_down: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The content of `cluster.json`. `store` is None if the metadata store is an external one.

    `supervisor` is None if members that die are not restarted.
    """

    metadata: str
    store: Member | None
    nodes: tuple[Member, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    supervisor: Member | None = None
    console: str = ""
    """The option by which each broker serves the console; empty without."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def is_secured(self) -> bool:
        return any(node.brokers_port for node in self.nodes)

    @property
    def members(self) -> tuple[Member, ...]:
        """The store and the brokers, in the order in which they start."""
        return self.nodes if self.store is None else (self.store, *self.nodes)

    @property
    def processes(self) -> tuple[Member, ...]:
        """All of them, the supervisor too."""
        return self.members if self.supervisor is None else (*self.members, self.supervisor)

    def with_member(self, member: Member) -> LocalCluster:
        """Return a copy with `member` in place of the one with its name."""
        if member.name == STORE:
            return replace(self, store=member)
        return replace(self, nodes=tuple(member if each.name == member.name else each for each in self.nodes))


def read_cluster_file(directory: Path) -> LocalCluster | None:
    """Return the cluster in a directory; None if there is none. Raises `ClusterFailed` for a bad file."""
    try:
        found = json.loads((directory / FILE).read_text())
        nodes = tuple(Member(**each) for each in found["nodes"])
        store = Member(**found["store"]) if found["store"] is not None else None
        supervisor = Member(**found["supervisor"]) if found.get("supervisor") is not None else None
        console = found.get("console", "")
        return LocalCluster(found["metadata"], store, nodes, found["settings"], supervisor, console)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterFailed(
            f"{directory / FILE} is invalid ({error}). End its processes, remove it, and start the cluster "
            "again: the directories keep their data, and new ports are chosen"
        ) from error


def existing(directory: Path) -> LocalCluster:
    """Return the cluster in a directory. Raises `ClusterFailed` if there is none."""
    cluster = read_cluster_file(directory)
    if cluster is None:
        raise ClusterFailed(f"no cluster in {directory}")
    return cluster


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of the cluster file. Not to be taken twice by one process."""
    existing(directory)
    with (directory / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep other starts and stops of the cluster out. Raises `ClusterFailed` if there is one."""
    with (directory / _STARTING).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterFailed(
                f"another logstore cluster start or stop of {directory} has not ended yet: wait for it, or "
                "interrupt it"
            ) from error
        yield


def write(directory: Path, cluster: LocalCluster) -> None:
    """Replace the cluster file; only its owner may read it."""
    write_secret(directory / FILE, (json.dumps(asdict(cluster), indent=2) + "\n").encode())
