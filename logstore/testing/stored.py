"""The objects that checkers examine: batches of a log, and the visible state of replicas and consumers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from logstore.config import MAX_LONG
from logstore.format.crc import crc32c

_HEADER = Struct(">qiiBiHi")
_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43
_TIME = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_OVERHEAD = 12
_LENGTH = Struct(">8xi")
HEADER_BYTES = 61
IDENTITY_AT = 17
"""A batch's own content begins here. The bytes before it are its place in a log: offset, length, epoch."""


class Violation(Exception):
    """An invariant does not hold: `invariant` is its name, `message` describes the observation."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(invariant, message)
        self.invariant = invariant
        self.message = message

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


class Stored(NamedTuple):
    """A batch in a log: offsets [base, end), the leader epoch, and all its bytes."""

    base: int
    end: int
    epoch: int
    data: bytes

    @property
    def identity(self) -> bytes:
        """The bytes that its producer sent: all but offset, length and epoch."""
        return self.data[IDENTITY_AT:]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its records, in epoch milliseconds."""
        (found,) = _TIME.unpack_from(self.data, _MAX_TIMESTAMP_AT)
        assert isinstance(found, int)
        return found

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Producer id, producer epoch and first sequence; -1 each for a batch without numbers."""
        producer_id, epoch, sequence = _PRODUCER.unpack_from(self.data, _PRODUCER_AT)
        return producer_id, epoch, sequence


def parse(data: bytes) -> list[Stored]:
    """Return the consecutive batches in `data`. Checks only that they are complete."""
    found = []
    at, size = 0, len(data)
    while at < size:
        base, length, epoch, _, _, _, delta = _HEADER.unpack_from(data, at)
        end = at + _OVERHEAD + length
        assert end <= size, "a torn batch where whole ones are promised"
        found.append(Stored(base, base + delta + 1, epoch, data[at:end]))
        at = end
    return found


def parse_whole(data: bytes, end_offset: int = MAX_LONG) -> list[Stored]:
    """Return the batches below `end_offset`, which are whole; what follows may be torn."""
    found: list[Stored] = []
    while len(data) >= HEADER_BYTES:
        size = _LENGTH.unpack_from(data)[0] + _OVERHEAD
        if not HEADER_BYTES <= size <= len(data):
            break
        (batch,) = parse(data[:size])
        if batch.end > end_offset:
            break
        found.append(batch)
        data = data[size:]
    return found


def has_right_checksum(batch: Stored) -> bool:
    """Return whether a client would accept the batch."""
    return crc32c(memoryview(batch.data)[21:]) == int.from_bytes(batch.data[17:21])


def base_of(batch: Stored) -> int:
    """Return the base offset: the key that batches are ordered by."""
    return batch.base


def name_of(batch: Stored | None) -> tuple[int, int] | None:
    """Return base offset and leader epoch, which name a batch on every replica; None for no batch."""
    return None if batch is None else (batch.base, batch.epoch)


def find(batches: Sequence[Stored], offset: int) -> Stored | None:
    """Return the batch that holds `offset`, among batches in offset order."""
    slot = bisect_right(batches, offset, key=base_of) - 1
    return batches[slot] if slot >= 0 and offset < batches[slot].end else None


@dataclass(slots=True, eq=False)
class ReplicaView:
    """The visible state of a replica; the observer keeps it up to date."""

    node: int
    life: int = 0
    leader_epoch: int = -1
    is_leader: bool = False
    log_start: int = 0
    high_watermark: int = 0
    log_end: int = 0
    batches: list[Stored] = field(default_factory=list)
    topic_id: str = ""
    synced_before: int = 0
    """Everything below it was synced in an earlier life, and nothing of it has been cut since."""

    def holding(self, offset: int) -> Stored | None:
        """Return the batch that holds `offset`."""
        return find(self.batches, offset)

    def __str__(self) -> str:
        role = "leads" if self.is_leader else "follows"
        return (
            f"node {self.node} ({role} at epoch {self.leader_epoch}, high watermark {self.high_watermark}, "
            f"end {self.log_end})"
        )


@dataclass(slots=True)
class ConsumerView:
    """A consumer's session: the next offset that it reads."""

    position: int = 0
