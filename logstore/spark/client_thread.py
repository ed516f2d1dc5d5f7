"""A client of brokers for code without an event loop: it lives on one in a thread of its own.

Unlike `BlockingClient`, whose loop turns only while a call waits, it receives what was asked for while the
caller does something else. Threads do not survive a fork: make one where it is used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from logstore.broker.client import Client
from logstore.broker.loop import fastest_loop

T = TypeVar("T")


class ClientThread:
    """Runs what is asked of the client; to be closed."""

    def __init__(self, make: Callable[[], Client]) -> None:
        started: Future[Client] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(make, started), name="logstore-client", daemon=True
        )
        self._thread.start()
        self._client = started.result()

    def _run(self, make: Callable[[], Client], started: Future[Client]) -> None:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            self._loop = runner.get_loop()
            self._ended = asyncio.Event()
            runner.run(self._live(make, started))

    async def _live(self, make: Callable[[], Client], started: Future[Client]) -> None:
        async with make() as client:
            started.set_result(client)
            await self._ended.wait()

    def start(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin `work`; it goes on while the caller does."""
        return asyncio.run_coroutine_threadsafe(work(self._client), self._loop)

    def wait(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What `work` comes to; raises what it raises."""
        return self.start(work).result()

    def close(self) -> None:
        """Hang up; what is under way ends with `RequestUnanswered`."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
