"""The client: what passes is tried again where the leader is by then, what does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from broker.client import Client
from broker.connection import Connection
from broker.errors import RequestRefused, RequestUnanswered
from broker.limits import Address
from broker.producing import Producer
from broker.server import Server
from broker.wire import types as t
from broker.wire.codec import decode
from broker.wire.declarations import Struct
from broker.wire.headers import decode_request_header, response_frame
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from logstore.batch import Batch
from replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    NewTopic,
)

TP = TopicPartition("t", 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


class Script:
    """Two nodes, of which `leader` leads and controls; answers come from the test's list."""

    def __init__(self, *answers: Struct | None) -> None:
        self.answers = list(answers)
        self.leader = 1
        self.asked: list[tuple[int, Struct]] = []
        self.servers: dict[int, Server] = {}
        self.addresses: dict[int, Address] = {}
        self.client = Client([])

    async def __aenter__(self) -> Script:
        for node_id in (1, 2):
            self.servers[node_id] = Server(partial(self.answer, node_id))
            self.addresses[node_id] = await self.servers[node_id].listen(Address("127.0.0.1", 0))
        self.client = Client([self.addresses[1]], timeout_s=10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for server in self.servers.values():
            server.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    def answer(self, node_id: int, connection: Connection, frame: memoryview) -> None:
        """None hangs up. Whoever leads changes with each answer."""
        header = decode_request_header(frame)
        assert header.api is not None
        request, _ = decode(header.api.request, header.version, frame[header.size :])
        if isinstance(request, t.MetadataRequest):
            answer: Struct | None = self.metadata()
        else:
            self.asked.append((node_id, request))
            self.leader = 3 - self.leader
            answer = self.answers.pop(0)
        if answer is None:
            connection.refuse("as the test says")
        else:
            connection.answer(response_frame(answer, header.version, header.correlation_id))

    def metadata(self) -> t.MetadataResponse:
        partition = t.MetadataResponsePartition(
            leader_id=self.leader, leader_epoch=self.leader, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        return t.MetadataResponse(
            brokers=[
                t.MetadataResponseBroker(node_id=each, host=host, port=port)
                for each, (host, port) in self.addresses.items()
            ],
            controller_id=self.leader,
            topics=[t.MetadataResponseTopic(name="t", partitions=[partition])],
        )


def produced(error: ErrorCode, base_offset: int = -1) -> t.ProduceResponse:
    partition = t.ProduceResponsePartitionProduceResponse(error_code=error, base_offset=base_offset)
    topic = t.ProduceResponseTopicProduceResponse(name="t", partition_responses=[partition])
    return t.ProduceResponse(responses=[topic])


def fetched(error: ErrorCode) -> t.FetchResponse:
    partition = t.FetchResponsePartitionData(error_code=error)
    topic = t.FetchResponseFetchableTopicResponse(topic_name="t", partitions=[partition])
    return t.FetchResponse(responses=[topic])


def created(error: ErrorCode) -> t.CreateTopicsResponse:
    result = t.CreateTopicsResponseCreatableTopicResult(name="t", error_code=error)
    return t.CreateTopicsResponse(topics=[result])


def test_a_refusal_that_passes_is_tried_again_at_the_new_leader() -> None:
    """The same bytes each time: by their sequence numbers the log knows them."""

    async def test() -> None:
        moved = produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with Script(moved, None, produced(ErrorCode.NONE, 7), produced(ErrorCode.NONE, 9)) as script:
            producer = Producer(script.client, TP, producer_id=5)
            assert await producer.send([b"a", b"b"]) == 7
            assert [node_id for node_id, _ in script.asked] == [1, 2, 1]
            bodies = [body for _, body in script.asked]
            assert bodies[0] == bodies[1] == bodies[2]
            assert await producer.send([b"c"]) == 9
            last = script.asked[-1][1]
            assert isinstance(last, t.ProduceRequest)
            records = last.topic_data[0].partition_data[0].records
            assert records is not None
            assert Batch(records).base_sequence == 2, "after the two before"

    run(test)


def test_a_refusal_that_does_not_pass_is_told_at_once() -> None:
    async def test() -> None:
        async with Script(produced(ErrorCode.RECORD_LIST_TOO_LARGE)) as script:
            with pytest.raises(RequestRefused, match="RECORD_LIST_TOO_LARGE"):
                await script.client.produce(TP, b"x")
            assert len(script.asked) == 1

    run(test)


def test_the_last_refusal_is_told_when_time_is_up() -> None:
    async def test() -> None:
        moved = fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with Script(*[moved] * 99) as script:
            script.client._timeout_s = 0.2
            with pytest.raises(RequestRefused, match="NOT_LEADER"):
                await script.client.fetch(TP, 0)
            assert len(script.asked) > 1
            assert all(isinstance(body, t.FetchRequest) for _, body in script.asked)

    run(test)


def test_the_controller_is_looked_for_and_asked_once() -> None:
    """NOT_CONTROLLER, for the whole or for each item, has done nothing; no answer may have done all."""

    async def test() -> None:
        refused = created(ErrorCode.NOT_CONTROLLER)
        async with Script(refused, created(ErrorCode.NONE), refused, None) as script:
            request = CreateTopicsRequest((NewTopic("t"),))
            answer = await script.client.of_controller(request)
            assert answer == CreateTopicsResponse({"t": CreateTopicsResult(ErrorCode.NONE)})
            with pytest.raises(RequestUnanswered):
                await script.client.of_controller(request)
            assert [node_id for node_id, _ in script.asked] == [1, 2, 1, 2]

    run(test)


def test_nobody_there_is_told() -> None:
    async def test() -> None:
        async with Script() as script:
            address = script.addresses[1]
        client = Client([address], timeout_s=0.2)
        with pytest.raises(RequestUnanswered, match="no node answers"):
            await client.metadata()
        with pytest.raises(RequestUnanswered):
            await client.fetch(TP, 0)
        await client.close()

    run(test)
