"""`logstore merge-state-changes`: merge the state-change logs of many nodes, ordered by time.

Reads our lines and Kafka's: a line counts if it begins with a time (in brackets) and names a partition as
`[topic,partition]`; others are skipped. Only one line per file is in memory. Clocks differ between nodes:
lines of different nodes that are milliseconds apart may be in either order. Epochs show the true order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.arguments import whole_numbers
from logstore.cli.operating import Json, value_of
from logstore.cli.terminal import print_error, print_json, printable

if TYPE_CHECKING:
    from logstore.replication.state_change_lines import Line, Wanted

Partitions = Annotated[
    str | None, typer.Option("--partitions", metavar="N,N,…", help="Only these partitions of the topic.")
]


def merge_state_changes(
    logs: Annotated[
        list[Path] | None,
        typer.Option("--logs", metavar="FILE", help="A log; repeatable, or FILE,FILE,…"),
    ] = None,
    logs_regex: Annotated[
        str | None,
        typer.Option("--logs-regex", metavar="REGEX", help="All files in --directory with a matching name."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Directory for --logs-regex.")
    ] = Path(),
    topic: Annotated[str | None, typer.Option("--topic", help="Only lines of this topic.")] = None,
    partitions: Partitions = None,
    start_time: Annotated[
        str | None,
        typer.Option(
            "--start-time", metavar="TIME", help="Start (inclusive), such as '2026-11-20 15:19:26,123'."
        ),
    ] = None,
    end_time: Annotated[
        str | None, typer.Option("--end-time", metavar="TIME", help="End (inclusive).")
    ] = None,
    as_json: Json = False,
) -> int:
    """Merge state-change logs of many nodes into one timeline."""
    from logstore.replication.state_change_lines import Wanted, line_facts

    files = _files(logs, logs_regex, directory)
    wanted = Wanted(
        frozenset() if topic is None else frozenset((topic,)),
        partitions_wanted(partitions, topic),
        _time("--start-time", start_time, ""),
        _time("--end-time", end_time, "~"),
    )
    try:
        for line in merge(*(_lines(number, file, wanted) for number, file in enumerate(files))):
            if as_json:
                print_json({"file": str(files[line.file]), "line": line.number, **line_facts(line)})
            else:
                print(printable(line.text))
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}")
        return 1
    return 0


def _files(logs: list[Path] | None, regex: str | None, directory: Path) -> list[Path]:
    if (logs is None) == (regex is None):
        raise typer.BadParameter("give either --logs or --logs-regex")
    if logs is not None:
        files = [Path(name) for path in logs for name in str(path).split(",") if name]
        if missing := [str(file) for file in files if not file.is_file()]:
            raise typer.BadParameter(f"--logs: no such file: {', '.join(missing)}")
        return files
    assert regex is not None, "one of both was given"
    with value_of("--logs-regex", re.error):
        pattern = re.compile(regex)
    with value_of("--directory", OSError):
        there = sorted(path for path in directory.iterdir() if path.is_file())
    files = [path for path in there if pattern.fullmatch(path.name)]
    if not files:
        raise typer.BadParameter(f"--logs-regex: no file in {directory} matches")
    return files


def partitions_wanted(text: str | None, topic: str | None) -> frozenset[int]:
    """Return the numbers of `--partitions`; empty for all. Raises `typer.BadParameter`."""
    if text is None:
        return frozenset()
    if topic is None:
        raise typer.BadParameter("--partitions needs --topic")
    numbers = whole_numbers(text.split(","))
    if numbers is None:
        raise typer.BadParameter(f"--partitions: {text!r} is not a list of numbers")
    found = frozenset(numbers)
    if len(found) != len(numbers):
        raise typer.BadParameter(f"--partitions: {text!r} lists a number twice; list each once")
    return found


def _time(option: str, text: str | None, otherwise: str) -> str:
    from logstore.replication.state_change import parse_time

    if text is None:
        return otherwise
    with value_of(option, ValueError):
        parse_time(text)
    return text


def _lines(number: int, file: Path, wanted: Wanted) -> Iterator[Line]:
    from logstore.replication.state_change_lines import wanted_lines

    with file.open("rb") as lines:
        yield from wanted_lines(number, lines, wanted)
