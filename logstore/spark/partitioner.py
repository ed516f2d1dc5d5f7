"""Where rows go whose `partition` is null: `logstore/broker/placement.py` for a whole column of keys.

Keys are hashed four bytes at a time, all rows side by side; a row drops out where its key ends. Rows without
a key stay together, and the next ones go to the next partition.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logstore.broker.placement import murmur2
from logstore.columnar.columnar import Blobs
from logstore.columnar.kernels import Longs

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_LONGEST = 512
"""Keys beyond this are hashed by themselves: there are few, and they would keep the others waiting."""


def murmur2_of(keys: Blobs) -> npt.NDArray[np.uint32]:
    """Kafka's hash of each key, unsigned; of a null key anything."""
    sizes = np.maximum(keys.size, 0).astype(np.int64)
    result = _SEED ^ sizes.astype(np.uint32)
    if not len(sizes):
        return result
    # Every four bytes of the column as one number, wherever they begin.
    padded = keys.data if len(keys.data) >= 4 else np.concatenate([keys.data, np.zeros(4, np.uint8)])
    fours = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))
    at_once = sizes <= _LONGEST
    for done in range(0, int(sizes[at_once].max(initial=0)) & ~3, 4):
        rows = np.flatnonzero(at_once & (sizes >= done + 4))
        k = fours[keys.at[rows] + done] * _M
        k ^= k >> np.uint32(24)
        result[rows] = result[rows] * _M ^ k * _M
    whole, left = sizes & ~3, sizes & 3
    for tail in (3, 2, 1):
        rows = np.flatnonzero(at_once & (left == tail))
        at = keys.at[rows] + whole[rows]
        last = np.zeros(len(rows), np.uint32)
        for byte in range(tail):
            last |= keys.data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        result[rows] = (result[rows] ^ last) * _M
    result ^= result >> np.uint32(13)
    result *= _M
    result ^= result >> np.uint32(15)
    for row in np.flatnonzero(~at_once).tolist():
        start = int(keys.at[row])
        result[row] = murmur2(keys.data[start : start + int(sizes[row])].tobytes())
    return result


def partitions_of(keys: Blobs, counts: Longs, turn: int) -> Longs:
    """The partition of each row among its topic's `counts`; rows without a key go to that of `turn`."""
    hashed = (murmur2_of(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64)
    chosen: Longs = np.where(keys.size >= 0, hashed, turn) % counts
    return chosen
