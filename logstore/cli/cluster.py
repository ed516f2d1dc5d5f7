"""`logstore cluster …`: start, inspect and stop a cluster on this host, for trying out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, named_values
from logstore.cli.serve import LogFile, Settings
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.local_cluster import LocalCluster

app = typer.Typer(help="A cluster on this host, for trying out.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's directory.")]
Patience = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")]


@app.command("start")
def start_cluster(
    directory: Directory,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="Number of brokers.")] = 3,
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
    timeout: Patience = 60.0,
    as_json: Json = False,
) -> int:
    """Start brokers and their metadata store on free loopback ports; return when all are ready.

    One more process restarts those that die, until `logstore cluster stop`; DIR/supervisor.log says so. A
    cluster that is started again in the same directory keeps its ports and its data.
    """
    from logstore.cli.local_cluster import start
    from logstore.cli.secured_cluster import CLIENT_FILE

    given = named_values("--set", settings, may_repeat=True)
    cluster = start(
        directory,
        nodes,
        given,
        patience_s=timeout,
        metadata=metadata,
        is_supervised=is_supervised,
        is_secured=is_secured,
    )
    clients = str(directory / CLIENT_FILE) if cluster.is_secured else None
    if as_json:
        print_json({**_facts(cluster), "client_properties": clients})
    else:
        print(f"{len(cluster.nodes)} brokers are ready: {cluster.bootstrap}")
        if clients:
            print(f"connect with: --command-config {clients}")
        print(f"stop them with: logstore cluster stop {directory}")
    return 0


@app.command("status")
def show_cluster(directory: Directory, as_json: Json = False) -> int:
    """Show which processes are running; exit 1 if any is not."""
    from logstore.cli.local_cluster import existing, is_running

    cluster = existing(directory)
    running = {each.name: is_running(directory, each) for each in cluster.processes}
    if as_json:
        print_json({**_facts(cluster), "running": running})
    else:
        for each in cluster.processes:
            state = f"running, process {each.pid}" if running[each.name] else "not running"
            address = f"127.0.0.1:{each.port}" if each.port else ""
            print(f"{each.name:10} {address:15} {state}")
    return 0 if all(running.values()) else 1


@app.command("stop")
def stop_cluster(directory: Directory, timeout: Patience = 60.0, as_json: Json = False) -> int:
    """Stop every broker in order, then the store; data is kept. Exit 1 if a process had to be killed."""
    from logstore.cli.local_cluster import stop

    killed = stop(directory, patience_s=timeout)
    if as_json:
        print_json({"stopped": True, "killed": killed})
    for name in killed:
        print_error(f"{name} did not end in {timeout:g} s and was killed")
    return 1 if killed else 0


@app.command("supervise", hidden=True)
def supervise_cluster(directory: Directory, log_file: LogFile = None) -> int:
    """Restart the cluster's processes that die, until SIGTERM. `start` runs it."""
    from logstore.broker.json_lines import log_as_json
    from logstore.cli.supervising import supervise

    log_as_json(log_file)
    return supervise(directory)


def _facts(cluster: LocalCluster) -> dict[str, object]:
    return {
        "bootstrap": cluster.bootstrap,
        "metadata": cluster.metadata,
        "http": [f"127.0.0.1:{node.http_port}" for node in cluster.nodes],
        "pids": {each.name: each.pid for each in cluster.processes},
    }
