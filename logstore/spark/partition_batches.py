"""From placed rows to finished batches of each partition, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from logstore.columnar.columnar import BATCH_RECORDS
from logstore.columnar.encoding import Columns, batches_of
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.log.outgoing import Compression
from logstore.spark.errors import RowRefused
from logstore.spark.sink_rows import Placed

FLUSH_BYTES: Final = 16 << 20
"""Rows held until they are worth sorting by partition; each partition's share of them is one run."""
_FEW: Final = 1 << 15


class Encoded(NamedTuple):
    """Batches end to end, at offset 0 and without a producer, and how many records they hold."""

    data: bytearray
    records: int


Run: TypeAlias = tuple[TopicPartition, Iterator[Encoded]]
"""The next batches of one partition; take them before the next run."""


class PartitionBatches:
    """Sorts the rows of one task by partition and encodes them. Rows of a partition keep their order."""

    def __init__(
        self,
        slots: Sequence[TopicPartition],
        *,
        compression: Compression,
        batch_bytes: int,
        max_batch_bytes: Callable[[str], int],
        flush_bytes: int,
        outcome: str,
    ) -> None:
        """`slots` may grow meanwhile. `max_batch_bytes` returns a topic's limit for a batch, compressed.

        `outcome` says in an error what a refused row means for the others.
        """
        self._slots, self._compression, self._batch_bytes = slots, compression, batch_bytes
        self._max_batch_bytes, self._flush_bytes, self._outcome = max_batch_bytes, flush_bytes, outcome
        self._pending: list[Placed] = []
        self._pending_bytes = 0

    def add(self, placed: Placed) -> Iterator[Run]:
        """Add rows, and yield runs once there are enough. Raises `RowRefused` for too large a row."""
        if len(placed.slots):
            self._pending.append(placed)
            self._pending_bytes += placed.rows.nbytes
            if self._pending_bytes >= self._flush_bytes:
                yield from self.rest()

    def rest(self) -> Iterator[Run]:
        """Yield the runs of all rows that were added. Raises as `add`."""
        if not self._pending:
            return
        rows = Columns.joined([placed.rows for placed in self._pending])
        slots = np.concatenate([placed.slots for placed in self._pending])
        self._pending, self._pending_bytes = [], 0
        if len(self._slots) < _FEW:
            slots = slots.astype(np.int16)  # numpy sorts these by radix
        order = np.argsort(slots, kind="stable")  # stable: rows of a partition stay in order
        slots = slots[order]
        firsts = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(slots)], strict=True):
            partition = self._slots[int(slots[first])]
            yield partition, self._encoded(partition, rows.take(order[first:end]))

    def _encoded(self, partition: TopicPartition, rows: Columns) -> Iterator[Encoded]:
        limit = self._max_batch_bytes(partition.topic)
        codec, level = self._compression
        batch_bytes = min(self._batch_bytes, max(limit // 2, 1))
        for batches in batches_of(rows, codec, level, batch_bytes, BATCH_RECORDS):
            records = 0
            for batch in walk(batches):
                if batch.size > limit:
                    raise RowRefused(
                        f"{batch.record_count} rows for {partition} are {batch.size} bytes with "
                        f"kafka.compression.type={codec.name.lower()}; its topic accepts {limit}. Set "
                        f"kafka.compression.type to none. {self._outcome}"
                    )
                records += batch.record_count
            yield Encoded(batches, records)
