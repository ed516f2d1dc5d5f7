"""A client's session: ApiVersions, SASL, ACLs, producer ids.

ApiVersions is the first request of most connections. The broker has no SASL mechanism and no authorizer: SASL
is refused, and requests about ACLs are answered SECURITY_DISABLED (54).

InitProducerId gives a number to an idempotent producer, with epoch 0. A producer that asks for the next epoch
of its id (KIP-360) gets a new id instead, which serves as well: its sequences start at 0 either way.
Transactional ids are answered INVALID_REQUEST (42): COORDINATOR_NOT_AVAILABLE (15) would make clients retry
for ever.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.wire import apis
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?", re.ASCII)
_KNOWS_SOFTWARE: Final = 3
_NO_ACLS: Final[dict[str, Any]] = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "this broker has no authorizer: every client has full access",
}

_log = logging.getLogger(__name__)


def api_versions(call: Call, body: t.ApiVersionsRequest, services: Services) -> t.ApiVersionsResponse:
    """List the versions served. The client's software is logged; an invalid name is INVALID_REQUEST (42)."""
    if call.version >= _KNOWS_SOFTWARE:
        software = body.client_software_name, body.client_software_version
        if not all(map(_SOFTWARE.fullmatch, software)):
            return apis.api_versions(ErrorCode.INVALID_REQUEST)
        call.connection.software = " ".join(software)
        _log.info("%s is %s, client id %r", call.connection.peer, call.connection.software, call.client_id)
    return apis.api_versions()


def sasl_handshake(call: Call, body: t.SaslHandshakeRequest, services: Services) -> t.SaslHandshakeResponse:
    return t.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)


def sasl_authenticate(
    call: Call, body: t.SaslAuthenticateRequest, services: Services
) -> t.SaslAuthenticateResponse:
    return t.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="no SASL mechanism is enabled; connect without one",
    )


def describe_acls(call: Call, body: t.DescribeAclsRequest, services: Services) -> t.DescribeAclsResponse:
    return t.DescribeAclsResponse(**_NO_ACLS)


def create_acls(call: Call, body: t.CreateAclsRequest, services: Services) -> t.CreateAclsResponse:
    refused = t.CreateAclsResponseAclCreationResult(**_NO_ACLS)
    return t.CreateAclsResponse(results=[refused] * len(body.creations))


def delete_acls(call: Call, body: t.DeleteAclsRequest, services: Services) -> t.DeleteAclsResponse:
    refused = t.DeleteAclsResponseDeleteAclsFilterResult(**_NO_ACLS)
    return t.DeleteAclsResponse(filter_results=[refused] * len(body.filters))


def init_producer_id(
    call: Call, body: t.InitProducerIdRequest, services: Services
) -> t.InitProducerIdResponse | None:
    """Give out a producer id; an id without an epoch, or the reverse, is INVALID_REQUEST (42)."""
    if body.transactional_id is not None or (body.producer_id < 0) != (body.producer_epoch < 0):
        return _no_producer_id(ErrorCode.INVALID_REQUEST)
    services.begin(call, _take_producer_id(call, services))
    return None


async def _take_producer_id(call: Call, services: Services) -> t.InitProducerIdResponse:
    try:
        producer_id = await services.producer_ids.take()
    except EngineError as error:
        _log.warning("no producer id for %r: %s", call, error)
        return _no_producer_id(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return t.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _no_producer_id(error: ErrorCode) -> t.InitProducerIdResponse:
    return t.InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
