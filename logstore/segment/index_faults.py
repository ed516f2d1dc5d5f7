"""Find the entries of an index that contradict the batches of its segment. Pure.

Batches come in columns, a piece of the segment at a time. An index may have fewer entries than `indexes.py`
would make, and Kafka's followers add one entry for several batches that they appended at once, with the last
offset of the last one. So each entry is judged alone: does it lead a search to the right place?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from logstore.lazily import np
from logstore.segment.indexes import rising

if TYPE_CHECKING:
    import numpy.typing as npt

Int64s: TypeAlias = "npt.NDArray[np.int64]"
Faults: TypeAlias = "Mapping[str, npt.NDArray[np.bool_]]"
"""What is wrong → a mask of the entries with that fault."""


class Columns(NamedTuple):
    """Batches in log order, one row a batch: first byte, first and last offset, largest time."""

    positions: Int64s
    bases: Int64s
    lasts: Int64s
    times: Int64s


class OffsetFaults:
    """Judges (offset, position) rows. Offsets are absolute."""

    def __init__(self, table: Int64s) -> None:
        self._table = table
        self._is_at_batch = np.zeros(len(table), np.bool_)
        self._is_before_batch = np.zeros(len(table), np.bool_)
        self._is_last = np.zeros(len(table), np.bool_)

    def add(self, batches: Columns) -> None:
        """Take the next batches."""
        if not len(batches.bases):
            return
        offsets, positions = self._table.T
        slots, is_there = _found(batches.positions, positions)
        self._is_at_batch |= is_there
        self._is_before_batch |= is_there & (batches.bases[slots] > offsets)
        self._is_last |= _found(batches.lasts, offsets)[1]

    def result(self) -> Faults:
        """Return the faults, after the last batch."""
        return {
            "does not ascend": np.asarray((np.diff(self._table, axis=0, prepend=-1) <= 0).any(axis=1)),
            "points to a byte at which no batch starts": ~self._is_at_batch,
            "points to a batch with a later base offset": self._is_before_batch,
            "has an offset that is not the last one of a batch": ~self._is_last,
        }


class TimeFaults:
    """Judges (time, offset) rows. Offsets are absolute."""

    def __init__(self, table: Int64s) -> None:
        self._table = table
        self._is_latest = np.zeros(len(table), np.bool_)
        self._end_offset = -1
        self.latest_ms = -1
        """The largest time of the batches so far; -1 if none has one."""

    def add(self, batches: Columns) -> None:
        """Take the next batches."""
        if not len(batches.lasts):
            return
        times, offsets = self._table.T
        latest = np.maximum.accumulate(np.maximum(batches.times, self.latest_ms))
        is_there = (offsets > self._end_offset) & (offsets <= batches.lasts[-1])
        slots = np.where(is_there, np.searchsorted(batches.lasts, offsets), 0)
        self._is_latest |= is_there & (latest[slots] == times) & (batches.times[slots] == times)
        self.latest_ms, self._end_offset = int(latest[-1]), int(batches.lasts[-1])

    def result(self) -> Faults:
        """Return the faults, after the last batch."""
        times, offsets = self._table.T
        is_past = offsets > self._end_offset
        return {
            "does not ascend": ~rising(times, -1) | (np.diff(offsets, prepend=-1) < 0),
            "is past the segment's last offset": is_past,
            "is not the latest time up to its offset": ~self._is_latest & ~is_past,
        }


def first_fault(table: Int64s, faults: Faults) -> str | None:
    """Return a text about the first entry with a fault; None if there is none."""
    found = [(int(mask.argmax()), text) for text, mask in faults.items() if mask.any()]
    if not found:
        return None
    slot, text = min(found)
    return f"entry ({int(table[slot][0])}, {int(table[slot][1])}) {text}"


def _found(column: Int64s, values: Int64s) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return for each value its row in the rising column, and whether it is there; row 0 if not."""
    if not len(column):
        return np.zeros(len(values), np.intp), np.zeros(len(values), np.bool_)
    slots = np.minimum(np.searchsorted(column, values), len(column) - 1)
    is_there = column[slots] == values
    return np.where(is_there, slots, 0), is_there
