"""A broker's HTTP port: `/metrics`, `/healthz`, `/livez`, and a site behind them, such as the console.

Served by threads of the standard library's server, so that a request is answered even while the broker's
event loop is blocked; the answer then reports that. The content of a page is gathered on the loop. A site
answers in the thread of the request.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple, Protocol, TypeAlias

from logstore.arguments import whole_number
from logstore.broker.http_access import HttpAccess
from logstore.broker.limits import Address
from logstore.disk.descriptors import Spares
from logstore.disk.errors import explained, is_shortage
from logstore.loggers import logger_of

PATIENCE_S = 5.0
MOST_CONNECTIONS = 32
"""Each has a thread; further ones are closed."""
MOST_BODY_BYTES = 1 << 20
"""A request with a larger body is refused."""
_PAUSE_S = 0.5

_log = logger_of(__name__)


class Page(NamedTuple):
    """The result of a route."""

    content: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = {}


class Asked(NamedTuple):
    """A request to a site. The names of `headers` are in lower case; `query` is what follows the `?`."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    """The address of the sender."""


class Site(Protocol):
    """Further paths of an HTTP port, beside its routes."""

    def answer(self, asked: Asked) -> Page:
        """Answer a request, in a thread of the server. Any number may run at once."""

    def close(self) -> None:
        """Let go of everything; requests that come later may fail."""


OnLoop: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Calls a function on the loop, and returns its result."""
Route: TypeAlias = Callable[[], Page | Callable[[OnLoop], Page]]
"""Makes a page on the loop; or returns what makes it in a thread, and looks at the loop's in pieces."""


class HttpServer:
    """Serves pages until it is closed. Create and close it on the event loop of its routes."""

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        *,
        access: HttpAccess | None = None,
        site: Callable[[Asked], Page] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Bind and serve; port 0 means any free one. `routes` are called on this loop. Raises `OSError`.

        Without `access` everyone who connects may read, without TLS.

        If the loop does not run a route within `patience_s`, the answer is 503. `site` answers what is no
        route, and every POST, in a thread.
        """
        doorkeeper = access or HttpAccess()
        try:
            self._server = _Listener(address, doorkeeper, _Pages(routes, site, patience_s))
        except OSError as error:
            raise explained(error, f"cannot open the HTTP port {address} (--http)") from error
        self.address = Address(address.host, self._server.server_address[1])
        self.name = f"{doorkeeper.prefix}{self.address}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Pages:
    """The answers: of routes, which run on the loop, and of the site."""

    def __init__(
        self, routes: Mapping[str, Route], site: Callable[[Asked], Page] | None, patience_s: float
    ) -> None:
        self._routes, self._site = routes, site
        self._loop, self._patience_s = asyncio.get_running_loop(), patience_s

    def site_of(self, path: str) -> Callable[[Asked], Page] | None:
        """Return the site if it answers for this path."""
        return None if path in self._routes else self._site

    def answer(self, asked: Asked) -> Page:
        site = self.site_of(asked.path)
        try:
            return self._of_route(asked.path) if site is None else site(asked)
        except Exception:
            _log.exception("%s %s failed", asked.method, asked.path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")

    def _of_route(self, path: str) -> Page:
        if (route := self._routes.get(path)) is None:
            known = ", ".join(sorted(self._routes))
            return _error(HTTPStatus.NOT_FOUND, f"not found; known paths: {known}")
        try:
            found: Page | Callable[[OnLoop], Page] = self._on_loop(route)
            return found if isinstance(found, Page) else found(self._on_loop)
        except (TimeoutError, RuntimeError):
            late = b'{"alive":false,"why":"the event loop is blocked"}\n'
            return Page(late, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _on_loop(self, act: Callable[[], Any]) -> Any:
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            try:
                answer.set_result(act())
            except Exception as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result(self._patience_s)


def _family_of(address: Address) -> socket.AddressFamily:
    """Return IPv4 if the host has such an address, else IPv6. Raises `OSError`."""
    found = {family for family, *_ in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in found else socket.AF_INET6


class _Listener(ThreadingHTTPServer):
    """Accepts connections, each with a thread, up to a limit."""

    daemon_threads = True

    def __init__(self, address: Address, doorkeeper: HttpAccess, pages: _Pages) -> None:
        self.doorkeeper, self.pages, self.closing = doorkeeper, pages, threading.Event()
        # A health check is answered even if files have taken all descriptors.
        self._spares = Spares(2)
        self._spares.refill()
        self._slots = threading.Semaphore(MOST_CONNECTIONS)
        self.address_family = _family_of(address)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind. The base class also looks up the host's name, which takes seconds without a name server."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, object]:
        try:
            return self._spares.run(super().get_request, leave=0)
        except OSError as error:
            if is_shortage(error):
                self.closing.wait(_PAUSE_S)  # the same connection would fail again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.doorkeeper.accepted(request) as connection:
            super().finish_request(connection, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        _log.debug("a connection to the HTTP port broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request after the other from a connection, and writes the answers."""

    server: _Listener
    timeout = 30
    server_version, sys_version = "logstore", ""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.server.doorkeeper.admits(self.path, self.headers.get("Authorization")):
            return True
        self.send_response(HTTPStatus.UNAUTHORIZED)
        self.send_header("WWW-Authenticate", 'Basic realm="logstore", charset="UTF-8"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_GET(self) -> None:
        self._send(self.server.pages.answer(self._asked()))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        asked, size = self._asked(), whole_number(self.headers.get("Content-Length", ""), 0)
        if self.server.pages.site_of(asked.path) is None:
            self._send(_error(HTTPStatus.METHOD_NOT_ALLOWED, "nothing here takes a POST"))
        elif size is None:
            self._send(_error(HTTPStatus.LENGTH_REQUIRED, "a POST needs its Content-Length"))
        elif size > MOST_BODY_BYTES:
            text = f"the body may have {MOST_BODY_BYTES} bytes"
            self._send(_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text))
        else:
            self._send(self.server.pages.answer(asked._replace(body=self.rfile.read(size))))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the standard library refuses; it would send a page of HTML."""
        status, headers = HTTPStatus(code), {"Connection": "close"}
        text = message or status.phrase
        if status is HTTPStatus.NOT_IMPLEMENTED:
            # No method that is known elsewhere, such as PUT, is known for any path here.
            status = HTTPStatus.METHOD_NOT_ALLOWED
            has_site = self.server.pages.site_of(self.path.partition("?")[0]) is not None
            methods = headers["Allow"] = "GET, HEAD, POST" if has_site else "GET, HEAD"
            text = f"{self.command} is not served here; there are {methods}"
        self._send(_error(status, text)._replace(headers=headers))

    def _asked(self) -> Asked:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Asked(self.command, path, query, headers, peer=self.client_address[0])

    def _send(self, found: Page) -> None:
        self.send_response(found.status)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(found.content)))
        for name, value in found.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.content)

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


def _error(status: HTTPStatus, text: str) -> Page:
    return Page(json.dumps({"error": text}).encode() + b"\n", status=status)
