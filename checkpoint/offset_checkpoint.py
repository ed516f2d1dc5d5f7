"""Offset checkpoints: one offset a partition, for all partitions of a log dir.

    recovery-point-offset-checkpoint    below it everything is synced; recovery re-reads from there
    log-start-offset-checkpoint         first offset served, where it is above the first segment's base
    replication-offset-checkpoint       high watermark

    0                          version            format and crash behaviour: `entry_file.py`
    2                          entries
    orders 0 42                topic partition offset
    my-topic 11 7

A partition that is missing counts as 0. All three are hints of the past: an older file costs a
longer recovery or a later high watermark, never a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from logstore.checkpoint.entry_file import INT32_MAX, INT64_MAX, format_entries, parse_entries, parse_number
from logstore.disk.errors import CorruptCheckpoint, InvalidTopic
from logstore.disk.files import Disk, publish, read_small_file
from logstore.disk.topic_partition import TopicPartition, check_topic_name

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"


def parse_offset_checkpoint(data: bytes, *, path: str = "offset checkpoint") -> dict[TopicPartition, int]:
    """Offset of each partition, in the file's order. Raises `CorruptCheckpoint`."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition_text, offset_text in parse_entries(data, fields=3, path=path):
        try:
            check_topic_name(topic)
        except InvalidTopic as error:
            raise CorruptCheckpoint(f"{path}: {error}") from error
        where = f"{path}: {topic} {partition_text[:20]}"
        partition = TopicPartition(topic, parse_number(partition_text, INT32_MAX, where=where))
        if partition in offsets:
            raise CorruptCheckpoint(f"{path}: {partition} is there twice")
        offsets[partition] = parse_number(offset_text, INT64_MAX, where=where)
    return offsets


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The file's bytes, entries in the order of `offsets`."""
    assert all(offset >= 0 for offset in offsets.values()), f"a negative offset in {offsets}"
    return format_entries(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def read_offset_checkpoint(disk: Disk, directory: str, name: str) -> dict[TopicPartition, int]:
    """Read `directory/name`; no file, no offsets. Raises `CorruptCheckpoint` or `OSError`."""
    path = f"{directory}/{name}"
    return parse_offset_checkpoint(read_small_file(disk, path) or b"", path=path)


def write_offset_checkpoint(
    disk: Disk, directory: str, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace `directory/name`, durably; see `publish`."""
    publish(disk, directory, name, format_offset_checkpoint(offsets))


class OffsetFile:
    """One offset checkpoint of a directory with its content in memory. A corrupt file counts as missing.

    Every change replaces the file durably before it shows in `offsets`, and raises `OSError` if that fails.
    """

    __slots__ = ("_directory", "_disk", "_name", "offsets")

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self._disk, self._directory, self._name = disk, directory, name
        self.offsets: dict[TopicPartition, int] = {}
        with suppress(CorruptCheckpoint):
            self.offsets = read_offset_checkpoint(disk, directory, name)

    def get(self, partition: TopicPartition) -> int:
        """Return the partition's offset; 0 if there is none."""
        return self.offsets.get(partition, 0)

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        """Replace all entries."""
        write_offset_checkpoint(self._disk, self._directory, self._name, offsets)
        self.offsets = offsets

    def set(self, partition: TopicPartition, offset: int) -> None:
        """Change one entry; nothing is written if it is the same."""
        if self.get(partition) != offset:
            self.write({**self.offsets, partition: offset})

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Change one entry if it is above `offset`."""
        if self.get(partition) > offset:
            self.write({**self.offsets, partition: offset})

    def forget(self, partition: TopicPartition) -> None:
        """Remove one entry."""
        if partition in self.offsets:
            self.write({each: offset for each, offset in self.offsets.items() if each != partition})
