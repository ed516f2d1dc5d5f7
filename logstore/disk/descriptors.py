"""File descriptors: the limit of this process, and the ones reserved for files.

A process that runs out of descriptors cannot open the next segment, and a rename cannot be made durable. So
two amounts are held back for files:

* `Spares` holds a few descriptors open. `OsDisk` gives one up when a call fails for want of one. The last of
  them are for syncs of directories, which give theirs back: after a rename it is too late for a refusal.
* Connections use descriptor numbers below `room_for_others`; files may use all numbers. The
  kernel assigns the lowest free number, so the number of a new connection says how many are in use.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

try:
    import resource
except ImportError:  # pragma: no cover - Windows has no such limit
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

MOST_HELD_BACK: Final = 1_000
_ENOUGH: Final = 1 << 20
LEFT_TO_DIRECTORIES: Final = 4
_SPARES: Final = 12
_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorLimit(NamedTuple):
    """The limit of open files of this process, and how many of them connections leave to files."""

    limit: int
    held_back: int

    @property
    def room_for_others(self) -> int:
        """The first descriptor number that is left to files."""
        return self.limit - self.held_back


def descriptor_limit(*, raise_it: bool = False) -> DescriptorLimit:
    """Return the limit; with `raise_it`, raise it to what the system allows this process first."""
    if resource is None:  # pragma: no cover
        return DescriptorLimit(_ENOUGH, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_it and soft != resource.RLIM_INFINITY:
        wanted = max(soft, _ENOUGH) if hard == resource.RLIM_INFINITY else hard
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    limit = _ENOUGH if soft == resource.RLIM_INFINITY else soft
    return DescriptorLimit(limit, min(MOST_HELD_BACK, limit // 4))


def open_descriptors() -> int | None:
    """Return how many descriptors this process has open; None if the system does not report it."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory)) - 1  # one was open to read it
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                return None
            return descriptor_limit().limit
    return None


def above_standard(descriptor: int) -> int:
    """Return the descriptor, or a duplicate above 2 that replaces it.

    Everything in a process may write to 0, 1 and 2: a fatal error, a library's warning. Where the program
    closed them, such a line would end up in the file that got the number.
    """
    if descriptor > 2:
        return descriptor
    try:
        return above_standard(os.dup(descriptor))
    finally:
        os.close(descriptor)


def hold_standard() -> None:
    """Open `/dev/null` in place of each standard stream that the program closed.

    A socket must not get its number either, and libuv aborts the process when it closes a descriptor below 3.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class Spares:
    """A few open descriptors, closed for a call that finds none left. Safe from any thread."""

    def __init__(self, count: int = _SPARES) -> None:
        self._count = count
        self._held: list[int] = []
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Make a lock that no thread holds, in a forked child."""
        self._lock = threading.Lock()

    def run(self, action: Callable[[], T], *, leave: int = LEFT_TO_DIRECTORIES) -> T:
        """Return `action()`; if it has no descriptor, give up spare ones for it, all but `leave` of them.

        Raises what it raises.
        """
        self.refill()
        try:
            return action()
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
        while True:
            with self._lock:
                spare = self._held.pop() if len(self._held) > leave else -1
            if spare >= 0:
                os.close(spare)
            try:
                return action()
            except OSError as error:
                if error.errno not in _NONE_LEFT or spare < 0:
                    raise

    def refill(self) -> None:
        """Open spare descriptors up to the wanted number, if possible."""
        if len(self._held) >= self._count:
            return
        with self._lock:
            while len(self._held) < self._count:
                try:
                    new = (os.dup(self._held[0]),) if self._held else os.pipe()
                    self._held += map(above_standard, new)
                except OSError:
                    return  # another time: those that are there still help
