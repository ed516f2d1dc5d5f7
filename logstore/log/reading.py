"""Reading from any source of batches by offset: a log, or a topic's partition over a connection.

    a class has       log_start_offset, log_end_offset, read_bytes, offset_for_timestamp
    and gets          get, [offset], read, iteration, read_batches, read_values, read_keys_values,
                      read_reverse, read_arrow, first, last, len

In the manner of `collections.abc`: a class may override what it can do faster, with the same results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from logstore.arguments import as_count, as_int, as_offset
from logstore.config import MAX_INT, MAX_LONG
from logstore.errors import CorruptBatch, OffsetOutOfRange
from logstore.format.batch import Batch, walk
from logstore.format.record import Record
from logstore.format.record_parser import NUMPY_FROM, decode_pairs, decode_values
from logstore.log.read import (
    FIRST_READ_BYTES,
    READ_BYTES,
    FetchedBytes,
    FetchIsolation,
    Isolation,
    Piece,
    TimestampOffset,
)
from logstore.log.read_committed import without_aborted
from logstore.log.small_batches import SmallBatches, records_of_many, small_batches
from logstore.segment.epochs import EpochEntry

T = TypeVar("T")

WORTH_A_TABLE_BYTES: Final = 1 << 13
"""Fetches of so many bytes may be decoded as a whole."""
_ATTEMPTS: Final = 10
"""How often a record at a bound is looked for; each bound may move during a look."""
_START_OFFSET: Final = attrgetter("start_offset")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Reading(ABC):
    """Methods to read records and batches.

    Offsets are absolute. Every method that takes offsets reads from `start_offset` (default: the log start)
    to before `end_offset` (default: the end as it is when it is reached). `since` and `until` choose the
    same bounds by time, as a `datetime` with a time zone or in milliseconds: reading begins at the first
    record whose time is at or past `since`, and ends before the first whose time is at or past `until`; each
    is at the log end of the call if there is no such record yet. In between, records come as they lie,
    whatever their times.

    With `isolation=FetchIsolation.TXN_COMMITTED`, or "read_committed", the end is the last stable offset, and
    records of aborted transactions are left out. Raises `ValueError` for other texts than Kafka's.
    """

    __slots__ = ()

    # --- to be given ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def log_start_offset(self) -> int:
        """The first offset that is served."""

    @property
    @abstractmethod
    def log_end_offset(self) -> int:
        """The offset of the next record."""

    @abstractmethod
    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        end_offset: int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Return whole batches from `start_offset` as bytes, at most `max_bytes` of them.

        The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is
        larger. At or past the end for `isolation` nothing is returned. Batches that begin at or past
        `end_offset` may be left out. With TXN_COMMITTED the aborted transactions among the batches are
        listed. Raises `OffsetOutOfRange` outside of [log start, log end], `CorruptBatch` or `CorruptIndex`
        if the log is damaged.
        """

    @abstractmethod
    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: Isolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """Return the first record whose time is at or past `timestamp_ms`; None if there is none."""

    # --- one record -------------------------------------------------------------------------------

    def get(self, offset: int, *, isolation: Isolation = FetchIsolation.LOG_END) -> Record | None:
        """Return the record with this offset; None if it was compacted away, aborted, or a control record.

        Reads one batch. With TXN_COMMITTED the end is the last stable offset. Raises `OffsetOutOfRange`
        outside of [log start, end), and as `read` where the log is damaged.
        """
        offset = as_offset(offset)
        fetched = self.read_bytes(offset, 1, end_offset=offset + 1, isolation=isolation)
        if not fetched.records and offset >= self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        return next(items_of([Piece(fetched)], RECORDS, offset, offset + 1), None)

    def __getitem__(self, offset: int) -> Record:
        """Return the record with this offset. Raises as `get`, and `LookupError` if there is none."""
        if isinstance(offset, slice):
            raise TypeError("a log has no slices; use read(start, end)")
        record = self.get(offset)
        if record is None:
            raise LookupError(f"no record at offset {offset}: compacted away, or a control record")
        return record

    def first(self, *, isolation: Isolation = FetchIsolation.LOG_END) -> Record | None:
        """Return the oldest record; None if there is none. Raises as `read` where the log is damaged."""
        return self._outermost(partial(self.read, max_records=1, isolation=isolation))

    def last(self, *, isolation: Isolation = FetchIsolation.LOG_END) -> Record | None:
        """Return the newest record; None if there is none. Raises as `read` where the log is damaged."""
        return self._outermost(partial(self.read_reverse, max_records=1, isolation=isolation))

    def _outermost(self, read: Callable[[], Iterator[Record]]) -> Record | None:
        """Return the first record that `read` yields, also if the bounds of the log move meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(OffsetOutOfRange):
                return next(read(), None)
        return next(read(), None)

    def __len__(self) -> int:
        """The number of offsets between log start and log end, without reading.

        That many records are there unless compaction, transactions or a producer's gaps took offsets.
        """
        start_offset = self.log_start_offset
        return max(self.log_end_offset - start_offset, 0)  # other threads may move both

    def __bool__(self) -> bool:
        """True, also without records: `if log:` asks whether there is a log."""
        return True

    # --- many records -----------------------------------------------------------------------------

    def read(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[Record]:
        """Yield the records in order, without control records.

        Stops after `max_records`, and before the keys and values of a second record or a later one exceed
        `max_bytes`. Ends with the last durable record if the disk of the log has failed. Raises as
        `read_bytes`, and `CorruptBatch` or `InvalidRecord` where the log is damaged.
        """
        first, end = self._bounds(start_offset, end_offset, since, until, isolation)
        records = items_of(self._pieces(first, end, isolation), RECORDS, first, end)
        return _limited(records, max_records, max_bytes)

    def __iter__(self) -> Iterator[Record]:
        """Yield all records, as `read` does."""
        return self.read()

    def read_values(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        max_records: int | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[bytes | None]:
        """Yield the values of `read`, without an object per record. Raises as `read`."""
        first, end = self._bounds(start_offset, end_offset, since, until, isolation)
        return first_of(items_of(self._pieces(first, end, isolation), VALUES, first, end), max_records)

    def read_keys_values(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        max_records: int | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the (key, value) pairs of `read`, without an object per record. Raises as `read`."""
        first, end = self._bounds(start_offset, end_offset, since, until, isolation)
        return first_of(items_of(self._pieces(first, end, isolation), PAIRS, first, end), max_records)

    def read_reverse(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        max_records: int | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[Record]:
        """Yield the records of `read`, newest first, from the end as it is at the first record.

        Reads from the end backwards, some batches at a time. Raises as `read`, and `OffsetOutOfRange` if
        the log start passes the records that come next.
        """
        first, end = self._bounds(start_offset, end_offset, since, until, isolation)
        return first_of(self._reversed(first, end, isolation), max_records)

    def __reversed__(self) -> Iterator[Record]:
        """Yield all records, newest first, as `read_reverse` does."""
        return self.read_reverse()

    def read_batches(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[Batch]:
        """Yield the batches that end past `start_offset` and begin before `end_offset`.

        Includes control batches; with TXN_COMMITTED no records of aborted transactions. Checksums were
        checked when the batches came in; `Batch.check_crc` checks again. Raises as `read_bytes`, and
        `CorruptBatch` for an impossible offset or epoch: no checksum covers them.
        """
        first, end = self._bounds(start_offset, end_offset, None, None, isolation)
        return chain.from_iterable(batches_of(piece, end) for piece in self._pieces(first, end, isolation))

    def read_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_records: int | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[Any]:
        """Yield the records of `read` as `pyarrow.RecordBatch`es, some megabytes of log in each.

        `max_records` limits the rows of each. `columnar.decode` documents the columns and errors; raises also
        as `read_bytes`, and `ImportError` without the extra `arrow`.
        """
        most = None if max_records is None else min(as_int(max_records, "max_records", least=1), MAX_INT)
        columnar = columnar_module()
        names = columnar.COLUMNS if columns is None else columns
        if not len(columnar.schema(names)):  # raises for a wrong name now, not at the first item
            raise ValueError(f"columns is empty: name at least one of {', '.join(columnar.FIELDS)}")
        first, end = self._bounds(start_offset, end_offset, since, until, isolation)
        return (
            rows
            for fetched in self._fetches(first, end, isolation, columnar.PIECE_BYTES)
            for rows in columnar.decode(fetched, columns=names, end_offset=end, max_records=most)
        )

    # --- how they are made ------------------------------------------------------------------------

    def _bounds(
        self,
        start_offset: int | None,
        end_offset: int | None,
        since: datetime | int | None,
        until: datetime | int | None,
        isolation: Isolation,
    ) -> tuple[int, int]:
        """The bounds as offsets; MAX_LONG for no end."""
        FetchIsolation(isolation)
        first = self.log_start_offset if start_offset is None else start_offset
        end = MAX_LONG if end_offset is None else end_offset
        if not type(first) is type(end) is int:
            first, end = as_offset(first), as_offset(end)
        if since is not None or until is not None:
            # Asked for first: what is appended during a lookup must not be skipped, nor read past `until`.
            # Neither does the isolation bound the lookups: it may reach further when the records are read.
            log_end_offset = self.log_end_offset
            if since is not None:
                found = self.offset_for_timestamp(milliseconds(since))
                first = max(first, log_end_offset if found is None else found.offset)
            if until is not None:
                found = self.offset_for_timestamp(milliseconds(until))
                end = min(end, log_end_offset if found is None else found.offset)
        return first, end

    def _fetches(
        self, first: int, end: int, isolation: Isolation, first_bytes: int = FIRST_READ_BYTES
    ) -> Iterator[FetchedBytes]:
        """Yield the batches of [first, end), fetch by fetch; little at first, for readers of few records."""
        offset, max_bytes = first, first_bytes
        while offset < end:
            fetched = self.read_bytes(offset, max_bytes, end_offset=end, isolation=isolation)
            if not fetched.records:
                return
            yield fetched
            offset = fetched.next_offset
            max_bytes = max(min(4 * max_bytes, READ_BYTES), first_bytes)

    def _pieces(self, first: int, end: int, isolation: Isolation) -> Iterator[Piece]:
        return map(Piece, self._fetches(first, end, isolation))

    def _reversed(self, first: int, end: int, isolation: Isolation) -> Iterator[Record]:
        high, offsets = min(end, self.log_end_offset), 1
        while high > first:
            low, size = max(high - offsets, first), 0
            batches: list[Batch] = []
            for piece in self._pieces(low, high, isolation):
                size += len(piece.fetched.records)
                if size > READ_BYTES and offsets > 1:
                    break
                batches += batches_of(piece, high)
            else:
                yield from reversed(list(items_of_batches(batches, RECORDS, first, high)))
                # Its first batch may begin below.
                high = min(low, batches[0].base_offset) if batches else low
            # Some batches a read: not one by one, and not more than a megabyte at once.
            if size > READ_BYTES:
                offsets = max(offsets // 4, 1)
            elif size < 4 * FIRST_READ_BYTES:
                offsets *= 4


def milliseconds(when: datetime | int) -> int:
    """Return a time as milliseconds since 1970; finer parts are cut off.

    Raises `ValueError` for a `datetime` without a time zone, `TypeError` for other types.
    """
    if not isinstance(when, datetime):
        return as_offset(when, "a time that is no datetime (milliseconds since 1970)")
    if when.tzinfo is None:
        raise ValueError(f"{when!r} has no time zone; give it one, such as when.astimezone()")
    return (when - _EPOCH) // _MILLISECOND


def columnar_module() -> ModuleType:
    """Import the Arrow columns. Raises `ImportError`, which names the extra, if pyarrow is missing."""
    try:
        from logstore.columnar import columnar
    except ImportError as error:
        raise ImportError(
            f"Arrow columns need the extra `arrow`: pip install 'pylogstore[arrow]' ({error})"
        ) from error
    return columnar


# --- batches ----------------------------------------------------------------------------------------


def batches_of(piece: Piece, end_offset: int = MAX_LONG) -> Iterator[Batch]:
    """Yield the batches that end past the start of the fetch and begin before `end_offset`.

    Leaves out those of aborted transactions. Checksums are not checked. Raises `CorruptBatch` for an
    impossible offset or epoch, which no checksum covers.
    """
    fetched = piece.fetched
    batches: Iterator[Batch] = walk(fetched.records)
    if piece.history is not None:
        batches = _in_order(batches, piece.history, piece.directory)
    if fetched.aborted:
        batches = without_aborted(batches, fetched.aborted)
    for batch in batches:
        if batch.base_offset >= end_offset:
            return
        if batch.next_offset > fetched.start_offset:
            yield batch


def _in_order(batches: Iterable[Batch], history: Sequence[EpochEntry], directory: str) -> Iterator[Batch]:
    """Yield batches whose offsets and epochs match their neighbours and the epoch history."""
    next_offset, known_until, expected = 0, -1, -1
    for batch in batches:
        base_offset, epoch = batch.base_offset, batch.leader_epoch
        if base_offset >= known_until:
            slot = bisect_right(history, base_offset, key=_START_OFFSET)
            expected = history[slot - 1].epoch if slot else -1
            known_until = history[slot].start_offset if slot < len(history) else MAX_LONG
        if base_offset < next_offset or (epoch != expected and epoch != -1 != expected):
            raise CorruptBatch(
                f"{directory}: the batch at offset {base_offset} of epoch {epoch} does not follow "
                "the batch before it; verify the log, or fetch it from another replica"
            )
        next_offset = batch.next_offset
        yield batch


# --- records ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form(Generic[T]):
    """The result of a read, made from a whole batch, from one record, or from many small batches."""

    of_batch: Callable[[Batch], Iterator[T]]
    of_record: Callable[[Record], T]
    of_many: Callable[[SmallBatches], Iterator[T]]


def items_of(pieces: Iterable[Piece], form: Form[T], start_offset: int, end_offset: int) -> Iterator[T]:
    """Return `form` of the records in [start, end), without control records.

    Raises `CorruptBatch` or `InvalidRecord` where the log is damaged, after the records before it.
    """
    return chain.from_iterable(
        # After a truncation, another batch may hold the offset up to which the piece before went.
        _of_piece(piece, form, max(start_offset, piece.fetched.start_offset), end_offset)
        for piece in pieces
    )


def items_of_batches(
    batches: Iterable[Batch], form: Form[T], start_offset: int, end_offset: int
) -> Iterator[T]:
    """Do as `items_of`, batch by batch."""

    def part(batch: Batch) -> Iterator[T]:
        if batch.is_control:
            return iter(())
        batch.check_crc()
        if batch.base_offset >= start_offset and batch.next_offset <= end_offset:
            return form.of_batch(batch)
        one = form.of_record
        return (one(record) for record in batch.records() if start_offset <= record.offset < end_offset)

    return chain.from_iterable(map(part, batches))


def _of_piece(piece: Piece, form: Form[T], start_offset: int, end_offset: int) -> Iterator[T]:
    if len(piece.fetched.records) >= WORTH_A_TABLE_BYTES:
        many = small_batches(piece, start_offset, end_offset)
        if many is not None:
            return form.of_many(many)
    return items_of_batches(batches_of(piece, end_offset), form, start_offset, end_offset)


def _values(batch: Batch) -> Iterator[bytes | None]:
    if batch.record_count < NUMPY_FROM:
        return map(attrgetter("value"), batch.records())
    return decode_values(batch.payload(), batch.record_count)


def _pairs(batch: Batch) -> Iterator[tuple[bytes | None, bytes | None]]:
    if batch.record_count < NUMPY_FROM:
        return map(attrgetter("key", "value"), batch.records())
    return decode_pairs(batch.payload(), batch.record_count)


RECORDS: Final = Form(Batch.records, lambda record: record, records_of_many)
VALUES: Final = Form(_values, attrgetter("value"), lambda many: iter(many.columns.values))
PAIRS: Final = Form(
    _pairs,
    attrgetter("key", "value"),
    lambda many: zip(many.columns.keys, many.columns.values, strict=False),
)


def _limited(records: Iterator[Record], max_records: int | None, max_bytes: int | None) -> Iterator[Record]:
    records = first_of(records, max_records)
    return records if max_bytes is None else _at_most(records, as_count(max_bytes, "max_bytes"))


def first_of(items: Iterator[T], most: int | None) -> Iterator[T]:
    """Return the first items, or all for None. Raises `TypeError` and `ValueError` for another `most`."""
    return items if most is None else islice(items, as_count(most, "max_records"))


def _at_most(records: Iterator[Record], max_bytes: int) -> Iterator[Record]:
    left = max_bytes
    for number, record in enumerate(records):
        left -= len(record.key or b"") + len(record.value or b"")
        if left < 0 < number:
            return
        yield record
