"""OAUTHBEARER: logins by signed tokens (RFC 7628, KIP-255, 768).

    client  n,[a=AUTHZID],^A [key=value ^A]… auth=Bearer TOKEN ^A [key=value ^A]… ^A        (^A is byte 1)
    server  empty; or {"status":"invalid_token"}, to which the client answers ^A and is refused

A token is a JWT in three parts. Its signature is checked first, by an algorithm with a public key, with the
key that its header names among those of the identity provider (JWKS). Tokens without a signature, and those
signed with a secret, are never accepted. Then come the claims: times, issuer, audience, the principal's name.

Keys are read at the start, again after `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and when a token names a
key that is not known, at most every ten seconds. If they cannot be read again, the former ones stay, and the
log has an error.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.broker.security import web
from logstore.broker.security.config import OAuthConfig
from logstore.broker.security.sasl import LONGEST_NAME, Exchange, Step
from logstore.broker.security.scram import LoginFailed
from logstore.broker.threads import unwaited
from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.extras import require
from logstore.errors import InvalidConfig
from logstore.loggers import logger_of

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS: Final = (
    *(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)),
    "EdDSA",
    "Ed25519",
)
"""Signatures by a private key, which its public key checks."""
MOST_BYTES: Final = 16 << 10
"""Of a token."""
LEAST_LIFETIME_S: Final = 2.0
"""Some clients log in again without a pause if their session ends sooner."""
_LEAST_RSA_BITS: Final = 2048
_UNKNOWN_AGAIN_S: Final = 10.0
START_PATIENCE_S: float = 30.0
"""As long as for a metadata store: systemd gives up what fails ten times in five minutes."""
_PATIENCE_S: Final = 1.0
"""How long a login by a known key waits for keys that are being read again."""
_LONGEST_KID: Final = 1_000
_PAIRS: Final = rb"(?:(?!auth=)[A-Za-z]+=[\x09\x0a\x0d\x20-\x7e]*\x01)*"
_FIRST: Final = re.compile(
    rb"n,(?:a=([^,\x00\x01]*))?,\x01"
    + _PAIRS
    + rb"auth=[Bb][Ee][Aa][Rr][Ee][Rr] +([-_~+/.A-Za-z0-9]+=*)\x01"
    + _PAIRS
    + rb"\x01"
)
_INVALID: Final = b'{"status":"invalid_token"}'

_log = logger_of(__name__)


class KeysUnreadable(EngineError):
    """The keys of the identity provider cannot be read."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class BadToken(Exception):
    """A token is refused; the text says why, for the log."""


class Header(NamedTuple):
    """The algorithm and the key id in the header of a token."""

    algorithm: str
    kid: str


class Claims(NamedTuple):
    """The name of the principal, and the end of the token in epoch seconds."""

    name: str
    expires_s: float


# --- tokens: pure -------------------------------------------------------------------------------


def header_of(token: str) -> Header:
    """Return the header of a token whose signature can be checked. Raises `BadToken`."""
    if len(token) > MOST_BYTES:
        raise BadToken(f"the token has {len(token)} bytes, more than {MOST_BYTES}")
    parts = token.split(".")
    if len(parts) != 3:
        raise BadToken("the token does not have three parts")
    header = _object(parts[0], "header")
    algorithm, kid = header.get("alg"), header.get("kid", "")
    if algorithm not in ALGORITHMS:
        raise BadToken(f"the token's algorithm is {algorithm!r:.40}, which is not a public-key algorithm")
    if "crit" in header:
        raise BadToken("the token has critical extensions")
    if not isinstance(kid, str) or len(kid) > _LONGEST_KID:
        raise BadToken("the token's kid is not a string, or too long")
    return Header(algorithm, kid)


def _object(part: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BadToken(f"the token's {what} is not JSON") from None
    if not isinstance(found, dict):
        raise BadToken(f"the token's {what} is not a JSON object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def claims_of(payload: Mapping[str, Any], config: OAuthConfig, now_s: float) -> Claims:
    """Return what a token with a good signature vouches for now. Raises `BadToken`."""
    skew_s = config.sasl_oauthbearer_clock_skew_seconds
    expires_s, issued_s = _time(payload, "exp"), _time(payload, "iat")
    if now_s >= expires_s + skew_s:
        raise BadToken(f"the token expired {now_s - expires_s:.0f} s ago")
    if issued_s > now_s + skew_s:
        raise BadToken(f"the token was issued in the future, {issued_s - now_s:.0f} s from now")
    if "nbf" in payload and _time(payload, "nbf") > now_s + skew_s:
        raise BadToken("the token is not valid yet")
    issuer = config.sasl_oauthbearer_expected_issuer
    if issuer and payload.get("iss") != issuer:
        raise BadToken(f"the token's issuer is {payload.get('iss')!r:.100}")
    expected = config.audiences
    if expected or payload.get("aud") is not None:  # RFC 7519: whom a token is for must be expected
        audiences = _texts(payload, "aud")
        if not set(expected) & set(audiences):
            raise BadToken(
                f"the token's audience is {', '.join(audiences)!r:.100}, and the expected one is "
                f"{', '.join(expected) or 'not set'}"
            )
    scopes = _texts(payload, config.sasl_oauthbearer_scope_claim_name)
    if len(set(scopes)) < len(scopes):
        raise BadToken("the token names a scope twice")
    name = payload.get(config.sasl_oauthbearer_sub_claim_name)
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or name == "ANONYMOUS":
        raise BadToken(f"the token's {config.sasl_oauthbearer_sub_claim_name} is not a principal's name")
    return Claims(name, expires_s)


def _time(payload: Mapping[str, Any], claim: str) -> float:
    found = payload.get(claim)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1 << 53:
        raise BadToken(f"the token's {claim} is not a time")
    return float(found)


def _texts(payload: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """Return the texts of a claim that is one text, words separated by blanks for a scope, or a list."""
    found = payload.get(claim, "")
    texts = found if isinstance(found, list) else [found] if claim == "aud" else str(found).split()
    if not isinstance(found, str | list) or not all(isinstance(each, str) for each in texts):
        raise BadToken(f"the token's {claim} is neither text nor a list of texts")
    return tuple(texts)


# --- keys ---------------------------------------------------------------------------------------


def parse_keys(data: bytes) -> KeySet:
    """Return the public keys for signatures in a JWKS. Raises `ValueError`, and `ModuleNotFoundError`.

    Secrets, keys for encryption, and RSA keys below 2,048 bits are left out.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, Key, KeySet, OKPKey, RSAKey, import_key

    content = json.loads(data)
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ValueError('expected {"keys":[…]}')
    found: list[Key] = []
    for each in listed:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
            continue
        if each.get("kty") == "RSA" and len(str(each.get("n", ""))) * 6 < _LEAST_RSA_BITS:
            _log.warning("ignoring a key of the identity provider: RSA below %d bits", _LEAST_RSA_BITS)
            continue
        try:
            key = import_key({name: value for name, value in each.items() if name not in _PRIVATE})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            _log.warning("ignoring a key of the identity provider: %s", error)
            continue
        if isinstance(key, RSAKey | ECKey | OKPKey):
            found.append(key)
    if not found:
        raise ValueError("it has no public key for signatures")
    return KeySet(found)


_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""Parts of a private key, which nobody should publish, and we do not want to have."""


class Keys:
    """The keys of an identity provider. Belongs to the event loop's thread; reads in another."""

    def __init__(
        self, config: OAuthConfig, context: ssl.SSLContext, now_s: Callable[[], float] = steady_s
    ) -> None:
        self._now_s = now_s
        self._url = config.sasl_oauthbearer_jwks_endpoint_url
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._most_backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._context = context
        self._keys: list[Any] = []
        self._tried_s = float("-inf")
        self._failures = 0
        self._reading: asyncio.Future[None] | None = None

    async def open(self, patience_s: float = 0.0) -> None:
        """Read the keys; try again for `patience_s`.

        Raises `KeysUnreadable`, and `ModuleNotFoundError` without the extra.
        """
        until_s = self._now_s() + patience_s
        while not self._keys:
            try:
                self._take(await self._load())
            except KeysUnreadable as error:
                if self._now_s() >= until_s:
                    raise
                self._failures += 1
                _log.warning("%s; they are read again in %.1f s", error, self._pause_s)
                await asyncio.sleep(self._pause_s)

    @property
    def _pause_s(self) -> float:
        """How long to wait after as many failures."""
        return min(self._backoff_s * float(2 ** min(self._failures - 1, 20)), self._most_backoff_s)

    async def _load(self) -> KeySet:
        self._tried_s = self._now_s()
        try:
            data = await unwaited(partial(web.read, self._url, self._context))
            return parse_keys(data)
        except (OSError, ValueError, RecursionError) as error:
            raise KeysUnreadable(f"the keys at {self._url} cannot be read: {error}") from error

    def _take(self, keys: KeySet) -> None:
        self._keys = list(keys.keys)
        self._failures = 0

    async def find(self, kid: str) -> list[Any]:
        """Return the keys of this name; without one all of them. A token need not name its key (RFC 7515)."""
        wait_s = self._refresh_s
        if self._failures:
            wait_s = self._pause_s
        elif not self._named(kid):
            wait_s = min(_UNKNOWN_AGAIN_S, self._refresh_s)
        if self._now_s() - self._tried_s >= wait_s or self._reading is not None:
            # A provider that hangs must not stop those whose key is known.
            await self._read_again(_PATIENCE_S if self._named(kid) else None)
        return self._named(kid)

    def _named(self, kid: str) -> list[Any]:
        return [key for key in self._keys if not kid or key.kid == kid]

    async def _read_again(self, patience_s: float | None) -> None:
        """Read once for all that wait."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._reread())
        await asyncio.wait((self._reading,), timeout=patience_s)

    async def _reread(self) -> None:
        try:
            self._take(await self._load())
        except KeysUnreadable as error:
            self._failures += 1
            self._tried_s = self._now_s()
            _log.error("%s; keeping the previous ones", error)
        finally:
            self._reading = None


# --- logins -------------------------------------------------------------------------------------


class Validator:
    """Decides over tokens at one listener."""

    def __init__(self, config: OAuthConfig, keys: Keys, now_ms: Callable[[], int]) -> None:
        self._config, self._keys, self._now_ms = config, keys, now_ms

    async def check(self, token: str) -> tuple[str, float]:
        """Return the name of the principal, and how long the token is valid, in seconds.

        Raises `BadToken`.
        """
        header = header_of(token)
        keys = await self._keys.find(header.kid)
        if not keys:
            raise BadToken(f"no key has the token's kid {header.kid!r:.100}")
        fitting = [key for key in keys if key.alg in (None, header.algorithm)]
        if not fitting:
            raise BadToken(f"the token's algorithm is {header.algorithm}, its key's is {keys[0].alg}")
        _check_signature(token, fitting, header.algorithm)
        now_s = self._now_ms() / 1000
        claims = claims_of(_object(token.split(".")[1], "payload"), self._config, now_s)
        # Within the skew of clocks, a token may have expired.
        return claims.name, max(claims.expires_s - now_s, LEAST_LIFETIME_S)


def _check_signature(token: str, keys: Sequence[Any], algorithm: str) -> None:
    """Raise `BadToken` unless one of the keys has signed the token."""
    from joserfc import jws
    from joserfc.errors import JoseError, SecurityWarning

    errors: list[Exception] = []
    with warnings.catch_warnings():
        # RFC 9864 renames EdDSA, and providers still sign with it.
        warnings.simplefilter("ignore", SecurityWarning)
        for key in keys:
            try:
                jws.deserialize_compact(token, key, algorithms=[algorithm])
                return
            except (JoseError, ValueError, TypeError) as error:
                errors.append(error)
    raise BadToken(f"the token's signature is not valid: {errors[0]}") from errors[0]


class OAuthBearer(Exchange):
    """One login by a token: one message, and one more after a refusal."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._refusal = ""

    async def step(self, token: bytes) -> Step:
        if self._refusal:
            raise LoginFailed(self._refusal, _INVALID.decode())
        match = _FIRST.fullmatch(token)
        if match is None:
            raise LoginFailed("the OAUTHBEARER message is malformed")
        try:
            name, lifetime_s = await self._validator.check(match[2].decode())
        except BadToken as error:
            self._refusal = str(error)
            return Step(_INVALID, refusal=self._refusal)
        if match[1] and match[1].decode("utf-8", "replace") not in ("", name):
            self._refusal = f"the token is {name!r}'s, and the login for another user"
            return Step(_INVALID, refusal=self._refusal)
        return Step(b"", name, lifetime_ms=int(lifetime_s * 1000))


async def bearer_logins(
    config: OAuthConfig, context: ssl.SSLContext, now_ms: Callable[[], int]
) -> Callable[[], Exchange]:
    """Return what begins a login by a token. Raises as `Keys.open`, and `InvalidConfig` for a file."""
    require("joserfc")
    keys = Keys(config, context)
    if config.sasl_oauthbearer_jwks_endpoint_url.startswith("file:"):
        try:
            await keys.open()
        except KeysUnreadable as error:  # no start in a minute would find another file
            raise InvalidConfig(f"sasl.oauthbearer.jwks.endpoint.url: {error}") from error
    else:
        await keys.open(START_PATIENCE_S)
    if not config.sasl_oauthbearer_expected_audience:
        _log.warning(
            "sasl.oauthbearer.expected.audience is not set: tokens with an audience are refused; those "
            "without are accepted, also those for others"
        )
    if not config.sasl_oauthbearer_expected_issuer:
        _log.warning(
            "sasl.oauthbearer.expected.issuer is not set: tokens of any issuer whose keys are known "
            "are accepted"
        )
    return partial(OAuthBearer, Validator(config, keys, now_ms))
