"""Followers and cursors for tasks: the names of `Follower` and `Cursor`, awaited.

    task       take, take, take …                 await the bell
    thread                        look (reads)                    look …
    log                                           append rings

A task that waits for a record holds no thread. What a thread reads stays with the follower: a cancelled
`anext` has returned nothing, and the next one goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from logstore.arguments import as_count, as_offset, as_timeout
from logstore.disk.closing import OfThisProcess
from logstore.format.record import Record
from logstore.log.cursors import Cursor
from logstore.log.following import Follower
from logstore.log.waiters import Unwatch

T = TypeVar("T")

_AHEAD_BYTES: Final = 256 << 10
_RECORDS_A_TURN: Final = 256


class Threads(Protocol):
    """Runs calls on threads, as `AsyncLog` does."""

    def _submit(self, call: Callable[[], T]) -> Future[T]: ...
    async def _to_its_end(self, work: Future[T]) -> T: ...


class _LoopBell:
    """An event of a loop that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:
            if not self._loop.is_closed():  # its task will never run again
                raise

    def _ring(self) -> None:
        if self._is_set:
            self._event.set()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("a task awaits `rung`")

    async def rung(self) -> None:
        while not self._is_set:
            self._event.clear()
            await self._event.wait()


class AsyncFollower(OfThisProcess):
    """Iterates over a log's records without end; for one task at a time. `AsyncLog.follow` makes one.

    The iteration ends after `timeout` seconds without a record (None: never; 0: at the current end), and
    after `stop`. The next `anext` goes on at `offset`, also after a cancellation.
    """

    def __init__(self, follower: Follower, threads: Threads, timeout: float | None) -> None:
        """Follow with `follower`, which nobody else uses."""
        self.timeout = as_timeout(timeout)
        self._follower, self._threads = follower, threads
        self._bell = _LoopBell()
        follower.bell = self._bell
        self._unwatch: Unwatch | None = None
        self._taken = 0

    def __repr__(self) -> str:
        return f"AsyncFollower(offset={self.offset}, timeout={self.timeout})"

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self._follower.offset

    async def __anext__(self) -> Record:
        """Return the next record, and wait for it if necessary. Raises as `Follower.__next__`."""
        follower, threads = self._follower, self._threads
        ends_s: float | None = None
        self._taken += 1
        if not self._taken % _RECORDS_A_TURN:
            await asyncio.sleep(0)
        while not follower.is_stopped:
            record = follower.take()
            if record is not None:
                return record
            try:
                await threads._to_its_end(threads._submit(self._look))
                if self._unwatch is None:
                    continue
                if ends_s is None and self.timeout is not None:
                    ends_s = asyncio.get_running_loop().time() + self.timeout
                if not await self._is_rung(ends_s):
                    break
            finally:
                self._end_wait()
        raise StopAsyncIteration

    def _look(self) -> None:
        self._unwatch = self._follower.look(_AHEAD_BYTES)

    def _end_wait(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    async def _is_rung(self, ends_s: float | None) -> bool:
        try:
            async with asyncio.timeout_at(ends_s):
                await self._bell.rung()
        except TimeoutError:
            return False
        return True

    def seek(self, offset: int) -> None:
        """Continue at `offset`. Raises `TypeError`."""
        self._follower.seek(as_offset(offset))

    def stop(self) -> None:
        """End the iteration, from any thread; a task that waits wakes up."""
        self._follower.stop()


class AsyncCursor(OfThisProcess):
    """A named position in an open log, as `Cursor`, for one task at a time. `AsyncLog.cursor` makes one."""

    def __init__(self, cursor: Cursor, threads: Threads) -> None:
        """Continue `cursor`, which nobody else uses."""
        self.name = cursor.name
        self._cursor, self._threads = cursor, threads
        self._follower = AsyncFollower(cursor.follower, threads, 0.0)

    def __repr__(self) -> str:
        return f"Async{self._cursor!r}"

    @property
    def position(self) -> int:
        """The offset of the next record that `read` returns."""
        return self._cursor.position

    @property
    def committed(self) -> int | None:
        """The committed offset of this name; None before the first commit."""
        return self._cursor.committed

    @property
    def lag(self) -> int:
        """The number of offsets between `position` and the end of the log."""
        return self._cursor.lag

    async def read(
        self, max_records: int | None = None, *, timeout: float | None = 0.0
    ) -> AsyncIterator[Record]:
        """Yield the records from `position` on, and move it behind each record that is yielded.

        Ends and raises as `Cursor.read`. A cancelled task has lost no record: the next `read` yields it.
        """
        self._follower.timeout = as_timeout(timeout)
        left = -1 if max_records is None else as_count(max_records, "max_records")
        while left:
            try:
                record = await anext(self._follower)
            except StopAsyncIteration:
                return
            left -= 1
            yield record

    def seek(self, offset: int) -> None:
        """Continue at `offset`; the committed offset stays. Raises `OffsetOutOfRange` outside of the log."""
        self._cursor.seek(offset)

    async def commit(self, offset: int | None = None, *, sync: bool = False) -> int:
        """Keep `offset` (default: `position`) as the place where this name continues; returns it.

        A commit that has begun is done when a cancellation is raised. Raises as `Cursor.commit`.
        """
        return await self._done(partial(self._cursor.commit, offset, sync=sync))

    async def remove(self) -> None:
        """Forget the committed offset of this name, durably. Raises as `commit`."""
        await self._done(self._cursor.remove)

    async def _done(self, call: Callable[[], T]) -> T:
        return await self._threads._to_its_end(self._threads._submit(call))
