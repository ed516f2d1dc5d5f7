"""Quotas of clients: DescribeClientQuotas, AlterClientQuotas (KIP-546). Any broker answers, from the store.

An unknown quota, an invalid value and an unknown entity are INVALID_REQUEST (42) and change nothing. A change
takes effect on this broker at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from logstore.broker.config_nodes import change_entity
from logstore.broker.dispatch import Call, Services
from logstore.broker.errors import RequestRefused
from logstore.broker.security.connection_rates import plain_address
from logstore.broker.security.quotas import CLIENT, ENTITIES, IP, USER, Entity, Kind, path_of, text_of
from logstore.broker.store_reads import in_groups
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.loggers import logger_of
from logstore.replication.metastore import layout

_EXACT, _DEFAULT, _ANY = range(3)
_ORDER: Final = (USER, CLIENT, IP)
_Altered = t.AlterClientQuotasResponseEntryData

_log = logger_of(__name__)


async def describe(
    call: Call, body: t.DescribeClientQuotasRequest, services: Services
) -> t.DescribeClientQuotasResponse:
    """List quotas by the parts of their entities; `strict` leaves out entities with other parts."""
    try:
        wanted = _wanted(body.components)
        await services.quotas.refresh()
    except RequestRefused as error:
        return t.DescribeClientQuotasResponse(
            error_code=error.error, error_message=error.args[0], entries=None
        )
    except EngineError as error:
        return t.DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    return t.DescribeClientQuotasResponse(
        entries=[
            t.DescribeClientQuotasResponseEntryData(
                entity=[
                    t.DescribeClientQuotasResponseEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                values=[
                    t.DescribeClientQuotasResponseValueData(key=kind, value=value)
                    for kind, value in found.items()
                ],
            )
            for entity, found in services.limiter.quotas.values.items()
            if _is_wanted(dict(entity), wanted, is_strict=body.strict)
        ]
    )


def _wanted(
    components: Sequence[t.DescribeClientQuotasRequestComponentData],
) -> dict[str, t.DescribeClientQuotasRequestComponentData]:
    found = {each.entity_type: each for each in components}
    for each in components:
        problem = ""
        if each.entity_type not in _ORDER:
            problem = f"{each.entity_type!r} is not an entity type; expected user, client-id or ip"
        elif each.match_type not in (_EXACT, _DEFAULT, _ANY):
            problem = f"match type {each.match_type} is none of 0, 1 and 2"
        elif (each.match_type == _EXACT) != (each.match is not None):
            problem = "an exact match needs a name, and no other has one"
        if problem:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, problem)
        if each.entity_type == IP and each.match is not None:
            each.match = _one_spelling(each.match)
    if IP in found and len(found) > 1:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "an address has no quotas by user or client id")
    if len(found) < len(components):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "an entity type is listed twice")
    return found


def _is_wanted(
    entity: Mapping[str, str | None],
    wanted: Mapping[str, t.DescribeClientQuotasRequestComponentData],
    *,
    is_strict: bool,
) -> bool:
    if not wanted.keys() <= entity.keys() or (is_strict and wanted.keys() != entity.keys()):
        return False
    return all(each.match_type == _ANY or entity[kind] == each.match for kind, each in wanted.items())


async def alter(
    call: Call, body: t.AlterClientQuotasRequest, services: Services
) -> t.AlterClientQuotasResponse:
    """Set and remove quotas, all of one entity together."""
    in_turn: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
    paths = []

    async def changed(each: t.AlterClientQuotasRequestEntryData) -> _Altered:
        told = [
            t.AlterClientQuotasResponseEntityData(entity_type=one.entity_type, entity_name=one.entity_name)
            for one in each.entity
        ]
        try:
            entity = _entity(each.entity)
            changes = _changes(each.ops, entity)
            path = path_of(entity)
            async with in_turn[path]:  # changes of one entity in the order of the request
                await change_entity(
                    services.ask_store, path, partial(_changed, changes), validate_only=body.validate_only
                )
        except RequestRefused as error:
            return _Altered(entity=told, error_code=error.error, error_message=error.args[0])
        except EngineError as error:
            _log.warning("quotas were not changed: %s", error)
            return _Altered(entity=told, error_code=error.code, error_message=str(error))
        if not body.validate_only:
            paths.append(path)
            connection = call.connection
            services.audit(
                "quota changed", by=connection.principal, host=connection.peer, entity=path, changes=changes
            )
        return _Altered(entity=told)

    entries = await in_groups(changed(each) for each in body.entries)
    if paths:
        try:
            await services.quotas.refresh(*paths)
        except EngineError as error:
            _log.error("changed quotas are in the store but not in effect here: %s", error)
    return t.AlterClientQuotasResponse(entries=entries)


def _entity(parts: Sequence[Any]) -> Entity:
    """Return the entity of these parts. Raises `RequestRefused`."""
    found = {each.entity_type: each.entity_name for each in parts}
    entity = tuple((kind, found[kind]) for kind in _ORDER if kind in found)
    if (
        len(found) < len(parts)
        or len(entity) < len(found)
        or tuple(map(itemgetter(0), entity)) not in ENTITIES
    ):
        message = "an entity is a user, a client-id, or both, or an ip"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, message)
    if "" in found.values():
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "the name of an entity is empty")
    if not layout.is_short_enough(*(name for name in found.values() if name is not None)):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "the name of an entity is too long")
    if (address := found.get(IP)) is not None:
        return ((IP, _one_spelling(address)),)
    return entity


def _one_spelling(address: str) -> str:
    """Return an address as sockets spell it: two spellings are one quota. Raises `RequestRefused`."""
    try:
        return plain_address(address)
    except ValueError as error:
        message = f"{error}; names of hosts are not resolved"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, message) from error


def _changes(
    operations: Sequence[t.AlterClientQuotasRequestOpData], entity: Entity
) -> dict[Kind, str | None]:
    """Return new values by kind, None to remove one. Raises `RequestRefused`."""
    found: dict[Kind, str | None] = {}
    for each in operations:
        known = [kind for kind in Kind if kind.is_for(entity)]
        if each.key not in known:
            message = f"{each.key!r} is not a quota of such an entity; expected one of {', '.join(known)}"
            raise RequestRefused(ErrorCode.INVALID_REQUEST, message)
        kind = Kind(each.key)
        if kind in found:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{kind} is changed twice")
        try:
            found[kind] = None if each.remove else text_of(kind, each.value)
        except ValueError as error:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, str(error)) from error
    return found


def _changed(changes: Mapping[Kind, str | None], now: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in now.items() if name not in changes}
    return kept | {kind: value for kind, value in changes.items() if value is not None}
