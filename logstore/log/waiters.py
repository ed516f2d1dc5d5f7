"""The readers that wait for a log to change, and that are notified of truncations.

    follower   add → looks at the log → sleeps
    writer     moves the end → wakes all, who look again

A reader is added before it looks, and the end moves before the writer wakes. So a change is either seen by
the look or followed by a wake. A log that nobody waits for pays for one look at an empty list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias
from weakref import WeakSet

Unwatch: TypeAlias = Callable[[], None]
"""Ends the wait for a change; harmless if the change has come."""


class Waiter(Protocol):
    """A reader that waits. Both methods return at once and raise nothing; any thread may call them."""

    def wake(self) -> None:
        """Check the log again: an end or the start moved, or the log was closed."""

    def truncated(self, offset: int) -> None:
        """Learn that everything at or past `offset` was removed, before the offsets are used again."""


class Waiters:
    """The waiters of one log. Every method may be called from any thread."""

    __slots__ = ("_known", "_mutex", "waiting")

    def __init__(self) -> None:
        """Start without waiters."""
        self._mutex = threading.Lock()
        self._known: WeakSet[Waiter] | None = None
        """All that are referenced; None before the first: an empty set takes most of a kilobyte."""
        self.waiting: list[Waiter] = []
        """Read it without a lock, to ask whether anybody waits."""

    def renew_lock(self) -> None:
        """Make a lock that no thread holds, in a forked child."""
        self._mutex = threading.Lock()

    def add(self, waiter: Waiter) -> Unwatch:
        """Wake `waiter` at the next change, and notify it of each truncation while it is referenced."""
        with self._mutex:
            self.waiting.append(waiter)
            if self._known is None:
                self._known = WeakSet()
            self._known.add(waiter)
        return lambda: self.discard(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Do not wake `waiter`, unless it is being woken already."""
        with self._mutex:
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    def wake(self) -> None:
        """Wake all; none of them waits any more."""
        with self._mutex:
            waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.wake()

    def truncated(self, offset: int) -> None:
        """Notify all that everything at or past `offset` was removed, and wake those that wait."""
        with self._mutex:
            known = list(self._known or ())
        for waiter in known:
            waiter.truncated(offset)
        self.wake()
