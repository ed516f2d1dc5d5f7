"""From frame to handler over real sockets: what is served, what ends a connection, what a bug costs."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.broker.dispatch import Call, Services
from logstore.broker.handlers import HANDLERS
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.codec import decode
from logstore.broker.wire.headers import request_frame
from logstore.disk.errors import ErrorCode
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.broker.asking import Asker
from tests.broker.nodes import Nodes


def run(test: Callable[[Nodes, Asker], Awaitable[None]]) -> None:
    """One node, one connection."""

    async def bounded() -> None:
        async with asyncio.timeout(60), Nodes(1) as nodes, Asker(nodes.addresses[0]) as client:
            await nodes.until(lambda: bool(nodes.running[0].node.replicas.metadata.brokers))
            await test(nodes, client)

    asyncio.run(bounded())


def told(answer: t.ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_tells_what_has_a_handler_and_nothing_else(version: int) -> None:
    async def test(_: Nodes, client: Asker) -> None:
        request = t.ApiVersionsRequest(client_software_name="a-client", client_software_version="1.2")
        answer = await client.ask(request, version)
        assert answer.error_code == ErrorCode.NONE
        advertised = {key: APIS[key].advertised for key in HANDLERS if APIS[key].advertised}
        assert told(answer) == {key: (range_[0], range_[-1]) for key, range_ in advertised.items()}

    run(test)


def test_rule_3_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    """With error 35 and the whole list, so that the client can ask again lower. No tags in the header."""

    async def test(_: Nodes, client: Asker) -> None:
        client.send_bytes(struct.pack(">ihhih", 16, 18, 99, 7, 2) + b"me" + b"\0\0\0\0")
        frame = memoryview(await client.answer_bytes())
        assert struct.unpack_from(">i", frame) == (7,)
        answer, size = decode(t.ApiVersionsResponse, 0, frame[4:])
        assert 4 + size == len(frame)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert told(answer)[18] == (0, 4)
        again = await client.ask(t.ApiVersionsRequest(), 0)
        assert again.error_code == ErrorCode.NONE, "on the same connection"

    run(test)


def test_rule_8_the_clients_software_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        request = t.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.6.0")
        await client.ask(request, 3)
        (connection,) = nodes.brokers[0].server.connections
        assert connection.software == "librdkafka 2.6.0"

    with caplog.at_level(logging.INFO):
        run(test)
    assert "librdkafka 2.6.0" in caplog.text


def test_a_client_fills_no_log_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a long client id, nor by asking again."""

    async def test(nodes: Nodes, _other: Asker) -> None:
        request = t.ApiVersionsRequest(client_software_name="mine", client_software_version="1")
        async with Asker(nodes.addresses[0], "x" * 30_000) as client:
            for _ in range(3):
                await client.ask(request, 3)

    with caplog.at_level(logging.INFO):
        run(test)
    (line,) = [each.getMessage() for each in caplog.records if "mine 1" in each.getMessage()]
    assert len(line) < 200


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "x" * 300])
def test_a_name_of_software_that_would_spoil_a_log_is_refused(name: str) -> None:
    async def test(_: Nodes, client: Asker) -> None:
        request = t.ApiVersionsRequest(client_software_name=name, client_software_version="1")
        assert (await client.ask(request, 3)).error_code == ErrorCode.INVALID_REQUEST

    run(test)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", 3, 99, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        struct.pack(">hhih", 0, 2, 1, -1) + bytes(20),
        struct.pack(">hhih", 3, 0, 1, -1),
        struct.pack(">hhih", 3, 0, 1, -1) + b"\xff\xff\xff\xff",
        struct.pack(">hhih", 3, 1, 1, 100) + b"name",
        struct.pack(">hh", 3, 1),
        b"\0",
    ],
    ids=[
        "unknown API",
        "unknown version",
        "negative API",
        "advertised and not served",
        "no body",
        "a null that may not be",
        "a client id beyond the frame",
        "half a header",
        "a byte",
    ],
)
def test_rules_2_and_3_what_cannot_be_served_ends_its_connection_and_no_other(frame: bytes) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        async with Asker(nodes.addresses[0]) as other:
            client.send_bytes(struct.pack(">i", len(frame)) + frame)
            assert await client.is_cut_off()
            assert (await other.ask(t.ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE

    run(test)


@pytest.mark.parametrize(
    ("key", "version", "said"),
    [
        (2, 0, "ListOffsets version 0 is not served, versions 1 to 8 are"),
        (999, 0, "API 999 version 0 is not served"),
    ],
)
def test_the_log_names_what_is_not_served(
    key: int, version: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(_: Nodes, client: Asker) -> None:
        client.send_bytes(struct.pack(">ihhih", 10, key, version, 1, -1))
        assert await client.is_cut_off()

    with caplog.at_level("WARNING", "logstore.broker.connection"):
        run(test)
    assert [each.getMessage() for each in caplog.records] == [f"disconnecting 127.0.0.1: {said}"]


def test_bytes_after_a_body_are_ignored() -> None:
    """librdkafka 2.15 sends three too many in Metadata 12."""

    async def test(_: Nodes, client: Asker) -> None:
        (frame,) = request_frame(t.MetadataRequest(topics=None), 12, 5, "me")
        client.send_bytes(struct.pack(">i", len(frame) - 4 + 3) + bytes(frame[4:]) + b"\1\2\3")
        answer = await client.answer(t.MetadataRequest, 12, 5)
        assert [each.node_id for each in answer.brokers] == [0]

    run(test)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_bug_in_a_handler_costs_its_client_the_connection_and_nobody_else(
    is_late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def late(call: Call, body: object, services: Services) -> None:
        services.in_thread(call, lambda: None, bug)

    monkeypatch.setitem(HANDLERS, 3, late if is_late else bug)

    async def test(nodes: Nodes, client: Asker) -> None:
        async with Asker(nodes.addresses[0]) as other:
            client.send(t.MetadataRequest(), 1)
            assert await client.is_cut_off()
            assert (await other.ask(t.ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            assert not nodes.running[0].ended.done()

    with caplog.at_level(logging.ERROR):
        run(test)
    assert "Metadata v1" in caplog.text
    assert "correlation id 1" in caplog.text


def test_requests_on_one_connection_are_answered_in_order_whatever_they_wait_for() -> None:
    """A fetch that waits holds up what follows on its connection, and no other."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await nodes.create_topic("t", (0,))
        partition = t.FetchRequestFetchPartition(partition_max_bytes=1)
        topic = t.FetchRequestFetchTopic(topic="t", partitions=[partition])
        waiting = client.send(t.FetchRequest(max_wait_ms=300, min_bytes=1, topics=[topic]), 4)
        behind = client.send(t.ApiVersionsRequest(), 0)
        async with Asker(nodes.addresses[0]) as other:
            await other.ask(t.ApiVersionsRequest(), 0)
        fetched = await client.answer(t.FetchRequest, 4, waiting)
        assert fetched.responses[0].partitions[0].records == b""
        await client.answer(t.ApiVersionsRequest, 0, behind)

    run(test)


def test_produce_requests_of_one_connection_wait_for_their_acks_together() -> None:
    """All are in the leader's log before the first is answered: a follower fetches them in one round."""

    async def test() -> None:
        async with asyncio.timeout(60), Nodes(2) as nodes:
            topic_partition = await nodes.create_topic("t", (0, 1))
            leader = nodes.leader(topic_partition)
            await nodes.until(lambda: len(nodes.isr(topic_partition)) == 2)
            nodes.running[1 - leader]._is_stopping = True  # it fetches no more, and stays in sync
            data = t.ProduceRequestPartitionProduceData(records=encode_batch([Record(0, 5, None, b"x")]))
            topic = t.ProduceRequestTopicProduceData(name="t", partition_data=[data])
            async with Asker(nodes.addresses[leader]) as client:
                request = t.ProduceRequest(acks=-1, timeout_ms=300, topic_data=[topic])
                sent = [client.send(request, 9) for _ in range(3)]
                behind = client.send(t.ApiVersionsRequest(), 0)
                for number in sent:
                    answer = await client.answer(t.ProduceRequest, 9, number)
                    (part,) = answer.responses[0].partition_responses
                    assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
                    assert nodes.ends(topic_partition)[leader] == 3
                await client.answer(t.ApiVersionsRequest, 0, behind)
            nodes.running[1 - leader]._is_stopping = False

    asyncio.run(test())


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_wait_for_a_condition_ends_with_its_connection(is_closing: bool) -> None:
    """A deletion may wait for minutes, and looks a hundred times a second."""
    looks: list[int] = []
    services: Any = SimpleNamespace(
        now_ms=lambda: 0, when=bool, later=lambda _, delay, __: looks.append(delay)
    )
    call: Any = SimpleNamespace(connection=SimpleNamespace(is_closing=is_closing))
    answer = t.DeleteTopicsResponse()
    found = Services.when(services, call, lambda: False, 60_000, lambda: answer)
    assert (found is answer, bool(looks)) == (is_closing, not is_closing)
