"""SCRAM credentials of users: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554).

An upsertion carries the salted password, so the broker never sees the password. All changes of one user are
written together, or none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from logstore.broker.config_nodes import change_entity
from logstore.broker.dispatch import Call, Services
from logstore.broker.errors import RequestRefused
from logstore.broker.security import scram, users
from logstore.broker.security.scram import Credential
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.loggers import logger_of
from logstore.replication.metastore import layout

MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By Kafka's numbers."""
_NUMBERS: Final = {name: number for number, name in MECHANISMS.items()}
_Described = t.DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult
_Altered = t.AlterUserScramCredentialsResponseAlterUserScramCredentialsResult

_log = logger_of(__name__)


async def describe(
    call: Call, body: t.DescribeUserScramCredentialsRequest, services: Services
) -> t.DescribeUserScramCredentialsResponse:
    """List mechanisms and iterations of users, never keys. An empty list means all that have credentials."""
    names = Counter(each.name for each in body.users or ())
    try:
        found = await users.all_users(services.ask_store)
    except EngineError as error:
        return t.DescribeUserScramCredentialsResponse(error_code=error.code, error_message=str(error))
    return t.DescribeUserScramCredentialsResponse(
        results=[
            _described(name, found.get(name, {}), is_repeated=names[name] > 1) for name in names or found
        ]
    )


def _described(name: str, found: Mapping[str, Credential], *, is_repeated: bool) -> _Described:
    if is_repeated:
        message = "the user is named more than once"
        return _Described(user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message)
    if not found:
        message = "the user has no SCRAM credential"
        return _Described(user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message)
    info = t.DescribeUserScramCredentialsResponseCredentialInfo
    infos = [info(mechanism=_NUMBERS[each], iterations=found[each].iterations) for each in found]
    return _Described(user=name, credential_infos=infos)


async def alter(
    call: Call, body: t.AlterUserScramCredentialsRequest, services: Services
) -> t.AlterUserScramCredentialsResponse:
    results = []
    by_user: dict[str, list[Any]] = {}
    every: list[Any] = [*body.deletions, *body.upsertions]
    for each in every:
        by_user.setdefault(each.name, []).append(each)
    for name, wanted in by_user.items():
        try:
            changes = _changes(name, wanted)
            await change_entity(services.ask_store, users.entity_path(name), partial(_changed, changes))
        except RequestRefused as error:
            results.append(_Altered(user=name, error_code=error.error, error_message=error.args[0]))
        except EngineError as error:
            _log.warning("credentials of %r were not changed: %s", name, error)
            results.append(_Altered(user=name, error_code=error.code, error_message=str(error)))
        else:
            results.append(_Altered(user=name))
            services.audit(
                "user changed",
                by=call.connection.principal,
                host=call.connection.peer,
                user=name,
                removed=[each for each, new in changes.items() if new is None],
                set=[each for each, new in changes.items() if new is not None],
            )
    return t.AlterUserScramCredentialsResponse(results=results)


def _changes(name: str, wanted: Iterable[Any]) -> dict[str, Credential | None]:
    """Return what changes of a user, by mechanism; `wanted` are deletions and upsertions.

    Raises `RequestRefused`.
    """
    if not name:
        raise RequestRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if not layout.is_short_enough(name):
        raise RequestRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the name of the user is too long")
    changes: dict[str, Credential | None] = {}
    for each in wanted:
        mechanism = MECHANISMS.get(each.mechanism)
        if mechanism is None:
            raise RequestRefused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if mechanism in changes:
            raise RequestRefused(ErrorCode.DUPLICATE_RESOURCE, "the same credential is changed twice")
        changes[mechanism] = None
        if isinstance(each, t.AlterUserScramCredentialsRequestScramCredentialUpsertion):
            changes[mechanism] = _upserted(mechanism, each)
    return changes


def _upserted(
    mechanism: str, wanted: t.AlterUserScramCredentialsRequestScramCredentialUpsertion
) -> Credential:
    salted, salt = bytes(wanted.salted_password), bytes(wanted.salt)
    if wanted.iterations < scram.LEAST_ITERATIONS:
        raise RequestRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > scram.MOST_ITERATIONS:
        raise RequestRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not salted or not salt:
        raise RequestRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the password or its salt is empty")
    return scram.credential(mechanism, salted, salt, wanted.iterations)


def _changed(changes: Mapping[str, Credential | None], now: Mapping[str, str]) -> dict[str, str]:
    for mechanism, wanted in changes.items():
        if wanted is None and mechanism not in now:
            message = "Attempt to delete a user credential that does not exist"
            raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, message)
    return users.changed(now, changes)
