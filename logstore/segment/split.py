"""Split a segment whose offsets exceed its range into runs of batches, each a segment of its own.

    0.log     │ 0…7 │ 8…9 │ 2³¹+3…2³¹+5 │ 2³¹+6 │ 2³²+9 │      offsets of five batches
    becomes   └─── 0.log ─┴── 2147483651.log ────┴ 4294967305.log

An index stores an offset in four bytes relative to its segment's base, so a segment ends at base + 2³¹ − 1.
Old brokers compacted several segments into one that exceeds this; this engine never does. A run ends before
the first batch whose last offset does not fit, and the next begins with that batch. The first run keeps the
segment's base, even if no batch fits there: the segment before names that base as its successor, and an
interrupted swap identifies the old segment by it.

The batches are copied byte for byte. Bytes behind the last whole batch go to the last run, where recovery
judges them. The new segments are written as `.cleaned` and synced; after a crash the next open removes them.
`swap.py` puts them in the old one's place.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Disk, File, publish, read_small_file
from logstore.errors import CorruptIndex
from logstore.segment.scan import CHUNK_BYTES, Fault, extents_of, scan, scan_chunks
from logstore.segment.segment import LOG_SUFFIX, Segment
from logstore.segment.swap import begin_cleaned
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX

_BASE_OFFSET = Struct(">q")


class Run(NamedTuple):
    """Bytes [from_byte, to_byte) of a segment, which fit a segment at `base_offset`; they end before
    `end_offset`."""

    base_offset: int
    end_offset: int
    from_byte: int
    to_byte: int


def find_runs(file: File, size: int, base_offset: int) -> list[Run]:
    """Return the runs of a `.log` of `size` bytes; one run if all of it fits. Raises `OSError`.

    Every checksum is checked. No runs if offsets or leader epochs decrease: then an offset that does not fit
    does not prove that the segment is too long, because a batch's checksum leaves it out.
    """
    runs: list[Run] = []
    base, next_offset, epoch, position = base_offset, base_offset, -1, 0
    while True:
        start, fault = position, None
        for found in scan(file, start, size, base_offset=base, next_offset=next_offset, leader_epoch=epoch):
            position, fault = found.end, found.fault
            if len(found.headers):
                next_offset = int(found.last_offsets[-1]) + 1
                epoch = max(epoch, int(found.headers["leader_epoch"].max()))
        if fault in (Fault.OFFSETS, Fault.EPOCHS):
            return []
        if fault is not Fault.OVERFLOW:
            return [*runs, Run(base, next_offset, start, size)]
        runs.append(Run(base, next_offset, start, position))
        (base,) = _BASE_OFFSET.unpack(file.pread(_BASE_OFFSET.size, position))


def leaps_over(runs: Sequence[Run], offset: int) -> bool:
    """Return whether these runs have a gap at `offset`, up to which everything was written without one."""
    return any(before.end_offset < offset <= after.base_offset for before, after in pairwise(runs))


def split(
    disk: Disk, directory: str, config: LogConfig, segment: Segment, runs: Sequence[Run], *, now_ms: int
) -> list[Segment]:
    """Write `runs` of `segment` as `.cleaned` segments, synced except for their names, unsealed.

    Raises `ValueError` if there is nothing to split, and `OSError`, after an attempt to remove the files.
    """
    if len(runs) < 2:
        raise ValueError(f"{segment.path(LOG_SUFFIX)}: there is nothing to split, its offsets fit")
    return _write(disk, directory, config, segment, [[run] for run in runs], now_ms)


def leave_out(
    disk: Disk, directory: str, config: LogConfig, segment: Segment, gap: tuple[int, int], *, now_ms: int
) -> Segment:
    """Write `segment` without bytes [from, to) as a `.cleaned` segment, like one of `split`."""
    base_offset, (gap_start, gap_end) = segment.base_offset, gap
    kept = [Run(base_offset, MAX_LONG, *each) for each in ((0, gap_start), (gap_end, segment.size))]
    return _write(disk, directory, config, segment, [kept], now_ms)[0]


def _write(
    disk: Disk,
    directory: str,
    config: LogConfig,
    segment: Segment,
    contents: Sequence[Sequence[Run]],
    now_ms: int,
) -> list[Segment]:
    new: list[Segment] = []
    try:
        for runs in contents:
            base_offset = runs[0].base_offset
            each = begin_cleaned(
                disk, directory, config, base_offset, now_ms=now_ms, modified_ms=segment.modified_ms
            )
            new.append(each)
            for run in runs:
                _copy(segment.log_file, run, each)
            each.become_inactive()
            each.sync_log()
            each.sync_indexes()
        _divide_aborts(disk, segment, new)
    except OSError:
        for each in new:
            each.delete()
        raise
    return new


def _copy(file: File, run: Run, new: Segment) -> None:
    end = run.from_byte
    for chunk, found in scan_chunks(file, run.from_byte, run.to_byte, base_offset=run.base_offset):
        if found.end:
            new.append(chunk[: found.end], extents_of(found.headers))
            end += found.end
    while end < run.to_byte:
        rest = file.pread(min(CHUNK_BYTES, run.to_byte - end), end)
        new.append(rest, ())
        end += len(rest)


def _divide_aborts(disk: Disk, segment: Segment, new: Sequence[Segment]) -> None:
    try:
        entries = segment.aborts.index.entries
    except CorruptIndex:
        # A copy for each: after a crash, none may look like a segment without aborted transactions.
        data = read_small_file(disk, segment.path(TRANSACTION_INDEX_SUFFIX)) or b""
        for each in new:
            publish(disk, *posixpath.split(each.path(TRANSACTION_INDEX_SUFFIX)), data)
        return
    ends = [*(each.base_offset for each in new[1:]), MAX_LONG]
    for each, end in zip(new, ends, strict=True):
        mine = [entry for entry in entries if each.base_offset <= entry.last_offset < end]
        each.aborts.replace(mine)
