"""Groups with real members: clients of others, and what is left of a group when its coordinator dies."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from tests.broker.asking import Asker
from tests.broker.handlers.group_requests import (
    GROUP,
    beating,
    commit,
    committed,
    coordinator_of,
    stable,
)
from tests.broker.nodes import Nodes

HOME = TopicPartition(OFFSETS_TOPIC, partition_for(GROUP, 4))
SESSION_MS = 6_000
RETRIED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def run(test: Callable[[Nodes], Awaitable[None]], count: int = 3, base: NodeConfig | None = None) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90), Nodes(count, base=base) as nodes:
            topic_partition = await nodes.create_topic("t", tuple(range(count)))
            caches = [each.node.replicas.metadata for each in nodes.running.values()]
            await nodes.until(lambda: all(topic_partition in cache.partitions for cache in caches))
            await test(nodes)

    asyncio.run(bounded())


class TestFailover:
    def test_the_next_coordinator_has_the_offsets_and_the_stable_group(self) -> None:
        """Its members go on in their generation; nobody has to join again."""

        async def test(nodes: Nodes) -> None:
            first = await coordinator_of(nodes)
            async with Asker(nodes.addresses[first]) as client:
                member = await stable(client)
                of_member = {"generation_id_or_member_epoch": 1, "member_id": member.member_id}
                assert await commit(client, offset=7, **of_member) is ErrorCode.NONE
            await nodes.kill(first)
            second = await coordinator_of(nodes)
            assert second != first
            async with Asker(nodes.addresses[second]) as client:
                assert (await committed(client)).committed_offset == 7
                group = (await client.ask(t.DescribeGroupsRequest(groups=[GROUP]), 5)).groups[0]
                assert (group.group_state, len(group.members)) == ("Stable", 1)
                assert (await client.ask(beating(member), 4)).error_code == ErrorCode.NONE
                assert await commit(client, offset=8, **of_member) is ErrorCode.NONE
                await nodes.start(first)
                await nodes.until(lambda: nodes.isr(HOME) == {0, 1, 2})
                assert (await committed(client)).committed_offset == 8

        run(test)

    def test_a_coordinator_that_stops_in_order_hands_its_groups_over(self) -> None:
        async def test(nodes: Nodes) -> None:
            first = await coordinator_of(nodes)
            async with Asker(nodes.addresses[first]) as client:
                assert await commit(client, offset=7) is ErrorCode.NONE
            await nodes.stop(first)
            async with Asker(nodes.addresses[await coordinator_of(nodes)]) as client:
                assert (await committed(client)).committed_offset == 7

        run(test)

    def test_a_whole_cluster_that_starts_again_knows_its_groups(self) -> None:
        async def test(nodes: Nodes) -> None:
            async with Asker(nodes.addresses[await coordinator_of(nodes)]) as client:
                member = await stable(client)
            await nodes.stop(0)
            await nodes.start(0)
            async with Asker(nodes.addresses[await coordinator_of(nodes)]) as client:
                assert (await client.ask(beating(member), 4)).error_code == ErrorCode.NONE

        run(test, count=1)

    def test_a_coordinator_with_a_damaged_log_serves_once_it_is_repaired(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It leads alone at first: the replica that can repair it comes back later."""
        monkeypatch.setattr("logstore.broker.groups.service._READ_AGAIN_S", 0.01, raising=False)

        async def test(nodes: Nodes) -> None:
            first = await coordinator_of(nodes)
            async with Asker(nodes.addresses[first]) as client:
                for offset in range(5):
                    assert await commit(client, offset=offset, text="x" * 4_000) is ErrorCode.NONE
            await nodes.until(lambda: len(set(nodes.ends(HOME).values())) == 1)
            await nodes.stop(first)
            with closing(nodes.disks[first].open(f"data/{HOME}/{0:020d}.log", write=True)) as log:
                log.pwrite(b"?", log.size() // 3)  # an opening reads the last batches only
            await nodes.start(first)
            await nodes.until(lambda: len(nodes.isr(HOME)) == 2)
            await nodes.stop(1 - first)
            await nodes.until(lambda: nodes.leader(HOME) == first)
            await nodes.start(1 - first)
            async with asyncio.timeout(10):
                async with Asker(nodes.addresses[await coordinator_of(nodes)]) as client:
                    assert (await committed(client)).committed_offset == 4

        run(test, count=2)

    def test_a_commit_that_too_few_have_is_not_told(self) -> None:
        """15 when its time is up, and offset -1 meanwhile: no in-sync replica but one is left."""

        async def test(nodes: Nodes) -> None:
            first = await coordinator_of(nodes)
            async with Asker(nodes.addresses[first]) as client:
                assert await commit(client, offset=7) is ErrorCode.NONE
                for node_id in [each for each in nodes.running if each != first]:
                    await nodes.kill(node_id)
                # On a busy machine its own session may end meanwhile: it leads again with the next one.
                while (error := await commit(client, offset=8)) in RETRIED:
                    await asyncio.sleep(0)
                assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
                assert (await committed(client)).committed_offset == 7

        run(test)


class TestAPause:
    def test_a_coordinator_that_stood_still_serves_nobody_before_the_store_has_spoken(self) -> None:
        """What it remembers may be long out of date: another one coordinates by then."""

        async def test(nodes: Nodes) -> None:
            first = await coordinator_of(nodes)
            async with Asker(nodes.addresses[first]) as client:
                assert await commit(client, offset=7) is ErrorCode.NONE
                session_id = nodes.running[first].node.session_id
                assert session_id is not None
                nodes.shared.is_up = False
                nodes.clocks[first].jumped_ms += 3 * SESSION_MS
                wanted = [t.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
                waiting = client.send(t.OffsetFetchRequest(group_id=GROUP, topics=wanted), 5)
                runtime = nodes.running[first]
                await nodes.until(lambda: runtime._is_in_doubt and bool(runtime._inbox))
                owner = nodes.shared.end(session_id)
                assert owner is not None
                nodes.shared.return_()
                await nodes.until(lambda: nodes.leader(HOME) not in (first, -1))
                nodes.shared.ends[session_id] = owner
                nodes.shared.expire(session_id)
                answer = await client.answer(t.OffsetFetchRequest, 5, waiting)
                assert answer.error_code == ErrorCode.NOT_COORDINATOR

        run(test, base=NodeConfig(node_id=0, zookeeper_session_timeout_ms=SESSION_MS))


# --- clients of others --------------------------------------------------------------------------


@contextmanager
def kafka_python_quiet() -> Iterator[None]:
    """It says at length that a topic is not made yet, and leaves sockets open."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for thread in threading.enumerate():
            if thread.name.startswith("kafka-"):
                thread.join(30)  # it holds on to its sockets until it ends
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def kafka_python(address: Address) -> None:
    kafka = pytest.importorskip("kafka")
    with closing(kafka.KafkaProducer(bootstrap_servers=str(address))) as producer:
        for number in range(10):
            producer.send("made.when.asked.for", b"%d" % number)
        producer.flush(30)

    def member() -> Any:
        return closing(
            kafka.KafkaConsumer(
                "made.when.asked.for",
                bootstrap_servers=str(address),
                group_id="kafka-python",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
        )

    with member() as consumer:
        found = [next(consumer) for _ in range(10)]
        assert [each.value for each in found] == [b"%d" % number for number in range(10)]
        place = kafka.TopicPartition("made.when.asked.for", 0)
        consumer.commit({place: kafka.OffsetAndMetadata(7, "so far", -1)})
    with member() as consumer:
        assert [next(consumer).offset for _ in range(3)] == [7, 8, 9]


def confluent(address: Address) -> None:
    client = pytest.importorskip("confluent_kafka")
    settings = {"bootstrap.servers": str(address), "log_level": 0}
    producer = client.Producer(settings)
    for number in range(10):
        producer.produce("made.when.asked.for", b"%d" % number)
    assert producer.flush(30) == 0

    def values(count: int) -> list[bytes]:
        group = {"group.id": "confluent", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = client.Consumer(settings | group | {"topic.metadata.refresh.interval.ms": 200})
        with closing(consumer):
            consumer.subscribe(["made.when.asked.for"])
            found: list[bytes] = []
            while len(found) < count:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found.append(message.value())
            place = client.TopicPartition("made.when.asked.for", 0, 7)
            consumer.commit(offsets=[place], asynchronous=False)
            return found

    assert values(10) == [b"%d" % number for number in range(10)]
    assert values(3) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("client", [kafka_python, confluent])
def test_a_group_consumer_reads_commits_and_goes_on(client: Callable[[Address], None]) -> None:
    """Topics and groups are there as soon as somebody wants them."""

    async def test(nodes: Nodes) -> None:
        await asyncio.to_thread(client, nodes.addresses[0])

    with kafka_python_quiet():
        run(test, count=1)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_members_of_a_group_find_its_next_coordinator() -> None:
    """A consumer of kafka-python reads on when the node that coordinates its group is killed."""
    kafka = pytest.importorskip("kafka")

    async def test(nodes: Nodes) -> None:
        home = await coordinator_of(nodes)
        addresses = [str(nodes.addresses[each]) for each in nodes.running if each != home]
        consumer = await asyncio.to_thread(
            kafka.KafkaConsumer,
            "t",
            bootstrap_servers=addresses,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

        def send(value: bytes) -> None:
            with closing(kafka.KafkaProducer(bootstrap_servers=addresses)) as producer:
                producer.send("t", value).get(30)

        try:
            await asyncio.to_thread(send, b"a")
            assert (await asyncio.to_thread(next, consumer)).value == b"a"
            await asyncio.to_thread(consumer.commit)
            await nodes.kill(home)
            await asyncio.to_thread(send, b"b")
            assert (await asyncio.to_thread(next, consumer)).value == b"b"
            await asyncio.to_thread(consumer.commit)
            place = kafka.TopicPartition("t", 0)
            assert await asyncio.to_thread(consumer.committed, place) == 2
        finally:
            await asyncio.to_thread(consumer.close)

    with kafka_python_quiet():
        run(test)
