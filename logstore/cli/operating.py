"""Shared parts of the operators' verbs: options, settings, security, waiting."""

from __future__ import annotations

import posixpath
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.arguments import epoch_ms, whole_number
from logstore.cli.terminal import Encoding

if TYPE_CHECKING:
    from logstore.broker.security.client import ClientSecurity
    from logstore.broker.security.store import StoreSecurity
    from logstore.disk.files import Disk

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
PartitionDir = Annotated[
    Path, typer.Argument(metavar="DIR", help="A partition's directory.", exists=True, file_okay=False)
]
LogDirs = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Log dirs or partitions.", exists=True, file_okay=False),
]
RecordEncoding = Annotated[
    Encoding,
    typer.Option(help="Encoding of keys and values; hex and base64 are exact, utf8 shows \\xNN."),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", metavar="FILE", help="Properties of Kafka's clients: TLS and login."),
]
CommandOrStoreConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties of Kafka's clients: TLS and login; with --metadata, zookeeper.ssl.….",
    ),
]
_WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "bootstrap.controllers",
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""Settings of Kafka's admin client beside those of its security."""

LONGEST_INTERVAL_S: Final = 86_400
"""The longest interval that an option takes, in seconds."""

Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait at most this long until it is done.")
]


def require_log(disk: Disk, directory: str) -> None:
    """Raise `typer.BadParameter` (exit code 2) if `directory` holds no segment, so no log."""
    from logstore.log.loading import offset_in
    from logstore.log.log_dir_snapshot import partitions_in

    names = (entry.name for entry in disk.scan(directory) if not entry.is_directory)
    if not any(name.endswith((".log", ".log.swap")) and offset_in(name) is not None for name in names):
        inside = min(partitions_in(disk, directory).values(), default="")
        advice = (
            f"; name one of its partitions, such as {posixpath.join(directory, inside)}" if inside else ""
        )
        raise typer.BadParameter(f"{directory} holds no log: there is no <offset>.log in it{advice}")


def partitions_with(name: str, disk: Disk, directories: Iterable[Path]) -> list[str]:
    """Return each directory that is a partition, and the partitions below the others that have a file or
    directory `name`. Raises `typer.BadParameter` (exit code 2) for one that holds no log."""
    from logstore.cli.inspection import segment_offsets
    from logstore.cli.whole_trees import holds_log

    partitions: list[str] = []
    for path in (str(directory).rstrip("/") or "/" for directory in directories):
        found = [path] if segment_offsets(disk, path) else list(_below(name, disk, path))
        if not found and not holds_log(disk, path):
            raise typer.BadParameter(f"{path} holds no log: neither segments nor a log dir's files are in it")
        partitions += found
    return partitions


def _below(name: str, disk: Disk, path: str) -> Iterator[str]:
    try:
        entries = disk.scan(path)
    except FileNotFoundError:  # deleted by its owner since it was listed
        return
    if any(entry.name == name for entry in entries):
        yield path
        return
    for entry in entries:
        if entry.is_directory:
            yield from _below(name, disk, f"{path}/{entry.name}")


def time_ms(option: str, text: str) -> int:
    """Return the epoch milliseconds of `text`: those, or ISO 8601, in UTC if it names no zone."""
    if (found := whole_number(text)) is not None:
        return found
    try:
        return epoch_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {text!r} is neither epoch milliseconds nor a time") from error


def named_values(option: str, texts: list[str] | None, *, may_repeat: bool = False) -> dict[str, str]:
    """Return the settings of a repeatable option NAME=VALUE; with `may_repeat`, the last value of a name."""
    settings: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option}: {text!r} is not of the form NAME=VALUE")
        if name in settings and not may_repeat:
            raise typer.BadParameter(f"{option}: {name} is given twice")
        settings[name] = value
    return settings


@contextmanager
def value_of(option: str, *errors: type[Exception]) -> Iterator[None]:
    """Refuse the value of an option if it causes one of these errors. Raises `typer.BadParameter`."""
    try:
        yield
    except errors as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def text_of(file: Path, name: str) -> str:
    """Return the text of an input file, without a byte order mark. Raises `typer.BadParameter`.

    `name` is that of the option or the argument that names the file.
    """
    from logstore.disk.host_files import input_text

    with value_of(name, OSError, ValueError):
        return input_text(file)


def security_of(command_config: Path | None) -> ClientSecurity | None:
    """Return the security that a file of client properties asks for. Raises `InvalidConfig`.

    The file may say how ZooKeeper is reached, too: some verbs need both ways. Files of Kafka's tools may have
    other settings of an admin client: they are ignored.
    """
    from logstore.broker.security.client import client_security
    from logstore.broker.security.store import split_store

    if command_config is None:
        return None
    _, of_client = split_store(properties_of(command_config))
    return client_security({key: value for key, value in of_client.items() if key not in _WITHOUT_EFFECT})


def store_security_of(command_config: Path | None) -> StoreSecurity:
    """Return how a file of properties says that ZooKeeper is reached. Raises `InvalidConfig`."""
    from logstore.broker.security.store import split_store

    return split_store(properties_of(command_config) if command_config is not None else {})[0]


def properties_of(file: Path, option: str = "--command-config") -> dict[str, str]:
    """Return the settings of a file of properties, which an option names; without a byte order mark."""
    from logstore.checkpoint.identity import parse_properties

    with value_of(option, OSError):
        return parse_properties(file.read_bytes().removeprefix(BOM_UTF8), path=str(file))


def similar(names: Iterable[str], topics: Iterable[str]) -> str:
    """Return the hint for topics that do not exist: the existing ones with similar names."""
    from difflib import get_close_matches

    known = list(topics)
    meant = [repr(close[0]) for name in names if (close := get_close_matches(name, known, 1))]
    return f"did you mean {', '.join(meant)}?" if meant else "`logstore topics list` shows all"


def wait_until(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until `holds`, at most `seconds`; return whether it does."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= end:
            return False
        pause()
    return True


def pause(seconds: float = 0.05) -> None:
    """Wait between two reads of the store, or of brokers."""
    time.sleep(seconds)
