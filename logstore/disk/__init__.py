"""File system access, and the names and errors that all packages share.

    files            Disk, File, Lock; OsDisk; publish
    memory           MemoryDisk: a file system in memory
    topic_partition  ids  errors  running  marks

This package does not depend on any other: it has no notion of checkpoints, batches or offsets.
"""

from __future__ import annotations

from logstore.disk.errors import CorruptCheckpoint, DirectoryLocked, EngineError, ErrorCode, InvalidTopic
from logstore.disk.files import (
    LOCK_FILE,
    TEMPORARY_SUFFIX,
    Buffer,
    DirectoryEntry,
    Disk,
    File,
    Lock,
    OsDisk,
    Room,
    publish,
    read_small_file,
    remove_if_exists,
)
from logstore.disk.ids import id_from_text, id_to_text
from logstore.disk.topic_partition import (
    TopicPartition,
    check_topic_name,
    parse_directory_name,
    set_aside_fate,
)

__all__ = [
    "LOCK_FILE",
    "TEMPORARY_SUFFIX",
    "Buffer",
    "CorruptCheckpoint",
    "DirectoryEntry",
    "DirectoryLocked",
    "Disk",
    "EngineError",
    "ErrorCode",
    "File",
    "InvalidTopic",
    "Lock",
    "OsDisk",
    "Room",
    "TopicPartition",
    "check_topic_name",
    "id_from_text",
    "id_to_text",
    "parse_directory_name",
    "publish",
    "read_small_file",
    "remove_if_exists",
    "set_aside_fate",
]
