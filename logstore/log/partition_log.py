"""The state of one partition's log on this node, and the transitions that every operation shares.

        log start offset        high watermark      log end offset
               ▼                      ▼                   ▼
    ─────┬─────●───────┬──────────────●────┬──────────────●
     old │    segment  │    segment        │ active segment
    ─────┴─────────────┴───────────────────┴──────────────
                       ▲
                recovery point: everything before it is durable

The operations are functions over this state, one module each:

    append      prepare → place → write: a leader's clients, transaction markers; `append_fetched` for
                followers, `append_many` for ready batches by the megabyte
    read        batches by offset and by time, up to the bound of an isolation level
    truncate    truncation and restart; the removed bytes go to quarantine
    upkeep      log start offset, retention, compaction, flush by age
    recovery    the state of a directory when it is opened

`log.py` builds the interface for applications on top of them.

One writer at a time, any number of readers. Everything that changes the log holds `lock`, because an append,
a truncation and a swap must never see each other half done. An fsync runs outside of the lock and serves
every append that waits for it (`group_commit.py`).

State changes after the I/O that it describes. A failed write is cut off again. A failed fsync takes the log
offline: the kernel may have dropped the dirty pages and reports them as clean on the next fsync.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    write_leader_epoch_checkpoint,
)
from logstore.checkpoint.identity import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage, InconsistentTopicId, LogClosed, LogDirOffline, bare, is_refusal, refusal
from logstore.log.group_commit import GroupCommit
from logstore.log.interrupts import APPENDING, changing, mend
from logstore.log.loading import Jitter, LoadedLog, RecoveryReport, was_compacted
from logstore.log.new_log import finish, refuse_if_closed, sync_failed
from logstore.log.producer_state import ProducerEntry, ProducerStateConfig, VerificationGuards
from logstore.log.stretch import Stretch
from logstore.log.waiters import Waiters
from logstore.segment.epochs import EpochEndOffset, EpochEntry, LeaderEpochCache
from logstore.segment.segment import SNAPSHOT_SUFFIX, DeletedFiles, Segment, file_name
from logstore.segment.segments import Segments
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX

Clock: TypeAlias = Callable[[], int]
"""Wall-clock time in epoch milliseconds."""

T = TypeVar("T")


class LogOwner(Protocol):
    """Keeps a log's entries in the checkpoint files, and handles the failure of its disk."""

    def lower_bounds(self, log: PartitionLog, offset: int) -> None:
        """Lower the log's checkpointed offsets (all but its start) to `offset`, durably."""

    def log_start_moved(self, log: PartitionLog) -> None:
        """Make the log start offset durable before segments below it are deleted."""

    def flushed(self, log: PartitionLog) -> None:
        """Handle a recovery point that rose because segments were sealed."""

    def compacted(self, log: PartitionLog) -> None:
        """Make the first dirty offset durable: the next compaction starts there."""

    def failed(self, log: PartitionLog, error: OSError) -> None:
        """Handle a disk failure under this log."""

    def closed(self, log: PartitionLog, *, is_clean: bool) -> None:
        """Handle the end of the log: everything was written and synced, and its files are closed."""

    def abandoned(self, log: PartitionLog) -> None:
        """Release the resources of a log that was abandoned without a clean close."""


class LogHost(NamedTuple):
    """The environment of a log: disk, clock, owner; `jitter_ms` draws a segment's `segment.jitter.ms`."""

    disk: Disk
    clock: Clock
    jitter_ms: Jitter
    owner: LogOwner
    producers: ProducerStateConfig


class PartitionLog:
    """One partition's log. Offsets are absolute; every method may be called from any thread.

    The attributes are for reading; only the modules listed above change them.
    """

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
        host: LogHost,
        *,
        follows_end: bool = False,
    ) -> None:
        """Build the log over the result of `recovery.load`.

        With `follows_end` the high watermark is the log end offset: the log is not replicated.
        """
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.disk, self.clock, self.jitter_ms, self.owner, self.producer_config = host
        self.follows_end = follows_end
        self.lock = threading.RLock()
        self.group_commit = GroupCommit(partial(_sync_for_group, self))
        self.failure: OSError | None = None
        self.is_closed = False
        self.is_inherited = False
        """Whether this is a forked child's copy: it can be read, and only the parent may change the log."""
        self.is_writable = True
        """Whether nothing speaks against a change: see `check_writable`."""
        self.changing, self.is_interrupted = "", False
        """The change that the holder of the lock is making, or one that an interrupt ended."""
        self.topic_id = read_partition_metadata(self.disk, directory)
        """The topic's id, 22 characters; None if it is not known yet."""
        self.sync_name: Callable[[], None] | None = None
        """Set while the log is new: nothing of it is durable before `flush`, which calls this."""
        self.was_created = False
        """Whether this process made it: then no former owner can have lost a part of it."""
        self.report: RecoveryReport = loaded.report
        self.segments = Segments(loaded.segments.values())
        self.epoch_to_begin: int | None = None
        """A leader epoch that `flush` assigns at the log end; any other change of the epochs voids it."""
        self.flushed_first: Callable[[], None] | None = None
        """What `flush` does first, once: the sync of a segment that is going to replace another."""
        self.rebuilt: list[Damage] = loaded.report.wrong.copy()
        """Derived files that the opening or a read found wrong and rebuilt, until somebody removes them."""
        self.met: list[Damage] = []
        """The damage that cuts have met, until somebody reports and removes it."""
        for segment in self.segments:
            segment.indexes.rebuilt = self.rebuilt
        self.log_start_offset = loaded.log_start_offset
        """The first offset that is served."""
        self.log_end_offset = loaded.log_end_offset
        """The offset of the next record."""
        self.replicated_offset = loaded.log_start_offset
        """The high watermark that replication has set; see `high_watermark`."""
        self.recovery_point = loaded.recovery_point
        """Everything below it survives power loss."""
        self.first_dirty_offset = loaded.first_dirty_offset
        """Everything below it has been compacted. Outside of the log it means nothing."""
        self.has_gaps = False
        """Whether a gap was found that no damage explains: see `is_dense`."""
        self.epoch_cache = loaded.epochs
        self.epochs: tuple[EpochEntry, ...] = loaded.epochs.entries
        """Leader epochs and their first offsets."""
        self.latest_epoch = loaded.epochs.latest_epoch
        """The newest leader epoch in the log; -1 if there is none."""
        self.producer_state = loaded.producers
        self.guards = VerificationGuards()
        self.snapshots = loaded.snapshots
        self.quarantine = loaded.quarantine
        self.cursors = loaded.cursors
        self.cursor_commit = GroupCommit(partial(_sync_cursors, self))
        self.deleted_files = DeletedFiles(self.disk)
        self.generation = 0
        """Counts truncations of sealed segments: bytes read from them earlier are void."""
        self.cuts = 0
        """Counts up before bytes are cut and again before others may take their place (`read.py`)."""
        self.replacements = 0
        """Counts segments replaced by compaction or healing: records read from them earlier may be gone."""
        self.compaction_lock = threading.Lock()
        """Held by the running compaction: two would write files of the same names."""
        self.last_retention_ms = self.clock()
        self.waiters = Waiters()
        """Followers that wait for a change, and readers that must hear of a cut."""
        self.unflushed: tuple[int, int] | None = None
        """An offset that is not durable, and when `flush_by_age` first saw it."""
        self.stretch: Stretch | None = None
        self.at_failure: Callable[[], None] | None = None
        """Called when the log goes offline, under the locks of whoever noticed it: it must not wait."""
        self.at_fork = [self.waiters.renew_lock]
        """Called in a forked child, where the threads that may hold locks do not exist."""
        self.scratch = bytearray()
        self.producer_state.advance_high_watermark(self.high_watermark)
        _owned.add(self)

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ", offline" if self.failure is not None else ""
        return f"Log({self.directory!r}, [{self.log_start_offset}, {self.log_end_offset}){state})"

    # --- bounds -----------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The end of the records on every in-sync replica; the log end offset in a stand-alone log."""
        return self.log_end_offset if self.follows_end else self.replicated_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of committed reads: every transaction below it is decided and its marker replicated."""
        producers = self.producer_state
        # Read the end first: a batch below it has its transaction among the unstable ones.
        end_offset = min(self.high_watermark, producers.end_offset)
        return producers.last_stable_offset(end_offset, self.log_start_offset)

    @property
    def is_offline(self) -> bool:
        """Whether its disk failed: nothing can be appended until the log has been recovered."""
        return self.failure is not None

    def set_high_watermark(self, offset: int) -> int:
        """Set the high watermark, limited to [log start, log end]; it may fall. Returns the new value."""
        with self.lock:
            self.replicated_offset = min(max(offset, self.log_start_offset), self.log_end_offset)
            self.producer_state.advance_high_watermark(self.replicated_offset)
            self.waiters.wake()
            return self.replicated_offset

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, which the log holds; False if it is there already."""
        with self.lock:
            assert offset <= self.log_end_offset, f"{self!r}: high watermark {offset} past the log end"
            if offset <= self.replicated_offset:
                return False
            self.replicated_offset = offset
            if self.producer_state.unreplicated:
                self.producer_state.advance_high_watermark(offset)
            if self.waiters.waiting:
                self.waiters.wake()
            return True

    def lower_bounds(self, offset: int) -> None:
        """Lower recovery point, high watermark and first dirty offset to `offset`, here and on the disk."""
        # In memory first: a checkpoint that is being written meanwhile must not carry the old ones.
        self.recovery_point = min(self.recovery_point, offset)
        # Never below the log start, which may lie inside a batch that goes whole.
        self.replicated_offset = max(min(self.replicated_offset, offset), self.log_start_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self.guarded(lambda: self.owner.lower_bounds(self, offset))

    def publish_log_start(self, offset: int) -> None:
        """Move the log start to `offset` durably; if that is refused, it stays."""
        before = self.log_start_offset
        self.log_start_offset = offset
        try:
            self.guarded(lambda: self.owner.log_start_moved(self))
        except EngineError:
            self.log_start_offset = before
            raise
        self.waiters.wake()

    def set_topic_id(self, topic_id: str) -> None:
        """Store the topic's id durably. Raises `InconsistentTopicId` if the log has another."""
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise InconsistentTopicId(
                f"{self.directory} belongs to topic id {self.topic_id}, not {topic_id}: "
                "a deleted topic of the same name left it; move the directory away"
            )
        with self.lock:
            if self.sync_name is None:
                self.guarded(lambda: write_partition_metadata(self.disk, self.directory, topic_id))
            self.topic_id = topic_id

    def producers(self) -> tuple[ProducerEntry, ...]:
        """Return the known producers; do not change them."""
        with self.lock:
            return tuple(self.producer_state)

    # --- epochs -----------------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Return where the largest epoch at or below `epoch` ends; undefined if unknown."""
        return self.epoch_cache.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`; -1 if unknown."""
        return self.epoch_cache.epoch_for_offset(offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` starts at `start_offset`; durable when it returns, in a new log at `flush`."""
        with self.lock:
            self.check_writable()
            self.change_epochs(lambda epochs: epochs.assign(epoch, start_offset))

    def enter_epoch(self, epoch: int, first_offset: int) -> None:
        """Record a batch's epoch if it is new. Raises `ValueError` if it is below the newest."""
        latest = self.latest_epoch
        if epoch > latest:
            self.change_epochs(lambda epochs: epochs.assign(epoch, first_offset))
        elif 0 <= epoch < latest:
            # Recovery takes a batch behind one of a later epoch for a leftover and would cut it.
            raise ValueError(f"leader epoch {epoch} is below {latest}, the newest in {self.directory}")

    def change_epochs(self, change: Callable[[LeaderEpochCache], bool]) -> None:
        """Apply `change` to the epoch file, then to the state."""
        changed = self.epoch_cache.copy()
        if change(changed):
            if self.sync_name is None:
                self.guarded(
                    lambda: write_leader_epoch_checkpoint(self.disk, self.directory, changed.entries)
                )
            self.epoch_cache, self.epochs = changed, changed.entries
            self.latest_epoch = changed.latest_epoch
            self.epoch_to_begin = None

    # --- rolling ----------------------------------------------------------------------------------

    def roll(self) -> None:
        """Start a new segment at the log end; an empty active segment stays."""
        with changing(self, APPENDING):
            if self.segments.active.size:
                self.roll_at(self.log_end_offset, self.clock())

    def roll_at(self, base_offset: int, now_ms: int, *, end_offset: int | None = None) -> None:
        """Start a segment at `base_offset`; the old one ends at `end_offset`, by default the log's."""
        old = self.segments.active
        if old.size == 0:
            # The only way to a usable index of an empty segment, and to a base past a gap.
            before = self.segments.lower(old.base_offset)
            if before is not None:
                # First: recovery recognizes an empty last segment below the successor that a seal names.
                # It would treat one above it as a leftover behind a hole.
                self.or_offline(lambda: before.sealing.follow_with(base_offset))
            self.or_offline(old.delete)
            new = self.or_offline(lambda: self.new_segment(base_offset, now_ms))
            self.segments = self.segments.replacing([old], [new])
            return
        # Durable before its successor exists: only the active segment can lose anything, so a crash
        # never leaves a hole between two segments (compaction may, and recovery keeps it).
        end_offset = self.log_end_offset if end_offset is None else end_offset
        self.guarded(old.become_inactive)
        self.sync_segments(end_offset)
        self.guarded(old.sync_indexes)
        if self.guarded(old.sealing.is_sound_where_found):
            self.guarded(lambda: old.sealing.make(end_offset, base_offset))
        self.producer_state.end_offset = base_offset
        self.guarded(lambda: self.snapshots.take(self.producer_state, base_offset))
        self.segments.append(self.guarded(lambda: self.new_segment(base_offset, now_ms)))
        old.rest()
        self.guarded(lambda: self.owner.flushed(self))

    def new_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Create an empty segment's files. Raises `OSError`."""
        segment = Segment(
            self.disk,
            self.directory,
            base_offset,
            self.config,
            size=0,
            now_ms=now_ms,
            jitter_ms=self.jitter_ms(self.config.longest_jitter_ms),
            is_new=True,
            modified_ms=now_ms,
        )
        segment.indexes.rebuilt = self.rebuilt
        return segment

    # --- making durable ---------------------------------------------------------------------------

    def flush(self, up_to: int | None = None) -> None:
        """Make the records below `up_to`, by default all, survive power loss, and move the recovery point.

        A new log, whose name and small files are not durable yet, must be flushed before the first append.
        `flush(0)` is enough for that, and to assign `epoch_to_begin`.
        Raises `LogDirOffline` if that fails: the log accepts no more appends until it is recovered. Raises
        `DiskFull` for a new log, which stays as it is; try again.
        """
        if (sync := self.flushed_first) is not None:
            sync()
        if self.epoch_to_begin is not None:
            with self.lock:
                if (epoch := self.epoch_to_begin) is not None:
                    self.assign_epoch(epoch, self.log_end_offset)
        self.sync_up_to(self.log_end_offset if up_to is None else up_to)

    def sync_up_to(self, offset: int) -> None:
        """Return once everything below `offset` is durable. Concurrent callers share one fsync."""
        if self.recovery_point < offset or self.sync_name is not None:
            self.check_writable()
            try:
                while not self.group_commit.join():  # another thread led; its sync failed or was interrupted
                    self.check_writable()
                self.check_writable()
            except LogClosed:
                if self.recovery_point < offset:  # the close has not synced it
                    raise

    def sync_segments(self, end_offset: int) -> None:
        """Sync the segments in [recovery point, end_offset), then move the recovery point.

        `end_offset` was read before the bytes are synced: later appends may be synced too but do not count.
        """
        if self.sync_name is not None:
            finish(self, self.sync_name)
        segments = self.segments
        touched = [each for each in segments.since(self.recovery_point) if each.base_offset < end_offset]
        try:
            for segment in touched:
                segment.sync_log()
                if segment is not segments.active:
                    segment.sync_indexes()
            new = [segment for segment in touched if not segment.name_is_durable]
            if new:
                self.disk.sync_dir(self.directory)
                for segment in new:
                    segment.name_is_durable = True
        except OSError as error:
            sync_failed(self, error)
        self.recovery_point = max(self.recovery_point, end_offset)

    # --- failing ----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise `LogDirOffline` or `LogClosed` if the log accepts no changes."""
        if self.is_writable:
            return
        if self.failure is not None:
            raise LogDirOffline(
                f"{self.directory} is offline since its disk failed ({self.failure}); reopen it to recover it"
            ) from self.failure
        if self.is_closed:
            raise LogClosed(f"{self.directory} was closed; open it again")
        raise LogClosed(
            f"{self.directory} belongs to the parent process: a forked child may read it, not write it. Open "
            "the log after the fork, send the records to the parent, or share a broker"
        )

    def take_offline(self, error: OSError) -> None:
        """Refuse appends and serve only what is durable: the disk under the log failed."""
        self.failure = self.failure or bare(error)
        self.is_writable = False
        self.waiters.wake()
        if self.at_failure is not None:
            self.at_failure()

    def fail(self, error: OSError) -> NoReturn:
        """Take the log offline, notify its owner and raise `LogDirOffline`."""
        self.take_offline(error)
        self.owner.failed(self, error)
        error.__traceback__ = None  # its frames would keep the file open, and the disk mounted, after a close
        raise LogDirOffline(
            f"{self.directory} went offline: {self.failure}. Everything acknowledged as synced is safe; "
            "check the disk, then open the log again"
        ) from error

    def disk_failed(self, error: OSError) -> NoReturn:
        """Raise `OutOfResources` for a refusal (`DiskFull` for space); otherwise go offline and raise
        `LogDirOffline`."""
        if is_refusal(error):
            raise refusal(error, self.directory, "appended records stay readable") from error
        self.fail(error)

    def guarded(self, action: Callable[[], T]) -> T:
        """Run `action`, with its `OSError` handled by `disk_failed`."""
        try:
            return action()
        except OSError as error:
            self.disk_failed(error)

    def or_offline(self, action: Callable[[], T]) -> T:
        """Run an `action` that must not stop half way: even a full disk takes the log offline."""
        try:
            return action()
        except OSError as error:
            self.fail(error)

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, write what the next open needs, and release the directory. Closing twice is harmless.

        A forked child only lets go of its copy. Raises `LogDirOffline` or `DiskFull` if something cannot be
        written: the next open then recovers the log. The directory is released in any case.
        """
        if self.is_inherited:
            self.abandon()
            return
        with self.group_commit.exclusive(), self.cursor_commit.exclusive(), self.lock:
            if self.is_closed:
                self.owner.abandoned(self)  # an interrupt may have ended the close before
                return
            is_clean = False
            try:
                if self.failure is None and self.changing:
                    mend(self)
                if self.failure is None:
                    if self.recovery_point < self.log_end_offset or self.sync_name is not None:
                        self.sync_segments(self.log_end_offset)
                    self.guarded(partial(_close_files, self))
                    is_clean = True
            finally:
                _let_go(self)
                self.guarded(lambda: self.owner.closed(self, is_clean=is_clean))

    def abandon(self) -> None:
        """Release files and directory without writing: the log was deleted, or its node counts as dead."""
        with self.lock:
            _let_go(self)
            self.owner.abandoned(self)


def _let_go(log: PartitionLog) -> None:
    log.is_closed, log.is_writable = True, False
    log.waiters.wake()
    log.deleted_files.forget()
    log.cursors.let_go()
    for segment in log.segments:
        segment.let_go()


def _sync_for_group(log: PartitionLog) -> None:
    # The previous sync may have failed: repeated, it would succeed over pages that are lost.
    log.check_writable()
    log.sync_segments(log.log_end_offset)
    try:
        log.segments.active.sealing.prepare()
    except OSError as error:
        refuse_if_closed(log, error)
        log.fail(error)


def _sync_cursors(log: PartitionLog) -> None:
    log.check_writable()
    log.or_offline(log.cursors.sync)


def _close_files(log: PartitionLog) -> None:
    log.deleted_files.remove_due(log.clock())
    log.cursors.sync()
    active = log.segments.active
    # A log without a record has nothing to lose, and needs neither indexes nor a snapshot.
    is_blank = not active.size and log.log_end_offset == log.segments.first.base_offset == 0
    if not is_blank:
        log.snapshots.take(log.producer_state, log.log_end_offset)
    if not is_blank or active.is_preallocated:
        active.become_inactive()
    if active.was_trimmed:
        active.sync_log()
    if not is_blank:
        active.sync_indexes()
    for segment in log.segments:
        segment.close()
    if not is_blank:
        log.disk.sync_dir(log.directory)


def is_dense(log: PartitionLog) -> bool:
    """Return whether nothing is known to have been compacted: a gap between batches may be damage.

    The topic's policy may have changed since the log was compacted, here or by the leader that sent it.
    """
    first_base = log.segments.first.base_offset
    return not (log.has_gaps or was_compacted(log.config, log.first_dirty_offset, first_base))


def files_without_checksum(log: PartitionLog) -> list[str]:
    """Return the names of the files that carry no checksum, or none that proves they belong to this log.

    The marker of a clean stop holds digests of them.
    """
    aborts = file_name(log.segments.active.base_offset, TRANSACTION_INDEX_SUFFIX)
    snapshots = [file_name(offset, SNAPSHOT_SUFFIX) for offset in log.snapshots.offsets]
    return [PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT, aborts, *snapshots]


_owned: Final[weakref.WeakSet[PartitionLog]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in _owned:
        # Other threads of the parent may have held the locks, and do not exist here.
        log.lock = threading.RLock()
        for renew in (*log.at_fork, *(segment.renew_locks for segment in log.segments)):
            renew()
        log.is_inherited, log.is_writable = True, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
