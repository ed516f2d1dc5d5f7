"""The waiters for a message: each has a bell, and new messages wake as many as they can serve.

A waiter that was rung and then does not take anything (its time was over, its task was cancelled) passes the
ring on; otherwise a message could lie there while others wait. One that leaves without a ring wakes another
only if nobody else looks when a lease or a delay ends: many may wait with a short timeout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from itertools import islice

from logstore.disk.clocks import steady_s


class Deadline:
    """The end of a call's time, by a clock that nobody sets: a wall clock that goes back would prolong it."""

    __slots__ = ("_end_s",)

    def __init__(self, seconds: float | None) -> None:
        """Begin the time now; None is for ever."""
        self._end_s = math.inf if seconds is None else steady_s() + seconds

    def left_s(self) -> float:
        """Return how many seconds are left; 0 if none are."""
        return max(self._end_s - steady_s(), 0.0)


class Waiter:
    """Waits for a message of one of `topics` (None: of any).

    `ring` may be called from any thread. After `is_gone` nobody hears it: an event loop was closed.
    """

    __slots__ = ("is_gone", "ring", "topics", "until_ms", "was_rung")

    def __init__(
        self, ring: Callable[[], None], is_gone: Callable[[], bool], topics: Collection[str] | None
    ) -> None:
        self.ring, self.is_gone = ring, is_gone
        self.topics = topics
        self.until_ms = 0.0
        """When it looks again by itself."""
        self.was_rung = False

    def wants(self, topic: str) -> bool:
        """Return whether it waits for messages of `topic`."""
        return self.topics is None or topic in self.topics


class Waiters:
    """The waiters of a queue, served in order of arrival. Called under its lock."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: Waiter, until_ms: float) -> None:
        """Let the waiter wait for the next ring; it checks at `until_ms` without one."""
        waiter.was_rung = False
        waiter.until_ms = until_ms
        self._waiting[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Remove the waiter; if it was rung and leaves without a message, others check instead."""
        self._waiting.pop(waiter, None)
        if waiter.was_rung:
            self.ring_all()

    def ring(self, topic: str, count: int) -> None:
        """Ring for `count` messages of `topic`."""
        for waiter in islice(self._wanting(topic), count):
            self._ring(waiter)

    def wake_by(self, topic: str, at_ms: int | None) -> None:
        """Make sure that a waiter checks `topic` at `at_ms`, when one of its leases or delays ends."""
        if at_ms is None:
            return
        first = None
        for waiter in self._wanting(topic):
            if waiter.until_ms <= at_ms:
                return
            first = first or waiter
        if first is not None:
            self._ring(first)

    def ring_all(self) -> None:
        """Wake all waiters: the queue closes, or the one that checked for others has left."""
        for waiter in list(self._waiting):
            self._ring(waiter)

    def look_again(self) -> None:
        """Make all waiters look again; they stay registered.

        A log went offline, perhaps without the queue's lock.
        """
        for waiter in list(self._waiting):
            waiter.ring()

    def _wanting(self, topic: str) -> Iterator[Waiter]:
        for waiter in list(self._waiting):
            if waiter.is_gone():
                del self._waiting[waiter]  # a ring would be lost
            elif waiter.wants(topic):
                yield waiter

    def _ring(self, waiter: Waiter) -> None:
        del self._waiting[waiter]
        waiter.was_rung = True
        waiter.ring()
