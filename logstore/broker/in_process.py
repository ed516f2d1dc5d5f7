"""The way to a broker on this loop: its handlers are called with the request itself, no bytes, no socket.

    client ─▶ InProcess.ask(request) ─▶ handler ─▶ engine ─▶ … ─▶ then(response)

It is to a client what a `Link` is. What a handler does for who comes by a socket it does here as well.
"""

from __future__ import annotations

from logstore.broker.dispatch import Call, Dispatch
from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Address
from logstore.broker.links import Then
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct


class InProcess:
    """Asks the broker whose frames `dispatch` serves. Belongs to that broker's event loop."""

    def __init__(self, dispatch: Dispatch, address: Address, *, client_id: str) -> None:
        """`address` is where the broker says that it is: what names it to clients."""
        self.address, self.client_id = address, client_id
        self._dispatch = dispatch
        self._outstanding: dict[_Call, Then] = {}
        self._is_closed = False

    def ask(self, request: Struct, version: int, then: Then | None) -> None:
        """Have a request served; `then` may be called from within. None: there is no answer."""
        if self._is_closed:
            if then is not None:
                then(RequestUnanswered(f"the way to {self.address} was closed"))
            return
        call = _Call(self, request, version)
        if then is not None:
            self._outstanding[call] = then
        self._dispatch.serve(call, request)

    def close(self) -> None:
        """Wait for nothing any more; what was not answered is lost."""
        self._is_closed = True
        for call in list(self._outstanding):
            call.refuse("the way to this broker was closed")

    def answered(self, call: _Call, answer: Struct | RequestUnanswered) -> None:
        then = self._outstanding.pop(call, None)
        if then is not None:
            then(answer)


class _Call(Call):
    """A request whose answer is handed over as it is."""

    __slots__ = ("_way",)

    def __init__(self, way: InProcess, request: Struct, version: int) -> None:
        super().__init__(_NOWHERE, API_OF[type(request)], version, 0, way.client_id)
        self._way = way

    def answer_as(self, body: Struct, version: int) -> None:
        self._finish(body)

    def end(self) -> None:
        self._finish(RequestUnanswered(f"{self!r} has no answer"))

    def _finish(self, answer: Struct | RequestUnanswered) -> None:
        if not self.is_done:
            self.is_done = True
            if self.on_answer is not None:
                self.on_answer()
            self._way.answered(self, answer)

    def refuse(self, reason: str) -> None:
        if not self.is_done:
            self.is_done = True
            self._way.answered(self, RequestUnanswered(f"{self!r}: {reason}"))


class _Nowhere:
    """The connection that such a request did not come by."""

    peer = "in-process"
    software = ""

    def answer(self, pieces: object, *, throttle_ms: int = 0) -> None:
        raise AssertionError("in process there are no bytes")

    def refuse(self, reason: str) -> None:
        raise AssertionError("in process there is no connection")


_NOWHERE = _Nowhere()
