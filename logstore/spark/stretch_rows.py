"""The rows of whole batches, wherever these come from. Batches with unreadable records are missing rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logstore.errors import CorruptBatch, InvalidRecord
from logstore.log.stretches import Stretch
from logstore.segment.scan import use_compiled
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.counting import Count
from logstore.spark.header_rows import header_rows
from logstore.spark.logs import Cause, Missing, OffsetRange


def stretch_rows(
    stretch: Stretch,
    wanted: OffsetRange,
    columns: Sequence[str],
    aborted: Sequence[AbortedTransaction],
    missing: list[Missing],
    count: Count,
    *,
    by_headers: bool = False,
) -> Iterator[Any]:
    """Yield the wanted rows as `pyarrow.RecordBatch`es, then count the offsets that have none.

    Batches whose records cannot be read are added to `missing`. `by_headers` takes the rows from the headers
    where these suffice (`header_rows.py`).
    """
    before, rows = len(missing), 0
    known = header_rows(stretch.headers, wanted, columns, aborted) if by_headers else None
    found = _decoded(stretch, wanted, columns, aborted, missing) if known is None else iter([known])
    for batch in found:
        if batch.num_rows:
            rows += batch.num_rows
            yield batch
    unreadable = sum(each.offsets for each in missing[before:])
    count.add(stretch.headers, rows + unreadable, aborted)


def first_as_young(stretch: Stretch, time_ms: int, start: int, end: int) -> int | None:
    """Return the first offset in [start, end) of a record at or after a time; None if there is none.

    As for Kafka's brokers, the marker that ends a transaction is a record with a time, too. Of a batch with
    unreadable records, which has such a record, it is the first offset: a read from there reports them.
    """
    from logstore.columnar.columnar import decode

    for slot in np.flatnonzero(stretch.headers["max_timestamp"] >= time_ms).tolist():
        batch = stretch.batch(slot)
        first = max(batch.base_offset, start)
        if first >= min(batch.next_offset, end):
            continue
        if batch.is_control:
            return first
        columns = ("offset", "timestamp")
        try:
            for rows in decode(batch.buffer, columns=columns, start_offset=start, end_offset=end):
                times = rows.column("timestamp").cast("int64").fill_null(-1).to_numpy()
                young = np.flatnonzero(times >= time_ms)
                if len(young):
                    return int(rows.column("offset")[int(young[0])].as_py())
        except (CorruptBatch, InvalidRecord):
            return first
    return None


def _decoded(
    stretch: Stretch,
    wanted: OffsetRange,
    columns: Sequence[str],
    aborted: Sequence[AbortedTransaction],
    missing: list[Missing],
) -> Iterator[Any]:
    use_compiled()  # for the next stretch: numba is loaded in any case
    from logstore.columnar.columnar import decode

    def rows_of(data: Any) -> Iterator[Any]:
        start, end = wanted.start_offset, wanted.end_offset
        return decode(data, columns=columns, start_offset=start, end_offset=end, aborted=aborted)

    given = 0
    try:
        for rows in rows_of(stretch):
            yield rows
            given += rows.num_rows
        return
    except (CorruptBatch, InvalidRecord):
        pass
    # Batch by batch, without the rows that were yielded before the error.
    for slot in range(len(stretch.positions)):
        batch = stretch.batch(slot)
        try:
            for rows in rows_of(batch.buffer):
                passed = min(given, rows.num_rows)
                given -= passed
                if passed < rows.num_rows:
                    yield rows.slice(passed)
        except (CorruptBatch, InvalidRecord) as error:
            first = max(batch.base_offset, wanted.start_offset)
            until = min(batch.next_offset, wanted.end_offset)
            if first < until:
                missing.append(wanted.lost(first, until, Cause.DAMAGED, str(error)))
