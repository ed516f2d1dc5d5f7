"""The export as it is run: each row once and in order, whatever runs before, fails midway or comes after."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from logstore.broker.embedded_cluster import BrokerCluster
from logstore.disk.files import Disk, OsDisk
from logstore.spark.errors import DataLoss
from logstore.spark.jobs import export
from logstore.spark.jobs.export import LEDGER_DIRECTORY, carry_out
from logstore.spark.jobs.pieces import in_turn
from logstore.spark.ledger import Intent, Json, Ledger
from logstore.spark.logs import OffsetRange
from tests.spark.jobs.conftest import NOON_MS, Command, Row, append
from tests.spark.jobs.in_process import Recreates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


def rows(count: int, *, first: int = 0) -> list[Row]:
    """A record an hour."""
    return [(NOON_MS + 3_600_000 * n, f"k{n % 7}", f"v{n}") for n in range(first, first + count)]


def exported(table: Path) -> dict[str, list[int]]:
    """The offsets of each partition, file by file in the order of their names and dates."""
    found: dict[str, list[int]] = {}
    for file in sorted(table.rglob("*.parquet"), key=lambda path: path.name):
        assert LEDGER_DIRECTORY not in str(file)
        name = "/".join(file.relative_to(table).parts[:2])
        offsets = pq.read_table(file, partitioning=None)["offset"].to_pylist()
        assert file.name == f"{offsets[0]:020d}-{offsets[-1] + 1:020d}.parquet"
        found.setdefault(name, []).extend(offsets)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    append(tmp_path / "data" / "orders-0", rows(100))
    append(tmp_path / "data" / "orders-1", rows(30))
    append(tmp_path / "data" / "other-0", rows(10))
    return tmp_path / "data"


@pytest.mark.spark
def test_each_run_adds_what_is_new(spark: SparkSession, command: Command, data: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    line = ["export", data, "--topics", "orders", "--output", table, "--task-records", "20", "--json"]
    facts = command(*line, "--publish-tasks", "3").facts
    assert (facts["records"], facts["publications"], facts["recovered_files"]) == (130, 3, 0)
    assert facts["files"] == len(list(table.rglob("*.parquet")))
    assert facts["bytes"] == sum(path.stat().st_size for path in table.rglob("*.parquet"))
    assert facts["partitions"] == [
        {"topic": "orders", "partition": 0, "start_offset": 0, "end_offset": 100, "records": 100},
        {"topic": "orders", "partition": 1, "start_offset": 0, "end_offset": 30, "records": 30},
    ]
    append(data / "orders-1", rows(7, first=30))
    append(data / "orders-5", rows(3))
    facts = command(*line).facts
    assert {name["partition"]: name["start_offset"] for name in facts["partitions"]} == {1: 30, 5: 0}
    assert exported(table) == {
        f"topic=orders/partition={partition}": list(range(count))
        for partition, count in ((0, 100), (1, 37), (5, 3))
    }
    assert command(*line[:-1]).out == "nothing new to export\n"
    # What a user does with it: the directories' names are columns, and nothing else is in the way.
    frame = spark.read.parquet(str(table))
    assert dict(frame.dtypes) == {
        "key": "binary", "value": "binary", "offset": "bigint", "timestamp": "timestamp",
        "timestampType": "int", "topic": "string", "partition": "int", "date": "date",
    }  # fmt: skip
    assert frame.count() == 140
    first = frame.where("topic = 'orders' and partition = 1 and offset = 13").first()
    assert first is not None
    assert (bytes(first["value"]), first["date"]) == (b"v13", date(2026, 11, 21))
    assert not list((table / LEDGER_DIRECTORY / "staged").iterdir()), "staged files that nobody needs"


class _Killed(BaseException):
    pass


@pytest.mark.spark
@pytest.mark.parametrize("moment", ["before the files move", "in between", "before the marker"])
def test_a_run_that_ended_midway_is_completed_first(
    spark: SparkSession,
    command: Command,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """With its own files: the log has grown, and what is cut anew would be named otherwise."""
    table = tmp_path / "table"
    line = ["export", data, "--assign", '{"orders":[0]}', "--output", table, "--json"]

    def dies(disk: Disk, output: str, intent: Intent) -> Json:
        if moment == "in between":
            few = {**intent.plan, "files": intent.plan["files"][:2]}
            carry_out(disk, output, intent._replace(plan=few))
        elif moment == "before the marker":
            carry_out(disk, output, intent)
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(export, "carry_out", dies)
        with pytest.raises(_Killed):
            command(*line)
    append(data / "orders-0", rows(50, first=100))
    planned = command(*line, "--plan").facts
    assert (planned["unfinished_files"] > 0, planned["offsets"]) == (True, 50)
    facts = command(*line).facts
    assert (facts["recovered_files"], facts["records"]) == (planned["unfinished_files"], 50)
    assert exported(table) == {"topic=orders/partition=0": list(range(150))}


@pytest.mark.spark
def test_what_is_gone_is_an_error_or_is_told(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    """Retention was quicker: the offsets between are named, and with failOnDataLoss=false left out."""
    table, topic = tmp_path / "table", data / "orders-0"
    line = ["export", data, "--assign", '{"orders":[0]}', "--output", table]
    shutil.rmtree(topic)
    append(topic, rows(20), segment_bytes=500)
    assert command(*line).code == 0
    append(topic, rows(100, first=20), segment_bytes=500)
    expired = sorted(topic.glob("*.log"))[-2]
    for file in topic.iterdir():
        if file.suffix in (".log", ".index", ".timeindex") and file.stem < expired.stem:
            file.unlink()
    start = int(expired.stem)
    failed = command(*line)
    assert (failed.code, failed.out) == (1, "")
    assert 20 < start < 120
    complaint = failed.err.splitlines()[-1]
    assert f"orders-0 from 20 to 120: orders-0: offsets 20 to {start - 1} are lost" in complaint
    assert exported(table) == {"topic=orders/partition=0": list(range(20))}
    facts = command(*line, "--option", "failOnDataLoss=false", "--json").facts
    assert facts["records"] == 120 - start
    assert [(lost["start_offset"], lost["end_offset"], lost["cause"]) for lost in facts["missing"]] == [
        (20, start, "expired")
    ]
    assert exported(table) == {"topic=orders/partition=0": [*range(20), *range(start, 120)]}


@pytest.mark.spark
def test_what_brokers_began_their_directories_go_on_with(
    spark: SparkSession, command: Command, tmp_path: Path
) -> None:
    """Offsets are the same wherever they are read: a cluster may die between two runs."""
    table = tmp_path / "table"
    with BrokerCluster(2, directory=str(tmp_path / "cluster")) as cluster:
        cluster.create_topic("orders", 2)
        for number in range(40):
            cluster.append("orders", b"v%d" % number, key=b"k%d" % number)
        line = ["export", "--topics", "orders", "--output", table, "--json"]
        assert command(*line, "--brokers", cluster.bootstrap).facts["records"] == 40
        for number in range(40, 60):
            cluster.append("orders", b"v%d" % number, key=b"k%d" % number)
    assert command(*line, f"{tmp_path}/cluster/broker-?").facts["records"] == 20
    values = {bytes(row["value"]) for row in ds.dataset(table, partitioning="hive").to_table().to_pylist()}
    assert values == {b"v%d" % number for number in range(60)}
    assert all(offsets == list(range(len(offsets))) for offsets in exported(table).values())
    assert sum(map(len, exported(table).values())) == 60


@pytest.mark.spark
def test_columns_and_files_are_as_asked(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    line = ["export", data, "--topics", "other", "--output", table]
    assert command(*line, "--columns", "offset,leaderEpoch,segment", "--codec", "snappy").code == 0
    files = list(table.rglob("date=2026-11-20/*.parquet"))
    parts = [pq.ParquetFile(path) for path in files]
    assert [part.schema_arrow.names for part in parts] == [["offset", "leaderEpoch", "segment"]]
    assert parts[0].metadata.row_group(0).column(0).compression == "SNAPPY"
    for part in parts:
        part.close()
    refused = command(*line)
    assert (refused.code, refused.out) == (1, "")
    assert "--columns offset,leaderEpoch,segment" in refused.err


def test_partitions_come_forward_together() -> None:
    """Else a run that is often ended early would export the first one for ever."""
    counts = {0: 3, 1: 1, 2: 2}
    pieces = [OffsetRange("o", each, n, n + 1) for each, count in counts.items() for n in range(count)]
    assert [(each.partition, each.start_offset) for each in in_turn(pieces)] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2),
    ]  # fmt: skip


def test_a_plan_touches_nothing(command: Command, data: Path, tmp_path: Path) -> None:
    """And needs no Spark."""
    table = tmp_path / "table"
    outcome = command("export", data, "--output", table, "--plan", "--task-records", "40")
    assert outcome.out.splitlines() == [
        "orders-0 from 0 to 100",
        "orders-1 from 0 to 30",
        "other-0 from 0 to 10",
        "would export 140 offsets of 3 partitions in 5 tasks",
    ]
    assert not table.exists()


def test_a_topic_that_was_made_anew_is_noticed(command: Command, data: Path, tmp_path: Path) -> None:
    """It ends below what was exported: to go on there would put two histories into one table."""
    table = tmp_path / "table"
    with Ledger(OsDisk(), f"{table}/{LEDGER_DIRECTORY}") as ledger:
        ledger.decide(0, {})
        ledger.finish({"offsets": {"other": {"0": 11}}})
    line = ["export", data, "--topics", "other", "--output", table]
    outcome = command(*line)
    assert outcome.code == 1
    assert "other-0 ends at 10 but was exported up to 11" in outcome.err
    assert command(*line, "--option", "failOnDataLoss=false").out == "nothing new to export\n"


def test_a_topic_that_was_made_anew_and_has_grown_further(
    command: Command, data: Path, tmp_path: Path
) -> None:
    """Its first records would be passed over."""
    table = tmp_path / "table"
    old, new = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
    with Ledger(OsDisk(), f"{table}/{LEDGER_DIRECTORY}") as ledger:
        ledger.decide(0, {})
        ledger.finish({"offsets": {"other": {"0": 5}}, "topic_ids": {"other": old}})
    line = ["export", data, "--topics", "other", "--output", table, "--plan"]
    place = data / "other-0" / "partition.metadata"
    place.write_text(f"version: 0\ntopic_id: {new}\n")
    outcome = command(*line)
    assert (outcome.code, f"topic other has topic id {new}, but" in outcome.err) == (1, True), outcome.err
    assert command(*line, "--option", "failOnDataLoss=false").out.startswith("other-0 from 5 to 10\n")
    place.write_text(f"version: 0\ntopic_id: {old}\n")
    assert command(*line).code == 0


def test_a_topic_that_is_made_anew_during_the_job(data: Path, tmp_path: Path) -> None:
    """Its tasks may have read records of both topics."""
    (data / "other-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    parser = ArgumentParser()
    export.arguments(parser)
    line = [str(data), "--topics", "other", "--output", str(tmp_path / "table")]
    with pytest.raises(DataLoss, match="topic id AAAAAAAAAAAAAAAAAAAAAg, but what was exported is of"):
        export.prepare(parser.parse_args(line)).run(Recreates(data / "other-0"))
    with Ledger(OsDisk(), str(tmp_path / "table" / LEDGER_DIRECTORY)) as ledger:
        assert (ledger.done, ledger.intent) == (-1, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--output", "t"],
        [".", "--output", "t", "--columns", "topic"],
        [".", "--output", "t", "--columns", "colour"],
        [".", "--output", "t", "--codec", "zip"],
        [".", "--output", "t", "--task-records", "0"],
        [".", "--output", "t", "--publish-tasks", "-1"],
        ["."],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_2(command: Command, arguments: list[str]) -> None:
    outcome = command("export", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
