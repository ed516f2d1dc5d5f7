"""Turn the reports of runs into findings: faults of single replicas, and differences between them. Pure.

    reports ──► findings in one replica ───────────────────────────────────────┐
    └─ sums ──► stretches that differ ──► differences ─────────────────────────┴──► findings
                (the rest is equal and not read again)

Only compaction leaves gaps in the offsets: transaction markers, and records of aborted transactions, have
offsets like all others. So a gap is a fault unless compaction ran: a cleaner's checkpoint has the partition,
a batch has fewer records than offsets, or the caller knows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from logstore.checkpoint.identity import PARTITION_METADATA
from logstore.config import MAX_LONG
from logstore.disk.topic_partition import TopicPartition
from logstore.segment.segment import file_name
from logstore.spark.directory_files import SegmentSize
from logstore.spark.verification.check import Kind, LocalFault, RunReport, StretchSum
from logstore.spark.verification.compare import UNDECIDED, Comparison, Difference, Mark, Place, joined
from logstore.spark.verification.compare_records import RecordComparison
from logstore.spark.verification.planning import Plan, Replica, Shared


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, or a note. `odd` are the nodes that have it, empty if the files do not decide.

    `path` and `position` are the odd node's place, or the first replica's. Offsets are [offset, end_offset);
    `end_offset` and `epoch` are -1 if unknown. `size` is the number of bytes concerned, 0 for the whole file.
    """

    kind: Kind
    topic_partition: TopicPartition
    odd: tuple[str, ...]
    path: str
    position: int
    offset: int
    end_offset: int
    epoch: int
    text: str
    size: int = 0
    is_note: bool = False
    places: tuple[Place, ...] = ()
    is_doubtful: bool = False

    def __str__(self) -> str:
        who = ", ".join(self.odd) or "one of " + ", ".join(place.node for place in self.places)
        epoch = f", epoch {self.epoch}" if self.epoch >= 0 else ""
        head = f"{self.topic_partition} at offset {self.offset}{epoch}: {self.kind} on {who}: {self.text}"
        return f"{'note  ' if self.is_note else ''}{head} ({self.path} at byte {self.position})"

    def facts(self) -> dict[str, Any]:
        """Return the finding as in the JSON report."""
        return {
            "kind": self.kind.value,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "node": self.odd[0] if self.odd else None,
            "nodes": list(self.odd),
            "path": self.path,
            "position": self.position,
            "bytes": self.size,
            "offset": self.offset,
            "end_offset": self.end_offset,
            "epoch": self.epoch,
            "text": self.text,
            "note": self.is_note,
            "replicas": [place._asdict() for place in self.places],
        }


class Gathered:
    """The reports of all runs so far, and the comparisons and findings that follow from them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reports: defaultdict[int, list[RunReport]] = defaultdict(list)
        self._sums: defaultdict[int, dict[int, StretchSum]] = defaultdict(dict)
        self.batches = self.records = self.size = 0

    def add(self, report: RunReport) -> None:
        self._reports[report.replica].append(report)
        sums = self._sums[report.replica]
        for stretch, found in report.sums.items():
            known = sums.get(stretch)
            sums[stretch] = found if known is None else _sum(known, found)
        self.batches += report.batches
        self.records += report.records
        self.size += report.size

    @property
    def shrunken(self) -> list[int]:
        """The replicas whose owner deleted segments meanwhile; list them again."""
        return [number for number, found in sorted(self._reports.items()) if any(each.gone for each in found)]

    def end_of(self, number: int) -> int:
        """Return the end of the replica's log."""
        ends = [report.end_offset for report in self._reports[number]]
        segments = self._plan.replicas[number].segments
        last_base = segments[-1].base_offset if segments else 0
        return max(*ends, last_base, self._plan.replicas[number].log_start_offset, -1)

    def committed_of(self, shared: Shared) -> int:
        """Return the offset up to which the partition's replicas are compared."""
        ends = [self.end_of(number) for number in shared.numbers]
        return min(ends) if shared.committed == MAX_LONG else min(shared.committed, max(ends))

    def is_thinned(self, shared: Shared) -> bool:
        """Return whether any of the partition's replicas was compacted."""
        return shared.is_compacted or any(
            report.is_thinned for number in shared.numbers for report in self._reports[number]
        )

    def unequal(self, replicas: Sequence[Replica]) -> tuple[list[Comparison], list[RecordComparison]]:
        """Return what to compare batch by batch, and what record by record because it was compacted.

        `replicas` are those of the plan, with the shrunken ones listed again.
        """
        by_batch: list[Comparison] = []
        by_record: list[RecordComparison] = []
        for shared in self._plan.partitions.values():
            if len(shared.numbers) < 2:
                continue
            ends = {number: self.end_of(number) for number in shared.numbers}
            committed = self.committed_of(shared)
            cleaned_to = (shared.cleaned_to or committed) if self.is_thinned(shared) else 0
            records: list[tuple[int, int]] = []
            for first, end, numbers in self._unequal_stretches(shared, replicas, ends, committed):
                if first < cleaned_to:
                    records.append((first, min(end, cleaned_to)))
                else:
                    by_batch.append(self._comparison(shared, replicas, numbers, ends, first, end))
            if records:
                by_record.append(
                    RecordComparison(
                        {number: replicas[number] for number in shared.numbers},
                        ends,
                        tuple(records),
                        min(cleaned_to, committed),
                    )
                )
            by_batch += [
                self._comparison(shared, replicas, shared.numbers, ends, end, end + 1)
                for end in sorted(set(ends.values()))
                if end < committed and (end in shared.cuts or end < cleaned_to)
            ]
        return by_batch, by_record

    def _unequal_stretches(
        self, shared: Shared, replicas: Sequence[Replica], ends: Mapping[int, int], committed: int
    ) -> Iterable[tuple[int, int, list[int]]]:
        for stretch, first, end in shared.stretches:
            if first >= committed:
                return
            numbers = [n for n in shared.numbers if replicas[n].log_start_offset <= first < ends[n]]
            sums = (self._sums[number].get(stretch) for number in numbers)
            if len({each[:3] if each is not None else None for each in sums}) > 1:
                yield first, min(end, committed), numbers

    def _comparison(
        self,
        shared: Shared,
        replicas: Sequence[Replica],
        numbers: Sequence[int],
        ends: Mapping[int, int],
        first: int,
        end: int,
    ) -> Comparison:
        stretch = bisect_right(shared.cuts, first) - 1
        marks = {
            # One more stretch on either side, for the neighbours of the compared batches.
            number: (self._mark(number, stretch - 1), self._mark(number, stretch + 2))
            for number in numbers
        }
        return Comparison({n: replicas[n] for n in numbers}, {n: ends[n] for n in numbers}, first, end, marks)

    def _mark(self, number: int, stretch: int) -> Mark | None:
        found = self._sums[number].get(stretch)
        return Mark(found.base_offset, found.position) if found is not None else None

    # --- findings ---------------------------------------------------------------------------------

    def local_findings(self, replicas: Sequence[Replica]) -> list[Finding]:
        """Return the faults of each replica on its own; `replicas` as in `unequal`."""
        found: list[Finding] = []
        for name, shared in self._plan.partitions.items():
            expects_gaps = self.is_thinned(shared)
            for number in (*shared.numbers, *shared.strangers):
                replica = replicas[number]
                if number in shared.strangers:
                    found.append(_stranger(name, replica, (replicas[n] for n in shared.numbers)))
                reports = sorted(self._reports[number], key=lambda report: report.first_base_offset)
                seen: set[tuple[str, int]] = set()
                for report in reports:
                    for fault in report.faults:
                        if (fault.path, fault.position) not in seen or fault.kind is Kind.SEAL:
                            seen.add((fault.path, fault.position))
                            found.append(_local(name, replica, fault))
                    if not expects_gaps:
                        # A gap that ends at the log start was deleted meanwhile.
                        gaps = (gap for gap in report.gaps if gap[1] > replica.log_start_offset)
                        found += [_gap(name, replica, *gap) for gap in gaps]
                        if report.gap_count > len(report.gaps):
                            start, _, path, position = report.gaps[-1]
                            text = f"and {report.gap_count - len(report.gaps)} more gaps after it"
                            found.append(
                                replace(_gap(name, replica, start, start, path, position), text=text)
                            )
                if not expects_gaps:
                    found += _gaps_between(name, replica, reports)
                found += _ends_gone(name, replica, reports, self.end_of(number))
        return found

    def compared_findings(
        self,
        replicas: Sequence[Replica],
        differences: Mapping[TopicPartition, Sequence[Difference]],
        *,
        allow_lag: bool,
    ) -> list[Finding]:
        """Return the differences between replicas; neighbours that differ in the same way are one finding."""
        return [
            self._compared(name, replicas, each, allow_lag)
            for name, found in differences.items()
            for each in joined(found)
        ]

    def _compared(
        self, name: TopicPartition, replicas: Sequence[Replica], found: Difference, allow_lag: bool
    ) -> Finding:
        places = tuple(found.places.values())
        place = found.places[found.odd[0]] if found.odd else places[0]
        end_offset, is_note = found.end_offset, False
        if found.kind is Kind.BEHIND:
            reached = max(self.end_of(number) for number in found.places if number not in found.odd)
            end_offset = min(self._plan.partitions[name].committed, reached)
            knew = any(replicas[number].high_watermark > found.offset for number in found.odd)
            is_note = allow_lag and not knew
        holds = "; ".join(f"{place.node}: {place.holds}" for place in places)
        count = f"{found.batches} batches; " if found.batches > 1 else ""
        odd = tuple(replicas[number].node for number in found.odd)
        return Finding(
            found.kind, name, odd, place.path, place.position, found.offset, end_offset, found.epoch,
            f"{found.why}; {count}{holds}", 1, is_note, places,
        )  # fmt: skip


_WORD: Final = (1 << 64) - 1


def _sum(one: StretchSum, two: StretchSum) -> StretchSum:
    first = min(one, two, key=lambda each: (each.base_offset, each.position))
    return first._replace(
        batches=one.batches + two.batches, one=one.one + two.one & _WORD, two=one.two + two.two & _WORD
    )


def _local(name: TopicPartition, replica: Replica, fault: LocalFault) -> Finding:
    end = -1 if fault.end_offset == MAX_LONG else fault.end_offset
    return Finding(
        fault.kind, name, (replica.node,), fault.path, fault.position, fault.offset, end, fault.epoch,
        fault.text, fault.size, is_note=fault.kind is Kind.TAIL, is_doubtful=fault.is_doubtful,
    )  # fmt: skip


def _stranger(name: TopicPartition, replica: Replica, others: Iterable[Replica]) -> Finding:
    path = f"{replica.directory}/{PARTITION_METADATA}"
    known = next(other.topic_id for other in others if other.topic_id is not None)
    text = f"topic id {replica.topic_id}, not {known}: it belongs to an earlier or later topic of that name"
    return Finding(Kind.TOPIC, name, (replica.node,), path, 0, replica.log_start_offset, -1, -1, text)


def _gap(name: TopicPartition, replica: Replica, start: int, end: int, path: str, position: int) -> Finding:
    text = f"offsets {start} to {end - 1} are missing, and nothing here was compacted"
    return Finding(Kind.GAP, name, (replica.node,), path, position, start, end, -1, text)


def _gaps_between(name: TopicPartition, replica: Replica, reports: Sequence[RunReport]) -> Iterable[Finding]:
    """Yield the gaps between the end of a run and the first segment of the next."""
    end = -1
    windows = [
        (fault.offset, fault.end_offset) for report in reports for fault in report.faults if fault.takes
    ]
    for report in reports:
        start = max(end, replica.log_start_offset)
        first = report.first_base_offset
        if end >= 0 and start < first and not any(a < first and start < b for a, b in windows):
            path = f"{replica.directory}/{file_name(first, '.log')}"
            yield _gap(name, replica, start, first, path, 0)
        end = max(end, report.end_offset)


def _ends_gone(
    name: TopicPartition, replica: Replica, reports: Sequence[RunReport], end: int
) -> Iterable[Finding]:
    """Yield what is gone from the start and the end of a log since it was last in use, or synced."""

    def gone(segment: SegmentSize, position: int, start: int, end: int, text: str) -> Finding:
        path = f"{replica.directory}/{file_name(segment.base_offset, '.log')}"
        return Finding(Kind.GAP, name, (replica.node,), path, position, start, end, -1, text)

    segments = replica.segments or (SegmentSize(0, 0),)
    first, last = segments[0], segments[-1]
    began_at = replica.began_at
    if began_at is not None and began_at < first.base_offset:
        text = f"segment gone: the log began at or below offset {began_at} when it was last in use"
        yield gone(first, 0, began_at, first.base_offset, text)
    point = replica.recovery_point
    is_told = any(fault.takes and fault.end_offset > end for report in reports for fault in report.faults)
    if end < point and not is_told:
        yield gone(last, last.size, end, point, f"the log ends at {end}, below its recovery point {point}")


def concluded(local: Sequence[Finding], compared: Sequence[Finding]) -> list[Finding]:
    """Return all findings in order, each fault once.

    A gap that the comparison also found is reported by the comparison. A doubtful fault is reported if
    nothing else is wrong there. A seal's fault is reported if no other finding is more precise; it also shows
    which of two copies changed.
    """
    seals = [finding for finding in local if finding.kind is Kind.SEAL]
    compared = [_by_seal(finding, seals) for finding in compared]
    of_node: defaultdict[tuple[TopicPartition, str], list[Finding]] = defaultdict(list)
    for finding in (*local, *compared):
        if finding.kind is not Kind.SEAL and not finding.is_note:
            for node in finding.odd:
                of_node[finding.topic_partition, node].append(finding)
    kept = []
    for finding in local:
        others = [each for each in of_node[finding.topic_partition, finding.odd[0]] if each is not finding]
        match finding.kind:
            case Kind.GAP:
                others = [
                    each
                    for each in others
                    if each.kind in (Kind.MISSING, Kind.BEHIND) and _overlap(each, finding)
                ]
            case Kind.SEAL:
                others = [
                    each
                    for each in others
                    if _lies_in(each, finding) or (finding.is_doubtful and _overlap(each, finding))
                ]
            case _:
                others = [
                    each
                    for each in others
                    if finding.is_doubtful and not each.is_doubtful and _overlap(each, finding)
                ]
        if not others:
            kept.append(finding)
    return sorted(
        (*kept, *compared),
        key=lambda each: (each.topic_partition, each.offset, each.is_note, each.path, each.position),
    )


def _overlap(one: Finding, two: Finding) -> bool:
    one_end, two_end = (MAX_LONG if each.end_offset < 0 else each.end_offset for each in (one, two))
    return one.offset < two_end and two.offset < one_end


def _by_seal(finding: Finding, seals: Sequence[Finding]) -> Finding:
    """Return the finding with the node of a broken seal as the odd one, if no other finding decides that."""
    if finding.odd:
        return finding
    broken = [
        place
        for place in finding.places
        if any(seal.path == place.path and _covers(seal, place.position) for seal in seals)
    ]
    if not broken or len(broken) == len(finding.places):
        return finding
    place = broken[0]
    text = finding.text.replace(UNDECIDED, "its bytes changed after they were sealed")
    return replace(
        finding, odd=tuple(each.node for each in broken), path=place.path, position=place.position, text=text
    )


def _covers(seal: Finding, position: int) -> bool:
    return not seal.size or seal.position <= position < seal.position + seal.size


def _lies_in(finding: Finding, seal: Finding) -> bool:
    return finding.path == seal.path and (
        _covers(seal, finding.position) or finding.position <= seal.position < finding.position + finding.size
    )
