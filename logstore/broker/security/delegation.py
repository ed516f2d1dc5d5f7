"""Delegation tokens (KIP-48): their form, and the rules over them. Pure.

    /delegation_token/tokens/<id>   {"version":3,"owner":"User%3Aann","tokenRequester":"User%3Aann",
                                     "renewers":["User%3Abob"],"issueTimestamp":…,"maxTimestamp":…,
                                     "expiryTimestamp":…,"tokenId":"<id>"}

A token is an id and a password, the HMAC of the id with a secret that all brokers have. The password is not
stored. Whoever has both may log in as the owner, by SCRAM, until the token expires.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from logstore.broker.errors import RequestRefused
from logstore.broker.security.principals import ANONYMOUS
from logstore.broker.security.secret import Secret
from logstore.broker.typed_settings import values_for
from logstore.broker.wire import types as t
from logstore.config import kafka_name
from logstore.disk.errors import ErrorCode
from logstore.errors import InvalidConfig
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore.broker.dispatch import Caller

SETTINGS: Final = "delegation.token."
"""How the settings of tokens begin."""
USER: Final = "User:"
_KEY, _OLD_KEY = f"{SETTINGS}secret.key", f"{SETTINGS}master.key"
_VERSION: Final = 3
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Settings of delegation tokens."""

    delegation_token_secret_key: Secret = field(default_factory=Secret)
    """The secret of delegation tokens, the same on all brokers; without it there are none. Its older name
    is `delegation.token.master.key`."""
    delegation_token_max_lifetime_ms: int = 7 * _DAY_MS
    """Time after which a delegation token cannot be renewed any more."""
    delegation_token_expiry_time_ms: int = _DAY_MS
    """Time after which a delegation token expires, if it is not renewed."""
    delegation_token_expiry_check_interval_ms: int = _DAY_MS // 24
    """How often expired delegation tokens are removed."""


def token_config(own: Mapping[str, str]) -> TokenConfig:
    """Read the settings of tokens. Raises `InvalidConfig`."""
    given = dict(own)
    if (old := given.pop(_OLD_KEY, None)) is not None:
        given.setdefault(_KEY, old)
    found = values_for(TokenConfig, given)
    if unknown := sorted(name for name in given if name.startswith(SETTINGS) and name not in found):
        raise InvalidConfig(f"{unknown[0]} is not a setting of delegation tokens")
    config = TokenConfig(**dict(found.values()))
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, int) and value < 1:
            raise InvalidConfig(f"{kafka_name(each.name)} is {value}; the minimum is 1")
    return config


class Token(NamedTuple):
    """A token without its password. Times are epoch milliseconds; principals are `User:name`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int
    """It cannot be renewed beyond."""

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms < now_ms

    def is_of(self, principal: str) -> bool:
        """Return whether a principal may see it without a permission."""
        return principal in (self.owner, self.requester, *self.renewers)


def hmac_of(secret: Secret, token_id: str) -> bytes:
    """Return the password of a token: 64 bytes, which clients send as base64."""
    return hmac.digest(secret.reveal().encode(), token_id.encode(), "sha512")


def made(
    token_id: str,
    owner: str,
    requester: str,
    renewers: tuple[str, ...],
    life_ms: int,
    now_ms: int,
    config: TokenConfig,
) -> Token:
    """Return a new token that lives at most `life_ms`; with 0 or less, as long as the settings say."""
    longest_ms = config.delegation_token_max_lifetime_ms
    ends_ms = now_ms + (min(life_ms, longest_ms) if life_ms > 0 else longest_ms)
    expires_ms = min(ends_ms, now_ms + config.delegation_token_expiry_time_ms)
    return Token(token_id, owner, requester, renewers, now_ms, expires_ms, ends_ms)


def changed(token: Token, principal: str, period_ms: int, now_ms: int) -> Token:
    """Return the token after its owner or a renewer has said when it expires. Raises `RequestRefused`."""
    check_changer(token, principal)
    if token.is_expired(now_ms):
        raise RequestRefused(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.token_id} has expired")
    return token._replace(expires_ms=min(token.ends_ms, now_ms + period_ms))


def check_changer(token: Token, principal: str) -> None:
    """Raise `RequestRefused` for a principal that is not the owner or a renewer."""
    if principal not in (token.owner, *token.renewers):
        raise RequestRefused(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{principal} is neither the owner nor a renewer of token {token.token_id}",
        )


def may_ask(caller: Caller) -> bool:
    """Return whether a connection may send requests about tokens.

    Anonymous clients may not, nor clients with a token: it would renew itself for ever.
    """
    door, login = caller.door, caller.login
    is_plain = door is None or (door.tls is None and door.sasl is None)
    return not is_plain and caller.principal != ANONYMOUS and not (login is not None and login.token_id)


def principal_text(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def owner_in(body: t.CreateDelegationTokenRequest, requester: str) -> str:
    """Return the owner of the new token: by default the requester."""
    if not body.owner_principal_name:
        return requester
    return principal_text(body.owner_principal_type or "", body.owner_principal_name)


def not_created(code: ErrorCode, owner: str, requester: str) -> t.CreateDelegationTokenResponse:
    return t.CreateDelegationTokenResponse(error_code=code, **named(owner, requester))


def named(owner: str, requester: str) -> dict[str, Any]:
    """Return the fields of an answer that say whose a token is."""
    (kind, _, name), (its_kind, _, its_name) = owner.partition(":"), requester.partition(":")
    return {
        "principal_type": kind,
        "principal_name": name,
        "token_requester_principal_type": its_kind,
        "token_requester_principal_name": its_name,
    }


def encode(token: Token) -> bytes:
    """Encode a token as Kafka keeps it."""
    facts = {
        "version": _VERSION,
        "owner": layout.sanitized(token.owner),
        "tokenRequester": layout.sanitized(token.requester),
        "renewers": [layout.sanitized(each) for each in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.ends_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }
    return json.dumps(facts, separators=(",", ":")).encode()


def parse(data: bytes) -> Token:
    """Parse a token. Before version 3 its owner had asked for it. Raises `CorruptMetadata`."""
    try:
        found: Any = json.loads(data.decode())
        if not 0 < found["version"] <= _VERSION:
            raise ValueError(found["version"])
        owner = unquote(found["owner"])
        return Token(
            str(found["tokenId"]),
            owner,
            unquote(found["tokenRequester"]) if found["version"] >= _VERSION else owner,
            tuple(unquote(each) for each in found["renewers"]),
            int(found["issueTimestamp"]),
            int(found["expiryTimestamp"]),
            int(found["maxTimestamp"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMetadata("a delegation token in the metadata store is malformed") from error
