"""Salvage a dead directory: copy every intact batch of a partition, at its offset, to a new directory.

    source       0.log ┼ batch ┼ ░░░░ ┼ batch ┼ batch ┼    90.log ┼ batch ┼ 0 0 0 ┤
                            │            │       │                   │
    target       0.log ┼ batch ┼ batch ┼ batch ┼           90.log ┼ batch ┤

Recovery keeps what lies before the first damage; salvage also keeps what lies behind it (`sound_batches.py`).
The target has a gap where the source has damage; compaction leaves such gaps too, so every program that
reads Kafka's format reads the target. Indexes, snapshots and seals are not copied: they are derived, and
opening the target makes them.

The source is only read. The target is made under another name, synced, and renamed when it is complete. A
salvage that fails removes it; one that was killed can be run again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    checkpointed_offset,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    read_leader_epoch_checkpoint,
)
from logstore.checkpoint.identity import (
    META_PROPERTIES,
    PARTITION_METADATA,
    read_meta_properties,
    read_partition_metadata,
)
from logstore.disk.copying import alone_with, copy_file, is_there, made_whole
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.files import Disk, make_durable_dir, put_in_place, read_small_file
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.log.cursor_file import CURSORS_FILE, format_cursors, read_cursors
from logstore.log.sound_batches import Gap, LeftOut, Placed, Rows, SoundBatches, segment_files
from logstore.segment.swap import SWAP_SUFFIX

UNFINISHED_SUFFIX: Final = ".unfinished"
_KRAFT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint|bootstrap\.checkpoint|quorum-state", re.ASCII)


class Salvage(NamedTuple):
    """The result for one partition; `unreadable_bytes` counts bytes that the disk failed to read."""

    source: str
    target: str
    batches: int
    records: int
    bytes: int
    start_offset: int
    end_offset: int
    unreadable_bytes: int
    gaps: list[Gap]
    placed: list[Placed]
    left_out: list[LeftOut]

    @property
    def is_whole(self) -> bool:
        """Whether nothing was bad, unreadable or out of place; a compaction's gaps may be there."""
        return not (self.unreadable_bytes or self.left_out or any(gap.stretches for gap in self.gaps))


def salvage(disk: Disk, source: str, target: str, tell: Callable[[Salvage], None]) -> list[str]:
    """Copy every intact batch below `source`, a partition or a log dir, to the new directory `target`.

    Calls `tell` after each partition, and returns the directories in a log dir that are no partition's.
    Raises `OSError`: `FileNotFoundError` if `source` holds no log, `FileExistsError` if `target` holds
    anything, and whatever the disk raises when it is written to. Then there is no target. Raises
    `DirectoryLocked` while another call makes the same target.
    """
    partitions, others = _partitions_in(disk, source)
    if not partitions:
        raise FileNotFoundError(
            errno.ENOENT, "no log is here: no <offset>.log in it or one level below", source
        )
    _check_target(disk, source, target)
    unfinished = target + UNFINISHED_SUFFIX
    with alone_with(disk, target), made_whole(disk, unfinished, target):
        _check_target(disk, source, target)  # another salvage may have made it meanwhile
        _fill(disk, source, target, unfinished, partitions, tell)
        if is_there(disk, target):
            disk.remove_dir(target)  # empty
    return others


def _fill(
    disk: Disk,
    source: str,
    target: str,
    unfinished: str,
    partitions: Sequence[str],
    tell: Callable[[Salvage], None],
) -> None:
    make_durable_dir(disk, unfinished)
    is_partition = partitions == [source]
    starts: dict[TopicPartition, int] = {}
    for each in partitions:
        name = "" if is_partition else "/" + os.path.basename(each)
        if not is_partition:
            disk.make_dir(unfinished + name)
        partition = parse_directory_name(os.path.basename(target + name))
        starts[partition] = checkpointed_offset(disk, each, LOG_START_OFFSET_CHECKPOINT)
        tell(_partition(disk, each, unfinished + name, target + name, starts[partition]))
        disk.sync_dir(unfinished + name)
    if not is_partition:
        _copy_identity(disk, source, unfinished)
    starts = {partition: offset for partition, offset in starts.items() if offset}
    if starts:
        put_in_place(disk, unfinished, LOG_START_OFFSET_CHECKPOINT, format_offset_checkpoint(starts))
    disk.sync_dir(unfinished)


def _partitions_in(disk: Disk, source: str) -> tuple[list[str], list[str]]:
    """Return the directories with segments, `source` or those in it, and the other directories in it."""
    entries = disk.scan(source)
    if segment_files(disk, source):
        return [source], []
    partitions: list[str] = []
    others: list[str] = []
    for entry in entries:
        if entry.is_directory:
            path = f"{source}/{entry.name}"
            try:
                parse_directory_name(entry.name)
                (partitions if segment_files(disk, path) else others).append(path)
            except InvalidTopic:
                others.append(path)
    return partitions, others


def _check_target(disk: Disk, source: str, target: str) -> None:
    inner, outer = os.path.abspath(target), os.path.abspath(source)
    if inner == outer or inner.startswith(outer + "/") or outer.startswith(inner + "/"):
        raise FileExistsError(errno.EEXIST, f"it must lie outside of {source}", target)
    if is_there(disk, target) and disk.scan(target):
        raise FileExistsError(errno.EEXIST, "it is not empty: name a new directory", target)


def _copy_identity(disk: Disk, source: str, target: str) -> None:
    """Copy `meta.properties` of a log dir, if it can be read, and KRaft's first snapshot."""
    _copy_kraft_files(disk, source, target)
    try:
        if read_meta_properties(disk, source) is None:
            return
    except (EngineError, OSError):
        return
    put_in_place(disk, target, META_PROPERTIES, read_small_file(disk, f"{source}/{META_PROPERTIES}") or b"")


def _copy_kraft_files(disk: Disk, source: str, target: str) -> None:
    """Copy the snapshots of KRaft's metadata and its quorum state as they are: KRaft checks them itself."""
    for entry in disk.scan(source):
        if not entry.is_directory and _KRAFT.fullmatch(entry.name):
            copy_file(disk, f"{source}/{entry.name}", f"{target}/{entry.name}")


def _partition(disk: Disk, source: str, unfinished: str, target: str, log_start_offset: int) -> Salvage:
    with closing(SoundBatches(disk, source)) as sound:
        for name, runs in sound.by_file():
            path = f"{unfinished}/{name.removesuffix(SWAP_SUFFIX)}"
            with closing(disk.open(path, create=True, write=True)) as out:
                at = 0
                for data in runs:
                    out.pwrite(data, at)
                    at += len(data)
                out.sync()
    write_small_files(disk, source, unfinished, sound.choice.rows)
    rows = sound.choice.rows
    return Salvage(
        source, target, len(rows.base), int(rows.records.sum()), int(rows.size.sum()),
        max(sound.start_offset, log_start_offset), sound.end_offset,
        sound.unreadable_bytes, sound.choice.gaps, sound.choice.placed, sound.choice.left_out,
    )  # fmt: skip


def write_small_files(disk: Disk, source: str, target: str, rows: Rows) -> None:
    """Write the epoch history of `rows`, and the topic id, cursors and files of KRaft of `source`.

    The history of the source is used if it can be read and fits the batches; otherwise theirs.
    """
    known = rows.of(rows.epoch >= 0)
    starts = np.diff(known.epoch, prepend=-1).nonzero()[0]
    history = list(zip(known.epoch[starts].tolist(), known.base[starts].tolist(), strict=True))
    try:
        listed = read_leader_epoch_checkpoint(disk, source)
        if _fits(listed, rows):
            history = listed
    except (EngineError, OSError):
        pass
    _copy_kraft_files(disk, source, target)
    put_in_place(disk, target, LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint(history))
    try:
        if cursors := read_cursors(disk, source).offsets:
            put_in_place(disk, target, CURSORS_FILE, format_cursors(cursors))
    except OSError:
        pass  # like the epochs and the topic id: what cannot be read is left behind
    try:
        if read_partition_metadata(disk, source) is None:
            return
    except (EngineError, OSError):
        return
    data = read_small_file(disk, f"{source}/{PARTITION_METADATA}") or b""
    put_in_place(disk, target, PARTITION_METADATA, data)


def _fits(history: Sequence[tuple[int, int]], rows: Rows) -> bool:
    if not history or not len(rows.base):
        return False
    epochs, starts = (np.array(column, np.int64) for column in zip(*history, strict=True))
    slots = np.searchsorted(starts, rows.base, "right") - 1
    fits = (slots >= 0) & (epochs[slots] == rows.epoch)
    return bool(fits.all() and starts[-1] <= rows.last[-1])
