"""DescribeAcls, CreateAcls, DeleteAcls: there is no authorizer, so 54 each time."""

from __future__ import annotations

from typing import Final

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode

_WHY: Final = "no authorizer is set here: everybody may do everything"


def describe(call: Call, body: t.DescribeAclsRequest, services: Services) -> t.DescribeAclsResponse:
    return t.DescribeAclsResponse(
        throttle_time_ms=call.throttle_ms, error_code=ErrorCode.SECURITY_DISABLED, error_message=_WHY
    )


def create(call: Call, body: t.CreateAclsRequest, services: Services) -> t.CreateAclsResponse:
    refused = t.CreateAclsResponseAclCreationResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_WHY
    )
    return t.CreateAclsResponse(throttle_time_ms=call.throttle_ms, results=[refused] * len(body.creations))


def delete(call: Call, body: t.DeleteAclsRequest, services: Services) -> t.DeleteAclsResponse:
    refused = t.DeleteAclsResponseDeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_WHY
    )
    return t.DeleteAclsResponse(
        throttle_time_ms=call.throttle_ms, filter_results=[refused] * len(body.filters)
    )
