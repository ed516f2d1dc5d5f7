"""Read committed data from a directory with another owner: nothing undecided, nothing aborted.

Only a read to the end tells where the first undecided transaction begins. So two readers read the partition:
one runs ahead and collects the markers, the other follows, up to the first transaction without a marker. The
owner's high watermark is unknown: a marker counts before the other replicas have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from logstore.disk.files import Disk
from logstore.format.batch import Batch
from logstore.log.producer_state import ProducerState
from logstore.log.read_committed import without_aborted
from logstore.log.reader import LogReader
from logstore.segment.transaction_index import AbortedTransaction


class CommittedReader(LogReader):
    """A `LogReader` of committed data; each call returns the batches decided since the last."""

    def __init__(
        self, path: str | os.PathLike[str], *, start_offset: int | None = None, disk: Disk | None = None
    ) -> None:
        super().__init__(path, start_offset=start_offset, disk=disk)
        self._ahead = LogReader(path, start_offset=start_offset, disk=disk)
        self._producers = ProducerState()
        self._aborted: list[AbortedTransaction] = []

    def batches(self) -> Iterator[Batch]:
        """Yield batches up to the first undecided transaction, without the data of aborted ones.

        Raises as `LogReader.batches`, and `InvalidRecord` for an unreadable marker.
        """
        try:
            for batch in self._ahead.batches():
                completed = self._producers.replay(batch)
                if completed is not None and (entry := completed.index_entry()) is not None:
                    self._aborted.append(entry)
            undecided = self._producers.first_undecided_offset
            stable = self._ahead.next_offset if undecided is None else undecided
            for batch in without_aborted(super().batches(), self._aborted):
                if batch.base_offset >= stable:
                    break
                yield batch
            self._aborted = [entry for entry in self._aborted if entry.last_offset >= self.next_offset]
        finally:  # the end is known also if the offset lies past it
            self.log_end_offset, self.tail = self._ahead.log_end_offset, self._ahead.tail

    def seek(self, offset: int) -> None:
        """Continue at `offset`; -1 is the log start. Transactions are collected again."""
        super().seek(offset)
        self._ahead.seek(offset)
        self._producers = ProducerState()
        self._aborted = []
