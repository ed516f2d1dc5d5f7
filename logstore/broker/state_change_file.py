"""The state-change log of a node: one line a decision, appended at once (`replication/state_change.py`).

Lines are not synced: after a power cut the last ones may be lost or torn, and the next start begins a new
line. While the disk refuses lines, they are lost, and the process log says so; nothing else stops. A file of
`MOST_BYTES` is renamed to `….1`, in place of an earlier one: both together are the newest decisions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from logstore.disk.files import Disk, File
from logstore.loggers import logger_of
from logstore.replication.state_change import StateChange, format_line

MOST_BYTES: Final = 64 << 20
"""Some 400,000 decisions."""
OFF: Final = "none"
"""The setting by which there is no state-change log."""

_log = logger_of(__name__)


def default_path(log_dirs: Sequence[str]) -> str:
    """Return the path beside the first log dir: what opens log dirs never meets the file."""
    first = log_dirs[0].rstrip("/")
    if os.path.basename(first) in ("", ".", ".."):
        first = os.path.realpath(log_dirs[0])  # a name put behind a dot would be inside the log dir
    return f"{first}.state-changes"


class StateChangeFile:
    """A sink for state changes; call it with each."""

    def __init__(self, path: str, *, disk: Disk) -> None:
        self._path, self._disk = path, disk
        self._file: File | None = None
        self._size = 0
        self._lost = 0
        """The lines lost since the disk refused one."""

    def open(self) -> File:
        """Open or create the file, if that is still to do: the first line does. Raises `OSError`."""
        if self._file is None:
            file = self._disk.open(self._path, create=True, write=True)
            self._size = file.size()
            if self._size and file.pread(1, self._size - 1) != b"\n":
                file.pwrite(b"\n", self._size)
                self._size += 1
            self._file = file
        return self._file

    def __call__(self, change: StateChange) -> None:
        try:
            self._append(f"{format_line(change)}\n".encode())
        except OSError as error:
            if not self._lost:
                _log.error(
                    "state-change log %s: decisions are not written: %s. Make room, or set state.change.log "
                    "to a file that the broker may write, or to none",
                    self._path,
                    error,
                )
            self._lost += 1

    def _append(self, data: bytes) -> None:
        file = self.open()
        if self._size >= MOST_BYTES:
            file.close()
            self._file = None
            self._disk.rename(self._path, f"{self._path}.1")
            file = self.open()
        if self._lost:
            file.truncate(self._size)  # a refused line may have left its beginning
        file.pwrite(data, self._size)
        self._size += len(data)
        if self._lost:
            _log.warning("state-change log %s: written again; %d lines are missing", self._path, self._lost)
            self._lost = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
