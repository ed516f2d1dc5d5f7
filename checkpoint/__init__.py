"""Ground floor: the disk seam, and the small files that are replaced whole.

    disk                                      Disk, File, Lock; OsDisk; publish
    disks/                                    disks that record, fail, lose power
    offset_checkpoint  leader_epoch_checkpoint  partition_metadata  meta_properties  clean_shutdown
    topic_partition  ids  errors              names and errors that every room shares

It knows nothing of batches or offsets' meaning; every room above stands on it.
"""

from __future__ import annotations

from checkpoint.clean_shutdown import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from checkpoint.disk import (
    LOCK_FILE,
    TEMPORARY_SUFFIX,
    Buffer,
    DirectoryEntry,
    Disk,
    File,
    Lock,
    OsDisk,
    publish,
    read_small_file,
    remove_if_exists,
)
from checkpoint.errors import CorruptCheckpoint, DirectoryLocked, EngineError, ErrorCode, InvalidTopic
from checkpoint.ids import id_from_text, id_to_text
from checkpoint.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from checkpoint.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    format_meta_properties,
    parse_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from checkpoint.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_offset_checkpoint,
    parse_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from checkpoint.partition_metadata import (
    PARTITION_METADATA,
    format_partition_metadata,
    parse_partition_metadata,
    read_partition_metadata,
    write_partition_metadata,
)
from checkpoint.topic_partition import (
    TopicPartition,
    check_topic_name,
    parse_directory_name,
    set_aside_fate,
)

__all__ = [
    "CLEAN_SHUTDOWN_FILE",
    "HIGH_WATERMARK_CHECKPOINT",
    "LEADER_EPOCH_CHECKPOINT",
    "LOCK_FILE",
    "LOG_START_OFFSET_CHECKPOINT",
    "META_PROPERTIES",
    "PARTITION_METADATA",
    "RECOVERY_POINT_CHECKPOINT",
    "TEMPORARY_SUFFIX",
    "Buffer",
    "CleanShutdown",
    "CorruptCheckpoint",
    "DirectoryEntry",
    "DirectoryLocked",
    "Disk",
    "EngineError",
    "ErrorCode",
    "File",
    "InvalidTopic",
    "Lock",
    "MetaProperties",
    "OsDisk",
    "TopicPartition",
    "check_topic_name",
    "format_leader_epoch_checkpoint",
    "format_meta_properties",
    "format_offset_checkpoint",
    "format_partition_metadata",
    "id_from_text",
    "id_to_text",
    "parse_directory_name",
    "parse_leader_epoch_checkpoint",
    "parse_meta_properties",
    "parse_offset_checkpoint",
    "parse_partition_metadata",
    "publish",
    "read_clean_shutdown",
    "read_leader_epoch_checkpoint",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
    "read_small_file",
    "remove_clean_shutdown",
    "remove_if_exists",
    "set_aside_fate",
    "write_clean_shutdown",
    "write_leader_epoch_checkpoint",
    "write_meta_properties",
    "write_offset_checkpoint",
    "write_partition_metadata",
]
