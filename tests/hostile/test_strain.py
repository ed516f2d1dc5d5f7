"""What strains a broker without breaking a rule: slow readers, crowds, announcements, disks full or gone.

Each has one outcome, and docs/hostile-clients.md tells it: who is slow is served slowly, who takes nothing is
hung up on, and everybody else is served meanwhile.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from logstore.broker.limits import Address, Limits
from logstore.broker.wire import types as t
from logstore.broker.wire.headers import request_frame
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes

MIB = 1 << 20
LARGE = 900_000
LEFT_OVER = 1 << 16
"""Of the answer before: the next request is served when little of it is left."""
CONNECTIONS = 2_000
DESCRIPTORS = 2 * CONNECTIONS + 500
"""Both ends of each connection are this process's."""


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(110):
            await test()

    asyncio.run(bounded())


def cluster(count: int = 1, limits: Limits | None = None) -> Nodes:
    """What is written stays: the records' times are fixed, and the clock is not."""
    nodes = Nodes(count, limits=limits)
    nodes.log_config = LogConfig(min_insync_replicas=1, retention_ms=-1)
    return nodes


async def produce(
    client: Asker, value: bytes, topic: str = "t", acks: int = -1
) -> t.ProduceResponsePartitionProduceResponse:
    part = t.ProduceRequestPartitionProduceData(index=0, records=encode_batch([Record(0, 1, None, value)]))
    data = [t.ProduceRequestTopicProduceData(name=topic, partition_data=[part])]
    answer = await client.ask(t.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=data), 9)
    found = answer.responses[0].partition_responses[0]
    assert isinstance(found, t.ProduceResponsePartitionProduceResponse)
    return found


def fetching(offset: int = 0, topic: str = "t") -> t.FetchRequest:
    part = t.FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    wanted = t.FetchRequestFetchTopic(topic=topic, partitions=[part])
    return t.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=[wanted])


async def values(client: Asker, topic: str = "t") -> list[bytes | None]:
    """All that is there, from the start."""
    found: list[bytes | None] = []
    while True:
        part = (await client.ask(fetching(len(found), topic), 12)).responses[0].partitions[0]
        assert part.error_code == ErrorCode.NONE
        records = [record.value for batch in walk(part.records) for record in batch.records()]
        if not records:
            return found
        found += records


async def check_served(client: Asker) -> None:
    """Somebody else is served, and what he writes he reads."""
    result = await produce(client, b"seen", "other")
    assert result.error_code == ErrorCode.NONE
    part = (await client.ask(fetching(result.base_offset, "other"), 12)).responses[0].partitions[0]
    assert [record.value for batch in walk(part.records) for record in batch.records()] == [b"seen"]


class SlowClient:
    """Asks without waiting for answers; its window is small, and it reads when told."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._raw = socket.socket()
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self._raw.setblocking(False)

    async def __aenter__(self) -> SlowClient:
        self._loop = asyncio.get_running_loop()
        await self._loop.sock_connect(self._raw, self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._raw.close()

    async def ask(self, request: t.FetchRequest, times: int) -> None:
        frames = [b"".join(request_frame(request, 12, number, "slow")) for number in range(times)]
        await self._loop.sock_sendall(self._raw, b"".join(frames))

    async def read(self, size: int) -> bytes:
        parts = []
        while size:
            part = await self._loop.sock_recv(self._raw, min(size, 4096))
            if not part:
                raise ConnectionResetError("the connection ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def write_buffers(nodes: Nodes) -> int:
    """Bytes that the broker holds for clients who do not take them."""
    return sum(
        each.transport.get_write_buffer_size()
        for each in nodes.brokers[0].server.connections
        if each.transport is not None
    )


def test_a_slow_consumer_holds_one_answer_and_nobody_up() -> None:
    """Thirty requests in advance, and one answer in our memory; read slowly, all of them come, in order."""

    async def test() -> None:
        async with cluster() as nodes, Asker(nodes.addresses[0]) as other:
            for topic in ("t", "other"):
                await nodes.create_topic(topic, (0,))
            await produce(other, bytes(LARGE))
            async with SlowClient(nodes.addresses[0]) as slow:
                await slow.ask(fetching(), 30)
                await nodes.until(lambda: write_buffers(nodes) > 0)
                for _ in range(20):
                    await check_served(other)
                    assert write_buffers(nodes) < LARGE + LEFT_OVER, "one answer, not thirty"
                for number in range(30):
                    (size,) = struct.unpack(">i", await slow.read(4))
                    answer = await slow.read(size)
                    assert struct.unpack_from(">i", answer) == (number,)
                    assert size > LARGE
                    assert write_buffers(nodes) < LARGE + LEFT_OVER
                await check_served(other)

    run(test)


def test_a_client_that_never_reads_is_hung_up_on() -> None:
    """After `connections.max.idle.ms`; what it was sent is let go with it."""

    async def test() -> None:
        limits = Limits(request_timeout_ms=5_000, connections_max_idle_ms=400)
        async with cluster(limits=limits) as nodes:
            for topic in ("t", "other"):
                await nodes.create_topic(topic, (0,))
            async with Asker(nodes.addresses[0]) as other:
                await produce(other, bytes(LARGE))
            async with SlowClient(nodes.addresses[0]) as deaf:
                await deaf.ask(fetching(), 30)
                await nodes.until(lambda: write_buffers(nodes) > 0)
                while write_buffers(nodes):
                    async with Asker(nodes.addresses[0]) as other:  # a new one: it is not idle for long
                        await check_served(other)
                try:
                    while True:
                        await deaf.read(4096)  # what the kernels hold
                except ConnectionResetError:
                    pass

    run(test)


def test_two_thousand_connections_at_once() -> None:
    """Each opened, answered and left alone; together they cost a few KiB each, and the next one is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(most, DESCRIPTORS)), hard))
    # A machine that allows fewer sees fewer.
    count = CONNECTIONS if most >= DESCRIPTORS else (most - 500) // 2
    assert count >= 100, f"ulimit -n is {most}: too few to show anything"

    async def test() -> None:
        async with cluster() as nodes, Asker(nodes.addresses[0]) as other:
            await nodes.create_topic("other", (0,))
            before = resident_bytes()
            crowd = [Asker(nodes.addresses[0]) for _ in range(count)]
            server = nodes.brokers[0].server
            try:
                for at in range(0, count, 200):
                    await asyncio.gather(*(each.__aenter__() for each in crowd[at : at + 200]))
                    answers = await asyncio.gather(
                        *(each.ask(t.ApiVersionsRequest(), 0) for each in crowd[at : at + 200])
                    )
                    assert not any(answer.error_code for answer in answers)
                assert len(server.connections) >= count
                assert resident_bytes() - before < count * 40_000, "both ends together"
                await check_served(other)
                last = await crowd[-1].ask(t.MetadataRequest(topics=None), 9)
                assert [each.node_id for each in last.brokers] == [0]
            finally:
                for each in crowd:
                    await each.__aexit__()
            await nodes.until(lambda: len(server.connections) < 10)
            await check_served(other)

    try:
        run(test)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_frames_of_100_mib_announced_and_not_sent() -> None:
    """Fifty of them: room grows with what comes, so they cost what they have sent."""

    async def test() -> None:
        async with cluster() as nodes, Asker(nodes.addresses[0]) as other:
            await nodes.create_topic("other", (0,))
            server = nodes.brokers[0].server
            before, there = resident_bytes(), len(server.connections)
            crowd = [await asyncio.open_connection(*nodes.addresses[0]) for _ in range(50)]
            for _, writer in crowd:
                writer.write(struct.pack(">i", 100 * MIB) + bytes(40_000))
            await nodes.until(lambda: len(server.connections) == there + 50)
            await nodes.until(lambda: sum(each._filled >= 40_000 for each in server.connections) == 50)
            await check_served(other)
            assert resident_bytes() - before < 30 * MIB
            for _, writer in crowd:
                writer.close()
            await nodes.until(lambda: len(server.connections) == there)

    run(test)


def resident_bytes() -> int:
    """This process's memory; the most that it ever was, where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_full_disk_refuses_what_has_no_room_and_goes_on_when_there_is_some() -> None:
    """Nothing of a refused batch stays; readers are served all the time; no restart is needed."""

    async def test() -> None:
        nodes, disk = cluster(), MemoryDisk()
        nodes.disks[0] = disk
        async with nodes, Asker(nodes.addresses[0]) as client:
            await nodes.create_topic("t", (0,))
            assert (await produce(client, b"before")).error_code == ErrorCode.NONE
            disk.capacity = 0  # what is there stays, nothing more fits
            for _ in range(3):
                refused = await produce(client, bytes(LARGE))
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR, (
                    "retriable: the client tries again"
                )
                assert await values(client) == [b"before"]
            disk.capacity = None
            again = await produce(client, b"after")
            while again.error_code != ErrorCode.NONE:
                assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                await asyncio.sleep(0.01)
                again = await produce(client, b"after")
            assert again.base_offset == 1
            assert await values(client) == [b"before", b"after"]
            assert not nodes.running[0].ended.done()

    run(test)


def test_a_log_dir_that_goes_away_takes_its_partitions_and_no_others() -> None:
    """Its clients get 56 and find the next leader; the other dir's partitions are led here as before."""

    async def test() -> None:
        nodes = cluster(2)
        nodes.log_dirs = ["one", "two"]
        disk = FaultyDisk(MemoryDisk())
        nodes.disks[0] = disk
        async with nodes, Asker(nodes.addresses[0]) as client, Asker(nodes.addresses[1]) as there:
            topics = [await nodes.create_topic(name, (0, 1)) for name in ("a", "b", "c", "d")]
            dirs = {
                each: nodes.running[0].node.replicas.partitions[each].log.directory.split("/")[0]
                for each in topics
            }
            assert set(dirs.values()) == {"one", "two"}
            for each in topics:
                assert (await produce(client, b"before", each.topic)).error_code == ErrorCode.NONE
            gone = [each for each in topics if dirs[each] == "two"]
            stays = [each for each in topics if dirs[each] == "one"]
            disk.inject(Fault(path=lambda path: path.split("/")[0] == "two", forever=True))
            for each in gone:
                refused = await produce(client, b"lost", each.topic)
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            for each in stays:
                assert (await produce(client, b"after", each.topic, acks=1)).error_code == ErrorCode.NONE
            await nodes.until(lambda: all(leader_of(nodes, each) == 1 for each in gone))
            for each in gone:
                assert (await produce(there, b"after", each.topic, acks=1)).error_code == ErrorCode.NONE
            for each in gone:
                assert await committed(there, each.topic) == [b"before", b"after"]
            for each in stays:
                assert leader_of(nodes, each) == 0
                assert await committed(client, each.topic) == [b"before", b"after"]
            described = await client.ask(t.DescribeLogDirsRequest(topics=None), 4)
            assert {each.log_dir: each.error_code for each in described.results} == {
                "one": ErrorCode.NONE, "two": ErrorCode.KAFKA_STORAGE_ERROR,
            }  # fmt: skip

    run(test)


async def committed(client: Asker, topic: str) -> list[bytes | None]:
    """What is there once all that was acknowledged is committed."""
    while len(found := await values(client, topic)) < 2:
        await asyncio.sleep(0.01)
    return found


def leader_of(nodes: Nodes, topic_partition: TopicPartition) -> int:
    """As the node that is well has heard, and leads if it is the one."""
    state = nodes.running[1].node.replicas.metadata.partitions.get(topic_partition)
    leader = -1 if state is None else state.leader
    return leader if leader != 1 or nodes.leader(topic_partition) == 1 else -1
