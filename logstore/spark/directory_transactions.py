"""Which transactions of a partition's directory are decided, and which were aborted, without reading the log.

    segments     0.log        5000.log        9000.log (active)
    aborts       0.txnindex   5000.txnindex │ batches behind the newest snapshot
    open since                 9000.snapshot ┘

An index that was not synced may lack its last aborts after a power cut: so those behind the newest snapshot
that the recovery point covers are found from the batches themselves, and the snapshot, which has a checksum,
says what was open before them. Without a snapshot all of the log is gone through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from logstore.checkpoint.offset_checkpoint import RECOVERY_POINT_CHECKPOINT
from logstore.disk.files import Disk
from logstore.errors import DamagedLog, OffsetOutOfRange
from logstore.format.batch import CONTROL, TRANSACTIONAL
from logstore.log.producer_state import ProducerState
from logstore.log.read_committed import aborted_between
from logstore.log.reader import checkpointed_offset
from logstore.log.stretches import Stretch, StretchReader
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.segment_files import SegmentFiles


@dataclass(slots=True)
class _Replayed:
    """The producers as of `end_offset`, and the aborts that were met on the way there."""

    producers: ProducerState
    reader: StretchReader
    end_offset: int
    aborted: list[AbortedTransaction] = field(default_factory=list)


class DirectoryTransactions:
    """Of one directory; asked again, only what came since is read. Raises what `StretchReader` does.

    What is damaged is passed over here: it is for who reads the records to say so.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._files = SegmentFiles(disk, directory)
        self._replayed: _Replayed | None = None

    def last_stable_offset(self, end_offset: int) -> int:
        """The first offset below `end_offset` of a transaction that has no marker below it; else that."""
        undecided = self._replay(end_offset).producers.first_undecided_offset
        return end_offset if undecided is None else min(undecided, end_offset)

    def aborted(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Those that overlap [start_offset, end_offset), of which all is decided."""
        replayed = self._replay(None)
        bases = [base for base, _ in self._files.segments()]
        first = int(np.searchsorted(bases, start_offset, "right")) - 1
        indexes = self._files.transaction_indexes(bases[max(first, 0) :])
        indexed = aborted_between(indexes, start_offset, end_offset)
        later = [
            each
            for each in replayed.aborted
            if each.last_offset >= start_offset and each.first_offset < end_offset
        ]
        return sorted({*indexed, *later})

    def _replay(self, end_offset: int | None) -> _Replayed:
        """Go through the batches below `end_offset`, or through all there are."""
        replayed = self._replayed
        if replayed is None or (end_offset is not None and replayed.end_offset > end_offset):
            replayed = self._replayed = self._begin(end_offset)
        reader = replayed.reader
        while end_offset is None or replayed.end_offset < end_offset:
            try:
                for stretch in reader.stretches():
                    _take_in(replayed, stretch, stretch.next_offset if end_offset is None else end_offset)
                    if end_offset is not None and stretch.next_offset >= end_offset:
                        break
                break
            except OffsetOutOfRange as error:
                if error.offset >= error.log_start_offset:
                    break  # cut: what was behind is no more
                reader.seek(error.log_start_offset)
            except DamagedLog:
                if reader.skip_damage() is None:
                    raise
        return replayed

    def _begin(self, end_offset: int | None) -> _Replayed:
        synced = checkpointed_offset(self._disk, self._files.directory, RECOVERY_POINT_CHECKPOINT)
        limits = [limit for limit in (synced or None, end_offset) if limit is not None]
        producers = self._files.producers(at_most=min(limits, default=2**63 - 1))
        start = None if producers is None else producers.end_offset
        reader = StretchReader(self._files.directory, start_offset=start, disk=self._disk)
        return _Replayed(producers or ProducerState(), reader, start or 0)


def _take_in(replayed: _Replayed, stretch: Stretch, end_offset: int) -> None:
    """Replay the stretch's batches below `end_offset` that were not yet."""
    headers = stretch.headers
    bases = headers["base_offset"].astype(np.int64)
    wanted = headers["attributes"] & (TRANSACTIONAL | CONTROL) != 0
    wanted &= (bases >= replayed.end_offset) & (bases < end_offset)
    for slot in np.flatnonzero(wanted).tolist():
        completed = replayed.producers.replay(stretch.batch(slot))
        if completed is not None and (entry := completed.index_entry()) is not None:
            replayed.aborted.append(entry)
    replayed.end_offset = max(replayed.end_offset, min(stretch.next_offset, end_offset))
