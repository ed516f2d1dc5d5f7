"""`logstore cat`: print the values of a log as lines, also while its owner appends.

The directory is read without a lock and without its owner: records may not be synced or replicated yet.
Transaction markers are left out. Records of aborted transactions are printed, unless `--isolation
read_committed` is given; then the output ends before the first undecided transaction.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import PartitionDir
from logstore.cli.terminal import print_error

if TYPE_CHECKING:
    from typing import BinaryIO

    from logstore.log.reader import LogReader

_POLL_SECONDS = 0.2


class Isolation(StrEnum):
    """Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


def cat(
    directory: PartitionDir,
    start: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="First offset; default: the oldest.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print each key, too, followed by TEXT.")
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option(help="read_committed: no undecided or aborted transactions.")
    ] = Isolation.READ_UNCOMMITTED,
) -> int:
    """Print the values of a log, one per line; a null value is an empty line."""
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
        return 0  # the usual way to stop
    if start is not None and start > reader.log_end_offset >= 0:
        print_error(f"offset {start} is past the end of the log, {reader.log_end_offset}")
        return 1
    tail = reader.tail
    if tail is None:
        return 0
    if tail.fault in (Fault.TORN, Fault.SIZE):
        print_error("the log ends in the middle of a batch: being written, or torn by a crash")
        return 0
    print_error(f"{tail.file} at byte {tail.position}: {tail.fault.value}; the log ends before it")
    return 1


def _print_new(reader: LogReader, out: BinaryIO, separator: bytes | None, *, follow: bool) -> bool:
    """Print the new records; return False if none can follow."""
    from logstore.errors import OffsetOutOfRange

    try:
        for record in reader.records():
            if separator is not None:
                out.write((record.key or b"") + separator)
            out.write((record.value or b"") + b"\n")
    except OffsetOutOfRange as error:
        if error.offset < error.log_start_offset:
            print_error(f"records below offset {error.log_start_offset} were deleted; continuing there")
            reader.seek(error.log_start_offset)
            return _print_new(reader, out, separator, follow=follow)
        if not follow:
            return False
        print_error(f"the log was truncated to offset {error.log_end_offset}; continuing there")
        reader.seek(error.log_end_offset)
    finally:
        out.flush()
    return True
