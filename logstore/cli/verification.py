"""Check the files of a partition: every batch, and every index entry against its log.

A finding is damage if neither a crash nor a running writer can cause it; every other finding is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.cli.inspection import (
    FileRole,
    Kind,
    LogFile,
    index_entries,
    open_for_reading,
    read_whole,
    segment_offsets,
)
from logstore.config import MAX_LONG
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.format.batch import Batch
from logstore.segment.damage import Verdict, judge
from logstore.segment.scan import Fault
from logstore.segment.segment import file_name


class Problem(NamedTuple):
    """A finding in a file at byte `position`."""

    file: str
    position: int
    text: str
    is_damage: bool

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.text}"


class Columns(NamedTuple):
    """The batches of a segment, one row a batch; index entries are checked against them."""

    positions: npt.NDArray[np.int64]
    bases: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


@dataclass(slots=True)
class SegmentReport:
    """The result of a segment's verification; offsets are -1 in an empty one."""

    base_offset: int
    size: int = 0
    valid_bytes: int = 0
    record_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    last_epoch: int = -1
    problems: list[Problem] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def columns(self) -> Columns:
        return Columns(*np.array(self.rows, np.int64).reshape(-1, 4).T)

    @property
    def damage(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.is_damage]


def verify_log(
    file: LogFile, name: str, *, previous: SegmentReport | None = None, is_last: bool = True
) -> SegmentReport:
    """Check every batch of a segment: checksum, records, order of offsets and epochs, and the tail.

    Its offsets have to lie above those of `previous`, the segment before it. A tail that a writer or a crash
    may leave is a note in the last segment and damage in any other.
    """
    report = SegmentReport(file.base_offset, size=file.size)
    report.last_epoch = previous.last_epoch if previous else -1
    next_offset = max(file.base_offset, previous.last_offset + 1 if previous else 0)
    for position, data, fault in file.batches(next_offset=next_offset, leader_epoch=report.last_epoch):
        problem = fault.value if fault else None
        if fault is None:
            batch = Batch(data)
            problem = _unreadable(batch)
            report.rows.append((position, batch.base_offset, batch.last_offset, batch.max_timestamp_ms))
            report.record_count += batch.record_count
            report.last_epoch = max(report.last_epoch, batch.leader_epoch)
        if problem:
            report.problems.append(Problem(name, position, problem, is_damage=True))
    report.valid_bytes = file.valid_end
    if report.rows:
        report.first_offset, report.last_offset = report.rows[0][1], report.rows[-1][2]
    elif previous:
        report.last_offset = previous.last_offset
    if tail := judge_tail(file, name, is_last=is_last):
        report.problems.append(tail)
    return report


def _unreadable(batch: Batch) -> str | None:
    try:
        for _ in batch.records():
            pass
    except EngineError as error:
        return str(error)
    return None


_TAILS = {
    Fault.TORN: "bytes of an incomplete batch",
    Fault.ZEROS: "zero bytes to the end",
    Fault.SIZE: "bytes that are not a batch",
}


def judge_tail(file: LogFile, name: str, *, is_last: bool) -> Problem | None:
    """Judge the bytes behind the last batch; None if there are none."""
    if file.tail is None:
        return None
    intact = None if file.tail is Fault.ZEROS else file.whole_batch_behind(file.valid_end)
    text = f"{file.size - file.valid_end} {_TAILS[file.tail]}"
    if intact is not None:
        text += f", but a whole batch follows at byte {intact}"
    elif not is_last:
        text += ", in a complete segment"
    else:
        text += ": being written now, or torn by a crash"
    verdict = judge(file.tail, is_end=is_last and intact is None, below_durable=None)
    return Problem(name, file.valid_end, text, verdict is Verdict.DAMAGE)


# --- indexes ----------------------------------------------------------------------------------


def verify_index(kind: Kind, data: bytes, base_offset: int, batches: Columns) -> Iterator[tuple[int, str]]:
    """Yield position and text of each entry of an index that contradicts its log."""
    entries = index_entries(data, kind, base_offset)
    table = np.array(entries, np.int64).reshape(-1, 2)
    faults = (_offset_faults if kind is Kind.OFFSET_INDEX else _time_faults)(table, batches)
    wrong: dict[int, str] = {}
    for text, found in faults.items():
        for slot in np.flatnonzero(found).tolist():
            wrong.setdefault(slot, text)
    for slot, text in sorted(wrong.items()):
        yield slot * ENTRY_SIZES[kind], f"entry {entries[slot]} {text}"


def _offset_faults(table: npt.NDArray[np.int64], batches: Columns) -> Mapping[str, npt.NDArray[np.bool_]]:
    """Find (offset, position) entries that do not ascend, or do not name a batch at or before the offset.

    The offset may be the last one of a later batch: a follower of Kafka adds one entry for several batches
    that it appended at once.
    """
    offsets, positions = table.T
    bases = _looked_up(batches.bases, np.searchsorted(batches.positions, positions))
    return {
        "does not ascend": (np.diff(table, axis=0, prepend=-1) <= 0).any(axis=1),
        "points to a byte at which no batch starts": ~np.isin(positions, batches.positions),
        "points to a batch with a later base offset": bases > offsets,
        "has an offset that is not the last one of a batch": ~np.isin(offsets, batches.lasts),
    }


def _time_faults(table: npt.NDArray[np.int64], batches: Columns) -> Mapping[str, npt.NDArray[np.bool_]]:
    """Find (timestamp, offset) entries that do not ascend, or are not the latest time up to their offset."""
    times, offsets = table.T
    slots = np.searchsorted(batches.lasts, offsets)
    latest = _looked_up(np.maximum.accumulate(batches.times), slots)
    return {
        "does not ascend": (np.diff(times, prepend=-1) <= 0) | (np.diff(offsets, prepend=-1) < 0),
        "is past the segment's last offset": slots == len(batches.lasts),
        "is not the latest time up to its offset": (latest != times)
        | (_looked_up(batches.times, slots) != times),
    }


def _looked_up(column: npt.NDArray[np.int64], slots: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return the values at `slots`; the largest number past the end."""
    return np.append(column, MAX_LONG)[slots]


# --- a whole partition ------------------------------------------------------------------------


class FileReport(NamedTuple):
    """The result for one file; `numbers` are facts to print with it."""

    file: str
    kind: Kind
    size: int
    numbers: dict[str, int]
    problems: list[Problem]


def verify_files(disk: Disk, directory: str, files: Sequence[tuple[str, FileRole]]) -> Iterator[FileReport]:
    """Check the live segments and indexes among `files`: segments as one log, an index against its log.

    Indexes are read before the log they point into, so that a running writer cannot make them look ahead
    of it. A file that vanishes is skipped.
    """
    asked = {(role.kind, role.base_offset) for _, role in files if not role.state}
    newest = max(segment_offsets(disk, directory), default=-1)
    previous: SegmentReport | None = None
    kinds = (Kind.LOG, *ENTRY_SIZES)
    for base_offset in sorted({base_offset for kind, base_offset in asked if kind in kinds}):
        indexes = [
            (kind, data)
            for kind in ENTRY_SIZES
            if (kind, base_offset) in asked
            and (data := read_whole(disk, directory, file_name(base_offset, f".{kind}"))) is not None
        ]
        segment = _verify_segment(disk, directory, base_offset, previous, is_last=base_offset >= newest)
        if segment is None:
            continue
        previous = segment
        if (Kind.LOG, base_offset) in asked:
            yield _log_report(segment)
        for kind, data in indexes:
            yield _index_report(kind, data, segment)


ENTRY_SIZES = {Kind.OFFSET_INDEX: 8, Kind.TIME_INDEX: 12}
"""Bytes of an entry of each index."""


def _verify_segment(
    disk: Disk, directory: str, base_offset: int, previous: SegmentReport | None, *, is_last: bool
) -> SegmentReport | None:
    name = file_name(base_offset, ".log")
    file = open_for_reading(disk, directory, name)
    if file is None:
        return None
    with closing(file):
        return verify_log(LogFile(file, base_offset), name, previous=previous, is_last=is_last)


def _log_report(segment: SegmentReport) -> FileReport:
    numbers = {
        "batches": len(segment.rows),
        "records": segment.record_count,
        "first_offset": segment.first_offset,
        "last_offset": segment.last_offset if segment.rows else -1,
        "valid_bytes": segment.valid_bytes,
    }
    name = file_name(segment.base_offset, ".log")
    return FileReport(name, Kind.LOG, segment.size, numbers, segment.problems)


def _index_report(kind: Kind, data: bytes, segment: SegmentReport) -> FileReport:
    name = file_name(segment.base_offset, f".{kind}")
    count = len(index_entries(data, kind, segment.base_offset))
    wrong = verify_index(kind, data, segment.base_offset, segment.columns)
    problems = [Problem(name, position, text, is_damage=True) for position, text in wrong]
    return FileReport(name, kind, len(data), {"entries": count}, problems)
