"""The audit log: a line of JSON for each login, refusal and administrative change.

    {"time":"2026-11-23T14:30:00.123Z","event":"denied","principal":"User:bob","host":"10.0.0.7",…}

Changes go to the file `audit.log.path`. Logins, refusals and denials go to `….access` beside it: a client
without any right can cause as many as it likes, and they must not push out the changes. Without a path, all
lines go to the logger `logstore.audit`, which adds the time. A file of `audit.log.max.bytes` is renamed to
`….1`, an earlier one to `….2`, and so on up to `audit.log.files` files in all, of either kind. Only its owner
may read them. Lines are not synced: a power cut may take the last ones, and a torn line stays alone. A line
that the file does not take goes to the logger; the failure is logged, counted and shown by `/healthz`, and
the next line is tried again.

Names come from clients: escaped as JSON they cannot forge a line, and long ones are cut. Secrets and records
are never in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from logstore.broker.json_lines import utc_text
from logstore.disk.errors import explained
from logstore.disk.files import Disk, File, OsDisk, wall_clock_ms
from logstore.disk.host_files import make_private
from logstore.loggers import logger_of

ACCESS_SUFFIX: Final = ".access"
_OF_ACCESS: Final = frozenset({"login", "login renewed", "login failed", "refused", "denied"})
MOST_TEXT: Final = 500
"""Characters of a name or a reason."""
MOST_ITEMS: Final = 1_000
"""Entries of a list."""

_log = logger_of(__name__)
_lines = logger_of("logstore.audit")


class AuditFile:
    """Appends lines to a file that is replaced when it is full."""

    def __init__(self, path: str, max_bytes: int, files: int, *, disk: Disk | None = None) -> None:
        """Open or create the file. `files` counts it and the earlier ones. Raises `OSError`."""
        self.path = path
        self._max_bytes, self._files, self._disk = max_bytes, files, disk or OsDisk()
        self._file = self._open()

    def _open(self) -> File:
        try:
            make_private(self.path)
            return self._disk.open(self.path, create=True, write=True)
        except OSError as error:
            raise explained(error, f"cannot open the audit log {self.path} (audit.log.path)") from error

    def append(self, line: bytes) -> None:
        """Append a line, which ends with a newline. Raises `OSError`; the next call may succeed."""
        if not self._file.names():
            self._begin_anew()  # somebody removed it
        # The size each time: another process may append to the same file by mistake.
        if (size := self._file.size()) >= self._max_bytes:
            self._make_room()
            self._begin_anew()
            size = self._file.size()
        torn = size and self._file.pread(1, size - 1) != b"\n"
        self._file.pwrite(b"\n" + line if torn else line, size)

    def _make_room(self) -> None:
        """Rename the files, as far as the first name that is free.

        A retry after a failure must not rename the earlier files again, or they would be lost.
        """
        if os.path.lexists(self.path) and os.path.getsize(self.path) < self._max_bytes:
            return
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, self._files))]
        free = next((at for at, name in enumerate(names) if not os.path.lexists(name)), self._files - 1)
        for at in range(free, 0, -1):
            self._disk.rename(names[at - 1], names[at])

    def _begin_anew(self) -> None:
        former, self._file = self._file, self._open()
        former.close()

    def close(self) -> None:
        self._file.close()


class AuditState(NamedTuple):
    """State of the audit log, for metrics and health. `error` is empty while lines are written."""

    path: str
    lines: int
    failed: int
    error: str


class Audit:
    """Writes the audit log of one broker: `audit("denied", principal=…)`."""

    def __init__(
        self,
        file: AuditFile | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        *,
        access: AuditFile | None = None,
    ) -> None:
        """Without a file, lines go to the logger. `access` takes the lines that any client can cause."""
        self._file, self._access, self._now_ms = file, access or file, now_ms
        self._written = self._failed = 0
        self._errors: dict[str, str] = {}
        """By the path of a file that does not take lines."""

    def __call__(self, event: str, **facts: object) -> None:
        """Write one line."""
        found = {"event": event, **{name: _short(value) for name, value in facts.items()}}
        file = self._access if event in _OF_ACCESS else self._file
        if file is None or not self._took(file, found):
            _lines.info(json.dumps(found, default=str))
        self._written += 1

    def _took(self, file: AuditFile, found: dict[str, object]) -> bool:
        line = json.dumps({"time": utc_text(self._now_ms() / 1000), **found}, default=str)
        try:
            file.append(f"{line}\n".encode())
        except OSError as error:
            self._failed += 1
            if file.path not in self._errors:
                _log.error(
                    "audit log %s cannot be written, its lines go to this log instead: %s", file.path, error
                )
            self._errors[file.path] = str(error)
            return False
        if self._errors.pop(file.path, ""):
            _log.warning("audit log %s is written again; %d lines are missing", file.path, self._failed)
        return True

    @property
    def state(self) -> AuditState:
        path, errors = self._file.path if self._file else "", self._errors.values()
        return AuditState(path, self._written, self._failed, next(iter(errors), ""))

    def close(self) -> None:
        """Close the files; later lines go to the logger."""
        for file in (self._file, self._access):
            if file is not None:
                file.close()
        self._file = self._access = None


def _short(value: object) -> object:
    """Return what may come from a client, cut so that it cannot fill the file."""
    match value:
        case str():
            return value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}… ({len(value)} characters)"
        case Mapping():
            return {str(_short(name)): _short(each) for name, each in list(value.items())[:MOST_ITEMS]}
        case list() | tuple():
            return [_short(each) for each in value[:MOST_ITEMS]]
    return value
