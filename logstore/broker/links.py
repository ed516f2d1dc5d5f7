"""The asking side: one connection to one address, on which requests go out as they come.

Answers come back in order. A connection that breaks, stalls for `request.timeout.ms` or breaks the protocol
loses every request on it: `RequestUnanswered`, which says nothing of their fate. The next request connects
anew, after a pause that grows while that fails. Nothing is sent twice here, and which version to ask in is
the asker's to know.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from logstore.broker.errors import MalformedMessage, RequestUnanswered
from logstore.broker.frames import Frames
from logstore.broker.limits import Address, Limits
from logstore.broker.wire.apis import API_OF, Api
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_response_header, request_frame

_LAST_CORRELATION_ID = 2**31 - 1

Then: TypeAlias = Callable[[Struct | RequestUnanswered], None]
"""Told the answer, or why there is none."""

_BROKER: Final = "broker-"

_log = logging.getLogger(__name__)


def client_id_of(broker_id: int) -> str:
    """What a broker calls itself where it asks another."""
    return f"{_BROKER}{broker_id}"


def is_of_broker(client_id: str | None) -> bool:
    return client_id is not None and client_id.startswith(_BROKER)


class _Outstanding(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    then: Then
    timer: asyncio.TimerHandle


class _Waiting(NamedTuple):
    request: Struct
    version: int
    then: Then | None


class _Asking(Frames):
    """One connection that we made."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.limits.socket_request_max_bytes, link.scratch)
        self._link = link
        self._outstanding: deque[_Outstanding] = deque()
        self._last_id = 0

    @property
    def takes_frames(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def frames_cut(self) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.connection_made(self)

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Write a request. Raises `MalformedMessage` for one that has no bytes."""
        assert self.transport is not None, "connected"
        correlation_id = self._last_id % _LAST_CORRELATION_ID + 1
        pieces = request_frame(request, version, correlation_id, self._link.client_id)
        self._last_id = correlation_id
        if then is not None:
            loop = asyncio.get_running_loop()
            timeout_s = self._link.limits.request_timeout_ms / 1000
            timer = loop.call_later(timeout_s, self.refuse, f"no answer in {timeout_s} s")
            self._outstanding.append(
                _Outstanding(correlation_id, API_OF[type(request)], version, then, timer)
            )
        for piece in pieces:
            self.transport.write(piece)

    def frame_received(self, frame: memoryview) -> None:
        if not self._outstanding:
            self.refuse("an answer that nobody asked for")
            return
        asked = self._outstanding[0]
        try:
            correlation_id, used = decode_response_header(frame, asked.api, asked.version)
            if correlation_id != asked.correlation_id:
                raise MalformedMessage("an answer out of order")
            answer, _ = decode(asked.api.response, asked.version, frame[used:])
        except MalformedMessage as error:
            self.refuse(str(error))
            return
        self._outstanding.popleft().timer.cancel()
        asked.then(answer)

    def refuse(self, reason: str) -> None:
        """Cut the connection, now."""
        if self.transport is not None:
            _log.warning("hanging up on %s: %s", self._link.address, reason)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        lost, self._outstanding = self._outstanding, deque()
        for asked in lost:
            asked.timer.cancel()
        self._link.connection_lost(self, [asked.then for asked in lost])

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Link:
    """The way to one node, over at most one connection at a time; connects when there is something to say."""

    def __init__(
        self, address: Address, *, client_id: str, limits: Limits | None = None, scratch: memoryview | None
    ) -> None:
        """`scratch` is the loop's (`frames.shared_scratch`)."""
        self.address, self.client_id, self.scratch = address, client_id, scratch
        self.limits = limits or Limits()
        self._connection: _Asking | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[_Waiting] = []
        self._failures = 0
        self._not_before = 0.0

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Send, now or once connected; `then` is never called from within. None: there is no answer."""
        if self._connection is not None:
            self._ask_on(self._connection, _Waiting(request, version, then))
            return
        loop = asyncio.get_running_loop()
        if self._connecting is None and loop.time() < self._not_before:
            self._lose([then], f"{self.address} could not be reached a moment ago")
            return
        self._waiting.append(_Waiting(request, version, then))
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())

    def _ask_on(self, connection: _Asking, waiting: _Waiting) -> None:
        try:
            connection.ask(*waiting)
        except MalformedMessage as error:
            self._lose([waiting.then], str(error))

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.limits.connect_timeout_ms / 1000):
                await loop.create_connection(lambda: _Asking(self), *self.address)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            # The last two: what was registered as host and port is no name and no number of any.
            pause_ms = self.limits.reconnect_backoff_ms * 2 ** min(self._failures, 16)
            self._failures += 1
            self._not_before = loop.time() + min(pause_ms, self.limits.reconnect_backoff_max_ms) / 1000
            waiting, self._waiting = self._waiting, []
            self._lose([each.then for each in waiting], f"{self.address} cannot be reached: {error}")
        finally:
            self._connecting = None

    def connection_made(self, connection: _Asking) -> None:
        """The protocol's word that it can be written to."""
        self._failures = 0
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._ask_on(connection, each)

    def connection_lost(self, connection: _Asking, lost: list[Then]) -> None:
        """The protocol's word that its connection is gone, with the requests that were on it."""
        if self._connection is connection:
            self._connection = None
        self._lose(lost, f"the connection to {self.address} broke")

    def _lose(self, lost: Sequence[Then | None], reason: str) -> None:
        loop = asyncio.get_running_loop()
        for then in lost:
            if then is not None:
                loop.call_soon(then, RequestUnanswered(reason))

    def close(self) -> None:
        """Hang up; what was not answered is lost."""
        if self._connecting is not None:
            self._connecting.cancel()
        waiting, self._waiting = self._waiting, []
        self._lose([each.then for each in waiting], f"the link to {self.address} was closed")
        if self._connection is not None:
            self._connection.close()
