"""InitProducerId: a number for an idempotent producer, with epoch 0.

A producer that has one and wants the next epoch (KIP-360) gets a new number instead, which does as well: its
sequences begin anew either way. Transactional ids are not served: 15 would make clients try for ever, so
they are told 42.
"""

from __future__ import annotations

import logging

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode

_log = logging.getLogger(__name__)


def handle(call: Call, body: t.InitProducerIdRequest, services: Services) -> t.InitProducerIdResponse | None:
    if body.transactional_id is not None:
        return _refused(call, ErrorCode.INVALID_REQUEST)
    if (body.producer_id < 0) != (body.producer_epoch < 0):
        return _refused(call, ErrorCode.INVALID_REQUEST)
    services.begin(call, _give(call, services))
    return None


async def _give(call: Call, services: Services) -> t.InitProducerIdResponse:
    try:
        producer_id = await services.producer_ids.take()
    except EngineError as error:
        _log.warning("no producer id for %r: %s", call, error)
        return _refused(call, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return t.InitProducerIdResponse(
        throttle_time_ms=call.throttle_ms, producer_id=producer_id, producer_epoch=0
    )


def _refused(call: Call, error: ErrorCode) -> t.InitProducerIdResponse:
    return t.InitProducerIdResponse(
        throttle_time_ms=call.throttle_ms, error_code=error, producer_id=-1, producer_epoch=-1
    )
