"""The replicas of partitions among directories of several nodes: what lies where, by listing alone.

    node-1=/data/1,/data/2      log dirs of one node
    node-2=/mnt/b/orders-0      or single partitions

Checkpoints are read before directories are listed: what a high watermark covers was there before it was
written, so a broker that goes on meanwhile cannot make a replica look short.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from logstore.checkpoint.meta_properties import read_meta_properties
from logstore.checkpoint.offset_checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from logstore.checkpoint.partition_metadata import read_partition_metadata
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition, partition_directories
from logstore.log.recovery import offset_in
from logstore.segment.segment import LOG_SUFFIX

_CHECKPOINTS: Final = (HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT)


class SegmentFile(NamedTuple):
    """A `.log` as listed; bytes."""

    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One directory of a partition. Offsets are -1 where no checkpoint names the partition.

    `log_start_offset` is at least the first segment's; `cleaned_to` is the first offset that no compaction
    has looked at.
    """

    node: str
    directory: str
    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    cleaned_to: int
    segments: tuple[SegmentFile, ...]
    topic_id: str | None = None
    """as `partition.metadata` says; None: it does not"""

    @property
    def size(self) -> int:
        """Bytes of `.log` files."""
        return sum(segment.size for segment in self.segments)

    def listed_anew(self, disk: Disk) -> Replica:
        """The same one as its directory is now. Raises `OSError`."""
        segments = list_segments(disk, self.directory)
        start = max(self.log_start_offset, segments[0].base_offset if segments else 0)
        return replace(self, segments=segments, log_start_offset=start)


def list_segments(disk: Disk, directory: str) -> tuple[SegmentFile, ...]:
    """The live segments, ascending. Raises `OSError`."""
    found = []
    for entry in disk.scan(directory):
        if not entry.is_directory and entry.name.endswith(LOG_SUFFIX):
            base_offset = offset_in(entry.name)
            if base_offset is not None:
                found.append(SegmentFile(base_offset, entry.size))
    return tuple(sorted(found))


def find_replicas(
    disk: Disk, nodes: Mapping[str, Sequence[str]], topics: str | None = None
) -> tuple[list[Replica], list[str]]:
    """Every replica in the nodes' directories, by partition and node, and what could not be read on the way.

    `topics` is a regular expression for whole names. Directories that were set aside are left out. Raises
    `OSError` for a directory of `nodes` that cannot be listed.
    """
    pattern = re.compile(topics) if topics is not None else None
    unread: list[str] = []
    places: list[tuple[TopicPartition, str, str, tuple[int, ...]]] = []
    for node, directories in nodes.items():
        for directory in directories:
            known: dict[str, list[dict[TopicPartition, int]]] = {}
            for topic_partition, path in partition_directories(disk, directory):
                if pattern is not None and not pattern.fullmatch(topic_partition.topic):
                    continue
                parent = os.path.dirname(path)
                if parent not in known:
                    known[parent] = [_checkpoint(disk, parent, name, unread) for name in _CHECKPOINTS]
                # A log that stands alone keeps its checkpoints in its own directory.
                own = [_checkpoint(disk, path, name, unread) for name in _CHECKPOINTS]
                offsets = tuple(
                    max(above.get(topic_partition, -1), beside.get(topic_partition, -1))
                    for above, beside in zip(known[parent], own, strict=True)
                )
                places.append((topic_partition, node, path, offsets))
    found = []
    for topic_partition, node, path, (high_watermark, log_start, cleaned_to) in sorted(places):
        segments = list_segments(disk, path)
        start = max(log_start, segments[0].base_offset if segments else 0, 0)
        try:
            topic_id = read_partition_metadata(disk, path)
        except (CorruptCheckpoint, OSError) as error:
            topic_id = None
            unread.append(f"{path}: {error}")
        found.append(
            Replica(node, path, topic_partition, start, high_watermark, cleaned_to, segments, topic_id)
        )
    return found, unread


def _checkpoint(disk: Disk, directory: str, name: str, unread: list[str]) -> dict[TopicPartition, int]:
    try:
        return read_offset_checkpoint(disk, directory, name)
    except (CorruptCheckpoint, OSError) as error:
        unread.append(f"{directory}/{name}: {error}")
        return {}


def node_of(disk: Disk, directory: str) -> str:
    """What to call the node that `directory` is of: as its `meta.properties` says, else by its path."""
    for place in (directory, os.path.dirname(os.path.abspath(directory))):
        try:
            properties = read_meta_properties(disk, place)
        except (CorruptCheckpoint, OSError):
            continue
        if properties is not None:
            return str(properties.node_id)
    return directory
