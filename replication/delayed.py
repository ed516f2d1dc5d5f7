"""Delayed operations: acks=all waits for the high watermark, a fetch for enough bytes.

    key (a partition) ──▶ operations watching it ──check──▶ complete, once
    deadline heap     ──▶ operations by time     ──expire─▶ complete, once

An operation may watch several keys and answers exactly once. After it completed through one key it stays
listed under the others until a purge: that is cheaper than to search for it. Nothing here calls back while
the caller changes a partition: the replica manager checks keys at the end of its turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
D = TypeVar("D", bound="DelayedOperation")


class DelayedOperation(ABC):
    """An operation that answers once: when it is ready, when it is forced, or at `deadline_ms`."""

    __slots__ = ("deadline_ms", "is_completed")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.is_completed = False

    @abstractmethod
    def is_ready(self, now_ms: int) -> bool:
        """Whether it can be answered now. May keep results, must not answer."""

    @abstractmethod
    def on_complete(self, now_ms: int) -> None:
        """Answer. It is called exactly once."""

    def try_complete(self, now_ms: int) -> bool:
        """Answer if ready; True if this call answered."""
        return not self.is_completed and self.is_ready(now_ms) and self.force_complete(now_ms)

    def force_complete(self, now_ms: int) -> bool:
        """Answer with the results so far; False if it was answered before."""
        if self.is_completed:
            return False
        self.is_completed = True
        self.on_complete(now_ms)
        return True


class Purgatory(Generic[K, D]):
    """Waiting operations by key and by deadline."""

    def __init__(self, *, purge_interval_requests: int = 1000) -> None:
        self.watchers: dict[K, list[D]] = {}
        """The operations that watch each key; a key without any is not in it. For reading."""
        self._deadlines: list[tuple[int, int, D]] = []
        self._sequence = 0
        self._purge_interval_requests = purge_interval_requests
        self._completed_since_purge = 0

    @property
    def delayed(self) -> int:
        """Count the operations that still wait."""
        return sum(not operation.is_completed for _, _, operation in self._deadlines)

    @property
    def watched(self) -> int:
        """Count the entries of all keys, with completed ones that were not purged yet."""
        return sum(len(operations) for operations in self.watchers.values())

    @property
    def keys(self) -> list[K]:
        """Return the keys that operations watch."""
        return list(self.watchers)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the next operation expires; None if none waits."""
        while self._deadlines and self._deadlines[0][2].is_completed:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def try_complete_else_watch(self, operation: D, keys: Iterable[K], now_ms: int) -> bool:
        """Answer now if possible, else watch `keys`; True if it was answered."""
        if operation.try_complete(now_ms):
            return True
        for key in keys:
            self.watchers.setdefault(key, []).append(operation)
        # Check again now that it is listed: a change since the first check found nothing under the keys.
        if operation.try_complete(now_ms):
            self._completed()
            return True
        self._await(operation)
        return False

    def watch(self, operation: D, keys: Iterable[K]) -> None:
        """Watch `keys` for an operation that was not ready when checked in this turn.

        The caller must check the keys of everything that has moved since, before its turn ends.
        """
        for key in keys:
            self.watchers.setdefault(key, []).append(operation)
        self._await(operation)

    def _await(self, operation: D) -> None:
        self._sequence += 1
        heappush(self._deadlines, (operation.deadline_ms, self._sequence, operation))

    def check(self, key: K, now_ms: int) -> int:
        """Answer the operations that watch `key` and are ready; returns how many."""
        operations = self.watchers.get(key)
        if operations is None:
            return 0
        # A completion may add operations under this key: iterate over a copy.
        completed = 0
        for operation in list(operations):
            if operation.try_complete(now_ms):
                completed += 1
                self._completed()
        self._drop_completed(key)
        return completed

    def expire(self, now_ms: int) -> int:
        """Answer the operations whose deadline has passed; returns how many."""
        expired = 0
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            operation = heappop(self._deadlines)[2]
            if operation.force_complete(now_ms):
                expired += 1
                self._completed()
        return expired

    def cancel_for_key(self, key: K) -> list[D]:
        """Remove every operation that watches `key`; returns those still waiting, unanswered."""
        waiting = [operation for operation in self.watchers.pop(key, []) if not operation.is_completed]
        for operation in waiting:
            operation.is_completed = True
            self._completed()
        return waiting

    def purge(self) -> int:
        """Drop completed operations under all keys; returns how many entries."""
        before = self.watched
        for key in list(self.watchers):
            self._drop_completed(key)
        self._deadlines = [entry for entry in self._deadlines if not entry[2].is_completed]
        heapify(self._deadlines)
        self._completed_since_purge = 0
        return before - self.watched

    def _completed(self) -> None:
        self._completed_since_purge += 1
        if self._completed_since_purge > self._purge_interval_requests:
            self.purge()

    def _drop_completed(self, key: K) -> None:
        if key not in self.watchers:
            return
        waiting = [operation for operation in self.watchers[key] if not operation.is_completed]
        if waiting:
            self.watchers[key] = waiting
        else:
            del self.watchers[key]
