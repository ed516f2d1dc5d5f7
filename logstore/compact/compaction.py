"""Select records to keep in a compaction: the last of each key, and producer and transaction state.

    dirty part, read first            OffsetMap: key → its last offset, below the upper bound
    every batch from the log's start  dropped · emptied · filtered · as it was

    a record   is removed if its key is in the map with a later offset, if it has no key, if its transaction
               was aborted, or if it is a tombstone whose delete horizon has passed
    a marker   is removed once no batch of its transaction is left and its delete horizon has passed
    a batch    without records is removed, unless it is the last batch of an active producer (its sequence
               must outlive its records) or ends at the upper bound: then it stays, empty
    horizon    now + delete.retention.ms, written into a batch by the first pass that could remove something
               of it later: tombstones, and markers of transactions without batches

Offsets, sequences, leader epochs and codecs never change, and batches at or past the upper bound are not
examined. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.compact.offset_map import OffsetMap, hash_keys
from logstore.errors import InvalidRecord
from logstore.format.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    Batch,
    assemble_batch,
    encode_batch,
)
from logstore.format.compression import Codec
from logstore.format.record import NO_TIMESTAMP, ControlRecord, ControlType
from logstore.format.record_parser import RecordSpans, find_records
from logstore.segment.scan import Scanned
from logstore.segment.transaction_index import AbortedTransaction

_KEPT_FLAGS: Final = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


class LastBatch(NamedTuple):
    """The last offset (-1: none) and epoch of an active producer's last data batch."""

    last_offset: int
    epoch: int


@dataclass(slots=True)
class CompactionStats:
    """Counters of a pass. `unkeyed`: records without a key, which a compacted log drops."""

    records_read: int = 0
    records_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_mapped: int = 0
    unkeyed: int = 0
    keys: int = 0
    map_bytes: int = 0
    map_utilization: float = 0.0


class Transactions:
    """Tracks which transactional batches were aborted, and which markers have outlived their transaction.

    Every batch is passed in, in order of offset.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: the transactions that overlap the batches to be read."""
        ordered = sorted(set(aborted), key=lambda each: (each.first_offset, each.last_offset))
        self._coming = ordered[::-1]
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer → its aborted transaction that is being read, and whether a batch of it was seen."""
        self._committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Return whether the transactional data batch that ends at `last_offset` was aborted."""
        self._begin_up_to(last_offset)
        known = self._aborted.get(producer_id)
        if known is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = (known[0], True)
        return True

    def has_outlived(self, marker: Batch) -> bool:
        """Return whether all batches that this control batch decides are gone."""
        self._begin_up_to(marker.last_offset)
        record = next(marker.records(), None)
        if record is None:
            return True  # emptied by an earlier pass
        match ControlRecord.parse(record.key).type:
            case ControlType.ABORT:
                transaction, was_seen = self._aborted.pop(marker.producer_id, (None, False))
                if transaction is None or not was_seen:
                    return True
                # Also if its batches are removed in this pass: a reader may have fetched them just before.
                self._kept.append(transaction)
                return False
            case ControlType.COMMIT:
                was_seen = marker.producer_id in self._committed
                self._committed.discard(marker.producer_id)
                return not was_seen
        return False

    def _begin_up_to(self, offset: int) -> None:
        coming = self._coming
        while coming and coming[-1].first_offset <= offset:
            transaction = coming.pop()
            self._aborted.setdefault(transaction.producer_id, (transaction, False))

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the aborted transactions that readers still need, by the markers since the last call."""
        kept, self._kept = self._kept, []
        return kept


def map_records(
    data: bytes,
    found: Scanned,
    offsets: OffsetMap,
    transactions: Transactions,
    *,
    start_offset: int,
    end_offset: int,
) -> bool:
    """Put the keys of `found`, batches in `data`, in [start_offset, end_offset) into the map.

    Returns False if the map is full; its latest offset is then below the first key without room. Raises
    `InvalidRecord` for malformed records.
    """
    keys: list[bytes] = []
    places: list[int] = []
    latest_offset = offsets.latest_offset
    for row in _rows(found):
        if row.base_offset >= end_offset:
            break
        if row.attributes & CONTROL:
            transactions.has_outlived(Batch(data, row.position))
        elif row.attributes & TRANSACTIONAL and transactions.is_aborted(row.producer_id, row.last_offset):
            pass
        elif row.record_count and row.last_offset >= start_offset:
            _, spans = _spans(data, row)
            for key, delta in zip(spans.keys, spans.offset_deltas, strict=True):
                if key is not None and start_offset <= row.base_offset + delta < end_offset:
                    keys.append(key)
                    places.append(row.base_offset + delta)
        latest_offset = max(latest_offset, min(row.last_offset, end_offset - 1))
    if keys:
        put = offsets.put_many(hash_keys(keys), np.array(places, np.int64))
        if put < len(keys):
            offsets.latest_offset = places[put] - 1
            return False
    offsets.latest_offset = latest_offset
    return True


class Kept(NamedTuple):
    """The rest of a chunk: batches end to end, in `pieces`, with size, last offset and largest time of
    each."""

    pieces: list[bytes | memoryview]
    extents: list[tuple[int, int, int]]
    is_unchanged: bool


class _Row(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    record_count: int

    @property
    def horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None


def _rows(found: Scanned) -> Iterable[_Row]:
    headers = found.headers
    columns = [found.positions, headers["batch_length"] + LOG_OVERHEAD, headers["base_offset"]]
    columns += [found.last_offsets, headers["attributes"], headers["base_timestamp"]]
    columns += [headers["max_timestamp"], headers["producer_id"], headers["producer_epoch"]]
    columns += [headers["record_count"]]
    return map(_Row._make, zip(*(column.tolist() for column in columns), strict=True))


def _spans(data: bytes, row: _Row) -> tuple[bytes, RecordSpans]:
    """The row's records, and the bytes that hold them: the chunk's own unless they are compressed."""
    if row.record_count < 0:
        raise InvalidRecord(f"batch at offset {row.base_offset}: {row.record_count} records")
    try:
        if row.attributes & CODEC_MASK:
            data = Batch(data, row.position).payload()
            return data, find_records(data, row.record_count, 0, len(data))
        start, end = row.position + HEADER_BYTES, row.position + row.size
        return data, find_records(data, row.record_count, start, end)
    except InvalidRecord as error:
        raise InvalidRecord(f"batch at offset {row.base_offset}: {error}") from error


@dataclass(slots=True)
class Compaction:
    """The rules, for one pass over a log whose dirty part is in `offsets`. Chunks come in order of offset."""

    offsets: OffsetMap
    transactions: Transactions
    producers: Mapping[int, LastBatch]
    now_ms: int
    delete_retention_ms: int
    stats: CompactionStats = field(default_factory=CompactionStats)
    is_final: bool = False
    """whether markers and batches of active producers go, too: none of them goes on in the result"""

    @property
    def upper_bound(self) -> int:
        """The end of the offsets that the pass judges."""
        return self.offsets.latest_offset + 1

    def filter(self, data: bytes, found: Scanned) -> Kept:
        """Return the rest of `found`, batches that lie end to end in `data`.

        Raises `InvalidRecord` for malformed records, `UnsupportedCompression` for a codec that is not
        installed.
        """
        judged = _Judged(self, data, found)
        kept = judged.write()
        stats = self.stats
        stats.bytes_read += found.end
        stats.bytes_written += sum(size for size, _, _ in kept.extents)
        return kept

    def judge(
        self,
        keys: list[bytes],
        has_key: npt.NDArray[np.bool_],
        offsets: npt.NDArray[np.int64],
        may_go: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Return which records stay. `keys` are those of the records that have one."""
        latest = np.full(len(offsets), np.iinfo(np.int64).max)  # no key: dropped as if superseded
        latest[has_key] = self.offsets.get_many(hash_keys(keys))
        is_above = offsets > self.offsets.latest_offset
        self.stats.unkeyed += int((~has_key & ~is_above).sum())
        stays: npt.NDArray[np.bool_] = is_above | ((offsets >= latest) & ~may_go)
        return stays

    def keeps_empty(self, row: _Row) -> bool:
        """Return whether the batch is kept although it has no records left."""
        if self.is_final:
            return row.last_offset + 1 >= self.upper_bound
        if row.last_offset + 1 == self.upper_bound:
            return True
        last = self.producers.get(row.producer_id) if row.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return row.last_offset == last.last_offset
        return bool(row.attributes & CONTROL) and row.producer_epoch == last.epoch


class _Judged:
    """One chunk: the batches that have to be examined, and which of their records stay.

    The records of all its batches are looked up in the map at once: a call for each would cost more than
    everything else.
    """

    def __init__(self, rules: Compaction, data: bytes, found: Scanned) -> None:
        self.rules = rules
        self.data = data
        self.rows = list(_rows(found))
        self.markers: dict[int, bool] = {}
        """Control batches by their slot: whether each has outlived its transaction."""
        self.spans: dict[int, tuple[bytes, RecordSpans, int]] = {}
        """Data batches that are examined: payload, records, and the number of the first record."""
        self.untouched = len(self.rows)
        """Batches from this slot on lie past the upper bound."""
        keys: list[bytes] = []
        has_key: list[bool] = []
        offsets: list[int] = []
        may_go: list[bool] = []
        for slot, row in enumerate(self.rows):
            if row.base_offset >= rules.upper_bound:
                self.untouched = slot
                break
            rules.stats.records_read += max(row.record_count, 0)
            if row.attributes & CONTROL:
                self.markers[slot] = rules.transactions.has_outlived(Batch(data, row.position))
                continue
            is_transactional = row.attributes & TRANSACTIONAL
            if is_transactional and rules.transactions.is_aborted(row.producer_id, row.last_offset):
                continue
            if row.record_count == 0:
                continue
            payload, spans = _spans(data, row)
            self.spans[slot] = payload, spans, len(offsets)
            base_offset, horizon_ms = row.base_offset, row.horizon_ms
            offsets += [base_offset + delta for delta in spans.offset_deltas]
            has_key += [key is not None for key in spans.keys]
            keys += [key for key in spans.keys if key is not None]
            if horizon_ms is not None and rules.now_ms >= horizon_ms:
                may_go += spans.are_tombstones
            else:
                may_go += [False] * row.record_count
        self.stays = rules.judge(
            keys, np.array(has_key, bool), np.array(offsets, np.int64), np.array(may_go, bool)
        )

    def write(self) -> Kept:
        """Return the batches that stay; unchanged ones as slices of the chunk."""
        view = memoryview(self.data)
        pieces: list[bytes | memoryview] = []
        extents: list[tuple[int, int, int]] = []
        is_unchanged = True
        run_start = run_end = 0
        written = 0
        for slot, row in enumerate(self.rows):
            end = row.position + row.size
            batch = None if slot >= self.untouched else self._rewritten(slot, row)
            if batch is None:  # stays as it is
                run_end = end
                extents.append((row.size, row.last_offset, row.max_timestamp_ms))
                written += row.record_count if slot < self.untouched else 0
                continue
            is_unchanged = False
            if run_end > run_start:
                pieces.append(view[run_start:run_end])
            run_start = run_end = end
            if not batch:
                continue
            pieces.append(batch)
            header = Batch(batch)
            extents.append((len(batch), header.last_offset, header.max_timestamp_ms))
            written += header.record_count
        if run_end > run_start:
            pieces.append(view[run_start:run_end])
        self.rules.stats.records_written += written
        return Kept(pieces, extents, is_unchanged)

    def _rewritten(self, slot: int, row: _Row) -> bytes | None:
        """The batch after compaction; empty if it is removed, None if it is unchanged."""
        if slot in self.markers:
            return self._marker(row, has_outlived=self.markers[slot])
        if slot not in self.spans:  # aborted, or emptied by an earlier pass
            return self._emptied(row)
        payload, spans, first = self.spans[slot]
        stays = self.stays[first : first + row.record_count]
        kept = int(stays.sum())
        if kept == 0:
            return self._emptied(row)
        slots: list[int] = np.flatnonzero(stays).tolist()
        needs_horizon = row.horizon_ms is None and any(spans.are_tombstones[each] for each in slots)
        if kept == row.record_count and not needs_horizon:
            return None
        first_time = spans.time_deltas[slots[0]]
        if needs_horizon or row.attributes & LOG_APPEND_TIME or (first_time and row.horizon_ms is None):
            return self._encoded(row, slots, needs_horizon)
        bounds, times = spans.bounds, spans.time_deltas
        records = [payload[bounds[each] : bounds[each + 1]] for each in slots]
        largest_ms = row.base_timestamp_ms + max(times[each] for each in slots)
        return encode_kept_records(Batch(self.data, row.position), records, largest_ms)

    def _marker(self, row: _Row, *, has_outlived: bool) -> bytes | None:
        horizon_ms = row.horizon_ms
        is_due = has_outlived and horizon_ms is not None and horizon_ms <= self.rules.now_ms
        if row.record_count == 0 or is_due or self.rules.is_final:
            return self._emptied(row)
        if has_outlived and horizon_ms is None:
            return self._encoded(row, list(range(row.record_count)), True)
        return None

    def _emptied(self, row: _Row) -> bytes | None:
        if not self.rules.keeps_empty(row):
            return b""
        return encode_empty_batch(Batch(self.data, row.position)) if row.record_count else None

    def _encoded(self, row: _Row, slots: list[int], needs_horizon: bool) -> bytes:
        """The batch re-encoded from those of its records."""
        rules = self.rules
        batch = Batch(self.data, row.position)
        records = list(batch.records())
        horizon_ms = rules.now_ms + rules.delete_retention_ms if needs_horizon else row.horizon_ms
        try:
            return encode_batch(
                [records[each] for each in slots],
                base_offset=batch.base_offset,
                leader_epoch=batch.leader_epoch,
                codec=batch.codec,
                log_append_time_ms=row.max_timestamp_ms if row.attributes & LOG_APPEND_TIME else None,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                is_transactional=batch.is_transactional,
                is_control=batch.is_control,
                delete_horizon_ms=horizon_ms,
                last_offset=batch.last_offset,
            )
        except ValueError as error:  # no leader accepts such a batch
            raise InvalidRecord(f"batch at offset {batch.base_offset}: {error}") from error


def encode_kept_records(batch: Batch, kept: list[bytes], max_timestamp_ms: int) -> bytes:
    """Encode `batch` with only the `kept` records, given as their bytes in its payload.

    The header keeps everything but count, largest timestamp and checksum, so the records' deltas stay valid.
    Raises `UnsupportedCompression` if the codec's library is missing.
    """
    flags = batch.attributes & (_KEPT_FLAGS | DELETE_HORIZON)
    return _rewritten(batch, kept, batch.codec, flags, batch.base_timestamp_ms, max_timestamp_ms)


def encode_empty_batch(batch: Batch) -> bytes:
    """Encode `batch` without its records, to keep its producer's state.

    Offsets, epoch, sequences, flags and largest timestamp stay. There is no codec, no base timestamp and no
    delete horizon.
    """
    flags = batch.attributes & _KEPT_FLAGS
    return _rewritten(batch, [], Codec.NONE, flags, NO_TIMESTAMP, batch.max_timestamp_ms)


def _rewritten(
    batch: Batch, kept: list[bytes], codec: Codec, flags: int, base_timestamp_ms: int, max_timestamp_ms: int
) -> bytes:
    return assemble_batch(
        kept,
        codec=codec,
        level=None,
        flags=flags,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        count=len(kept),
    )
