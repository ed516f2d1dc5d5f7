"""Find every intact batch of a partition's directory, past all damage, and decide which are in place.

`damage.sweep` finds the batches whose checksums are right, `choose` decides. A checksum covers neither offset
nor leader epoch. The largest set of batches whose offsets rise stands. Another sound batch is put where its
neighbours leave exactly its number of offsets, and an epoch that falls is replaced by that of the batch
before it (`Placed`). A batch that fits nowhere, or is a copy of another one, is left out (`LeftOut`).

For directories without an owner: salvage copies what is found here, and `diff` compares it.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.files import Disk, Readable
from logstore.errors import DamagedLog
from logstore.format.batch import LOG_OVERHEAD, NO_LEADER_EPOCH, Batch, set_offsets_and_epoch, walk
from logstore.log.loading import offset_in
from logstore.log.tails import only_zeros
from logstore.segment.damage import Sweep, sweep
from logstore.segment.scan import Fault, last_offsets_of, scan_buffer
from logstore.segment.segment import LOG_SUFFIX
from logstore.segment.swap import SWAP_SUFFIX

Int64s: TypeAlias = npt.NDArray[np.int64]

_PAGE_BYTES: Final = 4096
_RUN_BYTES: Final = 4 << 20


class Stretch(NamedTuple):
    """Bytes of `file` that are not in the target, from byte `position` on."""

    file: str
    position: int
    bytes: int
    reason: str


class Gap(NamedTuple):
    """Offsets without a batch in the target; `last_offset` is -1 if no batch follows.

    `stretches` are the bytes of the source between the batches on both sides; none where it has no bytes for
    these offsets. Without offsets (`last_offset` below `first_offset`), only bytes were skipped.
    """

    first_offset: int
    last_offset: int
    stretches: list[Stretch]

    @property
    def reason(self) -> str:
        """Return the reason why the bytes were skipped, as text."""
        reasons = dict.fromkeys(each.reason for each in self.stretches)
        return "; ".join(reasons) or "no bytes for these offsets: compacted, or a file is missing"


class Placed(NamedTuple):
    """A sound batch of `file` that got another offset or leader epoch than its header says."""

    file: str
    position: int
    offset: int
    offset_in_file: int
    epoch: int
    epoch_in_file: int


class LeftOut(NamedTuple):
    """A sound batch of `file` that is not in its place, and is not in the target."""

    file: str
    position: int
    bytes: int
    offset_in_file: int
    records: int


# --- deciding -------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A `.log` file of the source: its name, its base offset, and what a sweep found in it."""

    name: str
    base_offset: int
    swept: Sweep


class Rows(NamedTuple):
    """Sound batches, a row each: the number of their file, their bytes, their place in the log."""

    file: Int64s
    position: Int64s
    size: Int64s
    base: Int64s
    last: Int64s
    epoch: Int64s
    records: Int64s
    crc: Int64s

    def of(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Rows:
        """Return some of the rows, by a mask or by their numbers."""
        return Rows(*(column[which] for column in self))


class Choice(NamedTuple):
    """The batches of the target in order, and what else was found.

    `is_patched`: the rows whose offset or epoch is not that of the source.
    """

    rows: Rows
    is_patched: npt.NDArray[np.bool_]
    gaps: list[Gap]
    placed: list[Placed]
    left_out: list[LeftOut]


def _swept(file: PatientFile) -> Sweep:
    """Sweep a file, and tell zeros at its end from other bytes that are no batch."""
    found = sweep(file, file.size())
    last = found.bad[-1] if found.bad else None
    if (
        last is not None
        and last.fault is Fault.SIZE
        and last.end == file.size()
        and only_zeros(file, last.position, last.end)
    ):
        found.bad[-1] = last._replace(fault=Fault.ZEROS)
    return found


def choose(found: Sequence[Found]) -> Choice:
    """Decide which sound batches of these files, in order of their base offsets, are in the target."""
    rows = _rows_of(found)
    source = rows.of(np.ones(len(rows.base), bool))
    is_kept = _in_order(rows, found)
    is_copy = _copies(rows) if not is_kept.all() else is_kept
    for number in (~is_kept & ~is_copy).nonzero()[0].tolist():
        offset = _only_place(rows, number, is_kept, found)
        if offset is not None:
            _put(rows, number, offset, is_kept)
            continue
        for other in (number - 1, number + 1):
            is_movable = 0 <= other < len(is_copy) and is_kept[other] and not is_copy[other]
            offset = _place_without(rows, number, other, is_kept, found) if is_movable else None
            if offset is not None:
                _put(rows, other, offset, is_kept)
                is_kept[number] = True
                break
    _drop_what_does_not_rise(rows, is_kept)
    kept = rows.of(is_kept)
    _settle_epochs(kept.epoch)
    before = source.of(is_kept)
    is_patched = (kept.base != before.base) | (kept.epoch != before.epoch)
    placed = [
        Placed(found[file].name, position, base, base_before, epoch, epoch_before)
        for file, position, base, base_before, epoch, epoch_before in zip(
            *(
                column[is_patched].tolist()
                for column in (kept.file, kept.position, kept.base, before.base, kept.epoch, before.epoch)
            ),
            strict=True,
        )
    ]
    out = source.of(~is_kept)
    left_out = [
        LeftOut(found[file].name, position, size, base, records)
        for file, position, size, base, records in zip(
            *(column.tolist() for column in (out.file, out.position, out.size, out.base, out.records)),
            strict=True,
        )
    ]
    return Choice(kept, is_patched, _gaps(found, kept, is_kept, left_out), placed, left_out)


def _rows_of(found: Sequence[Found]) -> Rows:
    headers = np.concatenate([each.swept.headers for each in found])
    return Rows(
        np.concatenate([np.full(len(each.swept.positions), number) for number, each in enumerate(found)]),
        np.concatenate([each.swept.positions for each in found]),
        headers["batch_length"].astype(np.int64) + LOG_OVERHEAD,
        headers["base_offset"].astype(np.int64),
        last_offsets_of(headers),
        headers["leader_epoch"].astype(np.int64),
        headers["record_count"].astype(np.int64),
        headers["crc"].astype(np.int64),
    )


def _in_order(rows: Rows, found: Sequence[Found]) -> npt.NDArray[np.bool_]:
    """Return the largest set of batches that fit their segments and whose offsets rise, as a mask."""
    fits = _fit(rows, found)
    fits[fits] = _longest_chain(rows.base[fits], rows.last[fits])
    return fits


def _fit(rows: Rows, found: Sequence[Found]) -> npt.NDArray[np.bool_]:
    """Return which batches have offsets of their segments, as a mask."""
    first = np.array([each.base_offset for each in found], np.int64)
    limit = np.minimum(np.append(first[1:] - 1, MAX_LONG), first + MAX_INT)
    fits: npt.NDArray[np.bool_] = (rows.base <= rows.last) & (rows.last <= limit[rows.file])
    fits &= rows.base >= first[rows.file]
    return fits


def _longest_chain(first: Int64s, last: Int64s) -> npt.NDArray[np.bool_]:
    """Return, as a mask, the longest series of items of which each begins above the last of the one before.

    Of two that are equally long, the one with the smaller numbers.
    """
    chosen = np.ones(len(first), bool)
    if (first[1:] > last[:-1]).all():
        return chosen
    ends: list[int] = []  # the smallest last number of a chain of each length, …
    items: list[int] = []  # … its last item, …
    before = []  # … and of each item the one before it in its chain
    for number, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        length = bisect_left(ends, low)
        before.append(items[length - 1] if length else -1)
        if length == len(ends):
            ends.append(high)
            items.append(number)
        elif high < ends[length]:
            ends[length], items[length] = high, number
    chosen[:] = False
    number = items[-1]
    while number >= 0:
        chosen[number] = True
        number = before[number]
    return chosen


def _copies(rows: Rows) -> npt.NDArray[np.bool_]:
    """Tell which batches are there more than once: where a copy belongs its neighbours cannot tell."""
    _, which, counts = np.unique(rows.crc << 31 | rows.size, return_inverse=True, return_counts=True)
    is_copy: npt.NDArray[np.bool_] = counts[which] > 1
    return is_copy


def _put(rows: Rows, number: int, offset: int, is_kept: npt.NDArray[np.bool_]) -> None:
    rows.last[number] = offset + int(rows.last[number]) - int(rows.base[number])
    rows.base[number] = offset
    is_kept[number] = True


def _place_without(
    rows: Rows, number: int, other: int, is_kept: npt.NDArray[np.bool_], found: Sequence[Found]
) -> int | None:
    """Of two neighbours that contradict each other either may be misplaced: the only place of the other one.

    None unless `number` stands where its header says.
    """
    others = is_kept.copy()
    others[other], others[number] = False, True
    kept = rows.of(others)
    stands = _fit(rows, found)[number] and (kept.base[1:] > kept.last[:-1]).all()
    return _only_place(rows, other, others, found) if stands else None


def _settle_epochs(epochs: Int64s) -> None:
    """Replace epochs that fall or cannot be, in place; -1 is unknown and stays.

    The longest series that does not fall stands. Others become that of the batch before them; at the start,
    of the one behind them.
    """
    stands = epochs >= 0
    stands[stands] = _longest_chain(epochs[stands], epochs[stands] - 1)
    filled = np.maximum.accumulate(np.where(stands, epochs, NO_LEADER_EPOCH))
    if stands.any():
        filled[filled < 0] = epochs[stands][0]
    np.copyto(epochs, filled, where=(epochs != NO_LEADER_EPOCH) & ~stands)


def _only_place(
    rows: Rows, number: int, is_kept: npt.NDArray[np.bool_], found: Sequence[Found]
) -> int | None:
    """Return the base offset that the neighbours leave for this batch; None if they do not decide it.

    Its bytes must lie between theirs without any others, and the offsets between theirs must be as many as
    its own. At the end of the log it follows the batch before it, if no offset is missing in the whole log.
    """
    file, size = int(rows.file[number]), rows.size[number]
    span = int(rows.last[number]) - int(rows.base[number])
    if span < 0:
        return None
    start, end = found[file].base_offset, None
    before, after = number - 1, number + 1
    if rows.position[number] > 0:
        if (
            before < 0
            or not is_kept[before]
            or rows.position[before] + rows.size[before] != rows.position[number]
        ):
            return None
        start = int(rows.last[before]) + 1
    if after < len(rows.base) and rows.file[after] == file:
        if not is_kept[after] or rows.position[number] + size != rows.position[after]:
            return None
        end = int(rows.base[after])
    elif found[file].swept.bad and found[file].swept.bad[-1].position > rows.position[number]:
        return None
    elif file + 1 < len(found):
        end = found[file + 1].base_offset
    else:
        kept = rows.of(is_kept)
        end = start + span + 1 if (kept.base[1:] == kept.last[:-1] + 1).all() else None
    return start if end == start + span + 1 else None


def _drop_what_does_not_rise(rows: Rows, is_kept: npt.NDArray[np.bool_]) -> None:
    """Of batches that overlap, the one that lies first in the files stays."""
    while True:
        numbers = is_kept.nonzero()[0]
        reached = np.maximum.accumulate(rows.last[numbers])
        falls = numbers[1:][rows.base[numbers[1:]] <= reached[:-1]]
        if not len(falls):
            return
        is_kept[falls[0]] = False


def _gaps(
    found: Sequence[Found], kept: Rows, is_kept: npt.NDArray[np.bool_], left_out: Sequence[LeftOut]
) -> list[Gap]:
    """Between which kept batches (by the number of the later one) offsets or bytes are missing, and why."""
    kept_before = np.concatenate(([0], np.cumsum(is_kept)))
    between: dict[int, list[Stretch]] = {}
    row = 0
    for file in found:
        for bad in file.swept.bad:
            stretch = Stretch(file.name, bad.position, bad.end - bad.position, bad.fault.value)
            between.setdefault(int(kept_before[row + bad.slot]), []).append(stretch)
        row += len(file.swept.positions)
    for number, each in zip((~is_kept).nonzero()[0].tolist(), left_out, strict=True):
        stretch = Stretch(each.file, each.position, each.bytes, Fault.OFFSETS.value)
        between.setdefault(int(kept_before[number]), []).append(stretch)
    ends = np.concatenate(([found[0].base_offset], kept.last + 1))
    jumps = (kept.base > ends[:-1]).nonzero()[0].tolist()
    return [
        Gap(
            int(ends[number]),
            int(kept.base[number]) - 1 if number < len(kept.base) else -1,
            sorted(between.get(number, [])),
        )
        for number in sorted({*jumps, *between})
    ]


# --- reading --------------------------------------------------------------------------------------


def segment_files(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """The `.log` files in order; a new segment of a compaction only where no other has its base offset."""
    found: dict[int, str] = {}
    for entry in sorted(disk.scan(directory)):  # `.log` comes before `.log.swap`
        if not entry.is_directory and entry.name.endswith((LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX)):
            base_offset = offset_in(entry.name)
            if base_offset is not None:
                found.setdefault(base_offset, entry.name)
    return sorted(found.items())


class SoundBatches:
    """The sound batches of the directory, found when this is created. Close it. Raises `OSError`.

    The directory must hold a segment, and no process may write to it.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._found: list[Found] = []
        self._files: list[PatientFile] = []
        try:
            for base_offset, name in segment_files(disk, directory):
                file = PatientFile(disk.open(f"{directory}/{name}"))
                self._files.append(file)
                self._found.append(Found(name, base_offset, _swept(file)))
            self.choice = choose(self._found)
        except BaseException:
            self.close()
            raise

    @property
    def start_offset(self) -> int:
        """The offset of the first batch; without batches, the base offset of the first segment."""
        bases = self.choice.rows.base
        return int(bases[0]) if len(bases) else self._found[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last batch, and at least the base offset of the last segment."""
        lasts = self.choice.rows.last
        return max(int(lasts[-1]) + 1 if len(lasts) else 0, self._found[-1].base_offset)

    @property
    def unreadable_bytes(self) -> int:
        """How many bytes the disk could not read, in whole pages."""
        return sum(file.unreadable_bytes for file in self._files)

    def by_file(self) -> Iterator[tuple[str, Iterator[bytearray]]]:
        """Yield each file's name and its batches in pieces, end to end, in their places.

        Raises `DamagedLog` if the file has changed since it was swept.
        """
        rows = self.choice.rows
        for number, found in enumerate(self._found):
            is_here = rows.file == number
            yield found.name, _runs(self._files[number], rows.of(is_here), self.choice.is_patched[is_here])

    def of_rows(self, numbers: Int64s) -> Iterator[bytearray]:
        """Yield the batches with these row numbers, which rise, end to end. Raises as `by_file`."""
        rows, is_patched = self.choice.rows.of(numbers), self.choice.is_patched[numbers]
        for file in np.unique(rows.file).tolist():
            is_here = rows.file == file
            yield from _runs(self._files[file], rows.of(is_here), is_patched[is_here])

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches in order. Raises as `by_file`."""
        for _, runs in self.by_file():
            for run in runs:
                yield from walk(bytes(run))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _runs(file: Readable, rows: Rows, is_patched: npt.NDArray[np.bool_]) -> Iterator[bytearray]:
    """Read batches that lie end to end together, some megabytes at a time, and check them once more."""
    first = 0
    for number in range(1, len(rows.base) + 1):
        start = int(rows.position[first])
        end = int(rows.position[number - 1] + rows.size[number - 1])
        if number < len(rows.base) and rows.position[number] == end and end - start < _RUN_BYTES:
            continue
        data = bytearray(file.pread(end - start, start))
        found = scan_buffer(data, len(data))
        if found.end != end - start or len(found.headers) != number - first:
            raise DamagedLog("the files changed while they were read: stop their owner and try again")
        for each in (is_patched[first:number].nonzero()[0] + first).tolist():
            set_offsets_and_epoch(
                data,
                base_offset=int(rows.base[each]),
                leader_epoch=int(rows.epoch[each]),
                position=int(rows.position[each]) - start,
            )
        yield data
        first = number


class PatientFile:
    """A file that is read past bytes that the disk cannot read: zeros take their place."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._unreadable: set[int] = set()

    @property
    def unreadable_bytes(self) -> int:
        """How many bytes could not be read, in whole pages."""
        return len(self._unreadable) * _PAGE_BYTES

    def pread(self, size: int, at: int) -> bytes:
        """Return the bytes, page by page if the whole cannot be read. Raises `OSError` but for `EIO`."""
        try:
            return self._file.pread(size, at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pieces = []
        end = min(at + size, self._file.size())
        while at < end:
            page = at // _PAGE_BYTES
            until = min((page + 1) * _PAGE_BYTES, end)
            try:
                pieces.append(self._file.pread(until - at, at))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._unreadable.add(page)
                pieces.append(bytes(until - at))
            at = until
        return b"".join(pieces)

    def size(self) -> int:
        """Return the length in bytes."""
        return self._file.size()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
