"""Files and directories of a `MemoryDisk`, each with its operations since the last sync.

directory ── entries   (visible)         file ── body      (visible)
          └─ durable   (synced)               └─ journal   writes and truncations since the last sync,
                                                           each with the bytes that it replaced
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

_SMALL_READ = 4096


@dataclass(slots=True, eq=False)
class Body:
    """The content of a file: `buffer`, then zeros up to `size`."""

    buffer: bytearray
    size: int

    def copy(self) -> Body:
        return Body(bytearray(self.buffer), self.size)

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


class Step(NamedTuple):
    """A write, or a truncation to `at` if `data` is None, with the replaced bytes and the size before."""

    at: int
    data: bytes | None
    covered: bytes
    size_before: int


def redo(body: Body, step: Step) -> None:
    if step.data is None:
        body.resize(step.at)
    elif step.data:
        body.write(step.data, step.at)


def _undo(body: Body, step: Step) -> None:
    if step.covered:
        body.write(step.covered, step.at)
    body.resize(step.size_before)


@dataclass(slots=True, eq=False)
class Inode:
    """A file, independent of its name."""

    body: Body
    modified_ms: int
    charged: int = field(init=False)
    """Bytes of the disk's capacity; a hole at the end takes none."""
    journal: list[Step] = field(default_factory=list)
    base: Body | None = None
    """The durable content after `drop_unsynced`; otherwise it is `body` with the journal undone."""
    mapped: list[bytearray] = field(default_factory=list)
    mapped_size: int = 0
    links: int = 0
    opened: int = 0

    def __post_init__(self) -> None:
        self.charged = len(self.body.buffer)

    def copy(self) -> Inode:
        """Return an unopened copy of the file with its unsynced operations."""
        copy = Inode(self.body.copy(), self.modified_ms)
        copy.charged, copy.links = self.charged, self.links
        copy.journal = self.journal.copy()
        copy.base = None if self.base is None else self.base.copy()
        return copy

    def durable(self) -> Body:
        """Return a copy of the durable content."""
        if self.base is not None:
            return self.base.copy()
        body = self.body.copy()
        for step in reversed(self.journal):
            _undo(body, step)
        return body

    def sync(self) -> None:
        # Replaced first: a step that another thread adds meanwhile is not part of this sync.
        steps, self.journal = self.journal, []
        if self.base is not None:
            for step in steps:
                redo(self.base, step)

    def drop_unsynced(self) -> None:
        self.base = self.durable()
        self.journal = []

    def write(self, data: bytes, at: int) -> None:
        try:
            self.body.write(data, at)
        except BufferError:  # a mapped buffer cannot grow: continue with a copy
            self._leave_mapped_buffer()
            self.body.write(data, at)
        if self.mapped:
            self._write_through(data, at)

    def resize(self, size: int) -> None:
        if size < self.mapped_size:
            assert not self._is_mapped(), (
                f"a file with {self.mapped_size} mapped bytes is truncated to {size}: an access to the map "
                "would kill the process; release the map first"
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


class Directory:
    __slots__ = ("durable", "entries", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.modified_ms = modified_ms


Node: TypeAlias = Inode | Directory


class Assignment(NamedTuple):
    """`name` in `directory` now refers to `node`; None removes the name."""

    directory: Directory
    name: str
    node: Node | None


class Change:
    """A directory operation. `synced`: survives with every profile; `ordered`: survives with `journaled`."""

    __slots__ = ("assignments", "ordered", "synced")

    def __init__(self, *assignments: Assignment) -> None:
        self.assignments = assignments
        self.synced = False
        self.ordered = False

    def touches(self, directory: Directory) -> bool:
        return any(assignment.directory is directory for assignment in self.assignments)

    def keys(self) -> set[object]:
        names: set[object] = {(id(directory), name) for directory, name, _ in self.assignments}
        return names | {id(node) for _, _, node in self.assignments if node is not None}
