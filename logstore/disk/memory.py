"""A file system in memory that knows what a power cut may leave of it.

    names                                    contents
    directory ── entries   (what is seen)    file ── body      (what is seen)
              └─ durable   (what is synced)       └─ journal   writes and cuts since the last sync,
                                                               each with the bytes it covered
    disk ─────── changes   directory operations since then, in order

Writing costs an entry in a journal; the durable image is found by undoing the journal, and only when
somebody asks for one. `image` draws a random disk that the operating system would have been allowed to
leave behind, `power_cut` does the same and kills this disk with its open files.

What survives for certain: the content of a file up to its last `sync`, and the names in a directory up
to its last `sync_dir`. Of the rest any part may be there: of a file, whole writes or pieces down to a
byte or a sector, cuts undone under later writes, a length without its bytes; of the directories,
depending on the profile,

    journaled   a prefix of the operations, in the order they were made (ext4, XFS); a file renamed
                over another may still be empty
    posix       any of them: each name shows one of the files it had since its directory's last
                sync; a length that came without bytes may hold garbage

A rename is one operation in both: never half of it, nor is a file found under two names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from random import Random
from typing import NamedTuple, TypeAlias

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import LOCK_FILE, Buffer, DirectoryEntry, refuse_lock_file

_SECTORS = (512, 4096)
_PLENTY = 1 << 40
_SMALL_READ = 4096


class Profile(Enum):
    """How orderly the file system is about directory operations."""

    JOURNALED = "journaled"
    POSIX = "posix"


def power_lost(path: str) -> OSError:
    """What every call gets that reaches a disk after its power was cut."""
    return OSError(errno.EIO, "the power was cut; this disk is gone, use the one that came back", path)


# --- contents -----------------------------------------------------------------------------------


class _Body:
    """Bytes of a file: `buffer`, then zeros up to `size`."""

    __slots__ = ("buffer", "size")

    def __init__(self, buffer: bytearray, size: int) -> None:
        self.buffer = buffer
        self.size = size

    def copy(self) -> _Body:
        return _Body(bytearray(self.buffer), self.size)

    def read(self, size: int, at: int) -> bytes:
        size = min(size, self.size - at)
        if size <= 0:
            return b""
        if size < _SMALL_READ:
            data = bytes(self.buffer[at : at + size])
        else:  # one copy instead of two
            data = bytes(memoryview(self.buffer)[at : at + size])
        return data if len(data) == size else data + bytes(size - len(data))

    def write(self, data: bytes, at: int) -> None:
        buffer, end = self.buffer, at + len(data)
        if at > len(buffer):
            buffer += bytes(at - len(buffer))
        if end <= len(buffer):
            buffer[at:end] = data
        else:
            if at < len(buffer):
                overlap = len(buffer) - at
                buffer[at:] = data[:overlap]
                data = data[overlap:]
            buffer += data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        if size < len(self.buffer):
            del self.buffer[size:]
        self.size = size

    def content(self) -> bytes:
        return self.read(self.size, 0)


class _Step(NamedTuple):
    """A write, or with `data` None a truncation to `at`; what it covered, and the size before it."""

    at: int
    data: bytes | None
    covered: bytes
    size_before: int


def _redo(body: _Body, step: _Step) -> None:
    if step.data is None:
        body.resize(step.at)
    elif step.data:
        body.write(step.data, step.at)


def _undo(body: _Body, step: _Step) -> None:
    if step.covered:
        body.write(step.covered, step.at)
    body.resize(step.size_before)


class _Inode:
    """A file, whatever its name is now."""

    __slots__ = (
        "base",
        "body",
        "charged",
        "journal",
        "links",
        "mapped",
        "mapped_size",
        "modified_ms",
        "opened",
    )

    def __init__(self, body: _Body, modified_ms: int) -> None:
        self.body = body
        self.charged = len(body.buffer)  # bytes of the disk's room; a hole at the end takes none
        self.journal: list[_Step] = []
        # The durable content, if it is not simply `body` with the journal undone: see `drop_unsynced`.
        self.base: _Body | None = None
        self.mapped: list[bytearray] = []
        self.mapped_size = 0
        self.modified_ms = modified_ms
        self.links = 0
        self.opened = 0

    def copy(self) -> _Inode:
        """The same file, unsynced operations and all, that nobody has opened."""
        copy = _Inode(self.body.copy(), self.modified_ms)
        copy.charged, copy.links = self.charged, self.links
        copy.journal = self.journal.copy()
        copy.base = None if self.base is None else self.base.copy()
        return copy

    def durable(self) -> _Body:
        """A copy of what is certain to survive."""
        if self.base is not None:
            return self.base.copy()
        body = self.body.copy()
        for step in reversed(self.journal):
            _undo(body, step)
        return body

    def sync(self) -> None:
        # Taken off first: a step that another thread adds meanwhile is not part of this sync.
        steps, self.journal = self.journal, []
        if self.base is not None:
            for step in steps:
                _redo(self.base, step)

    def drop_unsynced(self) -> None:
        self.base = self.durable()
        self.journal = []

    def write(self, data: bytes, at: int) -> None:
        try:
            self.body.write(data, at)
        except BufferError:  # a mapped buffer cannot grow: go on in a copy
            self._leave_mapped_buffer()
            self.body.write(data, at)
        if self.mapped:
            self._write_through(data, at)

    def resize(self, size: int) -> None:
        if size < self.mapped_size:
            assert not self._is_mapped(), (
                f"a file of which {self.mapped_size} bytes are mapped is cut to {size}: touching the map "
                "would kill the process; let go of the map first"
            )
            self.mapped_size = 0
        try:
            self.body.resize(size)
        except BufferError:
            self._leave_mapped_buffer()
            self.body.resize(size)

    def map(self, size: int) -> memoryview:
        self.mapped_size = max(self.mapped_size if self._is_mapped() else 0, size)
        buffer = self.body.buffer
        if len(buffer) < size:
            if _is_exported(buffer):
                self._leave_mapped_buffer()
                buffer = self.body.buffer
            buffer += bytes(size - len(buffer))
        return memoryview(buffer)[:size].toreadonly()

    def _is_mapped(self) -> bool:
        return self._old_buffers_mapped() or _is_exported(self.body.buffer)

    def _leave_mapped_buffer(self) -> None:
        self.mapped.append(self.body.buffer)
        self.body.buffer = bytearray(self.body.buffer)

    def _old_buffers_mapped(self) -> bool:
        if self.mapped:
            self.mapped = [buffer for buffer in self.mapped if _is_exported(buffer)]
        return bool(self.mapped)

    def _write_through(self, data: bytes, at: int) -> None:
        if self._old_buffers_mapped():
            for buffer in self.mapped:
                room = len(buffer) - at
                if room > 0:
                    buffer[at : at + len(data)] = data[:room]


def _is_exported(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


# --- what may be left of a file -----------------------------------------------------------------


def _leftover(inode: _Inode, random: Random, profile: Profile) -> _Body:
    """One content that the file may have after a power cut."""
    body, journal = inode.durable(), inode.journal
    if not journal:
        return body
    fate = random.random()
    if fate < 0.2:
        pass
    elif fate < 0.4:
        for step in journal:
            _redo(body, step)
    elif fate < 0.7:
        whole = random.randrange(len(journal))
        for step in journal[:whole]:
            _redo(body, step)
        _redo_torn(body, journal[whole], random)
    else:
        likelihood, sector = random.choice((0.1, 0.5, 0.9)), random.choice(_SECTORS)
        for step in journal:
            for piece in _pieces(step, sector):
                if random.random() < likelihood:
                    _redo(body, piece)
    if body.size < inode.body.size and random.random() < 0.4:
        size = inode.body.size if random.random() < 0.5 else random.randint(body.size, inode.body.size)
        if profile is Profile.POSIX and random.random() < 0.25:
            body.write(random.randbytes(size - body.size), body.size)
        else:
            body.resize(size)
    return body


def _redo_torn(body: _Body, step: _Step, random: Random) -> None:
    if not step.data:
        return
    cut = random.randint(0, len(step.data))
    if random.random() < 0.5:
        sector = random.choice(_SECTORS)
        cut = max(0, (step.at + cut) // sector * sector - step.at)
    if random.random() < 0.8:
        body.write(step.data[:cut], step.at)
    elif cut < len(step.data):  # the later part reached the disk first: a hole before it
        body.write(step.data[cut:], step.at + cut)


def _pieces(step: _Step, sector: int) -> Iterator[_Step]:
    if step.data is None:
        yield step
        return
    start, end = step.at, step.at + len(step.data)
    while start < end:
        stop = min(end, (start // sector + 1) * sector)
        yield _Step(start, step.data[start - step.at : stop - step.at], b"", 0)
        start = stop


# --- names --------------------------------------------------------------------------------------


class _Directory:
    __slots__ = ("durable", "entries", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.modified_ms = modified_ms


_Node: TypeAlias = _Inode | _Directory


class _Assignment(NamedTuple):
    """`name` in `directory` now stands for `node`; for nothing if None."""

    directory: _Directory
    name: str
    node: _Node | None


class _Change:
    """One directory operation. `synced`: survives in any profile; `ordered`: survives in `journaled`."""

    __slots__ = ("assignments", "ordered", "synced")

    def __init__(self, *assignments: _Assignment) -> None:
        self.assignments = assignments
        self.synced = False
        self.ordered = False

    def touches(self, directory: _Directory) -> bool:
        return any(assignment.directory is directory for assignment in self.assignments)

    def keys(self) -> set[object]:
        names: set[object] = {(id(directory), name) for directory, name, _ in self.assignments}
        return names | {id(node) for _, _, node in self.assignments if node is not None}


class MemoryDisk:
    """A `Disk` in memory. Not for several writing threads on one file.

    `files` are there, durably, from the start, with the directories they need, and so are `directories`.
    `capacity` is the room in bytes for contents (None: no limit) and may be set at any time; a hole at
    a file's end costs nothing. `clock` gives modification times in epoch milliseconds.

    A truncation under a live `map` is an `AssertionError` here: a real process would be killed.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        directories: Iterable[str] = (),
        capacity: int | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.capacity = capacity
        self._clock = clock
        self._root = _Directory(clock())
        self._changes: list[_Change] = []
        self._locked: dict[_Directory, MemoryLock] = {}
        self._used = 0
        self._alive = True
        for directory in directories:
            self.make_dir(directory)
        for path, content in (files or {}).items():
            self.make_dir(os.path.dirname(path) or ".")
            directory_node, name = self._parent(path)
            inode = _Inode(_Body(bytearray(content), len(content)), clock())
            self._used += inode.charged
            self._change(_Assignment(directory_node, name, inode))
        self._settle()

    # - Disk

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> MemoryFile:
        refuse_lock_file(path)
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = _Inode(_Body(bytearray(), 0), self._clock())
            self._change(_Assignment(directory, name, node))
        elif isinstance(node, _Directory):
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
        if replaced is node:
            return
        if isinstance(node, _Directory) and self._is_inside(target_directory, node):
            raise _error(errno.EINVAL, source)
        if isinstance(replaced, _Directory):
            if not isinstance(node, _Directory) and not self._is_inside(source_directory, replaced):
                raise _error(errno.EISDIR, target)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        elif replaced is not None and isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, target)
        self._change(
            _Assignment(source_directory, source_name, None), _Assignment(target_directory, target_name, node)
        )

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        if isinstance(_existing(directory, name, path), _Directory):
            raise _error(errno.EISDIR, path)
        self._change(_Assignment(directory, name, None))

    def scan(self, directory: str) -> list[DirectoryEntry]:
        return [
            DirectoryEntry(name, True, 0, node.modified_ms)
            if isinstance(node, _Directory)
            else DirectoryEntry(name, False, node.body.size, node.modified_ms)
            for name, node in sorted(self._directory(directory).entries.items())
        ]

    def make_dir(self, path: str) -> None:
        self._check_power(path)
        names = _split(path)
        node = self._root
        for position, name in enumerate(names):
            child = node.entries.get(name)
            if child is None:
                child = _Directory(self._clock())
                self._change(_Assignment(node, name, child))
            elif not isinstance(child, _Directory):
                raise _error(errno.EEXIST if position == len(names) - 1 else errno.ENOTDIR, path)
            node = child

    def remove_dir(self, path: str) -> None:
        directory, name = self._parent(path)
        node = _existing(directory, name, path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        if node.entries:
            raise _error(errno.ENOTEMPTY, path)
        self._change(_Assignment(directory, name, None))

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
            raise DirectoryLocked(f"{directory} is already open; close that owner first")
        if LOCK_FILE not in node.entries:
            self._change(_Assignment(node, LOCK_FILE, _Inode(_Body(bytearray(), 0), self._clock())))
        lock = self._locked[node] = MemoryLock(self._locked, node)
        return lock

    def free(self, directory: str) -> int:
        self._directory(directory)
        return _PLENTY if self.capacity is None else max(0, self.capacity - self._used)

    # - power

    def image(self, random: Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        """A disk that a power cut at this moment may leave; this one goes on."""
        changes = self._changes
        if profile is Profile.JOURNALED:
            certain = sum(change.ordered for change in changes)
            kept = changes[: random.randint(certain, len(changes))]
        else:
            likelihood = random.choice((0.0, 0.5, 0.9, 1.0))
            kept = [change for change in changes if change.synced or random.random() < likelihood]
        return self._rebuilt(kept, lambda inode: _leftover(inode, random, profile))

    def durable_image(self) -> MemoryDisk:
        """The disk with exactly what was synced, the least that any power cut leaves."""
        return self._rebuilt([change for change in self._changes if change.synced], _Inode.durable)

    def power_cut(self, random: Random, profile: Profile = Profile.POSIX) -> MemoryDisk:
        """The disk that comes back. From now on this one, and every file opened on it, only fails."""
        after = self.image(random, profile)
        self._alive = False
        self._locked.clear()
        return after

    def copy(self) -> MemoryDisk:
        """A second disk that holds, all of it durable, what can be seen on this one."""
        return self._rebuilt(self._changes, lambda inode: inode.body.copy())

    def survivor(self) -> MemoryDisk:
        """What a process finds that starts after another was killed: all that can be seen on this disk.

        What was not synced is still not: the next power cut may take it. Files without a name are gone.
        """
        self._check_power("/")
        disk = MemoryDisk(capacity=self.capacity, clock=self._clock)
        copies: dict[_Node, _Node] = {self._root: disk._root}

        def copy_of(node: _Node) -> _Node:
            if node not in copies:
                if isinstance(node, _Directory):
                    copies[node] = _Directory(node.modified_ms)
                    fill(node)
                else:
                    copies[node] = node.copy()
            return copies[node]

        def fill(source: _Directory) -> None:
            target = copies[source]
            assert isinstance(target, _Directory)
            target.entries = {name: copy_of(node) for name, node in source.entries.items()}
            target.durable = {name: copy_of(node) for name, node in source.durable.items()}

        fill(self._root)
        for change in self._changes:
            copy = _Change()
            copy.synced, copy.ordered = change.synced, change.ordered
            for directory, name, node in change.assignments:
                target = copy_of(directory)
                assert isinstance(target, _Directory)
                assignment = _Assignment(target, name, None if node is None else copy_of(node))
                copy.assignments = (*copy.assignments, assignment)
            disk._changes.append(copy)
        disk._used = sum(node.charged for node in copies.values() if isinstance(node, _Inode) and node.links)
        return disk

    def files(self) -> dict[str, bytes]:
        """Path and content of every file that can be seen, sorted by path; paths begin at the root."""
        self._check_power("/")
        found: dict[str, bytes] = {}

        def collect(directory: _Directory, path: str) -> None:
            for name, node in directory.entries.items():
                if isinstance(node, _Directory):
                    collect(node, f"{path}/{name}")
                else:
                    found[f"{path}/{name}"] = node.body.content()

        collect(self._root, "")
        return dict(sorted(found.items()))

    def _rebuilt(self, changes: list[_Change], content: Callable[[_Inode], _Body]) -> MemoryDisk:
        self._check_power("/")
        tables = self._tables(changes)
        disk = MemoryDisk(capacity=self.capacity, clock=self._clock)

        def build(source: _Directory, target: _Directory) -> None:
            for name, node in sorted(tables[source].items()):
                copy: _Node
                if isinstance(node, _Directory):
                    copy = _Directory(node.modified_ms)
                    build(node, copy)
                else:
                    copy = _Inode(content(node), node.modified_ms)
                    disk._used += copy.charged
                    copy.links = 1
                target.entries[name] = target.durable[name] = copy

        build(self._root, disk._root)
        return disk

    def _tables(self, changes: Iterable[_Change]) -> dict[_Directory, dict[str, _Node]]:
        """What each directory holds if of the unsettled changes these survive."""
        tables: dict[_Directory, dict[str, _Node]] = {}
        places: dict[_Node, tuple[dict[str, _Node], str]] = {}

        def table_of(directory: _Directory) -> dict[str, _Node]:
            if directory not in tables:
                table = tables[directory] = dict(directory.durable)
                for name, node in table.items():
                    places[node] = (table, name)
                    if isinstance(node, _Directory):
                        table_of(node)
            return tables[directory]

        table_of(self._root)
        for change in changes:
            for directory, name, node in change.assignments:
                table = table_of(directory)
                before = table.pop(name, None)
                if before is not None:
                    places.pop(before, None)
                if node is not None:
                    # It may still have a name whose loss is not among the changes that survived.
                    old_table, old_name = places.pop(node, (table, name))
                    old_table.pop(old_name, None)
                    table[name] = node
                    places[node] = (table, name)
                    if isinstance(node, _Directory):
                        table_of(node)
        return tables

    # - inside

    def _check_power(self, path: str) -> None:
        if not self._alive:
            raise power_lost(path)

    def _directory(self, path: str) -> _Directory:
        self._check_power(path)
        return self._walk(_split(path), path)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        self._check_power(path)
        names = _split(path)
        if not names:
            raise _error(errno.EISDIR if path else errno.ENOENT, path)
        return self._walk(names[:-1], path), names[-1]

    def _walk(self, names: list[str], path: str) -> _Directory:
        directory = self._root
        for name in names:
            node = directory.entries.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            directory = node
        return directory

    def _is_inside(self, directory: _Directory, outer: _Directory) -> bool:
        if directory is outer:
            return True
        inner = (node for node in outer.entries.values() if isinstance(node, _Directory))
        return any(self._is_inside(directory, node) for node in inner)

    def _change(self, *assignments: _Assignment) -> None:
        self._changes.append(_Change(*assignments))
        # The new name first, then the old one away: in between, a renamed file is not nameless.
        for _, _, node in assignments:
            if isinstance(node, _Inode):
                node.links += 1
        for directory, name, node in assignments:
            before = directory.entries.pop(name, None)
            if node is not None:
                directory.entries[name] = node
            directory.modified_ms = self._clock()
            if isinstance(before, _Inode):
                before.links -= 1
                self._reclaim(before)

    def _reclaim(self, inode: _Inode) -> None:
        if inode.links == 0 and inode.opened == 0:
            self._used -= inode.charged
            inode.charged = 0

    def _settle(self) -> None:
        for change in self._changes:
            change.synced = True
        self._settle_synced()

    def _settle_synced(self) -> None:
        """Move what is synced from the list of changes into the durable tables.

        A synced change waits while an earlier one that is not synced concerns the same name or node:
        their order still matters to an image in which both survive.
        """
        waiting: list[_Change] = []
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

    def _take_room(self, inode: _Inode, size: int, at: int) -> int:
        """How many of `size` bytes at `at` there is room for; the room is then taken."""
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

    def __init__(self, disk: MemoryDisk, inode: _Inode, path: str, *, writable: bool) -> None:
        self._disk = disk
        self._inode: _Inode | None = inode
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
        # Kept in the journal until the next sync, so it must not change: a reference if it cannot.
        payload = data if type(data) is bytes else bytes(data)
        wanted = len(payload)
        room = disk._take_room(inode, wanted, at)
        if room < wanted:
            payload = payload[:room]
        if payload:
            size = inode.body.size
            covered = b"" if at >= size else inode.body.read(room, at)
            inode.journal.append(_Step(at, payload, covered, size))
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
        inode.journal.append(_Step(size, None, covered, before))
        if size < inode.charged:
            disk._used -= inode.charged - size
            inode.charged = size
        inode.modified_ms = disk._clock()

    def sync(self, *, data_only: bool = False) -> None:
        self._checked().sync()

    def size(self) -> int:
        return self._checked().body.size

    def is_cached(self, size: int, at: int) -> bool | None:
        return True

    def close(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.opened -= 1
            self._disk._reclaim(inode)

    def __del__(self) -> None:
        self.close()  # as the real one: who lets go of a file need not close it

    def drop_unsynced(self) -> None:
        """What a failed fsync does: the pages look clean, and no later `sync` will write them.

        They can be read until the power is cut, and never after it, unless they are written again.
        """
        self._checked().drop_unsynced()

    def _checked(self, *numbers: int) -> _Inode:
        inode = self._inode
        if inode is None:
            raise _error(errno.EBADF, self._path)
        if not self._disk._alive:
            raise power_lost(self._path)
        if numbers and min(numbers) < 0:
            raise _error(errno.EINVAL, self._path)
        return inode


class MemoryLock:
    """A directory of a `MemoryDisk`, held."""

    def __init__(self, locked: dict[_Directory, MemoryLock], directory: _Directory) -> None:
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


def _existing(directory: _Directory, name: str, path: str) -> _Node:
    node = directory.entries.get(name)
    if node is None:
        raise _error(errno.ENOENT, path)
    return node


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
