"""Limits of connections, under Kafka's names; and addresses of nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from logstore.arguments import whole_number
from logstore.config import MAX_INT, check_settings, setting
from logstore.errors import InvalidConfig

LONGEST_WAIT_MS: Final = 300_000
"""The longest wait of a request, whatever it asks for. No client waits so long for an answer, and requests of
clients that have left are dropped by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are bytes. Names follow Kafka's where it has the setting.

    `connections_max_idle_ms` also limits how long a write to a client may stall. `shutdown_grace_ms` (ours):
    the time to answer requests in hand when the node stops.
    """

    socket_request_max_bytes: int = setting(100 << 20, "Largest request in bytes.", low=1, high=MAX_INT)
    fetch_max_bytes: int = setting(55 << 20, "Largest fetch response in bytes.", low=1 << 10, high=MAX_INT)
    connections_max_idle_ms: int = setting(
        600_000,
        "Idle connections are closed after this time. Also the longest time a write to a client may "
        "stall. A negative value is no limit.",
    )
    max_connections: int = setting(10_000, "Connections per broker.", low=0, high=MAX_INT)
    max_connections_per_ip: int = setting(MAX_INT, "Connections per client address.", low=0, high=MAX_INT)
    max_connections_per_ip_overrides: str = setting(
        "", "Other numbers for some addresses: `host:number`, separated by commas."
    )
    max_connection_creation_rate: int = setting(
        MAX_INT,
        "New connections a second; above it, further ones wait to be accepted. Brokers on a listener of "
        "their own do not wait.",
        low=1,
        high=MAX_INT,
    )
    ssl_handshake_timeout_ms: int = setting(
        60_000, "Time that a client has for its TLS handshake. Not a Kafka setting.", low=1, high=MAX_INT
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "Time after which a failed login is answered and its connection closed.", low=0, high=MAX_INT
    )
    request_timeout_ms: int = setting(
        30_000, "Time after which a request to another broker counts as failed.", low=1, high=MAX_INT
    )
    connect_timeout_ms: int = setting(
        5_000, "Time after which a connection attempt counts as failed.", low=1, high=MAX_INT
    )
    reconnect_backoff_ms: int = setting(50, "First pause before a reconnection.", low=0, high=MAX_INT)
    reconnect_backoff_max_ms: int = setting(
        1_000, "Longest pause before a reconnection.", low=0, high=MAX_INT
    )
    shutdown_grace_ms: int = setting(
        5_000,
        "Time that pending requests have to complete when the node stops. Not a Kafka setting.",
        low=0,
        high=MAX_INT,
    )

    def __post_init__(self) -> None:
        """Raise `InvalidConfig` for a value out of range."""
        check_settings(self)
        delay_ms = self.connection_failed_authentication_delay_ms
        if 0 <= self.connections_max_idle_ms <= delay_ms:
            raise InvalidConfig(
                f"connections.max.idle.ms is {self.connections_max_idle_ms}; it must be above "
                f"connection.failed.authentication.delay.ms ({delay_ms}), or negative for no limit"
            )
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            raise InvalidConfig("max.connections.per.ip is 0, without max.connections.per.ip.overrides")
        list(_overrides(self.max_connections_per_ip_overrides))

    def most_by_ip(self) -> dict[str, int]:
        """Return the overrides of `max.connections.per.ip` by address. Raises `InvalidConfig`."""
        found: dict[str, int] = {}
        for host, most in _overrides(self.max_connections_per_ip_overrides):
            try:
                resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                raise InvalidConfig(
                    f"max.connections.per.ip.overrides: {host} has no address: {error}"
                ) from error
            found |= {str(address[4][0]): most for address in resolved}
        return found


def _overrides(text: str) -> Iterator[tuple[str, int]]:
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, most = pair.rpartition(":")
        if not host.strip() or (number := whole_number(most.strip(), 0)) is None:
            raise InvalidConfig(
                f"max.connections.per.ip.overrides has {pair!r}; expected host:number, separated by commas"
            )
        yield host.strip(), number


class Address(NamedTuple):
    """The address of a broker's listener: host name or IP address, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this one: `localhost`, or an address like 127.0.0.1 or ::1."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> Address:
    """Parse `host:port`. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not host or (number := whole_number(port, 0, 65535)) is None:
        raise ValueError(f"{text!r} is not a valid address; expected host:port")
    return Address(host.removeprefix("[").removesuffix("]"), number)


_BOOTSTRAP: Final = 'bootstrap is "host:port" or Address(host, port) of brokers'


def addresses_of(bootstrap: str | Iterable[Address | str]) -> list[Address]:
    """Return the addresses of brokers, also from text: `host:port`, separated by commas or each for itself.

    Raises `TypeError`, and `ValueError` for other text.
    """
    if isinstance(bootstrap, str):
        bootstrap = bootstrap.split(",")
    elif not isinstance(bootstrap, Iterable):
        raise TypeError(f"{_BOOTSTRAP}, not {bootstrap!r:.100}")
    given: list[object] = list(bootstrap)
    for each in given:
        if not isinstance(each, Address | str):
            raise TypeError(f"{_BOOTSTRAP}, not {each!r:.100}")
    return [parse_address(each.strip()) if isinstance(each, str) else each for each in given]  # type: ignore[misc]
