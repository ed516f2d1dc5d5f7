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

from collections import defaultdict
from collections.abc import Iterable, Iterator

from logstore.format.batch import Batch
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex


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
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in aborted:
        spans[each.producer_id].append((each.first_offset, each.last_offset))
    for batch in batches:
        if batch.is_transactional and not batch.is_control and batch.producer_id in spans:
            offset = batch.base_offset
            if any(first <= offset < last for first, last in spans[batch.producer_id]):
                continue
        yield batch
