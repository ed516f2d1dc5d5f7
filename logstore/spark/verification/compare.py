"""Compare the replicas of one partition: where they differ, and which one is wrong.

    offset      100        110        120        130
    node 1      ■ epoch 3  ■ epoch 3  ■ epoch 3  ■          batches are compared by header: offset, checksum…
    node 2      ■ epoch 3  ░ (fault)  ■ epoch 3  ■          offsets known to be bad are not compared again
    node 3      ■ epoch 3  ■ epoch 3    (hole)   ■          120: node 3 lacks it

Below the high watermark all replicas must be equal. If they are not, the odd one is decided in this order:

    a hole            offsets are dense unless compaction ran: a replica with nothing between two batches
                      lost one
    an older epoch    two epochs wrote the offset: the replica with the older one should have truncated it
                      when it followed the new leader; all epoch checkpoints must confirm their epochs
    a minority        at least three replicas, more than half of them equal
    an older epoch    also without epoch checkpoints

Otherwise the files do not decide: one leader wrote the batch, and one of two copies changed since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from logstore.checkpoint.entry_files import read_leader_epoch_checkpoint
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD
from logstore.spark.verification.check import Examined, Kept, Kind, examine, header_hashes
from logstore.spark.verification.planning import Replica, Run

UNDECIDED: Final = "the files cannot tell which one is right"


class Place(NamedTuple):
    """A replica's content at an offset, and its position in a file; without content, where it would be."""

    node: str
    path: str
    position: int
    epoch: int
    holds: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Offsets [offset, end_offset) in which replicas differ in one way; `batches` begin there.

    `odd` are the numbers of the wrong replicas, empty if the files do not decide; `why` has the reason.
    `places` has the content of each replica at the first offset.
    """

    kind: Kind
    offset: int
    end_offset: int
    batches: int
    epoch: int
    odd: tuple[int, ...]
    why: str
    places: Mapping[int, Place]


class Mark(NamedTuple):
    """A position in a segment at which a batch began when the replica was checked."""

    base_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A task: compare these replicas (number → replica, number → its end) in [offset, end_offset).

    `marks` are known positions a little before and after the stretch in each replica.
    """

    replicas: Mapping[int, Replica]
    ends: Mapping[int, int]
    offset: int
    end_offset: int
    marks: Mapping[int, tuple[Mark | None, Mark | None]] = field(default_factory=dict)

    @property
    def topic_partition(self) -> TopicPartition:
        return next(iter(self.replicas.values())).topic_partition

    def __str__(self) -> str:
        return f"{self.topic_partition}, offsets {self.offset} to {self.end_offset}"


def compare_stretch(disk: Disk, work: Comparison) -> list[Difference]:
    """Return every difference between the replicas in the stretch, in offset order."""
    sides = {
        number: _Side.of(disk, number, replica, work) for number, replica in sorted(work.replicas.items())
    }
    bases = {number: side.kept.bases for number, side in sides.items()}
    offsets = np.unique(np.concatenate([np.empty(0, np.int64), *bases.values()]))
    offsets = offsets[(offsets >= work.offset) & (offsets < work.end_offset)]
    if not len(offsets):
        return []
    # Only offsets at which a replica differs from the first one need a closer look.
    suspicious = np.zeros(len(offsets), np.bool_)
    reference: np.ndarray[tuple[int, ...], np.dtype[np.uint64]] | None = None
    for number, side in sides.items():
        column = np.zeros((len(offsets), 2), np.uint64)
        slots = np.searchsorted(bases[number], offsets)
        inside = slots < len(bases[number])
        inside[inside] = bases[number][slots[inside]] == offsets[inside]
        if len(side.kept.headers):
            column[inside] = side.hashes[slots[inside]]
        if reference is None:
            reference = column
        else:
            suspicious |= (column != reference).any(axis=1)
    found = (_at(sides, offset, work.end_offset) for offset in offsets[suspicious].tolist())
    return joined([difference for difference in found if difference is not None])


def joined(differences: Sequence[Difference]) -> list[Difference]:
    """Join neighbours that differ in the same way; `differences` of one partition, in any order."""
    found: list[Difference] = []
    for later in sorted(differences, key=lambda each: each.offset):
        last = found[-1] if found else later
        same = (last.kind, last.odd, last.why) == (later.kind, later.odd, later.why)
        if found and same and later.offset <= last.end_offset:
            end_offset = max(last.end_offset, later.end_offset)
            found[-1] = replace(last, end_offset=end_offset, batches=last.batches + later.batches)
        else:
            found.append(later)
    return found


# --- one replica's side -------------------------------------------------------------------------------------


class _Side:
    """One replica's batches in and around the stretch."""

    def __init__(self, number: int, replica: Replica, run: Run, found: Examined, end: int) -> None:
        self.number, self.replica, self.run = number, replica, run
        self.kept: Kept = found.kept
        self.hashes = header_hashes(found.kept.headers)
        self.bases, self.ends = found.kept.bases, found.kept.ends
        self.lost = found.lost
        self.end = max(end, int(self.ends[-1]) if len(self.ends) else 0)
        self.has_history = False

    @classmethod
    def of(cls, disk: Disk, number: int, replica: Replica, work: Comparison) -> _Side:
        run = run_over(number, replica, work.offset, work.end_offset, *work.marks.get(number, (None, None)))
        side = cls(number, replica, run, examine(disk, run), work.ends[number])
        with suppress(CorruptCheckpoint, OSError):
            side.has_history = bool(read_leader_epoch_checkpoint(disk, replica.directory))
        return side

    def slot_at(self, offset: int) -> int:
        """Return the slot of the batch with `offset`, or of the last one before it; -1 if none."""
        return int(np.searchsorted(self.bases, offset, "right")) - 1

    def state_at(self, offset: int) -> tuple[str, int]:
        """Return same, other, hole, behind or unknown, and the slot of the batch."""
        if offset < self.replica.log_start_offset or any(a <= offset < b for a, b in self.lost):
            return "unknown", -1
        slot = self.slot_at(offset)
        if slot >= 0 and offset < self.ends[slot]:
            return ("same" if self.bases[slot] == offset else "other"), slot
        return ("behind" if offset >= self.end else "hole"), slot

    def place_at(self, offset: int) -> Place:
        """Return the replica's content at `offset`, and its position."""
        state, slot = self.state_at(offset)
        epoch, at = -1, slot
        if state in ("same", "other"):
            header = self.kept.headers[slot]
            epoch, crc = int(header["leader_epoch"]), int(header["crc"])
            holds = f"{self.bases[slot]} to {self.ends[slot] - 1}, epoch {epoch}, checksum {crc:08x}"
        elif state == "behind":
            holds = f"ends at {self.end}"
        else:
            at = min(slot + 1, len(self.bases) - 1)
            unknown = "starts later" if offset < self.replica.log_start_offset else "damage"
            holds = "nothing" if state == "hole" else unknown
        path, position = self.run.path(0), 0
        if at >= 0:
            path, position = self.run.path(int(self.kept.segments[at])), int(self.kept.positions[at])
            if state == "behind":
                position += int(self.kept.headers["batch_length"][at]) + LOG_OVERHEAD
        return Place(self.replica.node, path, position, epoch, holds)


def run_over(
    number: int,
    replica: Replica,
    offset: int,
    end_offset: int,
    begin: Mark | None = None,
    end: Mark | None = None,
) -> Run:
    """Return a second look at [offset, end_offset): its segments, between the marks if they are known."""
    bases = [segment.base_offset for segment in replica.segments]
    first = max(bisect_right(bases, offset) - 1, 0)
    last = max(bisect_left(bases, end_offset), first + 1)
    first_byte = last_byte = 0
    if begin is not None and begin.base_offset in bases[: first + 1]:
        first, first_byte = bases.index(begin.base_offset), begin.position
    if (
        end is not None
        and end.base_offset in bases[first:]
        and (end.base_offset, end.position) > (begin or (-1,))
    ):
        last, last_byte = bases.index(end.base_offset) + 1, end.position
    return Run(
        number,
        replica.directory,
        replica.segments[first:last],
        replica.segments[last] if last < len(bases) else None,
        replica.log_start_offset,
        end_offset,
        first_byte=first_byte,
        last_byte=last_byte,
        is_second_look=True,
    )


# --- judging one offset -------------------------------------------------------------------------------------


def _at(sides: Mapping[int, _Side], offset: int, limit: int) -> Difference | None:
    """Return the difference at `offset`; None if the replicas that can be compared agree."""
    states = {number: side.state_at(offset) for number, side in sides.items()}
    known = {number: state for number, state in states.items() if state[0] != "unknown"}
    there = {number: slot for number, (state, slot) in known.items() if state in ("same", "other")}
    if not there:
        return None
    end = min(limit, *(int(sides[number].ends[slot]) for number, slot in there.items()))
    epochs = {number: int(sides[number].kept.headers["leader_epoch"][slot]) for number, slot in there.items()}
    places = {number: side.place_at(offset) for number, side in sides.items()}
    first_epoch = epochs[next(iter(there))]

    def difference(kind: Kind, odd: Sequence[int], why: str) -> Difference:
        odd_epochs = [epochs[number] for number in odd if number in epochs]
        epoch = odd_epochs[0] if odd_epochs else first_epoch
        return Difference(kind, offset, end, 1, epoch, tuple(odd), why, places)

    variants = {number: bytes(sides[number].kept.headers[slot].tobytes()) for number, slot in there.items()}
    kind = _kind(variants) if len(set(variants.values())) > 1 else None
    holes = [number for number, (state, _) in known.items() if state == "hole"]
    if holes and kind in (None, Kind.BOUNDARIES):
        return difference(Kind.MISSING, holes, "offsets are dense, but it has nothing there")
    if kind is not None:
        odd, why = odd_ones(variants, epochs, {n: sides[n].has_history for n in there})
        return difference(kind, odd, why)
    # Only at its end: the offsets after it are missing for the same reason.
    behind = [n for n, (state, _) in known.items() if state == "behind" and sides[n].end == offset]
    if behind:
        why = "it ends below the high watermark"
        if all(sides[number].replica.high_watermark > offset for number in behind):
            why += " of its own checkpoint"
        return difference(Kind.BEHIND, behind, why)
    return None


def _kind(variants: Mapping[int, bytes]) -> Kind:
    headers = list(set(variants.values()))
    assert all(len(header) == HEADER_BYTES for header in headers), "a header is 61 bytes"
    spans = {(header[0:8], header[23:27]) for header in headers}
    if len(spans) > 1:
        return Kind.BOUNDARIES
    return Kind.LEADER_EPOCH if len({header[12:16] for header in headers}) > 1 else Kind.BYTES


def odd_ones(
    variants: Mapping[int, bytes], epochs: Mapping[int, int], has_history: Mapping[int, bool]
) -> tuple[list[int], str]:
    """Return the replicas with the wrong variant of a batch, none if unknown, and the reason."""
    newest = max(epochs.values())
    older = [number for number in variants if epochs[number] < newest]
    agree = len({variants[number] for number in variants if epochs[number] == newest}) == 1
    if older and agree and min(epochs.values()) >= 0 and all(has_history.values()):
        return older, f"epoch {newest} wrote the offset last"
    most, count = Counter(variants.values()).most_common(1)[0]
    if len(variants) >= 3 and 2 * count > len(variants):
        return [number for number in variants if variants[number] != most], f"{count} replicas are equal"
    if older and agree and min(epochs.values()) >= 0:
        return older, f"epoch {newest} wrote the offset last"
    return [], UNDECIDED
