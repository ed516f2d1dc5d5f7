"""Map each key of a log's dirty part to its last offset, in a fixed number of bytes.

    slot    key's hash (16 bytes)      offset + 1 (8 bytes)
      0     ┌─────────────────────────┬───────────┐
      1     │ 9f 2c … (BLAKE2b-128)   │ 18        │   three numpy columns; 0 is an empty slot,
      2     │ 00 00 …                 │ 0         │   a collision goes on to slot + step
      …     └─────────────────────────┴───────────┘

Not a dict: a million keys take 24 MiB here and well over 100 MiB in a dict, and the cleaner's memory is
bounded. Keys are identified by their hash alone. It is a cryptographic hash of 128 bits, so two keys do not
collide by accident, nor (unlike with MD5, Kafka's choice) by an attack. The number of slots is prime, and the
second half of the hash gives the step: with nine slots in ten used, a lookup examines a few slots, while
steps of one would examine dozens. Nothing here is ever written to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

SLOT_BYTES: Final = 24
HASH_BYTES: Final = 16
NOT_THERE: Final = -1

KeyHashes: TypeAlias = npt.NDArray[np.uint64]
"""n × 2: the hash of each key."""
Offsets: TypeAlias = npt.NDArray[np.int64]

_hasher: Final = blake2b(digest_size=HASH_BYTES)


def hash_keys(keys: Sequence[bytes]) -> KeyHashes:
    """Return the hashes of `keys`, in their order."""
    new = _hasher.copy  # cheaper than a new one
    digests = []
    for key in keys:
        hasher = new()
        hasher.update(key)
        digests.append(hasher.digest())
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


class OffsetMap:
    """Key hash → offset. Offsets are put in ascending order, so the last one put is the largest."""

    def __init__(self, max_bytes: int, *, load_factor: float = 0.9) -> None:
        """Make a map of at most `max_bytes`, used up to `load_factor`. Raises `ValueError` if no key fits."""
        self._slots = _prime_at_most(max_bytes // SLOT_BYTES)
        # One slot stays empty: the search for a missing key ends there.
        self.capacity = min(int(self._slots * load_factor), self._slots - 1)
        """The number of keys that fit."""
        if self.capacity < 1:
            raise ValueError(
                f"an offset map of {max_bytes} bytes with load factor {load_factor} holds no key"
            )
        # Untouched zero pages cost no memory.
        self._high = np.zeros(self._slots, np.uint64)
        self._low = np.zeros(self._slots, np.uint64)
        self._ends = np.zeros(self._slots, np.int64)
        self._count = 0
        self.latest_offset = NOT_THERE
        """The last offset of the log that was put; set by the caller."""

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes of its columns."""
        return self._high.nbytes + self._low.nbytes + self._ends.nbytes

    @property
    def utilization(self) -> float:
        """The share of slots that hold a key."""
        return self._count / self._slots

    # --- one key ----------------------------------------------------------------------------------

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of `key`. Raises `ValueError` if the map is full."""
        if not self.put_many(hash_keys([key]), np.array([offset])):
            raise ValueError(f"the offset map is full: {self._count} keys")

    def get(self, key: bytes) -> int:
        """Return the last offset put for `key`; -1 if there is none."""
        return int(self.get_many(hash_keys([key]))[0])

    # --- many keys --------------------------------------------------------------------------------

    def get_many(self, hashes: KeyHashes) -> Offsets:
        """Return the last offset put for each; -1 for none."""
        found = np.full(len(hashes), NOT_THERE, np.int64)
        high, low = hashes[:, 0], hashes[:, 1]
        slots, steps = self._places(high, low)
        pending = np.arange(len(hashes))
        while len(pending):
            at = slots[pending]
            ends = self._ends[at]
            used = ends != 0
            same = used & (self._high[at] == high[pending]) & (self._low[at] == low[pending])
            found[pending[same]] = ends[same] - 1
            pending = pending[used & ~same]
            slots[pending] = (slots[pending] + steps[pending]) % self._slots
        return found

    def put_many(self, hashes: KeyHashes, offsets: Offsets) -> int:
        """Put the offsets, which ascend, until a new key has no room; return how many were put."""
        count = len(hashes)
        if self._count + count > self.capacity:
            count = self._fitting(hashes)
            hashes, offsets = hashes[:count], offsets[:count]
        high, low = hashes[:, 0], hashes[:, 1]
        slots, steps = self._places(high, low)
        pending = np.arange(count)
        while len(pending):
            at = slots[pending]
            empty = self._ends[at] == 0
            claimed, claimants = at[empty], pending[empty]
            # Of several claimants of a slot the last one has it, in each column alike.
            self._high[claimed], self._low[claimed] = high[claimants], low[claimants]
            self._ends[claimed] = 1
            self._count += len(np.unique(claimed))
            same = (self._high[at] == high[pending]) & (self._low[at] == low[pending])
            # Of several offsets of a key likewise: the largest.
            self._ends[at[same]] = offsets[pending[same]] + 1
            pending = pending[~same]
            slots[pending] = (slots[pending] + steps[pending]) % self._slots
        return count

    def _fitting(self, hashes: KeyHashes) -> int:
        """The number of leading hashes that can be put before there are too many keys."""
        unknown = np.flatnonzero(self.get_many(hashes) == NOT_THERE)
        _, firsts = np.unique(hashes[unknown], axis=0, return_index=True)
        room = self.capacity - self._count
        if len(firsts) <= room:
            return len(hashes)
        return int(unknown[np.sort(firsts)[room]])

    def _places(self, high: KeyHashes, low: KeyHashes) -> tuple[Offsets, Offsets]:
        """The first slot of each hash, and the step to the next one."""
        slots = (high % np.uint64(self._slots)).astype(np.int64)
        steps = (low % np.uint64(max(self._slots - 1, 1))).astype(np.int64) + 1
        return slots, steps


def _prime_at_most(limit: int) -> int:
    """The largest prime up to `limit`, so that any step reaches every slot; `limit` itself below 2."""
    number = limit
    while number > 2 and any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
