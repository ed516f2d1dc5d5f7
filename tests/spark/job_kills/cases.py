"""The jobs under test: what grows before each start, the command, and what must be there afterwards.

Record `n` of a partition has offset `n`, and a key and a value that follow from partition and `n`. So each
case compares row for row: each once, in order.
"""

from __future__ import annotations

import io
import json
import shutil
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import Log, LogConfig
from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import parse_address
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.reader import LogReader
from logstore.spark.jobs import command, verify
from logstore.spark.jobs.export import LEDGER_DIRECTORY as EXPORT_LEDGER
from logstore.spark.jobs.stream import LEDGER_DIRECTORY as STREAM_LEDGER
from logstore.spark.jobs.stream import REFUSED
from logstore.spark.jobs.tier import sealed
from logstore.spark.ledger import read_ledger
from logstore.spark.logs import Bounds
from logstore.spark.read_options import ReadOptions
from logstore.spark.reading import open_logs, plan_batch
from logstore.spark.tier import Tier
from tests.spark.job_kills.strikes import LEDGER_STEPS, REPAIR_STEPS, TIER_STEPS
from tests.spark.jobs.in_process import InProcess
from tests.spark.jobs.replica_trees import make_tree, plant

TOPIC: Final = "t"
PARTITIONS: Final = 2
GROWTH: Final = 12
BATCH: Final = 4
FIRST_MS: Final = 1_795_176_000_000
DAY_MS: Final = 86_400_000

Row = tuple[bytes, bytes | None]


class NotOnce(AssertionError):
    """A row is missing, is there twice, or is not in its place."""


def demand(is_so: bool, text: str) -> None:
    if not is_so:
        raise NotOnce(text)


def key_of(n: int) -> bytes:
    return b"k%d" % (n * 5 % 17)


def value_of(partition: int, n: int) -> bytes | None:
    """Now and then no value, or one that does not fit the schema."""
    if n % 11 == 3:
        return None
    return b"{%d" % n if n % 10 == 0 else json.dumps({"id": n, "of": partition}).encode()


def is_refused(n: int) -> bool:
    return n % 11 == 3 or n % 10 == 0


def rows_of(partition: int, end: int) -> list[Row]:
    return [(key_of(n), value_of(partition, n)) for n in range(end)]


def first_difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    pairs = zip(found, expected, strict=False)
    at = next((n for n, (one, two) in enumerate(pairs) if one != two), min(len(found), len(expected)))
    return f"{len(found)} rows, {len(expected)} expected; at {at}: {found[at : at + 2]}"


class Topic:
    """The topic that grows: log dirs, or a topic of brokers."""

    def __init__(self, directory: Path, brokers: str, name: str = TOPIC) -> None:
        self.directory, self.brokers, self.name = directory, brokers, name
        self.end = 0
        if brokers:
            with self._client() as client:
                client.create_topic(name, PARTITIONS, replication_factor=3)

    def _client(self) -> BlockingClient:
        return client_of(self.brokers)

    @property
    def place(self) -> list[str]:
        """As the command line names it."""
        return ["--brokers", self.brokers, "--topics", self.name] if self.brokers else [str(self.directory)]

    def grow(self, count: int = GROWTH) -> None:
        numbers = range(self.end, self.end + count)
        for partition in range(PARTITIONS):
            if self.brokers:
                rows = [(key_of(n), value_of(partition, n)) for n in numbers]
                with self._client() as client:
                    client.append(self.name, rows, partition=partition)
                continue
            with Log.open(self.directory / f"{self.name}-{partition}", LogConfig(segment_bytes=800)) as log:
                for start in numbers[::BATCH]:
                    some = range(start, min(start + BATCH, numbers.stop))
                    columns = {
                        "key": pa.array([key_of(n) for n in some], pa.binary()),
                        "value": pa.array([value_of(partition, n) for n in some], pa.binary()),
                        # Days go back and forth: tasks write several files each.
                        "timestamp": pa.array([FIRST_MS + n // 3 % 3 * DAY_MS for n in some]),
                    }
                    log.append_arrow(pa.table(columns))
        self.end = numbers.stop

    def rows(self, partition: int) -> list[Row]:
        return rows_of(partition, self.end)


def client_of(brokers: str) -> BlockingClient:
    return BlockingClient([parse_address(each) for each in brokers.split(",")], timeout_s=120.0)


def read_topic(directory: Path, brokers: str, name: str, partition: int) -> list[Row]:
    if brokers:
        with client_of(brokers) as client:
            return [(record.key or b"", record.value) for record in client.scan(name, partition)]
    path = directory / f"{name}-{partition}"
    if not path.is_dir():
        return []
    return [(record.key or b"", record.value) for record in LogReader(path).records()]


class Case:
    """A job. `steps` of `strikes.py`; `names` of the steps at which it can be struck."""

    names: Sequence[str] = LEDGER_STEPS
    commits_in_worker = False
    """whether Spark lets a Python worker of the driver publish"""
    takes_brokers = True
    steps = ""

    def __init__(self, home: Path, brokers: str = "") -> None:
        self.home, self.brokers = home, brokers
        self.source = Topic(home / "data", brokers)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def grow(self) -> None:
        """More input, before each start."""
        self.source.grow()

    def line(self) -> list[str]:
        """The command."""
        raise NotImplementedError

    def start(self) -> int:
        """Run the command in this process, and return its exit code."""
        return run_line(self.line())

    def is_well(self, code: int) -> bool:
        """Return whether a start that ended with this exit code ended well."""
        return code == 0

    def ended(self) -> None:
        """A start ended well."""

    def check(self, *, whole: bool) -> int:
        """Raise `NotOnce` unless each row is there once; if not `whole`, the last ones may be missing."""
        raise NotImplementedError

    def _is_open(self, ledger: Path) -> bool:
        return read_ledger(OsDisk(), str(ledger)).intent is not None


class Export(Case):
    """Partial: whole files, no row twice, no hole unless a publication is open."""

    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home, brokers)
        self._table = home / "table"
        self.steps = f"ledger:{self._table / EXPORT_LEDGER}"

    def line(self) -> list[str]:
        sizes = ["--task-records", "5", "--publish-tasks", "3"]
        return ["export", *self.source.place, "--output", str(self._table), *sizes]

    def check(self, *, whole: bool) -> int:
        found: dict[int, dict[int, Row]] = {partition: {} for partition in range(PARTITIONS)}
        for path in sorted(self._table.glob("topic=*/*/*/*.parquet")):
            partition = int(path.parts[-3].removeprefix("partition="))
            rows = pq.read_table(path, partitioning=None, columns=["offset", "key", "value"]).to_pylist()
            offsets = [row["offset"] for row in rows]
            demand(offsets == sorted(offsets), f"{path}: rows out of order")
            demand(not found[partition].keys() & set(offsets), f"{path}: rows twice")
            found[partition].update({row["offset"]: (row["key"], row["value"]) for row in rows})
        is_open = not whole and self._is_open(self._table / EXPORT_LEDGER)
        for partition, rows in found.items():
            expected = dict(enumerate(self.source.rows(partition)))
            if not whole:
                expected = {n: expected[n] for n in (rows if is_open else range(len(rows)))}
            demand(
                rows == expected,
                f"partition {partition}: {first_difference(sorted(rows), sorted(expected))}",
            )
        return sum(map(len, found.values()))


class Replay(Case):
    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home, "")
        self._target, self._brokers = home / "target", brokers
        self._checkpoint = home / "checkpoint"
        self.steps = f"ledger:{self._checkpoint}"

    def line(self) -> list[str]:
        to = ["--to-brokers", self._brokers] if self._brokers else ["--to", str(self._target)]
        sizes = ["--task-records", "5", "--publish-tasks", "3"]
        checkpoint = ["--checkpoint", str(self._checkpoint)]
        return ["replay", *self.source.place, *to, *checkpoint, *sizes]

    def check(self, *, whole: bool) -> int:
        return check_copy(self.source, self._target, self._brokers, TOPIC, whole=whole)


def check_copy(source: Topic, target: Path, brokers: str, name: str, *, whole: bool) -> int:
    total = 0
    for partition in range(PARTITIONS):
        found = read_topic(target, brokers, name, partition)
        expected = source.rows(partition)[: None if whole else len(found)]
        demand(found == expected, f"partition {partition}: {first_difference(found, expected)}")
        total += len(found)
    return total


class Tiering(Case):
    """The job `tier`: its objects cover the log without a hole, and a reader gets each record once."""

    names = TIER_STEPS
    steps = "tier"
    takes_brokers = False

    @property
    def name(self) -> str:
        return "tier"

    def line(self) -> list[str]:
        return ["tier", str(self.source.directory), "--to", self._url]

    @property
    def _url(self) -> str:
        return f"file://{self.home}/tier"

    def check(self, *, whole: bool) -> int:
        total = 0
        for partition in range(PARTITIONS):
            name = TopicPartition(TOPIC, partition)
            place = Tier(self._url)
            objects = place.manifest(name).objects
            ends = [0, *(each.end_offset for each in objects)]
            demand([each.start_offset for each in objects] == ends[:-1], f"{name}: objects {ends}")
            for each in objects:
                content = place.files.cat_file(place.path(name, each.name))
                demand(sha256(content).hexdigest() == each.sha256, f"{name}: {each.name} has other bytes")
            files = sorted((self.source.directory / str(name)).glob("*.log"))
            sizes = [(int(file.stem), file.stat().st_size) for file in files]
            left = sealed(sizes, self.source.end, Bounds(0, ends[-1]))
            demand(not (whole and left), f"{name}: segments {left} are not in the tier")
            for file in files if whole else ():  # as retention does
                if int(file.stem) < ends[-1]:
                    file.unlink()
            total += self._read(name)
        return total

    def _read(self, name: TopicPartition) -> int:
        given = {"path": str(self.source.directory), "assign": json.dumps({TOPIC: [name.partition]})}
        options = ReadOptions.parse({**given, "tier": self._url}, streaming=False)
        found: list[Any] = []
        with closing(open_logs(options)) as logs:
            for wanted in plan_batch(options, logs):
                for rows in logs.read(wanted, ("offset", "key", "value"), []):
                    found += zip(*(column.to_pylist() for column in rows.columns), strict=True)
        expected = [(n, *row) for n, row in enumerate(self.source.rows(name.partition))]
        demand(found == expected, f"{name}: {first_difference(found, expected)}")
        return len(found)


class Repair(Case):
    """Again and again: a repair that is done is compared, byte for byte, with one that was left in peace."""

    names = REPAIR_STEPS
    steps = "repair"
    takes_brokers = False

    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home)
        tree = make_tree(home / "tree", 5, partitions=3, partition_bytes=30_000, segment_bytes=9_000)
        plant(tree, 5, 6)
        parser = ArgumentParser()
        verify.arguments(parser)
        facts = verify.prepare(parser.parse_args(tree.nodes())).run(InProcess()).facts
        self._findings = home / "findings.json"
        self._findings.write_text(json.dumps(facts))
        self._output, self._whole = home / "out", home / "whole"
        self._done = 0

    def grow(self) -> None:
        """The replicas stay."""

    def line(self) -> list[str]:
        output = self._output if self._whole.exists() else self._whole
        return ["repair", "--findings", str(self._findings), "--output", str(output)]

    def ended(self) -> None:
        if not self._output.exists():
            return
        found, expected = contents(self._output), contents(self._whole)
        wrong = sorted({name for name, _ in found.items() ^ expected.items()})
        demand(not wrong, f"files that are not those of a repair in peace: {wrong[:4]}")
        demand(not Path(f"{self._output}.unfinished").exists(), "an unfinished output is left")
        self._done += sum(
            1
            for directory in self._output.iterdir()
            if directory.is_dir()
            for _ in LogReader(directory).records()
        )
        shutil.rmtree(self._output)

    def check(self, *, whole: bool) -> int:
        return self._done


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class Compact(Case):
    """A table is made, replaced (`--overwrite`), removed and made again: the old, the new one, or none."""

    to: Sequence[str] = ()

    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home, brokers)
        self._output = home / "out"
        self._old_end = self._done = self._lives = 0
        self.steps = f"ledger:{home}/.out.logstore-compact"

    def grow(self) -> None:
        """Only after a compaction that is done: until then, the same one is repeated."""
        if self._old_end == self.source.end:
            self.source.grow()

    def line(self) -> list[str]:
        overwrite = ["--overwrite"] if self._old_end else []
        return ["compact", *self.source.place, "--output", str(self._output), *self.to, *overwrite]

    def is_well(self, code: int) -> bool:
        """Return whether it ended well: also if the one before was killed after it had published."""
        return code == 0 or (not self._old_end and self._output.exists())

    def ended(self) -> None:
        found = self._found()
        demand(found == self._expected(self.source.end), f"after a start that ended well: {found}")
        self._done += sum(map(len, found.values()))
        self._old_end = self.source.end
        self._lives += 1
        if self._lives % 2 == 0:
            shutil.rmtree(self._output)
            self._old_end = 0
            self.source.grow()

    def check(self, *, whole: bool) -> int:
        if self._output.exists():
            ends = {self._old_end, self.source.end} - {0}
            demand(
                self._found() in [self._expected(end) for end in ends], "neither the old nor the new output"
            )
        return self._done

    def _expected(self, end: int) -> dict[int, list[tuple[int, Row]]]:
        """Offset, key and value of the last record of each key, in the order of offsets."""
        found = {}
        for partition in range(PARTITIONS):
            last = {row[0]: (n, row) for n, row in enumerate(rows_of(partition, end))}
            found[partition] = sorted(each for each in last.values() if each[1][1] is not None)
        return found

    def _found(self) -> dict[int, list[tuple[int, Row]]]:
        found: dict[int, list[tuple[int, Row]]] = {partition: [] for partition in range(PARTITIONS)}
        for path in self._output.rglob("*.parquet"):
            partition = int(path.parts[-2].removeprefix("partition="))
            rows = pq.read_table(path, partitioning=None).to_pylist()
            found[partition] += [(row["offset"], (row["key"], row["value"])) for row in rows]
        return {partition: sorted(rows) for partition, rows in found.items()}


class Segments(Compact):
    """`compact --to segments`."""

    to = ("--to", "segments", "--task-offsets", "20")
    takes_brokers = False

    @property
    def name(self) -> str:
        return "compact-segments"

    def _found(self) -> dict[int, list[tuple[int, Row]]]:
        return {
            partition: [
                (record.offset, (record.key or b"", record.value))
                for record in LogReader(self._output / f"{TOPIC}-{partition}").records()
            ]
            for partition in range(PARTITIONS)
        }


class Stream(Case):
    """Rows of the table and refused ones: each record is one of either, once."""

    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home, brokers)
        self._table = home / "table"
        self.steps = f"ledger:{self._table / STREAM_LEDGER}"

    def line(self) -> list[str]:
        shape = ["--schema", "id INT, of INT", "--partition-by", "of", "--batch-records", "20"]
        return ["stream", *self.source.place, "--output", str(self._table), *shape]

    def check(self, *, whole: bool) -> int:
        good = self._offsets(self._table.glob("of=*/*.parquet"), "_", "id")
        bad = self._offsets((self._table / REFUSED).glob("*.parquet"), "", "offset")
        for partition in range(PARTITIONS):
            end = self.source.end if whole else max([-1, *good[partition], *bad[partition]]) + 1
            for found, is_bad in ((good[partition], False), (bad[partition], True)):
                expected = [n for n in range(end) if is_refused(n) == is_bad]
                if whole or not self._is_open(self._table / STREAM_LEDGER):
                    demand(found == expected, f"partition {partition}: {first_difference(found, expected)}")
                demand(len(found) == len(set(found)), f"partition {partition}: rows twice")
        return sum(len(each) for found in (good, bad) for each in found.values())

    def _offsets(self, files: Iterator[Path], prefix: str, value: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for file in files:
            for row in pq.read_table(file, partitioning=None).to_pylist():
                demand(row[value] == row[f"{prefix}offset"], f"{file}: the wrong row {row}")
                found[row[f"{prefix}partition"]].append(row[f"{prefix}offset"])
        return {partition: sorted(each) for partition, each in found.items()}


class Ingest(Case):
    """Lines of files: each once, those of a file in order within a partition."""

    commits_in_worker = True
    LINES: Final = 20
    SPREAD: Final = 3

    def __init__(self, home: Path, brokers: str = "") -> None:
        self.home, self.brokers = home, brokers
        self._files, self._logs, self._checkpoint = home / "in", home / "logs", home / "checkpoint"
        self._files.mkdir(parents=True)
        self._count = 0
        staging = f"{self._checkpoint}.logstore-sink" if brokers else f"{self._logs}.logstore-sink"
        self.steps = f"ledger:{staging}/app-ingest-*"
        if brokers:
            with client_of(brokers) as client:
                client.create_topic("lines", self.SPREAD, replication_factor=3)

    def grow(self) -> None:
        for _ in range(2):
            lines = "".join(f"{self._count} {n}\n" for n in range(self.LINES))
            (self._files / f".{self._count}").write_text(lines)
            (self._files / f".{self._count}").rename(self._files / f"{self._count}.log")
            self._count += 1

    def line(self) -> list[str]:
        to = ["--to", str(self._logs), "--partitions", str(self.SPREAD)]
        to = ["--brokers", self.brokers] if self.brokers else to
        more = ["--checkpoint", str(self._checkpoint), "--key", "value", "--option", "kafka.batch.size=200"]
        return ["ingest", str(self._files), *to, "--topic", "lines", *more]

    def check(self, *, whole: bool) -> int:
        found: Counter[tuple[int, int]] = Counter()
        for partition in range(self.SPREAD):
            last: dict[int, int] = {}
            for key, value in read_topic(self._logs, self.brokers, "lines", partition):
                demand(key == value, f"partition {partition}: key {key!r} of {value!r}")
                file, n = map(int, key.split())
                demand(
                    last.get(file, -1) < n, f"partition {partition}: line {n} of file {file} twice, or late"
                )
                last[file] = n
                found[file, n] += 1
        demand(set(found.values()) <= {1}, "a line is in two partitions")
        expected = self._count * self.LINES
        demand(not whole or len(found) == expected, f"{len(found)} lines of {expected}")
        return len(found)


class Sink(Case):
    """No job, but the streaming sink under all of them: a topic is copied by a query of Spark's."""

    commits_in_worker = True

    def __init__(self, home: Path, brokers: str = "") -> None:
        super().__init__(home, brokers)
        self._target, self._checkpoint = home / "target", home / "checkpoint"
        ledger = f"{self._checkpoint}/logstore-sink" if brokers else f"{self._target}.logstore-sink/query-*"
        self.steps = f"ledger:{ledger}"
        if brokers:
            with client_of(brokers) as client:
                client.create_topic("copy", PARTITIONS, replication_factor=3)

    def line(self) -> list[str]:
        places = (self.source.directory, self._target, self._checkpoint)
        return ["copy", self.brokers, *map(str, places)]

    def check(self, *, whole: bool) -> int:
        return check_copy(self.source, self._target, self.brokers, "copy", whole=whole)


def run_line(
    line: Sequence[str], master: str | None = None, settings: Mapping[str, str] | None = None
) -> int:
    """Run a command in this process, and return 0 if it answered: 1 may say that rows were refused.

    A `master` and `settings` are for a session of its own.
    """
    given = settings or {}
    if line[0] == "copy":
        return copy_topic(line[1], *map(Path, line[2:]), master=master or "local[2]", settings=given)
    more = [each for name, value in given.items() for each in ("--conf", f"{name}={value}")]
    with redirect_stdout(io.StringIO()) as answer:
        code = command.main([*line, *(["--master", master] if master else []), *more])
    return 0 if answer.getvalue() else code


def copy_topic(
    brokers: str, source: Path, target: Path, checkpoint: Path, *, master: str, settings: Mapping[str, str]
) -> int:
    """Copy what is new by a streaming query."""
    from pyspark.errors import StreamingQueryException

    from logstore.spark import session
    from logstore.spark.data_source import LogstoreDataSource

    spark = session(master=master, settings=settings)
    spark.dataSource.register(LogstoreDataSource)
    place = {"kafka.bootstrap.servers": brokers} if brokers else {"path": str(source)}
    rows = spark.readStream.format("logstore").options(**place, subscribe=TOPIC, startingOffsets="earliest")
    writer = rows.option("maxOffsetsPerTrigger", 20).load().writeStream.format("logstore")
    writer = writer.options(topic="copy", partitions=PARTITIONS, checkpointLocation=str(checkpoint))
    writer = writer.option("kafka.batch.size", "100").trigger(availableNow=True)
    if brokers:
        query = writer.option("kafka.bootstrap.servers", brokers).start()
    else:
        query = writer.start(str(target))
    try:
        query.awaitTermination()
    except StreamingQueryException:
        return 1
    return 0


CASES: Final = {
    "export": Export,
    "ingest": Ingest,
    "stream": Stream,
    "replay": Replay,
    "tier": Tiering,
    "compact": Compact,
    "compact-segments": Segments,
    "repair": Repair,
    "sink": Sink,
}
