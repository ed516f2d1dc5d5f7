"""The state-change log of a node: one line a decision, appended at once (`replication/state_change.py`).

Lines are not synced: after a power cut the last ones may be lost or torn, and the next start begins a new
line. If the disk fails, only this log stops. A file of `MOST_BYTES` is renamed to `….1`, in place of an
earlier one: both together are the newest decisions.
"""

from __future__ import annotations

import logging
from typing import Final

from logstore.disk.files import Disk, File
from logstore.replication.state_change import StateChange, format_line

MOST_BYTES: Final = 64 << 20
"""Some 400,000 decisions."""

_log = logging.getLogger(__name__)


class StateChangeFile:
    """A sink for state changes; call it with each."""

    def __init__(self, path: str, *, disk: Disk) -> None:
        """Open or create the file. Raises `OSError`."""
        self._path, self._disk = path, disk
        self._file: File = disk.open(path, create=True, write=True)
        self._size = self._file.size()
        self._has_failed = False
        if self._size and self._file.pread(1, self._size - 1) != b"\n":
            self._append(b"\n")

    def __call__(self, change: StateChange) -> None:
        self._append(f"{format_line(change)}\n".encode())

    def _append(self, data: bytes) -> None:
        if self._has_failed:
            return
        try:
            if self._size >= MOST_BYTES:
                self._begin_anew()
            self._file.pwrite(data, self._size)
            self._size += len(data)
        except OSError as error:
            self._has_failed = True
            _log.error("state-change log %s stopped: %s", self._path, error)

    def _begin_anew(self) -> None:
        self._file.close()
        self._disk.rename(self._path, f"{self._path}.1")
        self._file, self._size = self._disk.open(self._path, create=True, write=True), 0

    def close(self) -> None:
        self._file.close()
