"""`Logs` over bare directories: log dirs and partition directories, with or without a running owner.

    path=/data/node1,  load([…, …]),  globs        a log dir: its partitions; a partition's directory: itself
      orders-0  orders-1  …                        one partition in several of them: copies; the one with the
      replication-offset-checkpoint                newest (leader epoch, log end offset) is read

A partition is read up to the last checkpointed high watermark; without one, to its end, with a warning. Below
the high watermark copies agree, so a log that ends below it has lost records, and that is reported. For
committed reads the end is the last stable offset (`directory_files.py`).

Files are read as `LogReader` reads them: the owner may append, roll, delete, compact and truncate meanwhile.
Nothing is written, locked or mapped.
"""

from __future__ import annotations

import glob
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from logstore.arguments import as_directory
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    find_checkpointed_offset,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
)
from logstore.checkpoint.identity import META_PROPERTIES, read_partition_metadata
from logstore.config import MAX_LONG
from logstore.disk.copying import is_there
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, OsDisk, read_small_file
from logstore.disk.topic_partition import TopicPartition, parse_directory_name, partitions_among
from logstore.errors import DamagedLog, LogDirOffline, LogGone, OffsetOutOfRange
from logstore.log.reader import has_owner
from logstore.log.stretches import Stretch, StretchReader
from logstore.segment.damage import Verdict, judge
from logstore.segment.scan import Fault
from logstore.segment.segment import LOG_SUFFIX
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.columns import SEGMENT
from logstore.spark.counting import Count
from logstore.spark.directory_files import DirectoryTransactions, SegmentFiles, sound_stretches
from logstore.spark.errors import InvalidOption, UnknownTopic
from logstore.spark.logs import LOGGER, Bounds, Cause, Headers, Missing, OffsetRange
from logstore.spark.read_options import Isolation, local_path
from logstore.spark.stretch_rows import first_as_young, stretch_rows

_TAIL_BYTES: Final = 1 << 20

_Marks = dict[str, Mapping[TopicPartition, int]]
"""The checkpointed high watermarks, by log dir."""


class _End(NamedTuple):
    """The bounds of a copy; its leader epoch is -1 if no batch has one."""

    leader_epoch: int
    log_start_offset: int
    log_end_offset: int


@dataclass(slots=True)
class _Copy:
    """The state of one directory between calls; `reader` is at its end."""

    transactions: DirectoryTransactions
    reader: StretchReader | None = None
    leader_epoch: int = -1


class _Chosen(NamedTuple):
    """The directory to read and its bounds; `is_settled`: final until the next checkpoint."""

    directory: str
    bounds: Bounds
    is_settled: bool


class DirectoryLogs:
    """The `Logs` of the directories in `paths`: local or mounted, globs among them.

    A missing directory raises `LogGone`, an unreadable one `LogDirOffline`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        disk: Disk | None = None,
        on_batches: Callable[[Headers], None] | None = None,
    ) -> None:
        self._disk, self._on_batches = disk or OsDisk(), on_batches
        self._paths = list(dict.fromkeys(expanded for path in paths for expanded in expand(path)))
        self._isolation = isolation
        self._copies: dict[str, _Copy] = {}
        self._listed: Mapping[TopicPartition, Sequence[str]] = {}
        """the directories of every partition as they were last listed"""
        self._warned: set[str] = set()
        self._marks: _Marks = {}
        """the high watermarks as `bounds` last read them"""
        self._settled: dict[TopicPartition, Bounds] = {}
        """bounds that reach up to these; they stay until another one is checkpointed"""

    def close(self) -> None:
        self._copies.clear()

    # --- partitions and bounds ------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        return sorted(self._find())

    def _find(self) -> Mapping[TopicPartition, Sequence[str]]:
        """Return the directories of every partition."""
        found: defaultdict[TopicPartition, list[str]] = defaultdict(list)
        for path in self._paths:
            try:
                entries = self._disk.scan(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise LogGone(
                    f"{path} is not a directory; name a log dir or a partition's directory"
                ) from error
            except OSError as error:
                raise LogDirOffline(f"{path} is unreadable: {error}. Check its permissions") from error
            if any(entry.name.endswith(LOG_SUFFIX) and not entry.is_directory for entry in entries):
                found[parse_directory_name(path.rpartition("/")[2])].append(path)
                continue
            for partition, name in partitions_among(each.name for each in entries if each.is_directory):
                found[partition].append(f"{path}/{name}")
        self._listed = {partition: list(dict.fromkeys(places)) for partition, places in found.items()}
        return self._listed

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        marks: _Marks = {}
        for log_dir in self._marks:
            self._read_marks(log_dir, marks)
        if marks != self._marks:
            self._settled.clear()
        unsettled = [each for each in partitions if each not in self._settled]
        places = self._find() if unsettled else {}
        chosen = {each: self._choose(each, places, marks) for each in unsettled}
        self._marks = marks
        self._settled |= {each: found.bounds for each, found in chosen.items() if found.is_settled}
        return {each: chosen[each].bounds if each in chosen else self._settled[each] for each in partitions}

    def _choose(
        self, partition: TopicPartition, places: Mapping[TopicPartition, Sequence[str]], marks: _Marks
    ) -> _Chosen:
        directories = places.get(partition)
        if not directories:
            raise UnknownTopic(f"{partition} does not exist in {', '.join(self._paths)}: deleted or moved")
        # High watermarks first: records that a running owner commits later are above them.
        known = {each: self._high_watermark(partition, each, marks) for each in directories}
        ends = {each: self._end(each) for each in directories}
        best = max(directories, key=lambda each: (ends[each].leader_epoch, ends[each].log_end_offset))
        leader_epoch, start, end = ends[best]
        committed = {each: mark for each, mark in known.items() if mark is not None}
        if committed:
            # The high watermark of a copy with an older leader epoch does not prove where this one ends.
            same = [mark for each, mark in committed.items() if ends[each].leader_epoch == leader_epoch]
            end = max(min(end, max(committed.values())), max(same, default=0))
        elif best not in self._warned and self._is_owned(best):
            self._warned.add(best)
            LOGGER.warning(
                "%s: no high watermark is checkpointed for it; reading to its end, which may include records "
                "that were never committed",
                best,
            )
        elif not has_owner(self._disk, best):
            # Nobody writes there: what is no torn tail is damage, which the reader of the records reports.
            end += self._has_bad_end(best)
        end = max(end, start)
        is_settled = bool(committed) and end >= max(committed.values())
        if self._isolation is Isolation.READ_COMMITTED:
            end = max(self._copies[best].transactions.last_stable_offset(end), start)
        return _Chosen(best, Bounds(start, end), is_settled)

    def directory(self, partition: TopicPartition) -> str:
        """Return the directory that a partition is read from. Raises `UnknownTopic`."""
        known = self._listed.get(partition, ())
        # A partition that has moved or was deleted is looked for again; to list all of them takes longer.
        is_listed = known and all(is_there(self._disk, each) for each in known)
        places = self._listed if is_listed else self._find()
        directories = places.get(partition, ())
        return directories[0] if len(directories) == 1 else self._choose(partition, places, {}).directory

    def topic_ids(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        found = {}
        for each in partitions:
            with suppress(UnknownTopic):
                found[each] = read_partition_metadata(self._disk, self.directory(each))
        return {each: topic_id for each, topic_id in found.items() if topic_id}

    def later_epochs(self, partition: TopicPartition, epoch: int) -> Sequence[tuple[int, int]]:
        directory = self.directory(partition)
        try:
            history = read_leader_epoch_checkpoint(self._disk, directory)
        except (CorruptCheckpoint, OSError) as error:
            LOGGER.warning("cannot read the leader epochs of %s: %s", directory, error)
            history = []
        return [each for each in history if each[0] > epoch]

    def _high_watermark(self, partition: TopicPartition, directory: str, marks: _Marks) -> int | None:
        log_dir = directory.rpartition("/")[0]
        if log_dir not in marks:
            self._read_marks(log_dir, marks)
        return marks[log_dir].get(partition)

    def _read_marks(self, log_dir: str, marks: _Marks) -> None:
        try:
            marks[log_dir] = read_offset_checkpoint(self._disk, log_dir, HIGH_WATERMARK_CHECKPOINT)
        except (CorruptCheckpoint, OSError) as error:
            LOGGER.warning("cannot read the high watermarks of %s: %s", log_dir, error)
            marks[log_dir] = {}

    def _has_bad_end(self, directory: str) -> bool:
        """Return whether damaged bytes lie behind the last batch of a copy whose `_end` was found."""
        reader = self._copy(directory).reader
        tail = None if reader is None else reader.tail
        return tail is not None and judge(tail.fault, is_end=True, below_durable=None) is Verdict.DAMAGE

    def _is_owned(self, directory: str) -> bool:
        """Return whether the directory belongs to a node; a stand-alone log does not."""
        return read_small_file(self._disk, f"{directory.rpartition('/')[0]}/{META_PROPERTIES}") is not None

    def _copy(self, directory: str) -> _Copy:
        if directory not in self._copies:
            self._copies[directory] = _Copy(DirectoryTransactions(self._disk, directory))
        return self._copies[directory]

    def _end(self, directory: str) -> _End:
        """Return the bounds of a copy now, reading only what was appended since the last call."""
        copy = self._copy(directory)
        starts = self._near_end(directory)
        while True:
            start = None
            is_new, found = copy.reader is None, False
            if copy.reader is None:
                copy.leader_epoch, start = -1, next(starts, None)
                copy.reader = StretchReader(
                    directory, start_offset=start, disk=self._disk, stretch_bytes=_TAIL_BYTES
                )
            try:
                # The reader of the records reports damage; only the end matters here.
                for stretch in sound_stretches(copy.reader):
                    found = True
                    copy.leader_epoch = max(copy.leader_epoch, int(stretch.headers["leader_epoch"].max()))
            except OffsetOutOfRange:
                copy.reader = None  # truncated, or an index has offsets that a power cut took from the log
                continue
            if is_new and not found:
                if start is not None:
                    copy.reader = None  # the last batch, which has the leader epoch, is further up
                    continue
                copy.leader_epoch = self._listed_epoch(directory)
            start, end = copy.reader.log_start_offset, copy.reader.log_end_offset
            return _End(copy.leader_epoch, max(start, 0), max(start, end, 0))

    def _near_end(self, directory: str) -> Iterator[int]:
        """Yield offsets at which to begin to look for the end of the log, the nearest one first."""
        files = SegmentFiles(self._disk, directory)
        for base_offset, _ in reversed(files.segments()):
            indexed = files.offset_index(base_offset).offsets
            if len(indexed):
                yield int(indexed[-1])
            yield base_offset

    def _listed_epoch(self, directory: str) -> int:
        """Return the last leader epoch of a log without a batch; -1 if it is not known."""
        try:
            entries = read_leader_epoch_checkpoint(self._disk, directory)
        except CorruptCheckpoint as error:
            LOGGER.warning("cannot read the leader epochs of %s: %s", directory, error)
            return -1
        except OSError as error:
            raise LogDirOffline(
                f"{directory} is unreadable: {error}. Check the disk and its permissions"
            ) from error
        return entries[-1][0] if entries else -1

    # --- cut points and times -------------------------------------------------------------------------------

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        files = SegmentFiles(self._disk, self.directory(wanted.topic_partition))
        segments = files.segments()
        offsets, places, size_before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for slot, (base_offset, size) in enumerate(segments):
            is_below = slot + 1 < len(segments) and segments[slot + 1].base_offset <= wanted.start_offset
            if is_below or base_offset >= wanted.end_offset:
                continue
            indexed = files.offset_index(base_offset)
            # An entry has the last offset of its batch; the next batch begins after it.
            offsets.append(np.concatenate(([base_offset], indexed.offsets + 1)))
            places.append(np.concatenate(([0], indexed.positions)) + size_before)
            size_before += size
        begins, at = np.concatenate(offsets), np.concatenate(places)
        inside = (begins >= wanted.start_offset) & (begins < wanted.end_offset)
        begins, at = begins[inside], at[inside]
        if len(at) < 2:
            return [int(begin) for begin in begins]
        first, last = int(at[0]), int(at[-1])
        targets = [first + (last - first) * piece // pieces for piece in range(1, pieces)]
        return [int(begins[slot]) for slot in near(at.tolist(), targets)]

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        places = self._find()
        marks: _Marks = {}
        found: dict[TopicPartition, int | None] = {}
        for partition, time_ms in times_ms.items():
            directory, bounds, _ = self._choose(partition, places, marks)
            found[partition] = self._offset_by_time(directory, bounds, time_ms)
        return found

    def _offset_by_time(self, directory: str, bounds: Bounds, time_ms: int) -> int | None:
        files = SegmentFiles(self._disk, directory)
        bases = [base for base, _ in files.segments()]
        synced = find_checkpointed_offset(self._disk, directory, RECOVERY_POINT_CHECKPOINT)
        for base_offset, next_base in pairwise([*bases, MAX_LONG]):
            index = files.time_index(base_offset)
            end = min(next_base, bounds.end_offset)
            # The last entry of a rolled segment has its latest time. The active segment has no such entry
            # yet, and an index that was not synced may have lost it.
            is_whole = next_base <= (MAX_LONG - 1 if synced is None else synced)
            if is_whole and len(index.times_ms) and index.times_ms[-1] < time_ms:
                continue
            older = int(np.searchsorted(index.times_ms, time_ms)) - 1
            start = max(base_offset, bounds.start_offset, int(index.offsets[older]) if older >= 0 else 0)
            if start < end:
                offset = self._first_as_young(directory, start, end, time_ms)
                if offset is not None:
                    return offset
        return None

    def _first_as_young(self, directory: str, start: int, end: int, time_ms: int) -> int | None:
        for stretch in self._stretches(directory, OffsetRange("", 0, start, end), []):
            offset = first_as_young(stretch, time_ms, start, end)
            if offset is not None:
                return offset
        return None

    # --- rows -----------------------------------------------------------------------------------------------

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        try:
            directory = self.directory(wanted.topic_partition)
        except UnknownTopic as error:
            missing.append(wanted.lost(wanted.start_offset, wanted.end_offset, Cause.EXPIRED, str(error)))
            return
        aborted: Sequence[AbortedTransaction] = ()
        if self._isolation is Isolation.READ_COMMITTED:
            transactions = self._copy(directory).transactions
            aborted = transactions.aborted(wanted.start_offset, wanted.end_offset)
        read = tuple(name for name in columns if name != SEGMENT) or ("offset",)
        count = Count(wanted)
        counted = 0
        for stretch in self._stretches(directory, wanted, missing):
            for lost in missing[counted:]:
                count.skip_to(lost.end_offset)
                # The batch at the log start may begin below it, with deleted records.
                wanted = replace(wanted, start_offset=max(wanted.start_offset, lost.end_offset))
            counted = len(missing)
            for batch in stretch_rows(stretch, wanted, read, aborted, missing, count, by_headers=True):
                yield _with_segment(batch, columns, stretch.base_offset) if SEGMENT in columns else batch
            if self._on_batches is not None:
                self._on_batches(stretch.headers)
            counted = len(missing)
            del stretch  # before the next read, as in `stretches.py`
        missing.extend(count.missing())

    def stretches(self, wanted: OffsetRange, missing: list[Missing]) -> Iterator[Stretch]:
        """Yield the batches that have wanted offsets, as stored; add those that are lost to `missing`."""
        return self._stretches(self.directory(wanted.topic_partition), wanted, missing)

    def _stretches(self, directory: str, wanted: OffsetRange, missing: list[Missing]) -> Iterator[Stretch]:
        """Yield the stretches with the wanted offsets; add those that are lost to `missing`."""
        end = wanted.end_offset
        reader: StretchReader | None = None

        def lose(first: int, until: int, cause: Cause, detail: str = "", *, is_free: bool = False) -> None:
            first, until = max(first, wanted.start_offset), min(until, end)
            # Damage that costs no offset (a batch that is there twice, bytes between segments) is told too.
            if first < until or (is_free and first == until):
                missing.append(wanted.lost(first, until, cause, detail))

        offset = wanted.start_offset
        while offset < end:
            try:
                reader = reader or StretchReader(directory, start_offset=offset, disk=self._disk)
                for stretch in reader.stretches():
                    yield stretch
                    offset = stretch.next_offset
                    if offset >= end:
                        return
                    del stretch
                tail = reader.tail
                is_torn = tail is None or tail.fault is Fault.TORN
                detail = "" if tail is None else f"{tail.file} at byte {tail.position}: {tail.fault.value}"
                lose(offset, end, Cause.TRUNCATED if is_torn else Cause.DAMAGED, detail)
                return
            except OffsetOutOfRange as error:
                assert reader is not None
                if error.offset >= error.log_start_offset:
                    lose(error.offset, end, Cause.TRUNCATED)
                    return
                lose(error.offset, error.log_start_offset, Cause.EXPIRED)
                offset = error.log_start_offset
                reader.seek(offset)
            except LogGone as error:
                lose(offset, end, Cause.EXPIRED, str(error))
                return
            except DamagedLog as error:
                skipped = None if reader is None else reader.skip_damage()
                if reader is None or skipped is None:
                    raise
                is_free = skipped.start_offset == skipped.end_offset
                first = max(skipped.start_offset, offset)
                lose(first, skipped.end_offset, Cause.DAMAGED, str(error), is_free=is_free)
                offset = reader.next_offset


def expand(path: str) -> list[str]:
    """Return the directories of a path: without its `file:`, and with `*`, `?` and `[…]` expanded.

    Raises `InvalidOption` for another file system, and if nothing matches.
    """
    local = local_path(path)
    if local is None:
        raise InvalidOption(
            f"path {path!r} is on another file system: mount it on every executor and name the mounted "
            "directory"
        )
    path = as_directory(local)  # the checkpoints of a partition's directory are in the one above it
    if not glob.has_magic(path):
        return [path]
    found = sorted(each.rstrip("/") for each in glob.glob(path))
    if not found:
        raise InvalidOption(f"nothing matches path {path!r}; name a log dir or a partition's directory")
    return found


def near(places: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the slots of the places nearest to each of `wanted`, ascending, each once; both ascend."""
    found: list[int] = []
    for target in wanted:
        slot = bisect_left(places, target)
        if slot == len(places) or (slot and target - places[slot - 1] <= places[slot] - target):
            slot -= 1
        if slot >= 0 and (not found or slot > found[-1]):
            found.append(slot)
    return found


def _with_segment(rows: Any, columns: Sequence[str], base_offset: int) -> Any:
    import pyarrow as pa

    column = pa.repeat(pa.scalar(base_offset, pa.int64()), rows.num_rows)
    made = {**dict(zip(rows.schema.names, rows.columns, strict=True)), SEGMENT: column}
    return pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))
