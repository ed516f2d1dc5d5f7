"""The profile: what is in each partition, counted by tasks over ranges of offsets and put together.

    first pass     the latest time in each range that another one of its partition follows
    second pass    everything (measures.py), each task told the latest time of all that lies before

So what comes out does not depend on how the work was cut. The first pass reads times alone, and is left out
where partitions are not cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from logstore.broker.clock import stopwatch_s
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs.distinct import estimate, joined, no_keys
from logstore.spark.jobs.job import Answer
from logstore.spark.jobs.measures import COLUMNS, NEVER, Measures
from logstore.spark.jobs.picture import moment, page, span
from logstore.spark.jobs.progress import amount
from logstore.spark.jobs.source import planned
from logstore.spark.jobs.work import Workers
from logstore.spark.logs import Headers, Missing, OffsetRange
from logstore.spark.ranges import size_of
from logstore.spark.read_options import ReadOptions


@dataclass(frozen=True, slots=True)
class Piece:
    """A task's work."""

    wanted: OffsetRange
    options: ReadOptions
    latest_before_ms: int = NEVER

    def __str__(self) -> str:
        return str(self.wanted)


class Counted(NamedTuple):
    """What a task found."""

    measures: Measures
    missing: list[Missing]


def latest_ms(piece: Piece) -> int:
    """The first pass: the latest time of all records of a range; `NEVER` if none has one."""
    import pyarrow.compute as pc

    from logstore.spark.opening import open_logs

    latest = NEVER
    logs = open_logs(piece.options)
    try:
        for rows in logs.read(piece.wanted, ("timestamp",), []):
            time_ms = pc.max(rows.column("timestamp").cast("int64")).as_py()
            latest = max(latest, NEVER if time_ms is None else time_ms)
    finally:
        logs.close()
    return latest


def count(piece: Piece) -> Counted:
    """The second pass. Raises `DataLoss` if rows are gone and the options say so."""
    from logstore.spark.losses import raise_on_loss
    from logstore.spark.opening import open_logs

    found = Counted(Measures(latest_before_ms=piece.latest_before_ms), [])

    def on_batches(headers: Headers) -> None:
        # One that reaches over a range's end is counted there where it ends.
        lasts = headers["base_offset"].astype("i8") + headers["last_offset_delta"]
        inside = (lasts >= piece.wanted.start_offset) & (lasts < piece.wanted.end_offset)
        found.measures.add_batches(headers[inside])

    logs = open_logs(piece.options, on_batches)
    try:
        for rows in logs.read(piece.wanted, COLUMNS, found.missing):
            found.measures.add(rows)
    finally:
        logs.close()
    if piece.options.fail_on_data_loss:
        raise_on_loss(found.missing)
    return found


class Profile:
    """A profile that was asked for."""

    def __init__(self, options: ReadOptions, source: str, html: Path | None, task_records: int) -> None:
        self._options, self._source, self._html = options, source, html
        self._task_records = task_records

    def plan(self) -> Answer:
        pieces = planned(self._options, max_records=self._task_records)
        offsets = sum(map(size_of, pieces))
        partitions = len({each.topic_partition for each in pieces})
        return Answer(
            {"job": "profile", "offsets": offsets, "partitions": partitions, "tasks": len(pieces)},
            [f"would read {amount(offsets)} offsets of {partitions} partitions in {len(pieces)} tasks"],
        )

    def run(self, workers: Workers) -> Answer:
        pieces = planned(self._options, max_records=self._task_records)
        began_s = stopwatch_s()
        found = self._count(workers, pieces)
        facts = profile_facts(self._source, pieces, found, stopwatch_s() - began_s)
        if self._html is not None:
            self._html.write_text(page(facts), encoding="utf-8")
        return Answer(facts, list(lines(facts)))

    def _count(self, workers: Workers, pieces: Sequence[OffsetRange]) -> dict[OffsetRange, Counted]:
        followed = [
            piece for piece, after in pairwise(pieces) if piece.topic_partition == after.topic_partition
        ]
        latest = self._each(workers, "times", [Piece(each, self._options) for each in followed], latest_ms)
        work = []
        before = NEVER
        for slot, piece in enumerate(pieces):
            if slot and pieces[slot - 1].topic_partition != piece.topic_partition:
                before = NEVER
            work.append(Piece(piece, self._options, before))
            before = max(before, latest.get(piece, NEVER))
        return self._each(workers, "profile", work, count)

    def _each(
        self, workers: Workers, what: str, work: Sequence[Piece], function: Any
    ) -> dict[OffsetRange, Any]:
        workers.progress.begin(what, sum(size_of(piece.wanted) for piece in work), "records")
        found = {}
        for piece, report in workers.reports(work, function):
            found[piece.wanted] = report
            workers.progress.advance(size_of(piece.wanted))
        workers.progress.end()
        return found


def profile_facts(
    source: str, pieces: Sequence[OffsetRange], found: Mapping[OffsetRange, Counted], seconds: float
) -> dict[str, Any]:
    """What is printed as JSON: topics and their partitions, in order."""
    partitions: dict[TopicPartition, dict[str, Any]] = {}
    registers: dict[TopicPartition, Any] = {}
    for partition, ranges in groupby(pieces, key=lambda piece: piece.topic_partition):
        each = list(ranges)
        total = Measures()
        missing: Counter[str] = Counter()
        for piece in each:
            total.follow(found[piece].measures)
            for lost in found[piece].missing:
                missing[lost.cause.value] += lost.offsets
        registers[partition] = total.registers
        partitions[partition] = {
            "partition": partition.partition,
            "start_offset": each[0].start_offset,
            "end_offset": each[-1].end_offset,
            **total.facts(),
            "missing": dict(sorted(missing.items())),
        }
    return {
        "job": "profile",
        "source": source,
        "seconds": round(seconds, 3),
        "topics": [
            _topic_facts(topic, {name: partitions[name] for name in names}, registers)
            for topic, names in _by_topic(partitions)
        ],
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[TopicPartition]]]:
    for topic, names in groupby(sorted(partitions), key=lambda partition: partition.topic):
        yield topic, list(names)


def _topic_facts(
    topic: str,
    partitions: Mapping[TopicPartition, Mapping[str, Any]],
    registers: Mapping[TopicPartition, Any],
) -> dict[str, Any]:
    keys = no_keys()
    for name in partitions:
        keys = joined(keys, registers[name])
    facts = list(partitions.values())
    return {
        "topic": topic,
        "records": sum(each["records"] for each in facts),
        "bytes": sum(each["bytes"] for each in facts),
        "distinct_keys": estimate(keys),
        "skew": {name: skew([each[name] for each in facts]) for name in ("records", "bytes")},
        "partitions": facts,
    }


def skew(values: Sequence[int]) -> float:
    """The largest by the average: 1 if all are equal, their number if one has all."""
    return round(max(values) * len(values) / sum(values), 4) if any(values) else 1.0


def lines(facts: Mapping[str, Any]) -> Iterable[str]:
    """The same for people: two lines a partition, one a topic."""
    for topic in facts["topics"]:
        for each in topic["partitions"]:
            times = each["times"]
            yield (
                f"{topic['topic']}-{each['partition']}: {amount(each['records'])} records, "
                f"{amount(each['bytes'])}B, about {amount(each['distinct_keys'])} keys, "
                f"{moment(times['earliest_ms']) or 'no times'} to {moment(times['latest_ms'])}"
            )
            yield (
                f"    {amount(each['gaps']['offsets'])} offsets in {amount(each['gaps']['count'])} gaps, "
                f"{amount(times['late'])} late by up to {span(times['most_late_ms'])}, "
                f"longest silence {span(times['longest_silence_ms'])}"
            )
        yield (
            f"{topic['topic']}: {amount(topic['records'])} records, {amount(topic['bytes'])}B, about "
            f"{amount(topic['distinct_keys'])} keys; largest partition {topic['skew']['records']} times the "
            f"average in records, {topic['skew']['bytes']} times in bytes"
        )
    if not facts["topics"]:
        yield "nothing to read"
