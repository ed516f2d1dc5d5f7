"""The part that both indexes share: a file of fixed-size entries, mapped for lookups.

    ┌─────────┬─────────┬─────────┬───────────────────────────┐
    │ entry 0 │ entry 1 │   …     │ zeros, if Kafka left them │
    └─────────┴─────────┴─────────┴───────────────────────────┘
      on disk, mapped read-only     + a tail of entries that only memory holds yet

New entries gather in memory and reach the file with one `pwrite` for hundreds of them, on a flush,
a roll and a close: a system call an entry would cost more than the batch it points to. That is
sound because an index is derived: entries that a crash loses are rebuilt from the log beside it,
and everything above the recovery point is rebuilt in any case. Nothing is ever written through the
map (a full disk would kill the process) and the map is dropped before the file shrinks (a read past
its end would, too). A file that Kafka preallocated is read up to its zero tail; ours have none.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from logstore.disk.files import Disk, File, publish, remove_if_exists
from logstore.errors import CorruptIndex

_WRITE_BEHIND_ENTRIES = 512


class IndexFile:
    """Entries of one dtype whose first listed `key` column ascends. Safe for one writer, many readers.

    `entry_count` counts entries in the file and in the unwritten tail. The file is created with the
    first write, so an index that never had an entry has no file until `flush`.
    """

    dtype: ClassVar[np.dtype[np.void]]
    suffix: ClassVar[str]

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self.capacity = max_bytes // self.dtype.itemsize
        self._lock = threading.Lock()
        self._file: File | None = None
        self._written = 0
        self._entries: npt.NDArray[np.void] = np.empty(0, self.dtype)
        self._tail: list[tuple[int, int]] = []
        self._is_let_go = False
        self._mapped()

    # --- reading --------------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        return self._written + len(self._tail)

    def entry(self, slot: int) -> tuple[int, int]:
        """Entry number `slot`, as stored (offsets relative); `IndexError` beyond the last."""
        with self._lock:
            return self._entry(slot)

    def entries(self) -> list[tuple[int, int]]:
        """All entries, as stored."""
        with self._lock:
            first, second = self.dtype.names or ()
            written = zip(self._entries[first].tolist(), self._entries[second].tolist(), strict=True)
            return [*written, *self._tail]

    def _entry(self, slot: int) -> tuple[int, int]:
        if not 0 <= slot < self.entry_count:
            raise IndexError(f"{self.path} has {self.entry_count} entries, none numbered {slot}")
        if slot < self._written:
            first, second = self._entries[slot]
            return int(first), int(second)
        return self._tail[slot - self._written]

    def _last(self) -> tuple[int, int] | None:
        if self._tail:
            return self._tail[-1]
        return self._entry(self._written - 1) if self._written else None

    # --- opening --------------------------------------------------------------------------------

    def load(self) -> None:
        """Take over the entries of an existing file.

        Raises `CorruptIndex` if they cannot be this segment's: rebuild the index then.
        """
        file = self._disk.open(self.path, write=True)
        size = file.size()
        if size % self.dtype.itemsize:
            file.close()
            raise CorruptIndex(f"{self.path}: {size} bytes are not whole entries of {self.dtype.itemsize}")
        entries = np.frombuffer(file.pread(size, 0), self.dtype)
        used = _without_zero_tail(entries)
        try:
            self._check(entries[:used])
        except CorruptIndex:
            file.close()
            raise
        with self._lock:
            self._file, self._written = file, used
            self._tail.clear()
            self._mapped()

    def _check(self, entries: npt.NDArray[np.void]) -> None:
        raise NotImplementedError

    def _mapped(self) -> None:
        """Point the lookup columns at the written entries (the lock is held, or nobody else is here)."""
        if self._file is None or self._written == 0:
            self._entries = np.empty(0, self.dtype)
        else:
            self._entries = np.frombuffer(
                self._file.map(self._written * self.dtype.itemsize), self.dtype, count=self._written
            )

    # --- writing --------------------------------------------------------------------------------

    def _append(self, first: int, second: int) -> None:
        assert self._written + len(self._tail) < self.capacity, f"{self.path}: appending to a full index"
        with self._lock:
            self._tail.append((first, second))

    def _extend(self, entries: Iterable[tuple[int, int]]) -> None:
        with self._lock:
            self._tail.extend(entries)

    def write_behind(self) -> None:
        """Bring the tail into the file if it has grown long. Raises `OSError`; the tail is then kept."""
        if len(self._tail) >= _WRITE_BEHIND_ENTRIES:
            with self._lock:
                self._write_tail()

    def replace(self, entries: npt.NDArray[np.void] | Sequence[tuple[int, int]]) -> None:
        """Drop what there is and hold `entries` instead: the index was rebuilt from its log."""
        with self._lock:
            self._shrink(0)
            fresh = np.asarray(entries, self.dtype)
            if len(fresh):
                self._open().pwrite(fresh.tobytes(), 0)
                self._written = len(fresh)
                self._mapped()

    def replace_durably(self, entries: npt.NDArray[np.void] | Sequence[tuple[int, int]]) -> None:
        """As `replace`, wholly or not at all, and safe when it returns.

        For a segment that recovery will not read again: half an index would be believed there.
        """
        with self._lock:
            self._let_go()
            directory, name = posixpath.split(self.path)
            fresh = np.asarray(entries, self.dtype)
            publish(self._disk, directory, name, fresh.tobytes())
            self._file = self._disk.open(self.path, write=True)
            self._written = len(fresh)
            self._mapped()

    def flush(self) -> None:
        """Bring the tail into the file, which then exists; not yet durable. Nothing once it was let go."""
        with self._lock:
            self._flush()

    def sync(self) -> None:
        """`flush`, and make the file's content survive power loss."""
        with self._lock:
            if file := self._flush():
                file.sync()

    def _flush(self) -> File | None:
        if self._is_let_go:
            return None
        file = self._open()
        self._write_tail()
        return file

    def truncate_entries(self, count: int) -> None:
        """Keep the first `count` entries."""
        with self._lock:
            if count >= self._written:
                del self._tail[count - self._written :]
            else:
                self._tail.clear()
                self._shrink(count)

    def _write_tail(self) -> None:
        if not self._tail:
            return
        data = np.array(self._tail, self.dtype).tobytes()
        self._open().pwrite(data, self._written * self.dtype.itemsize)
        tail, self._tail = self._tail, []
        self._written += len(tail)
        try:
            self._mapped()
        except OSError:
            self._written -= len(tail)
            self._tail = tail
            raise

    def _shrink(self, count: int) -> None:
        self._tail.clear()
        self._entries = np.empty(0, self.dtype)
        self._columns_changed()
        self._written = count
        if self._file is not None:
            self._file.truncate(count * self.dtype.itemsize)
        self._mapped()

    def _columns_changed(self) -> None:
        """A map is about to go: let go of everything that points into it."""

    def _open(self) -> File:
        assert not self._is_let_go, f"{self.path}: written to after it was let go"
        if self._file is None:
            self._file = self._disk.open(self.path, create=True, write=True)
            # What a crash or another program left under this name is not ours: entries start at 0.
            self._file.truncate(self._written * self.dtype.itemsize)
        return self._file

    # --- the end --------------------------------------------------------------------------------

    def trim(self) -> None:
        """Write the tail and cut a preallocated zero tail: the segment is no longer active."""
        with self._lock:
            file = self._open()
            self._write_tail()
            size = self._written * self.dtype.itemsize
            if file.size() != size:
                self._shrink(self._written)

    def close(self) -> None:
        """Write the tail and let go of the file."""
        with self._lock:
            if self._tail:
                self._write_tail()
            self._let_go()

    def let_go(self) -> None:
        """Forget the file and its map without writing, for good. Who still looks up something finds nothing.

        The file may be opened again, and cut, by another object: this one's map must be gone by then, and
        whoever was about to flush this one must not open the file as one that has no entries yet.
        """
        with self._lock:
            self._is_let_go = True
            self._forget()

    def _let_go(self) -> None:
        file = self._file
        self._forget()
        if file is not None:
            file.close()

    def _forget(self) -> None:
        self._tail.clear()
        self._entries = np.empty(0, self.dtype)
        self._columns_changed()
        self._written = 0
        self._file = None

    def delete(self) -> None:
        """Let go of the file and unlink it; one that was never written is fine."""
        with self._lock:
            self._tail.clear()
        self.close()
        remove_if_exists(self._disk, self.path)


def _without_zero_tail(entries: npt.NDArray[np.void]) -> int:
    """How many entries come before the zeros that preallocation leaves behind them."""
    if not len(entries):
        return 0
    if any(entries[-1:].tobytes()):  # the rule: nobody has preallocated it
        return len(entries)
    used = np.flatnonzero(entries.view((np.uint8, entries.dtype.itemsize)).any(axis=1))
    return int(used[-1]) + 1 if len(used) else 0
