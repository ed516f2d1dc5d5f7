"""The files beside a partition's `.log`s, read from a directory that somebody else may own.

All of them are derived and none is believed for what lies in the log: an index says where to look, and what
it says that cannot be is left out. A file that is gone is as one that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.disk.files import Disk, read_small_file
from logstore.errors import CorruptIndex, CorruptSnapshot, LogDirOffline, LogGone
from logstore.log.producer_state import ProducerState, decode_snapshot
from logstore.segment.offset_index import OffsetIndex
from logstore.segment.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, file_name
from logstore.segment.time_index import TimeIndex
from logstore.segment.transaction_index import TransactionIndex


class SegmentSize(NamedTuple):
    """A segment's base offset and how many bytes its `.log` has."""

    base_offset: int
    size: int


class IndexedOffsets(NamedTuple):
    """A segment's offset index: the batch that ends with `offsets[n]` is at `positions[n]`. Both ascend."""

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]


class IndexedTimes(NamedTuple):
    """A segment's time index: no record up to `offsets[n]` has a time above `times_ms[n]`. Both ascend."""

    times_ms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class SegmentFiles:
    """The files of one partition's directory. Every method raises `LogDirOffline`, or `LogGone`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory

    def segments(self) -> list[SegmentSize]:
        """Those that count, ascending."""
        return [SegmentSize(offset, size) for offset, size in self._numbered(LOG_SUFFIX)]

    def offset_index(self, base_offset: int) -> IndexedOffsets:
        entries = self._entries(base_offset, OffsetIndex.suffix, OffsetIndex.dtype)
        offsets = entries["relative_offset"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        sound = _ascending((np.diff(offsets) <= 0) | (np.diff(positions) <= 0), len(entries))
        return IndexedOffsets(offsets[:sound] + base_offset, positions[:sound])

    def time_index(self, base_offset: int) -> IndexedTimes:
        entries = self._entries(base_offset, TimeIndex.suffix, TimeIndex.dtype)
        times_ms = entries["timestamp"].astype(np.int64)
        offsets = entries["relative_offset"].astype(np.int64)
        sound = _ascending((np.diff(times_ms) <= 0) | (np.diff(offsets) < 0), len(entries))
        return IndexedTimes(times_ms[:sound], offsets[:sound] + base_offset)

    def transaction_indexes(self, bases: list[int]) -> Iterator[TransactionIndex]:
        """Those of the segments at `bases`, one after the other; one that is not sound says nothing."""
        for base_offset in bases:
            try:
                data = self._read(file_name(base_offset, TRANSACTION_INDEX_SUFFIX))
                yield TransactionIndex.decode(data, base_offset=base_offset)
            except CorruptIndex:
                continue

    def producers(self, *, at_most: int) -> ProducerState | None:
        """The newest sound snapshot of the state at or below an offset."""
        for offset, _ in reversed(self._numbered(SNAPSHOT_SUFFIX)):
            if offset <= at_most:
                try:
                    data = self._read(file_name(offset, SNAPSHOT_SUFFIX))
                    return ProducerState.load(decode_snapshot(data), end_offset=offset)
                except CorruptSnapshot:
                    continue
        return None

    def _numbered(self, suffix: str) -> list[tuple[int, int]]:
        """Offset and size of the files that are named for an offset, ascending."""
        try:
            entries = self._disk.scan(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogGone(f"{self.directory} is not there: deleted, moved, or never made") from error
        except OSError as error:
            raise self._unreadable(error) from error
        stems = [(entry.name.removesuffix(suffix), entry) for entry in entries if entry.name.endswith(suffix)]
        return sorted(
            (int(stem), entry.size) for stem, entry in stems if stem.isdecimal() and not entry.is_directory
        )

    def _entries(self, base_offset: int, suffix: str, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """The whole entries of an index, without the zeros that an owner may have made room with."""
        data = self._read(file_name(base_offset, suffix))
        used = len(data.rstrip(b"\0"))
        return np.frombuffer(data, dtype, min(-(-used // dtype.itemsize), len(data) // dtype.itemsize))

    def _read(self, name: str) -> bytes:
        try:
            return read_small_file(self._disk, f"{self.directory}/{name}") or b""
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> LogDirOffline:
        return LogDirOffline(f"{self.directory} cannot be read: {error}. Check the disk and its permissions")


def _ascending(falls: npt.NDArray[np.bool_], count: int) -> int:
    """How many entries ascend, given whether each but the first falls behind the one before it."""
    return int(falls.argmax()) + 1 if falls.any() else count
