"""Frames over sockets: what is asked is answered in order, and a stranger can only hurt itself (§1.18)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from broker.errors import RequestUnanswered
from broker.limits import Address, Limits
from broker.message_codec import FINGERPRINT, encode
from broker.transport import InHand, Link, Server
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from replication.messages import (
    AlterConfigsResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    FetchRequest,
    FetchResponse,
    FetchResult,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    RequestBody,
    ResponseBody,
)

T = TypeVar("T")
TP = TopicPartition("t", 0)
LOOPBACK = Address("127.0.0.1", 0)
ASK, ANSWER = MetadataRequest(), MetadataResponse((), 7, {})
NODE = 3


def run(test: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await test()

    return asyncio.run(bounded())


async def settled() -> None:
    """Let the loop close what it was told to close."""
    for _ in range(5):
        await asyncio.sleep(0)


class Bench:
    """A server whose requests the test takes one by one, and links whose answers it waits for."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: asyncio.Queue[InHand] = asyncio.Queue()
        self.answers: asyncio.Queue[tuple[int, ResponseBody | RequestUnanswered]] = asyncio.Queue()
        self.limits = limits or Limits()
        self.server = Server(NODE, self.requests.put_nowait, self.limits)
        self.address = LOOPBACK
        self._links: list[Link] = []

    async def __aenter__(self) -> Bench:
        self.address = await self.server.listen(LOOPBACK)
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self.server.close()
        await settled()

    def link(self, *, target: int = NODE) -> Link:
        link = Link(
            self.address,
            lambda number, answer: self.answers.put_nowait((number, answer)),
            source=1,
            target=target,
            limits=self.limits,
        )
        self._links.append(link)
        return link

    async def is_cut_off(self, data: bytes) -> bool:
        """Whether a stranger who says this is hung up on. Bytes that come back count as an answer."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True
        finally:
            writer.close()


def frame(body: RequestBody, *, source: int = 1, target: int = NODE, fingerprint: int = FINGERPRINT) -> bytes:
    content = struct.pack(">Iiiq", fingerprint, source, target, 5) + b"".join(encode(body))
    return struct.pack(">I", len(content)) + content


def test_a_request_is_answered() -> None:
    async def test() -> None:
        async with Bench() as bench:
            bench.link().send(41, ASK)
            request = await bench.requests.get()
            assert (request.source, request.correlation_id, request.body) == (1, 41, ASK)
            request.answer(ANSWER)
            assert await bench.answers.get() == (41, ANSWER)

    run(test)


def test_one_request_of_a_connection_is_in_hand() -> None:
    """Muted until answered: what makes answers come in order, and control requests apply in order."""

    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            for number in (1, 2, 3):
                link.send(number, ASK)
            for number in (1, 2, 3):
                request = await bench.requests.get()
                assert request.correlation_id == number
                assert bench.requests.empty()
                request.answer(ANSWER)
                request.answer(ANSWER)  # twice is once
            assert [(await bench.answers.get())[0] for _ in range(3)] == [1, 2, 3]

    run(test)


def test_a_fetch_that_waits_does_not_hold_up_another_connection() -> None:
    """KIP-291's point: a node opens one for each purpose."""

    async def test() -> None:
        async with Bench() as bench:
            fetching, controlling = bench.link(), bench.link()
            fetching.send(1, FetchRequest(1, 500, 1, 1, {}))
            parked = await bench.requests.get()
            controlling.send(2, ASK)
            (await bench.requests.get()).answer(ANSWER)
            assert await bench.answers.get() == (2, ANSWER)
            parked.answer(FetchResponse({}))
            assert await bench.answers.get() == (1, FetchResponse({}))

    run(test)


def test_a_request_without_an_answer_lets_the_next_one_in() -> None:
    """acks=0: nothing is sent back, the connection goes on."""

    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.send(1, ProduceRequest({}, 0, 0), expects_answer=False)
            link.send(2, ASK)
            (await bench.requests.get()).answer(None)
            (await bench.requests.get()).answer(ANSWER)
            assert await bench.answers.get() == (2, ANSWER)

    run(test)


def test_acks_0_that_failed_is_told_by_a_closed_connection() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.send(1, ProduceRequest({}, 0, 0), expects_answer=False)
            link.send(2, ASK)
            (await bench.requests.get()).answer(None, close=True)
            number, answer = await bench.answers.get()
            assert number == 2
            assert isinstance(answer, RequestUnanswered)

    run(test)


@pytest.mark.parametrize("size", [1, 70_000, 5_000_000])
def test_frames_of_any_size_arrive_whole(size: int) -> None:
    """Longer ones come in many pieces, into room that grows with them."""
    records = bytes(range(256)) * (size // 256 + 1)

    async def test() -> None:
        async with Bench() as bench:
            bench.link().send(1, ProduceRequest({TP: records}, -1, 1))
            request = await bench.requests.get()
            assert request.body == ProduceRequest({TP: records}, -1, 1)
            request.answer(ANSWER)
            _, answer = await bench.answers.get()
            assert isinstance(answer, RequestUnanswered), "it is no answer to a produce"

    run(test)


def test_records_come_back_whole() -> None:
    records = memoryview(bytes(range(256)) * 8_000)

    async def test() -> None:
        async with Bench() as bench:
            bench.link().send(1, FetchRequest(-1, 0, 0, 1, {}))
            answer = FetchResponse({TP: FetchResult(ErrorCode.NONE, records=records)})
            (await bench.requests.get()).answer(answer)
            assert await bench.answers.get() == (1, answer)

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0),
        struct.pack(">I", 101),
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 21) + bytes(21),
        frame(ASK, fingerprint=FINGERPRINT ^ 1),
        frame(ASK, target=NODE + 1),
        frame(ASK, source=-2),
        frame(ASK)[:-1] + b"\2",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_who_breaks_the_protocol_is_cut_off_and_nobody_else(data: bytes) -> None:
    """Sizes that lie, other declarations, another node's request, HTTP, TLS."""

    async def test() -> None:
        async with Bench(Limits(socket_request_max_bytes=100)) as bench:
            link = bench.link()
            assert await bench.is_cut_off(data)
            link.send(1, ASK)
            (await bench.requests.get()).answer(ANSWER)
            assert await bench.answers.get() == (1, ANSWER)

    run(test)


def test_a_declared_size_takes_no_room_before_its_bytes_come() -> None:
    """P2: a hundred connections that each announce 100 MiB cost what they send."""

    async def test() -> None:
        async with Bench() as bench:
            _, writer = await asyncio.open_connection(*bench.address)
            writer.write(struct.pack(">I", 100 << 20) + bytes(100_000))
            await writer.drain()
            bench.link().send(1, ASK)
            await bench.requests.get()
            rooms = [len(each._room) for each in bench.server.connections]
            assert max(rooms) <= 400_000
            writer.close()

    run(test)


def test_more_connections_than_allowed_are_refused() -> None:
    async def test() -> None:
        async with Bench(Limits(max_connections=1)) as bench:
            link = bench.link()
            link.send(1, ASK)
            request = await bench.requests.get()
            assert await bench.is_cut_off(b"")
            request.answer(ANSWER)
            assert await bench.answers.get() == (1, ANSWER)

    run(test)


def test_an_idle_connection_is_closed_and_the_next_request_makes_another() -> None:
    async def test() -> None:
        async with Bench(Limits(connections_max_idle_ms=20)) as bench:
            assert await bench.is_cut_off(b"")
            link = bench.link()
            link.send(1, ASK)
            parked = await bench.requests.get()
            assert await bench.is_cut_off(b""), "the sweep passes by"
            parked.answer(ANSWER)  # one that has a request in hand is not idle
            assert await bench.answers.get() == (1, ANSWER)

    run(test)


def test_a_broken_connection_loses_what_was_on_it_and_is_made_again() -> None:
    """Disconnected for each request that was sent, whatever became of it; nothing is sent twice."""

    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.send(1, ASK)
            link.send(2, ASK)
            (await bench.requests.get()).refuse("a test")
            for number in (1, 2):
                got, answer = await bench.answers.get()
                assert got == number
                assert isinstance(answer, RequestUnanswered)
            link.send(3, ASK)
            request = await bench.requests.get()
            assert request.correlation_id == 3
            request.answer(ANSWER)
            assert await bench.answers.get() == (3, ANSWER)

    run(test)


@pytest.mark.parametrize("address", [Address("h" * 64, 9092), Address("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_one_is_a_node_that_cannot_be_reached(address: Address) -> None:
    """Registrations are taken from the store as they are: a request there is lost, not kept for ever."""

    async def test() -> None:
        answers: asyncio.Queue[tuple[int, ResponseBody | RequestUnanswered]] = asyncio.Queue()
        link = Link(address, lambda number, answer: answers.put_nowait((number, answer)))
        link.send(1, ASK)
        number, answer = await answers.get()
        assert number == 1
        assert isinstance(answer, RequestUnanswered)
        link.close()

    run(test)


def test_a_node_that_is_not_there_is_not_asked_again_at_once() -> None:
    """Back-off: requests that come meanwhile fail without a connection attempt; later one is made."""

    async def test() -> None:
        bench = Bench(Limits(reconnect_backoff_ms=30))
        async with bench:
            pass  # the port is known, and nobody listens there any more
        link = bench.link()
        reasons = []
        for number in (1, 2):
            link.send(number, ASK)
            got, answer = await bench.answers.get()
            assert got == number
            assert isinstance(answer, RequestUnanswered)
            reasons.append(str(answer))
        assert "a moment ago" in reasons[1]
        server = Server(NODE, lambda request: request.answer(ANSWER))
        await server.listen(bench.address)
        while True:
            link.send(3, ASK)
            if (await bench.answers.get())[1] == ANSWER:
                break
        link.close()
        server.close()
        await settled()

    run(test)


def test_no_answer_in_time_breaks_the_connection() -> None:
    """A peer that is stopped, or behind a cable that was pulled, must not keep us waiting for ever."""

    async def test() -> None:
        async with Bench(Limits(request_timeout_ms=20)) as bench:
            link = bench.link()
            link.send(1, ASK)
            request = await bench.requests.get()
            number, answer = await bench.answers.get()
            assert (number, type(answer)) == (1, RequestUnanswered)
            request.answer(ANSWER)  # too late, and harmless

    run(test)


def test_an_answer_of_the_wrong_kind_breaks_the_connection() -> None:
    async def test() -> None:
        async with Bench() as bench:
            bench.link().send(1, ControlledShutdownRequest(1, 1))
            (await bench.requests.get()).answer(AlterConfigsResponse({}))
            number, answer = await bench.answers.get()
            assert (number, type(answer)) == (1, RequestUnanswered)
            link = bench.link()
            link.send(2, ControlledShutdownRequest(1, 1))
            (await bench.requests.get()).answer(ControlledShutdownResponse(ErrorCode.NONE))
            assert (await bench.answers.get())[0] == 2

    run(test)


def test_closing_a_link_loses_what_it_waits_for() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.send(1, ASK)
            link.close()  # while it connects
            assert (await bench.answers.get())[0] == 1

    run(test)


def test_what_has_no_bytes_is_lost_alone() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.send(1, MetadataRequest(("\ud800",)))
            link.send(2, ASK)
            assert isinstance((await bench.answers.get())[1], RequestUnanswered)
            (await bench.requests.get()).answer(ANSWER)
            assert await bench.answers.get() == (2, ANSWER)

    run(test)


def test_who_does_not_take_its_answers_is_not_read_from() -> None:
    """One answer is all that a slow reader makes us keep."""
    records = bytes(8 << 20)

    async def test() -> None:
        async with Bench() as bench:
            reader, writer = await asyncio.open_connection(*bench.address, limit=1 << 16)
            writer.write(frame(FetchRequest(-1, 0, 0, 1, {})) * 2)
            first = await bench.requests.get()
            first.answer(FetchResponse({TP: FetchResult(ErrorCode.NONE, records=records)}))
            bench.link().send(1, ASK)
            assert (await bench.requests.get()).source == 1, "not the slow reader's second request"
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            await reader.readexactly(size)
            second = await bench.requests.get()
            assert second.body == first.body
            writer.close()

    run(test)
