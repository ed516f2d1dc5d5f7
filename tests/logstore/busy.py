"""An owner who is never done: it changes the log between any two calls of a reader, who may only read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from logstore import Log, LogConfig
from logstore.disk.files import Buffer, DirectoryEntry, Disk, File, Lock, OsDisk, Room


class BusyDisk:
    """A disk whose owner does one more thing before the calls of a reader, which may only read."""

    def __init__(self, owner: Callable[[], None], every: int = 3, inner: Disk | None = None) -> None:
        self._inner = inner or OsDisk()
        self._owner = owner
        self._calls = count(1)
        self._every = every

    def act(self) -> None:
        if next(self._calls) % self._every == 0:
            self._owner()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> BusyFile:
        if create or exclusive or write:
            raise AssertionError(f"a reader opened {path} for writing")
        self.act()
        return BusyFile(self._inner.open(path), self)

    def scan(self, directory: str) -> list[DirectoryEntry]:
        self.act()
        return self._inner.scan(directory)

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"a reader renamed {source}")

    def link(self, source: str, target: str) -> None:
        raise AssertionError(f"a reader linked {source}")

    def remove(self, path: str) -> None:
        raise AssertionError(f"a reader removed {path}")

    def make_dir(self, path: str) -> None:
        raise AssertionError(f"a reader made {path}")

    def remove_dir(self, path: str) -> None:
        raise AssertionError(f"a reader removed {path}")

    def sync_dir(self, directory: str) -> None:
        raise AssertionError(f"a reader synced {directory}")

    def lock(self, directory: str) -> Lock:
        raise AssertionError(f"a reader locked {directory}")

    def room(self, directory: str) -> Room:
        return self._inner.room(directory)


class BusyFile:
    """Lets its owner act before each read; refuses all else."""

    def __init__(self, inner: File, disk: BusyDisk) -> None:
        self._inner = inner
        self._disk = disk

    def pread(self, size: int, at: int) -> bytes:
        self._disk.act()
        return self._inner.pread(size, at)

    def size(self) -> int:
        self._disk.act()
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()

    def names(self) -> int:
        return self._inner.names()

    def is_cached(self, size: int, at: int) -> bool | None:
        return None

    def pwrite(self, data: Buffer, at: int) -> None:
        raise AssertionError("a reader wrote")

    def truncate(self, size: int) -> None:
        raise AssertionError("a reader cut a file")

    def map(self, size: int) -> memoryview:
        raise AssertionError("a reader mapped a file that may shrink")

    def sync(self, *, data_only: bool = False) -> None:
        raise AssertionError("a reader synced")


SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0)


class Appender:
    """Appends the records 0, 1, 2… one by one, `limit` of them."""

    def __init__(self, log: Log, limit: int, flush_every: int = 7) -> None:
        self.log, self.limit, self.flush_every = log, limit, flush_every
        self.appended = 0

    def __call__(self) -> None:
        if self.appended < self.limit:
            self.log.append(b"%d" % self.appended, timestamp_ms=1000 + self.appended)
            self.appended += 1
            if self.appended % self.flush_every == 0:
                self.log.flush()
