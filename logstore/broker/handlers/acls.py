"""DescribeAcls, CreateAcls, DeleteAcls. Without an authorizer: SECURITY_DISABLED (54)."""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import Any, Final, TypeVar

from logstore.broker.dispatch import Call, Services
from logstore.broker.errors import RequestRefused
from logstore.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from logstore.broker.security.audit import Audit
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.loggers import logger_of
from logstore.replication.metastore import layout

E = TypeVar("E", bound=IntEnum)

_ANY: Final = 1
_NO_ACLS: Final[dict[str, Any]] = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "this broker has no authorizer: every client has full access",
}
_Created = t.CreateAclsResponseAclCreationResult
_Deleted = t.DeleteAclsResponseDeleteAclsFilterResult

_log = logger_of(__name__)


def describe(call: Call, body: t.DescribeAclsRequest, services: Services) -> t.DescribeAclsResponse:
    """List the rules that a filter matches, by resource."""
    authorizer = services.authorizer
    if authorizer is None:
        return t.DescribeAclsResponse(**_NO_ACLS)
    try:
        wanted = _filter(body)
    except RequestRefused as error:
        return t.DescribeAclsResponse(error_code=error.error, error_message=error.args[0])
    by_resource: defaultdict[tuple[Resource, str, Pattern], list[Acl]] = defaultdict(list)
    for acl in sorted(filter(wanted.matches, authorizer.rules.acls)):
        by_resource[acl.resource, acl.name, acl.pattern].append(acl)
    return t.DescribeAclsResponse(
        resources=[
            t.DescribeAclsResponseDescribeAclsResource(
                resource_type=resource,
                resource_name=name,
                pattern_type=pattern,
                acls=[
                    t.DescribeAclsResponseAclDescription(
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permission_type=each.permission,
                    )
                    for each in acls
                ],
            )
            for (resource, name, pattern), acls in by_resource.items()
        ]
    )


async def create(call: Call, body: t.CreateAclsRequest, services: Services) -> t.CreateAclsResponse:
    if services.authorizer is None:
        return t.CreateAclsResponse(results=[_Created(**_NO_ACLS)] * len(body.creations))
    results, wanted = [_Created() for _ in body.creations], []
    for result, each in zip(results, body.creations, strict=True):
        try:
            wanted.append((result, _acl(each)))
        except RequestRefused as error:
            result.error_code, result.error_message = error.error, error.args[0]
    try:
        await services.authorizer.change(add=[acl for _, acl in wanted])
    except EngineError as error:
        _log.warning("ACLs were not created: %s", error)
        for result, _ in wanted:
            result.error_code, result.error_message = error.code, str(error)
    else:
        for _, acl in wanted:
            _audit_change(services.audit, "acl created", call, acl)
    return t.CreateAclsResponse(results=results)


async def delete(call: Call, body: t.DeleteAclsRequest, services: Services) -> t.DeleteAclsResponse:
    authorizer = services.authorizer
    if authorizer is None:
        return t.DeleteAclsResponse(filter_results=[_Deleted(**_NO_ACLS)] * len(body.filters))
    results, gone = [_Deleted() for _ in body.filters], set[Acl]()
    for result, each in zip(results, body.filters, strict=True):
        try:
            wanted = _filter(each)
        except RequestRefused as error:
            result.error_code, result.error_message = error.error, error.args[0]
            continue
        # A rule that several filters match is told under the first.
        found = sorted(acl for acl in authorizer.rules.acls - gone if wanted.matches(acl))
        gone.update(found)
        result.matching_acls = [_told(acl) for acl in found]
    try:
        await authorizer.change(remove=gone)
    except EngineError as error:
        _log.warning("ACLs were not deleted: %s", error)
        for result in results:
            result.error_code, result.error_message, result.matching_acls = error.code, str(error), []
    else:
        for acl in sorted(gone):
            _audit_change(services.audit, "acl deleted", call, acl)
    return t.DeleteAclsResponse(filter_results=results)


def _audit_change(audit: Audit, event: str, call: Call, acl: Acl) -> None:
    audit(
        event,
        by=call.connection.principal,
        host=call.connection.peer,
        resource=f"{acl.resource.name}:{acl.pattern.name}:{acl.name}",
        principal=acl.principal,
        from_host=acl.host,
        operation=acl.operation.name,
        permission=acl.permission.name,
    )


def _told(acl: Acl) -> t.DeleteAclsResponseDeleteAclsMatchingAcl:
    return t.DeleteAclsResponseDeleteAclsMatchingAcl(
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _acl(wanted: t.CreateAclsRequestAclCreation) -> Acl:
    """Return the rule of a creation. Raises `RequestRefused`: INVALID_REQUEST (42)."""
    pattern = _member(Pattern, wanted.resource_pattern_type)
    resource = _member(Resource, wanted.resource_type)
    name = wanted.resource_name
    problem = ""
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        problem = "the pattern type must be LITERAL or PREFIXED"
    elif not name or "/" in name:
        problem = "the resource name must not be empty or have a slash"
    elif name in (".", "..") or not name.isprintable():
        problem = "the resource name must not be '.' or '..', or have control characters"
    elif not layout.is_short_enough(name):
        problem = "the resource name is too long"
    elif resource is Resource.CLUSTER and name != CLUSTER_NAME:
        problem = f"the only cluster is {CLUSTER_NAME}"
    elif ":" not in wanted.principal or not wanted.host:
        problem = "the principal must be TYPE:NAME, and the host must not be empty"
    if problem:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, problem)
    operation, permission = _member(Operation, wanted.operation), _member(Permission, wanted.permission_type)
    return Acl(resource, pattern, name, wanted.principal, wanted.host, operation, permission)


def _filter(wanted: t.DescribeAclsRequest | t.DeleteAclsRequestDeleteAclsFilter) -> AclFilter:
    """Return a filter. Raises `RequestRefused`: INVALID_REQUEST (42)."""
    return AclFilter(
        None if wanted.resource_type_filter == _ANY else _member(Resource, wanted.resource_type_filter),
        _member(Pattern, wanted.pattern_type_filter),
        wanted.resource_name_filter,
        wanted.principal_filter,
        wanted.host_filter,
        None if wanted.operation == _ANY else _member(Operation, wanted.operation),
        None if wanted.permission_type == _ANY else _member(Permission, wanted.permission_type),
    )


def _member(kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{number} is no {kind.__name__.lower()}") from None
