"""Transaction index: the aborted transactions of a segment, for readers of committed data.

    00000000000000368769.txnindex
    ┌─────────┬─────────────┬──────────────┬─────────────┬────────────────────┐
    │ version │ producer id │ first offset │ last offset │ last stable offset │  34 bytes an entry,
    │ i16 = 0 │ i64         │ i64          │ i64, marker │ i64, at the marker │  big-endian
    └─────────┴─────────────┴──────────────┴─────────────┴────────────────────┘

Entries are in the order of their markers, so last offsets increase. Derived from the log and never
preallocated: a crash leaves a prefix, perhaps with part of an entry, which readers ignore and recovery
rebuilds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.errors import CorruptIndex

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

ENTRY_BYTES: Final = 34
VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """Producer `producer_id` aborted what it wrote from `first_offset` to the marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """The 34 bytes of the entry."""
        return _ENTRY.pack(VERSION, *self)


class Collected(NamedTuple):
    """Aborted transactions that overlap a fetch. Unless `is_complete`, later segments may know more."""

    transactions: tuple[AbortedTransaction, ...]
    is_complete: bool


def decode_entries(data: Buffer) -> list[AbortedTransaction]:
    """The whole entries of `data`; part of one at the end is left out. `CorruptIndex` for a newer version."""
    whole = len(data) - len(data) % ENTRY_BYTES
    entries: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(memoryview(data)[:whole]):
        if version != VERSION:
            raise CorruptIndex(f"transaction index entry {len(entries)}: version {version}, not {VERSION}")
        entries.append(AbortedTransaction(*fields))
    return entries


class TransactionIndex:
    """The entries of one segment, in memory. Writing them is the segment's; this says which bytes."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int) -> TransactionIndex:
        """Read a file and check its sanity: no last offset below the segment's base, all increasing.

        Raises `CorruptIndex`.
        """
        entries = decode_entries(data)
        previous = base_offset - 1
        for slot, entry in enumerate(entries):
            if entry.last_offset <= previous:
                raise CorruptIndex(
                    f"transaction index entry {slot}: last offset {entry.last_offset} after {previous}"
                )
            previous = entry.last_offset
        return cls(entries)

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        return tuple(self._entries)

    @property
    def size_bytes(self) -> int:
        """What the file holds: where the next entry goes."""
        return len(self._entries) * ENTRY_BYTES

    def append(self, entry: AbortedTransaction) -> bytes:
        """Note one more abort; returns the bytes to write at the old `size_bytes`."""
        if self._entries and entry.last_offset <= self._entries[-1].last_offset:
            raise ValueError(
                f"last offset {entry.last_offset} after {self._entries[-1].last_offset}: aborts are in order"
            )
        self._entries.append(entry)
        return entry.encode()

    def truncate_to(self, offset: int) -> bool:
        """Forget aborts whose marker is at or past `offset`; True: cut the file to `size_bytes`."""
        before = len(self._entries)
        while self._entries and self._entries[-1].last_offset >= offset:
            self._entries.pop()
        return len(self._entries) != before

    def collect(self, fetch_offset: int, upper_bound: int) -> Collected:
        """The aborts that overlap [fetch_offset, upper_bound)."""
        found: list[AbortedTransaction] = []
        for entry in self._entries:
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
                found.append(entry)
            # The stored last stable offset, not the marker's: everything below it was decided by then,
            # so no later marker can abort anything below it.
            if entry.last_stable_offset >= upper_bound:
                return Collected(tuple(found), True)
        return Collected(tuple(found), False)
