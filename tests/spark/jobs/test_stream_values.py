"""`stream` of CSV and Avro values: rows by their schema, the others aside with the reason."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore import Log, LogConfig, Record, encode_batch
from logstore.spark.avro import AvroDecoder, avro_decoder
from logstore.spark.jobs.stream import Rows
from logstore.spark.jobs.values import Values
from tests.spark.jobs.conftest import NOON_MS, Command, append
from tests.spark.jobs.test_stream import complaint, refused, rows
from tests.spark.test_avro import EVERYTHING, OLDER, PERSON, ROW, answer, datum, named, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def values_of(directory: Path, *values: bytes | None) -> Path:
    with Log.open(directory / "t-0", LogConfig()) as log:
        log.append_batches(encode_batch([Record(n, NOON_MS, b"k", value) for n, value in enumerate(values)]))
    return directory


def parsed(spark: SparkSession, data: Path, values: Values) -> list[Any]:
    """The rows of a batch, before they are written."""
    records = spark.read.format("logstore").option("subscribe", "t").load(str(data))
    return Rows(values, None, None, False, False).of(records, None).orderBy("_offset").collect()


@pytest.mark.spark
def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["1;ann;20.11.2026", "x;bob;20.11.2026", "3;cleo", ";dora;", '5;"a;b";', None]
    append(tmp_path / "t-0", [(NOON_MS, "k", text) for text in texts])
    options = {"sep": ";", "dateFormat": "dd.MM.yyyy"}
    found = parsed(spark, tmp_path, Values("csv", "id INT NOT NULL, name STRING, day DATE", options))
    assert [row["_refused_because"] for row in found] == [
        None, "it cannot be parsed", "it cannot be parsed", "id is null or missing", None,
        "its value is null",
    ]  # fmt: skip
    assert [(found[n]["id"], found[n]["name"], str(found[n]["day"])) for n in (0, 4)] == [
        (1, "ann", "2026-11-20"),
        (5, "a;b", "None"),
    ]


@pytest.mark.spark
def test_avro_of_one_schema(spark: SparkSession, tmp_path: Path) -> None:
    """Every type arrives in its column; what is no datum of the schema has a reason."""
    whole = datum(EVERYTHING, ROW)
    data = values_of(tmp_path, whole, whole[:-1], whole + b"?", None)
    decoder = AvroDecoder(json.dumps(EVERYTHING))
    found = parsed(spark, data, Values("avro", decoder.columns, decoder=decoder))
    reasons = [row["_refused_because"] for row in found]
    assert reasons[0] is None
    assert "EOFError" in reasons[1]
    assert reasons[2:] == ["1 bytes follow its last field", "its value is null"]
    row = found[0].asDict(recursive=True)
    at = row.pop("at").astimezone(UTC)
    assert {**{name: row.get(name) for name in ROW}, "at": at} == ROW


@pytest.mark.spark
def test_avro_of_a_registry(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    """Schemas by id, over HTTP with a login. A registry that refuses us ends the run with one line."""
    values = [
        named(7, OLDER, {"id": 1, "age": 40}),
        named(8, PERSON, {"id": 2, "name": "bob"}),
        named(9, PERSON, {"id": 3, "name": "cleo"}),
        b'{"id": 4}',
    ]
    data = values_of(tmp_path / "data", *values)
    (tmp_path / "person.avsc").write_text(json.dumps(PERSON))
    (tmp_path / "login").write_text("ann:secret\n")
    table = tmp_path / "table"
    line = ["stream", data, "--output", table, "--json", "--value-format", "avro"]
    line += ["--avro-schema", tmp_path / "person.avsc", "--registry"]
    with served() as registry:
        registry.answers["/schemas/ids/7"] = [(200, answer(OLDER))]
        registry.answers["/schemas/ids/8"] = [(401, {})]
        failed = command(*line, registry.url)
        assert failed.code == 1
        assert "refuses our login (401): check user and password" in complaint(failed)
        assert not table.is_dir() or not list(table.glob("*.parquet"))
        registry.answers["/schemas/ids/8"] = [(200, answer(PERSON))]
        done = command(*line, registry.url, "--registry-login", tmp_path / "login")
    assert (done.code, done.facts["rows"], done.facts["refused"]) == (1, 2, 2)
    assert [(row["id"], row["name"]) for row in rows(table)] == [(1, None), (2, "bob")]
    assert refused(table) == [
        (0, 2, "schema 9 is not in the registry"),
        (0, 3, "it does not begin with 0x00 and the id of a schema"),
    ]
    assert all(login == "Basic YW5uOnNlY3JldA==" for _, login in registry.asked[-3:])


@pytest.mark.spark
def test_avro_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    data = values_of(tmp_path / "data", named(8, PERSON, {"id": 2, "name": "bob"}), b"?")
    (tmp_path / "8.avsc").write_text(json.dumps(PERSON))
    spark.udf.register("people", avro_decoder(json.dumps(PERSON), str(tmp_path)))
    records = spark.read.format("logstore").option("subscribe", "t").load(str(data))
    records.createOrReplaceTempView("records")
    found = spark.sql("SELECT made.row.*, made.reason FROM (SELECT people(value) AS made FROM records)")
    assert [tuple(row) for row in found.collect()] == [
        (2, "bob", None),
        (None, None, "it does not begin with 0x00 and the id of a schema"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schema", "id INT", "--avro-schema", "x"], "exclude each other"),
        (["--avro-schema", "x"], "need each other"),
        (["--value-format", "avro"], "need each other"),
        (["--value-format", "avro", "--schema", "id INT"], "need each other"),
        (["--value-format", "csv"], "needs --schema"),
        (["--schema", "id INT", "--registry", "x"], "is for --value-format avro"),
        (["--registry-login", "x"], "needs --registry"),
        (["--value-option", "sep=;"], "with a schema"),
        (
            ["--value-format", "avro", "--avro-schema", "{person}", "--registry", "nowhere"],
            "neither a directory nor a URL",
        ),
        (["--value-format", "avro", "--avro-schema", "{person}", "--registry", "ftp://x"], "a registry is"),
    ],
)
def test_bad_usage(command: Command, tmp_path: Path, arguments: list[Any], said: str) -> None:
    (tmp_path / "person.avsc").write_text(json.dumps(PERSON))
    (tmp_path / "data").mkdir()
    given = [each.format(person=tmp_path / "person.avsc") for each in arguments]
    outcome = command("stream", tmp_path / "data", "--output", tmp_path / "table", *given, "--plan")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert said in outcome.err
