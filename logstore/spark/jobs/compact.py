"""`compact`: write the record with the largest offset of each key of each partition to a table, or as logs.

    orders/                              the table: appears whole, or is replaced whole
      topic=orders/partition=0/part-….parquet
    .orders.logstore-compact/            beside it
      ledger                             which table is to be moved there
      staged/<number>/table              the table while Spark writes it
      replaced-<number>                  the old table, until it is removed

As in a broker's compaction, keys belong to a partition: if a topic's partition count changed, a key may
appear in two. Spark groups and shuffles. The table is moved into place by renames that can be repeated: it is
either staged or there. Between the two renames of a replacement, neither table is visible.
With `--to segments` the output is a log dir in Kafka's files instead (`compact_segments.py`).
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.disk.clocks import steady_s
from logstore.disk.copying import is_there
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, OsDisk, make_durable_dir
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.dated_files import CODECS
from logstore.spark.jobs.job import (
    Answer,
    absolute,
    add_source,
    check_positive,
    named_values,
    source_options,
)
from logstore.spark.jobs.work import Workers, amount, amounts
from logstore.spark.ledger import (
    Intent,
    Json,
    Ledger,
    complete,
    publish_once,
    read_ledger,
    remove_staged,
    staging_directory,
    sync_file,
)
from logstore.spark.logs import OffsetRange
from logstore.spark.offsets import format_offsets
from logstore.spark.read_options import ReadOptions
from logstore.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

    from logstore.spark.jobs.compact_segments import Shape

HELP: Final = "write the latest value of each key, as of an offset or a time, to Parquet or as a log"

COLUMNS: Final = ("value", "offset", "timestamp")
TABLE: Final = "table"
_BOUNDS: Final = frozenset(
    name.lower()
    for word in ("starting", "ending")
    for name in (f"{word}Offsets", f"{word}Timestamp", f"{word}OffsetsByTimestamp")
) | {"assign", "subscribe", "subscribepattern", "startingoffsetsbytimestampstrategy"}
"""Options that are resolved once and then passed on as offsets."""


class OutputExists(EngineError):
    """The output exists, or was removed during the job."""

    code = ErrorCode.INVALID_REQUEST


class NullKeys(EngineError):
    """The input has records without a key, which have no latest value."""

    code = ErrorCode.INVALID_RECORD


class Wanted(NamedTuple):
    """The content of the table."""

    columns: tuple[str, ...]
    codec: str
    keep_tombstones: bool
    drop_null_keys: bool


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="DIR", required=True, help="new directory of the table, local or mounted"
    )
    output.add_argument("--overwrite", action="store_true", help="replace an existing output")
    output.add_argument(
        "--to", choices=("table", "segments"), default="table",
        help="a table, or a log dir with Kafka's files (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--columns", metavar="A,B",
        help="of a table, besides topic, partition and key: value, offset, … "
        f"(default: {','.join(COLUMNS)})",
    )  # fmt: skip
    output.add_argument(
        "--tombstones", choices=("drop", "keep"), default="drop",
        help="keys whose latest value is null (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--null-keys", choices=("refuse", "drop"), default="refuse",
        help="records without a key, which have no latest value (default: %(default)s)",
    )  # fmt: skip
    output.add_argument("--codec", choices=CODECS, help="compression of a table's files (default: zstd)")
    output.add_argument(
        "--segment-megabytes", metavar="N", type=int, default=1024,
        help="size of a segment (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--task-offsets", metavar="N", type=int, default=1 << 22,
        help="offsets per task that writes segments (default: %(default)s)",
    )  # fmt: skip


def prepare(options: Namespace) -> Compact:
    check_positive(options, "segment_megabytes", "task_offsets")
    rules = options.tombstones == "keep", options.null_keys == "drop"
    if options.to == "segments":
        from logstore.spark.jobs.compact_segments import Shape

        if options.brokers:
            raise InvalidOption("--to segments reads directories: brokers compact their own logs")
        if "tier" in (name.lower() for name in named_values("--option", options.option)):
            raise InvalidOption("--to segments copies batches of directories, not of a tier: leave it out")
        if options.columns is not None or options.codec is not None:
            raise InvalidOption("--columns and --codec are for tables: segments keep records and codecs")
        return Compact(
            source_options(options, ("topic", "partition", "key", "offset", "value")),
            absolute(options.output),
            Wanted(("offset",), "zstd", *rules),
            options.overwrite,
            Shape(options.segment_megabytes << 20, options.task_offsets),
        )
    named = [name.strip() for name in (options.columns or ",".join(COLUMNS)).split(",")]
    own = ("topic", "partition", "key")
    columns = tuple(name for name in dict.fromkeys(named) if name.lower() not in own)
    if "*" in columns:
        raise InvalidOption(
            "--columns: * is not supported; name the columns besides topic, partition and key"
        )
    read = dict.fromkeys((*own, "offset", "value", *columns))
    return Compact(
        source_options(options, tuple(read)),
        absolute(options.output),
        Wanted(columns, options.codec or "zstd", *rules),
        options.overwrite,
    )


class Compact:
    """A prepared compaction. `options` are those of `spark.read`."""

    def __init__(
        self,
        options: Mapping[str, str],
        output: str,
        wanted: Wanted,
        overwrite: bool,
        segments: Shape | None = None,
    ) -> None:
        """`segments`: write a log dir."""
        self._segments = segments
        self._options, self._output, self._wanted, self._overwrite = options, output, wanted, overwrite
        self._parsed = ReadOptions.parse(options, streaming=False)
        self._disk = OsDisk()
        above, _, name = output.rpartition("/")
        self._ledger = f"{above}/.{name}.logstore-compact"

    def _planned(self) -> list[OffsetRange]:
        from logstore.spark.reading import open_logs, plan_batch

        with closing(open_logs(self._parsed)) as logs:
            ranges = plan_batch(self._parsed, logs)
        return [each for each in ranges if each.size > 0 or self._segments is not None]

    def plan(self) -> Answer:
        unfinished = read_ledger(self._disk, self._ledger).intent is not None
        ranges = self._planned()
        offsets = sum(each.size for each in ranges)
        exists = is_there(self._disk, self._output)
        facts = {
            "job": "compact",
            "output": self._output,
            "exists": exists,
            "unfinished": unfinished,
            "offsets": offsets,
            "partitions": [asdict(each) for each in ranges],
        }
        lines = [str(each) for each in ranges]
        if unfinished:
            lines.append("would first move the complete table of the last run into place")
        elif exists:
            lines.append("would replace the output" if self._overwrite else "would fail: the output exists")
        lines.append(f"would compact {amounts(offsets, 'offset')} of {counted(len(ranges), 'partition')}")
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        make_durable_dir(self._disk, self._ledger)
        with Ledger(self._disk, self._ledger) as ledger:
            if complete(ledger, self._carry_out) is not None and not self._overwrite:
                if ledger.state.get("asked", self._asked()) != self._asked():
                    raise OutputExists(
                        f"{self._output} has what a run with other options was killed before it could move "
                        "there: give --overwrite or another --output"
                    )
                return _answer({**ledger.state, "recovered": True})
            if is_there(self._disk, self._output) and not self._overwrite:
                raise OutputExists(f"{self._output} exists; give --overwrite or another --output")
            number = ledger.done + 1
            staging = staging_directory(ledger.directory, number)
            remove_staged(self._disk, staging)
            make_durable_dir(self._disk, staging)
            facts = self._write(workers, staging)
            sync_tree(self._disk, f"{staging}/{TABLE}")
            self._disk.sync_dir(staging)
            plan = {**facts, "asked": self._asked()}
            publish_once(ledger, number, lambda: plan, self._carry_out)
        return _answer({**facts, "recovered": False})

    def _asked(self) -> Json:
        """Return the options that decide on the content of the output, as JSON has them."""
        wanted = {**self._wanted._asdict(), "columns": list(self._wanted.columns)}
        return {"source": dict(self._options), **wanted, "is_log": self._segments is not None}

    def _carry_out(self, intent: Intent) -> Json:
        place(self._disk, self._ledger, self._output, intent.number)
        return intent.plan

    def _write(self, workers: Workers, staging: str) -> dict[str, Any]:
        """Write the table below `staging`, and return the facts to report."""
        from pyspark.sql import Observation

        from logstore.spark.jobs.compact_segments import write_segments, write_winners

        ranges = self._planned()
        session = workers.session
        began_s = steady_s()
        seen, kept = Observation(), Observation()
        table = self._latest(self._records(session, [each for each in ranges if each.size]), seen, kept)
        with workers.watched("compact"):
            if self._segments is not None:
                write_winners(table, staging, self._segments)
            else:
                writer = table.write.partitionBy("topic", "partition")
                writer.option("compression", self._wanted.codec).parquet(f"file://{staging}/{TABLE}")
        counts = {**seen.get, **kept.get}
        if counts["null_keys"] and not self._wanted.drop_null_keys:
            raise NullKeys(
                f"{counts['null_keys']} records have no key, so they have no latest value; give --null-keys "
                "drop to omit them"
            )
        written = {}
        if self._segments is not None:
            written = write_segments(workers, self._parsed, ranges, staging, self._segments)
        return {
            "job": "compact",
            "output": self._output,
            **written,
            "seconds": round(steady_s() - began_s, 3),
            **counts,
            "rows": counts["keys"] - (0 if self._wanted.keep_tombstones else counts["tombstones"]),
            "partitions": [asdict(each) for each in ranges],
        }

    def _records(self, session: SparkSession, ranges: list[OffsetRange]) -> DataFrame:
        """Return the records of exactly these ranges."""
        from logstore.spark.columns import spark_schema
        from logstore.spark.data_source import LogstoreDataSource

        if not ranges:
            return session.createDataFrame([], spark_schema(self._parsed.columns))
        session.dataSource.register(LogstoreDataSource)
        partitions: dict[str, list[int]] = {}
        for each in ranges:
            partitions.setdefault(each.topic, []).append(each.partition)
        bounds = {
            "assign": json.dumps(partitions),
            "startingOffsets": format_offsets({each.topic_partition: each.start_offset for each in ranges}),
            "endingOffsets": format_offsets({each.topic_partition: each.end_offset for each in ranges}),
        }
        given = {name: value for name, value in self._options.items() if name.lower() not in _BOUNDS}
        return session.read.format("logstore").options(**given, **bounds).load()

    def _latest(self, records: DataFrame, seen: Observation, kept: Observation) -> DataFrame:
        """Return one row per key."""
        from pyspark.sql import functions as f

        key, offset, value = records["key"], records["offset"], f.col("last.value")
        records = records.observe(
            seen, f.count(f.lit(1)).alias("records"), f.count(f.when(key.isNull(), 1)).alias("null_keys")
        )
        columns = dict.fromkeys(("value", *self._wanted.columns))
        latest = (
            records.where(key.isNotNull())
            .groupBy("topic", "partition", "key")
            .agg(f.max_by(f.struct(*columns), offset).alias("last"))
            .observe(
                kept, f.count(f.lit(1)).alias("keys"), f.count(f.when(value.isNull(), 1)).alias("tombstones")
            )
        )
        if not self._wanted.keep_tombstones:
            latest = latest.where(value.isNotNull())
        return latest.select("topic", "partition", "key", *(f"last.{name}" for name in self._wanted.columns))


def place(disk: Disk, ledger: str, output: str, number: int) -> None:
    """Move the staged table to its place, and an old one out of the way; repeatable.

    Raises `OSError`, and `OutputExists` if neither table exists any more.
    """
    staging = staging_directory(ledger, number)
    replaced = f"{ledger}/replaced-{number}"
    if is_there(disk, f"{staging}/{TABLE}"):
        if is_there(disk, output):
            disk.rename(output, replaced)
            disk.sync_dir(ledger)
        disk.rename(f"{staging}/{TABLE}", output)
    if not is_there(disk, output):
        raise OutputExists(f"{output} and its staged replacement are gone: another program removed them")
    disk.sync_dir(output.rpartition("/")[0] or "/")
    remove_staged(disk, replaced)


def sync_tree(disk: Disk, directory: str) -> None:
    """Make all files below `directory`, and their names, durable."""
    for entry in disk.scan(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            sync_tree(disk, path)
        else:
            sync_file(disk, path)
    disk.sync_dir(directory)


def _answer(facts: Mapping[str, Any]) -> Answer:
    return Answer(
        {name: fact for name, fact in facts.items() if name != "asked"},
        [
            f"compacted {amounts(facts['records'], 'record')} to {amounts(facts['rows'], 'row')}: "
            f"{amounts(facts['keys'], 'key')}, {amount(facts['tombstones'])} of them deleted, "
            f"{amounts(facts['null_keys'], 'record')} without a key, {facts['seconds']:.1f} s"
        ],
    )
