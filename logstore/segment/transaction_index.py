"""Transaction index: the aborted transactions of a segment, for readers of committed data.

    00000000000000368769.txnindex
    ┌─────────┬─────────────┬──────────────┬─────────────┬────────────────────┐
    │ version │ producer id │ first offset │ last offset │ last stable offset │  34 bytes an entry,
    │ i16 = 0 │ i64         │ i64          │ i64, marker │ i64, at the marker │  big-endian
    └─────────┴─────────────┴──────────────┴─────────────┴────────────────────┘

Entries are in the order of their markers, so last offsets increase. The index is derived from the log and
never preallocated. A crash leaves a prefix, perhaps with part of an entry; readers ignore that part, and
recovery rebuilds the index.
"""

from __future__ import annotations

import posixpath
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import closing
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.disk.files import publish, read_small_file, remove_if_exists
from logstore.errors import CorruptIndex
from logstore.format.crc import crc32c

if TYPE_CHECKING:
    from logstore.disk.files import Buffer
    from logstore.segment.segment import Segment

TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
ENTRY_BYTES: Final = 34
VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
_LAST_OFFSET: Final = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """Producer `producer_id` aborted its writes from `first_offset` to the marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return the 34 bytes of the entry."""
        return _ENTRY.pack(VERSION, *self)


class Collected(NamedTuple):
    """Aborted transactions that overlap a fetch. Unless `is_complete`, later segments may have more."""

    transactions: tuple[AbortedTransaction, ...]
    is_complete: bool


def decode_entries(data: Buffer) -> list[AbortedTransaction]:
    """Return the whole entries of `data`, without a partial one at the end. Raises `CorruptIndex`."""
    whole = len(data) - len(data) % ENTRY_BYTES
    entries: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(memoryview(data)[:whole]):
        if version != VERSION:
            raise CorruptIndex(f"transaction index entry {len(entries)}: version {version}, not {VERSION}")
        entries.append(AbortedTransaction(*fields))
    return entries


class TransactionIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int) -> TransactionIndex:
        """Decode a file. Raises `CorruptIndex` unless last offsets increase from the segment's base on."""
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
        """Bytes of the file: the position of the next entry."""
        return len(self._entries) * ENTRY_BYTES

    def encode(self) -> bytes:
        """Return the content of the file."""
        return b"".join(entry.encode() for entry in self._entries)

    def append(self, entry: AbortedTransaction) -> bytes:
        """Add an aborted transaction; return the bytes to write at the old `size_bytes`."""
        if self._entries and entry.last_offset <= self._entries[-1].last_offset:
            raise ValueError(
                f"last offset {entry.last_offset} after {self._entries[-1].last_offset} is out of order"
            )
        self._entries.append(entry)
        return entry.encode()

    def truncate_to(self, offset: int) -> bool:
        """Remove the transactions with a marker at or past `offset`; return whether there were any."""
        before = len(self._entries)
        while self._entries and self._entries[-1].last_offset >= offset:
            self._entries.pop()
        return len(self._entries) != before

    def collect(self, fetch_offset: int, upper_bound: int) -> Collected:
        """Return the transactions that overlap [fetch_offset, upper_bound)."""
        found: list[AbortedTransaction] = []
        # Those before it ended below the fetch, and so did everything that was stable at their markers.
        first = bisect_left(self._entries, fetch_offset, key=_LAST_OFFSET)
        for entry in self._entries[first:]:
            if entry.first_offset < upper_bound:
                found.append(entry)
            # The stored last stable offset, not the marker's: everything below it was decided at that time,
            # so no later marker can abort anything below it.
            if entry.last_stable_offset >= upper_bound:
                return Collected(tuple(found), True)
        return Collected(tuple(found), False)


class TransactionIndexFile:
    """The transaction index of one segment and its file. Methods raise `OSError`."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._index: TransactionIndex | None = None
        self._is_durable = True

    @property
    def _path(self) -> str:
        return self._segment.path(TRANSACTION_INDEX_SUFFIX)

    @property
    def index(self) -> TransactionIndex:
        """The aborted transactions whose markers lie in the segment. Raises `CorruptIndex`, `OSError`."""
        index = self._index
        if index is None:
            with self._segment.lock:  # a reader must not replace the writer's by an older one
                index = self._index
                if index is None:
                    self._segment.check_held()  # a missing file would mean no aborted transactions
                    data = read_small_file(self._segment.disk, self._path)
                    seal = self._segment.seal
                    if seal is not None and crc32c(data or b"") != seal.aborts_crc:
                        raise CorruptIndex(f"{self._path} is not as it was sealed")
                    index = TransactionIndex.decode(data or b"", base_offset=self._segment.base_offset)
                    self._index = index
        return index

    def append(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction; the first one creates the file."""
        index = self.index
        at = index.size_bytes
        data = index.append(entry)
        with closing(self._segment.disk.open(self._path, create=True, write=True)) as file:
            file.pwrite(data, at)
        self._is_durable = False

    def replace(self, entries: Sequence[AbortedTransaction]) -> None:
        """Replace all entries by these, durably; without entries there is no file.

        The old entries stay until then: a missing file would hide that transactions were aborted.
        """
        self._index = TransactionIndex(entries)
        if entries:
            publish(self._segment.disk, *posixpath.split(self._path), self._index.encode())
        else:
            remove_if_exists(self._segment.disk, self._path)
        self._is_durable = True

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at or past `offset`."""
        if self.index.truncate_to(offset):
            self.replace(self.index.entries)

    def sync(self) -> None:
        """Make the file and its name survive power loss: nothing else would reveal that it is missing."""
        if not self._is_durable:
            with closing(self._segment.disk.open(self._path, write=True)) as file:
                file.sync()
            self._segment.disk.sync_dir(self._segment.directory)
            self._is_durable = True
