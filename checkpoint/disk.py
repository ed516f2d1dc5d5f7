"""The disk seam: every call that this project makes to the operating system for files.

    Disk    open · rename · remove · scan · make_dir · remove_dir · sync_dir · lock · free
    File    pread · pwrite · map · truncate · sync · size · close

All other code writes through these two protocols, so that tests can put a disk under it that
records, fails or loses power (`simulation/disk.py`; one contract suite holds them all to
`OsDisk`'s behaviour). Rules that the implementations keep and callers rely on:

* `pread` is short only at the end of the file; `pwrite` writes everything or raises.
* A file is opened unbuffered: what `pwrite` returned from is visible to every reader.
* Nothing is durable before `sync` on the file and, for its name, `sync_dir` on its directory.
* An fsync that failed is never repeated: the kernel may have dropped the pages it could not write.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import NamedTuple, Protocol, TypeAlias

from checkpoint.errors import DirectoryLocked

# `collections.abc.Buffer` is Python 3.12; these three are what this project passes around.
Buffer: TypeAlias = bytes | bytearray | memoryview

LOCK_FILE = ".lock"
TEMPORARY_SUFFIX = ".tmp"


class DirectoryEntry(NamedTuple):
    """One name in a directory. `size` is 0 for a directory; `modified_ms` is epoch milliseconds."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int


class File(Protocol):
    """An open regular file; positions and sizes are bytes."""

    def pread(self, size: int, at: int) -> bytes:
        """Up to `size` bytes from `at`; fewer only where the file ends."""

    def pwrite(self, data: Buffer, at: int) -> None:
        """Write all of `data` at `at`, or raise `OSError` (a part may then have been written)."""

    def map(self, size: int) -> memoryview:
        """The first `size` bytes, read-only, mapped. Never for a file that another process may shrink."""

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size`."""

    def sync(self, *, data_only: bool = False) -> None:
        """Make the content survive power loss; `data_only` may skip metadata that a read does not need."""

    def size(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Release the descriptor; closing twice is harmless. Does not sync."""


class Lock(Protocol):
    """A directory held for one owner until `release`."""

    def release(self) -> None:
        """Let others have the directory; releasing twice is harmless."""


class Disk(Protocol):
    """A file system. Every method raises `OSError` as the operating system would."""

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> File:
        """Open a regular file; `exclusive` with `create` refuses an existing one."""

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, replacing a file that has it."""

    def remove(self, path: str) -> None:
        """Unlink a file."""

    def scan(self, directory: str) -> list[DirectoryEntry]:
        """What the directory holds, sorted by name; special files and links are left out."""

    def make_dir(self, path: str) -> None:
        """Make the directory and its parents; an existing one is fine."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_dir(self, directory: str) -> None:
        """Make creations, renames and removals in `directory` survive power loss."""

    def lock(self, directory: str) -> Lock:
        """Own the directory; `DirectoryLocked` if anybody else does."""

    def free(self, directory: str) -> int:
        """Bytes that an ordinary user can still write there."""


def publish(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the small file `directory/name` by `data`, wholly or not at all.

    Temp file → sync → rename → sync_dir: after a crash a reader finds the old content or the new.
    A left-over temp file means nothing and is overwritten next time. Raises `OSError`; the old
    file then stands.
    """
    temporary = f"{directory}/{name}{TEMPORARY_SUFFIX}"
    file = disk.open(temporary, create=True, write=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, f"{directory}/{name}")
    disk.sync_dir(directory)


def read_small_file(disk: Disk, path: str, *, limit: int = 64 << 20) -> bytes | None:
    """The whole content of a small file; None if there is no such file.

    Raises `OSError` for anything else, `EFBIG` among it when the file is larger than `limit` bytes.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > limit:
            raise OSError(errno.EFBIG, f"{size} bytes where at most {limit} are expected", path)
        return file.pread(size, 0)
    finally:
        file.close()


def remove_if_exists(disk: Disk, path: str) -> bool:
    """Unlink `path`; False if it was not there."""
    try:
        disk.remove(path)
    except FileNotFoundError:
        return False
    return True


# --- the operating system ---------------------------------------------------------------------

_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_data_sync = getattr(os, "fdatasync", os.fsync)


class OsFile:
    """A file of the operating system, through an unbuffered descriptor."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def pread(self, size: int, at: int) -> bytes:
        data = os.pread(self._descriptor, size, at)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:
            piece = os.pread(self._descriptor, missing, at + size - missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def pwrite(self, data: Buffer, at: int) -> None:
        written = os.pwrite(self._descriptor, data, at)
        view = memoryview(data)
        if written == view.nbytes:
            return
        # A short count is normal at a full disk, at a size limit and after a signal.
        view = view.cast("B")
        while written < view.nbytes:
            more = os.pwrite(self._descriptor, view[written:], at + written)
            if more == 0:
                raise OSError(errno.EIO, "the device accepts no more bytes", self._path)
            written += more

    def map(self, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self, *, data_only: bool = False) -> None:
        if data_only:
            _data_sync(self._descriptor)
        else:
            os.fsync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class _OsLock:
    """The lock file, held three ways: for this process, for POSIX lockers, for BSD lockers.

    A JVM broker uses `fcntl` locks, which `flock` does not see; `fcntl` locks belong to the process,
    so a second opener in the same one needs the registry. The one descriptor stays open: closing
    any other descriptor of the file would drop the `fcntl` lock.
    """

    _held: dict[tuple[int, int], int] = {}
    _guard = threading.Lock()

    def __init__(self, directory: str) -> None:
        self._descriptor = -1
        self._path = f"{directory}/{LOCK_FILE}"
        with self._guard:
            try:
                status = os.stat(self._path)
                identity = (status.st_dev, status.st_ino)
                # Looked up before the file is opened: opening and closing it would let go of the lock.
                if self._held.get(identity) == os.getpid():
                    raise DirectoryLocked(
                        f"{directory} is already open in this process; close that owner first"
                    )
            except FileNotFoundError:
                pass
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o644)
            try:
                _lock_descriptor(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise DirectoryLocked(
                    f"{directory} is in use by another process (a broker or another opener holds "
                    f"{self._path}); stop it first or use another directory"
                ) from error
            status = os.fstat(descriptor)
            self._identity = (status.st_dev, status.st_ino)
            self._held[self._identity] = os.getpid()
            self._descriptor = descriptor

    def release(self) -> None:
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor < 0:
                return
            if self._held.get(self._identity) == os.getpid():
                del self._held[self._identity]
            os.close(descriptor)


def _lock_descriptor(descriptor: int) -> None:
    if os.name == "nt":  # pragma: no cover - exercised on Windows only
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    import fcntl

    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class OsDisk:
    """The operating system's file system: the one production `Disk`."""

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> OsFile:
        flags = _OPEN_FLAGS | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        descriptor = os.open(path, flags, 0o644)
        if not _is_regular(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return OsFile(descriptor, path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed by its owner since it was listed
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append(DirectoryEntry(entry.name, True, 0, status.st_mtime_ns // 1_000_000))
                elif _is_regular(status.st_mode):
                    found.append(
                        DirectoryEntry(entry.name, False, status.st_size, status.st_mtime_ns // 1_000_000)
                    )
        return sorted(found)

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, directory: str) -> None:
        if os.name == "nt":  # pragma: no cover - a directory cannot be opened there
            return
        descriptor = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _OPEN_FLAGS)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, directory: str) -> Lock:
        return _OsLock(directory)

    def free(self, directory: str) -> int:
        import shutil

        return shutil.disk_usage(directory).free


def _is_regular(mode: int) -> bool:
    return (mode & 0o170000) == 0o100000
