"""Read the files beside a partition's `.log`s, in a directory that another process may own.

All of them are derived data and never evidence. An index only gives a position to search from, and
impossible entries are dropped. A missing file counts as empty.

`DirectoryTransactions` finds open and aborted transactions without reading the whole log:

    segments     0.log        5000.log        9000.log (active)
    aborts       0.txnindex   5000.txnindex │ batches after the newest snapshot
    open since                 9000.snapshot ┘

After a power cut, an index that was not synced may lack its last aborts. So aborts after the newest snapshot
below the recovery point are read from the batches themselves. The snapshot has a checksum and lists the
transactions that were open before it. Without a snapshot, the whole log is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, checkpointed_offset
from logstore.disk.files import Disk, read_small_file
from logstore.errors import (
    CorruptIndex,
    CorruptSnapshot,
    DamagedLog,
    LogDirOffline,
    LogGone,
    OffsetOutOfRange,
)
from logstore.format.batch import CONTROL, TRANSACTIONAL
from logstore.log.producer_state import ProducerState, decode_snapshot
from logstore.log.read_committed import aborted_between
from logstore.log.stretches import Stretch, StretchReader
from logstore.segment.indexes import OffsetIndex, TimeIndex, entries_of
from logstore.segment.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, TransactionIndex


class SegmentSize(NamedTuple):
    """A segment's base offset and the size of its `.log` in bytes."""

    base_offset: int
    size: int


def numbered_files(disk: Disk, directory: str, suffix: str) -> list[SegmentSize]:
    """Return offset and size of the files whose names are an offset and `suffix`, ascending.

    Raises `OSError`.
    """
    found = [
        (entry.name.removesuffix(suffix), entry.size)
        for entry in disk.scan(directory)
        if entry.name.endswith(suffix) and not entry.is_directory
    ]
    return sorted(SegmentSize(int(stem), size) for stem, size in found if stem.isdecimal())


class IndexedOffsets(NamedTuple):
    """A segment's offset index: the batch that ends with `offsets[n]` is at `positions[n]`. Both ascend."""

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]


class IndexedTimes(NamedTuple):
    """A segment's time index: no record up to `offsets[n]` has a time above `times_ms[n]`. Both ascend."""

    times_ms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class SegmentFiles:
    """The files of one partition's directory. Every method raises `LogDirOffline` or `LogGone`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory

    def segments(self) -> list[SegmentSize]:
        """Return the live segments, ascending."""
        return self._numbered(LOG_SUFFIX)

    def offset_index(self, base_offset: int) -> IndexedOffsets:
        entries = entries_of(self._read(file_name(base_offset, OffsetIndex.suffix)), OffsetIndex)
        offsets = entries["relative_offset"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        sound = _ascending((np.diff(offsets) <= 0) | (np.diff(positions) <= 0), len(entries))
        return IndexedOffsets(offsets[:sound] + base_offset, positions[:sound])

    def time_index(self, base_offset: int) -> IndexedTimes:
        entries = entries_of(self._read(file_name(base_offset, TimeIndex.suffix)), TimeIndex)
        times_ms = entries["timestamp"].astype(np.int64)
        offsets = entries["relative_offset"].astype(np.int64)
        sound = _ascending((np.diff(times_ms) <= 0) | (np.diff(offsets) < 0), len(entries))
        return IndexedTimes(times_ms[:sound], offsets[:sound] + base_offset)

    def transaction_indexes(self, bases: list[int]) -> Iterator[TransactionIndex]:
        """Yield the indexes of the segments at `bases`; corrupt ones are skipped."""
        for base_offset in bases:
            try:
                data = self._read(file_name(base_offset, TRANSACTION_INDEX_SUFFIX))
                yield TransactionIndex.decode(data, base_offset=base_offset)
            except CorruptIndex:
                continue

    def producers(self, *, at_most: int) -> ProducerState | None:
        """Return the newest sound snapshot of the producers at or below an offset."""
        for offset, _ in reversed(self._numbered(SNAPSHOT_SUFFIX)):
            if offset <= at_most:
                try:
                    data = self._read(file_name(offset, SNAPSHOT_SUFFIX))
                    return ProducerState.load(decode_snapshot(data), end_offset=offset)
                except CorruptSnapshot:
                    continue
        return None

    def _numbered(self, suffix: str) -> list[SegmentSize]:
        try:
            return numbered_files(self._disk, self.directory, suffix)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogGone(f"{self.directory} does not exist: deleted, moved, or never created") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _read(self, name: str) -> bytes:
        try:
            return read_small_file(self._disk, f"{self.directory}/{name}") or b""
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> LogDirOffline:
        return LogDirOffline(f"{self.directory} is unreadable: {error}. Check the disk and its permissions")


def _ascending(falls: npt.NDArray[np.bool_], count: int) -> int:
    """Return how many entries ascend; `falls` marks entries below the one before, from the second on."""
    return int(falls.argmax()) + 1 if falls.any() else count


def sound_stretches(reader: StretchReader) -> Iterator[Stretch]:
    """Yield the stretches up to the end of the log, past damage and past segments that were deleted.

    Raises `OffsetOutOfRange` if the log was truncated below the reader's offset, and as `StretchReader`.
    """
    while True:
        try:
            yield from reader.stretches()
            return
        except OffsetOutOfRange as error:
            if error.offset >= error.log_start_offset:
                raise
            reader.seek(error.log_start_offset)
        except DamagedLog:
            if reader.skip_damage() is None:
                raise


# --- transactions -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Replayed:
    """The producers as of `end_offset`, and the aborted transactions found on the way there."""

    producers: ProducerState
    reader: StretchReader
    end_offset: int
    aborted: list[AbortedTransaction] = field(default_factory=list)


class DirectoryTransactions:
    """The transactions of one directory; later calls read only new batches. Raises as `StretchReader`.

    Damage is skipped here; the reader of the records reports it.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._files = SegmentFiles(disk, directory)
        self._replayed: _Replayed | None = None

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the first offset of a transaction that is open at `end_offset`; `end_offset` if none is."""
        undecided = self._replay(end_offset).producers.first_undecided_offset
        return end_offset if undecided is None else min(undecided, end_offset)

    def aborted(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that overlap [start_offset, end_offset), all of it decided."""
        replayed = self._replay(None)
        bases = [base for base, _ in self._files.segments()]
        first = int(np.searchsorted(bases, start_offset, "right")) - 1
        indexes = self._files.transaction_indexes(bases[max(first, 0) :])
        indexed = aborted_between(indexes, start_offset, end_offset)
        later = [
            each
            for each in replayed.aborted
            if each.last_offset >= start_offset and each.first_offset < end_offset
        ]
        return sorted({*indexed, *later})

    def _replay(self, end_offset: int | None) -> _Replayed:
        """Replay the batches below `end_offset`; all batches if it is None."""
        replayed = self._replayed
        if replayed is None or (end_offset is not None and replayed.end_offset > end_offset):
            replayed = self._replayed = self._begin(end_offset)
        if end_offset is not None and replayed.end_offset >= end_offset:
            return replayed
        try:
            for stretch in sound_stretches(replayed.reader):
                _replay_stretch(replayed, stretch, stretch.next_offset if end_offset is None else end_offset)
                if end_offset is not None and stretch.next_offset >= end_offset:
                    break
        except OffsetOutOfRange:
            pass  # the log was truncated here
        return replayed

    def _begin(self, end_offset: int | None) -> _Replayed:
        synced = checkpointed_offset(self._disk, self._files.directory, RECOVERY_POINT_CHECKPOINT)
        limits = [limit for limit in (synced or None, end_offset) if limit is not None]
        producers = self._files.producers(at_most=min(limits, default=2**63 - 1))
        start = None if producers is None else producers.end_offset
        reader = StretchReader(self._files.directory, start_offset=start, disk=self._disk)
        return _Replayed(producers or ProducerState(), reader, start or 0)


def _replay_stretch(replayed: _Replayed, stretch: Stretch, end_offset: int) -> None:
    """Replay the stretch's batches below `end_offset` that are not replayed yet."""
    headers = stretch.headers
    bases = headers["base_offset"].astype(np.int64)
    wanted = headers["attributes"] & (TRANSACTIONAL | CONTROL) != 0
    wanted &= (bases >= replayed.end_offset) & (bases < end_offset)
    for slot in np.flatnonzero(wanted).tolist():
        completed = replayed.producers.replay(stretch.batch(slot))
        if completed is not None and (entry := completed.index_entry()) is not None:
            replayed.aborted.append(entry)
    replayed.end_offset = max(replayed.end_offset, min(stretch.next_offset, end_offset))
