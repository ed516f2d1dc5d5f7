"""`logstore cluster …`: a cluster on this host, for experiments: as a whole, and one node at a time.

NODE is a broker's id (2), its name (node-2), or `metadata`, the store.
"""

from __future__ import annotations

import shlex
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.administration import describe_cluster
from logstore.cli.operating import Json, Wait, named_values
from logstore.cli.serve import Console, ConsoleAdmin, LogFile, Settings
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.cli.cluster_file import LocalCluster

app = typer.Typer(
    help="A cluster on this host, for trials; `describe` works with any cluster.", no_args_is_help=True
)
app.command("describe")(describe_cluster)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's directory.")]
Patience = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")]
_WHICH = "A broker's id, like 2, or metadata for the store."
SomeNodes = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help=f"{_WHICH} Without one: all.")
]
Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help=_WHICH)]
OneNode = Annotated[str, typer.Argument(metavar="NODE", help="A broker's id, like 2.")]


@app.command("start")
def start_cluster(
    directory: Directory,
    only: SomeNodes = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, max=64, help="Number of brokers of a new cluster.  [default: 3]"),
    ] = None,
    settings: Settings = None,
    metadata: Annotated[
        str,
        typer.Option("--metadata", metavar="URL", help="An existing store: zookeeper://host:port/chroot."),
    ] = "",
    is_supervised: Annotated[
        bool, typer.Option("--supervise/--no-supervise", help="Restart processes that die.")
    ] = True,
    is_secured: Annotated[
        bool,
        typer.Option("--secured", help="TLS, and a login for clients: DIR/client.properties."),
    ] = False,
    console: Console = False,
    console_admin: ConsoleAdmin = False,
    timeout: Patience = 60.0,
    as_json: Json = False,
) -> int:
    """Start brokers and their metadata store on free loopback ports; return when all are ready.

    A supervisor restarts processes that die, until `logstore cluster stop`; see DIR/supervisor.log. A cluster
    that is started again in the same directory keeps its ports and its data. If it runs only in part, the
    missing processes are started and paused ones resumed; each is reported.
    """
    from logstore.cli.cluster_file import existing
    from logstore.cli.local_cluster import check_settings, launch, named, remarks, start
    from logstore.cli.secured_cluster import CLIENT_FILE

    if only:
        if nodes is not None or settings or metadata or is_secured:
            raise typer.BadParameter("--nodes, --set, --metadata and --secured are of the whole cluster")
        cluster = existing(directory)
        names = [named(cluster, word) for word in only]
        launch(directory, names, patience_s=timeout)
        return _show(directory, names, as_json=as_json)
    given = named_values("--set", settings, may_repeat=True)
    check_settings(given)
    for line in remarks(directory):
        print_error(line)
    cluster = start(
        directory,
        nodes,
        given,
        patience_s=timeout,
        metadata=metadata,
        is_supervised=is_supervised,
        is_secured=is_secured,
        console="--console-admin" if console_admin else "--console" if console else "",
    )
    clients = str(directory / CLIENT_FILE) if cluster.is_secured else None
    if as_json:
        print_json({**_facts(cluster), "client_properties": clients})
    else:
        verb = "is" if len(cluster.nodes) == 1 else "are"
        print(f"{counted(len(cluster.nodes), 'broker')} {verb} ready: {cluster.bootstrap}")
        if clients:
            print(f"connect with: --command-config {clients}")
        if cluster.console:
            print(f"the console: http://127.0.0.1:{cluster.nodes[0].http_port}/")
        print(f"stop them with: logstore cluster stop {shlex.quote(str(directory))}")
    return 0


@app.command("add")
def add_node(directory: Directory, timeout: Patience = 60.0, as_json: Json = False) -> int:
    """Start one more broker, with the next id; `reassign` moves replicas of present topics to it."""
    from logstore.cli.local_cluster import add

    return _show(directory, [add(directory, patience_s=timeout).name], as_json=as_json)


@app.command("status")
def show_cluster(directory: Directory, as_json: Json = False) -> int:
    """Show the state of each process and the problems of partitions; exit 1 if there are any.

    A process is running, paused (SIGSTOP), stopped by a command, or has died.
    """
    from logstore.cli.cluster_file import State, existing
    from logstore.cli.local_cluster import is_running, state_of
    from logstore.cli.partition_counts import counted
    from logstore.cli.secured_cluster import CLIENT_FILE

    cluster = existing(directory)
    states = {each.name: state_of(directory, each) for each in cluster.processes}
    awake = [node for node in cluster.nodes if states[node.name] is State.RUNNING]
    addresses = [f"127.0.0.1:{node.port}" for node in awake]
    clients = directory / CLIENT_FILE if cluster.is_secured else None
    partitions = counted(addresses, clients)
    if as_json:
        running = {each.name: is_running(directory, each) for each in cluster.processes}
        facts = {"running": running, "states": states, "partitions": partitions.facts()}
        print_json({**_facts(cluster), **facts})
    else:
        for each in cluster.processes:
            process = f", process {each.pid}" if states[each.name] in (State.RUNNING, State.PAUSED) else ""
            address = f"127.0.0.1:{each.port}" if each.port else ""
            print(f"{each.name:10} {address:15} {states[each.name]}{process}")
        more = ""
        if awake and not partitions.are_sound:
            more = f"; see logstore health --bootstrap {addresses[0]}"
            more += f" --command-config {clients}" if clients else ""
        print(f"partitions {partitions}{more}")
    are_up = all(state is State.RUNNING for state in states.values())
    return 0 if are_up and partitions.are_sound else 1


@app.command("stop")
def stop_cluster(
    directory: Directory, only: SomeNodes = None, timeout: Patience = 60.0, as_json: Json = False
) -> int:
    """Stop every broker in order, then the store; data is kept. Exit 1 if a process had to be killed.

    With NODE, stop only these: they stay down until `cluster start DIR NODE`.
    """
    from logstore.cli.cluster_file import alone, existing
    from logstore.cli.local_cluster import end, has_lost_its_store, named, stop

    cluster = existing(directory)
    if only:
        names = [named(cluster, word) for word in only]
        killed = end(directory, names, patience_s=timeout)
        _show(directory, names, as_json=as_json)
    else:
        with alone(directory):
            if has_lost_its_store(directory):
                print_error("the metadata store does not run: brokers stop without transferring leaderships")
            killed = stop(directory, patience_s=timeout)
        if as_json:
            print_json({"stopped": True, "killed": killed})
    for name in killed:
        print_error(f"{name} did not end in {timeout:g} s and was killed")
    return 1 if killed else 0


@app.command("kill")
def kill_nodes(directory: Directory, nodes: Nodes, as_json: Json = False) -> int:
    """End processes as a crash does (SIGKILL). They stay down until `cluster start DIR NODE`."""
    from logstore.cli.cluster_file import existing
    from logstore.cli.local_cluster import end, named

    names = [named(existing(directory), word) for word in nodes]
    end(directory, names, patience_s=0)
    return _show(directory, names, as_json=as_json)


@app.command("pause")
def pause_nodes(directory: Directory, nodes: Nodes, as_json: Json = False) -> int:
    """Pause processes (SIGSTOP): they exist, but do not answer."""
    return _signalled(directory, nodes, signal.SIGSTOP, as_json=as_json)


@app.command("resume")
def resume_nodes(directory: Directory, nodes: Nodes, as_json: Json = False) -> int:
    """Resume paused processes (SIGCONT)."""
    return _signalled(directory, nodes, signal.SIGCONT, as_json=as_json)


@app.command("drain")
def drain_node(directory: Directory, node: OneNode, wait: Wait = 0.0, as_json: Json = False) -> int:
    """Move a broker's leaderships away and remove it from every ISR, as `brokers drain` does.

    Stop the broker afterwards. The command uses the brokers' listener and certificate, as a secured cluster
    requires.
    """
    from logstore.broker.security.client import client_security
    from logstore.cli.brokers import Brokers
    from logstore.cli.cluster_file import STORE, ClusterFailed, existing
    from logstore.cli.drain import drained_by
    from logstore.cli.local_cluster import is_running, named
    from logstore.cli.secured_cluster import properties_of_brokers

    cluster = existing(directory)
    name = named(cluster, node)
    if name == STORE:
        raise typer.BadParameter("the store leads no partition: name a broker")
    awake = [each for each in cluster.nodes if is_running(directory, each)]
    if not awake:
        raise ClusterFailed(f"no broker is running; start the cluster: logstore cluster start {directory}")
    addresses = ",".join(f"127.0.0.1:{each.brokers_port or each.port}" for each in awake)
    security = client_security(properties_of_brokers(directory)) if cluster.is_secured else None
    with closing(Brokers(addresses, security)) as asked:
        return drained_by(asked, int(name.rpartition("-")[2]), wait, as_json=as_json)


@app.command("logs")
def show_log(
    directory: Directory,
    node: Annotated[str, typer.Argument(metavar="NODE", help=f"{_WHICH} supervisor: what was restarted.")],
    lines: Annotated[int, typer.Option("--lines", min=1, help="Number of lines to show.")] = 20,
    as_json: Json = False,
) -> int:
    """Show the last lines of a node's log, and its output if it could not start."""
    from logstore.cli.cluster_file import SUPERVISOR, existing
    from logstore.cli.local_cluster import last_lines, named

    cluster = existing(directory)
    name = SUPERVISOR if node == SUPERVISOR else named(cluster, node)
    for line in last_lines(directory, name, lines):
        if as_json:
            print_json(line)
        else:
            print(*(line[key] for key in ("time", "level", "message") if key in line), sep="  ")
            if "exception" in line:
                print(line["exception"])
    return 0


@app.command("supervise", hidden=True)
def supervise_cluster(directory: Directory, log_file: LogFile = None) -> int:
    """Restart the cluster's processes that die, until SIGTERM. `start` runs it."""
    from logstore.broker.json_lines import log_as_json
    from logstore.cli.supervising import supervise

    log_as_json(log_file)
    return supervise(directory)


def _signalled(directory: Path, words: list[str], number: signal.Signals, *, as_json: bool) -> int:
    """Send a signal to nodes; exit code 1 if one of them does not run."""
    from logstore.cli.cluster_file import existing
    from logstore.cli.local_cluster import is_running, named, send_signal

    cluster = existing(directory)
    names = [named(cluster, word) for word in words]
    down = [each.name for each in cluster.members if each.name in names and not is_running(directory, each)]
    for name in names:
        send_signal(directory, name, number)
    _show(directory, names, as_json=as_json)
    return 1 if down else 0


def _show(directory: Path, names: list[str], *, as_json: bool) -> int:
    from logstore.cli.cluster_file import existing
    from logstore.cli.local_cluster import state_of

    for each in [each for each in existing(directory).members if each.name in names]:
        state, address = state_of(directory, each), f"127.0.0.1:{each.port}"
        if as_json:
            print_json({"node": each.name, "state": state, "address": address, "pid": each.pid})
        else:
            print(f"{each.name}  {address}  {state}")
    return 0


def _facts(cluster: LocalCluster) -> dict[str, object]:
    return {
        "bootstrap": cluster.bootstrap,
        "metadata": cluster.metadata,
        "http": [f"127.0.0.1:{node.http_port}" for node in cluster.nodes],
        "has_console": bool(cluster.console),
        "pids": {each.name: each.pid for each in cluster.processes},
    }
