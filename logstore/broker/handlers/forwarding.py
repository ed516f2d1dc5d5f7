"""What only the controller can do is handed on to it by whichever broker is asked.

    client ─▶ this broker ─▶ the controller, in the same version; its answer goes back as it is

Clients that ask the controller themselves go on asking the one that they know: librdkafka and aiokafka hear
of another only when their metadata is old, minutes later. A request is handed on once at most: a broker that
gets one from another broker, and is not the controller any more, says so (41), as one does that knows of no
controller or gets no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from logstore.broker.call import Call
from logstore.broker.services import Services, finish
from logstore.broker.wire.declarations import Struct

_Handle: TypeAlias = Callable[[Call, Any, Services], Struct | None]


def at_the_controller(handle: _Handle) -> _Handle:
    """`handle` as it is to be called wherever the request arrives."""

    def handed_on(call: Call, body: Struct, services: Services) -> Struct | None:
        def answered(answer: Struct | None) -> None:
            finish(call, lambda: answer if answer is not None else handle(call, body, services))

        if not services.runtime.hand_on(body, call.version, call.client_id, answered):
            return handle(call, body, services)
        return None

    return handed_on
