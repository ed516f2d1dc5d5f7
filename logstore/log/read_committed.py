"""Select the data for readers of committed data: nothing undecided, nothing aborted.

    offset     0    1    2    3     4    5     6    7
    producer   A    B    –    A✗    B    B✓    A    –          ✗ ABORT, ✓ COMMIT
               ░    ▓    ▓          ▓          │
               aborted   shown                 └ last stable offset: A is open again

Below the last stable offset every transaction is decided. The aborted ones are in the transaction index of
their marker's segment. A reader drops the producer's transactional batches from the transaction's first
offset up to the marker. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from logstore.config import MAX_LONG
from logstore.format.batch import Batch
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex

Spans: TypeAlias = dict[int, tuple[list[int], list[int]]]
"""First and last offsets of each producer's aborted transactions, in order; they never overlap."""
_NONE: Final[tuple[list[int], list[int]]] = ([], [])


def aborted_between(
    indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that overlap [start_offset, end_offset), in order of their markers.

    `indexes` are those of the segment that holds `start_offset` and of the later ones: a marker may lie far
    behind its transaction. Only as many as needed are read.
    """
    found: list[AbortedTransaction] = []
    for index in indexes:
        collected = index.collect(start_offset, end_offset)
        found.extend(collected.transactions)
        if collected.is_complete:
            break
    return tuple(found)


def without_aborted(batches: Iterable[Batch], aborted: Iterable[AbortedTransaction]) -> Iterator[Batch]:
    """Yield the batches without the data of `aborted` transactions; control batches stay.

    A consumer follows the same rule with the markers that it reads. Here the markers' offsets are known, so
    compaction may have removed the markers.
    """
    spans = spans_by_producer(aborted)
    for batch in batches:
        is_data = batch.is_transactional and not batch.is_control
        if not (is_data and is_aborted(spans, batch.producer_id, batch.base_offset)):
            yield batch


def spans_by_producer(aborted: Iterable[AbortedTransaction]) -> Spans:
    """Return the offsets of each producer's aborted transactions, for `is_aborted`."""
    found: Spans = {}
    for each in sorted(aborted):
        firsts, lasts = found.setdefault(each.producer_id, ([], []))
        firsts.append(each.first_offset)
        lasts.append(each.last_offset)
    return found


def is_aborted(spans: Spans, producer_id: int, base_offset: int) -> bool:
    """Return whether a transactional batch belongs to one of these transactions."""
    firsts, lasts = spans.get(producer_id, _NONE)
    slot = bisect_right(firsts, base_offset) - 1
    return slot >= 0 and base_offset < lasts[slot]


def up_to_markers(
    begun: Iterable[tuple[int, int]], markers: Iterable[tuple[int, int]]
) -> list[AbortedTransaction]:
    """Return aborted transactions up to their markers, or open-ended where there is none.

    Both are pairs of a producer and an offset, those of `markers` in the order of offsets. A producer's
    transactions follow one another: the first marker behind the start of one is its own.
    """
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for producer_id, offset in markers:
        ends[producer_id].append(offset)
    found = []
    for producer_id, first_offset in begun:
        behind = ends[producer_id]
        slot = bisect_right(behind, first_offset)
        last_offset = behind[slot] if slot < len(behind) else MAX_LONG
        found.append(AbortedTransaction(producer_id, first_offset, last_offset, last_offset))
    return found
