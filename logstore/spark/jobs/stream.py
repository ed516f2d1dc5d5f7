"""`stream`: append rows of topics to a Parquet or Delta table, each once; put invalid rows aside.

    topic ─ Spark's stream ─ a batch ─ parsed by the schema ┬─ table/[column=value/]batch-7-0.parquet
                                                            └─ table/_refused/batch-7-1.parquet, with reasons
    table/.logstore-stream/ledger          the last batch, its end offsets, rows and latest event time
    table/.logstore-stream/staged/7/       a batch while Spark writes it
    table/.logstore-stream/checkpoint      Spark's

Spark's checkpoint gives a batch the same offsets whenever it runs again. Its files are staged, decided in the
ledger, moved into place and marked as done, as those of `export`. So each row is in the table or among the
refused ones, once, wherever a run is killed. Names that begin with a dot or an underscore are no part of the
table for Spark, Arrow, Hive and Delta.

A batch for a Delta table is staged, too, and its rows are appended to the table once it is decided: Delta
skips an append whose number its log has (`delta_table.py`).
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, OsDisk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.brief_errors import reason_of_spark
from logstore.spark.columns import spark_schema
from logstore.spark.errors import InvalidOption, RowRefused
from logstore.spark.jobs import delta_table
from logstore.spark.jobs.compact import sync_tree
from logstore.spark.jobs.job import Answer, BadUsage, absolute, add_source, check_positive, source_options
from logstore.spark.jobs.pieces import same_topics
from logstore.spark.jobs.placing import LEDGER_PREFIX, check_own_table, place_files
from logstore.spark.jobs.signals import first_signal
from logstore.spark.jobs.values import Values, add_values, values_of
from logstore.spark.jobs.work import Workers, amounts
from logstore.spark.ledger import (
    Intent,
    Json,
    Ledger,
    complete,
    publish_once,
    read_ledger,
    remove_staged,
    staging_directory,
)
from logstore.spark.offsets import flat, lags
from logstore.spark.read_options import ReadOptions
from logstore.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HELP: Final = "stream topics into a Parquet or Delta table by a schema, each row once, bad rows aside"

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
LEDGER_DIRECTORY: Final = f"{LEDGER_PREFIX}stream"
REFUSED: Final = "_refused"
_TABLE: Final = "table"
_REASON: Final = "_refused_because"
_LATE: Final = "_late"
_EVENT_MS: Final = "_event_ms"
_OWN: Final = (*(f"_{name}" for name in COLUMNS), _REASON, _LATE, _EVENT_MS)
PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)
_EVERY_S: Final = 10
_ENDINGS: Final = ("endingOffsets", "endingTimestamp")


class StreamMismatch(EngineError):
    """The table, its ledger and its checkpoint do not belong together, or a file of the table is gone."""

    code = ErrorCode.INVALID_CONFIG


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    rows = parser.add_argument_group("rows; EXPR is Spark's SQL over the columns")
    add_values(rows)
    rows.add_argument(
        "--event-time", metavar="EXPR", help="the time of a row (default: the record's timestamp)"
    )
    rows.add_argument(
        "--late-after", metavar="SECONDS", type=int,
        help="a row is late if its time is so far before the latest one of earlier batches",
    )  # fmt: skip
    rows.add_argument(
        "--late", choices=("keep", "refuse"), default="keep",
        help="late rows are only counted, or refused (default: %(default)s)",
    )  # fmt: skip
    rows.add_argument(
        "--bad-rows", choices=("aside", "fail"), default="aside",
        help=f"write refused rows to {REFUSED} in the table, or end at the first one (default: %(default)s)",
    )  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="DIR", required=True, help="directory of the table, local or mounted"
    )
    output.add_argument(
        "--table-format", choices=FORMATS, default=PARQUET,
        help="the kind of table; delta needs the extra `delta` (default: %(default)s)",
    )  # fmt: skip
    output.add_argument("--partition-by", metavar="A,B", help="columns that become directories")
    output.add_argument(
        "--batch-records", metavar="N", type=int, default=1_000_000,
        help="offsets per batch, which is what appears at once (default: %(default)s)",
    )  # fmt: skip
    output.add_argument("--follow", action="store_true", help="continue with new records until interrupted")
    output.add_argument(
        "--every", metavar="SECONDS", type=int,
        help=f"with --follow, the time between batches (default: {_EVERY_S})",
    )  # fmt: skip


def prepare(options: Namespace) -> Stream:
    """Check the options. Raises `BadUsage`, `InvalidOption` and `OSError`."""
    check_positive(options, "batch_records", "every", "late_after")
    values = values_of(options)
    if options.late == "refuse" and options.late_after is None:
        raise BadUsage("--late refuse needs --late-after SECONDS")
    if options.every is not None and not options.follow:
        raise BadUsage("--every SECONDS needs --follow")
    given = source_options(options, COLUMNS)
    if any(name in given for name in _ENDINGS):
        raise InvalidOption("a stream has no end: use export for a range of offsets or times")
    if not any(name.lower().startswith("starting") for name in given):
        given["startingOffsets"] = "earliest"
    given["maxOffsetsPerTrigger"] = str(options.batch_records)
    ReadOptions.parse(given, streaming=True)
    return Stream(
        given,
        Rows(
            values,
            options.event_time,
            options.late_after,
            options.late == "refuse",
            options.bad_rows == "fail",
        ),
        absolute(options.output),
        tuple(name.strip() for name in (options.partition_by or "").split(",") if name.strip()),
        (options.every or _EVERY_S) if options.follow else None,
        options.table_format,
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """How records become rows. `values`: None leaves key and value as bytes."""

    values: Values | None
    event_time: str | None
    late_after_s: int | None
    refuses_late: bool
    fails: bool

    def of(self, records: DataFrame, latest_ms: int | None) -> DataFrame:
        """Return the columns of the table, the record's with `_`, whether it is late, and why it is refused.

        `latest_ms` is the latest event time of earlier batches.
        """
        from pyspark.sql import functions as f

        made = records.select(*(f.col(name).alias(f"_{name}") for name in COLUMNS))
        if self.values is None:
            columns = {"key": f.col("_key"), "value": f.col("_value")}
            reason = f.lit(None).cast("string")
        else:
            made, columns, reason = self.values.parsed(made)
            if taken := [name for name in columns if name.lower() in _OWN]:
                raise BadUsage(f"column {taken[0]} of the schema is one of the job's own: {', '.join(_OWN)}")
        made = made.select(
            *(f.col(f"_{name}") for name in COLUMNS),
            *(column.alias(name) for name, column in columns.items()),
            reason.alias(_REASON),
        )
        time = f.col("_timestamp")
        if self.event_time is not None:
            time = f.expr(self.event_time).try_cast("timestamp")  # one bad row must not end the query
        late = f.lit(False)
        if self.late_after_s is not None and latest_ms is not None:
            bound_ms = latest_ms - 1000 * self.late_after_s
            late = f.coalesce(f.unix_millis(time) < bound_ms, f.lit(False))
        made = made.withColumn(_EVENT_MS, f.unix_millis(time)).withColumn(_LATE, late)
        if self.refuses_late:
            reason = f.coalesce(f.col(_REASON), f.when(f.col(_LATE), f.lit("it is late")))
            made = made.withColumn(_REASON, reason)
        return made


class Published(NamedTuple):
    """The totals in the ledger."""

    batches: int = 0
    rows: int = 0
    refused: int = 0
    late: int = 0

    @classmethod
    def of(cls, state: Json) -> Published:
        return cls(**state.get("totals", {}))


@dataclass(frozen=True, slots=True)
class Stream:
    """A prepared stream. `source` are options of the data source; `every_s`: None ends it at the end."""

    source: Mapping[str, str]
    rows: Rows
    output: str
    partition_by: tuple[str, ...]
    every_s: int | None
    table_format: str = PARQUET
    disk: Disk = field(default_factory=OsDisk)
    publishing: Lock = field(default_factory=Lock)
    """held while a batch is published, and from the end of the query on"""

    @property
    def ledger(self) -> str:
        return f"{self.output}/{LEDGER_DIRECTORY}"

    @property
    def checkpoint(self) -> str:
        return f"{self.ledger}/checkpoint"

    def plan(self) -> Answer:
        from logstore.spark.micro_batches import MicroBatches
        from logstore.spark.reading import open_logs, selected_bounds

        check_own_table(self.disk, self.output, "stream")
        entry = read_ledger(self.disk, self.ledger)
        state = entry.state if entry.intent is None else entry.intent.plan["state"]
        done = flat(state.get("offsets", {}))
        options = ReadOptions.parse(self.source, streaming=True)
        with closing(open_logs(options)) as logs:
            bounds = selected_bounds(options, logs)
            self._topic_ids(options, logs.topic_ids(list(bounds)), state)
            begun = done or MicroBatches(options, logs, clock_ms=lambda: 0, pause_s=lambda _: None).initial()
        left = {
            each: max(bound.end_offset - begun.get(each, bound.start_offset), 0)
            for each, bound in sorted(bounds.items())
        }
        facts = {
            "job": "stream",
            "output": self.output,
            **Published.of(state)._asdict(),
            "offsets": sum(left.values()),
            "partitions": [{**each._asdict(), "offsets": offsets} for each, offsets in left.items()],
        }
        lines = [f"{each}  {counted(offsets, 'offset')}" for each, offsets in left.items()]
        lines.append(
            f"would stream {amounts(sum(left.values()), 'offset')} of {counted(len(left), 'partition')} to "
            f"{self.output}"
        )
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `RowRefused`, `StreamMismatch`, `BadUsage`, `EngineError` and `OSError`."""
        from pyspark.errors import AnalysisException, PySparkException

        from logstore.spark.data_source import LogstoreDataSource

        topic_ids = self._check_table()
        if self.table_format == DELTA:
            delta_table.prepare(workers)
        session = workers.session
        session.dataSource.register(LogstoreDataSource)
        entry = read_ledger(self.disk, self.ledger)
        raised: list[Exception] = []

        def publish(rows: DataFrame, number: int) -> None:
            if not self.publishing.acquire(blocking=False):
                raise InterruptedError("the job has ended")  # Spark must not take the batch for done
            try:
                self._publish(rows, number, topic_ids)
            except (EngineError, OSError) as error:
                raised.append(error)
                raise
            except AnalysisException as error:
                raised.append(_as_usage(error))
                raise
            finally:
                self.publishing.release()

        try:
            self._check_rows(session, entry.state)
            make_durable_dir(self.disk, self.ledger)
            behind = self._wait(workers, self._start(session, publish))
        except PySparkException as error:
            if raised:
                raise raised[0] from error
            raise (_as_usage(error) if isinstance(error, AnalysisException) else error) from error
        state = read_ledger(self.disk, self.ledger).state
        return self._answer(Published.of(entry.state), Published.of(state), behind)

    def _check_table(self) -> dict[str, str]:
        """Return the topic ids for the next state.

        Raises `StreamMismatch` if the table is of the other format, or has other directories, and `DataLoss`
        if its rows are of a deleted topic.
        """
        from logstore.spark.reading import open_logs

        check_own_table(self.disk, self.output, "stream")
        entry = read_ledger(self.disk, self.ledger)
        state = entry.state if entry.intent is None else entry.intent.plan["state"]
        if (found := state.get("format", PARQUET if state else self.table_format)) != self.table_format:
            raise StreamMismatch(
                f"{self.output} is a {found} table: --table-format {found}, or stream to a new directory"
            )
        columns = state.get("partition_by", self.partition_by)
        if list(columns) != list(self.partition_by):
            how = f"--partition-by {','.join(columns)}" if columns else "no --partition-by"
            raise StreamMismatch(
                f"{self.output} was begun with {how}: use the same, or stream to a new directory"
            )
        options = ReadOptions.parse(self.source, streaming=True)
        with closing(open_logs(options)) as logs:
            chosen = options.selection.choose(logs.partitions())
            return self._topic_ids(options, logs.topic_ids(chosen), state)

    def _check_rows(self, session: SparkSession, state: Json) -> None:
        """Raise the errors of schema, expressions and columns that every batch would raise."""
        nothing = session.createDataFrame([], spark_schema(COLUMNS))
        self._table_rows(self.rows.of(nothing, state.get("latest_ms")), state)

    def _topic_ids(
        self, options: ReadOptions, found: Mapping[TopicPartition, str], state: Json
    ) -> dict[str, str]:
        return same_topics(
            state.get("topic_ids", {}),
            found,
            fail_on_data_loss=options.fail_on_data_loss,
            did="streamed",
            otherwise="Stream to a new directory",
        )

    def _start(self, session: SparkSession, publish: Any) -> StreamingQuery:
        records = session.readStream.format("logstore").options(**self.source).load()
        writer = records.writeStream.foreachBatch(publish).option("checkpointLocation", self.checkpoint)
        if self.every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.every_s} seconds").start()

    def _wait(self, workers: Workers, query: StreamingQuery) -> dict[TopicPartition, int]:
        """Wait for the end of the query, show rows and lag meanwhile, and return the lag at the end.

        A signal is the end of a query that follows. A batch under way is published.
        """
        behind: dict[TopicPartition, int] = {}
        seen: dict[str, int] = {}
        workers.progress.begin("stream", unit="records")
        try:
            with first_signal() if self.every_s is not None else nullcontext(Event()) as asked:
                while True:
                    is_over = query.awaitTermination(1)
                    for progress in query.recentProgress:
                        report: Any = progress
                        seen[str(report["batchId"])] = report["numInputRows"]
                        behind = dict(lags(report)[0].partitions)
                    workers.progress.tick(sum(seen.values()), sum(seen.values()) + sum(behind.values()))
                    if is_over or asked.is_set():
                        return behind
        finally:
            self.publishing.acquire()
            query.stop()
            workers.progress.end()

    # --- a batch ------------------------------------------------------------------------------------------

    def _publish(self, records: DataFrame, number: int, known_ids: Mapping[str, str]) -> None:
        """Publish a batch, unless it was published before. Raises as `run`."""
        from logstore.spark.reading import topic_ids_now

        carry_out = partial(self._carry_out, records.sparkSession)
        with Ledger(self.disk, self.ledger) as ledger:
            complete(ledger, carry_out)
            query = json.loads(Path(self.checkpoint, "metadata").read_text())["id"]
            if ledger.state.get("query", query) != query:
                raise StreamMismatch(
                    f"{self.checkpoint} is not the one that {self.output} was written with: restore it, or "
                    "stream to a new directory"
                )
            if number <= ledger.done:
                return
            if number > ledger.done + 1:
                raise StreamMismatch(
                    f"{self.output} has the batches up to {ledger.done}, and its checkpoint is at {number}: "
                    "the table is an older copy. Restore both together, or stream to a new directory"
                )
            staging = staging_directory(ledger.directory, number)
            remove_staged(self.disk, staging)
            make_durable_dir(self.disk, staging)
            seen = self._stage(records, staging, ledger.state)
            offsets = _end_offsets(self.checkpoint, number)
            # All rows were read before this check. If a topic was recreated meanwhile, they may be of both.
            options = ReadOptions.parse(self.source, streaming=True)
            found = topic_ids_now(options, list(flat(offsets)))
            topic_ids = self._topic_ids(options, found, {"topic_ids": known_ids})
            sync_tree(self.disk, staging)
            totals = Published.of(ledger.state)
            totals = Published(
                totals.batches + 1,
                totals.rows + seen["rows"] - seen["refused"],
                totals.refused + seen["refused"],
                totals.late + seen["late"],
            )
            times = [each for each in (ledger.state.get("latest_ms"), seen["latest_ms"]) if each is not None]
            plan = {
                "files": _files(self.disk, staging, number, self._placed),
                "state": {
                    "query": query,
                    "format": self.table_format,
                    "partition_by": self.partition_by,
                    "latest_ms": max(times, default=None),
                    "columns": seen["columns"],
                    "offsets": offsets,
                    "topic_ids": topic_ids,
                    "totals": totals._asdict(),
                },
            }
            publish_once(ledger, number, lambda: plan, carry_out)

    @property
    def _placed(self) -> tuple[str, ...]:
        """The staged directories whose files are renamed into the table."""
        return (REFUSED,) if self.table_format == DELTA else (_TABLE, REFUSED)

    def _stage(self, records: DataFrame, staging: str, state: Json) -> dict[str, Any]:
        """Let Spark write the batch below `staging`; return its counts and latest event time.

        `state` is that of the ledger.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        made = self.rows.of(records, state.get("latest_ms"))
        seen = Observation()
        observed = made.observe(
            seen,
            f.count(f.lit(1)).alias("rows"),
            f.count(f.col(_REASON)).alias("refused"),
            f.count(f.when(f.col(_LATE), 1)).alias("late"),
            f.max(_EVENT_MS).alias("latest_ms"),
            f.min(
                f.when(f.col(_REASON).isNotNull(), f.struct("_topic", "_partition", "_offset", _REASON))
            ).alias("first"),
        )
        good, columns = self._table_rows(observed, state)
        writer = good.write.mode("overwrite")
        if self.table_format != DELTA and self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.parquet(f"file://{staging}/{_TABLE}")
        counts = {**seen.get, "columns": columns}
        if counts["refused"]:
            first = counts["first"]
            if self.rows.fails:
                raise RowRefused(
                    f"{first['_topic']}-{first['_partition']}, offset {first['_offset']}: {first[_REASON]}. "
                    "Nothing of its batch was written; --bad-rows aside continues without such rows"
                )
            bad = made.where(f.col(_REASON).isNotNull())
            names = [f.col(f"_{name}").alias(name) for name in COLUMNS]
            again = Observation()
            bad = bad.select(*names, f.col(_REASON).alias("reason"))
            bad = bad.observe(again, f.count(f.lit(1)).alias("rows"))
            bad.write.mode("overwrite").parquet(f"file://{staging}/{REFUSED}")
            if again.get["rows"] != counts["refused"]:
                raise StreamMismatch(
                    f"{counts['refused']} rows were refused at first and {again.get['rows']} when they were "
                    "written: a schema appeared meanwhile. Nothing of the batch is written; run the job again"
                )
        return counts

    def _table_rows(self, made: DataFrame, state: Json) -> tuple[DataFrame, dict[str, str]]:
        """Return the rows that go into the table, and the types of all its columns.

        Raises `BadUsage` if a column of `partition_by` is missing, and `StreamMismatch` if the table has
        other types or directories.
        """
        from pyspark.sql import functions as f

        unwanted = ("_value",) if self.rows.values is not None else ("_key", "_value")
        good = made.where(f.col(_REASON).isNull()).drop(_REASON, _LATE, _EVENT_MS, *unwanted)
        if unknown := [name for name in self.partition_by if name not in good.columns]:
            raise BadUsage(f"--partition-by {','.join(unknown)}: the columns are {', '.join(good.columns)}")
        columns = {**state.get("columns", {}), **_kinds(good)}
        if changed := [name for name, kind in state.get("columns", {}).items() if columns[name] != kind]:
            raise StreamMismatch(
                f"column {changed[0]} is {columns[changed[0]]}, in {self.output} it is "
                f"{state['columns'][changed[0]]}: stream to a new directory, or give the schema of the table"
            )
        if self.table_format == DELTA:
            known = None if state else self.partition_by
            if problem := delta_table.mismatch(self.disk, good, self.output, known):
                raise StreamMismatch(problem)
        return good, columns

    def _carry_out(self, session: SparkSession, intent: Intent) -> Json:
        staging = staging_directory(self.ledger, intent.number)
        files = [(staged, target) for staged, target in intent.plan["files"]]
        place_files(self.disk, staging, self.output, files, _gone)
        state: Json = intent.plan["state"]
        if self.table_format == DELTA:
            rows = session.read.parquet(f"file://{staging}/{_TABLE}")
            delta_table.append_once(rows, self.output, self.partition_by, state["query"], intent.number)
            delta_table.sync(self.disk, self.output, state["query"], intent.number)
        return state

    def _answer(self, before: Published, after: Published, behind: Mapping[TopicPartition, int]) -> Answer:
        new = Published(*(now - then for then, now in zip(before, after, strict=True)))
        facts = {
            "job": "stream",
            "output": self.output,
            **new._asdict(),
            "total": after._asdict(),
            "behind": [{**each._asdict(), "offsets": offsets} for each, offsets in behind.items()],
        }
        lines = []
        if new.refused:
            lines.append(f"{counted(new.refused, 'row')} refused: {self.output}/{REFUSED}")
        if new.late:
            lines.append(f"{counted(new.late, 'row')} late")
        lines.append(
            f"{amounts(new.rows, 'row')} in {counted(new.batches, 'batch')} to {self.output}, "
            f"{counted(sum(behind.values()), 'offset')} behind"
            if new.batches
            else "nothing new to stream"
        )
        return Answer(facts, lines, is_yes=not new.refused)


def _kinds(rows: DataFrame) -> dict[str, str]:
    """Return the type of each column, as the ledger keeps it: files of other types make no table."""
    return {each.name: each.dataType.simpleString() for each in rows.schema.fields}


def _as_usage(error: Exception) -> Exception:
    return BadUsage(reason_of_spark(error))


def _gone(path: str) -> Exception:
    return StreamMismatch(
        f"{path} was removed before its publication was complete, by another program. Stream into a new "
        "directory"
    )


def _files(disk: Disk, staging: str, number: int, roots: Sequence[str]) -> list[list[str]]:
    """Return where each staged file goes: its directory in the table, under the number of its batch."""
    found: list[list[str]] = []
    for root in roots:
        for directory, name in _below(disk, f"{staging}/{root}", ""):
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                above = directory if root == _TABLE else f"{REFUSED}/{directory}"
                found.append([f"{root}/{directory}{name}", f"{above}batch-{number}-{len(found)}.parquet"])
    return found


def _below(disk: Disk, root: str, directory: str) -> Sequence[tuple[str, str]]:
    """Return the files below `root`/`directory`: their directories, with a slash at the end, and names."""
    try:
        entries = sorted(disk.scan(f"{root}/{directory}".rstrip("/")))
    except FileNotFoundError:
        return []
    found: list[tuple[str, str]] = []
    for entry in entries:
        if entry.is_directory:
            found += _below(disk, root, f"{directory}{entry.name}/")
        else:
            found.append((directory, entry.name))
    return found


def _end_offsets(checkpoint: str, number: int) -> Any:
    """Return the end of a batch as Spark's checkpoint has it: {"topic": {"0": offset}}."""
    lines = Path(checkpoint, "offsets", str(number)).read_text().splitlines()
    return json.loads(lines[2])
