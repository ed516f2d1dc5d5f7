"""`logstore serve`: run one broker until told to stop. `logstore metadata-store`: what several share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore.broker.limits import Address
    from logstore.broker.process import ServeOptions

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting under Kafka's name; give it once for each."),
]


def serve(
    node_id: Annotated[
        int | None, typer.Option("--node-id", help="This broker's number, 0 or more; no two have the same.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0: any.")
    ] = None,
    log_dirs: Annotated[
        str | None, typer.Option("--log-dirs", metavar="DIR[,DIR]", help="Where the logs are.")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="STORE",
            help="zookeeper://host:port/chroot; or embedded (the default), for a cluster of one.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A properties file with Kafka's names."),
    ] = None,
    settings: Settings = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Where others find it, if not at --listen."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="/metrics, /healthz and /livez; port 0: any."),
    ] = None,
    state_change_log: Annotated[
        str | None,
        typer.Option(
            "--state-change-log", metavar="FILE", help="Every decision about a partition, a line each."
        ),
    ] = None,
) -> int:
    """Run one broker: it speaks Kafka's protocol. A line of JSON on stdout tells when it is ready.

    SIGTERM stops it in order: what it leads moves to others first.
    """
    from logstore.broker.process import run

    options = _options(
        {
            "node.id": str(node_id) if node_id is not None else None,
            "listen": listen,
            "log.dirs": log_dirs,
            "metadata": metadata,
            "advertise": advertise,
            "http": http,
            "state.change.log": state_change_log,
        },
        _read_properties(config) if config is not None else {},
        dict(name_and_value(text) for text in settings or ()),
    )
    return run(options)


def metadata_store(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where its journal and snapshot are.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where brokers find it; port 0: any.")
    ] = "127.0.0.1:2181",
) -> int:
    """Run the metadata store that the brokers of a cluster on one host share, as zookeeper://HOST:PORT.

    One process, one disk: for several hosts use ZooKeeper. Killed and started anew it has lost nothing.
    """
    from logstore.broker.metadata.process import run

    return run(str(directory), _address(listen, "--listen"))


def _options(
    named: Mapping[str, str | None], properties: Mapping[str, str], settings: Mapping[str, str]
) -> ServeOptions:
    """What was said on the command line wins over the file; `--set` over both."""
    from logstore.broker.process import ServeOptions
    from logstore.broker.properties import split_properties

    listening, rest = split_properties({**properties, **settings})
    said = {**listening, **{name: value for name, value in named.items() if value is not None}}
    for name, option in (("node.id", "--node-id"), ("listen", "--listen"), ("log.dirs", "--log-dirs")):
        if name not in said:
            raise typer.BadParameter(f"a broker needs {option}, or a properties file that says it")
    number = said["node.id"]
    if not (number.isascii() and number.isdecimal()):
        raise typer.BadParameter(f"--node-id is {number!r}; it takes a number, 0 or more")
    return ServeOptions(
        node_id=int(number),
        listen=_address(said["listen"], "--listen"),
        log_dirs=tuple(each.strip() for each in said["log.dirs"].split(",") if each.strip()),
        metadata=said.get("metadata", "embedded"),
        advertised=_address(said["advertise"], "--advertise") if "advertise" in said else None,
        http=_address(said["http"], "--http") if "http" in said else None,
        state_change_log=said.get("state.change.log"),
        settings=rest,
    )


def _address(text: str, option: str) -> Address:
    from logstore.broker.limits import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--set {text!r} is not of the form name=value")
    return name, value


def _read_properties(path: Path) -> dict[str, str]:
    from logstore.checkpoint.meta_properties import parse_properties

    try:
        return parse_properties(path.read_bytes(), path=str(path))
    except OSError as error:
        raise typer.BadParameter(f"--config: {error}") from error
