"""Keep the records at given offsets, by the rules of compaction: for a compaction decided elsewhere.

The cleaner decides by a map of keys (`compaction.py`). Here the offsets that stay are given. Batches keep
their offsets, leader epochs, codecs and times, and lose their producers: markers and aborted records are
gone, and a transactional batch without its marker would be a transaction that never ends. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from logstore.compact.compaction import Compaction, Transactions
from logstore.compact.offset_map import SLOT_BYTES, OffsetMap
from logstore.format.batch import CONTROL, CRC_START, NO_PRODUCER_ID, TRANSACTIONAL, Batch, set_producer, walk
from logstore.format.record import NO_SEQUENCE
from logstore.segment.scan import Scanned

_NO_EPOCH: Final = -1
_FLAGS: Final = TRANSACTIONAL | CONTROL


class Survivors(Compaction):
    """Filters the chunks of a log. Tombstones that stay get a delete horizon, as in a first cleaning."""

    def __init__(self, *, end_offset: int, now_ms: int, delete_retention_ms: int) -> None:
        """`end_offset` is the end of the log: the batch there stays, if only to hold the place."""
        offsets = OffsetMap(8 * SLOT_BYTES)
        offsets.latest_offset = end_offset - 1
        super().__init__(offsets, Transactions(()), {}, now_ms, delete_retention_ms, is_final=True)
        self._chosen = np.zeros(0, np.int64)

    def keep(self, data: bytes, found: Scanned, chosen: npt.NDArray[np.int64]) -> bytearray:
        """Return the rest of `found`, batches end to end in `data`: the records at the offsets `chosen`.

        Raises `InvalidRecord` for malformed records, and `UnsupportedCompression`.
        """
        self._chosen = chosen
        kept = bytearray().join(self.filter(data, found).pieces)
        position = 0
        for batch in walk(kept):
            if batch.producer_id != NO_PRODUCER_ID or batch.attributes & _FLAGS:
                _drop_producer(kept, batch, position)
            position += batch.size
        return kept

    def judge(
        self,
        keys: list[bytes],
        has_key: npt.NDArray[np.bool_],
        offsets: npt.NDArray[np.int64],
        may_go: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        stays: npt.NDArray[np.bool_] = np.isin(offsets, self._chosen, assume_unique=True)
        return stays


def _drop_producer(data: bytearray, batch: Batch, position: int) -> None:
    struct.pack_into(">h", data, position + CRC_START, batch.attributes & ~_FLAGS)
    set_producer(
        data,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=_NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        position=position,
    )
