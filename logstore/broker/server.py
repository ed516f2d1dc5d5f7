"""Listens, and keeps the connections: limits their number, closes idle ones, ends them in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from logstore.broker.acceptor import Acceptor, SeldomEach
from logstore.broker.connection import Connection, shared_scratch
from logstore.broker.limits import Address, Limits
from logstore.disk.descriptors import descriptor_limit, open_descriptors

_log = logging.getLogger(__name__)


class Descriptors(NamedTuple):
    """How this process stands with file descriptors, for metrics and health."""

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
        """Return whether new connections wait because the remaining descriptors are left to files."""
        return self.open is not None and self.open >= self.limit - self.held_back


class Server:
    """Hands each frame to `on_frame`, on the event loop; a connection's next one once it is answered."""

    def __init__(
        self, on_frame: Callable[[Connection, memoryview], None], limits: Limits | None = None
    ) -> None:
        self.on_frame = on_frame
        self.limits = limits or Limits()
        self.scratch = shared_scratch(asyncio.get_running_loop())
        self.descriptors = descriptor_limit()
        self.is_draining = False
        self.connections: dict[Connection, None] = {}
        self.refused = 0
        """connections refused because there were too many"""
        self._by_ip: Counter[str] = Counter()
        self._acceptor: Acceptor | None = None
        self._seldom = SeldomEach()
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()

    async def listen(self, address: Address, *, tls: ssl.SSLContext | None = None) -> Address:
        """Bind and accept; return the address with the actual port. Raises `OSError`."""
        self._acceptor = Acceptor(lambda: Connection(self), self.descriptors, tls=tls)
        bound = await self._acceptor.listen(address)
        self._sweep_idle()
        return bound

    @property
    def accept_pauses(self) -> int:
        """How often accepting paused because descriptors were short."""
        return self._acceptor.pauses if self._acceptor is not None else 0

    # --- connections --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Register a new connection, or refuse it."""
        self.connections[connection] = None
        self._by_ip[connection.peer] += 1
        self._all_closed.clear()
        if len(self.connections) > self.limits.max_connections:
            self._refuse(connection, f"max.connections={self.limits.max_connections} exceeded")
        elif self._by_ip[connection.peer] > self.limits.max_connections_per_ip:
            self._refuse(connection, f"max.connections.per.ip={self.limits.max_connections_per_ip} exceeded")

    def _refuse(self, connection: Connection, reason: str) -> None:
        self.refused += 1
        connection.refuse(reason)

    def to_report(self, reason: str) -> int:
        """Count a connection that is refused for this reason; return how many to log now, in a flood 0."""
        return self._seldom(reason, asyncio.get_running_loop().time())

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._by_ip[connection.peer] -= 1
        if not self._by_ip[connection.peer]:
            del self._by_ip[connection.peer]
        if not self.connections:
            self._all_closed.set()

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
        if self._acceptor is not None:
            self._acceptor.close()

    async def drain(self) -> None:
        """Stop accepting, answer requests in hand, close; disconnect the rest after `shutdown_grace_ms`."""
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
