"""Reading the directory of a log that somebody else owns: a running broker, a dead one, another process.

    owner      appends ─ rolls ─ truncates ─ compacts ─ deletes
                  │        │         │            │         │
    directory  0.log   1000.log   2400.log     …  0.log.swap   0.log.deleted
                  │
    reader     lists, opens, reads; holds no lock, maps nothing, writes nothing, believes nothing

The owner does not know of the reader and may change any file between two of its calls. So the reader goes
by offsets, not by positions: a position is a hint, checked against the batch that lies there, and when it
misleads, the segment is walked from its first byte, where a batch begins in any case. Each batch that is
given out is whole and its checksum right. What looks wrong is read anew, from the start, until it has
looked the same twice: a cut or a swap that came between is no damage.

    behind the last whole batch     being written, or torn by a crash: the end of what there is to read
    a swap half done                the new segment is complete once its name ends in `.swap`: it counts
    offsets below the log start     `OffsetOutOfRange`: they were deleted
    read past what is there now     `OffsetOutOfRange`: the log was cut below what had been read
    a bad batch, good ones behind   `DamagedLog`
    no such directory               `LogGone`
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from logstore.checkpoint.entry_files import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint
from logstore.disk.errors import CorruptCheckpoint, InvalidTopic
from logstore.disk.files import Buffer, Disk, File, OsDisk, read_small_file
from logstore.disk.topic_partition import parse_directory_name
from logstore.errors import DamagedLog, LogDirOffline, LogGone, OffsetOutOfRange
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MIN_LENGTH, Batch
from logstore.format.record import Record
from logstore.log.recovery import offset_in
from logstore.segment.damage import Verdict, find_batch, judge, sound_batch
from logstore.segment.indexes import OffsetIndex
from logstore.segment.scan import Fault, scan_buffer
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.segment.swap import SWAP_SUFFIX

CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = Struct(">8xi")
_ATTEMPTS: Final = 1000
_Names: TypeAlias = dict[int, tuple[str, ...]]
"""Base offset → the `.log` files that hold the segment, ascending; one not yet renamed comes second."""
_SWAPPED_LOG: Final = LOG_SUFFIX + SWAP_SUFFIX
_Unit = TypeVar("_Unit")
"""What is given out at a time: a batch, or a stretch of them (`stretches.py`)."""


class Tail(NamedTuple):
    """What lies behind the last whole batch: `size` bytes at byte `position` of `file`, and what they are."""

    file: str
    position: int
    size: int
    fault: Fault


class Hint(NamedTuple):
    """The batch that was given out last: where it lies, and its header."""

    name: str
    position: int
    size: int
    next_offset: int
    header: bytes


class Suspect(Exception):
    """Something that is no batch, where one should begin, with `size` bytes to the end of the file.

    `data` holds the first of them, `next_offset` is what a batch there could begin with.
    """

    def __init__(
        self, name: str, position: int, size: int, data: bytes, fault: Fault, next_offset: int
    ) -> None:
        super().__init__(name, position)
        self.name, self.position, self.size, self.data, self.fault = name, position, size, data, fault
        self.next_offset = next_offset

    def is_the_same_as(self, other: Suspect | None) -> bool:
        return other is not None and (self.name, self.position, self.data) == (
            other.name,
            other.position,
            other.data,
        )


def checkpointed_offset(disk: Disk, directory: str, checkpoint: str) -> int:
    """What the `checkpoint` file of its log dir says of the partition in `directory`; 0 if it says nothing.

    A log that stands alone keeps its checkpoints in its own directory. A hint: a file that cannot be
    read hides nothing.
    """
    parent, _, name = os.path.abspath(directory).rpartition("/")
    try:
        partition = parse_directory_name(name)
    except InvalidTopic:
        return 0
    known = 0
    for place in (parent, directory):
        try:
            offsets = read_offset_checkpoint(disk, place, checkpoint)
        except (CorruptCheckpoint, OSError):
            continue
        known = max(known, offsets.get(partition, 0))
    return known


class LogReader:
    """The batches of a partition's directory in order; each call gives what has come since the last.

    `next_offset` is where it goes on. `log_start_offset` and `log_end_offset` are the bounds as last seen,
    -1 before anything was; `tail` tells what lay behind the last whole batch, None for nothing. For one
    thread. Raises `LogGone` if there is no such directory, `LogDirOffline` if it cannot be read.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, start_offset: int | None = None, disk: Disk | None = None
    ) -> None:
        """Read from `start_offset` (default: the log start, wherever it is at the first call)."""
        self.directory = os.fspath(path).rstrip("/") or "/"
        self._disk = disk or OsDisk()
        self.next_offset = -1 if start_offset is None else start_offset
        self.log_start_offset = -1
        self.log_end_offset = -1
        self.tail: Tail | None = None
        self._hint: Hint | None = None
        self._damage: Suspect | None = None
        self._list()

    def __repr__(self) -> str:
        return f"LogReader({self.directory!r}, next_offset={self.next_offset})"

    # --- reading ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Whole batches that end at or past `next_offset`, to the end as it is when reached.

        The first may begin below it. `next_offset` moves when the next one is asked for. Raises
        `OffsetOutOfRange` (`seek` to one of its bounds to go on), `DamagedLog`, `LogGone` or
        `LogDirOffline`.
        """
        return self._follow(self._segment)

    def _follow(self, read: Callable[[str, int, bool], Iterator[_Unit]]) -> Iterator[_Unit]:
        """What `read` gives of one segment after the other, from `next_offset` on."""
        suspect: Suspect | None = None
        seen: _Names = {}
        skipped = 0
        for _ in range(_ATTEMPTS):
            names = self._list()
            if not names:
                return  # an owner that starts anew, above or below
            if not self._settle_start(names):
                continue
            # A segment that has nothing (more) is passed over only if the directory looked the same twice.
            skipped = skipped + 1 if names == seen else 0
            seen = names
            bases = list(names)
            slot = max(bisect_right(bases, self.next_offset) - 1, 0) + skipped
            is_last = slot >= len(bases) - 1
            base_offset = bases[min(slot, len(bases) - 1)]
            before = self.next_offset
            try:
                for name in names[base_offset]:
                    yield from read(name, base_offset, suspect is not None)
                    if self.next_offset != before:
                        break
            except FileNotFoundError:
                seen = {}  # it went, or got its final name, since it was listed
                continue
            except Suspect as found:
                seen = {}
                if not self._is_known_tail(found) and not found.is_the_same_as(suspect):
                    suspect = found
                    continue
                self._judge(found, is_last)
                return
            except OSError as error:
                raise self._unreadable(error) from error
            suspect = None
            if self.next_offset != before:
                seen = {}
            elif is_last:
                if self.next_offset > self.log_end_offset:
                    raise OffsetOutOfRange(self.next_offset, self.log_start_offset, self.log_end_offset)
                return
        raise DamagedLog(
            f"{self.directory} at offset {self.next_offset}: it changes faster than it can be read; try again"
        )

    def records(self) -> Iterator[Record]:
        """The records at or past `next_offset`, to the end as it is when reached; no control records.

        Records of aborted transactions are among them. Raises as `batches`, and `InvalidRecord` or
        `UnsupportedCompression` for a batch whose records cannot be read.
        """
        for batch in self.batches():
            if not batch.is_control:
                first = self.next_offset
                if batch.base_offset >= first:
                    yield from batch.records()
                else:
                    yield from (record for record in batch.records() if record.offset >= first)

    def seek(self, offset: int) -> None:
        """Go on at `offset`; -1 is the log start."""
        self.next_offset = offset

    # --- the directory ----------------------------------------------------------------------------

    def _list(self) -> _Names:
        try:
            entries = self._disk.scan(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogGone(f"{self.directory} is not there: deleted, moved, or never made") from error
        except OSError as error:
            raise self._unreadable(error) from error
        names: _Names = {}
        for entry in entries:
            if not entry.is_directory and entry.name.endswith((LOG_SUFFIX, _SWAPPED_LOG)):
                base_offset = offset_in(entry.name)
                if base_offset is not None:  # in order of name, the one without `.swap` comes first
                    names[base_offset] = (*names.get(base_offset, ()), entry.name)
        return dict(sorted(names.items()))

    def _unreadable(self, error: OSError) -> LogDirOffline:
        return LogDirOffline(f"{self.directory} cannot be read: {error}. Check the disk and its permissions")

    def _settle_start(self, names: _Names) -> bool:
        """Note where the log starts; False if the directory changes meanwhile and is to be listed anew."""
        published = checkpointed_offset(self._disk, self.directory, LOG_START_OFFSET_CHECKPOINT)
        start = max(next(iter(names)), published)
        if self.next_offset < 0:
            self.next_offset = start
        if self.next_offset < start:
            if self._list() != names:
                return False
            self.log_start_offset = start
            raise OffsetOutOfRange(self.next_offset, start, max(self.log_end_offset, start))
        self.log_start_offset = start
        return True

    # --- one segment ------------------------------------------------------------------------------

    def _segment(self, name: str, base_offset: int, from_start: bool) -> Iterator[Batch]:
        """Its batches from `next_offset` on; the bytes before are walked too if `from_start`."""
        file = self._disk.open(f"{self.directory}/{name}")
        try:
            walk = Walk(file, name, base_offset)
            if not from_start:
                self._place(walk, file, name, base_offset)
            for batch in walk:
                self.log_end_offset = batch.next_offset
                if batch.last_offset >= self.next_offset:
                    yield batch
                    self.next_offset = batch.next_offset
                    header = bytes(batch.buffer[:HEADER_BYTES])
                    self._hint = Hint(name, walk.end - batch.size, batch.size, batch.next_offset, header)
            self.log_end_offset = walk.next_offset
            self.tail = None
        finally:
            file.close()

    def _place(self, walk: Walk, file: File, name: str, base_offset: int) -> None:
        """Let `walk` begin later than at the first byte, where that can be trusted."""
        hint = self._hint
        if hint is not None and (hint.name != name or hint.next_offset > self.next_offset):
            hint = None
        if hint is not None and file.pread(HEADER_BYTES, hint.position) == hint.header:
            # The batch that was read last still lies there: so what follows it begins where it ends.
            walk.end, walk.next_offset = hint.position + hint.size, hint.next_offset
            return
        if self.next_offset > base_offset:
            path = f"{self.directory}/{file_name(base_offset, OffsetIndex.suffix)}"
            data = read_small_file(self._disk, path) or b""
            position = OffsetIndex.position_in(data, self.next_offset - base_offset)
            if position > 0 and self._holds_a_batch(file, position, base_offset):
                walk.end = position

    def _holds_a_batch(self, file: File, position: int, base_offset: int) -> bool:
        """Whether a sound batch lies at `position` that does not begin past `next_offset`."""
        batch = sound_batch(file, position, file.size())
        return batch is not None and base_offset <= batch.base_offset <= self.next_offset

    def _is_known_tail(self, found: Suspect) -> bool:
        tail = self.tail
        return tail is not None and (tail.file, tail.position, tail.size) == (
            found.name,
            found.position,
            found.size,
        )

    def _judge(self, found: Suspect, is_last: bool) -> None:
        """Note the end of the log if nothing lies behind what is no batch; else `DamagedLog`."""
        if self._is_known_tail(found):
            return
        path = f"{self.directory}/{found.name}"
        try:
            file = self._disk.open(path)
            try:
                # Not from `next_offset` on: the batch that holds it may begin below it.
                behind = find_batch(file, found.position, file.size(), lowest_offset=found.next_offset)
            finally:
                file.close()
        except OSError as error:
            raise self._unreadable(error) from error
        is_end = is_last and behind is None
        if judge(found.fault, is_end=is_end, below_durable=False) is Verdict.DAMAGE:
            self._damage = found
            raise DamagedLog(
                f"{path} at byte {found.position} (offset {self.next_offset}): {found.fault.value}, and more "
                "of the log lies behind it. Another replica may have it whole"
            )
        self.tail = Tail(found.name, found.position, found.size, found.fault)


class Walk:
    """The batches of an open `.log`, from its first byte or wherever `end` is set; `end` follows the last.

    Offset and epoch of a batch lie outside its checksum. So each is given out only when the next one
    follows it; one that fits its predecessor but not its successor is the odd one of the three.
    """

    def __init__(self, file: File, name: str, base_offset: int) -> None:
        self._file = file
        self._name = name
        self._base_offset = base_offset
        self._limit = base_offset + (1 << 31)
        self.end = 0
        self.next_offset = base_offset

    def __iter__(self) -> Iterator[Batch]:
        """Raises `Suspect` where something else than a batch lies."""
        newest_epoch = -1
        pending: Batch | None = None
        at_end: Suspect | None = None
        size = self._file.size()
        read_to = self.end
        while read_to < size and at_end is None:
            data = self._read(read_to, size)
            found = scan_buffer(data, len(data))
            for position in found.positions.tolist():
                batch = Batch(data, position)
                if pending is not None:
                    if self._follows(batch, pending.next_offset, max(newest_epoch, pending.leader_epoch)):
                        newest_epoch = self._pass(pending, newest_epoch)
                        yield pending
                        pending = None
                    elif self._follows(batch, self.next_offset, newest_epoch):
                        raise self.suspect(self.end, size, pending.buffer)
                    else:
                        self._pass(pending, newest_epoch)
                        yield pending
                        raise self.suspect(self.end, size, batch.buffer)
                elif not self._follows(batch, self.next_offset, newest_epoch):
                    raise self.suspect(self.end, size, batch.buffer)
                pending = batch
            read_to += found.end
            if found.fault not in (None, Fault.TORN) or found.end == 0:
                # Torn at its very beginning: it is not whole although as many bytes as it has were read.
                rest = data[found.end :][:HEADER_BYTES]
                at_end = self.suspect(read_to, size, rest, found.fault or Fault.TORN)
        if pending is not None:
            self._pass(pending, newest_epoch)
            yield pending
        if at_end is not None:
            at_end.next_offset = self.next_offset
            raise at_end

    def _pass(self, batch: Batch, newest_epoch: int) -> int:
        self.next_offset, self.end = batch.next_offset, self.end + batch.size
        return max(newest_epoch, batch.leader_epoch)

    def suspect(self, position: int, size: int, data: Buffer, fault: Fault = Fault.OFFSETS) -> Suspect:
        """What lies at `position`, with `data`, is no batch that can follow; `size` is the file's."""
        first = bytes(data[:HEADER_BYTES])
        return Suspect(self._name, position, size - position, first, fault, self.next_offset)

    def _read(self, position: int, size: int) -> bytes:
        """A chunk, or the batch that begins there if it is larger and the file holds it."""
        header = self._file.pread(LOG_OVERHEAD, position)
        length = _LENGTH.unpack(header)[0] if len(header) == LOG_OVERHEAD else 0
        whole = LOG_OVERHEAD + length if MIN_LENGTH <= length <= size - position - LOG_OVERHEAD else 0
        return self._file.pread(min(max(CHUNK_BYTES, whole), size - position), position)

    def _follows(self, batch: Batch, next_offset: int, newest_epoch: int) -> bool:
        fits = next_offset <= batch.base_offset <= batch.last_offset < self._limit
        return fits and not 0 <= batch.leader_epoch < newest_epoch
