"""Who may ask the console, its files, and the port beneath it."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
from http import HTTPStatus
from typing import Any, cast

import pytest

from logstore.broker.http import MOST_BODY_BYTES, Asked, HttpServer, Page
from logstore.broker.limits import Address
from logstore.cli.console.api import Api
from logstore.cli.console.site import HEADERS, ConsoleSite, is_known_host, names_of, static_files

KNOWN = names_of("console.example", "10.0.0.1")


class FakeApi:
    """Says what it was asked."""

    def get(self, path: str, query: str) -> Page:
        return Page(json.dumps(["get", path, query]).encode())

    def post(self, path: str, body: bytes) -> Page:
        return Page(json.dumps(["post", path, body.decode()]).encode())


SITE = ConsoleSite(cast(Api, FakeApi()), KNOWN, lambda: None)


def answer(method: str, path: str, host: str = "localhost:8000", body: bytes = b"", **headers: str) -> Page:
    lowered = {name.replace("_", "-"): value for name, value in headers.items()}
    return SITE.answer(Asked(method, path, "a=1", {"host": host, **lowered}, body))


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("192.168.1.7:8000", True),
        ("console.example:1", True),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8000", False),
        ("", False),
        (":8000", False),
    ],
)
def test_a_name_that_somebody_pointed_here_is_refused(host: str, is_known: bool) -> None:
    assert is_known_host(host, KNOWN) is is_known
    for path in ("/", "/api/overview"):
        expected = HTTPStatus.OK if is_known else HTTPStatus.MISDIRECTED_REQUEST
        assert answer("GET", path, host).status is expected


def test_a_post_of_another_sites_page_is_refused() -> None:
    def post(**headers: str) -> HTTPStatus:
        return answer("POST", "/api/elections", body=b"{}", **headers).status

    own = {"content_type": "application/json", "origin": "http://localhost:8000"}
    assert post(**own) is HTTPStatus.OK
    assert post(content_type="application/json; charset=utf-8") is HTTPStatus.OK  # no browser: no origin
    assert post(**{**own, "origin": "http://evil.example"}) is HTTPStatus.FORBIDDEN
    assert post(**{**own, "origin": "null"}) is HTTPStatus.FORBIDDEN
    assert post(**{**own, "origin": "http://localhost:9999"}) is HTTPStatus.FORBIDDEN
    assert post(**own, sec_fetch_site="cross-site") is HTTPStatus.FORBIDDEN
    assert post(**own, sec_fetch_site="same-origin") is HTTPStatus.OK
    for form in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert post(**{**own, "content_type": form}) is HTTPStatus.UNSUPPORTED_MEDIA_TYPE


def test_every_answer_forbids_foreign_scripts_and_frames() -> None:
    pages = [answer("GET", path) for path in ("/", "/none", "/api")]
    for page in (*pages, answer("GET", "/", "evil")):
        assert {name: page.headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert not any(name.lower().startswith("access-control") for name in HEADERS)


def test_files_are_served_by_their_names_and_no_others() -> None:
    assert answer("GET", "/").content_type.startswith("text/html")
    assert answer("GET", "/vendor/uplot.js").content_type.startswith("text/javascript")
    for path in ("/../console.py", "/vendor/../index.html", "/%2e%2e/console.py", "/vendor/", "/console.py"):
        assert answer("GET", path).status is HTTPStatus.NOT_FOUND


def test_pages_ask_nobody_else_and_have_no_inline_scripts() -> None:
    for path, page in static_files().items():
        if path.startswith("/vendor/") or page.content_type == "image/svg+xml":
            continue
        text = page.content.decode()
        assert not re.search(r"https?://", text), path
        assert "innerHTML" not in text, path
        if page.content_type.startswith("text/html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)", text), path
            assert not re.search(r"\bstyle=|\bon\w+=", text), path
        imported = re.findall(r'^import .*? from "(.*?)";$', text, re.MULTILINE)
        assert set(imported) <= static_files().keys(), path


def test_vendored_files_are_unchanged_and_have_their_licences() -> None:
    found = static_files()
    listed = found["/vendor/VENDORED.txt"].content.decode()
    digests = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", listed, re.MULTILINE)}
    code = {path.removeprefix("/vendor/") for path in found if re.fullmatch(r"/vendor/.*\.(js|css)", path)}
    assert digests.keys() == code
    for name, digest in digests.items():
        assert hashlib.sha256(found[f"/vendor/{name}"].content).hexdigest() == digest, name
    licences = set(re.findall(r"LICENSE-\w+\.txt", listed))
    assert licences == {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uplot.txt"}
    assert all(f"/vendor/{licence}" in found for licence in licences)


# --- the port -------------------------------------------------------------------------------------


def test_a_port_with_a_site() -> None:
    def site(asked: Asked) -> Page:
        if asked.path == "/broken":
            raise ZeroDivisionError
        said = {"method": asked.method, "path": asked.path, "query": asked.query, "body": asked.body.decode()}
        return Page(
            json.dumps({**said, "kind": asked.headers.get("x-kind")}).encode(), headers={"X-Own": "1"}
        )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = HttpServer(Address("127.0.0.1", 0), {"/livez": lambda: Page(b"{}")}, site=site)
        bare = HttpServer(Address("127.0.0.1", 0), {"/livez": lambda: Page(b"{}")})
        try:
            await loop.run_in_executor(None, ask_both, server.address, bare.address)
        finally:
            server.close()
            bare.close()

    asyncio.run(run())


def ask_both(address: Address, bare: Address) -> None:
    assert ask(address, "GET", "/livez")[:2] == (200, {})
    status, said, headers = ask(address, "GET", "/some?x=1", headers={"X-Kind": "k"})
    assert (status, headers["X-Own"]) == (200, "1")
    assert said == {"method": "GET", "path": "/some", "query": "x=1", "body": "", "kind": "k"}
    assert ask(address, "POST", "/some", b"hello")[1]["body"] == "hello"
    assert ask(address, "POST", "/livez", b"")[0] == HTTPStatus.METHOD_NOT_ALLOWED
    assert ask(address, "GET", "/broken")[0] == HTTPStatus.INTERNAL_SERVER_ERROR
    too_long = {"Content-Length": str(MOST_BODY_BYTES + 1)}
    assert ask(address, "POST", "/some", headers=too_long)[0] == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert ask(address, "POST", "/some", headers={"Content-Length": "9" * 30})[0] == 413
    assert ask(address, "POST", "/some", headers={"Content-Length": "-1"})[0] == HTTPStatus.LENGTH_REQUIRED
    for method in ("PUT", "DELETE", "PATCH", "NONE"):
        status, said, headers = ask(address, method, "/some")
        assert (status, headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD, POST")
        assert said == {"error": f"{method} is not served here; there are GET, HEAD, POST"}
    assert ask(address, "PUT", "/livez")[2]["Allow"] == "GET, HEAD"
    status_414 = HTTPStatus.REQUEST_URI_TOO_LONG  # Python 3.13 has another phrase for it
    assert ask(address, "GET", f"/{'a' * 70_000}")[:2] == (status_414, {"error": status_414.phrase})
    for method, path in (("POST", "/livez"), ("GET", "/broken"), ("POST", "/some")):
        assert "error" in ask(address, method, path, headers={"Content-Length": "-1"})[1]
    assert ask(bare, "GET", "/some")[0] == HTTPStatus.NOT_FOUND
    assert ask(bare, "POST", "/some", b"x")[0] == HTTPStatus.METHOD_NOT_ALLOWED


def ask(
    address: Address, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON (or None), headers."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        found = connection.getresponse()
        text = found.read()
        is_json = found.headers["Content-Type"] == "application/json"
        return found.status, json.loads(text) if is_json else None, dict(found.headers)
    finally:
        connection.close()
