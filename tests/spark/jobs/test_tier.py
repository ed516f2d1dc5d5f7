"""`tier`: what is copied and when, what a reader gets of tier and live log together, whatever ended a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore import Log, LogConfig
from logstore.broker import Broker, BrokerConfig
from logstore.broker.limits import parse_address
from logstore.broker.wire import types as t
from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offset_checkpoint,
)
from logstore.checkpoint.identity import META_PROPERTIES
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.spark.columns import parse_columns, spark_schema
from logstore.spark.errors import DataLoss, InvalidOption
from logstore.spark.jobs import tier as job
from logstore.spark.jobs.tier import Tiering, sealed
from logstore.spark.logs import Bounds, Cause, Missing, OffsetRange
from logstore.spark.read_options import ReadOptions, Selection
from logstore.spark.readers import StreamReader
from logstore.spark.reading import open_logs, plan_batch, read_range
from logstore.spark.tier import CorruptTier, Tier
from logstore.testing.disks import RecordingDisk
from tests.broker.asking import Asker
from tests.spark.jobs.conftest import NOON_MS, Command, append
from tests.spark.jobs.in_process import InProcess

fsspec = pytest.importorskip("fsspec", reason="needs the extra `tier`")

T0 = TopicPartition("t", 0)
SCHEMA = spark_schema(parse_columns("offset", include_headers=False))
SMALL = 600
"""Bytes of a segment, for two or three batches."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path}/tier"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped log of a hundred records in many segments."""
    write(tmp_path / "data", range(100))
    return tmp_path / "data"


def write(data: Path, numbers: Sequence[int]) -> None:
    rows = [(NOON_MS + n, f"k{n}", f"value-{n}") for n in numbers]
    append(data / "t-0", rows, segment_bytes=SMALL)


def tiering(data: Path, url: str, *, allows_holes: bool = False) -> Tiering:
    return Tiering((str(data),), Selection(pattern=".*"), url, allows_holes)


def run(data: Path, url: str, *, allows_holes: bool = False) -> dict[str, Any]:
    with InProcess() as workers:
        return dict(tiering(data, url, allows_holes=allows_holes).run(workers).facts)


def tiered_to(url: str) -> int:
    return Tier(url).manifest(T0).bounds.end_offset


def read(
    data: Path, url: str | None, start: int | None = None, end: int | None = None, **options: str
) -> tuple[list[int], list[Missing]]:
    """The offsets that a reader gets, and what is missing; by default all that is planned."""
    given = {"path": str(data), "subscribe": "t", **({} if url is None else {"tier": url}), **options}
    parsed = ReadOptions.parse(given, streaming=False)
    missing: list[Missing] = []
    with closing(open_logs(parsed)) as logs:
        (wanted,) = plan_batch(parsed, logs)
        if start is not None and end is not None:
            wanted = OffsetRange("t", 0, start, end)
        rows = list(logs.read(wanted, ("offset", "key", "value"), missing))
    for each in rows:
        for n, key, value in zip(*(column.to_pylist() for column in each.columns), strict=True):
            assert (key, value) == (f"k{n}".encode(), f"value-{n}".encode())
    return [n for each in rows for n in each.column("offset").to_pylist()], missing


def drop_segments(data: Path, below: int) -> None:
    """As retention does: whole segments."""
    bases = [int(file.stem) for file in sorted((data / "t-0").glob("*.log"))]
    config = LogConfig(segment_bytes=SMALL, file_delete_delay_ms=0, retention_ms=-1)
    with Log.open(data / "t-0", config) as log:
        log.delete_records(max((base for base in bases if base <= below), default=0))
        log.maintain()


# --- what is copied -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("below", "tiered", "expected"),
    [
        (100, Bounds(0, 0), [(0, 10, 7), (10, 30, 8)]),
        (29, Bounds(0, 0), [(0, 10, 7)]),
        (30, Bounds(0, 10), [(10, 30, 8)]),
        (30, Bounds(0, 15), [(15, 30, 8)]),
        (30, Bounds(0, 30), []),
    ],
)
def test_sealed_segments_below_an_offset(
    below: int, tiered: Bounds, expected: list[tuple[int, int, int]]
) -> None:
    """The last segment is never sealed; of one that is tiered in part, the rest is left."""
    assert sealed([(0, 7), (10, 8), (30, 9)], below, tiered) == expected


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_objects_are_the_segments_and_repeated_runs_copy_what_is_new(
    data: Path, tmp_path: Path, scheme: str
) -> None:
    url = f"{scheme}://{tmp_path}/tier"
    facts = run(data, url)
    logs = sorted((data / "t-0").glob("*.log"))
    assert facts["segments"] == len(logs) - 1
    place = Tier(url)
    manifest = place.manifest(T0)
    assert [place.files.cat_file(place.path(T0, each.name)) for each in manifest.objects] == [
        each.read_bytes() for each in logs[:-1]
    ]
    ends = [int(each.stem) for each in logs]
    assert [each.start_offset for each in manifest.objects] == ends[:-1]
    assert [each.end_offset for each in manifest.objects] == ends[1:]
    assert all(each.first_epoch == each.last_epoch == 0 for each in manifest.objects)
    assert run(data, url)["segments"] == 0
    write(data, range(100, 150))
    more = tiering(data, url).plan().facts
    assert more["segments"] == run(data, url)["segments"] > 0
    assert read(data, url) == (list(range(150)), [])


def test_objects_are_durable_before_a_manifest_names_them(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes the segments next, and then the power fails."""
    disk = RecordingDisk(OsDisk())
    monkeypatch.setattr("logstore.spark.tier.OsDisk", lambda: disk)
    run(data, f"file://{tmp_path}/tier")
    place = tmp_path / "tier" / "t-0"
    steps = [(each.name, each.path) for each in disk.operations]
    named = steps.index(("rename", f"{place}/manifest.json.tmp"))
    for step in (("sync_dir", str(tmp_path)), ("sync_dir", f"{tmp_path}/tier")):
        assert step in steps[:named]
    for name in Tier(f"file://{tmp_path}/tier").manifest(T0).objects:
        at = steps.index(("sync", f"{place}/{name.name}"))
        assert steps[at + 1] == ("sync_dir", str(place))
    assert steps[-1] == ("sync_dir", str(place))


def test_nothing_above_recovery_point_high_watermark_and_open_transactions(data: Path, url: str) -> None:
    """A broker's log without checkpoints is not touched."""
    (data / META_PROPERTIES).write_text("version=0\nbroker.id=1\n")
    (data / ".lock").touch()
    for each in (data / "t-0").glob("*checkpoint*"):
        each.unlink()
    assert run(data, url)["segments"] == 0
    disk = OsDisk()
    write_offset_checkpoint(disk, str(data), RECOVERY_POINT_CHECKPOINT, {T0: 90})
    assert run(data, url)["segments"] == 0
    write_offset_checkpoint(disk, str(data), HIGH_WATERMARK_CHECKPOINT, {T0: 40})
    run(data, url)
    assert 0 < tiered_to(url) <= 40
    write_offset_checkpoint(disk, str(data), HIGH_WATERMARK_CHECKPOINT, {T0: 100})
    run(data, url)
    assert 40 < tiered_to(url) <= 90


def test_aborted_records_stay_invisible(tmp_path: Path, url: str) -> None:
    """Producer 1 aborts and 2 commits, over several segments; 3 is undecided and ends the tier."""
    sequences = dict.fromkeys(range(1, 4), 0)
    with Log.open(tmp_path / "data" / "t-0", LogConfig(segment_bytes=200)) as log:

        def write_as(producer: int, *numbers: int) -> None:
            for n in numbers:
                record = Record(0, NOON_MS, f"k{n}".encode(), f"value-{n}".encode())
                log.append_batches(
                    encode_batch(
                        [record], producer_id=producer, producer_epoch=0,
                        base_sequence=sequences[producer], is_transactional=True,
                    )
                )  # fmt: skip
                sequences[producer] += 1

        for n in range(6):
            write_as(1 + n % 2, n)
        log.end_transaction(1, 0, commit=False)
        log.end_transaction(2, 0, commit=True)
        write_as(3, 8)
        write_as(2, *range(9, 14))
    run(tmp_path / "data", url)
    assert tiered_to(url) == 8
    found, missing = read(tmp_path / "data", url, isolation="read_committed")
    assert found == [1, 3, 5]
    assert {each.cause for each in missing} == {Cause.ABORTED}
    assert sum(each.offsets for each in missing) == 3
    assert read(tmp_path / "data", None, isolation="read_committed")[0] == [1, 3, 5]


# --- whatever ends a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(3))
def test_a_run_that_ended_midway_goes_on(
    data: Path, url: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before an object, after it, and before its manifest: the next run completes it."""
    calls = 0

    def fails(function: Callable[..., Any], when: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                if when == 1:
                    function(*arguments)
                raise OSError("killed")
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        if at < 2:
            patch.setattr(job, "copy", fails(job.copy, at))
        else:
            patch.setattr(Tier, "put_manifest", fails(Tier.put_manifest, 0))
        with pytest.raises(OSError, match="killed"):
            run(data, url)
    assert len(Tier(url).manifest(T0).objects) == 2
    assert read(data, url) == (list(range(100)), [])
    run(data, url)
    assert read(data, url) == (list(range(100)), [])


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_late_attempt_leaves_the_object_that_the_manifest_names(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Spark may run a task twice, or a lost executor go on: retention has removed its segment by then."""
    url = f"{scheme}://{tmp_path}/tier"
    attempts: list[Any] = []

    def copied(segment: Any, copy: Any = job.copy) -> Any:
        attempts.append(segment)
        return copy(segment)

    with monkeypatch.context() as patch:
        patch.setattr(job, "copy", copied)
        run(data, url)
    drop_segments(data, below=50)
    with pytest.raises(DataLoss):
        job.copy(attempts[0])
    job.copy(attempts[-1])
    assert read(data, url) == (list(range(100)), [])
    tier = Tier(url)
    named = {each.name for each in tier.manifest(T0).objects}
    there = {path.rpartition("/")[2] for path in tier.files.ls(tier.path(T0, ""), detail=False)}
    assert len(there - named - {"manifest.json"}) == 1, "what the failed attempt wrote is removed"


def test_damage_is_not_tiered(data: Path, url: str) -> None:
    first = min((data / "t-0").glob("*.log"))
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    with pytest.raises(DataLoss, match="t-0: offsets 0 to"):
        run(data, url)
    assert tiered_to(url) == 0


def test_an_object_that_is_not_what_was_written(
    data: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = job._compare

    def loses_a_byte(place: Tier, path: str, size: int, digest: str) -> None:
        place.files.pipe_file(path, place.files.cat_file(path)[:-1])
        real(place, path, size, digest)

    monkeypatch.setattr(job, "_compare", loses_a_byte)
    with pytest.raises(EngineError, match="are not the"):
        run(data, url)
    assert tiered_to(url) == 0


# --- reading ------------------------------------------------------------------------------------------------


def test_every_range_is_read_once_whatever_the_live_log_still_has(data: Path, url: str) -> None:
    run(data, url)
    end = tiered_to(url)
    for below in (0, 40, 1000):
        drop_segments(data, below)
        assert read(data, url) == (list(range(100)), [])
        for first in (7, end - 1, end):
            for last in (first + 1, end, 100):
                if first < last:
                    assert read(data, url, first, last) == (list(range(first, last)), [])
    found, _ = read(data, url, startingTimestamp=str(NOON_MS + 33))
    assert found == list(range(33, 100))
    late, _ = read(data, url, startingTimestamp=str(NOON_MS + 98))
    assert late == [98, 99]
    # Without the tier, what retention took is gone.
    assert read(data, None)[0][0] > 0


def test_a_hole_is_refused_or_named(data: Path, url: str) -> None:
    run(data, url)
    before = tiered_to(url)
    write(data, range(100, 200))
    drop_segments(data, 150)
    with pytest.raises(DataLoss, match=f"offsets {before} to .* were deleted .* --allow-holes"):
        run(data, url)
    run(data, url, allows_holes=True)
    found, missing = read(data, url)
    (lost,) = missing
    assert (lost.cause, lost.start_offset) == (Cause.EXPIRED, before)
    assert found == [n for n in range(200) if not before <= n < lost.end_offset]


def test_a_damaged_tier_is_a_loss_with_its_place(data: Path, url: str) -> None:
    run(data, url)
    place = Tier(url)
    first, second, *_ = place.manifest(T0).objects
    content = bytearray(place.files.cat_file(place.path(T0, first.name)))
    content[-1] ^= 1
    place.files.pipe_file(place.path(T0, first.name), bytes(content))
    place.files.rm_file(place.path(T0, second.name))
    _, missing = read(data, url)
    assert [(each.cause, each.end_offset) for each in missing] == [
        (Cause.DAMAGED, first.end_offset),
        (Cause.DAMAGED, second.end_offset),
    ]
    assert second.name in missing[1].detail


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [0, 1, 2])
def test_an_object_that_was_cut_is_a_loss_from_there_on(data: Path, url: str, case: int) -> None:
    """Nothing is left, or the first batch, or all but the last byte."""
    run(data, url)
    place = Tier(url)
    cut = place.manifest(T0).objects[2]
    content = place.files.cat_file(place.path(T0, cut.name))
    first, *_, last = walk(content)
    size, offset = [(0, 0), (first.size, first.next_offset), (len(content) - 1, last.base_offset)][case]
    place.files.pipe_file(place.path(T0, cut.name), content[:size])
    drop_segments(data, 60)
    found, (lost,) = read(data, url)
    assert (lost.cause, lost.end_offset) == (Cause.DAMAGED, cut.end_offset)
    assert lost.start_offset == (offset or first.base_offset)
    assert found == [n for n in range(100) if not lost.start_offset <= n < lost.end_offset]


def test_a_manifest_of_another_version(url: str) -> None:
    place = Tier(url)
    place.files.makedirs(f"{place.root}/t-0", exist_ok=True)
    place.files.pipe_file(place.path(T0, "manifest.json"), b'{"version": 2}')
    with pytest.raises(CorruptTier, match="version is 2, not 1"):
        place.manifest(T0)


@pytest.mark.parametrize("lost", [0, 3])
def test_records_that_an_unclean_election_cut(data: Path, url: str, lost: int) -> None:
    """The tier has others at these offsets than the log. Without a loss, a new epoch is nothing new."""
    run(data, url)
    end_offset = tiered_to(url) - lost
    with Log.open(data / "t-0", LogConfig(segment_bytes=SMALL)) as log:
        log.truncate_to(end_offset)
        for n in range(end_offset, 150):
            batch = encode_batch([Record(0, NOON_MS + n, f"k{n}".encode(), f"value-{n}".encode())])
            append_as_leader(log.partition, batch, leader_epoch=1, now_ms=NOON_MS)
    if lost:
        for attempt in (run, read):
            with pytest.raises(CorruptTier, match=f"the log ended that epoch at {end_offset}"):
                attempt(data, url)
        return
    run(data, url)
    assert tiered_to(url) > end_offset
    assert read(data, url) == (list(range(150)), [])


def test_the_tier_of_a_topic_that_was_made_anew_is_refused(data: Path, url: str) -> None:
    """Of the same id, or where one of them is unknown, it reads."""
    name_topic(data, "AAAAAAAAAAAAAAAAAAAAAQ")
    run(data, url)
    assert Tier(url).manifest(T0).topic_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert read(data, url) == (list(range(100)), [])
    (data / "t-0" / "partition.metadata").unlink()
    assert read(data, url) == (list(range(100)), [])
    name_topic(data, "AAAAAAAAAAAAAAAAAAAAAg")
    with pytest.raises(CorruptTier, match="recreated"):
        run(data, url)
    with pytest.raises(CorruptTier, match="id AAAAAAAAAAAAAAAAAAAAAQ, the log has AAAAAAAAAAAAAAAAAAAAAg"):
        read(data, url)
    options = ReadOptions.parse({"path": str(data), "subscribe": "t", "tier": url}, streaming=False)
    with pytest.raises(CorruptTier, match="recreated"):  # between the plan and the task
        list(read_range(options, OffsetRange("t", 0, 0, 5)))
    assert read(data, None) == (list(range(100)), [])


def name_topic(data: Path, topic_id: str) -> None:
    (data / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def test_a_reader_of_brokers_refuses_it_too(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/tier"
    config = BrokerConfig(
        log_dirs=(str(data),), metadata=f"embedded:{tmp_path}/store", settings={"log.segment.bytes": SMALL}
    )
    with Broker(config) as broker:
        broker.create_topic("t", 1)
        for n in range(61):
            broker.append("t", [(f"k{n}".encode(), f"value-{n}".encode())])
    run(data, url)
    tiered = Tier(url).manifest(T0)
    with Broker(config) as broker:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "tier": url}
        assert rows_of(given) == (list(range(61)), [])
        Tier(url).put_manifest(T0, replace(tiered, topic_id="AAAAAAAAAAAAAAAAAAAAAg"))
        with pytest.raises(CorruptTier, match=f"id AAAAAAAAAAAAAAAAAAAAAg, the log has {tiered.topic_id}"):
            rows_of(given)
        cut = replace(tiered.objects[-1], last_offset=61)
        Tier(url).put_manifest(T0, replace(tiered, objects=(cut,)))
        with pytest.raises(CorruptTier, match="epoch 0 up to offset 61, but the log ended that epoch at 61"):
            rows_of(given)


# --- while records move -------------------------------------------------------------------------------------


def test_what_is_tiered_and_removed_during_a_read_comes_from_the_tier(data: Path, url: str) -> None:
    """A task has read the manifest; then the job copies more, and retention removes it from the live log."""
    run(data, url)
    before = tiered_to(url)
    write(data, range(100, 300))
    parsed = ReadOptions.parse({"path": str(data), "subscribe": "t", "tier": url}, streaming=False)
    missing: list[Missing] = []
    with closing(open_logs(parsed)) as logs:
        rows = logs.read(OffsetRange("t", 0, 0, 300), ("offset",), missing)
        found = next(rows).column("offset").to_pylist()
        run(data, url)
        drop_segments(data, 250)
        found += [n for each in rows for n in each.column("offset").to_pylist()]
    assert tiered_to(url) > 250 > before
    assert (found, missing) == (list(range(300)), [])


def test_a_loss_in_front_of_what_was_tiered_meanwhile(data: Path, url: str) -> None:
    """Retention was faster than the job: the hole is named, and the rest comes from the tier."""
    run(data, url)
    before = tiered_to(url)
    write(data, range(100, 200))
    parsed = ReadOptions.parse({"path": str(data), "subscribe": "t", "tier": url}, streaming=False)
    missing: list[Missing] = []
    with closing(open_logs(parsed)) as logs:
        rows = logs.read(OffsetRange("t", 0, 0, 200), ("offset",), missing)
        found = next(rows).column("offset").to_pylist()
        drop_segments(data, 120)
        run(data, url, allows_holes=True)
        write(data, range(200, 300))
        run(data, url)
        drop_segments(data, 250)
        found += [n for each in rows for n in each.column("offset").to_pylist()]
    (lost,) = missing
    assert (lost.cause, lost.start_offset) == (Cause.EXPIRED, before)
    assert 100 < lost.end_offset <= 120
    assert found == [n for n in range(200) if not before <= n < lost.end_offset]


def test_a_stream_takes_each_offset_once_while_segments_move_to_the_tier(data: Path, url: str) -> None:
    """From the tier's first offset on, over restarts, whatever retention removes behind the job."""
    run(data, url)
    drop_segments(data, 1000)
    found: list[int] = []
    at: dict[str, Any] | None = None
    for appended in range(100, 400, 100):
        given = {"path": str(data), "subscribe": "t", "startingOffsets": "earliest", "columns": "offset"}
        stream = StreamReader({**given, "maxOffsetsPerTrigger": "17", "tier": url}, SCHEMA)
        at = at or stream.initialOffset()
        for step in range(4):
            end = stream.latestOffset(at, stream.getDefaultReadLimit())
            for task in stream.partitions(at, end):
                found += [n for each in stream.read(task) for n in each.column(0).to_pylist()]
            stream.commit(end)
            at = end
            if step == 1:
                write(data, range(appended, appended + 100))
                run(data, url)
                drop_segments(data, appended + 100)
        stream.stop()
    assert found == list(range(12 * 17))


# --- the command --------------------------------------------------------------------------------------------


def test_a_plan_and_bad_usage(command: Command, data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    plan = command("tier", data, "--to", url, "--plan", "--json").facts
    assert plan["segments"] == len(list((data / "t-0").glob("*.log"))) - 1
    assert not (tmp_path / "tier").exists()
    wrong = command("tier", data, "--to", tmp_path / "tier", "--plan")
    assert (wrong.code, wrong.err) == (
        2,
        f"logstore: --to {tmp_path}/tier is not a URL; a directory is file://{tmp_path}/tier\n",
    )
    assert "is relative" in command("tier", data, "--to", "file://tier", "--plan").err
    with pytest.raises(InvalidOption, match="tier 'nope://x' cannot be opened"):
        Tier("nope://x")


@pytest.mark.spark
def test_in_spark(spark: Any, command: Command, data: Path, tmp_path: Path) -> None:
    """Tasks copy; a query reads tier and live log as one."""
    url = f"file://{tmp_path}/tier"
    facts = command("tier", data, "--to", url, "--json").facts
    assert facts["segments"] > 2
    drop_segments(data, 60)
    rows = spark.read.format("logstore").option("subscribe", "t").option("tier", url)
    rows = rows.option("maxRecordsPerPartition", 17).load(str(data))
    assert sorted(row["offset"] for row in rows.select("offset").collect()) == list(range(100))
    assert json.loads((tmp_path / "tier" / "t-0" / "manifest.json").read_text())["version"] == 1
    for appended in range(100, 300, 100):
        stream = spark.readStream.format("logstore").option("subscribe", "t").option("tier", url)
        stream = stream.option("startingOffsets", "earliest").option("columns", "offset").load(str(data))
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "table")).collect()
        assert sorted(row["offset"] for row in found) == list(range(appended))
        write(data, range(appended, appended + 100))
        command("tier", data, "--to", url)
        drop_segments(data, appended + 50)


def test_a_brokers_directory_and_the_broker_itself(tmp_path: Path) -> None:
    """A stopped broker's segments are copied; a reader of the running one gets what it deleted meanwhile."""
    data, url = tmp_path / "data", f"file://{tmp_path}/tier"
    config = BrokerConfig(
        log_dirs=(str(data),), metadata=f"embedded:{tmp_path}/store", settings={"log.segment.bytes": SMALL}
    )
    with Broker(config) as broker:
        broker.create_topic("t", 1)
        for n in range(60):
            broker.append("t", [(f"k{n}".encode(), f"value-{n}".encode())])
    run(data, url)
    assert tiered_to(url) > 40
    with Broker(config) as broker:
        asyncio.run(delete_records(broker.bootstrap, 30))
        for n in range(60, 70):
            broker.append("t", [(f"k{n}".encode(), f"value-{n}".encode())])
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "isolation": "read_committed"}
        alone, lost = rows_of(given)
        assert (alone, lost) == (list(range(30, 70)), [])
        assert rows_of({**given, "tier": url}) == (list(range(70)), [])


async def delete_records(bootstrap: str, offset: int) -> None:
    partition = t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=offset)
    topic = t.DeleteRecordsRequestDeleteRecordsTopic(name="t", partitions=[partition])
    async with asyncio.timeout(30), Asker(parse_address(bootstrap)) as client:
        answer = await client.ask(t.DeleteRecordsRequest(topics=[topic], timeout_ms=20_000), 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def rows_of(options: dict[str, str]) -> tuple[list[int], list[Missing]]:
    """The offsets that are planned and read."""
    parsed = ReadOptions.parse(options, streaming=False)
    missing: list[Missing] = []
    with closing(open_logs(parsed)) as logs:
        (wanted,) = plan_batch(parsed, logs)
        rows = list(logs.read(wanted, ("offset",), missing))
    return [n for each in rows for n in each.column("offset").to_pylist()], missing
