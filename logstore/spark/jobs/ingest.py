"""`ingest`: write rows of files as records of topics, each once.

    files ─ Spark's reader ─ key, value, topic, partition, timestamp ┬─ the sink ─► topics
                                                                     └─ refused rows, with the reason

With a checkpoint, the job is a Spark stream that reads the new files and ends (`availableNow`). The
checkpoint stores which files were read. Each batch is published under the query's id and the batch's number,
so the next run of a killed job loses and repeats no row. Without a checkpoint, the job is one write. If it is
killed before its commit, nothing was published; with a write id it can be repeated.

The reported row counts are the differences of the sequence numbers in the sink's ledger.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from glob import glob, iglob
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from logstore.arguments import whole_number
from logstore.disk.files import OsDisk
from logstore.disk.host_files import files_below
from logstore.disk.ids import new_id
from logstore.spark.brief_errors import reason_of_spark
from logstore.spark.errors import RowRefused
from logstore.spark.jobs.job import Answer, BadUsage, absolute, named_values
from logstore.spark.ledger import NOTHING_DONE, Entry, Json, read_ledger, remove_staged
from logstore.spark.read_options import BOOTSTRAP_SERVERS, local_path
from logstore.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from logstore.spark.jobs.work import Workers

HELP: Final = "write rows of files (text, JSON, CSV, Parquet) to topics, each once"
FORMATS: Final = ("text", "json", "csv", "parquet")
VALUES: Final = ("raw", "json", "column")

_CORRUPT: Final = "_corrupt_record"
_REASON: Final = "_refused_because"
_MARK: Final = "logstore: row refused: "
_REFUSED: Final = re.compile(re.escape(_MARK) + r"([^\n]*?)(?= SQLSTATE|\n|$)")
_BY_SINK: Final = re.compile(r"RowRefused: ([^\n]*)")
_TOPIC: Final = r"^[a-zA-Z0-9._-]{1,249}$"


def arguments(parser: ArgumentParser) -> None:
    source = parser.add_argument_group("input")
    source.add_argument("paths", metavar="PATH", nargs="+", help="files, directories, patterns")
    source.add_argument(
        "--format", choices=FORMATS, default="text", help="format of the files (default: %(default)s)"
    )
    source.add_argument("--schema", metavar="DDL", help="columns of JSON and CSV (default: inferred)")
    source.add_argument(
        "--reader-option", metavar="NAME=VALUE", action="append", default=[],
        help="an option of Spark's reader, as header=true; repeatable",
    )  # fmt: skip
    source.add_argument(
        "--checkpoint", metavar="DIR",
        help="continue after the last run with it: read new files of one directory or pattern",
    )  # fmt: skip
    rows = parser.add_argument_group("records; EXPR is Spark's SQL over the columns")
    rows.add_argument("--topic", metavar="NAME", help="topic of all rows")
    rows.add_argument("--topic-from", metavar="EXPR", help="each row's topic")
    rows.add_argument("--key", metavar="EXPR", help="(default: none)")
    rows.add_argument("--value", metavar="EXPR", help="with --value-format column")
    rows.add_argument(
        "--value-format", choices=VALUES,
        help="the line, all columns as a JSON object, or --value (default: raw for text, else json)",
    )  # fmt: skip
    rows.add_argument("--partition", metavar="EXPR", help="(default: by the key, or round robin)")
    rows.add_argument("--timestamp", metavar="EXPR", help="(default: now)")
    rows.add_argument("--tombstones", action="store_true", help="accept null values, which delete their keys")
    rows.add_argument(
        "--refused", metavar="DIR",
        help="write refused rows here, with the reason (default: the first one ends the job)",
    )  # fmt: skip
    target = parser.add_argument_group("output")
    target.add_argument("--to", metavar="DIR", help="a log dir")
    target.add_argument("--brokers", metavar="HOST:PORT,…", help="write to these brokers instead")
    target.add_argument("--partitions", metavar="N", type=int, help="create missing topics with N partitions")
    target.add_argument(
        "--staging", metavar="DIR",
        help="shared directory for staged files; required with --brokers unless --checkpoint is given",
    )  # fmt: skip
    target.add_argument(
        "--write-id", metavar="NAME:NUMBER",
        help="identity of this write: a NUMBER not above the last one of NAME is not written again",
    )  # fmt: skip
    target.add_argument(
        "--option", metavar="NAME=VALUE", action="append", default=[],
        help="another option of the sink; repeatable",
    )  # fmt: skip


def prepare(options: Namespace) -> Ingest:
    """Check the options. Raises `BadUsage`, `InvalidOption`, `InvalidTopic`."""
    value_format = options.value_format or ("raw" if options.format == "text" else "json")
    if value_format == "raw" and options.format != "text":
        raise BadUsage(
            f"--value-format raw is for text; {options.format} has columns: use json, or column with --value"
        )
    if (value_format == "column") != (options.value is not None):
        raise BadUsage("--value-format column and --value EXPR need each other; give both or neither")
    if (options.topic is None) == (options.topic_from is None):
        raise BadUsage("give either --topic NAME or --topic-from EXPR")
    if options.checkpoint is not None and len(options.paths) != 1:
        raise BadUsage("--checkpoint needs exactly one directory or pattern, whose new files are read")
    paths = tuple(path if local_path(path) is None else absolute(path) for path in options.paths)
    if nothing := [path for path in paths if not _may_exist(path)]:
        raise BadUsage(f"no file matches {', '.join(nothing)}; correct the path or pattern")
    if options.checkpoint is not None and Path(paths[0]).is_file():
        raise BadUsage(f"--checkpoint reads new files of a directory or pattern; {paths[0]} is a file")
    if options.checkpoint is not None and options.write_id is not None:
        raise BadUsage("--checkpoint and --write-id exclude each other: a checkpoint names its own writes")
    inputs = Input(
        paths,
        options.format,
        options.schema,
        named_values("--reader-option", options.reader_option),
    )
    rows = Rows(
        value_format,
        options.value,
        options.key,
        options.topic_from,
        options.partition,
        options.timestamp,
        options.tombstones,
    )
    return Ingest(
        inputs,
        rows,
        _sink(options),
        _absolute(options.checkpoint),
        _absolute(options.refused),
        _write_id(options.write_id),
    )


def _sink(options: Namespace) -> dict[str, str]:
    if (options.to is None) == (options.brokers is None):
        raise BadUsage("give either --to DIR or --brokers")
    staging = options.staging
    if options.brokers is not None and staging is None:
        if options.checkpoint is None:
            raise BadUsage("--brokers needs --staging: a directory shared by the driver and all executors")
        staging = f"{options.checkpoint}.logstore-sink"
    named = {
        "path": _absolute(options.to),
        BOOTSTRAP_SERVERS: options.brokers,
        "topic": options.topic,
        "partitions": None if options.partitions is None else str(options.partitions),
        "stagingPath": _absolute(staging),
        "includeTimestamp": "true" if options.timestamp is not None else None,
    }
    given = named_values("--option", options.option)
    return {**given, **{name: value for name, value in named.items() if value is not None}}


def _may_exist(path: str) -> bool:
    """Return whether a path or pattern matches a file; nobody can tell of other file systems' here."""
    return local_path(path) is None or any(iglob(path))


def _absolute(path: str | None) -> str | None:
    return None if path is None else absolute(path)


def _write_id(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, digits = text.rpartition(":")
    if not name or (number := whole_number(digits, 0)) is None:
        raise BadUsage(f"--write-id {text!r} is not NAME:NUMBER, such as orders-2026:7")
    return name, number


@dataclass(frozen=True, slots=True)
class Input:
    """The input files. `schema` is in Spark's DDL, `options` are those of Spark's reader."""

    paths: Sequence[str]
    """absolute paths or patterns, or URLs of other file systems"""
    format: str
    schema: str | None
    options: Mapping[str, str]

    def files(self) -> list[tuple[str, int]]:
        """Return the files that exist now, with their sizes in bytes. Raises `OSError`."""
        found = [Path(each) for pattern in self.paths for each in sorted(glob(pattern))]
        files = [path for each in found for path in (sorted(files_below(each)) if each.is_dir() else [each])]
        return [
            (str(path), path.stat().st_size) for path in files if path.is_file() and path.name[0] not in "._"
        ]

    def schema_of(self, session: SparkSession) -> Any:
        """Return the columns, and one for unparsable lines."""
        from pyspark.sql.types import StringType, StructType

        if self.format == "text":
            return StructType().add("value", StringType())
        schema: Any
        if self.schema is not None:
            schema = StructType.fromDDL(self.schema)
        else:
            schema = session.read.format(self.format).options(**self.options).load(list(self.paths)).schema
        if self.format != "parquet" and _CORRUPT not in schema.names:
            schema = schema.add(_CORRUPT, StringType())
        return schema

    @property
    def reader_options(self) -> dict[str, str]:
        """The given options, and the column for unparsable lines. A line of text keeps its `\\r`."""
        if self.format in ("json", "csv"):
            return {"mode": "PERMISSIVE", **self.options, "columnNameOfCorruptRecord": _CORRUPT}
        if self.format == "text":
            return {"lineSep": "\n", **self.options}
        return dict(self.options)


@dataclass(frozen=True, slots=True)
class Rows:
    """How a row becomes a record: SQL expressions, None for columns that the sink fills."""

    value_format: str
    value: str | None
    key: str | None
    topic: str | None
    partition: str | None
    timestamp: str | None
    tombstones: bool

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the sink's columns, and the reason why a row is refused (null: it is not)."""
        from pyspark.sql import functions as f

        columns = [f.col(f"`{name}`") for name in rows.columns if name != _CORRUPT]
        as_json = f.to_json(f.struct(*columns), {"ignoreNullFields": "false"})
        match self.value_format:
            case "raw":
                value: Column = f.col("value").cast("binary")
            case "json":
                value = as_json
            case _:
                assert self.value is not None
                value = _blob(rows, self.value)
        corrupt = f.col(_CORRUPT) if _CORRUPT in rows.columns else f.lit(None).cast("string")
        reason = f.when(corrupt.isNotNull(), f.concat(f.lit("it cannot be parsed: "), corrupt))
        if not self.tombstones:
            reason = reason.when(value.isNull(), f.lit("its value is null, and --tombstones is not given"))
        made = {"value": value}
        if self.key is not None:
            made["key"] = _blob(rows, self.key)
        if self.topic is not None:
            topic = made["topic"] = f.expr(self.topic).cast("string")
            reason = reason.when(topic.isNull(), f.lit("its topic is null"))
            reason = reason.when(~topic.rlike(_TOPIC), f.concat(f.lit("invalid topic name "), topic))
        if self.partition is not None:
            partition = made["partition"] = f.expr(self.partition).try_cast("int")
            # The sink places rows whose partition is null, but not those where the cast made it null.
            unread = partition.isNull() & f.expr(self.partition).isNotNull()
            reason = reason.when(unread | (partition < 0), f.lit("its partition is not a number from 0 on"))
        if self.timestamp is not None:
            timestamp = made["timestamp"] = f.expr(self.timestamp).try_cast("timestamp")
            unread = timestamp.isNull() & f.expr(self.timestamp).isNotNull()
            reason = reason.when(unread, f.lit("its timestamp is not a time"))
        selected = [column.alias(name) for name, column in made.items()]
        return rows.select(*selected, reason.alias(_REASON), as_json.alias("_row"), corrupt.alias("_line"))


def _blob(rows: DataFrame, expression: str) -> Column:
    from pyspark.sql import functions as f

    kind = rows.select(f.expr(expression).alias("x")).schema["x"].dataType.simpleString()
    column = f.expr(expression)
    return column if kind in ("string", "binary") else column.cast("string")


@dataclass(slots=True)
class _Total:
    """The totals of a run."""

    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: int = 0
    writes: int = 0
    repeated: int = 0

    def add(self, before: Json, after: Json) -> None:
        """Add a write, from the states of its ledger before and after."""
        known = before.get("sequences", {}) if before.get("producer") == after.get("producer") else {}
        for name, number in after.get("sequences", {}).items():
            topic, _, partition = name.rpartition("-")
            count = (number - known.get(name, 0)) & 0x7FFF_FFFF
            if count:
                partitions = self.rows.setdefault(topic, {})
                partitions[partition] = partitions.get(partition, 0) + count


@dataclass(frozen=True, slots=True)
class Ingest:
    """A prepared ingest. `sink` are options of the data source."""

    inputs: Input
    rows: Rows
    sink: Mapping[str, str]
    checkpoint: str | None
    refused: str | None
    write_id: tuple[str, int] | None

    def __post_init__(self) -> None:
        self._named(self.write_id or ("ingest", 0))

    def _named(self, write_id: tuple[str, int]) -> tuple[dict[str, str], str]:
        """Return the sink's options for a write, and its ledger directory. Raises `InvalidOption`."""
        from logstore.spark.sink import ledger_of_transaction
        from logstore.spark.write_options import WriteOptions

        given = {**self.sink, "txnAppId": write_id[0], "txnVersion": str(write_id[1])}
        return given, ledger_of_transaction(WriteOptions.parse(given, streaming=False))

    def _entry(self, write_id: tuple[str, int]) -> Entry:
        return read_ledger(OsDisk(), self._named(write_id)[1])

    def _check_target(self) -> None:
        """Raise `BadUsage` if this target was not that of earlier runs, or lacks the topic.

        Raises `RequestUnanswered` if no broker takes a connection.
        """
        self._check_checkpoint()
        self._check_topic()

    def _check_topic(self) -> None:
        """Raise `BadUsage` if the topic is missing and the number of its partitions is not given."""
        from logstore.spark.sink import knock, open_target
        from logstore.spark.write_options import WriteOptions

        sink = WriteOptions.parse(self._named(self.write_id or ("ingest", 0))[0], streaming=False)
        knock(sink)
        if sink.topic is None or sink.partitions is not None:
            return
        if self._is_continued():  # an open intent may create the topic
            return
        with closing(open_target(sink, OsDisk())) as target:
            if target.topic(sink.topic) is None:
                raise BadUsage(
                    f"topic {sink.topic} does not exist in {sink.path or 'the cluster'}; --partitions N "
                    "creates it with N partitions"
                )

    def _is_continued(self) -> bool:
        if self.checkpoint is not None:
            return Path(self.checkpoint, "metadata").exists()
        return self.write_id is not None and self._entry(self.write_id).intent is not None

    def _check_checkpoint(self) -> None:
        """Raise `BadUsage` if the checkpoint has written files that this target's ledger does not know."""
        if self.checkpoint is None:
            return
        commits = Path(self.checkpoint, "commits")
        names = [each.name for each in commits.iterdir()] if commits.is_dir() else []
        last = max((int(name) for name in names if name.isdecimal()), default=NOTHING_DONE)
        if last == NOTHING_DONE:
            return
        ledger = self._named((self._query(self.checkpoint), 0))[1]
        done = read_ledger(OsDisk(), ledger).done
        if last > done:
            raise BadUsage(
                f"--checkpoint {self.checkpoint} has written batches up to {last}, and {ledger} has those up "
                f"to {done}: it was begun with another target or --staging. Repeat those, or give another "
                "--checkpoint"
            )

    @staticmethod
    def _query(checkpoint: str) -> str:
        """Return the name under which a checkpoint's batches are written."""
        return f"ingest-{json.loads(Path(checkpoint, 'metadata').read_text())['id']}"

    def plan(self) -> Answer:
        self._check_target()
        files = self.inputs.files()
        size = sum(size for _, size in files)
        target = self.sink.get("path") or self.sink[BOOTSTRAP_SERVERS]
        write_id = self.write_id
        facts = {
            "job": "ingest",
            "files": len(files),
            "bytes": size,
            "to": target,
            "topic": self.sink.get("topic"),
            "incremental": self.checkpoint is not None,
            "done": None if write_id is None else self._entry(write_id).done >= write_id[1],
        }
        what = "those that are newer than its checkpoint" if self.checkpoint else "all of them"
        lines = [f"{path}  {size} bytes" for path, size in files]
        lines.append(f"{counted(len(files), 'file')}, {size} bytes: would write {what} to {target}")
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `RowRefused`, `BadUsage` for options that Spark rejects, `EngineError`."""
        from pyspark.errors import AnalysisException, PySparkException

        from logstore.spark.data_source import LogstoreDataSource

        self._check_target()
        workers.session.dataSource.register(LogstoreDataSource)
        total = _Total()
        try:
            with workers.watched("ingest"):
                if self.checkpoint is None:
                    self._once(workers.session, total)
                else:
                    self._stream(workers.session, self.checkpoint, total)
        except AnalysisException as error:
            raise BadUsage(reason_of_spark(error)) from error
        except PySparkException as error:
            raise _as_refusal(error) from error
        return self._answer(total)

    def _once(self, session: SparkSession, total: _Total) -> None:
        inputs = self.inputs
        reader = session.read.format(inputs.format).options(**inputs.reader_options)
        if inputs.format != "parquet":
            reader = reader.schema(inputs.schema_of(session))
        write_id = self.write_id or (f"ingest-{new_id(Random())}", 0)
        self._write(reader.load(list(inputs.paths)), write_id, total)
        if self.write_id is None:
            remove_staged(OsDisk(), self._named(write_id)[1])

    def _stream(self, session: SparkSession, checkpoint: str, total: _Total) -> None:
        inputs = self.inputs
        reader = session.readStream.format(inputs.format).options(**inputs.reader_options)
        schema = inputs.schema_of(session)
        self.rows.of(session.createDataFrame([], schema))  # its errors are not lost in those of a stream
        stream = reader.schema(schema).load(inputs.paths[0])

        def publish(rows: DataFrame, number: int) -> None:
            self._write(rows, (self._query(checkpoint), number), total)

        writer = stream.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _write(self, rows: DataFrame, write_id: tuple[str, int], total: _Total) -> None:
        from pyspark.sql import functions as f

        given, ledger = self._named(write_id)
        before = read_ledger(OsDisk(), ledger)
        made = self.rows.of(rows)
        if self.refused is None:
            error = f.raise_error(f.concat(f.lit(_MARK), f.col(_REASON)))
            made = made.withColumn("value", f.when(f.col(_REASON).isNull(), f.col("value")).otherwise(error))
        else:
            total.refused += self._set_aside(made, self.refused, write_id)
            made = made.where(f.col(_REASON).isNull())
        made = made.drop(_REASON, "_row", "_line")
        made.write.format("logstore").options(**given).mode("append").save()
        after = read_ledger(OsDisk(), ledger)
        total.writes += 1
        if before.done >= write_id[1]:
            total.repeated += 1
        else:
            total.add(before.state, after.state)

    def _set_aside(self, made: DataFrame, directory: str, write_id: tuple[str, int]) -> int:
        """Write refused rows to a directory of this write, all or nothing, and return their number."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation("refused")
        aside = made.where(f.col(_REASON).isNotNull()).select(
            f.col(_REASON).alias("reason"), f.coalesce("_line", "_row").alias("row")
        )
        aside = aside.observe(seen, f.count(f.lit(1)).alias("rows"))
        aside.write.mode("overwrite").json(f"{directory}/{write_id[0]}-{write_id[1]}")
        return int(seen.get["rows"])

    def _answer(self, total: _Total) -> Answer:
        written = sum(sum(partitions.values()) for partitions in total.rows.values())
        facts = {
            "job": "ingest",
            "rows": written,
            "refused": total.refused,
            "writes": total.writes,
            "repeated": total.repeated,
            "topics": total.rows,
        }
        lines = [
            f"{topic}-{partition}  {counted(count, 'row')}"
            for topic, partitions in sorted(total.rows.items())
            for partition, count in sorted(partitions.items(), key=lambda each: int(each[0]))
        ]
        if total.repeated:
            lines.append("this write was done before; nothing was written again")
        if total.refused:
            lines.append(f"{counted(total.refused, 'row')} refused: {self.refused}")
        lines.append(
            f"{counted(written, 'row')} written in {counted(total.writes, 'write')}"
            if total.writes
            else "nothing new to ingest"
        )
        return Answer(facts, lines, is_yes=not total.refused)


def _as_refusal(error: Exception) -> Exception:
    """Return `RowRefused` if Spark's error wraps one, else the error itself."""
    text = str(error)
    if found := _REFUSED.search(text):
        return RowRefused(f"a row cannot be written: {found[1].strip()}. Nothing of its write was published")
    if found := _BY_SINK.search(text):
        return RowRefused(found[1].strip())
    return error
