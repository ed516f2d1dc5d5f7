"""Single appends, packed into batches.

    append ─▶ ┌ open batch ───────┐   full: the caller that filled it writes it
    append ─▶ │ value value value │ ──────────────────────────────────────────────▶ one batch in the log
    append ─▶ └───────────────────┘   linger_ms old: the writer's thread writes it

A batch of one record takes about 70 bytes more than the record; in a full batch a record takes 10 more. Each
append returns a `Pending`, which tells the three states of its record apart:

    waiting   in this process: lost if the process dies
    written   in the kernel's page cache: lost if the power fails
    synced    on disk

At most two batches are in memory, one that fills and one that is being written: an append that finds the open
batch full waits. A batch here is one batch in the log, so all of it is written or nothing. If the log refuses
a batch because of one record, its records are appended one by one, and only that record fails.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final

from logstore.arguments import as_offset, as_timeout, is_number
from logstore.config import MAX_LONG
from logstore.disk.clocks import steady_s
from logstore.disk.closing import Closing, OfThisProcess
from logstore.disk.reentry import Flag, not_owned
from logstore.errors import LogClosed, LogDirOffline, OutOfResources
from logstore.format.record import MAX_PLAIN_VALUES, NO_TIMESTAMP, Record, headers_of
from logstore.log.append import AppendInfo
from logstore.log.outgoing import RECORD_OVERHEAD, Appendable, append_records, full_batch_bytes, size_of
from logstore.log.partition_log import Clock, PartitionLog
from logstore.log.serializers import Serializer, serialized
from logstore.wording import counted

_OF_THE_LOG: Final = (LogDirOffline, LogClosed, OutOfResources)
"""Errors that concern the log and not a record: appending one by one would not help."""


class _Batch:
    """Records that are written together, and afterwards the result of each."""

    __slots__ = ("done", "due_s", "outcomes", "rows", "size", "target_bytes", "writer")

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.target_bytes = full_batch_bytes(writer._log.config)
        """When it is full. Also for the write: with a smaller one, it could be written in part."""
        self.rows: list[Appendable] = []
        self.size = 0
        self.due_s = 0.0
        """When it is written even if it is not full, by the monotonic clock."""
        self.done = Flag()
        self.outcomes: AppendInfo | list[AppendInfo | BaseException] = []
        """One result for all records, whose offsets follow each other, or one for each."""

    def finish(self, outcomes: AppendInfo | list[AppendInfo | BaseException]) -> None:
        self.outcomes = outcomes
        self.done.set()
        self.rows = []


class Pending(OfThisProcess):
    """A record accepted by `Writer.append`: waiting, written or synced."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: _Batch, number: int) -> None:
        self._batch, self._number = batch, number

    def written(self, timeout: float | None = None) -> AppendInfo:
        """Return the record's place once the kernel has it: it survives the end of this process.

        Raises the error of the append if it failed: the record is not in the log then. Raises `TimeoutError`
        after `timeout` seconds; the record keeps waiting.
        """
        batch, seconds = self._batch, as_timeout(timeout)
        if not batch.done.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError(
                f"the record was not written within {timeout:g} s; it still waits for its batch"
            )
        outcome = self._outcome()
        if isinstance(outcome, BaseException):
            batch.writer._reported(outcome)
            # Without the frames of earlier raises: each would keep its variables in memory.
            raise outcome.with_traceback(None)
        return outcome

    def synced(self) -> AppendInfo:
        """Return the record's place once it survives power loss. Raises as `written`, and `LogDirOffline`."""
        info = self.written()
        self._batch.writer._log.sync_up_to(info.last_offset + 1)
        return info._replace(is_synced=True)

    @property
    def is_written(self) -> bool:
        """Whether the kernel has the record."""
        return self._batch.done.is_set() and isinstance(self._outcome(), AppendInfo)

    @property
    def is_synced(self) -> bool:
        """Whether the record survives power loss."""
        outcome = self._outcome() if self._batch.done.is_set() else None
        recovery_point = self._batch.writer._log.recovery_point
        return isinstance(outcome, AppendInfo) and outcome.last_offset < recovery_point

    def _outcome(self) -> AppendInfo | BaseException:
        outcomes, number = self._batch.outcomes, self._number
        if isinstance(outcomes, list):
            return outcomes[number]
        if number < 0:
            return outcomes
        offset = outcomes.offsets[number]
        return outcomes._replace(first_offset=offset, last_offset=offset, parts=())

    def __repr__(self) -> str:
        if not self._batch.done.is_set():
            return "Pending(waiting)"
        outcome = self._outcome()
        if isinstance(outcome, BaseException):
            return f"Pending(failed: {outcome})"
        return f"Pending(offset {outcome.last_offset}, {'synced' if self.is_synced else 'written'})"


class Writer(Closing):
    """Packs single appends of any number of threads into batches. `Log.writer` makes one.

    A record is written within `linger_ms` of its append, earlier if `max_batch` records or half of
    `max.message.bytes` are together. Leave its `with` block, or close it or the log: that writes what waits,
    as does the regular end of the program.
    """

    def __init__(
        self, log: PartitionLog, serializer: Serializer | None, *, linger_ms: float, max_batch: int
    ) -> None:
        """Start the writer's thread. Raises `ValueError` for settings out of range."""
        if not is_number(linger_ms) or not 0 <= linger_ms < threading.TIMEOUT_MAX * 1000:
            raise ValueError(f"linger_ms is {linger_ms!r}; it must be a number, at least 0 and finite")
        if not 1 <= as_offset(max_batch, "max_batch") <= MAX_PLAIN_VALUES:
            raise ValueError(f"max_batch is {max_batch!r} records; it must be 1 to {MAX_PLAIN_VALUES}")
        self._log, self._serializer = log, serializer
        self._linger_s = linger_ms / 1000
        self._most = self._max_batch = max_batch
        """Records in a batch; 0 while `_check` has an error to raise."""
        self._unreported: list[BaseException] = []
        self._closed: LogClosed | None = None
        self._thread = threading.Thread(target=self._run, name=f"writer of {log!r}", daemon=True)
        self._prepare()
        _writers.add(self)
        self._thread.start()
        atexit.register(self.close)  # not before: a thread that was not started cannot be waited for

    def _prepare(self) -> None:
        self._writing = threading.RLock()
        """Held while a batch is taken and written: batches go into the log in the order of their records."""
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._open = _Batch(self)
        self._is_idle = False
        """Whether the thread waits for the first record of a batch."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._open.rows)} records waiting"
        return f"Writer({self._log!r}, {state})"

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more records."""
        return self._closed is not None

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        records: Any,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Take one record, and return before it is written.

        The arguments are those of `Log.append`. The time defaults to that of the write. Many records, ready
        batches and large records are written at once, behind the records that wait; the `Pending` then
        stands for all of them.

        Raises the error of an earlier record that no `Pending` has raised yet, `LogClosed`, and `TypeError`:
        the record of this call was not taken then.
        """
        if type(records) is bytes and key is None and not headers and timestamp_ms is None:
            row: Appendable = records
            size = len(records) + RECORD_OVERHEAD
        else:
            serializer = self._serializer
            ready = records if serializer is None else serialized(serializer, records)
            found = _row_of(ready, key, headers, timestamp_ms, self._log.clock)
            if found is None:
                return self._directly(ready, key, headers, timestamp_ms)
            row, size = found
        if size >= self._open.target_bytes:
            return self._directly(row, None, (), None)
        is_full = False
        while True:
            with not_owned(self._lock):
                batch = self._open
                number = len(batch.rows)
                if number < self._most and batch.size < batch.target_bytes:
                    batch.rows.append(row)
                    batch.size += size
                    if not number or self._is_idle:  # an interrupt may have ended the call for the first
                        batch.due_s = steady_s() + self._linger_s
                        if self._is_idle:
                            self._arrived.notify()
                            self._is_idle = False
                    is_full = number + 1 == self._most or batch.size >= batch.target_bytes
                    break
            self._check()
            self._write_open()
        if is_full:
            self._write_open()
        return Pending(batch, number)

    def _directly(
        self,
        records: Any,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> Pending:
        self._check()
        with not_owned(self._writing):
            self._write_next()
            batch = _Batch(self)
            batch.finish(
                append_records(self._log, records, key=key, headers=headers, timestamp_ms=timestamp_ms)
            )
            return Pending(batch, -1)

    def flush(self) -> None:
        """Write every record taken so far, and make it survive power loss.

        Raises `LogDirOffline`, and the error of an earlier record that no `Pending` has raised yet.
        """
        self._write_open()
        self._check()
        self._log.flush()

    def close(self) -> None:
        """Write the records that wait, and end the thread. Closing twice is harmless.

        They are in the kernel's page cache then; `Log.close` syncs them. Raises the error of a record that no
        `Pending` has raised yet.
        """
        with not_owned(self._lock):
            if self._closed is None:
                self._closed = LogClosed("this writer was closed; ask the log for another one")
                self._most = 0
                self._arrived.notify()
        self._write_open()
        self._thread.join()
        atexit.unregister(self.close)
        self._raise_unreported()

    # --- writing ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with not_owned(self._lock):
                batch = self._open
                if not batch.rows:
                    if self._closed is not None:
                        return
                    self._is_idle = True
                    self._arrived.wait()
                    continue
                left_s = batch.due_s - steady_s()
                if left_s > 0 and self._closed is None:
                    # Nobody wakes us for a batch that begins meanwhile: it is due later than this one.
                    self._arrived.wait(left_s)
                    continue
            self._write_open()

    def _write_open(self) -> None:
        with not_owned(self._writing):
            self._write_next()

    def _write_next(self) -> None:
        """Write the open batch; `_writing` is held. Its records have the errors."""
        batch = self._open
        if not batch.rows:
            return
        try:
            self._write(batch)
        except BaseException as interrupt:
            if batch.done.is_set():
                batch.done.set()  # again: the interrupt may have come before it woke those who wait
            elif self._open is not batch:
                lost = InterruptedError("the write was interrupted: look in the log for its records")
                lost.__cause__ = interrupt
                batch.finish([lost] * len(batch.rows))
            raise

    def _write(self, batch: _Batch) -> None:
        with not_owned(self._lock):
            self._open = _Batch(self)
        outcomes: AppendInfo | list[AppendInfo | BaseException]
        try:
            outcomes = append_records(self._log, batch.rows, target_bytes=batch.target_bytes)
        except Exception as error:
            outcomes = self._one_by_one(batch.rows, error)
        if isinstance(outcomes, list):
            failed = [each for each in outcomes if isinstance(each, BaseException)]
            if failed:
                failed[0].add_note(f"not written: {counted(len(failed), 'record')} of this writer")
                with not_owned(self._lock):
                    self._unreported += dict.fromkeys(failed)
                    self._most = 0
        batch.finish(outcomes)

    def _one_by_one(self, rows: list[Appendable], error: Exception) -> list[AppendInfo | BaseException]:
        """Return the result of each record after the log has refused all of them together."""
        if len(rows) == 1 or isinstance(error, _OF_THE_LOG):
            return [error] * len(rows)
        outcomes: list[AppendInfo | BaseException] = []
        for row in rows:
            try:
                outcomes.append(append_records(self._log, row))
            except Exception as refusal:
                outcomes.append(refusal)
        return outcomes

    # --- errors -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise what stops appends: the writer was closed, or an error that nobody has seen."""
        self._raise_unreported()
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def _raise_unreported(self) -> None:
        with not_owned(self._lock):
            unreported, self._unreported = self._unreported, []
            self._most = 0 if self._closed else self._max_batch
        if unreported:
            raise unreported[0]

    def _reported(self, error: BaseException) -> None:
        with not_owned(self._lock):
            if error in self._unreported:
                self._unreported.remove(error)
                if not self._unreported and self._closed is None:
                    self._most = self._max_batch

    def _forked(self) -> None:
        """In a forked child: nothing of the parent's is written a second time."""
        before, self._closed, self._most = (
            self._open,
            LogClosed("this writer belongs to the parent process; open the log again after the fork"),
            0,
        )
        self._prepare()
        self._unreported = []
        before.finish([self._closed] * len(before.rows))


def _row_of(
    records: Any,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    timestamp_ms: int | None,
    clock: Clock,
) -> tuple[Appendable, int] | None:
    """Return a single record and its estimated size; None for what is no record, or cannot be encoded."""
    if isinstance(records, Record) or (isinstance(records, tuple) and len(records) == 2):
        if key is not None or headers or timestamp_ms is not None:
            return None
        row: Appendable = records
        value: Any
        key, value = (records.key, records.value) if isinstance(records, Record) else records
        if isinstance(records, Record) and not _is_time(records.timestamp_ms):
            return None
    elif records is None or isinstance(records, bytes | bytearray | memoryview):
        # A copy of what the caller may change before it is written.
        value = records if records is None or isinstance(records, bytes) else bytes(records)
        row = value if key is None else (key, value)
        if headers or timestamp_ms is not None:
            time_ms = clock() if timestamp_ms is None else timestamp_ms
            if not _is_time(time_ms):
                return None
            row = Record(0, time_ms, key, value, headers_of(headers))
    else:
        return None
    if not {type(key), type(value)} <= {bytes, type(None)}:
        return None
    size = size_of(row) if isinstance(row, Record) else len(key or b"") + len(value or b"") + RECORD_OVERHEAD
    return row, size


def _is_time(timestamp_ms: object) -> bool:
    return type(timestamp_ms) is int and NO_TIMESTAMP <= timestamp_ms <= MAX_LONG


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in _writers:
        writer._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
