"""`logstore merge-state-changes`: many logs, one story."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import Side, StateChange, format_line
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

KAFKA = "[2026-11-20 15:19:26,150] TRACE Broker 3 handling LeaderAndIsr request for [orders, 0] (x.y)"


def line(node: int, milliseconds: int, topic: str = "orders", partition: int = 0, change: str = "x") -> str:
    return format_line(
        StateChange(
            1_795_187_966_000 + milliseconds,
            node,
            Side.BROKER,
            3,
            TopicPartition(topic, partition),
            change,
            leader=node,
            leader_epoch=5,
            partition_epoch=9,
            isr=(1, 2),
            replicas=(1, 2, 3),
        )
    )


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Three nodes' logs: two of ours, one of Kafka's with a stack trace between its lines."""
    one = [line(1, 100), line(1, 200, partition=1), line(1, 300, topic="payments")]
    two = ["a stray line", line(2, 100), line(2, 250)]
    three = [KAFKA, "java.lang.Exception: [orders,0]", "\tat kafka.X", "[2026-11-20 15:19:26,400] nothing"]
    files = []
    for number, content in enumerate((one, two, three), 1):
        files.append(tmp_path / f"state-change.{number}.log")
        files[-1].write_text("".join(f"{each}\n" for each in content))
    return files


def test_lines_come_in_order_of_time_and_ties_in_order_of_files(command: Command, logs: list[Path]) -> None:
    outcome = command("merge-state-changes", "--logs", ",".join(map(str, logs)))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        line(1, 100),
        line(2, 100),
        KAFKA,
        line(1, 200, partition=1),
        line(2, 250),
        line(1, 300, topic="payments"),
    ]


def test_logs_by_name(command: Command, logs: list[Path]) -> None:
    asked = ["--logs-regex", r"state-change\.[12]\.log", "--directory", logs[0].parent]
    outcome = command("merge-state-changes", *asked)
    assert len(outcome.out.splitlines()) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--topic", "payments"], [300]),
        (["--topic", "orders", "--partitions", "1"], [200]),
        (["--topic", "orders", "--partitions", "0,1", "--start-time", "2026-11-20 15:19:26,200"], [200]),
        (["--end-time", "2026-11-20 15:19:26,200"], [100, 200]),
        (["--topic", "order"], []),
    ],
)
def test_filters(command: Command, logs: list[Path], options: list[str], expected: list[int]) -> None:
    """Both ends of a range of time are in it; a topic's name is the whole name."""
    outcome = command("merge-state-changes", "--logs", logs[0], *options, "--json")
    times = [json.loads(each)["time"] for each in outcome.out.splitlines()]
    assert times == [f"2026-11-20 15:19:26,{each}" for each in expected]


def test_as_json(command: Command, logs: list[Path]) -> None:
    outcome = command("merge-state-changes", "--logs", logs[0], "--logs", logs[2], "--json")
    first, kafka, *_ = map(json.loads, outcome.out.splitlines())
    assert (first["file"], first["line"], first["node"], first["side"]) == (str(logs[0]), 1, 1, "broker")
    assert (first["topic"], first["partition"], first["leader_epoch"]) == ("orders", 0, 5)
    assert (first["isr"], first["replicas"]) == ([1, 2], [1, 2, 3])
    assert (kafka["time"], kafka["text"]) == ("2026-11-20 15:19:26,150", KAFKA)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "--logs or --logs-regex"),
        (["--logs", "a", "--logs-regex", "b"], "--logs or --logs-regex"),
        (["--logs", "no-such-file"], "no-such-file"),
        (["--logs-regex", "("], "--logs-regex"),
        (["--logs-regex", "no-such-name"], "no file"),
        (["--logs-regex", "x", "--directory", "/nowhere"], "No such file"),
        (["--logs", "LOG", "--partitions", "0"], "needs --topic"),
        (["--logs", "LOG", "--topic", "t", "--partitions", "0,0"], "twice"),
        (["--logs", "LOG", "--topic", "t", "--partitions", "0,x"], "not a list of numbers"),
        (["--logs", "LOG", "--start-time", "yesterday"], "--start-time"),
        (["--logs", "LOG", "--end-time", "2026-02-31 00:00:00,000"], "--end-time"),
    ],
)
def test_bad_usage(command: Command, logs: list[Path], options: list[str], complaint: str) -> None:
    outcome = command("merge-state-changes", *(str(logs[0]) if each == "LOG" else each for each in options))
    assert outcome.code == 2
    assert complaint in outcome.err


def test_control_characters_do_not_reach_the_terminal(command: Command, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[2026-11-20 15:19:26,150] \x1b[2J [orders,0]\n")
    assert "\x1b" not in command("merge-state-changes", "--logs", log).out
