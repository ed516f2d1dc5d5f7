"""Threads that take turns: one runs at a time, and a seed decides at each step which one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_PATIENCE_S = 60.0
_EARLY = 0.02
"""The share of turns in which a wait with a time limit may end early."""


class Deadlock(AssertionError):
    """Every thread waits for another one."""


class _Over(BaseException):
    """Another thread has failed."""


_lock: Final = threading.Lock
"""The real one: a test may put another in its place."""


def _taken() -> threading.Lock:
    """Return a gate, which is shut."""
    gate = _lock()
    gate.acquire()
    return gate


class _Wait(NamedTuple):
    is_free: Callable[[], bool]
    may_end: bool


class Turns:
    """Runs functions in threads of their own, one at a time, in an order that `rng` chooses."""

    def __init__(self, rng: random.Random, works: Sequence[Callable[[], None]]) -> None:
        """Start the threads, which wait for `run`."""
        self._rng = rng
        self._gates = [_taken() for _ in works]
        self._living = list(range(len(works)))
        self._waits: dict[int, _Wait] = {}
        self._running = -1
        self._errors: list[BaseException] = []
        self._ended: set[int] = set()
        self._threads = [
            threading.Thread(target=self._live, args=(number, work), daemon=True)
            for number, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()
        self._idents = {thread.ident for thread in self._threads}

    def run(self) -> None:
        """Let all of them run to their ends. Raises the first error, or `Deadlock`."""
        self._next()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        assert not self._living, f"threads {self._living} hang"
        if self._errors:
            raise self._errors[0]

    def is_mine(self) -> bool:
        """Return whether the caller is one of the threads."""
        return threading.get_ident() in self._idents

    def pass_on(self) -> None:
        """Let any thread go on; return when it is the caller's turn again."""
        self.wait_until(lambda: True)

    def wait_until(self, is_free: Callable[[], bool], *, may_end: bool = False) -> bool:
        """Let others go on until `is_free()`; False if `may_end`: its time is over, or nobody can go on."""
        mine = self._running
        self._waits[mine] = _Wait(is_free, may_end)
        self._next()
        self._gates[mine].acquire()
        if self._errors:
            raise _Over
        return is_free()

    def has_ended(self) -> bool:
        """Return whether a wait of the caller has ended because nobody could go on, since it last asked."""
        ended = self._running in self._ended
        self._ended.discard(self._running)
        return ended

    def _next(self) -> None:
        ready = [each for each in self._living if each not in self._waits or self._waits[each].is_free()]
        ending = [each for each in self._living if each in self._waits and self._waits[each].may_end]
        can_go_on = bool(ready)
        if not ready or self._rng.random() < _EARLY:
            ready += ending
        if not ready:
            self._errors.append(Deadlock("every thread waits for another one"))
            ready = self._living
        self._running = self._rng.choice(ready)
        if not can_go_on:
            self._ended.add(self._running)
        self._waits.pop(self._running, None)
        self._gates[self._running].release()

    def _live(self, number: int, work: Callable[[], None]) -> None:
        self._gates[number].acquire()
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        self._living.remove(number)
        if self._living:
            self._next()
