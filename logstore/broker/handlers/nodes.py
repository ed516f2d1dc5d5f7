"""What nodes alone ask each other: the controller's orders, and proposals to it.

Each says in its body whom it is from. An order of the controller also says whom it is for: a broker may
listen now where another one did.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from logstore.broker.call import Call
from logstore.broker.interbroker.translation import request_of, to_wire
from logstore.broker.services import Services
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct

_ANYBODY: Final = -1
_ORDERS: Final = (w.LeaderAndIsrRequest, w.StopReplicaRequest, w.UpdateMetadataRequest)
_SENDER: Final[Mapping[type[Struct], attrgetter[int]]] = {
    **dict.fromkeys(_ORDERS, attrgetter("controller_id")),
    w.ControlledShutdownRequest: attrgetter("broker_id"),
    t.AlterPartitionRequest: attrgetter("broker_id"),
}


def handle(call: Call, body: Any, services: Services) -> None:
    sender, number = _SENDER[type(body)](body), 0
    if isinstance(body, _ORDERS):
        if body.receiver_id not in (_ANYBODY, services.node.node_id):
            call.refuse(f"it is for broker {body.receiver_id}")
            return
        number = body.number
    if sender < 0:
        call.refuse("it is from no broker")
        return
    services.ask(call, request_of(body), to_wire, source=sender, number=number)
