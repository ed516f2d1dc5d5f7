"""One partition's log on this node: segments end to end, and everything that is true of them.

        log start offset        high watermark      log end offset
               ▼                      ▼                   ▼
    ─────┬─────●───────┬──────────────●────┬──────────────●
     old │    segment  │    segment        │ active segment
    ─────┴─────────────┴───────────────────┴──────────────
                       ▲
                recovery point: everything before it is durable

One writer at a time, any number of readers. The append lock covers giving offsets and writing; an
fsync happens outside it, and one fsync serves every append that waited for it (group commit). State
moves after the I/O it describes: readers see what `log_end_offset` covers, and that moves last.

What a crash leaves: batches past the recovery point may be gone, whole or torn; `recovery.py` judges
them at the next open. A write that failed is cut back; an fsync that failed takes the log offline,
because the kernel may have dropped the pages it could not write and would call them clean next time.

`PartitionLog` speaks in batches, as leaders and followers do; `log.py` adds what applications want.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from checkpoint.disk import Buffer, Disk
from checkpoint.errors import EngineError
from checkpoint.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, write_leader_epoch_checkpoint
from checkpoint.partition_metadata import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from checkpoint.topic_partition import TopicPartition
from logstore.batch import Batch, encode_marker_batch, set_offsets_and_epoch, walk
from logstore.cleanable import Cleanable, cleanable, first_dirty
from logstore.compaction import LastBatch
from logstore.config import MAX_INT, LogConfig
from logstore.deleted_files import DeletedFiles
from logstore.epochs import EpochEndOffset, EpochEntry, LeaderEpochCache
from logstore.errors import (
    DiskFull,
    InconsistentTopicId,
    LogClosed,
    LogDirOffline,
    OffsetOutOfRange,
    PolicyViolation,
    RecordBatchTooLarge,
    bare,
    is_full,
)
from logstore.group_commit import GroupCommit
from logstore.losses import KEPT_MS, Loss, Quarantine, Survey, Tail, Who, survey
from logstore.outgoing import MadeBatch, may_enter
from logstore.policy import Incoming, roll_reason
from logstore.producer_snapshots import replay_into
from logstore.producer_state import (
    LATE_MS,
    OpenTransaction,
    ProducerEntry,
    ProducerStateConfig,
    check_markers,
)
from logstore.read_committed import aborted_between
from logstore.record import NO_TIMESTAMP, ControlType, EndTransactionMarker
from logstore.recovery import Jitter, LoadedLog, RecoveryReport
from logstore.retention import Expired, believed_ms, expired
from logstore.segment import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Extents,
    Segment,
    file_name,
)
from logstore.segments import Segments
from logstore.stretch import Stretch, begin_stretch
from logstore.swap import swap
from logstore.transaction_index import AbortedTransaction, TransactionIndex
from logstore.validation import (
    AppendOrigin,
    analyse_follower_batches,
    validate_and_assign,
    validate_plain_group,
)
from logstore.verification_guard import VerificationGuard, VerificationGuards

Clock: TypeAlias = Callable[[], int]
"""Wall-clock time in epoch milliseconds."""

T = TypeVar("T")

READ_BYTES = 1 << 20
GROUP_BYTES = 1 << 20
WORTH_GROUPING = 4


class FetchIsolation(Enum):
    """How far a reader sees."""

    LOG_END = "everything written"
    HIGH_WATERMARK = "what the in-sync replicas hold"
    TXN_COMMITTED = "likewise, up to the first transaction that is not decided"


class AppendInfo(NamedTuple):
    """Where an append went; offsets inclusive, times epoch milliseconds, -1 for none.

    `is_duplicate`: the batch had been appended before, and these are the offsets it has.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class FetchedBytes(NamedTuple):
    """Whole batches; the first may begin below `start_offset`. `next_offset` follows the last one.

    `aborted`, for readers of committed data: the transactions whose data they have to leave out.
    """

    records: bytes
    start_offset: int
    segment_base_offset: int
    position: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class TimestampOffset(NamedTuple):
    """A record's time and offset, and the leader epoch that wrote it."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class LogOwner(Protocol):
    """Who keeps this log's place in the checkpoints, and wants to know that its disk failed."""

    def lower_bounds(self, log: PartitionLog, offset: int) -> None:
        """Make sure that after a crash nothing past `offset` is taken for durable, committed or compacted."""

    def log_start_moved(self, log: PartitionLog) -> None:
        """The log start offset went up: it must be durable before segments below it go."""

    def flushed(self, log: PartitionLog) -> None:
        """The recovery point went up because segments were sealed."""

    def compacted(self, log: PartitionLog) -> None:
        """The first dirty offset moved: the next compaction should begin there."""

    def failed(self, log: PartitionLog, error: OSError) -> None:
        """The disk under this log cannot be trusted any more."""

    def closed(self, log: PartitionLog, *, is_clean: bool) -> None:
        """The log wrote and synced all it had, and let go of its files."""


class _SegmentWent(Exception):
    """A segment was replaced or deleted under its reader, who has to look again."""


class PartitionLog:
    """A partition's log. Offsets are absolute; every method may be called from any thread."""

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        disk: Disk,
        clock: Clock,
        jitter_ms: Jitter,
        owner: LogOwner,
        follows_end: bool = False,
        producer_config: ProducerStateConfig | None = None,
        first_dirty_offset: int = 0,
    ) -> None:
        """A log over what `recovery.load` found. `follows_end`: nobody replicates it, so HW is LEO."""
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.producer_config = producer_config or ProducerStateConfig()
        self._guards = VerificationGuards()
        self.disk = self._disk = disk
        self._clock = clock
        self._jitter_ms = jitter_ms
        self._owner = owner
        self._follows_end = follows_end
        self._lock = threading.RLock()
        self._group_commit = GroupCommit(self._sync_for_group)
        self._failure: OSError | None = None
        self._is_closed = False
        self._group_buffer: bytearray | None = None
        self._stretch: Stretch | None = None
        self._topic_id = read_partition_metadata(disk, directory)
        self.report: RecoveryReport = loaded.report
        self._segments = Segments(loaded.segments.values())
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._deleted_files = DeletedFiles(disk)
        self._first_dirty_offset = first_dirty_offset
        self._generation = 0
        self.compaction_lock = threading.Lock()
        """Held by the compaction that is under way: two would write files of the same names."""
        self._last_retention_ms = clock()
        self._producers.advance_high_watermark(self.high_watermark)
        self._quarantine = loaded.quarantine
        self._unflushed: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"Log({self.directory!r}, [{self._log_start_offset}, {self._log_end_offset}))"

    # --- facts --------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that is served."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it every in-sync replica holds the log; the log end of a log that stands alone."""
        return self._log_end_offset if self._follows_end else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided, and its marker replicated: the end of committed reads."""
        producers = self._producers
        # The end first: a batch that counts in it has its transaction among the unstable ones.
        end_offset = min(self.high_watermark, producers.end_offset)
        return producers.last_stable_offset(end_offset, self._log_start_offset)

    @property
    def recovery_point(self) -> int:
        """Everything below it survives power loss."""
        return self._recovery_point

    @property
    def first_dirty_offset(self) -> int:
        """Everything below it has been compacted; it may lie outside the log, and says nothing then."""
        return self._first_dirty_offset

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs and where each one starts."""
        return self._epochs.entries

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch known here; -1 if none."""
        return self._epochs.latest_epoch

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last one is active."""
        return tuple(self._segments)

    @property
    def size(self) -> int:
        """Bytes in all `.log` files."""
        return self._segments.size

    @property
    def is_closed(self) -> bool:
        """Whether its owner closed or abandoned it."""
        return self._is_closed

    @property
    def is_offline(self) -> bool:
        """Whether its disk failed: nothing can be appended until it has been recovered."""
        return self._failure is not None

    @property
    def topic_id(self) -> str | None:
        """The topic's id, 22 characters; None until it is known."""
        return self._topic_id

    def set_topic_id(self, topic_id: str) -> None:
        """Note the topic's id, durably. Raises `InconsistentTopicId` if the log has another."""
        if self._topic_id == topic_id:
            return
        if self._topic_id is not None:
            raise InconsistentTopicId(
                f"{self.directory} belongs to topic id {self._topic_id}, not {topic_id}: "
                "it is what a deleted topic of that name left; move it away"
            )
        with self._lock:
            self._guarded(lambda: write_partition_metadata(self._disk, self.directory, topic_id))
            self._topic_id = topic_id

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Where the largest epoch at or below `epoch` ends here; undefined if that cannot be told."""
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 if unknown."""
        return self._epochs.epoch_for_offset(offset)

    # --- appending: leaders and followers -----------------------------------------------------------

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Check the one batch in `data`, give it the next offsets and this epoch, and write it.

        A batch that its producer had sent before is not written again: the answer holds its offsets.
        The first batch of a transaction needs the guard that `maybe_start_verification` gave for it.
        Raises `CorruptBatch`, `InvalidRecord`, `InvalidTimestamp`, `RecordTooLarge`,
        `RecordBatchTooLarge`, `UnsupportedCompression`, `OutOfOrderSequence`, `InvalidProducerEpoch`,
        `InvalidTransactionState`, `DiskFull` or `LogDirOffline`; the log is then as it was.
        """
        with self._lock:
            self._check_writable()
            return self._append_one(data, leader_epoch, now_ms, origin, verification_guard)

    def append_value(self, value: bytes, now_ms: int) -> AppendInfo | None:
        """Append a record of `value` alone, of this time and the newest epoch, by the short way.

        None, and nothing was done, where that is not open (`stretch.py`): `append_made` then raises what
        there is to raise, and `begin_stretch` opens the short way anew. Raises `DiskFull` or `LogDirOffline`.
        """
        with self._lock:
            stretch, offset = self._stretch, self._log_end_offset
            if stretch is None or self._failure is not None or self._is_closed:
                return None
            active = self._segments.active
            if not stretch.holds(len(value), offset, now_ms, active, self.config, self._epochs):
                return None
            try:
                stretch.append(value, offset, now_ms)
            except OSError as error:
                self._append_failed(error)
            active.modified_ms = now_ms
            self._log_end_offset = self._producers.end_offset = offset + 1
            return AppendInfo(offset, offset, now_ms, NO_TIMESTAMP, self._log_start_offset)

    def begin_stretch(self) -> None:
        """Let `append_value` take the next values, if they can be taken without a look at the settings."""
        with self._lock:
            if self._failure is None and not self._is_closed:
                self._stretch = begin_stretch(self._segments.active, self.config, self._epochs)

    def append_made(self, batch: MadeBatch, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append a batch that this process made (`outgoing.py`): no record of it is read again.

        Its bytes are given their place where they are. Raises what `append_as_leader` raises.
        """
        with self._lock:
            self._check_writable()
            data = batch.data
            if len(data) > self.config.segment_bytes or not may_enter(batch, now_ms, self.config):
                return self._append_one(bytes(data), leader_epoch, now_ms, AppendOrigin.CLIENT)
            first_offset, time_ms = self._log_end_offset, batch.timestamp_ms
            last_offset = first_offset + batch.record_count - 1
            set_offsets_and_epoch(data, base_offset=first_offset, leader_epoch=leader_epoch)
            self._enter_epoch(leader_epoch, first_offset)
            self._write(data, ((len(data), last_offset, time_ms),), first_offset, time_ms, now_ms)
            self._producers.end_offset = self._log_end_offset
            return AppendInfo(first_offset, last_offset, time_ms, NO_TIMESTAMP, self._log_start_offset)

    def append_many_as_leader(self, data: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the batches that lie end to end in `data`, each as `append_as_leader` would.

        Raises what it raises, and `CorruptBatch` for a torn last batch; batches before a refused one
        stay appended.
        """
        info: AppendInfo | None = None
        view, position = memoryview(data), 0
        while position < len(view) or info is None:
            size, appended = self._append_some(view[position:], leader_epoch, now_ms)
            info = joined(info, appended)
            position += size
        return info

    def _append_some(self, data: memoryview, leader_epoch: int, now_ms: int) -> tuple[int, AppendInfo]:
        """Append the first batches of `data`: at once if they are many and plain, else one by one.

        Returns how many bytes they have.
        """
        with self._lock:
            self._check_writable()
            first = Batch(data)
            size = min(len(data), GROUP_BYTES, max(self.config.segment_bytes - self._segments.active.size, 0))
            if size < first.size * WORTH_GROUPING:
                return first.size, self._append_one(first.buffer, leader_epoch, now_ms, AppendOrigin.CLIENT)
            # Into memory that is there already: a fresh megabyte costs more page faults than its copy.
            self._scratch[:size] = data[:size]
            group = validate_plain_group(
                self._scratch,
                size,
                next_offset=self._log_end_offset,
                leader_epoch=leader_epoch,
                now_ms=now_ms,
                config=self.config,
            )
            if group is None:
                info, taken = None, 0
                for batch in walk(data[:size]):
                    one = self._append_one(batch.buffer, leader_epoch, now_ms, AppendOrigin.CLIENT)
                    info, taken = joined(info, one), taken + batch.size
                assert info is not None, "a first batch that the walk does not see"
                return taken, info
            self._enter_epoch(leader_epoch, group.first_offset)
            placed = memoryview(self._scratch)[: group.size]
            self._write(placed, group.extents, group.first_offset, group.max_timestamp_ms, now_ms)
            self._producers.end_offset = self._log_end_offset
            return group.size, AppendInfo(
                group.first_offset,
                group.last_offset,
                group.max_timestamp_ms,
                NO_TIMESTAMP,
                self._log_start_offset,
            )

    @property
    def _scratch(self) -> bytearray:
        if self._group_buffer is None:
            self._group_buffer = bytearray(GROUP_BYTES)
        return self._group_buffer

    def _append_one(
        self,
        data: Buffer,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        placed = validate_and_assign(
            data,
            next_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            config=self.config,
            origin=origin,
        )
        if len(placed.data) > self.config.segment_bytes:
            raise RecordBatchTooLarge(len(placed.data), self.config.segment_bytes)
        _, first_offset, last_offset, max_timestamp_ms, append_time_ms, has_producer_id = placed
        batch = Batch(placed.data) if has_producer_id else None
        if batch is not None:
            needs_guard = self.producer_config.transaction_partition_verification_enable
            guards = self._guards if needs_guard else None
            if duplicate := self._producers.check(batch, origin, guards=guards, guard=guard):
                return AppendInfo(*duplicate, NO_TIMESTAMP, self._log_start_offset, is_duplicate=True)
        self._enter_epoch(leader_epoch, first_offset)
        extent = (len(placed.data), last_offset, max_timestamp_ms)
        self._write(placed.data, (extent,), first_offset, max_timestamp_ms, now_ms)
        if batch is not None:
            self._note_producers((batch,))
        self._producers.end_offset = self._log_end_offset
        return AppendInfo(first_offset, last_offset, max_timestamp_ms, append_time_ms, self._log_start_offset)

    def _enter_epoch(self, leader_epoch: int, first_offset: int) -> None:
        latest = self._epochs.latest_epoch
        if leader_epoch > latest:
            self._assign_epoch(leader_epoch, first_offset)
        elif 0 <= leader_epoch < latest:
            # Recovery takes a batch behind one of a later epoch for a leftover, and would cut it.
            raise ValueError(f"leader epoch {leader_epoch} is below {latest}, the newest in {self.directory}")

    def append_as_follower(self, data: Buffer, *, leader_epoch: int) -> AppendInfo:
        """Append a leader's batches byte for byte; a torn last one is left out.

        Raises `UnexpectedAppendOffset` below the log end, `OffsetsOutOfOrder`, `CorruptBatch`,
        `InvalidRecord` for an epoch above `leader_epoch` or a marker that cannot be read, `DiskFull` or
        `LogDirOffline`; nothing is written then.
        """
        with self._lock:
            self._check_writable()
            found = analyse_follower_batches(
                data,
                next_offset=self._log_end_offset,
                leader_epoch=leader_epoch,
                latest_epoch=self._epochs.latest_epoch,
            )
            if found is None:
                end = self._log_end_offset
                return AppendInfo(end, end - 1, -1, -1, self._log_start_offset)
            check_markers(found.batches)
            for batch in found.batches:
                self._enter_epoch(batch.leader_epoch, batch.base_offset)
            now_ms = self._clock()
            for run in _runs_that_fit_a_segment(found.batches):
                extents = [(batch.size, batch.last_offset, batch.max_timestamp_ms) for batch in run]
                whole = len(run) == len(found.batches)
                data = found.data if whole else b"".join(batch.buffer for batch in run)
                largest_ms = max(batch.max_timestamp_ms for batch in run)
                self._write(data, extents, run[0].base_offset, largest_ms, now_ms)
                self._note_producers(run)
                self._producers.end_offset = self._log_end_offset
            return AppendInfo(
                found.first_offset, found.last_offset, found.max_timestamp_ms, -1, self._log_start_offset
            )

    def _write(
        self, data: Buffer, extents: Extents, first_offset: int, max_timestamp_ms: int, now_ms: int
    ) -> None:
        last_offset = extents[-1][1]
        incoming = Incoming(len(data), max_timestamp_ms, last_offset)
        if roll_reason(self._segments.active, incoming, self.config, now_ms) is not None:
            self._roll(max(first_offset, self._log_end_offset), now_ms)
        try:
            self._segments.active.append(data, extents)
        except OSError as error:
            self._append_failed(error)
        self._segments.active.modified_ms = now_ms
        self._log_end_offset = last_offset + 1
        if last_offset + 1 - self._recovery_point >= self.config.flush_messages:
            self._sync_segments(self._log_end_offset)

    def _append_failed(self, error: OSError) -> NoReturn:
        if is_full(error):
            raise DiskFull(
                f"{self.directory}: no room for the append ({error.strerror}); nothing of it was kept. "
                "Make room, then append again"
            ) from error
        self._fail(error)

    def _note_producers(self, batches: Iterable[Batch]) -> None:
        producers = self._producers
        for batch in batches:
            if batch.has_producer_id:
                completed = producers.replay(batch)
                entry = completed.index_entry() if completed else None
                if entry is not None:
                    # The marker is in the log already: without its entry only recovery can go on.
                    self._or_offline(lambda entry=entry: self._segments.active.append_aborted(entry))  # type: ignore[misc]
                if batch.is_transactional:
                    self._guards.spend(batch.producer_id)
        producers.advance_high_watermark(self.high_watermark)

    # --- transactions ---------------------------------------------------------------------------------

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        kind: ControlType,
        *,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Write the marker that commits or aborts the producer's transaction.

        Without a transaction open the marker only fences older epochs. Raises `InvalidProducerEpoch`,
        `TransactionCoordinatorFenced`, and what any append raises for want of a disk.
        """
        marker = EndTransactionMarker(kind, coordinator_epoch)
        data = encode_marker_batch(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        return self.append_as_leader(
            data, leader_epoch=leader_epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )

    def maybe_start_verification(
        self, producer_id: int, sequence: int, epoch: int
    ) -> VerificationGuard | None:
        """A guard for the batch at `sequence` that is to open a transaction, while its coordinator is asked.

        None if none is needed: the transaction is open already, or
        `transaction.partition.verification.enable` is off.
        """
        with self._lock:
            enabled = self.producer_config.transaction_partition_verification_enable
            if not enabled or self._producers.has_open_transaction(producer_id, epoch):
                return None
            return self._guards.start(producer_id, sequence, epoch, self._clock())

    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers that are remembered; to look at, not to change."""
        with self._lock:
            return tuple(self._producers)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions without a marker, oldest first; the oldest holds readers of committed data."""
        with self._lock:
            return self._producers.open_transactions()

    def late_transactions(self, now_ms: int, largest_timeout_ms: int) -> tuple[OpenTransaction, ...]:
        """Those that no coordinator will end any more: open five minutes past the largest timeout."""
        limit_ms = largest_timeout_ms + LATE_MS
        return tuple(
            each for each in self.open_transactions() if now_ms - each.last_timestamp_ms > limit_ms
        )

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers, and guards, of `producer.id.expiration.ms` ago."""
        with self._lock:
            expiration_ms = self.producer_config.producer_id_expiration_ms
            self._producers.remove_expired(now_ms, expiration_ms)
            self._guards.remove_expired(now_ms, expiration_ms)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that overlap [start_offset, end_offset), in order of their markers.

        For an `end_offset` up to the last stable offset; a later transaction may not be decided yet.
        Raises `LogDirOffline`, and `CorruptIndex` if a transaction index was damaged since the log opened.
        """
        while True:
            try:
                return aborted_between(self._transaction_indexes(start_offset), start_offset, end_offset)
            except _SegmentWent:
                continue  # others know now what it knew

    def _transaction_indexes(self, offset: int) -> Iterator[TransactionIndex]:
        for segment in self._segments.since(offset):
            try:
                yield segment.transaction_index
            except OSError as error:
                self._read_failed(segment, error)
                raise _SegmentWent from error

    # --- epochs ---------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; durable when it returns."""
        with self._lock:
            self._check_writable()
            self._assign_epoch(epoch, start_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        self._change_epochs(lambda epochs: epochs.assign(epoch, start_offset))

    def _forget_epochs_from(self, offset: int) -> None:
        holds_older = offset == self._log_start_offset and self.size > 0
        self._change_epochs(lambda epochs: epochs.truncate_from_end(offset, spare_first=holds_older))

    def _change_epochs(self, change: Callable[[LeaderEpochCache], bool]) -> None:
        """Let the file hold the change before the log believes it."""
        changed = LeaderEpochCache(self._epochs.entries)
        if change(changed):
            self._guarded(lambda: write_leader_epoch_checkpoint(self._disk, self.directory, changed.entries))
            self._epochs = changed

    # --- rolling --------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Start a new segment at the log end; an empty active segment stays."""
        with self._lock:
            self._check_writable()
            if self._segments.active.size:
                self._roll(self._log_end_offset, self._clock())

    def _roll(self, base_offset: int, now_ms: int, *, end_offset: int | None = None) -> None:
        """Begin a segment at `base_offset`; the old one ends at `end_offset`, by default the log's."""
        old = self._segments.active
        if old.size == 0:
            # The only way to a usable index of an empty segment, and to a base past a gap.
            before = self._segments.lower(old.base_offset)
            if before is not None:
                # First: an empty last segment below the successor that a seal names is known for what it
                # is, while one above it would be taken for what is left behind a hole.
                self._or_offline(lambda: before.follow_with(base_offset))
            self._or_offline(old.delete)
        else:
            # Durable before its successor exists: only the active segment can lose anything, so a
            # crash never leaves a hole between two segments (compaction may, and recovery keeps it).
            end_offset = self._log_end_offset if end_offset is None else end_offset
            self._guarded(old.become_inactive)
            self._sync_segments(end_offset)
            self._guarded(old.sync_indexes)
            self._guarded(lambda: old.make_seal(end_offset, base_offset))
            self._producers.end_offset = base_offset
            self._guarded(lambda: self._snapshots.take(self._producers, base_offset))
        making = self._guarded if old.size else self._or_offline
        new = making(lambda: self._new_segment(base_offset, now_ms))
        if old.size:
            self._segments.append(new)
        else:
            self._segments = self._segments.replacing([old], [new])
        if old.size:
            old.rest()
            self._guarded(lambda: self._owner.flushed(self))

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        return Segment(
            self._disk,
            self.directory,
            base_offset,
            self.config,
            size=0,
            now_ms=now_ms,
            jitter_ms=self._jitter_ms(self.config.longest_jitter_ms),
            is_new=True,
            modified_ms=now_ms,
        )

    # --- making durable -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all that was appended survive power loss, then move the recovery point.

        Raises `LogDirOffline` if that fails: the log takes no more appends until it is recovered.
        """
        self.sync_up_to(self._log_end_offset)

    def flush_by_age(self, now_ms: int) -> None:
        """Flush if what this saw first, of what is still not durable, is `flush.ms` old."""
        if self._recovery_point >= self._log_end_offset:
            self._unflushed = None
            return
        offset, since_ms = self._unflushed or (-1, now_ms)
        if self._recovery_point > offset:
            offset, since_ms = self._log_end_offset, now_ms
        self._unflushed = offset, since_ms
        if now_ms - since_ms >= self.config.flush_ms:
            self.flush()
            self._unflushed = None

    def flush_sealed(self) -> None:
        """Make every segment but the active one survive power loss."""
        base_offset = self._segments.active.base_offset
        if self._recovery_point < base_offset:
            self.sync_up_to(base_offset)
            self._guarded(lambda: self._owner.flushed(self))

    def sync_up_to(self, offset: int) -> None:
        """Return once everything below `offset` is durable.

        Callers that come together share one fsync (`group_commit.py`).
        """
        if self._recovery_point < offset:
            self._check_writable()
            self._group_commit.join()
            self._check_writable()

    def _sync_for_group(self) -> None:
        # The sync before this one may have failed: repeated, it would succeed over pages that are lost.
        self._check_writable()
        self._sync_segments(self._log_end_offset)

    def _sync_segments(self, end_offset: int) -> None:
        """Sync the segments in [recovery point, end_offset). End offset first, bytes second: what is
        appended meanwhile may be synced too but is not counted."""
        segments = self._segments
        touched = [each for each in segments.since(self._recovery_point) if each.base_offset < end_offset]
        try:
            for segment in touched:
                segment.sync_log()
                if segment is not segments.active:
                    segment.sync_indexes()
            new = [segment for segment in touched if not segment.name_is_durable]
            if new:
                self._disk.sync_dir(self.directory)
                for segment in new:
                    segment.name_is_durable = True
        except FileNotFoundError as error:
            if self._is_closed:  # abandoned meanwhile: no file of ours, and no bad disk
                raise LogClosed(f"{self.directory} was closed; open it again") from error
            self._fail(error)
        except OSError as error:
            self._fail(error)
        self._recovery_point = max(self._recovery_point, end_offset)

    # --- failing --------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise LogDirOffline(
                f"{self.directory} is offline since its disk failed ({self._failure}); "
                "open it anew to recover it"
            ) from self._failure
        if self._is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")

    def take_offline(self, error: OSError) -> None:
        """Take no more appends and show nothing that is not durable: the disk under the log failed."""
        self._failure = self._failure or bare(error)

    def _fail(self, error: OSError) -> NoReturn:
        self.take_offline(error)
        self._owner.failed(self, error)
        raise LogDirOffline(
            f"{self.directory} went offline: {error}. What was acknowledged as synced is safe; "
            "check the disk, then open the log again"
        ) from error

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            self.disk_failed(error)

    def disk_failed(self, error: OSError) -> NoReturn:
        """Raise `DiskFull` for want of room; for anything else go offline and raise `LogDirOffline`."""
        if is_full(error):
            raise DiskFull(
                f"{self.directory}: no room ({error.strerror}); what was appended stays readable. "
                "Make room, then try again"
            ) from error
        self._fail(error)

    def _or_offline(self, action: Callable[[], T]) -> T:
        """As `_guarded`, where a failure leaves something half done: then no room is as bad as a bad disk."""
        try:
            return action()
        except OSError as error:
            self._fail(error)

    # --- reading --------------------------------------------------------------------------------------

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Whole batches from `start_offset` on, `max_bytes` of them at the most.

        The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is
        larger. At or past the end that `isolation` sets nothing is returned. With TXN_COMMITTED the aborted
        transactions among them are named. Raises `OffsetOutOfRange` outside [log start, log end],
        `CorruptBatch` or `CorruptIndex` where the log is damaged.
        """
        end_offset = self._log_end_offset
        if not self._log_start_offset <= start_offset <= end_offset:
            raise OffsetOutOfRange(start_offset, self._log_start_offset, end_offset)
        if self._is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")
        while (fetched := self._read(start_offset, max_bytes, isolation, at_least_one)) is None:
            if start_offset < self._log_start_offset:
                raise OffsetOutOfRange(start_offset, self._log_start_offset, self._log_end_offset)
        return fetched

    def _read(
        self, start_offset: int, max_bytes: int, isolation: FetchIsolation, at_least_one: bool
    ) -> FetchedBytes | None:
        """None if a segment went under the reader: others may hold now what it held."""
        end_offset = self._bound(isolation)
        segments = self._segments
        for segment in segments.since(start_offset):
            # Not past the end either where that lies inside a batch, as a log start may.
            if segment.base_offset >= end_offset or start_offset >= end_offset:
                break
            try:
                found = segment.read(start_offset, max_bytes, end_offset, at_least_one=at_least_one)
            except OSError as error:
                self._read_failed(segment, error)
                return None
            if found is not None:
                records, position, next_offset = found
                aborted: tuple[AbortedTransaction, ...] = ()
                if isolation is FetchIsolation.TXN_COMMITTED:
                    aborted = self.aborted_transactions(start_offset, next_offset)
                return FetchedBytes(
                    records, start_offset, segment.base_offset, position, next_offset, aborted
                )
        active = segments.active
        return FetchedBytes(b"", start_offset, active.base_offset, active.size, start_offset)

    def _read_failed(self, segment: Segment, error: OSError) -> None:
        """A file that went under its reader, with a truncation, a deletion or a close, is no bad disk."""
        with self._lock:  # whoever takes files away holds it until the segments are what they are then
            if self._is_closed:
                raise LogClosed(f"{self.directory} was closed; open it again") from error
            if self._segments.get(segment.base_offset) is segment:
                self._fail(error)

    def _bound(self, isolation: FetchIsolation) -> int:
        if isolation is FetchIsolation.LOG_END:
            end_offset = self._log_end_offset
        elif isolation is FetchIsolation.HIGH_WATERMARK:
            end_offset = self.high_watermark
        else:
            end_offset = self.last_stable_offset
        # After a failed fsync the page cache may hold what the disk never will.
        return end_offset if self._failure is None else min(end_offset, self._recovery_point)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: FetchIsolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """The first record whose time is at or past `timestamp_ms`; None if there is none."""
        if self._is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")
        start_offset, end_offset = self._log_start_offset, self._bound(isolation)
        for segment in self._segments:
            try:
                if segment.max_timestamp_ms < timestamp_ms:
                    continue
                batch = segment.find_timestamp(timestamp_ms, start_offset, end_offset)
            except OSError as error:
                self._read_failed(segment, error)
                return self.offset_for_timestamp(timestamp_ms, isolation=isolation)
            if batch is None:
                continue
            for record in batch.records():
                if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset < end_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset, batch.leader_epoch)
        return None

    # --- moving the bounds ----------------------------------------------------------------------------

    def set_high_watermark(self, offset: int) -> int:
        """Set it, held within [log start, log end]; a follower's may go down. Returns what it is now."""
        with self._lock:
            self._high_watermark = min(max(offset, self._log_start_offset), self._log_end_offset)
            self._producers.advance_high_watermark(self._high_watermark)
            return self._high_watermark

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise it to `offset`, which the log holds; False if it is there already."""
        with self._lock:
            assert offset <= self._log_end_offset, f"{self!r}: high watermark {offset} past the log end"
            if offset <= self._high_watermark:
                return False
            self._high_watermark = offset
            self._producers.advance_high_watermark(offset)
            return True

    def advance_log_start_offset(self, offset: int) -> bool:
        """Serve nothing below `offset` any more; False if that is so already.

        Raises `OffsetOutOfRange` past the high watermark.
        """
        with self._lock:
            self._check_writable()
            if offset > self.high_watermark:
                raise OffsetOutOfRange(offset, self._log_start_offset, self.high_watermark)
            before = self._log_start_offset
            if offset <= before:
                return False
            # Published before anything below it is forgotten: a crash in between must not find records
            # served whose epochs are gone. The recovery point stays: nothing was synced here.
            self._log_start_offset = offset
            try:
                self._guarded(lambda: self._owner.log_start_moved(self))
            except EngineError:
                self._log_start_offset = before
                raise
            self._high_watermark = max(self._high_watermark, offset)
            self._change_epochs(lambda epochs: epochs.truncate_from_start(offset))
            return True

    # --- deleting from the start ----------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Serve nothing below `offset` any more (-1: the high watermark); returns the log start offset.

        Durable when it returns. The segments that hold nothing else go with the next
        `delete_old_segments`. Raises `PolicyViolation` if `cleanup.policy` lacks delete,
        `OffsetOutOfRange` for another negative offset and past the high watermark, `DiskFull` or
        `LogDirOffline`.
        """
        if not self.config.is_deleted:
            raise PolicyViolation(
                f"{self.topic_partition} has cleanup.policy={self.config.cleanup_policy}: its records go by "
                "their keys; send tombstones, or add delete to the policy"
            )
        with self._lock:
            wanted = self.high_watermark if offset == -1 else offset
            if wanted < 0:
                raise OffsetOutOfRange(offset, self._log_start_offset, self.high_watermark)
            self.advance_log_start_offset(wanted)
            return self._log_start_offset

    def delete_old_segments(self, now_ms: int) -> tuple[Expired, ...]:
        """Delete the segments that the settings let go (`retention.py`); returns which, and why.

        The log start offset is durably above them before the first one is renamed. Their files stay as
        `.deleted` for `file.delete.delay.ms`, until `remove_deleted_files`. `now_ms` is the wall clock,
        believed at most a day past its last reading here. Raises `DiskFull` (what is left to do is done
        by the next call) or `LogDirOffline`.
        """
        self._check_writable()
        trusted_ms = believed_ms(now_ms, self._last_retention_ms)
        self._last_retention_ms = now_ms
        with self._lock:
            if not self._expired(trusted_ms):
                return ()
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            going = self._expired(trusted_ms)
            if len(going) == len(self._segments):
                self._roll(self._log_end_offset, now_ms)
                # By name too, before the others go: a directory without a segment has no epochs either.
                self._or_offline(lambda: self._disk.sync_dir(self.directory))
                self._segments.active.name_is_durable = True
            first_left = self._segments.higher(going[-1].base_offset) if going else None
            if first_left is not None:
                # Published first: if the power fails now, some of the old segments may come back, and
                # with a hole between them; nothing below the log start offset is ever served.
                self.advance_log_start_offset(first_left.base_offset)
                self._or_offline(lambda: self._set_aside([each.base_offset for each in going], now_ms))
            return tuple(going)

    def _expired(self, now_ms: int) -> list[Expired]:
        return self._guarded(
            lambda: expired(
                tuple(self._segments),
                self.config,
                log_start_offset=self._log_start_offset,
                high_watermark=self.high_watermark,
                log_end_offset=self._log_end_offset,
                now_ms=now_ms,
            )
        )

    def _set_aside(self, bases: Sequence[int], now_ms: int) -> None:
        going = [segment for segment in self._segments if segment.base_offset in bases]
        for segment in going:
            self._deleted_files.add(segment.set_aside(), now_ms, self.config.file_delete_delay_ms)
            self._snapshots.remove(segment.base_offset)
        # Durably gone before the log begins above them: from then on its owner may forget where the log
        # starts, because the first segment says so.
        self._disk.sync_dir(self.directory)
        self._segments = self._segments.replacing(going)

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink what was deleted long enough ago; returns how many files. Raises `LogDirOffline`."""
        with self._lock:
            return self._guarded(lambda: self._deleted_files.remove_due(now_ms))

    @property
    def deletion_deadline_ms(self) -> int:
        """When `remove_deleted_files` next has something to do; `MAX_LONG` for never."""
        return self._deleted_files.deadline_ms

    # --- compacting -----------------------------------------------------------------------------------

    def cleanable(self, now_ms: int) -> Cleanable:
        """What a compaction would work on now. A first dirty offset outside the log is put right, durably.

        Raises `DiskFull`, `LogDirOffline`.
        """
        self._check_writable()
        first_dirty_offset = first_dirty(
            self._first_dirty_offset, self._log_start_offset, self._log_end_offset
        )
        if first_dirty_offset != self._first_dirty_offset:
            self.compacted_up_to(first_dirty_offset, generation=self._generation)
        return self._guarded(
            lambda: cleanable(
                tuple(self._segments),
                self.config,
                first_dirty_offset=first_dirty_offset,
                last_stable_offset=self.last_stable_offset,
                now_ms=now_ms,
            )
        )

    def last_batches(self) -> dict[int, LastBatch]:
        """Where each active producer's last data batch ends: what compaction must not lose."""
        with self._lock:
            return {
                entry.producer_id: LastBatch(
                    entry.batches[-1].last_offset if entry.batches else -1, entry.epoch
                )
                for entry in self._producers
            }

    @property
    def generation(self) -> int:
        """Another number once sealed segments were truncated: what was read of them may not be true."""
        return self._generation

    def holds(self, segments: Iterable[Segment], generation: int) -> bool:
        """Whether these very segments are the log's, none replaced, gone, or cut since `generation`."""
        current = self._segments
        is_same = not self._is_closed and self._generation == generation
        return is_same and all(current.get(each.base_offset) is each for each in segments)

    def replace_segments(
        self, old: Sequence[Segment], new: Sequence[Segment], *, generation: int, now_ms: int
    ) -> bool:
        """Let `new`, written as `.cleaned` and synced, take the place of `old` (`swap.py`).

        False, and nothing happened, unless the log `holds` all of `old`. Raises `LogDirOffline`.
        """
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            if not self.holds(old, generation):
                return False
            successor = self._segments.higher(old[-1].base_offset)
            assert successor is not None, "the active segment cannot be replaced"
            for segment in new:
                segment.let_go()
            aside = self._or_offline(lambda: swap(self._disk, self.directory, new, old))
            self._deleted_files.add(aside, now_ms, self.config.file_delete_delay_ms)
            placed = [self._placed(segment) for segment in new]
            self._segments = self._segments.replacing(old, placed)
            bases = {segment.base_offset for segment in placed}
            for segment in old:
                if segment.base_offset not in bases:
                    self._or_offline(lambda base=segment.base_offset: self._snapshots.remove(base))  # type: ignore[misc]
            # An empty active segment may have been made anew behind the pass's back.
            self._or_offline(lambda: placed[-1].follow_with(successor.base_offset))
            return True

    def _placed(self, cleaned: Segment) -> Segment:
        """The segment over the files of `cleaned`, which have their final names now."""
        segment = Segment(
            self._disk,
            self.directory,
            cleaned.base_offset,
            self.config,
            size=cleaned.size,
            now_ms=cleaned.created_ms,
            modified_ms=cleaned.modified_ms,
        )
        segment.seal = cleaned.seal
        return segment

    def compacted_up_to(self, offset: int, *, generation: int) -> bool:
        """Note, durably, that the next compaction begins at `offset`; False if the log was cut meanwhile.

        Raises `DiskFull`, `LogDirOffline`.
        """
        with self._lock:
            self._check_writable()
            if generation != self._generation:
                return False
            self._first_dirty_offset = offset
            self._guarded(lambda: self._owner.compacted(self))
            return True

    # --- truncating -----------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, why: str = "its owner cut it") -> bool:
        """Drop everything at or past `offset`; the log end becomes `offset`. False if nothing was there.

        The batch that holds `offset` goes whole, so some records below it may go with it. What goes is
        first entered in the loss ledger, with `why`, and kept in quarantine. Durable when it returns. Also
        when no record goes, epochs that start at the log end are forgotten: a leader that wrote nothing has
        left no history. Raises `ValueError` for a negative offset, `DiskFull` with nothing changed if there
        is no room to keep what goes, and `LogDirOffline`.
        """
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            self._stretch = None
            if offset >= self._log_end_offset:
                self._forget_epochs_from(self._log_end_offset)
                return False
            if offset < self._log_start_offset:
                # Nothing of it would be served. What lies below the start is no history to go on from.
                self._restart_at(offset, why)
                return True
            if offset < self._segments.active.base_offset:
                self._generation += 1
            loss_id = self._guarded(lambda: self._keep_from(offset, why))
            # Lowered durably before a byte goes: after a crash, what is written here anew must not
            # be taken for synced, or for committed, because the old bytes at these offsets once were;
            # and a log that ends below its recovery point has lost something.
            floor = self._segments.floor(offset)
            assert floor is not None, f"{self!r}: no segment at or below {offset}"
            end_offset = self._or_offline(lambda: floor.end_before(offset))
            self._lower_bounds(end_offset)
            # A batch that holds `offset` goes whole: readers must not come upon it while it goes.
            self._log_end_offset = min(offset, end_offset)
            # Readers of committed data wait: an abort may go whose data stays, and is undecided then.
            self._producers.end_offset = self._log_start_offset
            self._or_offline(lambda: self._cut(offset, loss_id))
            self._log_end_offset = offset
            self._rebuild_producers(offset)
            if end_offset < offset:
                self._begin_past_a_gap(offset, end_offset)
            # Last, because a full disk may refuse it: the same call again then does the rest.
            self._forget_epochs_from(offset)
            if offset > self._log_start_offset:
                self._guarded(lambda: self._snapshots.take(self._producers, offset))
            return True

    def _begin_past_a_gap(self, offset: int, end_offset: int) -> None:
        """Begin a segment at the log end, which lies past the last batch: now the files say so too.

        Durably, because the recovery point may rise to the log end from now on.
        """
        try:
            self._roll(offset, self._clock(), end_offset=end_offset)
        except DiskFull as error:
            self._fail(OSError(errno.ENOSPC, str(error), self.directory))
        self._or_offline(lambda: self._disk.sync_dir(self.directory))
        self._segments.active.name_is_durable = True
        # With nothing left below the cut the log starts there, as the next open will find.
        self._log_start_offset = max(self._log_start_offset, self._segments.first.base_offset)

    def _keep_from(self, offset: int, why: str) -> int | None:
        """Enter what a cut at `offset` takes, copy what it takes in part; the loss's id, if there is any."""
        holder, *beyond = self._segments.since(offset)
        later = [segment for segment in beyond if segment.size]
        located = holder.locate(offset)
        counted, tail = Survey(), None
        if located is not None:
            name = file_name(holder.base_offset, LOG_SUFFIX)
            tail = Tail(name, holder.log_file, located.position, holder.size)
            counted = survey(tail.file, tail.from_byte, tail.to_byte)
        elif not later:
            return None
        first_offset = located.base_offset if located is not None else later[0].base_offset
        moved_records = self._log_end_offset - later[0].base_offset if later else 0
        return self._enter_loss(
            "truncation",
            why,
            end_offset=offset,
            first_offset=first_offset,
            records=counted.records + moved_records,
            batches=None if later else counted.batches,
            tail=tail,
            moved=later,
        )

    def _enter_loss(
        self,
        who: Who,
        why: str,
        *,
        end_offset: int,
        first_offset: int,
        records: int,
        batches: int | None,
        tail: Tail | None,
        moved: Sequence[Segment],
        size: int | None = None,
        not_kept: str = "",
    ) -> int:
        last_offset, recovery_point = self._log_end_offset - 1, self._recovery_point
        if moved:
            # A copy is synced; what is moved has to be too.
            self._sync_segments(self._log_end_offset)
        kept = sum(segment.size for segment in moved) + (tail.to_byte - tail.from_byte if tail else 0)
        loss = Loss(
            at_ms=self._clock(),
            who=who,
            why=why,
            first_offset=first_offset,
            last_offset=last_offset,
            end_offset=end_offset,
            records=records,
            batches=batches,
            size=kept if size is None else size,
            epochs=(self.epoch_for_offset(first_offset), self.epoch_for_offset(last_offset)),
            below_high_watermark=first_offset < self.high_watermark,
            below_recovery_point=first_offset < recovery_point,
            not_kept=not_kept,
        )
        whole = [(file_name(segment.base_offset, LOG_SUFFIX), segment.size) for segment in moved]
        return self._quarantine.enter(loss, tail=tail, moved=whole).id

    def _cut(self, offset: int, loss_id: int | None) -> None:
        floor = self._segments.floor(offset)
        assert floor is not None, f"{self!r}: no segment at or below {offset}"
        # Before its segment is cut, or the last one again: a seal that outlives that speaks of bytes
        # that are gone.
        floor.unseal()
        later = [segment for segment in self._segments if segment.base_offset > offset]
        self._drop(later, {segment.base_offset: loss_id for segment in later})
        self._segments = self._segments.replacing(later)
        floor.truncate_to(offset, self._clock())
        floor.sync_log()
        self._disk.sync_dir(self.directory)

    def _drop(self, segments: Sequence[Segment], loss_ids: Mapping[int, int | None]) -> None:
        # Newest first, each one durably gone before the next: no crash may leave a later segment
        # behind a hole, because a hole is legal and what follows it would come back.
        for segment in reversed(segments):
            loss_id = loss_ids.get(segment.base_offset)
            if loss_id is not None and segment.size:
                self._quarantine.take(loss_id, segment)
            else:
                segment.delete()
            self._disk.sync_dir(self.directory)

    def truncate_fully_and_start_at(self, offset: int, *, why: str = "its owner started it anew") -> None:
        """Drop everything; the log starts anew, empty, at `offset`. Durable when it returns.

        What goes is first entered in the loss ledger, with `why`. Segments that hold anything at or past
        `offset` go into quarantine; those wholly below it are only noted: a follower restarts above its end
        because its leader has deleted what lies below. Raises `ValueError` for a negative offset, `DiskFull`
        with nothing changed if there is no room for the entry, and `LogDirOffline`.
        """
        if offset < 0:
            raise ValueError(f"cannot start at offset {offset}")
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            self._restart_at(offset, why)

    def _restart_at(self, offset: int, why: str) -> None:
        self._generation += 1
        held = [segment for segment in self._segments if segment.size]
        kept = [segment for segment in held if self._end_of(segment) > offset]
        loss_id = self._guarded(lambda: self._enter_restart(offset, why, held, kept)) if held else None
        # To nothing: the segments go one by one, and each may be the last that a crash leaves.
        recovery_point = min(self._recovery_point, offset)
        self._lower_bounds(0)
        # A start that stays above the log's end would condemn, after a crash, what is written here anew.
        publishing = self._or_offline if offset < self._log_start_offset else self._guarded
        self._log_end_offset = self._high_watermark = self._log_start_offset = offset

        def start_anew() -> None:
            self._drop(tuple(self._segments), {segment.base_offset: loss_id for segment in kept})
            self._segments = Segments([self._new_segment(offset, self._clock())])
            self._disk.sync_dir(self.directory)
            self._segments.active.name_is_durable = True

        self._or_offline(start_anew)
        self._recovery_point = recovery_point
        self._rebuild_producers(offset)
        publishing(lambda: self._owner.log_start_moved(self))
        self._change_epochs(lambda epochs: epochs.clear())

    def _enter_restart(self, offset: int, why: str, held: list[Segment], kept: list[Segment]) -> int:
        first_offset = held[0].base_offset
        below = f"what lies below {offset}, where the log starts anew"
        return self._enter_loss(
            "restart",
            why,
            end_offset=offset,
            first_offset=first_offset,
            records=self._log_end_offset - first_offset,
            batches=None,
            tail=None,
            moved=kept,
            size=sum(segment.size for segment in held),
            not_kept="" if len(kept) == len(held) else below,
        )

    def _end_of(self, segment: Segment) -> int:
        """Where the next segment begins, or the log ends: no byte is read to tell."""
        following = self._segments.higher(segment.base_offset)
        return self._log_end_offset if following is None else following.base_offset

    def _lower_bounds(self, offset: int) -> None:
        # In memory first: a checkpoint that is being written meanwhile must not carry the old ones.
        self._recovery_point = min(self._recovery_point, offset)
        self._high_watermark = min(self._high_watermark, offset)
        self._first_dirty_offset = min(self._first_dirty_offset, offset)
        self._guarded(lambda: self._owner.lower_bounds(self, offset))

    # --- what was lost --------------------------------------------------------------------------------

    def losses(self) -> list[Loss]:
        """What truncations, restarts and recoveries took from this log, oldest first. Raises `OSError`."""
        return self._quarantine.losses()

    @property
    def quarantine(self) -> Quarantine:
        """Where their bytes are; to read only."""
        return self._quarantine

    def note_restored(self, loss_id: int) -> None:
        """Note durably that a loss was put back (`undo.py`). Raises `DiskFull` or `LogDirOffline`."""
        with self._lock:
            self._check_writable()
            self._guarded(lambda: self._quarantine.mark(loss_id, "restored", self._clock()))

    @property
    def losses_deadline_ms(self) -> int:
        """When `expire_losses` next has something to do; `MAX_LONG` for never."""
        return self._quarantine.due_ms

    def expire_losses(self, now_ms: int, *, kept_ms: int = KEPT_MS) -> int:
        """Remove the bytes of losses older than `kept_ms`; entries stay. Returns how many bytes that freed.

        Raises `DiskFull` or `LogDirOffline`.
        """
        with self._lock:
            if now_ms < self._quarantine.due_ms and kept_ms >= KEPT_MS:
                return 0
            self._check_writable()
            return self._guarded(lambda: self._quarantine.expire(now_ms, kept_ms))

    def _rebuild_producers(self, end_offset: int) -> None:
        """Let the producers' state be that of the log below `end_offset`."""

        def rebuild() -> None:
            # Durably: one that comes back after a crash would tell of batches that are gone, and other
            # batches have their offsets by then.
            if self._snapshots.retain(above=self._log_start_offset, at_most=end_offset):
                self._disk.sync_dir(self.directory)
            producers = self._snapshots.newest(
                at_most=end_offset,
                above=self._segments.first.base_offset,
                now_ms=self._clock(),
                expiration_ms=self.producer_config.producer_id_expiration_ms,
            )
            for segment in self._segments.since(producers.end_offset):
                if self._end_of(segment) > producers.end_offset:
                    replay_into(producers, segment)
            producers.end_offset = end_offset
            producers.advance_high_watermark(self.high_watermark)
            self._producers = producers

        self._or_offline(rebuild)

    # --- the end --------------------------------------------------------------------------------------

    def files_without_a_sum(self) -> list[str]:
        """Names of the files that say nothing, or not enough, of whether they are this log's and as written.

        The mark of a clean stop does it for them.
        """
        aborts = file_name(self._segments.active.base_offset, TRANSACTION_INDEX_SUFFIX)
        snapshots = [file_name(offset, SNAPSHOT_SUFFIX) for offset in self._snapshots.offsets]
        return [PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT, aborts, *snapshots]

    def close(self) -> None:
        """Flush, write what the next open needs, and let go of the directory. Closing twice is harmless.

        Raises `LogDirOffline` or `DiskFull` if what is left to write cannot be written: the next open
        recovers the log then. The directory is let go of all the same.
        """
        with self._group_commit.exclusive(), self._lock:
            if self._is_closed:
                return
            is_clean = False
            try:
                if self._failure is None:
                    self._sync_segments(self._log_end_offset)
                    self._guarded(self._close_books)
                    is_clean = True
            finally:
                self._is_closed = True
                self._deleted_files.forget()
                for segment in self._segments:
                    segment.let_go()
                self._guarded(lambda: self._owner.closed(self, is_clean=is_clean))

    def abandon(self) -> None:
        """Let go of the files without writing: the log was deleted, or its node is as good as dead."""
        with self._lock:
            self._is_closed = True
            self._deleted_files.forget()
            for segment in self._segments:
                segment.let_go()

    def _close_books(self) -> None:
        self._deleted_files.remove_due(self._clock())
        self._snapshots.take(self._producers, self._log_end_offset)
        active = self._segments.active
        active.become_inactive()
        if active.was_trimmed:
            active.sync_log()
        active.sync_indexes()
        for segment in self._segments:
            segment.close()
        self._disk.sync_dir(self.directory)


def joined(before: AppendInfo | None, after: AppendInfo) -> AppendInfo:
    """One answer for two appends in a row."""
    if before is None or before.last_offset < before.first_offset:
        return after
    if after.last_offset < after.first_offset:
        return before
    largest_ms = max(before.max_timestamp_ms, after.max_timestamp_ms)
    return after._replace(first_offset=before.first_offset, max_timestamp_ms=largest_ms)


def _runs_that_fit_a_segment(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """The batches, parted where an offset is too far above the first of its run for one segment."""
    first = 0
    for number, batch in enumerate(batches):
        if batch.last_offset - batches[first].base_offset > MAX_INT:
            yield batches[first:number]
            first = number
    yield batches[first:]
