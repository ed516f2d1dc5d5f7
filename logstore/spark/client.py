"""The client of brokers for Spark: its settings, from `kafka.*` options, and a thread that runs it.

Options have the names of Kafka's consumer, those of TLS and logins too. Options that have no effect here, and
unknown ones, are named in a warning, as Kafka's own clients do; so a Kafka job's options need no change.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from logstore.broker.client import Client
from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Address, Limits, parse_address
from logstore.broker.loop import fastest_loop
from logstore.broker.loop_calls import LoopCall
from logstore.broker.security.client import client_security
from logstore.errors import InvalidConfig
from logstore.spark.errors import InvalidOption
from logstore.spark.read_options import BOOTSTRAP_SERVERS, KAFKA, number_option

T = TypeVar("T")

FETCH_BYTES: Final = 4 << 20
"""Enough to keep one core decoding; larger fetches only take longer to arrive."""
_FETCH_LIMITS: Final = ("max.partition.fetch.bytes", "fetch.max.bytes")
"""Equal here: a fetch asks for one partition."""
_KNOCK_S: Final = 10.0
_CLIENT_ID: Final = "logstore-spark"
_SECURITY: Final = ("security.protocol", "sasl.", "ssl.")
_ELSEWHERE: Final = frozenset({"group.id", "isolation.level", "bootstrap.servers"})
"""Read with the other options, or known to have no effect: a read joins no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of a client. A request is retried for `timeout_s`; `unused` names options without effect."""

    bootstrap: tuple[Address, ...]
    limits: Limits
    client_id: str
    timeout_s: float
    fetch_bytes: int
    fetch_wait_ms: int
    unused: tuple[str, ...]
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of `client_security`: each process makes its own contexts, from files of its host."""

    @classmethod
    def parse(cls, bootstrap_servers: str, kafka: Mapping[str, str]) -> ClientSettings:
        """Read `kafka`: the options without that prefix, in lower case. Raises `InvalidOption`."""
        used = set(_ELSEWHERE)

        def number(name: str, default: int, low: int = 0) -> int:
            used.add(name)
            return number_option(KAFKA + name, kafka[name], low=low) if name in kafka else default

        def text(name: str, default: str) -> str:
            used.add(name)
            return kafka.get(name, default)

        security = {name: kafka[name] for name in kafka if name.startswith(_SECURITY)}
        used.update(security)
        try:
            client_security(security)
        except InvalidConfig as error:
            raise InvalidOption(f"options {KAFKA}…: {error}") from error
        defaults = Limits()
        given = [number(name, FETCH_BYTES, 1) for name in _FETCH_LIMITS if name in kafka]
        limits = Limits(
            # A fetch response contains the whole first batch, however large.
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
            security=security,
        )

    def client(self) -> Client:
        """Return a new client with these settings."""
        return Client(
            self.bootstrap,
            limits=self.limits,
            timeout_s=self.timeout_s,
            client_id=self.client_id,
            security=client_security(self.security),
        )

    async def knock(self) -> None:
        """Raise `RequestUnanswered` at once if no bootstrap broker takes a connection: a wrong address."""
        failures = []
        for address in self.bootstrap:
            try:
                async with asyncio.timeout(_KNOCK_S):
                    _, connected = await asyncio.open_connection(*address)
            except TimeoutError:
                failures.append(f"{address}: no answer in {_KNOCK_S:.0f} s")
            except OSError as error:
                known = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
                failures.append(f"{address}: {known}")
            else:
                connected.close()
                return
        raise RequestUnanswered(
            f"no broker takes a connection ({'; '.join(failures)}). Check {BOOTSTRAP_SERVERS}, and that the "
            "brokers run"
        )


def _addresses(servers: str) -> tuple[Address, ...]:
    example = "write it like broker1:9092,broker2:9092"
    try:
        found = tuple(parse_address(each.strip()) for each in servers.split(",") if each.strip())
    except ValueError as error:
        raise InvalidOption(f"option {BOOTSTRAP_SERVERS}: {error}; {example}") from error
    if not found:
        raise InvalidOption(f"option {BOOTSTRAP_SERVERS} is empty; {example}")
    return found


class ClientThread:
    """A client for code without an event loop; its loop runs in a separate thread. Close it after use.

    `BlockingClient` runs its loop only while a call waits. This one also receives while the caller does
    something else. Threads do not survive a fork: create it in the process that uses it.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        """Raises what `make` does."""
        self._client = make()
        self._runner = asyncio.Runner(loop_factory=fastest_loop())
        self._loop = self._runner.get_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="logstore-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._live())

    async def _live(self) -> None:
        async with self._client:
            await self._ended.wait()

    def start(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> LoopCall[T]:
        """Start `work`; it runs while the caller continues."""
        return LoopCall(work(self._client), self._loop, self._thread)

    def wait(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run `work` and return its result, or raise its error."""
        return self.start(work).result()

    def close(self) -> None:
        """Close the connections. Requests under way fail with `RequestUnanswered`."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
