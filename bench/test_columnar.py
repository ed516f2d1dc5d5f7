"""Arrow columns from a log and into one, and Python objects, beside other readers of the same rows.

Records of 100 bytes (a key of 10, a value of 90) in batches of 16 KiB or of thousands of records.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.bars import NO_BAR, rate_bar
from bench.material import T0, fresh_log
from logstore.columnar import columnar
from logstore.log.log import Log

RECORDS = 1_000_000
COLUMNS = ("offset", "timestamp", "key", "value")


def rows(count: int = RECORDS) -> Any:
    """Return `count` rows of 100 incompressible bytes."""
    noise = os.urandom(100 * count)
    keys = [noise[at : at + 10] for at in range(0, 10 * count, 10)]
    values = [noise[at : at + 90] for at in range(10 * count, 100 * count, 90)]
    times = pa.array([T0 + number // 100 for number in range(count)], pa.timestamp("ms", tz="UTC"))
    return pa.table({"timestamp": times, "key": keys, "value": values})


@pytest.fixture(scope="module")
def table() -> Any:
    columnar.warm_up()
    return rows()


def filled(directory: Path, table: Any, batch_bytes: int) -> Log:
    log = fresh_log(directory)
    for batches in columnar.encode(table, batch_bytes=batch_bytes):
        log.append_batches(batches)
    return log


@pytest.mark.parametrize("batch_bytes", [16_000, 256_000])
def test_read_into_arrow(beside: Callable[..., object], scratch: Path, table: Any, batch_bytes: int) -> None:
    """From the page cache, with every checksum, beside the same columns from an Arrow file."""
    log = filled(scratch, table, batch_bytes)
    with pa.OSFile(str(scratch / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)

    def raw() -> None:
        with pa.OSFile(str(scratch / "rows.arrow"), "rb") as file:
            reader = pa.ipc.open_file(file)
            assert sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches)) == RECORDS

    def ours() -> None:
        assert sum(batch.num_rows for batch in log.read_arrow(columns=COLUMNS)) == RECORDS

    beside(
        raw=raw,
        ours=ours,
        name=f"read 100-byte records in {batch_bytes // 1000} kB batches into Arrow",
        rival="pyarrow, an IPC file",
        units=RECORDS,
        unit="records/s",
        bar=rate_bar(20e6, "≥ 20 M/s"),
        rounds=15,
    )
    log.close()


def test_read_all_columns_beside_parquet(beside: Callable[..., object], scratch: Path, table: Any) -> None:
    """All columns, into one table, beside the same rows from an uncompressed Parquet file."""
    log = filled(scratch, table, 256_000)
    pq.write_table(table, scratch / "rows.parquet", compression="none", use_dictionary=False)
    beside(
        raw=lambda: pq.read_table(scratch / "rows.parquet", use_threads=False),
        ours=lambda: pa.Table.from_batches(log.read_arrow()),
        name="read 100-byte records into one Arrow table",
        rival="pyarrow, a Parquet file, one thread",
        units=RECORDS,
        unit="records/s",
        bar=NO_BAR,
        rounds=7,
    )
    log.close()


@pytest.mark.parametrize("batch_bytes", [16_000, 256_000])
def test_encode_from_arrow(beside: Callable[..., object], table: Any, batch_bytes: int) -> None:
    """Ready batches in memory, with checksums, beside the same rows written as Arrow IPC."""

    def raw() -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10_000)

    def ours() -> None:
        assert sum(map(len, columnar.encode(table, batch_bytes=batch_bytes))) > 100 * RECORDS

    beside(
        raw=raw,
        ours=ours,
        name=f"encode 100-byte records from Arrow in {batch_bytes // 1000} kB batches",
        rival="pyarrow, an IPC stream in memory",
        units=RECORDS,
        unit="records/s",
        bar=rate_bar(10e6, "≥ 10 M/s"),
        rounds=15,
    )


def test_append_from_arrow(beside: Callable[..., object], scratch: Path, table: Any) -> None:
    """Into the log (encoded, checked as a leader does, written), beside an Arrow file."""
    logs: list[Log] = []

    def before() -> None:
        logs.append(fresh_log(scratch))

    def after() -> None:
        while logs:
            logs.pop().partition.abandon()
        (scratch / "rows.arrow").unlink(missing_ok=True)
        os.sync()

    def raw() -> None:
        with pa.OSFile(str(scratch / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table, max_chunksize=10_000)

    beside(
        raw=raw,
        ours=lambda: logs[-1].append_arrow(table),
        before=before,
        after=after,
        name="append 100-byte records from Arrow",
        rival="pyarrow, an IPC file",
        units=RECORDS,
        unit="records/s",
        bar=NO_BAR,
    )


def test_read_into_objects(beside: Callable[..., object], scratch: Path, table: Any) -> None:
    """`Log.read`, one `Record` per record, beside Arrow's objects from the same columns in memory."""
    count = 200_000
    part = table.slice(0, count)
    log = filled(scratch, part, 256_000)

    def ours() -> None:
        assert sum(1 for _ in log.read()) == count

    def raw() -> None:
        columns = (part.column(name).to_pylist() for name in ("key", "value"))
        assert sum(1 for _ in zip(*columns, strict=True)) == count

    beside(
        raw=raw,
        ours=ours,
        name="read 100-byte records into Python objects",
        rival="pyarrow, to_pylist of key and value",
        units=count,
        unit="records/s",
        bar=rate_bar(1.5e6, "≥ 1.5 M/s"),
        rounds=15,
    )
    log.close()
