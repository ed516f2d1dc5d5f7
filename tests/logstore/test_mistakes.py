"""Mistakes of programs that embed a log: one clear error each, and nothing on disk has changed.

A row is a call, the error, and a part of the sentence that says what to do.
"""

# mypy: disable-error-code="arg-type,call-arg,list-item,dict-item"

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from logstore import AsyncLog, InvalidConfig, Log, LogConfig, LogReader, Queue, QueueConfig
from logstore.broker import BlockingClient, Broker, BrokerConfig
from logstore.broker.settings import read_settings
from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.disk.files import OsDisk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch, LogClosed, LogDirOffline, LogGone, OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import FetchIsolation
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.queue.errors import AlreadyFinished, NotAQueue, QueueClosed

SMALL = LogConfig(segment_index_bytes=1200)


class World(NamedTuple):
    """A log of three records, a log that was closed, and a queue with a leased message."""

    path: Path
    log: Log
    closed: Log
    queue: Queue
    message: Any


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    log = Log.open(tmp_path / "orders-0", SMALL)
    log.append([b"a", b"b", b"c"], sync=True)
    log.cursor("billing").commit(1)
    closed = Log.open(tmp_path / "closed-0", SMALL)
    closed.append(b"a", sync=True)
    closed.close()
    queue = Queue(tmp_path / "jobs")
    queue.put(b"a")
    (tmp_path / "file-0").write_bytes(b"mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    yield World(tmp_path, log, closed, queue, queue.get(timeout=0))
    queue.close()
    log.close()


def content(path: Path) -> dict[str, bytes | None]:
    return {str(each): each.read_bytes() if each.is_file() else None for each in sorted(path.rglob("*"))}


Call = Callable[[Any], object]
OPENING: list[tuple[Call, type[Exception], str]] = [
    (lambda w: Log.open(w.path / "new-0", {"segment.bytes": "1"}), TypeError, "LogConfig.from_kafka"),
    (lambda w: LogConfig.from_kafka({"segment.bytes": None}), InvalidConfig, "must be of type int"),
    (lambda w: LogConfig.from_kafka({"segment.bytes": "9" * 5000}), InvalidConfig, "is not an integer"),
    (lambda w: LogConfig.from_kafka({"segment.bytes": 1e6}), InvalidConfig, "must be of type int"),
    (lambda w: LogConfig.from_kafka({"preallocate": 1}), InvalidConfig, "must be of type bool"),
    (lambda w: LogConfig.from_kafka([("segment.bytes", 1)]), InvalidConfig, "are a mapping such as"),
    (lambda w: LogConfig.from_kafka({"segment.byts": 1}), InvalidConfig, r"did you mean segment\.bytes"),
    (lambda w: LogConfig(segment_bytes="1"), InvalidConfig, "must be of type int"),
    (lambda w: LogManagerConfig.from_kafka({"log.segment.bytes": None}), InvalidConfig, "of type int"),
    (lambda w: Log(str(w.path)), TypeError, r"use Log\.open\(path\)"),
    (lambda w: AsyncLog(str(w.path)), TypeError, r"use AsyncLog\.open\(path\)"),
    (lambda w: Log.open(None), TypeError, "expected str, bytes or os.PathLike"),
    (lambda w: Log.open(w.path / "file-0"), LogDirOffline, "must be a directory"),
    (lambda w: Log.open(w.path / "orders"), InvalidTopic, "such as orders-0"),
    (lambda w: Log.open(""), ValueError, "the path of the directory is empty"),
    (lambda w: Log.open(w.path / "orders-0"), DirectoryLocked, "close the other owner first"),
    (lambda w: Log.open(os.fsencode(w.path / "orders-0")), DirectoryLocked, "close the other owner first"),
    (lambda w: Log.open(w.path / "new-0", serializer="pickle"), InvalidConfig, "pass the module itself"),
    (lambda w: Log.open(w.path / "new-0", serializer=7), TypeError, "no dumps and loads"),
    (lambda w: LogReader(w.path / "file-0"), LogGone, "is not a directory; name the directory of a log"),
    (lambda w: LogReader(w.path / "gone-0"), LogGone, "does not exist"),
    (lambda w: LogReader(w.path), LogGone, "name one, such as .*/closed-0"),
    (lambda w: LogReader(7), TypeError, "expected str, bytes or os.PathLike"),
    (lambda w: LogReader(w.path / "orders-0", start_offset="0"), TypeError, "an offset is an int, not str"),
    (lambda w: LogReader(w.path / "orders-0").seek(1.5), TypeError, "an offset is an int, not float"),
    (lambda w: list(LogReader(w.path / "orders-0", start_offset=9).records()), OffsetOutOfRange, r"\[0, 3\]"),
    (lambda w: list(LogReader(w.path / "orders-0", start_offset=-2).records()), OffsetOutOfRange, "t -2"),
    (lambda w: next(LogReader(w.path / "orders-0").follow(-2)), OffsetOutOfRange, "t -2"),
    (lambda w: LogReader(w.path / "orders-0").follow("0"), TypeError, "an offset is an int"),
    (lambda w: LogReader(w.path / "orders-0", disk="/mnt"), TypeError, "disk is a Disk, such as"),
    (lambda w: Log.open(w.path / "new-0", disk=w.path), TypeError, "disk is a Disk, such as"),
    (lambda w: Log.open(w.path / "new-0", create="no"), TypeError, "create is True or False, not 'no'"),
    (lambda w: Log.open(w.path / "new-0", accept_loss="no"), TypeError, "accept_loss is True or False"),
    (lambda w: w.log.snapshot(w.path / "orders-0"), FileExistsError, "name a new directory"),
    (lambda w: w.log.snapshot(w.path / "copy-0", end_offset=-1), OffsetOutOfRange, r"outside \[0, 3\]"),
    (lambda w: w.log.snapshot(w.path / "copy-0", end_offset="1"), TypeError, "an offset is an int"),
]  # fmt: skip
WRITING: list[tuple[Call, type[Exception], str]] = [
    (lambda w: w.log.append(), TypeError, "missing 1 required positional argument: 'records'"),
    (lambda w: w.log.append("text"), TypeError, "open the log with a serializer"),
    (lambda w: w.log.append(7), TypeError, "open the log with a serializer"),
    (lambda w: w.log.append({"a": 1}), TypeError, "open the log with a serializer"),
    (lambda w: w.log.append(["text"]), TypeError, "open the log with a serializer"),
    (lambda w: w.log.append((b"a", b"b", b"c")), TypeError, "use a Record for headers"),
    (lambda w: w.log.append(b"v", key="k"), TypeError, "keys, values and header values must be bytes"),
    (lambda w: w.log.append(b"v", headers={"a": b"b"}), TypeError, r"pass list\(headers\.items\(\)\)"),
    (lambda w: w.log.append(b"v", headers=[("a", "b")]), TypeError, "header 'a' is bytes or None, not str"),
    (lambda w: w.log.append(b"v", headers=[(1, b"b")]), TypeError, "the name of a header is a str, not int"),
    (lambda w: w.log.append(b"v", headers="x-id"), TypeError, "headers are .name, value. pairs, not 'x-id'"),
    (lambda w: w.log.append(b"v", timestamp_ms=datetime.now(UTC)), TypeError, r"timestamps int \(ms\)"),
    (lambda w: w.log.append([b"v"], key=b"k"), TypeError, "give records their own"),
    (lambda w: w.log.append_batches(b"no batch" * 20), CorruptBatch, "format version"),
    (lambda w: w.log.append_batches("text"), TypeError, "a bytes-like object is required"),
    (lambda w: w.log.writer(linger_ms="5"), ValueError, "must be a number, at least 0"),
    (lambda w: w.log.writer(max_batch=1.5), TypeError, "max_batch is an int"),
    (lambda w: w.log.writer(max_batch=0), ValueError, "it must be 1 to"),
    (lambda w: w.log.writer().append(), TypeError, "missing 1 required positional argument: 'records'"),
    (lambda w: w.log.writer().append("text"), TypeError, "open the log with a serializer"),
    (lambda w: w.log.writer().append(b"v", timestamp_ms="x"), TypeError, r"timestamps int \(ms\)"),
    (lambda w: w.log.writer().append(Record(0, 1.5, None, b"v")), TypeError, r"timestamps int \(ms\)"),
    (lambda w: w.log.truncate_to("1"), TypeError, "an offset is an int"),
    (lambda w: w.log.truncate_to(-1), ValueError, "cannot truncate to offset -1"),
    (lambda w: w.log.delete_records("1"), TypeError, "an offset is an int"),
    (lambda w: w.log.delete_records(9), OffsetOutOfRange, r"outside \[0, 3\]"),
    (lambda w: w.log.compact(), ValueError, "must contain compact"),
    (lambda w: w.log.maintain("now"), TypeError, "now_ms is an int, not str"),
    (lambda w: w.log.maintain(inf), TypeError, "now_ms is an int, not float"),
    (lambda w: w.closed.append(b"x"), LogClosed, "was closed; open it again"),
    (lambda w: w.closed.flush(), LogClosed, "was closed; open it again"),
    (lambda w: w.closed.writer(), LogClosed, "was closed; open it again"),
    (lambda w: w.closed.maintain(), LogClosed, "was closed; open it again"),
]  # fmt: skip
READING: list[tuple[Call, type[Exception], str]] = [
    (lambda w: w.log.read("0"), TypeError, "an offset is an int, not str"),
    (lambda w: w.log.read(0, 1.5), TypeError, "an offset is an int, not float"),
    (lambda w: list(w.log.read(-1)), OffsetOutOfRange, "start from one of the bounds"),
    (lambda w: w.log.read(max_records=-1), ValueError, "None for no limit"),
    (lambda w: w.log.read(max_records="1"), TypeError, "max_records is an int"),
    (lambda w: w.log.read(max_bytes="1"), TypeError, "max_bytes is an int"),
    (lambda w: w.log.read_values(max_records=-1), ValueError, "None for no limit"),
    (lambda w: w.log.read_keys_values(max_records=-1), ValueError, "None for no limit"),
    (lambda w: w.log.read_reverse(max_records=-1), ValueError, "None for no limit"),
    (lambda w: w.log.read(isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.read(isolation=None), ValueError, "read_committed"),
    (lambda w: w.log.get(0, isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.read_batches(isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.read_bytes(0, isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.follow(isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.cursor("c", isolation="committed"), ValueError, "read_committed"),
    (lambda w: w.log.offset_for_timestamp(0, isolation="x"), ValueError, "read_committed"),
    (lambda w: w.log.read(since="yesterday"), TypeError, "datetime"),
    (lambda w: w.log.read(since=date(2024, 1, 1)), TypeError, "datetime"),
    (lambda w: w.log.read(since=datetime(2024, 1, 1)), ValueError, "has no time zone; give it one"),  # noqa: DTZ001
    (lambda w: w.log.offset_for_timestamp("1"), TypeError, "timestamp_ms is an int"),
    (lambda w: w.log.get("0"), TypeError, "an offset is an int"),
    (lambda w: w.log["a"], TypeError, "an offset is an int"),
    (lambda w: w.log[0:2], TypeError, r"use read\(start, end\)"),
    (lambda w: w.log[3], OffsetOutOfRange, "start from one of the bounds"),
    (lambda w: w.log.is_synced("0"), TypeError, "an offset is an int"),
    (lambda w: w.log.follow("0"), TypeError, "an offset is an int"),
    (lambda w: w.log.follow(0, "1"), TypeError, "None to wait for ever"),
    (lambda w: w.log.follow(0, -1), ValueError, "None to wait for ever"),
    (lambda w: w.log.cursor(""), ValueError, "1 to 249 characters"),
    (lambda w: w.log.cursor(b"billing"), TypeError, "name is text"),
    (lambda w: w.log.cursor("billing").commit(9), OffsetOutOfRange, "start from one of the bounds"),
    (lambda w: w.log.cursor("billing").commit(w.log[0]), TypeError, "an offset is an int, not Record"),
    (lambda w: w.log.cursor("billing").seek("0"), TypeError, "an offset is an int"),
    (lambda w: w.log.cursor("billing").read(max_records="1"), TypeError, "max_records is an int"),
    (lambda w: w.log.cursor("billing").read(timeout=-1), ValueError, "None to wait for ever"),
    (lambda w: w.log.follow(0).seek(None), TypeError, "an offset is an int"),
    (lambda w: list(w.closed.read()), LogClosed, "was closed; open it again"),
    (lambda w: w.closed.get(0), LogClosed, "was closed; open it again"),
    (lambda w: w.closed.cursor("c"), LogClosed, "was closed; open it again"),
]  # fmt: skip
QUEUEING: list[tuple[Call, type[Exception], str]] = [
    (lambda w: Queue(w.path / "new", {"lease": 1}), TypeError, r"pass QueueConfig\(…\)"),
    (lambda w: QueueConfig(lease="1"), InvalidConfig, r"must be a number, 0\.001 to"),
    (lambda w: QueueConfig(priorities={"urgent": "high"}), InvalidConfig, "'high'; it must be an int"),
    (lambda w: QueueConfig(max_deliveries=0.5), InvalidConfig, "must be an int, 1 to"),
    (lambda w: Queue(w.path / "file-0"), NotAQueue, "a queue is a directory"),
    (lambda w: Queue(w.path / "other"), NotAQueue, "choose another directory"),
    (lambda w: Queue(w.path / "orders-0"), NotAQueue, r"open it with Log\.open"),
    (lambda w: Queue(w.path / "jobs"), DirectoryLocked, "close the other owner first"),
    (lambda w: w.queue.put("text"), TypeError, "encode text"),
    (lambda w: w.queue.put(b"x", headers={"a": b"b"}), TypeError, r"pass list\(headers\.items\(\)\)"),
    (lambda w: w.queue.put(b"x", delay="1"), ValueError, "a number of seconds"),
    (lambda w: w.queue.put(b"x", delay=None), ValueError, "a number of seconds"),
    (lambda w: w.queue.put(b"x", delay=""), ValueError, "a number of seconds"),
    (lambda w: w.queue.put(b"x", headers="x-id"), TypeError, "headers are .name, value. pairs"),
    (lambda w: w.queue.put(b"x", headers=[(1, b"b")]), TypeError, "the name of a header is a str"),
    (lambda w: w.queue.put(b"x", topic="a b"), InvalidTopic, "1 to 249 characters"),
    (lambda w: w.queue.put(b"x", topic=["mail"]), TypeError, "a topic is a str, not list"),
    (lambda w: w.queue.get([], timeout=0), ValueError, "topics is empty"),
    (lambda w: w.queue.peek(topic=1), TypeError, "a topic is a str, not int"),
    (lambda w: w.queue.put_many(b"x"), TypeError, "use put"),
    (lambda w: w.queue.get(timeout="1"), TypeError, "a number of seconds"),
    (lambda w: w.queue.ack(b"a"), TypeError, r"pass what get\(\) returned"),
    (lambda w: [w.queue.close(), w.queue.put(b"x")], QueueClosed, "open it again"),
]  # fmt: skip


@pytest.mark.parametrize("row", [*OPENING, *WRITING, *READING, *QUEUEING], ids=lambda row: row[2][:30])
def test_a_mistake_is_named_and_changes_nothing(world: World, row: tuple[Call, type[Exception], str]) -> None:
    call, error, advice = row
    if error is QueueClosed:
        world.queue.close()
    before = content(world.path)
    with pytest.raises(error, match=advice) as caught:
        call(world)
    assert type(caught.value) is error, "not a kind of it by accident"
    assert content(world.path) == before
    assert world.log.log_end_offset == 3


def test_a_message_is_acknowledged_once(world: World) -> None:
    world.queue.ack(world.message)
    before = content(world.path)
    with pytest.raises(AlreadyFinished, match="it was acknowledged before"):
        world.queue.ack(world.message)
    assert content(world.path) == before


def test_what_is_no_mistake(tmp_path: Path) -> None:
    settings: Mapping[str, Any] = {
        "segment.bytes": 16_777_216,
        "min.cleanable.dirty.ratio": 1,
        "preallocate": False,
        "cleanup.policy": "compact",
    }
    config = LogConfig.from_kafka(settings)
    assert (config.segment_bytes, config.min_cleanable_dirty_ratio) == (16_777_216, 1)
    assert LogManagerConfig.from_kafka({"log.retention.hours": 2}).topic_defaults.retention_ms == 7_200_000
    broker = read_settings({"num.partitions": 3, "log.preallocate": False}, node_id=1, host="h", port=1)
    assert broker.node.controller.num_partitions == 3
    with Log.open(os.fsencode(tmp_path / "orders-0"), config) as log:
        log.append(None, key=b"k")
        reader = LogReader(os.fsencode(tmp_path / "orders-0"))
        assert [record.key for record in reader.records()] == [b"k"]


ASYNC: list[tuple[Call, type[Exception], str]] = [
    (lambda log: log.append(), TypeError, "missing 1 required positional argument"),
    (lambda log: log.append("text"), TypeError, "open the log with a serializer"),
    (lambda log: log.get("0"), TypeError, "an offset is an int"),
    (lambda log: log.end_transaction("7", 0, commit=True), TypeError, "producer_id"),
    (lambda log: log.end_transaction(7, 0, commit="no"), TypeError, "commit is True or False, not 'no'"),
    (
        lambda log: log.end_transaction(1 << 63, 0, commit=True),
        ValueError,
        "producer_id is 9223372036854775808",
    ),
    (lambda log: anext(log.read(isolation="committed")), ValueError, "read_committed"),
    (lambda log: anext(log.read("0")), TypeError, "an offset is an int"),
]
ASYNC_CLOSED: list[Call] = [
    lambda log: log.append(b"x"),
    lambda log: log.flush(),
    lambda log: anext(log.read()),
]


def test_mistakes_of_tasks(tmp_path: Path) -> None:
    async def program() -> None:
        with pytest.raises(TypeError, match=r"LogConfig\.from_kafka"):
            await AsyncLog.open(tmp_path / "new-0", {})
        log = await AsyncLog.open(tmp_path / "orders-0", SMALL)
        before = content(tmp_path)
        for call, error, advice in ASYNC:
            with pytest.raises(error, match=advice):
                await call(log)  # type: ignore[misc]
            assert content(tmp_path) == before
        await log.close()
        before = content(tmp_path)
        for call in ASYNC_CLOSED:
            with pytest.raises(LogClosed, match="open it again"):
                await call(log)  # type: ignore[misc]
        assert content(tmp_path) == before

    asyncio.run(program())


# --- the bound of a read ------------------------------------------------------------------------------


def test_the_texts_of_the_isolation_levels(tmp_path: Path) -> None:
    """Row 245: any text was taken, and meant an end without leaving out what was aborted."""
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for producer_id, value in ((1, b"aborted"), (2, b"committed"), (3, b"open")):
            log.append_batches(
                encode_batch(
                    [Record(0, 1000, None, value)],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                )
            )
            if producer_id < 3:
                log.end_transaction(producer_id, 0, commit=producer_id == 2)
        everything = [b"aborted", b"committed", b"open"]
        for isolation, expected in (
            ("read_committed", [b"committed"]),
            (FetchIsolation.TXN_COMMITTED, [b"committed"]),
            ("read_uncommitted", everything),
            (FetchIsolation.HIGH_WATERMARK, everything),
        ):
            bound: dict[str, Any] = {"isolation": isolation}
            cursor = log.cursor("c", **bound)
            reads: list[list[bytes | None]] = [
                [each.value for each in log.read(**bound)],
                list(log.read_values(**bound)),
                [value for _, value in log.read_keys_values(**bound)],
                [each.value for each in log.read_reverse(**bound)][::-1],
                [each.value for batch in log.read_batches(**bound) if not batch.is_control
                 for each in batch.records()],
                [each.value for each in log.follow(timeout=0, **bound)],
                [each.value for each in cursor.read()],
            ]  # fmt: skip
            assert reads == [expected] * len(reads), isolation
            first = log.get(0, **bound)
            assert (first is None) == (expected != everything)


# --- forks --------------------------------------------------------------------------------------------

IN_A_CHILD: list[Callable[[World], object]] = [
    lambda w: w.log.append(b"x"),
    lambda w: w.log.append([b"x" * 600]),
    lambda w: w.log.append_batches(encode_batch([Record(0, 1000, None, b"x")])),
    lambda w: w.log.flush(),
    lambda w: w.log.truncate_to(1),
    lambda w: w.log.delete_records(1),
    lambda w: w.log.maintain(),
    lambda w: w.log.scrub(),
    lambda w: w.log.snapshot(w.path / "copy-0"),
    lambda w: w.log.writer(),
    lambda w: w.log.cursor("billing"),
    lambda w: w.log.partition.roll(),
    lambda w: w.queue.put(b"x"),
    lambda w: w.queue.get(timeout=0),
    lambda w: w.queue.ack(w.message),
]  # fmt: skip


def in_a_child(call: Callable[[], None]) -> None:
    """Run `call` in a forked child, and fail if it fails there."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_row_246_a_forked_child_changes_nothing(tmp_path: Path, world: World) -> None:
    """It sealed, rolled, cut and marked as cleanly closed what its parent went on writing."""
    node = tmp_path / "node"
    node.mkdir()
    manager = LogManager([str(node)], disk=OsDisk(), clock=lambda: 1000, random=Random(1), config=SMALL)
    manager.get_or_create(TopicPartition("orders", 0))

    def child() -> None:
        for call in IN_A_CHILD:
            with pytest.raises(
                LogClosed, match=r"belongs to the parent process.*Open the (log|queue) after the fork"
            ):
                call(world)
        assert list(world.log.read_values()) == [b"a", b"b", b"c"]
        world.queue.close()
        world.log.close()
        world.log.close()
        manager.close()
        with Log.open(tmp_path / "child-0") as own:
            own.append(b"mine", sync=True)

    before = content(tmp_path)
    in_a_child(child)
    after = content(tmp_path)
    assert {name: after[name] for name in before} == before
    assert {Path(name).relative_to(tmp_path).parts[0] for name in after.keys() - before} == {"child-0"}
    world.log.append(b"d", sync=True)
    world.queue.ack(world.message)
    world.log.close()
    manager.close()
    with Log.open(tmp_path / "orders-0", SMALL) as again:
        assert list(again.read_values()) == [b"a", b"b", b"c", b"d"]
        assert not again.partition.report.cuts


# --- brokers ------------------------------------------------------------------------------------------

CONFIGURING: list[tuple[Callable[[], object], type[Exception], str]] = [
    (partial(Broker, {"node_id": 1}), TypeError, "config is a BrokerConfig, not dict"),
    (partial(BrokerConfig, log_dirs="data"), TypeError, r"write \('data',\) for one"),
    (partial(BrokerConfig, node_id="1"), TypeError, "node_id is an int"),
    (partial(BrokerConfig, node_id=True), TypeError, r"node_id is an int, not bool \(True\)"),
    (partial(BrokerConfig, metadata=5), TypeError, r"metadata is the name of a store .*, not int \(5\)"),
    (partial(BrokerConfig, insecure="no"), TypeError, "insecure is True or False, not 'no'"),
    (partial(BrokerConfig, listen=9092), TypeError, "listen is a str, not int"),
    (partial(BrokerConfig, advertised=("h", 1)), TypeError, "advertised is a str, not tuple"),
    (partial(BrokerConfig, boot_id=b"x"), TypeError, "boot_id is a str, not bytes"),
    (partial(BlockingClient, [("h", 1)]), TypeError, '"host:port" or Address'),
    (partial(BlockingClient, "localhost"), ValueError, "expected host:port"),
    (partial(BlockingClient, 5), TypeError, '"host:port" or Address.*, not 5'),
    (partial(BlockingClient, []), ValueError, "bootstrap names no broker"),
]
CALLING: list[tuple[Call, type[Exception], str]] = [
    (lambda b: b.append("orders", "text"), TypeError, "encode it"),
    (lambda b: b.append("orders", [7]), TypeError, "int is not a value"),
    (lambda b: b.append("orders", {"a": 1}), TypeError, "dict is not a value"),
    (lambda b: b.append("orders", [(b"k", b"v", b"x")]), TypeError, "tuple is not a value"),
    (lambda b: b.append("orders", [("k", b"v")]), TypeError, "keys, values and header values must be bytes"),
    (lambda b: b.append("orders", b"v", key="k"), TypeError, "keys, values and header values must be bytes"),
    (lambda b: b.append("orders", b"v", headers={"a": b"b"}), TypeError, r"pass list\(headers\.items\(\)\)"),
    (lambda b: b.append(b"v", "orders"), TypeError, "a topic is a str|topic is a str"),
    (lambda b: b.append("orders", b"v", acks="none"), ValueError, 'it takes "all", 1 or 0'),
    (lambda b: b.commit("g", [0]), TypeError, "offsets map TopicPartitions to ints, not list"),
    (lambda b: b.commit("g", {"orders": 1}), TypeError, "is a TopicPartition, not str"),
    (lambda b: b.commit("g", {TopicPartition("orders", 0): -1}), ValueError, r"offsets\[orders-0\] is -1"),
    (lambda b: b.committed("g", "orders"), TypeError, "partitions are several TopicPartitions, not str"),
    (lambda b: b.committed("g", ["orders"]), TypeError, "is a TopicPartition, not str"),
    (lambda b: b.offsets({TopicPartition("orders", 0): "now"}), TypeError, r"times\[orders-0\] is an int"),
    (lambda b: b.delete_records("orders", 0, 1 << 63), ValueError, "before_offset is 9223372036854775808"),
    (lambda b: b.topic("orders").partition("0"), TypeError, "a partition is an int"),
    (lambda b: list(b.topic("orders").partition(0).read("0")), TypeError, "an offset is an int"),
    (lambda b: list(b.topic("orders").partition(0).read(isolation="x")), ValueError, "read_committed"),
    (lambda b: next(b.topic("orders").partition(0).follow("0")), TypeError, "an offset is an int"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "advice"), CONFIGURING)
def test_mistakes_in_configuring_a_broker(
    make: Callable[[], object], error: type[Exception], advice: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=advice):
        make()
    assert content(tmp_path) == {}


def test_mistakes_in_calling_a_broker() -> None:
    """Row 247: of a list of ints each was appended as so many zero bytes."""
    disk = MemoryDisk()
    with Broker(BrokerConfig(log_dirs=("data",), disk=disk, settings={"num.partitions": "1"})) as broker:
        broker.create_topic("orders")
        broker.append("orders", [b"a", (b"k", None), (None, bytearray(b"b"))])

        def state() -> dict[str, bytes]:
            return {path: data for path, data in disk.files().items() if path.endswith(".log")}

        before = state()
        for call, error, advice in CALLING:
            with pytest.raises(error, match=advice):
                call(broker)
        assert state() == before
        with BlockingClient(broker.bootstrap) as client:
            values = [record.value for record in client.topic("orders").partition(0).read()]
        assert values == [b"a", None, b"b"]


# --- the command --------------------------------------------------------------------------------------


def test_an_interrupt_while_the_command_starts_prints_no_trace(tmp_path: Path) -> None:
    """The signal arrives in the longest import of the command.

    A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    """
    (tmp_path / "typer.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "logstore.cli.main", "--version"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """The error said "File exists"."""
    (tmp_path / "orders-0").symlink_to(tmp_path / "gone")
    with pytest.raises(LogDirOffline, match="symbolic link to a path that does not exist"):
        Log.open(tmp_path / "orders-0")


def test_a_deleted_current_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error was "No such file or directory", without a path."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for call in (Log.open, Queue, LogReader):
        with pytest.raises(FileNotFoundError, match=r"the current directory was deleted.*orders-0"):
            call("orders-0")
