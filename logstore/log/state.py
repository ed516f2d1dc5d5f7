"""What is true of a log and what keeps it so: its segments and bounds, epochs, rolls, syncs, failures.

    log_state      LogState       segments and bounds · epochs · roll · sync · offline
    log_reads      LogReads       batches by offset and by time, for each isolation
    log_appends    LogAppends     leader, follower, transactions
    log_cuts       LogCuts        truncation and restart, and what becomes of what they take
    log_upkeep     LogUpkeep      the log start, retention, compaction
    partition_log  PartitionLog   all of it, and its end

Each layer is the one above it and more; none knows of those below. They share one lock and one state,
because an append, a cut and a swap must never see each other half done.

State moves after the I/O it describes. A write that failed is cut back, an fsync that failed takes the
log offline: the kernel may have dropped the pages it could not write and would call them clean next time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from logstore.checkpoint.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, write_leader_epoch_checkpoint
from logstore.checkpoint.partition_metadata import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import (
    DiskFull,
    InconsistentTopicId,
    LogClosed,
    LogDirOffline,
    bare,
    is_full,
)
from logstore.log.group_commit import GroupCommit
from logstore.log.producer_state import ProducerEntry, ProducerStateConfig
from logstore.log.recovery import Jitter, LoadedLog, RecoveryReport
from logstore.log.stretch import Stretch
from logstore.log.verification_guard import VerificationGuards
from logstore.segment.deleted_files import DeletedFiles
from logstore.segment.epochs import EpochEndOffset, EpochEntry, LeaderEpochCache
from logstore.segment.segment import (
    SNAPSHOT_SUFFIX,
    Segment,
    file_name,
)
from logstore.segment.segments import Segments, last_before
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX

Clock: TypeAlias = Callable[[], int]
"""Wall-clock time in epoch milliseconds."""

T = TypeVar("T")


class LogOwner(Protocol):
    """Who keeps this log's place in the checkpoints, and wants to know that its disk failed."""

    def lower_bounds(self, log: LogState, offset: int) -> None:
        """Make sure that after a crash nothing past `offset` is taken for durable, committed or compacted."""

    def log_start_moved(self, log: LogState) -> None:
        """Make the log start offset durable: segments below it, or all that tell it, are about to go."""

    def flushed(self, log: LogState) -> None:
        """The recovery point went up because segments were sealed."""

    def compacted(self, log: LogState) -> None:
        """The first dirty offset moved: the next compaction should begin there."""

    def failed(self, log: LogState, error: OSError) -> None:
        """The disk under this log cannot be trusted any more."""

    def closed(self, log: LogState, *, is_clean: bool) -> None:
        """The log wrote and synced all it had, and let go of its files."""


class LogState:
    """A log's state, and the moves that the other layers build on. Offsets are absolute."""

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
        # Counted up before bytes go, and before others may take their place: readers look (`log_reads.py`).
        self._cuts = 0
        self.compaction_lock = threading.Lock()
        """Held by the compaction that is under way: two would write files of the same names."""
        self._last_retention_ms = clock()
        self._producers.advance_high_watermark(self.high_watermark)
        self._quarantine = loaded.quarantine
        self._unflushed: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"Log({self.directory!r}, [{self._log_start_offset}, {self._log_end_offset}))"

    # --- facts ------------------------------------------------------------------------------------

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

    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers that are remembered; to look at, not to change."""
        with self._lock:
            return tuple(self._producers)

    def files_without_a_sum(self) -> list[str]:
        """Names of the files that say nothing, or not enough, of whether they are this log's and as written.

        The mark of a clean stop does it for them.
        """
        aborts = file_name(self._segments.active.base_offset, TRANSACTION_INDEX_SUFFIX)
        snapshots = [file_name(offset, SNAPSHOT_SUFFIX) for offset in self._snapshots.offsets]
        return [PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT, aborts, *snapshots]

    # --- the high watermark -----------------------------------------------------------------------

    def segment_base(self, offset: int) -> int:
        """The base offset of the segment that `offset` lies in, or would; the first one's below all."""
        with self._lock:
            found = self._segments.floor(offset)
            return (found if found is not None else self._segments.first).base_offset

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

    # --- epochs -----------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; durable when it returns."""
        with self._lock:
            self._check_writable()
            self._assign_epoch(epoch, start_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        self._change_epochs(lambda epochs: epochs.assign(epoch, start_offset))

    def _enter_epoch(self, leader_epoch: int, first_offset: int) -> None:
        latest = self._epochs.latest_epoch
        if leader_epoch > latest:
            self._assign_epoch(leader_epoch, first_offset)
        elif 0 <= leader_epoch < latest:
            # Recovery takes a batch behind one of a later epoch for a leftover, and would cut it.
            raise ValueError(f"leader epoch {leader_epoch} is below {latest}, the newest in {self.directory}")

    def _forget_epochs_from(self, offset: int) -> None:
        """Forget the epochs that begin at the log end, `offset`: whoever led in them left no batch here.

        Where the log start has reached the end, the epoch stays that wrote the last batch in the files below:
        no older one may be written behind it. It alone: of an epoch that wrote nothing no other log knows,
        and a follower that clings to it parts from its leader for ever.
        """

        def forget(epochs: LeaderEpochCache) -> bool:
            before = epochs.entries
            if not epochs.truncate_from_end(offset):
                return False
            if offset == self._log_start_offset and (below := self._epoch_before(offset)) >= 0:
                epochs.assign(below, offset)
            return epochs.entries != before

        self._change_epochs(forget)

    def _epoch_before(self, offset: int) -> int:
        """The epoch of the last batch below `offset`, as its header says; -1 if there is none."""
        for segment in reversed(list(self._segments)):
            if segment.size and (last := self._or_offline(partial(last_before, segment, offset))) is not None:
                return last.leader_epoch
        return -1

    def _change_epochs(self, change: Callable[[LeaderEpochCache], bool]) -> None:
        """Let the file hold the change before the log believes it."""
        changed = LeaderEpochCache(self._epochs.entries)
        if change(changed):
            self._guarded(lambda: write_leader_epoch_checkpoint(self._disk, self.directory, changed.entries))
            self._epochs = changed

    # --- rolling ----------------------------------------------------------------------------------

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
        if old.size == 0:
            self._segments = self._segments.replacing([old], [new])
            return
        self._segments.append(new)
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

    # --- making durable ---------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all that was appended survive power loss, then move the recovery point.

        Raises `LogDirOffline` if that fails: the log takes no more appends until it is recovered.
        """
        self.sync_up_to(self._log_end_offset)

    def _publish_log_start(self, offset: int) -> None:
        """Let the log start at `offset` as soon as that is durable; refused, it starts where it did."""
        before = self._log_start_offset
        self._log_start_offset = offset
        try:
            self._guarded(lambda: self._owner.log_start_moved(self))
        except EngineError:
            self._log_start_offset = before
            raise

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

    def _lower_bounds(self, offset: int) -> None:
        # In memory first: a checkpoint that is being written meanwhile must not carry the old ones.
        self._recovery_point = min(self._recovery_point, offset)
        # Never below the log start, which may lie inside a batch that goes whole.
        self._high_watermark = max(min(self._high_watermark, offset), self._log_start_offset)
        self._first_dirty_offset = min(self._first_dirty_offset, offset)
        self._guarded(lambda: self._owner.lower_bounds(self, offset))

    # --- failing ----------------------------------------------------------------------------------

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
            f"{self.directory} went offline: {self._failure}. What was acknowledged as synced is safe; "
            "check the disk, then open the log again"
        ) from error

    def disk_failed(self, error: OSError) -> NoReturn:
        """Raise `DiskFull` for want of room; for anything else go offline and raise `LogDirOffline`."""
        if is_full(error):
            raise DiskFull(
                f"{self.directory}: no room ({error.strerror}); what was appended stays readable. "
                "Make room, then try again"
            ) from error
        self._fail(error)

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            self.disk_failed(error)

    def _or_offline(self, action: Callable[[], T]) -> T:
        """As `_guarded`, where a failure leaves something half done: then no room is as bad as a bad disk."""
        try:
            return action()
        except OSError as error:
            self._fail(error)
