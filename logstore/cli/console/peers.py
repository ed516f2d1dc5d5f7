"""The consoles of other brokers, for facts that only those brokers have. Only listed addresses are queried.

They are asked over TLS and with a name and a password if this broker's HTTP port has these: all brokers of a
cluster have the same. The password goes nowhere in plain beyond this host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import OpenerDirector, ProxyHandler, build_opener

from logstore.broker.http_access import http_opener, parse_http
from logstore.broker.limits import Address, is_loopback
from logstore.errors import InvalidConfig

PATIENCE_S: Final = 2.0
_MOST_AT_ONCE: Final = 8


class Peer(NamedTuple):
    """The HTTP address of another broker."""

    address: Address
    is_tls: bool = False

    def __str__(self) -> str:
        return str(self.address)


def parse_peers(text: str, *, is_tls: bool, has_password: bool) -> tuple[Peer, ...]:
    """Return the peers of `host:port,https://host:port,…`; without a scheme `is_tls` holds.

    Raises `ValueError`, and `InvalidConfig` if a password would be sent in plain.
    """
    found = []
    for each in filter(None, text.split(",")):
        address, with_tls = parse_http(each)
        peer = Peer(address, with_tls or ("://" not in each and is_tls))
        if has_password and not peer.is_tls and not is_loopback(address.host):
            raise InvalidConfig(f"{each}: the password would be sent in plain; write https:// before it")
        found.append(peer)
    return tuple(found)


class Told(NamedTuple):
    """The answers of those that answered, and for each other its address and the error."""

    answers: list[dict[str, Any]]
    silent: list[dict[str, str]]


class Peers:
    """Asks all at once. Any thread may ask."""

    def __init__(self, peers: Sequence[Peer], properties: Mapping[str, str] | None = None) -> None:
        """`properties`: `ssl.…` and `http.…` of this broker; without them no TLS and no login.

        Raises `InvalidConfig`.
        """
        self._peers = list(peers)
        self._properties = dict(properties or {})
        self._opener()
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="console-peers")

    def ask(self, path: str, given: dict[str, str]) -> Told:
        """Ask each for the same path."""
        told = Told([], [])
        fetch = partial(self._fetch, self._opener(), f"{path}?{urlencode(given)}")
        for peer, found in zip(self._peers, self._threads.map(fetch, self._peers), strict=True):
            if isinstance(found, str):
                told.silent.append({"console": str(peer), "error": found})
            else:
                told.answers.append(found)
        return told

    def close(self) -> None:
        """End the threads that ask other brokers."""
        self._threads.shutdown(wait=False)

    def _opener(self) -> OpenerDirector:
        """Return a client; it reads the certificates anew, which may have been renewed."""
        if self._properties:
            return http_opener(self._properties)
        return build_opener(ProxyHandler({}))  # no proxy of the environment lies between brokers

    def _fetch(self, opener: OpenerDirector, wanted: str, peer: Peer) -> dict[str, Any] | str:
        scheme = "https" if peer.is_tls else "http"
        try:
            with opener.open(f"{scheme}://{peer.address}{wanted}", timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        except (OSError, HTTPException, ValueError) as error:
            return f"no answer: {error}"
        return found if isinstance(found, dict) else "no answer of a console"
