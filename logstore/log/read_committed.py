"""What readers of committed data see of a log: nothing undecided, nothing aborted.

    offset     0    1    2    3     4    5     6    7
    producer   A    B    –    A✗    B    B✓    A    –          ✗ ABORT, ✓ COMMIT
               ░    ▓    ▓          ▓          │
               aborted   shown                 └ last stable offset: A is open again

Below the last stable offset every transaction is decided. The aborted ones stand in the transaction
indexes, in the segment of their marker; a reader drops a producer's transactional batches from the
transaction's first offset up to that marker. Pure; sources: log-format 3.3, 5.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from logstore.format.batch import Batch
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex


def aborted_between(
    indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions that overlap [start_offset, end_offset), in order of their markers.

    `indexes` are those of the segment that holds `start_offset` and of the ones after it: a marker may
    lie far behind its transaction. Not more of them are read than it takes.
    """
    found: list[AbortedTransaction] = []
    for index in indexes:
        collected = index.collect(start_offset, end_offset)
        found.extend(collected.transactions)
        if collected.is_complete:
            break
    return tuple(found)


def without_aborted(batches: Iterable[Batch], aborted: Iterable[AbortedTransaction]) -> Iterator[Batch]:
    """The batches but for the data of `aborted` transactions; control batches stay.

    The rule that a consumer follows with producer ids, first offsets and the markers it meets; with the
    markers' offsets at hand no marker has to be read, so compaction may have taken it.
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
