"""What `kafka.*` options of a read mean to our client, under the names of Kafka's consumer.

Those that would make it something else (TLS, a login) are refused; those that it has no use for, and those
that nobody knows, are told in a warning, as by Kafka's own clients, so that the options of a job written for
these need no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.broker.client import Client
from logstore.broker.limits import Address, Limits, parse_address
from logstore.spark.errors import InvalidOption
from logstore.spark.read_options import BOOTSTRAP_SERVERS, KAFKA, whole_number

FETCH_BYTES: Final = 4 << 20
"""Enough to keep one core decoding; more only takes longer to come."""
_FETCH_LIMITS: Final = ("max.partition.fetch.bytes", "fetch.max.bytes")
"""The same for us, who fetch one partition at a time."""
_CLIENT_ID: Final = "logstore-spark"
_PLAINTEXT: Final = "plaintext"
_SECURITY: Final = ("sasl.", "ssl.")
_ELSEWHERE: Final = frozenset({"group.id", "isolation.level", "bootstrap.servers"})
"""Read with the other options, or known to do nothing: nobody joins a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """`timeout_s` is for each question that is asked again until it is answered; `unused` are names."""

    bootstrap: tuple[Address, ...]
    limits: Limits
    client_id: str
    timeout_s: float
    fetch_bytes: int
    fetch_wait_ms: int
    unused: tuple[str, ...]

    @classmethod
    def parse(cls, bootstrap_servers: str, kafka: Mapping[str, str]) -> ClientSettings:
        """`kafka` has the options without that prefix, in lower case. Raises `InvalidOption`."""
        used = set(_ELSEWHERE)

        def number(name: str, default: int, low: int = 0) -> int:
            used.add(name)
            return whole_number(KAFKA + name, kafka[name], low=low) if name in kafka else default

        def text(name: str, default: str) -> str:
            used.add(name)
            return kafka.get(name, default)

        protocol = text("security.protocol", _PLAINTEXT)
        secured = [name for name in kafka if name.startswith(_SECURITY)]
        if protocol.lower() != _PLAINTEXT or secured:
            name = secured[0] if protocol.lower() == _PLAINTEXT else "security.protocol"
            raise InvalidOption(
                f"option {KAFKA}{name}: brokers are reached in plain text and without a login; leave it out "
                f"and name a listener for that in {BOOTSTRAP_SERVERS}"
            )
        defaults = Limits()
        given = [number(name, FETCH_BYTES, 1) for name in _FETCH_LIMITS if name in kafka]
        limits = Limits(
            # An answer has the first batch whole, however large.
            socket_request_max_bytes=(1 << 31) - 1,
            request_timeout_ms=number("request.timeout.ms", defaults.request_timeout_ms, 1),
            connect_timeout_ms=number("socket.connection.setup.timeout.ms", defaults.connect_timeout_ms, 1),
            reconnect_backoff_ms=number("reconnect.backoff.ms", defaults.reconnect_backoff_ms),
            reconnect_backoff_max_ms=number("reconnect.backoff.max.ms", defaults.reconnect_backoff_max_ms),
        )
        return cls(
            bootstrap=_addresses(bootstrap_servers),
            limits=limits,
            client_id=text("client.id", _CLIENT_ID),
            timeout_s=number("default.api.timeout.ms", 60_000, 1) / 1000,
            fetch_bytes=min(given, default=FETCH_BYTES),
            fetch_wait_ms=number("fetch.max.wait.ms", 500),
            unused=tuple(KAFKA + name for name in sorted(kafka) if name not in used),
        )

    def client(self) -> Client:
        return Client(self.bootstrap, limits=self.limits, timeout_s=self.timeout_s, client_id=self.client_id)


def _addresses(servers: str) -> tuple[Address, ...]:
    try:
        found = tuple(parse_address(each.strip()) for each in servers.split(",") if each.strip())
    except ValueError as error:
        raise InvalidOption(
            f"option {BOOTSTRAP_SERVERS}: {error}; write it like broker1:9092,broker2:9092"
        ) from error
    if not found:
        raise InvalidOption(f"option {BOOTSTRAP_SERVERS} is empty; write it like broker1:9092,broker2:9092")
    return found
