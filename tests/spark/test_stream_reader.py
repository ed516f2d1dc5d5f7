"""What Spark sees of a stream: nested offsets, limits, pickles. In this process, without a session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from logstore.log.log import Log
from logstore.spark.columns import parse_columns, spark_schema
from logstore.spark.errors import InvalidOption
from logstore.spark.logs import OffsetRange
from logstore.spark.readers import RangePartition, StreamReader

SCHEMA = spark_schema(parse_columns(None, include_headers=False))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Log.open(tmp_path / "orders-10") as log:
        for number in range(10):
            log.append(b"%d" % number)
    return tmp_path


def reader_of(directory: Path, **options: str) -> StreamReader:
    given = {"path": str(directory), "subscribe": "orders", "startingOffsets": "earliest", **options}
    return StreamReader(given, SCHEMA)


@pytest.fixture
def reader(directory: Path) -> Iterator[StreamReader]:
    made = reader_of(directory, maxOffsetsPerTrigger="4")
    yield made
    made.stop()


def test_a_batch_from_its_offsets_to_its_rows(reader: StreamReader) -> None:
    start = reader.initialOffset()
    assert start == {"orders": {"10": 0}}
    assert reader.reportLatestOffset() is None, "nobody has looked yet"
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"orders": {"10": 4}}
    assert reader.reportLatestOffset() == {"orders": {"10": 10}}
    (task,) = reader.partitions(start, end)
    assert isinstance(task, RangePartition)
    assert task.wanted == OffsetRange("orders", 10, 0, 4)
    rows = [row for batch in reader.read(task) for row in batch.column("value").to_pylist()]
    assert rows == [b"0", b"1", b"2", b"3"]
    reader.commit(end)


def test_what_is_open_is_not_pickled(reader: StreamReader) -> None:
    """Tasks get the options, not the place that the stream has come to, and no files."""
    reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._opened is None
    (task,) = reader.partitions({"orders": {"10": 3}}, {"orders": {"10": 5}})
    assert sum(batch.num_rows for batch in copy.read(pickle.loads(pickle.dumps(task)))) == 2


def test_limits_are_sparks_where_it_sets_them(directory: Path) -> None:
    """`ReadAllAvailable` is the only batch of a query: `Trigger.Once`."""
    limits = reader_of(directory, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="2")._limits
    everything = limits(ReadAllAvailable())
    assert everything is None
    for limit, expected in (
        (ReadMaxRows(7), (7, 2)),
        (ReadMinRows(3), (4, 3)),
    ):
        found = limits(limit)
        assert found is not None
        assert (found.max_offsets, found.min_offsets) == expected


def test_the_source_itself_never_asks_for_everything(directory: Path) -> None:
    assert reader_of(directory, maxOffsetsPerTrigger="4").getDefaultReadLimit() == ReadMaxRows(4)
    unlimited = reader_of(directory).getDefaultReadLimit()
    assert unlimited == ReadMaxRows(2**63 - 1)


def test_what_a_stream_refuses(directory: Path) -> None:
    """At the first call: of an error in the constructor, Spark shows an `UnboundLocalError` of its own."""
    given = {"path": str(directory), "subscribe": "orders"}
    for reader, message in (
        (StreamReader(given, spark_schema(("offset",))), "fixed schema"),
        (reader_of(directory, endingOffsets="latest"), "option endingOffsets is for batch reads"),
        (reader_of(directory, commitGroup="readers"), "option commitGroup needs brokers"),
        (
            reader_of(directory, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8"),
            "option minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger, which is 8",
        ),
    ):
        with pytest.raises(InvalidOption, match=message):
            reader.initialOffset()
        reader.stop()
