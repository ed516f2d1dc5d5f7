"""`merge-state-changes` on Spark tells, line by line, what the command of one machine tells."""

from __future__ import annotations

import heapq
import json
import random
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.cli.main import run as logstore
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import Side, StateChange, format_line
from logstore.replication.state_change_lines import Wanted, wanted_lines
from logstore.spark.jobs import merge_state_changes
from logstore.spark.jobs.command import main
from logstore.spark.jobs.job import BadUsage
from logstore.spark.state_change_source import ORDER, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_logs(directory: Path, seed: int, *, lines: int = 300) -> list[Path]:
    """Three nodes' logs: clocks that are set back, equal times, stack traces, bytes that are no UTF-8."""
    draw = random.Random(seed)
    files = []
    for node in range(3):
        now_ms = 1_795_187_966_000 + draw.randrange(100)
        content: list[bytes] = []
        for _ in range(lines):
            now_ms += draw.choice((0, 0, 1, 3, 60_000, 4_000_000, -2_000))
            name = TopicPartition(draw.choice(("orders", "payments")), draw.randrange(3))
            change = StateChange(
                now_ms, node, draw.choice(list(Side)), 3, name, "elects a leader", leader=node,
                leader_epoch=5, partition_epoch=9, isr=(1, 2), replicas=(1, 2, 3), reason='says "so"',
            )  # fmt: skip
            line = format_line(change)
            match draw.randrange(6):
                case 0:
                    time = line[:25]
                    content.append(
                        f"{time} TRACE Broker {node} handling request for [{name.topic}, 1] é".encode()
                    )
                case 1:
                    content += [b"\tat kafka.X [orders,0]", b"\xff\xfe [orders,0]"]
                case 2:
                    content.append(f"{line[:25]} \\ [orders,0] ".encode() + b"\xff tail\r")
                case _:
                    content.append(line.encode())
        files.append(directory / f"state-change.{node}.log")
        files[-1].write_bytes(b"\n".join(content) + b"\n")
    return files


WANTED = (
    Wanted(),
    Wanted(frozenset({"orders"}), frozenset({0, 2})),
    Wanted(start="2026-11-20 16:00:00,000", end="2026-11-21 03:00:00,000"),
)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("seed", range(3))
def test_sorting_the_rows_is_merging_the_files(tmp_path: Path, seed: int, wanted: Wanted) -> None:
    """Also where a clock was set back: a merge keeps each file's order, and so does the sort."""
    files = write_logs(tmp_path, seed)
    merged: list[str] = []
    rows: list[dict[str, Any]] = []
    streams = []
    for number, file in enumerate(files):
        raw = file.read_bytes().splitlines(keepends=True)
        streams.append(list(wanted_lines(number, raw, wanted)))
        rows += rows_of(number, str(file), raw, wanted)
    merged = [line.text for line in heapq.merge(*streams)]
    rows.sort(key=lambda row: tuple(row[name] for name in ORDER))
    assert [row["text"] for row in rows] == merged
    assert len(merged) > 50


def prepared(*arguments: str | Path) -> merge_state_changes.Merge:
    parser = ArgumentParser()
    merge_state_changes.arguments(parser)
    return merge_state_changes.prepare(parser.parse_args([str(each) for each in arguments]))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give either files or --logs-regex"),
        (["no-such-file"], "files do not exist"),
        (["LOG", "--logs-regex", "x"], "give either"),
        (["--logs-regex", "("], "--logs-regex"),
        (["--logs-regex", "nothing", "--directory", "DIR"], "no file in"),
        (["--logs-regex", "x", "--directory", "LOG"], "is not a directory"),
        (["LOG", "--partitions", "0,x"], "--partitions"),
        (["LOG", "--start-time", "yesterday"], "--start-time"),
        (["LOG", "--end-time", "2026-02-31 00:00:00,000"], "--end-time"),
        (["LOG", "--output", "DIR"], " exists; name a new"),
    ],
)
def test_bad_usage(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    log = write_logs(tmp_path, 0, lines=1)[0]
    given = [{"LOG": str(log), "DIR": str(tmp_path)}.get(each, each) for each in arguments]
    with pytest.raises(BadUsage, match=complaint):
        prepared("--output", tmp_path / "out", *given)


def test_a_plan_names_files_and_sizes(tmp_path: Path) -> None:
    files = write_logs(tmp_path, 0)
    facts = (
        prepared("--logs-regex", r".*[01]\.log", "--directory", tmp_path, "--output", tmp_path / "x")
        .plan()
        .facts
    )
    assert [each["path"] for each in facts["files"]] == [str(file) for file in files[:2]]
    assert facts["bytes"] == sum(file.stat().st_size for file in files[:2])


@pytest.mark.spark
def test_equal_to_the_command_line_by_line(
    tmp_path: Path, spark: SparkSession, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = [str(file) for file in write_logs(tmp_path, 7)]
    assert logstore(["merge-state-changes", "--logs", ",".join(files), "--topic", "orders"]) == 0
    # On a terminal the command escapes what could move the cursor; nothing here does.
    text = capfdbinary.readouterr().out.decode().splitlines()
    assert logstore(["merge-state-changes", "--logs", ",".join(files), "--topic", "orders", "--json"]) == 0
    objects = capfdbinary.readouterr().out.decode().splitlines()
    assert len(text) == len(objects) > 100
    for name, expected in (("text", text), ("json", objects)):
        output = tmp_path / name
        assert (
            main(
                [
                    "merge-state-changes",
                    *files,
                    "--topics",
                    "orders",
                    "--format",
                    name,
                    "--output",
                    str(output),
                ]
            )
            == 0
        )
        parts = sorted(output.glob("part-*"))
        assert [line for part in parts for line in part.read_text().split("\n")[:-1]] == expected
    output = tmp_path / "parquet"
    capfdbinary.readouterr()
    assert (
        main(["merge-state-changes", *files, "--json", "--format", "parquet", "--output", str(output)]) == 0
    )
    told = json.loads(capfdbinary.readouterr().out)
    rows = spark.read.parquet(str(output))
    assert rows.count() == told["lines"] > len(text)
    assert {path.name[:5] for path in output.iterdir() if path.is_dir()} == {"date="}
    ours = rows.where("leader_epoch = 5").first()
    assert ours is not None
    assert (ours["isr"], ours["change"], ours["reason"]) == ([1, 2], "elects a leader", 'says "so"')
