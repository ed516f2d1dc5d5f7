"""One record by its offset: reads one batch, and keeps the few that were decoded last.

A batch that is asked for once is decoded up to the record; one that is asked for again is decoded whole and
kept, until a truncation or a compaction changes the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from logstore.errors import LogClosed, OffsetOutOfRange
from logstore.format.batch import Batch, walk
from logstore.format.record import Record
from logstore.log.partition_log import PartitionLog
from logstore.log.read import FetchIsolation, end_offset_for, read_bytes
from logstore.log.read_committed import without_aborted

_MOST_BATCHES: Final = 8
_MOST_BYTES: Final = 1 << 20
"""A larger batch is not kept."""


class _Kept(NamedTuple):
    base_offset: int
    next_offset: int
    records: Sequence[Record]


class Lookup:
    """Gets records of one log. Any thread may call it: what is kept is replaced, never changed."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._memory: tuple[object, tuple[_Kept, ...]] = None, ()
        """The log's state, and what was decoded in it."""
        self._last_base = -1

    def get(self, offset: int, isolation: FetchIsolation) -> Record | None:
        """Return the record with this offset; None if the log holds none. Raises as `Log.get`."""
        log = self._log
        end_offset = end_offset_for(log, isolation)
        if not log.log_start_offset <= offset < end_offset:
            raise OffsetOutOfRange(offset, log.log_start_offset, end_offset)
        if log.is_closed:
            raise LogClosed(f"{log.directory} was closed; open it again")
        state = log.cuts, log.replacements
        known, kept = self._memory
        if known != state:
            kept = ()
        if isolation is not FetchIsolation.TXN_COMMITTED:
            for each in kept:
                if each.base_offset <= offset < each.next_offset:
                    return _find(each.records, each.base_offset, offset)
        fetched = read_bytes(log, offset, 1, isolation=isolation)
        batches: Iterator[Batch] = walk(fetched.records)
        if fetched.aborted:
            batches = without_aborted(batches, fetched.aborted)
        batch = next(batches, None)
        if batch is None or batch.is_control or not batch.base_offset <= offset < batch.next_offset:
            return None
        batch.check_crc()
        is_asked_again, self._last_base = batch.base_offset == self._last_base, batch.base_offset
        if not is_asked_again or batch.size > _MOST_BYTES or fetched.aborted:
            found = next((record for record in batch.records() if record.offset >= offset), None)
            return found if found is not None and found.offset == offset else None
        fresh = _Kept(batch.base_offset, batch.next_offset, tuple(batch.records()))
        self._memory = state, (fresh, *kept[: _MOST_BATCHES - 1])
        return _find(fresh.records, fresh.base_offset, offset)


def _find(records: Sequence[Record], base_offset: int, offset: int) -> Record | None:
    at = offset - base_offset
    if at < len(records) and records[at].offset == offset:
        return records[at]
    return next((record for record in records if record.offset == offset), None)
