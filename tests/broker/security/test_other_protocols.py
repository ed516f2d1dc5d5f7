"""A peer that speaks TLS, HTTP or SSH to a listener without TLS, or no TLS to one with it: both say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link
from logstore.broker.security.client import NO_SECURITY, ClientSecurity
from logstore.broker.server import Server
from logstore.broker.wire import types as t
from tests.broker.security.authority import broker, stores, trusting


async def _answer(address: Address, security: ClientSecurity) -> str:
    """Why a request was not answered."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[object] = loop.create_future()
    link = Link(address, client_id="me", limits=Limits(), scratch=None, security=security)
    link.ask(t.MetadataRequest(topics=None), 12, answer.set_result)
    try:
        async with asyncio.timeout(60):
            found = await answer
    finally:
        link.close()
    assert isinstance(found, RequestUnanswered)
    return str(found)


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"POST /topics/orders HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH server or client"),
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake on a connection without TLS (security.protocol)"),
    ],
)
def test_a_server_names_the_protocol(first: bytes, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        server = Server(lambda *_: None)
        host, port = await server.listen(Address("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(first)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
        server.close()

    asyncio.run(test())
    assert any(each.endswith(f"out of range (1 to 104857600): {name}") for each in caplog.messages)


def test_a_client_with_tls_at_a_listener_without(tmp_path: Path) -> None:
    async def test() -> None:
        server = Server(lambda *_: None)
        address = await server.listen(Address("127.0.0.1", 0))
        reason = await _answer(address, trusting(tmp_path))
        assert reason.endswith("the connection ended in the TLS handshake; the other side may have no TLS")
        server.close()

    asyncio.run(test())


def test_a_client_without_tls_at_a_listener_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker({"listeners": "SSL://localhost:0", **stores(tmp_path)}) as one:
            reason = await _answer(one.address, NO_SECURITY)
        assert "it may require TLS or a login (security.protocol)" in reason

    asyncio.run(test())
