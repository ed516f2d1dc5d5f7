"""Batch reads in a real session: options and their effects, errors as a user sees them, losses both ways."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from logstore import Log, encode_batch
from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from logstore.columnar.columnar import warm_up
from logstore.config import LogConfig
from logstore.format.batch import walk
from logstore.format.record import Header, Record
from logstore.log.upkeep import advance_log_start_offset
from tests.golden.reading import content

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SMALL = LogConfig(segment_bytes=3000, index_interval_bytes=300)
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`orders` with partitions 0 and 1 of 200 records, ten a batch, and `other` with one record."""
    warm_up()
    directory = tmp_path_factory.mktemp("logs")
    for partition in range(2):
        with Log.open(directory / f"orders-{partition}", SMALL) as log:
            for first in range(0, 200, 10):
                log.append_batches(encode_batch([record(number) for number in range(first, first + 10)]))
    with Log.open(directory / "other-0") as log:
        log.append([b"alone"])
    return directory


def record(number: int) -> Record:
    headers = (Header("n", b"%d" % number),) if number % 2 else ()
    return Record(number % 10, T0 + number, b"k%d" % number, b"v%d" % number, headers)


def load(spark: SparkSession, path: Path | list[str], **options: str) -> DataFrame:
    options = {"subscribe": "orders", **options}
    if "subscribePattern" in options or "assign" in options:
        del options["subscribe"]
    return (
        spark.read.format("logstore").options(**options).load(path if isinstance(path, list) else str(path))
    )


def offsets(frame: DataFrame) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in frame.select("topic", "partition", "offset").collect():
        found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return {where: sorted(numbers) for where, numbers in found.items()}


def message(error: pytest.ExceptionInfo[Any]) -> str:
    """The line of ours in what Spark says."""
    lines = [line for line in str(error.value).splitlines() if line.startswith("logstore.spark.errors.")]
    assert len(lines) == 1, str(error.value)
    return lines[0].removeprefix("logstore.spark.errors.")


def test_every_row_and_column(spark: SparkSession, logs: Path) -> None:
    """Found without registering; rows, values and schema as of the connector, and two columns of ours."""
    frame = load(spark, logs, includeHeaders="true", columns="*,leaderEpoch,segment")
    connector = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key:string,value:binary>>, leaderEpoch int, segment bigint"
    )
    assert ", ".join(f"{name} {kind}" for name, kind in frame.dtypes) == connector
    assert all(field.nullable for field in frame.schema)
    rows = {(row["partition"], row["offset"]): row for row in frame.collect()}
    assert sorted(rows) == [(partition, offset) for partition in range(2) for offset in range(200)]
    for (partition, offset), row in rows.items():
        assert (bytes(row["key"]), bytes(row["value"])) == (b"k%d" % offset, b"v%d" % offset)
        assert (row["topic"], row["timestampType"], row["leaderEpoch"]) == ("orders", 0, 0)
        assert round(row["timestamp"].timestamp() * 1000) == T0 + offset
        named = row["headers"] and [(each["key"], bytes(each["value"])) for each in row["headers"]]
        assert named == ([("n", b"%d" % offset)] if offset % 2 else None)
        assert (logs / f"orders-{partition}" / f"{row['segment']:020d}.log").exists()


def test_options_and_their_effects(spark: SparkSession, logs: Path) -> None:
    """Which partitions, from where, to where."""
    both = {("orders", 0): list(range(200)), ("orders", 1): list(range(200))}
    assert offsets(load(spark, logs)) == both
    assert offsets(load(spark, [str(logs / "orders-0"), str(logs / "orders-1")])) == both
    assert offsets(load(spark, Path(f"{logs.parent}/{logs.name[:-1]}*"))) == both
    assert set(offsets(load(spark, logs, subscribePattern="o.*"))) == {*both, ("other", 0)}
    assert offsets(
        load(
            spark,
            logs,
            assign='{"orders":[1]}',
            startingOffsets='{"orders":{"1":5}}',
            endingOffsets='{"orders":{"1":8}}',
        )
    ) == {("orders", 1): [5, 6, 7]}
    by_time = load(
        spark,
        logs,
        startingOffsets='{"orders":{"0":0,"1":0}}',
        startingTimestamp=str(T0 + 190),
        endingOffsetsByTimestamp=f'{{"orders":{{"0":{T0 + 195},"1":{T0 + 1000}}}}}',
    )
    assert offsets(by_time) == {("orders", 0): list(range(190, 195)), ("orders", 1): list(range(190, 200))}
    late = {"startingTimestamp": str(T0 + 500), "startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(load(spark, logs, **late)) == {}
    with pytest.raises(Exception, match="NoMatchingTime") as error:
        load(spark, logs, startingTimestamp=str(T0 + 500)).collect()
    assert message(error).startswith("NoMatchingTime: orders-0 has no record at or after")


def test_partitions_of_spark(spark: SparkSession, logs: Path) -> None:
    """One a partition, or as many as asked for; a cap; the same rows in each case, in order within one."""
    for options, expected in (
        ({}, 2),
        ({"minPartitions": "6"}, 6),
        ({"maxRecordsPerPartition": "100"}, 4),
        ({"minPartitions": "1", "maxRecordsPerPartition": "1000"}, 2),
    ):
        rdd = load(spark, logs, columns="partition,offset", **options).rdd
        pieces = [[tuple(row) for row in piece] for piece in rdd.glom().collect()]
        assert len(pieces) == expected
        assert [row for piece in pieces for row in piece] == [(p, o) for p in range(2) for o in range(200)]


def test_projection_and_counting(spark: SparkSession, logs: Path) -> None:
    """Spark prunes nothing for a Python source; what is not named is not made."""
    frame = load(spark, logs, columns="offset,timestamp")
    assert frame.columns == ["offset", "timestamp"]
    assert load(spark, logs, columns="offset").count() == 400
    assert load(spark, logs, columns="topic").distinct().collect() == [("orders",)]


def test_nothing_to_read(spark: SparkSession, logs: Path) -> None:
    """No partition at all: Spark asks for one all the same."""
    assert load(spark, logs, endingOffsets='{"orders":{"0":0,"1":0}}').count() == 0
    assert load(spark, logs, subscribePattern="nothing.*").collect() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsets": '{"orders":{"0":999,"1":0}}'},
            "orders-0: offsets 200 to 998 are lost, truncated",
        ),
        (
            {
                "startingOffsets": '{"orders":{"0":9,"1":0}}',
                "endingOffsets": '{"orders":{"0":5,"1":5}}',
            },
            "orders-0: the batch would start at offset 9, past its end at 5",
        ),
        (
            {"startingTimestamp": str(T0 + 100), "endingTimestamp": str(T0 + 50)},
            "orders-0: the batch would start at offset 100, past its end at 50",
        ),
    ],
)
def test_a_start_past_the_end_is_no_empty_batch(
    spark: SparkSession, logs: Path, options: dict[str, str], message: str
) -> None:
    """A job with saved offsets must not succeed, empty, after its topic was made anew."""
    with pytest.raises(PySparkException, match=message):
        load(spark, logs, **options).collect()


def test_a_start_past_the_end_is_skipped_on_request(spark: SparkSession, logs: Path) -> None:
    past = load(spark, logs, startingOffsets='{"orders":{"0":999,"1":190}}', failOnDataLoss="false")
    assert offsets(past) == {("orders", 1): list(range(190, 200))}


def test_a_pattern_is_found_anywhere_in_the_name_as_java_would(spark: SparkSession, logs: Path) -> None:
    for pattern in ("rde", r"^\p{Lower}+s$", "[a-z&&[^t]]{6}", r"(?<two>[a-z])rders"):
        assert {topic for topic, _ in offsets(load(spark, logs, subscribePattern=pattern))} == {"orders"}, (
            pattern
        )


def test_filters_are_pushed_down(spark: SparkSession, logs: Path) -> None:
    """Fewer tasks and the right rows; without the setting Spark refuses, and says which one."""
    from pyspark.sql import functions as f

    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(spark, logs, pushdown="one_query").collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, logs, pushdown="one_query")
        found = frame.where((f.col("partition") == 1) & (f.col("offset") >= 190))
        assert found.rdd.getNumPartitions() == 1
        assert offsets(found) == {("orders", 1): list(range(190, 200))}
        since = f.timestamp_millis(f.lit(T0 + 150))
        found = frame.where((f.col("timestamp") > since) & (f.col("topic") == "orders"))
        assert offsets(found) == {("orders", p): list(range(151, 200)) for p in range(2)}
        assert frame.where(f.col("partition") == 7).count() == 0
        assert frame.count() == 0, "Spark forgets the filters between queries now: decision 086 can go"
        with pytest.raises(Exception, match="Set it to one_query and load again for each filter"):
            load(spark, logs, pushdown="true").collect()
        frame = load(spark, logs)
        some = frame.where(f.col("partition") == 0).union(frame.where(f.col("partition") == 1))
        assert (some.count(), frame.count()) == (400, 400)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_sql(spark: SparkSession, logs: Path) -> None:
    """A view that carries its options."""
    spark.sql(f"CREATE TEMPORARY VIEW orders USING logstore OPTIONS (path '{logs}', subscribe 'orders')")
    assert spark.sql("SELECT max(offset) FROM orders").collect() == [(199,)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingOffsets": "latest"},
            "InvalidOption: option startingOffsets: a batch that starts at latest is empty",
        ),
        (
            {"minPartition": "1"},
            "InvalidOption: unknown option minpartition: did you mean minPartitions?",
        ),
        ({"subscribe": "absent"}, "UnknownTopic: "),
        ({"kafka.bootstrap.servers": "h:1"}, "InvalidOption: a read takes directories"),
    ],
)
def test_errors_say_what_to_do(
    spark: SparkSession, logs: Path, options: dict[str, str], expected: str
) -> None:
    """Spark wraps them in a traceback; one line of it is ours."""
    with pytest.raises(Exception, match=r"logstore\.spark\.errors") as error:
        load(spark, logs, **options).collect()
    assert message(error).startswith(expected)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, logs: Path) -> None:
    """The source has a fixed one."""
    reader = spark.read.format("logstore").schema("value string").option("subscribe", "orders")
    with pytest.raises(Exception, match="fixed schema"):
        reader.load(str(logs)).collect()


# --- directories as they are found --------------------------------------------------------------------------


def both_ways(spark: SparkSession, path: Path, topic: str = "orders") -> tuple[list[int] | str, list[int]]:
    """Offsets, or our line of the error, with `failOnDataLoss`, and offsets without."""
    strict: list[int] | str
    try:
        strict = [row[0] for row in load(spark, path, subscribe=topic, columns="offset").collect()]
    except Exception as error:
        strict = next(line for line in str(error).splitlines() if "DataLoss: " in line).split("DataLoss: ")[1]
    frame = load(spark, path, subscribe=topic, columns="offset", failOnDataLoss="false")
    return strict, [row[0] for row in frame.collect()]


def test_a_directory_that_kafka_wrote(spark: SparkSession, tmp_path: Path) -> None:
    """A golden segment, its indexes preallocated as a broker leaves them, and checkpoints beside it."""
    directory = tmp_path / "mini-0"
    directory.mkdir()
    for kind in ("log", "index", "timeindex"):
        data = content(f"mini-00000000000000001000.{kind}.bin")
        (directory / f"00000000000000001000.{kind}").write_bytes(data + bytes(4096 if kind != "log" else 0))
    (directory / LEADER_EPOCH_CHECKPOINT).write_text("0\n0\n")
    expected = [row[0] for row in load(spark, tmp_path, subscribe="mini", columns="offset").collect()]
    written = walk(content("mini-00000000000000001000.log.bin"))
    assert expected == [each.offset for batch in written for each in batch.records()]
    assert len(expected) > 10
    (tmp_path / HIGH_WATERMARK_CHECKPOINT).write_text(f"0\n1\nmini 0 {expected[5]}\n")
    assert both_ways(spark, tmp_path, "mini") == (expected[:5], expected[:5])


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A log of 30 records in three segments, to be broken."""
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for first in range(0, 30, 5):
            log.append_batches(encode_batch([record(number) for number in range(5)]))
            if first in (5, 15):
                log.partition.roll()
    return tmp_path


def test_a_torn_tail(spark: SparkSession, found: Path) -> None:
    """What was never committed is no loss; what was, by the watermark, is named."""
    path = found / "orders-0" / f"{20:020d}.log"
    path.write_bytes(path.read_bytes()[:-3])
    assert both_ways(spark, found) == (list(range(25)), list(range(25)))
    (found / HIGH_WATERMARK_CHECKPOINT).write_text("0\n1\norders 0 30\n")
    strict, rows = both_ways(spark, found)
    assert isinstance(strict, str)
    assert strict.startswith("orders-0: offsets 25 to 29 are lost, truncated: the log ends before them")
    assert rows == list(range(25))


def test_a_damaged_segment(spark: SparkSession, found: Path) -> None:
    """One flipped bit costs one batch; the error names topic, partition, offsets and cause."""
    path = found / "orders-0" / f"{10:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    strict, rows = both_ways(spark, found)
    assert isinstance(strict, str)
    assert strict.startswith("orders-0: offsets 10 to 14 are lost, damaged: the log is damaged there")
    assert "at byte 0" in strict
    assert rows == [*range(10), *range(15, 30)]


def test_retention_between_planning_and_reading(spark: SparkSession, found: Path) -> None:
    """Spark plans once a load: what goes before a later action has expired."""
    loose = load(spark, found, columns="offset", failOnDataLoss="false")
    strict = load(spark, found, columns="offset")
    assert loose.count() == strict.count() == 30
    for path in (found / "orders-0").glob(f"{0:020d}.*"):
        path.unlink()
    assert [row[0] for row in loose.collect()] == list(range(10, 30))
    with pytest.raises(Exception, match="offsets 0 to 9 are lost, expired: they are below the log start"):
        strict.collect()


def test_a_log_that_is_being_written(spark: SparkSession, tmp_path: Path) -> None:
    """The owner appends, rolls and deletes between planning and reading: what is there, once, in order."""
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        end = 0
        for round_number in range(4):
            frame = load(spark, tmp_path, failOnDataLoss="false", columns="offset,value", minPartitions="3")
            log.append([b"%d" % number for number in range(end, end + 150)])
            end += 150
            if round_number == 2:
                advance_log_start_offset(log.partition, 200)
            rows = [(row[0], bytes(row[1])) for row in frame.collect()]
            numbers = [offset for offset, _ in rows]
            assert rows == [(number, b"%d" % number) for number in numbers]
            first = 200 if round_number >= 2 else 0
            assert numbers == list(range(first, end))
