"""Ground floor: the disk seam, and the small files that are replaced whole.

    disk                                      Disk, File, Lock; OsDisk; publish
    disks/                                    disks that record, fail, lose power
    offset_checkpoint  leader_epoch_checkpoint  partition_metadata  meta_properties  clean_shutdown
    topic_partition  ids  errors              names and errors that every room shares

It knows nothing of batches or offsets' meaning; every room above stands on it.
"""

from __future__ import annotations

from logstore.checkpoint.clean_shutdown import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.checkpoint.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from logstore.checkpoint.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    format_meta_properties,
    parse_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from logstore.checkpoint.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_offset_checkpoint,
    parse_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.checkpoint.partition_metadata import (
    PARTITION_METADATA,
    format_partition_metadata,
    parse_partition_metadata,
    read_partition_metadata,
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
