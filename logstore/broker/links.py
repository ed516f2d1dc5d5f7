"""The client side: one connection to one address, which sends requests in the order of the calls.

Answers arrive in order. If a connection breaks, breaks the protocol, or has no answer for
`request.timeout.ms`, all requests on it fail with `RequestUnanswered`: they may have been served. The next
request connects again, after a pause that grows while that fails. Nothing is sent twice. The caller chooses
the version of a request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from logstore.broker.connection import Frames
from logstore.broker.errors import (
    AuthenticationFailed,
    MalformedMessage,
    NotConnected,
    RequestFailed,
    RequestUnanswered,
)
from logstore.broker.limits import Address, Limits
from logstore.broker.security.client import NO_SECURITY, ClientSecurity
from logstore.broker.wire.apis import API_OF, Api
from logstore.broker.wire.codec import decode
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import decode_response_header, request_frame
from logstore.broker.wire.types import ApiVersionsRequest
from logstore.loggers import logger_of

_LAST_CORRELATION_ID = 2**31 - 1
_RENEWAL_AT: Final = 0.9
"""A session is renewed after this part of its time."""

Then: TypeAlias = Callable[[Struct | RequestUnanswered], None]
"""Gets the answer, or the reason why there is none."""

_BROKER: Final = "broker-"
_VERSIONS: Final = API_OF[ApiVersionsRequest]

_log = logger_of(__name__)


def client_id_of(broker_id: int) -> str:
    """Return the client id that a broker uses for its requests to others."""
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
    """One outgoing connection."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.limits.socket_request_max_bytes, link.scratch)
        self._link = link
        self._outstanding: deque[_Outstanding] = deque()
        self._last_id = 0
        self._has_served = False
        """Whether a request was answered, other than for its versions, which need no login."""
        self._reason = ""
        """Why this side has ended the connection."""

    @property
    def takes_frames(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def frames_cut(self) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._link.needs_login:
            self._link.connection_made(self)

    async def exchange(self, request: Struct, version: int) -> Struct:
        """Send a request and return the answer, while the link uses the connection for nothing else."""
        waiting: asyncio.Future[Struct | RequestUnanswered] = asyncio.get_running_loop().create_future()

        def answered(answer: Struct | RequestUnanswered) -> None:
            if not waiting.done():
                waiting.set_result(answer)

        self.ask(request, version, answered)
        answer = await waiting
        if isinstance(answer, RequestUnanswered):
            raise answer
        return answer

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Write a request. Raises `MalformedMessage` for one that cannot be encoded."""
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
            self.refuse("unexpected response")
            return
        asked = self._outstanding[0]
        try:
            correlation_id, used = decode_response_header(frame, asked.api, asked.version)
            if correlation_id != asked.correlation_id:
                raise MalformedMessage("response out of order")
            answer, _ = decode(asked.api.response, asked.version, frame[used:])
        except MalformedMessage as error:
            self.refuse(str(error))
            return
        self._outstanding.popleft().timer.cancel()
        self._has_served = self._has_served or asked.api is not _VERSIONS
        asked.then(answer)

    def refuse(self, reason: str) -> None:
        """Disconnect now."""
        if self.transport is not None:
            _log.warning("disconnecting from %s: %s", self._link.address, reason)
            self._end(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        lost, self._outstanding = self._outstanding, deque()
        for asked in lost:
            asked.timer.cancel()
        reason = self._reason or (str(exc) or type(exc).__name__ if exc else "closed by the other side")
        if not self._reason and not self._has_served and not isinstance(exc, ssl.SSLError):
            reason += " before it served a request: it may require TLS or a login (security.protocol)"
        self._link.connection_lost(self, [asked.then for asked in lost], reason)

    def close(self) -> None:
        self._end("closed by this side")

    def _end(self, reason: str) -> None:
        if self.transport is not None:
            self._reason = self._reason or reason
            self.transport.abort()


class Link:
    """Sends requests to one node, over at most one connection at a time, opened on demand."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        limits: Limits | None = None,
        scratch: memoryview | None,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`scratch` is the loop's buffer (`connection.shared_scratch`)."""
        self.address, self.client_id, self.scratch = address, client_id, scratch
        self._security = security
        self.limits = limits or Limits()
        self._connection: _Asking | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[_Waiting] = []
        self._failures = 0
        self._failure = ""
        """Why the last attempt to connect failed."""
        self._not_before = 0.0

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Send now or once connected; `then` is never called from within. None: no answer is expected."""
        if self._connection is not None:
            self._ask_on(self._connection, _Waiting(request, version, then))
            return
        loop = asyncio.get_running_loop()
        if self._connecting is None and loop.time() < self._not_before:
            self._lose([then], f"{self._failure}, a moment ago", NotConnected)
            return
        self._waiting.append(_Waiting(request, version, then))
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())

    def _ask_on(self, connection: _Asking, waiting: _Waiting) -> None:
        try:
            connection.ask(*waiting)
        except MalformedMessage as error:
            self._lose([waiting.then], str(error), RequestFailed)

    @property
    def needs_login(self) -> bool:
        return self._security.login is not None

    async def _connect(self, open_already: _Asking | None = None) -> None:
        """Connect and log in; or log in again on an open connection. Requests wait meanwhile."""
        loop = asyncio.get_running_loop()
        asking = open_already or _Asking(self)
        try:
            async with asyncio.timeout(self.limits.connect_timeout_ms / 1000):
                if open_already is None:
                    await self._security.connect(asking, *self.address)
                if self._security.login is not None:
                    self._log_in_again_after(asking, await self._security.login.log_in(asking.exchange))
        except asyncio.CancelledError:
            asking.close()
            raise
        except Exception as error:
            asking.close()
            # A `ValueError` or `OverflowError`: the registered host or port is invalid.
            if not isinstance(error, OSError | ValueError | OverflowError | RequestUnanswered):
                _log.exception("unexpected error in a connection to %s", self.address)
            pause_ms = self.limits.reconnect_backoff_ms * 2 ** min(self._failures, 16)
            self._failures += 1
            self._not_before = loop.time() + min(pause_ms, self.limits.reconnect_backoff_max_ms) / 1000
            waiting, self._waiting = self._waiting, []
            silence = f"no answer in {self.limits.connect_timeout_ms / 1000:g} s"
            reason = str(error) or (silence if isinstance(error, TimeoutError) else type(error).__name__)
            self._failure = f"failed to connect to {self.address}: {reason}"
            kind = AuthenticationFailed if isinstance(error, AuthenticationFailed) else NotConnected
            self._lose([each.then for each in waiting], self._failure, kind)
        finally:
            self._connecting = None

    def connection_made(self, connection: _Asking) -> None:
        """Called by the protocol: the connection is open."""
        self._failures = 0
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._ask_on(connection, each)

    def connection_lost(self, connection: _Asking, lost: list[Then], reason: str) -> None:
        """Called by the protocol: the connection is gone, with the requests on it."""
        if self._connection is connection:
            self._connection = None
        self._lose(lost, f"the connection to {self.address} broke: {reason}")

    def _log_in_again_after(self, asking: _Asking, lifetime_ms: int) -> None:
        """Use a connection that has logged in; log in again before its session ends (0: it has no end)."""
        if asking.transport is None or asking.transport.is_closing():
            raise ConnectionError("the connection broke after the login")
        loop = asyncio.get_running_loop()

        def renew() -> None:
            if self._connection is asking:
                self._connection = None
                self._connecting = loop.create_task(self._connect(asking))

        if lifetime_ms:
            loop.call_later(lifetime_ms / 1000 * _RENEWAL_AT, renew)
        self.connection_made(asking)

    def _lose(
        self, lost: Sequence[Then | None], reason: str, kind: type[RequestUnanswered] = RequestUnanswered
    ) -> None:
        loop = asyncio.get_running_loop()
        for then in lost:
            if then is not None:
                loop.call_soon(then, kind(reason))

    def close(self) -> None:
        """Close the connection and drop unanswered requests."""
        if self._connecting is not None:
            self._connecting.cancel()
        waiting, self._waiting = self._waiting, []
        self._lose([each.then for each in waiting], f"the link to {self.address} was closed")
        if self._connection is not None:
            self._connection.close()
