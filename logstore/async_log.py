"""A log for asyncio: the names of `Log`, awaited.

    async with AsyncLog.open("data/orders-0") as log:
        info = await log.append(b"placed", sync=True)
        async for record in log.read():
            ...

A single value of up to 64 KiB goes into the page cache on the event loop, which takes microseconds.
Everything that waits for the disk or takes longer runs on the log's own threads: syncs, new segments, reads,
larger values, many records in one call, and maintenance. Tasks that wait for a sync share it.

Back-pressure: an append after 64 MiB without a sync first waits for one, however they were appended. The loop
gets its turn after every `APPENDS_A_TURN` appends.

Cancellation: an append is wholly in the log or not at all, and `AsyncLog.appended(error)` tells which. Calls
that change the log run to their end before the cancellation is raised.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from logstore.async_following import AsyncCursor, AsyncFollower
from logstore.async_reading import AsyncReading
from logstore.disk.closing import AsyncClosing
from logstore.errors import LogClosed
from logstore.log.append import AppendInfo, may_wait
from logstore.log.log import Log
from logstore.log.outgoing import Appendable
from logstore.log.read import FetchIsolation, Isolation
from logstore.log.serializers import Serializable
from logstore.log.writer import Writer
from logstore.segment.segment import Segment

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 4
APPENDS_A_TURN: Final = 128
MAX_UNSYNCED_BYTES: Final = 64 << 20
LARGE_BYTES: Final = 64 << 10
"""Larger values are appended on a thread."""
_OTHER_BYTES: Final = 1024
"""What the batch of a single record has besides key and value: its own header, and some headers."""


def _in_thread(
    method: Callable[Concatenate[Log, P], T],
) -> Callable[Concatenate[AsyncLog, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncLog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._to_its_end(self._submit(partial(method, self.log, *args, **kwargs)))

    return call


def _opening(method: Callable[P, Log]) -> Callable[P, Opening]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening:
        return Opening(partial(method, *args, **kwargs))

    return call


class AsyncLog(AsyncReading, AsyncClosing):
    """A `Log` for the tasks of one event loop. `log` is the log itself, for other threads.

    Methods have the arguments, results and errors of `Log`'s. Iterators are asynchronous.
    """

    def __init__(self, log: Log) -> None:
        """Wrap an open log; programs call `AsyncLog.open`. Raises `TypeError` for anything else."""
        if not isinstance(log, Log):
            raise TypeError(f"AsyncLog(…) wraps a Log, not {type(log).__name__}; use AsyncLog.open(path)")
        super().__init__(log)
        self.log = log
        self._begin_threads()
        self._is_closed = False
        self._syncing: asyncio.Task[None] | None = None
        self._synced_segment: Segment | None = None
        self._synced_bytes = 0
        """How much of `_synced_segment` was there when the last sync began; segments before it are synced."""
        self._appends = 0

    def _begin_threads(self) -> None:
        name = f"log-{self.log.partition.topic_partition}"
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._process_id = os.getpid()

    open = staticmethod(_opening(Log.open))
    """Open a log, with the arguments and errors of `Log.open`: `await` it, or use it in `async with`."""

    async def close(self) -> None:
        """Close the log, as `Log.close`, when the calls that are under way have ended.

        It is closed also if the task is cancelled meanwhile.
        """
        if self._is_closed:
            return
        try:
            await self._to_its_end(self._submit(self.log.close), must_run=True)
        finally:
            self._is_closed = True
            self._threads.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"Async{self.log!r}"

    # --- appending --------------------------------------------------------------------------------

    async def append(
        self,
        records: Appendable | Iterable[Appendable] | Serializable,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        sync: bool = False,
    ) -> AppendInfo:
        """Append one record, many records, or ready batches, as `Log.append`.

        Calls that a task awaits one after another keep their order. Raises as `Log.append`; for a
        cancellation see `appended`.
        """
        await self._turn()
        call = partial(self.log.append, records, key=key, headers=headers, timestamp_ms=timestamp_ms)
        if self._is_quick(records, key):
            info = call()
        else:
            work = self._submit(call)
            try:
                info = await self._to_its_end(work)
            except asyncio.CancelledError as error:
                if not work.cancelled() and work.exception() is None:
                    error.args += (work.result(),)  # behind the message by which anyio knows its own
                raise
        if not sync:
            return info
        try:
            await self._sync_up_to(info.last_offset + 1)
        except asyncio.CancelledError as error:
            error.args += (info,)
            raise
        return info._replace(is_synced=True)

    @staticmethod
    def appended(error: BaseException) -> AppendInfo | None:
        """Return what an interrupted `append` left in the log; None if it left nothing.

        `error` is the `CancelledError` of a task that awaits the append itself, or the `TimeoutError` that
        `asyncio.timeout` made of it.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, asyncio.CancelledError):
            cause = cause.__cause__ or cause.__context__
        return next((each for each in cause.args if isinstance(each, AppendInfo)), None) if cause else None

    def writer(self, *, linger_ms: float = 5, max_batch: int = 1000) -> Writer:
        """Return a writer, as `Log.writer`: its `append` is not awaited and does not wait for a sync.

        Wait for a record with `await asyncio.to_thread(pending.synced)`, for all with `writer.flush`.
        """
        return self.log.writer(linger_ms=linger_ms, max_batch=max_batch)

    def _is_quick(self, records: object, key: object) -> bool:
        """Whether an append is one small value that need not wait for the disk."""
        if not (isinstance(records, bytes | None) and isinstance(key, bytes | None)):
            return False
        size, log = len(records or b"") + len(key or b""), self.log.partition
        return size <= LARGE_BYTES and not may_wait(log, size + _OTHER_BYTES, log.clock())

    def _unsynced_bytes(self) -> int:
        active = self.log.partition.segments.active
        return active.size - (self._synced_bytes if active is self._synced_segment else 0)

    async def _turn(self) -> None:
        """Give the loop its turn now and then, and wait for a sync where much is unsynced."""
        self._appends += 1
        if self._unsynced_bytes() > MAX_UNSYNCED_BYTES:
            await self._sync_up_to(self.log.log_end_offset)
        elif not self._appends % APPENDS_A_TURN:
            await asyncio.sleep(0)

    # --- as the log ---------------------------------------------------------------------------------

    append_batches = _in_thread(Log.append_batches)
    append_arrow = _in_thread(Log.append_arrow)
    end_transaction = _in_thread(Log.end_transaction)
    maintain = _in_thread(Log.maintain)
    compact = _in_thread(Log.compact)
    scrub = _in_thread(Log.scrub)
    delete_records = _in_thread(Log.delete_records)
    truncate_to = _in_thread(Log.truncate_to)
    snapshot = _in_thread(Log.snapshot)
    losses = _in_thread(Log.losses)

    async def flush(self) -> None:
        """Make every appended record survive power loss, as `Log.flush`; tasks share a sync."""
        self.log.partition.check_writable()
        await self._sync_up_to(self.log.log_end_offset)

    def is_synced(self, offset: int) -> bool:
        """Return whether the record at `offset` survives power loss here. Raises `OffsetOutOfRange`."""
        return self.log.is_synced(offset)

    @property
    def log_start_offset(self) -> int:
        """The first offset that is served."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.log.log_end_offset

    @property
    def size(self) -> int:
        """Bytes in all `.log` files."""
        return self.log.size

    def __len__(self) -> int:
        """The number of offsets between log start and log end."""
        return len(self.log)

    # --- following ----------------------------------------------------------------------------------

    def follow(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> AsyncFollower:
        """Yield the records from `offset` on (default: the log start), and wait for more at the end.

        A task that waits holds no thread. Ends and raises as `Log.follow`, also when the log is closed.
        """
        return AsyncFollower(self.log.follow(offset, timeout, isolation=isolation), self, timeout)

    def cursor(self, name: str, *, isolation: Isolation = FetchIsolation.LOG_END) -> AsyncCursor:
        """Return the cursor `name`, as `Log.cursor`; its `read`, `commit` and `remove` are awaited."""
        return AsyncCursor(self.log.cursor(name, isolation=isolation), self)

    def cursors(self) -> dict[str, int]:
        """Return the committed offset of every cursor, by name."""
        return self.log.cursors()

    # --- threads ------------------------------------------------------------------------------------

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        if os.getpid() != self._process_id:
            self._begin_threads()  # a forked child may read, and has none of its parent's threads
        done: Future[T] = Future()
        unclaimed = [True]

        def act() -> None:
            try:
                unclaimed.pop()
            except IndexError:
                return  # done by the other: a thread, or this one
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(call())
                except BaseException as error:
                    done.set_exception(error)

        try:
            self._threads.submit(act)
        except RuntimeError:  # the threads have ended, or none can be started: at a limit, at the exit
            if self._is_closed:
                self.log.partition.check_writable()
            act()  # one that is there may have taken it nevertheless
        return done

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._submit(call))

    async def _to_its_end(self, work: Future[T], *, must_run: bool = False) -> T:
        """Return the result of a call on a thread, and raise a cancellation only when the call has ended.

        A call that has not begun by then never runs, unless it `must_run`.
        """
        ended = asyncio.wrap_future(work)
        cancellation: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait((ended,))
            except asyncio.CancelledError as error:
                cancellation = error
                if not must_run:
                    work.cancel()
        if cancellation is not None:
            raise cancellation from (None if ended.cancelled() else ended.exception())
        return ended.result()

    async def _sync_up_to(self, offset: int) -> None:
        partition, loop = self.log.partition, asyncio.get_running_loop()
        # At most to the end: a truncation may have removed what lies below `offset`.
        while (
            partition.recovery_point < min(offset, partition.log_end_offset)
            or partition.sync_name is not None
        ):
            if self._syncing is None or self._syncing.get_loop() is not loop:  # that one may be closed
                # A task begins after those that are ready to append: it syncs their records too.
                self._syncing = loop.create_task(self._sync())
            try:
                await asyncio.shield(self._syncing)
            except LogClosed:
                if partition.recovery_point < offset:  # the close has not synced it
                    raise
                return

    async def _sync(self) -> None:
        try:
            active = self.log.partition.segments.active
            self._synced_segment, self._synced_bytes = active, active.size
            await self._run(self.log.flush)
        finally:
            if self._syncing is asyncio.current_task():
                self._syncing = None


class Opening:
    """A log that is being opened: `await` it for the log, or use it in `async with`."""

    def __init__(self, opens: Callable[[], Log]) -> None:
        self._opens = opens
        self._log: AsyncLog | None = None

    def __await__(self) -> Generator[Any, None, AsyncLog]:
        return self._open().__await__()

    async def _open(self) -> AsyncLog:
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._opens)
        try:
            return AsyncLog(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_again)
            raise

    async def __aenter__(self) -> AsyncLog:
        self._log = await self._open()
        return self._log

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._log is not None, "it was opened"
        await self._log.close()


def _close_again(opening: asyncio.Future[Log]) -> None:
    """Release a log that was opened for a task that no longer waits for it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
