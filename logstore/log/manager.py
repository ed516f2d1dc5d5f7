"""The logs of one node, in one or several log dirs, each dir with its lock and its checkpoints.

    data/                                   a log dir
      .lock                                 this process owns it
      .kafka_cleanshutdown                  its last owner stopped in order
      .logstore_running                     in which boot of the machine its owner ran, or was killed
      recovery-point-offset-checkpoint      below it each log is durable
      log-start-offset-checkpoint           logs that start inside their first segment
      replication-offset-checkpoint         high watermarks
      cleaner-offset-checkpoint             up to where compacted logs have been compacted
      orders-0/ orders-1/ …                 partitions
      orders-2.<32 hex>-delete/             waiting to be removed
      orders-3.<32 hex>-stray/              set aside for an operator: nobody knows what it is for

A disk that fails takes its log dir offline, with every log in it, until a new start has recovered it;
the other dirs go on. What a crash leaves is each log's own matter (`recovery.py`); the checkpoints here
are bounds, never truths: a missing or unreadable one costs time, not data.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from logstore.checkpoint.clean_shutdown import (
    OURS,
    CleanShutdown,
    digests_of,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.checkpoint.meta_properties import META_PROPERTIES
from logstore.checkpoint.offset_checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.partition_metadata import read_partition_metadata
from logstore.compact.cleaner import Cleaner
from logstore.compact.cleaner_config import CleanerConfig
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.errors import CorruptCheckpoint, EngineError
from logstore.disk.files import Disk, Lock, make_durable_dir
from logstore.disk.marks import mark
from logstore.disk.running import has_run_on, remove_running, write_running
from logstore.disk.topic_partition import TopicPartition, parse_directory_name, set_aside_fate
from logstore.errors import DamagedLog, DiskFull, LogDirOffline, bare, is_full
from logstore.log.log import Clock, Log
from logstore.log.losses import Loss
from logstore.log.manager_config import LogManagerConfig
from logstore.log.recovery import load
from logstore.log.retention import Expired
from logstore.log.stand_alone import forget_stand_alone
from logstore.log.state import LogState
from logstore.segment.seal import remove_seals

NO_BROKER_EPOCH: Final = -1

DirectoryProgress = Callable[[str, int, int], None]
"""Told the partition's directory, bytes judged so far and bytes to judge in it."""


class LogManager:
    """Every log of one node. Opening it recovers what needs it; `close` leaves the marks of a clean stop.

    Raises `DirectoryLocked` if somebody owns one of the dirs, `InvalidTopic` for a directory that is no
    partition's, `LogDirOffline` if not one dir can be used. A dir that fails alone is listed in
    `offline_dirs`.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        disk: Disk,
        clock: Clock,
        random: random.Random,
        config: LogConfig | None = None,
        configs: Mapping[str, LogConfig] | None = None,
        broker_epoch: int = NO_BROKER_EPOCH,
        progress: DirectoryProgress | None = None,
        settings: LogManagerConfig | None = None,
        accept_loss: Collection[TopicPartition] = (),
        boot_id: str = "",
    ) -> None:
        """Open the log dirs, by the node's `settings`.

        `configs` gives topics settings of their own; others have `config`, by default the settings'.
        Damaged partitions among `accept_loss` are cut where the damage begins, instead of kept out.
        `boot_id` is the boot of the machine (`logstore.disk.files.boot_id`); empty if nobody can tell.
        """
        if not log_dirs or len(set(log_dirs)) != len(log_dirs):
            raise ValueError(f"log dirs {list(log_dirs)}: give one or more, each once")
        self.settings = settings or LogManagerConfig()
        self.config = config or self.settings.topic_defaults
        self._configs = dict(configs or {})
        self._random = random
        self._clock = clock
        self._disk, self._boot_id = disk, boot_id
        now_ms, delay_ms = clock(), self.settings.log_initial_task_delay_ms
        self._retention = _Every(self.settings.log_retention_check_interval_ms, now_ms, delay_ms)
        self._flushing = _Every(self.settings.log_flush_scheduler_interval_ms, now_ms, delay_ms)
        self._recovery_points = _Every(
            self.settings.log_flush_offset_checkpoint_interval_ms, now_ms, delay_ms
        )
        self._log_starts = _Every(
            self.settings.log_flush_start_offset_checkpoint_interval_ms, now_ms, delay_ms
        )
        self._expiration = _Every(
            self.settings.producers.producer_id_expiration_check_interval_ms, now_ms, delay_ms
        )
        self.cleaner = Cleaner(self.logs, CleanerConfig.of(self.settings), now_ms=now_ms)
        """What compacts the logs, and what it knows of them."""
        self._dirs: list[_LogDir] = []
        try:
            for directory in log_dirs:
                log_dir = _LogDir(
                    directory, disk, clock, random, broker_epoch, self.settings, accept_loss, boot_id
                )
                self._dirs.append(log_dir)
                log_dir.open(lambda topic: self._configs.get(topic, self.config), progress)
            if not self._online():
                reasons = "; ".join(f"{path}: {reason}" for path, reason in self.offline_dirs.items())
                raise LogDirOffline(f"no log dir can be used: {reasons}")
        except BaseException:
            for log_dir in self._dirs:
                log_dir.abandon()
            raise
        # An empty dir counts as unclean: it may be the new disk in the place of one that was lost.
        self.was_clean = all(log_dir.was_clean or log_dir.has_run_on for log_dir in self._dirs)
        """Whether nothing can have been lost: the last owner stopped in order, or was killed in this boot."""
        if boot_id and self.was_clean and not accept_loss:
            self.vouch()
        elif boot_id or accept_loss:
            self.let_nobody_vouch()
        self.had_empty_dir = any(log_dir.was_empty or log_dir.failure for log_dir in self._dirs)
        """Whether a log dir was new, or could not be opened: what had been synced may not be there either."""

    def vouch(self) -> None:
        """From now on a kill of this process loses nothing that is not on record; only a power cut may."""
        if self._boot_id:
            for log_dir in self._online():
                log_dir.guarded(partial(write_running, self._disk, log_dir.path, self._boot_id))

    def let_nobody_vouch(self) -> None:
        """Take that back: nobody can say what these logs hold."""
        for log_dir in self._online():
            log_dir.guarded(partial(remove_running, self._disk, log_dir.path))

    # --- what there is --------------------------------------------------------------------------------

    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs of the dirs that are online, in order of partition."""
        found = {tp: log for log_dir in self._online() for tp, log in log_dir.logs.items()}
        return dict(sorted(found.items()))

    @property
    def damaged(self) -> Mapping[TopicPartition, DamagedLog]:
        """Partitions that were left as they are because synced batches are gone from them."""
        return {tp: error for log_dir in self._dirs for tp, error in log_dir.damaged.items()}

    def losses(self) -> Mapping[TopicPartition, list[Loss]]:
        """What each partition has lost, as its ledger says; those that lost nothing are left out.

        Raises `OSError`.
        """
        found = {tp: log.losses() for tp, log in self.logs().items()}
        return {tp: losses for tp, losses in found.items() if losses}

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """All log dirs, as they were given; those that failed among them."""
        return tuple(log_dir.path for log_dir in self._dirs)

    @property
    def offline_dirs(self) -> Mapping[str, str]:
        """Log dirs whose disk failed, and why."""
        return {log_dir.path: str(log_dir.failure) for log_dir in self._dirs if log_dir.failure is not None}

    @property
    def is_offline(self) -> bool:
        """Whether not one log dir is left."""
        return not self._online()

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log; None if there is none.

        Raises `LogDirOffline` if its dir has failed, `DamagedLog` if it could not be opened.
        """
        for log_dir in self._dirs:
            if topic_partition in log_dir.damaged:
                error = log_dir.damaged[topic_partition]
                raise DamagedLog(str(error), error.damages)
            if log_dir.failure is None:
                if topic_partition in log_dir.logs:
                    return log_dir.logs[topic_partition]
            elif topic_partition in log_dir.known:
                raise LogDirOffline(
                    f"{topic_partition} lives in {log_dir.path}, which is offline: {log_dir.failure}"
                )
        return None

    def topic_id(self, topic_partition: TopicPartition) -> str | None:
        """The id in the partition's directory, damaged or not; None if there is none, or no directory.

        Raises `LogDirOffline`.
        """
        home = self._home_of_damaged(topic_partition)
        if home is not None:
            return home.topic_id_of_damaged(topic_partition)
        log = self.get(topic_partition)
        return None if log is None else log.topic_id

    def topic_ids(self) -> Mapping[TopicPartition, str | None]:
        """`topic_id` of each partition in the dirs that are online. Raises `LogDirOffline`."""
        found = {tp for log_dir in self._online() for tp in (*log_dir.logs, *log_dir.damaged)}
        return {tp: self.topic_id(tp) for tp in sorted(found)}

    def _home_of_damaged(self, topic_partition: TopicPartition) -> _LogDir | None:
        return next((log_dir for log_dir in self._dirs if topic_partition in log_dir.damaged), None)

    def get_or_create(
        self, topic_partition: TopicPartition, *, config: LogConfig | None = None, topic_id: str = ""
    ) -> Log:
        """The partition's log, made in the dir with the fewest logs if there is none.

        `topic_id` is made durable before the log can be written. Raises `InconsistentTopicId`,
        `LogDirOffline`, `DamagedLog`.
        """
        log = self.get(topic_partition)
        if log is None:
            online = self._online()
            if not online:
                raise LogDirOffline(f"{topic_partition} cannot be made: every log dir is offline")
            home = min(online, key=lambda log_dir: len(log_dir.logs))
            topic_config = config or self._configs.get(topic_partition.topic, self.config)
            log = home.create(topic_partition, topic_config)
        elif config is not None:
            log.config = config
            for log_dir in self._online():
                if topic_partition in log_dir.logs:
                    log_dir.heed(log)
        if topic_id:
            log.set_topic_id(topic_id)
        return log

    def reopen(
        self, topic_partition: TopicPartition, *, config: LogConfig | None = None, accept_loss: bool = False
    ) -> Log:
        """Try again to open a partition that is listed in `damaged`.

        With `accept_loss` it is cut where the damage begins, as if it had been among the constructor's: for
        whoever can have what goes from elsewhere. Raises `DamagedLog` if it still cannot be opened,
        `DiskFull` if there is no room for what must be kept of it, `LogDirOffline`.
        """
        (home,) = (log_dir for log_dir in self._dirs if topic_partition in log_dir.damaged)
        topic_config = config or self._configs.get(topic_partition.topic, self.config)
        return home.reopen(topic_partition, topic_config, accept_loss=accept_loss)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the log away, damaged or not; its files go after `file.delete.delay.ms`.

        Unknown partitions are fine. Raises `LogDirOffline`, and `DiskFull` with nothing changed.
        """
        self._rename_away(topic_partition, "delete")

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Take the log away and keep its files, as `<topic>-<partition>.<32 hex>-stray`, for an operator.

        Damaged or not; unknown partitions are fine. Raises `LogDirOffline`; `DiskFull` with nothing changed.
        """
        self._rename_away(topic_partition, "stray")

    def _rename_away(self, topic_partition: TopicPartition, fate: str) -> None:
        home = self._home_of_damaged(topic_partition)
        config = self._configs.get(topic_partition.topic, self.config)
        if home is None:
            log = self.get(topic_partition)
            if log is None:
                return
            (home,) = (log_dir for log_dir in self._online() if topic_partition in log_dir.logs)
            config = log.config
        unique = f"{self._random.getrandbits(128):032x}"
        home.rename_away(topic_partition, unique, fate, config.file_delete_delay_ms)

    def _online(self) -> list[_LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.failure is None]

    # --- checkpoints ----------------------------------------------------------------------------------

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark that was last checkpointed; 0 if none: a lower bound, never more."""
        for log_dir in self._online():
            if topic_partition in log_dir.high_watermarks:
                return log_dir.high_watermarks[topic_partition]
        return 0

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark. A dir that fails goes offline."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoint_high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        """Sync the sealed segments and write how far every log is durable."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoint_recovery_points)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the log start offsets that lie above their first segment."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoint_log_start_offsets)

    @property
    def deadline_ms(self) -> int:
        """When `tick` is next needed."""
        return min(
            self._recovery_points.due_ms,
            self._log_starts.due_ms,
            self._retention.due_ms,
            self._expiration.due_ms,
            self._flushing.due_ms,
            self.cleaner.deadline_ms,
            *(log_dir.deadline_ms for log_dir in self._online()),
        )

    def tick(self, now_ms: int) -> None:
        """Do what is due: delete old segments, flush by age, write checkpoints, unlink deleted files, forget
        producers that have been idle for too long; then compact for as long as `cleaner` allows at a time.
        """
        if self._retention.is_due(now_ms):
            self.delete_old_segments(now_ms)
        if self._flushing.is_due(now_ms):
            for log_dir in self._online():
                log_dir.guarded(lambda log_dir=log_dir: log_dir.flush_by_age(now_ms))  # type: ignore[misc]
        for log_dir in self._online():
            log_dir.guarded(lambda log_dir=log_dir: log_dir.tick(now_ms))  # type: ignore[misc]
        if self._recovery_points.is_due(now_ms):
            self.checkpoint_recovery_points()
        if self._log_starts.is_due(now_ms):
            self.checkpoint_log_start_offsets()
        if self._expiration.is_due(now_ms):
            for log in self.logs().values():
                log.remove_expired_producers(now_ms)
        self.cleaner.tick(now_ms)

    def delete_old_segments(self, now_ms: int) -> Mapping[TopicPartition, tuple[Expired, ...]]:
        """Let every log's old segments go, compacted ones apart: the cleaner does both for those.

        A partition that cannot (no room to write where its log starts now) is left for the next time,
        and one whose disk fails takes its dir offline; the others go on. Returns what went.
        """
        went: dict[TopicPartition, tuple[Expired, ...]] = {}
        for log_dir in self._online():
            log_dir.delete_old_segments(now_ms, went)
        return went

    def close(self, *, mark_clean: bool = True) -> None:
        """Flush and close every log, write the checkpoints, then the mark of a clean stop.

        A dir whose disk fails on the way stays without its mark: its next start recovers it. Without
        `mark_clean` so does every dir: a node that started unclean, and has not yet been told which of
        its replicas still count, must not look intact the next time.
        """
        self.cleaner.close()
        for log_dir in self._dirs:
            log_dir.close(mark_clean=mark_clean)

    def abandon(self) -> None:
        """Let go of every dir without writing anything: the stop that a killed process makes."""
        for log_dir in self._dirs:
            log_dir.abandon()


class _Every:
    """What is due every `interval_ms`, and at once if the clock was set back by more than that.

    For the first time after `delay_ms` if that is sooner; never if the interval is `MAX_LONG`.
    """

    def __init__(self, interval_ms: int, now_ms: int, delay_ms: int) -> None:
        self._interval_ms = interval_ms
        self.due_ms = now_ms + (min(interval_ms, delay_ms) if interval_ms < MAX_LONG else MAX_LONG)

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time; counts the next interval from here then."""
        if self.due_ms - 2 * self._interval_ms <= now_ms < self.due_ms:
            return False
        self.due_ms = now_ms + self._interval_ms
        return True


class _LogDir:
    """One log dir: the owner of the logs in it."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        clock: Clock,
        random: random.Random,
        broker_epoch: int,
        settings: LogManagerConfig,
        accept_loss: Collection[TopicPartition],
        boot_id: str,
    ) -> None:
        self.path = path.rstrip("/") or "/"
        self._disk = disk
        self._clock = clock
        self._random = random
        self._broker_epoch = broker_epoch
        self._producer_config = settings.producers
        self._flushes_on_schedule = settings.log_flush_scheduler_interval_ms < MAX_LONG
        self._accept_loss = accept_loss
        self._boot_id = boot_id
        self._lock: Lock | None = None
        self._checkpoint_lock = threading.RLock()
        self.logs: dict[TopicPartition, Log] = {}
        self.known: set[TopicPartition] = set()
        self.damaged: dict[TopicPartition, DamagedLog] = {}
        self.failure: OSError | None = None
        self.was_clean = False
        self.has_run_on = False
        """Whether its last owner ran in this boot: if he was killed, the page cache is all there."""
        self.was_empty = False
        self._closed_by_us = False
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._watermarks_fell = False
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._first_dirty: dict[TopicPartition, int] = {}
        self._doomed: list[tuple[int, str]] = []
        self.deadline_ms = MAX_LONG
        """When `tick` has something to do: a flush by age, a directory to remove."""

    # --- opening --------------------------------------------------------------------------------------

    def open(self, config_of: Callable[[str], LogConfig], progress: DirectoryProgress | None) -> None:
        try:
            self._open(config_of, progress)
        except OSError as error:
            self._take_offline(error)

    def _open(self, config_of: Callable[[str], LogConfig], progress: DirectoryProgress | None) -> None:
        make_durable_dir(self._disk, self.path)
        self._lock = self._disk.lock(self.path)
        marker = read_clean_shutdown(self._disk, self.path)
        self.was_clean = marker is not None
        self.has_run_on = has_run_on(self._disk, self.path, self._boot_id)
        self._closed_by_us = marker is not None and marker.is_ours
        if marker is not None and not marker.is_ours:
            # A broker may have rewritten what the seals speak of. Before the marker goes: a crash in
            # between leaves both to be seen to again.
            for entry in self._disk.scan(self.path):
                if entry.is_directory:
                    remove_seals(self._disk, f"{self.path}/{entry.name}")
        # Gone for good before anything else is written: a crash from here on is an unclean stop.
        remove_clean_shutdown(self._disk, self.path)
        self._recovery_points = self._read(RECOVERY_POINT_CHECKPOINT)
        self._log_starts = self._read(LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = self._read(HIGH_WATERMARK_CHECKPOINT)
        self._first_dirty = self._read(CLEANER_OFFSET_CHECKPOINT)
        entries = self._disk.scan(self.path)
        # Who claims a dir marks it first: on a new disk, too.
        self.was_empty = marker is None and all(entry.name in (".lock", META_PROPERTIES) for entry in entries)
        for entry in entries:
            if not entry.is_directory:
                continue
            fate = set_aside_fate(entry.name)
            if fate == "delete":
                mark("log dir: a deletion is ended after a restart")
                self._doomed.append((self._clock(), f"{self.path}/{entry.name}"))
            if fate is not None or entry.name == "remote-log-index-cache":
                continue
            topic_partition = parse_directory_name(entry.name)
            self.known.add(topic_partition)
            forget_stand_alone(self._disk, f"{self.path}/{entry.name}")
            try:
                self._load(topic_partition, config_of(topic_partition.topic), progress)
            except DamagedLog as error:
                mark("log dir: a damaged log is kept as it is")
                # Kept as it is, for its owner to judge; the other partitions go on.
                self.damaged[topic_partition] = error
            except EngineError as error:
                self.damaged[topic_partition] = DamagedLog(f"{topic_partition} cannot be opened: {error}")
        self._write_fallen_watermarks()
        self._forget_first_dirty()
        self.set_deadline(self._clock())

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offset_checkpoint(self._disk, self.path, name)
        except CorruptCheckpoint:
            # As if it were not there: every log is then read from its start.
            return {}

    def _load(
        self, topic_partition: TopicPartition, config: LogConfig, progress: DirectoryProgress | None = None
    ) -> Log:
        directory = f"{self.path}/{topic_partition.directory_name}"

        def jitter_ms(bound_ms: int) -> int:
            return self._random.randrange(bound_ms) if bound_ms else 0

        loaded = load(
            self._disk,
            directory,
            config,
            is_clean=self.was_clean,
            recovery_point=self._recovery_points.get(topic_partition, 0),
            log_start_offset=self._log_starts.get(topic_partition, 0),
            now_ms=self._clock(),
            high_watermark=self.high_watermarks.get(topic_partition, 0),
            jitter_ms=jitter_ms,
            progress=None if progress is None else lambda done, total: progress(directory, done, total),
            producer_expiration_ms=self._producer_config.producer_id_expiration_ms,
            # Stopped in order we leave the recovery point at the end.
            closed_at=self._recovery_points.get(topic_partition, 0) if self._closed_by_us else None,
            accept_loss=topic_partition in self._accept_loss,
        )
        # It may have come out shorter than its checkpoint says: what is written now at those offsets must
        # not pass for synced.
        self._lower_recovery_point(topic_partition, loaded.log_end_offset)
        if self._first_dirty.get(topic_partition, 0) > loaded.log_end_offset:
            self._write_first_dirty({**self._first_dirty, topic_partition: loaded.log_start_offset})
        log = Log(
            directory,
            topic_partition,
            config,
            loaded,
            disk=self._disk,
            clock=self._clock,
            jitter_ms=jitter_ms,
            owner=self,
            producer_config=self._producer_config,
            first_dirty_offset=self._first_dirty.get(topic_partition, 0),
        )
        if self.high_watermarks.get(topic_partition, 0) > loaded.log_end_offset:
            self.high_watermarks[topic_partition] = loaded.log_end_offset
            self._watermarks_fell = True
        log.set_high_watermark(self.high_watermarks.get(topic_partition, 0))
        self.logs[topic_partition] = log
        self.known.add(topic_partition)
        self.heed(log)
        return log

    def create(self, topic_partition: TopicPartition, config: LogConfig) -> Log:
        """A new, empty log; durable as a directory when this returns. Raises `LogDirOffline`."""
        # Of one that was deleted here: its successor has not lost what it held.
        self._forget(topic_partition)
        try:
            self._disk.make_dir(f"{self.path}/{topic_partition.directory_name}")
            self._disk.sync_dir(self.path)
            return self._load(topic_partition, config)
        except OSError as error:
            if is_full(error):
                message = f"{self.path}: no room to make {topic_partition}; make some, then try again"
                raise DiskFull(message) from error
            self._take_offline(error)
            raise LogDirOffline(f"{self.path} went offline making {topic_partition}: {error}") from error

    def _check_online(self, topic_partition: TopicPartition) -> None:
        if self.failure is not None:
            raise LogDirOffline(f"{topic_partition} lives in {self.path}, which is offline: {self.failure}")

    def reopen(self, topic_partition: TopicPartition, config: LogConfig, *, accept_loss: bool) -> Log:
        """Open once more what is in `damaged`. Raises `DamagedLog`, `DiskFull`, `LogDirOffline`."""
        self._check_online(topic_partition)
        if accept_loss:
            self._accept_loss = {*self._accept_loss, topic_partition}
        try:
            log = self._load(topic_partition, config)
            self._write_fallen_watermarks()
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"{self.path}: no room to open {topic_partition}; make some") from error
            self._take_offline(error)
            raise LogDirOffline(f"{self.path} went offline opening {topic_partition}: {error}") from error
        except (DamagedLog, DiskFull):
            raise
        except EngineError as error:
            raise DamagedLog(f"{topic_partition} cannot be opened: {error}") from error
        del self.damaged[topic_partition]
        return log

    def topic_id_of_damaged(self, topic_partition: TopicPartition) -> str | None:
        """What is left may still say it; None if not. Raises `LogDirOffline`."""
        self._check_online(topic_partition)
        try:
            return read_partition_metadata(self._disk, f"{self.path}/{topic_partition.directory_name}")
        except CorruptCheckpoint:
            return None
        except OSError as error:
            self._take_offline(error)
            raise LogDirOffline(f"{self.path} went offline reading {topic_partition}: {error}") from error

    def rename_away(self, topic_partition: TopicPartition, unique: str, fate: str, delay_ms: int) -> None:
        self._check_online(topic_partition)
        # First, because a full disk may refuse it: nothing has changed then, and the same call works later.
        # Of a log that stays after all, a crash finds fewer bounds than it had, and reads it from its start.
        self._forget(topic_partition)
        log = self.logs.pop(topic_partition, None)
        if log is None:
            mark("log dir: a damaged log is taken away")
            del self.damaged[topic_partition]
        else:
            log.abandon()
        self.known.discard(topic_partition)
        # The whole name may have 255 characters: a long topic name is cut, the id tells them apart.
        suffix = f"-{topic_partition.partition}.{unique}-{fate}"
        renamed = f"{self.path}/{topic_partition.topic[: 255 - len(suffix)]}{suffix}"
        try:
            self._disk.rename(f"{self.path}/{topic_partition.directory_name}", renamed)
            self._disk.sync_dir(self.path)
        except OSError as error:
            self._take_offline(error)
            raise LogDirOffline(f"{self.path} went offline moving {topic_partition}: {error}") from error
        if fate == "delete":
            due_ms = self._clock() + delay_ms
            self._doomed.append((due_ms, renamed))
            self.deadline_ms = min(self.deadline_ms, due_ms)

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Take a partition that is no more out of the checkpoints. Raises `LogDirOffline`, `DiskFull`."""
        with self._checkpoint_lock:
            for name, offsets in (
                (RECOVERY_POINT_CHECKPOINT, self._recovery_points),
                (LOG_START_OFFSET_CHECKPOINT, self._log_starts),
                (HIGH_WATERMARK_CHECKPOINT, self.high_watermarks),
                # A new partition of that name would pass for compacted up to there.
                (CLEANER_OFFSET_CHECKPOINT, self._first_dirty),
            ):
                if topic_partition not in offsets:
                    continue
                left = {each: offset for each, offset in offsets.items() if each != topic_partition}
                try:
                    write_offset_checkpoint(self._disk, self.path, name, left)
                except OSError as error:
                    if is_full(error):
                        mark("log dir: no room to forget a partition that is to go")
                        raise DiskFull(
                            f"{self.path}: no room to move {topic_partition} away; make room, then try again"
                        ) from error
                    self._take_offline(error)
                    raise LogDirOffline(f"{self.path} went offline moving {topic_partition}") from error
                del offsets[topic_partition]

    # --- what the logs tell it ------------------------------------------------------------------------

    def lower_bounds(self, log: LogState, offset: int) -> None:
        with self._checkpoint_lock:
            self._lower_recovery_point(log.topic_partition, offset)
            if offset < self._first_dirty.get(log.topic_partition, 0):
                self._write_first_dirty({**self._first_dirty, log.topic_partition: offset})
            # Only after an unclean election is a log cut below what was committed once.
            if offset < self.high_watermarks.get(log.topic_partition, 0):
                lowered = {**self.high_watermarks, log.topic_partition: offset}
                write_offset_checkpoint(self._disk, self.path, HIGH_WATERMARK_CHECKPOINT, lowered)
                self.high_watermarks = lowered

    def _lower_recovery_point(self, topic_partition: TopicPartition, offset: int) -> None:
        if offset < self._recovery_points.get(topic_partition, 0):
            lowered = {**self._recovery_points, topic_partition: offset}
            write_offset_checkpoint(self._disk, self.path, RECOVERY_POINT_CHECKPOINT, lowered)
            self._recovery_points = lowered

    def _write_fallen_watermarks(self) -> None:
        """Before anything is appended: what comes to lie where records were lost has not been committed."""
        if self._watermarks_fell:
            mark("log dir: a log came out shorter than its high watermark")
            write_offset_checkpoint(self._disk, self.path, HIGH_WATERMARK_CHECKPOINT, self.high_watermarks)
            self._watermarks_fell = False

    def _write_first_dirty(self, offsets: dict[TopicPartition, int]) -> None:
        write_offset_checkpoint(self._disk, self.path, CLEANER_OFFSET_CHECKPOINT, offsets)
        self._first_dirty = offsets

    def _forget_first_dirty(self) -> None:
        """Drop the entries of partitions that are gone."""
        with self._checkpoint_lock:
            known = {tp: offset for tp, offset in self._first_dirty.items() if tp in self.known}
            if known != self._first_dirty:
                self._write_first_dirty(known)

    def compacted(self, log: LogState) -> None:
        with self._checkpoint_lock:
            if self._first_dirty.get(log.topic_partition, 0) != log.first_dirty_offset:
                self._write_first_dirty({**self._first_dirty, log.topic_partition: log.first_dirty_offset})

    def log_start_moved(self, log: LogState) -> None:
        # Also one that the first segment tells: that segment may be about to go.
        self._write_log_starts({log.topic_partition: log.log_start_offset})

    def flushed(self, log: LogState) -> None:
        """Nothing at once: the recovery points are written on a schedule."""

    def failed(self, log: LogState, error: OSError) -> None:
        self._take_offline(error)

    def closed(self, log: LogState, *, is_clean: bool) -> None:
        """The manager closes them all and writes the checkpoints itself."""

    # --- checkpoints ----------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        with self._checkpoint_lock:
            self.high_watermarks.update({tp: log.high_watermark for tp, log in self.logs.items()})
            write_offset_checkpoint(self._disk, self.path, HIGH_WATERMARK_CHECKPOINT, self.high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        for log in list(self.logs.values()):
            log.flush_sealed()
        self._write_recovery_points()

    def _write_recovery_points(self) -> None:
        with self._checkpoint_lock:
            points = {tp: log.recovery_point for tp, log in self.logs.items()}
            points |= self._of_damaged(self._recovery_points)
            write_offset_checkpoint(self._disk, self.path, RECOVERY_POINT_CHECKPOINT, points)
            self._recovery_points = points

    def checkpoint_log_start_offsets(self) -> None:
        self._write_log_starts({})

    def _write_log_starts(self, also: dict[TopicPartition, int]) -> None:
        with self._checkpoint_lock:
            starts = {
                tp: log.log_start_offset
                for tp, log in self.logs.items()
                if log.log_start_offset > log.segments[0].base_offset
            }
            starts |= self._of_damaged(self._log_starts) | also
            write_offset_checkpoint(self._disk, self.path, LOG_START_OFFSET_CHECKPOINT, starts)
            self._log_starts = starts

    def _of_damaged(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What was known of the partitions that were left as they are: the next start judges by it too."""
        return {tp: offset for tp, offset in offsets.items() if tp in self.damaged}

    def delete_old_segments(self, now_ms: int, went: dict[TopicPartition, tuple[Expired, ...]]) -> None:
        for tp, log in list(self.logs.items()):
            if self.failure is not None:
                return
            if log.config.is_compacted:
                continue

            def delete(tp: TopicPartition = tp, log: Log = log) -> None:
                if expired := log.delete_old_segments(now_ms):
                    went[tp] = expired

            self.guarded(delete)
        self.set_deadline(now_ms)

    def flush_by_age(self, now_ms: int) -> None:
        for log in self.logs.values():
            log.flush_by_age(now_ms)

    def tick(self, now_ms: int) -> None:
        if not self._flushes_on_schedule:
            self.flush_by_age(now_ms)
        for log in self.logs.values():
            log.remove_deleted_files(now_ms)
            log.expire_losses(now_ms)
        due = [path for at_ms, path in self._doomed if at_ms <= now_ms]
        self._doomed = [(at_ms, path) for at_ms, path in self._doomed if at_ms > now_ms]
        for path in due:
            self._remove_tree(path)
        self.set_deadline(now_ms)

    def heed(self, log: Log) -> None:
        """Be awake for what this log needs; one log is looked at, or thousands would cost their square."""
        flush_ms = MAX_LONG if self._flushes_on_schedule else self._clock() + log.config.flush_ms
        self.deadline_ms = min(self.deadline_ms, flush_ms, log.deletion_deadline_ms, log.losses_deadline_ms)

    def set_deadline(self, now_ms: int) -> None:
        ages_ms = [] if self._flushes_on_schedule else [log.config.flush_ms for log in self.logs.values()]
        unlinking_ms = [min(log.deletion_deadline_ms, log.losses_deadline_ms) for log in self.logs.values()]
        self.deadline_ms = min(
            [now_ms + min(ages_ms, default=MAX_LONG), *unlinking_ms, *(at for at, _ in self._doomed)]
        )

    def _remove_tree(self, directory: str) -> None:
        for entry in self._disk.scan(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                self._remove_tree(path)
            else:
                self._disk.remove(path)
        self._disk.remove_dir(directory)

    # --- failing and closing --------------------------------------------------------------------------

    def guarded(self, action: Callable[[], None]) -> bool:
        """Run `action`; False if it failed. A bad disk takes this dir offline and leaves the others alone.

        A full one does not: what could not be written stands as it was, and is written another time.
        """
        try:
            action()
        except DiskFull:
            return False
        except OSError as error:
            if not is_full(error):
                self._take_offline(error)
            return False
        except LogDirOffline:
            # The log at fault has reported itself through `failed`.
            assert self.failure is not None, "a log went offline without its dir"
            return False
        return True

    def _take_offline(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = bare(error)
            for log in list(self.logs.values()):  # a sync's thread may be the one that finds out
                log.take_offline(error)
            # What could not be synced may be dropped from the page cache: who comes next cannot tell. If this
            # fails too, the dir is not one to come back to in this boot.
            with suppress(OSError):
                if self._boot_id:
                    remove_running(self._disk, self.path)

    def close(self, *, mark_clean: bool) -> None:
        closed = [self.guarded(log.close) for log in list(self.logs.values())]
        # A partition left as it is must be judged again, which a clean start would not do.
        mark_clean = mark_clean and all(closed) and not self.damaged
        if self.failure is None and self._lock is not None:
            self.guarded(lambda: self._leave_marks(mark_clean))
        self.abandon()

    def _leave_marks(self, mark_clean: bool) -> None:
        self._write_recovery_points()
        self.checkpoint_log_start_offsets()
        self.checkpoint_high_watermarks()
        if mark_clean:
            names = [
                META_PROPERTIES,
                RECOVERY_POINT_CHECKPOINT,
                LOG_START_OFFSET_CHECKPOINT,
                HIGH_WATERMARK_CHECKPOINT,
                "cleaner-offset-checkpoint",
            ]
            for topic_partition, log in sorted(self.logs.items()):
                directory = topic_partition.directory_name
                names += [f"{directory}/{name}" for name in log.files_without_a_sum()]
            extra = {**OURS, **digests_of(self._disk, self.path, names)}
            write_clean_shutdown(self._disk, self.path, CleanShutdown(self._broker_epoch, extra))

    def abandon(self) -> None:
        """Let go of everything without writing."""
        for log in self.logs.values():
            log.abandon()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
