"""Take a snapshot of a log: another directory that holds the log up to an offset, and never changes again.

    orders-0/                              snapshot/orders-0/
      00000000000000000000.log   ◄──link──   00000000000000000000.log      and its other files
      00000000000000368769.log   ◄──link──   00000000000000368769.log
      00000000000000512004.log   ◄──copy──   00000000000000512004.log      up to the end offset

Sealed segments are shared by hard links, so a snapshot costs a system call a file and no room. The segment in
which it ends is copied up to there. Where files cannot be linked, for instance into another file system, all
of them are copied.

No lock is taken: the owner, in this process or another, goes on meanwhile. Afterwards the directory is listed
again. If the owner removed, replaced or cut a file that the snapshot needs, everything starts again. A shared
file is never changed in place later: the owner gives itself a copy first (`Segment.make_own`), and so does
the owner of the snapshot.

    link and copy → sync copies and directory → open it as a log, close it → rename → sync the parent

It is made under a name that the next attempt, and a broker that finds it in its log dir, removes. Opening
checks what was copied and writes indexes, checkpoints and the marker of a clean stop. A crash leaves the
whole snapshot, or none.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from logstore.arguments import as_offset
from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
    write_offset_checkpoint,
)
from logstore.config import LogConfig
from logstore.disk.copying import copy_file, link_or_copy, made_whole, prepare_new, remove_tree
from logstore.disk.files import LOCK_FILE, TEMPORARY_SUFFIX, Disk
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.errors import DamagedLog, LogGone, OffsetOutOfRange
from logstore.log.cursor_file import CURSORS_FILE
from logstore.log.loading import offset_in
from logstore.log.losses import LOST_DIRECTORY
from logstore.log.partition_log import Clock, PartitionLog
from logstore.log.snapshot_end import Source, end_in, logs_among, sizes_in, time_in
from logstore.log.stand_alone import open_anywhere
from logstore.segment.scan import scan
from logstore.segment.segment import DELETED_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from logstore.segment.swap import CLEANED_SUFFIX, SWAP_SUFFIX

_ATTEMPTS: Final = 100
_COPIED_BYTES: Final = 4 << 20
"""A longer active segment is rolled before a snapshot of an open log, so that it is linked and not copied."""
_CHECKPOINTS: Final = (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT)
_LEFT_OUT: Final = (CURSORS_FILE, LOCK_FILE, CLEAN_SHUTDOWN_FILE, LOST_DIRECTORY, *_CHECKPOINTS)


class Snapshot(NamedTuple):
    """A snapshot, or a restored log, in `path`: offsets [log_start_offset, log_end_offset).

    `files` were linked, or copied where that was impossible; `copied_bytes` had to be copied.
    """

    path: str
    log_start_offset: int
    log_end_offset: int
    files: int
    copied_bytes: int


class _Changed(Exception):
    """The owner changed a file that the snapshot needs; `swap` is one of a compaction that has not ended."""

    def __init__(self, swap: str = "") -> None:
        super().__init__(swap)
        self.swap = swap


def snapshot_of(log: PartitionLog, path: str, end_offset: int | None = None) -> Snapshot:
    """Take a snapshot of an open log up to `end_offset` (default: the high watermark, or the end).

    Raises `InvalidTopic`, `FileExistsError`, `DamagedLog`, `OffsetOutOfRange`, `LogDirOffline`, `OSError`.
    """
    end_the_segment(log)
    end_offset = log.high_watermark if end_offset is None else as_offset(end_offset)
    return take_snapshot(
        log.disk,
        log.directory,
        path,
        end_offset=end_offset,
        config=log.config,
        clock=log.clock,
        version=partial(version_of, log),
    )


def version_of(log: PartitionLog) -> int:
    """Return a number that changes with each cut of the log. Waits for the end of a cut."""
    with log.lock:
        return log.cuts


def end_the_segment(log: PartitionLog) -> None:
    """Roll a long active segment, so that it is linked and not copied. Raises `LogDirOffline`, `DiskFull`."""
    log.check_writable()
    log.flush()
    if log.segments.active.size > _COPIED_BYTES:
        log.roll()


def take_snapshot(
    disk: Disk,
    source: str,
    target: str,
    *,
    end_offset: int | None = None,
    bounds: Mapping[str, int] | None = None,
    config: LogConfig,
    clock: Clock,
    version: Callable[[], int] = lambda: 0,
) -> Snapshot:
    """Put the log in the directory `source`, up to `end_offset` (default: its end), into the new `target`.

    A batch that holds `end_offset` is left out. `bounds` are the log's offsets by checkpoint file, if not
    those on the disk. `version` changes with each cut of the log. Raises `InvalidTopic` for the name of
    `target`, `FileExistsError` if it exists, `LogGone` without a log in `source`, `DamagedLog` for damage
    below the end and for a log that changes too fast, `OffsetOutOfRange`, `OSError`.
    """
    source, target = source.rstrip("/") or "/", target.rstrip("/") or "/"
    topic_partition = parse_directory_name(posixpath.basename(target))
    prepare_new(disk, target)
    unfinished = f"{posixpath.dirname(target) or '.'}/{_unfinished_name(topic_partition)}"
    with made_whole(disk, unfinished, target):
        making = _Making(disk, source, unfinished, topic_partition, bounds)
        made = _attempted(making, end_offset, version)
        with closing(open_anywhere(unfinished, topic_partition, config, disk, clock)) as log:
            return made._replace(
                path=target, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset
            )


def _attempted(making: _Making, end_offset: int | None, version: Callable[[], int]) -> Snapshot:
    """Fill the directory until the owner has changed nothing meanwhile."""
    swap = ""
    for _ in range(_ATTEMPTS):
        begun = version()
        try:
            made = making.fill(end_offset)
        except (_Changed, FileNotFoundError) as error:
            swap = error.swap if isinstance(error, _Changed) else ""
            if not making.source_holds_a_log():
                raise LogGone(f"{making.source} holds no log: it has no .log file") from error
        except DamagedLog:
            if version() == begun:
                raise
        else:
            if version() == begun:
                return made
        making.empty()
    raise _unsettled(making.source, swap)


def offset_at_time(disk: Disk, directory: str, timestamp_ms: int) -> int | None:
    """Return the base offset of the first batch with a record at or past `timestamp_ms`; None if none has.

    Batches below the log start do not count; in the batch that holds it, it stands for the base offset. Reads
    the log up to there. Raises `DamagedLog` for damage before it, `OSError`.
    """
    directory = directory.rstrip("/") or "/"
    swap = ""
    for _ in range(_ATTEMPTS):
        source = _source_of(disk, directory, _checkpoints_of(disk, directory))
        swap = _swap_among(source.sizes)
        try:
            found = time_in(source, timestamp_ms)
        except (DamagedLog, FileNotFoundError):
            if not swap and not _has_changed(source, source.bases):
                raise
        else:
            if not swap:
                return found
    raise _unsettled(directory, swap)


def _unsettled(source: str, swap: str) -> DamagedLog:
    if swap:
        return DamagedLog(
            f"{source} has {swap}: a compaction did not end. Start and stop the log's owner, or run "
            f'"logstore recover {source}", then take the snapshot again'
        )
    return DamagedLog(f"{source} changes faster than it can be copied; try again")


def log_end_of(disk: Disk, directory: str) -> int:
    """Return where the log in `directory` ends, by the batches of its last segment. Raises `OSError`."""
    end_offset, name = max(logs_among(sizes_in(disk, directory)).items(), default=(0, ""))
    if name:
        with closing(disk.open(f"{directory}/{name}")) as file:
            for found in scan(file, 0, file.size(), base_offset=end_offset):
                if len(found.headers):
                    end_offset = int(found.last_offsets[-1]) + 1
    return end_offset


class _Making:
    """Fills the directory `unfinished` from `source`."""

    def __init__(
        self,
        disk: Disk,
        source: str,
        unfinished: str,
        topic_partition: TopicPartition,
        bounds: Mapping[str, int] | None,
    ) -> None:
        self._disk, self.source, self._unfinished = disk, source, unfinished
        self._topic_partition = topic_partition
        self._given, self._bounds = bounds, bounds or {}
        self._files = self._copied_bytes = 0

    def source_holds_a_log(self) -> bool:
        """Return whether there is anything to copy."""
        try:
            return bool(logs_among(sizes_in(self._disk, self.source)))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def empty(self) -> None:
        """Remove what an attempt made."""
        remove_tree(self._disk, self._unfinished)
        self._files = self._copied_bytes = 0

    def fill(self, end_offset: int | None) -> Snapshot:
        """Link and copy. Raises `_Changed` or `FileNotFoundError` if the owner came between."""
        self._disk.make_dir(self._unfinished)
        self._bounds = self._given or _checkpoints_of(self._disk, self.source)
        source = _source_of(self._disk, self.source, self._bounds)
        sizes, bases, start = source.sizes, source.bases, source.log_start_offset
        if swap := _swap_among(sizes):
            raise _Changed(swap)
        if not bases:
            raise FileNotFoundError(self.source)
        if end_offset is not None and end_offset < start:
            raise OffsetOutOfRange(end_offset, start, log_end_of(self._disk, self.source))
        last = max(base for base in bases if end_offset is None or base <= end_offset)
        shared = {name for name in sizes if _is_shared(name, last)}
        for name in sorted(shared):
            self._copied_bytes += link_or_copy(
                self._disk, f"{self.source}/{name}", f"{self._unfinished}/{name}"
            )
            self._files += 1
        if CURSORS_FILE in sizes:
            # Copied: the owner writes into its file. Opening the copy moves cursors back to its end.
            copied = copy_file(
                self._disk, f"{self.source}/{CURSORS_FILE}", f"{self._unfinished}/{CURSORS_FILE}"
            )
            self._copied_bytes, self._files = self._copied_bytes + copied, self._files + 1
        self._sync_shared([base for base in bases if base <= last])
        needed = [base for base in bases if base <= last]
        try:
            log_end_offset = self._copy_last(source, last, end_offset)
        except DamagedLog:
            # A cut leaves the next segment's base behind, too.
            if _has_changed(source, bases, shared):
                raise _Changed from None
            raise
        if _has_changed(source, needed, shared):
            raise _Changed
        for name in _CHECKPOINTS:
            offset = {RECOVERY_POINT_CHECKPOINT: log_end_offset, LOG_START_OFFSET_CHECKPOINT: start}.get(
                name, self._bounds[name]
            )
            offsets = {self._topic_partition: min(offset, log_end_offset)}
            write_offset_checkpoint(self._disk, self._unfinished, name, offsets)
        self._disk.sync_dir(self._unfinished)
        return Snapshot(self._unfinished, start, log_end_offset, self._files, self._copied_bytes)

    def _sync_shared(self, bases: list[int]) -> None:
        """Sync the shared segments that their owner may not have synced."""
        recovery_point = self._bounds[RECOVERY_POINT_CHECKPOINT]
        for base, following in pairwise(bases):
            if following > recovery_point:
                with closing(
                    self._disk.open(f"{self._unfinished}/{file_name(base, LOG_SUFFIX)}", write=True)
                ) as file:
                    file.sync()

    def _copy_last(self, source: Source, base_offset: int, end_offset: int | None) -> int:
        """Copy the segment in which the snapshot ends; return the log end offset."""
        end = end_in(source, base_offset, end_offset)
        name = file_name(base_offset, LOG_SUFFIX)
        copied = copy_file(self._disk, source.path(base_offset), f"{self._unfinished}/{name}", end.position)
        if copied < end.position:
            raise _Changed
        self._files += 1
        self._copied_bytes += copied
        return end.next_offset


def _unfinished_name(topic_partition: TopicPartition) -> str:
    """Return the name of a deleted partition: the broker of a log dir removes what a crash left there."""
    suffix = f"-{topic_partition.partition}.{0:032x}-delete"
    return topic_partition.topic[: 255 - len(suffix)] + suffix


def _checkpoints_of(disk: Disk, directory: str) -> dict[str, int]:
    return {name: checkpointed_offset(disk, directory, name) for name in _CHECKPOINTS}


def _source_of(disk: Disk, directory: str, bounds: Mapping[str, int]) -> Source:
    sizes = sizes_in(disk, directory)
    bases = sorted(logs_among(sizes))
    return Source(
        disk,
        directory,
        sizes,
        bases,
        log_start_offset=max([*bases[:1], bounds[LOG_START_OFFSET_CHECKPOINT]]),
        durable_end=bounds[RECOVERY_POINT_CHECKPOINT],
        first_dirty_offset=bounds[CLEANER_OFFSET_CHECKPOINT],
    )


def _swap_among(names: Iterable[str]) -> str:
    return next((name for name in names if name.endswith(SWAP_SUFFIX)), "")


def _has_changed(source: Source, bases: Iterable[int], others: Iterable[str] = ()) -> bool:
    """Whether the owner has replaced or cut one of these segments since, or changed the size of `others`."""
    after = sizes_in(source.disk, source.directory)
    names = [file_name(base_offset, LOG_SUFFIX) for base_offset in bases]
    was_replaced = any(after.get(name) != source.sizes[name] for name in [*names[:-1], *others])
    return was_replaced or any(after.get(name, -1) < source.sizes[name] for name in names[-1:])


def _is_shared(name: str, last: int) -> bool:
    """Whether a file of the source belongs to a snapshot that ends in the segment with base offset `last`."""
    if name in _LEFT_OUT or name.endswith((TEMPORARY_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX)):
        return False
    offset = offset_in(name)
    return offset is None or offset < last or (name.endswith(SNAPSHOT_SUFFIX) and offset == last)
