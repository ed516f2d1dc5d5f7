"""Read the directory of a log with another owner: a running broker, a dead one, another process.

    owner      appends ─ rolls ─ truncates ─ compacts ─ deletes
                  │        │         │            │         │
    directory  0.log   1000.log   2400.log     …  0.log.swap   0.log.deleted
                  │
    reader     lists, opens, reads; holds no lock, maps nothing, writes nothing

The owner does not know of the reader and may change any file between two of its calls. So the reader goes by
offsets. A position is a hint: it is checked against the batch there, and if it is wrong, the segment is
walked from its first byte, where a batch always begins. Each batch that is returned is whole and has the
right checksum. Bytes that look wrong are read again, from the start, until they look the same twice: a cut
or a swap in between is no damage.

    behind the last whole batch     being written, or torn by a crash: the end of the readable log
    a swap half done                a new segment is complete once its name ends in `.swap`: it is read
    offsets below the log start     `OffsetOutOfRange`: they were deleted
    read past the end               `OffsetOutOfRange`: the log was cut below the reader's offset
    a bad batch, good ones behind   `DamagedLog`
    no such directory               `LogGone`

A follower waits at the end until the operating system tells of a change (`watching.py`). The owner enters
each cut in its ledger before it cuts. So a follower that finds the entry raises `OffsetOutOfRange`, also if
other records have taken the offsets. Kafka's brokers keep no ledger: there, only a cut that the follower
finds before the next append is noticed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from logstore.arguments import Path, as_directory, as_offset
from logstore.checkpoint.entry_files import (
    LOG_START_OFFSET_CHECKPOINT,
    checkpointed_offset,
    read_leader_epoch_checkpoint,
)
from logstore.config import MAX_LONG
from logstore.disk.copying import is_there
from logstore.disk.errors import CorruptCheckpoint, is_shortage
from logstore.disk.files import LOCK_FILE, Buffer, Disk, File, as_disk, read_small_file
from logstore.disk.topic_partition import partitions_among
from logstore.disk.watching import watcher
from logstore.errors import DamagedLog, LogDirOffline, LogGone, LogTruncated, OffsetOutOfRange
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MIN_LENGTH, NO_LEADER_EPOCH, Batch
from logstore.format.record import Record
from logstore.log.following import Follower, about
from logstore.log.loading import offset_in
from logstore.log.losses import cuts_since
from logstore.log.tails import only_zeros
from logstore.log.waiters import Unwatch, Waiter
from logstore.segment.damage import Verdict, find_batch, judge, sound_batch
from logstore.segment.epochs import EpochEntry, is_of_its_epoch
from logstore.segment.indexes import OffsetIndex
from logstore.segment.scan import Fault, scan_buffer
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.segment.swap import SWAP_SUFFIX

CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = Struct(">8xi")
_ATTEMPTS: Final = 1000
"""The most looks at a directory without a new batch."""
_Names: TypeAlias = dict[int, tuple[str, ...]]
"""Base offset → the segment's `.log` files, ascending; a `.swap` file comes second."""
_SWAPPED_LOG: Final = LOG_SUFFIX + SWAP_SUFFIX
_Unit = TypeVar("_Unit")
"""The unit of reading: a batch, or a stretch of batches (`stretches.py`)."""


class Tail(NamedTuple):
    """The bytes behind the last whole batch: `size` bytes at byte `position` of `file`."""

    file: str
    position: int
    size: int
    fault: Fault


class Hint(NamedTuple):
    """The batch that was returned last: its place and its header."""

    name: str
    position: int
    size: int
    next_offset: int
    header: bytes


class Suspect(Exception):
    """Bytes that are no batch where one should begin; `size` of them to the end of the file.

    `data` holds the first of them, `next_offset` is the lowest base offset of a batch there.
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


def has_owner(disk: Disk, directory: str) -> bool:
    """Return whether a program has, or had, this partition's directory open: then a lock file is there.

    Without one it is a copy, which nobody changes while it is read.
    """
    for place in (directory, os.path.abspath(directory).rpartition("/")[0]):
        with suppress(OSError):
            if is_there(disk, f"{place}/{LOCK_FILE}"):  # without a list of all partitions beside this one
                return True
    return False


class LogReader:
    """Reads the batches of a partition's directory in order; each call returns the new ones.

    `next_offset` is the offset of the next read. `log_start_offset` and `log_end_offset` are the bounds as
    last seen, -1 at first; `tail` describes the bytes behind the last whole batch, None for none. For one
    thread. Raises `LogGone` if there is no such directory, `LogDirOffline` if it cannot be read.
    """

    def __init__(self, path: Path, *, start_offset: int | None = None, disk: Disk | None = None) -> None:
        """Read from `start_offset` (default: the log start at the time of the first call)."""
        self.directory = as_directory(path)
        self._disk = as_disk(disk)
        self.next_offset = -1 if start_offset is None else as_offset(start_offset)
        self.log_start_offset = -1
        self.log_end_offset = -1
        self.tail: Tail | None = None
        self.last_name = ""
        self._hint: Hint | None = None
        self._next_base = MAX_LONG
        """Base offset of the segment behind the one that is read."""
        self._damage: Suspect | None = None
        self._history: Sequence[EpochEntry] = ()
        """The log's epochs, if it is a copy: an owner may change log and epochs one after the other."""
        self._is_history_judged = False
        self._ledger_end, self._cut_at = -1, MAX_LONG
        """Up to where `records` has read the loss ledger (-1: it has not begun), and the lowest cut since."""
        if not self._list():
            self._refuse_log_dir()
        self._is_copy = not has_owner(self._disk, self.directory)
        if self._is_copy:
            with suppress(CorruptCheckpoint):
                entries = read_leader_epoch_checkpoint(self._disk, self.directory)
                self._history = [EpochEntry(*entry) for entry in entries]

    def __repr__(self) -> str:
        return f"LogReader({self.directory!r}, next_offset={self.next_offset})"

    # --- reading ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Yield whole batches that end at or past `next_offset`, to the current end of the log.

        The first may begin below it. `next_offset` moves when the next batch is requested. Raises
        `OffsetOutOfRange` (`seek` to one of its bounds to continue), `DamagedLog`, `LogGone` or
        `LogDirOffline`.
        """
        return self._follow(self._segment)

    def _follow(self, read: Callable[[str, int, bool], Iterator[_Unit]]) -> Iterator[_Unit]:
        """Read one segment after the other with `read`, from `next_offset` on."""
        suspect: Suspect | None = None
        listed: _Names = {}
        seen: _Names = {}
        skipped = attempts = 0
        while attempts < _ATTEMPTS:
            attempts += 1
            # The last list serves while a segment of it follows: one that the owner removes cannot be opened.
            names, listed = listed, {}
            if not names or next(reversed(names)) <= self.next_offset:
                names = self._list()
                if not names:
                    return  # the owner starts anew, above or below
                if any(len(each) > 1 or each[0].endswith(SWAP_SUFFIX) for each in names.values()):
                    self._is_copy = False  # a rewrite is under way, or was: no rule for settled files holds
            if not self._settle_start(names):
                continue
            # A segment without (more) batches is skipped only if the directory looked the same twice.
            skipped = skipped + 1 if names == seen else 0
            seen = names
            bases = list(names)
            slot = max(bisect_right(bases, self.next_offset) - 1, 0) + skipped
            is_last = slot >= len(bases) - 1
            base_offset = bases[min(slot, len(bases) - 1)]
            before = self.next_offset
            try:
                # A half-done swap: the new segment holds what old ones hold, too.
                is_swapped = len(names[base_offset]) > 1 or names[base_offset][0].endswith(SWAP_SUFFIX)
                self._next_base = MAX_LONG if is_last or is_swapped or not self._is_copy else bases[slot + 1]
                for name in names[base_offset]:
                    yield from read(name, base_offset, suspect is not None)
                    if self.next_offset != before:
                        break
            except FileNotFoundError:
                seen = {}  # it was removed or renamed since it was listed
                continue
            except Suspect as found:
                seen = {}
                if self._mends_history():
                    continue
                # In a complete segment of a copy it stays, even if the next segment has all that follows.
                is_final = self._is_copy and not is_last
                if not is_final and not self._is_known_tail(found) and not found.is_the_same_as(suspect):
                    suspect = found
                    continue
                self._judge(found, is_last)
                return
            except OSError as error:
                raise self.unreadable(error) from error
            if self.next_offset != before:
                # Not before: segments without more batches may lie between two looks at the same bytes.
                suspect, seen, attempts = None, {}, 0
                listed = names
            elif is_last:
                # While a log restarts at its new start, older segments may be the last ones.
                end_offset = max(self.log_end_offset, self.log_start_offset)
                if self.next_offset > end_offset:
                    raise OffsetOutOfRange(self.next_offset, self.log_start_offset, end_offset)
                return
        raise DamagedLog(
            f"{self.directory} at offset {self.next_offset}: it changes faster than it can be read; try again"
        )

    def records(self) -> Iterator[Record]:
        """Yield the records at or past `next_offset`, to the current end of the log, without control records.

        `next_offset` follows each record. Records of aborted transactions are included. Raises as `batches`;
        `LogTruncated`, at the beginning or the end, until `seek`, if records that were returned were cut;
        and `InvalidRecord` or `UnsupportedCompression` for unreadable records.
        """
        self._check_cuts()
        for batch in self.batches():
            if not batch.is_control:
                first = self.next_offset
                for record in batch.records():
                    if record.offset >= first:
                        self.next_offset = record.offset + 1
                        yield record
        # After the bytes: if they are newer than a cut, its entry is there.
        self._check_cuts()

    def _check_cuts(self) -> None:
        """Raise `LogTruncated` if records below `next_offset` were cut since the first call."""
        try:
            cuts, end = cuts_since(self._disk, self.directory, max(self._ledger_end, 0))
        except OSError as error:
            raise self.unreadable(error) from error
        if self._ledger_end >= 0:
            self._cut_at = min([self._cut_at, *cuts])
        self._ledger_end = end
        if self._cut_at < self.next_offset:
            raise LogTruncated(self.next_offset, self.log_start_offset, self._cut_at)
        self._cut_at = MAX_LONG

    def follow(self, offset: int | None = None, timeout: float | None = None) -> Follower:
        """Yield the records from `offset` on (default: `next_offset`), and wait for more at the end.

        Ends after `timeout` seconds without a record; None waits for ever. On Linux an append of the owner
        wakes the follower; elsewhere, and on network file systems, it looks every 50 ms. Sees complete,
        checked batches only, of which a power cut or a truncation may still take some. Raises as `records`;
        `OffsetOutOfRange` also if the owner has removed records that were returned. Do not use the reader
        otherwise meanwhile.
        """
        followed = _FollowedDirectory(self, self._disk)
        first = self.next_offset if offset is None else as_offset(offset)
        return Follower(followed.batches, followed.watch, lambda: self.log_start_offset, first, timeout)

    def seek(self, offset: int) -> None:
        """Continue at `offset`; -1 is the log start."""
        self.next_offset = as_offset(offset)
        self._cut_at = MAX_LONG

    # --- the directory ----------------------------------------------------------------------------

    def _list(self) -> _Names:
        try:
            entries = self._disk.scan(self.directory)
        except FileNotFoundError as error:
            raise LogGone(
                f"{self.directory} does not exist: it was deleted, moved, or never created"
            ) from error
        except NotADirectoryError as error:
            raise LogGone(
                f"{self.directory} is not a directory; name the directory of a log, such as data/orders-0"
            ) from error
        except OSError as error:
            raise self.unreadable(error) from error
        names: _Names = {}
        for entry in entries:
            if not entry.is_directory and entry.name.endswith((LOG_SUFFIX, _SWAPPED_LOG)):
                base_offset = offset_in(entry.name)
                if base_offset is not None:  # in order of name, the one without `.swap` comes first
                    names[base_offset] = (*names.get(base_offset, ()), entry.name)
        ordered = dict(sorted(names.items()))
        self.last_name = next(reversed(ordered.values()))[0] if ordered else ""
        return ordered

    def _refuse_log_dir(self) -> None:
        """Raise `LogGone` for a directory without segments that holds partitions: it would read as empty."""
        names = [entry.name for entry in self._disk.scan(self.directory) if entry.is_directory]
        for _, name in partitions_among(names):
            raise LogGone(
                f"{self.directory} is not a log; it holds several: name one, such as {self.directory}/{name}"
            )

    def unreadable(self, error: OSError) -> LogDirOffline:
        """Return the error for a directory that the disk does not let us read."""
        advice = "Check the disk and its permissions"
        if is_shortage(error):
            advice = "Raise the limits of the process (ulimit -n)"
        return LogDirOffline(f"{self.directory} cannot be read: {error}. {advice}")

    def _settle_start(self, names: _Names) -> bool:
        """Set the log start; return False if the directory changes meanwhile and must be listed again."""
        published = checkpointed_offset(self._disk, self.directory, LOG_START_OFFSET_CHECKPOINT)
        start = max(next(iter(names)), published)
        if self.next_offset == -1:
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
        """Yield its batches from `next_offset` on; with `from_start` the bytes before are walked, too."""
        file = self._disk.open(f"{self.directory}/{name}")
        try:
            walk = Walk(file, name, base_offset, self._next_base, self._history)
            walk.newest_epoch = self._epoch_before(name)
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

    def _epoch_before(self, name: str) -> int:
        """Return the leader epoch below which a copy's segment must not fall; -1 if it is unknown."""
        hint = self._hint
        if not self._is_copy or hint is None or hint.name >= name or hint.next_offset != self.next_offset:
            return -1
        return int.from_bytes(hint.header[12:16], "big", signed=True)

    def _place(self, walk: Walk, file: File, name: str, base_offset: int) -> None:
        """Start `walk` behind the first byte, where a position can be trusted."""
        hint = self._hint
        if hint is not None and (hint.name != name or hint.next_offset > self.next_offset):
            hint = None
        if hint is not None and file.pread(HEADER_BYTES, hint.position) == hint.header:
            # The batch that was read last is still there, so the next one begins at its end.
            walk.end, walk.next_offset = hint.position + hint.size, hint.next_offset
            return
        if self.next_offset > base_offset:
            path = f"{self.directory}/{file_name(base_offset, OffsetIndex.suffix)}"
            data = read_small_file(self._disk, path) or b""
            position = OffsetIndex.position_in(data, self.next_offset - base_offset)
            if position > 0 and self._holds_a_batch(file, position, base_offset):
                walk.end = position

    def _holds_a_batch(self, file: File, position: int, base_offset: int) -> bool:
        """Tell whether a sound batch is at `position` and does not begin past `next_offset`."""
        batch = sound_batch(file, position, file.size())
        return batch is not None and base_offset <= batch.base_offset <= self.next_offset

    def _is_known_tail(self, found: Suspect) -> bool:
        tail = self.tail
        return tail is not None and (tail.file, tail.position, tail.size) == (
            found.name,
            found.position,
            found.size,
        )

    def _mends_history(self) -> bool:
        """Whether the epoch file of a copy was wrong, and not the batch; asked once."""
        if not self._is_copy or self._is_history_judged or not self._history:
            return False
        from logstore.log.epoch_check import judged_history

        self._is_history_judged = True
        try:
            former, (self._history, _) = self._history, judged_history(self._disk, self.directory)
        except OSError as error:
            raise self.unreadable(error) from error
        return list(self._history) != list(former)

    def _judge(self, found: Suspect, is_last: bool) -> None:
        """Set the end of the log if nothing sound follows. Raises `DamagedLog` otherwise."""
        if self._is_known_tail(found):
            return
        path = f"{self.directory}/{found.name}"
        try:
            file = self._disk.open(path)
            try:
                # Not from `next_offset` on: the batch that holds it may begin below it.
                behind = find_batch(file, found.position, file.size(), lowest_offset=found.next_offset)
                if found.fault is Fault.SIZE and only_zeros(
                    file, found.position, found.position + found.size
                ):
                    found.fault = Fault.ZEROS
            finally:
                file.close()
        except OSError as error:
            raise self.unreadable(error) from error
        is_end = is_last and behind is None
        if judge(found.fault, is_end=is_end, below_durable=False) is Verdict.DAMAGE:
            self._damage = found
            raise DamagedLog(
                f"{path} at byte {found.position} (offset {self.next_offset}): {found.fault.value}, and more "
                "of the log lies behind it. Another replica may have it whole"
            )
        self.tail = Tail(found.name, found.position, found.size, found.fault)


class _FollowedDirectory:
    """A directory as its follower sees it."""

    def __init__(self, reader: LogReader, disk: Disk) -> None:
        self._reader, self._disk = reader, disk
        self._follower: Waiter | None = None
        self._ledger_end = self._cuts(0)[1]

    def batches(self, offset: int) -> Iterator[Batch]:
        reader = self._reader
        reader.seek(offset)
        batches = reader.batches()
        while True:
            try:
                some = about(batches, CHUNK_BYTES)
            except OffsetOutOfRange:
                if self._hears_of_cuts():
                    return
                raise
            # After the bytes: if they are newer than a cut, its entry is there.
            self._hears_of_cuts()
            if not some:
                return
            yield from some

    def _hears_of_cuts(self) -> bool:
        cuts, self._ledger_end = self._cuts(self._ledger_end)
        for offset in cuts:
            assert self._follower is not None, "a follower watches before it reads"
            self._follower.truncated(offset)
        return bool(cuts)

    def watch(self, waiter: Waiter) -> Unwatch:
        self._follower, watching, reader = waiter, watcher(), self._reader
        return partial(watching.remove, watching.add(reader.directory, lambda: reader.last_name, waiter.wake))

    def _cuts(self, position: int) -> tuple[list[int], int]:
        try:
            return cuts_since(self._disk, self._reader.directory, position)
        except OSError as error:
            raise self._reader.unreadable(error) from error


class Walk:
    """Walks the batches of an open `.log`, from byte `end` on (at first 0); `end` follows the last batch.

    Offset and epoch of a batch lie outside its checksum. So each is yielded only when the next one follows
    it. A batch that fits its predecessor but not its successor is the wrong one of the three.
    """

    def __init__(
        self, file: File, name: str, base_offset: int, next_base: int, history: Sequence[EpochEntry] = ()
    ) -> None:
        """`next_base`: that of the next segment; `history`: the epochs of its batches, empty if unknown."""
        self._file = file
        self._name = name
        self._base_offset = base_offset
        self._history = history
        self._limit = min(base_offset + (1 << 31), next_base)
        self.newest_epoch = -1
        """That of the batches before the first one."""
        self.end = 0
        self.next_offset = base_offset

    def __iter__(self) -> Iterator[Batch]:
        """Raise `Suspect` at bytes that are no batch."""
        newest_epoch = self.newest_epoch
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
                # Torn: it is not whole although as many bytes as its length says were read.
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
        """Return the error for `data` at `position`, no batch that can follow; `size` is the file's."""
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
        is_known = fits and is_of_its_epoch(batch.base_offset, batch.leader_epoch, self._history)
        return is_known and (batch.leader_epoch == NO_LEADER_EPOCH or batch.leader_epoch >= newest_epoch)
