"""Write the repaired copy of a partition: the batches of each part of a plan, unchanged, from its replica.

    parts      0 ── a ──┼── nobody ──┼── b ──┼── a ──      `trust.py`
    target     00…0.log │ batches of a │ b │ a │ 00…900.log │ …

Batches are those that salvage would copy (`sound_batches.py`). Where nobody is trusted, whatever is sound in
any replica is taken, the most trusted one first, and reported as doubtful. A batch that begins below the end
of the one before it cannot be placed; what only it has is lost, and reported.

The directory has a name of this attempt. It is synced and read back; the job gives it its final name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from logstore.config import MAX_INT
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk
from logstore.log.salvage import write_small_files
from logstore.log.sound_batches import Int64s, Rows, SoundBatches, segment_files
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.spark.verification.trust import Part, Repair

SEGMENT_BYTES: Final = 1 << 30


class CopyDiffers(EngineError):
    """A repaired copy, read back, is not what was written."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class Span(NamedTuple):
    """Offsets [start_offset, end_offset), and the node they came from; "" for none."""

    start_offset: int
    end_offset: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a task: copy by this plan to a directory whose name begins with `target`."""

    repair: Repair
    target: str
    segment_bytes: int = SEGMENT_BYTES

    def __str__(self) -> str:
        return str(self.repair.topic_partition)


class Repaired(NamedTuple):
    """The result for one partition, in `directory`. `taken`: records by node."""

    directory: str
    batches: int
    records: int
    bytes: int
    start_offset: int
    end_offset: int
    taken: tuple[tuple[str, int], ...]
    doubtful: tuple[Span, ...]
    lost: tuple[Span, ...]

    def facts(self) -> dict[str, Any]:
        """Return the result as in the JSON report."""
        return {
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "taken": dict(self.taken),
            "doubtful": [span._asdict() for span in self.doubtful],
            "lost": [
                {"start_offset": span.start_offset, "end_offset": span.end_offset} for span in self.lost
            ],
        }


class Chosen(NamedTuple):
    """The batches of the copy in order: their replica, as an index of `nodes`, and their number there."""

    nodes: tuple[str, ...]
    node: Int64s
    number: Int64s
    rows: Rows
    doubtful: tuple[Span, ...]
    lost: tuple[Span, ...]


def copy(disk: Disk, work: Work, attempt: str) -> Repaired:
    """Write the copy. Raises `OSError`, `DamagedLog` if a replica changes meanwhile, `CopyDiffers`."""
    directory = f"{work.target}.{attempt}"
    disk.make_dir(directory)
    repair = work.repair
    with ExitStack() as opened:
        sound = {
            node: opened.enter_context(closing(SoundBatches(disk, log.directory)))
            for node, log in repair.logs.items()
            if segment_files(disk, log.directory)
        }
        chosen = choose(repair, {node: each.choice.rows for node, each in sound.items()})
        rows = chosen.rows
        for base_offset, first, end in segments_of(rows, repair.start_offset, work.segment_bytes):
            with closing(
                disk.open(f"{directory}/{file_name(base_offset, LOG_SUFFIX)}", create=True, write=True)
            ) as out:
                at = 0
                for node, numbers in _runs(chosen, first, end):
                    for data in sound[node].of_rows(numbers):
                        out.pwrite(data, at)
                        at += len(data)
                out.sync()
    write_small_files(disk, repair.logs[repair.ranking[0]].directory, directory, rows)
    disk.sync_dir(directory)
    _check(disk, directory, rows)
    records = np.bincount(chosen.node, rows.records, len(chosen.nodes)).astype(np.int64)
    return Repaired(
        directory, len(rows.base), int(rows.records.sum()), int(rows.size.sum()), repair.start_offset,
        max(int(rows.last[-1]) + 1 if len(rows.last) else 0, repair.start_offset),
        tuple(zip(chosen.nodes, records.tolist(), strict=True)), chosen.doubtful, chosen.lost,
    )  # fmt: skip


# --- deciding -----------------------------------------------------------------------------------------------


def choose(repair: Repair, found: Mapping[str, Rows]) -> Chosen:
    """Return the batches of the copy, out of the sound batches of each node. Pure.

    Where compaction ran, offsets without a batch are lost only if no replica is trusted for them.
    """
    nodes = tuple(node for node in repair.ranking if node in found)
    pieces: list[tuple[int, Int64s]] = []
    doubtful: list[Span] = []
    lost: list[Span] = []
    reached = repair.start_offset
    for part in repair.parts:
        some = _trusted(part, nodes, found) if part.node in found else _sound(part, nodes, found)
        expects_gaps = repair.is_compacted and bool(part.node)
        for node, numbers in some:
            rows = found[nodes[node]].of(numbers)
            if pieces:  # the first batch of all may begin below the log start
                fits = rows.base >= reached
                over = rows.last[~fits]
                if len(over) and over[-1] >= reached:
                    lost.append(Span(reached, int(over[-1]) + 1, nodes[node]))
                numbers, rows = numbers[fits], rows.of(fits)
            if not len(numbers):
                continue
            if not part.node:
                doubtful += [
                    Span(base, last + 1, nodes[node])
                    for base, last in zip(rows.base.tolist(), rows.last.tolist(), strict=True)
                ]
            ends = np.concatenate(([reached], rows.last[:-1] + 1))
            holes = (rows.base > ends).nonzero()[0] if not expects_gaps else ()
            lost += [Span(int(ends[hole]), int(rows.base[hole])) for hole in holes]
            pieces.append((node, numbers))
            reached = int(rows.last[-1]) + 1
        if reached < part.end_offset:
            if not expects_gaps:
                lost.append(Span(reached, part.end_offset))
            reached = part.end_offset
    columns = [found[nodes[node]].of(numbers) for node, numbers in pieces]
    nothing = np.zeros(0, np.int64)
    return Chosen(
        nodes,
        np.concatenate([nothing, *(np.full(len(numbers), node) for node, numbers in pieces)]),
        np.concatenate([nothing, *(numbers for _, numbers in pieces)]),
        Rows(*(np.concatenate([nothing, *column]) for column in zip(*columns, strict=True)))
        if columns
        else Rows(*[nothing] * len(Rows._fields)),
        _merged(doubtful),
        _merged(lost),
    )


def _trusted(part: Part, nodes: Sequence[str], found: Mapping[str, Rows]) -> list[tuple[int, Int64s]]:
    rows = found[part.node]
    which = (rows.base < part.end_offset) & (rows.last >= part.start_offset)
    return [(nodes.index(part.node), which.nonzero()[0])]


def _sound(part: Part, nodes: Sequence[str], found: Mapping[str, Rows]) -> list[tuple[int, Int64s]]:
    """Return the batches that any node has in a part that nobody is trusted for; the first nodes win."""
    taken: list[tuple[int, int, int, int]] = []
    for node, name in enumerate(nodes):
        rows = found[name]
        which = ((rows.base >= part.start_offset) & (rows.base < part.end_offset)).nonzero()[0]
        for number, base, last in zip(
            which.tolist(), rows.base[which].tolist(), rows.last[which].tolist(), strict=True
        ):
            if all(last < other or base > other_last for other, other_last, _, _ in taken):
                taken.append((base, last, node, number))
    return [(node, np.array([number])) for _, _, node, number in sorted(taken)]


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans of a node that touch as one."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].node == span.node and span.start_offset <= merged[-1].end_offset:
            merged[-1] = merged[-1]._replace(end_offset=max(span.end_offset, merged[-1].end_offset))
        else:
            merged.append(span)
    return tuple(merged)


def segments_of(rows: Rows, start_offset: int, segment_bytes: int) -> list[tuple[int, int, int]]:
    """Return base offset, first row and end row of each segment; the first is at the log start or below."""
    if not len(rows.base):
        return [(start_offset, 0, 0)]
    sizes = np.cumsum(rows.size)
    segments: list[tuple[int, int, int]] = []
    first = 0
    while first < len(rows.base):
        base_offset = int(rows.base[first])
        if not segments:
            base_offset = min(base_offset, start_offset)
        before = int(sizes[first - 1]) if first else 0
        by_size = int(np.searchsorted(sizes, before + segment_bytes, "right"))
        by_offset = int(np.searchsorted(rows.last, base_offset + MAX_INT, "right"))
        end = max(min(by_size, by_offset), first + 1)
        segments.append((base_offset, first, end))
        first = end
    return segments


# --- doing --------------------------------------------------------------------------------------------------


def _runs(chosen: Chosen, first: int, end: int) -> Iterator[tuple[str, Int64s]]:
    """Yield the rows [first, end) as runs of one node each."""
    node = chosen.node[first:end]
    cuts = [0, *((node[1:] != node[:-1]).nonzero()[0] + 1).tolist(), end - first]
    for start, stop in pairwise(cuts):
        if start < stop:
            yield chosen.nodes[int(node[start])], chosen.number[first + start : first + stop]


def _check(disk: Disk, directory: str, rows: Rows) -> None:
    with closing(SoundBatches(disk, directory)) as written:
        found = written.choice
        names = ("base", "last", "size", "crc")
        is_same = all(np.array_equal(getattr(found.rows, name), getattr(rows, name)) for name in names)
        if not is_same or found.left_out or any(gap.stretches for gap in found.gaps):
            raise CopyDiffers(f"{directory}, read back, differs from what was written: check its disk")
