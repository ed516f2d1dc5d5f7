"""Offset checkpoints and leader-epoch checkpoints, in Kafka's text format.

    recovery-point-offset-checkpoint    everything below it is synced; recovery starts there
    log-start-offset-checkpoint         first offset served, if it is above the first segment's base
    replication-offset-checkpoint       high watermark
    cleaner-offset-checkpoint           end of the compacted part
    leader-epoch-checkpoint             first offset of each leader epoch

    0                  version, always 0
    2                  number of entries
    orders 0 42        topic, partition, offset; in an epoch file: leader epoch, first offset
    my-topic 11 7
                       every line ends with \\n, including the last

An empty file, or one with the version line alone, has no entries. The files are replaced whole (`publish`),
so a crash leaves the old or the new one. A file that does not parse is damaged and raises
`CorruptCheckpoint`. Unlike Kafka, this module refuses a file without a newline at the end: `42` cut after
the `4` is still a number. Kafka itself always writes that newline.

Offset checkpoints cover all partitions of a log dir; a missing partition counts as 0. They are lower bounds:
an older file costs a longer recovery or a later high watermark, never a record.

An epoch file belongs to one partition. It is written when an epoch starts, before the epoch's first record is
acknowledged, and when a truncation removes epochs. The batches are authoritative: a missing or
older file is completed from them when the log is loaded.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise

from logstore.disk.errors import CorruptCheckpoint, InvalidTopic
from logstore.disk.files import Disk, publish, read_small_file
from logstore.disk.topic_partition import TopicPartition, check_topic_name, parse_directory_name

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_REMEMBERED = 16
"""Files whose offsets are remembered: readers of all partitions of a log dir ask for one of each."""

# Not `str.isdigit` or a plain `int()`: they accept digits of every script, underscores and blanks. Leading
# zeros are matched separately because `int()` refuses thousands of them.
_INTEGER = re.compile(r"-?0*(?P<digits>[0-9]{1,19})", re.ASCII)
_BLANKS = re.compile(r"[ \t\x0b\f]+")
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_entries(data: bytes, *, fields: int, path: str) -> list[list[str]]:
    """Parse the entries of a checkpoint; each is a list of `fields` texts. Raises `CorruptCheckpoint`."""
    lines = split_lines(data, path=path)
    if not lines:
        return []
    version = parse_number(lines[0], INT32_MAX, where=f"{path}: version line")
    if version != 0:
        raise CorruptCheckpoint(f"{path}: version {version} is not supported, only version 0")
    if len(lines) == 1:
        return []
    count = parse_number(lines[1], INT32_MAX, where=f"{path}: count line")
    # The count is only compared: nothing is allocated by it.
    if count != len(lines) - 2:
        raise CorruptCheckpoint(f"{path}: the count line says {count} entries, the file has {len(lines) - 2}")
    entries = []
    for number, line in enumerate(lines[2:], 3):
        entry = _BLANKS.split(line.rstrip(" \t\x0b\f"))
        if len(entry) != fields or not entry[0]:
            raise CorruptCheckpoint(f"{path}: line {number} must have {fields} fields: {line[:80]!r}")
        entries.append(entry)
    return entries


def format_entries(entries: Iterable[str]) -> bytes:
    """Return the bytes of a checkpoint with the given entry lines."""
    lines = list(entries)
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def split_lines(data: bytes, *, path: str) -> list[str]:
    """Split a text whose lines all end with a newline. Raises `CorruptCheckpoint`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path}: invalid UTF-8 at byte {error.start}") from error
    # Not `str.splitlines`, which also splits at form feeds and Unicode separators.
    lines = _LINE_END.split(text)
    if lines.pop():
        raise CorruptCheckpoint(f"{path}: the last line has no newline")
    return lines


def parse_number(text: str, most: int, *, where: str) -> int:
    """Parse a decimal number from 0 to `most`. Raises `CorruptCheckpoint` with the place `where`."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise CorruptCheckpoint(f"{where}: {text[:80]!r} is not an integer")
    number = int(match["digits"])
    if text.startswith("-") and number:
        raise CorruptCheckpoint(f"{where}: {text[:80]} is negative")
    if number > most:
        raise CorruptCheckpoint(f"{where}: {text[:80]} is above {most}")
    return number


# --- offsets --------------------------------------------------------------------------------


def parse_offset_checkpoint(data: bytes, *, path: str = "offset checkpoint") -> dict[TopicPartition, int]:
    """Parse the offset of each partition, in the file's order. Raises `CorruptCheckpoint`."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition_text, offset_text in parse_entries(data, fields=3, path=path):
        try:
            check_topic_name(topic)
        except InvalidTopic as error:
            raise CorruptCheckpoint(f"{path}: {error}") from error
        where = f"{path}: {topic} {partition_text[:20]}"
        partition = TopicPartition(topic, parse_number(partition_text, INT32_MAX, where=where))
        if partition in offsets:
            raise CorruptCheckpoint(f"{path}: duplicate entry for {partition}")
        offsets[partition] = parse_number(offset_text, INT64_MAX, where=where)
    return offsets


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the file's bytes; entries have the order of `offsets`."""
    assert all(offset >= 0 for offset in offsets.values()), f"negative offset in {offsets}"
    return format_entries(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def read_offset_checkpoint(disk: Disk, directory: str, name: str) -> dict[TopicPartition, int]:
    """Read the offsets in `directory/name`; none if it does not exist.

    Raises `CorruptCheckpoint`, `OSError`.
    """
    path = f"{directory}/{name}"
    return parse_offset_checkpoint(read_small_file(disk, path) or b"", path=path)


def find_offset_checkpoint(disk: Disk, directory: str, name: str) -> Mapping[TopicPartition, int] | None:
    """Read the offsets in `directory/name`; None if it is missing, empty or corrupt. Raises `OSError`."""
    data = read_small_file(disk, f"{directory}/{name}")
    return _sound_offsets(data) if data else None


@lru_cache(_REMEMBERED)
def _sound_offsets(data: bytes) -> Mapping[TopicPartition, int] | None:
    """Return the offsets in a file; None if it is corrupt."""
    with suppress(CorruptCheckpoint):
        return parse_offset_checkpoint(data)
    return None


def write_offset_checkpoint(
    disk: Disk, directory: str, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace `directory/name` durably; see `publish`."""
    publish(disk, directory, name, format_offset_checkpoint(offsets))


def of_one_log(offsets: Mapping[TopicPartition, int], partition: TopicPartition) -> dict[TopicPartition, int]:
    """Return the entries of a checkpoint in the directory of `partition` itself: the one entry is its own.

    It has another name if the directory was renamed or copied since it was written.
    """
    return {partition: next(iter(offsets.values()))} if len(offsets) == 1 else dict(offsets)


def find_checkpointed_offset(disk: Disk, directory: str, checkpoint: str) -> int | None:
    """Return the offset of the partition in `directory` by its log dir's `checkpoint` file.

    None: there is no such file. A stand-alone log keeps its checkpoints in its own directory. The offset is a
    hint: unreadable files are ignored.
    """
    parent, _, name = os.path.abspath(directory).rpartition("/")
    try:
        partition = parse_directory_name(name)
    except InvalidTopic:
        return None
    known = []
    for place in (parent, directory):
        with suppress(OSError):
            offsets = find_offset_checkpoint(disk, place, checkpoint)
            if offsets is not None:
                own = of_one_log(offsets, partition) if place == directory else offsets
                known.append(own.get(partition, 0))
    return max(known, default=None)


def checkpointed_offset(disk: Disk, directory: str, checkpoint: str) -> int:
    """Return the offset as `find_checkpointed_offset`; 0 if unknown."""
    return find_checkpointed_offset(disk, directory, checkpoint) or 0


class OffsetFile:
    """An offset checkpoint with its content in memory. A corrupt file counts as missing.

    Each change replaces the file durably, then updates `offsets`. Raises `OSError`.
    """

    __slots__ = ("_directory", "_disk", "_is_in_doubt", "_name", "is_corrupt", "is_there", "offsets")

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self._disk, self._directory, self._name = disk, directory, name
        data, found = read_small_file(disk, path := f"{directory}/{name}"), None
        with suppress(CorruptCheckpoint):
            found = parse_offset_checkpoint(data, path=path) if data else None
        self.is_corrupt = bool(data) and found is None
        """Whether there is a file that cannot be read, until the next write."""
        self.is_there = found is not None
        """Whether there is a file: then a partition without an entry has offset 0, else an unknown one."""
        self.offsets: dict[TopicPartition, int] = found or {}
        self._is_in_doubt = False
        """Whether a write failed, or was interrupted: the file may have its offsets, or those of before."""

    def get(self, partition: TopicPartition) -> int:
        """Return the partition's offset; 0 if there is none."""
        return self.offsets.get(partition, 0)

    def find(self, partition: TopicPartition) -> int | None:
        """Return the partition's offset; None if there is no such file."""
        return self.get(partition) if self.is_there else None

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        """Replace all entries."""
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
        try:
            write_offset_checkpoint(self._disk, self._directory, self._name, offsets)
        except OSError as error:
            if error.errno != errno.EIO:  # the file is as it was: a full disk is no doubt
                self._is_in_doubt = was_in_doubt
            raise
        self.offsets, self.is_there, self.is_corrupt = offsets, True, False
        self._is_in_doubt = False

    def set(self, partition: TopicPartition, offset: int) -> None:
        """Set one entry; nothing is written if it is unchanged."""
        if self._is_in_doubt or self.get(partition) != offset:
            self.write({**self.offsets, partition: offset})

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lower one entry to `offset` if it is higher."""
        if self._is_in_doubt or self.get(partition) > offset:
            self.write({**self.offsets, partition: min(self.get(partition), offset)})

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the entries of these partitions; nothing is written if there are none."""
        going = self.offsets.keys() & partitions
        if going or self._is_in_doubt:
            self.write({each: offset for each, offset in self.offsets.items() if each not in going})


# --- epochs --------------------------------------------------------------------------------


def parse_leader_epoch_checkpoint(
    data: bytes, *, path: str = LEADER_EPOCH_CHECKPOINT
) -> list[tuple[int, int]]:
    """Parse pairs of leader epoch and start offset, in the file's order.

    Raises `CorruptCheckpoint`, also if an epoch does not rise or an offset falls: Kafka drops the entry
    before, but no broker writes that. Equal offsets are allowed: a leader may have written nothing.
    """
    entries = [
        (
            parse_number(epoch, INT32_MAX, where=f"{path}: leader epoch"),
            parse_number(start_offset, INT64_MAX, where=f"{path}: start offset"),
        )
        for epoch, start_offset in parse_entries(data, fields=2, path=path)
    ]
    for (epoch, start), (later, later_start) in pairwise(entries):
        if epoch >= later or start > later_start:
            both = f"epoch {later} from offset {later_start} on follows epoch {epoch} from offset {start} on"
            raise CorruptCheckpoint(f"{path}: {both}")
    return entries


def format_leader_epoch_checkpoint(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the file's bytes."""
    return format_entries(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def read_leader_epoch_checkpoint(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """Read the partition's file; no entries if it does not exist. Raises `CorruptCheckpoint`, `OSError`."""
    path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
    return parse_leader_epoch_checkpoint(read_small_file(disk, path) or b"", path=path)


def write_leader_epoch_checkpoint(disk: Disk, directory: str, entries: Iterable[tuple[int, int]]) -> None:
    """Replace the partition's file durably; see `publish`."""
    publish(disk, directory, LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint(entries))
