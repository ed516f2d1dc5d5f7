"""From replicas to pieces of work: which files are swept in one go, and how far replicas are compared. Pure.

What is compared ends at the high watermark, the highest that any replica's node has checkpointed. Where there
is none, nothing is known to be committed, and replicas are compared as far as all of them reach.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.verification.check import Run
from logstore.spark.verification.replicas import Replica, SegmentFile

RUN_BYTES: Final = 128 << 20
STRETCH_BYTES: Final = 1 << 20
STRETCHES: Final = 1 << 17
"""About how many there are at most, however much there is: each is a few hundred bytes in the driver."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the replicas of a partition have in common.

    `strangers` are of another topic of that name, as their topic ids say: checked, and not compared. `cuts`
    begin the stretches.
    """

    numbers: tuple[int, ...]
    strangers: tuple[int, ...]
    committed: int
    cleaned_to: int
    is_compacted: bool
    cuts: tuple[int, ...]

    @property
    def stretches(self) -> Iterable[tuple[int, int, int]]:
        """Number, first offset, end."""
        ends = (*self.cuts[1:], self.committed)
        return ((n, start, end) for n, (start, end) in enumerate(zip(self.cuts, ends, strict=True)))


@dataclass(frozen=True, slots=True)
class Plan:
    """`replicas` by number, partitions by name, and the runs: the largest first."""

    replicas: Sequence[Replica]
    partitions: Mapping[TopicPartition, Shared]
    runs: Sequence[Run]


def plan(
    replicas: Sequence[Replica],
    is_compacted: Mapping[TopicPartition, bool],
    *,
    run_bytes: int = RUN_BYTES,
    stretch_bytes: int = STRETCH_BYTES,
) -> Plan:
    """Cut the replicas into runs. `is_compacted` says it of partitions that the caller knows of."""
    stretch_bytes = max(stretch_bytes, sum(each.size for each in replicas) // STRETCHES)
    numbers: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    for number, each in enumerate(replicas):
        numbers[each.topic_partition].append(number)
    partitions = {
        name: _shared(replicas, found, is_compacted.get(name, False), stretch_bytes)
        for name, found in numbers.items()
    }
    runs = [
        run
        for number, each in enumerate(replicas)
        for run in _runs(number, each, partitions[each.topic_partition], run_bytes)
    ]
    runs.sort(key=lambda run: -sum(segment.size for segment in run.segments))
    return Plan(replicas, partitions, runs)


def _shared(
    replicas: Sequence[Replica], numbers: Sequence[int], is_compacted: bool, stretch_bytes: int
) -> Shared:
    ids = Counter(topic_id for number in numbers if (topic_id := replicas[number].topic_id) is not None)
    topic_id = ids.most_common(1)[0][0] if ids else None
    strangers = [number for number in numbers if replicas[number].topic_id not in (None, topic_id)]
    numbers = [number for number in numbers if number not in strangers]
    found = [replicas[number] for number in numbers]
    committed = max(each.high_watermark for each in found)
    cleaned_to = max(each.cleaned_to for each in found)
    starts = sorted({each.log_start_offset for each in found})
    if committed < 0:
        committed = MAX_LONG
    bases = [segment.base_offset for each in found for segment in each.segments]
    end = committed if committed < MAX_LONG else max(bases, default=0) + 1
    size = max(each.size for each in found)
    step = max(1, (end - starts[0]) * stretch_bytes // max(size, 1))
    cuts = {*starts, *range(starts[0], end, step)}
    if 0 < cleaned_to < committed:
        cuts.add(cleaned_to)
    return Shared(
        tuple(numbers), tuple(strangers), committed, max(cleaned_to, 0), is_compacted or cleaned_to > 0,
        tuple(sorted(cut for cut in cuts if cut < committed)) or (starts[0],),
    )  # fmt: skip


def _runs(number: int, replica: Replica, shared: Shared, run_bytes: int) -> Iterable[Run]:
    segments = replica.segments
    first = 0
    while first < len(segments):
        last, size = first, 0
        while last < len(segments) and (last == first or size + segments[last].size <= run_bytes):
            size += segments[last].size
            last += 1
        following: SegmentFile | None = segments[last] if last < len(segments) else None
        yield Run(
            number, replica.directory, segments[first:last], following, replica.log_start_offset,
            shared.committed, shared.cuts, shared.is_compacted,
        )  # fmt: skip
        first = last
