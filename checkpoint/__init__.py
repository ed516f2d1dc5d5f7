"""The small files of a log dir: offsets, epochs, ids and the clean-shutdown marker. Each is replaced whole.

    entry_files      offset checkpoints and leader-epoch checkpoints
    identity         meta.properties and partition.metadata
    clean_shutdown   the marker of a clean shutdown

This package ensures that the files survive a crash; it does not interpret the offsets.
"""

from __future__ import annotations

from logstore.checkpoint.clean_shutdown import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import (
    META_PROPERTIES,
    PARTITION_METADATA,
    MetaProperties,
    format_meta_properties,
    format_partition_metadata,
    parse_meta_properties,
    parse_partition_metadata,
    read_meta_properties,
    read_partition_metadata,
    write_meta_properties,
    write_partition_metadata,
)

__all__ = [
    "CLEAN_SHUTDOWN_FILE",
    "HIGH_WATERMARK_CHECKPOINT",
    "LEADER_EPOCH_CHECKPOINT",
    "LOG_START_OFFSET_CHECKPOINT",
    "META_PROPERTIES",
    "PARTITION_METADATA",
    "RECOVERY_POINT_CHECKPOINT",
    "CleanShutdown",
    "MetaProperties",
    "format_leader_epoch_checkpoint",
    "format_meta_properties",
    "format_offset_checkpoint",
    "format_partition_metadata",
    "parse_leader_epoch_checkpoint",
    "parse_meta_properties",
    "parse_offset_checkpoint",
    "parse_partition_metadata",
    "read_clean_shutdown",
    "read_leader_epoch_checkpoint",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
    "remove_clean_shutdown",
    "write_clean_shutdown",
    "write_leader_epoch_checkpoint",
    "write_meta_properties",
    "write_offset_checkpoint",
    "write_partition_metadata",
]
