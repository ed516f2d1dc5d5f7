"""Delayed operations: acks=all waits for the high watermark, a fetch for enough bytes.

    key (a partition) ──▶ operations watching it   ──check──▶ complete, once
    deadline heap     ──▶ operations by time       ──expire─▶ complete, once
    address           ──▶ operations of a request  ──cancel─▶ forgotten: nobody waits for the answer

An operation may watch several keys and answers exactly once. A check of one key makes an operation look at
that key only, so the cost of a change does not depend on how many keys an operation watches. After it
completed through one key it stays listed under the others until a purge: that is cheaper than to search for
it. Nothing here calls back while the caller changes a partition: the replica manager checks keys at the end
of its turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
D = TypeVar("D", bound="DelayedOperation")


class DelayedOperation(ABC):
    """An operation that answers once: when it is ready, when it is forced, or at `deadline_ms`.

    `address` identifies the request, for `Purgatory.cancel`; None if it cannot be abandoned.
    """

    __slots__ = ("address", "deadline_ms", "is_completed")

    def __init__(self, deadline_ms: int, address: Hashable = None) -> None:
        self.deadline_ms = deadline_ms
        self.address = address
        self.is_completed = False

    @abstractmethod
    def is_ready(self, now_ms: int) -> bool:
        """Whether it can be answered now. May keep results, must not answer."""

    def is_ready_after(self, key: Any, now_ms: int) -> bool:
        """Whether it can be answered now that `key` has moved: `is_ready`, but looks at that key only."""
        return self.is_ready(now_ms)

    def on_cancel(self) -> None:
        """Release the wait's resources. Called instead of `on_complete` if no client waits for the answer."""
        return

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
        self.delayed = 0
        """How many operations wait. For reading."""
        self._deadlines: list[tuple[int, int, D]] = []
        self._by_address: dict[Hashable, list[D]] = {}
        self._sequence = 0
        self._purge_interval_requests = purge_interval_requests
        self._completed_since_purge = 0

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
            self._completed_since_purge += 1
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
        self.delayed += 1
        if operation.address is not None:
            self._by_address.setdefault(operation.address, []).append(operation)

    def check(self, key: K, now_ms: int) -> int:
        """Answer the operations that watch `key` and are ready; returns how many."""
        operations = self.watchers.get(key)
        if operations is None:
            return 0
        # A completion may add operations under this key: iterate over a copy.
        completed = 0
        for operation in list(operations):
            if not operation.is_completed and operation.is_ready_after(key, now_ms):
                completed += self.complete(operation, now_ms)
        self._drop_completed(key)
        return completed

    def complete(self, operation: D, now_ms: int) -> bool:
        """Answer a waiting operation with the results so far; False if it was answered before."""
        if operation.is_completed:
            return False
        self._ended(operation)
        return operation.force_complete(now_ms)

    def expire(self, now_ms: int) -> int:
        """Answer the operations whose deadline has passed; returns how many."""
        expired = 0
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            expired += self.complete(heappop(self._deadlines)[2], now_ms)
        return expired

    def cancel(self, address: Hashable) -> int:
        """Forget the operations of a request whose connection has closed; returns how many.

        The cost does not depend on how many other operations wait.
        """
        waiting = list(self._by_address.get(address, ()))
        for operation in waiting:
            self._ended(operation)
            operation.is_completed = True
            operation.on_cancel()
        return len(waiting)

    def purge(self) -> int:
        """Drop completed operations under all keys; returns how many entries."""
        before = self.watched
        for key in list(self.watchers):
            self._drop_completed(key)
        self._deadlines = [entry for entry in self._deadlines if not entry[2].is_completed]
        heapify(self._deadlines)
        self._completed_since_purge = 0
        return before - self.watched

    def _ended(self, operation: D) -> None:
        self.delayed -= 1
        if operation.address in self._by_address:
            same = self._by_address[operation.address]
            same.remove(operation)
            if not same:
                del self._by_address[operation.address]
        self._completed_since_purge += 1
        # A purge looks at everything that waits: each completed operation pays for one look at another.
        if self._completed_since_purge > max(self._purge_interval_requests, self.delayed):
            self.purge()

    def _drop_completed(self, key: K) -> None:
        if key not in self.watchers:
            return
        waiting = [operation for operation in self.watchers[key] if not operation.is_completed]
        if waiting:
            self.watchers[key] = waiting
        else:
            del self.watchers[key]
