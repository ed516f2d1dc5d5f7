"""`ingest`: each row of the files once, where it belongs; what cannot be written is named, and why."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.broker import BrokerCluster
from logstore.disk.files import OsDisk
from logstore.format.record import Record
from logstore.log.reader import LogReader
from logstore.spark.jobs import ingest
from logstore.spark.jobs.ingest import Input
from logstore.spark.ledger import Ledger
from tests.spark.jobs.conftest import Command
from tests.unreadable import unreadable

LINES = [f"line {number}" for number in range(20)]


def records(directory: Path, topic: str) -> Iterator[Record]:
    for path in sorted(directory.glob(f"{topic}-*")):
        yield from LogReader(path).records()


def values(directory: Path, topic: str = "t") -> list[str]:
    return sorted((record.value or b"").decode() for record in records(directory, topic))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.log").write_text("".join(f"{line}\n" for line in LINES[:12]))
    (directory / "b.log").write_text("".join(f"{line}\n" for line in LINES[12:]))
    return directory


# --- what is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["IN", "--topic", "t"], "give either --to DIR or --brokers"),
        (["IN", "--to", "X"], "give either --topic NAME or --topic-from EXPR"),
        (["IN/*.gz", "IN/none", "--to", "X", "--topic", "t"], "no file matches"),
        (["IN", "--to", "X", "--topic", "t", "--value-format", "column"], "need each other"),
        (["IN", "--to", "X", "--topic", "t", "--value", "x"], "need each other"),
        (["IN", "--to", "X", "--topic", "t", "--format", "csv", "--value-format", "raw"], "is for text"),
        (["IN", "IN", "--to", "X", "--topic", "t", "--checkpoint", "C"], "one directory or pattern"),
        (["IN/b.log", "--to", "X", "--topic", "t", "--checkpoint", "C"], "b.log is a file"),
        (["IN", "--to", "X", "--topic", "t", "--write-id", "x"], "NAME:NUMBER"),
        (["IN", "--to", "X", "--topic", "t", "--write-id", "x:1", "--checkpoint", "C"], "exclude each other"),
        (["IN", "--brokers", "localhost:9092", "--topic", "t"], "needs --staging"),
        (["IN", "--to", "X", "--topic", "t/u"], "topic name"),
        (["IN", "--to", "X", "--topic", "t"], "topic t does not exist in"),
        (["IN", "--to", "X", "--topic", "t", "--reader-option", "header"], "NAME=VALUE"),
        (["IN", "--to", "X", "--topic", "t", "--option", "kafka.acks=1"], "kafka.acks"),
    ],
)
def test_bad_usage(command: Command, lines: Path, arguments: list[str], complaint: str) -> None:
    given = [each.replace("IN", str(lines)) for each in arguments]
    outcome = command("ingest", *given, "--plan")
    assert outcome.code == 2
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_wrong_address_is_known_at_once(command: Command, lines: Path, tmp_path: Path) -> None:
    line = ["ingest", lines, "--brokers", "127.0.0.1:1", "--topic", "t", "--staging", tmp_path / "s"]
    for more in ([], ["--plan"], ["--partitions", "1"]):
        refused = command(*line, *more)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert "no broker takes a connection (127.0.0.1:1: Connection refused)" in refused.err


@pytest.mark.spark
def test_raw_lines_keep_every_byte(command: Command, tmp_path: Path) -> None:
    """Only a newline ends a line: no carriage return goes, and nothing is taken for text."""
    lines = [b"dos\r", b"a\rb", b"\xff\xfe not UTF-8 \x00", "ä".encode(), b""]
    (tmp_path / "raw.txt").write_bytes(b"\n".join(lines) + b"\n")
    done = command(
        "ingest", tmp_path / "raw.txt", "--to", tmp_path / "logs", "--topic", "t", "--partitions", 1
    )
    assert done.code == 0, done.err
    assert [record.value for record in records(tmp_path / "logs", "t")] == lines


def test_a_plan_counts_no_files_that_it_cannot_see(command: Command, lines: Path, tmp_path: Path) -> None:
    (lines / "closed").mkdir()
    with unreadable(lines / "closed"):
        asked = ["ingest", lines, "--to", tmp_path / "logs", "--topic", "t", "--partitions", "1"]
        outcome = command(*asked, "--plan")
    assert (outcome.code, "Permission denied" in outcome.err) == (1, True), outcome


def test_a_plan_reads_nothing_and_writes_nothing(command: Command, lines: Path, tmp_path: Path) -> None:
    (lines / "_SUCCESS").write_text("")
    asked = ["ingest", lines, "--to", tmp_path / "logs", "--topic", "t", "--partitions", "1"]
    facts = command(*asked, "--plan", "--json").facts
    assert (facts["files"], facts["incremental"], facts["done"]) == (2, False, None)
    assert facts["bytes"] == sum(path.stat().st_size for path in lines.iterdir())
    assert not (tmp_path / "logs").exists()


def test_input_by_url(command: Command, lines: Path, tmp_path: Path) -> None:
    """Paths of other file systems are left to Spark; they became files of the working directory."""
    job = ("--to", tmp_path / "logs", "--topic", "t", "--partitions", "1", "--plan", "--json")
    assert json.loads(command("ingest", f"file://{lines}/a.log", *job).out)["files"] == 1
    parser = ArgumentParser()
    ingest.arguments(parser)
    given = ["s3a://bucket/in", "--to", str(tmp_path), "--topic", "t"]
    assert ingest.prepare(parser.parse_args(given)).inputs.paths == ("s3a://bucket/in",)


def test_patterns_and_directories(lines: Path) -> None:
    """As Spark takes them: names that begin with a dot or an underscore are no data."""
    (lines / ".hidden").write_text("x")
    assert len(Input((str(lines),), "text", None, {}).files()) == 2
    assert len(Input((f"{lines}/a.*", f"{lines}/b.log"), "text", None, {}).files()) == 2


# --- on Spark -----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_lines_once_under_their_write_id(
    command: Command, spark: object, lines: Path, tmp_path: Path
) -> None:
    """Repeated under the same name nothing is written again; the report says how many rows went where."""
    logs = tmp_path / "logs"
    asked = [
        "ingest",
        lines,
        "--to",
        logs,
        "--topic",
        "t",
        "--partitions",
        "2",
        "--key",
        "split(value, ' ')[1]",
    ]
    first = command(*asked, "--write-id", "load:1", "--json").facts
    assert (first["rows"], first["refused"], first["repeated"]) == (20, 0, 0)
    counts = {path.name.rpartition("-")[2]: len(list(LogReader(path).records())) for path in logs.glob("t-*")}
    assert first["topics"] == {"t": {number: count for number, count in counts.items() if count}}
    assert values(logs) == sorted(LINES)
    assert {record.key for record in records(logs, "t")} == {b"%d" % number for number in range(20)}
    again = command(*asked, "--write-id", "load:1", "--json").facts
    assert (again["rows"], again["repeated"]) == (0, 1)
    assert values(logs) == sorted(LINES)


@pytest.mark.slow
@pytest.mark.spark
def test_a_commit_that_fails_is_one_line(
    command: Command, spark: object, lines: Path, tmp_path: Path
) -> None:
    """Spark commits in a Python process of its own, and wraps its error in traces."""
    asked = ["ingest", lines, "--to", tmp_path / "logs", "--topic", "t", "--partitions", "1"]
    with Ledger(OsDisk(), f"{tmp_path}/logs.logstore-sink/app-load"):
        failed = command(*asked, "--write-id", "load:1")
    assert failed.code == 1
    assert failed.err.splitlines()[-1].startswith("logstore: ")
    assert "is in use by another process" in failed.err.splitlines()[-1]
    assert "Traceback" not in failed.err


@pytest.mark.spark
def test_a_mistake_in_an_expression_is_one_line(
    command: Command, spark: object, lines: Path, tmp_path: Path
) -> None:
    asked = ["ingest", lines, "--to", tmp_path / "logs", "--topic", "t", "--partitions", "1"]
    for more in ([], ["--checkpoint", tmp_path / "checkpoint"]):
        for expression, said in (("nobody", "`nobody` cannot be resolved"), ("value +", "Syntax error")):
            wrong = command(*asked, *more, "--key", expression)
            assert wrong.code == 2
            assert said in wrong.err
            assert wrong.err.count("\n") == 1
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.spark
def test_incremental(command: Command, spark: object, lines: Path, tmp_path: Path) -> None:
    """Each run takes the files that have come since; one whose batch was not marked is no second time."""
    logs, checkpoint = tmp_path / "logs", tmp_path / "checkpoint"
    asked = ["ingest", lines, "--to", logs, "--topic", "t", "--partitions", "1", "--checkpoint", checkpoint]
    assert command(*asked, "--json").facts["rows"] == 20
    (lines / "c.log").write_text("one more\n")
    assert command(*asked, "--json").facts["topics"] == {"t": {"0": 1}}
    for commit in checkpoint.glob("commits/*1*"):
        commit.unlink()
    for commit in checkpoint.glob("commits/.*1*"):
        commit.unlink()
    repeated = command(*asked, "--json").facts
    assert (repeated["rows"], repeated["repeated"]) == (0, 1)
    assert values(logs) == sorted([*LINES, "one more"])
    other = ["ingest", lines, "--to", tmp_path / "other", *asked[4:]]
    for more in ([], ["--plan"]):
        outcome = command(*other, *more)
        assert (outcome.code, "it was begun with another target" in outcome.err) == (2, True)
    assert not (tmp_path / "other").exists()


@pytest.mark.spark
def test_json_rows_and_those_that_are_refused(command: Command, spark: object, tmp_path: Path) -> None:
    """Topics and times out of the rows; what cannot be parsed or placed is set aside, with the reason."""
    file = tmp_path / "rows.json"
    good = [
        {"id": number, "kind": "x" if number % 2 else "y", "at": 1_700_000_000 + number}
        for number in range(6)
    ]
    bad = ['{"id": 7, "kind": "no/topic", "at": 1}', '{"id": 8, "at": 1}', "{broken"]
    file.write_text("\n".join([*map(json.dumps, good), *bad]) + "\n")
    logs = tmp_path / "logs"
    asked = [
        "ingest", file, "--format", "json", "--schema", "id int, kind string, at bigint", "--to", logs,
        "--topic-from", "kind", "--partitions", "1", "--key", "id", "--timestamp", "timestamp_seconds(at)",
    ]  # fmt: skip
    refused = command(*asked)
    assert refused.code == 1
    assert refused.err.splitlines()[-1].startswith("logstore: a row cannot be written: invalid topic name")
    assert not list(logs.glob("*-0/*.log")), "nothing of it was published"
    aside = tmp_path / "aside"
    outcome = command(*asked, "--refused", aside, "--json")
    assert outcome.code == 1
    assert outcome.facts["topics"] == {"x": {"0": 3}, "y": {"0": 3}}
    assert outcome.facts["refused"] == 3
    told = [json.loads(line) for path in aside.glob("*/part-*") for line in path.read_text().splitlines()]
    assert sorted(each["reason"].split(":")[0] for each in told) == [
        "invalid topic name no/topic",
        "it cannot be parsed",
        "its topic is null",
    ]
    (first, *_) = records(logs, "y")
    assert json.loads(first.value or b"") == {"id": 0, "kind": "y", "at": 1_700_000_000}
    assert (first.key, first.timestamp_ms) == (b"0", 1_700_000_000_000)


@pytest.mark.spark
def test_partitions_and_times_that_are_none(command: Command, spark: object, tmp_path: Path) -> None:
    """Spark's casts raise by default: one such row ended the job with a traceback, also with --refused."""
    file = tmp_path / "rows.json"
    bad = [("x", "2026-01-01"), ("0", "noon"), ("99999999999", "2026-01-01"), ("-1", "2026-01-01")]
    rows = [{"p": p, "at": at} for p, at in [("0", "2026-01-01T00:00:00Z"), *bad, (None, None)]]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    line = [
        "ingest",
        file,
        "--format",
        "json",
        "--topic",
        "t",
        "--to",
        tmp_path / "logs",
        "--partitions",
        "1",
    ]
    line += ["--partition", "p", "--timestamp", "at"]
    ended = command(*line)
    assert ended.code == 1
    assert "a row cannot be written: its partition is not a number" in ended.err
    aside = tmp_path / "aside"
    facts = command(*line, "--refused", aside, "--json").facts
    assert (facts["rows"], facts["refused"]) == (2, 4)
    told = [json.loads(text) for path in aside.glob("*/part-*") for text in path.read_text().splitlines()]
    assert sorted(each["reason"] for each in told) == [
        *["its partition is not a number from 0 on"] * 3,
        "its timestamp is not a time",
    ]


@pytest.mark.spark
def test_csv_and_parquet_columns(command: Command, spark: object, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("k,v,p\na,1,0\nb,2,1\nc,,1\n")
    logs = tmp_path / "logs"
    asked = [
        "ingest", "--to", logs, "--topic", "t", "--partitions", "2", "--value-format", "column",
        "--value", "v", "--key", "k", "--partition", "p",
    ]  # fmt: skip
    header = ["--format", "csv", "--reader-option", "header=true"]
    outcome = command(*asked, file, *header, "--tombstones", "--json")
    assert outcome.facts["topics"] == {"t": {"0": 1, "1": 2}}
    found = [(record.key, record.value) for record in LogReader(logs / "t-1").records()]
    assert sorted(found) == [(b"b", b"2"), (b"c", None)]
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"k": ["d"], "v": [b"\xff"], "p": [0]}), tmp_path / "rows.parquet")
    assert command(*asked, tmp_path / "rows.parquet", "--format", "parquet", "--json").facts["rows"] == 1
    assert [record.value for record in LogReader(logs / "t-0").records()] == [b"1", b"\xff"]
    wrong = command(*("nowhere" if each == "k" else each for each in asked), file, *header)
    assert (wrong.code, "nowhere" in wrong.err) == (2, True)


@pytest.mark.spark
def test_to_brokers(command: Command, spark: object, lines: Path, tmp_path: Path) -> None:
    """What is staged lies beside the checkpoint; rows go to leaders wherever they are."""
    with BrokerCluster(3) as cluster:
        cluster.create_topic("t", 2)
        asked = ["ingest", lines, "--brokers", cluster.bootstrap, "--topic", "t"]
        asked += ["--checkpoint", tmp_path / "checkpoint"]
        facts = command(*asked, "--key", "value", "--json").facts
        found = [record for number in range(2) for record in cluster.read("t", number, 0)]
        assert facts["rows"] == len(found) == 20
        assert sorted((record.value or b"").decode() for record in found) == sorted(LINES)
        assert command(*asked, "--key", "value", "--json").facts["rows"] == 0
