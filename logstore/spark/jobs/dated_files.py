"""Write the rows of one partition to Parquet files, one or more for each day (UTC) of their timestamps.

    <staging>/<token>-<n>                       written here, by one attempt of one task
    topic=orders/partition=0/date=2026-11-20/00000000000000000000-00000000000001048576.parquet
                                             │ its first offset, and one past its last

A file's final name follows from its rows: two attempts that read the same offsets give the same names, and no
two files of a day overlap. Rows are in offset order. Readers ignore files without the suffix `.parquet`. All
files are durable when `close` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any, Final, NamedTuple

from logstore.disk.files import OsDisk
from logstore.spark.columns import RowMaker, arrow_schema
from logstore.spark.ledger import sync_file

CODECS: Final = ("none", "snappy", "zstd", "lz4", "gzip")
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
NEVER: Final = -(1 << 62)
"""A time in milliseconds before all others."""
GROUP_BYTES: Final = 32 << 20
"""Rows are held up to this size and then written as a row group; all days together hold twice as much."""
OPEN_FILES: Final = 64

_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Spark's and Hive's name for a null date."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH
_LAST_DAY: Final = date.max.toordinal() - _EPOCH
_UNDATED: Final = _FIRST_DAY - 1


class StagedFile(NamedTuple):
    """A finished file: its name in the staging directory, and its path in the output."""

    staged: str
    target: str
    rows: int
    size_bytes: int


class FileFormat(NamedTuple):
    """The form of the files."""

    columns: tuple[str, ...]
    """of the data source, except topic and partition, which are in directory names"""
    codec: str
    """one of `CODECS`"""
    file_bytes: int
    """the size of a full file, before compression; it may exceed this by a row group"""


class DatedFiles:
    """The files of one attempt of a task. A context manager: leaving it closes open files."""

    def __init__(self, topic: str, partition: int, directory: str, token: str, shape: FileFormat) -> None:
        """`token` is unique in the staging directory `directory`, which exists."""
        self._directory, self._token, self._shape = directory, token, shape
        self._place = f"topic={topic}/partition={partition}"
        self._maker = RowMaker(topic, partition, shape.columns)
        self._disk = OsDisk()
        self._open: dict[int, _File] = {}
        self._done: list[StagedFile] = []
        self._names = 0
        self._held_bytes = 0

    def __enter__(self) -> DatedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def add(self, read: Any) -> None:
        """Add rows of `Logs.read` in offset order, with the columns offset and timestamp among them."""
        rows = self._maker.rows(read)
        for day, part, offsets in by_day(read.column("timestamp"), rows, read.column("offset")):
            file = self._open.pop(day, None) or self._new(day)
            self._open[day] = file  # keeps the dict in order of last use
            self._held_bytes += file.add(part, offsets)
            if file.held_bytes >= GROUP_BYTES:
                self._held_bytes -= file.write()
            if file.written_bytes + file.held_bytes >= self._shape.file_bytes:
                self._finish(day)
        while self._held_bytes >= 2 * GROUP_BYTES:
            largest = max(self._open.values(), key=lambda file: file.held_bytes)
            self._held_bytes -= largest.write()
        while len(self._open) > OPEN_FILES:
            self._finish(next(iter(self._open)))

    def close(self) -> list[StagedFile]:
        """Write the held rows, make all files durable, and return them."""
        for day in list(self._open):
            self._finish(day)
        if self._done:
            self._disk.sync_dir(self._directory)
        return self._done

    def _new(self, day: int) -> _File:
        self._names += 1
        return _File(f"{self._directory}/{self._token}-{self._names}", self._shape)

    def _finish(self, day: int) -> None:
        file = self._open.pop(day)
        self._held_bytes -= file.write()
        file.close()
        size = sync_file(self._disk, file.path)
        name = f"{file.first_offset:020d}-{file.end_offset:020d}.parquet"
        target = f"{self._place}/date={date_of(day)}/{name}"
        self._done.append(StagedFile(file.path.rpartition("/")[2], target, file.rows, size))


class _File:
    """One open Parquet file; rows are held until they fill a row group."""

    def __init__(self, path: str, shape: FileFormat) -> None:
        self.path, self._shape = path, shape
        self._schema = arrow_schema(shape.columns)
        self._writer: Any = None
        self._held: list[Any] = []
        self.held_bytes = self.written_bytes = self.rows = 0
        self.first_offset = self.end_offset = -1

    def add(self, rows: Any, offsets: Any) -> int:
        """Hold rows, and return their size in bytes."""
        if self.first_offset < 0:
            self.first_offset = offsets[0].as_py()
        self.end_offset = offsets[-1].as_py() + 1
        size: int = rows.nbytes
        self._held.append(rows)
        self.held_bytes += size
        self.rows += rows.num_rows
        return size

    def write(self) -> int:
        """Write the held rows, and return their size in bytes."""
        import pyarrow as pa

        size = self.held_bytes
        if self._held:
            if self._writer is None:
                self._writer = self._create()
            group = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(group, row_group_size=group.num_rows)
            self._held, self.held_bytes = [], 0
            self.written_bytes += size
        return size

    def close(self) -> None:
        """Close the file; without all its rows if that is in an error."""
        if self._writer is not None:
            self._writer.close()

    def _create(self) -> Any:
        from pyarrow.parquet import ParquetWriter

        # Keys and values rarely repeat, so a dictionary costs more than it saves; offsets and times grow
        # slowly.
        columns = self._shape.columns
        deltas = [name for name in columns if name in ("offset", "timestamp")]
        repeated = [name for name in columns if name in ("timestampType", "leaderEpoch", "segment")]
        return ParquetWriter(
            self.path,
            self._schema,
            compression=self._shape.codec,
            use_dictionary=repeated,
            column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
            write_statistics=[*deltas, *repeated],
        )


def by_day(times: Any, rows: Any, offsets: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield each day since 1970 with its rows and their offsets, in the order in which days first appear."""
    import numpy as np
    import pyarrow as pa

    numbers = times.cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(_UNDATED * DAY_MS)
    days = numbers.to_numpy() // DAY_MS
    days[(days < _FIRST_DAY) | (days > _LAST_DAY)] = _UNDATED
    found, firsts = np.unique(days, return_index=True)
    if len(found) == 1:
        yield int(found[0]), rows, offsets
        return
    for first in np.sort(firsts).tolist():
        slots = np.flatnonzero(days == days[first])
        if slots[-1] - first + 1 == len(slots):
            part = rows.slice(first, len(slots)), offsets.slice(first, len(slots))
        else:
            chosen = pa.array(slots)
            part = rows.take(chosen), offsets.take(chosen)
        yield int(days[first]), *part


def date_of(day: int) -> str:
    """Return `2026-11-20`; Hive's null for a record without a time, or with one outside the calendar."""
    return date.fromordinal(day + _EPOCH).isoformat() if _FIRST_DAY <= day <= _LAST_DAY else _NO_DATE
