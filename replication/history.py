"""The history of partitions, as events from state-change logs and from the loss ledgers of replicas. Pure.

    state-change lines of many nodes ─┐
    loss ledgers of many replicas ────┼─▶ events, by time ─▶ text, JSON, a drawing (logstore timeline)
    a simulation's trace ─────────────┘   (logstore/testing/traced.py)

Clocks of nodes differ: events of different nodes that are milliseconds apart may be in either order. The
epochs show the true order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from logstore.disk.topic_partition import TopicPartition
from logstore.log.losses import Loss
from logstore.replication.state_change import Side, StateChange, format_time, parse_line, parse_time
from logstore.replication.state_change_lines import Line, Wanted


class Kind(StrEnum):
    """The kind of an event."""

    ELECTION = "election"
    ISR = "isr"
    REASSIGNMENT = "reassignment"
    TOPIC = "topic"
    WATERMARK = "hw"
    TRUNCATION = "truncation"
    LOSS = "loss"
    NODE = "node"
    CONTROLLER = "controller"
    TROUBLE = "trouble"
    ROLE = "role"
    """What a broker did about a decision of the controller."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, on `node` (None: in the store), to a partition or to none.

    `time_ms` is epoch milliseconds, or virtual time in a simulation. `facts` are numbers for programs:
    leader, leader_epoch, isr, offsets. `leader` is known for events that say who leads (-1: nobody).
    """

    time_ms: int
    node: int | None
    partition: TopicPartition | None
    kind: Kind
    text: str
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def leader(self) -> int | None:
        """The new leader, if the event decides it."""
        leader = self.facts.get("leader")
        return leader if self.kind is Kind.ELECTION and isinstance(leader, int) else None

    @property
    def leader_epoch(self) -> int:
        """The leader epoch; -1 if it is not known."""
        epoch = self.facts.get("leader_epoch", -1)
        return epoch if isinstance(epoch, int) else -1


_KINDS = {
    "writes the first state": Kind.ELECTION,
    "leaves the partition without a leader": Kind.ELECTION,
    "elects a leader": Kind.ELECTION,
    "elects a leader outside the ISR": Kind.ELECTION,
    "begins an epoch": Kind.ELECTION,
    "changes the ISR": Kind.ISR,
    "begins a reassignment": Kind.REASSIGNMENT,
    "ends a reassignment": Kind.REASSIGNMENT,
    "refuses a reassignment": Kind.REASSIGNMENT,
    "confirms a replica's deletion": Kind.TOPIC,
    "begins to delete the topic": Kind.TOPIC,
    "has deleted the topic": Kind.TOPIC,
    "drops the topic": Kind.TOPIC,
}
_OF_BROKERS = {
    "becomes leader": Kind.ROLE,
    "becomes follower": Kind.ROLE,
    "adopts an ISR": Kind.ROLE,
    "proposes an ISR": Kind.ROLE,
    "stops the replica": Kind.ROLE,
    "deletes the replica": Kind.TOPIC,
}
"""Everything else that a broker writes down is trouble, or its end."""


def of_change(change: StateChange) -> Event:
    """Return the event of a line of a state-change log."""
    if change.side is Side.CONTROLLER:
        kind = _KINDS.get(change.change, Kind.OTHER)
    else:
        kind = _OF_BROKERS.get(change.change, Kind.TROUBLE)
    said = [change.change]
    if change.leader_epoch >= 0:
        leader = f"leader {change.leader}" if change.leader >= 0 else "no leader"
        said.append(f"{leader}, epoch {change.leader_epoch}, ISR {list(change.isr)}")
    if change.reason:
        said.append(change.reason)
    facts: dict[str, object] = {
        "side": change.side.value,
        "controller_epoch": change.controller_epoch,
        "leader": change.leader,
        "leader_epoch": change.leader_epoch,
        "partition_epoch": change.partition_epoch,
        "isr": list(change.isr),
        "replicas": list(change.replicas),
    }
    return Event(change.time_ms, change.node_id, change.topic_partition, kind, "; ".join(said), facts)


def of_lines(lines: Iterable[Line], wanted: Wanted) -> Iterator[Event]:
    """Yield the events of selected lines of state-change logs. Kafka's lines are kept unchanged.

    Lines whose time does not exist are left out.
    """
    for line in lines:
        change = parse_line(line.text)
        if change is not None:
            yield of_change(change)
            continue
        try:
            at_ms = parse_time(line.time)
        except ValueError:  # the 31st of February: a damaged line
            continue
        _, _, text = line.text.partition(line.time)
        yield Event(at_ms, None, wanted.named_in(line.text), Kind.OTHER, text.lstrip("] "))


def of_loss(loss: Loss, partition: TopicPartition, place: str) -> Event:
    """Return the event of an entry in a replica's loss ledger; `place` names the directory of the log."""
    kind = Kind.TRUNCATION if loss.who == "truncation" else Kind.LOSS
    went = f"offsets {loss.first_offset} to {loss.last_offset} went ({loss.records} records)"
    if loss.last_offset < loss.first_offset:
        went = f"no whole batch went at offset {loss.first_offset} ({loss.size} bytes)"
    committed = ", below the high watermark" if loss.below_high_watermark else ""
    text = f"{place}: {loss.who}: {went}{committed}; {loss.why}"
    facts: dict[str, object] = {
        "place": place,
        "log_end_offset": loss.end_offset,
        "first_offset": loss.first_offset,
        "last_offset": loss.last_offset,
        "below_high_watermark": loss.below_high_watermark,
    }
    return Event(loss.at_ms, None, partition, kind, text, facts)


def as_fact(event: Event, *, is_virtual: bool) -> dict[str, object]:
    """Return an event as an object for JSON."""
    partition = event.partition
    return {
        "time": time_of(event, is_virtual=is_virtual),
        "node": event.node,
        "topic": partition.topic if partition else None,
        "partition": partition.partition if partition else None,
        "kind": event.kind.value,
        "text": event.text,
        **event.facts,
    }


def time_of(event: Event, *, is_virtual: bool) -> str:
    """Return an event's time as text: a date in UTC, or milliseconds of a simulation or past all dates."""
    is_date = not is_virtual and event.time_ms < 1 << 47  # not far below the largest date
    return format_time(event.time_ms) if is_date else f"{event.time_ms} ms"
