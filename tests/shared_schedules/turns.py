"""Threads that take turns: one runs at a time, and a seed decides at each request which one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any, TypeVar

from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.errors import RequestUnanswered
from logstore.format.record import Record

T = TypeVar("T")
PLANNED = "planned"
_PATIENCE_S = 60.0


class Died(BaseException):
    """The process of a worker ended here, as by `kill -9`."""


class _Over(BaseException):
    """Another worker has failed."""


class Turns:
    """Runs functions in threads of their own, one at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._gates: list[threading.Semaphore] = []
        self._living: list[int] = []
        self._running = -1
        self._errors: list[BaseException] = []

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all of them to their ends. Raises the first error."""
        self._gates = [threading.Semaphore(0) for _ in works]
        self._living = list(range(len(works)))
        threads = [
            threading.Thread(target=self._live, args=(number, work), daemon=True)
            for number, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        self._gates[self._choose()].release()
        for thread in threads:
            thread.join(_PATIENCE_S)
        assert not self._living, "a worker hangs"
        if self._errors:
            raise self._errors[0]

    def _choose(self) -> int:
        self._running = self._rng.choice(self._living)
        return self._running

    def _live(self, number: int, work: Callable[[], None]) -> None:
        self._gates[number].acquire()
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        self._living.remove(number)
        if self._living:
            self._gates[self._choose()].release()

    def pass_on(self) -> None:
        """Let any of the living go on; return when it is the caller's turn again."""
        before = self._running
        if (chosen := self._choose()) != before:
            self._gates[chosen].release()
            self._gates[before].acquire()
        if self._errors:
            raise _Over


class Stepped(BlockingCalls):
    """The calls of a worker: others may run before each request, which may fail, or be the last one."""

    def __init__(
        self, inner: BlockingCalls, turns: Turns, fate: Callable[[], str], idle: Callable[[], None]
    ) -> None:
        """`fate` is asked at each request: well, unsent, unanswered, died-before or died-after.

        `idle` is called instead of a wait for records.
        """
        self._inner, self._turns, self._fate, self._idle = inner, turns, fate, idle

    @property
    def _client(self) -> Client:
        return self._inner._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with closing(work):
            self._turns.pass_on()
            fate = self._fate()
            if fate not in ("unsent", "died-before"):
                result = self._inner._wait(work)
                if fate == "well":
                    return result
        if fate.startswith("died"):
            raise Died
        raise RequestUnanswered(f"{PLANNED}: {fate}")

    def read(  # type: ignore[override]  # the only arguments in use
        self, topic: str, partition: int = 0, offset: int | None = None, *, wait: float = 0.5
    ) -> list[Record]:
        found = super().read(topic, partition, offset, wait=0)
        if wait and not found:
            self._idle()
        return found
