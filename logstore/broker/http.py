"""A broker's HTTP port: `/metrics`, `/healthz`, `/livez`.

Served by threads of the standard library's server, so that a request is answered even while the broker's
event loop is blocked; the answer then reports that. What a page tells is gathered on the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias

from logstore.broker.http_access import HttpAccess
from logstore.broker.limits import Address
from logstore.disk.descriptors import Spares
from logstore.disk.errors import is_shortage

PATIENCE_S = 5.0
MOST_CONNECTIONS = 32
"""Each has a thread; further ones are closed."""
_PAUSE_S = 0.5

_log = logging.getLogger(__name__)


class Page(NamedTuple):
    """The result of a route."""

    content: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


Route: TypeAlias = Callable[[], Page | Callable[[], Page]]
"""Makes a page on the loop; or gathers what is in it there, and returns what makes it in a thread."""


class HttpServer:
    """Serves pages until it is closed. Create and close it on the event loop of its routes."""

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        *,
        access: HttpAccess | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Bind and serve; port 0 means any free one. `routes` are called on this loop. Raises `OSError`.

        Without `access` everyone who connects may read, without TLS.

        If the loop does not run a route within `patience_s`, the answer is 503.
        """
        loop, doorkeeper = asyncio.get_running_loop(), access or HttpAccess()

        def page(path: str) -> Page:
            route = routes.get(path)
            if route is None:
                known = ", ".join(sorted(routes)).encode()
                return Page(b"not found; known paths: " + known + b"\n", "text/plain", HTTPStatus.NOT_FOUND)
            answer: concurrent.futures.Future[Page | Callable[[], Page]] = concurrent.futures.Future()

            def read() -> None:
                try:
                    answer.set_result(route())
                except Exception as error:
                    answer.set_exception(error)

            try:
                loop.call_soon_threadsafe(read)
                found = answer.result(patience_s)
                return found if isinstance(found, Page) else found()
            except (TimeoutError, RuntimeError):
                late = b'{"alive":false,"why":"the event loop is blocked"}\n'
                return Page(late, status=HTTPStatus.SERVICE_UNAVAILABLE)
            except Exception:
                _log.exception("%s failed", path)
                return Page(b"internal error\n", "text/plain", HTTPStatus.INTERNAL_SERVER_ERROR)

        class Handler(BaseHTTPRequestHandler):
            timeout = 30
            server_version, sys_version = "logstore", ""

            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                if doorkeeper.admits(self.path, self.headers.get("Authorization")):
                    return True
                self.send_response(HTTPStatus.UNAUTHORIZED)
                self.send_header("WWW-Authenticate", 'Basic realm="logstore", charset="UTF-8"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False

            def do_GET(self) -> None:
                found = page(self.path.partition("?")[0])
                self.send_response(found.status)
                self.send_header("Content-Type", found.content_type)
                self.send_header("Content-Length", str(len(found.content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(found.content)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                _log.debug(format, *args)

        closing = self._closing = threading.Event()
        spares = Spares(1)  # whoever asks how things are gets an answer even if files have all descriptors
        spares.refill()
        slots = threading.Semaphore(MOST_CONNECTIONS)

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, object]:
                try:
                    return spares.run(super().get_request)
                except OSError as error:
                    if is_shortage(error):
                        closing.wait(_PAUSE_S)  # the same connection would fail again at once
                    raise

            def process_request(self, request: Any, client_address: Any) -> None:
                if slots.acquire(blocking=False):
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def finish_request(self, request: Any, client_address: Any) -> None:
                with doorkeeper.accepted(request) as connection:
                    super().finish_request(connection, client_address)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    slots.release()

            def handle_error(self, request: object, client_address: object) -> None:
                _log.debug("a connection to the HTTP port broke", exc_info=True)

        self._server = Listener((address.host, address.port), Handler)
        self.address = Address(address.host, self._server.server_address[1])
        self.name = f"{doorkeeper.prefix}{self.address}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
