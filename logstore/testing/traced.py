"""Read the trace of a simulation (`logstore simulate --trace`) as events. Pure.

    "     123 1 is killed"                                                  a process or machine
    "      94   t-0 node 0 (leads at epoch 0, high watermark 3, end 3)"     a replica after a turn
    "     133 store ◀ 0 Multi(writes=(… Set(path=…/state, data={…} …"       a state in the store

Elections, ISR changes, reassignments and deletions are read from writes to the store, high watermarks that
fall and truncations from the replicas. Other lines are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.history import Event, Kind
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.layout import parse_topic

_LINE = re.compile(r" *(\d+) (.*)")
_NODE = re.compile(
    r"(\d+) (starts, life \d+|is killed|loses its power|is stopped|is asked to stop|is paused|continues|"
    r"dies while it starts|has a dead disk.*|has a full disk|has room again|halts: .*)"
)
_VIEW = re.compile(
    r" +([\w.-]+)-(\d+) node (\d+) \((leads|follows) at epoch (-?\d+), high watermark (\d+), end (\d+)\)"
)
_STORED = re.compile(r"store ◀ (\d+) (.*) gives success")
_WRITE = re.compile(r"(?:Create|Set)\(path=(/[^,]*), data=(.*?)(?:, version=|, ephemeral=)")
_STATE = re.compile(r"/brokers/topics/([\w.-]+)/partitions/(\d+)/state")
_TOPIC = re.compile(r"/brokers/topics/([\w.-]+)")
_DELETE = re.compile(r"/admin/delete_topics/([\w.-]+)")


def is_trace(first_line: str) -> bool:
    """Whether a file with this first line is a trace: it names the seed, or begins with a virtual time."""
    return first_line.startswith("seed ") or _LINE.match(first_line) is not None


class Reader:
    """What is known while a trace is read: the last state of each partition and of each replica."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, tuple[int, int, list[int]]] = {}
        self._replicas: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        self._moving: dict[TopicPartition, tuple[list[int], list[int]]] = {}
        """The replicas that are added and removed."""

    def read(self, lines: Iterable[str]) -> Iterator[Event]:
        """Yield the events of a trace, in its order."""
        for text in lines:
            if (line := _LINE.fullmatch(text.rstrip("\n"))) is None:
                continue
            at_ms, rest = int(line[1]), line[2]
            if (found := _NODE.fullmatch(rest)) is not None:
                yield Event(at_ms, int(found[1]), None, Kind.NODE, found[2])
            elif (found := _VIEW.fullmatch(rest)) is not None:
                yield from self._view(at_ms, found)
            elif (found := _STORED.fullmatch(rest)) is not None:
                for path, data in _WRITE.findall(found[2]):
                    yield from self._written(at_ms, int(found[1]), path, data)

    def _view(self, at_ms: int, found: re.Match[str]) -> Iterator[Event]:
        partition, node = TopicPartition(found[1], int(found[2])), int(found[3])
        watermark, end = int(found[6]), int(found[7])
        before = self._replicas.get((node, partition))
        self._replicas[node, partition] = watermark, end
        if before is None:
            return
        facts: dict[str, object] = {"high_watermark": watermark, "log_end_offset": end}
        if end < before[1]:
            yield Event(at_ms, node, partition, Kind.TRUNCATION, f"log end {before[1]} to {end}", facts)
        if watermark < before[0]:
            text = f"high watermark {before[0]} to {watermark}"
            yield Event(at_ms, node, partition, Kind.WATERMARK, text, facts)

    def _written(self, at_ms: int, node: int, path: str, data: str) -> Iterator[Event]:
        if path == "/controller":
            yield Event(at_ms, node, None, Kind.CONTROLLER, f"node {node} becomes the controller")
        elif path == "/admin/reassign_partitions":
            yield Event(at_ms, node, None, Kind.REASSIGNMENT, f"reassignments wanted: {data}")
        elif (found := _DELETE.fullmatch(path)) is not None:
            yield Event(at_ms, node, None, Kind.TOPIC, f"the deletion of topic {found[1]} is wanted")
        elif (found := _STATE.fullmatch(path)) is not None:
            yield from self._state(at_ms, node, TopicPartition(found[1], int(found[2])), data)
        elif (found := _TOPIC.fullmatch(path)) is not None:
            yield from self._assigned(at_ms, node, found[1], data)

    def _assigned(self, at_ms: int, node: int, topic: str, data: str) -> Iterator[Event]:
        try:
            assigned = parse_topic(data.encode())
        except CorruptMetadata:
            yield Event(at_ms, node, None, Kind.TROUBLE, f"an unreadable node of topic {topic} is written")
            return
        for number, replicas in sorted(assigned.partitions.items()):
            partition = TopicPartition(topic, number)
            adding = list(assigned.adding_replicas.get(number, ()))
            removing = list(assigned.removing_replicas.get(number, ()))
            before = self._moving.pop(partition, ([], []))
            if adding or removing:
                self._moving[partition] = adding, removing
            if (adding, removing) == before:
                continue
            text = f"the reassignment ends: replicas {list(replicas)}"
            if adding or removing:
                text = f"a reassignment begins: adding {adding}, removing {removing}"
            facts: dict[str, object] = {"replicas": list(replicas), "adding": adding, "removing": removing}
            yield Event(at_ms, node, partition, Kind.REASSIGNMENT, text, facts)

    def _state(self, at_ms: int, node: int, partition: TopicPartition, data: str) -> Iterator[Event]:
        try:
            state = json.loads(data)
            after = int(state["leader"]), int(state["leader_epoch"]), [int(each) for each in state["isr"]]
        except (ValueError, KeyError, TypeError):
            yield Event(at_ms, node, partition, Kind.TROUBLE, "a state that cannot be read is written")
            return
        before = self._states.get(partition)
        self._states[partition] = after
        leader, epoch, isr = after
        facts: dict[str, object] = {"leader": leader, "leader_epoch": epoch, "isr": isr}
        said = f"leader {leader}" if leader >= 0 else "no leader"
        text = f"{said}, epoch {epoch}, ISR {isr}"
        if before is None or before[:2] != after[:2]:
            is_unclean = before is not None and leader >= 0 and leader not in before[2]
            if is_unclean:
                text += ", elected outside the ISR"
            yield Event(at_ms, node, partition, Kind.ELECTION, text, facts)
        elif set(before[2]) != set(isr):
            yield Event(at_ms, node, partition, Kind.ISR, text, facts)
