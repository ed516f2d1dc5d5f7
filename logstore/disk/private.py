"""Files and directories that only their owner may read."""

from __future__ import annotations

import os
from contextlib import suppress

from logstore.disk.files import open_regular


def make_private(path: str) -> None:
    """Create a file, unless it exists, and let only its owner read and write it. Raises `OSError`."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def make_private_dir(directory: str) -> None:
    """Create a directory for its owner only, unless it exists, and those above it. Raises `OSError`."""
    os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
