"""What a task of a sink leaves for its commit: record batches that only lack their place.

    00003-17-3kT….staged
    ┌────────────────────────┬───┬────────────────────────────────────┬──────────────┬──────────────┐
    │ batches at offset 0,   │ … │ index: JSON, a row for each run of │ CRC-32C of   │ its length   │
    │ of one partition, of … │   │ batches of one partition, in order │ it, u32      │ in bytes, u32│
    └────────────────────────┴───┴────────────────────────────────────┴──────────────┴──────────────┘

    index: [[topic, partition, position, size, records], …]

Big-endian. The file is durable when its task is done; every attempt writes one of its own name. What a crash
leaves of one means nothing unless an intent names it with its size, and then it is whole.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.columnar.columnar import encode
from logstore.disk.files import Disk, File, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.format.crc import crc32c
from logstore.log.outgoing import Compression
from logstore.spark.errors import RowRefused, StagedFileGone
from logstore.spark.sink_rows import Placed

SUFFIX: Final = ".staged"
FLUSH_BYTES: Final = 16 << 20
"""Rows kept back until they are worth sorting by partition: what each partition gets of them is one run."""
_FEW: Final = 1 << 15
_TRAILER: Final = struct.Struct(">II")


class Run(NamedTuple):
    """Batches of one partition that lie end to end in a staged file; sizes are bytes."""

    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task has staged: a name in the staging directory ("" for nothing), and records a partition."""

    name: str = ""
    size: int = 0
    records: Mapping[TopicPartition, int] = field(default_factory=dict)


class Stage:
    """Writes one staged file. Made with the first rows: a task without rows leaves none."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        slots: Sequence[TopicPartition],
        *,
        compression: Compression,
        batch_bytes: int,
        max_batch_bytes: Callable[[str], int],
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """`slots` may grow meanwhile; `max_batch_bytes` says what a topic takes, after compression."""
        self._disk, self._directory, self._name = disk, directory, name + SUFFIX
        self._slots, self._compression, self._batch_bytes = slots, compression, batch_bytes
        self._max_batch_bytes, self._flush_bytes = max_batch_bytes, flush_bytes
        self._pending: list[Placed] = []
        self._pending_bytes = 0
        self._file: File | None = None
        self._end = 0
        self._index: list[tuple[TopicPartition, Run]] = []

    def add(self, placed: Placed) -> None:
        """Raises `RowRefused` for rows that no batch can hold, `OSError`."""
        if not len(placed.slots):
            return
        self._pending.append(placed)
        self._pending_bytes += placed.rows.nbytes
        if self._pending_bytes >= self._flush_bytes:
            self._flush()

    def finish(self) -> Staged:
        """Write what is left and make the file durable. Raises as `add`."""
        self._flush()
        if self._file is None:
            return Staged()
        rows = [(*partition, *run) for partition, run in self._index]
        index = json.dumps(rows, separators=(",", ":")).encode()
        self._write(index + _TRAILER.pack(crc32c(index), len(index)))
        self._file.sync()
        self._file.close()
        self._disk.sync_dir(self._directory)
        records: dict[TopicPartition, int] = {}
        for partition, run in self._index:
            records[partition] = records.get(partition, 0) + run.records
        return Staged(self._name, self._end, records)

    def close(self) -> None:
        """Let go of the file, finished or not."""
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches([placed.rows for placed in self._pending])
        slots = np.concatenate([placed.slots for placed in self._pending])
        self._pending, self._pending_bytes = [], 0
        if len(self._slots) < _FEW:
            slots = slots.astype(np.int16)  # numpy sorts these by radix
        order = np.argsort(slots, kind="stable")  # in a partition rows keep the order in which they came
        slots = slots[order]
        if slots[0] != slots[-1]:
            rows = rows.combine_chunks().take(pa.array(order))
        firsts = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(slots)], strict=True):
            self._encode(self._slots[int(slots[first])], rows.slice(first, end - first))

    def _encode(self, partition: TopicPartition, rows: Any) -> None:
        limit = self._max_batch_bytes(partition.topic)
        position, records = self._end, 0
        codec, level = self._compression
        for batches in encode(rows, codec=codec, level=level, batch_bytes=self._batch_bytes_for(limit)):
            for batch in walk(batches):
                if batch.size > limit:
                    raise RowRefused(
                        f"{batch.record_count} rows for {partition} are {batch.size} bytes with "
                        f"kafka.compression.type={codec.name.lower()}, and its topic takes {limit}: "
                        "leave them uncompressed. Nothing was published"
                    )
                records += batch.record_count
            self._write(batches)
        self._index.append((partition, Run(position, self._end - position, records)))

    def _batch_bytes_for(self, limit: int) -> int:
        return min(self._batch_bytes, max(limit // 2, 1))

    def _write(self, data: bytes | bytearray) -> None:
        if self._file is None:
            make_durable_dir(self._disk, self._directory)
            path = f"{self._directory}/{self._name}"
            self._file = self._disk.open(path, create=True, exclusive=True, write=True)
        self._file.pwrite(data, self._end)
        self._end += len(data)


class StagedFile:
    """A staged file, to be published. It is opened when it is read: there may be thousands."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        """Raises `StagedFileGone` unless it is what its task said, `OSError`."""
        self._disk, self._path = disk, path
        self.runs: dict[TopicPartition, list[Run]] = {}
        file = self._open()
        try:
            index = self._index(file, size)
        finally:
            file.close()
        for topic, partition, *run in json.loads(index):
            self.runs.setdefault(TopicPartition(topic, partition), []).append(Run(*run))

    def _open(self) -> File:
        try:
            return self._disk.open(self._path)
        except FileNotFoundError:
            raise StagedFileGone(
                f"{self._path} is not there: the driver and all executors must see the same directory under "
                "that name; say which with the option stagingPath"
            ) from None

    def _index(self, file: File, size: int) -> bytes:
        trailer = file.pread(_TRAILER.size, max(size - _TRAILER.size, 0))
        if file.size() == size and len(trailer) == _TRAILER.size:
            crc, length = _TRAILER.unpack(trailer)
            if length <= size - _TRAILER.size:
                index = file.pread(length, size - _TRAILER.size - length)
                if crc32c(index) == crc:
                    return index
        raise StagedFileGone(f"{self._path} is not what its task wrote: its disk lost or changed it")

    def batches(self, partition: TopicPartition) -> Iterator[memoryview]:
        """The partition's batches, in the order of the rows, in memory that may be written to.

        Raises `StagedFileGone`, `OSError`; `CorruptBatch` where the disk changed one.
        """
        runs = self.runs.get(partition, ())
        file = self._open() if runs else None
        try:
            for run in runs:
                assert file is not None
                data = bytearray(file.pread(run.size, run.position))
                position = 0
                for batch in walk(data):
                    batch.check_crc()  # it will be summed anew: nobody would notice later
                    yield memoryview(data)[position : position + batch.size]
                    position += batch.size
                if position != run.size:
                    raise StagedFileGone(f"{self._path} is cut at byte {run.position + position}")
        finally:
            if file is not None:
                file.close()
