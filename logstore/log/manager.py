"""The logs of one node, in one or more log dirs.

    data/                                   a log dir, with its lock and checkpoints (`log_dir.py`)
      orders-0/ orders-1/ …                 partitions

A failed disk takes its log dir offline, with every log in it, until a restart has recovered it; the other
dirs continue. Each log recovers itself after a crash (`recovery.py`). The checkpoints of a log dir are
only bounds: a missing or unreadable one costs time, not data.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from logstore.compact.cleaner import Cleaner
from logstore.compact.cleaner_config import CleanerConfig
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Disk, Room
from logstore.disk.running import remove_running, write_running
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import Damage, DamagedLog, DamageKind, LogDirOffline
from logstore.log.log import Log
from logstore.log.log_dir import DirectoryProgress, Leaving, LogDir, NodeFacts, RunAll, one_by_one
from logstore.log.losses import Loss
from logstore.log.manager_config import LogManagerConfig
from logstore.log.moves import Moves
from logstore.log.partition_log import Clock
from logstore.log.retention import Expired
from logstore.log.upkeep import remove_expired_producers

__all__ = ["NO_BROKER_EPOCH", "DirectoryProgress", "LogManager"]

NO_BROKER_EPOCH: Final = -1


class LogManager:
    """Every log of one node. The constructor recovers logs if needed; `close` writes clean-shutdown markers.

    Raises `DirectoryLocked` if a dir has another owner, `InvalidTopic` for a directory that is not a
    partition's, `LogDirOffline` if all dirs fail. A single failed dir is listed in `offline_dirs`.
    """

    # Twelve parameters: each is a separate choice of the program, and all but four have defaults.
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
        run_all: RunAll = one_by_one,
    ) -> None:
        """Open the log dirs with the node's `settings`.

        `configs` holds the settings of single topics; other topics have `config`, by default the one in
        `settings`. Damaged partitions in `accept_loss` are truncated at the damage instead of being left out.
        `boot_id` identifies the boot of the machine (`logstore.disk.running.boot_id`); empty if unknown.
        `run_all` opens and closes the logs of a dir, perhaps in threads, which then call `progress`.
        """
        if not log_dirs or len(set(log_dirs)) != len(log_dirs):
            raise ValueError(f"log dirs are {list(log_dirs)}; give at least one, each only once")
        self.settings = settings = settings or LogManagerConfig()
        self.config = config or settings.topic_defaults
        self._configs = dict(configs or {})
        self._random = random
        self._disk, self._boot_id = disk, boot_id
        now_ms = clock()
        every = partial(_Every, now_ms=now_ms, delay_ms=settings.log_initial_task_delay_ms)
        self._retention = every(settings.log_retention_check_interval_ms)
        self._flushing = every(settings.log_flush_scheduler_interval_ms)
        self._recovery_points = every(settings.log_flush_offset_checkpoint_interval_ms)
        self._log_starts = every(settings.log_flush_start_offset_checkpoint_interval_ms)
        self._expiration = every(settings.producers.producer_id_expiration_check_interval_ms)
        self.cleaner = Cleaner(
            # A log that moves is not compacted: its copy would be made again and again.
            lambda: {tp: log.partition for tp, log in self.logs().items() if tp not in self.moves.under_way},
            CleanerConfig.of(settings),
            now_ms=now_ms,
        )
        """Compacts the logs and reports their state."""
        self.failed_dirs: list[str] = []
        """Log dirs whose disk failed, as they failed: a look at its length tells of a new one."""
        node = NodeFacts(disk, clock, random, settings, broker_epoch, boot_id, self.failed_dirs, run_all)
        self._dirs: list[LogDir] = []
        self.moves = Moves(self._dirs, disk, random)
        """Logs on their way from one of the log dirs to another."""
        try:
            for directory in log_dirs:
                log_dir = LogDir(directory, node, accept_loss)
                self._dirs.append(log_dir)
                log_dir.open(lambda topic: self._configs.get(topic, self.config), progress)
            if not self._online():
                reasons = "; ".join(f"{path}: {reason}" for path, reason in self.offline_dirs.items())
                raise LogDirOffline(f"every log dir failed: {reasons}")
            self.moves.settle()
            for log_dir, topic_partition in _find_missing(self._dirs):
                if topic_partition in accept_loss:
                    log_dir.reopen(topic_partition, self._config_of(topic_partition), accept_loss=True)
        except BaseException:
            self.abandon()
            raise
        # An empty dir counts as unclean: it may be a new disk that replaces a lost one.
        self.was_clean = all(log_dir.was_clean or log_dir.has_run_on for log_dir in self._dirs)
        """Whether no data can be lost: after a clean shutdown, or a kill in the same boot of the machine."""
        if boot_id and self.was_clean and not accept_loss:
            self.vouch()
        elif boot_id or accept_loss:
            self.let_nobody_vouch()
        self.had_empty_dir = any(log_dir.was_empty or log_dir.failure for log_dir in self._dirs)
        """Whether a log dir was new or could not be opened: synced records may be missing."""

    def vouch(self) -> None:
        """Write the running markers, which state that a kill of this process loses nothing."""
        if self._boot_id:
            for log_dir in self._online():
                log_dir.guarded(partial(write_running, self._disk, log_dir.path, self._boot_id))

    def let_nobody_vouch(self) -> None:
        """Remove the running markers: data of these logs may be lost already."""
        for log_dir in self._online():
            log_dir.guarded(partial(remove_running, self._disk, log_dir.path))

    # --- the logs -------------------------------------------------------------------------------------

    def logs(self) -> Mapping[TopicPartition, Log]:
        """Return the logs of the dirs that are online, ordered by partition. Any thread may ask."""
        found = {tp: log for log_dir in self._online() for tp, log in list(log_dir.logs.items())}
        return {tp: found[tp] for tp in sorted(found)}

    @property
    def damaged(self) -> Mapping[TopicPartition, DamagedLog]:
        """Partitions that were not opened because synced batches are missing or damaged."""
        return {tp: error for log_dir in self._dirs for tp, error in log_dir.damaged.items()}

    def losses(self) -> Mapping[TopicPartition, list[Loss]]:
        """Return the losses in each partition's ledger; partitions without losses are left out.

        Raises `OSError`.
        """
        found = {tp: log.losses() for tp, log in self.logs().items()}
        return {tp: losses for tp, losses in found.items() if losses}

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """All log dirs, including the failed ones."""
        return tuple(log_dir.path for log_dir in self._dirs)

    @property
    def offline_dirs(self) -> Mapping[str, str]:
        """Log dirs whose disk failed, with the error."""
        return {log_dir.path: str(log_dir.failure) for log_dir in self._dirs if log_dir.failure is not None}

    def room(self, path: str) -> Room:
        """Return the free bytes and all bytes of a log dir's file system; -1 if unknown."""
        try:
            return self._disk.room(path)
        except OSError:
            return Room(-1, -1)

    @property
    def is_offline(self) -> bool:
        """Whether all log dirs have failed."""
        return not self._online()

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Return the partition's log; None if there is none.

        Raises `LogDirOffline` if its dir has failed, `DamagedLog` if it could not be opened.
        """
        for log_dir in self._dirs:
            if topic_partition in log_dir.damaged:
                error = log_dir.damaged[topic_partition]
                raise DamagedLog(str(error), error.damages)
            if topic_partition in log_dir.known:
                log_dir.check_online(topic_partition)
            if topic_partition in log_dir.logs:
                return log_dir.logs[topic_partition]
        return None

    def topic_id(self, topic_partition: TopicPartition) -> str | None:
        """Return the topic id in the partition's directory, even of a damaged log; None if there is none.

        Raises `LogDirOffline`.
        """
        home = self._home_of_damaged(topic_partition)
        if home is not None:
            return home.topic_id_of_damaged(topic_partition)
        log = self.get(topic_partition)
        return None if log is None else log.partition.topic_id

    def topic_ids(self) -> Mapping[TopicPartition, str | None]:
        """Return the `topic_id` of each partition in the dirs that are online. Raises `LogDirOffline`."""
        found = {tp for log_dir in self._online() for tp in (*log_dir.logs, *log_dir.damaged)}
        return {tp: self.topic_id(tp) for tp in sorted(found)}

    def _home_of_damaged(self, topic_partition: TopicPartition) -> LogDir | None:
        return next((log_dir for log_dir in self._dirs if topic_partition in log_dir.damaged), None)

    def _config_of(self, topic_partition: TopicPartition) -> LogConfig:
        return self._configs.get(topic_partition.topic, self.config)

    def get_or_create(
        self, topic_partition: TopicPartition, *, config: LogConfig | None = None, topic_id: str = ""
    ) -> Log:
        """Return the partition's log; a new one goes to the dir named for it (`moves`) or with fewest logs.

        The log, its directory and `topic_id` are durable when this returns. Raises `InconsistentTopicId`,
        `LogDirOffline`, `DamagedLog`, `DiskFull`.
        """
        log = self.get_or_begin(topic_partition, config=config, topic_id=topic_id)
        if log.partition.sync_name is not None:
            log.flush()
        return log

    def get_or_begin(
        self, topic_partition: TopicPartition, *, config: LogConfig | None = None, topic_id: str = ""
    ) -> Log:
        """Do as `get_or_create`, but leave it to the first `flush` of a new log to make it durable.

        Append nothing before that. Many new logs that are flushed in threads share fsyncs.
        """
        log = self.get(topic_partition)
        if log is None:
            online = self._online()
            if not online:
                raise LogDirOffline(f"{topic_partition} cannot be created: all log dirs are offline")
            self.moves.forget_copies(topic_partition)
            named = self.moves.preferred.pop(topic_partition, None)
            home = min(online, key=lambda log_dir: (log_dir.path != named, len(log_dir.logs)))
            log = home.create(topic_partition, config or self._config_of(topic_partition))
        elif config is not None:
            log.partition.config = config
            for log_dir in self._online():
                if topic_partition in log_dir.logs:
                    log_dir.heed(log.partition)
        if topic_id:
            log.partition.set_topic_id(topic_id)
        return log

    def reopen(
        self, topic_partition: TopicPartition, *, config: LogConfig | None = None, accept_loss: bool = False
    ) -> Log:
        """Open a partition that is in `damaged`.

        With `accept_loss` the log is truncated at the damage; use it if another replica has the removed
        records. Raises `DamagedLog` if the log still cannot be opened, `DiskFull` without space for the
        quarantine, `LogDirOffline`.
        """
        (home,) = (log_dir for log_dir in self._dirs if topic_partition in log_dir.damaged)
        if not accept_loss:
            self.moves.check_doubt(topic_partition)
        log = home.reopen(
            topic_partition, config or self._config_of(topic_partition), accept_loss=accept_loss
        )
        self.moves.decide_for(topic_partition, home)
        self.moves.resume(topic_partition)
        return log

    def delete(self, *topic_partitions: TopicPartition) -> None:
        """Remove logs, even damaged ones; their files are deleted after `file.delete.delay.ms`.

        All of them cost the fsyncs of one. Unknown partitions are ignored. Raises `LogDirOffline`, and
        `DiskFull`: then nothing changed in the log dir that is full.
        """
        self._rename_away(topic_partitions, "delete")

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Remove the log and keep its files, as `<topic>-<partition>.<32 hex>-stray`, for an operator.

        Damaged logs are moved too; unknown partitions are ignored. Raises `LogDirOffline`, and `DiskFull`
        with nothing changed.
        """
        self._rename_away([topic_partition], "stray")

    def _rename_away(self, topic_partitions: Iterable[TopicPartition], fate: str) -> None:
        going: dict[str, list[Leaving]] = {}
        for topic_partition in topic_partitions:
            self.moves.cancel(topic_partition)
            self.moves.forget_copies(topic_partition)
            self.moves.in_doubt.discard(topic_partition)
            home = self._home_of_damaged(topic_partition)
            config = self._config_of(topic_partition)
            if home is None:
                log = self.get(topic_partition)
                if log is None:
                    continue
                (home,) = (log_dir for log_dir in self._online() if topic_partition in log_dir.logs)
                config = log.partition.config
            unique = f"{self._random.getrandbits(128):032x}"
            leaving = Leaving(topic_partition, unique, config.file_delete_delay_ms)
            going.setdefault(home.path, []).append(leaving)
        for log_dir in self._online():
            # A log that came from another log dir has an entry there, until that is written again.
            elsewhere = [
                each.topic_partition for path in going.keys() - {log_dir.path} for each in going[path]
            ]
            log_dir.guarded(partial(log_dir.checkpoints.forget, elsewhere))
        for log_dir in self._dirs:
            log_dir.rename_away(going.get(log_dir.path, ()), fate)

    def _online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.failure is None]

    # --- checkpoints ----------------------------------------------------------------------------------

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the last checkpointed high watermark, a lower bound; 0 if there is none."""
        # The entry of the log's own dir: that of a move's target is older.
        home = self.moves.home_of(topic_partition)
        return 0 if home is None else home.checkpoints.high_watermarks.get(topic_partition)

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark. A dir that fails goes offline."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoints.write_high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        """Sync the sealed segments and write every log's recovery point."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoint_recovery_points)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the log start offsets that lie above their first segment."""
        for log_dir in self._online():
            log_dir.guarded(log_dir.checkpoints.write_log_start_offsets)

    # --- scheduled work -------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int:
        """The time of the next `tick`."""
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
        """Run the work that is due: delete old segments, flush by age, write checkpoints, unlink deleted
        files, forget idle producers; then compact for as long as `cleaner` allows at a time.
        """
        if self._retention.is_due(now_ms):
            self.delete_old_segments(now_ms)
        if self._flushing.is_due(now_ms):
            for log_dir in self._online():
                log_dir.guarded(partial(log_dir.flush_by_age, now_ms))
        for log_dir in self._online():
            log_dir.guarded(partial(log_dir.tick, now_ms))
        if self._recovery_points.is_due(now_ms):
            self.checkpoint_recovery_points()
        if self._log_starts.is_due(now_ms):
            self.checkpoint_log_start_offsets()
        if self._expiration.is_due(now_ms):
            for log in self.logs().values():
                remove_expired_producers(log.partition, now_ms)
        self.cleaner.tick(now_ms)

    def delete_old_segments(self, now_ms: int) -> Mapping[TopicPartition, tuple[Expired, ...]]:
        """Delete the old segments of all logs and return them; the cleaner handles compacted logs.

        If a full disk refuses a partition's new log start, its segments stay until the next call. A failed
        disk takes its dir offline. The others continue.
        """
        deleted: dict[TopicPartition, tuple[Expired, ...]] = {}
        for log_dir in self._online():
            log_dir.delete_old_segments(now_ms, deleted)
        return deleted

    def close(self, *, mark_clean: bool = True) -> None:
        """Flush and close every log, write the checkpoints, then the clean-shutdown markers.

        A dir that fails meanwhile gets no marker and is recovered at the next start. Without `mark_clean`
        no dir gets one: a node that started unclean must not look clean before it knows which replicas are
        valid.
        """
        self.cleaner.close()
        for log_dir in self._dirs:
            log_dir.close(mark_clean=mark_clean)

    def abandon(self) -> None:
        """Release every dir without writing, as if the process had been killed."""
        for log_dir in self._dirs:
            log_dir.abandon()


class _Every:
    """A task that is due every `interval_ms`, and at once if the clock was set back by more than that.

    It is first due after `delay_ms` if that is shorter, and never if the interval is `MAX_LONG`.
    """

    def __init__(self, interval_ms: int, *, now_ms: int, delay_ms: int) -> None:
        self._interval_ms = interval_ms
        self.due_ms = now_ms + (min(interval_ms, delay_ms) if interval_ms < MAX_LONG else MAX_LONG)

    def is_due(self, now_ms: int) -> bool:
        """Return whether the task is due; the next interval then starts at `now_ms`."""
        if self.due_ms - 2 * self._interval_ms <= now_ms < self.due_ms:
            return False
        self.due_ms = now_ms + self._interval_ms
        return True


def _find_missing(log_dirs: Sequence[LogDir]) -> list[tuple[LogDir, TopicPartition]]:
    """Return the logs that are missing, with the log dir that knows of them, and list them as damaged there.

    A deletion removes a partition from the checkpoints before it renames the directory. So an entry of the
    recovery points without a directory tells of a log that somebody else has taken away: a command, or a
    backup that was put back in part. An empty log in its place would count as in sync, could lead, and the
    other replicas would truncate theirs. Kafka makes that empty log.

    If a log dir has failed there are none: they may be in that one. A directory that was set aside is one
    that another program was about to delete. A checkpoint entry beside an unfinished move's copy belongs to
    the copy.
    """
    if any(log_dir.failure is not None for log_dir in log_dirs):
        return []
    held = {each for log_dir in log_dirs for each in log_dir.known | log_dir.set_aside}
    ends: dict[TopicPartition, tuple[int, LogDir]] = {}
    for log_dir in log_dirs:
        for topic_partition, offset in log_dir.checkpoints.recovery_points.offsets.items():
            if topic_partition in held or topic_partition in log_dir.futures:
                continue
            if offset > ends.get(topic_partition, (0, log_dir))[0]:
                ends[topic_partition] = offset, log_dir
    for topic_partition, (offset, log_dir) in ends.items():
        log_dir.damaged[topic_partition] = _gone(log_dir.directory_of(topic_partition), offset)
    return [(log_dir, topic_partition) for topic_partition, (_, log_dir) in ends.items()]


def _gone(directory: str, end_offset: int) -> DamagedLog:
    text = f"the directory is gone, and everything up to offset {end_offset} was durable"
    damage = Damage(DamageKind.END_LOST, ".", 0, 0, text, 0)
    return DamagedLog(
        f"{directory}: {text}; put it back, or make an empty one and run "
        f"`logstore recover --accept-loss {directory}`",
        [damage],
        end_offset,
    )
