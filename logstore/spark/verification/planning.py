"""Find the replicas of partitions in the directories of several nodes, and cut the checks into tasks.

    node-1=/data/1,/data/2      log dirs of one node
    node-2=/mnt/b/orders-0      or single partitions

Only directories are listed and checkpoints read. Checkpoints are read before directories are listed: records
below a high watermark exist before it is checkpointed, so a running broker cannot make a replica look short.

Replicas are compared up to the highest high watermark that any of their nodes has checkpointed. Without one,
no record is known to be committed, and replicas are compared up to the shortest one's end.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
    read_offset_checkpoint,
)
from logstore.checkpoint.identity import read_meta_properties, read_partition_metadata
from logstore.config import MAX_LONG
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition, partition_directories
from logstore.log.stand_alone import where_it_began
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.spark.directory_files import SegmentSize, numbered_files

_CHECKPOINTS: Final = (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)


@dataclass(frozen=True, slots=True)
class Replica:
    """One directory of a partition. Offsets are -1 if no checkpoint has the partition.

    `log_start_offset` is at least the first segment's base offset; `cleaned_to` is the first offset that
    compaction has not reached.
    """

    node: str
    directory: str
    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    cleaned_to: int
    segments: tuple[SegmentSize, ...]
    topic_id: str | None = None
    """from `partition.metadata`; None if missing"""
    recovery_point: int = -1
    began_at: int | None = None
    """where the log began when it was last in use, if its first segments are gone since"""

    @property
    def size(self) -> int:
        """The size of the `.log` files in bytes."""
        return sum(segment.size for segment in self.segments)

    def listed_anew(self, disk: Disk) -> Replica:
        """Return the replica with its directory listed again. Raises `OSError`."""
        segments = tuple(numbered_files(disk, self.directory, LOG_SUFFIX))
        start = max(self.log_start_offset, segments[0].base_offset if segments else 0)
        return replace(self, segments=segments, log_start_offset=start)

    def pointed_anew(self, disk: Disk) -> Replica:
        """Return the replica with a lower recovery point if its owner has truncated it meanwhile."""
        point = checkpointed_offset(disk, self.directory, RECOVERY_POINT_CHECKPOINT)
        return replace(self, recovery_point=min(self.recovery_point, point))


def find_replicas(
    disk: Disk, nodes: Mapping[str, Sequence[str]], topics: str | None = None
) -> tuple[list[Replica], list[str]]:
    """Return every replica in the nodes' directories, by partition and node, and the unreadable files.

    `topics` is a regular expression of whole names. Directories that were set aside are skipped. Raises
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
                # A stand-alone log has its checkpoints in its own directory.
                own = [_checkpoint(disk, path, name, unread) for name in _CHECKPOINTS]
                offsets = tuple(
                    max(above.get(topic_partition, -1), beside.get(topic_partition, -1))
                    for above, beside in zip(known[parent], own, strict=True)
                )
                places.append((topic_partition, node, path, offsets))
    found = []
    for topic_partition, node, path, (high_watermark, log_start, cleaned_to, recovery_point) in sorted(
        places
    ):
        segments = tuple(numbered_files(disk, path, LOG_SUFFIX))
        first = segments[0].base_offset if segments else 0
        start = max(log_start, first)
        try:
            topic_id = read_partition_metadata(disk, path)
        except (CorruptCheckpoint, OSError) as error:
            topic_id = None
            unread.append(f"{path}: {error}")
        found.append(
            Replica(
                node, path, topic_partition, start, high_watermark, cleaned_to, segments, topic_id,
                recovery_point, where_it_began(disk, path, first) if first > max(log_start, 0) else None,
            )
        )  # fmt: skip
    return found, unread


def _checkpoint(disk: Disk, directory: str, name: str, unread: list[str]) -> dict[TopicPartition, int]:
    try:
        return read_offset_checkpoint(disk, directory, name)
    except (CorruptCheckpoint, OSError) as error:
        unread.append(f"{directory}/{name}: {error}")
        return {}


def node_of(disk: Disk, directory: str) -> str:
    """Return the id of the node that owns `directory`, from its `meta.properties`; else the path."""
    for place in (directory, os.path.dirname(os.path.abspath(directory))):
        try:
            properties = read_meta_properties(disk, place)
        except (CorruptCheckpoint, OSError):
            continue
        if properties is not None:
            return str(properties.node_id)
    return directory


RUN_BYTES: Final = 128 << 20
STRETCH_BYTES: Final = 1 << 20
STRETCHES: Final = 1 << 17
"""The approximate limit of stretches in all; each takes a few hundred bytes in the driver."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive segments of one replica; `following` is the next segment after them.

    Batches that begin below `committed` are digested, one sum per stretch; `cuts` (ascending) are the starts
    of the stretches. A second look may read a part: from byte `first_byte` of the first segment, where a
    batch began, to byte `last_byte` of the last one (0: its end). It does not check seals, which cover whole
    segments.
    """

    replica: int
    directory: str
    segments: tuple[SegmentSize, ...]
    following: SegmentSize | None
    log_start_offset: int
    committed: int
    cuts: tuple[int, ...] = ()
    expects_gaps: bool = False
    first_byte: int = 0
    last_byte: int = 0
    is_second_look: bool = False

    @property
    def size(self) -> int:
        """The size of the segments' `.log` files in bytes."""
        return sum(segment.size for segment in self.segments)

    def path(self, number: int) -> str:
        """Return the path of segment `number`; that of segment 0 if the run is empty."""
        base_offset = self.segments[number].base_offset if self.segments else 0
        return f"{self.directory}/{file_name(base_offset, LOG_SUFFIX)}"

    def __str__(self) -> str:
        return f"{self.directory} from segment {self.segments[0].base_offset if self.segments else 0}"


@dataclass(frozen=True, slots=True)
class Shared:
    """The facts that the replicas of a partition share.

    `strangers` belong to another topic of the same name, according to their topic ids: they are checked, but
    not compared. `cuts` are the starts of the stretches.
    """

    numbers: tuple[int, ...]
    strangers: tuple[int, ...]
    committed: int
    cleaned_to: int
    is_compacted: bool
    cuts: tuple[int, ...]

    @property
    def stretches(self) -> Iterable[tuple[int, int, int]]:
        """Number, first offset and end of each stretch."""
        ends = (*self.cuts[1:], self.committed)
        return ((n, start, end) for n, (start, end) in enumerate(zip(self.cuts, ends, strict=True)))


@dataclass(frozen=True, slots=True)
class Plan:
    """All replicas, their partitions, and the runs to check, the largest first."""

    replicas: Sequence[Replica]
    partitions: Mapping[TopicPartition, Shared]
    runs: Sequence[Run]


def plan(replicas: Sequence[Replica], is_compacted: Mapping[TopicPartition, bool]) -> Plan:
    """Cut the replicas into runs. `is_compacted`: partitions that the caller knows to be compacted."""
    stretch_bytes = max(STRETCH_BYTES, sum(each.size for each in replicas) // STRETCHES)
    numbers: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    for number, each in enumerate(replicas):
        numbers[each.topic_partition].append(number)
    partitions = {
        name: _shared(replicas, found, is_compacted.get(name, False), stretch_bytes)
        for name, found in numbers.items()
    }
    runs = [
        run
        for number, each in enumerate(replicas)
        for run in _runs(number, each, partitions[each.topic_partition])
    ]
    runs.sort(key=lambda run: -run.size)
    return Plan(replicas, partitions, runs)


def _shared(
    replicas: Sequence[Replica], numbers: Sequence[int], is_compacted: bool, stretch_bytes: int
) -> Shared:
    ids = Counter(topic_id for number in numbers if (topic_id := replicas[number].topic_id) is not None)
    topic_id = ids.most_common(1)[0][0] if ids else None
    strangers = [number for number in numbers if replicas[number].topic_id not in (None, topic_id)]
    numbers = [number for number in numbers if number not in strangers]
    found = [replicas[number] for number in numbers]
    committed = max(each.high_watermark for each in found)
    cleaned_to = max(each.cleaned_to for each in found)
    starts = sorted({each.log_start_offset for each in found})
    if committed < 0:
        committed = MAX_LONG
    bases = [segment.base_offset for each in found for segment in each.segments]
    end = committed if committed < MAX_LONG else max(bases, default=0) + 1
    size = max(each.size for each in found)
    step = max(1, (end - starts[0]) * stretch_bytes // max(size, 1))
    cuts = {*starts, *range(starts[0], end, step)}
    if 0 < cleaned_to < committed:
        cuts.add(cleaned_to)
    return Shared(
        tuple(numbers), tuple(strangers), committed, max(cleaned_to, 0), is_compacted or cleaned_to > 0,
        tuple(sorted(cut for cut in cuts if cut < committed)) or (starts[0],),
    )  # fmt: skip


def _runs(number: int, replica: Replica, shared: Shared) -> Iterable[Run]:
    segments = replica.segments
    first = 0
    while first < len(segments):
        last, size = first, 0
        while last < len(segments) and (last == first or size + segments[last].size <= RUN_BYTES):
            size += segments[last].size
            last += 1
        following: SegmentSize | None = segments[last] if last < len(segments) else None
        yield Run(
            number, replica.directory, segments[first:last], following, replica.log_start_offset,
            shared.committed, shared.cuts, shared.is_compacted,
        )  # fmt: skip
        first = last
