"""One log dir: its lock, its checkpoints and its logs.

data/
  .lock                                 locked by this process
  .kafka_cleanshutdown                  the last owner stopped cleanly
  .logstore_running                     the boot of the machine in which the last owner ran
  recovery-point-offset-checkpoint      each log is durable below it
  log-start-offset-checkpoint           logs that start inside their first segment
  replication-offset-checkpoint         high watermarks
  cleaner-offset-checkpoint             end of the compacted part of compacted logs
  orders-0/ orders-1/ …                 partitions
  orders-2.<32 hex>-delete/             to be removed later
  orders-3.<32 hex>-stray/              set aside for an operator: no topic has this partition
  orders-4.<32 hex>-future/             a copy that is to replace the log in another log dir (`moves.py`)
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from logstore.checkpoint.clean_shutdown import (
    OURS,
    CleanShutdown,
    changed_files,
    digests_of,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.checkpoint.identity import (
    META_PROPERTIES,
    PARTITION_METADATA,
    format_partition_metadata,
    read_partition_metadata,
)
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.copying import remove_tree
from logstore.disk.errors import CorruptCheckpoint, EngineError, is_shortage
from logstore.disk.files import LOCK_FILE, Disk, Lock, make_durable_dir, publish, put_in_place
from logstore.disk.marks import mark
from logstore.disk.running import has_run_on, remove_running
from logstore.disk.topic_partition import (
    TopicPartition,
    parse_directory_name,
    partition_of_future,
    partition_set_aside,
    set_aside_fate,
)
from logstore.errors import DamagedLog, LogDirOffline, OutOfResources, bare, is_refusal, refusal
from logstore.log.loading import ARRIVING
from logstore.log.log import Log
from logstore.log.log_dir_checkpoints import OFFSET_FILES, LogDirCheckpoints
from logstore.log.manager_config import LogManagerConfig
from logstore.log.partition_log import Clock, LogHost, PartitionLog, files_without_checksum
from logstore.log.recovery import load
from logstore.log.retention import Expired
from logstore.log.stand_alone import forget_stand_alone
from logstore.log.upkeep import (
    delete_old_segments,
    expire_losses,
    flush_by_age,
    flush_sealed,
    remove_deleted_files,
)
from logstore.segment.seal import remove_seals

_REMOVED_AT_ONCE = 10
"""Deleted partitions whose files a tick unlinks: a thousand at once would keep everybody waiting."""

DirectoryProgress = Callable[[str, int, int], None]
"""Receives the partition's directory, the bytes checked so far and the bytes to check in it."""


RunAll = Callable[[Sequence[Callable[[], None]]], None]
"""Runs actions, in any order or at once, and returns when all have ended. Raises the first one's error."""


def one_by_one(actions: Sequence[Callable[[], None]]) -> None:
    """Run the actions in their order."""
    for act in actions:
        act()


class NodeFacts(NamedTuple):
    """The dependencies that the log dirs of a node share."""

    disk: Disk
    clock: Clock
    random: random.Random
    settings: LogManagerConfig
    broker_epoch: int
    boot_id: str
    failed_dirs: list[str]
    """A log dir adds its path when its disk failed and its logs are offline."""
    run_all: RunAll


class Leaving(NamedTuple):
    """A partition whose directory is renamed: `unique` makes its new name so, `delay_ms` is for deletion."""

    topic_partition: TopicPartition
    unique: str
    delay_ms: int


class LogDir:
    """One log dir. A disk failure sets `failure`; nothing in the dir can be written after that."""

    def __init__(self, path: str, node: NodeFacts, accept_loss: Collection[TopicPartition]) -> None:
        """Prepare to `open` the dir; damaged partitions in `accept_loss` are truncated."""
        self.path = path.rstrip("/") or "/"
        self._node = node
        self._disk, self._clock = node.disk, node.clock
        self._accept_loss = set(accept_loss)
        # Without its own interval, the flush by age runs with every tick.
        self._flushes_on_schedule = node.settings.log_flush_scheduler_interval_ms < MAX_LONG
        self._lock: Lock | None = None
        self.logs: dict[TopicPartition, Log] = {}
        self.known: set[TopicPartition] = set()
        self.damaged: dict[TopicPartition, DamagedLog] = {}
        self.set_aside: set[TopicPartition] = set()
        """Partitions with a directory, at the start, that was set aside."""
        self.futures: dict[TopicPartition, str] = {}
        """The names of the directories that are copies of other dirs' logs."""
        self.failure: OSError | None = None
        self.was_clean = False
        self.has_run_on = False
        """Whether its last owner ran in this boot: if it was killed, the page cache is complete."""
        self.was_empty = False
        self._closed_by_us = False
        self._changed: dict[str, list[str]] = {}
        """The files that differ from the state at the clean stop, by directory, until that is opened."""
        self._doomed: list[tuple[int, str]] = []
        self._names_lock = threading.Lock()
        self._names_made = self._names_durable = 0
        """How many directories of new logs were made, and how many of their names are durable."""
        self.deadline_ms = MAX_LONG
        """The time of the next `tick`: a flush by age or a directory to remove."""

    # --- opening --------------------------------------------------------------------------------------

    def open(self, config_of: Callable[[str], LogConfig], progress: DirectoryProgress | None) -> None:
        """Lock the dir and open every log in it. A disk failure sets `failure`.

        Raises `OutOfResources` if descriptors or memory run out.
        """
        try:
            self._open(config_of, progress)
        except OSError as error:
            if is_shortage(error):
                raise refusal(error, self.path, "its logs were not opened") from error
            self.take_offline(error)

    def _open(self, config_of: Callable[[str], LogConfig], progress: DirectoryProgress | None) -> None:
        disk = self._disk
        make_durable_dir(disk, self.path)
        self._lock = disk.lock(self.path)
        marker = read_clean_shutdown(disk, self.path)
        self.was_clean = marker is not None
        self.has_run_on = has_run_on(disk, self.path, self._node.boot_id)
        changed = [] if marker is None else changed_files(disk, self.path, marker)
        for directory, _, name in (path.rpartition("/") for path in changed):
            self._changed.setdefault(directory, []).append(name)
        self._closed_by_us = marker is not None and marker.is_ours and not {*OFFSET_FILES} & {*changed}
        if marker is not None and not marker.is_ours:
            # A Kafka broker may have rewritten the files that the seals describe. Before the marker is
            # removed: after a crash in between, the next start does both again.
            for entry in disk.scan(self.path):
                if entry.is_directory:
                    remove_seals(disk, f"{self.path}/{entry.name}")
        # Durably removed before any other write: a crash from here on is an unclean shutdown.
        remove_clean_shutdown(disk, self.path)
        self.checkpoints = LogDirCheckpoints(disk, self.path, self.logs, self.damaged, self.take_offline)
        entries = disk.scan(self.path)
        # A new dir may have these two files: its owner writes them first.
        self.was_empty = marker is None and all(
            entry.name in (LOCK_FILE, META_PROPERTIES) for entry in entries
        )
        self._node.run_all(
            [
                partial(self._open_partition, partition, config_of(partition.topic), progress)
                for entry in entries
                if entry.is_directory and (partition := self._partition_in(entry.name)) is not None
            ]
        )
        self.checkpoints.write_fallen_high_watermarks()
        self.checkpoints.keep_first_dirty_of(self.known)
        self.checkpoints.begin_recovery_points()
        self._set_deadline(self._clock())

    def _partition_in(self, name: str) -> TopicPartition | None:
        """Return the partition of a directory, unless it was set aside or is not a log."""
        fate = set_aside_fate(name)
        if (copied := partition_of_future(name)) is not None:
            self.futures.setdefault(copied, name)
        elif (aside := partition_set_aside(name)) is not None:
            self.set_aside.add(aside)
        if fate == "delete":
            mark("log dir: a deletion is ended after a restart")
            self._doomed.append((self._clock(), f"{self.path}/{name}"))
        if fate is not None or name == "remote-log-index-cache":
            return None
        return parse_directory_name(name)

    def _open_partition(
        self, topic_partition: TopicPartition, config: LogConfig, progress: DirectoryProgress | None
    ) -> None:
        self.known.add(topic_partition)
        forget_stand_alone(self._disk, self.directory_of(topic_partition))
        try:
            self._load(topic_partition, config, progress)
        except DamagedLog as error:
            mark("log dir: a damaged log is kept as it is")
            # The operator or the controller decides; the other partitions open. Without its traceback, whose
            # frames would keep mapped files alive.
            self.damaged[topic_partition] = DamagedLog(str(error), error.damages, error.durable_end)
        except EngineError as error:
            self.damaged[topic_partition] = DamagedLog(f"{topic_partition} cannot be opened: {error}")

    def directory_of(self, topic_partition: TopicPartition) -> str:
        """Return the path of a partition's directory here, existing or not."""
        return f"{self.path}/{topic_partition.directory_name}"

    def _load(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        progress: DirectoryProgress | None = None,
        *,
        is_new: bool = False,
    ) -> Log:
        directory, producers = self.directory_of(topic_partition), self._node.settings.producers
        checkpoints = self.checkpoints
        recovery_point = checkpoints.recovery_points.find(topic_partition)
        loaded = load(
            self._disk,
            directory,
            config,
            is_clean=self.was_clean,
            recovery_point=recovery_point,
            log_start_offset=checkpoints.log_starts.get(topic_partition),
            now_ms=self._clock(),
            high_watermark=checkpoints.high_watermarks.get(topic_partition),
            first_dirty_offset=checkpoints.first_dirty.get(topic_partition),
            jitter_ms=self._jitter_ms,
            progress=None if progress is None else partial(progress, directory),
            producer_expiration_ms=producers.producer_id_expiration_ms,
            # After a clean shutdown of ours, the recovery point is the log end.
            closed_at=recovery_point if self._closed_by_us else None,
            changed=self._changed.pop(topic_partition.directory_name, ()),
            starts_by=checkpoints.log_starts.offsets.get(topic_partition) if self._closed_by_us else None,
            accept_loss=topic_partition in self._accept_loss,
            is_new=is_new,
            was_killed=self.has_run_on and not self.was_clean,
        )
        checkpoints.limit_to(topic_partition, loaded)
        log = PartitionLog(
            directory,
            topic_partition,
            config,
            loaded,
            LogHost(self._disk, self._clock, self._jitter_ms, checkpoints, producers),
        )
        log.set_high_watermark(checkpoints.limited_high_watermark(topic_partition, loaded.log_end_offset))
        self.logs[topic_partition] = Log(log)
        self.known.add(topic_partition)
        if self.failure is not None:  # a thread noticed the failure through another log
            log.take_offline(self.failure)
        self.heed(log)
        return self.logs[topic_partition]

    def _jitter_ms(self, bound_ms: int) -> int:
        return self._node.random.randrange(bound_ms) if bound_ms else 0

    @contextmanager
    def _or_offline(self, no_room: str, doing: str) -> Iterator[None]:
        """Raise `OutOfResources` with the text `no_room`; any other `OSError` takes the dir offline."""
        try:
            yield
        except OSError as error:
            if no_room and is_refusal(error):
                raise refusal(error, self.path, no_room) from error
            self.take_offline(error)
            raise LogDirOffline(f"{self.path} went offline {doing}: {error}") from error

    def check_online(self, topic_partition: TopicPartition) -> None:
        """Raise `LogDirOffline` if the dir has failed."""
        if self.failure is not None:
            raise LogDirOffline(f"{topic_partition} is in {self.path}, which is offline: {self.failure}")

    def create(self, topic_partition: TopicPartition, config: LogConfig) -> Log:
        """Create an empty log. Its `flush` makes it durable; append nothing before.

        Raises `LogDirOffline`, `DiskFull`.
        """
        # Remove the entries of a deleted log of the same name: they do not apply to the new log.
        self._forget([topic_partition])
        with self._or_offline(f"cannot create {topic_partition}", f"creating {topic_partition}"):
            self._disk.make_dir(self.directory_of(topic_partition))
            self._names_made += 1
            log = self._load(topic_partition, config, is_new=True)
        log.partition.sync_name = partial(self._sync_names, self._names_made)
        log.partition.was_created = True
        return log

    def _sync_names(self, number: int) -> None:
        """Make the names of the first `number` new directories durable; threads share an fsync."""
        with self._names_lock:
            if self._names_durable < number:
                made = self._names_made
                self._disk.sync_dir(self.path)
                self._names_durable = made

    def reopen(self, topic_partition: TopicPartition, config: LogConfig, *, accept_loss: bool) -> Log:
        """Open a log that is in `damaged`. Raises `DamagedLog`, `DiskFull`, `LogDirOffline`."""
        self.check_online(topic_partition)
        if accept_loss:
            self._accept_loss.add(topic_partition)
        with self._or_offline(f"cannot open {topic_partition}", f"opening {topic_partition}"):
            if not _has_directory(self._disk, self.path, topic_partition):
                if topic_partition not in self._accept_loss:
                    error = self.damaged[topic_partition]
                    raise DamagedLog(str(error), error.damages, error.durable_end)
                self._changed.pop(topic_partition.directory_name, None)
                self._disk.make_dir(self.directory_of(topic_partition))
                self._disk.sync_dir(self.path)
            try:
                log = self._load(topic_partition, config)
            except (DamagedLog, OutOfResources):
                raise
            except EngineError as error:
                raise DamagedLog(f"{topic_partition} cannot be opened: {error}") from error
            self.checkpoints.write_fallen_high_watermarks()
        del self.damaged[topic_partition]
        return log

    def topic_id_of_damaged(self, topic_partition: TopicPartition) -> str | None:
        """Return the topic id if it can still be read; None if not. Raises `LogDirOffline`."""
        self.check_online(topic_partition)
        with self._or_offline("", f"reading {topic_partition}"):
            try:
                return read_partition_metadata(self._disk, self.directory_of(topic_partition))
            except CorruptCheckpoint:
                return None

    # --- removing -------------------------------------------------------------------------------------

    def rename_away(self, going: Sequence[Leaving], fate: str) -> None:
        """Rename partitions' directories to `…-delete` or `…-stray`, with the fsyncs of one.

        Raises `DiskFull` with nothing changed, `LogDirOffline`.
        """
        if not going:
            return
        self.check_online(going[0].topic_partition)
        # First, because a full disk may refuse it: nothing has changed then, and the call can be repeated.
        # If a crash prevents the rename, recovery reads the log from the start.
        self._forget([each.topic_partition for each in going])
        for leaving in going:
            topic_partition = leaving.topic_partition
            log = self.logs.pop(topic_partition, None)
            if log is None:
                mark("log dir: a damaged log is taken away")
                del self.damaged[topic_partition]
            else:
                log.partition.abandon()
            self.known.discard(topic_partition)
            with self._or_offline("", f"moving {topic_partition}"):
                is_there = log is not None or _has_directory(self._disk, self.path, topic_partition)
            if is_there:
                self._rename(self.directory_of(topic_partition), leaving, fate)
        with self._or_offline("", f"moving {going[0].topic_partition}"):
            self._disk.sync_dir(self.path)

    def _rename(self, directory: str, leaving: Leaving, fate: str) -> None:
        topic_partition, unique, delay_ms = leaving
        # A name has at most 255 characters: a long topic name is shortened, and the id keeps it unique.
        suffix = f"-{topic_partition.partition}.{unique}-{fate}"
        renamed = f"{self.path}/{topic_partition.topic[: 255 - len(suffix)]}{suffix}"
        with self._or_offline("", f"moving {topic_partition}"):
            try:
                self._disk.rename(directory, renamed)
            except OSError as error:
                if error.errno != errno.EXDEV or fate != "delete":
                    raise
                remove_tree(self._disk, directory)  # it is in a lower layer of an overlayfs
                return
        if fate == "delete":
            due_ms = self._clock() + delay_ms
            self._doomed.append((due_ms, renamed))
            self.deadline_ms = min(self.deadline_ms, due_ms)

    def retire(self, directory: str, leaving: Leaving) -> None:
        """Rename a directory that no log uses any more to `…-delete`, durably. Raises `LogDirOffline`."""
        self.check_online(leaving.topic_partition)
        self._rename(directory, leaving, "delete")
        with self._or_offline("", f"moving {leaving.topic_partition}"):
            self._disk.sync_dir(self.path)

    def make_future(self, topic_partition: TopicPartition, name: str, topic_id: str | None) -> None:
        """Make the directory of a copy, with its mark and topic id, durably.

        Raises `LogDirOffline`, `DiskFull`.
        """
        with self._or_offline(f"cannot copy {topic_partition}", f"copying {topic_partition}"):
            self.checkpoints.forget([topic_partition])
            directory = f"{self.path}/{name}"
            self._disk.make_dir(directory)
            try:
                if topic_id is not None:
                    put_in_place(
                        self._disk, directory, PARTITION_METADATA, format_partition_metadata(topic_id)
                    )
                publish(self._disk, directory, ARRIVING, b"")
                self._disk.sync_dir(self.path)
            except OSError as error:
                if is_refusal(error):
                    remove_tree(self._disk, directory)  # the next start would take it for a move under way
                raise
        self.futures[topic_partition] = name

    def _forget(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions from the checkpoints. Raises `LogDirOffline`, `DiskFull`."""
        first = topic_partitions[0]
        with self._or_offline(f"cannot move {first} away", f"moving {first}"):
            self.checkpoints.forget(topic_partitions)

    # --- checkpoints ----------------------------------------------------------------------------------

    def checkpoint_recovery_points(self) -> None:
        """Sync the sealed segments and write how far every log is durable. Raises `OSError`."""
        for log in list(self.logs.values()):
            flush_sealed(log.partition)
        self.checkpoints.write_recovery_points()

    # --- scheduled work -------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int, deleted: dict[TopicPartition, tuple[Expired, ...]]) -> None:
        """Delete the old segments of every log that is not compacted, and add them to `deleted`."""
        for tp, log in list(self.logs.items()):
            if self.failure is not None:
                return
            if log.partition.config.is_compacted:
                continue

            def delete(tp: TopicPartition = tp, log: PartitionLog = log.partition) -> None:
                if expired := delete_old_segments(log, now_ms):
                    deleted[tp] = expired

            self.guarded(delete)
        self._set_deadline(now_ms)

    def flush_by_age(self, now_ms: int) -> None:
        """Flush the logs whose oldest record that is not durable is `flush.ms` old."""
        for log in self.logs.values():
            flush_by_age(log.partition, now_ms)

    def tick(self, now_ms: int) -> None:
        """Flush by age, unlink deleted files, and remove expired losses and deleted partitions."""
        if not self._flushes_on_schedule:
            self.flush_by_age(now_ms)
        for log in self.logs.values():
            remove_deleted_files(log.partition, now_ms)
            expire_losses(log.partition, now_ms)
        due = [each for each in self._doomed if each[0] <= now_ms][:_REMOVED_AT_ONCE]
        for each in due:
            self._doomed.remove(each)
            remove_tree(self._disk, each[1])
        self._set_deadline(now_ms)

    def heed(self, log: PartitionLog) -> None:
        """Bring the deadline forward for this log, without a scan of all logs."""
        flush_ms = MAX_LONG if self._flushes_on_schedule else self._clock() + log.config.flush_ms
        self.deadline_ms = min(self.deadline_ms, flush_ms, _unlinking_ms(log))

    def _set_deadline(self, now_ms: int) -> None:
        logs = [log.partition for log in self.logs.values()]
        ages_ms = [] if self._flushes_on_schedule else [log.config.flush_ms for log in logs]
        self.deadline_ms = min(
            [
                now_ms + min(ages_ms, default=MAX_LONG),
                *map(_unlinking_ms, logs),
                *(at for at, _ in self._doomed),
            ]
        )

    # --- failing and closing --------------------------------------------------------------------------

    def guarded(self, action: Callable[[], None]) -> bool:
        """Run `action`. Returns False if it failed; a disk failure takes this dir offline.

        A refusal (`is_refusal`) does not: the file is unchanged and is written another time.
        """
        try:
            action()
        except OutOfResources:
            return False
        except OSError as error:
            if not is_refusal(error):
                self.take_offline(error)
            return False
        except LogDirOffline:
            # The failed log has called `failed`.
            assert self.failure is not None, "a log went offline without its log dir"
            return False
        return True

    def take_offline(self, error: OSError) -> None:
        """Take the dir offline, with every log in it: its disk failed."""
        if self.failure is None:
            self.failure = bare(error)
            for log in list(self.logs.values()):  # any thread may detect the failure
                log.partition.take_offline(error)
            self._node.failed_dirs.append(self.path)
            # The page cache may drop unsynced data, and the next owner cannot detect that. If this fails
            # too, the dir cannot be used again in this boot.
            with suppress(OSError):
                if self._node.boot_id:
                    remove_running(self._disk, self.path)

    def close(self, *, mark_clean: bool) -> None:
        """Close every log, write the checkpoints and, with `mark_clean`, the clean-shutdown marker."""
        if any(log.partition.is_inherited for log in self.logs.values()):
            self.abandon()  # a forked child: its parent goes on
            return
        failed: list[Log] = []

        def close(log: Log) -> None:
            if not self.guarded(log.close):
                failed.append(log)

        self._node.run_all([partial(close, log) for log in self.logs.values()])
        # Damaged partitions must be checked again, and a clean start would not do that.
        mark_clean = mark_clean and not failed and not self.damaged
        if self.failure is None and self._lock is not None:
            self.guarded(partial(self._leave_marks, mark_clean))
        self.abandon()

    def _leave_marks(self, mark_clean: bool) -> None:
        self.checkpoints.write_recovery_points()
        # Of all logs: the next start sees whether a first segment is gone.
        starts = {
            tp: max(log.log_start_offset, log.partition.segments.first.base_offset)
            for tp, log in self.logs.items()
        }
        self.checkpoints.write_log_start_offsets(starts)
        self.checkpoints.write_high_watermarks()
        if mark_clean:
            names = [META_PROPERTIES, *OFFSET_FILES]
            for topic_partition, log in sorted(self.logs.items()):
                directory = topic_partition.directory_name
                names += [f"{directory}/{name}" for name in files_without_checksum(log.partition)]
            extra = {**OURS, **digests_of(self._disk, self.path, names)}
            write_clean_shutdown(self._disk, self.path, CleanShutdown(self._node.broker_epoch, extra))

    def abandon(self) -> None:
        """Release everything without writing."""
        for log in self.logs.values():
            log.partition.abandon()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _unlinking_ms(log: PartitionLog) -> int:
    """Return when the log's next deleted files or expired losses are due; `MAX_LONG` for never."""
    return min(log.deleted_files.deadline_ms, log.quarantine.due_ms)


def _has_directory(disk: Disk, path: str, topic_partition: TopicPartition) -> bool:
    """Return whether a damaged partition has a directory in the log dir (`manager.py`). Raises `OSError`."""
    return topic_partition.directory_name in [entry.name for entry in disk.scan(path)]
