"""Rows that are known from batch headers alone: offsets, without decompressing or decoding records.

    header    base_offset 100, last_offset_delta 3, record_count 4     rows 100, 101, 102, 103
              base_offset 104, last_offset_delta 9, record_count 4     compacted: the records are read

The checksum of a batch covers its count. A batch of `last_offset_delta + 1` records has one at each of its
offsets, because each append checks that (decision 114). numba is not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logstore.format.batch import CONTROL, LOG_APPEND_TIME
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.counting import in_aborted
from logstore.spark.logs import OffsetRange

HEADER_COLUMNS: Final = frozenset(("offset", "timestamp_type", "leader_epoch"))
_MOST_ROWS: Final = 1 << 20
"""More rows of a stretch are believed only when their records were read."""


def header_rows(
    headers: npt.NDArray[np.void],
    wanted: OffsetRange,
    columns: Sequence[str],
    aborted: Sequence[AbortedTransaction],
) -> Any:
    """Return the rows of these batches as a `pyarrow.RecordBatch`, as `columnar.decode` does.

    None if their records must be read: for other columns, and if a batch has gaps. The batches must be in
    order.
    """
    if not HEADER_COLUMNS.issuperset(columns):
        return None
    import pyarrow as pa

    bases = headers["base_offset"].astype(np.int64)
    is_data = headers["attributes"] & CONTROL == 0
    headers = headers[is_data & ~in_aborted(headers, bases, aborted) & (headers["record_count"] != 0)]
    bases = headers["base_offset"].astype(np.int64)
    counts = headers["last_offset_delta"].astype(np.int64) + 1
    if (headers["record_count"] != counts).any() or counts.sum() > _MOST_ROWS:
        return None
    before = np.cumsum(counts) - counts
    offsets = np.arange(int(counts.sum())) + np.repeat(bases - before, counts)
    first, end = np.searchsorted(offsets, (wanted.start_offset, wanted.end_offset)).tolist()
    made = {
        "offset": offsets,
        "timestamp_type": np.repeat((headers["attributes"] & LOG_APPEND_TIME != 0).astype(np.int8), counts),
        "leader_epoch": np.repeat(headers["leader_epoch"].astype(np.int32), counts),
    }
    return pa.RecordBatch.from_pydict({name: pa.array(made[name][first:end]) for name in columns})
