"""A client's session: ApiVersions, SASL, producer ids.

ApiVersions is the first request of most connections. Logins are in `security/login.py`.

InitProducerId gives a number to an idempotent producer, with epoch 0. A producer that asks for the next epoch
of its id (KIP-360) gets a new id instead, which serves as well: its sequences start at 0 either way.
Transactional ids are answered INVALID_REQUEST (42): COORDINATOR_NOT_AVAILABLE (15) would make clients retry
for ever.
"""

from __future__ import annotations

import re
from typing import Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.wire import apis
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.loggers import logger_of

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?", re.ASCII)
_KNOWS_SOFTWARE: Final = 3
_MOST_LOGGED: Final = 100
"""Characters of a client id."""

_log = logger_of(__name__)


def api_versions(call: Call, body: t.ApiVersionsRequest, services: Services) -> t.ApiVersionsResponse:
    """List the versions served. An invalid name of the client's software is INVALID_REQUEST (42).

    The software is logged once for a connection: a client may ask again and again, before its login, too.
    """
    if call.version >= _KNOWS_SOFTWARE:
        software = body.client_software_name, body.client_software_version
        if not all(map(_SOFTWARE.fullmatch, software)):
            return apis.api_versions(ErrorCode.INVALID_REQUEST)
        if not call.connection.software:
            told = (call.client_id or "")[:_MOST_LOGGED]
            _log.info("%s is %s, client id %r", call.connection.peer, " ".join(software), told)
        call.connection.software = " ".join(software)
    if call.connection.login is not None:
        call.connection.login.versions_told()
    door = call.connection.door
    return apis.api_versions(hidden=door.hidden if door is not None else ())


def sasl_handshake(
    call: Call, body: t.SaslHandshakeRequest, services: Services
) -> t.SaslHandshakeResponse | None:
    """Begin a login. On a listener without SASL: ILLEGAL_SASL_STATE (34)."""
    if call.connection.login is None:
        return t.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return call.connection.login.handshake(call, body.mechanism)


def sasl_authenticate(
    call: Call, body: t.SaslAuthenticateRequest, services: Services
) -> t.SaslAuthenticateResponse | None:
    """Take a token of a login. On a listener without SASL: ILLEGAL_SASL_STATE (34)."""
    if call.connection.login is None:
        return t.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="this listener has no SASL; connect without it",
        )
    services.begin(call, call.connection.login.authenticate(call, bytes(body.auth_bytes)))
    return None


async def init_producer_id(
    call: Call, body: t.InitProducerIdRequest, services: Services
) -> t.InitProducerIdResponse:
    """Give out a producer id; an id without an epoch, or the reverse, is INVALID_REQUEST (42)."""
    if body.transactional_id is not None or (body.producer_id < 0) != (body.producer_epoch < 0):
        return _no_producer_id(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = await services.producer_ids.take()
    except EngineError as error:
        _log.warning("no producer id for %r: %s", call, error)
        return _no_producer_id(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return t.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _no_producer_id(error: ErrorCode) -> t.InitProducerIdResponse:
    return t.InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
