"""`replay`: each record once, with its partition, key, value, headers and time, and in its order."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore import Header, Log, Record, encode_batch
from logstore.broker import BrokerCluster
from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import parse_address
from logstore.disk.topic_partition import TopicPartition
from logstore.log.reader import LogReader
from logstore.spark.errors import DataLoss
from logstore.spark.jobs import replay
from logstore.spark.jobs.job import Answer, BadUsage
from logstore.spark.jobs.pieces import grouped, wait_s
from logstore.spark.logs import OffsetRange
from tests.spark.jobs.conftest import NOON_MS, Command, append
from tests.spark.jobs.in_process import InProcess, Recreates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fields = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]
"""Key, value, time, headers."""

PARTITIONS = {0: 23, 1: 0, 2: 11}


def records(partition: int, count: int, first: int = 0) -> list[Record]:
    """Null keys, null and empty values, headers that are not text, a time that goes back, and none."""
    return [
        Record(
            n - first,
            -1 if n % 11 == 10 else NOON_MS + 1000 * (n ^ 1),
            None if n % 5 == 0 else f"k{n % 3}".encode(),
            None if n % 7 == 3 else b"" if n % 7 == 5 else f"{partition}/{n}".encode(),
            (Header("trace", b"\x00%d" % n), Header("none", None)) if n % 2 else (),
        )
        for n in range(first, first + count)
    ]


def write(directory: Path, found: list[Record]) -> None:
    with Log.open(directory) as log:
        for first in range(0, len(found), 4):
            piece = found[first : first + 4]
            log.append_batches(encode_batch([Record(n, *record[1:]) for n, record in enumerate(piece)]))


def fields(found: Any) -> list[Fields]:
    return [(each.key, each.value, each.timestamp_ms, tuple(each.headers)) for each in found]


def read(directory: Path) -> list[Fields]:
    return fields(LogReader(directory).records())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for partition, count in PARTITIONS.items():
        Log.open(tmp_path / "data" / f"orders-{partition}").close()
        write(tmp_path / "data" / f"orders-{partition}", records(partition, count))
    return tmp_path / "data"


def prepared(*arguments: object) -> replay.Replay:
    parser = argparse.ArgumentParser()
    replay.arguments(parser)
    return replay.prepare(parser.parse_args([str(each) for each in arguments]))


def run(*arguments: object) -> Answer:
    return prepared(*arguments).run(InProcess())


def test_records_keep_all_but_their_offsets(source: Path, tmp_path: Path) -> None:
    to, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    line = (source, "--to", to, "--checkpoint", checkpoint, "--task-records", 7, "--publish-tasks", 2)
    facts = run(*line).facts
    assert (facts["read"], facts["records"], facts["publications"]) == (34, 34, 3)
    for partition in PARTITIONS:
        assert read(to / f"orders-{partition}") == read(source / f"orders-{partition}")
    # What is new, and only that.
    assert run(*line).lines == ["nothing new to replay"]
    write(source / "orders-1", records(1, 5))
    facts = run(*line).facts
    assert facts["partitions"] == [{"topic": "orders", "partition": 1, "records": 5}]
    assert read(to / "orders-1") == read(source / "orders-1")
    assert not list((checkpoint / "staged").iterdir())


def test_a_plan_writes_nothing(source: Path, command: Command, tmp_path: Path) -> None:
    line = ["replay", source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c"]
    facts = command(*line, "--rename", "orders=again", "--plan", "--json").facts
    assert (facts["offsets"], facts["tasks"], facts["unfinished"]) == (34, 2, False)
    assert facts["partitions"][0] == {
        "topic": "orders", "partition": 0, "start_offset": 0, "end_offset": 23, "to": "again"
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        (["--key", "k1", "--key", "k2"], lambda key, time: key in (b"k1", b"k2")),
        (["--key-pattern", "[02]$"], lambda key, time: key in (b"k0", b"k2")),
        (["--since", str(NOON_MS + 5000)], lambda key, time: time >= NOON_MS + 5000),
        (["--before", str(NOON_MS + 5000)], lambda key, time: 0 <= time < NOON_MS + 5000),
        (
            ["--key", "k1", "--since", "2026-11-20T12:00:03", "--before", "2026-11-20T12:00:09"],
            lambda key, time: key == b"k1" and NOON_MS + 3000 <= time < NOON_MS + 9000,
        ),
    ],
)
def test_filters(source: Path, tmp_path: Path, filters: list[str], passes: Any) -> None:
    """A filtered replay goes on as any other: what did not pass is not read again."""
    line = (source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c", "--task-records", 4, *filters)
    run(*line)
    for partition in PARTITIONS:
        expected = [each for each in read(source / f"orders-{partition}") if passes(each[0], each[2])]
        copy = tmp_path / "copy" / f"orders-{partition}"
        assert (read(copy) if copy.exists() else []) == expected
    assert run(*line).facts["read"] == 0


def test_offsets_and_another_name(source: Path, tmp_path: Path) -> None:
    """Into the directory that it reads: only what was there when it began."""
    line = (source, "--to", source, "--checkpoint", tmp_path / "c", "--assign", '{"orders":[0]}')
    bounds = ("--starting-offsets", '{"orders":{"0":5}}', "--ending-offsets", '{"orders":{"0":9}}')
    run(*line, *bounds, "--rename", "orders=again")
    assert read(source / "again-0") == read(source / "orders-0")[5:9]
    assert len(list(source.glob("again-*"))) == 3, "as many partitions as the source"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--checkpoint", "C"], "either --to DIR or --to-brokers"),
        (["--to", "SOURCE", "--checkpoint", "C"], "orders is source and target"),
        (["--to", "T", "--checkpoint", "C", "--rename", "orders"], "NAME=VALUE"),
        (["--to", "T", "--checkpoint", "C", "--rename", "order=x"], "not among the topics"),
        (["--to", "T", "--checkpoint", "C", "--rename", "orders=a/b"], "topic name"),
        (["--to", "T", "--checkpoint", "C", "--key-pattern", "("], "--key-pattern"),
        (["--to", "T", "--checkpoint", "C", "--since", "noon"], "--since"),
        (["--to", "T", "--checkpoint", "C", "--since", "9", "--before", "9"], "--since 9 is not before"),
        (["--to", "T", "--checkpoint", "C", "--rate", "0"], "--rate 0"),
        (["--to", "T", "--checkpoint", "C", "--write-option", "topic=x"], "--rename"),
    ],
)
def test_bad_usage(command: Command, source: Path, arguments: list[str], complaint: str) -> None:
    given = [each.replace("SOURCE", str(source)) for each in arguments]
    outcome = command("replay", source, *given, "--plan")
    assert outcome.code == 2
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_wrong_address_is_known_at_once(command: Command, source: Path, tmp_path: Path) -> None:
    """It took two minutes, with Spark started, and a plan did not ask."""
    line = ["replay", source, "--to-brokers", "127.0.0.1:1", "--checkpoint", tmp_path / "c"]
    for more in ([], ["--plan"]):
        refused = command(*line, *more)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert "no broker takes a connection (127.0.0.1:1: Connection refused)" in refused.err


def test_a_copy_onto_itself_by_another_path(command: Command, source: Path, tmp_path: Path) -> None:
    """It would double the topic at every run."""
    (tmp_path / "link").symlink_to(source)
    paths = (
        source / "orders-0",
        f"{source.parent}/./{source.name}/../{source.name}",
        f"{source}*",
        tmp_path / "link",
    )
    for path in paths:
        outcome = command("replay", path, "--to", source, "--checkpoint", tmp_path / "c", "--plan")
        assert (outcome.code, "orders is source and target" in outcome.err) == (2, True), path
    other = command("replay", source, "--to", source.parent, "--checkpoint", tmp_path / "c", "--plan")
    assert other.code == 0
    brokers = ("--brokers", "a:1,b:2", "--to-brokers", "b:2,c:3")
    job = prepared(*brokers, "--checkpoint", tmp_path / "c")
    assert job.written_where_read([TopicPartition("orders", 0)]) == {"orders"}


def test_a_copy_onto_itself_by_another_address(tmp_path: Path) -> None:
    with BrokerCluster(1, directory=str(tmp_path / "cluster")) as cluster:
        cluster.create_topic("orders", 1)
        cluster.append("orders", b"once")
        brokers = (
            "--brokers",
            cluster.bootstrap,
            "--to-brokers",
            cluster.bootstrap.replace("127.0.0.1", "localhost"),
        )
        job = prepared(*brokers, "--checkpoint", tmp_path / "c")
        with pytest.raises(BadUsage, match="orders is source and target"):
            job.run(InProcess())
        assert [record.value for record in cluster.scan("orders", 0)] == [b"once"]


def test_two_topics_are_not_merged(command: Command, source: Path, tmp_path: Path) -> None:
    append(source / "other-0", [(NOON_MS, "k", "v")])
    line = ["replay", source, "--to", tmp_path / "t", "--checkpoint", tmp_path / "c", "--plan"]
    assert "several topics would be written to orders" in command(*line, "--rename", "other=orders").err


def test_a_checkpoint_belongs_to_one_replay(command: Command, source: Path, tmp_path: Path) -> None:
    """Other filters would leave holes that nobody sees."""
    line = (source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c")
    begun = ("--key", "k1", "--since", "7", "--rename", "orders=copies")
    run(*line, *begun)
    refused = command("replay", *line, "--plan").err
    assert (
        f"belongs to a replay with --to {tmp_path}/copy --rename orders=copies --key k1 --since 7:" in refused
    )
    assert command("replay", *line, *begun, "--plan").code == 0


def test_a_source_that_was_made_anew(command: Command, source: Path, tmp_path: Path) -> None:
    line = (source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c")
    place = source / "orders-0" / "partition.metadata"
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    run(*line)
    assert command("replay", *line, "--plan").code == 0
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    assert "but what was replayed is of AAAAAAAAAAAAAAAAAAAAAQ" in command("replay", *line, "--plan").err


def test_a_source_that_is_made_anew_during_the_job(source: Path, tmp_path: Path) -> None:
    """Its tasks may have read records of both topics."""
    place = source / "orders-0" / "partition.metadata"
    place.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    line = (source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c")
    with pytest.raises(DataLoss, match="topic id AAAAAAAAAAAAAAAAAAAAAg, but what was replayed is of"):
        prepared(*line).run(Recreates(place.parent))
    assert not (tmp_path / "copy" / "orders-0").exists()
    prepared(*line, "--option", "failOnDataLoss=false").run(Recreates(place.parent))
    assert read(tmp_path / "copy" / "orders-0") == read(source / "orders-0")


def test_a_source_that_became_shorter(command: Command, source: Path, tmp_path: Path) -> None:
    line = (source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c")
    run(*line)
    with Log.open(source / "orders-0") as log:
        log.truncate_to(20)
    assert "orders-0 ends at 20 but was replayed up to 23" in command("replay", *line, "--plan").err


def test_a_target_with_fewer_partitions(source: Path, tmp_path: Path) -> None:
    append(tmp_path / "copy" / "orders-0", [(NOON_MS, "k", "v")])
    with pytest.raises(Exception, match="topic orders has 1 partitions, the source 3"):
        run(source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c")
    assert len(read(tmp_path / "copy" / "orders-0")) == 1


def test_publications_and_their_pace() -> None:
    pieces = [OffsetRange("t", 0, 10 * n, 10 * n + 10) for n in range(5)]
    assert [len(group) for group in grouped(pieces, 2)] == [2, 2, 1]
    assert [len(group) for group in grouped(pieces, 9, 30)] == [3, 2]
    assert [len(group) for group in grouped(pieces, 9, 5)] == [1, 1, 1, 1, 1]
    assert grouped([], 3) == []
    assert wait_s(1000, None, 0.0) == 0
    assert wait_s(1000, 100, 4.0) == 6.0
    assert wait_s(1000, 100, 40.0) == 0


def test_with_a_rate_publications_wait(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No publication is of more than two seconds' records, and each waits until its records are due."""
    waited: list[float] = []

    class Clocked:
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    monkeypatch.setattr(replay, "Event", Clocked)
    monkeypatch.setattr(replay, "steady_s", lambda: 0.0)
    facts = run(source, "--to", tmp_path / "copy", "--checkpoint", tmp_path / "c", "--rate", 5).facts
    assert facts["publications"] == len(waited) >= 4
    assert all(later - before <= 2 for before, later in pairwise([0.0, *waited]))
    assert waited[-1] == 34 / 5


# --- on Spark -----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_from_a_directory_to_brokers_and_back(
    spark: SparkSession, command: Command, source: Path, tmp_path: Path
) -> None:
    with BrokerCluster(3) as cluster:
        there = ["replay", source, "--to-brokers", cluster.bootstrap, "--checkpoint", tmp_path / "there"]
        done = command(*there, "--task-records", 6, "--publish-tasks", 4, "--json")
        assert done.code == 0, done.err
        assert done.facts["records"] == 34
        assert command(*there, "--json").facts["records"] == 0
        with BlockingClient([parse_address(each) for each in cluster.bootstrap.split(",")]) as client:
            found = {partition: fields(client.scan("orders", partition)) for partition in PARTITIONS}
        back = ["replay", "--brokers", cluster.bootstrap, "--to", tmp_path / "back", "--json"]
        assert command(*back, "--checkpoint", tmp_path / "c").facts["records"] == 34
    for partition in PARTITIONS:
        original = read(source / f"orders-{partition}")
        assert found[partition] == original
        assert read(tmp_path / "back" / f"orders-{partition}") == original
