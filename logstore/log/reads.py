"""Reading a log: whole batches from an offset or a time on, as far as an isolation lets a reader see.

Readers take no lock. They hold the segments that they began with, and files that go under them stay open
until they are done; what they may see moves last. Where a truncation takes bytes, others may lie by the
next step of a reader: it counts up when it begins and when it is done, and who sees that looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple, TypeVar

from logstore.errors import (
    LogClosed,
    OffsetOutOfRange,
)
from logstore.log.producer_state import (
    LATE_MS,
    OpenTransaction,
)
from logstore.log.read_committed import aborted_between
from logstore.log.state import LogState
from logstore.segment.segment import (
    Segment,
)
from logstore.segment.segments import find_timestamp, is_cached, read_batches
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex

READ_BYTES = 1 << 20

T = TypeVar("T")


class FetchIsolation(Enum):
    """How far a reader sees."""

    LOG_END = "everything written"
    HIGH_WATERMARK = "what the in-sync replicas hold"
    TXN_COMMITTED = "likewise, up to the first transaction that is not decided"


class FetchedBytes(NamedTuple):
    """Whole batches; the first may begin below `start_offset`. `next_offset` follows the last one.

    `aborted`, for readers of committed data: the transactions whose data they have to leave out.
    """

    records: bytes
    start_offset: int
    segment_base_offset: int
    position: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class TimestampOffset(NamedTuple):
    """A record's time and offset, and the leader epoch that wrote it."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class _SegmentWent(Exception):
    """A segment was replaced or deleted under its reader, who has to look again."""


class LogReads(LogState):
    """What readers may ask."""

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided, and its marker replicated: the end of committed reads."""
        producers = self._producers
        # The end first: a batch that counts in it has its transaction among the unstable ones.
        end_offset = min(self.high_watermark, producers.end_offset)
        return producers.last_stable_offset(end_offset, self._log_start_offset)

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Whole batches from `start_offset` on, `max_bytes` of them at the most.

        The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is
        larger. At or past the end that `isolation` sets nothing is returned. With TXN_COMMITTED the aborted
        transactions among them are named. Raises `OffsetOutOfRange` outside [log start, log end],
        `CorruptBatch` or `CorruptIndex` where the log is damaged.
        """
        end_offset = self._log_end_offset
        if not self._log_start_offset <= start_offset <= end_offset:
            raise OffsetOutOfRange(start_offset, self._log_start_offset, end_offset)
        if self._is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")
        return self._undisturbed(lambda: self._read(start_offset, max_bytes, isolation, at_least_one))

    def _undisturbed(self, read: Callable[[], T]) -> T:
        """What `read` finds while no segment goes under it and no byte is cut.

        What it finds across a cut is half of the log before and half of the log after, and what it raises
        then says nothing of either.
        """
        while True:
            cuts = self._cuts
            try:
                found = read()
            except _SegmentWent:
                continue  # others may hold now what it held
            except Exception:
                if cuts == self._cuts:
                    raise
            else:
                if cuts == self._cuts:
                    return found

    def is_cold(self, start_offset: int, max_bytes: int) -> bool:
        """Whether `read_bytes` may have to wait for the device.

        Whoever must not wait then reads on another thread first. Where the platform cannot tell what is
        cached, the active segment is, and what lies before it is not. Where a read would raise, nothing
        is cold.
        """
        segments = self._segments
        if self._is_closed or not self._log_start_offset <= start_offset < self._log_end_offset:
            return False
        segment = segments.floor(start_offset)
        if segment is None:
            return False
        try:
            cached = is_cached(segment, start_offset, max_bytes)
        except OSError:
            return False  # the read says what is wrong
        return segment is not segments.active if cached is None else not cached

    def _read(
        self, start_offset: int, max_bytes: int, isolation: FetchIsolation, at_least_one: bool
    ) -> FetchedBytes:
        if start_offset < self._log_start_offset:  # by now: its segment may have gone for that
            raise OffsetOutOfRange(start_offset, self._log_start_offset, self._log_end_offset)
        end_offset = self.end_offset_for(isolation)
        segments = self._segments
        for segment in segments.since(start_offset):
            # Not past the end either where that lies inside a batch, as a log start may.
            if segment.base_offset >= end_offset or start_offset >= end_offset:
                break
            try:
                found = read_batches(segment, start_offset, max_bytes, end_offset, at_least_one=at_least_one)
            except OSError as error:
                self._read_failed(segment, error)
                raise _SegmentWent from error
            if found is not None:
                records, position, next_offset = found
                aborted: tuple[AbortedTransaction, ...] = ()
                if isolation is FetchIsolation.TXN_COMMITTED:
                    aborted = self.aborted_transactions(start_offset, next_offset)
                return FetchedBytes(
                    records, start_offset, segment.base_offset, position, next_offset, aborted
                )
        active = segments.active
        return FetchedBytes(b"", start_offset, active.base_offset, active.size, start_offset)

    def _read_failed(self, segment: Segment, error: OSError) -> None:
        """A file that went under its reader, with a truncation, a deletion or a close, is no bad disk."""
        with self._lock:  # whoever takes files away holds it until the segments are what they are then
            if self._is_closed:
                raise LogClosed(f"{self.directory} was closed; open it again") from error
            if self._segments.get(segment.base_offset) is segment:
                self._fail(error)

    def end_offset_for(self, isolation: FetchIsolation) -> int:
        """Where a reader's sight ends: the offset after the last one it may see."""
        if isolation is FetchIsolation.LOG_END:
            end_offset = self._log_end_offset
        elif isolation is FetchIsolation.HIGH_WATERMARK:
            end_offset = self.high_watermark
        else:
            end_offset = self.last_stable_offset
        # After a failed fsync the page cache may hold what the disk never will.
        return end_offset if self._failure is None else min(end_offset, self._recovery_point)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """The first record whose time is at or past `timestamp_ms`; None if there is none."""
        if self._is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")
        return self._undisturbed(lambda: self._find_timestamp(timestamp_ms, isolation))

    def _find_timestamp(self, timestamp_ms: int, isolation: FetchIsolation) -> TimestampOffset | None:
        start_offset, end_offset = self._log_start_offset, self.end_offset_for(isolation)
        for segment in self._segments:
            try:
                if segment.max_timestamp_ms < timestamp_ms:
                    continue
                batch = find_timestamp(segment, timestamp_ms, start_offset, end_offset)
            except OSError as error:
                self._read_failed(segment, error)
                raise _SegmentWent from error
            if batch is None:
                continue
            for record in batch.records():
                if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset < end_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset, batch.leader_epoch)
        return None

    def offset_of_largest_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest time in the whole log; None if no record has a time."""
        largest_ms = max((segment.max_timestamp_ms for segment in self._segments), default=-1)
        return self.offset_for_timestamp(largest_ms) if largest_ms >= 0 else None

    # --- transactions -----------------------------------------------------------------------------

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that overlap [start_offset, end_offset), in order of their markers.

        For an `end_offset` up to the last stable offset; a later transaction may not be decided yet.
        Raises `LogDirOffline`, and `CorruptIndex` if a transaction index was damaged since the log opened.
        """
        return self._undisturbed(
            lambda: aborted_between(self._transaction_indexes(start_offset), start_offset, end_offset)
        )

    def _transaction_indexes(self, offset: int) -> Iterator[TransactionIndex]:
        for segment in self._segments.since(offset):
            try:
                yield segment.aborts.index
            except OSError as error:
                self._read_failed(segment, error)
                raise _SegmentWent from error

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions without a marker, oldest first; the oldest holds readers of committed data."""
        with self._lock:
            return self._producers.open_transactions()

    def late_transactions(self, now_ms: int, largest_timeout_ms: int) -> tuple[OpenTransaction, ...]:
        """Those that no coordinator will end any more: open five minutes past the largest timeout."""
        limit_ms = largest_timeout_ms + LATE_MS
        return tuple(each for each in self.open_transactions() if now_ms - each.last_timestamp_ms > limit_ms)
