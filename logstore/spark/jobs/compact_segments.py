"""`compact --to segments`: the compacted topics as a log dir, in Kafka's files.

    1. Spark groups by key: the offsets that survive      staged/N/winners/topic=…/partition=…/bucket=…
    2. a task per bucket of offsets filters the batches   staged/N/parts/…
    3. small files of a partition become segments         staged/N/table/orders-0/00…0.log

Spark holds keys and offsets, tasks hold one bucket of offsets: no step needs memory for all keys. Batches are
those of the source without the records that went, and without producers (`survivors.py`), so offsets, leader
epochs, times, headers and codecs stay. The log ends where the source ended: its last batch stays, empty if
need be, as with the cleaner. So offsets are never given to other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    read_leader_epoch_checkpoint,
)
from logstore.checkpoint.identity import PARTITION_METADATA
from logstore.config import MAX_INT, LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import (
    Disk,
    File,
    OsDisk,
    make_durable_dir,
    put_in_place,
    read_small_file,
    wall_clock_ms,
)
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.loggers import logger_of
from logstore.segment.epochs import EpochEntry, LeaderEpochCache
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.spark.jobs.work import Workers, attempt_id
from logstore.spark.logs import Missing, OffsetRange, raise_on_loss
from logstore.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logger_of(__name__)

WINNERS: Final = "winners"
PARTS: Final = "parts"
_COPY_BYTES: Final = 8 << 20


class Shape(NamedTuple):
    """The sizes of segments, in bytes, and of tasks, in offsets."""

    segment_bytes: int
    task_offsets: int


class PartFile(NamedTuple):
    """A file of a task: batches of offsets [base_offset, end_offset)."""

    path: str
    base_offset: int
    end_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The work of a task: filter the batches that begin in `wanted`; `is_first`: or that reach into it.

    `end_offset` is that of the partition.
    """

    wanted: OffsetRange
    is_first: bool
    end_offset: int
    source: ReadOptions
    staging: str
    shape: Shape
    now_ms: int

    def __str__(self) -> str:
        return str(self.wanted)


class Filtered(NamedTuple):
    """The result of a task; `epochs`: leader epochs and the offsets at which they begin."""

    wanted: OffsetRange
    files: list[PartFile]
    records: int
    epochs: list[tuple[int, int]]
    missing: list[Missing]


@dataclass(frozen=True, slots=True)
class Joining:
    """The work of a task: these files, in order, as one."""

    files: tuple[PartFile, ...]
    target: str

    def __str__(self) -> str:
        return self.target


# --- deciding -----------------------------------------------------------------------------------------------


def pieces_of(wanted: OffsetRange, task_offsets: int) -> list[tuple[int, int]]:
    """Return the offsets [start, end) of a range's tasks: one for each bucket of `task_offsets`."""
    if wanted.size <= 0:
        return []
    first, last = wanted.start_offset // task_offsets, (wanted.end_offset - 1) // task_offsets
    return [
        (max(wanted.start_offset, bucket * task_offsets), min(wanted.end_offset, (bucket + 1) * task_offsets))
        for bucket in range(first, last + 1)
    ]


def segments_of(
    wanted: OffsetRange, files: Iterable[PartFile], segment_bytes: int
) -> list[tuple[int, list[PartFile]]]:
    """Return the segments of a partition: base offset and files. The first begins at the log start.

    The last is empty if the log ended behind its last batch.
    """
    segments: list[tuple[int, list[PartFile]]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.base_offset):
        if not segments:
            segments.append((min(wanted.start_offset, file.base_offset), []))
        base_offset = segments[-1][0]
        is_full = bool(segments[-1][1]) and size + file.size > segment_bytes
        if is_full or file.end_offset - 1 - base_offset > MAX_INT:
            segments.append((file.base_offset, []))
            size = 0
        segments[-1][1].append(file)
        size += file.size
    if not segments:
        segments.append((wanted.start_offset, []))
    base_offset, last = segments[-1]
    end = last[-1].end_offset if last else base_offset
    if end < wanted.end_offset:
        segments.append((wanted.end_offset, []))
    return segments


def history_of(
    wanted: OffsetRange, listed: Iterable[tuple[int, int]], batches: Iterable[tuple[int, int]]
) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of `wanted` and where each begins, as a cleaner leaves them.

    `listed` is the source's checkpoint. It counts, because the first batches of an epoch, or all, may have
    gone from the output: followers truncate to the end of an epoch, which is where the next one began. If it
    contradicts `batches`, pairs of epoch and offset, these count alone.
    """
    start = wanted.start_offset  # the first batch may begin below it
    ordered = sorted((max(offset, start), epoch) for epoch, offset in batches if epoch >= 0)
    history = LeaderEpochCache(listed)
    newest = history.latest_epoch
    if any(epoch <= newest and history.epoch_for_offset(offset) != epoch for offset, epoch in ordered):
        history = LeaderEpochCache()
    for offset, epoch in ordered:
        if epoch > history.latest_epoch:
            history.assign(epoch, offset)
    history.truncate_from_end(wanted.end_offset)
    history.truncate_from_start(start)
    return history.entries


# --- tasks --------------------------------------------------------------------------------------------------


def filter_piece(piece: Piece) -> Filtered:
    """Write the batches of a piece that have survivors. Raises `DataLoss`, `EngineError` and `OSError`."""
    from logstore.compact.survivors import Survivors
    from logstore.segment.scan import Scanned
    from logstore.spark.directory_logs import DirectoryLogs

    wanted = piece.wanted
    winners = _Winners(piece)
    survivors = Survivors(
        end_offset=piece.end_offset,
        now_ms=piece.now_ms,
        delete_retention_ms=LogConfig().delete_retention_ms,
    )
    missing: list[Missing] = []
    with (
        closing(DirectoryLogs(piece.source.paths, isolation=piece.source.isolation)) as logs,
        closing(_Parts(OsDisk(), piece)) as parts,
    ):
        for stretch in logs.stretches(wanted, missing):
            bases = stretch.headers["base_offset"].astype(np.int64)
            chosen = bases < wanted.end_offset
            if not piece.is_first:
                chosen &= bases >= wanted.start_offset
            slots = chosen.nonzero()[0]
            if not len(slots):
                continue
            first, end = int(slots[0]), int(slots[-1]) + 1
            start = int(stretch.positions[first])
            stop = int(stretch.positions[end]) if end < len(bases) else len(stretch.data)
            found = Scanned(
                stretch.positions[first:end] - start, stretch.headers[first:end], stop - start, None
            )
            stays = winners.between(int(bases[first]), int(found.last_offsets[-1]) + 1)
            parts.write(survivors.keep(bytes(stretch.data[start:stop]), found, stays))
        if piece.source.fail_on_data_loss:
            raise_on_loss(missing)
        return Filtered(wanted, parts.finish(), survivors.stats.records_written, parts.epochs, missing)


class _Winners:
    """The offsets that survive, bucket by bucket; a batch may reach into the next buckets."""

    def __init__(self, piece: Piece) -> None:
        wanted = piece.wanted
        self._directory = Path(
            piece.staging, WINNERS, f"topic={wanted.topic}", f"partition={wanted.partition}"
        )
        self._size = piece.shape.task_offsets
        self._known: dict[int, npt.NDArray[np.int64]] = {}

    def between(self, start: int, end: int) -> npt.NDArray[np.int64]:
        buckets = range(start // self._size, (end - 1) // self._size + 1)
        found = np.concatenate([self._bucket(bucket) for bucket in buckets])
        return found[np.searchsorted(found, start) : np.searchsorted(found, end)]

    def _bucket(self, bucket: int) -> npt.NDArray[np.int64]:
        if bucket not in self._known:
            import pyarrow.parquet as pq

            files = sorted((self._directory / f"bucket={bucket}").glob("*.parquet"))
            columns = [pq.read_table(file, columns=["offset"], partitioning=None)["offset"] for file in files]
            self._known[bucket] = np.sort(
                np.concatenate([np.zeros(0, np.int64), *(column.to_numpy() for column in columns)])
            )
        return self._known[bucket]


class _Parts:
    """Writes the files of a task, whose names are those of its attempt."""

    def __init__(self, disk: Disk, piece: Piece) -> None:
        self._disk, self._most_bytes = disk, piece.shape.segment_bytes
        self._directory = f"{piece.staging}/{PARTS}"
        self._name = f"{piece.wanted.topic_partition}-{piece.wanted.start_offset}-{attempt_id()}"
        self._files: list[PartFile] = []
        self._open: File | None = None
        self.epochs: list[tuple[int, int]] = []

    def write(self, data: bytearray) -> None:
        if not data:
            return
        base_offset, end_offset = -1, -1
        for batch in walk(data):
            base_offset = batch.base_offset if base_offset < 0 else base_offset
            end_offset = batch.next_offset
            if not self.epochs or batch.leader_epoch != self.epochs[-1][0]:
                self.epochs.append((batch.leader_epoch, batch.base_offset))
        if self._open is not None and self._files[-1].size + len(data) > self._most_bytes:
            self._finish_file()
        if self._open is None:
            path = f"{self._directory}/{self._name}-{len(self._files)}"
            self._open = self._disk.open(path, create=True, exclusive=True, write=True)
            self._files.append(PartFile(path, base_offset, end_offset, 0))
        file = self._files[-1]
        self._open.pwrite(data, file.size)
        self._files[-1] = file._replace(end_offset=end_offset, size=file.size + len(data))

    def _finish_file(self) -> None:
        if self._open is not None:
            self._open.sync()
            self._open.close()
            self._open = None

    def finish(self) -> list[PartFile]:
        """Make the files durable and return them."""
        self._finish_file()
        self._disk.sync_dir(self._directory)
        return self._files

    def close(self) -> None:
        if self._open is not None:
            self._open.close()


def join(work: Joining) -> str:
    """Write the files as one, durable, under a name of this attempt, and return its path."""
    disk = OsDisk()
    path = f"{work.files[0].path}-joined-{attempt_id()}"
    with closing(disk.open(path, create=True, exclusive=True, write=True)) as out:
        at = 0
        for part in work.files:
            with closing(disk.open(part.path)) as file:
                for start in range(0, part.size, _COPY_BYTES):
                    data = file.pread(min(_COPY_BYTES, part.size - start), start)
                    out.pwrite(data, at)
                    at += len(data)
        out.sync()
    return path


# --- the job ------------------------------------------------------------------------------------------------


def write_winners(latest: DataFrame, staging: str, shape: Shape) -> None:
    """Let Spark write the surviving offsets, columns topic, partition and offset, bucket by bucket."""
    from pyspark.sql import functions as f

    keys = ("topic", "partition", "bucket")
    bucketed = latest.select("topic", "partition", "offset").withColumn(
        "bucket", f.expr(f"offset div {shape.task_offsets}")
    )
    bucketed.repartition(*keys).write.partitionBy(*keys).parquet(f"file://{staging}/{WINNERS}")


def write_segments(
    workers: Workers, source: ReadOptions, ranges: Sequence[OffsetRange], staging: str, shape: Shape
) -> dict[str, Any]:
    """Write the log dir `staging`/table by the winners in `staging`, and return the facts to report."""
    from logstore.spark.directory_logs import DirectoryLogs

    disk = OsDisk()
    make_durable_dir(disk, f"{staging}/{PARTS}")
    now_ms = wall_clock_ms()
    work = [
        Piece(
            OffsetRange(*wanted.topic_partition, start, end),
            start == wanted.start_offset,
            wanted.end_offset,
            source,
            staging,
            shape,
            now_ms,
        )
        for wanted in ranges
        for start, end in pieces_of(wanted, shape.task_offsets)
    ]
    found: dict[TopicPartition, list[Filtered]] = {each.topic_partition: [] for each in ranges}
    for piece, report in workers.followed(
        "filter", "offsets", work, filter_piece, lambda each: each.wanted.size
    ):
        found[piece.wanted.topic_partition].append(report)
    joinings: list[Joining] = []
    segments = size = 0
    table = f"{staging}/table"
    for wanted in ranges:
        name = wanted.topic_partition
        directory = f"{table}/{name.directory_name}"
        make_durable_dir(disk, directory)
        files = [file for report in found[name] for file in report.files]
        for base_offset, some in segments_of(wanted, files, shape.segment_bytes):
            segments += 1
            size += sum(file.size for file in some)
            target = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
            if len(some) == 1:
                disk.rename(some[0].path, target)
            elif some:
                joinings.append(Joining(tuple(some), target))
            else:
                disk.open(target, create=True, write=True).close()
        with closing(DirectoryLogs(source.paths)) as logs:
            source_directory = logs.directory(name)
        batches = (entry for report in found[name] for entry in report.epochs)
        history = history_of(wanted, _listed_epochs(disk, source_directory), batches)
        put_in_place(disk, directory, LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint(history))
        if topic_id := read_small_file(disk, f"{source_directory}/{PARTITION_METADATA}"):
            put_in_place(disk, directory, PARTITION_METADATA, topic_id)
    for joining, path in workers.followed(
        "join", "bytes", joinings, join, lambda each: sum(file.size for file in each.files)
    ):
        disk.rename(path, joining.target)
    ends = {each.topic_partition: each.end_offset for each in ranges}
    make_durable_dir(disk, table)
    put_in_place(disk, table, CLEANER_OFFSET_CHECKPOINT, format_offset_checkpoint(ends))
    return {"segments": segments, "bytes": size}


def _listed_epochs(disk: Disk, directory: str) -> list[tuple[int, int]]:
    try:
        return read_leader_epoch_checkpoint(disk, directory)
    except CorruptCheckpoint as error:
        _log.warning("leader epochs are taken from the batches: %s", error)
        return []
