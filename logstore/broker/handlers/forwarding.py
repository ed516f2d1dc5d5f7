"""Handlers that only pass on: to the group coordinator, to the controller, to a coroutine.

    client ─▶ this broker ─▶ the controller, in the same version; its answer goes back unchanged

Any broker takes requests for the controller: librdkafka and aiokafka learn of a new controller only when
their metadata expires, minutes later. A request is forwarded once at most. A broker that gets one from
another broker, and is not the controller, answers NOT_CONTROLLER (41), and so does one that knows no
controller or gets no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from logstore.broker.dispatch import Call, Handler, Services
from logstore.broker.errors import AuthenticationFailed, NotConnected, RequestUnanswered
from logstore.broker.security.audited import in_doubt
from logstore.broker.translation import from_wire, to_wire
from logstore.broker.wire.declarations import Struct


def later(work: Callable[[Call, Any, Services], Coroutine[Any, Any, Struct | None]]) -> Handler:
    """Return a handler that begins this work, whose result is the answer."""

    def handle(call: Call, body: Struct, services: Services) -> None:
        services.begin(call, work(call, body, services))

    return handle


def asks_groups(request: type[Any], response: type[Struct]) -> Handler:
    """Return a handler that asks the group coordinator, and translates its answer field by field."""

    def handle(call: Call, body: Struct, services: Services) -> None:
        services.ask_group(call, from_wire(body, request), partial(to_wire, kind=response))

    return handle


def at_the_controller(handle: Handler) -> Handler:
    """Return a handler that forwards to the controller, and calls `handle` if this broker is to answer."""

    def forwarded(call: Call, body: Struct, services: Services) -> Struct | None:
        def answered(answer: Struct | RequestUnanswered) -> None:
            if isinstance(answer, Struct):
                call.finish(lambda: answer)
                return
            if call.hear is not None and not isinstance(answer, NotConnected | AuthenticationFailed):
                call.hear(in_doubt(body, call.api.response))  # the controller may have made the change
            call.finish(handle, call, body, services)

        if not services.runtime.forward(body, call.version, call.client_id, answered):
            return handle(call, body, services)
        return None

    return forwarded
