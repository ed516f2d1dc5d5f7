"""Access to the console, and its static files.

The port decides who may connect and log in (`logstore/broker/http_access.py`). The site ensures that pages
of other sites can neither read nor change anything through a visitor's browser:

    Host        an IP address, localhost or the host of --http; another name may be DNS rebinding
    Origin      of a POST: this site's own, or none
    JSON        the only content type of a POST, which no form of another site can send
    no CORS     headers, so a browser gives no answer to another site's scripts
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from logstore.broker.http import Asked, Page
from logstore.broker.security.acls import is_address
from logstore.cli.console.api import Api
from logstore.loggers import logger_of

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_MOST_LOGGED: Final = 500
_log = logger_of(__name__)
_INDEX: Final = "index.html"


def static_files() -> dict[str, Page]:
    """Return the files of the pages by their path. Nothing else of the disk is ever served."""
    root = files("logstore.cli.console") / "static"
    found = {}
    for folder, prefix in ((root, "/"), (root / "vendor", "/vendor/")):
        for each in folder.iterdir():
            kind = each.name.rpartition(".")[2]
            if kind in _TYPES:
                found[prefix + each.name] = Page(each.read_bytes(), _TYPES[kind])
    found["/"] = found.pop(f"/{_INDEX}")
    return found


class ConsoleSite:
    """The console as a `Site` of the HTTP port. `hosts` are the accepted names in a Host header."""

    def __init__(self, api: Api, hosts: frozenset[str], close: Callable[[], None]) -> None:
        self._api, self._hosts, self._close = api, hosts, close
        self._files = static_files()

    def answer(self, asked: Asked) -> Page:
        """Answer a request, or refuse it."""
        found = self._refusal(asked) or self._found(asked)
        return found._replace(headers={**HEADERS, **found.headers})

    def close(self) -> None:
        """Close the connections to brokers."""
        self._close()

    def _refusal(self, asked: Asked) -> Page | None:
        host = asked.headers.get("host", "")
        if not is_known_host(host, self._hosts):
            text = f"the console is not served as {host!r}: use the address of --http"
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, text)
        if asked.method != "POST":
            return None
        if asked.headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}"):
            return _refused(HTTPStatus.FORBIDDEN, "the request is from another site's page")
        if asked.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refused(HTTPStatus.FORBIDDEN, "the request is from another site's page")
        kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return _refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a POST has the content type application/json")
        return None

    def _found(self, asked: Asked) -> Page:
        if asked.method == "POST":
            found = self._api.post(asked.path, asked.body)
            wanted = asked.body[:_MOST_LOGGED].decode("utf-8", "backslashreplace")
            _log.info("console: %s asked for %s %s: %d", asked.peer, asked.path, wanted, found.status)
            return found
        if asked.path == "/api" or asked.path.startswith("/api/"):
            return self._api.get(asked.path, asked.query)
        return self._files.get(asked.path) or _refused(HTTPStatus.NOT_FOUND, f"no page {asked.path}")


def is_known_host(host: str, known: frozenset[str]) -> bool:
    """Return whether a Host header is an IP address or a known name; foreign names may lead here."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.removeprefix("[").removesuffix("]").lower()
    return name in known or is_address(name)


def _refused(status: HTTPStatus, text: str) -> Page:
    return Page(json.dumps({"error": text}).encode() + b"\n", status=status)


def names_of(*hosts: str) -> frozenset[str]:
    """Return the host names that a console at these hosts accepts."""
    return frozenset({"localhost", *(each.lower() for each in hosts)})
