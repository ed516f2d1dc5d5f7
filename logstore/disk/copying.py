"""Copy files, share them between directories and remove trees, through the disk seam.

link_or_copy     a second name for the same bytes; a copy where the file system has no links
make_own         the other way: before a file with several names is changed in place
made_whole       a new directory, of which a crash leaves nothing or all
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

from logstore.disk.files import TEMPORARY_SUFFIX, Disk, make_durable_dir, remove_if_exists

_PIECE_BYTES: Final = 1 << 20
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


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


def link_or_copy(disk: Disk, source: str, target: str) -> int:
    """Link `source` as `target`, or copy it where that is impossible; return the number of copied bytes.

    Raises `OSError`, `FileExistsError` if there is a `target`.
    """
    try:
        disk.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return copy_file(disk, source, target)
    return 0


def make_own(disk: Disk, path: str) -> bool:
    """Give a file with several names a copy under `path`, durably; return whether it had several.

    Files that are open still refer to the shared one. A missing file has none. Raises `OSError`.
    """
    try:
        with closing(disk.open(path)) as file:
            if file.names() < 2:
                return False
    except FileNotFoundError:
        return False
    remove_if_exists(disk, path + TEMPORARY_SUFFIX)
    copy_file(disk, path, path + TEMPORARY_SUFFIX)
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_dir(posixpath.dirname(path))
    return True


def is_there(disk: Disk, path: str) -> bool:
    """Return whether a directory, or anything else, has this name. Raises `OSError`."""
    try:
        disk.scan(path)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    return True


def prepare_new(disk: Disk, *targets: str) -> None:
    """Make the directory above new ones, which lie side by side. Raises `FileExistsError` if one exists."""
    parent = posixpath.dirname(targets[0]) or "."
    make_durable_dir(disk, parent)
    names = {entry.name for entry in disk.scan(parent)}
    for target in targets:
        if posixpath.basename(target) in names:
            raise FileExistsError(f"{target} exists: name a new directory, or remove that one first")


@contextmanager
def alone_with(disk: Disk, name: str) -> Iterator[None]:
    """Keep a name that is to be made from others that make the same one. Raises `DirectoryLocked`."""
    claim = f"{name}.claim"
    make_durable_dir(disk, claim)
    lock = disk.lock(claim)
    try:
        yield
    finally:
        with suppress(OSError):
            remove_tree(disk, claim)  # while it is locked: after that, it may be another's
            disk.sync_dir(posixpath.dirname(claim) or ".")
        lock.release()


@contextmanager
def made_whole(disk: Disk, unfinished: str, target: str) -> Iterator[None]:
    """Let the block make the directory `unfinished`, then give it the name `target`, durably.

    A leftover of an earlier crash is removed first, and so is the directory if the block fails. Raises
    `OSError`.
    """
    if is_there(disk, unfinished):
        remove_tree(disk, unfinished)
    try:
        yield
        disk.rename(unfinished, target)
        disk.sync_dir(posixpath.dirname(target) or ".")
    except BaseException:
        with suppress(OSError):  # a full disk needs the room
            remove_tree(disk, unfinished)
        raise


def remove_tree(disk: Disk, directory: str) -> None:
    """Remove the directory with all it holds; durable after a `sync_dir` above it. Raises `OSError`."""
    for entry in disk.scan(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            remove_tree(disk, path)
        else:
            disk.remove(path)
    disk.remove_dir(directory)
