"""Accepts connections, and pauses while file descriptors run short.

asyncio's own servers log each accept that fails for want of a descriptor, and go on trying: megabytes of
messages in seconds. Here accepting pauses, new connections wait in the backlog of the socket, and one
message in ten seconds counts what happened.

A connection whose descriptor lies at or above `room_for_others` is closed: those are left to files
(`logstore.disk.descriptors`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from logstore.broker.limits import Address
from logstore.disk.descriptors import DescriptorLimit
from logstore.disk.errors import explained, is_shortage
from logstore.loggers import logger_of

BACKLOG: Final = 1024
PAUSE_S: Final = 0.5
SAY_AGAIN_S: Final = 10.0
_MOST_KINDS: Final = 64
AT_ONCE: Final = 10
REST_S: Final = 0.005
"""Accepting rests so long after `AT_ONCE` connections: at most 2,000 a second."""

_log = logger_of(__name__)


class Seldom:
    """Counts events, and says when to report them: at once, then every `SAY_AGAIN_S`."""

    def __init__(self) -> None:
        self._count = 0
        self._next_s = float("-inf")

    def __call__(self, now_s: float) -> int:
        """Count an event; return the number to report, or 0 if it is too early for another report."""
        self._count += 1
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + SAY_AGAIN_S
        count, self._count = self._count, 0
        return count

    def has_nothing_to_say(self, now_s: float) -> bool:
        """Return whether a new object would do the same: everything counted was reported, long ago."""
        return not self._count and now_s >= self._next_s


class SeldomEach:
    """`Seldom` for each of a few kinds of events; those beyond are counted as one kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, Seldom] = {}

    def __call__(self, kind: str, now_s: float) -> int:
        """Count an event of this kind; return the number to report, or 0 if it is too early."""
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            settled = [known for known, seldom in self._kinds.items() if seldom.has_nothing_to_say(now_s)]
            for known in settled:
                del self._kinds[known]
            if not settled:
                kind = ""
        return self._kinds.setdefault(kind, Seldom())(now_s)


class Acceptor:
    """Listens on one address and hands each connection to a new protocol. Belongs to one event loop."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        descriptors: DescriptorLimit,
        pace_s: Callable[[], float] = lambda: 0.0,
        held_s: Callable[[str], float] = lambda peer: 0.0,
    ) -> None:
        """`pace_s` is called for each connection, and returns how long to wait before the next one.

        `held_s` returns for the address of a peer after how long its connection is closed, unread; 0 if it
        may connect.
        """
        self._pace_s, self._held_s = pace_s, held_s
        self.pauses = 0
        """How often accepting paused because descriptors were short."""
        self._protocol, self._descriptors = protocol, descriptors
        self._loop = asyncio.get_running_loop()
        self._seldom = Seldom()
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def listen(self, address: Address) -> Address:
        """Bind and accept; return the address with the actual port. Raises `OSError`."""
        listeners: list[socket.socket] = []
        try:
            found = await self._loop.getaddrinfo(
                address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, target in dict.fromkeys(found):
                listeners.append(_bound(family, kind, protocol, target))
        except OSError as error:
            for listener in listeners:
                listener.close()
            raise explained(error, f"cannot open the listener {address}") from error
        port: int = listeners[0].getsockname()[1]
        self._listeners = listeners
        self._accepting = [self._loop.create_task(self._accept(each)) for each in listeners]
        return Address(address.host, port)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        # At once, not in the tasks: the loop may run none of their code any more.
        for listener in self._listeners:
            with suppress(NotImplementedError):  # a loop without readers
                self._loop.remove_reader(listener)
            with suppress(OSError):  # a forked child may have a copy, which would go on listening
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners = []
        for task in (*self._accepting, *self._opening):
            task.cancel()
        self._accepting.clear()

    async def _accept(self, listener: socket.socket) -> None:
        for number in count(1):
            try:
                accepted, peer = await self._next(listener)
            except OSError as error:
                if is_shortage(error):
                    await self._pause(str(error.strerror))
                continue  # otherwise the client has left already
            if accepted.fileno() >= self._descriptors.room_for_others:
                accepted.close()
                await self._pause(f"{self._descriptors.held_back} are left to files")
                continue
            held_s = self._held_s(peer[0])
            task = self._loop.create_task(
                self._close_later(accepted, held_s) if held_s else self._open(accepted)
            )
            self._opening.add(task)
            task.add_done_callback(partial(self._opened, accepted))
            # Those who are connected have their turn, also while thousands connect at once.
            await asyncio.sleep(max(self._pace_s(), 0 if number % AT_ONCE else REST_S))

    async def _next(self, listener: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        """Accept the next connection.

        Not by `sock_accept`, which accepts first and resumes the task later: a task that is cancelled in
        between would leave an open socket to the garbage collector.
        """
        while True:
            with suppress(BlockingIOError):  # also: the client has left
                return listener.accept()
            ready = self._loop.create_future()
            try:
                self._loop.add_reader(listener, _set_ready, ready)
            except NotImplementedError:  # a loop without readers
                return await self._loop.sock_accept(listener)
            try:
                await ready
            finally:
                if listener.fileno() >= 0:  # `close` has removed the reader
                    self._loop.remove_reader(listener)

    def _opened(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if task.cancelled():
            accepted.close()

    async def _pause(self, why: str) -> None:
        self.pauses += 1
        if times := self._seldom(self._loop.time()):
            _log.warning(
                "no descriptor for a new connection (%s; the limit of open files is %d): accepting paused %d "
                "times; raise the limit (ulimit -n), or lower max.connections",
                why,
                self._descriptors.limit,
                times,
            )
        await asyncio.sleep(PAUSE_S)

    async def _close_later(self, accepted: socket.socket, held_s: float) -> None:
        await asyncio.sleep(held_s)
        accepted.close()

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError as error:
            _log.debug("a new connection failed: %s", error)
            accepted.close()


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _bound(family: int, kind: int, protocol: int, target: object) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix" and sys.platform != "cygwin":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(target)  # type: ignore[arg-type]  # as `getaddrinfo` gave it
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
