"""Salvage a dead directory: every sound batch of a partition, at its offset, in a new directory.

    source       0.log ┼ batch ┼ ░░░░ ┼ batch ┼ batch ┼    90.log ┼ batch ┼ 0 0 0 ┤
                            │            │       │                   │
    target       0.log ┼ batch ┼ batch ┼ batch ┼           90.log ┼ batch ┤

Recovery keeps what lies before the first damage; salvage also keeps what lies behind it. `damage.sweep` finds
the batches whose checksums are right, `choose` decides which of them are in their place, `salvage` copies
them. The target has a gap where the source has damage; compaction leaves such gaps too, so every program that
reads Kafka's format reads the target. Indexes, snapshots and seals are not copied: they are derived, and
opening the target makes them.

A checksum covers neither offset nor leader epoch. So a sound batch whose offset contradicts its neighbours is
put where they leave exactly its number of offsets, and an epoch that contradicts them is replaced by that of
the batch before it (`Placed`). A batch that fits nowhere, or is a copy of another one, is left out and listed
(`LeftOut`).

The source is only read. The target is made under another name, synced, and renamed when it is complete: a
salvage that was interrupted can be run again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    read_leader_epoch_checkpoint,
)
from logstore.checkpoint.identity import (
    META_PROPERTIES,
    PARTITION_METADATA,
    read_meta_properties,
    read_partition_metadata,
)
from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.copying import remove_tree
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.files import (
    Disk,
    File,
    Readable,
    make_durable_dir,
    put_in_place,
    read_small_file,
)
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.errors import DamagedLog
from logstore.format.batch import LOG_OVERHEAD, set_offsets_and_epoch
from logstore.log.loading import offset_in
from logstore.log.reader import checkpointed_offset
from logstore.segment.damage import Sweep, misplaced, sweep
from logstore.segment.scan import Fault, last_offsets_of, scan_buffer
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.segment.swap import SWAP_SUFFIX

Int64s: TypeAlias = npt.NDArray[np.int64]

UNFINISHED_SUFFIX: Final = ".unfinished"
_PAGE_BYTES: Final = 4096
_COPY_BYTES: Final = 4 << 20


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
        """What is known of it, in words."""
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


class Salvage(NamedTuple):
    """What came back from one partition; `unreadable_bytes` are those that the disk refused to read."""

    source: str
    target: str
    batches: int
    records: int
    bytes: int
    start_offset: int
    end_offset: int
    unreadable_bytes: int
    gaps: list[Gap]
    placed: list[Placed]
    left_out: list[LeftOut]

    @property
    def is_whole(self) -> bool:
        """Whether nothing was bad, unreadable or out of place; a compaction's gaps may be there."""
        return not (self.unreadable_bytes or self.left_out or any(gap.stretches for gap in self.gaps))


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


def choose(found: Sequence[Found]) -> Choice:
    """Decide which sound batches of these files, in order of their base offsets, are in the target."""
    rows = _rows_of(found)
    source = rows.of(np.ones(len(rows.base), bool))
    faults = _faults(rows, found)
    is_kept = np.array([faults.get(number) is not Fault.OFFSETS for number in range(len(rows.base))], bool)
    for number, fault in sorted(faults.items()):
        offset = _only_place(rows, number, is_kept, found) if fault is Fault.OFFSETS else None
        if offset is not None:
            rows.last[number] = offset + int(rows.last[number]) - int(rows.base[number])
            rows.base[number] = offset
            is_kept[number] = True
        elif fault is Fault.EPOCHS:
            rows.epoch[number] = _epoch_beside(rows, number, faults)
    _drop_what_does_not_rise(rows, is_kept)
    kept = rows.of(is_kept)
    newest = np.maximum.accumulate(kept.epoch)
    np.copyto(kept.epoch, newest, where=(kept.epoch != -1) & (kept.epoch < newest))
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


def _faults(rows: Rows, found: Sequence[Found]) -> dict[int, Fault]:
    """The rows that are not in their place: `OFFSETS` or `EPOCHS`."""
    first = np.array([each.base_offset for each in found], np.int64)
    limit = np.minimum(np.append(first[1:] - 1, MAX_LONG), first + MAX_INT)
    fits = (rows.base >= first[rows.file]) & (rows.base <= rows.last) & (rows.last <= limit[rows.file])
    faults = dict.fromkeys((~fits).nonzero()[0].tolist(), Fault.OFFSETS)
    numbers = fits.nonzero()[0]
    headers = np.concatenate([each.swept.headers for each in found])[fits]
    for each in misplaced(headers):
        number = int(numbers[each.slot])
        if not each.is_certain and _is_the_one_before(rows, number, each.fault, found):
            number -= 1
        faults[number] = each.fault
    return faults


def _is_the_one_before(rows: Rows, number: int, fault: Fault, found: Sequence[Found]) -> bool:
    """Of two neighbours that contradict each other, find out whether the first is the misplaced one.

    It is if the batches on both of its sides agree without it: in their epoch, or in the one place that they
    leave for it.
    """
    before = number - 1
    if fault is Fault.EPOCHS:
        return before > 0 and bool(rows.epoch[before - 1] == rows.epoch[number])
    others = np.arange(len(rows.base)) != before
    return before >= 0 and _only_place(rows, before, others, found) is not None


def _only_place(
    rows: Rows, number: int, is_kept: npt.NDArray[np.bool_], found: Sequence[Found]
) -> int | None:
    """Return the base offset that the neighbours leave for this batch; None if they do not decide it.

    Its bytes must lie between theirs without any others, and the offsets between theirs must be as many as
    its own. At the end of the log it follows the batch before it, if no offset is missing in the whole log.
    A copy of another batch has no place.
    """
    file, size = int(rows.file[number]), rows.size[number]
    span = int(rows.last[number]) - int(rows.base[number])
    if ((rows.crc == rows.crc[number]) & (rows.size == size)).sum() > 1 or span < 0:
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


def _epoch_beside(rows: Rows, number: int, faults: Mapping[int, Fault]) -> int:
    """The epoch of the nearest batch before it that is in its place; at the start, of one behind it."""
    for other in (*range(number - 1, -1, -1), *range(number + 1, len(rows.base))):
        if other not in faults:
            return int(rows.epoch[other])
    return int(rows.epoch[number])


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


# --- acting ---------------------------------------------------------------------------------------


def salvage(disk: Disk, source: str, target: str, tell: Callable[[Salvage], None]) -> list[str]:
    """Copy every sound batch below `source`, a partition or a log dir, to the new directory `target`.

    Calls `tell` after each partition, and returns the directories in a log dir that are no partition's.
    Raises `OSError`: `FileNotFoundError` if `source` holds no log, `FileExistsError` if `target` holds
    anything, and whatever the disk raises when it is written to. Then there is no target.
    """
    partitions, others = _partitions_in(disk, source)
    if not partitions:
        raise FileNotFoundError(
            errno.ENOENT, "no log is here: no <offset>.log in it or one level below", source
        )
    _check_target(disk, source, target)
    unfinished = target + UNFINISHED_SUFFIX
    if _exists(disk, unfinished):
        remove_tree(disk, unfinished)
    make_durable_dir(disk, unfinished)
    is_partition = partitions == [source]
    starts: dict[TopicPartition, int] = {}
    for each in partitions:
        name = "" if is_partition else "/" + os.path.basename(each)
        if not is_partition:
            disk.make_dir(unfinished + name)
        partition = parse_directory_name(os.path.basename(target + name))
        starts[partition] = checkpointed_offset(disk, each, LOG_START_OFFSET_CHECKPOINT)
        tell(_partition(disk, each, unfinished + name, target + name, starts[partition]))
        disk.sync_dir(unfinished + name)
    _copy_identity(disk, source, unfinished)
    starts = {partition: offset for partition, offset in starts.items() if offset}
    if starts:
        put_in_place(disk, unfinished, LOG_START_OFFSET_CHECKPOINT, format_offset_checkpoint(starts))
    disk.sync_dir(unfinished)
    if _exists(disk, target):
        disk.remove_dir(target)  # empty
    disk.rename(unfinished, target)
    disk.sync_dir(os.path.dirname(target) or ".")
    return others


def _partitions_in(disk: Disk, source: str) -> tuple[list[str], list[str]]:
    """Return the directories with segments, `source` or those in it, and the other directories in it."""
    entries = disk.scan(source)
    if _segments_in(disk, source):
        return [source], []
    partitions: list[str] = []
    others: list[str] = []
    for entry in entries:
        if entry.is_directory:
            path = f"{source}/{entry.name}"
            try:
                parse_directory_name(entry.name)
                (partitions if _segments_in(disk, path) else others).append(path)
            except InvalidTopic:
                others.append(path)
    return partitions, others


def _segments_in(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """The `.log` files in order; a new segment of a compaction only where no other has its base offset."""
    found: dict[int, str] = {}
    for entry in sorted(disk.scan(directory)):  # `.log` comes before `.log.swap`
        if not entry.is_directory and entry.name.endswith((LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX)):
            base_offset = offset_in(entry.name)
            if base_offset is not None:
                found.setdefault(base_offset, entry.name)
    return sorted(found.items())


def _exists(disk: Disk, directory: str) -> bool:
    try:
        disk.scan(directory)
    except FileNotFoundError:
        return False
    return True


def _check_target(disk: Disk, source: str, target: str) -> None:
    inner, outer = os.path.abspath(target), os.path.abspath(source)
    if inner == outer or inner.startswith(outer + "/") or outer.startswith(inner + "/"):
        raise FileExistsError(errno.EEXIST, f"it must lie outside of {source}", target)
    if _exists(disk, target) and disk.scan(target):
        raise FileExistsError(errno.EEXIST, "it is not empty: name a new directory", target)


def _copy_identity(disk: Disk, source: str, target: str) -> None:
    """Copy `meta.properties` of a log dir, if it can be read."""
    try:
        if read_meta_properties(disk, source) is None:
            return
    except (EngineError, OSError):
        return
    put_in_place(disk, target, META_PROPERTIES, read_small_file(disk, f"{source}/{META_PROPERTIES}") or b"")


def _partition(disk: Disk, source: str, unfinished: str, target: str, log_start_offset: int) -> Salvage:
    found: list[Found] = []
    files: list[PatientFile] = []
    try:
        for base_offset, name in _segments_in(disk, source):
            file = PatientFile(disk.open(f"{source}/{name}"))
            files.append(file)
            found.append(Found(name, base_offset, sweep(file, file.size())))
        choice = choose(found)
        rows = choice.rows
        for number, each in enumerate(found):
            with closing(
                disk.open(f"{unfinished}/{file_name(each.base_offset, LOG_SUFFIX)}", create=True, write=True)
            ) as out:
                is_here = rows.file == number
                _copy(files[number], out, rows.of(is_here), choice.is_patched[is_here])
                out.sync()
        unreadable = sum(file.unreadable_bytes for file in files)
    finally:
        for file in files:
            file.close()
    _write_small_files(disk, source, unfinished, rows)
    return Salvage(
        source, target, len(rows.base), int(rows.records.sum()), int(rows.size.sum()),
        max(int(rows.base[0]), log_start_offset) if len(rows.base) else found[0].base_offset,
        int(rows.last[-1]) + 1 if len(rows.base) else found[-1].base_offset,
        unreadable, choice.gaps, choice.placed, choice.left_out,
    )  # fmt: skip


def _copy(file: Readable, out: File, rows: Rows, is_patched: npt.NDArray[np.bool_]) -> None:
    """Copy these batches of one file; those that lie end to end in large pieces, checked once more."""
    at = 0
    for first, count in _runs(rows):
        start, end = (
            int(rows.position[first]),
            int(rows.position[first + count - 1] + rows.size[first + count - 1]),
        )
        data = bytearray(file.pread(end - start, start))
        found = scan_buffer(data, len(data))
        if found.end != len(data) or len(found.headers) != count:
            raise DamagedLog("the source changed while it was copied: stop its owner and try again")
        for number in (is_patched[first : first + count].nonzero()[0] + first).tolist():
            set_offsets_and_epoch(
                data,
                base_offset=int(rows.base[number]),
                leader_epoch=int(rows.epoch[number]),
                position=int(rows.position[number]) - start,
            )
        out.pwrite(data, at)
        at += len(data)


def _runs(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of batches that lie end to end, some megabytes a run."""
    first = 0
    for number in range(1, len(rows.base) + 1):
        if (
            number == len(rows.base)
            or rows.position[number] != rows.position[number - 1] + rows.size[number - 1]
            or rows.position[number] - rows.position[first] >= _COPY_BYTES
        ):
            yield first, number - first
            first = number


def _write_small_files(disk: Disk, source: str, target: str, rows: Rows) -> None:
    """Write the epoch history and the topic id.

    The history of the source is used if it can be read and fits the batches; otherwise theirs.
    """
    known = rows.of(rows.epoch >= 0)
    starts = np.diff(known.epoch, prepend=-1).nonzero()[0]
    history = list(zip(known.epoch[starts].tolist(), known.base[starts].tolist(), strict=True))
    try:
        listed = read_leader_epoch_checkpoint(disk, source)
        if _fits(listed, rows):
            history = listed
    except (EngineError, OSError):
        pass
    put_in_place(disk, target, LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint(history))
    try:
        if read_partition_metadata(disk, source) is None:
            return
    except (EngineError, OSError):
        return
    data = read_small_file(disk, f"{source}/{PARTITION_METADATA}") or b""
    put_in_place(disk, target, PARTITION_METADATA, data)


def _fits(history: Sequence[tuple[int, int]], rows: Rows) -> bool:
    if not history or not len(rows.base):
        return False
    epochs, starts = (np.array(column, np.int64) for column in zip(*history, strict=True))
    slots = np.searchsorted(starts, rows.base, "right") - 1
    fits = (slots >= 0) & (epochs[slots] == rows.epoch)
    return bool(fits.all() and starts[-1] <= rows.last[-1])


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
