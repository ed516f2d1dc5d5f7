"""The ingest: rows of files become records of topics, each once.

    files ─ Spark's reader ─ key, value, topic, partition, timestamp ┬─ the sink ─► topics
                                                                     └─ what cannot be written, and why

With a checkpoint it is a stream of Spark's that takes what files there are and ends (`availableNow`): the
checkpoint knows which files were taken, and each of its batches is published under the query's id and the
batch's number, so a run that is killed anywhere goes on without a row lost or doubled. Without one it is a
single write; killed before its commit it has published nothing, and with a write id it can be repeated.

How many rows went where is what the sink's ledger says: its producer's next number in each partition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from logstore.disk.files import OsDisk
from logstore.disk.ids import new_id
from logstore.spark.errors import RowRefused
from logstore.spark.jobs.job import Answer, BadUsage
from logstore.spark.ledger import Json, read_ledger
from logstore.spark.sink import forget, ledger_of_transaction
from logstore.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from logstore.spark.jobs.work import Workers

_CORRUPT: Final = "_corrupt_record"
_REASON: Final = "_refused_because"
_MARK: Final = "logstore: row refused: "
_REFUSED: Final = re.compile(re.escape(_MARK) + r"([^\n]*?)(?= SQLSTATE|\n|$)")
_BY_SINK: Final = re.compile(r"RowRefused: ([^\n]*)")
_TOPIC: Final = r"^[a-zA-Z0-9._-]{1,249}$"


@dataclass(frozen=True, slots=True)
class Input:
    """The files: paths or patterns, absolute; `schema` in Spark's DDL; `options` of Spark's reader."""

    paths: Sequence[str]
    format: str
    schema: str | None
    options: Mapping[str, str]

    def files(self) -> list[tuple[str, int]]:
        """Those there are now, with their bytes."""
        found = [Path(each) for pattern in self.paths for each in sorted(glob(pattern))]
        files = [path for each in found for path in (sorted(each.rglob("*")) if each.is_dir() else [each])]
        return [
            (str(path), path.stat().st_size) for path in files if path.is_file() and path.name[0] not in "._"
        ]

    def schema_of(self, session: SparkSession) -> Any:
        """The columns, and one for lines that cannot be parsed."""
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
        """As given, and where lines go that cannot be parsed."""
        if self.format in ("json", "csv"):
            return {"mode": "PERMISSIVE", **self.options, "columnNameOfCorruptRecord": _CORRUPT}
        return dict(self.options)


@dataclass(frozen=True, slots=True)
class Rows:
    """What a row becomes: SQL expressions, None for what is left to the sink."""

    value_format: str
    value: str | None
    key: str | None
    topic: str | None
    partition: str | None
    timestamp: str | None
    tombstones: bool

    def of(self, rows: DataFrame) -> DataFrame:
        """The sink's columns, and why a row is refused (null: it is not)."""
        from pyspark.sql import functions as f

        columns = [f.col(f"`{name}`") for name in rows.columns if name != _CORRUPT]
        as_json = f.to_json(f.struct(*columns), {"ignoreNullFields": "false"})
        match self.value_format:
            case "raw":
                value: Column = f.col("value")
            case "json":
                value = as_json
            case _:
                assert self.value is not None
                value = _blob(rows, self.value)
        made = {"value": value}
        if self.key is not None:
            made["key"] = _blob(rows, self.key)
        if self.topic is not None:
            made["topic"] = f.expr(self.topic).cast("string")
        if self.partition is not None:
            made["partition"] = f.expr(self.partition).cast("int")
        if self.timestamp is not None:
            made["timestamp"] = f.expr(self.timestamp).cast("timestamp")
        corrupt = f.col(_CORRUPT) if _CORRUPT in rows.columns else f.lit(None).cast("string")
        reason = f.when(corrupt.isNotNull(), f.concat(f.lit("it cannot be parsed: "), corrupt))
        if not self.tombstones:
            reason = reason.when(value.isNull(), f.lit("its value is null, and --tombstones is not given"))
        if self.topic is not None:
            topic = made["topic"]
            reason = reason.when(topic.isNull(), f.lit("its topic is null"))
            reason = reason.when(~topic.rlike(_TOPIC), f.concat(f.lit("no topic has the name "), topic))
        if self.partition is not None:
            partition = made["partition"]
            # Null is the sink's to place, unless it is a number that is none.
            unread = partition.isNull() & f.expr(self.partition).isNotNull()
            reason = reason.when(unread | (partition < 0), f.lit("its partition is no number from 0 on"))
        if self.timestamp is not None:
            unread = made["timestamp"].isNull() & f.expr(self.timestamp).isNotNull()
            reason = reason.when(unread, f.lit("its timestamp is no time"))
        selected = [column.alias(name) for name, column in made.items()]
        return rows.select(*selected, reason.alias(_REASON), as_json.alias("_row"), corrupt.alias("_line"))


def _blob(rows: DataFrame, expression: str) -> Column:
    from pyspark.sql import functions as f

    kind = rows.select(f.expr(expression).alias("x")).schema["x"].dataType.simpleString()
    column = f.expr(expression)
    return column if kind in ("string", "binary") else column.cast("string")


@dataclass(slots=True)
class _Total:
    """What was written, and what was not."""

    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: int = 0
    writes: int = 0
    repeated: int = 0

    def add(self, before: Json, after: Json) -> None:
        """A write between two states of its ledger."""
        known = before.get("sequences", {}) if before.get("producer") == after.get("producer") else {}
        for name, number in after.get("sequences", {}).items():
            topic, _, partition = name.rpartition("-")
            count = (number - known.get(name, 0)) & 0x7FFF_FFFF
            if count:
                partitions = self.rows.setdefault(topic, {})
                partitions[partition] = partitions.get(partition, 0) + count


@dataclass(frozen=True, slots=True)
class Ingest:
    """The job, with options that make sense. `sink` are options of the data source."""

    inputs: Input
    rows: Rows
    sink: Mapping[str, str]
    checkpoint: str | None
    refused: str | None
    write_id: tuple[str, int] | None

    def __post_init__(self) -> None:
        self._named(self.write_id or ("ingest", 0))

    def _named(self, write_id: tuple[str, int]) -> tuple[dict[str, str], WriteOptions]:
        given = {**self.sink, "txnAppId": write_id[0], "txnVersion": str(write_id[1])}
        return given, WriteOptions.parse(given, streaming=False)

    def plan(self) -> Answer:
        """What it would read, and where it would go."""
        files = self.inputs.files()
        size = sum(size for _, size in files)
        target = self.sink.get("path") or self.sink["kafka.bootstrap.servers"]
        facts = {
            "job": "ingest",
            "files": len(files),
            "bytes": size,
            "to": target,
            "topic": self.sink.get("topic"),
            "incremental": self.checkpoint is not None,
            "done": None if self.write_id is None else self._done(self.write_id),
        }
        what = "those of them that have come since its checkpoint" if self.checkpoint else "all of them"
        lines = [f"{path}  {size} bytes" for path, size in files]
        lines.append(f"{len(files)} files, {size} bytes: would write {what} to {target}")
        return Answer(facts, lines)

    def _done(self, write_id: tuple[str, int]) -> bool:
        ledger = ledger_of_transaction(self._named(write_id)[1])
        return read_ledger(OsDisk(), ledger).done >= write_id[1]

    def run(self, workers: Workers) -> Answer:
        """Do it. Raises `RowRefused`, `BadUsage` for what Spark cannot make of the options, `EngineError`."""
        from pyspark.errors import AnalysisException, PySparkException

        from logstore.spark.data_source import LogstoreDataSource

        workers.session.dataSource.register(LogstoreDataSource)
        total = _Total()
        try:
            if self.checkpoint is None:
                self._once(workers.session, total)
            else:
                self._stream(workers.session, self.checkpoint, total)
        except AnalysisException as error:
            raise BadUsage(str(error).split("\n")[0]) from error
        except PySparkException as error:
            raise _told(error) from error
        return self._answer(total)

    def _once(self, session: SparkSession, total: _Total) -> None:
        inputs = self.inputs
        reader = session.read.format(inputs.format).options(**inputs.reader_options)
        if inputs.format != "parquet":
            reader = reader.schema(inputs.schema_of(session))
        write_id = self.write_id or (f"ingest-{new_id(Random())}", 0)
        self._write(reader.load(list(inputs.paths)), write_id, total)
        if self.write_id is None:
            forget(OsDisk(), ledger_of_transaction(self._named(write_id)[1]))

    def _stream(self, session: SparkSession, checkpoint: str, total: _Total) -> None:
        inputs = self.inputs
        reader = session.readStream.format(inputs.format).options(**inputs.reader_options)
        stream = reader.schema(inputs.schema_of(session)).load(inputs.paths[0])

        def publish(rows: DataFrame, number: int) -> None:
            query = json.loads(Path(checkpoint, "metadata").read_text())["id"]
            self._write(rows, (f"ingest-{query}", number), total)

        writer = stream.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _write(self, rows: DataFrame, write_id: tuple[str, int], total: _Total) -> None:
        from pyspark.sql import functions as f

        given, parsed = self._named(write_id)
        ledger = ledger_of_transaction(parsed)
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
        """Write down what cannot be written, in a directory of this write, whole or not at all."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        counted = Observation("refused")
        aside = made.where(f.col(_REASON).isNotNull()).select(
            f.col(_REASON).alias("reason"), f.coalesce("_line", "_row").alias("row")
        )
        aside = aside.observe(counted, f.count(f.lit(1)).alias("rows"))
        aside.write.mode("overwrite").json(f"{directory}/{write_id[0]}-{write_id[1]}")
        return int(counted.get["rows"])

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
            f"{topic}-{partition}  {count} rows"
            for topic, partitions in sorted(total.rows.items())
            for partition, count in sorted(partitions.items(), key=lambda each: int(each[0]))
        ]
        if total.repeated:
            lines.append("this write had been done before; nothing was written again")
        if total.refused:
            lines.append(f"{total.refused} rows were refused: {self.refused}")
        lines.append(f"{written} rows written in {total.writes} writes")
        return Answer(facts, lines, is_yes=not total.refused)


def _told(error: Exception) -> Exception:
    """The line that matters, out of what Spark made of it."""
    text = str(error)
    if found := _REFUSED.search(text):
        return RowRefused(f"a row cannot be written: {found[1].strip()}. Nothing of its write was published")
    if found := _BY_SINK.search(text):
        return RowRefused(found[1].strip())
    return error
