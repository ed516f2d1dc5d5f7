"""Threads that take turns: one runs at a time, and a seed decides at each step which one."""

from __future__ import annotations

import _thread
import random
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_PATIENCE_S = 60.0
_EARLY = 0.02
"""The share of turns in which a wait with a time limit may end early."""
_TIRED = 0.05
_NAPS = (10, 100, 1000)
"""After this share of its turns a thread sits out so many, if others can go on: a system may do so."""


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
        self._gates: list[threading.Lock] = []
        self._living: list[int] = []
        self._idents: set[int] = set()
        self._over = _taken()
        self._waits: dict[int, _Wait] = {}
        self._running = -1
        self._errors: list[BaseException] = []
        self._ended: set[int] = set()
        self._count = 0
        self._naps: dict[int, int] = {}
        for work in works:
            self.add(work)

    def add(self, work: Callable[[], object]) -> Callable[[], bool]:
        """Start one more thread, which waits for its turn; returns a function that tells whether it lives."""
        number = len(self._gates)
        self._gates.append(_taken())
        self._living.append(number)
        # Not `threading.Thread`: it waits for the new thread with locks that a test may have replaced.
        self._idents.add(_thread.start_new_thread(self._live, (number, work)))
        return lambda: number in self._living

    def run(self) -> None:
        """Let all of them run to their ends. Raises the first error, or `Deadlock`."""
        self._next()
        assert self._over.acquire(timeout=_PATIENCE_S), f"threads {self._living} hang"
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
        if self._rng.random() < _TIRED:
            self._naps[mine] = self._count + self._rng.choice(_NAPS)
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
        self._count += 1
        rested = [each for each in ready if self._naps.get(each, 0) <= self._count]
        self._running = self._rng.choice(rested or ready)
        if not can_go_on:
            self._ended.add(self._running)
        self._waits.pop(self._running, None)
        self._gates[self._running].release()

    def _live(self, number: int, work: Callable[[], object]) -> None:
        self._gates[number].acquire()
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        self._living.remove(number)
        if self._living:
            self._next()
        else:
            self._over.release()
