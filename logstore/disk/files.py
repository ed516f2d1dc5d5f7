"""File access: every file operation of this project goes through these protocols.

    Disk    open · rename · link · remove · scan · make_dir · remove_dir · sync_dir · lock · room
    File    pread · pwrite · map · truncate · sync · size · names · close

One contract suite checks every disk, also those of tests (`logstore/testing/disks/`). Callers rely on this:

* `pread` is short only at the end of the file; `pwrite` writes everything or raises.
* Files are unbuffered: when `pwrite` returns, every reader sees the data.
* An open file can be read and written after it was renamed or removed.
* A file with several names (`link`) is one file: a change shows under all of them.
* Nothing is durable before `sync` on the file and, for its name, `sync_dir` on its directory.
* A failed fsync is never repeated: the kernel may have dropped the pages that it could not write.
* Every failure is an `OSError`; `lock` may also raise `DirectoryLocked`.
"""

from __future__ import annotations

import errno
import gc
import io
import mmap
import os
import posixpath
import stat
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

from logstore.disk.clocks import steady_ns
from logstore.disk.descriptors import Spares, above_standard
from logstore.disk.errors import DirectoryLocked, dead_link, raise_unsynced
from logstore.disk.owners import in_use
from logstore.disk.page_cache import is_cached

if sys.platform == "win32":  # pragma: no cover - exercised on Windows only
    import msvcrt
    import shutil
else:
    import fcntl

# `collections.abc.Buffer` is Python 3.12; this project uses these three types.
Buffer: TypeAlias = bytes | bytearray | memoryview

LOCK_FILE = ".lock"
LOST_AND_FOUND = "lost+found"  # a directory at the root of an ext4; only root may list it
TEMPORARY_SUFFIX = ".tmp"


class Room(NamedTuple):
    """The bytes of a file system: those free for an unprivileged user, and all."""

    free: int
    total: int


class DirectoryEntry(NamedTuple):
    """One entry of a directory. `size` is 0 for a directory; `modified_ms` is epoch milliseconds."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int


class Readable(Protocol):
    """A file as a reader sees it; positions and sizes are bytes."""

    def pread(self, size: int, at: int) -> bytes:
        """Return `size` bytes from position `at`; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the length in bytes."""

    def close(self) -> None:
        """Release the descriptor; twice is harmless. Does not sync. An unreferenced file is closed too."""


class File(Readable, Protocol):
    """An open regular file; positions and sizes are bytes."""

    def pwrite(self, data: Buffer, at: int) -> None:
        """Write all of `data` at `at`, or raise `OSError` (a part may then have been written)."""

    def map(self, size: int) -> memoryview:
        """Return a read-only map of the first `size` bytes; later `pwrite`s show in it.

        Raises `OSError` if the file is shorter. The view outlives the file object. Release it before the file
        shrinks below `size`: an access to a mapped page past the end of the file kills the process. Never map
        a file that another process may shrink.
        """

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros, to `size`."""

    def sync(self, *, data_only: bool = False) -> None:
        """Make the content survive power loss; `data_only` may skip metadata that a read does not need."""

    def names(self) -> int:
        """Return under how many names the file is known (`Disk.link`); 0 once it was removed."""

    def is_cached(self, size: int, at: int) -> bool | None:
        """Return whether `size` bytes from `at` are in the page cache, judged by samples on older kernels.

        None if the platform cannot tell.
        """


class Lock(Protocol):
    """The exclusive ownership of a directory until `release`."""

    def release(self) -> None:
        """Give up the directory; releasing twice is harmless."""


@runtime_checkable
class Disk(Protocol):
    """A file system. Every method raises `OSError` like the operating system."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False) -> File:
        """Open a regular file, read-only unless `write` or `create` is set.

        `exclusive` with `create` refuses an existing file. Links, devices, pipes, directories and the lock
        file are always refused.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing target file is replaced."""

    def link(self, source: str, target: str) -> None:
        """Give a regular file a second name, a hard link. An existing `target` is refused."""

    def remove(self, path: str) -> None:
        """Unlink a file."""

    def scan(self, directory: str) -> list[DirectoryEntry]:
        """Return a directory's entries by name, without links, special files and `LOST_AND_FOUND`."""

    def make_dir(self, path: str) -> None:
        """Create the directory and its parents; existing ones are fine."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_dir(self, directory: str) -> None:
        """Make creations, renames and removals in `directory` survive power loss."""

    def lock(self, directory: str) -> Lock:
        """Lock the directory. Raises `DirectoryLocked` if it has an owner, in this process or another.

        The empty lock file stays. Do not open it: closing a descriptor of it releases this process's lock.
        """

    def room(self, directory: str) -> Room:
        """Return the free bytes and all bytes of the file system that holds the directory."""


def publish(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the small file `directory/name` by `data`, atomically and durably.

    Temporary file → sync → rename → sync_dir: after a crash a reader finds the old content or the new. A
    leftover temporary file is ignored and overwritten the next time. Raises `OSError`, and the old file
    stays. Only if the last step fails (always `EIO`), the new file is in place and may not be durable. One
    caller at a time for each name.
    """
    put_in_place(disk, directory, name, data)
    try:
        disk.sync_dir(directory)
    except OSError as error:
        # Always EIO, even for a full disk: the new content is in place, so the call was not refused.
        raise OSError(errno.EIO, f"directory cannot be synced: {error.strerror}", directory) from error


def put_in_place(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the small file `directory/name` by `data`, atomically; the next `sync_dir` makes it durable.

    Raises `OSError`, and the old file stays. One caller at a time for each name.
    """
    temporary = f"{directory}/{name}{TEMPORARY_SUFFIX}"
    with closing(disk.open(temporary, create=True, write=True)) as file:
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
    disk.rename(temporary, f"{directory}/{name}")


def make_durable_dir(disk: Disk, directory: str) -> None:
    """Create the directory and its missing parents, and make all their names survive power loss.

    A directory that loses its name loses all its content, synced or not. Existing names are synced too: the
    process that created them may have been killed before it synced them. Raises `OSError`.
    """
    lineage = [directory]
    while (above := posixpath.dirname(lineage[-1])) not in ("", "/"):
        lineage.append(above)
    missing = set(_missing(disk, lineage))
    disk.make_dir(directory)
    for path in reversed(lineage):
        try:
            disk.sync_dir(posixpath.dirname(path) or ".")
        except PermissionError:
            if path in missing:
                raise
            continue  # a directory that we cannot open was not created by us
        except OSError as error:
            # Neither was a read-only one, or one that cannot be synced at all.
            if path == directory or path in missing or error.errno not in (errno.EROFS, errno.EINVAL):
                raise


def _missing(disk: Disk, lineage: Sequence[str]) -> Iterator[str]:
    """Yield the missing parents of `lineage[0]`; each directory in `lineage` lies in the next one."""
    for path in lineage:  # itself first: a parent may hold thousands
        try:
            disk.scan(path)
            return
        except FileNotFoundError:
            if path != lineage[0]:
                yield path
        except PermissionError:
            return


def read_small_file(disk: Disk, path: str, *, limit: int = 64 << 20) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    Raises `OSError`; its errno is `EFBIG` if the file is larger than `limit` bytes.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    with closing(file):
        if (size := file.size()) > limit:
            raise OSError(errno.EFBIG, f"the file has {size} bytes; the limit is {limit}", path)
        return file.pread(size, 0)


def remove_if_exists(disk: Disk, path: str) -> bool:
    """Unlink `path`. Returns False if it does not exist."""
    try:
        disk.remove(path)
    except FileNotFoundError:
        return False
    return True


# --- the operating system ---------------------------------------------------------------------

# Regular files only. O_NOFOLLOW: a link in a log dir must not redirect writes. O_NONBLOCK: opening a pipe
# must not wait for its other end (no effect on a regular file).
_FILE_FLAGS = sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
)

if sys.platform == "darwin":  # pragma: no cover - exercised on macOS only

    def _sync(descriptor: int) -> None:
        # On macOS, fsync does not flush the drive's cache.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
            os.fsync(descriptor)

    _data_sync = _sync
else:
    _sync = os.fsync
    _data_sync = getattr(os, "fdatasync", os.fsync)

_spares = Spares()
# Number of forks between the first process and this one; `OsFile` refuses writes after a fork.
_forks = 0
_BYTES = (bytes, bytearray)


class OsFile:
    """A file of the operating system with an unbuffered descriptor."""

    __slots__ = ("_descriptor", "_forks", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._forks = _forks

    def pread(self, size: int, at: int) -> bytes:
        try:
            data = more = os.pread(self._descriptor, size, at)
            while more and len(data) < size:
                data += (more := os.pread(self._descriptor, size - len(data), at + len(data)))
        except OSError as error:
            raise self._named(error) from None
        return data

    def pwrite(self, data: Buffer, at: int) -> None:
        if self._forks != _forks:
            raise self._forked()
        try:
            written = os.pwrite(self._descriptor, data, at)
            # The common case first, without a memoryview. `len` is the size in bytes only for these types.
            if type(data) in _BYTES and written == len(data):
                return
            view = memoryview(data)
            if written == view.nbytes:
                return
            # A short count is normal at a full disk, at a size limit and after a signal.
            view = view.cast("B")
            while written < view.nbytes:
                more = os.pwrite(self._descriptor, view[written:], at + written)
                if more == 0:
                    raise OSError(errno.EIO, "the device accepts no more bytes")
                written += more
        except OSError as error:
            raise self._named(error) from None

    def map(self, size: int) -> memoryview:
        self._check_open()  # -1 would give an anonymous map of zeros
        if size == 0:
            return memoryview(b"")
        try:
            if sys.version_info >= (3, 13):  # saves one descriptor per map
                return memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
            return _spares.run(lambda: memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)))
        except (ValueError, OverflowError) as error:
            raise OSError(errno.EINVAL, f"cannot map {size} bytes: {error}", self._path) from error
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        if self._forks != _forks:
            raise self._forked()
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def sync(self, *, data_only: bool = False) -> None:
        self._check_open()
        _synced(_data_sync if data_only else _sync, self._descriptor, self._path)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def names(self) -> int:
        return os.fstat(self._descriptor).st_nlink

    def is_cached(self, size: int, at: int) -> bool | None:
        return is_cached(self._descriptor, size, at)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check_open(self) -> None:
        # Other calls fail for the descriptor -1 with EBADF by themselves; `map` and `sync` do not.
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)

    def _named(self, error: OSError) -> OSError:
        # A call by descriptor fails without a path.
        error.filename = self._path
        return error

    def _forked(self) -> OSError:
        return OSError(errno.EBADF, "opened before a fork; only the parent process may write it", self._path)

    def __del__(self) -> None:
        # Deleted segments are released, not closed: a reader in progress keeps the descriptor and its number.
        self.close()


class _OsLock:
    """The lock of a directory: an entry in a registry of this process, an `fcntl` lock and a `flock`.

    A JVM broker uses `fcntl` locks, which `flock` does not see. An `fcntl` lock belongs to the process, so
    the registry detects a second owner in the same process. It identifies directories by device and inode
    and is consulted before the file is opened: closing another descriptor of the file would drop the
    `fcntl` lock.

    A forked child inherits neither the ownership nor the `flock`; its copy of the descriptor is closed.
    Otherwise a child that outlives its parent would keep the directory locked.
    """

    _held: ClassVar[weakref.WeakValueDictionary[tuple[int, int], _OsLock]] = weakref.WeakValueDictionary()
    _guard: ClassVar[threading.Lock] = threading.Lock()
    _file: io.FileIO | None = None

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with self._guard:
            status = os.stat(directory)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            self._identity = (status.st_dev, status.st_ino)
            if self._identity in self._held:
                raise DirectoryLocked(
                    f"{directory} is already open in this process; close the other owner first"
                )
            self._file = _open_locked(directory)
            self._held[self._identity] = self

    def release(self) -> None:
        with self._guard:
            if self._file is not None and not self._file.closed:
                self._held.pop(self._identity, None)
                self._file.close()

    def __del__(self) -> None:
        # Dropped without a close: as after the death of a process, the next owner recovers.
        if self._file is not None and not self._file.closed:
            self._file.close()
            warnings.warn(f"unclosed owner of {self._directory}", ResourceWarning, stacklevel=2, source=self)


def _open_locked(directory: str) -> io.FileIO:
    """Open the directory's lock file and take both locks. An interrupt drops, and closes, the file."""
    path = f"{directory}/{LOCK_FILE}"
    while True:
        file = io.FileIO(open_regular(path, os.O_RDWR | os.O_CREAT), "r+")
        try:
            if sys.platform == "win32":  # pragma: no cover - exercised on Windows only
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A JVM broker removes the file when it releases the lock. We then hold an unlinked file, and
            # another process could create and lock a new one. Start again with the current file.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except OSError as error:
            refusal = in_use(directory, path, file)
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise
            raise refusal from error
        file.close()


def _after_fork_in_child() -> None:
    global _forks  # noqa: PLW0603 - a property of the process
    _forks += 1
    for file in [lock._file for lock in _OsLock._held.values() if lock._file is not None]:
        file.close()
    _OsLock._held.clear()
    _spares.renew_lock()
    _OsLock._guard.release()


if hasattr(os, "register_at_fork"):
    # The guard is held during the fork: the child gets a consistent registry and a free guard.
    os.register_at_fork(
        before=_OsLock._guard.acquire,
        after_in_parent=_OsLock._guard.release,
        after_in_child=_after_fork_in_child,
    )


class OsDisk:
    """The file system of the operating system: the only `Disk` in production."""

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> OsFile:
        """Open a file; see `Disk.open`."""
        refuse_lock_file(path)
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return OsFile(open_regular(path, flags), path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; see `Disk.rename`."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; see `Disk.link`."""
        os.link(source, target, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file; see `Disk.remove`."""
        os.unlink(path)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        """List a directory; see `Disk.scan`."""
        found = []
        with _spares.run(lambda: os.scandir(directory), leave=0) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed by its owner since it was listed
                    continue
                modified_ms = status.st_mtime_ns // 1_000_000
                if stat.S_ISDIR(status.st_mode) and entry.name != LOST_AND_FOUND:
                    found.append(DirectoryEntry(entry.name, True, 0, modified_ms))
                elif stat.S_ISREG(status.st_mode):
                    found.append(DirectoryEntry(entry.name, False, status.st_size, modified_ms))
        return sorted(found)

    def make_dir(self, path: str) -> None:
        """Create a directory; see `Disk.make_dir`."""
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError as error:
            raise (dead_link(path) if os.path.islink(path) else error) from None

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; see `Disk.remove_dir`."""
        os.rmdir(path)

    def sync_dir(self, directory: str) -> None:
        """Make the names in a directory durable; see `Disk.sync_dir`."""
        if os.name == "nt":  # pragma: no cover - a directory cannot be opened there
            return
        # Links are followed here: a log dir may be a link, the files in it may not.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = _spares.run(lambda: os.open(directory, flags), leave=0)
        try:
            _synced(_sync, descriptor, directory)
        finally:
            os.close(descriptor)
            _spares.refill()

    def lock(self, directory: str) -> Lock:
        """Lock a directory for this process; see `Disk.lock`."""
        try:
            return _OsLock(directory)
        except DirectoryLocked as refusal:
            if refusal.__cause__ is not None:  # held by another process: nothing here lets it go
                raise
        gc.collect()  # a log that an interrupt, or its program, dropped without a close
        return _OsLock(directory)

    def room(self, directory: str) -> Room:
        """Return the free bytes and all bytes of the file system; see `Disk.room`."""
        if sys.platform == "win32":  # pragma: no cover
            usage = shutil.disk_usage(directory)
            return Room(usage.free, usage.total)
        status = os.statvfs(directory)
        return Room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def refuse_lock_file(path: str) -> None:
    """Raise `OSError` (`EBUSY`) if `path` is a lock file: only `Disk.lock` may open it."""
    if path.endswith(LOCK_FILE) and os.path.basename(path) == LOCK_FILE:
        raise OSError(errno.EBUSY, "a lock file must not be opened: closing it would release the lock", path)


def open_regular(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a regular file and return its descriptor. Other file types are refused without waiting."""
    descriptor = _spares.run(lambda: above_standard(os.open(path, flags | _FILE_FLAGS, mode)))
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def _synced(sync: Callable[[int], None], descriptor: int, path: str) -> None:
    try:
        sync(descriptor)
    except OSError as error:
        raise_unsynced(error, path)


def as_disk(disk: Disk | None) -> Disk:
    """Return the disk that an argument names, by default the real one. Raises `TypeError`."""
    if disk is not None and not isinstance(disk, Disk):
        raise TypeError(f"disk is a Disk, such as logstore.testing.MemoryDisk(), not {disk!r:.100}")
    return OsDisk() if disk is None else disk


def wall_clock_ms() -> int:
    """Return the current time in epoch milliseconds, for the outermost callers; other code gets a clock."""
    return time.time_ns() // 1_000_000


class SteadyClock:
    """A node's clock: returns epoch milliseconds that never go back and never jump.

    It reads the wall clock once (if that was wrong, append times are until a restart) and goes on steadily,
    also while the process is stopped: a pause shows as a gap.
    """

    def __init__(self) -> None:
        self._anchor_ns = wall_clock_ms() * 1_000_000 - steady_ns()

    def __call__(self) -> int:
        return (self._anchor_ns + steady_ns()) // 1_000_000
