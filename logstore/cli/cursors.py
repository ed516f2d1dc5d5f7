"""`logstore cursors`: list the cursors of logs, move one, or remove one.

Listing takes no lock and changes nothing. `--reset` and `--remove` open the log; no other process may have it
open then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.arguments import whole_number
from logstore.cli.operating import Json, LogDirs, partitions_with, require_log
from logstore.cli.terminal import print_error, print_json, printable

if TYPE_CHECKING:
    from logstore.disk.files import Disk


def cursors(
    directories: LogDirs,
    as_json: Json = False,
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="NAME", help="Move this cursor; see --to.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="OFFSET",
            help="With --reset: an offset, or `start` or `end` of the log. [default: start]",
        ),
    ] = None,
    remove: Annotated[
        str | None, typer.Option("--remove", metavar="NAME", help="Remove this cursor.")
    ] = None,
) -> int:
    """List the cursors of logs: name, committed offset, lag."""
    from logstore.disk.files import OsDisk
    from logstore.log.cursor_file import CURSORS_FILE

    if to is not None and reset is None:
        raise typer.BadParameter("--to goes with --reset")
    if reset is not None or remove is not None:
        if len(directories) != 1 or (reset is not None and remove is not None):
            raise typer.BadParameter("--reset and --remove take one of them, and exactly one partition")
        return _change(str(directories[0]), reset, "start" if to is None else to, remove, as_json=as_json)
    disk = OsDisk()
    unreadable = 0
    for directory in partitions_with(CURSORS_FILE, disk, directories):
        unreadable += _list(disk, directory, as_json=as_json)
    return 1 if unreadable else 0


def _list(disk: Disk, directory: str, *, as_json: bool) -> int:
    """Print the cursors of a log; return the number of lines that cannot be read."""
    from logstore.log.cursor_file import CURSORS_FILE, read_cursors
    from logstore.log.snapshot import log_end_of

    found = read_cursors(disk, directory)
    end_offset = log_end_of(disk, directory)
    for name, offset in sorted(found.offsets.items()):
        lag = max(end_offset - offset, 0)
        if as_json:
            print_json({"directory": directory, "cursor": name, "offset": offset, "lag": lag})
        else:
            print(f"{directory} {printable(name)}: offset {offset}, lag {lag}")
    for number in found.unreadable:
        print_error(f"{directory}/{CURSORS_FILE}: line {number} cannot be read; opening the log removes it")
    return len(found.unreadable)


def _change(directory: str, reset: str | None, to: str, remove: str | None, *, as_json: bool) -> int:
    from logstore.disk.files import OsDisk
    from logstore.log.log import Log

    require_log(OsDisk(), directory)
    with Log.open(directory) as log:
        name = reset if reset is not None else str(remove)
        if name not in log.cursors():
            known = ", ".join(map(printable, sorted(log.cursors()))) or "none"
            print_error(f"{directory} has no cursor {printable(name)}; its cursors: {known}")
            return 1
        cursor = log.cursor(name)
        if reset is None:
            cursor.remove()
            if as_json:
                print_json({"directory": directory, "cursor": name, "is_removed": True})
            else:
                print(f"{directory}: cursor {printable(name)} removed")
            return 0
        bounds = {"start": log.log_start_offset, "end": log.log_end_offset}
        wanted = bounds[to] if to in bounds else whole_number(to)
        if wanted is None or wanted < 0:
            raise typer.BadParameter(f"--to is {to!r}; give an offset, `start` or `end`")
        offset = cursor.commit(wanted, sync=True)
        if as_json:
            lag = max(log.log_end_offset - offset, 0)
            print_json({"directory": directory, "cursor": name, "offset": offset, "lag": lag})
        else:
            print(f"{directory}: cursor {printable(name)} continues at offset {offset}")
    return 0
