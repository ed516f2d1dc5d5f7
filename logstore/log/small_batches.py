"""Decode many small batches as a whole: one table of their headers, and all their records found together.

Batch by batch that costs some microseconds a batch. Whatever is unusual about a fetch (damage, compression,
aborted transactions, a bound inside of a batch) is left to `reading.py`, which reads batch by batch,
has the same results, and raises the errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.config import MAX_LONG
from logstore.errors import CorruptBatch
from logstore.format.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    Batch,
)
from logstore.format.record import MAX_INT, Record
from logstore.format.record_columns import Columns, Longs, find_columns_of_many, records_of
from logstore.format.record_parser import FAR, NUMPY_FROM
from logstore.lazily import np
from logstore.log.read import Piece
from logstore.segment.scan import Scanned, check_history, order_faults, scan_buffer

if TYPE_CHECKING:
    import numpy.typing as npt

FEWEST: Final = 8
"""A table of headers pays for itself from so many batches on."""
_SUMMED: Final = ("base_offset", "base_timestamp")
"""The fields to which deltas are added."""


class SmallBatches(NamedTuple):
    """The headers of many batches, with `counts` of records in each, and the fields of all those records."""

    headers: npt.NDArray[np.void]
    counts: Longs
    columns: Columns


def small_batches(piece: Piece, start_offset: int, end_offset: int) -> SmallBatches | None:
    """The batches of the piece, decoded together; None if they are not small, or unusual in any way."""
    found = _sound_and_small(piece)
    if found is None:
        return None
    headers, positions, last_offsets = found.headers, found.positions, found.last_offsets
    wanted = (headers["attributes"] & CONTROL == 0) & (headers["base_offset"] < end_offset)
    wanted &= last_offsets >= piece.fetched.start_offset
    if not wanted.all():
        headers, positions, last_offsets = headers[wanted], positions[wanted], last_offsets[wanted]
    counts = headers["record_count"].astype(np.int64)
    is_usual = (
        len(headers) > 0
        and headers["base_offset"][0] >= start_offset
        and last_offsets.max() < end_offset
        and 0 <= counts.min() <= counts.max() < NUMPY_FROM
        and not (headers["attributes"] & CODEC_MASK).any()
        and all(-FAR <= headers[name].min() <= headers[name].max() <= FAR for name in _SUMMED)
    )
    if not is_usual:
        return None
    starts, ends = positions + HEADER_BYTES, positions + headers["batch_length"] + LOG_OVERHEAD
    columns = find_columns_of_many(piece.fetched.records, starts, ends, counts)
    return None if columns is None else SmallBatches(headers, counts, columns)


def _sound_and_small(piece: Piece) -> Scanned | None:
    """The headers of the piece; None if a batch is damaged or out of order, or too few of them are small."""
    (data, *_, aborted), history = piece.fetched, piece.history
    if aborted:
        return None
    try:
        first = Batch(data)
    except CorruptBatch:
        return None
    if not 0 < first.record_count < NUMPY_FROM or first.size * FEWEST > len(data):
        return None
    if first.attributes & CODEC_MASK:
        return None  # before all checksums are computed for nothing
    found = scan_buffer(data, len(data))
    if history is not None and found.fault is None:
        if order_faults(found, first.base_offset, first.base_offset, -1).first() is not None:
            return None
        found = check_history(found, history, next_offset=0, durable_end=MAX_LONG, is_dense=False)
    return found if found.fault is None else None


def records_of_many(many: SmallBatches) -> Iterator[Record]:
    """Return the records of the batches, in order."""
    headers, columns = many.headers, many.columns

    def column(name: str) -> Longs:
        return np.repeat(headers[name].astype(np.int64), many.counts)

    times = column("base_timestamp") + columns.time_deltas
    by_broker = headers["attributes"] & LOG_APPEND_TIME != 0
    if by_broker.any():
        times = np.where(np.repeat(by_broker, many.counts), column("max_timestamp"), times)
    sequences = column("base_sequence")
    if (sequences >= 0).any():
        sequences = np.where(sequences >= 0, sequences + columns.deltas & MAX_INT, sequences)
    offsets = column("base_offset") + columns.deltas
    return records_of(columns, offsets, times.tolist(), sequences.tolist())
