"""Lock and load a partition directory that no process has open, for the verbs that change it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.disk.files import Disk
    from logstore.log.loading import LoadedLog


DAMAGED_SUFFIX = ".damaged"
"""Of a file that is set aside, because no owner could open the log with it."""


def own(disk: Disk, directory: str, stack: ExitStack) -> None:
    """Lock the partition, and its log dir if that has a lock file."""
    from logstore.disk.files import LOCK_FILE

    parent = str(Path(directory).resolve().parent)
    if any(entry.name == LOCK_FILE for entry in disk.scan(parent)):
        stack.callback(disk.lock(parent).release)
    stack.callback(disk.lock(directory).release)


def forget_clean_stops(disk: Disk, directory: str) -> None:
    """Remove the clean-shutdown markers of the partition and its log dir, durably.

    Before anything else is written, so that the next start recovers.
    """
    from logstore.checkpoint.clean_shutdown import remove_clean_shutdown

    for place in (str(Path(directory).resolve().parent), directory):
        remove_clean_shutdown(disk, place)


def load_unclean(
    disk: Disk, directory: str, recovery_point: int | None, *, accept_loss: bool = False
) -> LoadedLog:
    """Load the log as its owner would after an unclean stop. Raises as `recovery.load`."""
    import time

    from logstore.checkpoint.entry_files import (
        CLEANER_OFFSET_CHECKPOINT,
        HIGH_WATERMARK_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        checkpointed_offset,
        find_offset_checkpoint,
    )
    from logstore.checkpoint.identity import PARTITION_METADATA
    from logstore.config import LogConfig
    from logstore.disk.files import remove_if_exists
    from logstore.log.recovery import load

    unreadable = _unreadable_checkpoints(disk, directory)
    has_bad_id = _has_unreadable_id(disk, directory)
    own_starts = find_offset_checkpoint(disk, directory, LOG_START_OFFSET_CHECKPOINT)
    loaded = load(
        disk,
        directory,
        LogConfig(),  # the topic's are not in the directory; the checkpoint of its cleaner is
        is_clean=False,
        recovery_point=recovery_point,
        log_start_offset=checkpointed_offset(disk, directory, LOG_START_OFFSET_CHECKPOINT),
        now_ms=time.time_ns() // 1_000_000,
        high_watermark=checkpointed_offset(disk, directory, HIGH_WATERMARK_CHECKPOINT),
        first_dirty_offset=checkpointed_offset(disk, directory, CLEANER_OFFSET_CHECKPOINT),
        starts_by=next(iter((own_starts or {}).values()), None),
        is_start_certain=False,
        keeps_rest=True,
        accept_loss=accept_loss,
        reads_all=True,
    )
    for name in unreadable:
        remove_if_exists(disk, f"{directory}/{name}")
        loaded.report.deleted.append(name)
    if has_bad_id:
        # The next owner writes the id of the topic that it has, as into a directory from before the ids.
        disk.rename(f"{directory}/{PARTITION_METADATA}", f"{directory}/{PARTITION_METADATA}{DAMAGED_SUFFIX}")
        loaded.report.renamed.append((PARTITION_METADATA, PARTITION_METADATA + DAMAGED_SUFFIX))
        loaded.report.notes.append(
            f"{PARTITION_METADATA} cannot be read: the next owner takes the log for that of its topic. "
            "Make sure that no deleted topic of that name left the directory"
        )
    if unreadable or has_bad_id:
        disk.sync_dir(directory)
    return loaded


def _has_unreadable_id(disk: Disk, directory: str) -> bool:
    """Return whether the file with the topic's id is damaged: nobody can open the log then."""
    from logstore.checkpoint.identity import read_partition_metadata
    from logstore.disk.errors import CorruptCheckpoint

    try:
        read_partition_metadata(disk, directory)
    except CorruptCheckpoint:
        return True
    return False


def _unreadable_checkpoints(disk: Disk, directory: str) -> list[str]:
    """Return the checkpoints of a log that stands alone that cannot be read: they count for nothing."""
    from logstore.checkpoint.entry_files import read_offset_checkpoint
    from logstore.disk.errors import CorruptCheckpoint
    from logstore.log.log_dir_checkpoints import OFFSET_FILES

    found = []
    for name in OFFSET_FILES:
        try:
            read_offset_checkpoint(disk, directory, name)
        except CorruptCheckpoint:
            found.append(name)
    return found
