"""Committed data from a directory that somebody else owns: nothing undecided, nothing aborted.

The files alone tell where the first undecided transaction begins, once everything behind it has been
looked at. So two readers go over the partition: one runs ahead and notes what the markers decide, the
other follows, up to the first transaction that has no marker yet. The owner's high watermark is not
asked for: a marker that the other replicas do not hold yet counts.
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
    """A `LogReader` of committed data; each call gives what was decided since the last."""

    def __init__(
        self, path: str | os.PathLike[str], *, start_offset: int | None = None, disk: Disk | None = None
    ) -> None:
        super().__init__(path, start_offset=start_offset, disk=disk)
        self._ahead = LogReader(path, start_offset=start_offset, disk=disk)
        self._producers = ProducerState()
        self._aborted: list[AbortedTransaction] = []

    def batches(self) -> Iterator[Batch]:
        """As `LogReader.batches`, up to the first undecided transaction, without the data of aborted ones.

        Also raises `InvalidRecord` for a marker that cannot be read.
        """
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
        self.log_end_offset, self.tail = self._ahead.log_end_offset, self._ahead.tail

    def seek(self, offset: int) -> None:
        """Go on at `offset`; -1 is the log start. What was known of transactions is found anew."""
        super().seek(offset)
        self._ahead.seek(offset)
        self._producers = ProducerState()
        self._aborted = []
