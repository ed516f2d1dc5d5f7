"""The consoles of other brokers, for what those brokers alone know. Only listed addresses are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from logstore.broker.limits import Address

PATIENCE_S: Final = 2.0
_MOST_AT_ONCE: Final = 8


class Told(NamedTuple):
    """The answers of those that answered, and for each other its address and the error."""

    answers: list[dict[str, Any]]
    silent: list[dict[str, str]]


class Peers:
    """Asks all at once. Any thread may ask."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="console-peers")
        self._opener = build_opener(ProxyHandler({}))  # no proxy of the environment lies between brokers

    def ask(self, path: str, given: dict[str, str]) -> Told:
        """Ask each for the same path."""
        told = Told([], [])
        wanted = f"{path}?{urlencode(given)}"
        for address, found in zip(
            self._addresses,
            self._threads.map(lambda each: self._fetch(each, wanted), self._addresses),
            strict=True,
        ):
            if isinstance(found, str):
                told.silent.append({"console": str(address), "error": found})
            else:
                told.answers.append(found)
        return told

    def close(self) -> None:
        """Ask nobody any more."""
        self._threads.shutdown(wait=False)

    def _fetch(self, address: Address, wanted: str) -> dict[str, Any] | str:
        try:
            with self._opener.open(f"http://{address}{wanted}", timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        except (OSError, HTTPException, ValueError) as error:
            return f"no answer: {error}"
        return found if isinstance(found, dict) else "no answer of a console"
