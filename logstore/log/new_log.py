"""The last step of creating a log: state that is only in memory becomes durable with its first flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint
from logstore.checkpoint.identity import PARTITION_METADATA, format_partition_metadata
from logstore.disk.errors import is_shortage
from logstore.disk.files import put_in_place
from logstore.errors import LogClosed, refusal

if TYPE_CHECKING:
    from logstore.log.partition_log import PartitionLog


def finish(log: PartitionLog, sync_name: Callable[[], None]) -> None:
    """Write and sync a new log's files, so far only in memory: one fsync for each file and directory."""
    while log.sync_name is not None:
        topic_id, epochs = log.topic_id, log.epochs
        try:
            if topic_id is not None:
                data = format_partition_metadata(topic_id)
                put_in_place(log.disk, log.directory, PARTITION_METADATA, data)
            if epochs:
                data = format_leader_epoch_checkpoint(epochs)
                put_in_place(log.disk, log.directory, LEADER_EPOCH_CHECKPOINT, data)
        except OSError as error:
            refuse_if_closed(log, error)
            log.disk_failed(error)
        try:
            log.disk.sync_dir(log.directory)
            sync_name()
        except OSError as error:
            sync_failed(log, error)
        with log.lock:
            if (topic_id, epochs) == (log.topic_id, log.epochs):
                log.sync_name = None
                for segment in log.segments:
                    segment.name_is_durable = True


def refuse_if_closed(log: PartitionLog, error: OSError) -> None:
    """Raise `LogClosed` if a file is missing because the log was deleted meanwhile: the disk is fine."""
    if log.is_closed and isinstance(error, FileNotFoundError):
        raise LogClosed(f"{log.directory} was closed; open it again") from error


def sync_failed(log: PartitionLog, error: OSError) -> NoReturn:
    """Raise `OutOfResources` if a descriptor was missing, `LogClosed` if the log was deleted meanwhile;
    otherwise take the log offline and raise `LogDirOffline`."""
    refuse_if_closed(log, error)
    if is_shortage(error):  # before the fsync: one that fails so is EIO, and was not repeated
        raise refusal(error, log.directory, "nothing was synced") from error
    log.fail(error)
