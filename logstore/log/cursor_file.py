"""The committed positions of a log's cursors: `cursors.jsonl` in its directory.

    {"cursor": "billing", "offset": 17, "crc": "8d2f00a1"}       the next record of `billing` is 17
    {"cursor": "audit", "offset": null, "crc": "51ee0c77"}       `audit` was removed

Each line is a commit; the last sound line of a cursor counts. `crc` is the CRC-32C of the line up to the
comma before it, as in the loss ledger. Kafka's loader ignores the name.

A commit appends a line, so a killed process loses none; `sync` makes all lines survive power loss. A lost
line gives records again, it never skips any. The exception is a position past the log end, which a power cut
leaves if it took records and not the commit: records of the same offsets would be skipped. So positions are
lowered to the log end when the log is opened, and to the cut by a truncation, and the file is replaced as a
whole (`publish`) before another record can be written. It is replaced as well when it has grown, and at the
opening after a crash that tore a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from logstore.disk.files import Disk, File, publish, read_small_file
from logstore.log.losses import encode_line, line_body

CURSORS_FILE: Final = "cursors.jsonl"
LONGEST_NAME: Final = 249
_LARGEST_BYTES: Final = 64 << 10
"""A file that has grown by so much is replaced by one line for each cursor."""


class CursorText(NamedTuple):
    """The content of a cursor file: name → offset, and the numbers of unreadable lines (from 1)."""

    offsets: dict[str, int]
    unreadable: tuple[int, ...]
    is_torn: bool
    """Whether bytes follow the last line end."""


def parse_cursors(data: bytes) -> CursorText:
    """Parse a cursor file. Unreadable lines are reported and hide no others."""
    offsets: dict[str, int] = {}
    unreadable = []
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        match _fields(line):
            case (str(name), int(offset)) if name and offset >= 0:
                offsets[name] = offset
            case (str(name), None):
                offsets.pop(name, None)
            case _:
                unreadable.append(number)
    return CursorText(offsets, tuple(unreadable), bool(rest))


def _fields(line: bytes) -> tuple[object, object] | None:
    body = line_body(line)
    try:
        facts = json.loads(body + b"}") if body is not None else {}
        return facts["cursor"], facts["offset"]
    except (ValueError, KeyError, RecursionError):
        return None


def format_cursors(offsets: Mapping[str, int | None]) -> bytes:
    """Return one line for each cursor; None removes it."""
    return b"".join(encode_line({"cursor": name, "offset": offset}) for name, offset in offsets.items())


def read_cursors(disk: Disk, directory: str) -> CursorText:
    """Read the cursors of the log in `directory`; none without a file. Raises `OSError`."""
    return parse_cursors(read_small_file(disk, f"{directory}/{CURSORS_FILE}") or b"")


def check_cursor_name(name: object) -> str:
    """Return `name` if a cursor may have it. Raises `TypeError` or `ValueError`."""
    if not isinstance(name, str):
        raise TypeError(f"a cursor's name is text, not {type(name).__name__}")
    if not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a cursor's name has 1 to {LONGEST_NAME} characters, not {len(name)}")
    return name


class CursorFile:
    """The cursors of an open log. Its lock is the log's, for all but reading and `sync`."""

    def __init__(self, disk: Disk, directory: str, offsets: Mapping[str, int] | None = None) -> None:
        """Start with `offsets`, which the file holds."""
        self._disk = disk
        self._directory = directory
        self._file: File | None = None
        self._end = self._synced_end = 0
        self.offsets: dict[str, int] = dict(offsets or {})
        """Name → the next offset, as committed."""

    @property
    def is_synced(self) -> bool:
        """Whether every commit survives power loss."""
        return self._synced_end == self._end

    @property
    def slowest(self) -> int | None:
        """The lowest committed offset; None without cursors."""
        return min(self.offsets.values(), default=None)

    def put(self, name: str, offset: int | None) -> None:
        """Commit a position; None removes the cursor. Raises `OSError` with nothing changed."""
        changed = {**self.offsets}
        if offset is None:
            changed.pop(name, None)
        else:
            changed[name] = offset
        if self._file is None or self._end >= _LARGEST_BYTES + len(changed) * 2 * LONGEST_NAME:
            self.replace(changed)
            return
        line = format_cursors({name: offset})
        try:
            self._file.pwrite(line, self._end)
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(line)
        self.offsets = changed

    def lower(self, offset: int) -> None:
        """Move cursors that are past `offset` back to it, durably. Raises `OSError`."""
        if any(each > offset for each in self.offsets.values()):
            self.replace({name: min(each, offset) for name, each in self.offsets.items()})

    def sync(self) -> None:
        """Make every commit survive power loss. Raises `OSError`; never call it again then."""
        file, end = self._file, self._end  # a commit that comes meanwhile asks for another sync
        if file is not None and self._synced_end < end:
            file.sync(data_only=True)
            if file is self._file:
                self._synced_end = end

    def let_go(self) -> None:
        """Release the file."""
        self._file = None

    def replace(self, offsets: dict[str, int]) -> None:
        """Rewrite the file durably. Raises `OSError`."""
        data = format_cursors(offsets)
        publish(self._disk, self._directory, CURSORS_FILE, data)
        self._file = self._disk.open(f"{self._directory}/{CURSORS_FILE}", write=True)
        self._end = self._synced_end = len(data)
        self.offsets = offsets


def load_cursors(
    disk: Disk, directory: str, log_end_offset: int, *, is_clean: bool
) -> tuple[CursorFile, CursorText]:
    """Return the cursors of a log that is being opened, and the content of their file.

    They are durable, and none is past the log end. `is_clean`: the last owner has synced them. Raises
    `OSError`.
    """
    if not is_clean:
        with closing(disk.open(f"{directory}/{CURSORS_FILE}", write=True)) as file:
            file.sync()
    found = read_cursors(disk, directory)
    cursors = CursorFile(disk, directory, found.offsets)
    if found.unreadable or found.is_torn:
        cursors.replace(found.offsets)
    cursors.lower(log_end_offset)
    return cursors, found
