"""One segment: a `.log` of batches and the files that are derived from it.

    00000000000000368769.log         batches, end to end; the name is the base offset
    00000000000000368769.index       offset → position            (indexes.py)
    00000000000000368769.timeindex   time → offset                (indexes.py)
    00000000000000368769.txnindex    aborted transactions, if any (transaction_index.py)
    00000000000000368769.seal        digests, once the next segment is made (seal.py)

The `.log` is authoritative. A log of a thousand segments opens by listing a directory: the indexes are opened
with the first lookup. One that is missing, malformed, or contradicted by the batch it points to is rebuilt
from the `.log`. After a crash the `.log` may end anywhere and hold anything past the recovery point:
`recovery.py` judges it before a `Segment` is made of it. Reading is in `segments.py`.

With `preallocate` the file of an active segment is longer than its batches, by zeros; `size` is the end of
the batches. The zeros are cut when the segment is sealed or closed, and by recovery, as a torn tail.

One writer at a time (the log's lock). Readers need no lock; they take the segment's to rebuild an index. A
reader that still uses a file when its segment is deleted keeps the file open: references are dropped, files
never closed under it. After `let_go` a segment opens no file again: the next segment may have its names.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from struct import Struct
from typing import NamedTuple, TypeAlias

from logstore.config import MAX_LONG, LogConfig
from logstore.disk.copying import make_own
from logstore.disk.files import Buffer, Disk, File, remove_if_exists
from logstore.format.batch import HEADER_BYTES
from logstore.segment.indexes import NO_TIMESTAMP, OffsetIndex, TimeIndex
from logstore.segment.scan import scan
from logstore.segment.seal import SEAL_SUFFIX, Seal, Sealing
from logstore.segment.segment_indexes import SegmentIndexes
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, TransactionIndexFile

LOG_SUFFIX = ".log"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
"""Follows the name of a file that was deleted, and stays for a while for its readers."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX, SEAL_SUFFIX)

_MAX_TIMESTAMP = Struct(">35xq")

Extents: TypeAlias = Sequence[tuple[int, int, int]]
"""Batches that lie end to end, a row each: size, last offset, largest time."""


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file, such as `00000000000000000042.log`."""
    return f"{base_offset:020d}{suffix}"


class Segment:
    """A segment of one log. Offsets are absolute, positions bytes of the `.log`, times milliseconds.

    Methods that change files raise `OSError`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        size: int,
        now_ms: int,
        jitter_ms: int = 0,
        is_new: bool = False,
        modified_ms: int = 0,
        name_suffix: str = "",
    ) -> None:
        """Make an existing segment whose `.log` holds `size` bytes of whole batches, or a new, empty one.

        The names of its files end in `name_suffix` while it is made to replace others.
        """
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self._name_suffix = name_suffix
        self.size = size
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self.modified_ms = modified_ms
        self.name_is_durable = not is_new
        self.seal: Seal | None = None
        # Recovery will not read it again: an index written anew is written whole or not at all.
        self.is_settled = False
        # Held by whatever changes the segment, so that a reader that rebuilds an index does not interfere.
        self.lock = threading.RLock()
        self._is_let_go = False
        self.open_file: File | None = None
        """The `.log` while it is open, for writing; `log_file` opens it."""
        self._first_timestamp_ms: int | None = None
        self._largest = (NO_TIMESTAMP, base_offset) if is_new else None
        self.appended_from = size
        """Bytes from here on were appended by this process."""
        self.synced_bytes = size
        """The size that was last synced; a larger `size` may be in the page cache alone."""
        self.was_walked = False
        """Whether a scrub of this process has judged its batches and index entries since it was sealed."""
        self.last_position_without_entry = size + config.index_interval_bytes
        """A batch that begins up to this position gets no index entry."""
        self._index_is_full: bool | None = None
        self._is_ready = is_new
        """Whether an append can do without preparing the indexes."""
        self.is_preallocated = is_new and config.preallocate
        self.was_trimmed = False
        """Zeros were cut off, and only `sync_log` makes that durable."""
        if is_new:
            preallocated = config.segment_bytes if config.preallocate else 0
            self.open_file = _create(disk, self.path(LOG_SUFFIX), preallocated)
        self.indexes = SegmentIndexes(self, is_new=is_new)
        self.aborts = TransactionIndexFile(self)
        self.sealing = Sealing(self)

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def renew_locks(self) -> None:
        """Make locks that no thread holds: in a forked child, those of the parent are gone."""
        self.lock = threading.RLock()
        self.indexes.renew_locks()
        self.sealing.renew_lock()

    # --- files ------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        """Return the path of this segment's file with that suffix."""
        return f"{self.directory}/{file_name(self.base_offset, suffix)}{self._name_suffix}"

    def check_held(self) -> None:
        """Raise `FileNotFoundError` after `let_go`: another segment's files may have its names."""
        if self._is_let_go:
            raise FileNotFoundError(errno.ENOENT, "the segment left the log", self.path(LOG_SUFFIX))

    @property
    def log_file(self) -> File:
        """The `.log`, open for writing."""
        file = self.open_file
        if file is None:
            with self.lock:
                if self.open_file is None:
                    self.check_held()
                    self.open_file = self.disk.open(self.path(LOG_SUFFIX), write=True)
                file = self.open_file
        return file

    @contextmanager
    def log_for_reading(self) -> Iterator[File]:
        """Open the `.log` for as long as it is read, also after `let_go`."""
        file = self.open_file
        if file is not None:
            yield file
            return
        with closing(self.disk.open(self.path(LOG_SUFFIX))) as file:
            yield file

    # --- facts ------------------------------------------------------------------------------------

    @property
    def largest(self) -> tuple[int, int]:
        """The largest record time (-1: none) and the last offset of the earliest batch that holds it."""
        if self._largest is None:
            with self.lock:  # an append may know better meanwhile
                if self._largest is None:
                    last = self.indexes.times.last
                    self._largest = last.timestamp_ms, last.offset
        return self._largest

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record time; -1 if no record has one."""
        return (self._largest or self.largest)[0]

    @property
    def largest_timestamp_ms(self) -> int:
        """The time that retention uses: the largest record time, or the file's if there is none."""
        largest_ms = self.max_timestamp_ms
        return largest_ms if largest_ms >= 0 else self.modified_ms

    @property
    def first_timestamp_ms(self) -> int:
        """The largest record time of the first batch; -1 for none, also without a batch."""
        if self._first_timestamp_ms is None:
            with self.log_for_reading() as file:
                header = file.pread(HEADER_BYTES, 0) if self.size else b""
            if len(header) < HEADER_BYTES:
                return NO_TIMESTAMP
            self._first_timestamp_ms = _MAX_TIMESTAMP.unpack_from(header)[0]
        return self._first_timestamp_ms

    @property
    def index_is_full(self) -> bool:
        """Whether one of the indexes takes no more entries: the next append needs a new segment."""
        if self._index_is_full is None:
            self._index_is_full = self.indexes.are_full
        return self._index_is_full

    def indexes_changed(self, largest: tuple[int, int] | None = None) -> None:
        """Drop cached values of the indexes, because the indexes were replaced or cut.

        `largest` is the largest record time with its offset, where a walk of the whole segment found it.
        """
        self._index_is_full = None
        self._is_ready = False
        if largest is not None:
            self._largest, self._first_timestamp_ms = largest, None

    # --- appending --------------------------------------------------------------------------------

    def append(self, data: Buffer, batches: Extents) -> int:
        """Write whole batches at the end; return the position they start at.

        On an error the segment is as it was: a partial write is cut off again (if that fails too, that
        error is raised).
        """
        with self.lock:
            if not self._is_ready:
                # Before the batches, because all that can fail must fail while the segment is as it was.
                self.indexes.write_behind()
                if self.indexes.reaches(batches[0][1]):
                    self.indexes.rebuild(OffsetIndex.suffix, "the last entry lies past the end of the log")
                    # What is still there comes from a batch whose offset has rotted.
                    self.indexes.truncate_to(batches[0][1])
                _ = self.largest
                self._is_ready = True
            position = self._write_at_end(data)
            if position == 0:
                self._first_timestamp_ms = batches[0][2]
            self._index(batches, position)
            self.size = position + len(data)
            return position

    def extend(self, data: bytes, last_offset: int, timestamp_ms: int) -> None:
        """`append` of one batch behind others, where it gets no index entry (`stretch.py`).

        The log's lock is enough: an index that a reader rebuilds meanwhile misses no entry of this batch.
        """
        position = self._write_at_end(data)
        if timestamp_ms > (self._largest or self.largest)[0]:
            self._largest = timestamp_ms, last_offset
        self.size = position + len(data)

    def _write_at_end(self, data: Buffer) -> int:
        """Write all of `data` at the end, or nothing; return the position it starts at."""
        position = self.size
        file = self.open_file or self.log_file
        try:
            file.pwrite(data, position)
        except OSError as error:
            error.__traceback__ = None  # the error of the cut would keep its frames, and they the file
            file.truncate(position)
            raise
        return position

    def _index(self, batches: Extents, position: int) -> None:
        """Add the index entries that these batches give: the rule of `indexes.py`, a batch at a time."""
        interval, last_without = self.config.index_interval_bytes, self.last_position_without_entry
        largest_ms, holder = self._largest or self.largest
        offsets: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        for size, last_offset, timestamp_ms in batches:
            if timestamp_ms > largest_ms:
                largest_ms, holder = timestamp_ms, last_offset
            if position > last_without:
                offsets.append((last_offset, position))
                times.append((largest_ms, holder))
                last_without = position + interval
            position += size
        self.last_position_without_entry = last_without
        self._largest = largest_ms, holder
        if offsets:
            # A long append of many batches may fill an index on its way; the next append then rolls.
            self._is_ready = not self.indexes.extend(offsets, times)
            self._index_is_full = None

    # --- snapshots --------------------------------------------------------------------------------

    def make_own(self) -> None:
        """Give the segment copies of files that a snapshot shares: they are going to change in place.

        Durable when it returns.
        """
        with self.lock:
            if self.log_file.names() < 2:
                return
            if self.indexes.are_open:
                self.indexes.sync()
            # The log last: after a crash the others are looked at again.
            for suffix in (OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX):
                make_own(self.disk, self.path(suffix))
            self.rest()

    # --- truncating ------------------------------------------------------------------------------

    def cut(self, position: int, offset: int, now_ms: int) -> int:
        """Cut the batches from byte `position` on, the first of which holds `offset`; return the bytes cut.

        The caller holds `lock`. Not yet durable: `sync_log` after it.
        """
        cut = self.size - position
        self.is_settled = False
        # Opened before it changes: they are compared with the size.
        _ = self.indexes.offsets
        # Size first: a reader that starts now does not use bytes that are about to be cut.
        self.size = position
        self.was_walked = False
        self.appended_from = min(self.appended_from, position)
        self.synced_bytes = min(self.synced_bytes, position)
        self.sealing.cut(position)
        self.indexes.truncate_to(offset)
        self.log_file.truncate(position)
        self.aborts.truncate_to(offset)
        self.last_position_without_entry = position + self.config.index_interval_bytes
        self._index_is_full = None
        self.modified_ms = now_ms
        if position == 0:
            self.created_ms = now_ms
            self._first_timestamp_ms = None
        self._largest = _largest_in(self)
        return cut

    # --- the end ----------------------------------------------------------------------------------

    def become_inactive(self) -> None:
        """Add the last time entry, and cut the files to their contents."""
        with self.lock:
            if self.is_preallocated and self.log_file.size() != self.size:
                self.log_file.truncate(self.size)
                self.was_trimmed = True
            self.indexes.finish(*self.largest)

    def sync_log(self) -> None:
        """Make the batches survive power loss. Never call it again after an error."""
        # A cut of zeros is not data, but recovery does not read a sealed segment again and would miss the
        # zeros.
        size = self.size
        self.log_file.sync(data_only=not self.was_trimmed)
        self.was_trimmed = False
        with self.lock:
            self.synced_bytes = min(size, self.size)  # it may have been cut meanwhile

    def sync_indexes(self) -> None:
        """Make the indexes survive power loss: for a segment that recovery will not read again."""
        self.indexes.sync()
        self.aborts.sync()
        self.is_settled = True

    def close(self) -> None:
        """Write buffered data and drop the files."""
        if self.indexes.are_open:
            if self.size or self.is_preallocated:
                self.become_inactive()
            self.indexes.close()
        self.let_go()

    def rest(self) -> None:
        """Close the files of a durable, inactive segment until they are needed again.

        Otherwise a writer would hold five descriptors a segment.
        """
        with self.lock:
            self.open_file = None
            self._is_ready = False
            self.indexes.let_go()

    def let_go(self) -> None:
        """Drop the files permanently, without writing; any later use raises `FileNotFoundError`.

        A reader in the middle of a read keeps its file until it is done.
        """
        with self.lock:
            self._is_let_go = True
            self.rest()

    def delete(self, *, log_goes_to: str | None = None) -> None:
        """Unlink every file of the segment, the log first; missing ones are fine.

        With `log_goes_to` the log is renamed to that path instead.
        """
        self.let_go()
        if log_goes_to is not None:
            self.disk.rename(self.path(LOG_SUFFIX), log_goes_to)
        for suffix in SEGMENT_SUFFIXES:
            remove_if_exists(self.disk, self.path(suffix))

    def set_aside(self) -> list[str]:
        """Rename every file of the segment to `.deleted`, the log first; return the new paths.

        Readers that have one open continue. Durable once the directory is synced.
        """
        self.let_go()
        aside = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            try:
                self.disk.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            aside.append(path + DELETED_SUFFIX)
        return aside


def _create(disk: Disk, path: str, preallocated_bytes: int) -> File:
    file = disk.open(path, create=True, exclusive=True, write=True)
    if preallocated_bytes:
        try:
            file.truncate(preallocated_bytes)
        except OSError:
            # Otherwise the name would be taken once there is room again.
            file.close()
            disk.remove(path)
            raise
    return file


def _largest_in(segment: Segment) -> tuple[int, int]:
    """`Segment.largest`, from the time index and the batches behind its last entry."""
    last = segment.indexes.times.last
    largest = last.timestamp_ms, last.offset
    start = segment.indexes.offsets.lookup(last.offset).position if last.timestamp_ms >= 0 else 0
    for scanned in scan(segment.log_file, start, segment.size, base_offset=segment.base_offset):
        times = scanned.headers["max_timestamp"]
        if len(times) and int(times.max()) > largest[0]:
            slot = int(times.argmax())
            largest = int(times[slot]), int(scanned.last_offsets[slot])
    return largest


# --- deleted files --------------------------------------------------------------------------------------


class _Doomed(NamedTuple):
    path: str
    since_ms: int
    due_ms: int


class DeletedFiles:
    """The files of a log that were set aside, and are unlinked after `file.delete.delay.ms`.

    A reader that has one open notices neither step. Nothing here needs to be durable: opening a log removes
    every `.deleted` file that a crash or a stop left. Times are epoch milliseconds. Not thread-safe.
    """

    __slots__ = ("_disk", "_doomed")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._doomed: list[_Doomed] = []

    def add(self, paths: Iterable[str], now_ms: int, delay_ms: int) -> None:
        """Schedule these files to be unlinked `delay_ms` from now."""
        self._doomed += [_Doomed(path, now_ms, now_ms + delay_ms) for path in paths]

    @property
    def deadline_ms(self) -> int:
        """The time of the next `remove_due` that unlinks something; `MAX_LONG` for never."""
        return min((doomed.due_ms for doomed in self._doomed), default=MAX_LONG)

    def remove_due(self, now_ms: int) -> int:
        """Unlink the files that are due; return their number. Raises `OSError`; the rest stays due."""
        # If the clock was set back, they are due at once rather than years later.
        due = [doomed for doomed in self._doomed if not doomed.since_ms <= now_ms < doomed.due_ms]
        for doomed in due:
            remove_if_exists(self._disk, doomed.path)
            self._doomed.remove(doomed)
        return len(due)

    def forget(self) -> None:
        """Leave the files to the next owner of the directory."""
        self._doomed.clear()
