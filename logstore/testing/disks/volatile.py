"""A disk over real directories that can lose unsynced data, as in a power cut.

For programs that use real files and system calls and still want to see the effect of a power cut
(`logstore demo`). The content of the directories when the disk is made counts as durable.

    file       durable_size ── bytes below it are synced, except those in
               undo ────────── the bytes that each write or truncation below it replaced, since the last sync
    directory  names ───────── creations, renames, removals since its last sync, each with its inverse

`power_cut` leaves a subset of what a real one may leave (`MemoryDisk` covers more):

* Past the durable size, a file keeps a random prefix; sometimes a run of zeros follows.
* Each write or truncation below it is undone or not, sometimes in part. A truncation of more than
  `SAVED_BYTES` stays.
* Of a directory's names, a random prefix of the changes since its last sync stays; later ones are undone.
  (A file that was removed, or replaced by a rename, is held open until then, for its content.)
* A rename between directories counts as durable at once, with earlier changes in both.
* A directory whose own name is lost is lost with everything in it, synced or not.

An append costs a comparison; a write into synced bytes first reads what it covers.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import closing
from random import Random
from typing import NamedTuple, TypeAlias, TypeVar

from logstore.disk.files import Buffer, Disk, File, Lock
from logstore.disk.memory import power_lost
from logstore.testing.disks.passing import PassingDisk, PassingFile

T = TypeVar("T")

SAVED_BYTES = 1 << 20

_SECTOR = 512


class _Undo(NamedTuple):
    """`before` was at `position` until it was overwritten or, with `is_cut`, truncated."""

    position: int
    before: bytes
    is_cut: bool


class _Node:
    """A file that was opened, under its current name."""

    __slots__ = ("cuts", "durable_size", "mapped", "undo", "written")

    def __init__(self, durable_size: int) -> None:
        self.durable_size = durable_size
        self.undo: list[_Undo] = []
        self.written = False
        self.mapped = False
        self.cuts = 0


class _Kept(NamedTuple):
    """A file that lost its name, held open for its content; None stands for a file that was never opened."""

    file: File
    node: _Node | None


class _Created(NamedTuple):
    name: str
    is_directory: bool


class _Removed(NamedTuple):
    name: str
    kept: _Kept | None  # None: it was a directory


class _Renamed(NamedTuple):
    source: str
    name: str
    replaced: _Kept | None  # the file that had the name


_NameChange: TypeAlias = _Created | _Removed | _Renamed


class VolatileDisk(PassingDisk):
    """Pass every call on to `inner` and remember how to undo unsynced changes."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self._nodes: dict[str, _Node] = {}
        self._names: dict[str, list[_NameChange]] = {}
        self._files: weakref.WeakSet[VolatileFile] = weakref.WeakSet()
        self._locks: list[Lock] = []
        self._lost = False

    # - Disk

    def _run(self, operation: str, path: str, call: Callable[[], T], **facts: object) -> T:
        self._check_power(path)
        return call()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> VolatileFile:
        self._check_power(path)
        created = False
        if create:
            try:
                file = self.inner.open(path, create=True, exclusive=True)
                created = True
            except FileExistsError:
                if exclusive:
                    raise
                file = self.inner.open(path, write=True)
        else:
            file = self.inner.open(path, write=write)
        path = _normal(path)
        node = self._nodes.get(path)
        if created:
            node = self._nodes[path] = _Node(0)
            self._note(_directory_of(path), _Created(os.path.basename(path), False))
        elif node is None:
            node = self._nodes[path] = _Node(file.size())
        opened = VolatileFile(self, file, node, path)
        self._files.add(opened)
        return opened

    def rename(self, source: str, target: str) -> None:
        self._check_power(source)
        old, new = _normal(source), _normal(target)
        node = self._nodes.get(old)
        if old == new or (
            node is not None and node is self._nodes.get(new)
        ):  # two names of one file: both stay
            self.inner.rename(source, target)
            return
        replaced, undoable = self._keep(new)
        try:
            self.inner.rename(source, target)
        except OSError:
            _close_kept(replaced)
            raise
        self._nodes.pop(new, None)
        for table in (self._nodes, self._names):
            for path in [path for path in table if _is_at_or_below(path, old)]:
                table[new + path[len(old) :]] = table.pop(path)  # type: ignore[assignment]
        directory, other = _directory_of(new), _directory_of(old)
        if directory != other:
            self._commit(other)
            undoable = False
        self._note(directory, _Renamed(os.path.basename(old), os.path.basename(new), replaced), undoable)

    def link(self, source: str, target: str) -> None:
        self._check_power(source)
        self.inner.link(source, target)
        old, new = _normal(source), _normal(target)
        if old not in self._nodes:
            with closing(self.inner.open(source)) as file:
                self._nodes[old] = _Node(file.size())
        self._nodes[new] = self._nodes[old]
        self._note(_directory_of(new), _Created(os.path.basename(new), False))

    def remove(self, path: str) -> None:
        self._check_power(path)
        name = _normal(path)
        kept, undoable = self._keep(name)
        try:
            self.inner.remove(path)
        except OSError:
            _close_kept(kept)
            raise
        self._nodes.pop(name, None)
        self._note(_directory_of(name), _Removed(os.path.basename(name), kept), undoable)

    def make_dir(self, path: str) -> None:
        self._check_power(path)
        missing = []
        level = _normal(path)
        while level not in missing and not self._is_directory(level):
            missing.append(level)
            level = _directory_of(level)
        self.inner.make_dir(path)
        for level in reversed(missing):
            self._note(_directory_of(level), _Created(os.path.basename(level), True))

    def remove_dir(self, path: str) -> None:
        self._check_power(path)
        self.inner.remove_dir(path)
        name = _normal(path)
        self._commit(name)
        self._note(_directory_of(name), _Removed(os.path.basename(name), None))

    def sync_dir(self, directory: str) -> None:
        self._check_power(directory)
        self.inner.sync_dir(directory)
        self._commit(_normal(directory))

    def lock(self, directory: str) -> Lock:
        self._check_power(directory)
        lock = self.inner.lock(directory)
        self._locks.append(lock)
        return lock

    # - power

    def power_cut(self, random: Random) -> VolatileDisk:
        """Remove from the real files what a power cut removes; return the disk that comes back.

        This disk, its open files and its locks are dead afterwards; maps stay readable as they were.
        """
        self._check_power("")
        self._lost = True
        for file in list(self._files):  # in any order: each is only closed
            file.close()
        for lock in self._locks:
            lock.release()
        paths_of: dict[_Node, list[str]] = {}
        for path in sorted(self._nodes):
            paths_of.setdefault(self._nodes[path], []).append(path)
        for node, (path, *others) in paths_of.items():
            self._roll_back_file(path, node, random)
            if node.written and node.mapped:  # a copy was made: its other names go to the copy too
                for other in others:
                    self.inner.remove(other)
                    self.inner.link(path, other)
        # Deepest first: inverses inside a directory use its current path.
        for directory in sorted(self._names, key=lambda path: (-path.count("/"), path)):
            changes = self._names[directory]
            kept = random.randint(0, len(changes))
            for change in reversed(changes[kept:]):
                self._take_back(directory, change, random)
        for directory in list(self._names):
            self._commit(directory)
        return VolatileDisk(self.inner)

    def _roll_back_file(self, path: str, node: _Node, random: Random) -> None:
        if not node.written:
            return
        file = self.inner.open(path, write=True)
        if node.mapped:
            # Truncating a file under a map kills any process that touches the map: leave the old file to it.
            with closing(file):
                self.inner.remove(path)
                self._restore(path, _Kept(file, node), random)
            return
        with closing(file):
            _roll_back(file, node, random)

    def _restore(self, path: str, kept: _Kept, random: Random) -> None:
        """Give a file without a name a new one, as a copy, rolled back."""
        with closing(self.inner.open(path, create=True, exclusive=True)) as copy:
            size = kept.file.size()
            for position in range(0, size, SAVED_BYTES):
                copy.pwrite(kept.file.pread(min(SAVED_BYTES, size - position), position), position)
            if kept.node is not None:
                _roll_back(copy, kept.node, random)

    def _take_back(self, directory: str, change: _NameChange, random: Random) -> None:
        path = f"{directory}/{change.name}"
        match change:
            case _Created(is_directory=True):
                self._remove_tree(path)
            case _Created():
                self.inner.remove(path)
            case _Removed(kept=None):
                self.inner.make_dir(path)
            case _Removed(kept=_Kept() as kept):
                self._restore(path, kept, random)
            case _Renamed(source=source, replaced=replaced):
                self.inner.rename(path, f"{directory}/{source}")
                if replaced is not None:
                    self._restore(path, replaced, random)

    def _remove_tree(self, path: str) -> None:
        for entry in self.inner.scan(path):
            if entry.is_directory:
                self._remove_tree(f"{path}/{entry.name}")
            else:
                self.inner.remove(f"{path}/{entry.name}")
        self.inner.remove_dir(path)

    # - inside

    def _check_power(self, path: str) -> None:
        if self._lost:
            raise power_lost(path)

    def _note(self, directory: str, change: _NameChange, undoable: bool = True) -> None:
        self._names.setdefault(directory, []).append(change)
        if not undoable:
            self._commit(directory)

    def _commit(self, directory: str) -> None:
        """Make the names in `directory` durable as they are now."""
        for change in self._names.pop(directory, ()):
            match change:
                case _Removed(kept=kept) | _Renamed(replaced=kept):
                    _close_kept(kept)

    def _keep(self, path: str) -> tuple[_Kept | None, bool]:
        """Return the file at `path` (None if there is none), and whether its removal can be undone."""
        try:
            return _Kept(self.inner.open(path, write=True), self._nodes.get(path)), True
        except FileNotFoundError:
            return None, True
        except OSError:
            # A directory or a lock file. If something is wrong with it, the operation itself will report it.
            return None, False

    def _is_directory(self, path: str) -> bool:
        try:
            self.inner.scan(path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return True  # `make_dir` will report it
        return True


class VolatileFile(PassingFile):
    """An open file of a `VolatileDisk`."""

    __slots__ = ("__weakref__", "_node")
    _disk: VolatileDisk

    def __init__(self, disk: VolatileDisk, inner: File, node: _Node, path: str) -> None:
        super().__init__(disk, inner, path)
        self._node = node

    def pread(self, size: int, at: int) -> bytes:
        if self._disk._lost:
            raise power_lost(self.path)
        return self._inner.pread(size, at)

    def pwrite(self, data: Buffer, at: int) -> None:
        if self._disk._lost:
            raise power_lost(self.path)
        node = self._node
        if 0 <= at < node.durable_size:
            length = data.nbytes if isinstance(data, memoryview) else len(data)
            covered = self._inner.pread(min(length, node.durable_size - at), at)
            node.undo.append(_Undo(at, covered, False))
        node.written = True
        self._inner.pwrite(data, at)

    def map(self, size: int) -> memoryview:
        self._check_power()
        self._node.mapped = True
        return self._inner.map(size)

    def truncate(self, size: int) -> None:
        self._check_power()
        node = self._node
        cut = node.durable_size - size
        if 0 < cut <= SAVED_BYTES and size >= 0:
            node.undo.append(_Undo(size, self._inner.pread(cut, size), True))
        node.written = True
        self._inner.truncate(size)
        if cut > 0:
            node.durable_size = size
            node.cuts += 1

    def sync(self, *, data_only: bool = False) -> None:
        self._check_power()
        node = self._node
        # Taken before the sync: what another thread writes during the sync is not part of it.
        size, undo, cuts = self._inner.size(), len(node.undo), node.cuts
        self._inner.sync(data_only=data_only)
        del node.undo[:undo]
        if cuts == node.cuts:
            node.durable_size = size

    def close(self) -> None:
        self._inner.close()

    def _check_power(self) -> None:
        if self._disk._lost:
            raise power_lost(self.path)


def _close_kept(kept: _Kept | None) -> None:
    if kept is not None:
        kept.file.close()


def _roll_back(file: File, node: _Node, random: Random) -> None:
    """Lose a random part of the unsynced data."""
    size = file.size()
    if size > node.durable_size:
        keep = node.durable_size + _torn(size - node.durable_size, random)
        file.truncate(keep)
        if random.random() < 0.25:
            file.truncate(random.randint(keep, size))
    for undo in reversed(node.undo):
        if random.random() < 0.5:
            _take_back_write(file, undo, random)


def _take_back_write(file: File, undo: _Undo, random: Random) -> None:
    position, before, is_cut = undo
    room = file.size() - position
    if is_cut:
        # As a whole or not at all, since a file has one length; and not behind a later truncation that stays.
        if room >= 0:
            file.pwrite(before, position)
        return
    start = _torn(len(before), random) if random.random() < 0.3 else 0
    stop = min(len(before), room)  # what a later truncation removed has no place
    if start < stop:
        file.pwrite(before[start:stop], position + start)


def _torn(size: int, random: Random) -> int:
    """Return how many of `size` bytes stay: often all or none, else a random part, often whole sectors."""
    fate = random.random()
    if fate < 0.2:
        return 0
    if fate < 0.4:
        return size
    part = random.randint(0, size)
    return part // _SECTOR * _SECTOR if fate < 0.7 else part


def _directory_of(path: str) -> str:
    return os.path.dirname(path) or "."


def _normal(path: str) -> str:
    return os.path.normpath(path)


def _is_at_or_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
