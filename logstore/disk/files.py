"""The disk seam: every call that this project makes to the operating system for files.

    Disk    open · rename · remove · scan · make_dir · remove_dir · sync_dir · lock · free
    File    pread · pwrite · map · truncate · sync · size · close

All other code writes through these two protocols, so that tests can put a disk under it that
records, fails or loses power (`logstore/testing/disks/`; one contract suite holds them all to
`OsDisk`'s behaviour). Rules that the implementations keep and callers rely on:

* `pread` is short only at the end of the file; `pwrite` writes everything or raises.
* A file is opened unbuffered: what `pwrite` returned from is visible to every reader.
* An open file outlives its name: it can be read and written after a rename or a removal.
* Nothing is durable before `sync` on the file and, for its name, `sync_dir` on its directory.
* An fsync that failed is never repeated: the kernel may have dropped the pages it could not write.
* Every failure is an `OSError`; only `lock` has another answer, `DirectoryLocked`.
"""

from __future__ import annotations

import errno
import mmap
import os
import posixpath
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from logstore.disk.errors import DirectoryLocked

if sys.platform == "win32":  # pragma: no cover - exercised on Windows only
    import msvcrt
    import shutil
else:
    import fcntl

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
        """The first `size` bytes, read-only; later `pwrite`s show. `OSError` past the end of the file.

        The view outlives the file object and ends with its last user. It must be gone before the file
        shrinks below `size`: touching a mapped page that the file no longer has kills the process. So
        never for a file that another process may shrink.
        """

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to `size`."""

    def sync(self, *, data_only: bool = False) -> None:
        """Make the content survive power loss; `data_only` may skip metadata that a read does not need."""

    def size(self) -> int:
        """Length in bytes."""

    def is_cached(self, size: int, at: int) -> bool | None:
        """Whether reading `size` bytes from `at` will hardly wait for the device, going by samples.

        None where nobody can tell.
        """

    def close(self) -> None:
        """Release the descriptor; closing twice is harmless. Does not sync.

        A file that nobody refers to any more is closed too.
        """


class Lock(Protocol):
    """A directory held for one owner until `release`."""

    def release(self) -> None:
        """Let others have the directory; releasing twice is harmless."""


class Disk(Protocol):
    """A file system. Every method raises `OSError` as the operating system would."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False) -> File:
        """Open a regular file, to read only unless `write` or `create`.

        `exclusive` with `create` refuses an existing one. Links, devices, pipes and directories are
        refused at once, and so is the lock file: see `lock`.
        """

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
        """Own the directory; `DirectoryLocked` if anybody else does, in this process or another.

        The lock file stays behind, empty. Nobody else may open it: closing any descriptor of it lets
        go of this process's lock.
        """

    def free(self, directory: str) -> int:
        """Bytes that an ordinary user can still write there."""


def publish(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the small file `directory/name` by `data`, wholly or not at all.

    Temp file → sync → rename → sync_dir: after a crash a reader finds the old content or the new.
    A left-over temp file means nothing and is overwritten next time. Raises `OSError`: the old file
    then stands, unless it was the last step that failed (always `EIO`), which leaves the new one in
    place but not known to be durable. One caller at a time for one name.
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
    try:
        disk.sync_dir(directory)
    except OSError as error:
        # The new content is in place, durable or not: for want of room or not, it is no refusal.
        raise OSError(errno.EIO, f"cannot be made durable: {error.strerror}", directory) from error


def make_durable_dir(disk: Disk, directory: str) -> None:
    """Make the directory with those above it that are missing, and make all their names survive power loss.

    All that is synced inside a directory is lost with its name. Names that are there already are synced too:
    whoever made them may have been killed before that, and they look no different. Raises `OSError`.
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
            continue  # what we may not open was not made by us
        except OSError as error:
            # Nor was what nobody can write, or what cannot be synced at all.
            if path == directory or path in missing or error.errno not in (errno.EROFS, errno.EINVAL):
                raise


def _missing(disk: Disk, lineage: Sequence[str]) -> Iterator[str]:
    """Of these directories, each in the next one, those above the first that are not there."""
    for path in lineage[1:]:
        try:
            disk.scan(path)
        except FileNotFoundError:
            yield path
        except PermissionError:
            return
        else:
            return


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

# Regular files only. O_NOFOLLOW: a link planted in a log dir must not lead writes elsewhere.
# O_NONBLOCK: opening a pipe must not wait for its other end (no effect on a regular file).
_FILE_FLAGS = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)

if sys.platform == "darwin":  # pragma: no cover - exercised on macOS only

    def _sync(descriptor: int) -> None:
        # There, fsync stops at the drive's own cache.
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

# Read from the page cache or not at all. Pages come and go in runs of the readahead, 128 KiB.
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_CACHE_SAMPLE_BYTES = 1 << 16

# How often this process was forked away from the one that began: see `OsFile.pwrite`.
_forks = 0


class OsFile:
    """A file of the operating system, through an unbuffered descriptor."""

    __slots__ = ("_descriptor", "_forks", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._forks = _forks

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
        if self._forks != _forks:
            raise self._forked()
        written = os.pwrite(self._descriptor, data, at)
        # The common case first, without a memoryview; `len` counts bytes only for this type.
        if type(data) is bytes and written == len(data):
            return
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
        self._check_open()  # -1 would be a map of no file at all, all zeros
        if size == 0:
            return memoryview(b"")
        try:
            if sys.version_info >= (3, 13):  # one descriptor a map saved
                return memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
            return memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))
        except (ValueError, OverflowError) as error:
            raise OSError(errno.EINVAL, f"cannot map {size} bytes: {error}", self._path) from error

    def truncate(self, size: int) -> None:
        if self._forks != _forks:
            raise self._forked()
        os.ftruncate(self._descriptor, size)

    def sync(self, *, data_only: bool = False) -> None:
        self._check_open()
        if data_only:
            _data_sync(self._descriptor)
        else:
            _sync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def is_cached(self, size: int, at: int) -> bool | None:
        if _NO_WAIT is None:  # pragma: no cover - Linux has it
            return None
        byte = (bytearray(1),)
        try:
            for position in (*range(at, at + size, _CACHE_SAMPLE_BYTES), at + size - 1):
                os.preadv(self._descriptor, byte, position, _NO_WAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise
        return True

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check_open(self) -> None:
        # The calls that take a bare descriptor answer -1 with EBADF by themselves, these two do not.
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)

    def _forked(self) -> OSError:
        # The lock stayed with the parent, which goes on writing at the same positions.
        return OSError(errno.EBADF, "opened before a fork: only the parent process writes it", self._path)

    def __del__(self) -> None:
        # Not a leak but a rule: a segment that goes is let go of, so that a reader in the middle of it
        # keeps the descriptor, and its number is not given to another file under the reader's hands.
        self.close()


class _OsLock:
    """The lock file, held three ways: for this process, for POSIX lockers, for BSD lockers.

    A JVM broker uses `fcntl` locks, which `flock` does not see; `fcntl` locks belong to the process,
    so a second opener in the same one needs the registry, which knows directories by device and
    inode and answers before the file is opened. The one descriptor stays open: closing any other
    descriptor of the file would drop the `fcntl` lock.

    A forked child inherits neither the ownership nor, since its copy is closed, the `flock`: else a
    child that outlives its parent would keep the directory.
    """

    _held: ClassVar[dict[tuple[int, int], _OsLock]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, directory: str) -> None:
        self._descriptor = -1
        with self._guard:
            status = os.stat(directory)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            self._identity = (status.st_dev, status.st_ino)
            if self._identity in self._held:
                raise DirectoryLocked(f"{directory} is already open in this process; close that owner first")
            self._descriptor = _open_locked(directory)
            self._held[self._identity] = self

    def release(self) -> None:
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                del self._held[self._identity]
                os.close(descriptor)

    @classmethod
    def abandon_all(cls) -> None:
        """In a forked child: close the copies; the parent's locks stay."""
        for lock in cls._held.values():
            descriptor, lock._descriptor = lock._descriptor, -1
            os.close(descriptor)
        cls._held.clear()


def _open_locked(directory: str) -> int:
    """A descriptor of the directory's lock file that holds both kinds of lock."""
    path = f"{directory}/{LOCK_FILE}"
    while True:
        descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock_descriptor(descriptor)
            # A JVM broker removes the file when it lets go. Then we hold a file without a name, and
            # the next opener would make and lock another: begin again with the one that is there.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise
            raise DirectoryLocked(
                f"{directory} is in use by another process (a broker or another opener holds "
                f"{path}); stop it first or use another directory"
            ) from error
        os.close(descriptor)


def _lock_descriptor(descriptor: int) -> None:
    if sys.platform == "win32":  # pragma: no cover - exercised on Windows only
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _after_fork_in_child() -> None:
    global _forks  # noqa: PLW0603 - a fact about the process
    _forks += 1
    _OsLock.abandon_all()
    _OsLock._guard.release()


if hasattr(os, "register_at_fork"):
    # The guard is held across the fork, so that the child finds the registry whole and the guard free.
    os.register_at_fork(
        before=_OsLock._guard.acquire,
        after_in_parent=_OsLock._guard.release,
        after_in_child=_after_fork_in_child,
    )


class OsDisk:
    """The operating system's file system: the one production `Disk`."""

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> OsFile:
        """Open a file; see `Disk.open`."""
        refuse_lock_file(path)
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return OsFile(_open_regular(path, flags), path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; see `Disk.rename`."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; see `Disk.remove`."""
        os.unlink(path)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        """List a directory; see `Disk.scan`."""
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed by its owner since it was listed
                    continue
                modified_ms = status.st_mtime_ns // 1_000_000
                if stat.S_ISDIR(status.st_mode):
                    found.append(DirectoryEntry(entry.name, True, 0, modified_ms))
                elif stat.S_ISREG(status.st_mode):
                    found.append(DirectoryEntry(entry.name, False, status.st_size, modified_ms))
        return sorted(found)

    def make_dir(self, path: str) -> None:
        """Create a directory; see `Disk.make_dir`."""
        os.makedirs(path, exist_ok=True)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; see `Disk.remove_dir`."""
        os.rmdir(path)

    def sync_dir(self, directory: str) -> None:
        """Make the names in a directory durable; see `Disk.sync_dir`."""
        if os.name == "nt":  # pragma: no cover - a directory cannot be opened there
            return
        # Links are followed here: a log dir may well be one, the files in it may not.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, directory: str) -> Lock:
        """Lock a directory for this process; see `Disk.lock`."""
        return _OsLock(directory)

    def free(self, directory: str) -> int:
        """Return the free bytes of the file system; see `Disk.free`."""
        if sys.platform == "win32":  # pragma: no cover
            return shutil.disk_usage(directory).free
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize


def boot_id() -> str:
    """Which boot of its machine this process is in; empty where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def refuse_lock_file(path: str) -> None:
    """Raise `OSError` (`EBUSY`) if `path` is a lock file: only `Disk.lock` may open it."""
    if path.endswith(LOCK_FILE) and os.path.basename(path) == LOCK_FILE:
        raise OSError(errno.EBUSY, "opening and closing a lock file would let go of the lock", path)


def _open_regular(path: str, flags: int) -> int:
    """Descriptor of the regular file `path`; anything else is refused without waiting for it."""
    descriptor = os.open(path, flags | _FILE_FLAGS, 0o644)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def wall_clock_ms() -> int:
    """Return epoch milliseconds, for the shells that are not given a clock: elsewhere time is an argument."""
    return time.time_ns() // 1_000_000
