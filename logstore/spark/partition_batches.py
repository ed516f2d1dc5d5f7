"""From placed rows to finished batches of each partition, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from logstore.columnar.columnar import BATCH_RECORDS
from logstore.columnar.encoding import batches_by_slot
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.log.outgoing import Compression
from logstore.spark.errors import RowRefused
from logstore.spark.sink_rows import Placed

FLUSH_BYTES: Final = 16 << 20
"""Rows held until they are worth encoding; each partition's share of them is one item."""


class Encoded(NamedTuple):
    """The next batches of one partition, end to end, at offset 0 and without a producer."""

    partition: TopicPartition
    data: bytearray | memoryview
    records: int


class PartitionBatches:
    """Encodes the rows of one task by partition. Rows of a partition keep their order."""

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

    def add(self, placed: Placed) -> Iterator[Encoded]:
        """Add rows, and yield batches once there are enough. Raises `RowRefused` for too large a row."""
        if len(placed.slots):
            self._pending.append(placed)
            self._pending_bytes += placed.rows.nbytes
            if self._pending_bytes >= self._flush_bytes:
                yield from self.rest()

    def rest(self) -> Iterator[Encoded]:
        """Yield the batches of all rows that were added. Raises as `add`."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if not pending:
            return
        codec, level = self._compression
        largest = [self._max_batch_bytes(partition.topic) for partition in self._slots]
        for slot, batches in batches_by_slot(
            [placed.rows for placed in pending],
            np.concatenate([placed.slots for placed in pending]),
            np.array([min(self._batch_bytes, max(limit // 2, 1)) for limit in largest]),
            codec=codec,
            level=level,
            batch_records=BATCH_RECORDS,
        ):
            partition, limit, records = self._slots[slot], largest[slot], 0
            for batch in walk(batches):
                if batch.size > limit:
                    raise RowRefused(
                        f"{batch.record_count} rows for {partition} are {batch.size} bytes with "
                        f"kafka.compression.type={codec.name.lower()}; its topic accepts {limit}. Set "
                        f"kafka.compression.type to none. {self._outcome}"
                    )
                records += batch.record_count
            yield Encoded(partition, batches, records)
