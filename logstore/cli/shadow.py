"""A disk that keeps every change in memory, to plan a procedure without running it.

    operation               result                              kept in memory
    ─────────               ──────                              ──────────────
    read a file             the file on the disk below,         writes as (position, bytes), and the visible
                            overlaid with the writes            length of the file below
    list a directory        the names below, with the           the file of each changed name, or none
                            changes

A procedure that writes can run on a directory that must not change, and its report is the plan. The disk
below is only opened for reading. Its files are read, never mapped.
"""

from __future__ import annotations

import errno
import os

from logstore.disk.files import Buffer, DirectoryEntry, Disk, File, Lock, Room


class _Content:
    """One file's bytes: the first `visible` of a file below, `size` in all, overlaid with the writes."""

    def __init__(self, below: File | None) -> None:
        self.below = below
        self.size = below.size() if below else 0
        self.visible = self.size
        self.writes: list[tuple[int, bytes]] = []


class _ShadowFile:
    def __init__(self, content: _Content) -> None:
        self._content = content

    def pread(self, size: int, at: int) -> bytes:
        content = self._content
        end = min(at + size, content.size)
        if end <= at:
            return b""
        data = bytearray(end - at)
        if content.below and at < content.visible:
            found = content.below.pread(min(end, content.visible) - at, at)
            data[: len(found)] = found
        for start, written in content.writes:
            first, last = max(start, at), min(start + len(written), end)
            if first < last:
                data[first - at : last - at] = written[first - start : last - start]
        return bytes(data)

    def pwrite(self, data: Buffer, at: int) -> None:
        if written := bytes(data):
            self._content.writes.append((at, written))
            self._content.size = max(self._content.size, at + len(written))

    def map(self, size: int) -> memoryview:
        return memoryview(self.pread(size, 0))

    def truncate(self, size: int) -> None:
        content = self._content
        content.visible = min(content.visible, size)
        content.writes = [(at, data[: size - at]) for at, data in content.writes if at < size]
        content.size = size

    def sync(self, *, data_only: bool = False) -> None:
        pass

    def size(self) -> int:
        return self._content.size

    def names(self) -> int:
        return 1  # a write changes no other file

    def is_cached(self, size: int, at: int) -> bool | None:
        return True

    def close(self) -> None:
        pass


class _NoLock:
    def release(self) -> None:
        pass


class ShadowDisk:
    """A `Disk` over `below` that never changes it. Directories can be made, not renamed or removed."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self._changed: dict[str, _Content | None] = {}
        self._made: dict[str, None] = {}

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> _ShadowFile:
        content = self._find(path)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            content = self._changed[path] = _Content(None)
        elif create and exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return _ShadowFile(content)

    def rename(self, source: str, target: str) -> None:
        content = self._find(source)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source != target:
            self._changed[target], self._changed[source] = content, None

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), target)

    def remove(self, path: str) -> None:
        if self._find(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._changed[path] = None

    def scan(self, directory: str) -> list[DirectoryEntry]:
        there = [] if directory in self._made else self._below.scan(directory)
        entries = {entry.name: entry for entry in there}
        for path in self._made:
            parent, _, name = path.rpartition("/")
            if parent == directory:
                entries[name] = DirectoryEntry(name, True, 0, 0)
        for path, content in self._changed.items():
            parent, _, name = path.rpartition("/")
            if parent != directory:
                continue
            if content is None:
                entries.pop(name, None)
            else:
                modified_ms = entries[name].modified_ms if name in entries else 0
                entries[name] = DirectoryEntry(name, False, content.size, modified_ms)
        return sorted(entries.values())

    def make_dir(self, path: str) -> None:
        try:
            self.scan(path)
        except FileNotFoundError:
            self.make_dir(path.rpartition("/")[0] or "/")
            self._made[path] = None

    def remove_dir(self, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def sync_dir(self, directory: str) -> None:
        pass

    def lock(self, directory: str) -> Lock:
        return _NoLock()

    def room(self, directory: str) -> Room:
        return self._below.room(directory)

    def close(self) -> None:
        """Close the files below."""
        for content in self._changed.values():
            if content is not None and content.below is not None:
                content.below.close()

    def _find(self, path: str) -> _Content | None:
        if path not in self._changed:
            try:
                self._changed[path] = _Content(self._below.open(path))
            except FileNotFoundError:
                return None
        return self._changed[path]
