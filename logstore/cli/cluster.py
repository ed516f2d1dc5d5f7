"""`logstore cluster …`: a cluster on this host, for trying out: start it, look at it, stop it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.serve import Settings
from logstore.cli.terminal import complain, print_json

if TYPE_CHECKING:
    from logstore.cli.local_cluster import LocalCluster

app = typer.Typer(help="A cluster on this host, for trying out.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where everything of it is.")]
Json = Annotated[bool, typer.Option("--json", help="Print one object.")]
Patience = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")]


@app.command("start")
def start_cluster(
    directory: Directory,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="How many brokers.")] = 3,
    settings: Settings = None,
    metadata: Annotated[
        str,
        typer.Option("--metadata", metavar="URL", help="zookeeper://host:port/chroot, instead of their own."),
    ] = "",
    timeout: Patience = 60.0,
    as_json: Json = False,
) -> int:
    """Start brokers and what they need, on free ports of the loopback; returns when all are ready.

    Started again on the same directory they have their ports and their data.
    """
    from logstore.cli.local_cluster import ClusterFailed, start
    from logstore.cli.serve import name_and_value

    try:
        given = dict(name_and_value(text) for text in settings or ())
        cluster = start(directory, nodes, given, patience_s=timeout, metadata=metadata)
    except ClusterFailed as error:
        complain(str(error))
        return 1
    _print(directory, cluster, as_json=as_json)
    return 0


@app.command("status")
def show_cluster(directory: Directory, as_json: Json = False) -> int:
    """Which of its processes run; 1 if not all do."""
    from logstore.cli.local_cluster import ClusterFailed, is_running, read_cluster_file

    try:
        cluster = read_cluster_file(directory)
    except ClusterFailed as error:
        complain(str(error))
        return 1
    if cluster is None:
        complain(f"there is no cluster in {directory}")
        return 1
    running = {member.name: is_running(directory, member) for member in cluster.members}
    if as_json:
        print_json({**_facts(cluster), "running": running})
    else:
        for member in cluster.members:
            state = f"runs, process {member.pid}" if running[member.name] else "does not run"
            print(f"{member.name:10} 127.0.0.1:{member.port:<6} {state}")
    return 0 if all(running.values()) else 1


@app.command("stop")
def stop_cluster(directory: Directory, timeout: Patience = 60.0, as_json: Json = False) -> int:
    """Stop every broker in order, then the store; the data stays. 1 if somebody had to be killed."""
    from logstore.cli.local_cluster import ClusterFailed, stop

    try:
        killed = stop(directory, patience_s=timeout)
    except ClusterFailed as error:
        complain(str(error))
        return 1
    if as_json:
        print_json({"stopped": True, "killed": killed})
    for name in killed:
        complain(f"{name} did not end in {timeout:g} s and was killed")
    return 1 if killed else 0


def _facts(cluster: LocalCluster) -> dict[str, object]:
    return {
        "bootstrap": cluster.bootstrap,
        "metadata": cluster.metadata,
        "http": [f"127.0.0.1:{node.http_port}" for node in cluster.nodes],
        "pids": {member.name: member.pid for member in cluster.members},
    }


def _print(directory: Path, cluster: LocalCluster, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(cluster))
        return
    print(f"{len(cluster.nodes)} brokers are ready: {cluster.bootstrap}")
    print(f"stop them with: logstore cluster stop {directory}")
