"""The asking side: answers in order, and what befalls requests whose connection breaks, stalls or lies."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from logstore.broker import connection
from logstore.broker.connection import Connection
from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link
from logstore.broker.security.client import ClientSecurity
from logstore.broker.server import Server
from logstore.broker.wire import types as t
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import RequestHeader, decode_request_header, response_frame

LOOPBACK = Address("127.0.0.1", 0)
ASK, ANSWER = t.MetadataRequest(topics=None), t.MetadataResponse(controller_id=7)
VERSION = 12

Answer: TypeAlias = "Struct | RequestUnanswered"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


class Asked:
    """A request that the test answers, or not."""

    def __init__(self, connection: Connection, frame: memoryview) -> None:
        self.connection = connection
        self.header: RequestHeader = decode_request_header(frame)
        assert self.header.api is not None
        self.body, _ = decode(self.header.api.request, self.header.version, frame[self.header.size :])

    def answer(self, body: Struct = ANSWER, *, correlation_id: int | None = None) -> None:
        number = self.header.correlation_id if correlation_id is None else correlation_id
        self.connection.answer(response_frame(body, self.header.version, number))


class Bench:
    """A server whose requests the test takes one by one, and links whose answers it waits for."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: asyncio.Queue[Asked] = asyncio.Queue()
        self.answers: asyncio.Queue[tuple[int, Answer]] = asyncio.Queue()
        self.limits = limits or Limits()
        self.server = Server(lambda *asked: self.requests.put_nowait(Asked(*asked)), self.limits)
        self.address = LOOPBACK
        self._links: list[Link] = []

    async def __aenter__(self) -> Bench:
        self.address = await self.server.listen(LOOPBACK)
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self.server.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    def link(self, address: Address | None = None) -> Link:
        link = Link(address or self.address, client_id="me", limits=self.limits, scratch=None)
        self._links.append(link)
        return link

    def ask(self, link: Link, number: int, request: Struct = ASK, version: int = VERSION) -> None:
        link.ask(request, version, lambda answer: self.answers.put_nowait((number, answer)))

    async def lost(self, *numbers: int, because: str = "") -> None:
        """These are the next that hear that there is no answer, and why."""
        for number in numbers:
            got, answer = await self.answers.get()
            assert got == number
            assert isinstance(answer, RequestUnanswered)
            assert because in str(answer)


def test_a_request_is_answered() -> None:
    async def test() -> None:
        async with Bench() as bench:
            bench.ask(bench.link(), 41)
            request = await bench.requests.get()
            assert (request.header.client_id, request.body) == ("me", ASK)
            request.answer()
            assert await bench.answers.get() == (41, ANSWER)

    run(test)


def test_requests_go_out_at_once_and_their_answers_come_in_order() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            for number in range(5):
                bench.ask(link, number)
            ids = []
            for _ in range(5):
                request = await bench.requests.get()
                ids.append(request.header.correlation_id)
                request.answer()
            assert ids == [1, 2, 3, 4, 5]
            assert [(await bench.answers.get())[0] for _ in range(5)] == list(range(5))

    run(test)


def test_correlation_ids_begin_anew_when_their_31_bits_are_used_up() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1)
            (await bench.requests.get()).answer()
            await bench.answers.get()
            assert link._connection is not None
            link._connection._last_id = 2**31 - 2
            for number, correlation_id in ((2, 2**31 - 1), (3, 1)):
                bench.ask(link, number)
                request = await bench.requests.get()
                assert request.header.correlation_id == correlation_id
                request.answer()
                assert await bench.answers.get() == (number, ANSWER)

    run(test)


def test_a_request_without_an_answer_lets_the_next_one_in() -> None:
    """acks=0."""

    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            link.ask(t.ProduceRequest(), 9, None)
            bench.ask(link, 2)
            (await bench.requests.get()).connection.answer(())
            (await bench.requests.get()).answer()
            assert await bench.answers.get() == (2, ANSWER)

    run(test)


@pytest.mark.parametrize("size", [1, 70_000, 5_000_000])
def test_records_go_and_come_back_whole(size: int) -> None:
    records = (bytes(range(256)) * (size // 256 + 1))[:size]

    async def test() -> None:
        async with Bench() as bench:
            partition = t.ProduceRequestPartitionProduceData(records=records)
            topic = t.ProduceRequestTopicProduceData(name="t", partition_data=[partition])
            link = bench.link()
            bench.ask(link, 1, t.ProduceRequest(topic_data=[topic]), 9)
            request = await bench.requests.get()
            assert isinstance(request.body, t.ProduceRequest)
            assert request.body.topic_data[0].partition_data[0].records == records
            request.answer(t.ProduceResponse())
            await bench.answers.get()
            bench.ask(link, 2, t.FetchRequest(), 12)
            fetched = t.FetchResponsePartitionData(records=records)
            answer = t.FetchResponse(
                responses=[t.FetchResponseFetchableTopicResponse(topic="t", partitions=[fetched])]
            )
            (await bench.requests.get()).answer(answer)
            assert await bench.answers.get() == (2, answer)

    run(test)


def test_a_broken_connection_loses_what_was_on_it_and_is_made_again() -> None:
    """Each request hears of it, whatever became of it; nothing is sent twice."""

    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1)
            bench.ask(link, 2)
            (await bench.requests.get()).connection.refuse("a test")
            await bench.lost(1, 2, because=f"the connection to {bench.address} broke: ")
            bench.ask(link, 3)
            (await bench.requests.get()).answer()
            assert await bench.answers.get() == (3, ANSWER)

    run(test)


@pytest.mark.parametrize("address", [Address("h" * 64, 9092), Address("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_one_is_a_node_that_cannot_be_reached(address: Address) -> None:
    """Registrations are taken from the store as they are: a request there is lost, not kept for ever."""

    async def test() -> None:
        async with Bench() as bench:
            bench.ask(bench.link(address), 1)
            await bench.lost(1)

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
            bench.ask(link, number)
            got, answer = await bench.answers.get()
            assert got == number
            assert isinstance(answer, RequestUnanswered)
            reasons.append(str(answer))
        assert "a moment ago" in reasons[1]
        server = Server(lambda *asked: Asked(*asked).answer())
        await server.listen(bench.address)
        while True:
            bench.ask(link, 3)
            if (await bench.answers.get())[1] == ANSWER:
                break
        link.close()
        server.close()
        for _turn in range(5):
            await asyncio.sleep(0)

    run(test)


def test_an_error_without_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called "no answer in 10 s", at once."""

    async def broken(self: ClientSecurity, *_: object) -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(ClientSecurity, "connect", broken)

    async def test() -> None:
        async with Bench() as bench:
            bench.ask(bench.link(), 1)
            _, answer = await bench.answers.get()
            assert str(answer).endswith(": ConnectionAbortedError")

    run(test)


def test_no_answer_in_time_breaks_the_connection() -> None:
    """A peer that is stopped, or behind a cable that was pulled, must not keep us waiting for ever."""

    async def test() -> None:
        async with Bench(Limits(request_timeout_ms=20)) as bench:
            bench.ask(bench.link(), 1)
            request = await bench.requests.get()
            await bench.lost(1, because="no answer in 0.02 s")
            request.answer()  # too late, and harmless

    run(test)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (struct.pack(">iib", 5, 99, 0), "response out of order"),
        (struct.pack(">ib", 1, 0), "invalid response header"),
        (struct.pack(">ii", 4, 1), "a tag section is truncated"),
        (struct.pack(">iib", 5, 1, 0), "MetadataResponse version 12 is malformed at byte 0"),
        (struct.pack(">iib", 8, 1, 0) + b"\xff\xff\xff", "MetadataResponse version 12 is malformed"),
        (struct.pack(">i", -1), "frame size -1 out of range"),
        (struct.pack(">i", 2**31 - 1), "frame size 2147483647 out of range"),
        (b"HTTP/1.1 400 Bad Request\r\n", "(1 to 104857600): an answer of an HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x46", ": a TLS alert on a connection without TLS (security.protocol)"),
    ],
    ids=[
        "another's",
        "no header",
        "no tags",
        "no body",
        "no message",
        "negative",
        "too large",
        "HTTP",
        "TLS",
    ],
)
def test_an_answer_that_is_none_breaks_the_connection(answer: bytes, reason: str) -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1)
            bench.ask(link, 2)
            (await bench.requests.get()).connection.answer((answer,))
            await bench.lost(1, 2, because=reason)

    run(test)


def test_an_answer_that_nobody_asked_for_breaks_the_connection() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1)
            request = await bench.requests.get()
            request.answer()
            assert await bench.answers.get() == (1, ANSWER)
            assert request.connection.transport is not None
            request.connection.transport.write(b"".join(response_frame(ANSWER, VERSION, 2)))
            while link._connection is not None:
                await asyncio.sleep(0.001)

    run(test)


def test_closing_a_link_loses_what_it_waits_for() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1)
            link.close()  # while it connects
            await bench.lost(1)
            link = bench.link()
            bench.ask(link, 2)
            await bench.requests.get()
            link.close()
            await bench.lost(2, because="closed by this side")

    run(test)


def test_a_peer_that_closes_is_named_as_the_reason() -> None:
    """A listener with logins tells everyone its versions, and closes the connection at the next request."""

    async def test() -> None:
        closed = "closed by the other side"
        needs = " before it served a request: it may require TLS or a login (security.protocol)"
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1, t.ApiVersionsRequest(), 0)
            versions = t.ApiVersionsResponse()
            (await bench.requests.get()).answer(versions)
            assert await bench.answers.get() == (1, versions)
            bench.ask(link, 2)
            (await bench.requests.get()).connection.close()
            await bench.lost(2, because=f"the connection to {bench.address} broke: {closed}{needs}")
            bench.ask(link, 3)
            (await bench.requests.get()).answer()
            assert await bench.answers.get() == (3, ANSWER)
            bench.ask(link, 4)
            (await bench.requests.get()).connection.close()
            number, answer = await bench.answers.get()
            assert (number, str(answer)) == (4, f"the connection to {bench.address} broke: {closed}")

    run(test)


def test_no_memory_for_an_answer_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of 50 MB by a process at its limit said that "the connection broke", as if the broker had."""

    def none(size: int) -> memoryview:
        raise MemoryError(f"no room for {size} bytes")

    async def test() -> None:
        async with Bench() as bench:
            monkeypatch.setattr(connection, "_room", none)
            bench.ask(bench.link(), 1)
            (await bench.requests.get()).connection.answer((struct.pack(">i", 1 << 20), bytes(1 << 20)))
            await bench.lost(1, because="no room for")

    run(test)


def test_what_has_no_bytes_is_lost_alone() -> None:
    async def test() -> None:
        async with Bench() as bench:
            link = bench.link()
            bench.ask(link, 1, t.MetadataRequest(topics=[t.MetadataRequestTopic(name="\ud800")]))
            bench.ask(link, 2)
            await bench.lost(1)
            (await bench.requests.get()).answer()
            assert await bench.answers.get() == (2, ANSWER)

    run(test)
