"""`stream`: each row once, by its schema, in the table or aside with the reason; whatever ends a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from logstore.disk.files import OsDisk
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs import stream
from logstore.spark.jobs.json_schema import ddl_of
from logstore.spark.ledger import Ledger
from tests.spark.jobs.conftest import NOON_MS, Command, Outcome, append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id INT NOT NULL, name STRING, at TIMESTAMP"


def good(number: int, **more: Any) -> str:
    return json.dumps({"id": number, "name": f"n{number}", **more})


def rows(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(table, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def complaint(outcome: Outcome) -> str:
    """What is said besides progress: one line."""
    (line,) = [line for line in outcome.err.splitlines() if not line.startswith("stream: ")]
    return line


def refused(table: Path) -> list[tuple[int, int, str]]:
    found = ds.dataset(table / "_refused", ignore_prefixes=["."]).to_table().to_pylist()
    return sorted((row["partition"], row["offset"], row["reason"]) for row in found)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    bad = [(NOON_MS, "k", "{"), (NOON_MS, "k", '{"name": "x"}'), (NOON_MS, "k", '{"id": "x"}')]
    append(tmp_path / "data" / "t-0", [(NOON_MS + n, f"k{n}", good(n)) for n in range(10)])
    append(tmp_path / "data" / "t-0", [*bad, (NOON_MS, "k", None)])
    append(tmp_path / "data" / "t-1", [(NOON_MS + n, None, good(100 + n)) for n in range(20)])
    return tmp_path / "data"


@pytest.mark.spark
def test_rows_once_and_bad_ones_aside(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    start = ["stream", data, "--output", table, "--batch-records", 20]
    line = [*start, "--schema", SCHEMA, "--json"]
    first = command(*line)
    assert first.code == 1, "bad rows are an answer"
    facts = first.facts
    assert (facts["rows"], facts["refused"], facts["late"]) == (30, 4, 0)
    assert facts["batches"] > 1
    assert [each["offsets"] for each in facts["behind"]] == [0, 0]
    found = rows(table)
    assert [row["id"] for row in found] == [*range(10), *range(100, 120)]
    assert found[3] == {
        "id": 3, "name": "n3", "at": None, "_key": b"k3", "_topic": "t", "_partition": 0, "_offset": 3,
        "_timestamp": found[3]["_timestamp"],
    }  # fmt: skip
    assert refused(table) == [
        (0, 10, "it cannot be parsed"),
        (0, 11, "id is null or missing"),
        (0, 12, "it cannot be parsed"),
        (0, 13, "its value is null"),
    ]
    assert spark.read.parquet(str(table)).count() == 30
    # The next run goes on.
    append(data / "t-1", [(NOON_MS, "k", good(200))])
    assert command(*line, "--plan").facts["offsets"] == 1
    again = command(*line)
    assert (again.code, again.facts["rows"], again.facts["total"]["rows"]) == (0, 1, 31)
    assert rows(table)[-1]["id"] == 200
    assert command(*line[:-1]).out == "nothing new to stream\n"
    # Files of another type would make a table that nobody can read.
    append(data / "t-1", [(NOON_MS, "k", good(300))])
    other = command(*start, "--schema", SCHEMA.replace("id INT", "id STRING"))
    assert (other.code, "column id is string" in complaint(other)) == (1, True)
    wider = command(*start, "--schema", f"{SCHEMA}, more INT", "--json").facts
    assert (wider["rows"], wider["total"]["rows"]) == (1, 32), "a new column is added"
    assert spark.read.option("mergeSchema", "true").parquet(str(table)).count() == 32
    # Without its checkpoint it would read all again, under numbers that are taken.
    (table / stream.LEDGER_DIRECTORY / "checkpoint").rename(tmp_path / "elsewhere")
    assert "restore it" in command(*line).err


@pytest.mark.spark
def test_late_rows_and_directories(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    """Late is what lies far before the latest time of earlier batches."""
    times = ["12:00", "12:30", "11:00", "12:29", "12:31", "12:00"]
    values = [good(n, at=f"2026-11-20T{time}:00Z") for n, time in enumerate(times)]
    append(tmp_path / "data" / "t-0", [(NOON_MS, "k", value) for value in values])

    def streamed(output: str, *more: str, batch_records: int = 2, time: str = "at") -> dict[str, Any]:
        line = ["stream", tmp_path / "data", "--output", tmp_path / output, "--schema", SCHEMA, "--json"]
        line += ["--event-time", time, "--late-after", 600, "--partition-by", "name"]
        return command(*line, "--batch-records", batch_records, *more).facts

    kept = streamed("kept")
    assert (kept["rows"], kept["refused"], kept["late"]) == (6, 0, 2)
    assert sorted(path.name for path in (tmp_path / "kept").glob("name=*")) == [
        f"name=n{n}" for n in range(6)
    ]
    assert len(rows(tmp_path / "kept")) == 6
    streamed("refused", "--late", "refuse", batch_records=3)
    assert refused(tmp_path / "refused") == [(0, 5, "it is late")], "of the second batch of three"
    append(tmp_path / "data" / "t-0", [(NOON_MS, "k", good(6, at="2026-11-20T12:01:00Z"))])
    text = streamed("text", time="CASE WHEN id = 6 THEN 'noon' ELSE string(at) END")
    assert text["late"] == 2, "a time that is none is not late"


@pytest.mark.spark
def test_the_first_bad_row_may_end_it(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    line = ["stream", data, "--output", tmp_path / "table", "--schema", SCHEMA]
    failed = command(*line, "--bad-rows", "fail")
    assert failed.code == 1
    assert "t-0, offset 10: it cannot be parsed" in complaint(failed)
    assert not list((tmp_path / "table").glob("*.parquet"))
    raw = command("stream", data, "--output", tmp_path / "raw", "--json").facts
    assert (raw["rows"], raw["refused"]) == (34, 0)
    assert rows(tmp_path / "raw")[0]["value"] == good(0).encode()


@pytest.mark.spark
def test_a_mistake_in_columns_is_found_before_the_query_starts(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    """A query ends with two hundred lines of traces above the error."""
    table = tmp_path / "table"
    for arguments, said in (
        (["--schema", "id INT, name STRIN"], "Unsupported data type"),
        (["--schema", "id INT", "--event-time", "nobody"], "`nobody` cannot be resolved"),
        (["--schema", "id INT", "--event-time", "id +"], "Syntax error"),
        (["--schema", "id INT", "--partition-by", "nobody"], "--partition-by nobody: the columns are"),
        (["--schema", "id INT, _Late STRING"], "column _Late of the schema is one of the job's own"),
        (["--schema", "id INT, ID STRING"], "It appears 2 times in the schema"),
    ):
        wrong = command("stream", data, "--output", table, *arguments)
        assert wrong.code == 2, wrong.err
        assert said in wrong.err
        assert wrong.err.count("\n") == 1
        assert not table.exists()
    line = ["stream", data, "--output", table, "--topics", "t"]
    command(*line, "--schema", "id INT")
    other = command(*line, "--schema", "id STRING")
    assert (other.code, other.err.count("\n")) == (1, 1), "though nothing is new"
    assert "column id is string" in other.err


def test_a_table_belongs_to_one_job(command: Command, data: Path, tmp_path: Path) -> None:
    for job, other in (("stream", "export"), ("export", "stream")):
        table = tmp_path / f"{other}s"
        (table / f".logstore-{other}").mkdir(parents=True)
        for more in ([], ["--plan"]):
            refused = command(job, data, "--output", table, *more)
            assert refused.code == 2
            assert f"is a table of {other}" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--every", "5"], "--every SECONDS needs --follow"),
        (["--schema", "id INT", "--json-schema", "x"], "exclude each other"),
        (["--late", "refuse"], "--late refuse needs"),
        (["--ending-timestamp", "2026-11-20"], "a stream has no end"),
        (["--batch-records", "0"], "must be 1 or more"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_usage(command: Command, data: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    outcome = command("stream", data, "--output", tmp_path / "table", *arguments, "--plan")
    assert outcome.code in (1, 2)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_topic_that_was_made_anew(command: Command, data: Path, tmp_path: Path) -> None:
    """Neither a plan nor a run goes on at the offsets of the former one; it is seen before Spark starts."""
    line = ["stream", data, "--output", tmp_path / "table"]
    with Ledger(OsDisk(), str(tmp_path / "table" / stream.LEDGER_DIRECTORY)) as ledger:
        ledger.decide(0, {})
        ledger.finish({"offsets": {"t": {"0": 4}}, "topic_ids": {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}})
    place = data / "t-0" / "partition.metadata"
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    for more in ([], ["--plan"]):
        outcome = command(*line, *more)
        assert (outcome.code, "but what was streamed is of AAAAAAAAAAAAAAAAAAAAAQ" in outcome.err) == (
            1,
            True,
        )
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert command(*line, "--plan").code == 0


@pytest.mark.spark
def test_a_topic_that_is_made_anew_during_a_batch(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch may have rows of both topics: none is published."""
    place = data / "t-0" / "partition.metadata"
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    real = stream.Stream._stage

    def stage(*given: Any) -> dict[str, Any]:
        seen = real(*given)
        place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
        return seen

    monkeypatch.setattr(stream.Stream, "_stage", stage)
    outcome = command("stream", data, "--output", tmp_path / "table", "--schema", SCHEMA)
    assert outcome.code == 1
    assert "but what was streamed is of AAAAAAAAAAAAAAAAAAAAAQ" in complaint(outcome)
    assert not list((tmp_path / "table").glob("*.parquet"))


def test_a_plan_reads_nothing(command: Command, data: Path, tmp_path: Path) -> None:
    facts = command("stream", data, "--output", tmp_path / "table", "--plan", "--json").facts
    assert (facts["offsets"], facts["rows"]) == (34, 0)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("start", "left"),
    [("latest", [0, 0]), ("earliest", [14, 20]), ('{"t":{"0":4,"1":-1}}', [10, 0])],
)
def test_a_plan_counts_from_the_start_that_is_asked_for(
    command: Command, data: Path, tmp_path: Path, start: str, left: list[int]
) -> None:
    line = ["stream", data, "--output", tmp_path / "table", "--starting-offsets", start]
    partitions = command(*line, "--plan", "--json").facts["partitions"]
    assert [each["offsets"] for each in partitions] == left


# --- JSON Schema --------------------------------------------------------------------------------------------


def test_a_json_schema_becomes_columns() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["id", "where"],
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "where": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
    assert ddl_of(json.dumps(schema)) == (
        "`id` BIGINT NOT NULL, `at` TIMESTAMP, `where` STRUCT<`x`: DOUBLE NOT NULL> NOT NULL, "
        "`tags` ARRAY<STRING>"
    )


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not JSON"),
        ('{"type": "array"}', "must describe an object"),
        ('{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}', "minimum of a"),
        ('{"type": "object", "properties": {"a": {"type": ["integer", "string"]}}}', "a has type"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', "a has type 'array'"),
        ('{"type": "object", "properties": {"a": true}}', "not a schema"),
    ],
)
def test_a_json_schema_that_a_table_cannot_say(schema: str, complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        ddl_of(schema)
