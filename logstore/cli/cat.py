"""`logstore cat`: print the records of a log, also while its owner appends.

    cat DIR                        the values as lines: for people, and for values without line ends
    cat DIR --framing lengths      exact: of each record int32 length, key, int32 length, value
    cat DIR --json                 one object a line, with offset, time, key, value and headers

The integers of `lengths` are big-endian; -1 is null. If values (or keys) of the first form contain line ends,
more lines than records come out; a note on stderr counts them.

The directory is read without a lock and without its owner: records may not be synced or replicated yet.
Transaction markers are left out. Records of aborted transactions are printed, unless `--isolation
read_committed` is given; then the output ends before the first undecided transaction. Exit code 1 if the log
is damaged or, by the seals of the others, lacks a segment; 2 if the directory holds no log.
"""

from __future__ import annotations

import os
import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import Json, PartitionDir, require_log
from logstore.cli.terminal import Encoding, open_stream, print_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from logstore.format.record import Record
    from logstore.log.reader import LogReader

_POLL_SECONDS = 0.2
_LENGTH: Final = struct.Struct(">i")


class Isolation(StrEnum):
    """Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Framing(StrEnum):
    """How records are separated."""

    LINES = "lines"
    LENGTHS = "lengths"


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
    framing: Annotated[
        Framing, typer.Option(help="lengths: keys and values, each after its int32 length; -1 is null.")
    ] = Framing.LINES,
    as_json: Json = False,
    encoding: Annotated[
        Encoding, typer.Option(help="With --json; hex and base64 are exact, utf8 shows \\xNN.")
    ] = Encoding.UTF8,
) -> int:
    """Print the values of a log, one per line; a null value is an empty line."""
    import time

    from logstore.cli.verification import MAY_BE_TORN
    from logstore.cli.whole_trees import judge_list
    from logstore.disk.files import OsDisk
    from logstore.log.committed_reader import CommittedReader
    from logstore.log.reader import LogReader
    from logstore.segment.scan import Fault

    if key_separator is not None and (as_json or framing is Framing.LENGTHS):
        raise typer.BadParameter("--key-separator is for lines: the other forms hold the keys anyway")
    if as_json and framing is Framing.LENGTHS:
        raise typer.BadParameter("--json and --framing lengths: choose one")
    require_log(OsDisk(), str(directory))
    lines = _Lines(os.fsencode(key_separator) if key_separator is not None else None)
    encoded: Callable[[Record], bytes] = lines.encode
    if as_json:
        encoded = _json_encoder(encoding)
    elif framing is Framing.LENGTHS:
        encoded = _with_lengths
    kind = CommittedReader if isolation is Isolation.READ_COMMITTED else LogReader
    reader = kind(directory, start_offset=start)
    out = open_stream("stdout")
    try:
        while _print_new(reader, out, encoded, follow=follow) and follow:
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return 0  # the usual way to stop
    finally:
        if lines.torn:
            print_error(
                f"{lines.torn} of {lines.records} records contain line ends, so there are more lines than "
                "records; --json and --framing lengths keep them apart"
            )
    if start is not None and start > reader.log_end_offset >= 0:
        print_error(f"offset {start} is past the end of the log, {reader.log_end_offset}")
        return 1
    is_damaged = False
    for found in judge_list(OsDisk(), str(directory), start or 0):
        print_error(f"{found.path} at byte {found.position}: {found.text}")
        is_damaged = True
    tail = reader.tail
    if tail is None:
        return int(is_damaged)
    if tail.fault in (Fault.TORN, Fault.SIZE):
        print_error("the log ends in the middle of a batch: being written, or torn by a crash")
        return int(is_damaged)
    if tail.fault is Fault.ZEROS:
        print_error(f"{tail.file} at byte {tail.position}: {tail.size} {Fault.ZEROS.value}: {MAY_BE_TORN}")
        return int(is_damaged)
    print_error(f"{tail.file} at byte {tail.position}: {tail.fault.value}; the log ends before it")
    return 1


class _Lines:
    """Encodes values as lines, and counts the records that take more than one."""

    def __init__(self, separator: bytes | None) -> None:
        self._separator = separator
        self.records = 0
        self.torn = 0

    def encode(self, record: Record) -> bytes:
        line = record.value or b""
        if self._separator is not None:
            line = (record.key or b"") + self._separator + line
        self.records += 1
        self.torn += b"\n" in line
        return line + b"\n"


def _with_lengths(record: Record) -> bytes:
    parts = []
    for data in (record.key, record.value):
        parts += [_LENGTH.pack(-1 if data is None else len(data)), data or b""]
    return b"".join(parts)


def _json_encoder(encoding: Encoding) -> Callable[[Record], bytes]:
    import json

    from logstore.cli.facts import content_of

    def encode(record: Record) -> bytes:
        place = {"offset": record.offset, "timestamp": record.timestamp_ms}
        return json.dumps({**place, **content_of(record, encoding)}).encode() + b"\n"

    return encode


def _print_new(reader: LogReader, out: BinaryIO, encoded: Callable[[Record], bytes], *, follow: bool) -> bool:
    """Print the new records; return False if none can follow."""
    from logstore.errors import OffsetOutOfRange

    try:
        for record in reader.records():
            out.write(encoded(record))
    except OffsetOutOfRange as error:
        if error.offset < error.log_start_offset:
            print_error(f"records below offset {error.log_start_offset} were deleted; continuing there")
            reader.seek(error.log_start_offset)
            return _print_new(reader, out, encoded, follow=follow)
        if not follow:
            return False
        print_error(f"the log was truncated to offset {error.log_end_offset}; continuing there")
        reader.seek(error.log_end_offset)
    finally:
        out.flush()
    return True
