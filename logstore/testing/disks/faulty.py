"""Make chosen disk calls fail, as a device or a kernel makes them fail.

    disk = FaultyDisk(inner, [Fault(operation="sync", at=3), Fault(operation="pwrite", short=100)])
    disk = FaultyDisk(inner, [Fault(at=k, errno=errno.ENOSPC, forever=True)])      for every k: sweep

Calls are counted over the whole disk. After a run without faults, `calls` is the number of places for a
fault.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from logstore.arguments import as_callback, as_int
from logstore.disk.errors import raise_unsynced
from logstore.disk.files import Buffer, Disk, File, Lock, Room, as_disk
from logstore.disk.memory import MemoryFile
from logstore.testing.disks.passing import PassingDisk, PassingFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The `at`-th matching call from now on (1: the next) fails with `errno`; with `forever`, all later
    ones too.

    A call matches if it has the name `operation` (a method of `Disk` or `File`; None: any but `close`) and
    if `path` accepts the path under which the file or directory was opened. `rename` and `link` go by their
    source.

    With `short`, that many bytes of a `pwrite` reach the file before it fails. With `done`, the call takes
    effect and only its answer is lost: an error does not mean that nothing happened.

    A `sync` that fails on a file of a `MemoryDisk` loses the unsynced pages: later syncs succeed without
    them.
    """

    at: int = 1
    errno: int = errno.EIO
    operation: str | None = None
    path: Callable[[str], bool] | None = None
    forever: bool = False
    short: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        as_int(self.at, "at", least=1)
        as_int(self.errno, "errno", least=1)
        as_int(self.short, "short")
        if self.path is not None:
            as_callback(self.path, "path")
        if self.short and self.operation not in (None, "pwrite"):
            raise ValueError(f"short is for pwrite, not for {self.operation}")
        if self.operation not in (None, *(known := _operations())):
            raise ValueError(
                f"{self.operation!r} is no operation of a disk or file; name one of {', '.join(known)}"
            )

    def matches(self, operation: str, path: str) -> bool:
        """Return whether the fault applies to this call."""
        if self.operation is None:
            # No caller learns of a failing close, so it must be requested by name.
            named = operation != "close"
        else:
            named = self.operation == operation
        return named and (self.path is None or self.path(path))


class _Planned:
    """A planned fault, with its own count of matching calls."""

    __slots__ = ("fault", "seen")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0


class FaultyDisk(PassingDisk):
    """Pass every call on, except those that the plan makes fail.

    `calls` counts all calls but `close`, `counts` counts them by name. `fired` lists the failed calls,
    oldest first, as pairs of operation and path.
    """

    def __init__(self, inner: Disk, plan: Iterable[Fault] = ()) -> None:
        super().__init__(as_disk(inner))
        self.calls = 0
        self.counts: Counter[str] = Counter()
        self.fired: list[tuple[str, str]] = []
        self._plan: list[_Planned] = []
        self.inject(*plan)

    def inject(self, *faults: Fault) -> None:
        """Plan more faults, counted from the next call. Raises `TypeError` for anything else."""
        for fault in faults:
            if not isinstance(fault, Fault):
                raise TypeError(f"inject takes faults, such as Fault(operation='sync'), not {fault!r:.100}")
        self._plan += [_Planned(fault) for fault in faults]

    def heal(self) -> None:
        """Drop the plan: all later calls work."""
        self._plan.clear()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> FaultyFile:
        fault = self.check("open", path)
        file = self.inner.open(path, create=create, exclusive=exclusive, write=write)
        if fault is not None:
            file.close()
            raise _error(fault, path)
        return FaultyFile(self, file, path)

    def lock(self, directory: str) -> Lock:
        self._run("lock", directory, _nothing)
        return self.inner.lock(directory)

    def room(self, directory: str) -> Room:
        found = super().room(directory)
        return Room(0, found.total) if self._has_no_room else found

    @property
    def _has_no_room(self) -> bool:
        """Whether every write fails for want of room from now on."""
        return any(
            planned.fault.operation == "pwrite"
            and planned.fault.forever
            and planned.fault.path is None
            and planned.fault.errno == errno.ENOSPC
            for planned in self._plan
        )

    def check(self, operation: str, path: str) -> Fault | None:
        """Count one call. Raise if it must fail without effect; return a fault to raise after the call."""
        fault = self.due(operation, path)
        if fault is not None and not fault.done:
            raise _error(fault, path)
        return fault

    def due(self, operation: str, path: str) -> Fault | None:
        """Count one call; return the fault it must fail with, if any."""
        self.counts[operation] += 1
        self.calls += operation != "close"
        due = None
        for planned in self._plan:
            fault = planned.fault
            if fault.matches(operation, path):
                planned.seen += 1
                if due is None and (planned.seen == fault.at or (fault.forever and planned.seen > fault.at)):
                    due = fault
        if due is not None:
            self.fired.append((operation, path))
        return due

    def _run(self, operation: str, path: str, call: Callable[[], T], **facts: object) -> T:
        fault = self.check(operation, path)
        result = call()
        if fault is not None:
            raise _error(fault, path)
        return result


class FaultyFile(PassingFile):
    """An open file of a `FaultyDisk`."""

    __slots__ = ()
    _disk: FaultyDisk

    def pwrite(self, data: Buffer, at: int) -> None:
        fault = self._disk.due("pwrite", self.path)
        if fault is None:
            self._inner.pwrite(data, at)
            return
        content = bytes(data)
        written = content if fault.done else content[: fault.short]
        if written:
            self._inner.pwrite(written, at)
        raise _error(fault, self.path)

    def sync(self, *, data_only: bool = False) -> None:
        fault = self._disk.due("sync", self.path)
        if fault is None or fault.done:
            self._inner.sync(data_only=data_only)
        elif isinstance(self._inner, MemoryFile):
            self._inner.drop_unsynced()
        if fault is not None:
            raise_unsynced(_error(fault, self.path), self.path)

    def close(self) -> None:
        fault = self._disk.due("close", self.path)
        self._inner.close()  # the kernel frees the descriptor even if it reports an error
        if fault is not None:
            raise _error(fault, self.path)


def _operations() -> list[str]:
    return sorted(name for name in {*dir(Disk), *dir(File)} if not name.startswith("_"))


def _nothing() -> None:
    pass


def _error(fault: Fault, path: str) -> OSError:
    return OSError(fault.errno, os.strerror(fault.errno), path)
