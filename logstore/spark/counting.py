"""Count the offsets of a range that compaction or aborted transactions removed, which is no loss.

    offsets    10   11   12   13   14   15   16   17   18   19
    batches   ├ a    –    c ┤         ├ x    y ┤├ ✗ ┤├ d    e ┤   x, y: aborted, by marker ✗
    rows        1         1                            1    1
    compacted        1         1    1                                 3 of them
    aborted                             1    1                        2

A batch header holds its range of offsets. Those without a row were compacted, and so were the offsets between
batches. Transaction markers are neither rows nor missing. Numpy on headers; no Python runs per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logstore.format.batch import CONTROL, TRANSACTIONAL
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.logs import Cause, Missing, OffsetRange


class Count:
    """Counts the missing offsets of a range, from its batches in offset order and their rows."""

    def __init__(self, wanted: OffsetRange) -> None:
        self._wanted = wanted
        self._next = wanted.start_offset
        self._found = {cause: _Scattered() for cause in (Cause.COMPACTED, Cause.ABORTED)}

    def skip_to(self, offset: int) -> None:
        """Do not count offsets before `offset`: the caller accounts for them."""
        self._next = max(self._next, offset)

    def add(
        self, headers: npt.NDArray[np.void], rows: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Add the next batches, which have `rows` rows outside `aborted` transactions."""
        if not len(headers):
            return
        end = self._wanted.end_offset
        bases = headers["base_offset"].astype(np.int64)
        deltas = headers["last_offset_delta"].astype(np.int64)
        firsts = np.clip(bases, self._next, end)
        nexts = np.clip(bases + deltas + 1, self._next, end)
        spans = nexts - firsts
        is_marker = headers["attributes"] & CONTROL != 0
        is_aborted = in_aborted(headers, bases, aborted)
        is_thinned = (headers["record_count"] != deltas + 1) & ~is_marker & ~is_aborted & (spans > 0)
        before = np.concatenate(([self._next], nexts[:-1]))
        gaps = firsts - before
        thinned = int(spans.sum() - spans[is_marker | is_aborted].sum()) - rows
        self._found[Cause.ABORTED].add(firsts[is_aborted], nexts[is_aborted], int(spans[is_aborted].sum()))
        compacted = self._found[Cause.COMPACTED]
        compacted.add(before[gaps > 0], firsts[gaps > 0], int(gaps.sum()))
        compacted.add(firsts[is_thinned], nexts[is_thinned], thinned)
        self._next = int(nexts[-1])

    def missing(self) -> list[Missing]:
        """Return one item for each cause that removed offsets."""
        return [
            self._wanted.lost(found.first, found.end, cause)._replace(number=found.number)
            for cause, found in self._found.items()
            if found.number
        ]


class _Scattered:
    """Scattered offsets: the bounds around all of them, and their number."""

    def __init__(self) -> None:
        self.first, self.end, self.number = -1, -1, 0

    def add(self, firsts: Any, nexts: Any, number: int) -> None:
        if number > 0 and len(firsts):
            first = int(firsts[0])
            self.first = first if self.first < 0 else min(self.first, first)
            self.end = max(self.end, int(nexts[-1]))
            self.number += number


def in_aborted(
    headers: npt.NDArray[np.void], bases: npt.NDArray[np.int64], aborted: Iterable[AbortedTransaction]
) -> npt.NDArray[np.bool_]:
    """Tell for each batch whether it belongs to one of these transactions; `bases` are its offsets."""
    found = np.zeros(len(headers), np.bool_)
    is_data = headers["attributes"] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
    lowest, highest = int(bases[0]), int(bases[-1])
    for each in aborted:
        if each.first_offset > highest or each.last_offset <= lowest:
            continue
        is_its = headers["producer_id"] == each.producer_id
        found |= is_data & is_its & (bases >= each.first_offset) & (bases < each.last_offset)
    return found
