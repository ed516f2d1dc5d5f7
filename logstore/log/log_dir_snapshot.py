"""Take a snapshot of a whole log dir, from which a broker starts again, or restore one.

    data/                               backup/
      meta.properties         ──copy──    meta.properties
      orders-0/ orders-1/     ──link──    orders-0/ orders-1/      each up to its high watermark
      …-offset-checkpoint                 …-offset-checkpoint      of those ends
                                          .kafka_cleanshutdown
    data.metadata/            ──copy──  backup.metadata/           the embedded metadata store, if it is there

The broker may run: its high watermarks are those of its checkpoint, and nothing above them is taken. A log
without an entry there (a stand-alone one, or one that is seconds old) is taken to its end. The metadata store
is copied last, so no log has an epoch that the copied store does not know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, NamedTuple, TypeAlias

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import META_PROPERTIES
from logstore.config import LogConfig
from logstore.disk.copying import alone_with, copy_file, is_there, made_whole, prepare_new, remove_tree
from logstore.disk.files import LOCK_FILE, Disk
from logstore.disk.topic_partition import TopicPartition, partitions_among
from logstore.errors import DamagedLog, LogClosed, LogGone, OffsetOutOfRange
from logstore.log.log_dir_checkpoints import OFFSET_FILES
from logstore.log.manager import LogManager
from logstore.log.partition_log import Clock
from logstore.log.snapshot import Snapshot, end_the_segment, take_snapshot, version_of

_ATTEMPTS: Final = 100
_METADATA: Final = ".metadata"
_UNFINISHED: Final = ".unfinished"

Version: TypeAlias = Callable[[TopicPartition], int]
"""A number that changes with each cut of a partition."""


class LogDirSnapshot(NamedTuple):
    """The snapshot of a log dir in `path`; `metadata` is the copied metadata store, None for none."""

    path: str
    partitions: tuple[Snapshot, ...]
    metadata: str | None


def partitions_in(disk: Disk, directory: str) -> dict[TopicPartition, str]:
    """Return the partition directories in a log dir. Raises `OSError`."""
    return dict(partitions_among(entry.name for entry in disk.scan(directory) if entry.is_directory))


def snapshot_log_dir(
    disk: Disk, source: str, target: str, *, clock: Clock, metadata: str | None = None
) -> LogDirSnapshot:
    """Put every partition of the log dir `source`, up to its high watermark, into the new log dir `target`.

    A log without an entry in their checkpoint, such as a stand-alone one, is taken to its end.
    `metadata` is the directory of the metadata store, by default the embedded one beside `source`; its copy
    lies beside `target`. A crash leaves no `target`, or all of it. Raises `FileExistsError` if it exists,
    `ValueError` if it lies in `source`, `DamagedLog` if a partition is damaged below that end,
    `CorruptCheckpoint`, `OSError`.
    """
    return _snapshot(disk, source, target, clock, metadata, lambda _: 0)


def _snapshot(
    disk: Disk, source: str, target: str, clock: Clock, metadata: str | None, version: Version
) -> LogDirSnapshot:
    source, target = source.rstrip("/") or "/", target.rstrip("/") or "/"
    if f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(source)}/"):
        # A broker does not start on a log dir that holds other directories.
        raise ValueError(f"{target} lies in {source}: name a directory outside of it")
    unfinished = target + _UNFINISHED
    # The log dir last: where it is, everything is.
    with alone_with(disk, target), made_whole(disk, unfinished, target):
        prepare_new(disk, target, target + _METADATA)
        disk.make_dir(unfinished)
        made = _partitions(disk, source, unfinished, clock, version)
        store = metadata or source + _METADATA
        has_store = metadata is not None or is_there(disk, store)
        if has_store:
            snapshot_store(disk, store, target + _METADATA)
    partitions = tuple(each._replace(path=target + each.path.removeprefix(unfinished)) for each in made)
    return LogDirSnapshot(target, partitions, target + _METADATA if has_store else None)


def snapshot_store(disk: Disk, source: str, target: str) -> str:
    """Put a copy of the metadata store `source`, which may be in use, into the new directory `target`.

    A crash leaves no `target`, or all of it. Returns it. Raises `FileExistsError` if it exists, `DamagedLog`
    if `source` holds no store, `OSError`.
    """
    target = target.rstrip("/") or "/"
    with alone_with(disk, target), made_whole(disk, target + _UNFINISHED, target):
        prepare_new(disk, target)
        _copy_store(disk, source, target + _UNFINISHED)
    return target


def snapshot_logs(
    logs: LogManager, disk: Disk, target: str, *, clock: Clock, metadata: str | None
) -> LogDirSnapshot:
    """Take a snapshot of an open log dir, as `snapshot_log_dir`. Call it in a separate thread.

    Raises also `LogDirOffline`, and `ValueError` for several log dirs.
    """
    if len(logs.log_dirs) != 1:
        raise ValueError(f"there are {len(logs.log_dirs)} log dirs: take the snapshot of each separately")
    for topic_partition, log in list(logs.logs().items()):
        try:
            end_the_segment(log.partition)
        except LogClosed:
            if logs.logs().get(topic_partition) is log:  # else deleted meanwhile
                raise
    logs.checkpoint_high_watermarks()
    logs.checkpoint_log_start_offsets()

    def version(topic_partition: TopicPartition) -> int:
        log = logs.logs().get(topic_partition)
        return -1 if log is None else version_of(log.partition)

    return _snapshot(disk, logs.log_dirs[0], target, clock, metadata, version)


def _partitions(disk: Disk, source: str, unfinished: str, clock: Clock, version: Version) -> list[Snapshot]:
    bounds = {name: read_offset_checkpoint(disk, source, name) for name in OFFSET_FILES}
    made: dict[TopicPartition, Snapshot] = {}
    for topic_partition, name in partitions_in(disk, source).items():
        of_it = {
            # A stand-alone log keeps its checkpoints in its own directory.
            file: offsets[topic_partition]
            if topic_partition in offsets
            else checkpointed_offset(disk, f"{source}/{name}", file)
            for file, offsets in bounds.items()
        }
        end_offset = None
        if topic_partition in bounds[HIGH_WATERMARK_CHECKPOINT]:
            # Retention may have moved the start past a high watermark that was checkpointed before.
            end_offset = max(of_it[HIGH_WATERMARK_CHECKPOINT], of_it[LOG_START_OFFSET_CHECKPOINT])
        take = partial(
            take_snapshot,
            disk,
            f"{source}/{name}",
            f"{unfinished}/{name}",
            bounds=of_it,
            config=LogConfig(),
            clock=clock,
            version=partial(version, topic_partition),
        )
        taken = _taken(take, end_offset)
        if taken is not None:
            made[topic_partition] = taken
    _write_checkpoints(disk, unfinished, made, bounds[CLEANER_OFFSET_CHECKPOINT])
    if any(entry.name == META_PROPERTIES for entry in disk.scan(source)):
        copy_file(disk, f"{source}/{META_PROPERTIES}", f"{unfinished}/{META_PROPERTIES}")
    disk.sync_dir(unfinished)
    # Opened and closed, so that every partition is checked and the next owner finds a clean stop.
    manager = LogManager([unfinished], disk=disk, clock=clock, random=Random(0))
    damaged = next(iter(manager.damaged.values()), None)
    manager.close()
    if damaged is not None:
        raise damaged
    return list(made.values())


def _taken(take: Callable[..., Snapshot], end_offset: int | None) -> Snapshot | None:
    """Take the snapshot of a partition; None if it was deleted meanwhile."""
    while True:
        try:
            return take(end_offset=end_offset)
        except LogGone:
            return None
        except OffsetOutOfRange as below:
            # The high watermark lies below its first segment: retention has moved on since it was read, or
            # a truncation has left nothing.
            end_offset = below.log_start_offset


def _write_checkpoints(
    disk: Disk, directory: str, made: Mapping[TopicPartition, Snapshot], cleaned: Mapping[TopicPartition, int]
) -> None:
    ends = {partition: each.log_end_offset for partition, each in made.items()}
    starts = {partition: each.log_start_offset for partition, each in made.items()}
    dirty = {
        partition: min(cleaned[partition], ends[partition]) for partition in ends if partition in cleaned
    }
    for name, offsets in (
        (RECOVERY_POINT_CHECKPOINT, ends),
        (HIGH_WATERMARK_CHECKPOINT, ends),
        (LOG_START_OFFSET_CHECKPOINT, starts),
        (CLEANER_OFFSET_CHECKPOINT, dirty),
    ):
        write_offset_checkpoint(disk, directory, name, offsets)


def _copy_store(disk: Disk, source: str, target: str) -> None:
    """Copy a metadata store that may be in use: its journal as far as it goes, one set of files."""
    for _ in range(_ATTEMPTS):
        disk.make_dir(target)
        names = _file_names(disk, source)
        try:
            for name in names:
                copy_file(disk, f"{source}/{name}", f"{target}/{name}")
        except FileNotFoundError:
            names = []
        if names and _file_names(disk, source) == names:
            disk.sync_dir(target)
            return
        remove_tree(disk, target)
    raise DamagedLog(f"{source} changes faster than it can be copied, or holds no metadata store; try again")


def _file_names(disk: Disk, directory: str) -> list[str]:
    entries = disk.scan(directory)
    return [entry.name for entry in entries if not entry.is_directory and entry.name != LOCK_FILE]
