"""The error for a directory that another process has locked."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from typing import IO

from logstore.disk.errors import DirectoryLocked

if sys.platform == "linux":
    import fcntl

# Linux's `struct flock`: type, whence, start, length, process id.
_FLOCK = struct.Struct("hhqqi4x")


def in_use(directory: str, path: str, file: IO[bytes]) -> DirectoryLocked:
    """Return the error for a directory whose lock file `path`, open as `file`, is held elsewhere."""
    return DirectoryLocked(
        f"{directory} is in use by another process{_owner(file)}, which holds {path}; stop it, use another "
        "directory, or share a broker between them"
    )


def _owner(file: IO[bytes]) -> str:
    """Return the id of the process that has the `fcntl` lock, in words.

    Nothing for one of another host or container, and for one that has a `flock` alone.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            asked = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
            kind, _, _, _, process_id = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK and process_id > 0:
                return f" (id {process_id})"
    return ""
