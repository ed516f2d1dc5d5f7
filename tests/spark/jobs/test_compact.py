"""The compaction as it is run: of each key the last value as of an end, whole or not at all."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from logstore import Log, LogConfig, Record, encode_batch
from logstore.broker import Broker, BrokerConfig
from logstore.disk.copying import is_there
from logstore.disk.files import Disk, make_durable_dir
from logstore.log.reader import LogReader
from logstore.spark.jobs import compact
from logstore.spark.jobs.compact import OutputExists, place
from logstore.spark.jobs.job import Answer
from logstore.spark.jobs.work import Workers
from logstore.spark.ledger import Intent, Ledger, publish_once, remove_staged, staging_directory
from logstore.testing.crash import CrashLab, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.spark.jobs.conftest import NOON_MS, Command, Row, append
from tests.spark.jobs.in_process import InProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS: list[Row] = [
    (NOON_MS + 10, "a", "1"),
    (NOON_MS + 20, "b", "1"),
    (NOON_MS + 30, "a", "2"),
    (NOON_MS + 40, "c", "1"),
    (NOON_MS + 50, "b", None),
    (NOON_MS + 60, "", "empty"),
    (NOON_MS + 70, "a", "3"),
]
Table = dict[tuple[int, str], tuple[int, str | None]]


def read(table: Path) -> Table:
    """Offset and value of each key of each partition."""
    rows = ds.dataset(table, partitioning="hive").to_table().to_pylist()
    found = {
        (int(row["partition"]), row["key"].decode()): (
            row["offset"],
            None if row["value"] is None else row["value"].decode(),
        )
        for row in rows
    }
    assert len(found) == len(rows), "a key twice"
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    append(tmp_path / "data" / "orders-0", ROWS)
    append(tmp_path / "data" / "orders-1", ROWS[:3])
    return tmp_path / "data"


def test_the_latest_of_each_key(spark: SparkSession, command: Command, data: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    line = ["compact", data, "--output", table]
    facts = command(*line, "--json").facts
    counts = {name: facts[name] for name in ("records", "keys", "tombstones", "null_keys", "rows")}
    assert counts == {"records": 10, "keys": 6, "tombstones": 1, "null_keys": 0, "rows": 5}
    latest: Table = {
        (0, "a"): (6, "3"), (0, "c"): (3, "1"), (0, ""): (5, "empty"),
        (1, "a"): (2, "2"), (1, "b"): (1, "1"),
    }  # fmt: skip
    assert read(table) == latest
    refused = command(*line)
    assert (refused.code, refused.out) == (1, "")
    assert "--overwrite" in refused.err
    early = command(*line, "--overwrite", "--ending-timestamp", NOON_MS + 60, "--tombstones", "keep")
    assert early.code == 0
    assert read(table) == {
        (0, "a"): (2, "2"), (0, "b"): (4, None), (0, "c"): (3, "1"), (1, "a"): (2, "2"), (1, "b"): (1, "1"),
    }  # fmt: skip


def test_a_record_without_a_key_is_refused_or_left_out(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path
) -> None:
    """It has no latest value; who compacts such a topic should know."""
    append(data / "orders-1", [(NOON_MS, None, "who")])
    line = ["compact", data, "--assign", '{"orders":[1]}', "--output", tmp_path / "table"]
    refused = command(*line)
    assert (refused.code, refused.out) == (1, "")
    assert "1 records have no key" in refused.err
    assert not (tmp_path / "table").exists()
    assert command(*line, "--null-keys", "drop", "--json").facts["rows"] == 2
    assert read(tmp_path / "table").keys() == {(1, "a"), (1, "b")}


def test_a_run_that_ended_midway_is_completed(
    spark: SparkSession, command: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's work is done and decided: the next run only moves the table."""
    line = ["compact", data, "--assign", '{"orders":[1]}', "--output", tmp_path / "table", "--json"]

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compact, "place", dies)
        assert command(*line).code == 130
    assert not (tmp_path / "table").exists()
    assert command(*line, "--plan").facts["unfinished"]
    assert command(*line).facts["recovered"]
    assert len(read(tmp_path / "table")) == 2


def test_a_killed_run_is_not_completed_for_another_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is moved into place, and is no answer to other options."""
    facts = dict.fromkeys(("records", "rows", "keys", "tombstones", "null_keys", "seconds"), 7)

    def write(self: compact.Compact, workers: Workers, staging: str) -> dict[str, Any]:
        Path(staging, "table").mkdir()
        return facts

    def killed(*arguments: object) -> None:
        raise InterruptedError

    def run(*more: str) -> Answer:
        parser = ArgumentParser()
        compact.arguments(parser)
        line = [str(data), "--output", str(tmp_path / "table"), *more]
        return compact.prepare(parser.parse_args(line)).run(InProcess())

    def killed_run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(compact, "place", killed)
            run()

    monkeypatch.setattr(compact.Compact, "_write", write)
    for other in (["--assign", '{"orders":[1]}'], ["--tombstones", "keep"], ["--to", "segments"]):
        with pytest.raises(InterruptedError):
            killed_run()
        with pytest.raises(OutputExists, match="a run with other options was killed"):
            run(*other)
        assert (tmp_path / "table").is_dir()
        assert run(*other, "--overwrite").facts == facts | {"recovered": False}
        shutil.rmtree(tmp_path / "table")
    with pytest.raises(InterruptedError):
        killed_run()
    assert run().facts == facts | {"recovered": True}


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    append(tmp_path / "data" / "orders-0", [])
    assert command("compact", tmp_path / "data", "--output", tmp_path / "table", "--json").facts["rows"] == 0
    assert (tmp_path / "table").is_dir()


def test_a_plan_says_what_stands_in_the_way(command: Command, data: Path, tmp_path: Path) -> None:
    line = ["compact", data, "--output", tmp_path, "--plan"]
    assert command(*line).out.splitlines()[-2:] == [
        "would fail: the output exists",
        "would compact 10 offsets of 2 partitions",
    ]
    assert "would replace" in command(*line, "--overwrite").out


# --- putting the table into place ---------------------------------------------------------------------------

OUTPUT = "/tables/orders"
LEDGER = "/tables/.orders.logstore-compact"


def write(disk: Disk, directory: str, who: str) -> None:
    """A table of two files, durable."""
    make_durable_dir(disk, f"{directory}/partition=0")
    for name in ("partition=0/part-0", "_SUCCESS"):
        file = disk.open(f"{directory}/{name}", create=True, write=True)
        file.pwrite(who.encode(), 0)
        file.close()
    compact.sync_tree(disk, directory)


def read_files(disk: Disk, directory: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in disk.scan(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            found |= read_files(disk, path)
        else:
            file = disk.open(path)
            found[path.removeprefix(OUTPUT)] = file.pread(file.size(), 0)
            file.close()
    return found


def publish(disk: Disk, who: str) -> None:
    make_durable_dir(disk, LEDGER)
    with Ledger(disk, LEDGER) as ledger:
        if ledger.intent is not None:
            place(disk, LEDGER, OUTPUT, ledger.intent.number)
            ledger.finish({})
        number = ledger.done + 1
        staging = staging_directory(LEDGER, number)
        remove_staged(disk, staging)
        make_durable_dir(disk, staging)
        write(disk, f"{staging}/table", who)
        disk.sync_dir(staging)

        def carry_out(intent: Intent) -> Any:
            place(disk, LEDGER, OUTPUT, intent.number)
            return {}

        publish_once(ledger, number, lambda: {}, carry_out)


def workload(run: CrashRun[str]) -> None:
    for who in ("first", "second"):
        publish(run.disk, who)
        run.promise(who)


def recover(disk: Disk) -> dict[str, bytes]:
    """What the next run leaves if it only completes what was begun."""
    make_durable_dir(disk, LEDGER)
    with Ledger(disk, LEDGER) as ledger:
        if ledger.intent is not None:
            place(disk, LEDGER, OUTPUT, ledger.intent.number)
            ledger.finish({})
    return read_files(disk, OUTPUT) if is_there(disk, OUTPUT) else {}


def go_on(disk: Disk) -> dict[str, bytes]:
    """What it leaves if it then does what was not done."""
    if recover(disk) != table_of("second"):
        publish(disk, "second")
    return read_files(disk, OUTPUT)


def table_of(who: str) -> dict[str, bytes]:
    return {"/partition=0/part-0": who.encode(), "/_SUCCESS": who.encode()}


def judge(found: dict[str, bytes], promised: str) -> None:
    """The table that was promised, or the one after it; none only before the first."""
    order = [{}, table_of("first"), table_of("second")]
    done = {"": 0, "first": 1, "second": 2}[promised]
    assert found in order[done : done + 2], found


def judge_the_end(found: dict[str, bytes], _: str) -> None:
    assert found == table_of("second"), found


def test_a_crash_before_any_call_leaves_one_table_or_the_other() -> None:
    report = CrashLab(recover, judge, images=8).explore(workload, "")
    assert report.moments > 80
    assert report.is_good, str(report)


def test_whoever_goes_on_after_a_crash_comes_to_the_end() -> None:
    report = CrashLab(go_on, judge_the_end, images=8, second_images=1).explore(workload, "")
    assert report.is_good, str(report)


def test_the_checker_notices_a_table_that_was_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "sync_tree", lambda disk, directory: None)
    assert not CrashLab(recover, judge, images=8, stop_after=1).explore(workload, "").is_good


def test_a_table_that_somebody_took_is_named() -> None:
    disk = MemoryDisk()
    make_durable_dir(disk, LEDGER)
    with pytest.raises(OutputExists, match="another program removed them"):
        place(disk, LEDGER, OUTPUT, 0)


# --- segments -----------------------------------------------------------------------------------------------


def survivors(source: Path, end: int = 1 << 62, *, tombstones: bool = False) -> list[Record]:
    """What compaction leaves of a partition: the oracle."""
    committed = [record for record in LogReader(source).records() if record.offset < end]
    last = {record.key: record.offset for record in committed}
    return [
        record
        for record in committed
        if last[record.key] == record.offset and (tombstones or record.value is not None)
    ]


def test_segments_hold_the_latest_of_each_key(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    """At their offsets, with their headers; the log ends where it ended, and goes on there."""
    source, output = tmp_path / "data", tmp_path / "out"
    rows: list[Row] = [(NOON_MS + n, f"k{n * 7 % 19}", None if n % 11 == 3 else f"v{n}") for n in range(150)]
    append(source / "orders-0", rows)
    append(source / "orders-1", [*ROWS, (NOON_MS, "a", None)])
    append(source / "orders-2", [])
    line = ["compact", source, "--output", output, "--to", "segments", "--task-offsets", 40, "--json"]
    facts = command(*line).facts
    expected = {n: survivors(source / f"orders-{n}") for n in range(3)}
    assert facts["rows"] == sum(map(len, expected.values()))
    for n, records in expected.items():
        directory = output / f"orders-{n}"
        assert list(LogReader(directory).records()) == records
        with Log.open(source / f"orders-{n}") as log, Log.open(directory) as compacted:
            assert compacted.log_end_offset == log.log_end_offset
    assert len(list((output / "orders-0").glob("*.log"))) <= 2, "small files became one"
    verified = command("verify", f"--node=a={output}", "--json").facts
    assert verified["findings"] == [], "a log like any other that was compacted"
    again = ["--overwrite", "--tombstones", "keep", "--ending-offsets", '{"orders":{"0":100}}']
    assert command(*line, *again, "--assign", '{"orders":[0]}').code == 0
    assert list(LogReader(output / "orders-0").records()) == survivors(
        source / "orders-0", 100, tombstones=True
    )


def test_transactions_and_many_segments(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    """Aborted records and markers are gone, and nothing waits for the end of a transaction."""
    source, output = tmp_path / "data", tmp_path / "out"
    with Log.open(source / "t-0", LogConfig(segment_bytes=2000)) as log:
        for number in range(40):
            batch = encode_batch(
                [Record(0, NOON_MS, b"k%d" % (number % 6), b"v%d" % number * 20)],
                producer_id=5, producer_epoch=0, base_sequence=number, is_transactional=True,
            )  # fmt: skip
            log.append_batches(batch)
            log.end_transaction(5, 0, commit=number % 3 != 1)
    command("compact", source, "--output", output, "--to", "segments", "--task-offsets", 7, "--json")
    last = {number % 6: number for number in range(40) if number % 3 != 1}
    found = [record.value for record in LogReader(output / "t-0").records()]
    assert found == [b"v%d" % number * 20 for number in sorted(last.values())]
    facts = command("export", output, "--output", tmp_path / "table", "--json").facts
    assert facts["records"] == len(last), "read as committed"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--brokers", "localhost:9092"], "brokers compact their own"),
        (["DATA", "--columns", "value"], "are for tables"),
        (["DATA", "--task-offsets", "0"], "must be 1 or more"),
        (["DATA", "--option", "Tier=memory://x"], "not of a tier"),
    ],
)
def test_segments_bad_usage(
    command: Command, data: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    given = [each.replace("DATA", str(data)) for each in arguments]
    outcome = command("compact", *given, "--output", tmp_path / "out", "--to", "segments", "--plan")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert complaint in outcome.err


def test_a_broker_takes_the_compacted_log(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    """In the place of its own: consumers find the same offsets, and producers go on behind them."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "broker"),))
    with Broker(config) as broker:
        broker.create_topic("t", partitions=1, replication_factor=1)
        for number in range(30):
            broker.append("t", b"v%d" % number, key=b"k%d" % (number % 4))
    own = tmp_path / "broker" / "t-0"
    line = ["compact", own, "--to", "segments", "--task-offsets", 8]
    assert command(*line, "--output", tmp_path / "out").code == 0
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "out" / "t-0", own)
    with Broker(config) as broker:
        assert [(record.offset, record.value) for record in broker.scan("t")] == [
            (number, b"v%d" % number) for number in range(26, 30)
        ]
        assert broker.append("t", b"next").offset == 30
