"""The segments of one log in order, and the lookup of offsets and times in them.

    bases      0     1000    2400    3100
    segments   ■──────■───────■───────■       the last one is active
               floor(1700) = 1000, higher(1700) = 2400, between(1700, 3000) = 1000, 2400

One writer, under the log's lock; readers take no lock. A `SortedDict` cannot change while others read it, so
each change makes a new one, and a reader sees either the old or the new. A roll therefore sorts the map anew:
0.2 ms for ten thousand segments, beside several fsyncs (decision 003). `Segments.append` changes the
segments in place, `replacing` makes new `Segments`.

An index entry is a hint: `walk_from` checks the batch that an entry names, and rebuilds the indexes of a
segment if it is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from sortedcontainers import SortedDict

from logstore.disk.files import Buffer, File
from logstore.errors import CorruptBatch
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, Batch
from logstore.lazily import np
from logstore.segment.indexes import OffsetIndex, OffsetPosition
from logstore.segment.many_batches import base_offsets_at, find_batches
from logstore.segment.scan import compiled_search
from logstore.segment.segment import LOG_SUFFIX, Segment

POSITION_HINTS = 32
_MANY_BYTES = 1 << 16
_WORTH_A_LOOKUP = 1 << 17
"""From so many bytes on, cutting off part of a batch would copy more than the lookup costs that avoids it."""
_PLACE = Struct(">qiixxxxxxxi")  # base offset, length, leader epoch; last offset delta at byte 23
assert _PLACE.size == 27
_MAX_TIMESTAMP = Struct(">35xq")
_OFFSET_AND_LENGTH = Struct(">qi")


class Segments:
    """At least one segment; base offsets ascend. Offsets are absolute."""

    __slots__ = ("_by_base", "_unsorted", "active")

    def __init__(self, segments: Iterable[Segment]) -> None:
        given = list(segments)
        # The writer's own: copying a plain dictionary costs a twentieth of copying a sorted one.
        self._unsorted = {segment.base_offset: segment for segment in given}
        assert len(self._unsorted) == len(given), f"base offsets are not distinct: {given}"
        self._by_base = _sorted(self._unsorted)
        self.active: Segment = self._by_base.peekitem()[1]
        """The segment that takes appends."""

    def __repr__(self) -> str:
        return f"Segments({list(self._by_base)})"

    def __len__(self) -> int:
        return len(self._by_base)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_base.values())

    def __getitem__(self, number: int) -> Segment:
        found: Segment = self._by_base.peekitem(number)[1]
        return found

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        first: Segment = self._by_base.peekitem(0)[1]
        return first

    @property
    def size(self) -> int:
        """Bytes in all `.log` files."""
        return sum(segment.size for segment in self)

    # --- looking up -------------------------------------------------------------------------------

    def get(self, base_offset: int) -> Segment | None:
        """Return the segment that begins at `base_offset`."""
        found: Segment | None = self._by_base.get(base_offset)
        return found

    def floor(self, offset: int) -> Segment | None:
        """Return the last segment that begins at or below `offset`."""
        by_base = self._by_base
        return _at(by_base, by_base.bisect_right(offset) - 1)

    def lower(self, offset: int) -> Segment | None:
        """Return the last segment that begins below `offset`."""
        by_base = self._by_base
        return _at(by_base, by_base.bisect_left(offset) - 1)

    def higher(self, offset: int) -> Segment | None:
        """Return the first segment that begins above `offset`."""
        by_base = self._by_base
        return _at(by_base, by_base.bisect_right(offset))

    def since(self, offset: int) -> Iterator[Segment]:
        """Yield the segment that may hold `offset` (the first, if all begin above it) and all after it."""
        active = self.active
        segment: Segment | None = active
        if offset < active.base_offset:
            segment = self.floor(offset) or self.first
        while segment is not None:
            yield segment
            # Asked again at each step: a segment that was appended meanwhile is seen, too.
            segment = None if segment is self.active else self.higher(segment.base_offset)

    # --- changing ---------------------------------------------------------------------------------

    def append(self, segment: Segment) -> None:
        """Add a segment behind the last one; it becomes the active one."""
        last = self.active.base_offset
        assert segment.base_offset > last, f"{segment!r} does not follow {last}"
        if next(reversed(self._unsorted)) > last:
            self._unsorted.popitem()  # of a call that was interrupted: `active` went on, and holds its offset
        # In this order: a reader that meets the new active segment finds it in the map.
        self._unsorted[segment.base_offset] = segment
        self._by_base = _sorted(self._unsorted)
        self.active = segment

    def replacing(self, old: Collection[Segment], new: Iterable[Segment] = ()) -> Segments:
        """Return these segments with `new` in the place of `old`."""
        gone = {segment.base_offset for segment in old}
        return Segments([*(segment for segment in self if segment.base_offset not in gone), *new])


def _sorted(unsorted: dict[int, Segment]) -> SortedDict:
    by_base = SortedDict(unsorted)
    # A large list builds its index of positions at the first lookup: readers must not do that at once.
    by_base.bisect_right(by_base.peekitem()[0])
    return by_base


def _at(by_base: SortedDict, slot: int) -> Segment | None:
    return by_base.peekitem(slot)[1] if 0 <= slot < len(by_base) else None


# --- batches in a segment -----------------------------------------------------------------------------


class Located(NamedTuple):
    """The place of a batch in its segment's `.log`."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int


class SegmentRead(NamedTuple):
    """Whole batches from `position` on; `next_offset` follows the last of them."""

    records: bytes
    position: int
    next_offset: int


def read_batches(
    segment: Segment, start_offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
) -> SegmentRead | None:
    """Read whole batches, from the one that holds `start_offset` (or the next after it) on.

    Stops before the first batch that begins at or past `end_offset`, and before `max_bytes` are exceeded;
    with `at_least_one` the first batch is returned however large it is. None if the segment has nothing at
    or past `start_offset` below `end_offset`. Raises `OSError`, `CorruptBatch`.
    """
    size = segment.size
    file = segment.open_file or segment.log_file
    hints = segment.indexes.hints
    position = 0 if start_offset == segment.base_offset else hints.get(start_offset)
    data = b""
    first: Located | None = None
    if position is not None:
        data = file.pread(_length_to_read(segment, position, max_bytes, size), position)
        first = _place(data, 0)
        # Elsewhere if the batch before it ended there, or the first ones were compacted away.
        if first is None or first.base_offset != start_offset or first.size > size - position:
            position = None
    if position is None:
        located = locate_in_order(segment, start_offset)
        if located is None:
            return None
        position = located.position
        # Past the size that was read above, if a cut and appends came between.
        data = file.pread(_length_to_read(segment, position, max_bytes, size), position)
        first = located
    assert first is not None
    if first.base_offset >= end_offset:
        return None
    if first.size > max_bytes and not at_least_one:
        return SegmentRead(b"", position, start_offset)
    if first.size > len(data):
        data = file.pread(first.size, position)
    length, next_offset = _whole_batches(data, max(max_bytes, first.size), end_offset)
    if length == 0:  # truncated meanwhile: nothing of it is left to read
        return None
    if len(hints) >= POSITION_HINTS:
        hints.clear()
    hints[next_offset] = position + length
    return SegmentRead(data if length == len(data) else data[:length], position, next_offset)


def _length_to_read(segment: Segment, position: int, max_bytes: int, size: int) -> int:
    """Return how many bytes to read from `position`: at most `max_bytes`, of `size` in the segment.

    A long read ends where the index names a batch, so that nothing has to be cut off. If the index is wrong,
    the last batch read is not whole, as without it.
    """
    length = min(max(max_bytes, HEADER_BYTES), max(size - position, 0))
    if _WORTH_A_LOOKUP <= length < size - position:
        whole = segment.indexes.offsets.position_before(position + length) - position
        if whole >= length // 2:
            return whole
    return length


def is_cached(segment: Segment, start_offset: int, max_bytes: int) -> bool | None:
    """Return whether `read_batches` will hardly wait for the device; None if unknown.

    Looks at no batch: their headers may lie on the device as well.
    """
    position = segment.indexes.hints.get(start_offset)
    if position is None:
        position = segment.indexes.offsets.lookup(start_offset).position
    length = min(max(max_bytes, HEADER_BYTES), segment.size - position)
    return segment.log_file.is_cached(length, position) if length > 0 else True


def locate_in_order(segment: Segment, offset: int) -> Located | None:
    """Return the first batch whose last offset is at or past `offset`; None if there is none.

    Raises `CorruptBatch` for a batch that begins below the end of the one before it.
    """
    next_offset = segment.base_offset
    for located in walk_from(segment, offset):
        if located.base_offset < next_offset:
            raise CorruptBatch(
                f"{segment.path(LOG_SUFFIX)}: the batch at byte {located.position} begins at offset "
                f"{located.base_offset}, below {next_offset}; verify the log and recover it "
                "(`logstore recover --plan`), or fetch it from another replica"
            )
        if located.last_offset >= offset:
            return located
        next_offset = located.last_offset + 1
    return None


def last_before(segment: Segment, offset: int) -> Located | None:
    """Return the last batch that lies wholly below `offset`; None if none does."""
    last = None
    for located in walk_from(segment, offset - 1):
        if located.last_offset >= offset:
            break
        last = located
    return last


def end_offset_of(segment: Segment) -> int:
    """Return the offset after the last batch, read from the log; the base offset if it is empty."""
    end = segment.base_offset
    for located in walk_from(segment, segment.indexes.offsets.last_offset):
        end = located.last_offset + 1
    return end


def find_timestamp(segment: Segment, timestamp_ms: int, start_offset: int, end_offset: int) -> Batch | None:
    """Return the first batch with a record at or past `timestamp_ms` at or past `start_offset`.

    Only batches below `end_offset` are considered. Raises `CorruptBatch` if its checksum is wrong, and as
    reading its records does.
    """
    floor = segment.indexes.time_floor(timestamp_ms - 1)
    # Up to the floor's offset no record is as late as the target.
    since = max(floor.offset + 1 if floor.timestamp_ms >= 0 else segment.base_offset, start_offset)
    for located in walk_from(segment, since):
        if located.base_offset >= end_offset:
            return None
        if located.last_offset < start_offset:
            continue
        header = segment.log_file.pread(HEADER_BYTES, located.position)
        if _MAX_TIMESTAMP.unpack_from(header)[0] >= timestamp_ms:
            batch = Batch(segment.log_file.pread(located.size, located.position))
            batch.check_crc()
            if any(
                record.timestamp_ms >= timestamp_ms and record.offset >= start_offset
                for record in batch.records()
            ):
                return batch
    return None


def walk_from(segment: Segment, offset: int) -> Iterator[Located]:
    """Yield the batches from the one at or before `offset` that the index names."""
    if offset <= segment.base_offset:
        return walk_at(segment, 0)
    floor = segment.indexes.offsets.lookup(offset)
    if not _names_its_batch(segment, floor):
        with segment.lock:
            # Looked up again: a cut that came between is no fault of the index.
            floor = segment.indexes.offsets.lookup(offset)
            if not _names_its_batch(segment, floor):
                text = f"the entry for offset {floor.offset} does not name its batch"
                segment.indexes.rebuild(OffsetIndex.suffix, text)
                floor = segment.indexes.offsets.lookup(offset)
    return walk_at(segment, floor.position)


def _names_its_batch(segment: Segment, entry: OffsetPosition) -> bool:
    """Whether the batch that an index entry names is there."""
    if entry.position == 0:
        return True
    located = _place(segment.log_file.pread(HEADER_BYTES, entry.position), entry.position)
    return (
        located is not None
        and segment.base_offset <= located.base_offset <= entry.offset
        and located.position + located.size <= segment.size
    )


def walk_at(segment: Segment, position: int, file: File | None = None) -> Iterator[Located]:
    """Yield the batches from byte `position` on, by their headers. Raises `CorruptBatch` if none begins."""
    file, end = file or segment.log_file, segment.size
    span = segment.config.index_interval_bytes + HEADER_BYTES
    while position < end:
        chunk = file.pread(min(span, end - position), position)
        start = 0
        while (located := _place(chunk, position + start, start)) is not None:
            if located.position + located.size > end:
                return
            yield located
            start += located.size
        if start == 0:
            if position >= segment.size:
                return  # truncated meanwhile
            raise CorruptBatch(
                f"{segment.path(LOG_SUFFIX)}: no batch at byte {position}; "
                "verify the log and recover it (`logstore recover --plan`), or fetch it from another replica"
            )
        position += start


def _place(data: Buffer, position: int, start: int = 0) -> Located | None:
    """The extent of the batch at `data[start:]`; None if there is no header of a batch."""
    if len(data) - start < _PLACE.size or data[start + 16] != MAGIC:
        return None
    base_offset, length, leader_epoch, delta = _PLACE.unpack_from(data, start)
    if length < HEADER_BYTES - LOG_OVERHEAD or delta < 0:
        return None
    return Located(position, length + LOG_OVERHEAD, base_offset, base_offset + delta, leader_epoch)


def _find_whole(data: Buffer, limit: int, end_offset: int) -> tuple[int, int]:
    """`walking.whole_batches` in Python."""
    unpack = _OFFSET_AND_LENGTH.unpack_from
    position, last = _find_many(data, limit, end_offset) if limit >= _MANY_BYTES else (0, -1)
    while position + HEADER_BYTES <= limit:
        base_offset, length = unpack(data, position)
        end = position + LOG_OVERHEAD + length
        if end > limit or base_offset >= end_offset or length <= 0:
            break
        last, position = position, end
    return position, last


def _find_many(data: Buffer, limit: int, end_offset: int) -> tuple[int, int]:
    """The end and the start of the last of the first small batches in order; 0 and -1 for none."""
    starts, end = find_batches(data, limit)
    if not end:
        return 0, -1
    past = np.flatnonzero(base_offsets_at(data, starts) >= end_offset)
    if not len(past):
        return end, int(starts[-1])
    number = int(past[0])
    return int(starts[number]), int(starts[number - 1]) if number else -1


def _whole_batches(data: Buffer, max_bytes: int, end_offset: int) -> tuple[int, int]:
    """The bytes of `data` that are whole batches below `end_offset`, and the offset after them."""
    limit = min(len(data), max_bytes)
    search = compiled_search(data, limit) if limit >= _MANY_BYTES else None
    position, last = (search or _find_whole)(data, limit, end_offset)
    if last < 0:
        return 0, 0
    place = _place(data, last, last)
    if place is not None:
        return position, place.last_offset + 1
    # That header is damaged. Once more, with a look at each: whoever reads on from there meets it.
    position, next_offset = 0, 0
    while position < last and (place := _place(data, position, position)) is not None:
        position, next_offset = position + place.size, place.last_offset + 1
    return position, next_offset
