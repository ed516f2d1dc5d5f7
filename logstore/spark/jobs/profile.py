"""`profile`: count the contents of topics. Tasks count ranges of offsets; the driver combines the counts.

    first pass     the latest time in each range that another range of its partition follows
    second pass    everything (measures.py); each task is given the latest time of all earlier records

So the result does not depend on how the work was cut. The first pass reads only times. It is skipped if no
partition is cut. The HTML page needs no script and loads nothing.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.disk.clocks import steady_s
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.dated_files import HOUR_MS, NEVER
from logstore.spark.jobs.job import Answer, add_source, check_positive, read_options
from logstore.spark.jobs.profile_page import moment, page, span
from logstore.spark.jobs.work import Workers, amount, amounts, in_bytes
from logstore.spark.logs import Headers, Missing, OffsetRange, raise_on_loss
from logstore.spark.read_options import ReadOptions
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.spark.jobs.measures import Measures

HELP: Final = "count records, bytes, keys, skew, gaps and late records of topics; as text, JSON, HTML"


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    shown = parser.add_argument_group("output")
    shown.add_argument("--html", metavar="FILE", help="also write one self-contained HTML page")
    shown.add_argument(
        "--task-records", metavar="N", type=int, default=4 << 20,
        help="offsets per task (default: %(default)s)",
    )  # fmt: skip


def prepare(options: Namespace) -> Profile:
    check_positive(options, "task_records")
    html = None if options.html is None else Path(options.html)
    if html is not None and not html.absolute().parent.is_dir():
        raise InvalidOption(f"--html {html}: directory {html.absolute().parent} does not exist")
    source = options.brokers or " ".join(options.paths)
    return Profile(read_options(options, ("offset",)), source, html, options.task_records)


# --- tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """The work of a task."""

    wanted: OffsetRange
    options: ReadOptions
    latest_before_ms: int = NEVER

    def __str__(self) -> str:
        return str(self.wanted)


class Counted(NamedTuple):
    """The result of a task."""

    measures: Measures
    missing: list[Missing]


def latest_ms(piece: Piece) -> int:
    """Return the latest time of all records of a range (first pass); `NEVER` if none has a time."""
    import pyarrow.compute as pc

    from logstore.spark.reading import open_logs

    latest = NEVER
    with closing(open_logs(piece.options)) as logs:
        for rows in logs.read(piece.wanted, ("timestamp",), []):
            time_ms = pc.max(rows.column("timestamp").cast("int64")).as_py()
            latest = max(latest, NEVER if time_ms is None else time_ms)
    return latest


def count(piece: Piece) -> Counted:
    """Count a range (second pass). Raises `DataLoss` for lost records if the options ask for it."""
    from logstore.spark.jobs.measures import COLUMNS, Measures
    from logstore.spark.reading import open_logs

    found = Counted(Measures(latest_before_ms=piece.latest_before_ms), [])

    def on_batches(headers: Headers) -> None:
        # A batch that crosses the end of a range is counted in the range where it ends.
        lasts = headers["base_offset"].astype("i8") + headers["last_offset_delta"]
        inside = (lasts >= piece.wanted.start_offset) & (lasts < piece.wanted.end_offset)
        found.measures.add_batches(headers[inside])

    with closing(open_logs(piece.options, on_batches)) as logs:
        for rows in logs.read(piece.wanted, COLUMNS, found.missing):
            found.measures.add(rows)
    if piece.options.fail_on_data_loss:
        raise_on_loss(found.missing)
    return found


# --- the job ------------------------------------------------------------------------------------------------


class Profile:
    """A prepared profile."""

    def __init__(self, options: ReadOptions, source: str, html: Path | None, task_records: int) -> None:
        self._options, self._source, self._html = options, source, html
        self._task_records = task_records

    def _planned(self) -> list[OffsetRange]:
        from logstore.spark.reading import planned

        return planned(self._options, max_records=self._task_records)

    def plan(self) -> Answer:
        pieces = self._planned()
        offsets = sum(each.size for each in pieces)
        partitions = len({each.topic_partition for each in pieces})
        return Answer(
            {"job": "profile", "offsets": offsets, "partitions": partitions, "tasks": len(pieces)},
            [
                f"would read {amounts(offsets, 'offset')} of {counted(partitions, 'partition')} in "
                f"{counted(len(pieces), 'task')}"
            ],
        )

    def run(self, workers: Workers) -> Answer:
        pieces = self._planned()
        began_s = steady_s()
        found = self._count(workers, pieces)
        facts = profile_facts(self._source, pieces, found, steady_s() - began_s)
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
        reports = workers.followed(what, "records", work, function, lambda piece: piece.wanted.size)
        return {piece.wanted: report for piece, report in reports}


def profile_facts(
    source: str, pieces: Sequence[OffsetRange], found: Mapping[OffsetRange, Counted], seconds: float
) -> dict[str, Any]:
    """Return the JSON report: topics and their partitions, in order. `pieces` are sorted."""
    from logstore.spark.jobs.measures import Measures, estimate, joined, no_keys

    topics = []
    for topic, of_topic in groupby(pieces, key=lambda piece: piece.topic):
        partitions: list[dict[str, Any]] = []
        keys = no_keys()
        hours: Counter[int] = Counter()
        for partition, ranges in groupby(of_topic, key=lambda piece: piece.partition):
            each = list(ranges)
            total = Measures()
            missing: Counter[str] = Counter()
            for piece in each:
                total.follow(found[piece].measures)
                for lost in found[piece].missing:
                    missing[lost.cause.value] += lost.offsets
            keys = joined(keys, total.registers)
            hours.update(total.hours)
            facts = {
                "partition": partition,
                "start_offset": each[0].start_offset,
                "end_offset": each[-1].end_offset,
                **total.facts(),
                "missing": dict(sorted(missing.items())),
            }
            partitions.append(facts)
        topics.append(
            {
                "topic": topic,
                "records": sum(each["records"] for each in partitions),
                "bytes": sum(each["bytes"] for each in partitions),
                "distinct_keys": estimate(keys),
                "rate": rate(hours),
                "skew": {name: skew([each[name] for each in partitions]) for name in ("records", "bytes")},
                "partitions": partitions,
            }
        )
    return {"job": "profile", "source": source, "seconds": round(seconds, 3), "topics": topics}


def skew(values: Sequence[int]) -> float:
    """Return the largest value divided by the average: 1 if all are equal, their number if one has all."""
    return round(max(values) * len(values) / sum(values), 4) if any(values) else 1.0


def lines(facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield the report as text: two lines per partition, one per topic."""
    for topic in facts["topics"]:
        for each in topic["partitions"]:
            times = each["times"]
            yield (
                f"{topic['topic']}-{each['partition']}: {amounts(each['records'], 'record')}, "
                f"{in_bytes(each['bytes'])}, about {amounts(each['distinct_keys'], 'key')}, "
                f"{moment(times['earliest_ms']) or 'no times'} to {moment(times['latest_ms'])}"
            )
            yield (
                f"    {amounts(each['gaps']['offsets'], 'offset')} in "
                f"{amounts(each['gaps']['count'], 'gap')}, "
                f"{amount(times['late'])} late by up to {span(times['most_late_ms'])}, "
                f"longest silence {span(times['longest_silence_ms'])}"
            )
        yield (
            f"{topic['topic']}: {amounts(topic['records'], 'record')}, {in_bytes(topic['bytes'])}, about "
            f"{amounts(topic['distinct_keys'], 'key')}; largest partition {topic['skew']['records']} times "
            f"the average in records, {topic['skew']['bytes']} times in bytes"
        )
    if not facts["topics"]:
        yield "nothing to read"


MOST_STEPS: Final = 120


def rate(hours: Mapping[int, int]) -> dict[str, Any] | None:
    """Return records over time: `from_ms`, the `step_hours`, and the number in each of at most 120 steps."""
    if not hours:
        return None
    first, last = min(hours), max(hours)
    step = -(-(last - first + 1) // MOST_STEPS)
    counts = [0] * ((last - first) // step + 1)
    for hour, number in hours.items():
        counts[(hour - first) // step] += number
    return {"from_ms": first * HOUR_MS, "step_hours": step, "records": counts}
