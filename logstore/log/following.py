"""Follow a log: records as they are appended.

    for record in log.follow(17):               the log of this process: woken by the append
    for record in LogReader(path).follow(17):   another process's: woken by the operating system

A follower takes what is there, and sleeps at the end until something changes. Nothing is polled, and no
thread is made for it: it sleeps in the thread that iterates.

A truncation may remove records that the follower has returned, and other records may take their offsets
before it looks. It hears of each cut (`Waiter.truncated`), and raises `LogTruncated` instead of
continuing in another history.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from logstore.arguments import as_offset, as_timeout
from logstore.disk.clocks import steady_s
from logstore.disk.closing import OfThisProcess
from logstore.disk.errors import EngineError
from logstore.disk.reentry import Flag
from logstore.errors import LogTruncated, OffsetOutOfRange
from logstore.format.batch import Batch
from logstore.format.record import Record
from logstore.log.waiters import Unwatch, Waiter


class Bell(Protocol):
    """The event that a follower waits for, as `Flag`; any thread may set it."""

    def set(self) -> object: ...
    def clear(self) -> object: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Follower(OfThisProcess):
    """Iterates over a log's records without end; for one thread, which any other may `stop`.

    `offset` is the offset of the next record. The iteration ends after `timeout` seconds without a record
    (None: never; 0: at the current end), and after `stop`. The next `next()` goes on at `offset`.
    """

    def __init__(
        self,
        batches: Callable[[int], Iterator[Batch]],
        watch: Callable[[Waiter], Unwatch],
        log_start: Callable[[], int],
        offset: int,
        timeout: float | None,
        *,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow from `offset` on; applications call `follow`.

        `batches` returns the batches from an offset to the end, and `log_start` the log start offset.
        `watch` wakes a waiter at the next change, tells it of cuts from then on, and raises an `EngineError`
        if nothing can change any more; what it returns ends the wait. `settle` waits until a truncation that
        has begun is told. Raises `TypeError`, and `ValueError` for a negative timeout.
        """
        self.offset = offset
        self.timeout = as_timeout(timeout)
        self.bell: Bell = Flag()
        """What wakes it; exchange it before the first `look`."""
        self._read, self._watch, self._log_start, self._settle = batches, watch, log_start, settle
        self._batches: Iterator[Batch] = iter(())
        self._ahead: deque[Batch] = deque()
        self._records: Iterator[Record] = iter(())
        self._batch_end = offset
        self._cuts: list[int] = []
        """The cuts since the last look at them; a truncation of another thread adds to them at any time."""
        self.is_stopped = False
        watch(self)()  # from now on it hears of cuts

    def __repr__(self) -> str:
        return f"Follower(offset={self.offset}, timeout={self.timeout})"

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __next__(self) -> Record:
        """Return the next record, and wait for it if necessary.

        Raises `OffsetOutOfRange` if retention passed `offset`, and `LogTruncated`, a kind of it, if a
        truncation removed records that were returned: `seek` to one of its bounds to continue.
        Raises `LogClosed`, `LogDirOffline` or `LogGone` if no record can follow, and for damage as `read`.
        """
        ends_s: float | None = None
        while not self.is_stopped:
            record = self.take()
            if record is not None:
                return record
            unwatch = self.look()
            if unwatch is None:
                continue
            try:
                now_s = steady_s()
                if ends_s is None:
                    ends_s = math.inf if self.timeout is None else now_s + self.timeout
                if now_s >= ends_s:
                    break
                # The platform bounds a single wait: behind it, the loop waits again.
                self.bell.wait(None if ends_s == math.inf else min(ends_s - now_s, threading.TIMEOUT_MAX))
            finally:
                unwatch()
        raise StopIteration

    def take(self) -> Record | None:
        """Return the next record that was read; None if there is none. Raises `LogTruncated`."""
        while True:
            self.check()
            for record in self._records:
                self.offset = record.offset + 1
                return record
            self.offset = max(self.offset, self._batch_end)
            if not self._ahead:
                return None
            self._open(self._ahead.popleft())

    def look(self, ahead_bytes: int = 0) -> Unwatch | None:
        """Read a batch, and `ahead_bytes` of those behind it. None if `take` can return or raise now.

        At the end of the log the bell is rung by the next change, and the caller ends the wait by what is
        returned. Raises as `__next__`.
        """
        if self._next_batch(ahead_bytes) or self._is_disturbed():
            return None
        if self.bell.is_set():  # before a new watch, which costs time
            self._batches = self._read(self.offset)
            if self._next_batch(ahead_bytes) or self._is_disturbed():
                return None
        # Watch first: what came before is found now, what comes later wakes.
        self.bell.clear()
        try:
            unwatch = self._watch(self)
        except EngineError:
            self._batches = self._read(self.offset)
            if self._next_batch(ahead_bytes):
                return None
            raise
        is_at_end = False
        try:
            self._batches = self._read(self.offset)
            is_at_end = not (self._next_batch(ahead_bytes) or self._is_disturbed())
        finally:
            if not is_at_end:
                unwatch()
        return unwatch if is_at_end else None

    def seek(self, offset: int) -> None:
        """Continue at `offset`. Raises `TypeError` for what is no offset."""
        offset = as_offset(offset)
        self._cuts.clear()
        self._begin_at(offset)

    def _begin_at(self, offset: int) -> None:
        self._batches, self._records = iter(()), iter(())
        self._ahead.clear()
        self.offset = self._batch_end = offset

    def stop(self) -> None:
        """End the iteration, from any thread; a follower that waits wakes up."""
        self.is_stopped = True
        self.bell.set()

    def wake(self) -> None:
        """Check the log again."""
        self.bell.set()

    def truncated(self, offset: int) -> None:
        """Learn that everything at or past `offset` was removed."""
        self._cuts.append(offset)

    def check(self) -> None:
        """Raise `LogTruncated` if records below `offset` were removed."""
        if not self._cuts:
            return
        heard = self._cuts.copy()
        cut_at = min(heard)
        if cut_at < self.offset:
            raise LogTruncated(self.offset, self._log_start(), cut_at)
        # Records that were read and not returned may be gone, and others in their place.
        self._begin_at(self.offset)
        del self._cuts[: len(heard)]  # others may have come meanwhile

    def _is_disturbed(self) -> bool:
        return self.is_stopped or bool(self._cuts)

    def _next_batch(self, ahead_bytes: int) -> bool:
        try:
            batch = next(self._batches, None)
        except OffsetOutOfRange:
            # A truncation lowers the end of the log first, and tells its followers at last.
            self._settle()
            if not self._is_disturbed():
                raise
            return False
        if batch is None:
            return False
        if ahead_bytes:
            self._ahead.extend(about(self._batches, ahead_bytes))
        self._open(batch)
        return True

    def _open(self, batch: Batch) -> None:
        self._batch_end = batch.next_offset
        if not batch.is_control:
            batch.check_crc()
            first = self.offset
            records = iter(batch.records())
            if batch.base_offset < first:
                records = (record for record in records if record.offset >= first)
            self._records = records


def about(batches: Iterator[Batch], size: int) -> list[Batch]:
    """Take batches until they have `size` bytes."""
    taken: list[Batch] = []
    for batch in batches:
        taken.append(batch)
        size -= batch.size
        if size <= 0:
            break
    return taken
