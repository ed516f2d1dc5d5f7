"""`logstore append`: append each line of stdin to a log as a record.

All lines that have arrived form one batch, so that a busy pipe is fast and a slow one does not wait. A log
has one writer: a directory that a broker or another `append` has open is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import open_stream, print_error, print_json, told

if TYPE_CHECKING:
    Pair = tuple[bytes | None, bytes]

_READ_BYTES = 1 << 18
# Below the default max.message.bytes, with room for the overhead of each record.
_BATCH_BYTES = 1 << 16
_BATCH_RECORDS = 8192


def append(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="<topic>-<partition>, created if missing.")
    ],
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The key is the text before it in each line.")
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Sync each batch before the next one is read.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Append the lines of stdin to a log, without their line ends."""
    from logstore.disk.errors import EngineError, InvalidTopic
    from logstore.log.log import Log

    separator = os.fsencode(key_separator) if key_separator is not None else None
    if separator == b"":
        raise typer.BadParameter("--key-separator must not be empty")
    count, first_offset, last_offset, line_number = 0, None, None, 0
    refused = ""
    lines_in = open_stream("stdin")
    try:
        opened = Log.open(directory)
    except InvalidTopic as error:
        raise typer.BadParameter(str(error)) from error
    with opened as log:
        for lines in batches_of_lines(lines_in):
            pairs: list[Pair] = []
            for line in lines:
                line_number += 1
                if separator is not None and separator not in line:
                    refused = (
                        f"line {line_number} has no {key_separator!r}; it and the rest were not appended"
                    )
                    break
                pairs.append(split_key(line, separator))
            if pairs:
                try:
                    info = log.append(pairs, sync=sync)
                except EngineError:
                    if count:
                        print_error(f"the first {count} lines are at offsets {first_offset} to {last_offset}")
                    raise
                first_offset = info.first_offset if first_offset is None else first_offset
                last_offset = info.last_offset
                count += len(pairs)
            if refused:
                break
        log_end_offset = log.log_end_offset
    with told(f"the lines are in the log, up to offset {last_offset}" if count else "nothing was appended"):
        if as_json:
            print_json(
                {
                    "appended": count,
                    "first_offset": first_offset,
                    "last_offset": last_offset,
                    "log_end_offset": log_end_offset,
                }
            )
        elif count:
            records = "1 record at offset" if count == 1 else f"{count} records at offsets {first_offset} to"
            print(f"appended {records} {last_offset}")
        else:
            print(f"appended nothing; the log ends at offset {log_end_offset}")
    if refused:
        print_error(refused)
        return 1
    return 0


def split_key(line: bytes, separator: bytes | None) -> Pair:
    """Return key and value of a line; without a separator the line is the value, the key null."""
    if separator is None:
        return None, line
    key, _, value = line.partition(separator)
    return key, value


def batches_of_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their `\\n`, in groups that fit one batch; the last line may lack its end.

    A group ends when the stream has no more data at the moment. A line longer than a batch is a group of
    its own; the log decides about it.
    """
    read = getattr(stream, "read1", stream.read)
    unfinished: list[bytes] = []
    while chunk := read(_READ_BYTES):
        first, *lines = chunk.split(b"\n")
        unfinished.append(first)
        if lines:
            lines.insert(0, b"".join(unfinished))
            unfinished = [lines.pop()]
            yield from _groups(lines)
    if rest := b"".join(unfinished):
        yield [rest]


def _groups(lines: list[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and (size + len(line) > _BATCH_BYTES or len(group) == _BATCH_RECORDS):
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group
