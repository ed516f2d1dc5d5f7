"""`logstore timeline`: the events of a partition or a cluster, in one view, ordered by time.

Sources, in any number and mixture: state-change logs, directories that hold such logs and the partitions of
nodes (their loss ledgers say what was truncated), or the trace of one simulation. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.merge_state_changes import Partitions, partitions_wanted
from logstore.cli.operating import Json
from logstore.cli.terminal import print_error, print_json, printable

if TYPE_CHECKING:
    from logstore.replication.history import Event
    from logstore.replication.state_change_lines import Wanted


def timeline(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="State-change logs, directories of nodes, or a trace."),
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="Only events of this topic.")] = None,
    partitions: Partitions = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also what each broker did about a decision of the controller.")
    ] = False,
    as_json: Json = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also write a drawing.")] = None,
) -> int:
    """Show elections, ISR changes, truncations and losses from many nodes in one view."""
    from logstore.cli.timeline_drawing import MOST_EVENTS, draw
    from logstore.replication.history import Kind, as_fact, time_of
    from logstore.replication.state_change_lines import Wanted

    wanted = Wanted(
        frozenset() if topic is None else frozenset((topic,)), partitions_wanted(partitions, topic)
    )
    missing = [str(path) for path in sources if not path.exists()]
    if missing:
        raise typer.BadParameter(f"no such file or directory: {', '.join(missing)}")
    traces = [path for path in sources if path.is_file() and _is_trace(path)]
    if traces and len(sources) > 1:
        raise typer.BadParameter("a trace has virtual time: name it without other files")
    is_virtual = bool(traces)
    unreadable: list[str] = []
    try:
        events_found = _events(sources, wanted, unreadable, is_trace=is_virtual)
        found = sorted(events_found, key=lambda event: event.time_ms)
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}")
        return 1
    events = [event for event in found if roles or event.kind is not Kind.ROLE]
    if svg is not None:
        if len(events) > MOST_EVENTS:
            print_error(f"{len(events)} events are too many to draw; select with --topic and --partitions")
            return 1
        title = "Timeline" if topic is None else f"Timeline of {topic}"
        drawing = draw(title, events, lambda event: time_of(event, is_virtual=is_virtual))
        svg.write_text(drawing, encoding="utf-8")
    for event in events:
        if as_json:
            print_json(as_fact(event, is_virtual=is_virtual))
            continue
        node = "" if event.node is None else f"node {event.node}"
        what = f"{event.partition or ''!s:<12} {node:<8} {event.kind.value:<12} {printable(event.text)}"
        print(f"{time_of(event, is_virtual=is_virtual):>10}  {what}")
    if not found and topic is None:
        print_error("no events in " + ", ".join(map(str, sources)))
    for line in unreadable:
        print_error(f"{line} cannot be read; others are shown")
    return 1 if unreadable else 0


def _is_trace(path: Path) -> bool:
    from logstore.testing.traced import is_trace

    with path.open(encoding="utf-8", errors="backslashreplace") as file:
        return is_trace(file.readline(200))


def _events(sources: list[Path], wanted: Wanted, unreadable: list[str], *, is_trace: bool) -> Iterator[Event]:
    from logstore.replication.history import of_lines
    from logstore.replication.state_change_lines import wanted_lines
    from logstore.testing.traced import Reader

    if is_trace:
        with sources[0].open(encoding="utf-8", errors="backslashreplace") as lines:
            for event in Reader().read(lines):
                where = event.partition
                if where is None or wanted.selects(where):
                    yield event
        return
    logs, ledgers = _found_in(sources)
    if not logs and not ledgers:
        raise typer.BadParameter(
            f"no state-change log and no loss ledger in {', '.join(map(str, sources))}: give the directory "
            "of a cluster or node, or a log itself; brokers write it beside their first log dir"
        )
    for source in sources:
        if source.is_file():
            _refuse_other_kinds(source)
    for number, log in enumerate(logs):
        with log.open("rb") as raw:
            yield from of_lines(wanted_lines(number, raw, wanted), wanted)
    for directory in ledgers:
        yield from _losses(directory, wanted, unreadable)


def _refuse_other_kinds(path: Path) -> None:
    from logstore.replication.state_change_lines import Wanted, wanted_lines

    with path.open("rb") as raw:
        is_log = next(wanted_lines(0, raw, Wanted()), None) is not None
        if raw.tell() and not is_log:
            raise typer.BadParameter(
                f"{path} is neither a state-change log nor a trace: no line begins with a time and names a "
                "partition as [topic,partition]"
            )


def _found_in(sources: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the state-change logs, and the partition directories with a loss ledger, each once.

    Raises `OSError`, also for a directory that may not be listed.
    """
    from logstore.disk.host_files import files_below
    from logstore.log.losses import LEDGER, LOST_DIRECTORY

    logs: dict[Path, None] = {}
    ledgers: dict[Path, None] = {}
    for source in (each.resolve() for each in sources):
        if source.is_file():
            logs[source] = None
            continue
        below = sorted(files_below(source))
        named = (*_beside(source), *(path for path in below if "state-change" in path.name))
        logs |= dict.fromkeys(path for path in named if path.is_file())
        ends = (LOST_DIRECTORY, LEDGER)
        ledgers |= dict.fromkeys(path.parents[1] for path in below if path.parts[-2:] == ends)
    return list(logs), list(ledgers)


def _beside(log_dir: Path) -> list[Path]:
    """Return the state-change logs that a broker has written beside its first log dir."""
    start = f"{log_dir.name}.state-change"
    return sorted(path for path in log_dir.parent.iterdir() if path.name.startswith(start))


def _losses(directory: Path, wanted: Wanted, unreadable: list[str]) -> Iterator[Event]:
    from logstore.disk.files import OsDisk
    from logstore.disk.topic_partition import TopicPartition
    from logstore.log.losses import LEDGER, Quarantine
    from logstore.replication.history import of_loss

    topic, _, number = directory.name.rpartition("-")
    if not (topic and number.isascii() and number.isdecimal()):
        return
    partition = TopicPartition(topic, int(number))
    if not wanted.selects(partition):
        return
    place = f"{directory.parent.name}/{directory.name}"
    quarantine = Quarantine(OsDisk(), str(directory))
    ledger = quarantine.read()
    unreadable += [f"{quarantine.path}/{LEDGER}: line {number}" for number in ledger.unreadable]
    for loss in quarantine.losses(ledger):
        yield of_loss(loss, partition, place)
