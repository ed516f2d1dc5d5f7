"""Select and parse lines of state-change logs, of this library and Kafka. Pure.

    [2026-11-20 15:19:26,123] [orders,0] node=1 side=controller …          ours (`state_change.py`)
    [2026-11-20 15:19:26,150] TRACE Broker 3 handling … for [orders, 0]    Kafka's

A line counts if it starts with a time, in brackets or not, and names a partition as `[topic,partition]`.
Other lines (stack traces, torn lines) are skipped. Times of different nodes come from different clocks: lines
a few milliseconds apart may be in either order. The epochs in them are reliable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import parse_line

_LINE = re.compile(r"\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]?(?!\d)", re.ASCII)
_PARTITION = re.compile(r"\[([a-zA-Z0-9._-]{1,249}), *(\d{1,10})\]", re.ASCII)


class Line(NamedTuple):
    """A selected line: number `number` (from 1) of file `file`. Lines sort by time, file, number."""

    time: str
    file: int
    number: int
    text: str


class Wanted(NamedTuple):
    """The lines to select. An empty set selects all; times compare as texts, which sort like times."""

    topics: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()
    start: str = ""
    end: str = "~"

    def named_in(self, text: str) -> TopicPartition | None:
        """Return the first selected partition in `text`; None without one."""
        for topic, digits in _PARTITION.findall(text):
            found = TopicPartition(topic, int(digits))
            if self.selects(found):
                return found
        return None

    def selects(self, found: TopicPartition) -> bool:
        """Whether the partition is selected."""
        return (not self.topics or found.topic in self.topics) and (
            not self.partitions or found.partition in self.partitions
        )


def wanted_lines(file: int, raw_lines: Iterable[bytes], wanted: Wanted) -> Iterator[Line]:
    """Yield the selected lines of a file, in its order.

    A byte that is not UTF-8 becomes `\\xNN`.
    """
    for number, raw in enumerate(raw_lines, 1):
        text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
        found = _LINE.match(text)
        if found is None or not wanted.start <= found[1] <= wanted.end:
            continue
        if wanted.named_in(text) is not None:
            yield Line(found[1], file, number, text)


def line_facts(line: Line) -> dict[str, object]:
    """Return all fields of a line of this library; of other lines only time and text."""
    change = parse_line(line.text)
    if change is None:
        return {"time": line.time, "text": line.text}
    return {
        "time": line.time,
        "node": change.node_id,
        "side": change.side.value,
        "controller_epoch": change.controller_epoch,
        "topic": change.topic_partition.topic,
        "partition": change.topic_partition.partition,
        "change": change.change,
        "leader": change.leader,
        "leader_epoch": change.leader_epoch,
        "partition_epoch": change.partition_epoch,
        "isr": list(change.isr),
        "replicas": list(change.replicas),
        "reason": change.reason,
    }
