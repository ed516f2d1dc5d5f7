"""ApiVersions: what a client may ask. The first request of every connection."""

from __future__ import annotations

import logging
import re

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import api_versions
from logstore.disk.errors import ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?", re.ASCII)
_KNOWS_SOFTWARE = 3

_log = logging.getLogger(__name__)


def handle(call: Call, body: t.ApiVersionsRequest, services: Services) -> t.ApiVersionsResponse:
    """The table of APIs that have a handler. Names of software are logged, bad ones refused (42)."""
    if call.version >= _KNOWS_SOFTWARE:
        told = body.client_software_name, body.client_software_version
        if not all(map(_SOFTWARE.fullmatch, told)):
            return versions_served(services, ErrorCode.INVALID_REQUEST)
        call.connection.software = " ".join(told)
        _log.info("%s is %s, client id %r", call.connection.peer, call.connection.software, call.client_id)
    return versions_served(services)


def versions_served(services: Services, error: ErrorCode = ErrorCode.NONE) -> t.ApiVersionsResponse:
    """The answer; with error 35 it is for whoever asked in a version that is not known here."""
    response = api_versions(error)
    response.api_keys = [each for each in response.api_keys if each.api_key in services.served]
    return response
