"""The state of a log's producers: the last sequences of each, and the open transactions.

It is made from the log alone, batch by batch in offset order, so every replica has the same state. A leader
uses it to detect repeated batches and missing predecessors. It limits committed readers to the offsets below
the first transaction that is undecided, or whose marker is not yet replicated.

A snapshot, `<offset>.snapshot`, is the state below that offset:

    ┌─────────┬───────┬───────┬───────────────────────────────────────────────────────────────────┐
    │ version │ crc   │ count │ entries, 46 bytes: producer id i64 │ epoch i16 │ last sequence i32 │
    │ i16 = 1 │ u32   │ i32   │ last offset i64 │ offset delta i32 │ last timestamp i64           │
    │         │       │       │ coordinator epoch i32 │ first offset of the open transaction i64   │
    └─────────┴───────┴───────┴───────────────────────────────────────────────────────────────────┘

Big-endian; the checksum (CRC-32C) covers everything behind it. Snapshots are derived: a crash may leave one
short, stale or torn. Then it is deleted, and the log is replayed from an older one, or from its start.

Beside that state a leader keeps the guards of transactions that their coordinator is asked about.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from sortedcontainers import SortedDict

from logstore.config import check_settings, setting
from logstore.errors import (
    CorruptSnapshot,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from logstore.format.batch import CODEC_MASK, HEADER_BYTES, Batch
from logstore.format.crc import crc32c
from logstore.format.record import (
    MAX_INT,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    subtract_sequence,
)
from logstore.segment.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

REMEMBERED_BATCHES: Final = 5
"""A producer may have this many requests in flight, and repeat any of them."""
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
LARGEST_TIMEOUT_MS: Final = 15 * 60_000
"""Kafka's default of `transaction.max.timeout.ms`."""
LATE_MS: Final = 5 * 60_000
"""A transaction is late if it is open this long after the largest timeout."""

SNAPSHOT_VERSION: Final = 1
_HEADER, _ENTRY = struct.Struct(">hIi"), struct.Struct(">qhiqiqiq")
_CRC_START: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStateConfig:
    """A node's producer settings, under Kafka's names; times are milliseconds."""

    producer_id_expiration_ms: int = setting(
        86_400_000,
        "The time until an idle producer's state is removed, unless it has an open transaction.",
        low=1,
        high=MAX_INT,
        at="producer state",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "The interval of the checks for idle producers.", low=1, high=MAX_INT, at="`LogManager.tick`"
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether a transaction's first batch is accepted only after its coordinator has verified it.",
        at="append",
    )

    def __post_init__(self) -> None:
        check_settings(self)


class AppendOrigin(Enum):
    """The origin of a batch that a leader appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker's own transaction or group coordinator: may write control batches, sends no sequences."""


class Duplicate(NamedTuple):
    """The batch is already in the log: append nothing, and answer with its offsets."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


class CompletedTransaction(NamedTuple):
    """A marker ended the transaction that its producer had open since `first_offset`.

    `last_stable_offset` is the limit of committed readers once the marker is replicated.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int

    def index_entry(self) -> AbortedTransaction | None:
        """Return the entry for the transaction index; None for a commit."""
        if not self.is_aborted:
            return None
        return AbortedTransaction(
            self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class OpenTransaction(NamedTuple):
    """A transaction without a marker; `last_timestamp_ms` is its producer's latest, -1 for none."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int


class AppendedBatch(NamedTuple):
    """A producer's batch; its first sequence and offset follow from the delta."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return subtract_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer. All numbers are -1 while unknown; `transaction_first_offset` while none is open."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp_ms: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_OFFSET
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def raise_epoch(self, epoch: int) -> None:
        """Set the epoch; in a new epoch, sequences restart."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class VerificationGuard(NamedTuple):
    """Returned by `maybe_start_verification`, and passed to the append."""

    producer_id: int
    number: int


@dataclass(slots=True)
class _Verification:
    guard: VerificationGuard
    epoch: int
    lowest_sequence: int
    since_ms: int


class VerificationGuards:
    """The unspent guards of one log, at most one per producer.

    start(producer)      returns a guard for the producer; then its coordinator is asked
    append with it       accepted; the guard is spent
    append without it    refused: the batch may be late, and its transaction already over

    A guard proves that the coordinator knows a transaction before its first batch is appended. A batch that
    is delayed in the network until after its transaction's marker would otherwise open a transaction that
    never ends, and block committed readers for ever. Guards are kept in the leader's memory: after a restart
    the coordinator is asked again. The setting is `transaction.partition.verification.enable`.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Verification] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._known)

    def start(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationGuard:
        """Return the producer's guard, the same one until it is spent.

        Of the batches that request it, the one with the lowest sequence has to come first; a higher epoch
        starts anew.
        """
        known = self._known.get(producer_id)
        if known is None:
            self._given += 1
            guard = VerificationGuard(producer_id, self._given)
            known = self._known[producer_id] = _Verification(guard, epoch, sequence, now_ms)
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known.guard

    def verifies(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether `guard` is this producer's and unspent."""
        known = self._known.get(producer_id)
        return known is not None and known.guard == guard

    def lowest_sequence(self, producer_id: int) -> int | None:
        """Return the sequence that has to come first; None if there is no guard."""
        known = self._known.get(producer_id)
        return None if known is None else known.lowest_sequence

    def spend(self, producer_id: int) -> None:
        """Remove the producer's guard: its transaction is in the log, or over."""
        self._known.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove guards that were never used."""
        self._known = {
            producer_id: known
            for producer_id, known in self._known.items()
            if now_ms - known.since_ms < expiration_ms
        }


_NO_OFFSETS: Final = SortedDict()
"""Shared by all logs without transactions, and never changed: an empty one takes 1.6 KiB."""


def _with(offsets: SortedDict, first_offset: int, value: int) -> SortedDict:
    offsets = SortedDict() if offsets is _NO_OFFSETS else offsets
    offsets[first_offset] = value
    return offsets


class ProducerState:
    """The producers of one log up to `end_offset`.

    `replay` applies batches of the log, as followers and recovery do; a leader calls `check` first. `check`
    changes nothing, so a refused append leaves no trace.
    """

    def __init__(self, *, end_offset: int = 0) -> None:
        self.end_offset = end_offset
        self.first_unstable_offset: int | None = None
        """The start of the oldest transaction that is undecided, or decided above the high watermark.

        A value, not a search: readers use it while a writer opens and ends transactions.
        """
        self._producers: dict[int, ProducerEntry] = {}
        # First offset → producer id; first offset → marker's offset of those decided past the high watermark.
        self._open: SortedDict = _NO_OFFSETS
        self.unreplicated: SortedDict = _NO_OFFSETS

    @classmethod
    def load(
        cls,
        entries: Iterable[ProducerEntry],
        *,
        end_offset: int,
        now_ms: int | None = None,
        expiration_ms: int = MAX_INT,
    ) -> ProducerState:
        """Make the state of a snapshot at `end_offset`, without producers idle for `expiration_ms`."""
        state = cls(end_offset=end_offset)
        for entry in entries:
            state._producers[entry.producer_id] = entry
            if entry.transaction_first_offset >= 0:
                state._open = _with(state._open, entry.transaction_first_offset, entry.producer_id)
        state._find_first_unstable()
        if now_ms is not None:
            state.remove_expired(now_ms, expiration_ms)
        return state

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Iterate over the producers in the order of their first batches."""
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    # Checks by a leader

    def check(
        self,
        batch: Batch,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        guards: VerificationGuards | None = None,
        guard: VerificationGuard | None = None,
    ) -> Duplicate | None:
        """Check that `batch` may be appended; return the batch that it repeats, if it does.

        With `guards`, a batch that opens a transaction needs the `guard` given out for it.
        Raises `OutOfOrderSequence`, `InvalidProducerEpoch`, `InvalidTransactionState` or, for a marker,
        `TransactionCoordinatorFenced`. A repeat is one of the last five batches of the same epoch with the
        very same first and last sequence: a part of one is out of order.
        """
        if not batch.has_producer_id:
            return None
        entry = self._producers.get(batch.producer_id)
        if batch.is_control:
            self._check_marker(batch, entry)
            return None
        if entry is not None and origin is AppendOrigin.CLIENT and batch.producer_epoch == entry.epoch:
            first, last = batch.base_sequence, batch.last_sequence
            for known in entry.batches:
                if known.last_sequence == last and known.first_sequence == first:
                    return Duplicate(known.first_offset, known.last_offset, known.timestamp_ms)
        if guards is not None:
            self._check_verified(batch, guards, guard)
        if entry is not None:
            self._check_epoch(batch, entry)
        if origin is AppendOrigin.CLIENT:
            lowest = None if guards is None else guards.lowest_sequence(batch.producer_id)
            if lowest is not None and batch.base_sequence > lowest:
                raise OutOfOrderSequence(
                    f"producer {batch.producer_id}: sequence {batch.base_sequence} before {lowest}, "
                    "which was verified and is not here yet"
                )
            if entry is not None:
                self._check_sequence(batch, entry)
        # Without an entry nothing is known, perhaps because it expired: any sequence may be the next.
        if entry is not None and entry.transaction_first_offset >= 0 and not batch.is_transactional:
            raise InvalidTransactionState(
                f"producer {batch.producer_id} has a transaction open since offset "
                f"{entry.transaction_first_offset}: end it before writing outside of one"
            )
        return None

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether this epoch of the producer has an open transaction."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    def _check_verified(
        self, batch: Batch, guards: VerificationGuards, guard: VerificationGuard | None
    ) -> None:
        if (
            batch.is_transactional
            and not self.has_open_transaction(batch.producer_id, batch.producer_epoch)
            and not guards.verifies(batch.producer_id, guard)
        ):
            raise InvalidTransactionState(
                f"producer {batch.producer_id}, epoch {batch.producer_epoch}: no transaction is open, and "
                "none was verified; ask its coordinator first (`maybe_start_verification`)"
            )

    @staticmethod
    def _check_epoch(batch: Batch, entry: ProducerEntry) -> None:
        if batch.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {batch.producer_id}: epoch {batch.producer_epoch} has been fenced by {entry.epoch}"
            )

    @staticmethod
    def _check_sequence(batch: Batch, entry: ProducerEntry) -> None:
        if entry.epoch == NO_EPOCH:
            return
        expected = 0
        if batch.producer_epoch == entry.epoch and entry.last_sequence != MAX_INT:
            expected = entry.last_sequence + 1
        if batch.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {batch.producer_id}, epoch {batch.producer_epoch}: sequence {batch.base_sequence} "
                f"where {expected} is next"
            )

    def _check_marker(self, batch: Batch, entry: ProducerEntry | None) -> None:
        marker = marker_of(batch)
        if marker is None or entry is None:
            return
        self._check_epoch(batch, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {batch.producer_id}: a marker of coordinator epoch {marker.coordinator_epoch} "
                f"after one of {entry.coordinator_epoch}"
            )

    # What is in the log

    def replay(self, batch: Batch) -> CompletedTransaction | None:
        """Apply a batch of the log; return the transaction that it ends, if it is such a marker.

        No sequence, epoch or state is refused: the leader that wrote the batch has checked them. Raises
        `InvalidRecord` for an unreadable marker.
        """
        completed = self._replay_producer(batch) if batch.has_producer_id else None
        # Last: a thread that reads it must find the batch's transaction open.
        self.end_offset = batch.next_offset
        return completed

    def remember(self, former: ProducerState) -> None:
        """Add what only `former` knows, a state of the same log at a later offset or before a rebuilding.

        A snapshot keeps only the last batch of each producer, and not which markers are replicated.
        """
        for entry in self:
            known = former.get(entry.producer_id)
            if known is None or known.epoch != entry.epoch:
                continue
            # The former's last: in a snapshot, the last batch has the time of a marker behind it.
            batches = {each.last_offset: each for each in (*entry.batches, *known.batches)}
            below = [batches[offset] for offset in sorted(batches) if offset < self.end_offset]
            entry.batches = deque(below, maxlen=REMEMBERED_BATCHES)
        for first_offset, marker in former.unreplicated.items():
            if marker < self.end_offset:
                self.unreplicated = _with(self.unreplicated, first_offset, marker)
        self._find_first_unstable()

    def _replay_producer(self, batch: Batch) -> CompletedTransaction | None:
        if batch.is_control:
            return self._replay_marker(batch)
        entry = self._entry(batch.producer_id)
        entry.raise_epoch(batch.producer_epoch)
        entry.batches.append(
            AppendedBatch(
                batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp_ms
            )
        )
        entry.last_timestamp_ms = batch.max_timestamp_ms
        if batch.is_transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = batch.base_offset
            self._open = _with(self._open, batch.base_offset, batch.producer_id)
            if self.first_unstable_offset is None:  # otherwise an older one's
                self.first_unstable_offset = batch.base_offset
        return None

    def _replay_marker(self, batch: Batch) -> CompletedTransaction | None:
        marker = marker_of(batch)
        if marker is None:
            return None
        entry = self._entry(batch.producer_id)
        entry.raise_epoch(batch.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = batch.max_timestamp_ms
        first_offset = entry.transaction_first_offset
        if first_offset < 0:
            return None
        entry.transaction_first_offset = NO_OFFSET
        self._open.pop(first_offset, None)
        # As unstable as before: the first unstable offset stays.
        self.unreplicated = _with(self.unreplicated, first_offset, batch.last_offset)
        return CompletedTransaction(
            producer_id=batch.producer_id,
            first_offset=first_offset,
            last_offset=batch.last_offset,
            is_aborted=marker.type is ControlType.ABORT,
            last_stable_offset=self._open.peekitem(0)[0] if self._open else batch.last_offset + 1,
        )

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id)
        return entry

    # Transactions

    @property
    def first_undecided_offset(self) -> int | None:
        """The start of the oldest transaction without a marker."""
        return self._open.peekitem(0)[0] if self._open else None

    def _find_first_unstable(self) -> None:
        firsts = [offsets.peekitem(0)[0] for offsets in (self._open, self.unreplicated) if offsets]
        self.first_unstable_offset = min(firsts, default=None)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Return the transactions without a marker, oldest first."""
        found = []
        for first_offset, producer_id in self._open.items():
            entry = self._producers[producer_id]
            found.append(OpenTransaction(producer_id, entry.epoch, first_offset, entry.last_timestamp_ms))
        return tuple(found)

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Settle the transactions whose marker lies below `high_watermark`."""
        if not self.unreplicated:
            return
        replicated = [first for first, marker in self.unreplicated.items() if marker < high_watermark]
        if replicated:
            for first_offset in replicated:
                del self.unreplicated[first_offset]
            self._find_first_unstable()

    def last_stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """Return the upper bound of committed reads."""
        first = self.first_unstable_offset
        if first is None:
            return high_watermark
        return min(max(first, log_start_offset), high_watermark)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have been idle for `expiration_ms` and have no open transaction."""
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if entry.transaction_first_offset >= 0 or now_ms - entry.last_timestamp_ms < expiration_ms
        }

    # Snapshots

    def encode_snapshot(self) -> bytes:
        """Return a snapshot at `end_offset`. Of a producer's batches only the last one is kept."""
        entries = b"".join(_encode_entry(entry) for entry in self)
        counted = struct.pack(">i", len(self._producers)) + entries
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(counted)) + counted


def decode_snapshot(data: Buffer) -> list[ProducerEntry]:
    """Return the producers in a snapshot file. Raises `CorruptSnapshot` if it is damaged."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshot(f"producer snapshot: {len(data)} bytes are fewer than its header")
    version, crc, count = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(
            f"producer snapshot version {version} is not supported, only {SNAPSHOT_VERSION}"
        )
    view = memoryview(data)
    computed = crc32c(view[_CRC_START:])
    if crc != computed:
        raise CorruptSnapshot(f"producer snapshot: checksum {crc:08x} stored, {computed:08x} computed")
    if count < 0 or len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"producer snapshot: {count} entries in {len(data)} bytes")
    return [_decode_entry(fields) for fields in _ENTRY.iter_unpack(view[_HEADER.size :])]


def _encode_entry(entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else AppendedBatch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        entry.transaction_first_offset,
    )


def _decode_entry(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, first_offset = fields
    entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp_ms, first_offset)
    if offset >= 0:
        entry.batches.append(AppendedBatch(sequence, offset, delta, timestamp_ms))
    return entry


# The record of a marker as this engine and Kafka write it: its key is `i16 version 0, i16 type`, its value
# `i16 version 0, i32 coordinator epoch`, and the rest has no choice.
_PLAIN_MARKER: Final = struct.Struct(">7sh3siB")
_PLAIN_MARKER_BYTES: Final = HEADER_BYTES + _PLAIN_MARKER.size
_AROUND: Final = (b"\x20\0\0\0\x08\0\0", b"\x0c\0\0", 0)
_ENDS: Final = {each.value: each for each in (ControlType.ABORT, ControlType.COMMIT)}


def marker_of(batch: Batch) -> EndTransactionMarker | None:
    """Return the marker of a control batch; None for an emptied one, and for other control records."""
    if batch.size == _PLAIN_MARKER_BYTES and not batch.attributes & CODEC_MASK and batch.record_count == 1:
        # Without the parser of records: a log may have as many markers as batches.
        head, number, middle, epoch, end = _PLAIN_MARKER.unpack_from(batch.buffer, HEADER_BYTES)
        if (head, middle, end) == _AROUND and number in _ENDS:
            return EndTransactionMarker(_ENDS[number], epoch)
    record = next(batch.records(), None)
    if record is None or ControlRecord.parse(record.key).type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return EndTransactionMarker.parse(record)
