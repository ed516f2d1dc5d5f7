"""Files of the host outside of logs: private ones, text of users, and all below a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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


def input_text(file: Path) -> str:
    """Return the text of a user's file, without a byte order mark.

    Raises `OSError`, and `ValueError` for another encoding than UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not valid UTF-8 ({error.reason}): convert it to UTF-8") from None


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory. Raises `OSError`, also for a directory that may not be listed.

    `Path.rglob` leaves out such a directory without an error.
    """

    def fail(error: OSError) -> None:
        raise error

    for place, _, names in os.walk(directory, onerror=fail):
        yield from (Path(place, name) for name in names)
