"""The room's public face, pinned: a name that goes, or comes, is a decision and not an accident."""

from __future__ import annotations

import logstore.checkpoint
import logstore.disk
import logstore.testing.disks
from logstore.disk.errors import CorruptCheckpoint, DirectoryLocked, EngineError, ErrorCode, InvalidTopic

ROOM = """
    CLEAN_SHUTDOWN_FILE HIGH_WATERMARK_CHECKPOINT LEADER_EPOCH_CHECKPOINT
    LOG_START_OFFSET_CHECKPOINT META_PROPERTIES PARTITION_METADATA RECOVERY_POINT_CHECKPOINT
    CleanShutdown MetaProperties format_leader_epoch_checkpoint format_meta_properties
    format_offset_checkpoint format_partition_metadata parse_leader_epoch_checkpoint
    parse_meta_properties parse_offset_checkpoint parse_partition_metadata read_clean_shutdown
    read_leader_epoch_checkpoint read_meta_properties read_offset_checkpoint read_partition_metadata
    remove_clean_shutdown write_clean_shutdown write_leader_epoch_checkpoint write_meta_properties
    write_offset_checkpoint write_partition_metadata
"""

DISK = """
    LOCK_FILE TEMPORARY_SUFFIX Buffer CorruptCheckpoint DirectoryEntry DirectoryLocked Disk
    EngineError ErrorCode File InvalidTopic Lock OsDisk TopicPartition check_topic_name id_from_text
    id_to_text parse_directory_name publish read_small_file remove_if_exists set_aside_fate
"""

DISKS = """
    Fault FaultyDisk FaultyFile MemoryDisk MemoryFile MemoryLock Operation Profile RecordingDisk
    RecordingFile VolatileDisk VolatileFile
"""


def test_public_names() -> None:
    assert logstore.checkpoint.__all__ == ROOM.split()
    assert logstore.disk.__all__ == DISK.split()
    assert logstore.testing.disks.__all__ == DISKS.split()
    for room in (logstore.checkpoint, logstore.disk, logstore.testing.disks):
        assert all(hasattr(room, name) for name in room.__all__)


def test_errors_carry_kafkas_codes() -> None:
    assert CorruptCheckpoint.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert DirectoryLocked.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert InvalidTopic.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert issubclass(InvalidTopic, EngineError)
