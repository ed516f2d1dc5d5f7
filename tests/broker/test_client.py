"""The client: what passes is tried again where the leader is by then, what does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from broker.client import Client, Producer, RequestRefused
from broker.errors import RequestUnanswered
from broker.limits import Address
from broker.transport import InHand, Server
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from logstore.batch import Batch
from replication.messages import (
    BrokerEndpoint,
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResult,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FetchRequest,
    FetchResponse,
    FetchResult,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ResponseBody,
)

TP = TopicPartition("t", 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


class Script:
    """Two nodes, of which `leader` leads and controls; answers come from the test's list."""

    def __init__(self, *answers: ResponseBody | None) -> None:
        self.answers = list(answers)
        self.leader = 1
        self.asked: list[tuple[int, object]] = []
        self.servers = {
            node_id: Server(node_id, partial(self.answer, node_id)) for node_id in (1, 2)
        }
        self.addresses: dict[int, Address] = {}
        self.client = Client([])

    async def __aenter__(self) -> Script:
        for node_id, server in self.servers.items():
            self.addresses[node_id] = await server.listen(Address("127.0.0.1", 0))
        self.client = Client([self.addresses[1]], timeout_s=10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for server in self.servers.values():
            server.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    def answer(self, node_id: int, request: InHand) -> None:
        """None hangs up. Whoever leads changes with each answer."""
        if isinstance(request.body, MetadataRequest):
            state = PartitionState(1, self.leader, self.leader, (1, 2), 1, (1, 2))
            brokers = tuple(BrokerEndpoint(each, *address) for each, address in self.addresses.items())
            request.answer(MetadataResponse(brokers, self.leader, {TP: state}))
            return
        self.asked.append((node_id, request.body))
        self.leader = 3 - self.leader
        answer = self.answers.pop(0)
        if answer is None:
            request.refuse("as the test says")
        else:
            request.answer(answer)


def produced(error: ErrorCode, base_offset: int = -1) -> ProduceResponse:
    return ProduceResponse({TP: ProduceResult(error, base_offset)})


def test_a_refusal_that_passes_is_tried_again_at_the_new_leader() -> None:
    """The same bytes each time: by their sequence numbers the log knows them."""

    async def test() -> None:
        moved = produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with Script(moved, None, produced(ErrorCode.NONE, 7), produced(ErrorCode.NONE, 9)) as script:
            producer = Producer(script.client, TP, producer_id=5)
            assert await producer.send([b"a", b"b"]) == 7
            assert [node_id for node_id, _ in script.asked] == [1, 2, 1]
            bodies = [body for _, body in script.asked if isinstance(body, ProduceRequest)]
            assert bodies[0] == bodies[1] == bodies[2]
            assert await producer.send([b"c"]) == 9
            last = script.asked[-1][1]
            assert isinstance(last, ProduceRequest)
            assert Batch(last.records[TP]).base_sequence == 2, "after the two before"

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
        moved = FetchResponse({TP: FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)})
        async with Script(*[moved] * 99) as script:
            script.client._timeout_s = 0.2
            with pytest.raises(RequestRefused, match="NOT_LEADER"):
                await script.client.fetch(TP, 0)
            assert len(script.asked) > 1
            assert all(isinstance(body, FetchRequest) for _, body in script.asked)

    run(test)


def test_the_controller_is_looked_for_and_asked_once() -> None:
    """NOT_CONTROLLER, for the whole or for each item, has done nothing; no answer may have done all."""

    async def test() -> None:
        refused = CreateTopicsResponse({"t": CreateTopicsResult(ErrorCode.NOT_CONTROLLER)})
        made = CreateTopicsResponse({"t": CreateTopicsResult(ErrorCode.NONE)})
        gone = ElectLeadersResponse(ErrorCode.NOT_CONTROLLER)
        async with Script(refused, made, gone, None) as script:
            assert await script.client.of_controller(CreateTopicsRequest((NewTopic("t"),))) == made
            with pytest.raises(RequestUnanswered):
                await script.client.of_controller(ElectLeadersRequest(ElectionType.PREFERRED))
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
