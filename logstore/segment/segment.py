"""One segment: a `.log` of batches and the indexes that find offsets and times in it.

    00000000000000368769.log         batches, end to end; the name is the base offset
    00000000000000368769.index       offset → position            (offset_index.py)
    00000000000000368769.timeindex   time → offset                (time_index.py)
    00000000000000368769.txnindex    aborted transactions, if any (transaction_index.py)
    00000000000000368769.seal        digests, once the next segment is made (seal.py)

The `.log` is the truth. Its indexes are opened with the first lookup, so that a log of a thousand
segments opens by listing a directory; one that is missing, not of its form, or contradicted by the
batch it points to is rebuilt from the `.log`. After a crash the `.log` may end anywhere and hold
anything past the recovery point: `recovery.py` judges it before a segment is built on it.

With `preallocate` the file of an active segment is longer than its batches, by zeros; `size` is where they
end. It is cut to that when the segment is sealed or closed, and by recovery, to which zeros are a torn tail.

One writer at a time (the log's lock); readers need none, and take the segment's only to rebuild an
index. A reader that still uses a file when its segment goes keeps the file alive: files are let go of,
never closed under it. A segment that was let go opens no file again: the next one may have its names.
"""

from __future__ import annotations

import errno
import posixpath
import threading
from collections.abc import Container, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore.config import LogConfig
from logstore.disk.files import Buffer, Disk, File, publish, read_small_file, remove_if_exists
from logstore.errors import CorruptBatch, CorruptIndex
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, Batch
from logstore.segment.deleted_files import DELETED_SUFFIX
from logstore.segment.offset_index import OffsetIndex, OffsetPosition
from logstore.segment.scan import IndexEntries, scan
from logstore.segment.seal import SEAL_SUFFIX, Seal, make_seal, write_seal
from logstore.segment.time_index import NO_TIMESTAMP, TimeIndex
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex

LOG_SUFFIX = ".log"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, OffsetIndex.suffix, TimeIndex.suffix, TRANSACTION_INDEX_SUFFIX, SEAL_SUFFIX)

_POSITION_HINTS = 32
_PLACE = Struct(">qiixxxxxxxi")  # base offset, length, leader epoch; last offset delta at byte 23
assert _PLACE.size == 27
_OFFSET_AND_LENGTH = Struct(">qi")
_MAX_TIMESTAMP = Struct(">35xq")


def file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`: the name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


class Located(NamedTuple):
    """Where a batch lies in its segment's `.log`."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int


Extents: TypeAlias = Sequence[tuple[int, int, int]]
"""What an append tells a segment of its batches, which lie end to end: rows of size, last offset and
largest time."""


class SegmentRead(NamedTuple):
    """Whole batches from `position` on; `next_offset` follows the last of them."""

    records: bytes
    position: int
    next_offset: int


class Segment:
    """A segment of one log. Offsets are absolute, positions bytes of the `.log`, times milliseconds."""

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
        """An existing segment whose `.log` holds `size` bytes of whole batches, or a new, empty one.

        The names of its files end in `name_suffix`: one that is being made for another's place.
        """
        self._disk = disk
        self._name_suffix = name_suffix
        self._directory = directory
        self.base_offset = base_offset
        self._config = config
        self.size = size
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self.modified_ms = modified_ms
        self.name_is_durable = not is_new
        self.indexes_were_rebuilt = False
        self.seal: Seal | None = None
        # Recovery will not read it again: an index written anew is written whole or not at all.
        self.is_settled = False
        # Held by whatever changes the segment, so that a reader who rebuilds an index does not meet it.
        self._lock = threading.RLock()
        self._is_let_go = False
        self._file: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self._aborts_are_durable = True
        self._hints: dict[int, int] = {}
        self._last_entry_position = size
        self._first_timestamp_ms: int | None = None
        self._max_timestamp_ms: int | None = NO_TIMESTAMP if is_new else None
        self._offset_of_max_timestamp = base_offset
        self._is_preallocated = is_new and config.preallocate
        self.was_trimmed = False
        """Zeros were cut off, and only `sync_log` makes that durable."""
        if is_new:
            self._file = self._created()
            self._offset_index, self._time_index = self._fresh_indexes()

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        """The path of this segment's file with that suffix."""
        return f"{self._directory}/{file_name(self.base_offset, suffix)}{self._name_suffix}"

    def _created(self) -> File:
        path = self.path(LOG_SUFFIX)
        file = self._disk.open(path, create=True, exclusive=True, write=True)
        if self._is_preallocated:
            try:
                file.truncate(self._config.segment_bytes)
            except OSError:
                # Else the name is taken when there is room.
                file.close()
                self._disk.remove(path)
                raise
        return file

    # --- parts that open themselves ---------------------------------------------------------------

    @property
    def log_file(self) -> File:
        """The `.log`, open for writing."""
        file = self._file
        if file is None:
            with self._lock:
                if self._file is None:
                    self._check_held()
                    self._file = self._disk.open(self.path(LOG_SUFFIX), write=True)
                file = self._file
        return file

    @property
    def offset_index(self) -> OffsetIndex:
        return self._offset_index or self._indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index or self._indexes()[1]

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        with self._lock:
            offset_index, time_index = self._offset_index, self._time_index
            if offset_index is None or time_index is None:
                self._check_held()
                offset_index, time_index = self._fresh_indexes()
                try:
                    offset_index.load()
                    time_index.load()
                    self._check_indexes(offset_index, time_index)
                except (FileNotFoundError, CorruptIndex):
                    self._rebuild(offset_index, time_index)
                self._offset_index, self._time_index = offset_index, time_index
        return offset_index, time_index

    def _check_held(self) -> None:
        # By now the names may be those of a new segment's files, and its indexes may be mapped.
        if self._is_let_go:
            raise FileNotFoundError(errno.ENOENT, "the segment was let go", self.path(LOG_SUFFIX))

    def _fresh_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        limit = self._config.segment_index_bytes
        return (
            OffsetIndex(self._disk, self.path(OffsetIndex.suffix), self.base_offset, limit),
            TimeIndex(self._disk, self.path(TimeIndex.suffix), self.base_offset, limit),
        )

    def _check_indexes(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """Cheap contradictions between the indexes and the `.log`; deeper ones show at a lookup."""
        if offset_index.entry_count and offset_index.entry(offset_index.entry_count - 1)[1] >= self.size:
            raise CorruptIndex(f"{offset_index.path} points past the end of the log")
        if self.size and not time_index.entry_count and self._first_batch_timestamp() >= 0:
            # A closed segment with record times has at least the entry made when it was closed.
            raise CorruptIndex(f"{time_index.path} is empty although records have times")

    def _rebuild(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        found = IndexEntries(self.base_offset, self._config.index_interval_bytes)
        file = self._file or self._disk.open(self.path(LOG_SUFFIX))
        try:
            for scanned in scan(file, 0, self.size, base_offset=self.base_offset):
                found.add(scanned)
        finally:
            if file is not self._file:
                file.close()
        found.finish()
        self.replace_index(offset_index, found.offset_entries)
        self.replace_index(time_index, found.time_entries)
        self.indexes_were_rebuilt = True

    def settle_indexes(self, found: IndexEntries, missing: Container[str] = ()) -> list[str]:
        """Let the indexes hold what a walk of the whole segment found; returns the suffixes of those renewed.

        Their files are only compared with it: nothing is read again to rebuild what is to be replaced. Those
        whose suffix is among `missing` are written in any case. Raises `OSError`.
        """
        renewed = []
        with self._lock:
            self._check_held()
            loaded = self._offset_index is not None and self._time_index is not None
            offset_index, time_index = self._indexes() if loaded else self._fresh_indexes()
            for index, entries in (
                (offset_index, found.offset_entries),
                (time_index, found.time_entries),
            ):
                stands = index.suffix not in missing
                try:
                    if stands and not loaded:
                        index.load()
                except (FileNotFoundError, CorruptIndex):
                    stands = False
                if not stands or index.entries() != entries.tolist():
                    self.replace_index(index, entries)
                    index.flush()
                    renewed.append(index.suffix)
            self._offset_index, self._time_index = offset_index, time_index
        self.recovered(found.max_timestamp_ms, found.offset_of_max_timestamp)
        return renewed

    def replace_index(self, index: OffsetIndex | TimeIndex, entries: npt.NDArray[np.void]) -> None:
        """Let one of this segment's indexes hold what the `.log` says. Raises `OSError`."""
        if self.is_settled:
            index.replace_durably(entries)
        else:
            index.replace(entries)

    def rebuild_indexes(self) -> None:
        """Replace both indexes by what the `.log` says. Raises `OSError`."""
        with self._lock:
            offset_index, time_index = self._indexes()
            self._rebuild(offset_index, time_index)
            self._hints.clear()

    # --- facts --------------------------------------------------------------------------------------

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record time; -1 if no record has one."""
        timestamp_ms = self._max_timestamp_ms
        if timestamp_ms is None:
            with self._lock:  # an append may know better meanwhile
                timestamp_ms = self._max_timestamp_ms
                if timestamp_ms is None:
                    timestamp_ms, self._offset_of_max_timestamp = self.time_index.last
                    self._max_timestamp_ms = timestamp_ms
        return timestamp_ms

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the earliest batch that holds the largest time."""
        return self._offset_of_max_timestamp if self.max_timestamp_ms >= 0 else self.base_offset

    @property
    def largest_timestamp_ms(self) -> int:
        """What retention judges by: the largest record time, or the file's own if there is none."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.modified_ms

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, read from the log: base offset if it is empty."""
        next_offset = self.base_offset
        for located in self._walk_from(self.offset_index.last_offset):
            next_offset = located.last_offset + 1
        return next_offset

    @property
    def offset_index_bytes(self) -> int:
        """Bytes of its entries."""
        return self.offset_index.entry_count * OffsetIndex.dtype.itemsize

    @property
    def time_index_bytes(self) -> int:
        """Bytes of its entries."""
        return self.time_index.entry_count * TimeIndex.dtype.itemsize

    @property
    def index_is_full(self) -> bool:
        """Whether one of the indexes takes no more entries: the next append needs a new segment."""
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None:
            offset_index, time_index = self._indexes()
        return offset_index.is_full or time_index.is_full

    @property
    def first_timestamp_ms(self) -> int:
        """The largest record time of the first append; -1 for none and for an empty segment."""
        first = self._first_timestamp_ms
        return first if first is not None else self._first_batch_timestamp()

    def _first_batch_timestamp(self) -> int:
        if self._first_timestamp_ms is None:
            if not self.size:
                return NO_TIMESTAMP
            file = self._file or self._disk.open(self.path(LOG_SUFFIX))
            header = file.pread(HEADER_BYTES, 0)
            self._first_timestamp_ms = _MAX_TIMESTAMP.unpack_from(header)[0]
        return self._first_timestamp_ms

    def recovered(self, max_timestamp_ms: int, offset_of_max_timestamp: int) -> None:
        """Take over what a walk of the whole segment found; hints from before it are void."""
        self._max_timestamp_ms = max_timestamp_ms
        self._offset_of_max_timestamp = offset_of_max_timestamp
        self._first_timestamp_ms = None
        self._hints.clear()

    # --- aborted transactions ---------------------------------------------------------------------

    @property
    def transaction_index(self) -> TransactionIndex:
        """The aborted transactions whose markers lie in this segment. Raises `CorruptIndex`."""
        index = self._transaction_index
        if index is None:
            with self._lock:  # a reader must not put an older one in the place of the writer's
                index = self._transaction_index
                if index is None:
                    self._check_held()  # no file would mean no aborted transactions
                    data = read_small_file(self._disk, self.path(TRANSACTION_INDEX_SUFFIX))
                    index = TransactionIndex.decode(data or b"", base_offset=self.base_offset)
                    self._transaction_index = index
        return index

    def append_aborted(self, entry: AbortedTransaction) -> None:
        """Note one more aborted transaction; the file is made by the first. Raises `OSError`."""
        index = self.transaction_index
        at = index.size_bytes
        data = index.append(entry)
        file = self._disk.open(self.path(TRANSACTION_INDEX_SUFFIX), create=True, write=True)
        try:
            file.pwrite(data, at)
        finally:
            file.close()
        self._aborts_are_durable = False

    def replace_transaction_index(self, entries: Sequence[AbortedTransaction]) -> None:
        """Hold these entries instead of what there is; no file for none. Raises `OSError`.

        Durably, and the old ones until then: that a file is missing would tell nobody of its aborts.
        """
        self._transaction_index = TransactionIndex(entries)
        path = self.path(TRANSACTION_INDEX_SUFFIX)
        if entries:
            data = b"".join(entry.encode() for entry in entries)
            publish(self._disk, *posixpath.split(path), data)
        else:
            remove_if_exists(self._disk, path)
        self._aborts_are_durable = True

    # --- sealing --------------------------------------------------------------------------------------

    def make_seal(self, end_offset: int, successor: int) -> None:
        """Write the seal: the segment, which is synced, ends at `end_offset`; `successor` is the next base.

        Synced but for its name, which the sync of the directory for the next segment's covers. Raises
        `OSError`, `CorruptIndex`.
        """
        aborts = b"".join(entry.encode() for entry in self.transaction_index.entries)
        seal = make_seal(
            self.log_file,
            self.size,
            base_offset=self.base_offset,
            end_offset=end_offset,
            successor=successor,
            aborts=aborts,
            offsets=read_small_file(self._disk, self.path(OffsetIndex.suffix)) or b"",
            times=read_small_file(self._disk, self.path(TimeIndex.suffix)) or b"",
        )
        self._write_seal(seal)

    def follow_with(self, successor: int) -> None:
        """Let the seal name another successor; a segment without one stays so. Raises `OSError`."""
        if self.seal is not None and self.seal.successor != successor:
            self._write_seal(self.seal._replace(successor=successor))

    def _write_seal(self, seal: Seal) -> None:
        # Before it is written: half written it is a file that has to go before a truncation.
        self.seal = seal
        write_seal(self._disk, self.path(SEAL_SUFFIX), seal)

    def unseal(self) -> None:
        """Remove the seal, durably: the segment is going to change. Raises `OSError`."""
        if self.seal is not None:
            remove_if_exists(self._disk, self.path(SEAL_SUFFIX))
            self._disk.sync_dir(self._directory)
            self.seal = None

    # --- appending ------------------------------------------------------------------------------------

    def append(self, data: Buffer, batches: Extents) -> int:
        """Write whole batches at the end; returns the position they start at.

        `batches` says what lies in `data`. Raises `OSError` with the segment as it was: what was
        written of a failed append is cut off again (and if that fails too, that error comes out).
        """
        with self._lock:
            # Before the batches, because all that can fail must fail while the segment is as it was.
            self.offset_index.write_behind()
            self.time_index.write_behind()
            position = self._write_at_end(data)
            if position == 0:
                self._first_timestamp_ms = max(timestamp_ms for _, _, timestamp_ms in batches)
            self._index(batches, position)
            self.size = position + len(data)
            return position

    @property
    def last_position_without_entry(self) -> int:
        """A batch that begins up to here is given no index entry."""
        return self._last_entry_position + self._config.index_interval_bytes

    def extend(self, data: bytes, last_offset: int, timestamp_ms: int) -> None:
        """`append` of one batch behind others, where that gives no index entry (`stretch.py`)."""
        with self._lock:
            position = self._write_at_end(data)
            if timestamp_ms > self.max_timestamp_ms:
                self._max_timestamp_ms, self._offset_of_max_timestamp = timestamp_ms, last_offset
            self.size = position + len(data)

    def _write_at_end(self, data: Buffer) -> int:
        """Write `data` behind what there is, all of it or nothing; the position it starts at."""
        position = self.size
        file = self._file or self.log_file
        try:
            file.pwrite(data, position)
        except OSError:
            file.truncate(position)
            raise
        return position

    def _index(self, batches: Extents, position: int) -> None:
        """Note the entries that these batches give: the rule of `index_rule.py`, a batch at a time."""
        interval = self._config.index_interval_bytes
        last_position = self._last_entry_position
        largest_ms, holder = self.max_timestamp_ms, self._offset_of_max_timestamp
        offsets: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        for size, last_offset, timestamp_ms in batches:
            if timestamp_ms > largest_ms:
                largest_ms, holder = timestamp_ms, last_offset
            if position - last_position > interval:
                offsets.append((last_offset, position))
                times.append((largest_ms, holder))
                last_position = position
            position += size
        self._last_entry_position = last_position
        self._max_timestamp_ms, self._offset_of_max_timestamp = largest_ms, holder
        if offsets:
            # A long append of many batches may fill an index on its way; the next append then rolls.
            self.offset_index.extend(offsets)
            self.time_index.extend(times)

    # --- reading ----------------------------------------------------------------------------------------

    def read(
        self, start_offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
    ) -> SegmentRead | None:
        """Whole batches from the one that holds `start_offset` (or the next after it) on.

        Stops before the first batch that begins at or past `end_offset` and before `max_bytes` are
        exceeded; with `at_least_one` the first batch is returned however large it is. None if the
        segment has nothing at or past `start_offset` below `end_offset`.
        """
        size = self.size
        file = self.log_file
        position = self._hints.get(start_offset)
        data = b""
        first: Located | None = None
        if position is not None:
            data = file.pread(min(max(max_bytes, HEADER_BYTES), max(size - position, 0)), position)
            first = _place(data, 0)
            if first is None or not first.base_offset <= start_offset <= first.last_offset:
                position = None
        if position is None:
            located = self.locate(start_offset)
            if located is None:
                return None
            position = located.position
            # Past the size that was read above, where a cut and appends came between.
            data = file.pread(min(max(max_bytes, HEADER_BYTES), max(size - position, 0)), position)
            first = located
        assert first is not None
        if first.base_offset >= end_offset:
            return None
        if first.size > max_bytes:
            if not at_least_one:
                return SegmentRead(b"", position, start_offset)
            data = file.pread(first.size, position)
        length, next_offset = _whole_batches(data, max(max_bytes, first.size), end_offset)
        if length == 0:  # truncated under us: nothing of it is left to read
            return None
        if len(self._hints) >= _POSITION_HINTS:
            self._hints.clear()
        self._hints[next_offset] = position + length
        return SegmentRead(data if length == len(data) else data[:length], position, next_offset)

    def is_cached(self, start_offset: int, max_bytes: int) -> bool | None:
        """Whether `read` will hardly wait for the device; None if nobody can tell.

        Looks at no batch: their headers may lie on the device as well.
        """
        position = self._hints.get(start_offset)
        if position is None:
            position = self.offset_index.lookup(start_offset).position
        length = min(max(max_bytes, HEADER_BYTES), self.size - position)
        return self.log_file.is_cached(length, position) if length > 0 else True

    def locate(self, offset: int) -> Located | None:
        """The first batch whose last offset is at or past `offset`; None if there is none."""
        for located in self._walk_from(offset):
            if located.last_offset >= offset:
                return located
        return None

    def end_before(self, offset: int) -> int:
        """The offset after the last batch that lies wholly below `offset`; the base offset if none does."""
        last = self.last_before(offset)
        return self.base_offset if last is None else last.last_offset + 1

    def last_before(self, offset: int) -> Located | None:
        """The last batch that lies wholly below `offset`; None if none does."""
        last = None
        for located in self._walk_from(offset - 1):
            if located.last_offset >= offset:
                break
            last = located
        return last

    def _walk_from(self, offset: int) -> Iterator[Located]:
        """Batches from the one at or before `offset` that the index knows."""
        floor = self.offset_index.lookup(offset)
        if not self._names_its_batch(floor):
            with self._lock:
                # Looked up again: a cut that came between is no fault of the index.
                floor = self.offset_index.lookup(offset)
                if not self._names_its_batch(floor):
                    self.rebuild_indexes()
                    floor = self.offset_index.lookup(offset)
        return self._walk(floor.position)

    def _names_its_batch(self, entry: OffsetPosition) -> bool:
        """Whether the batch that an index entry names is there: an index is never evidence."""
        if entry.position == 0:
            return True
        located = _place(self.log_file.pread(HEADER_BYTES, entry.position), entry.position)
        return (
            located is not None
            and self.base_offset <= located.base_offset <= entry.offset
            and located.position + located.size <= self.size
        )

    def _walk(self, position: int) -> Iterator[Located]:
        file, end = self.log_file, self.size
        span = self._config.index_interval_bytes + HEADER_BYTES
        while position < end:
            chunk = file.pread(min(span, end - position), position)
            start = 0
            while (located := _place(chunk, position + start, start)) is not None:
                if located.position + located.size > end:
                    return
                yield located
                start += located.size
            if start == 0:
                if position >= self.size:
                    return  # truncated under us
                raise CorruptBatch(
                    f"{self.path(LOG_SUFFIX)}: no batch at byte {position}; "
                    "verify the log and recover it, or fetch it from another replica"
                )
            position += start

    def read_batch(self, located: Located) -> Batch:
        """The batch there; `CorruptBatch` if its checksum is wrong."""
        batch = Batch(self.log_file.pread(located.size, located.position))
        batch.check_crc()
        return batch

    def find_timestamp(self, timestamp_ms: int, start_offset: int, end_offset: int) -> Batch | None:
        """The first batch with a record time at or past `timestamp_ms` at or past `start_offset`.

        Only batches below `end_offset` are looked at; the record itself is inside the batch.
        """
        floor = self.time_index.lookup(timestamp_ms - 1)
        # Up to the floor's offset no record is as late as the target.
        since = max(floor.offset + 1 if floor.timestamp_ms >= 0 else self.base_offset, start_offset)
        for located in self._walk_from(since):
            if located.base_offset >= end_offset:
                return None
            if located.last_offset < start_offset:
                continue
            header = self.log_file.pread(HEADER_BYTES, located.position)
            if _MAX_TIMESTAMP.unpack_from(header)[0] >= timestamp_ms:
                batch = self.read_batch(located)
                if any(
                    record.timestamp_ms >= timestamp_ms and record.offset >= start_offset
                    for record in batch.records()
                ):
                    return batch
        return None

    # --- changing ------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Cut the batch that holds `offset`, and all after it; returns the bytes cut.

        The whole batch goes, with its records below `offset`. Not yet durable: `sync` after it.
        """
        with self._lock:
            located = self.locate(offset)
            if located is None:
                return 0
            cut = self.size - located.position
            self.is_settled = False
            # Size first: a reader that starts now does not look at what is about to go.
            self.size = located.position
            self._hints.clear()
            offset_index, time_index = self.offset_index, self.time_index
            offset_index.truncate_to(offset)
            time_index.truncate_to(offset)
            self.log_file.truncate(located.position)
            if self.transaction_index.truncate_to(offset):
                self.replace_transaction_index(self.transaction_index.entries)
            self._last_entry_position = located.position
            if located.position == 0:
                self.created_ms = now_ms
                self._first_timestamp_ms = None
            self._recompute_max_timestamp()
            return cut

    def _recompute_max_timestamp(self) -> None:
        last = self.time_index.last
        self._max_timestamp_ms, self._offset_of_max_timestamp = last.timestamp_ms, last.offset
        start = self.offset_index.lookup(last.offset).position if last.timestamp_ms >= 0 else 0
        for scanned in scan(self.log_file, start, self.size, base_offset=self.base_offset):
            times, lasts = scanned.headers["max_timestamp"], scanned.last_offsets
            if len(times) and int(times.max()) > self._max_timestamp_ms:
                slot = int(times.argmax())
                self._max_timestamp_ms = int(times[slot])
                self._offset_of_max_timestamp = int(lasts[slot])

    def become_inactive(self) -> None:
        """Close the books: the last time entry is made, the files are cut to what they hold."""
        with self._lock:
            if self._is_preallocated and self.log_file.size() != self.size:
                self.log_file.truncate(self.size)
                self.was_trimmed = True
            self.time_index.maybe_append(self.max_timestamp_ms, self.offset_of_max_timestamp, is_last=True)
            self.offset_index.trim()
            self.time_index.trim()

    def sync_log(self) -> None:
        """Make the batches survive power loss. Raises `OSError`; never call it again after that."""
        # That zeros went is not data, but nobody would read a sealed segment again to find them.
        self.log_file.sync(data_only=not self.was_trimmed)
        self.was_trimmed = False

    def sync_indexes(self) -> None:
        """Make the indexes survive power loss: for a segment that recovery will not read again."""
        self.offset_index.sync()
        self.time_index.sync()
        if not self._aborts_are_durable:
            # Nothing would tell that this file is missing or short, so its name has to be durable too.
            file = self._disk.open(self.path(TRANSACTION_INDEX_SUFFIX), write=True)
            try:
                file.sync()
            finally:
                file.close()
            self._disk.sync_dir(self._directory)
            self._aborts_are_durable = True
        self.is_settled = True

    def close(self) -> None:
        """Write what is buffered, close the books and let go of the files."""
        if self._offset_index is not None and self._time_index is not None:
            self.become_inactive()
            self._offset_index.close()
            self._time_index.close()
        self.let_go()

    def rest(self) -> None:
        """Close the files of a segment that is durable and takes no more appends; who needs one opens it.

        Else a writer would hold five descriptors a segment.
        """
        with self._lock:
            self._forget_files()

    def let_go(self) -> None:
        """Forget the files without writing, for good: whatever needs one from now on raises `OSError`.

        A reader in the middle of one keeps it until it is done.
        """
        with self._lock:
            self._is_let_go = True
            self._forget_files()
            self._hints.clear()

    def _forget_files(self) -> None:
        self._file = None
        # Not only forgotten: a reader may hold one and be about to look something up in it, and the next
        # who opens the file may cut it. A read of a map past the end of its file kills the process.
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.let_go()
        self._offset_index = self._time_index = None

    def delete(self, *, log_goes_to: str | None = None) -> None:
        """Unlink every file of the segment, the log first; missing ones are fine.

        With `log_goes_to` the log is renamed to that path instead.
        """
        self.let_go()
        if log_goes_to is not None:
            self._disk.rename(self.path(LOG_SUFFIX), log_goes_to)
        for suffix in SEGMENT_SUFFIXES:
            remove_if_exists(self._disk, self.path(suffix))

    def set_aside(self) -> list[str]:
        """Rename every file of the segment to `.deleted`, the log first; returns where they are now.

        Whoever has one open goes on reading it. Durable once the directory is synced. Raises `OSError`.
        """
        self.let_go()
        aside = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            try:
                self._disk.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            aside.append(path + DELETED_SUFFIX)
        return aside


def _place(data: Buffer, position: int, start: int = 0) -> Located | None:
    """The extent of the batch at `data[start:]`; None if no header of one is there."""
    if len(data) - start < _PLACE.size or data[start + 16] != MAGIC:
        return None
    base_offset, length, leader_epoch, delta = _PLACE.unpack_from(data, start)
    if length < HEADER_BYTES - LOG_OVERHEAD or delta < 0:
        return None
    return Located(position, length + LOG_OVERHEAD, base_offset, base_offset + delta, leader_epoch)


def _whole_batches(data: Buffer, max_bytes: int, end_offset: int) -> tuple[int, int]:
    """How many bytes of `data` are whole batches below `end_offset`, and the offset after them."""
    unpack = _OFFSET_AND_LENGTH.unpack_from
    limit = min(len(data), max_bytes)
    position, last = 0, -1
    while position + HEADER_BYTES <= limit:
        base_offset, length = unpack(data, position)
        end = position + LOG_OVERHEAD + length
        if end > limit or base_offset >= end_offset or length <= 0:
            break
        last, position = position, end
    if last < 0:
        return 0, 0
    place = _place(data, last, last)
    assert place is not None, "walked over a header that is none"
    return position, place.last_offset + 1
