"""One record by its offset, with few bytes read: earlier lookups give the position.

    visited first     the batch (or, of small batches, some KiB of them) is read and checked; where its
                      records lie is remembered, a mark every 512 bytes
    visited again     the bytes from one mark to the next are read
    read in a row     the stretch is decoded whole, and kept

Marks take about 2 % of the bytes that they describe, and at most 4 MiB a log; the oldest go first. They hold
for one segment object and until bytes of the log are cut. A record that is read by its mark has the checksum
of its batch behind it, from the first visit; what does not parse is read again as at the first visit, which
raises the error.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct, error
from threading import Lock
from typing import Final, NamedTuple

from logstore.errors import CorruptBatch, InvalidRecord, LogClosed, OffsetOutOfRange
from logstore.format.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MIN_LENGTH,
    TRANSACTIONAL,
    Batch,
    walk,
)
from logstore.format.record import Record
from logstore.format.record_columns import find_places
from logstore.format.record_parser import decode_plainly, span_of
from logstore.log.partition_log import PartitionLog
from logstore.log.read import FetchIsolation, end_offset_for, read_bytes
from logstore.log.read_committed import without_aborted
from logstore.segment.segment import Segment

MARK_BYTES: Final = 512
"""Bytes from one mark to the next, at least."""
STRETCH_BYTES: Final = 1 << 14
"""Small batches are marked so many bytes at once."""
SMALL_BYTES: Final = 1 << 11
"""A larger batch has marks of its own."""
MOST_MARK_BYTES: Final = 4 << 20
MOST_KEPT: Final = 8
MOST_KEPT_BYTES: Final = 1 << 20
"""A larger batch is not kept."""
_STRETCH_COST: Final = 600
"""Bytes of a stretch without marks, about."""
_unpack_place: Final = Struct(">qi4xb4xhi").unpack_from
"""Base offset, length, magic, attributes, last offset delta."""
_OFFSET: Final = attrgetter("offset")


class _Form(NamedTuple):
    """What the records of a batch take from its header."""

    base_offset: int
    base_timestamp_ms: int
    log_append_time_ms: int | None
    base_sequence: int


class _Stretch(NamedTuple):
    """Marks in a part of a segment: of the records of one batch, or of batches (`form` is None)."""

    base_offset: int
    next_offset: int
    segment: weakref.ref[Segment]
    segment_base: int
    deltas: array[int]
    """The offset at each mark, less `base_offset`."""
    positions: array[int]
    """The byte of each mark, and of the end."""
    form: _Form | None
    is_transactional: bool

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.base_offset <= offset < self.next_offset

    @property
    def cost(self) -> int:
        """Bytes of memory, about."""
        return _STRETCH_COST + 8 * len(self.deltas)


class _Kept(NamedTuple):
    """Decoded records of a stretch, without those of control batches."""

    stretch: _Stretch
    records: Sequence[Record]


class Lookup:
    """Gets records of one log, from any thread."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._lock = Lock()
        """Held to change what is remembered; whoever reads it checks what is found."""
        log.at_fork.append(self._renew_lock)
        self._forget(log.cuts)

    def _renew_lock(self) -> None:
        self._lock = Lock()

    def _forget(self, cuts: int) -> None:
        self._cuts = cuts
        self._bases: list[int] = []
        self._stretches: dict[int, _Stretch] = {}
        """By base offset, the oldest first; `_bases` are the same offsets in order."""
        self._cost = 0
        self._kept: tuple[_Kept, ...] = ()
        self._last_offset = -2

    def get(self, offset: int, isolation: FetchIsolation) -> Record | None:
        """Return the record with this offset; None if the log holds none. Raises as `Log.get`."""
        log = self._log
        cuts = log.cuts
        end_offset = end_offset_for(log, isolation)
        if not log.log_start_offset <= offset < end_offset:
            raise OffsetOutOfRange(offset, log.log_start_offset, end_offset)
        if log.is_closed:
            raise LogClosed(f"{log.directory} was closed; open it again")
        if cuts != self._cuts:
            with self._lock:
                self._forget(cuts)
        before, self._last_offset = self._last_offset, offset
        for stretch, records in self._kept:
            if stretch.base_offset <= offset < stretch.next_offset:
                record = _find(records, stretch.base_offset, offset)
                if record is None or self._segment_of(stretch, isolation) is None:
                    break
                return record
        bases = self._bases
        slot = bisect_right(bases, offset)
        found = self._stretches.get(bases[slot - 1]) if 0 < slot <= len(bases) else None
        if found is not None and offset < found.next_offset:
            segment = self._segment_of(found, isolation)
            if segment is not None:
                try:
                    # Neighbours in turn; or twice in a batch in which no record can be found by itself.
                    if -1 <= offset - before <= 1 or (len(found.deltas) == 1 and before in found):
                        record = self._decode(found, segment, offset, cuts)
                    else:
                        record = _at_mark(found, segment, offset)
                except (OSError, CorruptBatch, InvalidRecord, IndexError, error):
                    pass  # cut, closed or damaged: what reads it as if for the first time tells
                else:
                    # None: compacted away, or passed over because another batch's offset has rotted.
                    if record is not None and cuts == log.cuts:
                        return record
        return self._visit(offset, isolation, cuts)

    def _segment_of(self, stretch: _Stretch, isolation: FetchIsolation) -> Segment | None:
        """The segment of the stretch, if the log still has it and all its records may be seen."""
        if stretch.is_transactional and isolation is FetchIsolation.TXN_COMMITTED:
            return None
        segment = self._log.segments.get(stretch.segment_base)
        return segment if segment is stretch.segment() else None

    def _visit(self, offset: int, isolation: FetchIsolation, cuts: int) -> Record | None:
        """Read the batch, and remember where its records lie."""
        log = self._log
        end_offset = log.log_end_offset
        fetched = read_bytes(log, offset, 1, isolation=isolation)
        batches: Iterator[Batch] = walk(fetched.records)
        if fetched.aborted:
            batches = without_aborted(batches, fetched.aborted)
        batch = next(batches, None)
        if batch is None or batch.is_control or not batch.base_offset <= offset < batch.next_offset:
            return None
        batch.check_crc()
        segment = log.segments.get(fetched.segment_base_offset)
        # Not of a failed disk: of its bytes only those count that were synced.
        if segment is not None and not log.failure:
            try:
                stretch = _stretch_of(segment, batch, fetched.position, end_offset)
            except OSError:  # retention or compaction has removed it since
                stretch = None
            if stretch is not None:
                self._remember(stretch, cuts)
        return _record_in(batch, offset)

    def _remember(self, stretch: _Stretch, cuts: int) -> None:
        with self._lock:
            if not self._cuts == cuts == self._log.cuts:
                return
            bases, stretches = self._bases, self._stretches
            first = bisect_left(bases, stretch.base_offset)
            for base in bases[first : bisect_left(bases, stretch.next_offset)]:
                self._cost -= stretches.pop(base).cost
            stretches[stretch.base_offset] = stretch
            bases[first : bisect_left(bases, stretch.next_offset)] = [stretch.base_offset]
            self._cost += stretch.cost
            while self._cost > MOST_MARK_BYTES and len(stretches) > 1:
                oldest = next(iter(stretches))
                self._cost -= stretches.pop(oldest).cost
                del bases[bisect_left(bases, oldest)]

    def _decode(self, stretch: _Stretch, segment: Segment, offset: int, cuts: int) -> Record | None:
        """Decode the whole stretch, and keep its records."""
        start, end = stretch.positions[0], stretch.positions[-1]
        if stretch.form is not None:
            start -= HEADER_BYTES
        if end - start > MOST_KEPT_BYTES:
            return _at_mark(stretch, segment, offset)
        records: list[Record] = []
        for batch in walk(segment.log_file.pread(end - start, start)):
            if not batch.is_control:
                batch.check_crc()
                records += batch.records()
        with self._lock:
            if self._cuts == cuts == self._log.cuts:
                self._kept = (_Kept(stretch, records), *self._kept[: MOST_KEPT - 1])
        return _find(records, stretch.base_offset, offset)


# --- one record -------------------------------------------------------------------------------------


def _find(records: Sequence[Record], base_offset: int, offset: int) -> Record | None:
    at = offset - base_offset
    if at < len(records) and records[at].offset == offset:
        return records[at]
    at = bisect_left(records, offset, key=_OFFSET)
    return records[at] if at < len(records) and records[at].offset == offset else None


def _record_in(batch: Batch, offset: int) -> Record | None:
    for record in batch.records():
        if record.offset >= offset:
            return record if record.offset == offset else None
    return None


def _at_mark(stretch: _Stretch, segment: Segment, offset: int) -> Record | None:
    """Read from the mark before the record to the next one."""
    positions = stretch.positions
    slot = bisect_right(stretch.deltas, offset - stretch.base_offset)
    at = positions[slot - 1]
    data = segment.log_file.pread(positions[slot] - at, at)
    form = stretch.form
    if form is not None:
        span = span_of(data, offset - form.base_offset)
        if span is None:
            return None
        return next(decode_plainly(data[span[0] : span[1]], 1, *form))
    at = 0
    while True:
        base_offset, length, magic, _, delta = _unpack_place(data, at)
        if length < MIN_LENGTH or magic != MAGIC:
            raise CorruptBatch(f"no batch at byte {at} of {len(data)}")
        if offset <= base_offset + delta:
            break
        at += length + LOG_OVERHEAD
    if offset < base_offset:
        return None
    batch = Batch(data, at)
    if batch.is_control:
        return None
    batch.check_crc()
    return _record_in(batch, offset)


# --- marks ------------------------------------------------------------------------------------------


def _stretch_of(segment: Segment, batch: Batch, position: int, end_offset: int) -> _Stretch | None:
    """Mark the records of `batch`, which was read at `position`, or if it is small, the batches around it.

    None if the segment has other bytes there by now. Offsets from `end_offset` on are left out.
    """
    if batch.size <= SMALL_BYTES:
        start = segment.indexes.offsets.lookup(batch.base_offset).position
        return (
            _marked_batches(segment, batch, start, position, end_offset)
            if 0 <= position - start < STRETCH_BYTES
            else None
        ) or _marked_batches(segment, batch, position, position, end_offset)
    if segment.log_file.pread(HEADER_BYTES, position) != batch.buffer[:HEADER_BYTES]:
        return None
    first, end = position + HEADER_BYTES, position + batch.size
    places = None
    if not batch.attributes & CODEC_MASK:
        places = find_places(batch.payload(), batch.record_count, MARK_BYTES)
    form = _Form(
        batch.base_offset,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms if batch.attributes & LOG_APPEND_TIME else None,
        batch.base_sequence,
    )
    deltas, positions = places or ([0], [-HEADER_BYTES])
    return _Stretch(
        batch.base_offset,
        batch.next_offset,
        weakref.ref(segment),
        segment.base_offset,
        array("i", deltas),
        array("i", [*(first + at for at in positions), end]),
        form if places else None,
        batch.is_transactional,
    )


def _marked_batches(
    segment: Segment, batch: Batch, start: int, position: int, end_offset: int
) -> _Stretch | None:
    """Mark the batches from byte `start` on; None if the walk does not come upon `batch` at `position`."""
    data = segment.log_file.pread(max(min(STRETCH_BYTES, segment.size - start), 0), start)
    deltas, positions = array("i"), array("i")
    at = next_mark = next_offset = first = 0
    is_met = is_transactional = False
    while at + HEADER_BYTES <= len(data):
        base_offset, length, magic, attributes, delta = _unpack_place(data, at)
        size = length + LOG_OVERHEAD
        if length < MIN_LENGTH or magic != MAGIC or delta < 0 or base_offset < next_offset:
            break
        if size > SMALL_BYTES and not is_met:
            deltas, positions = array("i"), array("i")  # begin anew behind it
            next_mark, is_transactional = at + size, False
        elif size > SMALL_BYTES or at + size > len(data) or base_offset + delta >= end_offset:
            break
        else:
            is_met |= start + at == position and base_offset == batch.base_offset
            is_transactional |= attributes & TRANSACTIONAL != 0
            if at >= next_mark:
                first = first if deltas else base_offset
                deltas.append(base_offset - first)
                positions.append(start + at)
                next_mark = at + MARK_BYTES
        next_offset = base_offset + delta + 1
        at += size
    if not is_met:
        return None
    positions.append(start + at)
    return _Stretch(
        first,
        next_offset,
        weakref.ref(segment),
        segment.base_offset,
        deltas,
        positions,
        None,
        is_transactional,
    )
