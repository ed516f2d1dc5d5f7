"""A partition's rows as Parquet: a file a day, named for the offsets in it, in order, bounded in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.columnar.columnar import FIELDS
from logstore.spark.jobs import dated_files
from logstore.spark.jobs.dated_files import DAY_MS, DatedFiles, FileFormat, StagedFile, by_day, date_of

SHAPE = FileFormat(("value", "offset", "timestamp"), "zstd", 1 << 20)
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)


def read(first_offset: int, times_ms: Sequence[int | None], value: bytes = b"v") -> Any:
    """What `Logs.read` gives."""
    count = len(times_ms)
    columns = {
        "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
        "timestamp": pa.array(times_ms, pa.int64()).cast(FIELDS["timestamp"].type),
        "value": pa.array([value] * count, pa.binary()),
        "headers": pa.nulls(count, FIELDS["headers"].type),
        "leader_epoch": pa.array([3] * count, pa.int32()),
    }
    return pa.RecordBatch.from_arrays(
        list(columns.values()), schema=pa.schema([FIELDS[name] for name in columns])
    )


def written(directory: Path, batches: Sequence[Any], shape: FileFormat = SHAPE) -> list[StagedFile]:
    with DatedFiles("orders", 3, str(directory), "token", shape) as files:
        for each in batches:
            files.add(each)
        return files.close()


def offsets(directory: Path, file: StagedFile) -> list[int]:
    rows: list[int] = pq.read_table(directory / file.staged, partitioning=None)["offset"].to_pylist()
    assert len(rows) == file.rows
    return rows


def test_a_day_is_a_file_named_for_its_offsets(tmp_path: Path) -> None:
    files = written(tmp_path, [read(5, [NOON, NOON + 1]), read(7, [NOON + 2, NOON + DAY_MS])])
    assert [file.target for file in files] == [
        "topic=orders/partition=3/date=2026-11-20/00000000000000000005-00000000000000000008.parquet",
        "topic=orders/partition=3/date=2026-11-21/00000000000000000008-00000000000000000009.parquet",
    ]
    assert [offsets(tmp_path, file) for file in files] == [[5, 6, 7], [8]]
    assert [file.size_bytes for file in files] == [(tmp_path / file.staged).stat().st_size for file in files]
    assert not any(file.staged.endswith(".parquet") for file in files), "a glob would find them"


def test_rows_are_as_the_source_gives_them(tmp_path: Path) -> None:
    """The types that Spark's own source has, whatever codec: a query can move from one to the other."""
    shape = FileFormat(("value", "offset", "timestamp", "headers", "leaderEpoch"), "none", 1 << 20)
    (file,) = written(tmp_path, [read(0, [NOON])], shape)
    table = pq.read_table(tmp_path / file.staged, partitioning=None)
    assert table.schema.names == list(shape.columns)
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert table.to_pylist() == [
        {
            "value": b"v",
            "offset": 0,
            "timestamp": datetime(2026, 11, 20, 12, tzinfo=UTC),
            "headers": None,
            "leaderEpoch": 3,
        }
    ]


def test_no_time_is_no_date(tmp_path: Path) -> None:
    """And a time that no calendar has is none either: the row is kept all the same."""
    files = written(tmp_path, [read(0, [None, NOON, 2**60, None])])
    targets = {file.target.split("/")[2]: offsets(tmp_path, file) for file in files}
    assert targets == {"date=__HIVE_DEFAULT_PARTITION__": [0, 2, 3], "date=2026-11-20": [1]}


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    shape = SHAPE._replace(file_bytes=1000)
    batches = [read(10 * n, [NOON] * 10, b"x" * 40) for n in range(6)]
    files = written(tmp_path, batches, shape)
    assert [offsets(tmp_path, file) for file in files] == [
        list(range(0, 20)),
        list(range(20, 40)),
        list(range(40, 60)),
    ]


def test_many_days_at_once_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times at random over years: files are bounded, and so is what is held; each row is still there once."""
    monkeypatch.setattr(dated_files, "OPEN_FILES", 3)
    monkeypatch.setattr(dated_files, "GROUP_BYTES", 500)
    batches = [read(8 * n, [NOON + (7 * m + n) % 11 * DAY_MS for m in range(8)]) for n in range(20)]
    with DatedFiles("orders", 3, str(tmp_path), "token", SHAPE) as files:
        for each in batches:
            files.add(each)
            assert len(files._open) <= 3
            assert files._held_bytes < 1000
            assert files._held_bytes == sum(file.held_bytes for file in files._open.values())
        staged = files.close()
    assert sorted(offset for file in staged for offset in offsets(tmp_path, file)) == list(range(160))
    assert len({file.target for file in staged}) == len(staged)
    assert all(offsets(tmp_path, file) == sorted(offsets(tmp_path, file)) for file in staged)


def test_what_fails_midway_leaves_no_file_open(tmp_path: Path) -> None:
    """The suite turns a forgotten file into an error."""
    shape = SHAPE._replace(file_bytes=1 << 20)
    with pytest.raises(KeyError):
        written(tmp_path, [read(0, [NOON]), pa.record_batch({"offset": [1]})], shape)


@given(days=st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=30))
@settings(derandomize=True, max_examples=60)
def test_days_agree_with_the_calendar(days: list[int | None]) -> None:
    """One day, days in order, days in any order, no day: each row comes out under its own date, in order."""
    rows = read(0, [None if day is None else day * DAY_MS + 5 for day in days])
    found: dict[int, str] = {}
    for day, part, part_offsets in by_day(rows["timestamp"], rows, rows["offset"]):
        assert part["offset"] == part_offsets
        assert part_offsets.to_pylist() == sorted(part_offsets.to_pylist())
        for offset in part_offsets.to_pylist():
            assert offset not in found
            found[offset] = date_of(day)
    wanted = [
        "__HIVE_DEFAULT_PARTITION__" if day is None else str(datetime.fromtimestamp(day * 86_400, UTC).date())
        for day in days
    ]
    assert [found[offset] for offset in range(len(days))] == wanted
