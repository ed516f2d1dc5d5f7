"""An event loop and pools, whose threads take turns; the loop's clock moves when nobody can go on."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from tests.thread_schedules.locks import TurnThread
from tests.turns import Turns

T = TypeVar("T")


class TurnPool:
    """As `ThreadPoolExecutor`. A thread begins with the work that it finds, and ends without more."""

    def __init__(self, turns: Turns, lines: random.Random, share: float, most: int) -> None:
        self._thread = partial(TurnThread, turns, lines, share)
        self._most = self._idle = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_shut = False

    def submit(self, call: Callable[..., T], /, *args: Any) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        done: Future[T] = Future()
        self._waiting.append(partial(_act, done, partial(call, *args)))
        if self._idle:
            self._idle -= 1
            self._thread(self._work).start()
        return done

    def _work(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
        self._idle += 1

    def shutdown(self, wait: bool = True, **_: object) -> None:
        self._is_shut = True


def _act(done: Future[T], call: Callable[[], T]) -> None:
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)


class TurnLoop(asyncio.BaseEventLoop):
    """Runs in one of the threads. At each look for what is ready, others may go on."""

    _ready: deque[asyncio.Handle]

    def __init__(self, turns: Turns, pool: TurnPool) -> None:
        super().__init__()
        self._turns, self._now_s = turns, 0.0
        self.stalls = 0
        """How often its clock moved because nobody could go on."""
        self._default_executor = pool
        self._selector = SimpleNamespace(select=self._select)

    def time(self) -> float:
        return self._now_s

    def _select(self, timeout: float | None) -> list[object]:
        if not self._turns.wait_until(lambda: bool(self._ready) or timeout == 0, may_end=timeout is not None):
            assert timeout is not None
            self._now_s += timeout
            self.stalls += self._turns.has_ended()
        return []

    def _process_events(self, _: object) -> None:
        """No sockets."""

    def _write_to_self(self) -> None:
        """It sees by itself what is ready."""
