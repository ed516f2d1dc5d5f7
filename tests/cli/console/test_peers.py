"""How a console asks those of other brokers: over TLS, with a login, and never with a password in plain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from logstore.broker.http import HttpServer, Page
from logstore.broker.http_access import HttpAccess, read_http, split_http
from logstore.broker.limits import Address
from logstore.cli.console.peers import Peer, Peers, Told, parse_peers
from logstore.errors import InvalidConfig
from tests.broker.security.authority import stores

LOGIN = {"http.basic.user": "console", "http.basic.password": "hush"}
HERE = Address("127.0.0.1", 0)


def test_a_peer_over_tls_with_a_login(tmp_path: Path) -> None:
    """The settings of this broker's own port serve both ways."""
    properties = {**stores(tmp_path), **LOGIN}
    own, others = split_http(properties)

    def ask(address: Address, given: dict[str, str]) -> Told:
        peers = Peers([Peer(address, is_tls=True)], given)
        try:
            return peers.ask("/api", {})
        finally:
            peers.close()

    async def run() -> None:
        access = HttpAccess(read_http(own, others, is_tls=True))
        server = HttpServer(HERE, {"/api": lambda: Page(b'{"broker": 2}', "application/json")}, access=access)
        try:
            assert await asyncio.to_thread(ask, server.address, properties) == ([{"broker": 2}], [])
            without = {name: value for name, value in properties.items() if name not in LOGIN}
            (silent,) = (await asyncio.to_thread(ask, server.address, without)).silent
            assert "401" in silent["error"]
            (silent,) = (await asyncio.to_thread(ask, server.address, {})).silent
            assert "certificate verify failed" in silent["error"]
        finally:
            await asyncio.to_thread(server.close)

    asyncio.run(run())


def test_peers_have_the_scheme_of_this_broker_unless_they_say_theirs() -> None:
    for own in (False, True):
        found = parse_peers("a:1,https://b:2,http://c:3", is_tls=own, has_password=False)
        assert [each.is_tls for each in found] == [own, True, False]
    assert parse_peers("", is_tls=True, has_password=True) == ()


def test_a_password_is_not_sent_in_plain() -> None:
    assert len(parse_peers("127.0.0.1:1,https://b:2", is_tls=False, has_password=True)) == 2
    with pytest.raises(InvalidConfig, match="b:2: the password would be sent in plain; write https://"):
        parse_peers("b:2", is_tls=False, has_password=True)


def test_certificates_that_cannot_be_read_are_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        Peers([], {"ssl.truststore.location": str(tmp_path / "none.pem")})
