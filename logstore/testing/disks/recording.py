"""Record every disk call, in order, and pass it on.

For tests of order ("the directory was synced before the first append") and for crash scripts, which look
at the disk below just before each operation:

    names = [operation.name for operation in disk.operations]
    disk = RecordingDisk(memory, before=lambda operation: images.append(memory.image(random)))
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from logstore.disk.files import Buffer, DirectoryEntry, Disk, File, Lock, Room


class Operation(NamedTuple):
    """One call that reached the disk.

    `name` is the name of the method, except that an `open` that may create the file is `create`. `path` is
    the current path of the file or directory. `offset` and `length` are the bytes of a `pwrite` or
    `pread`; for `truncate` and `map`, `length` is the requested size. `data` are the bytes written,
    `target` is that of a rename or link.
    """

    name: str
    path: str
    offset: int = 0
    length: int = 0
    data: bytes = b""
    target: str = ""


READS = ("open", "pread", "map", "size", "names", "scan", "room", "close")


class RecordingDisk:
    """Keep `operations` in the order in which they were tried, including those that failed.

    `before` is called ahead of each; if it raises, the call does not happen and the caller gets the
    exception. With `reads=False`, the operations of `READS`, which change nothing, are neither recorded
    nor announced.
    """

    def __init__(
        self, inner: Disk, *, before: Callable[[Operation], None] | None = None, reads: bool = False
    ) -> None:
        self.inner = inner
        self.operations: list[Operation] = []
        self._before = before
        self._reads = reads
        self._files: weakref.WeakSet[RecordingFile] = weakref.WeakSet()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> RecordingFile:
        self.note(Operation("create" if create else "open", path))
        inner = self.inner.open(path, create=create, exclusive=exclusive, write=write)
        file = RecordingFile(self, inner, path)
        self._files.add(file)
        return file

    def rename(self, source: str, target: str) -> None:
        self.note(Operation("rename", source, target=target))
        self.inner.rename(source, target)
        for file in self._files:  # in any order: each path is changed alone
            if file.path == source:
                file.path = target
            elif file.path.startswith(f"{source}/"):
                file.path = target + file.path[len(source) :]

    def link(self, source: str, target: str) -> None:
        self.note(Operation("link", source, target=target))
        self.inner.link(source, target)

    def remove(self, path: str) -> None:
        self.note(Operation("remove", path))
        self.inner.remove(path)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        self.note(Operation("scan", directory))
        return self.inner.scan(directory)

    def make_dir(self, path: str) -> None:
        self.note(Operation("make_dir", path))
        self.inner.make_dir(path)

    def remove_dir(self, path: str) -> None:
        self.note(Operation("remove_dir", path))
        self.inner.remove_dir(path)

    def sync_dir(self, directory: str) -> None:
        self.note(Operation("sync_dir", directory))
        self.inner.sync_dir(directory)

    def lock(self, directory: str) -> Lock:
        self.note(Operation("lock", directory))
        return self.inner.lock(directory)

    def room(self, directory: str) -> Room:
        self.note(Operation("room", directory))
        return self.inner.room(directory)

    def note(self, operation: Operation) -> None:
        """Announce and record one operation."""
        if self._reads or operation.name not in READS:
            if self._before is not None:
                self._before(operation)
            self.operations.append(operation)


class RecordingFile:
    """An open file of a `RecordingDisk`; `path` follows renames."""

    def __init__(self, disk: RecordingDisk, inner: File, path: str) -> None:
        self._disk = disk
        self._inner = inner
        self.path = path

    def pread(self, size: int, at: int) -> bytes:
        self._disk.note(Operation("pread", self.path, at, size))
        return self._inner.pread(size, at)

    def pwrite(self, data: Buffer, at: int) -> None:
        content = bytes(data)
        self._disk.note(Operation("pwrite", self.path, at, len(content), content))
        self._inner.pwrite(data, at)

    def map(self, size: int) -> memoryview:
        self._disk.note(Operation("map", self.path, length=size))
        return self._inner.map(size)

    def truncate(self, size: int) -> None:
        self._disk.note(Operation("truncate", self.path, length=size))
        self._inner.truncate(size)

    def sync(self, *, data_only: bool = False) -> None:
        self._disk.note(Operation("sync", self.path))
        self._inner.sync(data_only=data_only)

    def size(self) -> int:
        self._disk.note(Operation("size", self.path))
        return self._inner.size()

    def names(self) -> int:
        self._disk.note(Operation("names", self.path))
        return self._inner.names()

    def is_cached(self, size: int, at: int) -> bool | None:
        return self._inner.is_cached(size, at)

    def close(self) -> None:
        self._disk.note(Operation("close", self.path))
        self._inner.close()
