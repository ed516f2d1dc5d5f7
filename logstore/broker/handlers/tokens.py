"""Delegation tokens: CreateDelegationToken, Renew…, Expire…, DescribeDelegationToken (KIP-48, KIP-373)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from logstore.broker.dispatch import Call, Services
from logstore.broker.errors import RequestRefused
from logstore.broker.security.delegation import (
    USER,
    Token,
    may_ask,
    named,
    not_created,
    owner_in,
    principal_text,
)
from logstore.broker.security.delegation_store import DelegationTokens
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.loggers import logger_of

A = TypeVar("A", t.RenewDelegationTokenResponse, t.ExpireDelegationTokenResponse)

_Described = t.DescribeDelegationTokenResponseDescribedDelegationToken
_Renewer = t.DescribeDelegationTokenResponseDescribedDelegationTokenRenewer
_NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

_log = logger_of(__name__)


async def create(
    call: Call, body: t.CreateDelegationTokenRequest, services: Services
) -> t.CreateDelegationTokenResponse:
    """Make a token for the principal that asks, or for another owner, which the permission has allowed."""
    requester = call.connection.principal
    owner = owner_in(body, requester)
    renewers = tuple(principal_text(each.principal_type, each.principal_name) for each in body.renewers)
    tokens = services.tokens
    if tokens is None or not may_ask(call.connection):
        return not_created(_NOT_ALLOWED, owner, requester)
    # Kafka takes any type of owner, whose token then logs in as the user of that name.
    if not all(each.startswith(USER) for each in (owner, *renewers)):
        return not_created(ErrorCode.INVALID_PRINCIPAL_TYPE, owner, requester)
    try:
        token = await tokens.create(owner, requester, renewers, body.max_lifetime_ms)
    except EngineError as error:
        return not_created(_code_of(error, "made"), owner, requester)
    _audit(call, services, "token created", token)
    return t.CreateDelegationTokenResponse(
        **named(owner, requester),
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.ends_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
    )


async def renew(
    call: Call, body: t.RenewDelegationTokenRequest, services: Services
) -> t.RenewDelegationTokenResponse:
    """Say when a token expires: its owner or a renewer may."""

    def change(tokens: DelegationTokens, principal: str) -> Awaitable[Token]:
        return tokens.renew(principal, bytes(body.hmac), body.renew_period_ms)

    return await _change(call, services, "token renewed", change, t.RenewDelegationTokenResponse)


async def expire(
    call: Call, body: t.ExpireDelegationTokenRequest, services: Services
) -> t.ExpireDelegationTokenResponse:
    """As `renew`; with a period below 0 the token is removed now."""
    event = "token removed" if body.expiry_time_period_ms < 0 else "token renewed"

    def change(tokens: DelegationTokens, principal: str) -> Awaitable[Token]:
        return tokens.expire(principal, bytes(body.hmac), body.expiry_time_period_ms)

    return await _change(call, services, event, change, t.ExpireDelegationTokenResponse)


async def describe(
    call: Call, body: t.DescribeDelegationTokenRequest, services: Services
) -> t.DescribeDelegationTokenResponse:
    """List tokens with their HMACs: those of these owners or renewers, or all; the permissions leave out."""
    tokens = services.tokens
    if tokens is None or not may_ask(call.connection):
        return t.DescribeDelegationTokenResponse(error_code=_NOT_ALLOWED)
    owners = None
    if body.owners is not None:
        owners = {principal_text(each.principal_type, each.principal_name) for each in body.owners}
    try:
        tokens.check_on()
        found = [] if owners == set() else await tokens.all()
    except EngineError as error:
        return t.DescribeDelegationTokenResponse(error_code=_code_of(error, "read"))
    return t.DescribeDelegationTokenResponse(
        tokens=[
            _described(each, tokens.hmac_of(each.token_id))
            for each in found
            if owners is None or any(map(each.is_of, owners))
        ]
    )


def _described(token: Token, password: bytes) -> _Described:
    renewers = (each.partition(":") for each in token.renewers)
    return _Described(
        **named(token.owner, token.requester),
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.token_id,
        hmac=password,
        renewers=[_Renewer(principal_type=kind, principal_name=name) for kind, _, name in renewers],
    )


async def _change(
    call: Call,
    services: Services,
    event: str,
    change: Callable[[DelegationTokens, str], Awaitable[Token]],
    kind: type[A],
) -> A:
    """Change a token as the principal that asks, audit it, and answer when it expires."""
    tokens = services.tokens
    if tokens is None or not may_ask(call.connection):
        return kind(error_code=_NOT_ALLOWED)
    try:
        token = await change(tokens, call.connection.principal)
    except EngineError as error:
        return kind(error_code=_code_of(error, "changed"))
    _audit(call, services, event, token)
    return kind(expiry_timestamp_ms=token.expires_ms)


def _code_of(error: EngineError, what: str) -> ErrorCode:
    if isinstance(error, RequestRefused):
        return error.error
    _log.warning("a delegation token was not %s: %s", what, error)
    return error.code


def _audit(call: Call, services: Services, event: str, token: Token) -> None:
    services.audit(
        event,
        by=call.connection.principal,
        host=call.connection.peer,
        token=token.token_id,
        owner=token.owner,
        renewers=token.renewers,
        expires_ms=token.expires_ms,
    )
