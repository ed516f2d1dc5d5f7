"""Find where a snapshot ends, and never take damage for its end.

    41.log   41 ┼ 42 ┼ 43 ┼ … ┼ 49 ┼ 50 ┼ … ┼ 61 ┤      62.log
                                   ▲
                                   end offset 50: the batches before it are copied

No checksum covers a batch's base offset. With a rotten one, batch 43 could pass for a batch past the end, and
43 to 49 would be missing without a word. So each batch is compared with its neighbours, with the base of the
next segment and with the durable end, and a segment with its seal where a gap lies before the end. The walk
is that of recovery (`recovery.py`), and so is the verdict: a torn tail ends the log, anything else is damage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import takewhile
from typing import NamedTuple

from logstore.config import LogConfig
from logstore.disk.files import Disk, File, read_small_file
from logstore.errors import CorruptSeal, DamagedLog
from logstore.format.batch import HEADER_BYTES
from logstore.log.loading import offset_in, was_compacted
from logstore.segment.damage import Verdict, check_leap, find_batch, judge, was_rewritten
from logstore.segment.indexes import TimeIndex
from logstore.segment.scan import Fault, Scanned, check_end, check_history, scan
from logstore.segment.seal import SEAL_SUFFIX, Seal, compared_blocks, read_seal
from logstore.segment.segment import LOG_SUFFIX, file_name


class Source(NamedTuple):
    """The directory of a log: the sizes of its files by name, and what its checkpoints say."""

    disk: Disk
    directory: str
    sizes: Mapping[str, int]
    bases: list[int]
    log_start_offset: int
    durable_end: int
    first_dirty_offset: int

    def path(self, base_offset: int) -> str:
        """Return the path of a segment."""
        return f"{self.directory}/{file_name(base_offset, LOG_SUFFIX)}"

    def following(self, base_offset: int) -> int | None:
        """Return the base of the next segment; None for the last one."""
        number = bisect_right(self.bases, base_offset)
        return self.bases[number] if number < len(self.bases) else None


class End(NamedTuple):
    """A snapshot ends at byte `position` of its last segment, at `next_offset`."""

    position: int
    next_offset: int


def sizes_in(disk: Disk, directory: str) -> dict[str, int]:
    """Return the sizes of the files in `directory` by name. Raises `OSError`."""
    return {entry.name: entry.size for entry in disk.scan(directory) if not entry.is_directory}


def logs_among(names: Iterable[str]) -> dict[int, str]:
    """Return the names that segments have, by base offset. Pure."""
    logs = (name for name in names if name.endswith(LOG_SUFFIX))
    return {offset: name for name in logs if (offset := offset_in(name)) is not None}


def end_in(source: Source, base_offset: int, end_offset: int | None) -> End:
    """Return where a snapshot up to `end_offset` (None: the end of the log) ends in this segment.

    A batch that holds `end_offset` is left out. Raises `DamagedLog` for damage below it, and `OSError`.
    """
    with closing(source.disk.open(source.path(base_offset))) as file:
        size = file.size()
        end = End(0, base_offset)
        for found in _walked(source, file, size, base_offset):
            kept = len(found.headers)
            if end_offset is not None:
                kept = int((found.last_offsets < end_offset).sum())
            if kept:
                end = End(found.end, int(found.last_offsets[kept - 1]) + 1)
            if kept < len(found.headers):
                end = End(int(found.positions[kept]), end.next_offset)
                # Past a gap, its offset may be wrong; else it holds the end.
                if end.next_offset < min(int(found.headers["base_offset"][kept]), end_offset or 0):
                    _check_seal(source, file, base_offset, end, end.position + HEADER_BYTES)
                return end
            if found.fault is not None:
                if end_offset is None or end.next_offset < end_offset:
                    _refuse_damage(source, file, base_offset, end, found.fault)
                return end
        if end_offset is not None and end.next_offset < end_offset:
            _check_seal(source, file, base_offset, end, size)
        return end


def time_in(source: Source, timestamp_ms: int) -> int | None:
    """Return the first batch's base offset, or the log start in it, with a record at or past `timestamp_ms`.

    None if no batch has one. What lies below the log start does not count. Raises `DamagedLog` for damage
    before that batch, and `OSError`.
    """
    start = source.log_start_offset
    for base_offset in source.bases:
        following = source.following(base_offset)
        if following is not None and following <= start:
            continue
        with closing(source.disk.open(source.path(base_offset))) as file:
            end, size = End(0, base_offset), file.size()
            for found in _walked(source, file, size, base_offset):
                lasts = found.last_offsets
                late = ((found.headers["max_timestamp"] >= timestamp_ms) & (lasts >= start)).nonzero()[0]
                if len(late):
                    return max(int(found.headers["base_offset"][int(late[0])]), start)
                if len(lasts):
                    end = End(found.end, int(lasts[-1]) + 1)
                if found.fault is not None:
                    _refuse_damage(source, file, base_offset, end, found.fault)
            _check_seal(source, file, base_offset, End(0, base_offset), size)
    return None


def _walked(source: Source, file: File, size: int, base_offset: int) -> Iterator[Scanned]:
    """Walk the batches of a segment up to the first that does not fit the log, whose fault comes last."""
    following = source.following(base_offset)
    # Only the active segment is never compacted.
    is_dense = following is None and file_name(base_offset, SEAL_SUFFIX) not in source.sizes
    next_offset = base_offset
    for found in scan(file, 0, size, base_offset=base_offset):
        found = check_history(
            found,
            (),
            next_offset=next_offset,
            durable_end=source.durable_end,
            is_dense=is_dense,
            log_start_offset=source.log_start_offset,
        )
        if following is not None:
            found = check_end(found, base_offset, following)
        found = _without_leap(found, file, size, next_offset)
        if len(found.headers):
            next_offset = int(found.last_offsets[-1]) + 1
        yield found
        if found.fault is not None:
            return


def _without_leap(found: Scanned, file: File, size: int, next_offset: int) -> Scanned:
    """Cut `found` before its last batch if that has leapt past the one behind it.

    The one behind it may be in the next item of the walk, which does not tell yet that offsets do not rise.
    """
    if not len(found.headers) or found.fault not in (None, Fault.OFFSETS):
        return found
    doubtful = found._replace(fault=Fault.OFFSETS)
    cut = check_leap(doubtful, file, size, next_offset, int(found.last_offsets[-1]))
    return cut if len(cut.headers) < len(found.headers) else found


def _refuse_damage(source: Source, file: File, base_offset: int, end: End, fault: Fault) -> None:
    """Raise `DamagedLog` unless the bytes behind `end` are a torn tail of the log."""
    is_last = source.following(base_offset) is None
    follows = find_batch(file, end.position, file.size(), lowest_offset=end.next_offset)
    was_durable = end.next_offset < source.durable_end
    if judge(fault, is_end=is_last and follows is None, below_durable=was_durable) is Verdict.DAMAGE:
        why = "a later segment follows" if not is_last else "it was durable"
        why = "intact batches follow" if follows is not None else why
        raise _damaged(source, base_offset, end, f"{fault.value}), and {why}")


def _check_seal(source: Source, file: File, base_offset: int, end: End, until: int) -> None:
    """Compare a segment with its seal up to byte `until`. Raises `DamagedLog`, `OSError`.

    The seal beside the last segment may be a leftover, and a damaged one proves nothing.
    """
    following = source.following(base_offset)
    if following is None:
        return
    try:
        seal = read_seal(source.disk, source.directory, base_offset)
    except CorruptSeal:
        return
    if seal is None or _is_as_sealed(file, seal, until):
        return
    times = read_small_file(source.disk, f"{source.directory}/{file_name(base_offset, TimeIndex.suffix)}")
    is_compacted = was_compacted(LogConfig(), source.first_dirty_offset, source.bases[0])
    if not was_rewritten(file, file.size(), seal, following, is_compacted=is_compacted, times=times):
        raise _damaged(source, base_offset, end, "the segment differs from its seal)")


def _is_as_sealed(file: File, seal: Seal, until: int) -> bool:
    if file.size() != seal.size:
        return False
    blocks = takewhile(lambda block: block[0] < until, compared_blocks(file, seal))
    return all(is_right for _, _, is_right in blocks)


def _damaged(source: Source, base_offset: int, end: End, why: str) -> DamagedLog:
    return DamagedLog(
        f"{source.path(base_offset)} is damaged at byte {end.position}, offset {end.next_offset} ({why}. "
        f"Repair or recover the log, or name an end offset of at most {end.next_offset}"
    )
