"""Requests to identity providers: keys and tokens, over HTTP or from a file. Each call blocks."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from logstore.errors import InvalidConfig

TIMEOUT_S: Final = 10.0
MOST_BYTES: Final = 1 << 20
_SCHEMES: Final = ("file", "http", "https")


class _NoRedirects(HTTPRedirectHandler):
    """An answer that points elsewhere is an error: keys come from where the settings say."""

    def redirect_request(self, *_: object) -> None:
        return None


def check_url(setting: str, url: str) -> None:
    """Raise `InvalidConfig` unless it is a URL of a file, or of HTTP with a host."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"{setting} is {url!r}: {error}") from error
    is_here = parts.hostname in (None, "localhost") and parts.path.startswith("/")
    has_place = is_here if parts.scheme == "file" else bool(parts.hostname)
    if parts.scheme not in _SCHEMES or not has_place:
        raise InvalidConfig(f"{setting} is {url!r}; expected https://host/path or file:///path")


def read(
    url: str,
    context: ssl.SSLContext,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Return the content of a URL; `data` is posted. Raises `OSError`, also for an answer that is too large.

    Redirects and proxies are not followed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    else:
        opener = build_opener(HTTPSHandler(context=context), _NoRedirects, ProxyHandler({}))
        try:
            with opener.open(Request(url, data, dict(headers or {})), timeout=timeout_s) as answer:
                content = answer.read(MOST_BYTES + 1)
        except HTTPException as error:
            raise OSError(f"the answer is not HTTP: {error!r:.200}") from error
    if len(content) > MOST_BYTES:
        raise OSError(f"there are more than {MOST_BYTES} bytes")
    return bytes(content)
