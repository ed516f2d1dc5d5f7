"""A disk and its files that pass every call on, through one method: the base of those that watch calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from logstore.disk.files import DirectoryEntry, Disk, File, Lock, Room

T = TypeVar("T")


class PassingDisk(ABC):
    """Pass every call on to `inner`."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner

    @abstractmethod
    def _run(self, operation: str, path: str, call: Callable[[], T], **facts: Any) -> T:
        """Make a call of `Disk` or `File`; `facts` are those of an `Operation`."""

    def rename(self, source: str, target: str) -> None:
        self._run("rename", source, lambda: self.inner.rename(source, target), target=target)

    def link(self, source: str, target: str) -> None:
        self._run("link", source, lambda: self.inner.link(source, target), target=target)

    def remove(self, path: str) -> None:
        self._run("remove", path, lambda: self.inner.remove(path))

    def scan(self, directory: str) -> list[DirectoryEntry]:
        return self._run("scan", directory, lambda: self.inner.scan(directory))

    def make_dir(self, path: str) -> None:
        self._run("make_dir", path, lambda: self.inner.make_dir(path))

    def remove_dir(self, path: str) -> None:
        self._run("remove_dir", path, lambda: self.inner.remove_dir(path))

    def sync_dir(self, directory: str) -> None:
        self._run("sync_dir", directory, lambda: self.inner.sync_dir(directory))

    def lock(self, directory: str) -> Lock:
        return self._run("lock", directory, lambda: self.inner.lock(directory))

    def room(self, directory: str) -> Room:
        return self._run("room", directory, lambda: self.inner.room(directory))


class PassingFile:
    """An open file of a `PassingDisk`, known there as `path`. A file of each kind writes in its own way."""

    __slots__ = ("_disk", "_inner", "path")

    def __init__(self, disk: PassingDisk, inner: File, path: str) -> None:
        self._disk, self._inner, self.path = disk, inner, path

    def pread(self, size: int, at: int) -> bytes:
        return self._disk._run(
            "pread", self.path, lambda: self._inner.pread(size, at), offset=at, length=size
        )

    def map(self, size: int) -> memoryview:
        return self._disk._run("map", self.path, lambda: self._inner.map(size), length=size)

    def truncate(self, size: int) -> None:
        self._disk._run("truncate", self.path, lambda: self._inner.truncate(size), length=size)

    def sync(self, *, data_only: bool = False) -> None:
        self._disk._run("sync", self.path, lambda: self._inner.sync(data_only=data_only))

    def size(self) -> int:
        return self._disk._run("size", self.path, self._inner.size)

    def names(self) -> int:
        return self._disk._run("names", self.path, self._inner.names)

    def is_cached(self, size: int, at: int) -> bool | None:
        return self._inner.is_cached(size, at)

    def close(self) -> None:
        self._disk._run("close", self.path, self._inner.close)
