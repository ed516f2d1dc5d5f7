"""The offset checkpoints of one log dir; they follow the changes of its logs.

recovery-point-offset-checkpoint      each log is durable below this offset
log-start-offset-checkpoint           log start offsets that lie inside the first segment
replication-offset-checkpoint         high watermarks
cleaner-offset-checkpoint             end of the compacted part of compacted logs
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetFile,
)
from logstore.disk.files import Disk
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, is_refusal
from logstore.log.loading import LoadedLog
from logstore.log.log import Log
from logstore.log.partition_log import PartitionLog

OFFSET_FILES = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)


class LogDirCheckpoints:
    """The offset checkpoints of a log dir, and the owner of its logs (`LogOwner`).

    The methods may be called from any thread. They raise `OSError` if a file cannot be written.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        logs: Mapping[TopicPartition, Log],
        damaged: Mapping[TopicPartition, DamagedLog],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """Read the files. `logs` and `damaged` are the dir's own and change with it.

        `on_failure` is called with the error of a disk that failed under a log.
        """
        self._lock = threading.RLock()
        self._logs, self._damaged, self._on_failure = logs, damaged, on_failure
        self.recovery_points, self.log_starts, self.high_watermarks, self.first_dirty = (
            OffsetFile(disk, path, name) for name in OFFSET_FILES
        )
        self._high_watermark_fell = False

    def limit_to(self, topic_partition: TopicPartition, loaded: LoadedLog) -> None:
        """Lower the partition's entries to the recovered log."""
        with self._lock:  # logs are opened in several threads
            # The log may be shorter than its checkpoint says: new records at those offsets must not count as
            # synced.
            self.recovery_points.lower(topic_partition, loaded.log_end_offset)
            self.first_dirty.set(topic_partition, loaded.first_dirty_offset)

    def limited_high_watermark(self, topic_partition: TopicPartition, log_end_offset: int) -> int:
        """Lower a partition's high watermark to the log end, in memory only. Returns the new value."""
        if self.high_watermarks.get(topic_partition) > log_end_offset:
            self.high_watermarks.offsets[topic_partition] = log_end_offset
            self._high_watermark_fell = True
        return self.high_watermarks.get(topic_partition)

    def write_fallen_high_watermarks(self) -> None:
        """Write the high watermarks that `limited_high_watermark` lowered. Call this before the first append.

        New records at the offsets of lost records are not committed.
        """
        if self._high_watermark_fell:
            mark("log dir: a log came out shorter than its high watermark")
            self.high_watermarks.write(self.high_watermarks.offsets)
            self._high_watermark_fell = False

    def keep_first_dirty_of(self, known: Collection[TopicPartition]) -> None:
        """Remove the first dirty offsets of all partitions but the `known` ones; replace a corrupt file."""
        kept = {tp: offset for tp, offset in self.first_dirty.offsets.items() if tp in known}
        if kept != self.first_dirty.offsets or self.first_dirty.is_corrupt:
            self.first_dirty.write(kept)

    def forget(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Remove partitions from all four files."""
        with self._lock:
            try:
                # The cleaner's too: a new partition of that name would count as compacted up to there.
                for file in (self.recovery_points, self.log_starts, self.high_watermarks, self.first_dirty):
                    file.forget(topic_partitions)
            except OSError as error:
                if is_refusal(error):
                    mark("log dir: no room to forget a partition that is to go")
                raise

    def expect(self, log: PartitionLog) -> None:
        """Write the entries of a log that is about to be moved into this dir.

        Lower ones stay where they are only bounds. The log start is written as it is.
        """
        topic_partition = log.topic_partition
        with self._lock:
            self.log_starts.set(topic_partition, log.log_start_offset)
            for file, offset in (
                (self.recovery_points, log.recovery_point),
                (self.high_watermarks, log.high_watermark),
                (self.first_dirty, log.first_dirty_offset),
            ):
                known = file.get(topic_partition)
                if known > offset or (offset and not known):
                    file.set(topic_partition, offset)

    # --- on a schedule --------------------------------------------------------------------------------

    def write_high_watermarks(self) -> None:
        """Write every log's high watermark."""
        with self._lock:
            offsets = self.high_watermarks.offsets
            offsets.update({tp: log.partition.high_watermark for tp, log in self._now()})
            self.high_watermarks.write(offsets)

    def write_recovery_points(self) -> None:
        """Write every log's recovery point."""
        with self._lock:
            points = {tp: log.partition.recovery_point for tp, log in self._now()}
            self.recovery_points.write(points | self._of_damaged(self.recovery_points))

    def begin_recovery_points(self) -> None:
        """Write the recovery points if there is no file yet, so that the durable ends are known from now on.

        Call this before the first append. A damaged partition gets the end that its sound batches prove.
        """
        if not self.recovery_points.is_there:
            ends = {tp: error.durable_end for tp, error in self._damaged.items()}
            self.recovery_points.offsets = ends
            try:
                self.write_recovery_points()
            except OSError as error:
                if not is_refusal(error):  # without room, the schedule writes them
                    raise

    def write_log_start_offsets(self, also: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the log start offsets that lie above their first segment, and those in `also`."""
        with self._lock:
            starts = {
                tp: log.log_start_offset
                for tp, log in self._now()
                if log.log_start_offset > log.partition.segments.first.base_offset
            }
            self.log_starts.write(starts | self._of_damaged(self.log_starts) | dict(also or {}))

    def _now(self) -> list[tuple[TopicPartition, Log]]:
        return list(self._logs.items())  # in one step: another thread may add a log or remove one

    def _of_damaged(self, file: OffsetFile) -> dict[TopicPartition, int]:
        """Return the entries of the damaged partitions: the next start needs them."""
        return {tp: offset for tp, offset in file.offsets.items() if tp in self._damaged}

    # --- the owner of the logs (`LogOwner`) -----------------------------------------------------------

    def lower_bounds(self, log: PartitionLog, offset: int) -> None:
        """Lower the log's entries, durably."""
        with self._lock:
            # A log is cut below a high watermark only after an unclean election.
            for file in (self.recovery_points, self.first_dirty, self.high_watermarks):
                file.lower(log.topic_partition, offset)

    def log_start_moved(self, log: PartitionLog) -> None:
        """Write the log start offset, even at the base of the first segment: it may be deleted next."""
        with self._lock:
            self.log_starts.set(log.topic_partition, log.log_start_offset)

    def compacted(self, log: PartitionLog) -> None:
        """Write the log's first dirty offset."""
        with self._lock:
            self.first_dirty.set(log.topic_partition, log.first_dirty_offset)

    def flushed(self, log: PartitionLog) -> None:
        """Do nothing: recovery points are written on a schedule."""

    def failed(self, log: PartitionLog, error: OSError) -> None:
        """Take the dir offline with every log in it."""
        self._on_failure(error)

    def closed(self, log: PartitionLog, *, is_clean: bool) -> None:
        """Do nothing: `LogDir.close` closes all logs and writes the checkpoints."""

    def abandoned(self, log: PartitionLog) -> None:
        """Do nothing: the log dir holds the lock."""
