"""Lines of state-change logs: which count, and which partition they are about."""

from __future__ import annotations

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change_lines import Line, Wanted, line_facts, wanted_lines

TIME = "2026-11-20 15:19:26,150"
KAFKA = f"[{TIME}] TRACE Broker 3 handling LeaderAndIsr request for [orders, 0], [payments,12] (x.y)"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), TopicPartition("orders", 0)),
        (Wanted(frozenset({"payments"})), TopicPartition("payments", 12)),
        (Wanted(frozenset({"payments", "orders"}), frozenset({12})), TopicPartition("payments", 12)),
        (Wanted(frozenset({"orders"}), frozenset({12})), None),
        (Wanted(frozenset({"order"})), None),
    ],
)
def test_the_first_partition_asked_for(wanted: Wanted, expected: TopicPartition | None) -> None:
    """A line of Kafka's may name several; topic and partition have to be those of one of them."""
    assert wanted.named_in(KAFKA) == expected


@pytest.mark.parametrize(
    "raw",
    [b"a stray line", b"\tat kafka.X [orders,0]", f"[{TIME}] nothing".encode(), f"{TIME}7 [t,0]".encode()],
)
def test_lines_that_do_not_count(raw: bytes) -> None:
    assert not list(wanted_lines(0, [raw], Wanted()))


def test_numbers_are_those_of_the_file_and_bytes_never_fail() -> None:
    """A torn line or a foreign one may hold anything; its place in the file is told all the same."""
    lines = list(wanted_lines(7, [b"\xff\n", f"{TIME} \xff [t,1]\r\n".encode("latin-1")], Wanted()))
    assert lines == [Line(TIME, 7, 2, f"{TIME} \\xff [t,1]")]
    assert line_facts(lines[0]) == {"time": TIME, "text": f"{TIME} \\xff [t,1]"}


def test_both_ends_of_the_time_are_in_it() -> None:
    assert list(wanted_lines(0, [KAFKA.encode()], Wanted(start=TIME, end=TIME)))
    assert not list(wanted_lines(0, [KAFKA.encode()], Wanted(end="2026-11-20 15:19:26,149")))
