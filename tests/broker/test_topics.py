"""Topics and partitions of a broker, read in the words of a log."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, assert_type

import pytest

from logstore.broker import Appended, AsyncBroker, Broker, BrokerCluster, BrokerConfig, RequestRefused
from logstore.broker.async_topics import AsyncPartition
from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.topics import Partition, PartitionCursor, _with_ends
from logstore.disk.errors import ErrorCode
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Header, Record
from logstore.log.append import append_as_leader, append_end_transaction, maybe_start_verification
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.read import FetchIsolation
from logstore.replication.messages import EARLIEST_TIMESTAMP, FetchResult
from logstore.replication.transaction_messages import Aborted
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk

LIMIT_S = 60
QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(settings=QUICK)) as broker:
        yield broker


@pytest.fixture
def orders(broker: Broker, request: pytest.FixtureRequest) -> Partition:
    name = re.sub(r"\W", "-", request.node.name)
    broker.create_topic(name, 2)
    return broker.topic(name).partition(0)


def plain(records: Iterable[Record | None]) -> list[Record | None]:
    """Without the sequence numbers, which only a producer's batches have."""
    return [each and each._replace(sequence=-1) for each in records]


def test_it_reads_as_a_log_does(orders: Partition) -> None:
    """The same calls on a log and on a partition with the same batches."""
    times = [1000 * number for number in range(20)]
    with Log.open(DIRECTORY, disk=new_disk()) as log:
        for start in range(0, 20, 5):
            records = [Record(0, times[each], b"k", b"%d" % each) for each in range(start, start + 5)]
            log.append(records)
            orders.append(records)
        for each in (log, orders):
            assert each.log_start_offset == 0
            assert each.log_end_offset == len(each) == 20
        assert plain(orders) == plain(log)
        assert plain(orders.read(3, 12)) == plain(log.read(3, 12))
        assert plain(orders.read(max_records=7)) == plain(log.read(max_records=7))
        assert plain(orders.read(since=7500, until=15_000)) == plain(log.read(since=7500, until=15_000))
        assert plain(orders.read_reverse(2, 9)) == plain(log.read_reverse(2, 9))
        assert [*orders.read_keys_values()] == [*log.read_keys_values()]
        assert plain((orders[13], orders.first(), orders.last())) == plain((log[13], log.first(), log.last()))
        for time_ms in (-5, 0, 7000, 7001, 19_000, 19_001):
            ours, theirs = orders.offset_for_timestamp(time_ms), log.offset_for_timestamp(time_ms)
            assert (ours and ours[:2]) == (theirs and theirs[:2]), time_ms
        for isolation in FetchIsolation:
            assert plain(orders.read(isolation=isolation)) == plain(log.read(isolation=isolation))
        assert orders.read_bytes(20).records == b""
        assert orders.read_bytes(0, 1, at_least_one=False).records == b""
        assert orders.read_bytes(0, 1).next_offset == 5
        for offset in (-1, 20, 99):
            with pytest.raises(OffsetOutOfRange):
                orders.get(offset)
        with pytest.raises(OffsetOutOfRange) as caught:
            next(orders.read(99))
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 20)


@pytest.mark.parametrize(
    "given",
    [
        b"v",
        None,
        bytearray(b"v"),
        (b"k", b"v"),
        (b"k", None),
        (None, memoryview(b"v")),
        Record(7, 5, b"k", b"v", (Header("h", None),)),
        [(b"k", b"v"), Record(0, 5, None, None), b"w"],
        [],
        (),
        (b"a", b"b", b"c"),
        (b"k", "v"),
        ((b"k", b"v"), (b"k", b"v")),
        "text",
        {"k": b"v"},
    ],
)
def test_it_appends_what_a_log_appends(orders: Partition, given: Any) -> None:
    """A pair was stored as two records without keys, and one `Record` was refused."""
    with Log.open(DIRECTORY, disk=new_disk()) as log:
        try:
            log.append(given)
        except TypeError:
            with pytest.raises(TypeError):
                orders.append(given)
            with pytest.raises(TypeError):
                orders.append([given])
        else:
            placed = orders.append(given)
            assert isinstance(placed, list) == isinstance(given, list)
        stored = list(log)
    assert [each._replace(timestamp_ms=0, sequence=-1) for each in orders] == [
        each._replace(timestamp_ms=0) for each in stored
    ]


def test_a_topic_and_its_partitions(broker: Broker, orders: Partition) -> None:
    topic = broker.topic(orders.topic_partition.topic)
    assert repr(topic) == f"Topic({topic.name!r})"
    assert [repr(each) for each in topic.partitions()] == [
        f"Partition({topic.name}-0)",
        f"Partition({topic.name}-1)",
    ]
    placed = assert_type(topic.append(b"a", key=b"k", acks=1, timeout=LIMIT_S), Appended)
    assert [each.value for each in topic.partition(placed.partition)] == [b"a"]
    assert [each.partition for each in assert_type(orders.append([b"b", b"c"]), list[Appended])] == [0, 0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'ack'"):
        orders.append(b"d", ack=1)  # type: ignore[call-overload]  # it was accepted by the annotations
    with pytest.raises(RequestRefused, match="create it with create_topic"):
        broker.topic("missing").partitions()
    with pytest.raises(RequestRefused) as caught:
        _ = broker.topic(topic.name).partition(7).log_end_offset
    assert caught.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestFollow:
    def test_it_waits_for_records_and_continues(self, orders: Partition) -> None:
        orders.append([b"a", b"b"])
        found: list[bytes | None] = []
        waiting = threading.Event()

        def follow() -> None:
            for record in islice(orders.follow(1), 3):
                found.append(record.value)
                waiting.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert waiting.wait(LIMIT_S)
        orders.append(b"c")
        orders.append(b"d")
        thread.join(LIMIT_S)
        assert found == [b"b", b"c", b"d"]

    def test_it_ends_after_its_time(self, orders: Partition) -> None:
        orders.append(b"a")
        assert [record.value for record in orders.follow(timeout=0)] == [b"a"]
        assert [*orders.follow(1, timeout=0.01)] == []

    def test_an_offset_that_is_not_there(self, orders: Partition) -> None:
        with pytest.raises(OffsetOutOfRange):
            next(orders.follow(99, timeout=0))


class TestCursors:
    def test_it_continues_where_it_was_committed(self, orders: Partition) -> None:
        orders.append([b"%d" % number for number in range(5)])
        cursor = orders.cursor("billing")
        assert (cursor.committed, cursor.position, cursor.lag) == (None, 0, 5)
        assert [record.value for record in cursor.read(3)] == [b"0", b"1", b"2"]
        assert cursor.commit() == 3
        assert [record.value for record in cursor.read()] == [b"3", b"4"]
        again = orders.cursor("billing")
        assert (again.committed, again.position, again.lag) == (3, 3, 2)
        assert orders.cursor("shipping").committed is None
        again.seek(1)
        assert again.commit(2) == 2
        assert [record.value for record in again.read(1)] == [b"1"]
        assert orders.cursor("billing").position == 2
        with pytest.raises(OffsetOutOfRange):
            again.seek(6)
        assert repr(again) == f"PartitionCursor('billing', {orders.topic_partition}, position=2)"

    def test_it_is_a_consumer_group(self, broker: Broker, orders: Partition) -> None:
        orders.append([b"a", b"b"])
        cursor: PartitionCursor = orders.cursor("group")
        cursor.commit(1)
        found = broker._wait(broker._client.committed("group", (orders.topic_partition,)))
        assert found == {orders.topic_partition: 1}


class Tail(Client):
    """A partition whose last batch has lost its last record to compaction: it ends at offset 2."""

    def __init__(self) -> None:
        super().__init__([])
        self.fetched: list[int] = []

    async def offset(
        self, topic_partition: TopicPartition, timestamp: int, *, timeout: float | None = None
    ) -> int:
        return 0 if timestamp == EARLIEST_TIMESTAMP else 2

    async def fetch(self, topic_partition: TopicPartition, offset: int, **settings: Any) -> FetchResult:
        self.fetched.append(offset)
        assert len(self.fetched) < 9, "it asks without end"
        records = encode_batch([Record(0, 0, b"k", b"a")], last_offset=1) if offset < 2 else b""
        return FetchResult(ErrorCode.NONE, 2, 0, records)


class TailCalls(BlockingCalls):
    def __init__(self) -> None:
        self.inner = Tail()

    @property
    def _client(self) -> Client:
        return self.inner

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)


@pytest.mark.parametrize("start", [0, 1])
def test_a_follower_passes_a_batch_without_records_for_it(start: int) -> None:
    values = [b"a"][start:]
    followed = Partition(TailCalls(), TopicPartition("t", 0)).follow(start, timeout=0)
    assert [record.value for record in followed] == values

    async def main() -> None:
        partition = AsyncPartition(Tail(), TopicPartition("t", 0))
        assert [record.value async for record in partition.follow(start, timeout=0)] == values

    asyncio.run(main())


def test_tasks_read_in_the_same_words() -> None:
    async def main() -> None:
        async with AsyncBroker(BrokerConfig(settings=QUICK)) as broker:
            await broker.create_topic("orders")
            orders = broker.topic("orders").partition(0)
            assert (await orders.append(b"a")).offset == 0
            assert [each.offset for each in await orders.append([b"b", b"c"])] == [1, 2]
            assert (await orders.log_start_offset(), await orders.log_end_offset()) == (0, 3)
            assert (await orders[1]).value == b"b"
            assert [record.value async for record in orders.read(1)] == [b"b", b"c"]
            assert [record.value async for record in orders] == [b"a", b"b", b"c"]
            assert [record.value async for record in orders.follow(2, timeout=0)] == [b"c"]
            follower = orders.follow(2)
            assert (await anext(follower)).value == b"c"
            late = asyncio.ensure_future(anext(follower))
            await orders.append(b"d")
            assert (await late).value == b"d"
            with pytest.raises(OffsetOutOfRange):
                await orders.get(99)
            assert repr(orders) == "AsyncPartition(orders-0)"
            assert repr(broker.topic("orders")) == "AsyncTopic('orders')"
            assert (await broker.topic("orders").append(b"e", key=b"k")).offset == 4

    asyncio.run(main())


def test_tasks_have_cursors() -> None:
    async def main() -> None:
        async with AsyncBroker(BrokerConfig(settings=QUICK)) as broker:
            await broker.create_topic("orders")
            orders = broker.topic("orders").partition(0)
            await orders.append([b"%d" % number for number in range(5)])
            cursor = await orders.cursor("billing")
            assert (await cursor.committed(), cursor.position, await cursor.lag()) == (None, 0, 5)
            assert [record.value async for record in cursor.read(3)] == [b"0", b"1", b"2"]
            assert await cursor.commit() == 3
            assert [record.value async for record in cursor.read(0)] == []
            assert [record.value async for record in cursor.read()] == [b"3", b"4"]
            waiting = asyncio.ensure_future(anext(cursor.read(timeout=None)))
            await orders.append(b"5")
            assert (await waiting).value == b"5"
            again = await orders.cursor("billing")
            assert (await again.committed(), again.position, await again.lag()) == (3, 3, 3)
            await again.seek(1)
            assert await again.commit(2) == 2
            assert [record.value async for record in again.read(1)] == [b"1"]
            assert (await orders.cursor("billing")).position == 2
            with pytest.raises(OffsetOutOfRange):
                await again.seek(7)
            assert repr(again) == "AsyncPartitionCursor('billing', orders-0, position=2)"

    asyncio.run(main())


def test_transactions_end_at_their_marker() -> None:
    def marker(offset: int, producer_id: int) -> Batch:
        data = bytearray(
            encode_marker_batch(
                EndTransactionMarker(ControlType.ABORT, 0),
                producer_id=producer_id,
                producer_epoch=0,
                timestamp_ms=0,
            )
        )
        data[:8] = offset.to_bytes(8, "big")
        return Batch(bytes(data))

    def data(offset: int) -> Batch:
        return Batch(encode_batch([Record(offset, 0, None, b"a")], base_offset=offset))

    batches = [marker(3, 7), data(4), marker(5, 8), marker(6, 7), marker(9, 7)]
    found = _with_ends([Aborted(7, 4), Aborted(8, 4), Aborted(9, 4)], batches)
    assert [each.last_offset for each in found] == [6, 5, 2**63 - 1]


def test_a_time_at_which_a_marker_lies_is_found(tmp_path: Path) -> None:
    """Reads from that time on returned nothing, whatever lay behind the marker."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "data"),))
    with Broker(config) as broker:
        broker.create_topic("orders", 1)
        broker.topic("orders").partition(0).append(Record(0, 500, None, b"0"))
    with closing(LogManager([config.log_dirs[0]], disk=OsDisk(), clock=lambda: 0, random=Random(1))) as logs:
        log = logs.get_or_create(TopicPartition("orders", 0))
        for producer_id, time_ms, kind in ((7, 1000, ControlType.COMMIT), (8, 4000, ControlType.ABORT)):
            guard = maybe_start_verification(log.partition, producer_id, 0, 0)
            epoch = log.partition.latest_epoch
            data = encode_batch(
                [Record(0, time_ms, None, b"in a transaction")],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
            append_as_leader(log.partition, data, leader_epoch=epoch, now_ms=0, verification_guard=guard)
            append_end_transaction(
                log.partition,
                producer_id,
                0,
                kind,
                coordinator_epoch=0,
                leader_epoch=epoch,
                now_ms=time_ms + 1000,
            )
            log.append(Record(0, time_ms + 2000, None, b"plain"))
        log.partition.advance_high_watermark(log.log_end_offset)
        times = range(0, 7000, 500)
        wanted = {
            (time_ms, isolation): [each.offset for each in log.read(since=time_ms, isolation=isolation)]
            for time_ms in times
            for isolation in FetchIsolation
        }
        places = [log.offset_for_timestamp(time_ms) for time_ms in times]
    with Broker(config) as broker:
        orders = broker.topic("orders").partition(0)
        for (time_ms, isolation), found in wanted.items():
            assert [each.offset for each in orders.read(since=time_ms, isolation=isolation)] == found, time_ms
        for time_ms, place in zip(times, places, strict=True):
            found_there = orders.offset_for_timestamp(time_ms)
            assert (found_there and found_there[:2]) == (place and place[:2])


def test_three_brokers_and_the_leader_dies_under_a_follower() -> None:
    settings = {**QUICK, "replica.fetch.wait.max.ms": "50"}
    with BrokerCluster(3, settings=settings) as cluster:
        cluster.create_topic("orders", 1)
        orders = cluster.topic("orders").partition(0)
        orders.append([b"a", b"b"])
        cursor = orders.cursor("billing")
        cursor.commit()
        follower = orders.follow()
        assert [next(follower).value, next(follower).value] == [b"a", b"b"]
        cluster.kill(cluster.leader("orders", 0))
        orders.append(b"c")
        assert next(follower).value == b"c"
        cursor.commit(2)
        assert orders.cursor("billing").position == 2


def test_the_help_of_a_derived_call_shows_what_the_caller_gets() -> None:
    """It named `Client`, and a coroutine."""
    append, leader = BlockingCalls.append, BlockingCalls.leader
    assert inspect.signature(append).return_annotation == "Appended | list[Appended]"
    assert list(inspect.signature(append).parameters) == list(inspect.signature(Client.append).parameters)
    assert inspect.signature(leader).return_annotation == "int"
    assert (append.__module__, append.__qualname__) == (BlockingCalls.__module__, "BlockingCalls.append")
