"""Calls of one thread that the event loop of another runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from logstore.disk.reentry import Flag

T = TypeVar("T")

_PULSE_S = 1.0


class LoopCall(Generic[T]):
    """Work that was handed to a loop: as the `Future` of `asyncio.run_coroutine_threadsafe`.

    A `Future` has a lock for both threads, which an interrupt may leave taken: the loop would hang.
    """

    def __init__(
        self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, thread: threading.Thread
    ) -> None:
        """Start `work`. A closed loop is one that ended first."""
        self._work, self._loop, self._thread = work, loop, thread
        self._ended = Flag()
        self._tasks: list[asyncio.Task[T]] = []
        try:
            loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # the loop is closed
            self._ended.set()
        except BaseException:
            self.cancel()
            raise

    def _begin(self) -> None:
        self._tasks.append(self._loop.create_task(self._work))
        self._tasks[0].add_done_callback(lambda _: self._ended.set())

    def cancel(self) -> None:
        """Cancel it, unless it has ended."""
        try:
            self._loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:  # the loop is closed
            self._work.close()

    def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if not self._tasks:
            self._work.close()

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._ended.is_set()

    def result(self) -> T:
        """Wait for the end, and return the result or raise the error. An interrupted wait cancels the work.

        Raises `CancelledError` also if the loop ended first.
        """
        try:
            while not self._ended.wait(_PULSE_S) and self._thread.is_alive():
                pass
        except BaseException:
            self.cancel()
            raise
        if not self._tasks:
            self._work.close()
        elif not self._tasks[0].cancelled():
            return self._tasks[0].result()
        raise CancelledError
