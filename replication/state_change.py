"""State changes: decisions about partitions by the controller and the brokers, and their lines in the log.

The controller records its decisions, a broker what it did about them or why it refused. Both include the
epochs, so the merged records of many nodes give one history. The engine passes them to a sink and knows
nothing of files; a sink must not call back.

A line starts like one of Kafka's `state-change.log`, with the time (UTC) and the partition in brackets, so
one tool merges both. The rest is `name=value`, with texts quoted as in JSON:

    [2026-11-20 15:19:26,123] [orders,0] node=1 side=controller controller_epoch=3
        change="writes a state" leader=2 leader_epoch=5 partition_epoch=9 isr=2,3 replicas=1,2,3
        reason="…"                                                              (all on one line)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from logstore.disk.topic_partition import TopicPartition


class Side(Enum):
    CONTROLLER = "controller"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class StateChange:
    """One decision about one partition.

    `change` is a short fixed phrase ("elects a leader", "becomes follower"). `reason` is free text;
    the engine always gives one. Unknown epochs are -1.
    """

    time_ms: int
    node_id: int
    side: Side
    controller_epoch: int
    topic_partition: TopicPartition
    change: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    reason: str = ""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\] \[([a-zA-Z0-9._-]{1,249}),(\d{1,10})\] "
    r"node=(\d{1,10}) side=(controller|broker) controller_epoch=(-?\d{1,10}) "
    rf"change=({_TEXT}) leader=(-?\d{{1,10}}) leader_epoch=(-?\d{{1,10}}) partition_epoch=(-?\d{{1,10}}) "
    rf"isr=([\d,]*) replicas=([\d,]*) reason=({_TEXT})",
    re.ASCII,
)


def format_time(time_ms: int) -> str:
    """Format epoch milliseconds as `2026-11-20 15:19:26,123`, UTC.

    Raises `OverflowError` before 1970 and after 9999.
    """
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}"


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of a time in the format of `format_time`.

    Raises `ValueError` for any other text.
    """
    seconds, comma, milliseconds = text.partition(",")
    if not comma or len(milliseconds) != 3 or not (milliseconds.isascii() and milliseconds.isdecimal()):
        raise ValueError(f"invalid time {text!r}; expected a time like 2026-11-20 15:19:26,123")
    moment = datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return int((moment - _EPOCH) / timedelta(seconds=1)) * 1000 + int(milliseconds)


def format_line(change: StateChange) -> str:
    """Format one line, without the line end."""
    topic, partition = change.topic_partition
    return (
        f"[{format_time(change.time_ms)}] [{topic},{partition}] node={change.node_id} "
        f"side={change.side.value} controller_epoch={change.controller_epoch} "
        f"change={json.dumps(change.change)} leader={change.leader} leader_epoch={change.leader_epoch} "
        f"partition_epoch={change.partition_epoch} isr={','.join(map(str, change.isr))} "
        f"replicas={','.join(map(str, change.replicas))} reason={json.dumps(change.reason)}"
    )


def parse_line(line: str) -> StateChange | None:
    """Parse a line of `format_line`; None for any other line, such as one of Kafka's."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    try:
        return StateChange(
            time_ms=parse_time(f"{found[1]},{found[2]}"),
            node_id=int(found[5]),
            side=Side(found[6]),
            controller_epoch=int(found[7]),
            topic_partition=TopicPartition(found[3], int(found[4])),
            change=json.loads(found[8]),
            leader=int(found[9]),
            leader_epoch=int(found[10]),
            partition_epoch=int(found[11]),
            isr=_brokers(found[12]),
            replicas=_brokers(found[13]),
            reason=json.loads(found[14]),
        )
    except ValueError:
        return None  # the 31st of February, a lone comma, a broken escape


def _brokers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


Sink: TypeAlias = Callable[[StateChange], None]


def unheard(change: StateChange) -> None:
    """Ignore a change: the sink without a state-change log."""
