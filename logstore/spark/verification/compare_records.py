"""Compare the replicas of a compacted partition record by record: each node compacts independently.

    offset      0    1    2    3    4          key     a    b    a    c    b
    node 1      a0   b1   a2   c3   b4         not compacted yet
    node 2                a2   c3   b4         equal: later records have the keys of 0 and 1

Two replicas must have the same record, of the same leader epoch, at an offset. A record that one of them
lacks must be one that compaction may remove: an earlier record of a key that has a later one below the
cleaners' checkpoint, a record without a key, a tombstone, or a record of an aborted transaction. (The files
do not show when a tombstone may be removed, which depends on time and settings. Markers are not compared.)
Keys are compared whole, not by hash.

Memory: each key of the partition once, and the records of one stretch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.columnar import columnar
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk, read_small_file
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import LOG_OVERHEAD
from logstore.segment.segment import file_name
from logstore.segment.transaction_index import AbortedTransaction, TransactionIndex
from logstore.spark.verification.check import Kept, Kind, examine
from logstore.spark.verification.compare import UNDECIDED, Difference, Place, run_over
from logstore.spark.verification.planning import Replica, Run

SPAN_BYTES: Final = 4 << 20
COLUMNS: Final = ("offset", "key", "value", "timestamp", "headers", "timestamp_type", "leader_epoch")
MOST_CONTRADICTIONS: Final = 100


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """A task: compare these replicas (number → replica, number → its end) in these stretches of offsets.

    Below `cleaned_to`, some replica may have been compacted.
    """

    replicas: Mapping[int, Replica]
    ends: Mapping[int, int]
    stretches: tuple[tuple[int, int], ...]
    cleaned_to: int

    @property
    def topic_partition(self) -> TopicPartition:
        return next(iter(self.replicas.values())).topic_partition

    def __str__(self) -> str:
        return f"{self.topic_partition}, records of {len(self.stretches)} stretches"


def compare_records(disk: Disk, work: RecordComparison) -> list[Difference]:
    """Return every difference that compaction does not explain, in offset order.

    Raises `EngineError` for records of a sound batch that cannot be decoded.
    """
    latest = _latest(disk, work)
    found: list[Difference] = []
    for start, end in work.stretches:
        sides = {
            number: _Records(disk, number, replica, start, end)
            for number, replica in sorted(work.replicas.items())
            if replica.log_start_offset < end
        }
        found += _compare(sides, work, latest, start, end)
    return found


def _latest(disk: Disk, work: RecordComparison) -> Any:
    """Return each key with its last offset below `cleaned_to` in any replica, as two columns."""
    parts: list[Any] = []
    for number, replica in sorted(work.replicas.items()):
        run = run_over(number, replica, 0, work.cleaned_to)
        rows: list[Any] = []
        for batch in _decoded(
            disk, replica, run, examine(disk, run).kept, 0, work.cleaned_to, ("key", "offset")
        ):
            rows.append(_last_of_keys(pa.Table.from_batches([batch])))
            if len(rows) >= 64:
                rows = [_last_of_keys(pa.concat_tables(rows))]
        parts += rows
    empty = pa.table({"key": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})
    return _last_of_keys(pa.concat_tables([empty, *parts]))


def _last_of_keys(rows: Any) -> Any:
    grouped = rows.group_by("key").aggregate([("offset", "max")])
    return pa.table({"key": grouped.column("key"), "offset": grouped.column("offset_max")})


def _decoded(
    disk: Disk, replica: Replica, run: Run, kept: Kept, start: int, end: int, columns: Sequence[str]
) -> Iterator[Any]:
    """Yield the records of the kept batches, without those of aborted transactions."""
    aborted = _aborted(disk, replica)
    sizes = kept.headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
    follows = np.zeros(len(sizes), np.bool_)
    follows[1:] = (kept.segments[1:] == kept.segments[:-1]) & (
        kept.positions[1:] == (kept.positions + sizes)[:-1]
    )
    first = 0
    while first < len(sizes):
        last, size = first + 1, int(sizes[first])
        while last < len(sizes) and follows[last] and size < SPAN_BYTES:
            size += int(sizes[last])
            last += 1
        with closing(disk.open(run.path(int(kept.segments[first])))) as file:
            data = file.pread(size, int(kept.positions[first]))
        yield from columnar.decode(data, columns=columns, start_offset=start, end_offset=end, aborted=aborted)
        first = last


def _aborted(disk: Disk, replica: Replica) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for segment in replica.segments:
        data = read_small_file(disk, f"{replica.directory}/{file_name(segment.base_offset, '.txnindex')}")
        if data:
            try:
                found += TransactionIndex.decode(data, base_offset=segment.base_offset).entries
            except EngineError:
                continue  # derived data: a record that it hides appears as a difference
    return found


class _Records:
    """One replica's records in a stretch, and the damaged offsets, which are not compared."""

    def __init__(self, disk: Disk, number: int, replica: Replica, start: int, end: int) -> None:
        self.replica, self.run = replica, run_over(number, replica, start, end)
        found = examine(disk, self.run)
        self.lost = found.lost
        self.kept = found.kept.among((found.kept.ends > start) & (found.kept.bases < end))
        batches = list(_decoded(disk, replica, self.run, self.kept, start, end, COLUMNS))
        self.rows: Any = pa.Table.from_batches(batches, columnar.schema(COLUMNS)).combine_chunks()
        self.offsets: npt.NDArray[np.int64] = self.rows.column("offset").to_numpy()

    def covers(self, offsets: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.bool_]:
        """Return which of the offsets the replica would have if compaction had removed nothing."""
        covered: npt.NDArray[np.bool_] = (offsets >= self.replica.log_start_offset) & (offsets < end)
        for first, last in self.lost:
            covered &= (offsets < first) | (offsets >= last)
        return covered

    def place(self, offset: int) -> Place:
        slot = int(np.searchsorted(self.kept.bases, offset, "right")) - 1
        at = int(np.searchsorted(self.offsets, offset))
        is_there = at < len(self.offsets) and self.offsets[at] == offset
        epoch = int(self.rows.column("leader_epoch")[at].as_py()) if is_there else -1
        path, position = self.run.path(0), 0
        if slot >= 0:
            path, position = self.run.path(int(self.kept.segments[slot])), int(self.kept.positions[slot])
        return Place(self.replica.node, path, position, epoch, f"epoch {epoch}" if is_there else "nothing")


def _compare(
    sides: Mapping[int, _Records], work: RecordComparison, latest: Any, start: int, end: int
) -> list[Difference]:
    offsets = np.unique(np.concatenate([np.empty(0, np.int64), *(side.offsets for side in sides.values())]))
    wrong: dict[int, tuple[Kind, tuple[int, ...], str]] = {}
    for number, side in sides.items():
        lacking = offsets[~np.isin(offsets, side.offsets) & side.covers(offsets, work.ends[number])]
        for offset in _unexplained(lacking, sides, latest).tolist():
            known = wrong.get(offset, (Kind.MISSING, (), ""))
            why = "it has no record there, and compaction does not explain that"
            wrong[offset] = (Kind.MISSING, (*known[1], number), why)
    for offset, numbers in _contradictions(sides).items():
        wrong[offset] = _judged(sides, offset, numbers)
    found = []
    for at, offset in enumerate(offsets.tolist()):
        if offset not in wrong:
            continue
        kind, odd, why = wrong[offset]
        # Up to the next record if that is wrong too: compaction removed the offsets between them.
        following = int(offsets[at + 1]) if at + 1 < len(offsets) else -1
        end_offset = following if following in wrong else offset + 1
        places = {number: side.place(offset) for number, side in sides.items()}
        epochs = [place.epoch for place in places.values() if place.epoch >= 0]
        found.append(Difference(kind, offset, end_offset, 1, epochs[0] if epochs else -1, odd, why, places))
    return found


def _unexplained(
    lacking: npt.NDArray[np.int64], sides: Mapping[int, _Records], latest: Any
) -> npt.NDArray[np.int64]:
    """Return the offsets whose records compaction had to keep."""
    left = lacking
    for side in sides.values():
        here = np.flatnonzero(np.isin(side.offsets, left))
        if not len(here):
            continue
        rows = side.rows.take(pa.array(here))
        keys, values = rows.column("key"), rows.column("value")
        slots = pc.index_in(keys, value_set=latest.column("key"))
        last = latest.column("offset").take(slots)
        superseded = pc.fill_null(pc.greater(last, rows.column("offset")), False)
        explained = pc.or_(pc.or_(superseded, pc.is_null(keys)), pc.is_null(values)).to_numpy(
            zero_copy_only=False
        )
        left = left[~np.isin(left, side.offsets[here[explained]])]
    return left


def _contradictions(sides: Mapping[int, _Records]) -> dict[int, list[int]]:
    """Return the offsets at which replicas have different records, and the numbers of those replicas."""
    found: dict[int, list[int]] = {}
    numbers = list(sides)
    for at, number in enumerate(numbers):
        for other in numbers[at + 1 :]:
            one, two = sides[number], sides[other]
            common = np.intersect1d(one.offsets, two.offsets, assume_unique=True)
            left = one.rows.take(pa.array(np.searchsorted(one.offsets, common)))
            right = two.rows.take(pa.array(np.searchsorted(two.offsets, common)))
            for row in _unequal_rows(left, right, 0, len(common)):
                offset = int(common[row])
                if len(found) >= MOST_CONTRADICTIONS and offset not in found:
                    return found
                found[offset] = sorted({*found.get(offset, ()), number, other})
    return found


def _unequal_rows(left: Any, right: Any, first: int, last: int) -> Iterator[int]:
    """Yield the rows that differ, by bisection: equal parts are compared once, as a whole."""
    if left.slice(first, last - first).equals(right.slice(first, last - first)):
        return
    if last - first == 1:
        yield first
        return
    middle = (first + last) // 2
    yield from _unequal_rows(left, right, first, middle)
    yield from _unequal_rows(left, right, middle, last)


def _judged(
    sides: Mapping[int, _Records], offset: int, numbers: Sequence[int]
) -> tuple[Kind, tuple[int, ...], str]:
    """Return the replicas with the wrong record: a minority, if at least three have one."""
    rows = {}
    for number, side in sides.items():
        at = int(np.searchsorted(side.offsets, offset))
        if at < len(side.offsets) and side.offsets[at] == offset:
            rows[number] = side.rows.slice(at, 1).to_pylist()[0]
    texts = {number: repr(row) for number, row in rows.items()}
    without_epoch = {repr({**row, "leader_epoch": 0}) for row in rows.values()}
    kind = Kind.LEADER_EPOCH if len(without_epoch) == 1 else Kind.RECORDS
    most, count = Counter(texts.values()).most_common(1)[0]
    if len(texts) >= 3 and 2 * count > len(texts):
        odd = tuple(number for number, text in texts.items() if text != most)
        return kind, odd, f"{count} replicas are equal"
    return kind, (), UNDECIDED
