"""`logstore cat`: the values of a log as lines, also while its owner appends.

The directory is read as it lies, without its lock and without the owner's help: what is shown may not be
synced or replicated yet. Markers of transactions are left out. Records of aborted transactions are not,
unless `--isolation read_committed` asks for that: then the output ends before the first transaction that
is not decided.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.terminal import complain

if TYPE_CHECKING:
    from typing import BinaryIO

    from logstore.log.reader import LogReader

_POLL_SECONDS = 0.2


class Isolation(StrEnum):
    """Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


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
    isolation: Annotated[
        Isolation, typer.Option(help="read_committed: nothing undecided, nothing aborted.")
    ] = Isolation.READ_UNCOMMITTED,
) -> int:
    """Print the values of a log, a line each; a null value is an empty line."""
    import sys
    import time

    from logstore.log.committed_reader import CommittedReader
    from logstore.log.reader import LogReader
    from logstore.segment.scan import Fault

    separator = key_separator.encode() if key_separator is not None else None
    kind = CommittedReader if isolation is Isolation.READ_COMMITTED else LogReader
    reader = kind(directory, start_offset=start)
    out = sys.stdout.buffer
    try:
        while _print_new(reader, out, separator, follow=follow) and follow:
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return 0  # the way to end it
    if start is not None and start > reader.log_end_offset >= 0:
        complain(f"offset {start} is past the end of the log, {reader.log_end_offset}")
        return 1
    tail = reader.tail
    if tail is None:
        return 0
    if tail.fault in (Fault.TORN, Fault.SIZE):
        complain("the log ends in the middle of a batch: being written, or torn by a crash")
        return 0
    complain(f"{tail.file} at byte {tail.position}: {tail.fault.value}; the log ends before it")
    return 1


def _print_new(reader: LogReader, out: BinaryIO, separator: bytes | None, *, follow: bool) -> bool:
    """Print what has come; False where nothing can follow."""
    from logstore.errors import OffsetOutOfRange

    try:
        for record in reader.records():
            if separator is not None:
                out.write((record.key or b"") + separator)
            out.write((record.value or b"") + b"\n")
    except OffsetOutOfRange as error:
        if error.offset < error.log_start_offset:
            complain(f"records below offset {error.log_start_offset} are gone; went on there")
            reader.seek(error.log_start_offset)
            return _print_new(reader, out, separator, follow=follow)
        if not follow:
            return False
        complain(f"the log was cut at offset {error.log_end_offset}; going on there")
        reader.seek(error.log_end_offset)
    finally:
        out.flush()
    return True
