"""Check the files of a partition: every batch, and every index entry against its log.

A finding is damage if neither a crash nor a running writer can cause it; every other finding is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


@dataclass(slots=True)
class SegmentReport:
    """The result of a segment's verification; offsets are -1 in an empty one.

    The four columns have one row a batch; index entries are checked against them.
    """

    base_offset: int
    size: int = 0
    valid_bytes: int = 0
    record_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    last_epoch: int = -1
    problems: list[Problem] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    base_offsets: list[int] = field(default_factory=list)
    last_offsets: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)

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
            report.positions.append(position)
            report.base_offsets.append(batch.base_offset)
            report.last_offsets.append(batch.last_offset)
            report.max_timestamps.append(batch.max_timestamp_ms)
            report.record_count += batch.record_count
            report.last_epoch = max(report.last_epoch, batch.leader_epoch)
        if problem:
            report.problems.append(Problem(name, position, problem, is_damage=True))
    report.valid_bytes = file.valid_end
    if report.positions:
        report.first_offset, report.last_offset = report.base_offsets[0], report.last_offsets[-1]
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


def verify_offset_index(
    entries: Sequence[tuple[int, int]], name: str, segment: SegmentReport
) -> list[Problem]:
    """Check (offset, position) entries: ascending, each the position of a batch at or before its offset.

    The offset may lie past that batch: a follower of Kafka adds one entry for several batches that it
    appended at once.
    """
    first_offsets = dict(zip(segment.positions, segment.base_offsets, strict=True))
    known_offsets = frozenset(segment.last_offsets)
    problems = []
    before = (-1, -1)
    for slot, (offset, position) in enumerate(entries):
        if offset <= before[0] or position <= before[1]:
            text = f"entry ({offset}, {position}) does not ascend: the entry before it is {before}"
        elif position not in first_offsets:
            text = f"entry ({offset}, {position}) points to a byte at which no batch starts"
        elif first_offsets[position] > offset:
            text = (
                f"entry ({offset}, {position}) points to a batch with base offset {first_offsets[position]}"
            )
        elif offset not in known_offsets:
            text = f"entry ({offset}, {position}) has an offset that is not the last one of a batch"
        else:
            before = (offset, position)
            continue
        problems.append(Problem(name, slot * 8, text, is_damage=True))
    return problems


def verify_time_index(entries: Sequence[tuple[int, int]], name: str, segment: SegmentReport) -> list[Problem]:
    """Check (timestamp, offset) entries: ascending, and no record up to the offset is later."""
    problems = []
    before = (-1, -1)
    batch, latest = 0, -1
    for slot, (timestamp, offset) in enumerate(entries):
        while batch < len(segment.last_offsets) and segment.last_offsets[batch] <= offset:
            latest = max(latest, segment.max_timestamps[batch])
            batch += 1
        if timestamp <= before[0] or offset < before[1]:
            text = f"entry ({timestamp}, {offset}) does not ascend: the entry before it is {before}"
        elif offset > segment.last_offset:
            text = f"entry ({timestamp}, {offset}) is past the segment's last offset {segment.last_offset}"
        elif latest > timestamp:
            text = (
                f"entry ({timestamp}, {offset}) has an earlier time than a record up to its offset, {latest}"
            )
        else:
            before = (timestamp, offset)
            continue
        problems.append(Problem(name, slot * 12, text, is_damage=True))
    return problems


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
    for base_offset in sorted({base_offset for kind, base_offset in asked if kind in _JUDGED}):
        indexes = [
            (kind, data)
            for kind in (Kind.OFFSET_INDEX, Kind.TIME_INDEX)
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


_JUDGED = (Kind.LOG, Kind.OFFSET_INDEX, Kind.TIME_INDEX)


def _verify_segment(
    disk: Disk, directory: str, base_offset: int, previous: SegmentReport | None, *, is_last: bool
) -> SegmentReport | None:
    name = file_name(base_offset, ".log")
    file = open_for_reading(disk, directory, name)
    if file is None:
        return None
    try:
        return verify_log(LogFile(file, base_offset), name, previous=previous, is_last=is_last)
    finally:
        file.close()


def _log_report(segment: SegmentReport) -> FileReport:
    numbers = {
        "batches": len(segment.positions),
        "records": segment.record_count,
        "first_offset": segment.first_offset,
        "last_offset": segment.last_offset if segment.positions else -1,
        "valid_bytes": segment.valid_bytes,
    }
    name = file_name(segment.base_offset, ".log")
    return FileReport(name, Kind.LOG, segment.size, numbers, segment.problems)


def _index_report(kind: Kind, data: bytes, segment: SegmentReport) -> FileReport:
    name = file_name(segment.base_offset, f".{kind}")
    entries = index_entries(data, kind, segment.base_offset)
    judge = verify_offset_index if kind is Kind.OFFSET_INDEX else verify_time_index
    return FileReport(name, kind, len(data), {"entries": len(entries)}, judge(entries, name, segment))
