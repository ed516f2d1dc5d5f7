"""Listens, and manages the connections: limits their number, closes idle ones, ends them in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from logstore.broker.acceptor import Acceptor, SeldomEach
from logstore.broker.connection import Connection, shared_scratch
from logstore.broker.limits import Address, Limits
from logstore.broker.security.audit import Audit
from logstore.broker.security.connection_rates import ConnectionRates
from logstore.broker.security.door import Door
from logstore.broker.security.login import LoginCounts
from logstore.broker.security.tls_stream import TlsStream
from logstore.disk.descriptors import DescriptorLimit, descriptor_limit, open_descriptors
from logstore.errors import OutOfResources
from logstore.loggers import logger_of
from logstore.replication.rates import Rate, Windows

LONGEST_PAUSE_S: Final = 1.0
"""Between two connections above `max.connection.creation.rate`."""
FEWEST_DESCRIPTORS: Final = 64
"""With fewer, one program with its listener, logs and an event loop or two has none left for a client."""

_log = logger_of(__name__)


class Descriptors(NamedTuple):
    """Use of file descriptors by this process, for metrics and health."""

    open: int | None
    limit: int
    held_back: int
    accept_pauses: int

    @classmethod
    def of(cls, server: Server) -> Descriptors:
        limit, held_back = server.descriptors
        return cls(open_descriptors(), limit, held_back, server.accept_pauses)

    @property
    def is_short(self) -> bool:
        """Return whether new connections wait because the remaining descriptors are reserved for files."""
        return self.open is not None and self.open >= self.limit - self.held_back


def sufficient_descriptors(*, raise_it: bool = False) -> DescriptorLimit:
    """Return the limit of open files, as `descriptor_limit`. Raises `OutOfResources` if it is too low."""
    found = descriptor_limit(raise_it=raise_it)
    if found.limit < FEWEST_DESCRIPTORS:
        raise OutOfResources(
            f"the limit of open files is {found.limit}; a broker needs {FEWEST_DESCRIPTORS} or more: raise "
            "it (ulimit -n)"
        )
    return found


class _Pace:
    """The rate at which connections are taken."""

    def __init__(self, most_a_second: int) -> None:
        self.most_a_second, self._rate = most_a_second, Rate(Windows())

    def wait_ms(self, now_ms: int) -> int:
        """Count a connection; return how long the next one has to wait."""
        self._rate.record(1, now_ms)
        return self._rate.throttle_ms(self.most_a_second, now_ms)


class Server:
    """Hands each frame to `on_frame`, on the event loop; a connection's next one once it is answered."""

    def __init__(
        self,
        on_frame: Callable[[Connection, memoryview], None],
        limits: Limits | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.on_frame = on_frame
        self.limits = limits or Limits()
        self.audit = audit or Audit()
        self.scratch = shared_scratch(asyncio.get_running_loop())
        self.descriptors = sufficient_descriptors()
        self.is_draining = False
        self.connections: dict[Connection, None] = {}
        self.refused = 0
        """connections refused because there were too many"""
        self._by_ip: Counter[str] = Counter()
        self.slowed = 0
        """connections after which the next one had to wait"""
        self._of_all = _Pace(self.limits.max_connection_creation_rate)
        self.by_address: ConnectionRates | None = None
        """Quotas of addresses; None until the broker has read them."""
        self._most_by_ip = self.limits.most_by_ip()
        self.logins = LoginCounts()
        self.failed_handshakes = 0
        """connections whose TLS handshake failed"""
        self._acceptors: list[Acceptor] = []
        self._handshakes: dict[TlsStream, str] = {}
        """Connections in their TLS handshake, and their peers."""
        self._seldom = SeldomEach()
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()

    async def listen(
        self,
        address: Address,
        door: Door | None = None,
        *,
        is_protected: bool = False,
        most_a_second: int | None = None,
    ) -> Address:
        """Bind and accept; return the address with the actual port. Raises `OSError`.

        A server may listen on several addresses, each with a `door` of its own. Whoever comes to a protected
        one is not bound by the number and the rate of the connections of all listeners; `most_a_second` is
        its own.
        """
        paces = [] if is_protected else [self._of_all]
        if most_a_second is not None:
            paces.append(_Pace(most_a_second))
        pace_s = partial(self._pace_s, paces) if paces else float
        accepted = partial(self._accepted, door, is_protected)
        acceptor = Acceptor(accepted, self.descriptors, pace_s, self._held_s)
        bound = await acceptor.listen(address)
        self._acceptors.append(acceptor)
        if self._sweep is None and self.limits.connections_max_idle_ms >= 0:
            self._sweep_idle()
        return bound

    def _accepted(self, door: Door | None, is_protected: bool) -> asyncio.BaseProtocol:
        connection = Connection(self, door, is_protected=is_protected)
        if door is None or door.tls is None:
            return connection
        now_s = asyncio.get_running_loop().time()
        patience_s = self.limits.ssl_handshake_timeout_ms / 1000
        return TlsStream(connection, door.tls.context(now_s), watcher=self, patience_s=patience_s)

    def _pace_s(self, paces: Sequence[_Pace]) -> float:
        """Count a new connection; return how long the next one has to wait, at most a second as in Kafka."""
        now_ms = self._now_ms()
        wait_ms, rate = max((each.wait_ms(now_ms), each.most_a_second) for each in paces)
        if wait_ms:
            self.slowed += 1
            if count := self.to_report("max.connection.creation.rate"):
                _log.warning(
                    "max.connection.creation.rate=%d exceeded: new connections wait (%d)", rate, count
                )
        return min(wait_ms / 1000, LONGEST_PAUSE_S)

    def _held_s(self, peer: str) -> float:
        """Count a new connection of this address; return after how long it is closed, 0 to take it."""
        held_ms = self.by_address.held_ms(peer, self._now_ms()) if self.by_address is not None else 0
        if held_ms:
            self.refused += 1
            if count := self.to_report(f"connection_creation_rate of {peer}"):
                _log.warning(
                    "connection_creation_rate of %s exceeded: closing it after %d ms (%d connections)",
                    peer,
                    held_ms,
                    count,
                )
        return held_ms / 1000

    def _now_ms(self) -> int:
        return int(1000 * asyncio.get_running_loop().time())

    @property
    def accept_pauses(self) -> int:
        """How often accepting paused for lack of file descriptors."""
        return sum(each.pauses for each in self._acceptors)

    # --- TLS handshakes -----------------------------------------------------------------------

    @property
    def handshakes(self) -> int:
        """How many connections are in their TLS handshake."""
        return len(self._handshakes)

    def began(self, stream: TlsStream) -> None:
        """Count a connection from its first moment, or refuse it."""
        name = stream.get_extra_info("peername")
        peer = self._handshakes[stream] = name[0] if isinstance(name, tuple) else ""
        self._by_ip[peer] += 1
        assert isinstance(stream.inner, Connection), "made with it"
        if reason := self._is_one_too_many(peer, is_protected=stream.inner.is_protected):
            self.refused += 1
            if count := self.to_report(reason):
                _log.warning("disconnecting %s: %s (%d connections)", peer, reason, count)
            stream.abort()

    def ended(self, stream: TlsStream, reason: str) -> None:
        """The connection is open now (and counts as such), or its handshake has failed."""
        peer = self._handshakes.pop(stream)
        self._forget(peer)
        if reason and not self.is_draining:
            self.failed_handshakes += 1
            if count := self.to_report(reason):
                _log.warning("a TLS connection of %s failed: %s (%d connections)", peer, reason, count)
                self.audit("login failed", host=peer, mechanism="TLS", reason=reason, connections=count)

    # --- connections --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Register a new connection, or refuse it."""
        self.connections[connection] = None
        self._by_ip[connection.peer] += 1
        self._all_closed.clear()
        if reason := self._is_one_too_many(connection.peer, is_protected=connection.is_protected):
            self.refused += 1
            connection.refuse(reason)

    def _is_one_too_many(self, peer: str, *, is_protected: bool) -> str:
        """Return why the newest connection, of this peer, is refused; empty if it is not.

        As in Kafka, connections of clients do not keep brokers from their own listener.
        """
        count = len(self.connections) + len(self._handshakes)
        if count > self.limits.max_connections and not is_protected:
            return f"max.connections={self.limits.max_connections} exceeded"
        most = self._most_by_ip.get(peer, self.limits.max_connections_per_ip)
        if self._by_ip[peer] > most:
            return f"max.connections.per.ip={most} exceeded"
        return ""

    def to_report(self, reason: str) -> int:
        """Count a connection that is refused for this reason; return how many to log now, in a flood 0."""
        return self._seldom(reason, asyncio.get_running_loop().time())

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._forget(connection.peer)
        if not self.connections:
            self._all_closed.set()

    def _forget(self, peer: str) -> None:
        self._by_ip[peer] -= 1
        if not self._by_ip[peer]:
            del self._by_ip[peer]

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self.limits.connections_max_idle_ms / 1000
        now_s = loop.time()
        for connection in list(self.connections):
            connection.close_if_idle(now_s, idle_s)
        self._sweep = loop.call_later(idle_s / 4, self._sweep_idle)

    # --- the end ------------------------------------------------------------------------------

    def _stop_listening(self) -> None:
        self.is_draining = True
        if self._sweep is not None:
            self._sweep.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        for stream in list(self._handshakes):
            stream.abort()

    async def drain(self) -> None:
        """Stop accepting, answer current requests, close; disconnect the rest after `shutdown_grace_ms`."""
        self._stop_listening()
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.close()
        if self.connections:
            try:
                async with asyncio.timeout(self.limits.shutdown_grace_ms / 1000):
                    await self._all_closed.wait()
            except TimeoutError:
                _log.warning("disconnecting %d clients with requests in hand", len(self.connections))
        self.close()

    def close(self) -> None:
        """Stop accepting and disconnect every client."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.abort()
