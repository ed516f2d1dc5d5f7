"""Rows are placed as Kafka's producers place them, and one that cannot be written is named."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logstore.broker.placement import partition_of_key
from logstore.columnar.columnar import BATCH_BYTES, BATCH_RECORDS, table
from logstore.columnar.encoding import batches_of
from logstore.config import LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.format.compression import Codec
from logstore.spark.errors import RowRefused, WriteRefused
from logstore.spark.sink_rows import Intake, Topic, check_columns
from logstore.spark.write_options import WriteOptions

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TOPICS = {
    "a": Topic(3, LogConfig()),
    "b": Topic(5, LogConfig(max_message_bytes=200)),
    "compacted": Topic(1, LogConfig(cleanup_policy="compact")),
    "strict": Topic(1, LogConfig(message_timestamp_after_max_ms=3_600_000)),
    "broker-time": Topic(1, LogConfig(message_timestamp_type="LogAppendTime")),
}


def topic_of(name: str) -> Topic:
    if name not in TOPICS:
        raise WriteRefused(f"there is no topic {name}")
    return TOPICS[name]


def intake(turn: int = 0, **options: str) -> Intake:
    parsed = WriteOptions.parse({"path": "/logs", **options}, streaming=False)
    return Intake(parsed, topic_of, lambda: NOW_MS, spark_partition=7, turn=turn)


def rows(**columns: Any) -> pa.RecordBatch:
    names = {
        "partition": pa.int32(),
        "headers": HEADERS,
        "timestamp": pa.timestamp("us", tz="Europe/Berlin"),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values, names.get(name)) for name, values in columns.items()], list(columns)
    )


def places(taking: Intake, batch: pa.RecordBatch) -> list[TopicPartition]:
    return [taking.slots[slot] for slot in taking.take(batch).slots.tolist()]


def test_keys_decide_and_the_column_partition_wins() -> None:
    batch = rows(
        topic=["a", "b", "a", "b", "a"],
        key=["k", "k", "k", None, "x"],
        partition=[None, None, 2, 4, 0],
        value=[b"1"] * 5,
    )
    assert places(intake(), batch) == [
        ("a", partition_of_key(b"k", 3)),
        ("b", partition_of_key(b"k", 5)),
        ("a", 2),
        ("b", 4),
        ("a", 0),
    ]


def test_rows_without_a_key_stay_together_and_the_next_go_on() -> None:
    """For 16 KiB, whatever batches Spark makes of them; rows with a key do not count."""
    taking = intake(turn=4, topic="a")
    batch = rows(key=[None, "k", None], value=[b"x" * 6000] * 3)
    loose = [place for _ in range(4) for place in places(taking, batch)[::2]]
    assert loose == [("a", each) for each in (1, 1, 1, 2, 2, 2, 0, 0)]


def test_rows_without_a_key_fill_all_partitions_alike() -> None:
    taking = intake(topic="a")
    found = Counter(place for _ in range(2) for place in places(taking, rows(value=[b"x" * 100] * 6000)))
    assert sorted(found) == [("a", 0), ("a", 1), ("a", 2)]
    assert max(found.values()) - min(found.values()) <= 16384 // 100 + 1


def test_the_option_topic_wins_and_other_columns_are_passed_over() -> None:
    batch = rows(topic=[None, "nowhere"], value=[b"1", None], offset=[1, 2], partition=[0, 1])
    placed = intake(topic="a").take(batch)
    assert (placed.rows.keys.size.tolist(), len(placed.rows.names.size)) == ([-1] * len(placed.slots), 0)
    assert placed.slots.tolist() == [0, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_what_is_written_is_what_came(kind: pa.DataType) -> None:
    """Strings and binaries, nulls, headers and times, in a slice of something longer."""
    headers = [None, [], [("h", b"1"), ("h", None)], None]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([None, "k", "", "z"], kind),
            pa.array(["v", None, "", "z"], kind),
            pa.array(headers, HEADERS),
            pa.array([datetime(2024, 1, 2, 3, 4, 5, 6789, UTC), None, None, None], pa.timestamp("us", "UTC")),
        ],
        ["key", "value", "headers", "timestamp"],
    )
    placed = intake(topic="a", includeTimestamp="true").take(batch.slice(0, 3))
    assert placed.rows.times.flags.writeable, "else the kernels are compiled twice"
    batches = b"".join(batches_of(placed.rows, Codec.NONE, None, BATCH_BYTES, BATCH_RECORDS))
    found = table(batches, columns=["key", "value", "headers", "timestamp"]).to_pylist()
    assert [row["key"] for row in found] == [None, b"k", b""]
    assert [row["value"] for row in found] == [b"v", None, b""]
    assert [row["headers"] for row in found] == [
        None,
        None,
        [{"key": b"h", "value": b"1"}, {"key": b"h", "value": None}],
    ]
    assert [row["timestamp"].timestamp() for row in found] == [
        1704164645.006,
        NOW_MS / 1000,
        NOW_MS / 1000,
    ]


def test_a_row_without_a_timestamp_stays_without_one() -> None:
    """The source reads -1 as a millisecond before 1970; brokers accept it."""
    before = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    placed = intake(topic="a", includeTimestamp="true").take(rows(value=[b"v"], timestamp=[before]))
    assert placed.rows.times.tolist() == [-1]


def test_columns_that_the_options_leave_out() -> None:
    batch = rows(value=[b"v"], headers=[[("h", b"1")]], timestamp=[datetime(2024, 1, 1, tzinfo=UTC)])
    placed = intake(topic="a", includeHeaders="false").take(batch)
    assert (placed.rows.keys.size.tolist(), len(placed.rows.names.size)) == ([-1] * len(placed.slots), 0)
    assert placed.rows.times.tolist() == [NOW_MS]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"topic": ["a", None]}, {}, r"row 2 of Spark partition 7 \(key b'k'\).*its topic is null"),
        ({"topic": ["a", "none"]}, {}, r"row 2 .*\(topic none, key b'k'\).*there is no topic none"),
        ({"topic": ["a", "no/ne"]}, {}, "topic name 'no/ne'"),
        ({"partition": [2, 3]}, {"topic": "a"}, r"row 2 .*\(topic a, partition 3, key b'k'\).*0 to 2"),
        ({"partition": [-1, 3]}, {"topic": "a"}, r"row 1 .*partition -1"),
        ({"key": [None, "k"]}, {"topic": "compacted"}, r"row 1 .*key null\).*is compacted"),
        ({"value": [b"", b"x" * 120]}, {"topic": "b"}, r"row 2 .*up to 208 bytes.* limit is 200 "),
        (
            {"value": [b"x" * 900, b""]},
            {"topic": "a", "kafka.max.request.size": "950"},
            "row 1 .* is 950 ",
        ),
        ({"key": ["k" * 2000, "k"]}, {"topic": "b"}, r"key b'k{40}'…\)"),
        ({"headers": [None, [("h" * 50, b"1" * 60)]]}, {"topic": "b"}, "row 2 .* 209 bytes"),
        ({"headers": [[], [("a", b""), (None, b"")]]}, {"topic": "a"}, "row 2 .*has no key"),
        ({"headers": [[("a", b"")], [None]]}, {"topic": "a"}, "row 2 .*is null, or has no key"),
    ],
)
def test_a_row_that_cannot_be_written(columns: dict[str, Any], options: dict[str, Any], said: str) -> None:
    batch = rows(**{"key": ["k", "k"], "value": [b"v", b"v"], **columns})
    with pytest.raises(RowRefused, match=f"(?s){said}.*Nothing was published"):
        intake(**options).take(batch)


@pytest.mark.parametrize(("year", "said"), [(2036, "its timestamp is"), (1969, "accepts 0 to")])
def test_a_time_that_the_topic_refuses(year: int, said: str) -> None:
    batch = rows(value=[b"v", b"v"], timestamp=[None, datetime(year, 1, 1, tzinfo=UTC)])
    with pytest.raises(RowRefused, match=f"row 2 .*{said}"):
        intake(topic="strict", includeTimestamp="true").take(batch)
    if year > 2000:
        intake(topic="broker-time", includeTimestamp="true").take(batch)


def test_rows_are_counted_over_the_whole_task() -> None:
    taking = intake(topic="a")
    taking.take(rows(value=[b"v"] * 5))
    with pytest.raises(RowRefused, match="row 6 "):
        taking.take(rows(value=[b"v"], partition=[9]))


def test_no_rows() -> None:
    assert intake(topic="a").take(rows(value=pa.array([], pa.binary()))).slots.tolist() == []
    with pytest.raises(WriteRefused):
        intake(topic="none").take(rows(value=pa.array([], pa.binary())))
    many = rows(value=pa.array([], pa.binary()), topic=pa.array([], pa.string()))
    assert intake().take(many).slots.dtype == np.int64


@pytest.mark.parametrize(
    ("types", "options", "said"),
    [
        ({"key": "string"}, {"topic": "a"}, "no column value"),
        ({"value": "bigint"}, {"topic": "a"}, "column value is bigint; it must be string or binary"),
        ({"value": "binary"}, {}, "no topic"),
        ({"value": "binary", "topic": "int"}, {}, "column topic is int"),
        ({"value": "binary", "key": "double"}, {"topic": "a"}, "column key is double"),
        ({"value": "binary", "partition": "bigint"}, {"topic": "a"}, "column partition is bigint"),
        ({"value": "binary", "headers": "map<string,binary>"}, {"topic": "a"}, "column headers is map"),
        ({"value": "binary"}, {"topic": "a", "includeTimestamp": "true"}, "no column timestamp"),
        (
            {"value": "binary", "timestamp": "bigint"},
            {"topic": "a", "includeTimestamp": "true"},
            "column timestamp is bigint",
        ),
    ],
)
def test_columns_that_cannot_be_written(types: dict[str, str], options: dict[str, str], said: str) -> None:
    with pytest.raises(WriteRefused, match=said):
        check_columns(types, WriteOptions.parse({"path": "/logs", **options}, streaming=False))


def test_columns_that_can() -> None:
    others = dict.fromkeys(("topic", "headers", "timestamp", "offset"), "int")
    kinds = {"value": "string", "key": "binary", **others}
    options = WriteOptions.parse({"path": "/l", "topic": "a", "includeHeaders": "false"}, streaming=False)
    check_columns(kinds, options)
