"""Lines of state-change logs, ours and Kafka's: which of them count, and what they say.

    [2026-11-20 15:19:26,123] [orders,0] node=1 side=controller …          ours (`state_change.py`)
    [2026-11-20 15:19:26,150] TRACE Broker 3 handling … for [orders, 0]    Kafka's

A line counts if it begins with a time, in brackets or not, and names a partition as `[topic,partition]`; all
others (stack traces, torn lines) are passed over. Times of different nodes are of different clocks: lines
that are milliseconds apart may stand in either order; the epochs in them do not lie. Pure.
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
    """One line that counts, the `number`th (from 1) of file `file`; sorts by time, then file and number."""

    time: str
    file: int
    number: int
    text: str


class Wanted(NamedTuple):
    """Which lines. Empty sets are all; times are compared as texts, which is the order of their moments."""

    topics: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()
    start: str = ""
    end: str = "~"

    def named_in(self, text: str) -> TopicPartition | None:
        """The first partition that `text` names and that is asked for."""
        for topic, digits in _PARTITION.findall(text):
            partition = int(digits)
            if (not self.topics or topic in self.topics) and (
                not self.partitions or partition in self.partitions
            ):
                return TopicPartition(topic, partition)
        return None


def wanted_lines(file: int, raw_lines: Iterable[bytes], wanted: Wanted) -> Iterator[Line]:
    """Those of a file's lines that count and are wanted, in its order.

    A byte that is no UTF-8 becomes `\\xNN`.
    """
    for number, raw in enumerate(raw_lines, 1):
        text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
        found = _LINE.match(text)
        if found is None or not wanted.start <= found[1] <= wanted.end:
            continue
        if wanted.named_in(text) is not None:
            yield Line(found[1], file, number, text)


def line_facts(line: Line) -> dict[str, object]:
    """Everything that one of our own lines says; of others the text."""
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
