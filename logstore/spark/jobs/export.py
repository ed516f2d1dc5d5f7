"""`export`: append new records to Parquet files, with dates as directories.

    table/topic=orders/partition=0/date=2026-11-20/<first offset>-<end offset>.parquet
    table/.logstore-export/ledger                            the offset up to which each partition is exported
    table/.logstore-export/staged/7/orders-0-1024-Xq…-31-1   written by tasks; readers ignore the directory
         │  rename, repeatable: a file is either staged or in its place
         ▼
    table/topic=orders/partition=0/date=2026-11-20/00000000000000001024-00000000000000002048.parquet

A publication is the files of some tasks. Tasks stage them. The driver decides them in the ledger, with the
offsets up to which each partition is then exported, moves each to its final name, and marks the publication
as done. If the job is killed, the next run finds no intent, or completes the open one, and continues from
there. Readers of the table see only whole files and each row at most once; the files of a partition in one
publication appear in offset order.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from random import Random
from typing import Final, NamedTuple

from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, OsDisk, make_durable_dir
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.columns import read_columns
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.dated_files import CODECS, DatedFiles, FileFormat, StagedFile
from logstore.spark.jobs.job import Answer, absolute, add_source, check_positive, read_options
from logstore.spark.jobs.pieces import Told, advanced, done_of, grouped, joined, rest_of, same_topics
from logstore.spark.jobs.placing import LEDGER_PREFIX, check_own_table, place_files
from logstore.spark.jobs.work import Workers, amount, amounts, attempt_id, in_bytes
from logstore.spark.ledger import Intent, Json, Ledger, complete, publish_once, read_ledger, staging_directory
from logstore.spark.logs import Missing, OffsetRange, describe, raise_on_loss
from logstore.spark.offsets import nested
from logstore.spark.read_options import ReadOptions
from logstore.wording import counted

HELP: Final = "append new records of topics to Parquet files by topic, partition and date"

COLUMNS: Final = ("key", "value", "offset", "timestamp", "timestampType")
_DIRECTORIES: Final = ("topic", "partition")
"""Columns that are in directory names, where readers find them."""
LEDGER_DIRECTORY: Final = f"{LEDGER_PREFIX}export"
"""In the table; Spark, Arrow and Hive ignore names that begin with a dot."""


class ExportMismatch(EngineError):
    """The output is not a table that this export can append to."""

    code = ErrorCode.INVALID_CONFIG


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="DIR", required=True, help="directory of the table, local or mounted"
    )
    output.add_argument(
        "--columns", metavar="A,B", default=",".join(COLUMNS),
        help="of key, value, offset, timestamp, timestampType, headers, leaderEpoch, segment (%(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--codec", choices=CODECS, default="zstd", help="compression of the files (default: %(default)s)"
    )
    output.add_argument(
        "--file-megabytes", metavar="N", type=int, default=256,
        help="size of a file, before compression (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--task-records", metavar="N", type=int, default=1 << 20,
        help="offsets per task (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--publish-tasks", metavar="N", type=int,
        help="tasks per publication: the work that a killed run repeats (default: 16 per core)",
    )  # fmt: skip


def prepare(options: Namespace) -> Export:
    check_positive(options, "file_megabytes", "task_records", "publish_tasks")
    columns = read_options(options, [options.columns]).columns
    kept = tuple(name for name in columns if name not in _DIRECTORIES)
    if not kept:
        raise InvalidOption("--columns names only topic and partition, which are directory names")
    return Export(
        read_options(options, kept),
        absolute(options.output),
        FileFormat(kept, options.codec, options.file_megabytes << 20),
        options.task_records,
        options.publish_tasks,
    )


# --- a task -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """The work of a task: stage the rows of these offsets."""

    wanted: OffsetRange
    options: ReadOptions
    shape: FileFormat
    staging: str
    run: str

    def __str__(self) -> str:
        return str(self.wanted)


class Staged(NamedTuple):
    """The result of a task."""

    wanted: OffsetRange
    rows: int
    files: list[StagedFile]
    missing: list[Missing]


def stage(piece: Piece) -> Staged:
    """Write the rows of `piece` to durable files with names of this attempt.

    Raises `DataLoss` for lost records if the options ask for it, `EngineError` and `OSError`.
    """
    from logstore.spark.reading import open_logs

    wanted = piece.wanted
    columns = dict.fromkeys(("offset", "timestamp", *read_columns(piece.shape.columns)))
    missing: list[Missing] = []
    rows = 0
    token = f"{wanted.topic_partition}-{wanted.start_offset}-{piece.run}-{attempt_id()}"
    with (
        closing(open_logs(piece.options)) as logs,
        DatedFiles(wanted.topic, wanted.partition, piece.staging, token, piece.shape) as files,
    ):
        for read in logs.read(wanted, tuple(columns), missing):
            rows += read.num_rows
            files.add(read)
        if piece.options.fail_on_data_loss:
            raise_on_loss(missing)
        return Staged(wanted, rows, files.close(), missing)


# --- publishing ---------------------------------------------------------------------------------------------


def plan_of(
    staged: Sequence[Staged],
    exported: Mapping[TopicPartition, int],
    columns: Sequence[str],
    topic_ids: Mapping[str, str],
) -> Json:
    """Return the intent: the target of each file, and the offset up to which each partition is exported."""
    ends = advanced(exported, (each.wanted for each in staged))
    files = [file for each in staged for file in each.files]
    assert len({file.target for file in files}) == len(files), "two files have the same name"
    return {
        "columns": list(columns),
        "offsets": nested(ends),
        "topic_ids": dict(topic_ids),
        "files": [[file.staged, file.target] for file in sorted(files, key=_place)],
    }


def _place(file: StagedFile) -> tuple[str, str]:
    """Return partition and first offset; dates need not be in offset order."""
    partition, _, name = file.target.rsplit("/", 2)
    return partition, name


def carry_out(disk: Disk, output: str, intent: Intent) -> Json:
    """Move the files of an intent that are still staged, durably, and return the new state.

    Raises `OSError`, and `ExportMismatch` if a file is gone.
    """
    staging = staging_directory(f"{output}/{LEDGER_DIRECTORY}", intent.number)
    files = [(staged, target) for staged, target in intent.plan["files"]]
    place_files(disk, staging, output, files, _gone)
    return {name: intent.plan[name] for name in ("columns", "offsets", "topic_ids") if name in intent.plan}


def _gone(path: str) -> Exception:
    return ExportMismatch(
        f"{path} was removed before its publication was complete, by another program. Export into a new "
        "directory"
    )


# --- the job ------------------------------------------------------------------------------------------------


class Export:
    """A prepared export."""

    def __init__(
        self,
        options: ReadOptions,
        output: str,
        shape: FileFormat,
        task_records: int,
        publish_tasks: int | None,
    ) -> None:
        self._options, self._output, self._shape = options, output, shape
        self._task_records, self._publish_tasks = task_records, publish_tasks
        self._disk = OsDisk()
        self._ledger = f"{output}/{LEDGER_DIRECTORY}"

    def plan(self) -> Answer:
        check_own_table(self._disk, self._output, "export")
        entry = read_ledger(self._disk, self._ledger)
        state = entry.state if entry.intent is None else entry.intent.plan
        self._check(state)
        pieces, _ = self._pieces(state)
        unfinished = [] if entry.intent is None else entry.intent.plan["files"]
        ranges = joined(pieces)
        offsets = sum(each.size for each in ranges)
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
            lines.append(f"would first publish {counted(len(unfinished), 'staged file')} of the last run")
        lines.append(
            f"would export {amounts(offsets, 'offset')} of {counted(len(ranges), 'partition')} in "
            f"{counted(len(pieces), 'task')}"
        )
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        began_s = steady_s()
        total = _Total()
        check_own_table(self._disk, self._output, "export")
        make_durable_dir(self._disk, self._output)
        with Ledger(self._disk, self._ledger) as ledger:
            if (unfinished := complete(ledger, self._carry_out)) is not None:
                total.recovered = len(unfinished.plan["files"])
            self._check(ledger.state)
            pieces, topic_ids = self._pieces(ledger.state)
            if pieces:
                began_s = self._export(workers, ledger, pieces, topic_ids, total)
        return total.answer(self._output, steady_s() - began_s)

    def _export(
        self,
        workers: Workers,
        ledger: Ledger,
        pieces: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        total: _Total,
    ) -> float:
        """Publish all `pieces`; return the start time, which is after Spark has started."""
        from logstore.spark.reading import topic_ids_now

        count = self._publish_tasks or max(16 * workers.cores, 64)
        began_s = steady_s()
        run = new_id(Random())
        workers.progress.begin("export", sum(each.size for each in pieces), "records")
        for ranges in grouped(pieces, count):
            number = ledger.done + 1
            staging = staging_directory(ledger.directory, number)
            make_durable_dir(self._disk, staging)
            work = [Piece(each, self._options, self._shape, staging, run) for each in ranges]
            staged: list[Staged] = []
            for _, report in workers.reports(work, stage):
                staged.append(report)
                workers.progress.advance(report.wanted.size)
            now = topic_ids_now(self._options, [each.topic_partition for each in ranges])
            same_topics(topic_ids, now, **self._told)
            plan = plan_of(staged, done_of(ledger.state), self._shape.columns, topic_ids)
            self._publish(ledger, number, plan)
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
                f"{self._output} has the columns {', '.join(before)}: give --columns {','.join(before)}, or "
                "another --output"
            )

    @property
    def _told(self) -> Told:
        return {
            "fail_on_data_loss": self._options.fail_on_data_loss,
            "did": "exported",
            "otherwise": "Export it into another table",
        }

    def _pieces(self, state: Json) -> tuple[list[OffsetRange], dict[str, str]]:
        return rest_of(self._options, state, self._task_records, **self._told)


class _Total:
    """The totals of a run."""

    def __init__(self) -> None:
        self.recovered = self.publications = self.rows = self.size_bytes = self.files = 0
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.partition_rows: Counter[TopicPartition] = Counter()
        self.missing: list[Missing] = []

    def add(self, staged: Sequence[Staged]) -> None:
        self.publications += 1
        for each in staged:
            self.rows += each.rows
            self.files += len(each.files)
            self.size_bytes += sum(file.size_bytes for file in each.files)
            self.missing += each.missing
            self.partition_rows[each.wanted.topic_partition] += each.rows
        ranges = joined([*self.ranges.values(), *(each.wanted for each in staged)])
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
        lines = [f"{each!s}: {counted(self.partition_rows[name], 'record')}" for name, each in ranges]
        if self.recovered:
            lines.append(f"first published {counted(self.recovered, 'file')} of an unfinished run")
        lines += [describe(each) for each in self.missing if each.cause.is_loss]
        lines.append(
            f"exported {amounts(self.rows, 'record')} into {counted(self.files, 'file')} "
            f"({in_bytes(self.size_bytes)}), {seconds:.1f} s, "
            f"{amount(self.rows / max(seconds, 1e-9))} records/s"
            if self.rows or self.files
            else "nothing new to export"
        )
        return Answer(facts, lines)
