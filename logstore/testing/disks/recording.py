"""Record every disk call, in order, and pass it on.

For tests of order ("the directory was synced before the first append") and for crash scripts, which look
at the disk below just before each operation:

    names = [operation.name for operation in disk.operations]
    disk = RecordingDisk(memory, before=lambda operation: images.append(memory.image(random)))
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from logstore.disk.files import Buffer, Disk
from logstore.testing.disks.passing import PassingDisk, PassingFile

T = TypeVar("T")


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


class RecordingDisk(PassingDisk):
    """Keep `operations` in the order in which they were tried, including those that failed.

    `before` is called ahead of each; if it raises, the call does not happen and the caller gets the
    exception. With `reads=False`, the operations of `READS`, which change nothing, are neither recorded
    nor announced.
    """

    def __init__(
        self, inner: Disk, *, before: Callable[[Operation], None] | None = None, reads: bool = False
    ) -> None:
        super().__init__(inner)
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
        super().rename(source, target)
        for file in self._files:  # in any order: each path is changed alone
            if file.path == source:
                file.path = target
            elif file.path.startswith(f"{source}/"):
                file.path = target + file.path[len(source) :]

    def _run(self, operation: str, path: str, call: Callable[[], T], **facts: Any) -> T:
        self.note(Operation(operation, path, **facts))
        return call()

    def note(self, operation: Operation) -> None:
        """Announce and record one operation."""
        if self._reads or operation.name not in READS:
            if self._before is not None:
                self._before(operation)
            self.operations.append(operation)


class RecordingFile(PassingFile):
    """An open file of a `RecordingDisk`; `path` follows renames."""

    __slots__ = ("__weakref__",)
    _disk: RecordingDisk

    def pwrite(self, data: Buffer, at: int) -> None:
        content = bytes(data)
        self._disk.note(Operation("pwrite", self.path, at, len(content), content))
        self._inner.pwrite(data, at)
