"""`merge-state-changes`: merge the state-change logs of many nodes into one ordered, filtered timeline.

    merge-state-changes /mnt/*/logs/state-change.log* --output timeline
    merge-state-changes … --topics orders --start-time '2026-11-20 15:00:00,000' --format parquet --output x

Lines and order are those of `logstore merge-state-changes`, which reads our logs and Kafka's; this job is for
more data than one machine can read. `--output` is a directory as Spark writes it: its parts, in order of
their names, are the timeline.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.arguments import whole_numbers
from logstore.spark.jobs.job import Answer, BadUsage, absolute
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.replication.state_change_lines import Wanted
    from logstore.spark.jobs.work import Workers

HELP: Final = "merge the state-change logs of many nodes into one ordered timeline"
FORMATS: Final = ("text", "json", "parquet")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("logs", metavar="FILE", nargs="*", help="state-change logs, ours or Kafka's")
    parser.add_argument("--logs-regex", metavar="REGEX", help="all files in --directory that match")
    parser.add_argument("--directory", metavar="DIR", default=".", help="where --logs-regex looks")
    parser.add_argument("--topics", metavar="A,B", default="", help="only lines of these topics")
    parser.add_argument("--partitions", metavar="N,N", default="", help="only lines of these partitions")
    parser.add_argument("--start-time", metavar="TIME", help="first time, such as '2026-11-20 15:19:26,123'")
    parser.add_argument("--end-time", metavar="TIME", help="last time, inclusive")
    parser.add_argument("--output", metavar="DIR", required=True, help="new directory for the timeline")
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="original lines, JSON objects, or Parquet files by date (default: %(default)s)",
    )  # fmt: skip


def prepare(options: Namespace) -> Merge:
    """Check the options. Raises `BadUsage` and `InvalidOption`."""
    from logstore.replication.state_change_lines import Wanted

    output = Path(absolute(options.output))
    if output.exists():
        raise BadUsage(f"--output: {output} exists; name a new directory")
    numbers = whole_numbers(each for each in options.partitions.split(",") if each)
    if numbers is None:
        raise BadUsage(f"--partitions: {options.partitions!r} is not a list of numbers")
    wanted = Wanted(
        frozenset(each for each in options.topics.split(",") if each),
        frozenset(numbers),
        _time("--start-time", options.start_time, ""),
        _time("--end-time", options.end_time, "~"),
    )
    return Merge(_files(options), wanted, str(output), options.format)


def _files(options: Namespace) -> tuple[str, ...]:
    if bool(options.logs) == bool(options.logs_regex):
        raise BadUsage("give either files or --logs-regex")
    if options.logs:
        files = [Path(each) for each in options.logs]
        if missing := [str(file) for file in files if not file.is_file()]:
            raise BadUsage(f"files do not exist: {', '.join(missing)}")
    else:
        try:
            pattern = re.compile(options.logs_regex)
        except re.error as error:
            raise BadUsage(f"--logs-regex: {error}") from error
        directory = Path(options.directory)
        if not directory.is_dir():
            raise BadUsage(f"--directory: {directory} is not a directory")
        files = sorted(
            path for path in directory.iterdir() if path.is_file() and pattern.fullmatch(path.name)
        )
        if not files:
            raise BadUsage(f"--logs-regex: no file in {directory} matches")
    return tuple(str(file.absolute()) for file in files)


def _time(option: str, text: str | None, otherwise: str) -> str:
    from logstore.replication.state_change import parse_time

    if text is None:
        return otherwise
    try:
        parse_time(text)
    except ValueError as error:
        raise BadUsage(f"{option}: {error}") from error
    return text


@dataclass(frozen=True, slots=True)
class Merge:
    """A prepared merge."""

    files: Sequence[str]
    wanted: Wanted
    output: str
    format: str

    def plan(self) -> Answer:
        sizes = [Path(file).stat().st_size for file in self.files]
        sized = list(zip(self.files, sizes, strict=True))
        facts = {
            "files": [{"path": file, "bytes": size} for file, size in sized],
            "bytes": sum(sizes),
            "output": self.output,
            "format": self.format,
        }
        lines = [f"{file}  {size} bytes" for file, size in sized]
        return Answer(facts, [*lines, f"{counted(len(sizes), 'file')}, {sum(sizes)} bytes, to {self.output}"])

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `OSError` for an unreadable file."""
        from pyspark.sql import Observation, functions

        from logstore.spark.state_change_source import NAME, ORDER, StateChangeLines

        workers.session.dataSource.register(StateChangeLines)
        reader = workers.session.read.format(NAME).option("files", json.dumps(list(self.files)))
        reader = reader.option("topics", json.dumps(sorted(self.wanted.topics)))
        reader = reader.option("partitions", json.dumps(sorted(self.wanted.partitions)))
        reader = reader.option("start", self.wanted.start).option("end", self.wanted.end)
        seen = Observation("timeline")
        lines = (
            reader.load()
            .orderBy(*ORDER)
            .observe(
                seen,
                functions.count(functions.lit(1)).alias("lines"),
                functions.min("time").alias("first"),
                functions.max("time").alias("last"),
            )
        )
        match self.format:
            case "text":
                lines.select("text").write.text(self.output)
            case "json":
                lines.select("json").write.text(self.output)
            case _:
                dated = lines.drop("json", "at").withColumn("date", functions.substring("time", 1, 10))
                dated.write.partitionBy("date").parquet(self.output)
        found = seen.get
        facts = {
            "files": len(self.files),
            "lines": found["lines"],
            "first": found["first"],
            "last": found["last"],
            "output": self.output,
            "format": self.format,
        }
        span = f", from {found['first']} to {found['last']}" if found["lines"] else ""
        return Answer(
            facts,
            [f"{counted(found['lines'], 'line')} of {counted(len(self.files), 'file')}{span}: {self.output}"],
        )
