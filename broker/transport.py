"""Frames over TCP: the simplest way for nodes to talk until they talk as Kafka's brokers do.

    request    size u32 │ fingerprint u32 │ source i32 │ target i32 │ correlation id i64 │ message
    response   size u32 │ correlation id i64 │ message

`size` counts what follows it. `source` is a node's id, -1 for a client; `target` the node that is meant, -1
for whichever answers there. Who sends another fingerprint (`message_codec.py`), means another node, or
sends what cannot be read, is cut off.

Serving (`Server`): one request of a connection is in hand; until it is answered nothing more is read from
that connection, so its answers go out in order and a peer that floods fills its own socket buffer. Not
more is read than a frame needs, and a frame has room as its bytes come, not as its size says.

Asking (`Link`): requests go out as they come, answers come back in order. A connection that breaks, stalls
or breaks the protocol loses every request on it: `RequestUnanswered`, which says nothing of their fate.
The next request connects anew, after a pause that grows while that fails. Nothing is sent twice here.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, cast

from broker.errors import MalformedMessage, RequestUnanswered
from broker.limits import Address, Limits
from broker.message_codec import FINGERPRINT, RESPONSE_OF, decode_request, decode_response, encode
from checkpoint.disk import Buffer
from replication.messages import RequestBody, ResponseBody

CLIENT: Final = -1
ANY_NODE: Final = -1

_SIZE = struct.Struct(">I")
_REQUEST_HEAD = struct.Struct(">Iiiq")
_RESPONSE_HEAD = struct.Struct(">q")
_FIRST_ROOM = 1 << 16

_log = logging.getLogger(__name__)


class _Frames(asyncio.BufferedProtocol, ABC):
    """Cuts a stream into frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport | None = None
        self._begin_size()

    def _begin_size(self) -> None:
        self._is_size = True
        self._begin(_SIZE.size)

    def _begin(self, wanted: int) -> None:
        self._wanted, self._filled = wanted, 0
        self._room = bytearray(min(wanted, _FIRST_ROOM))
        self._view = memoryview(self._room)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._room):
            # As much again as has come; the view must go first, or the array could not grow.
            self._view.release()
            self._room += bytes(min(self._filled, self._wanted - self._filled))
        self._view = memoryview(self._room)[self._filled :]
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < self._wanted:
            return
        frame = self._room
        if not self._is_size:
            self._begin_size()
            self.frame_received(frame)
            return
        (size,) = _SIZE.unpack(frame)
        if 0 < size <= self._max_bytes:
            self._is_size = False
            self._begin(size)
        else:
            self.abort(f"a frame of {size} bytes; 1 to {self._max_bytes} are taken")

    @abstractmethod
    def frame_received(self, frame: bytearray) -> None:
        """A whole frame, without its size; nobody else holds it."""

    def abort(self, reason: str) -> None:
        """Cut the connection, now."""
        if self._transport is not None:
            _log.warning("cutting off %s: %s", self._transport.get_extra_info("peername"), reason)
            self._transport.abort()

    def _write(self, head: bytes, message: list[Buffer]) -> None:
        assert self._transport is not None, "connected"
        first, *rest = message
        size = len(head) + sum(map(len, message))
        self._transport.write(b"".join((_SIZE.pack(size), head, first)))
        for chunk in rest:
            self._transport.write(chunk)


# --- serving ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class InHand:
    """A request that waits for its answer, and the connection that it came by."""

    connection: _Serving = field(repr=False)
    source: int
    correlation_id: int
    body: RequestBody

    def answer(self, body: ResponseBody | None, *, close: bool = False) -> None:
        """Send the answer (None: there is none) and go on reading, or `close`. Too late is harmless."""
        self.connection.answer(self, body, close=close)

    def refuse(self, reason: str) -> None:
        """Cut the connection: the request is one that no correct peer sends."""
        self.connection.abort(reason)


OnRequest: TypeAlias = Callable[[InHand], None]


class _Serving(_Frames):
    """One connection that somebody made to us."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.limits.socket_request_max_bytes)
        self._server = server
        self._in_hand: InHand | None = None
        self._is_clogged = False
        self.idle_since = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections[self] = None
        if len(self._server.connections) > self._server.limits.max_connections:
            self.abort("there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._in_hand = None

    @property
    def is_idle(self) -> bool:
        return self._in_hand is None

    def frame_received(self, frame: bytearray) -> None:
        assert self._transport is not None, "connected"
        self._transport.pause_reading()
        try:
            if len(frame) < _REQUEST_HEAD.size:
                raise MalformedMessage(f"a request of {len(frame)} bytes")
            fingerprint, source, target, correlation_id = _REQUEST_HEAD.unpack_from(frame)
            if fingerprint != FINGERPRINT:
                raise MalformedMessage("it was built from other declarations of messages")
            if source < CLIENT or target not in (ANY_NODE, self._server.node_id):
                raise MalformedMessage(f"it is {source} and looks for node {target}")
            body = decode_request(memoryview(frame)[_REQUEST_HEAD.size :])
        except MalformedMessage as error:
            self.abort(str(error))
            return
        self._in_hand = InHand(self, source, correlation_id, body)
        self._server.on_request(self._in_hand)

    def answer(self, request: InHand, body: ResponseBody | None, *, close: bool) -> None:
        if request is not self._in_hand or self._transport is None or self._transport.is_closing():
            return
        if body is not None:
            try:
                message = encode(body)
            except MalformedMessage as error:
                self.abort(str(error))
                return
            self._write(_RESPONSE_HEAD.pack(request.correlation_id), message)
        self._in_hand = None
        self.idle_since = asyncio.get_running_loop().time()
        if close:
            self._transport.close()
        elif not self._is_clogged:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        # Who does not take the answer is not asked for the next request: one answer is all it costs us.
        self._is_clogged = False
        if self._in_hand is None and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once what was written has gone out."""
        if self._transport is not None:
            self._transport.close()


class Server:
    """Listens, and hands every request to `on_request`, on the event loop."""

    def __init__(self, node_id: int, on_request: OnRequest, limits: Limits | None = None) -> None:
        self.node_id, self.on_request = node_id, on_request
        self.limits = limits or Limits()
        self.connections: dict[_Serving, None] = {}
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, address: Address) -> Address:
        """Bind and accept; the address with the port that it became. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Serving(self), address.host, address.port)
        self._sweep_idle()
        port: int = self._server.sockets[0].getsockname()[1]
        return Address(address.host, port)

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self.limits.connections_max_idle_ms / 1000
        for connection in [each for each in self.connections if each.is_idle]:
            if loop.time() - connection.idle_since >= idle_s:
                connection.close()
        self._sweep = loop.call_later(idle_s / 4, self._sweep_idle)

    def close(self) -> None:
        """Accept nobody any more and close every connection; answers that were given still go out."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()


# --- asking -----------------------------------------------------------------------------------

OnAnswer: TypeAlias = Callable[[int, ResponseBody | RequestUnanswered], None]
"""Told the correlation id, and the answer or why there is none."""


class _Outstanding(NamedTuple):
    correlation_id: int
    response: type[Any]
    timer: asyncio.TimerHandle


class _Asking(_Frames):
    """One connection that we made."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.limits.socket_request_max_bytes)
        self._link = link
        self._outstanding: deque[_Outstanding] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.connection_made(self)

    def send(self, head: bytes, correlation_id: int, body: RequestBody, *, expects_answer: bool) -> None:
        message = encode(body)
        if expects_answer:
            loop = asyncio.get_running_loop()
            timeout_s = self._link.limits.request_timeout_ms / 1000
            timer = loop.call_later(timeout_s, self.abort, f"no answer in {timeout_s} s")
            self._outstanding.append(_Outstanding(correlation_id, RESPONSE_OF[type(body)], timer))
        self._write(head, message)

    def frame_received(self, frame: bytearray) -> None:
        try:
            if len(frame) < _RESPONSE_HEAD.size:
                raise MalformedMessage(f"an answer of {len(frame)} bytes")
            (correlation_id,) = _RESPONSE_HEAD.unpack_from(frame)
            if not self._outstanding or self._outstanding[0].correlation_id != correlation_id:
                raise MalformedMessage("an answer out of order")
            body = decode_response(memoryview(frame)[_RESPONSE_HEAD.size :])
            if type(body) is not self._outstanding[0].response:
                raise MalformedMessage(f"a {type(body).__name__} answers something else")
        except MalformedMessage as error:
            self.abort(str(error))
            return
        self._outstanding.popleft().timer.cancel()
        self._link.on_answer(correlation_id, body)

    def connection_lost(self, exc: Exception | None) -> None:
        lost, self._outstanding = self._outstanding, deque()
        for request in lost:
            request.timer.cancel()
        self._link.connection_lost(self, [request.correlation_id for request in lost])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Link:
    """The way to one node, over at most one connection at a time; connects when there is something to say."""

    def __init__(
        self,
        address: Address,
        on_answer: OnAnswer,
        *,
        source: int = CLIENT,
        target: int = ANY_NODE,
        limits: Limits | None = None,
    ) -> None:
        self.address, self.on_answer = address, on_answer
        self.limits = limits or Limits()
        self._source, self._target = source, target
        self._connection: _Asking | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, RequestBody, bool]] = []
        self._failures = 0
        self._not_before = 0.0

    def send(self, correlation_id: int, body: RequestBody, *, expects_answer: bool = True) -> None:
        """Send, now or once connected. What follows, `on_answer`, is never called from within."""
        if self._connection is not None:
            self._send_on(self._connection, correlation_id, body, expects_answer)
            return
        loop = asyncio.get_running_loop()
        if self._connecting is None and loop.time() < self._not_before:
            self._lose([correlation_id], f"{self.address} could not be reached a moment ago")
            return
        self._waiting.append((correlation_id, body, expects_answer))
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())

    def _send_on(
        self, connection: _Asking, correlation_id: int, body: RequestBody, expects_answer: bool
    ) -> None:
        head = _REQUEST_HEAD.pack(FINGERPRINT, self._source, self._target, correlation_id)
        try:
            connection.send(head, correlation_id, body, expects_answer=expects_answer)
        except MalformedMessage as error:
            self._lose([correlation_id], str(error))

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
            self._lose([each[0] for each in waiting], f"{self.address} cannot be reached: {error}")
        finally:
            self._connecting = None

    def connection_made(self, connection: _Asking) -> None:
        """The protocol's word that it can be written to."""
        self._failures = 0
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._send_on(connection, *each)

    def connection_lost(self, connection: _Asking, correlation_ids: list[int]) -> None:
        """The protocol's word that its connection is gone, with the requests that were on it."""
        if self._connection is connection:
            self._connection = None
        self._lose(correlation_ids, f"the connection to {self.address} broke")

    def _lose(self, correlation_ids: list[int], reason: str) -> None:
        loop = asyncio.get_running_loop()
        for correlation_id in correlation_ids:
            loop.call_soon(self.on_answer, correlation_id, RequestUnanswered(reason))

    def close(self) -> None:
        """Hang up; what was not answered is lost."""
        if self._connecting is not None:
            self._connecting.cancel()
        waiting, self._waiting = self._waiting, []
        self._lose([each[0] for each in waiting], f"the link to {self.address} was closed")
        if self._connection is not None:
            self._connection.close()
