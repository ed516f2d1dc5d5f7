"""Read and write with Spark's own Kafka connector and with ours, on one broker, and compare what comes out.

`CASES` names every option and column of the connector's documentation, and what is expected: the same, or a
difference with its reason. A difference that is gone fails as well, so the table in the docs stays true.

    python -m tests.spark.comparison          run all cases, then write docs/spark-comparison.md
    python -m tests.spark.comparison --docs   only write it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.kafka.jars import SPARK_CONNECTOR, connector_jars
from logstore.broker.threaded import Broker
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Header, Record
from tests.spark.comparison_cases import CASES, T0, Case, Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "spark-comparison.md"
CONNECTORS: Final = ("kafka", "logstore")
_EVERYTHING: Final = Case(about="", what="", kind=Kind.BATCH, options={"subscribe": "few"})


class Refused(str):
    """What a connector answers instead of rows: the last line of its error."""


def same(ours: object, theirs: object) -> bool:
    """Whether two outcomes agree: the same rows, or both refused, whatever the words."""
    if isinstance(ours, Refused) or isinstance(theirs, Refused):
        return isinstance(ours, Refused) and isinstance(theirs, Refused)
    return ours == theirs


# --- the topics ---------------------------------------------------------------------------------------------


def fill(broker: Broker) -> None:
    """`few` (3 partitions of 10, 7 and 1 records), `fewer` (4 records) and `empty`."""
    for topic, partitions in (("few", 3), ("fewer", 1), ("empty", 1)):
        broker.create_topic(topic, partitions, settings={"retention.ms": "-1"})
    for topic, partition, count in (("few", 0, 10), ("few", 1, 7), ("few", 2, 1), ("fewer", 0, 4)):
        records = [_record(number) for number in range(count)]
        for first in range(0, count, 4):  # several batches
            batch = encode_batch(
                [record._replace(offset=at) for at, record in enumerate(records[first : first + 4])]
            )
            _produce(broker, TopicPartition(topic, partition), batch)


def _produce(broker: Broker, where: TopicPartition, batch: bytes) -> None:
    async def send() -> None:
        await broker._client.produce(where, bytes(batch))

    broker._wait(send())


def _record(number: int) -> Record:
    headers = (Header("a", b"1"), Header("b", None)) if number % 3 == 1 else ()
    key = None if number % 5 == 4 else b"key-%d" % number
    value = None if number % 4 == 3 else b"value-%d" % number
    return Record(number, T0 + number * 1000, key, value, headers)


# --- one case, one connector --------------------------------------------------------------------------------


@dataclass
class Side:
    """One connector on one broker."""

    spark: SparkSession
    broker: Broker
    connector: str
    home: Path
    made: int = 0

    def outcome(self, case: Case) -> Any:
        """Return what comes of a case: rows, or why there are none."""
        run = {Kind.BATCH: self._batch, Kind.STREAM: self._stream, Kind.SINK: self._sink}[case.kind]
        try:
            return run(case)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            ours = [line for line in lines if line.startswith("logstore.")]
            return Refused((ours or lines or [type(error).__name__])[0])

    def _options(self, case: Case) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, **case.options}
        return {name: value for name, value in given.items() if value is not None}

    def _batch(self, case: Case) -> Any:
        reader = self.spark.read.format(self.connector).options(**self._options(case))
        if case.schema:
            reader = reader.schema(case.schema)
        return self._seen(reader.load(), case)

    def _seen(self, rows: DataFrame, case: Case) -> Any:
        if case.look == "schema":
            return rows.schema.simpleString()
        if case.look == "tasks":
            found = rows.selectExpr("spark_partition_id() as task", "partition", "offset").collect()
            tasks: dict[int, list[tuple[int, int]]] = {}
            for row in found:
                tasks.setdefault(row.task, []).append((row.partition, row["offset"]))
            return sorted((min(each), len(each)) for each in tasks.values())
        return sorted(map(repr, rows.collect()))

    def _stream(self, case: Case) -> Any:
        self.made += 1
        name = f"seen_{self.connector}_{self.made}"
        rows = self.spark.readStream.format(self.connector).options(**self._options(case)).load()
        query = rows.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        query.awaitTermination()
        if case.look == "ends":
            return [each["sources"][0]["endOffset"] for each in query.recentProgress if each["numInputRows"]]
        if case.look == "batches":
            return [each["numInputRows"] for each in query.recentProgress]
        if case.look == "metrics":
            return [sorted(each["sources"][0]["metrics"] or {}) for each in query.recentProgress]
        return sorted(map(repr, self.spark.table(name).collect()))

    def _sink(self, case: Case) -> Any:
        self.made += 1
        topic = f"sink-{self.connector}-{self.made}"
        self.broker.create_topic(topic, 3)
        options = {name: value.replace("TOPIC", topic) for name, value in self._options(case).items()}
        rows = self.spark.sql(case.rows.replace("TOPIC", topic)).coalesce(1)
        if case.look == "stream":
            rows.write.mode("overwrite").parquet(str(self.home / topic))
            stream = self.spark.readStream.schema(rows.schema).parquet(str(self.home / topic))
            options["checkpointLocation"] = str(self.home / f"{topic}-checkpoint")
            writer = stream.writeStream.format(self.connector).options(**options).outputMode(case.mode)
            writer.trigger(availableNow=True).start().awaitTermination()
        else:
            rows.write.format(self.connector).mode(case.mode).options(**options).save()
        return {
            partition: [
                (record.key, record.value, record.headers) for record in self.broker.scan(topic, partition)
            ]
            for partition in range(3)
        }


def judge(case: Case, theirs: Any, ours: Any) -> str:
    """Return what is wrong with a case; nothing if it is as the table says."""
    if same(ours, theirs) == (not case.differs):
        return ""
    what = "agree: the difference in the table is gone" if case.differs else "differ, without a reason"
    return f"{case.name}: the connectors {what}\n  Spark's  {theirs!s:.400}\n  ours     {ours!s:.400}"


@contextmanager
def sides(spark: SparkSession, home: Path) -> Iterator[list[Side]]:
    """Both connectors on one broker. Raises `Missing` without Maven or the jars."""
    for jar in connector_jars():
        spark.sql(f"ADD JAR '{jar}'")
    with Broker() as broker:
        fill(broker)
        both = [Side(spark, broker, connector, home) for connector in CONNECTORS]
        for side in both:  # else all cases could agree on nothing
            assert len(side.outcome(_EVERYTHING)) == 18, side.outcome(_EVERYTHING)
        yield both


# --- the page -----------------------------------------------------------------------------------------------


def page(cases: Sequence[Case] = CASES) -> str:
    """Return docs/spark-comparison.md."""
    lines = [
        "# Compared with Spark's Kafka connector",
        "",
        f"Each option and column of Spark's Kafka connector is tried with it ({SPARK_CONNECTOR}) and with",
        "the format `logstore`, on a broker of logstore. `make spark-comparison` runs the cases and writes",
        "this page, `make test` runs some of them. *same* means the same rows, offsets and tasks, or two",
        "errors.",
        "",
        f"{len(cases)} cases, {sum(bool(each.differs) for each in cases)} of them different on purpose.",
        "",
        "| option or column | query | cases | outcome |",
        "|---|---|---|---|",
    ]
    grouped: dict[tuple[str, Kind], list[Case]] = {}
    for case in cases:
        grouped.setdefault((case.about, case.kind), []).append(case)
    for (about, kind), group in grouped.items():
        reasons = [f"{case.what}: {case.differs}" for case in group if case.differs]
        equal = len(group) - len(reasons)
        outcome = "; ".join([*(["same"] if equal == len(group) else []), *reasons])
        lines.append(f"| {about} | {kind.value} | {len(group)} | {outcome} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the cases, or write the page."""
    if "--docs" in arguments:
        PAGE.write_text(page())
        return 0
    import tempfile

    from tests.spark.restarts import session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wrong = []
    with (
        tempfile.TemporaryDirectory(prefix="comparison-") as directory,
        session(Path(directory)) as spark,
        sides(spark, Path(directory)) as both,
    ):
        for case in CASES:
            theirs, ours = (side.outcome(case) for side in both)
            verdict = judge(case, theirs, ours)
            answer = "refused" if isinstance(ours, Refused) else "rows"
            print(f"{'WRONG' if verdict else 'ok':6}{answer:8}{case.kind.value:7}{case.name}", flush=True)
            if verdict:
                wrong.append(verdict)
                print("   ", verdict, flush=True)
    PAGE.write_text(page())
    print(f"{len(CASES)} cases, {len(wrong)} not as the table says")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
