"""Messages between brokers: the controller's orders, and proposals to it.

Each names its sender. An order of the controller also names its receiver: another broker may now listen at
that address.
"""

from __future__ import annotations

from typing import Any, Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.node_messages import request_of, to_wire
from logstore.broker.wire import interbroker as w

_ANY_BROKER: Final = -1
_ORDERS: Final = (w.LeaderAndIsrRequest, w.StopReplicaRequest, w.UpdateMetadataRequest)


def handle(call: Call, body: Any, services: Services) -> None:
    is_order = isinstance(body, _ORDERS)
    sender: int = body.controller_id if is_order else body.broker_id
    if is_order and body.receiver_id not in (_ANY_BROKER, services.node.node_id):
        call.refuse(f"the request is for broker {body.receiver_id}")
    elif sender < 0:
        call.refuse("the request names no sender")
    else:
        number = body.number if is_order else 0
        services.runtime.ask_for(call, request_of(body), to_wire, source=sender, number=number)
