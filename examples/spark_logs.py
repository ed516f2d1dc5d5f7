"""Log lines, from files to a table: lines → topic → structured stream → parsed table → Parquet and a report.

    python examples/spark_logs.py                    Spark's own log of this run
    python examples/spark_logs.py spark.log app.log  any files of the form 26/11/20 21:27:19 WARN Name: text

Everything runs on this host: a broker in this process, a topic on it, and Spark, which writes and reads the
topic with `format("logstore")`. Run it again with the same --output: the stream continues from its checkpoint
and reads only new lines. The output directory contains:

    broker/     the broker's log dir: open it with `logstore dump`, `logstore verify`, or Kafka's own tools
    table/      Parquet: time, level, component, message, partition, offset; partitioned by level
    report.txt  lines by component and level, and lines that are not log lines
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from logstore.broker import Broker, BrokerConfig
from logstore.disk.errors import EngineError
from logstore.spark import check_java

TOPIC = "log-lines"
LINE = r"^(\d\d/\d\d/\d\d \d\d:\d\d:\d\d) (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ([^:]+): (.*)$"

LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def spark_session(directory: Path) -> SparkSession:
    """Start Spark on two threads, with its own log in a file: the default input."""
    settings = directory / "log4j2.properties"
    settings.write_text(LOG4J.format(file=directory / "spark.log"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the packages of this environment
    builder = SparkSession.builder.master("local[2]").appName("log lines")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{settings}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def send(spark: SparkSession, files: Sequence[str], bootstrap: str) -> int:
    """Write every line of the files as a record, with its component as the key; return their number."""
    lines = spark.read.text(list(files)).where(f.length("value") > 0)
    component = f.regexp_extract("value", LINE, 3)
    rows = lines.select(f.nullif(component, f.lit("")).alias("key"), "value").cache()
    (
        rows.write.format("logstore")
        .mode("append")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": TOPIC})
        .save()
    )
    return rows.count()


def parsed(records: DataFrame) -> DataFrame:
    """Return the columns of log lines; level and component are null for other lines."""
    line = f.col("value").cast("string")

    def part(number: int) -> Column:
        return f.nullif(f.regexp_extract(line, LINE, number), f.lit(""))

    return records.select(
        f.try_to_timestamp(part(1), f.lit("yy/MM/dd HH:mm:ss")).alias("time"),
        part(2).alias("level"),
        part(3).alias("component"),
        f.coalesce(part(4), line).alias("message"),
        "partition",
        "offset",
    )


def read_on(spark: SparkSession, output: Path, bootstrap: str) -> int:
    """Append new records of the topic to the table; return the number of rows that the stream read."""
    stream = (
        spark.readStream.format("logstore")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"})
        .load()
    )
    query = (
        parsed(stream)
        .writeStream.format("parquet")
        .partitionBy("level")
        .options(path=str(output / "table"), checkpointLocation=str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def report(table: DataFrame) -> str:
    """Return the lines by component, those with most errors first."""
    levels = ["ERROR", "WARN", "INFO"]
    counts = (
        table.groupBy("component")
        .agg(
            f.count("*").alias("lines"),
            *(f.count_if(f.col("level") == each).alias(each) for each in levels),
        )
        .orderBy(f.desc("ERROR"), f.desc("WARN"), f.desc("lines"), "component")
        .limit(15)
        .collect()
    )
    form = "{:<44} {:>7} " + " ".join(["{:>6}"] * len(levels))
    rows = [form.format("component", "lines", *levels)]
    for row in counts:
        name = row["component"] or "(no log lines)"
        rows.append(form.format(name[:44], row["lines"], *(row[level] for level in levels)))
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Log lines through a topic and Spark into a table.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: Spark's own log of this run")
    parser.add_argument("--output", type=Path, default=Path("data/spark-logs"), help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        check_java()
        run(options.files, options.output.absolute())
    except (EngineError, AnalysisException) as error:  # the latter for a missing file
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def run(files: Sequence[str], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    spark = spark_session(output)
    try:
        with Broker(BrokerConfig(log_dirs=(str(output / "broker"),))) as broker:
            if TOPIC not in broker.topics():
                broker.create_topic(TOPIC, 3)
            sent = send(spark, files or [str(output / "spark.log")], broker.bootstrap)
            read = read_on(spark, output, broker.bootstrap)
        if not any((output / "table").rglob("*.parquet")):
            print(f"nothing to report: there is no line in {', '.join(files)}")
            return
        table = spark.read.parquet(str(output / "table"))
        text = report(table)
        total = table.count()
    finally:
        spark.stop()
    (output / "report.txt").write_text(text + "\n")
    print(text)
    print(f"\n{sent} lines sent, {read} read from the topic, {total} rows in {output / 'table'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
