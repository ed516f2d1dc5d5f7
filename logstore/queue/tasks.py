"""The queue for asyncio: the same calls, which wait without blocking the event loop.

    put, ack, nack            in this thread at durability `written`, where they cost a write into the page
                              cache; in another one at `synced`, where tasks share the sync
    get, get_many, extend     in this thread; they wait with a future
    peek, dead_letters,       in another thread: they read files, and `redrive` syncs them
    redrive, stats

A task that is cancelled while it waits for a message has leased none. One that is cancelled during a `put` or
an `ack` at `synced` does not know whether it was done. Repeated, the `put` may store the message twice, and
the `ack` may raise `AlreadyFinished`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

from logstore.arguments import as_int
from logstore.disk.closing import AsyncClosing
from logstore.queue.arguments import as_topics
from logstore.queue.config import QueueConfig
from logstore.queue.messages import DeadLetter, Message
from logstore.queue.queue import Queue, with_more

P = ParamSpec("P")
T = TypeVar("T")

_LETTERS_A_TURN: Final = 256
"""Dead letters that are in memory at once."""


def _in_thread(
    method: Callable[Concatenate[Queue, P], T],
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    """Return a method of `Queue` as a method that waits for it in a thread."""

    @wraps(method)
    async def call(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done: T = await asyncio.to_thread(getattr(self.queue, method.__name__), *args, **kwargs)
        return done

    return call


def _done(
    method: Callable[Concatenate[Queue, P], T],
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    """Return a method of `Queue` as a method that uses a thread only if the queue syncs."""
    in_thread = _in_thread(method)

    @wraps(method)
    async def call(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_synced:
            return await in_thread(self, *args, **kwargs)
        done: T = getattr(self.queue, method.__name__)(*args, **kwargs)
        return done

    return call


class AsyncQueue(AsyncClosing):
    """A `Queue` for tasks. `queue` is the queue itself, which threads may use at the same time."""

    def __init__(
        self,
        path: str | os.PathLike[str] | Queue,
        config: QueueConfig | None = None,
        *,
        create: bool = True,
    ) -> None:
        """Open the queue in directory `path`, or use an open one, which has its own settings.

        With `create=False` there must be a queue in the directory. Raises as `Queue`, and `TypeError` for
        settings of an open queue.
        """
        if isinstance(path, Queue) and config is not None:
            raise TypeError("an open queue has its settings already; pass config to Queue(…)")
        self.queue = path if isinstance(path, Queue) else Queue(path, config, create=create)
        self._is_synced = self.queue.config.durability == "synced"

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    async def close(self) -> None:
        """Close the queue, also for threads that use it, and also if the task is cancelled meanwhile."""
        closing = asyncio.get_running_loop().run_in_executor(None, self.queue.close)
        cancellation: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.wait((closing,))
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is not None:
            raise cancellation from closing.exception()
        closing.result()

    put = _done(Queue.put)
    """Do as `Queue.put`."""
    put_many = _done(Queue.put_many)
    """Do as `Queue.put_many`."""
    ack = _done(Queue.ack)
    """Do as `Queue.ack`."""
    ack_many = _done(Queue.ack_many)
    """Do as `Queue.ack_many`."""
    nack = _done(Queue.nack)
    """Do as `Queue.nack`."""
    peek = _in_thread(Queue.peek)
    """Do as `Queue.peek`."""
    redrive = _in_thread(Queue.redrive)
    """Do as `Queue.redrive`."""
    stats = _in_thread(Queue.stats)
    """Do as `Queue.stats`."""

    @overload
    async def get(
        self, topics: str | Collection[str] | None = ..., *, timeout: None = ..., lease: float | None = ...
    ) -> Message: ...

    @overload
    async def get(
        self, topics: str | Collection[str] | None = ..., *, timeout: float | None, lease: float | None = ...
    ) -> Message | None: ...

    async def get(
        self,
        topics: str | Collection[str] | None = None,
        *,
        timeout: float | None = None,
        lease: float | None = None,
    ) -> Message | None:
        """Do as `Queue.get`, while other tasks run."""
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()

        def ring() -> None:
            try:
                loop.call_soon_threadsafe(rung.set)
            except RuntimeError:
                if not loop.is_closed():  # its task will never run again, and others need not care
                    raise

        with self.queue.waiting(ring, loop.is_closed, topics, timeout, lease) as wait:
            while True:
                rung.clear()
                message, wait_s = wait.look()
                if message is not None or wait_s == 0:
                    return message
                try:
                    async with asyncio.timeout(wait_s):
                        await rung.wait()
                except TimeoutError:
                    pass  # a lease or a delay has ended, or the time is over: `look` knows

    async def get_many(
        self,
        most: int,
        topics: str | Collection[str] | None = None,
        *,
        timeout: float | None = None,
        lease: float | None = None,
    ) -> list[Message]:
        """Do as `Queue.get_many`, while other tasks run."""
        most, topics = as_int(most, "most", least=1), as_topics(topics)
        first = await self.get(topics, timeout=timeout, lease=lease)
        return [] if first is None else with_more(self.queue, first, most, topics, lease)

    async def extend(self, message: Message, lease: float | None = None) -> None:
        """Do as `Queue.extend`."""
        self.queue.extend(message, lease)

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """Yield what `Queue.dead_letters` yields."""
        letters = self.queue.dead_letters()
        while some := await asyncio.to_thread(lambda: list(islice(letters, _LETTERS_A_TURN))):
            for letter in some:
                yield letter
