"""Which batches get index entries: one rule for live appends, recovery and rebuilding (log-format 3.4).

A batch gets an entry once more than `index.interval.bytes` lie between the last entry's batch and it;
the first batch of a segment never does. The offset entry is (the batch's last offset, its position);
the time entry is the segment's largest time so far and the last offset of the earliest batch that has
it, and is left out while that time has not risen.

Here the rule works on columns, for the thousands of batches that recovery and rebuilding see at once;
`Segment.append` applies the same rule to the few it is given.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class IndexState(NamedTuple):
    """Where the rule stands: the last entry's position, and the largest time with its batch's offset."""

    last_position: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int


class DueEntries(NamedTuple):
    """The entries that some batches give, as columns of equal length, and where the rule stands then."""

    offsets: Int64s
    positions: Int64s
    timestamps: Int64s
    timestamp_offsets: Int64s
    state: IndexState


def due_entries(
    state: IndexState, interval_bytes: int, positions: Int64s, last_offsets: Int64s, times: Int64s
) -> DueEntries:
    """Apply the rule to the next batches (at least one), given as columns in log order."""
    slots, last_position = _due_slots(state.last_position, interval_bytes, positions)
    running = np.maximum.accumulate(np.maximum(times, state.max_timestamp_ms))
    # For each batch, the earliest one that had the largest time so far; -1: it was seen before.
    rises = _steps(running, state.max_timestamp_ms) > 0
    earliest = np.maximum.accumulate(np.where(rises, np.arange(len(running)), -1))
    holders = np.where(earliest < 0, state.offset_of_max_timestamp, last_offsets[earliest])
    return DueEntries(
        last_offsets[slots],
        positions[slots],
        running[slots],
        holders[slots],
        IndexState(last_position, int(running[-1]), int(holders[-1])),
    )


def _steps(column: Int64s, before: int) -> Int64s:
    """How far each value lies above the one before it."""
    # np.diff(column, prepend=before) takes 23 µs for three values, this one 1.
    steps = column.copy()
    steps[0] -= before
    steps[1:] -= column[:-1]
    return steps


def _due_slots(last: int, interval_bytes: int, positions: Int64s) -> tuple[Int64s, int]:
    if (_steps(positions, last) > interval_bytes).all():
        return np.arange(len(positions)), int(positions[-1])
    rows = positions.tolist()
    slots: list[int] = []
    slot = bisect_right(rows, last + interval_bytes)
    while slot < len(rows):
        slots.append(slot)
        last = rows[slot]
        slot = bisect_right(rows, last + interval_bytes, slot + 1)
    return np.array(slots, np.int64), last
