"""The HTTP port over TLS, with certificates of clients, and with a name and a password."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from logstore.broker.health import alive
from logstore.broker.http import HttpServer, Page
from logstore.broker.http_access import HttpAccess, http_opener, parse_http, read_http, split_http
from logstore.broker.limits import Address, parse_address
from logstore.broker.properties import split_properties
from logstore.errors import InvalidConfig
from tests.broker.security.authority import stores

LOOPBACK = Address("127.0.0.1", 0)
LOGIN = {"http.basic.user": "prometheus", "http.basic.password": "hush:hush"}


def _access(settings: Mapping[str, str], *, is_tls: bool = True) -> HttpAccess:
    own, others = split_http(settings)
    return HttpAccess(read_http(own, others, is_tls=is_tls))


def _serve(access: HttpAccess, ask: Callable[[HttpServer], None], at: Address = LOOPBACK) -> None:
    async def run() -> None:
        routes = {"/livez": alive, "/metrics": lambda: Page(b"told", "text/plain")}
        server = HttpServer(at, routes, access=access)
        try:
            await asyncio.to_thread(ask, server)
        finally:
            await asyncio.to_thread(server.close)

    asyncio.run(run())


def _read(server: HttpServer, client: Mapping[str, str], path: str = "/metrics") -> tuple[int, bytes]:
    """Status and body, with the settings of a client."""
    scheme = "" if server.name.startswith("https") else "http://"
    try:
        with http_opener(client).open(f"{scheme}{server.name}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_over_tls_and_nothing_to_who_speaks_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = stores(tmp_path)
    trust = {"ssl.truststore.location": own["ssl.truststore.location"]}

    def ask(server: HttpServer) -> None:
        assert server.name == f"https://{server.address}"
        assert _read(server, trust) == (200, b"told")
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            _read(server, {})
        with socket.create_connection(server.address, 30) as plain, suppress(ConnectionResetError):
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"told" not in plain.recv(4096)
        assert _read(server, trust) == (200, b"told")

    _serve(_access({**own, "ssl.client.auth": "required"}), ask)  # which is about Kafka's clients
    assert "refusing requests to the HTTP port: TLS: " in caplog.text


def test_only_clients_with_a_certificate(tmp_path: Path) -> None:
    own = stores(tmp_path)

    def ask(server: HttpServer) -> None:
        assert _read(server, stores(tmp_path, "prometheus")) == (200, b"told")
        with pytest.raises((urllib.error.URLError, OSError)):
            _read(server, {"ssl.truststore.location": own["ssl.truststore.location"]})

    _serve(_access({**own, "http.ssl.client.auth": "required"}), ask)


def test_a_name_and_a_password(caplog: pytest.LogCaptureFixture) -> None:
    """Everything needs them but the question whether the process is alive."""

    def ask(server: HttpServer) -> None:
        assert _read(server, LOGIN) == (200, b"told")
        assert _read(server, {}) == (401, b"")
        assert _read(server, {}, "/nowhere") == (401, b"")
        assert _read(server, LOGIN | {"http.basic.password": "hush"}) == (401, b"")
        assert _read(server, {}, "/livez")[0] == 200
        assert _read(server, {}, "/livez?x")[0] == 200
        assert _read(server, {}, "/metrics?/livez") == (401, b"")
        for wrong in ("Basic", "Basic !", "Basic \u00e9", "Bearer cHJvbQ==", "Basic cHJvbQ=="):
            with socket.create_connection(server.address, 30) as raw:
                raw.sendall(f"POST /metrics HTTP/1.0\r\nAuthorization: {wrong}\r\n\r\n".encode())
                assert raw.recv(4096).startswith(b"HTTP/1.0 401 ")

    _serve(_access(LOGIN, is_tls=False), ask)
    assert "a wrong name or password" in caplog.text
    assert "hush" not in caplog.text


def test_an_address_of_ipv6() -> None:
    def ask(server: HttpServer) -> None:
        assert server.name == f"[::1]:{server.address.port}"
        assert _read(server, {}) == (200, b"told")

    _serve(_access({}, is_tls=False), ask, Address("::1", 0))


def test_no_name_server_is_asked_for_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold the event loop until it answers."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked"))
    _serve(_access({}, is_tls=False), lambda server: None)


@pytest.mark.parametrize("text", ["localhost:9092", "127.0.0.1:1", "[::1]:9092", "[fe80::1%eth0]:1"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "host", "is_tls"),
    [
        ("localhost:9644", "localhost", False),
        ("http://0.0.0.0:9644", "0.0.0.0", False),
        ("https://[::1]:9644", "::1", True),
    ],
)
def test_addresses(text: str, host: str, is_tls: bool) -> None:
    assert parse_http(text) == (Address(host, 9644), is_tls)


@pytest.mark.parametrize("text", ["ftp://localhost:1", "https://localhost", "https:localhost:x"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid address"):
        parse_http(text)


@pytest.mark.parametrize(
    ("settings", "is_tls", "message"),
    [
        ({"http.basic.user": "x"}, False, "both or neither"),
        ({"http.basic.user": "x:y", "http.basic.password": "z"}, False, "colon"),
        ({"http.ssl.client.auth": "required"}, False, "use --http https"),
        ({"http.ssl.clients": "required"}, True, "ssl.clients"),
        ({"http.port": "1"}, True, "http.port is not a setting"),
        ({}, True, "needs a key and a certificate"),
    ],
)
def test_settings_that_would_open_it_are_refused(
    settings: dict[str, str], is_tls: bool, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        _access(settings, is_tls=is_tls)


def test_what_is_wrong_with_a_port(tmp_path: Path) -> None:
    network = Address("10.0.0.1", 9644)

    def problems(settings: dict[str, str], *, is_tls: bool = True, at: Address = network) -> list[str]:
        return read_http(*split_http(settings), is_tls=is_tls).problems(at)

    assert problems({}, is_tls=False, at=Address("127.0.0.1", 9644)) == []
    without, everyone = problems({}, is_tls=False)
    assert "without encryption" in without
    assert "open to everyone" in everyone
    assert "a password" in problems(LOGIN, is_tls=False)[0]
    assert problems({}) == [everyone]
    assert problems(LOGIN) == []
    assert problems({"http.ssl.client.auth": "required"}) == []


def test_the_listener_of_a_properties_file() -> None:
    said, rest = split_properties({"http.listener": "https://0.0.0.0:9644", **LOGIN})
    assert said["http"] == "https://0.0.0.0:9644"
    assert rest == LOGIN
