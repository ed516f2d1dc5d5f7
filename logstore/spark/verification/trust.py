"""Decide from verification's findings which replica to trust for which offsets. Pure.

    a      ┼────── sound ──────┼░░ checksum ░░┼───────── sound ─────────┤
    b      ┼── sound ──┼░░░░ missing ░░░░┼──────── sound ────────┼ behind
    plan   a from 0 ───────────┼ nobody ┼ b ──┼ a ──────────────────────┤

A node is trusted for offsets that it holds and for which no finding names it. Of several, the log stays on
the one that needs the fewest changes: fewest untrusted offsets, then newest leader epoch, then longest log.
Findings that name no node are *disputed*: the plan says which replica it takes, and `prefer` changes that.
Offsets that no replica is trusted for are taken from whatever is sound there, and are *doubtful*.

Past the committed offsets replicas may differ without a fault. There the replica with the newest leader
epoch, then the longest log, is taken, as an election would; where it is damaged, one of the same epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition

GAP = "gap"
"""The kind of a finding of missing offsets."""

STRANGER = "topic"
"""The kind of a finding that excludes a replica: it is of another topic with that name."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One replica as verification saw it: offsets [start_offset, end_offset), -1 for an unknown epoch."""

    node: str
    directory: str
    start_offset: int
    end_offset: int
    last_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A finding: the `nodes` that are not to be trusted for [offset, end_offset); none if undecided."""

    kind: str
    nodes: tuple[str, ...]
    among: tuple[str, ...]
    """the nodes that differ, if the files do not decide"""
    offset: int
    end_offset: int
    text: str

    @property
    def end(self) -> int:
        return MAX_LONG if self.end_offset < 0 else max(self.end_offset, self.offset + 1)


class Part(NamedTuple):
    """Offsets [start_offset, end_offset) to copy from `node`; "" for no node: the intact batches there."""

    start_offset: int
    end_offset: int
    node: str

    def __str__(self) -> str:
        return f"{self.start_offset} to {self.end_offset - 1} from {self.node or 'nobody'}"


@dataclass(frozen=True, slots=True)
class Repair:
    """The plan for one partition. `ranking`: all nodes that are considered, the most trusted first."""

    topic_partition: TopicPartition
    logs: Mapping[str, ReplicaLog]
    ranking: tuple[str, ...]
    parts: tuple[Part, ...]
    disputed: tuple[Suspect, ...]
    is_compacted: bool
    gone: tuple[Part, ...] = ()
    """offsets that no replica reaches, although one did when it was last in use"""

    @property
    def start_offset(self) -> int:
        return self.parts[0].start_offset if self.parts else 0

    @property
    def end_offset(self) -> int:
        return self.parts[-1].end_offset if self.parts else 0

    @property
    def untrusted(self) -> list[Part]:
        """The parts that no replica is trusted for."""
        return [part for part in self.parts if not part.node]

    def facts(self) -> dict[str, Any]:
        """Return the plan as in the JSON report."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "parts": [{**part._asdict(), "node": part.node or None} for part in self.parts],
            "disputed": [
                {
                    "kind": each.kind,
                    "offset": each.offset,
                    "end_offset": each.end_offset,
                    "nodes": list(each.among),
                    "taken_from": self.node_at(each.offset),
                    "text": each.text,
                }
                for each in self.disputed
            ],
        }

    def node_at(self, offset: int) -> str | None:
        """Return the node that the plan trusts for an offset."""
        return next(
            (part.node or None for part in self.parts if part.start_offset <= offset < part.end_offset), None
        )


def repair_of(
    topic_partition: TopicPartition,
    logs: Iterable[ReplicaLog],
    suspects: Sequence[Suspect],
    *,
    committed: int,
    is_compacted: bool = False,
    prefer: Sequence[str] = (),
) -> Repair:
    """Plan the repair of one partition. `prefer`: nodes to take disputed offsets from, the first one first.

    `committed` is the offset up to which verification compared the replicas.
    """
    strangers = {node for each in suspects if each.kind == STRANGER for node in each.nodes}
    known = {log.node: log for log in logs if log.node not in strangers}
    bad = {node: [each for each in suspects if node in each.nodes] for node in known}
    disputed = tuple(each for each in suspects if not each.nodes)
    end = max((log.end_offset for log in known.values()), default=0)
    committed = min(committed, end)
    start = min((log.start_offset for log in known.values()), default=0)

    def rank(node: str) -> tuple[object, ...]:
        lost = sum(max(min(each.end, committed) - each.offset, 0) for each in bad[node])
        held = known[node]
        lost += max(committed - held.end_offset, 0) + held.start_offset - start
        return lost, -held.last_epoch, -held.end_offset, node

    def chosen(offset: int, nodes: Sequence[str]) -> str:
        wishes = prefer if any(each.offset <= offset < each.end for each in disputed) else ()
        order = (*(node for node in wishes if node in nodes), *nodes)
        return next((node for node in order if _is_trusted(known[node], bad[node], offset)), "")

    ranking = tuple(sorted(known, key=rank))
    newest = max(
        (log for log in known.values() if log.end_offset > committed),
        key=lambda log: (log.last_epoch, log.end_offset),
        default=None,
    )
    cuts = {start, committed}
    for log in known.values():
        cuts |= {log.start_offset, log.end_offset}
    for each in suspects:
        cuts |= {each.offset, each.end}
    parts: list[Part] = []
    last = committed if newest is None else newest.end_offset
    for first, end_offset in pairwise(sorted(cut for cut in cuts if start <= cut <= last)):
        nodes: Sequence[str] = ranking
        if first >= committed and newest is not None:
            same = [node for node in ranking if known[node].last_epoch == newest.last_epoch]
            nodes = (newest.node, *same)
        _extend(parts, Part(first, end_offset, chosen(first, nodes)))
    missing = [each for each in suspects if each.kind == GAP and known.keys() & set(each.nodes)]
    first, final = (
        min([start, *(each.offset for each in missing)]),
        max([last, *(each.end for each in missing)]),
    )
    gone = tuple(part for part in (Part(first, start, ""), Part(last, final, "")) if part[0] < part[1])
    return Repair(topic_partition, known, ranking, tuple(parts), disputed, is_compacted, gone)


def _is_trusted(log: ReplicaLog, bad: Iterable[Suspect], offset: int) -> bool:
    holds = log.start_offset <= offset < log.end_offset
    return holds and not any(each.offset <= offset < each.end for each in bad)


def _extend(parts: list[Part], part: Part) -> None:
    if parts and parts[-1].node == part.node:
        parts[-1] = parts[-1]._replace(end_offset=part.end_offset)
    else:
        parts.append(part)
