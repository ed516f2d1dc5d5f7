"""Requests to a broker on the same event loop: its handlers are called directly, without bytes or a socket.

    client ─▶ InProcess.ask(request) ─▶ handler ─▶ engine ─▶ … ─▶ then(response)

It replaces a `Link` for a client. Handlers treat such a request like one from a socket: they and the engine
rely on the types of its fields. So a request is encoded before it is served, as for a socket. The bytes are
thrown away: that takes two microseconds, and does not copy the records.
"""

from __future__ import annotations

import sys

from logstore.broker.dispatch import Call, Dispatch
from logstore.broker.errors import MalformedMessage, RequestFailed, RequestUnanswered
from logstore.broker.limits import Address
from logstore.broker.links import Then
from logstore.broker.security.config import IN_PROCESS
from logstore.broker.security.door import Door
from logstore.broker.security.login import Login
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.codec import encode
from logstore.broker.wire.declarations import Struct
from logstore.loggers import logger_of

_log = logger_of(__name__)


class InProcess:
    """Sends requests to the broker of `dispatch`. Belongs to that broker's event loop."""

    def __init__(
        self, dispatch: Dispatch, address: Address, *, client_id: str, door: Door | None = None
    ) -> None:
        """`address` is the broker's advertised address on the listener of `door`."""
        self.address, self.client_id = address, client_id
        self.nowhere = _Nowhere(door)
        self._dispatch = dispatch
        self._outstanding: dict[_Call, Then] = {}
        self._is_closed = False

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Serve a request; `then` may be called from within. None: no answer is expected.

        Raises `RequestFailed` for a request that cannot be encoded.
        """
        if self._is_closed:
            if then is not None:
                then(RequestUnanswered(f"the connection to {self.address} was closed"))
            return
        try:
            encode(request, version)
        except MalformedMessage as error:
            raise RequestFailed(str(error)) from error
        call = _Call(self, request, version)
        if then is not None:
            self._outstanding[call] = then
        self._dispatch.serve(call, request)

    def close(self) -> None:
        """Drop unanswered requests."""
        self._is_closed = True
        for call in list(self._outstanding):
            call.lost()
            call.refuse("the connection to this broker was closed")

    def answered(self, call: _Call, answer: Struct | RequestUnanswered) -> None:
        then = self._outstanding.pop(call, None)
        if then is not None:
            then(answer)


class _Call(Call):
    """A request whose answer is passed on as an object."""

    __slots__ = ("_way",)

    def __init__(self, way: InProcess, request: Struct, version: int) -> None:
        super().__init__(way.nowhere, API_OF[type(request)], version, 0, way.client_id)
        self._way = way

    def answer_as(self, body: Struct, version: int) -> None:
        self._finish(body)

    def end(self) -> None:
        self._finish(RequestUnanswered(f"{self!r} has no answer"))

    def _finish(self, answer: Struct | RequestUnanswered) -> None:
        if not self.is_done:
            self.is_done = True
            if self.hear is not None and isinstance(answer, Struct):
                self.hear(answer)
            if self.on_answer is not None:
                self.on_answer()
            self._way.answered(self, answer)

    def refuse(self, reason: str) -> None:
        self._refuse_with(RequestUnanswered(f"{self!r}: {reason}"))

    def fail(self, what: str) -> None:
        """Tell the caller of a bug in the broker, who then does not retry. Call it in an `except` block."""
        _log.exception("%r: %s", self, what)
        self._refuse_with(RequestFailed(f"{self!r}: {what}: {sys.exception()!r}"))

    def _refuse_with(self, error: RequestUnanswered) -> None:
        if not self.is_done:
            self.is_done = True
            self._way.answered(self, error)


class _Nowhere:
    """Stands for the connection that such a request does not have."""

    peer = "in-process"
    is_closing = False
    software = ""
    number = 0
    login: Login | None = None
    principal = IN_PROCESS

    def __init__(self, door: Door | None) -> None:
        self.door = door

    def take_next(self) -> None:
        """Do nothing: requests in the process do not queue behind each other."""

    def answer(self, pieces: object, *, throttle_ms: int = 0, number: int | None = None) -> None:
        raise AssertionError("in-process requests have no bytes")

    def refuse(self, reason: str) -> None:
        raise AssertionError("in-process requests have no connection")
