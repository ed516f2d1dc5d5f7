"""Kafka's checkpoint text format, common to offset and leader-epoch checkpoints.

    0                  version, always 0
    2                  number of entries
    orders 0 42        one entry a line, its fields separated by blanks
    my-topic 11 7
                       every line, the last one too, ends with \\n

An empty file and a file of the version line alone have no entries. The files are replaced whole
(`publish`), so a crash leaves the old or the new one; anything that does not parse was damaged by
something else, and raises `CorruptCheckpoint`.

Stricter than Kafka in one thing: a file whose last line is not ended is refused, because `42` cut
after the `4` is still a number. Kafka ends every line that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from logstore.disk.errors import CorruptCheckpoint

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# Not `str.isdigit` or a bare `int()`, which take digits of every script, underscores and blanks; the
# zeros stand apart because `int()` refuses thousands of them.
_INTEGER = re.compile(r"-?0*(?P<digits>[0-9]{1,19})", re.ASCII)
_BLANKS = re.compile(r"[ \t\x0b\f]+")
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_entries(data: bytes, *, fields: int, path: str) -> list[list[str]]:
    """The entries of a checkpoint, each a list of `fields` texts. Raises `CorruptCheckpoint`."""
    lines = split_lines(data, path=path)
    if not lines:
        return []
    version = parse_number(lines[0], INT32_MAX, where=f"{path}: version line")
    if version != 0:
        raise CorruptCheckpoint(f"{path}: version {version} is not supported; only version 0 is")
    if len(lines) == 1:
        return []
    count = parse_number(lines[1], INT32_MAX, where=f"{path}: count line")
    # Counted, not believed: nothing is sized by the number in the file.
    if count != len(lines) - 2:
        raise CorruptCheckpoint(f"{path}: {count} entries are announced, {len(lines) - 2} are there")
    entries = []
    for number, line in enumerate(lines[2:], 3):
        entry = _BLANKS.split(line.rstrip(" \t\x0b\f"))
        if len(entry) != fields or not entry[0]:
            raise CorruptCheckpoint(f"{path}: line {number} does not have {fields} fields: {line[:80]!r}")
        entries.append(entry)
    return entries


def format_entries(entries: Iterable[str]) -> bytes:
    """A checkpoint of ready entry lines, in the order given."""
    lines = list(entries)
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def split_lines(data: bytes, *, path: str) -> list[str]:
    """The lines of a text whose every line is ended. Raises `CorruptCheckpoint`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path}: not UTF-8 at byte {error.start}") from error
    # Not `str.splitlines`, which also ends a line at form feeds and Unicode separators.
    lines = _LINE_END.split(text)
    if lines.pop():
        raise CorruptCheckpoint(f"{path}: the last line is cut short")
    return lines


def parse_number(text: str, most: int, *, where: str) -> int:
    """A decimal number of 0 to `most` in ASCII digits. Raises `CorruptCheckpoint` naming `where`."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise CorruptCheckpoint(f"{where}: {text[:80]!r} is not a whole number")
    number = int(match["digits"])
    if text.startswith("-") and number:
        raise CorruptCheckpoint(f"{where}: {text[:80]} is negative")
    if number > most:
        raise CorruptCheckpoint(f"{where}: {text[:80]} is above {most}")
    return number
