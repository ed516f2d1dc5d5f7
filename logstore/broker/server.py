"""Listens, and keeps the connections: limits their number, closes idle ones, ends them in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from logstore.broker.connection import Connection, shared_scratch
from logstore.broker.limits import Address, Limits

_BACKLOG: Final = 1024

_log = logging.getLogger(__name__)


class Server:
    """Hands each frame to `on_frame`, on the event loop; a connection's next one once it is answered."""

    def __init__(
        self, on_frame: Callable[[Connection, memoryview], None], limits: Limits | None = None
    ) -> None:
        self.on_frame = on_frame
        self.limits = limits or Limits()
        self.scratch = shared_scratch(asyncio.get_running_loop())
        self.is_draining = False
        self.connections: dict[Connection, None] = {}
        self.refused = 0
        """connections refused because there were too many"""
        self._by_ip: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()

    async def listen(self, address: Address, *, tls: ssl.SSLContext | None = None) -> Address:
        """Bind and accept; return the address with the actual port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), address.host, address.port, backlog=_BACKLOG, ssl=tls
        )
        self._sweep_idle()
        port: int = self._server.sockets[0].getsockname()[1]
        return Address(address.host, port)

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
        if self._server is not None:
            self._server.close()

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
