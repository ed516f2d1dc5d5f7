"""The rate of new connections from an IP address: `connection_creation_rate` (KIP-612).

    /config/ips/<address>     of one address
    /config/ips/<default>     of each address without one of its own

As in Kafka, a connection above the rate is closed unread after the time by which it came too early, at most
one sample, and does not count.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Final

from logstore.broker.security.quotas import IP, Kind, Quotas
from logstore.loggers import logger_of
from logstore.replication.rates import Rate, Windows

_log = logger_of(__name__)

_MOST_KNOWN: Final = 4_096
"""Addresses that are remembered before idle ones are looked for."""


def plain_address(text: str) -> str:
    """Return an address in the form of sockets; `::ffff:10.0.0.1` is 10.0.0.1. Raises `ValueError`."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class ConnectionRates:
    """The rates of a broker's clients. Belongs to the event loop's thread."""

    def __init__(self, windows: Windows, throttled: Counter[Kind], throttled_ms: Counter[Kind]) -> None:
        """The counters are those of all quotas, by kind."""
        self._throttled, self._throttled_ms = throttled, throttled_ms
        self._windows = windows
        self._bounds: dict[str | None, float] = {}
        self._rates: dict[str, Rate] = {}
        self._next_look = _MOST_KNOWN

    def replace(self, quotas: Quotas) -> None:
        """Apply these quotas from now on. Earlier connections still count."""
        self._bounds = {}
        for ((kind, name), *_), found in quotas.values.items():
            if kind == IP and Kind.CONNECTION in found:
                try:
                    self._bounds[name and plain_address(name)] = found[Kind.CONNECTION]
                except ValueError as error:
                    _log.error("a quota in the metadata store is not in effect: %s", error)
        self._rates = {peer: rate for peer, rate in self._rates.items() if self._bound(peer) is not None}

    def _bound(self, peer: str) -> float | None:
        return self._bounds.get(peer, self._bounds.get(None))

    def held_ms(self, peer: str, now_ms: int) -> int:
        """Count a new connection of this address; return after how long it is to be closed, 0 to take it."""
        bound = self._bound(peer) if self._bounds else None
        if bound is None:
            return 0
        if peer not in self._rates:
            self._forget_idle(now_ms)
        rate = self._rates.setdefault(peer, Rate(self._windows))
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(bound, now_ms)
        if not throttle_ms:
            return 0
        rate.record(-1, now_ms)
        held_ms = min(throttle_ms, self._windows.size_ms)
        self._throttled[Kind.CONNECTION] += 1
        self._throttled_ms[Kind.CONNECTION] += held_ms
        return held_ms

    def _forget_idle(self, now_ms: int) -> None:
        """Keep the number of addresses small: any number of them may come."""
        if len(self._rates) < self._next_look:
            return
        self._rates = {peer: rate for peer, rate in self._rates.items() if not rate.is_idle(now_ms)}
        self._next_look = max(_MOST_KNOWN, 2 * len(self._rates))
