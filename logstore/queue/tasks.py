"""The queue for asyncio: the same calls, which wait without blocking the event loop.

    put, ack, nack      in this thread at durability `written`, where they cost a write into the page cache;
                        in another one at `synced`, where tasks share the sync
    get                 in this thread; waits with a future

A task that is cancelled while it waits for a message has leased none. One that is cancelled during a `put` or
an `ack` at `synced` does not know whether it was done. Repeated, the `put` may store the message twice, and
the `ack` may raise `AlreadyFinished`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from logstore.queue.config import QueueConfig
from logstore.queue.messages import Message
from logstore.queue.queue import DEFAULT_TOPIC, Queue

P = ParamSpec("P")
T = TypeVar("T")


class AsyncQueue:
    """A `Queue` for tasks. `queue` is the queue itself, which threads may use at the same time."""

    def __init__(self, path: str | os.PathLike[str] | Queue, config: QueueConfig | None = None) -> None:
        """Open the queue in directory `path`, or use an open one. Raises as `Queue`."""
        self.queue = path if isinstance(path, Queue) else Queue(path, config)
        self._is_synced = self.queue.config.durability == "synced"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the queue, also for threads that use it."""
        await asyncio.to_thread(self.queue.close)

    async def _done(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_synced:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)

    async def put(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> int:
        """Do as `Queue.put`."""
        return await self._done(self.queue.put, value, key=key, headers=headers, topic=topic, delay=delay)

    async def put_many(
        self,
        values: Iterable[bytes | tuple[bytes | None, bytes]],
        *,
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> list[int]:
        """Do as `Queue.put_many`."""
        return await self._done(self.queue.put_many, values, topic=topic, delay=delay)

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
            loop.call_soon_threadsafe(rung.set)

        with self.queue.waiting(ring, topics, timeout, lease) as wait:
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

    async def ack(self, message: Message) -> None:
        """Do as `Queue.ack`."""
        await self._done(self.queue.ack, message)

    async def ack_many(self, messages: Iterable[Message]) -> None:
        """Do as `Queue.ack_many`."""
        await self._done(self.queue.ack_many, messages)

    async def nack(
        self, message: Message, *, delay: float = 0, reason: str = "returned by its worker"
    ) -> bool:
        """Do as `Queue.nack`."""
        return await self._done(self.queue.nack, message, delay=delay, reason=reason)
