"""Directories that may not be listed, also where the tests run as root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def unreadable(directory: Path) -> Iterator[None]:
    """Let nobody list `directory`."""
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if not isinstance(path, int) and Path(os.fsdecode(path)) == directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        return listed(path)

    with mock.patch.object(os, "scandir", scandir):
        yield
