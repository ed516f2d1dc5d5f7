"""`logstore cat`: the values of a log as lines, also while its owner appends.

The directory is read as it lies, without its lock and without the owner's help: what is shown may not be
synced or replicated yet. Markers of transactions are left out, records of aborted ones are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.terminal import complain

if TYPE_CHECKING:
    from typing import BinaryIO

    from tools.inspection import PartitionReader

_POLL_SECONDS = 0.2


def cat(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A partition's directory.", exists=True, file_okay=False)
    ],
    start: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="First offset; default: the oldest.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print each key too, with this behind it.")
    ] = None,
) -> int:
    """Print the values of a log, a line each; a null value is an empty line."""
    import sys
    import time

    from checkpoint.disk import OsDisk
    from tools.inspection import PartitionReader, Tail

    separator = key_separator.encode() if key_separator is not None else None
    reader = PartitionReader(OsDisk(), str(directory), start or 0)
    out = sys.stdout.buffer
    _print_new(reader, out, separator)
    try:
        while follow:
            time.sleep(_POLL_SECONDS)
            _print_new(reader, out, separator)
    except KeyboardInterrupt:
        return 0  # the way to end it
    if start is not None and start > reader.end_offset >= 0:
        complain(f"offset {start} is past the end of the log, {reader.end_offset}")
        return 1
    if start is not None and start < reader.start_offset:
        complain(f"records below offset {reader.start_offset} are gone; began there")
    if reader.tail is not Tail.END:
        complain("the log ends in the middle of a batch: being written, or torn by a crash")
    return 0


def _print_new(reader: PartitionReader, out: BinaryIO, separator: bytes | None) -> None:
    for batch in reader.batches():
        if batch.is_control:
            continue
        for record in batch.records():
            if record.offset < reader.next_offset:
                continue  # the batch began before the offset that was asked for
            if separator is not None:
                out.write((record.key or b"") + separator)
            out.write((record.value or b"") + b"\n")
    out.flush()
