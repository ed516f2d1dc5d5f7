"""Mistakes of Spark's users: the last line says what to do, and our part of the traceback is one frame.

Each mistake of a read or write is made twice: on the classes that Spark calls, in this process, and (slow,
`make spark-mistakes`) in a session, where all that Spark prints is looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from logstore import Log, LogConfig
from logstore.columnar import frames
from logstore.disk.errors import EngineError
from logstore.spark import PythonUnfit, brief_errors, check_java
from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.jobs.command import main
from logstore.spark.local_session import check_workers
from logstore.spark.readers import RangePartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = str(Path(__file__).parents[2])
NOWHERE: Final = {"path": "", "kafka.bootstrap.servers": "127.0.0.1:1"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """Options beside a sound `path` and `subscribe` ("" removes one), and the sentence that must be last."""

    said: str
    options: Mapping[str, str] = field(default_factory=dict)
    table: pa.Table | None = None
    """the rows of a write; None for a read"""
    is_stream: bool = False
    checkpoint: str = ""
    """the query that the checkpoint belongs to: the topic that it read, or `rate`"""


def read(said: str, **options: str) -> Mistake:
    return Mistake(said, options)


def write(said: str, columns: Mapping[str, Any], **options: str) -> Mistake:
    return Mistake(said, {"topic": "orders", "subscribe": "", **options}, pa.table(dict(columns)))


def stream(said: str, checkpoint: str = "", **options: str) -> Mistake:
    return Mistake(said, options, is_stream=True, checkpoint=checkpoint)


TEXT: Final = {"value": ["placed"]}
MISTAKES: Final = {
    "a wrong path": read("is not a directory; name a log dir", path="{home}/nodes"),
    "an empty directory": read("has no orders, and no other topic; name a log dir", path="{home}/empty"),
    "a directory that is no log": read("has no orders, and no other topic", path="{home}/pictures"),
    "no place": read("neither is given; give one of the two", path=""),
    "two places": read("both are given; give one", **{"kafka.bootstrap.servers": "127.0.0.1:1"}),
    "an unknown option": read("did you mean startingOffsets?", startingOffset="earliest"),
    "a wrong value": read("option failOnDataLoss is 'yes'; use true or false", failOnDataLoss="yes"),
    "an unknown column": read("unknown column 'offsets'; use key, value, topic", columns="offsets"),
    "no topic": read("give exactly one of the options assign, subscribe", subscribe=""),
    "a wrong topic": read("has no order; did you mean orders?", subscribe="order"),
    "offsets that are no JSON": read('write it like {"topic":{"0"', startingOffsets='{"orders":{0:3}}'),
    "offsets of another topic": read("(missing: orders-0; not read", startingOffsets='{"order":{"0":3}}'),
    "a start past its end": read(
        "correct the starting or the ending option",
        startingOffsets='{"orders":{"0":3}}',
        endingOffsets='{"orders":{"0":1}}',
    ),
    "a start past the log's end": read("Set failOnDataLoss to false", startingOffsets='{"orders":{"0":30}}'),
    "a refused port": read("Check kafka.bootstrap.servers, and that the brokers run", **NOWHERE),
    "an unknown protocol": read("one of PLAINTEXT", **NOWHERE, **{"kafka.security.protocol": "SSLL"}),
    "a login without its mechanism": read(
        "needs sasl.mechanism: one of PLAIN", **NOWHERE, **{"kafka.security.protocol": "SASL_PLAINTEXT"}
    ),
    "certificates that are not there": read(
        "ssl.truststore.location: [Errno 2] No such file or directory: '/nope.pem'",
        **NOWHERE,
        **{"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nope.pem"},
    ),
    "a damaged file": read("Set failOnDataLoss to false to continue without them", path="{home}/hurt"),
    "a value that is a number": write("it must be string or binary: cast it", {"value": [1]}),
    "a key that is a number": write("as in CAST(key AS string)", {"key": [1], **TEXT}),
    "headers that are a map": write(
        "it must be array<struct<key:string,value:binary>>",
        {**TEXT, "headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))},
    ),
    "no column value": write("no column value (string or binary); the columns are text", {"text": ["a"]}),
    "no column topic": write("no topic: set option topic, or add a column topic", TEXT, topic=""),
    "a topic that is null": write(
        "its topic is null; fill it in, or set option topic",
        {**TEXT, "topic": pa.array([None], pa.string())},
        topic="",
    ),
    "a topic that does not exist": write("set option partitions to create it", TEXT, topic="new"),
    "rows for a refused port": write("Check kafka.bootstrap.servers, and that", TEXT, **NOWHERE),
    "a name without a version": write("identify a write together; give both", TEXT, txnAppId="nightly"),
    "the end of a stream": stream("a stream has no end; remove it", endingOffsets="latest"),
    "the checkpoint of another topic": stream(
        "it is that of another query. Set checkpointLocation", checkpoint="orders", subscribe="people"
    ),
    "the checkpoint of another source": stream("it is that of another query", checkpoint="rate"),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics, a damaged log, and directories without one."""
    made = tmp_path_factory.mktemp("mistakes")
    for topic in ("orders", "people"):
        with Log.open(made / "node" / f"{topic}-0") as log:
            log.append([b"placed", b"paid", b"sent"])
    with Log.open(made / "hurt" / "orders-0") as log:
        for _ in range(5):
            log.append(b"x" * 100)
    (segment,) = (made / "hurt" / "orders-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 255
    segment.write_bytes(data)
    for name in ("empty", "pictures"):
        (made / name).mkdir()
    (made / "pictures" / "cat.jpg").write_bytes(b"x")
    return made


def options_of(mistake: Mistake, home: Path) -> dict[str, str]:
    sound = {"path": "{home}/node", "subscribe": "orders"}
    given = {**sound, **mistake.options}
    return {name: text.replace("{home}", str(home)) for name, text in given.items() if text}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_is_one_frame_and_its_message_says_what_to_do(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's worker prints the traceback that is checked here."""
    mistake = MISTAKES[name]
    with pytest.raises(EngineError) as raised:
        make(mistake, options_of(mistake, home), monkeypatch)
    below = raised.value.__traceback__
    lines = traceback.format_exception(
        raised.type, raised.value, below and below.tb_next and below.tb_next.tb_next
    )
    assert "".join(lines).count("Traceback") == 1
    assert sum(map(ours, lines)) == 1, lines
    assert lines[-1].startswith("logstore.")
    assert mistake.said in lines[-1]
    assert lines[-1].count("\n") == 1, "one line"


def ours(line: str) -> bool:
    return line.startswith(f'  File "{ROOT}/logstore/')


def make(mistake: Mistake, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call what Spark would call, in its order."""
    source = LogstoreDataSource(options)
    if mistake.table is not None:
        from pyspark import TaskContext

        monkeypatch.setattr(TaskContext, "get", lambda: Attempt())
        writer = source.writer(from_arrow_schema(mistake.table.schema), False)
        writer.write(iter(mistake.table.to_batches()))
    elif mistake.is_stream:
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        if mistake.checkpoint:
            start = 7 if mistake.checkpoint == "rate" else {mistake.checkpoint: {"0": 3}}
        reader.latestOffset(start, reader.getDefaultReadLimit())
    else:
        reader = source.reader(source.schema())
        for each in reader.partitions():
            assert isinstance(each, RangePartition)
            list(reader.read(each))


class Attempt:
    """The context of a task."""

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 0


def test_a_pattern_that_matches_nothing_is_a_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Topics may come later."""
    source = LogstoreDataSource({"path": f"{home}/node", "subscribePattern": "^offers"})
    assert source.reader(source.schema()).partitions() == []
    assert "option subscribePattern: '^offers' matches no topic; the topics of" in caplog.text
    assert caplog.text.rstrip().endswith("orders, people")


def test_a_schema_of_the_users_own(home: Path) -> None:
    source = LogstoreDataSource({"path": f"{home}/node", "subscribe": "orders"})
    with pytest.raises(EngineError, match=r"remove .schema\(...\), choose columns with option columns"):
        source.reader(from_arrow_schema(pa.schema({"id": pa.int32()})))


def test_a_codec_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log.open(tmp_path / "orders-0", LogConfig.from_kafka({"compression.type": "zstd"})) as log:
        log.append([b"x" * 100] * 100)
    for name in ("compression.zstd", "_zstd", "backports.zstd", "backports.zstd._zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(frames, "_functions", frames._functions.__wrapped__)  # found by an earlier test
    with pytest.raises(EngineError, match=r"zstd needs a library.*pip install 'pylogstore\[codecs\]'"):
        make(read(""), {"path": str(tmp_path), "subscribe": "orders"}, monkeypatch)


def test_a_defect_keeps_its_traceback() -> None:
    @brief_errors.briefly
    class Source:
        def read(self) -> Iterator[int]:
            yield 1
            self._fail()

        def _fail(self) -> None:
            raise KeyError(7)

    with pytest.raises(KeyError) as raised:
        list(Source().read())
    assert "in _fail" in "".join(traceback.format_exception(raised.value))


# --- Java and Python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "no Java found. Spark needs Java 17 or newer: run 'apt-get install"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "java is Java 11. Spark needs Java 17 or newer"),
    ],
)
def test_java_is_missing_or_old(script: str | None, said: str, tmp_path: Path) -> None:
    if script is not None:
        program(tmp_path / "java", script)
    with pytest.raises(EngineError, match="Java") as raised:
        check_java({"PATH": f"{tmp_path}"})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 3 11 pyspark logstore", "lacks pyspark and logstore: set PYSPARK_PYTHON to "),
        ("echo 3 1", "is Python 3.1, this program 3."),
        ("exit 3", "does not run"),
        (None, "does not run"),
    ],
)
def test_a_wrong_python_for_the_workers(script: str | None, said: str, tmp_path: Path) -> None:
    """`session` and the jobs look at it before Spark starts, which takes minutes to say less."""
    if script is not None:
        program(tmp_path / "python", script)
    with pytest.raises(PythonUnfit) as raised:
        check_workers(str(tmp_path / "python"))
    assert said in str(raised.value)
    assert f"set PYSPARK_PYTHON to {sys.executable}, or remove it" in str(raised.value)


def test_this_python_is_right_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    program(tmp_path / "python", f'exec {sys.executable} "$@"')
    check_workers(str(tmp_path / "python"))


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# --- jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("exprot", 2, "argument JOB: invalid choice: 'exprot'"),
        ("export {home}/node", 2, "the following arguments are required: --output"),
        ("export {home}/nodes --output {home}/lake", 1, "is not a directory; name a log dir"),
        ("export --output {home}/lake", 2, "give either directories or --brokers"),
        ("export {home}/node --topics order --output {home}/lake --plan", 1, "did you mean orders?"),
        ("export {home}/node --output {home}/lake --option startingOffset=1", 2, "mean startingOffsets?"),
        ("export {home}/node --output {home}/lake --task-records 0", 2, "records 0: must be 1 or more"),
        ("export {home}/node --output {home}/lake --starting-timestamp noon", 2, "milliseconds or a time"),
        ("replay {home}/node --topics orders --to {home}/again", 2, "required: --checkpoint"),
        ("ingest {home}/none --topic t --to {home}/in --plan", 2, "correct the path or pattern"),
        ("repair --findings {home}/none.json --output {home}/r", 1, "No such file or directory"),
        ("tier {home}/node --to s4://bucket --plan", 2, "cannot be opened: Protocol not known"),
    ],
)  # fmt: skip
def test_arguments_of_jobs(
    line: str, code: int, said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, which names the argument, and no session is started."""
    assert main(line.format(home=home).split(), "logstore pipeline") == code
    printed = capsys.readouterr().err
    assert printed.startswith("logstore: ")
    assert printed.count("\n") == 1
    assert said in printed


# --- in a session -------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_user_sees(
    name: str, home: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program's own traceback, in it one frame of ours, and the reason as the last line."""
    mistake = MISTAKES[name]
    options = options_of(mistake, home)
    with pytest.raises(Exception, match="logstore") as raised:
        in_session(mistake, options, tmp_path, spark)
    brief_errors.end_with_reason()
    capsys.readouterr()
    sys.excepthook(raised.type, raised.value, raised.value.__traceback__)
    shown = capsys.readouterr().err.rstrip().splitlines()
    assert shown[-1].startswith("logstore: ")
    assert mistake.said in shown[-1]
    message = str(raised.value).splitlines()
    assert sum("Traceback (most recent call last)" in line for line in message) == 1
    assert sum(map(ours, message)) == 1
    assert sum("Traceback (most recent call last)" in line for line in shown) == 2, "the program's, and ours"


def in_session(mistake: Mistake, options: dict[str, str], directory: Path, spark: SparkSession) -> None:
    if mistake.table is not None:
        rows = spark.createDataFrame(mistake.table)
        rows.write.format("logstore").mode("append").options(**options).save()
        return
    if not mistake.is_stream:
        spark.read.format("logstore").options(**options).load().count()
        return
    if mistake.checkpoint == "rate":
        run(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load(), directory)
    elif mistake.checkpoint:
        before = spark.readStream.format("logstore").option("startingOffsets", "earliest")
        run(before.options(**{**options, "subscribe": mistake.checkpoint}).load(), directory)
    run(spark.readStream.format("logstore").options(**options).load(), directory)


def run(rows: Any, directory: Path) -> None:
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


PROGRAM: Final = """
import sys
from logstore.spark import session, table
session(master="local[1]")
table("order", path=sys.argv[1]).count()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_last_line_of_a_program(home: Path, tmp_path: Path) -> None:
    from tests.spark.spark_home import quick_environment

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home / "node")],
        env={**os.environ, **quick_environment(tmp_path / "spark")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert last == f"logstore: {home}/node has no order; did you mean orders? Its topics: orders, people"
