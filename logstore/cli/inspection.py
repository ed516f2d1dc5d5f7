"""Read the files of a log directory that another process may own, be writing, or have left broken.

Nothing here writes, locks or maps files, or relies on their content. Files are opened read-only and read
with `pread` up to the size they had when they were opened, so that a writer may append, roll, truncate or
delete meanwhile.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import Final, NamedTuple

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    checkpointed_offset,
)
from logstore.checkpoint.identity import META_PROPERTIES, PARTITION_METADATA
from logstore.config import MAX_LONG
from logstore.disk.files import Disk, File
from logstore.format.batch import LOG_OVERHEAD
from logstore.log.cursor_file import CURSORS_FILE
from logstore.log.reader import LogReader, Suspect
from logstore.segment.damage import find_batch
from logstore.segment.indexes import OffsetIndex, TimeIndex, entries_of
from logstore.segment.scan import CHUNK_BYTES, Fault, scan

_LENGTH: Final = struct.Struct(">i")
# The search for a whole batch behind a tail stops after this many bytes.
_SEARCH_BYTES: Final = 64 << 20


class Kind(StrEnum):
    """The kind of a file in a log directory."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    PRODUCER_SNAPSHOT = "snapshot"
    SEAL = "seal"
    OFFSET_CHECKPOINT = "offset-checkpoint"
    EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    CURSORS = "cursors"
    META_PROPERTIES = "meta.properties"
    CLEAN_SHUTDOWN = "clean-shutdown"
    METADATA_SNAPSHOT = "checkpoint"
    QUORUM_STATE = "quorum-state"


_NUMBERED = re.compile(
    r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot|seal)(?P<state>\.deleted|\.cleaned|\.swap|)"
)
_METADATA_SNAPSHOT = re.compile(
    r"(?P<offset>[0-9]{20})-[0-9]{10}\.checkpoint(?P<state>\.deleted|\.part|)", re.ASCII
)
_NAMED: Final = {
    RECOVERY_POINT_CHECKPOINT: Kind.OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT: Kind.OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT: Kind.OFFSET_CHECKPOINT,
    "cleaner-offset-checkpoint": Kind.OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT: Kind.EPOCH_CHECKPOINT,
    PARTITION_METADATA: Kind.PARTITION_METADATA,
    CURSORS_FILE: Kind.CURSORS,
    META_PROPERTIES: Kind.META_PROPERTIES,
    CLEAN_SHUTDOWN_FILE: Kind.CLEAN_SHUTDOWN,
    "bootstrap.checkpoint": Kind.METADATA_SNAPSHOT,
    "quorum-state": Kind.QUORUM_STATE,
}


class FileRole(NamedTuple):
    """The meaning of a file's name: its kind, the offset it is named for, and whether it is set aside.

    `state` is empty for a live file; `deleted`, `cleaned` and `swap` are leftovers of retention and
    compaction, `part` is one of an interrupted snapshot. `base_offset` is -1 for files without a number.
    """

    kind: Kind
    base_offset: int = -1
    state: str = ""


def role_of(name: str) -> FileRole | None:
    """Return the role of the file `name`; None for a name that no log directory uses."""
    if (match := _NUMBERED.fullmatch(name)) and int(match["offset"]) <= MAX_LONG:
        return FileRole(Kind(match["kind"]), int(match["offset"]), match["state"].removeprefix("."))
    if match := _METADATA_SNAPSHOT.fullmatch(name):
        return FileRole(Kind.METADATA_SNAPSHOT, int(match["offset"]), match["state"].removeprefix("."))
    return FileRole(_NAMED[name]) if name in _NAMED else None


class FoundBatch(NamedTuple):
    """One batch of a file, and its fault; None for a sound one."""

    position: int
    data: bytes
    fault: Fault | None


class LogFile:
    """The batches of one `.log`, front to back, in bounded memory.

    `valid_end` is the end of the last batch that was yielded; `tail` is TORN, ZEROS or SIZE (no batch) if
    other bytes follow it. Both are final when `batches` is exhausted. `size` is that at the opening.
    """

    def __init__(self, file: File, base_offset: int) -> None:
        self._file = file
        self.base_offset = base_offset
        self.size = file.size()
        self.valid_end = 0
        self.tail: Fault | None = None

    def batches(
        self, *, position: int = 0, next_offset: int | None = None, leader_epoch: int = -1
    ) -> Iterator[FoundBatch]:
        """Yield each whole batch from `position` on, also a faulty one whose length can be followed.

        Checksums are checked; offsets and epochs have to rise from `next_offset` (default: the base
        offset) and `leader_epoch`.
        """
        self.valid_end = position
        next_offset = self.base_offset if next_offset is None else next_offset
        while self.valid_end < self.size:
            fault = None
            for found in scan(
                self._file, self.valid_end, self.size,
                base_offset=self.base_offset, next_offset=next_offset, leader_epoch=leader_epoch,
            ):  # fmt: skip
                sizes = found.headers["batch_length"] + LOG_OVERHEAD
                for at, size in zip(found.positions.tolist(), sizes.tolist(), strict=True):
                    data = self._file.pread(size, at)
                    if len(data) < size:  # cut by its owner meanwhile
                        self.valid_end, self.tail = at, Fault.TORN
                        return
                    yield FoundBatch(at, data, None)
                if len(found.headers):
                    next_offset = int(found.last_offsets[-1]) + 1
                    leader_epoch = max(leader_epoch, int(found.headers["leader_epoch"].max()))
                self.valid_end, fault = found.end, found.fault
            if fault in (Fault.TORN, Fault.SIZE):
                self.tail = Fault.ZEROS if self._only_zeros(self.valid_end) else fault
                return
            if fault is not None:
                # One bad batch does not hide the rest, and its offsets and epoch are ignored.
                data = self._read_batch(self.valid_end)
                yield FoundBatch(self.valid_end, data, fault)
                self.valid_end += len(data)

    def whole_batch_behind(self, position: int) -> int | None:
        """Return the position of the first intact batch behind `position`; None if none is near."""
        return find_batch(self._file, position, min(position + _SEARCH_BYTES, self.size))

    def _read_batch(self, position: int) -> bytes:
        (length,) = _LENGTH.unpack(self._file.pread(4, position + 8))
        return self._file.pread(LOG_OVERHEAD + length, position)

    def _only_zeros(self, position: int) -> bool:
        while position < self.size:
            chunk = self._file.pread(min(CHUNK_BYTES, self.size - position), position)
            if chunk.strip(b"\0"):
                return False
            if not chunk:  # cut by its owner meanwhile
                return True
            position += len(chunk)
        return True


def open_for_reading(disk: Disk, directory: str, name: str) -> File | None:
    """Open the file, also if its owner has just renamed it for deletion; None if it is gone."""
    for candidate in (name, f"{name}.deleted"):
        try:
            return disk.open(f"{directory}/{candidate}")
        except FileNotFoundError:
            continue
    return None


def segment_offsets(disk: Disk, directory: str) -> list[int]:
    """Return the base offsets of the live segments, ascending."""
    roles = (role_of(entry.name) for entry in disk.scan(directory) if not entry.is_directory)
    return sorted(role.base_offset for role in roles if role and role.kind is Kind.LOG and not role.state)


def cleaned_end(disk: Disk, directory: str, *, is_compacted: bool = False) -> int:
    """Return the offset below which a copy of a partition may have been compacted; 0 if it never was.

    The cleaner's checkpoint tells, unless the caller knows that the topic `is_compacted`. It may lag behind
    the files if the owner was killed, but the last segment is never compacted.
    """
    if is_compacted or checkpointed_offset(disk, directory, CLEANER_OFFSET_CHECKPOINT) > 0:
        return max(segment_offsets(disk, directory), default=0)
    return 0


class InspectingReader(LogReader):
    """A `LogReader` that tells where it has found damage."""

    @property
    def damage(self) -> Suspect | None:
        """The bytes that the last `DamagedLog` was about."""
        return self._damage


def index_entries(data: bytes, kind: Kind, base_offset: int) -> list[tuple[int, int]]:
    """Return the entries as (offset, position) or (timestamp, offset), offsets absolute.

    A preallocated zero tail and a last entry that is cut short are left out.
    """
    if kind is Kind.OFFSET_INDEX:
        return [(base_offset + relative, at) for relative, at in entries_of(data, OffsetIndex).tolist()]
    entries = entries_of(data, TimeIndex).tolist()
    return [(timestamp, base_offset + relative) for timestamp, relative in entries]


def read_whole(disk: Disk, directory: str, name: str) -> bytes | None:
    """Return all bytes of a file; None if it is gone."""
    file = open_for_reading(disk, directory, name)
    if file is None:
        return None
    with closing(file):
        return file.pread(file.size(), 0)
