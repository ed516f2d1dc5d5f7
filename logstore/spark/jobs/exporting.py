"""The export: what a log has, as Parquet; at each run what has come since the last.

    table/topic=orders/partition=0/date=2026-11-20/<first offset>-<end offset>.parquet
    table/.logstore-export/ledger              how far each partition has been exported
    table/.logstore-export/staged/<number>/    what tasks write: no reader looks there

A publication is some tasks' worth of files. Tasks stage them; the driver decides them in the ledger, moves
each to its final name, and marks the publication as done, with the offsets up to which all is exported.
Moving can be repeated: a file is either still staged or already there. So whenever the job is killed, the
next run finds nothing, an intent that it completes, or a publication that is done, and goes on where that
ends. Readers who list the table meanwhile see whole files, and each row at most once; of one partition the
files of a publication appear in order of their offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

from logstore.broker.clock import stopwatch_s
from logstore.disk.files import Disk, OsDisk, make_durable_dir
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import read_columns
from logstore.spark.errors import DataLoss
from logstore.spark.jobs.dated_files import DatedFiles, FileFormat
from logstore.spark.jobs.export_publishing import (
    LEDGER_DIRECTORY,
    ExportMismatch,
    Staged,
    carry_out,
    exported,
    plan_of,
)
from logstore.spark.jobs.job import Answer
from logstore.spark.jobs.progress import amount
from logstore.spark.jobs.work import Workers, attempt_id
from logstore.spark.ledger import Intent, Json, Ledger, complete, publish_once, read_ledger, staging_directory
from logstore.spark.logs import Bounds, Missing, OffsetRange
from logstore.spark.ranges import cut, size_of
from logstore.spark.read_options import ReadOptions


@dataclass(frozen=True, slots=True)
class Piece:
    """A task's work: stage the rows of these offsets."""

    wanted: OffsetRange
    options: ReadOptions
    shape: FileFormat
    staging: str
    run: str

    def __str__(self) -> str:
        return str(self.wanted)


def stage(piece: Piece) -> Staged:
    """Write the rows of `piece` into files, durably, under names of this attempt's own.

    Raises `DataLoss` if rows are gone and the options say so, and `EngineError` or `OSError`.
    """
    from logstore.spark.losses import raise_on_loss
    from logstore.spark.opening import open_logs

    wanted = piece.wanted
    columns = dict.fromkeys(("offset", "timestamp", *read_columns(piece.shape.columns)))
    missing: list[Missing] = []
    rows = 0
    token = f"{wanted.topic_partition}-{wanted.start_offset}-{piece.run}-{attempt_id()}"
    logs = open_logs(piece.options)
    try:
        with DatedFiles(wanted.topic, wanted.partition, piece.staging, token, piece.shape) as files:
            for read in logs.read(wanted, tuple(columns), missing):
                rows += read.num_rows
                files.add(read)
            if piece.options.fail_on_data_loss:
                raise_on_loss(missing)
            return Staged(wanted, rows, files.close(), missing)
    finally:
        logs.close()


# --- the job ------------------------------------------------------------------------------------------------


class Export:
    """An export that was asked for."""

    def __init__(
        self,
        options: ReadOptions,
        output: str,
        shape: FileFormat,
        task_records: int,
        publish_tasks: int | None,
        disk: Disk | None = None,
    ) -> None:
        self._options, self._output, self._shape = options, output, shape
        self._task_records, self._publish_tasks = task_records, publish_tasks
        self._disk = disk or OsDisk()

    @property
    def _ledger(self) -> str:
        return f"{self._output}/{LEDGER_DIRECTORY}"

    def plan(self) -> Answer:
        entry = read_ledger(self._disk, self._ledger)
        state = entry.state if entry.intent is None else entry.intent.plan
        self._check(state)
        pieces = self._pieces(exported(state))
        unfinished = [] if entry.intent is None else entry.intent.plan["files"]
        ranges = _joined(pieces)
        offsets = sum(map(size_of, ranges))
        facts = {
            "job": "export",
            "output": self._output,
            "unfinished_files": len(unfinished),
            "offsets": offsets,
            "tasks": len(pieces),
            "partitions": [asdict(each) for each in ranges],
        }
        lines = list(map(str, ranges))
        if unfinished:
            lines.append(f"{len(unfinished)} files of the last run are staged and would be published first")
        lines.append(
            f"would export {amount(offsets)} offsets of {len(ranges)} partitions in {len(pieces)} tasks"
        )
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        began_s = stopwatch_s()
        total = _Total()
        make_durable_dir(self._disk, self._output)
        with Ledger(self._disk, self._ledger) as ledger:
            if (unfinished := complete(ledger, self._carry_out)) is not None:
                total.recovered = len(unfinished.plan["files"])
                ledger.sweep()
            self._check(ledger.state)
            pieces = self._pieces(exported(ledger.state))
            if pieces:
                began_s = self._export(workers, ledger, pieces, total)
        return total.answer(self._output, stopwatch_s() - began_s)

    def _export(
        self, workers: Workers, ledger: Ledger, pieces: Sequence[OffsetRange], total: _Total
    ) -> float:
        """Publish all `pieces`; returns when it began, which is once Spark is there."""
        count = self._publish_tasks or max(16 * workers.session.sparkContext.defaultParallelism, 64)
        began_s = stopwatch_s()
        run = new_id(Random())
        workers.progress.begin("export", sum(map(size_of, pieces)), "records")
        for first in range(0, len(pieces), count):
            number = ledger.done + 1
            staging = staging_directory(ledger.directory, number)
            make_durable_dir(self._disk, staging)
            ranges = pieces[first : first + count]
            work = [Piece(each, self._options, self._shape, staging, run) for each in ranges]
            staged: list[Staged] = []
            for _, report in workers.reports(work, stage):
                staged.append(report)
                workers.progress.advance(size_of(report.wanted))
            self._publish(ledger, number, plan_of(staged, exported(ledger.state), self._shape.columns))
            total.add(staged)
        workers.progress.end()
        return began_s

    def _publish(self, ledger: Ledger, number: int, plan: Json) -> None:
        publish_once(ledger, number, lambda: plan, self._carry_out)

    def _carry_out(self, intent: Intent) -> Json:
        return carry_out(self._disk, self._output, intent)

    def _check(self, state: Json) -> None:
        before = state.get("columns")
        if before is not None and tuple(before) != self._shape.columns:
            raise ExportMismatch(
                f"{self._output} was begun with the columns {', '.join(before)}: give --columns "
                f"{','.join(before)}, or another --output"
            )

    def _pieces(self, done: Mapping[TopicPartition, int]) -> list[OffsetRange]:
        """What is to be done, cut into tasks."""
        from logstore.spark.batch_reader import plan_batch
        from logstore.spark.opening import open_logs

        logs = open_logs(self._options)
        try:
            ranges = plan_batch(self._options, logs)
            bounds = logs.bounds([each.topic_partition for each in ranges])
            ranges = [
                self._unexported(each, done.get(each.topic_partition), bounds[each.topic_partition])
                for each in ranges
            ]
            return in_turn(cut(ranges, logs.cut_points, max_records=self._task_records))
        finally:
            logs.close()

    def _unexported(self, wanted: OffsetRange, exported: int | None, bounds: Bounds) -> OffsetRange:
        if exported is None:
            return wanted
        if exported > bounds.end_offset and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{wanted.topic_partition} ends at {bounds.end_offset} and was exported up to {exported}: it "
                "was cut or made anew, or a node's directories are missing. Export it into another table, or "
                "set --option failOnDataLoss=false to pass over it until it has grown past that"
            )
        return replace(wanted, start_offset=exported)


class _Total:
    """What a run did."""

    def __init__(self) -> None:
        self.recovered = self.publications = self.rows = self.size_bytes = self.files = 0
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.partition_rows: dict[TopicPartition, int] = {}
        self.missing: list[Missing] = []

    def add(self, staged: Sequence[Staged]) -> None:
        self.publications += 1
        for each in staged:
            self.rows += each.rows
            self.files += len(each.files)
            self.size_bytes += sum(file.size_bytes for file in each.files)
            self.missing += each.missing
            name = each.wanted.topic_partition
            self.partition_rows[name] = self.partition_rows.get(name, 0) + each.rows
        ranges = _joined([*self.ranges.values(), *(each.wanted for each in staged)])
        self.ranges = {each.topic_partition: each for each in ranges}

    def answer(self, output: str, seconds: float) -> Answer:
        ranges = sorted(self.ranges.items())
        facts = {
            "job": "export",
            "output": output,
            "records": self.rows,
            "files": self.files,
            "bytes": self.size_bytes,
            "publications": self.publications,
            "recovered_files": self.recovered,
            "seconds": round(seconds, 3),
            "partitions": [{**asdict(each), "records": self.partition_rows[name]} for name, each in ranges],
            "missing": [{**each._asdict(), "cause": each.cause.value} for each in self.missing],
        }
        lines = [f"{each!s}: {self.partition_rows[name]} records" for name, each in ranges]
        if self.recovered:
            lines.append(f"{self.recovered} files of a run that did not end were published first")
        losses = [each for each in self.missing if each.cause.is_loss]
        if losses:
            from logstore.spark.losses import describe

            lines += map(describe, losses)
        lines.append(
            f"exported {amount(self.rows)} records into {self.files} files ({amount(self.size_bytes)}B), "
            f"{seconds:.1f} s, {amount(self.rows / max(seconds, 1e-9))} records/s"
            if self.rows or self.files
            else "nothing new to export"
        )
        return Answer(facts, lines)


def in_turn(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One of each partition, then the next of each: all of them come forward, and all of their brokers work.

    Those of one partition stay in order.
    """
    turns: Counter[TopicPartition] = Counter()
    placed = []
    for piece in pieces:
        placed.append((turns[piece.topic_partition], piece))
        turns[piece.topic_partition] += 1
    return [piece for _, piece in sorted(placed, key=lambda pair: pair[0])]


def _joined(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Each partition's pieces, which follow each other, as one."""
    joined: dict[TopicPartition, OffsetRange] = {}
    for each in sorted(pieces, key=lambda piece: (piece.topic_partition, piece.start_offset)):
        before = joined.get(each.topic_partition)
        joined[each.topic_partition] = each if before is None else replace(before, end_offset=each.end_offset)
    return list(joined.values())
