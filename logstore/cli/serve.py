"""`logstore serve`: run one broker until it is stopped. `logstore metadata-store`: the store of several."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.arguments import whole_number
from logstore.cli.operating import named_values, properties_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from logstore.broker.limits import Address
    from logstore.broker.process import ServeOptions

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting under Kafka's name; repeatable."),
]


Console = Annotated[
    bool,
    typer.Option(
        "--console", help="Serve the console at --http, read-only; without --http on a free loopback port."
    ),
]
ConsoleAdmin = Annotated[
    bool, typer.Option("--console-admin", help="Serve the console with reassignments and elections.")
]
_ANY_LOOPBACK_PORT = "127.0.0.1:0"
KAFKAS_PORT = "127.0.0.1:9092"

LogFile = Annotated[
    str | None,
    typer.Option(
        "--log-file", metavar="FILE", help="Log to this file, rotated at 16 MiB, instead of stderr."
    ),
]


def serve(
    context: typer.Context,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", help="This broker's unique number, 0 or more; 1 with an embedded store."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help=f"Listener for clients; port 0: any. [{KAFKAS_PORT}]"
        ),
    ] = None,
    log_dirs: Annotated[
        str | None, typer.Option("--log-dirs", metavar="DIR[,DIR]", help="Directories of the logs.")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="STORE",
            help="zookeeper://host:port/chroot, or for a cluster of one broker embedded (default) or "
            "embedded:DIRECTORY.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A properties file with Kafka's names."),
    ] = None,
    settings: Settings = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Address for clients and brokers, if not --listen."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve /metrics, /healthz and /livez; https://HOST:PORT: over TLS; port 0: any.",
        ),
    ] = None,
    state_change_log: Annotated[
        str | None,
        typer.Option(
            "--state-change-log",
            metavar="FILE",
            help="The log of all decisions about partitions, if not beside the first log dir; or none.",
        ),
    ] = None,
    log_file: LogFile = None,
    console: Console = False,
    console_admin: ConsoleAdmin = False,
    console_messages: Annotated[
        bool,
        typer.Option(
            "--console-messages",
            help="Let the console show records even if brokers have logins and the HTTP port has none.",
        ),
    ] = False,
    console_peers: Annotated[
        str | None,
        typer.Option(
            "--console-peers",
            metavar="HOST:PORT[,…]",
            help="HTTP addresses of the other brokers' consoles, for their logs and timelines; asked over "
            "TLS and with the login of this broker's HTTP port, if it has these.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Give everyone on the network full access, without TLS or a login."),
    ] = False,
) -> int:
    """Run one broker with Kafka's protocol. It prints a line of JSON when it is ready.

    SIGTERM, SIGINT and SIGHUP shut it down in order: its leaderships move to other brokers first.
    """
    from dataclasses import replace

    from logstore.broker.http_access import read_http
    from logstore.broker.process import run

    if context.args:
        path = context.args[0]
        raise typer.BadParameter(
            f"{path} needs an option: --config {path} for a properties file, --log-dirs {path} for a "
            "directory of logs"
        )
    has_console = console or console_admin or console_messages
    named = {
        "node.id": str(node_id) if node_id is not None else None,
        "listen": listen,
        "log.dirs": log_dirs,
        "metadata": metadata,
        "advertise": advertise,
        "http": http,
        "state.change.log": state_change_log,
        "log.file": log_file,
    }
    with _cannot_start():
        properties = {"http.listener": _ANY_LOOPBACK_PORT} if has_console else {}
        properties |= properties_of(config, "--config") if config is not None else {}
        options = _options(named, properties, named_values("--set", settings, may_repeat=True))
    options = replace(options, insecure=insecure)
    if not has_console:
        return run(options)
    from logstore.broker.state_change_file import OFF, default_path
    from logstore.cli.console import ConsoleOptions, open_console
    from logstore.cli.console.peers import parse_peers

    assert options.http is not None, "a console brings an address"
    with _cannot_start():
        of_http = read_http(options.http_settings, options.settings, is_tls=options.https)
    if not insecure and (problems := of_http.problems(options.http)):
        raise typer.BadParameter(
            f"the console is for those with a login, beyond this host: {problems[0]}. Or use 127.0.0.1 and a "
            "tunnel, or accept that with --insecure"
        )
    path = options.state_change_log or default_path(options.log_dirs)
    with value_of("--console-peers", ValueError):
        peers = parse_peers(console_peers or "", is_tls=options.https, has_password=bool(of_http.user))
    of_tls = {name: value for name, value in options.settings.items() if name.startswith("ssl.")}
    allowed = ConsoleOptions(
        options.http,
        console_admin,
        console_messages,
        "" if path == OFF else path,
        peers,
        {**of_tls, **options.http_settings} if options.https or of_http.user else {},
    )
    return run(options, site_of=lambda broker: open_console(broker, allowed))


def metadata_store(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of its journal and snapshot.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Listener for brokers; port 0: any.")
    ] = "127.0.0.1:2181",
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Properties for TLS: ssl.…, and super.users."),
    ] = None,
    log_file: LogFile = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Give everyone on the network full access, without certificates."),
    ] = False,
) -> int:
    """Run a metadata store for the brokers of one host, which connect to zookeeper://HOST:PORT.

    It is one process with one disk; use ZooKeeper for several hosts. It loses nothing when it is killed.
    """
    from logstore.broker.metadata.process import run

    with _cannot_start():
        settings = properties_of(config, "--config") if config is not None else {}
    address = _address(listen, "--listen")
    return run(str(directory), address, log_file=log_file, settings=settings, insecure=insecure)


@contextmanager
def _cannot_start() -> Iterator[None]:
    """Raise refused settings as wrong usage: exit code 2 tells systemd that another start fails as well."""
    from logstore.disk.errors import EngineError

    try:
        yield
    except EngineError as error:
        raise typer.BadParameter(str(error)) from error


def _options(
    named: Mapping[str, str | None], properties: Mapping[str, str], settings: Mapping[str, str]
) -> ServeOptions:
    """Options and `--set` override the properties file. Raises `typer.BadParameter` if these two differ."""
    from logstore.broker.embedded import BrokerConfig
    from logstore.broker.http_access import split_http
    from logstore.broker.metadata.opening import EMBEDDED, absolute, is_embedded
    from logstore.broker.process import ServeOptions
    from logstore.broker.properties import parse_log_dirs, split_properties

    for name, value in split_properties(settings)[0].items():
        if named.get(name) not in (None, value):
            option = f"--{name.replace('.', '-')} {named[name]}"
            raise typer.BadParameter(
                f"{option}, and {value} by --set, contradict each other; give one of them"
            )
    listening, rest = split_properties({**properties, **settings})
    if "listeners" in rest and (named["listen"] or named["advertise"]):
        raise typer.BadParameter(
            "--listen and --advertise are for a single plain listener; set listeners only"
        )
    given = {"listen": KAFKAS_PORT, "metadata": EMBEDDED, **listening}
    given |= {name: value for name, value in named.items() if value is not None}
    if is_embedded(given["metadata"]):
        given.setdefault("node.id", str(BrokerConfig().node_id))
    for name, option in (("node.id", "--node-id"), ("log.dirs", "--log-dirs")):
        if name not in given:
            raise typer.BadParameter(f"give {option}, or set it in a properties file")
    of_http, rest = split_http(rest)
    if of_http and "http" not in given:
        raise typer.BadParameter(f"{min(of_http)} has no effect without --http or http.listener")
    http, is_https = _http_address(given["http"]) if "http" in given else (None, False)
    if (node_id := whole_number(given["node.id"], 0)) is None:
        raise typer.BadParameter(f"--node-id: {given['node.id']!r} is not a number, 0 or more")
    return ServeOptions(
        node_id=node_id,
        listen=_address(given["listen"], "--listen"),
        log_dirs=tuple(map(os.path.abspath, parse_log_dirs(given["log.dirs"]))),
        metadata=absolute(given["metadata"]),
        advertised=_address(given["advertise"], "--advertise") if "advertise" in given else None,
        http=http,
        https=is_https,
        http_settings=of_http,
        state_change_log=given.get("state.change.log") or None,
        log_file=given.get("log.file"),
        settings=rest,
    )


def _address(text: str, option: str) -> Address:
    from logstore.broker.limits import parse_address

    with value_of(option, ValueError):
        return parse_address(text)


def _http_address(text: str) -> tuple[Address, bool]:
    from logstore.broker.http_access import parse_http

    with value_of("--http", ValueError):
        return parse_http(text)
