"""Some brokers and their metadata store, as processes of this host: what `logstore cluster` starts and stops.

    DIR/cluster.json             what runs: ports and process ids, of the store and of each broker
    DIR/metadata/                the store's journal and snapshot
    DIR/node-<n>/                a broker's log dir
    DIR/node-<n>.out, .err       what it said when it was ready, and after
    DIR/node-<n>.state-changes   its decisions

The processes outlive the command. Ports are chosen at the first start and kept.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

FILE = "cluster.json"
_STORE = "metadata"
_POLL_S = 0.02


class ClusterFailed(Exception):
    """It cannot be started or stopped; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process: the store, or a broker. `pid` 0: it does not run."""

    name: str
    port: int
    http_port: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """What `cluster.json` says. `store` is None where the metadata store is somebody else's."""

    metadata: str
    store: Member | None
    nodes: tuple[Member, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order in which they start."""
        return self.nodes if self.store is None else (self.store, *self.nodes)

    def with_member(self, member: Member) -> LocalCluster:
        """`member` in the place of the one with its name."""
        if member.name == _STORE:
            return replace(self, store=member)
        return replace(self, nodes=tuple(member if each.name == member.name else each for each in self.nodes))


def read_cluster_file(directory: Path) -> LocalCluster | None:
    """None if there never was one. Raises `ClusterFailed` for a file that makes no sense."""
    try:
        found = json.loads((directory / FILE).read_text())
        nodes = tuple(Member(**each) for each in found["nodes"])
        store = Member(**found["store"]) if found["store"] is not None else None
        return LocalCluster(found["metadata"], store, nodes, found["settings"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterFailed(f"{directory / FILE} makes no sense ({error}); remove it") from error


def start(
    directory: Path, count: int, settings: Mapping[str, str], *, patience_s: float, metadata: str = ""
) -> LocalCluster:
    """Start all of it, and wait until it is ready; over the store at `metadata`, or over one of its own.

    Raises `ClusterFailed`; then nothing runs.
    """
    cluster = read_cluster_file(directory)
    if cluster is not None and any(is_running(directory, member) for member in cluster.members):
        raise ClusterFailed(f"a cluster runs there; stop it first: logstore cluster stop {directory}")
    if cluster is not None and len(cluster.nodes) != count:
        raise ClusterFailed(f"{directory} has a cluster of {len(cluster.nodes)} brokers; start as many")
    directory.mkdir(parents=True, exist_ok=True)
    cluster = cluster or _planned(count, metadata)
    _write(directory, replace(cluster, settings={**cluster.settings, **settings}))
    try:
        if cluster.store is not None:
            launch(directory, [cluster.store.name], patience_s=patience_s)
        return launch(directory, [node.name for node in cluster.nodes], patience_s=patience_s)
    except BaseException:
        stop(directory, patience_s=0)
        raise


def launch(directory: Path, names: Sequence[str], *, patience_s: float) -> LocalCluster:
    """Start these members of a cluster, and wait until they are ready. Raises `ClusterFailed`."""
    cluster = _existing(directory)
    for member in [each for each in cluster.members if each.name in names]:
        cluster = cluster.with_member(_launched(directory, cluster, member))
        _write(directory, cluster)
    _wait_for(directory, [each for each in cluster.members if each.name in names], patience_s)
    return cluster


def tell(directory: Path, name: str, number: signal.Signals) -> None:
    """Send a member of the cluster a signal, if it runs."""
    for member in _existing(directory).members:
        if member.name == name:
            _signal(directory, member, number)


def stop(directory: Path, *, patience_s: float) -> list[str]:
    """End brokers in order, then the store; who did not end in time is killed, and named.

    Raises `ClusterFailed` if there is no cluster.
    """
    cluster = _existing(directory)
    killed = _end(directory, cluster.nodes, patience_s)
    if cluster.store is not None:
        killed += _end(directory, [cluster.store], patience_s)
    for member in cluster.members:
        cluster = cluster.with_member(replace(member, pid=0))
    _write(directory, cluster)
    return killed


def _existing(directory: Path) -> LocalCluster:
    cluster = read_cluster_file(directory)
    if cluster is None:
        raise ClusterFailed(f"there is no cluster in {directory}")
    return cluster


def is_running(directory: Path, member: Member) -> bool:
    """Whether the process is there, and still the one that was started."""
    if member.pid <= 0:
        return False
    try:
        os.waitpid(member.pid, os.WNOHANG)  # a child of ours that has ended keeps its number until then
    except ChildProcessError:
        pass
    try:
        os.kill(member.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    try:  # a number may have been given to somebody else
        command = Path(f"/proc/{member.pid}/cmdline").read_bytes()
        state = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True  # no /proc here: the number must do
    # One that is just being started has no command line yet.
    return state != "Z" and (not command or str(_home(directory, member)).encode() in command)


# --- processes ----------------------------------------------------------------------------------


def _planned(count: int, metadata: str) -> LocalCluster:
    ports = _free_ports(1 + 2 * count)
    nodes = tuple(
        Member(f"node-{number}", ports[2 * number - 1], ports[2 * number]) for number in range(1, count + 1)
    )
    if metadata:
        return LocalCluster(metadata, None, nodes)
    return LocalCluster(f"zookeeper://127.0.0.1:{ports[0]}", Member(_STORE, ports[0]), nodes)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _defaults(count: int) -> dict[str, str]:
    """What suits a few brokers that start and stop together, where nothing else is said."""
    return {
        "offsets.topic.replication.factor": str(min(count, 3)),
        "controlled.shutdown.retry.backoff.ms": "200",
        "zookeeper.session.timeout.ms": "6000",
    }


def _home(directory: Path, member: Member) -> Path:
    return directory.resolve() / member.name


def _launched(directory: Path, cluster: LocalCluster, member: Member) -> Member:
    home = _home(directory, member)
    command = [sys.executable, "-m", "logstore.cli.main"]
    if member.name == _STORE:
        command += ["metadata-store", str(home), "--listen", f"127.0.0.1:{member.port}"]
    else:
        command += ["serve", "--node-id", member.name.rpartition("-")[2], "--log-dirs", str(home)]
        command += ["--listen", f"127.0.0.1:{member.port}", "--http", f"127.0.0.1:{member.http_port}"]
        command += ["--metadata", cluster.metadata, "--state-change-log", f"{home}.state-changes"]
        for name, value in {**_defaults(len(cluster.nodes)), **cluster.settings}.items():
            command += ["--set", f"{name}={value}"]
    new, more = os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Not `subprocess`: that wants to see its children end, and these outlive us.
    pid = os.posix_spawn(
        sys.executable,
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{home}.out", new, 0o644),
            (os.POSIX_SPAWN_OPEN, 2, f"{home}.err", more, 0o644),
        ],
        setsid=True,
    )
    return replace(member, pid=pid)


def _wait_for(directory: Path, members: Sequence[Member], patience_s: float) -> None:
    """Until each has said that it is ready."""

    def are_ready() -> bool:
        for member in members:
            if not is_running(directory, member):
                raise ClusterFailed(f"{member.name} ended: {_last_words(directory, member)}")
        return all(_has_spoken(directory, member) for member in members)

    if not _until(are_ready, patience_s):
        late = [member.name for member in members if not _has_spoken(directory, member)]
        raise ClusterFailed(f"{', '.join(late)} did not get ready in {patience_s:g} s; see {directory}/*.err")


def _has_spoken(directory: Path, member: Member) -> bool:
    try:
        return b"\n" in Path(f"{_home(directory, member)}.out").read_bytes()
    except FileNotFoundError:
        return False


def _last_words(directory: Path, member: Member) -> str:
    lines = Path(f"{_home(directory, member)}.err").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "without a word"


def _end(directory: Path, members: Sequence[Member], patience_s: float) -> list[str]:
    for member in members:
        _signal(directory, member, signal.SIGTERM)
    _until(lambda: not any(is_running(directory, member) for member in members), patience_s)
    killed = [member.name for member in members if is_running(directory, member)]
    for member in members:
        _signal(directory, member, signal.SIGKILL)
    _until(lambda: not any(is_running(directory, member) for member in members), 10.0)
    return killed


def _signal(directory: Path, member: Member, number: signal.Signals) -> None:
    if is_running(directory, member):
        try:
            os.kill(member.pid, number)
        except ProcessLookupError:
            pass  # it ended by itself meanwhile


def _until(holds: Callable[[], bool], patience_s: float) -> bool:
    end_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() >= end_s:
            return False
        time.sleep(_POLL_S)
    return True


def _write(directory: Path, cluster: LocalCluster) -> None:
    temporary = directory / f".{FILE}"
    temporary.write_text(json.dumps(asdict(cluster), indent=2) + "\n")
    temporary.replace(directory / FILE)
