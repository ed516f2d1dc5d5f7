"""A log that one process writes and another reads.

    python examples/other_process.py write DIRECTORY < lines.txt
    python examples/other_process.py read DIRECTORY             in a second terminal, meanwhile or later

The writer owns the directory. The reader takes no lock and changes nothing; it may start, stop and fall
behind as it likes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from logstore import Log, LogReader


def write(directory: str, lines: Iterable[bytes]) -> None:
    with Log.open(f"{directory}/lines-0") as log, log.writer(linger_ms=20) as writer:
        for line in lines:
            writer.append(line.rstrip(b"\n"))


def read(directory: str) -> None:
    for record in LogReader(f"{directory}/lines-0").follow(0):  # sleeps at the end until the writer appends
        print(record.offset, (record.value or b"").decode(errors="backslashreplace"), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", directory]:
            write(directory, sys.stdin.buffer)
        case ["read", directory]:
            with suppress(KeyboardInterrupt):  # the way to end it
                read(directory)
        case _:
            sys.exit(__doc__)
