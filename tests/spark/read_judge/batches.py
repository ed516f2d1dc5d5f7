"""The answers to batch queries, from Spark or by its calls without it, beside the true ones."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.data_source import LogstoreDataSource
from tests.spark.read_judge.queries import Query
from tests.spark.read_judge.topics import COLUMNS, Plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]

SPARK_CANNOT: Final = ("variant_utils.py", "long overflow")
"""Spark cannot hand a source a time outside of the years 1 to 9999."""
_KINDS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, micros bigint, timestampType int, "
    "headers array<struct<key:string,value:binary>>, leaderEpoch int, segment bigint"
)


class Refused(str):
    """An error instead of an answer."""


def judged(
    spark: SparkSession | None,
    source: type[LogstoreDataSource],
    query: Query,
    plain: Mapping[TopicPartition, Plain],
) -> str:
    """Return what is wrong with the answer to a query; nothing if it is right."""
    try:
        ours = _without_spark(source, query) if spark is None else _with_spark(spark, source.name(), query)
    except Exception as error:
        ours = Refused(f"{type(error).__module__}.{type(error).__name__}: {error}")
    rows, true = true_rows(query, plain), None
    try:
        if query.where is not None:
            assert spark is not None, "only Spark knows what a predicate means"
            rows = rows_of(_frame_of(spark, rows).where(query.where), COLUMNS)
        true = _answer(query, rows)
    except Exception as error:
        true = Refused(error)
    return _verdict(query, ours, true)


def _verdict(query: Query, ours: Any, true: Any) -> str:
    if isinstance(ours, Refused):
        if any(f"errors.{name}: " in ours for name in query.errors) or isinstance(true, Refused):
            return ""
        is_sparks = query.where is not None and any(each in ours for each in SPARK_CANNOT)
        return "" if is_sparks else f"an error:\n{ours}"
    if query.errors and not query.may_fail:
        return f"no error, but {ours!s:.300}"
    if isinstance(true, Refused):
        return ""
    if query.action == "tasks" and (query.where is not None or "minPartitions" in query.options):
        return ""
    if query.action == "limit":
        is_right = len(ours) == min(query.limit, len(true)) and not Counter(ours) - Counter(true)
    else:
        is_right = ours == true
    return "" if is_right else f"ours {ours!s:.1500}\n    true {true!s:.1500}"


# --- the true answer ----------------------------------------------------------------------------------------


def true_rows(query: Query, plain: Mapping[TopicPartition, Plain]) -> list[Row]:
    """The plain rows in the ranges of a query."""
    rows: list[Row] = []
    for where, (start, end) in sorted(query.ranges.items()):
        rows += plain[where].between(start, end, committed=query.committed)
    return rows


def _answer(query: Query, rows: Sequence[Row]) -> Any:
    """Return the result of the query's action on these rows."""
    match query.action:
        case "count":
            return len(rows)
        case "offsets":
            offsets = [row[4] for row in rows] or [None]
            return min(offsets), max(offsets), len(rows)
        case "times":
            times = [row[5] for row in rows if row[5] is not None] or [None]
            return min(times), max(times)
        case "tasks":
            most = int(query.options.get("maxRecordsPerPartition", 2**63))
            return max(sum(max(-(-(end - start) // most), 0) for start, end in query.ranges.values()), 1)
    return [tuple(row[COLUMNS.index(name)] for name in query.select) for row in rows]


def _frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """A frame of plain data."""
    from pyspark.sql import functions as f

    made = spark.createDataFrame(list(rows), _KINDS)
    return made.withColumn("timestamp", f.timestamp_micros("micros")).localCheckpoint()


# --- the data source's answer -------------------------------------------------------------------------------


def _with_spark(spark: SparkSession, source: str, query: Query) -> Any:
    for name, value in query.conf.items():
        spark.conf.set(name, value)
    frame = spark.read.format(source).options(**query.options).load(query.paths)
    frame = frame if query.where is None else frame.where(query.where)
    match query.action:
        case "count":
            return frame.count()
        case "offsets":
            return tuple(frame.selectExpr("min(offset)", "max(offset)", "count(*)").collect()[0])
        case "times":
            ends = (f"unix_micros({each}(timestamp))" for each in ("min", "max"))
            return tuple(frame.selectExpr(*ends).collect()[0])
        case "limit":
            return rows_of(frame.limit(query.limit), query.select)
        case "tasks":
            return frame.rdd.getNumPartitions()
    return rows_of(frame, query.select)


def rows_of(frame: DataFrame, columns: Sequence[str]) -> list[Row]:
    """The rows, with times as microseconds, because Python knows no year after 9999."""
    times = "unix_micros(timestamp) AS timestamp"
    frame = frame.selectExpr(*(times if name == "timestamp" else f"`{name}`" for name in columns))
    return [tuple(map(_value, row)) for row in frame.collect()]


def _without_spark(source: type[LogstoreDataSource], query: Query) -> Any:
    """Do what Spark does in its processes: plan in one, read in others."""
    paths = {"paths": json.dumps(query.paths)} if query.paths else {}
    made = _moved(source({**query.options, **paths}))
    schema = made.schema()
    reader = _moved(made).reader(schema)
    tasks = _moved(list(reader.partitions()))
    if query.action == "tasks":
        return max(len(tasks), 1)
    rows: list[Row] = []
    for task in tasks:
        for batch in _moved(reader).read(task):
            assert batch.schema.names == schema.names
            assert batch.num_rows, "no empty batch"
            at = batch.schema.get_field_index("timestamp")
            if at >= 0:
                batch = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
            rows += [tuple(_value(row.get(name)) for name in COLUMNS) for row in batch.to_pylist()]
    answer = _answer(query, rows)
    return answer[: query.limit] if query.action == "limit" else answer


def _moved(made: Any) -> Any:
    """As it is in another process."""
    return pickle.loads(pickle.dumps(made))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return tuple(map(_value, value))
    return bytes(value) if isinstance(value, bytearray) else value
