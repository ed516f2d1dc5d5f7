"""Read the log of another owner by the megabyte: stretches of batches, as stored.

    LogReader       one batch after the other             1 µs and more a batch
    StretchReader   some megabytes of them in an item     a checksum a batch, all else is numpy

The guarantees are the same: each batch is whole, its checksum is right, its offset and epoch are in order
with both neighbours', and wrong bytes were read twice. `skip_damage` continues behind damage, at the next
sound batch, and returns the skipped offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.config import MAX_LONG
from logstore.disk.files import Buffer, Disk, File
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MIN_LENGTH, NO_LEADER_EPOCH, Batch
from logstore.log.loading import offset_in
from logstore.log.reader import Hint, LogReader, Suspect, Walk
from logstore.segment.damage import batch_at, find_batch, sound_batch
from logstore.segment.scan import Fault, Scanned, check_history, last_offsets_of, order_faults, scan_buffer

STRETCH_BYTES: Final = 8 << 20
"""Spark's cost per stretch is small compared with the cost of this many bytes."""
_FIRST_BYTES: Final = 1 << 20
"""The first stretch of a walk, so that a read of a few records stays small; later ones double."""


class Stretch(NamedTuple):
    """Batches that lie end to end in one segment.

    `positions` are their first bytes in `data`, `headers` their fields (rows of `header_dtype()`). `data`
    begins at byte `position` of `file`; `base_offset` is the segment's.
    """

    file: str
    base_offset: int
    position: int
    data: memoryview
    positions: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]

    @classmethod
    def of(cls, data: Buffer, found: Scanned) -> Stretch:
        """Return the batches that a scan found in `data`, which is no file."""
        return cls("", 0, 0, memoryview(data)[: found.end], found.positions, found.headers)

    @property
    def next_offset(self) -> int:
        return int(self.headers["base_offset"][-1]) + int(self.headers["last_offset_delta"][-1]) + 1

    @property
    def last_offsets(self) -> npt.NDArray[np.int64]:
        """The last offset of each batch."""
        return last_offsets_of(self.headers)

    def batch(self, slot: int) -> Batch:
        return Batch(self.data, int(self.positions[slot]))

    def reaching(self, offset: int) -> Stretch:
        """Return the stretch without the batches that end below `offset`; at least one remains."""
        first = int((self.last_offsets >= offset).argmax())
        at = int(self.positions[first])
        return self._replace(
            position=self.position + at,
            data=self.data[at:],
            positions=self.positions[first:] - at,
            headers=self.headers[first:],
        )

    def _hint(self) -> Hint:
        at = int(self.positions[-1])
        header = bytes(self.data[at : at + HEADER_BYTES])
        return Hint(self.file, self.position + at, len(self.data) - at, self.next_offset, header)


class Skipped(NamedTuple):
    """Offsets [start_offset, end_offset) that were lost to damage, as far as known, and its fault."""

    start_offset: int
    end_offset: int
    fault: Fault


class StretchReader(LogReader):
    """A `LogReader` that yields `stretches`, each at most about `stretch_bytes` long or one batch."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start_offset: int | None = None,
        disk: Disk | None = None,
        stretch_bytes: int = STRETCH_BYTES,
    ) -> None:
        super().__init__(path, start_offset=start_offset, disk=disk)
        self._stretch_bytes = stretch_bytes
        self._behind: Hint | None = None
        """The first sound batch behind the last damage that was skipped."""

    def stretches(self) -> Iterator[Stretch]:
        """Yield many batches at a time; raises as `batches`."""
        return self._follow(self._stretches)

    def _stretches(self, name: str, base_offset: int, from_start: bool) -> Iterator[Stretch]:
        file = self._disk.open(f"{self.directory}/{name}")
        try:
            walk = _StretchWalk(file, name, base_offset, self._next_base, self._history)
            walk.newest_epoch = self._epoch_before(name)
            if from_start and self._behind is not None and self._behind.name == name:
                # The bytes before it are known to be damaged.
                self._hint = self._behind
                from_start = False
            if not from_start:
                self._place(walk, file, name, base_offset)
            for stretch in walk.stretches(self._stretch_bytes):
                self.log_end_offset = stretch.next_offset
                if stretch.next_offset > self.next_offset:
                    yield stretch.reaching(self.next_offset)
                    self.next_offset = stretch.next_offset
                    self._hint = stretch._hint()
                del stretch
            self.log_end_offset = walk.next_offset
            self.tail = None
        finally:
            file.close()

    def skip_damage(self) -> Skipped | None:
        """After `DamagedLog`: continue at the first sound batch behind the damage, or at the next segment.

        Returns None if nothing can be skipped. The next batch is at the end of the damaged one by its length
        field, if it is sound there. Otherwise bytes are searched for a batch that is followed by another one
        or by the end of the file, because a record's value may contain a batch. Raises `LogGone` or
        `LogDirOffline`.
        """
        damage, self._damage = self._damage, None
        if damage is None:
            return None
        names = self._list()
        own = offset_in(damage.name)
        assert own is not None, "a segment's file has its base offset for a name"
        segment_end = min((base for base in names if base > own), default=None)
        try:
            found = self._sound_batch(damage, segment_end)
        except FileNotFoundError:
            found = None
        except OSError as error:
            raise self.unreadable(error) from error
        if found is not None:
            position, header, next_offset = found
            self._hint = self._behind = Hint(damage.name, position, 0, next_offset, header)
        elif segment_end is None:
            return None
        else:
            next_offset = segment_end
        self.next_offset = max(self.next_offset, next_offset)
        return Skipped(damage.next_offset, next_offset, damage.fault)

    def _sound_batch(self, damage: Suspect, segment_end: int | None) -> tuple[int, bytes, int] | None:
        """Position, header and base offset of the first sound batch behind the damage."""
        file = self._disk.open(f"{self.directory}/{damage.name}")
        try:
            size = file.size()
            lowest = damage.next_offset
            bad = batch_at(file, damage.position, size)
            position: int | None = None if bad is None else damage.position + bad.size
            if position is None or sound_batch(file, position, size, lowest) is None:
                position = find_batch(file, damage.position, size, lowest_offset=lowest)
                while position is not None and not self._is_followed(file, position, size, lowest):
                    position = find_batch(file, position, size, lowest_offset=lowest)
            if position is None:
                return None
            batch = sound_batch(file, position, size, lowest)
            if batch is None or (segment_end is not None and batch.base_offset >= segment_end):
                return None
            return position, bytes(batch.buffer[:HEADER_BYTES]), batch.base_offset
        finally:
            file.close()

    @staticmethod
    def _is_followed(file: File, position: int, size: int, lowest: int) -> bool:
        batch = sound_batch(file, position, size, lowest)
        if batch is None:
            return False
        end = position + batch.size
        return end == size or sound_batch(file, end, size, batch.next_offset) is not None


class _StretchWalk(Walk):
    """`Walk` by stretches: the last batch of a chunk waits for its successor, in the next chunk."""

    def stretches(self, stretch_bytes: int) -> Iterator[Stretch]:
        """Raises `Suspect` where something else than a batch lies."""
        newest_epoch = self.newest_epoch
        size = self._file.size()
        wanted = usual = min(_FIRST_BYTES, stretch_bytes)
        while self.end < size:
            asked = min(max(wanted, self._size_at(self.end, size)), size - self.end)
            data = self._file.pread(asked, self.end)
            found = scan_buffer(data, len(data))
            count, odd = self._in_order(found, newest_epoch)
            # A short read means that the owner has cut the file meanwhile.
            is_whole = self.end + asked >= size or len(data) < asked
            if odd is None and count and found.fault in (None, Fault.TORN) and not is_whole:
                successor = self._size_at(self.end + found.end, size)
                if count == 1 and successor:
                    wanted = found.end + max(successor, HEADER_BYTES)
                    continue
                # Its successor, if there is one, is in the next chunk.
                count -= bool(successor)
            wanted = usual = min(2 * usual, stretch_bytes)
            if count:
                stretch = self._taken(data, found, count)
                newest_epoch = max(newest_epoch, int(stretch.headers["leader_epoch"].max()))
                self.next_offset, self.end = stretch.next_offset, self.end + len(stretch.data)
                yield stretch
                del stretch
            if odd is not None:
                raise self.suspect(self.end, size, found.headers[odd].tobytes())
            if found.fault not in (None, Fault.TORN) or count == 0 or (found.fault and is_whole):
                rest = memoryview(data)[found.end :]
                raise self.suspect(self.end, size, rest, found.fault or Fault.TORN)
            del data, found  # before the next read: it gets the same memory, whose pages are there

    def _size_at(self, position: int, size: int) -> int:
        """The size of the batch at `position` by its length field; 0 if the file does not hold it."""
        header = self._file.pread(LOG_OVERHEAD, position)
        length = int.from_bytes(header[8:12], "big", signed=True) if len(header) == LOG_OVERHEAD else 0
        return LOG_OVERHEAD + length if MIN_LENGTH <= length <= size - position - LOG_OVERHEAD else 0

    def _taken(self, data: Buffer, found: Scanned, count: int) -> Stretch:
        end = int(found.positions[count]) if count < len(found.positions) else found.end
        return Stretch(
            self._name,
            self._base_offset,
            self.end,
            memoryview(data)[:end],
            found.positions[:count],
            found.headers[:count],
        )

    def _in_order(self, found: Scanned, newest_epoch: int) -> tuple[int, int | None]:
        """The number of batches in order, and the slot of the first that is out of order."""
        count = len(found.headers)
        epochs = found.headers["leader_epoch"].astype(np.int64)
        faults = order_faults(found, self._base_offset, self.next_offset, newest_epoch)
        slot = faults._replace(epochs=faults.epochs & (epochs != NO_LEADER_EPOCH)).first()
        known = check_history(found, self._history, next_offset=0, durable_end=MAX_LONG, is_dense=False)
        leaps = found.last_offsets >= self._limit
        held = min(len(known.headers), int(leaps.argmax()) if leaps.any() else count)
        if held < (count if slot is None else slot):
            return held, held
        if slot is None:
            return count, None
        if slot:
            # A batch that fits its predecessor but not its successor is the wrong one of the three.
            before = slot - 1
            floor = int(found.last_offsets[before - 1]) + 1 if before else self.next_offset
            newest = max(newest_epoch, int(epochs[:before].max(initial=-1)))
            base, last = int(found.headers["base_offset"][slot]), int(found.last_offsets[slot])
            is_epoch_right = epochs[slot] == NO_LEADER_EPOCH or epochs[slot] >= newest
            if floor <= base <= last < self._limit and is_epoch_right:
                slot = before
        return slot, slot
