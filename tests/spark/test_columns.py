"""The schema is the connector's, and every value is what it would be there."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from logstore.columnar.columnar import table
from logstore.format.batch import encode_batch
from logstore.format.record import Header, Record
from logstore.spark.columns import (
    ALL_COLUMNS,
    CONNECTOR_COLUMNS,
    RowMaker,
    arrow_schema,
    parse_columns,
    read_columns,
    spark_schema,
)

pytest.importorskip("pyspark")

WITH_HEADERS = (*CONNECTOR_COLUMNS, "headers")


def rows_of(columns: tuple[str, ...], *records: Record, append_time_ms: int | None = None) -> Any:
    """Spark's rows for a batch of these records."""
    data = encode_batch(records, leader_epoch=7, log_append_time_ms=append_time_ms)
    read = table(data, columns=read_columns(columns)).combine_chunks().to_batches()[0]
    return RowMaker("orders", 3, columns).rows(read)


def test_the_schema_is_the_connectors() -> None:
    """Column by column: name, Spark's type, nullable; KafkaRecordToRowConverter of Spark 4 has the same."""
    expected = {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    schema = spark_schema(WITH_HEADERS)
    assert [(field.name, field.dataType.simpleString()) for field in schema] == list(expected.items())
    assert all(field.nullable for field in schema)
    assert [field.name for field in spark_schema(CONNECTOR_COLUMNS)] == list(expected)[:-1]


def test_arrow_has_it_as_spark_will_have_it() -> None:
    """Otherwise Spark refuses the first batch, or misreads the next."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = arrow_schema(ALL_COLUMNS)
    assert schema.equals(to_arrow_schema(spark_schema(ALL_COLUMNS), timezone="UTC"))
    kinds = [str(field.type) for field in arrow_schema(WITH_HEADERS)]
    assert kinds == [
        "binary", "binary", "string", "int32", "int64", "timestamp[us, tz=UTC]", "int32",
        "list<element: struct<key: string, value: binary>>",
    ]  # fmt: skip


def test_rows() -> None:
    """All columns; null is not empty, and no headers are null, not an empty list."""
    rows = rows_of(
        ALL_COLUMNS[:-1],
        Record(0, 1500, b"k", b"v", (Header("a", b"1"), Header("b", None), Header("", b""))),
        Record(1, 1501, None, None),
        Record(2, 1502, b"", b""),
    )
    assert rows.schema.equals(arrow_schema(ALL_COLUMNS[:-1]))
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=datetime.UTC)
    assert rows.to_pylist()[0] == {
        "key": b"k", "value": b"v", "topic": "orders", "partition": 3, "offset": 0, "timestamp": at,
        "timestampType": 0, "leaderEpoch": 7,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "", "value": b""}],
    }  # fmt: skip
    assert [row["headers"] for row in rows.to_pylist()[1:]] == [None, None]
    assert [(row["key"], row["value"]) for row in rows.to_pylist()[1:]] == [(None, None), (b"", b"")]


def test_append_time_and_no_time() -> None:
    """The type says whose time it is; Kafka's -1, no time, is a millisecond before the epoch, as there."""
    columns = ("timestamp", "timestampType")
    rows = rows_of(columns, Record(0, 5, None, b""), append_time_ms=1000).to_pylist()
    assert rows == [{"timestamp": _at(1000), "timestampType": 1}]
    rows = rows_of(columns, Record(0, -1, None, b""), Record(1, 5, None, b"")).to_pylist()
    assert [row["timestamp"] for row in rows] == [_at(-1), _at(5)]


def _at(ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=ms)


def test_a_time_that_spark_cannot_hold_is_null() -> None:
    """Microseconds have 64 bits: the year 294247. One such record must not hide the others."""
    rows = rows_of(("timestamp",), Record(0, 2**62, None, b""), Record(1, 5, None, b""))
    assert rows.column("timestamp").null_count == 1
    assert rows.column("timestamp")[1].as_py() == _at(5)


def test_header_names_that_are_no_text() -> None:
    """As Java reads them: what is no UTF-8 becomes U+FFFD."""
    name = pa.array([[{"key": b"ok", "value": b"1"}, {"key": b"a\xff", "value": None}], None])
    kind = pa.list_(pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]))
    read = pa.RecordBatch.from_arrays([name.cast(kind)], names=["headers"])
    rows = RowMaker("t", 0, ("headers",)).rows(read).column("headers").to_pylist()
    assert rows == [[{"key": "ok", "value": b"1"}, {"key": "a\ufffd", "value": None}], None]


def test_headers_of_a_part_of_a_batch() -> None:
    """A slice keeps its own headers."""
    records = [Record(number, 1, None, b"", (Header(f"h{number}", b"x"),)) for number in range(5)]
    read = table(encode_batch(records), columns=("headers",)).combine_chunks().to_batches()[0].slice(2, 2)
    rows = RowMaker("t", 0, ("headers",)).rows(read).column("headers").to_pylist()
    assert [row[0]["key"] for row in rows] == ["h2", "h3"]


def test_columns_that_need_no_reading_are_counted_by_offset() -> None:
    """Topic and partition are the same in every row, but how many rows there are must be read."""
    assert read_columns(("topic", "partition")) == ("offset",)
    assert read_columns(parse_columns("*", include_headers=True)) == (
        "key", "value", "offset", "timestamp", "timestamp_type", "headers",
    )  # fmt: skip
    rows = rows_of(("topic", "partition"), Record(0, 1, None, b""), Record(1, 1, None, b""))
    assert rows.to_pylist() == [{"topic": "orders", "partition": 3}] * 2
