"""Copy files and remove trees through the disk seam."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from logstore.disk.files import Disk

_PIECE_BYTES: Final = 1 << 20


def copy_file(disk: Disk, source: str, target: str, size: int | None = None) -> int:
    """Copy the first `size` bytes of `source` (default: all) to the new file `target`; return how many.

    Synced but for its name. A source that is shorter gives a shorter copy. Raises `OSError`, and
    `FileExistsError` if there is a `target`.
    """
    at = 0
    with (
        closing(disk.open(source)) as original,
        closing(disk.open(target, create=True, exclusive=True, write=True)) as copy,
    ):
        end = original.size() if size is None else size
        while at < end and (piece := original.pread(min(_PIECE_BYTES, end - at), at)):
            copy.pwrite(piece, at)
            at += len(piece)
        copy.sync()
    return at


def remove_tree(disk: Disk, directory: str) -> None:
    """Remove the directory with all it holds; durable after a `sync_dir` above it. Raises `OSError`."""
    for entry in disk.scan(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            remove_tree(disk, path)
        else:
            disk.remove(path)
    disk.remove_dir(directory)
