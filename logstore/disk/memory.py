"""A file system in memory that can produce the results of a power cut.

    disk ── directories and files   visible and durable state (`memory_nodes.py`)
         └─ changes                 directory operations since the last sync, in order

A write costs an entry in a journal. The durable state is found by undoing the journal, and only on demand.
`image` draws a random disk that a real power cut could leave (`power_cut.py` has the rules). `power_cut`
does the same, and makes every later call on this disk and its open files fail.
"""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterable, Mapping
from random import Random
from weakref import WeakValueDictionary

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import LOCK_FILE, LOST_AND_FOUND, Buffer, DirectoryEntry, Room, refuse_lock_file
from logstore.disk.memory_nodes import Assignment, Body, Change, Directory, Inode, Node, Step
from logstore.disk.power_cut import Profile, leftover, surviving_changes, surviving_tables

__all__ = ["MemoryDisk", "MemoryFile", "MemoryLock", "Profile", "power_lost"]

_PLENTY = 1 << 40


def power_lost(path: str) -> OSError:
    """Return the error of every call on a disk after its power cut."""
    return OSError(errno.EIO, "the power was cut; continue on a new disk", path)


class MemoryDisk:
    """A `Disk` in memory. Only one thread at a time may write a file.

    `files`, with their directories, and `directories` exist durably from the start. `capacity` limits the
    bytes of all contents (None: no limit) and may be set at any time; a hole at the end of a file costs
    nothing. `clock` returns modification times in epoch milliseconds.

    A truncation under a live `map` raises `AssertionError`: a real process would be killed.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        directories: Iterable[str] = (),
        capacity: int | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        for path, content in (files or {}).items():
            _check_file(path, content)
        self.capacity = capacity
        self._clock = clock
        self._root = Directory(clock())
        self._changes: list[Change] = []
        self._locked = WeakValueDictionary[Directory, MemoryLock]()
        self._used = 0
        self._alive = True
        for directory in directories:
            self.make_dir(directory)
        for path, content in (files or {}).items():
            self.make_dir(os.path.dirname(path) or ".")
            directory_node, name = self._parent(path)
            inode = Inode(Body(bytearray(content), len(content)), clock())
            self._used += inode.charged
            self._change(Assignment(directory_node, name, inode))
        self._settle()

    # --- the `Disk` protocol --------------------------------------------------------------------------

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> MemoryFile:
        refuse_lock_file(path)
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = Inode(Body(bytearray(), 0), self._clock())
            self._change(Assignment(directory, name, node))
        elif isinstance(node, Directory):
            raise _error(errno.EEXIST if create and exclusive else errno.EISDIR, path)
        elif create and exclusive:
            raise _error(errno.EEXIST, path)
        node.opened += 1
        return MemoryFile(self, node, path, writable=write or create)

    def rename(self, source: str, target: str) -> None:
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = _existing(source_directory, source_name, source)
        replaced = target_directory.entries.get(target_name)
        if replaced is node:  # the same name, or two of one file: POSIX leaves both
            return
        if isinstance(node, Directory) and self._is_inside(target_directory, node):
            raise _error(errno.EINVAL, source)
        if isinstance(replaced, Directory):
            if not isinstance(node, Directory) and not self._is_inside(source_directory, replaced):
                raise _error(errno.EISDIR, target)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        elif replaced is not None and isinstance(node, Directory):
            raise _error(errno.ENOTDIR, target)
        self._change(
            Assignment(source_directory, source_name, None), Assignment(target_directory, target_name, node)
        )

    def link(self, source: str, target: str) -> None:
        source_directory, source_name = self._parent(source)
        node = _existing(source_directory, source_name, source)
        target_directory, target_name = self._parent(target)
        if target_name in target_directory.entries:
            raise _error(errno.EEXIST, target)
        if isinstance(node, Directory):
            raise _error(errno.EPERM, source)
        self._change(Assignment(target_directory, target_name, node))

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        if isinstance(_existing(directory, name, path), Directory):
            raise _error(errno.EISDIR, path)
        self._change(Assignment(directory, name, None))

    def scan(self, directory: str) -> list[DirectoryEntry]:
        return [
            DirectoryEntry(name, True, 0, node.modified_ms)
            if isinstance(node, Directory)
            else DirectoryEntry(name, False, node.body.size, node.modified_ms)
            for name, node in sorted(self._directory(directory).entries.items())
            if name != LOST_AND_FOUND or not isinstance(node, Directory)
        ]

    def make_dir(self, path: str) -> None:
        self._check_power(path)
        names = _split(path)
        node = self._root
        for position, name in enumerate(names):
            child = node.entries.get(name)
            if child is None:
                child = Directory(self._clock())
                self._change(Assignment(node, name, child))
            elif not isinstance(child, Directory):
                raise _error(errno.EEXIST if position == len(names) - 1 else errno.ENOTDIR, path)
            node = child

    def remove_dir(self, path: str) -> None:
        directory, name = self._parent(path)
        node = _existing(directory, name, path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        if node.entries:
            raise _error(errno.ENOTEMPTY, path)
        self._change(Assignment(directory, name, None))

    def sync_dir(self, directory: str) -> None:
        node = self._directory(directory)
        last = -1
        for position, change in enumerate(self._changes):
            if change.touches(node):
                change.synced = True
                last = position
        for change in self._changes[: last + 1]:
            change.ordered = True
        self._settle_synced()

    def lock(self, directory: str) -> MemoryLock:
        node = self._directory(directory)
        if node in self._locked:
            gc.collect()  # as `OsDisk`
        if node in self._locked:
            raise DirectoryLocked(f"{directory} is already open; close the other owner first")
        if LOCK_FILE not in node.entries:
            self._change(Assignment(node, LOCK_FILE, Inode(Body(bytearray(), 0), self._clock())))
        lock = self._locked[node] = MemoryLock(self._locked, node)
        return lock

    def room(self, directory: str) -> Room:
        self._directory(directory)
        if self.capacity is None:
            return Room(_PLENTY, _PLENTY)
        return Room(max(0, self.capacity - self._used), self.capacity)

    # --- power cuts -----------------------------------------------------------------------------------

    def image(self, random: Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        """Return a disk that a power cut at this moment may leave; this one stays usable."""
        kept = surviving_changes(self._changes, random, profile)
        return self._rebuilt(kept, lambda inode: leftover(inode, random, profile))

    def durable_image(self) -> MemoryDisk:
        """Return a disk with the synced data alone, the least that any power cut leaves."""
        return self._rebuilt([change for change in self._changes if change.synced], Inode.durable)

    def power_cut(self, random: Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        """Return the disk after a power cut. Every later call on this disk and its files fails.

        `random` decides what is left. Raises `TypeError` for a seed in its place.
        """
        if not isinstance(random, Random):
            raise TypeError(f"random is a random.Random, such as Random({random!r:.20}), not {random!r:.20}")
        after = self.image(random, profile)
        self._alive = False
        self._locked.clear()
        return after

    def copy(self) -> MemoryDisk:
        """Return a new disk with the visible content of this one, all of it durable."""
        return self._rebuilt(self._changes, lambda inode: inode.body.copy())

    def survivor(self) -> MemoryDisk:
        """Return the disk that a process finds after another one was killed: all visible content.

        Unsynced data stays unsynced: the next power cut may remove it. Unlinked files are gone.
        """
        self._check_power("/")
        disk = MemoryDisk(capacity=self.capacity, clock=self._clock)
        copies: dict[Node, Node] = {self._root: disk._root}

        def copy_of(node: Node) -> Node:
            if node not in copies:
                if isinstance(node, Directory):
                    copies[node] = Directory(node.modified_ms)
                    fill(node)
                else:
                    copies[node] = node.copy()
            return copies[node]

        def fill(source: Directory) -> None:
            target = copies[source]
            assert isinstance(target, Directory)
            target.entries = {name: copy_of(node) for name, node in source.entries.items()}
            target.durable = {name: copy_of(node) for name, node in source.durable.items()}

        fill(self._root)
        for change in self._changes:
            copy = Change()
            copy.synced, copy.ordered = change.synced, change.ordered
            for directory, name, node in change.assignments:
                target = copy_of(directory)
                assert isinstance(target, Directory)
                assignment = Assignment(target, name, None if node is None else copy_of(node))
                copy.assignments = (*copy.assignments, assignment)
            disk._changes.append(copy)
        disk._used = sum(node.charged for node in copies.values() if isinstance(node, Inode) and node.links)
        return disk

    def files(self) -> dict[str, bytes]:
        """Return the content of every visible file by its absolute path, sorted."""
        self._check_power("/")
        found: dict[str, bytes] = {}

        def collect(directory: Directory, path: str) -> None:
            for name, node in directory.entries.items():
                if isinstance(node, Directory):
                    collect(node, f"{path}/{name}")
                else:
                    found[f"{path}/{name}"] = node.body.content()

        collect(self._root, "")
        return dict(sorted(found.items()))

    def _rebuilt(self, changes: list[Change], content: Callable[[Inode], Body]) -> MemoryDisk:
        self._check_power("/")
        tables = surviving_tables(self._root, changes)
        disk = MemoryDisk(capacity=self.capacity, clock=self._clock)
        copies: dict[Inode, Inode] = {}

        def build(source: Directory, target: Directory) -> None:
            for name, node in sorted(tables[source].items()):
                copy: Node
                if isinstance(node, Directory):
                    copy = Directory(node.modified_ms)
                    build(node, copy)
                else:
                    if node not in copies:
                        copies[node] = Inode(content(node), node.modified_ms)
                        disk._used += copies[node].charged
                    copy = copies[node]
                    copy.links += 1
                target.entries[name] = target.durable[name] = copy

        build(self._root, disk._root)
        return disk

    # --- internals ------------------------------------------------------------------------------------

    def _check_power(self, path: str) -> None:
        if not self._alive:
            raise power_lost(path)

    def _directory(self, path: str) -> Directory:
        self._check_power(path)
        return self._walk(_split(path), path)

    def _parent(self, path: str) -> tuple[Directory, str]:
        self._check_power(path)
        names = _split(path)
        if not names:
            raise _error(errno.EISDIR if path else errno.ENOENT, path)
        return self._walk(names[:-1], path), names[-1]

    def _walk(self, names: list[str], path: str) -> Directory:
        directory = self._root
        for name in names:
            node = directory.entries.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            directory = node
        return directory

    def _is_inside(self, directory: Directory, outer: Directory) -> bool:
        if directory is outer:
            return True
        inner = (node for node in outer.entries.values() if isinstance(node, Directory))
        return any(self._is_inside(directory, node) for node in inner)

    def _change(self, *assignments: Assignment) -> None:
        self._changes.append(Change(*assignments))
        # Link the new name before the old one is unlinked: otherwise a renamed file would be reclaimed.
        for _, _, node in assignments:
            if isinstance(node, Inode):
                node.links += 1
        for directory, name, node in assignments:
            before = directory.entries.pop(name, None)
            if node is not None:
                directory.entries[name] = node
            directory.modified_ms = self._clock()
            if isinstance(before, Inode):
                before.links -= 1
                self._reclaim(before)

    def _reclaim(self, inode: Inode) -> None:
        if inode.links == 0 and inode.opened == 0:
            self._used -= inode.charged
            inode.charged = 0

    def _settle(self) -> None:
        for change in self._changes:
            change.synced = True
        self._settle_synced()

    def _settle_synced(self) -> None:
        """Move the synced changes into the durable tables.

        A synced change waits while an earlier one that is not synced concerns the same name or node:
        their order still matters to an image in which both survive.
        """
        waiting: list[Change] = []
        blocked: set[object] = set()
        for change in self._changes:
            keys = change.keys()
            if change.synced and blocked.isdisjoint(keys):
                for directory, name, node in change.assignments:
                    if node is None:
                        directory.durable.pop(name, None)
                    else:
                        directory.durable[name] = node
            else:
                blocked |= keys
                waiting.append(change)
        self._changes = waiting

    def _take_room(self, inode: Inode, size: int, at: int) -> int:
        """Reserve space for `size` bytes at `at`. Returns how many of them fit."""
        growth = at + size - inode.charged
        if growth > 0:
            if self.capacity is not None:
                lacking = growth - max(0, self.capacity - self._used)
                if lacking >= size:
                    return 0
                if lacking > 0:
                    size -= lacking
                    growth -= lacking
            inode.charged += growth
            self._used += growth
        return size


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    __slots__ = ("_disk", "_inode", "_path", "_writable")

    def __init__(self, disk: MemoryDisk, inode: Inode, path: str, *, writable: bool) -> None:
        self._disk = disk
        self._inode: Inode | None = inode
        self._path = path
        self._writable = writable

    def pread(self, size: int, at: int) -> bytes:
        inode = self._checked(size, at)
        return inode.body.read(size, at)

    def pwrite(self, data: Buffer, at: int) -> None:
        inode = self._checked(at)
        if not self._writable:
            raise _error(errno.EBADF, self._path)
        disk = self._disk
        # The journal keeps the data until the next sync, so it must be immutable.
        payload = data if type(data) is bytes else bytes(data)
        wanted = len(payload)
        room = disk._take_room(inode, wanted, at)
        if room < wanted:
            payload = payload[:room]
        if payload:
            size = inode.body.size
            covered = b"" if at >= size else inode.body.read(room, at)
            inode.journal.append(Step(at, payload, covered, size))
            inode.write(payload, at)
            inode.modified_ms = disk._clock()
        if room < wanted:
            raise _error(errno.ENOSPC, self._path)

    def map(self, size: int) -> memoryview:
        inode = self._checked(size)
        if size == 0:
            return memoryview(b"")
        if size > inode.body.size:
            raise _error(errno.EINVAL, self._path)
        return inode.map(size)

    def truncate(self, size: int) -> None:
        inode = self._checked(size)
        if not self._writable:
            raise _error(errno.EINVAL, self._path)
        body, disk = inode.body, self._disk
        before, covered = body.size, bytes(body.buffer[size:])
        inode.resize(size)
        inode.journal.append(Step(size, None, covered, before))
        if size < inode.charged:
            disk._used -= inode.charged - size
            inode.charged = size
        inode.modified_ms = disk._clock()

    def sync(self, *, data_only: bool = False) -> None:
        self._checked().sync()

    def size(self) -> int:
        return self._checked().body.size

    def names(self) -> int:
        return self._checked().links

    def is_cached(self, size: int, at: int) -> bool | None:
        return True

    def close(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.opened -= 1
            self._disk._reclaim(inode)

    def __del__(self) -> None:
        self.close()  # like `OsFile`: an unreferenced file is closed

    def drop_unsynced(self) -> None:
        """Mark the pages as clean, as a failed fsync does, so that no later `sync` writes them.

        They can be read until a power cut, and are lost then unless they are written again.
        """
        self._checked().drop_unsynced()

    def _checked(self, *numbers: int) -> Inode:
        inode = self._inode
        if inode is None:
            raise _error(errno.EBADF, self._path)
        if not self._disk._alive:
            raise power_lost(self._path)
        if numbers and min(numbers) < 0:
            raise _error(errno.EINVAL, self._path)
        return inode


class MemoryLock:
    """The lock of a directory on a `MemoryDisk`."""

    def __init__(self, locked: WeakValueDictionary[Directory, MemoryLock], directory: Directory) -> None:
        self._locked = locked
        self._directory = directory

    def release(self) -> None:
        if self._locked.get(self._directory) is self:
            del self._locked[self._directory]


def _split(path: str) -> list[str]:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names


def _existing(directory: Directory, name: str, path: str) -> Node:
    node = directory.entries.get(name)
    if node is None:
        raise _error(errno.ENOENT, path)
    return node


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _check_file(path: object, content: object) -> None:
    if not isinstance(path, str) or not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(f"files are bytes by path, not {content!r:.100} by {path!r:.100}")
