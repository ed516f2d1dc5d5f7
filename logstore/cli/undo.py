"""Carry out `logstore recover --undo`, on a partition that no process has open."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import product

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetFile,
    find_checkpointed_offset,
)
from logstore.cli.owning import forget_clean_stops, load_unclean, own
from logstore.cli.shadow import ShadowDisk
from logstore.config import LogConfig
from logstore.disk.files import Disk, wall_clock_ms
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.log.log import Log
from logstore.log.losses import Quarantine
from logstore.log.partition_log import LogHost, PartitionLog
from logstore.log.producer_state import ProducerStateConfig
from logstore.log.undo import check_fit, copy_out, put_back


def undo_loss(disk: Disk, directory: str, loss_id: int) -> dict[str, object]:
    """Restore a loss in its log. Raises `CannotUndo`, `EngineError`, `OSError`."""
    with ExitStack() as stack:
        own(disk, directory, stack)
        # First without a trace: a refusal changes nothing, not even the marker of a clean stop.
        shadow = ShadowDisk(disk)
        stack.callback(shadow.close)
        check_fit(_opened(shadow, directory, stack), loss_id)
        forget_clean_stops(disk, directory)
        log = _opened(disk, directory, stack)
        restored_bytes = put_back(log, loss_id)
        return {
            "loss": loss_id,
            "restored_bytes": restored_bytes,
            "log_start_offset": log.log_start_offset,
            "log_end_offset": log.log_end_offset,
        }


def _opened(disk: Disk, directory: str, stack: ExitStack) -> PartitionLog:
    topic_partition = parse_directory_name(os.path.basename(os.path.abspath(directory)))
    recovery_point = find_checkpointed_offset(disk, directory, RECOVERY_POINT_CHECKPOINT)
    log = PartitionLog(
        directory,
        topic_partition,
        LogConfig(),
        load_unclean(disk, directory, recovery_point),
        LogHost(
            disk,
            wall_clock_ms,
            jitter_ms=lambda _bound_ms: 0,
            owner=_Absent(disk, directory, topic_partition),
            producers=ProducerStateConfig(),
        ),
    )
    stack.callback(log.close)
    return log


def copy_loss(disk: Disk, directory: str, loss_id: int, target: str) -> dict[str, object]:
    """Write the sound part of a loss to a new log. Raises `CannotUndo`, `EngineError`, `OSError`."""
    with Log.open(target, disk=disk) as log:
        copied = copy_out(Quarantine(disk, directory), loss_id, log.partition)
        return {
            "loss": loss_id,
            "directory": target,
            "records": copied.records,
            "left_out_bytes": copied.left_out_bytes,
            "log_start_offset": log.log_start_offset,
            "log_end_offset": log.log_end_offset,
        }


class _Absent:
    """Stands in for the log's owner: lowers the checkpoints of offsets that are cut."""

    def __init__(self, disk: Disk, directory: str, topic_partition: TopicPartition) -> None:
        self._disk = disk
        self._places = (os.path.dirname(os.path.abspath(directory)), directory)
        self._topic_partition = topic_partition

    def lower_bounds(self, log: PartitionLog, offset: int) -> None:
        names = (RECOVERY_POINT_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT)
        for place, name in product(self._places, names):
            OffsetFile(self._disk, place, name).lower(self._topic_partition, offset)

    def log_start_moved(self, log: PartitionLog) -> None:
        """Do nothing: a restored loss does not move the log start."""

    def flushed(self, log: PartitionLog) -> None:
        """Do nothing: the next start uses the existing recovery point."""

    def compacted(self, log: PartitionLog) -> None:
        """Do nothing: there is no compaction here."""

    def failed(self, log: PartitionLog, error: OSError) -> None:
        """Do nothing: the call raises the error."""

    def closed(self, log: PartitionLog, *, is_clean: bool) -> None:
        """Write no clean-shutdown marker: the next start recovers."""

    def abandoned(self, log: PartitionLog) -> None:
        """Do nothing: the command holds the lock."""
