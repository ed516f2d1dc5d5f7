"""Check the files of a partition: every batch, and every index entry against its log.

A finding is damage if neither a crash nor a running writer can cause it; every other finding is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from logstore.cli.inspection import (
    FileRole,
    Kind,
    LogFile,
    index_entries,
    open_for_reading,
    read_whole,
    segment_offsets,
)
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.format.batch import Batch
from logstore.log.epoch_check import judged_history
from logstore.segment.damage import Verdict, judge
from logstore.segment.epochs import EpochEntry, is_of_its_epoch
from logstore.segment.index_faults import Columns, OffsetFaults, TimeFaults
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
    file: LogFile,
    name: str,
    *,
    previous: SegmentReport | None = None,
    is_last: bool = True,
    history: Sequence[EpochEntry] = (),
) -> SegmentReport:
    """Check every batch of a segment: checksum, records, order of offsets and epochs, and the tail.

    Its offsets have to lie above those of `previous`, the segment before it, and its epochs have to be those
    of `history`, if that is known. A tail that a writer or a crash may leave is a note in the last segment
    and damage in any other.
    """
    report = SegmentReport(file.base_offset, size=file.size)
    report.last_epoch = previous.last_epoch if previous else -1
    next_offset = max(file.base_offset, previous.last_offset + 1 if previous else 0)
    for position, data, fault in file.batches(next_offset=next_offset, leader_epoch=report.last_epoch):
        problem = fault.value if fault else None
        if fault is None:
            batch = Batch(data)
            problem = _unreadable(batch)
            if problem is None and not is_of_its_epoch(batch.base_offset, batch.leader_epoch, history):
                problem = Fault.HISTORY.value
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


MAY_BE_TORN: Final = "being written now, or torn by a crash"
_TAILS = {
    Fault.TORN: "bytes of an incomplete batch",
    Fault.ZEROS: Fault.ZEROS.value,
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
        text += f": {MAY_BE_TORN}"
    verdict = judge(file.tail, is_end=is_last and intact is None, below_durable=None)
    return Problem(name, file.valid_end, text, verdict is Verdict.DAMAGE)


# --- indexes ----------------------------------------------------------------------------------


def verify_index(
    name: str, kind: Kind, data: bytes, base_offset: int, batches: Columns, *, is_last: bool
) -> Iterator[Problem]:
    """Yield each entry of an index that contradicts its log.

    A crash may keep the index of the last segment and lose the end of its log: an entry behind the last
    batch is a note there.
    """
    entries = index_entries(data, kind, base_offset)
    table = np.array(entries, np.int64).reshape(-1, 2)
    judging = (OffsetFaults if kind is Kind.OFFSET_INDEX else TimeFaults)(table)
    if len(batches.lasts):
        judging.add(batches)
    end_offset = int(batches.lasts[-1]) + 1 if len(batches.lasts) else base_offset
    offset_column = 0 if kind is Kind.OFFSET_INDEX else 1
    wrong: dict[int, str] = {}
    for text, found in judging.result().items():
        for slot in np.flatnonzero(found).tolist():
            wrong.setdefault(slot, text)
    for slot, text in sorted(wrong.items()):
        text = f"entry {entries[slot]} {text}"
        is_behind = is_last and entries[slot][offset_column] >= end_offset
        if is_behind:
            text += "; the log ends before it, and opening it rebuilds the index"
        yield Problem(name, slot * ENTRY_SIZES[kind], text, is_damage=not is_behind)


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
    history, _ = judged_history(disk, directory)
    previous: SegmentReport | None = None
    kinds = (Kind.LOG, *ENTRY_SIZES)
    for base_offset in sorted({base_offset for kind, base_offset in asked if kind in kinds}):
        indexes = [
            (kind, data)
            for kind in ENTRY_SIZES
            if (kind, base_offset) in asked
            and (data := read_whole(disk, directory, file_name(base_offset, f".{kind}"))) is not None
        ]
        segment = _verify_segment(
            disk, directory, base_offset, previous, is_last=base_offset >= newest, history=history
        )
        if segment is None:
            continue
        previous = segment
        if (Kind.LOG, base_offset) in asked:
            yield _log_report(segment)
        for kind, data in indexes:
            yield _index_report(kind, data, segment, is_last=base_offset >= newest)


ENTRY_SIZES = {Kind.OFFSET_INDEX: 8, Kind.TIME_INDEX: 12}
"""Bytes of an entry of each index."""


def _verify_segment(
    disk: Disk,
    directory: str,
    base_offset: int,
    previous: SegmentReport | None,
    *,
    is_last: bool,
    history: Sequence[EpochEntry],
) -> SegmentReport | None:
    name = file_name(base_offset, ".log")
    file = open_for_reading(disk, directory, name)
    if file is None:
        return None
    with closing(file):
        return verify_log(
            LogFile(file, base_offset), name, previous=previous, is_last=is_last, history=history
        )


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


def _index_report(kind: Kind, data: bytes, segment: SegmentReport, *, is_last: bool) -> FileReport:
    name = file_name(segment.base_offset, f".{kind}")
    count = len(index_entries(data, kind, segment.base_offset))
    problems = list(verify_index(name, kind, data, segment.base_offset, segment.columns, is_last=is_last))
    return FileReport(name, kind, len(data), {"entries": count}, problems)
