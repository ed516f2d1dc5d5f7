"""Stand-alone logs: a log outside of a log dir, with its lock and checkpoints in its own directory.

    orders-0/
      .lock                               one owner at a time
      .kafka_cleanshutdown                clean shutdown, with the log end offset
      recovery-point-offset-checkpoint    one entry: this log; there from the first opening on
      log-start-offset-checkpoint         one entry: this log; there from the second segment on
      cleaner-offset-checkpoint           one entry: this log, after a compaction; until then that of the
                                          log dir around it counts
      00000000000000000000.log …          as in any partition directory

Several processes may have logs in one parent directory, unless a broker owns the parent. A `LogManager` that
later opens the parent as a log dir removes these files. It recovers the log from the start, because its own
checkpoints have no entry for the partition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from logstore.checkpoint.clean_shutdown import (
    OURS,
    CleanShutdown,
    changed_files,
    digests_of,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetFile,
    checkpointed_offset,
    of_one_log,
    read_leader_epoch_checkpoint,
)
from logstore.config import LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import LOCK_FILE, DirectoryEntry, Disk, Lock, make_durable_dir, remove_if_exists
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.errors import LogDirOffline, LogGone, OutOfResources, is_refusal, refusal
from logstore.log.loading import Progress
from logstore.log.losses import Quarantine
from logstore.log.partition_log import Clock, LogHost, PartitionLog, files_without_checksum
from logstore.log.producer_state import ProducerStateConfig
from logstore.log.recovery import is_first_gone, load
from logstore.segment.seal import remove_seals

if TYPE_CHECKING:
    from random import Random

FIRST_BASE, _END_OFFSET = "firstBaseOffset", "logEndOffset"
"""Fields of the marker of a clean stop."""
_PRODUCERS: Final = ProducerStateConfig(transaction_partition_verification_enable=False)
"""There is no transaction coordinator that could verify a transaction."""


def open_stand_alone(
    directory: str,
    config: LogConfig,
    disk: Disk,
    clock: Clock,
    *,
    create: bool,
    progress: Progress | None,
    accept_loss: bool,
) -> PartitionLog:
    """Lock the directory, recover the log in it and return it; see `Log.open`."""
    topic_partition = parse_directory_name(os.path.basename(directory))
    try:
        if not create:
            _check_there(disk, directory)
        make_durable_dir(disk, directory)
        lock = disk.lock(directory)
    except OSError as error:
        if is_refusal(error):
            raise _no_room(directory, error) from error
        raise LogDirOffline(
            f"{directory} cannot be opened as a log: {error}. "
            "The path must be a directory that this process can write"
        ) from error
    try:
        check_not_locked(disk, os.path.dirname(directory) or ".")
        return _open_locked(directory, topic_partition, config, disk, clock, lock, progress, accept_loss)
    except OSError as error:
        lock.release()
        if is_refusal(error):
            raise _no_room(directory, error) from error
        raise LogDirOffline(f"{directory} cannot be read or written: {error}") from error
    except BaseException:
        lock.release()
        raise


def _check_there(disk: Disk, directory: str) -> None:
    """Raise `LogGone` if no log was ever opened in the directory, and `OSError`."""
    try:
        is_new = _is_new(disk.scan(directory))
    except FileNotFoundError:
        is_new = True
    if is_new:
        raise LogGone(
            f"{directory} has no log, and create=False makes none: check the path, and whether its disk is "
            "mounted"
        )


def _is_new(entries: Sequence[DirectoryEntry]) -> bool:
    return all(entry.name == LOCK_FILE for entry in entries)


def open_anywhere(
    directory: str, topic_partition: TopicPartition, config: LogConfig, disk: Disk, clock: Clock
) -> PartitionLog:
    """Open the log in `directory`, of any name, like `open_stand_alone`. Also raises `OSError`."""
    lock = disk.lock(directory)
    try:
        return _open_locked(directory, topic_partition, config, disk, clock, lock, None, False)
    except BaseException:
        lock.release()
        raise


def check_not_locked(disk: Disk, directory: str) -> None:
    """Raise `DirectoryLocked` if another owner holds `directory`, without keeping the lock."""
    try:
        disk.scan(f"{directory}/{LOCK_FILE}")  # a file: a list of the directory may be long
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        disk.lock(directory).release()


def forget_stand_alone(disk: Disk, directory: str) -> None:
    """Remove the files of a stand-alone owner: its checkpoints become stale."""
    names = {entry.name for entry in disk.scan(directory)}
    for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT):
        if name in names:
            remove_if_exists(disk, f"{directory}/{name}")
    if LOCK_FILE in names:
        check_not_locked(disk, directory)
        remove_clean_shutdown(disk, directory)
        remove_if_exists(disk, f"{directory}/{LOCK_FILE}")


def where_it_began(disk: Disk, directory: str, first_base: int) -> int | None:
    """Return where the log began, or above it, when it was last in use; None if that is unknown.

    Its first segment begins at `first_base` now. Raises `OSError`.
    """
    own = read_clean_shutdown(disk, directory)
    if own is not None and type(began_at := own.extra.get(FIRST_BASE)) is int:
        return began_at
    known = OffsetFile(disk, directory, LOG_START_OFFSET_CHECKPOINT).offsets
    if own is None and known:
        with suppress(CorruptCheckpoint):
            epochs = read_leader_epoch_checkpoint(disk, directory)
            if is_first_gone(first_base, epochs, Quarantine(disk, directory)):
                return min(known.values())
        return None
    parent, _, name = os.path.abspath(directory).rpartition("/")
    marker = read_clean_shutdown(disk, parent)
    if marker is None or not marker.is_ours:
        return None
    starts = OffsetFile(disk, parent, LOG_START_OFFSET_CHECKPOINT).offsets
    return next((start for partition, start in starts.items() if partition.directory_name == name), None)


def _no_room(directory: str, error: OSError) -> OutOfResources:
    return refusal(error, directory, "the log was not opened", "open it again")


def _open_locked(
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    disk: Disk,
    clock: Clock,
    lock: Lock,
    progress: Progress | None,
    accept_loss: bool,
) -> PartitionLog:
    is_new = _is_new(disk.scan(directory))
    marker, changed = None, list[str]()
    if not is_new:
        marker = read_clean_shutdown(disk, directory)
        if marker is not None:
            changed = changed_files(disk, directory, marker)
        if marker is not None and not marker.is_ours:
            # Before the marker is removed: after a crash in between, the next start does both again.
            remove_seals(disk, directory)
        # Durably removed before any other write: a crash from here on is an unclean shutdown.
        remove_clean_shutdown(disk, directory)
    owner = _OwnDirectory(disk, directory, topic_partition, lock)
    jitter: list[Random] = []

    def jitter_ms(bound_ms: int) -> int:
        if bound_ms and not jitter:
            from random import Random

            # Seeded by the name: many logs should not roll their segments at the same moment.
            jitter.append(Random(f"{topic_partition}"))
        return jitter[0].randrange(bound_ms) if bound_ms else 0

    # If the log ends elsewhere, another program has written to it since: `load` compares.
    closed_at = marker.extra.get(_END_OFFSET) if marker is not None else None
    first_base = marker.extra.get(FIRST_BASE) if marker is not None else None
    starts_by = first_base if type(first_base) is int and not changed else None
    is_start_certain = starts_by is not None
    if starts_by is None and (marker is None or marker.is_ours):
        starts_by = owner.log_start.offsets.get(topic_partition)
    loaded = load(
        disk,
        directory,
        config,
        is_clean=type(closed_at) is int,
        recovery_point=owner.recovery_point.find(topic_partition),
        log_start_offset=owner.log_start.get(topic_partition),
        first_dirty_offset=owner.first_dirty.get(topic_partition),
        now_ms=clock(),
        jitter_ms=jitter_ms,
        progress=progress,
        producer_expiration_ms=_PRODUCERS.producer_id_expiration_ms,
        closed_at=closed_at if type(closed_at) is int else None,
        starts_by=starts_by,
        is_start_certain=is_start_certain,
        keeps_rest=True,
        changed=changed,
        accept_loss=accept_loss,
        is_new=is_new,
    )
    # The log may be shorter than its checkpoint says: new records at those offsets must not count as synced.
    owner.recovery_point.lower(topic_partition, loaded.log_end_offset)
    if not owner.recovery_point.is_there:
        # From now on it is known what was durable. Without the file, a hole that a power cut leaves in
        # appends that nobody synced would look like damage.
        owner.recovery_point.write({topic_partition: loaded.recovery_point})
        for segment in loaded.segments.values():
            segment.name_is_durable = True  # by the same sync of the directory
    owner.first_dirty.set(topic_partition, loaded.first_dirty_offset)
    return PartitionLog(
        directory,
        topic_partition,
        config,
        loaded,
        LogHost(disk, clock, jitter_ms, owner, _PRODUCERS),
        follows_end=True,
    )


class _OwnDirectory:
    """Keeps the checkpoints of one log in the log's directory (`LogOwner`)."""

    def __init__(self, disk: Disk, directory: str, topic_partition: TopicPartition, lock: Lock) -> None:
        self._disk = disk
        self._directory = directory
        self._topic_partition = topic_partition
        self._lock = lock
        self.recovery_point = OffsetFile(disk, directory, RECOVERY_POINT_CHECKPOINT)
        self.log_start = OffsetFile(disk, directory, LOG_START_OFFSET_CHECKPOINT)
        self.first_dirty = OffsetFile(disk, directory, CLEANER_OFFSET_CHECKPOINT)
        for file in (self.recovery_point, self.log_start, self.first_dirty):
            file.offsets = of_one_log(file.offsets, topic_partition)
        if not self.first_dirty.is_there:  # the cleaner of the log dir around it may have compacted it
            around = checkpointed_offset(disk, directory, CLEANER_OFFSET_CHECKPOINT)
            self.first_dirty.offsets = {topic_partition: around}

    def lower_bounds(self, log: PartitionLog, offset: int) -> None:
        self.recovery_point.lower(self._topic_partition, offset)
        self.first_dirty.lower(self._topic_partition, offset)

    def log_start_moved(self, log: PartitionLog) -> None:
        self.log_start.set(self._topic_partition, log.log_start_offset)

    def flushed(self, log: PartitionLog) -> None:
        self.recovery_point.set(self._topic_partition, log.recovery_point)
        if len(log.segments) > 1 and self._topic_partition not in self.log_start.offsets:
            # From now on the next opening notices that the first segment is gone, also after a crash.
            self.log_start.write({self._topic_partition: log.log_start_offset})

    def compacted(self, log: PartitionLog) -> None:
        self.first_dirty.set(self._topic_partition, log.first_dirty_offset)

    def failed(self, log: PartitionLog, error: OSError) -> None:
        """Do nothing: the log itself refuses appends after the failure."""

    def closed(self, log: PartitionLog, *, is_clean: bool) -> None:
        try:
            if is_clean:
                self.flushed(log)
                self.log_start_moved(log)
                names = [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, *files_without_checksum(log)]
                digests = digests_of(self._disk, self._directory, names)
                bounds = {FIRST_BASE: log.segments.first.base_offset, _END_OFFSET: log.log_end_offset}
                extra = {**OURS, **bounds, **digests}
                marker = CleanShutdown(extra=extra)
                write_clean_shutdown(self._disk, self._directory, marker)
        finally:
            self._lock.release()

    def abandoned(self, log: PartitionLog) -> None:
        self._lock.release()
