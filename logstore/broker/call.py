"""One request in hand, from its frame to its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from logstore.broker.wire.apis import Api
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import response_frame
from logstore.disk.files import Buffer

_log = logging.getLogger(__name__)


class Caller(Protocol):
    """The connection that a request came by."""

    peer: str
    """The client's address."""
    software: str
    """Name and version of its software, once told."""

    def answer(self, pieces: Iterable[Buffer], *, throttle_ms: int = 0) -> None: ...

    def refuse(self, reason: str) -> None: ...


class Call:
    """A request, and the way back. It is answered once: by the handler's result, or by `answer` later."""

    __slots__ = (
        "api",
        "client_id",
        "connection",
        "correlation_id",
        "is_done",
        "on_answer",
        "throttle_ms",
        "version",
    )

    def __init__(
        self, connection: Caller, api: Api, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.api, self.version = api, version
        self.correlation_id, self.client_id = correlation_id, client_id
        self.throttle_ms = 0
        """How long the client is not listened to after the answer; set it before, and in the answer too."""
        self.is_done = False
        self.on_answer: Callable[[], None] | None = None
        """Told when it has been answered, also where there is no answer; not if it was refused."""

    def __repr__(self) -> str:
        who = " ".join(filter(None, (self.connection.peer, self.client_id, self.connection.software)))
        return f"{self.api.name} v{self.version} of {who}, correlation id {self.correlation_id}"

    def answer(self, body: Struct) -> None:
        """Send the answer; the connection's next request follows. Too late is harmless."""
        self.answer_as(body, self.version)

    def answer_as(self, body: Struct, version: int) -> None:
        """Likewise, in a version that is not the request's: ApiVersions alone may do that."""
        if self.is_done:
            return
        try:
            pieces = response_frame(body, version, self.correlation_id)
        except Exception:
            self.fail("its answer has no bytes")
            return
        self.is_done = True
        self.connection.answer(pieces, throttle_ms=self.throttle_ms)
        if self.on_answer is not None:
            self.on_answer()

    def end(self) -> None:
        """There is no answer (acks=0); the connection's next request follows."""
        if not self.is_done:
            self.is_done = True
            self.connection.answer(())
            if self.on_answer is not None:
                self.on_answer()

    def refuse(self, reason: str) -> None:
        """Cut the connection off instead: the request is one that no correct client sends."""
        if not self.is_done:
            self.is_done = True
            self.connection.refuse(f"{self!r}: {reason}")

    def fail(self, what: str) -> None:
        """Cut the connection off because of a bug of ours, from within its `except`."""
        _log.exception("%r: %s", self, what)
        self.refuse("a failure here")
