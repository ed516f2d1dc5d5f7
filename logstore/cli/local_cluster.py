"""Run brokers and their metadata store as processes of this host, for `logstore cluster`.

    DIR/cluster.json             ports, process ids and settings; only its owner may read it
    DIR/cluster.lock             held while cluster.json is changed: a supervisor may do so at any time
    DIR/cluster.starting         held by `cluster start` until the cluster is ready, and by `cluster stop`
    DIR/metadata/                the store's journal and snapshot
    DIR/node-<n>/                a broker's log dir
    DIR/node-<n>.properties      its settings; only the owner may read them, as there may be passwords
    DIR/node-<n>.log             a broker's log, rotated
    DIR/node-<n>.out, .err       its output: the line when it was ready; why it could not start
    DIR/node-<n>.state-changes   its decisions
    DIR/supervisor.log           what the supervisor has restarted (`supervising.py`)
    DIR/tls/, client.properties  of a secured cluster (`secured_cluster.py`)

The processes outlive the command. Ports are chosen at the first start and kept.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from logstore.checkpoint.identity import format_properties
from logstore.cli import secured_cluster
from logstore.cli.certs import write_secret
from logstore.cli.cluster_file import (
    FILE,
    STORE,
    SUPERVISOR,
    ClusterFailed,
    LocalCluster,
    Member,
    State,
    alone,
    existing,
    locked,
    read_cluster_file,
    write,
)
from logstore.cli.ports import free_ports
from logstore.signals import held_back

_POLL_S = 0.02
_DEATH_S = 10.0
"""The longest wait for the end of a process that was killed."""
_HANDING_ON_S = 3.0
"""The wait for brokers that cannot hand leaderships on before they are told not to try."""


def start(
    directory: Path,
    count: int | None,
    settings: Mapping[str, str],
    *,
    patience_s: float,
    metadata: str = "",
    is_supervised: bool = False,
    is_secured: bool = False,
    console: str = "",
) -> LocalCluster:
    """Start what does not run of a cluster, and wait until it is ready.

    `count` None: as many brokers as there are, or 3. A cluster that is not there yet gets the store at
    `metadata`, or one of its own. With `is_supervised` one more process restarts members that die, until
    `stop`. With `is_secured` all connections to brokers use TLS, and clients log in by the file
    `client.properties` in `directory`. `console` is --console or --console-admin, for the brokers of a
    cluster from now on. Raises `ClusterFailed`; then what it started is ended, the settings are as before,
    and what ran before runs on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory):
        return _start(
            directory,
            _to_start(directory, count, metadata, is_secured=is_secured),
            settings,
            patience_s=patience_s,
            is_supervised=is_supervised,
            console=console,
        )


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise `ClusterFailed` for what a cluster gives each broker itself, and `InvalidConfig`."""
    from logstore.broker.properties import WITHOUT_EFFECT, split_properties

    taken = settings.keys() - split_properties(settings)[1].keys()
    taken |= settings.keys() & {"listeners", "advertised.listeners"}
    if own := sorted(taken - WITHOUT_EFFECT):
        raise ClusterFailed(
            f"{', '.join(own)}: logstore cluster gives each broker its own; logstore serve takes yours"
        )


def _to_start(directory: Path, count: int | None, metadata: str, *, is_secured: bool) -> LocalCluster:
    """Return the cluster of the directory, or one that is planned.

    Raises `ClusterFailed`, and `InvalidConfig` for a store that is none.
    """
    from logstore.replication.metastore.zookeeper_requests import Address

    cluster = read_cluster_file(directory)
    if cluster is not None and all(state_of(directory, each) is State.RUNNING for each in cluster.processes):
        raise ClusterFailed(f"the cluster is running; stop it first: logstore cluster stop {directory}")
    store = Address.parse(metadata) if metadata else None
    if cluster is not None and store is not None and store != Address.parse(cluster.metadata):
        raise ClusterFailed(f"the cluster in {directory} has the store {cluster.metadata}, not {metadata}")
    if cluster is None and "," in str(directory):  # its brokers would have several log dirs, elsewhere
        raise ClusterFailed(f"{directory}: log.dirs is a list with commas; use a directory without one")
    cluster = cluster or _planned(_count_in(directory, count), metadata, is_secured)
    _check_store(directory, cluster)
    if count not in (None, len(cluster.nodes)):
        there = len(cluster.nodes)
        raise ClusterFailed(
            f"{directory} has a cluster of {there} brokers; use --nodes {there}, or logstore cluster add"
        )
    if is_secured and not cluster.is_secured:
        raise ClusterFailed(f"{directory} has a cluster without security; use another directory")
    return cluster


def _start(
    directory: Path,
    cluster: LocalCluster,
    settings: Mapping[str, str],
    *,
    patience_s: float,
    is_supervised: bool,
    console: str,
) -> LocalCluster:
    if cluster.is_secured:
        secured_cluster.make_files(directory)
    if read_cluster_file(directory) is None:
        write(directory, cluster)
    with locked(directory):
        before = existing(directory)  # the supervisor may have restarted a member since
        ran = [each.name for each in before.processes if is_running(directory, each)]
        asked = {**before.settings, **settings}
        write(directory, replace(before, settings=asked, console=console or before.console))
    try:
        for member in before.members:
            if member.name in ran:
                send_signal(directory, member.name, signal.SIGCONT)
        if cluster.store is not None:
            launch(directory, [cluster.store.name], patience_s=patience_s)
        if cluster.is_secured:
            secured_cluster.add_admin(directory, cluster.metadata)
        cluster = launch(directory, [node.name for node in cluster.nodes], patience_s=patience_s)
        return _supervised(directory, is_supervised=is_supervised)
    except BaseException:
        if ran:
            _undo(directory, before, ran)
        else:
            stop(directory, patience_s=0)
            with locked(directory):
                write(
                    directory, replace(existing(directory), settings=before.settings, console=before.console)
                )
        raise


def _undo(directory: Path, before: LocalCluster, ran: Sequence[str]) -> None:
    """End what a failed start has started, and take its settings back."""
    with locked(directory):
        cluster = existing(directory)
        _end(directory, [each for each in cluster.members if each.name not in ran], 0)
        for member in before.members:
            if member.name not in ran:
                cluster = cluster.with_member(member)
        write(directory, replace(cluster, settings=before.settings, console=before.console))


def add(directory: Path, *, patience_s: float) -> Member:
    """Start one more broker, with the next id and free ports, and return it.

    Raises `ClusterFailed`; then it is ended, and no longer of the cluster.
    """
    with locked(directory):
        cluster = existing(directory)
        port, http_port, brokers_port = free_ports(3)
        number = max(int(node.name.rpartition("-")[2]) for node in cluster.nodes) + 1
        member = Member(f"node-{number}", port, http_port, stays_down=True)
        if cluster.is_secured:
            member = replace(member, brokers_port=brokers_port)
        write(directory, replace(cluster, nodes=(*cluster.nodes, member)))
    try:
        launch(directory, [member.name], patience_s=patience_s)
    except BaseException:
        with locked(directory):
            cluster = existing(directory)
            _end(directory, [each for each in cluster.nodes if each.name == member.name], 0)
            rest = tuple(each for each in cluster.nodes if each.name != member.name)
            write(directory, replace(cluster, nodes=rest))
        raise
    return member


def launch(directory: Path, names: Sequence[str], *, patience_s: float) -> LocalCluster:
    """Start these members of a cluster and wait until they are ready.

    Raises `ClusterFailed`, also at once for brokers whose store was stopped: they would wait for it.
    """
    store = existing(directory).store
    if store is not None and store.name not in names and state_of(directory, store) is State.STOPPED:
        raise ClusterFailed(
            f"the metadata store is stopped; start it first: logstore cluster start {directory} {store.name} "
            "(or all, without a name)"
        )
    cluster = relaunch(directory, names)
    _wait_for(directory, [each for each in cluster.members if each.name in names], patience_s)
    return cluster


def relaunch(directory: Path, names: Sequence[str], *, is_asked: bool = True) -> LocalCluster:
    """Start these members of a cluster that do not run; unless `is_asked`, not those that shall stay down.

    Raises `ClusterFailed` if there is no cluster, and `OSError`.
    """
    with locked(directory):
        cluster = existing(directory)
        for member in [each for each in cluster.members if each.name in names]:
            if is_running(directory, member) or (member.stays_down and not is_asked):
                continue
            # A process that was started and is not in the file would be ended by nobody.
            with held_back(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                cluster = cluster.with_member(_launched(directory, cluster, member))
                write(directory, cluster)
    return cluster


def send_signal(directory: Path, name: str, number: signal.Signals) -> None:
    """Send a signal to a member of the cluster, if it is running; wait until SIGKILL or SIGSTOP has acted."""
    (member,) = [each for each in existing(directory).members if each.name == name]
    _signal(directory, member, number)
    if number in (signal.SIGKILL, signal.SIGSTOP):
        _until(lambda: state_of(directory, member) is not State.RUNNING, _DEATH_S)


def end(directory: Path, names: Sequence[str], *, patience_s: float) -> list[str]:
    """End these members; they stay down until they are started. Return those that had to be killed.

    With `patience_s` 0 they are killed at once.
    """
    with locked(directory):
        cluster = existing(directory)
        members = [each for each in cluster.members if each.name in names]
        for member in members:
            cluster = cluster.with_member(replace(member, stays_down=True))
        write(directory, cluster)
    return _end(directory, members, patience_s)


def stop(directory: Path, *, patience_s: float) -> list[str]:
    """Stop the supervisor, the brokers in order, then the store; return those that had to be killed.

    If the cluster's own store does not run, brokers are told twice: they would wait for a controller that
    cannot act. Raises `ClusterFailed` if there is no cluster.
    """
    supervisor = existing(directory).supervisor
    if supervisor is not None:
        _end(directory, [supervisor], patience_s)
    with locked(directory):  # whoever starts or adds a member meanwhile waits for the end
        cluster = replace(existing(directory), supervisor=None)
        if cluster.store is not None and has_lost_its_store(directory):
            for number in (signal.SIGTERM, signal.SIGCONT) if patience_s > 0 else ():
                for member in cluster.nodes:
                    _signal(directory, member, number)
            _until(partial(_have_ended, directory, cluster.nodes), min(_HANDING_ON_S, patience_s))
        killed = _end(directory, cluster.nodes, patience_s)
        if cluster.store is not None:
            killed += _end(directory, [cluster.store], patience_s)
        for member in cluster.members:
            cluster = cluster.with_member(replace(member, pid=0))
        write(directory, cluster)
    return killed


def has_lost_its_store(directory: Path) -> bool:
    """Whether the store of this cluster does not run, though a broker does."""
    cluster = existing(directory)
    if cluster.store is None or state_of(directory, cluster.store) is State.RUNNING:
        return False
    return any(is_running(directory, member) for member in cluster.nodes)


def named(cluster: LocalCluster, word: str) -> str:
    """Return the name of a member: `node-2`, its id 2, or `metadata`. Raises `ClusterFailed`."""
    names = [each.name for each in cluster.members]
    name = f"node-{word}" if word.isdecimal() else word
    if name not in names:
        raise ClusterFailed(f"no {word} in this cluster; it has {', '.join(names)}")
    return name


def is_running(directory: Path, member: Member) -> bool:
    """Whether the process exists, paused or not, and is still the one that was started."""
    return state_of(directory, member) in (State.RUNNING, State.PAUSED)


def state_of(directory: Path, member: Member) -> State:
    """Return what the process of a member does."""
    gone = State.STOPPED if member.pid <= 0 or member.stays_down else State.DIED
    if member.pid <= 0:
        return gone
    try:
        os.waitpid(member.pid, os.WNOHANG)  # an ended child keeps its pid until then
    except ChildProcessError:
        pass
    try:
        os.kill(member.pid, 0)
    except (ProcessLookupError, PermissionError):
        return gone
    try:  # the pid may have been reused by another process
        command = Path(f"/proc/{member.pid}/cmdline").read_bytes()
        letter = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        # It was reaped a moment ago. Without /proc, the pid must do.
        return gone if Path("/proc/self").exists() else State.RUNNING
    # A process that is just starting has no command line yet.
    if letter in "ZX" or (command and os.fsencode(_home(directory, member)) not in command):
        return gone
    return State.PAUSED if letter == "T" else State.RUNNING


# --- processes ----------------------------------------------------------------------------------


def _planned(count: int, metadata: str, is_secured: bool) -> LocalCluster:
    ports = free_ports(1 + 3 * count)
    nodes = tuple(
        Member(f"node-{number}", port, http_port, brokers_port=brokers_port if is_secured else 0)
        for number, (port, http_port, brokers_port) in enumerate(zip(*[iter(ports[1:])] * 3, strict=True), 1)
    )
    if metadata:
        return LocalCluster(metadata, None, nodes)
    return LocalCluster(f"zookeeper://127.0.0.1:{ports[0]}", Member(STORE, ports[0]), nodes)


def _count_in(directory: Path, count: int | None) -> int:
    """Return how many brokers a cluster gets. Raises `ClusterFailed` if there are directories of more."""
    there = [int(each.name.rpartition("-")[2]) for each in directory.glob("node-[0-9]*") if each.is_dir()]
    wanted = max(there, default=3) if count is None else count
    if there and max(there) > wanted:
        raise ClusterFailed(
            f"{directory} has no {FILE}, and directories of {max(there)} brokers; use --nodes {max(there)}"
        )
    return wanted


def remarks(directory: Path) -> list[str]:
    """Return what is wrong with a cluster that is to be started; nothing for one that is not there yet.

    Raises `ClusterFailed` for one that will not be started.
    """
    cluster = read_cluster_file(directory)
    if cluster is None:
        return []
    _check_store(directory, cluster)
    states = {each.name: state_of(directory, each) for each in cluster.members}
    found = [f"{name} was paused, and is resumed" for name, state in states.items() if state is State.PAUSED]
    if any(state in (State.RUNNING, State.PAUSED) for state in states.values()):
        down = [name for name, state in states.items() if state in (State.STOPPED, State.DIED)]
        found += [f"{name} is not running, and is started" for name in down]
    if used := _with_data(directory, cluster):
        found += [
            f"{node.name} has no directory: it starts empty, and copies its replicas from other brokers"
            for node in cluster.nodes
            if node not in used and not _home(directory, node).exists()
        ]
    return found


def _with_data(directory: Path, cluster: LocalCluster) -> list[Member]:
    return [node for node in cluster.nodes if (_home(directory, node) / "meta.properties").exists()]


def _check_store(directory: Path, cluster: LocalCluster) -> None:
    """Raise `ClusterFailed` if the store would forget all topics."""
    if cluster.store is None or _home(directory, cluster.store).exists():
        return
    if _with_data(directory, cluster):
        raise ClusterFailed(
            f"{_home(directory, cluster.store)} is gone, and with it topics and the cluster's id. Brokers "
            "refuse log dirs of another cluster. Put it back from a copy. Without one, start a new cluster "
            f"in another directory; logstore cat reads what is in {directory}/node-*"
        )


def _defaults(count: int) -> dict[str, str]:
    """Return defaults for a few brokers that start and stop together."""
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
    if member.name == STORE:
        command += ["metadata-store", str(home), "--listen", f"127.0.0.1:{member.port}"]
    else:
        command += ["serve", "--node-id", member.name.rpartition("-")[2], "--log-dirs", str(home)]
        command += ["--http", f"127.0.0.1:{member.http_port}"]
        command += ["--metadata", cluster.metadata, "--state-change-log", f"{home}.state-changes"]
        if cluster.console:
            others = (each.http_port for each in cluster.nodes if each != member)
            peers = ",".join(f"127.0.0.1:{port}" for port in others)
            command += [cluster.console, *(["--console-peers", peers] if peers else [])]
        secured: Mapping[str, str] = {}
        if member.brokers_port:
            secured = secured_cluster.settings(directory.resolve(), member.port, member.brokers_port)
        else:
            command += ["--listen", f"127.0.0.1:{member.port}"]
        # Not --set: everyone on the host may read a command line.
        settings = {**_defaults(len(cluster.nodes)), **secured, **cluster.settings, **member.settings}
        file = Path(f"{home}.properties")
        write_secret(file, format_properties(settings, comment="written by logstore cluster start"))
        command += ["--config", str(file)]
    return replace(member, pid=_spawned([*command, "--log-file", f"{home}.log"], home), stays_down=False)


def _supervised(directory: Path, *, is_supervised: bool) -> LocalCluster:
    """Give a cluster a supervisor, or leave the one that it has."""
    with locked(directory):
        cluster = existing(directory)
        if cluster.supervisor is None or not is_running(directory, cluster.supervisor):
            cluster = replace(cluster, supervisor=None)
            write(directory, cluster)  # a supervisor ends when it reads that there is another one
            # A process that was started and is not in the file would be ended by nobody.
            with held_back(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                cluster = replace(cluster, supervisor=_supervise(directory) if is_supervised else None)
                write(directory, cluster)
    return cluster


def _supervise(directory: Path) -> Member:
    member = Member(SUPERVISOR, 0)
    home = _home(directory, member)
    command = [sys.executable, "-m", "logstore.cli.main", "cluster", "supervise", str(directory.resolve())]
    return replace(member, pid=_spawned([*command, "--log-file", f"{home}.log"], home))


def _spawned(command: list[str], home: Path) -> int:
    """Start a process whose output goes to files beside `home`; return its id."""
    new, more = os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Not `subprocess`, which waits for its children: these outlive the command.
    return os.posix_spawn(
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


def _wait_for(directory: Path, members: Sequence[Member], patience_s: float) -> None:
    """Wait until each has reported that it is ready."""

    def are_ready() -> bool:
        for member in members:
            if not is_running(directory, member):
                why = last_line(directory, member)
                if os.strerror(errno.EADDRINUSE) in why:  # the ports stay the same: clients know them
                    why += f"; end the program that has the port, then: logstore cluster start {directory}"
                raise ClusterFailed(f"{member.name} ended: {why}")
        return all(_is_ready(directory, member) for member in members)

    if not _until(are_ready, patience_s):
        late = [member.name for member in members if not _is_ready(directory, member)]
        raise ClusterFailed(f"{', '.join(late)} not ready in {patience_s:g} s; see {directory}/*.log")


def _is_ready(directory: Path, member: Member) -> bool:
    try:
        return b"\n" in Path(f"{_home(directory, member)}.out").read_bytes()
    except FileNotFoundError:
        return False


def last_line(directory: Path, member: Member) -> str:
    for suffix in ("err", "log"):
        path = Path(f"{_home(directory, member)}.{suffix}")
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if lines:
            return lines[-1]
    return "no output"


def last_lines(directory: Path, name: str, count: int) -> list[dict[str, object]]:
    """Return the last lines of a node's log, and what its process last printed; the oldest first."""
    found: deque[dict[str, object]] = deque(maxlen=count)
    paths = [directory / f"{name}.{suffix}" for suffix in ("log.1", "log", "err")]
    written = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    for path in sorted(written, key=lambda path: written[path]):
        with path.open(errors="backslashreplace") as lines:
            found.extend(map(_parsed, lines))
    return list(found)


def _parsed(line: str) -> dict[str, object]:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"message": line.rstrip("\n")}


def _end(directory: Path, members: Sequence[Member], patience_s: float) -> list[str]:
    for number in (signal.SIGTERM, signal.SIGCONT) if patience_s > 0 else ():
        for member in members:
            _signal(directory, member, number)  # a paused one ends when it goes on
    _until(partial(_have_ended, directory, members), patience_s)
    killed = [member.name for member in members if is_running(directory, member)]
    for member in members:
        _signal(directory, member, signal.SIGKILL)
    _until(partial(_have_ended, directory, members), _DEATH_S)
    return killed


def _have_ended(directory: Path, members: Sequence[Member]) -> bool:
    return not any(is_running(directory, member) for member in members)


def _signal(directory: Path, member: Member, number: signal.Signals) -> None:
    if is_running(directory, member):
        try:
            os.kill(member.pid, number)
        except ProcessLookupError:
            pass  # it has ended meanwhile


def _until(holds: Callable[[], bool], patience_s: float) -> bool:
    end_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() >= end_s:
            return False
        time.sleep(_POLL_S)
    return True
