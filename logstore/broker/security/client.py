"""Connections of a client, or of a broker as a client of others: plain or TLS, with or without a login."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Final

from logstore.broker.errors import AuthenticationFailed
from logstore.broker.security.config import Listener, Protocol, Security, tls_config
from logstore.broker.security.handshake import Exchange, begin, send
from logstore.broker.security.jaas import Jaas, parse_jaas
from logstore.broker.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from logstore.broker.security.scram_client import Violation, client_final, client_first
from logstore.broker.security.secret import Secret
from logstore.broker.security.tls import client_context, now, provider_context
from logstore.broker.security.tls_stream import TlsStream
from logstore.broker.security.tokens import ClientCredentials, FromFile, TokenLogin, TokenSource
from logstore.broker.security.web import check_url
from logstore.errors import InvalidConfig
from logstore.replication.metastore.layout import SECURITY_PROTOCOLS

_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_HANDLER: Final = "sasl.login.callback.handler.class"
_HANDLERS: Final = frozenset(
    f"org.apache.kafka.common.security.oauthbearer.{each}OAuthBearerLoginCallbackHandler"
    for each in ("", "secured.")
)
"""Kafka's classes that ask an endpoint or a file for tokens, which is what happens here in any case."""


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """A name and a password, and the SASL mechanism that proves them."""

    mechanism: str
    username: str
    password: Secret = field(repr=False)
    by_token: bool = False
    """Whether they are the id of a delegation token and its HMAC."""

    async def log_in(self, ask: Exchange) -> int:
        """Log in on a connection; return the lifetime of the session in milliseconds, 0 for no end.

        Raises `AuthenticationFailed`, and what `ask` raises.
        """
        await begin(ask, self.mechanism)
        if self.mechanism == PLAIN:
            token = f"\0{self.username}\0{self.password.reveal()}".encode()
            _, lifetime_ms = await send(ask, token, repr(self.username))
            return lifetime_ms
        return await self._by_scram(ask)

    async def _by_scram(self, ask: Exchange) -> int:
        first = client_first(self.username, f"{SystemRandom().getrandbits(130):x}", by_token=self.by_token)
        user = repr(self.username)
        answer, _ = await send(ask, first.message, user)
        loop = asyncio.get_running_loop()
        try:
            # Milliseconds of work, which other connections need not wait for.
            final = await loop.run_in_executor(
                None, client_final, self.mechanism, self.password, first, answer
            )
        except Violation as error:
            raise AuthenticationFailed(f"the broker violates {self.mechanism}: {error}") from error
        proof, lifetime_ms = await send(ask, final.message, user)
        if not hmac.compare_digest(proof.partition(b",")[0], final.expected):
            raise AuthenticationFailed(
                f"the broker violates {self.mechanism}: its last message does not prove that it knows the "
                f"password of {user}"
            )
        return lifetime_ms


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """A client's side of security. Make one with `client_security`, and share it among clients."""

    context: ssl.SSLContext | None = None
    login: ClientLogin | TokenLogin | None = None
    listener: str = ""
    """Of a broker among brokers: the name of the listener that it connects to."""
    control_plane: ClientSecurity | None = None
    """Of a broker among brokers: how requests from and to the controller go, if by another listener."""

    async def connect(self, inner: asyncio.BufferedProtocol, host: str, port: int) -> None:
        """Open a connection and return once `inner` is connected. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.context is None:
            await loop.create_connection(lambda: inner, host, port)
            return
        waiter = _Waiter(loop.create_future())
        stream = TlsStream(inner, self.context, host=host, watcher=waiter)
        try:
            await loop.create_connection(lambda: stream, host, port)
            await waiter.shaken
        except BaseException:
            waiter.shaken.cancel()
            stream.abort()
            raise


class _Waiter:
    """Waits for a handshake."""

    def __init__(self, shaken: asyncio.Future[None]) -> None:
        self.shaken = shaken

    def began(self, stream: TlsStream) -> None:
        """The socket is connected."""

    def ended(self, stream: TlsStream, reason: str) -> None:
        if self.shaken.done():
            return
        if reason:
            self.shaken.set_exception(ConnectionError(reason))
        else:
            self.shaken.set_result(None)


NO_SECURITY: Final = ClientSecurity()


def client_security(properties: Mapping[str, str], *, token: TokenSource | None = None) -> ClientSecurity:
    """Return the security of a client from Kafka's client properties.

    These are `security.protocol`, `ssl.…`, `sasl.mechanism`, `sasl.jaas.config` and, for OAUTHBEARER,
    `sasl.oauthbearer.token.endpoint.url`, instead of which `token` may be given: it returns a token for each
    login, and may block. Raises `InvalidConfig` for anything else, and `ModuleNotFoundError` without the
    extra `security`.
    """
    for name, value in properties.items():
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} is {value!r}; expected text, or leave it out")
    if token is not None and not callable(token):
        raise InvalidConfig("token is not a function; give one that returns a token, such as lambda: text")
    properties = {name: value.strip() for name, value in properties.items()}  # files keep spaces at the end
    named = properties.get(_PROTOCOL, "PLAINTEXT").upper()
    if named not in SECURITY_PROTOCOLS:
        raise InvalidConfig(f"{_PROTOCOL} is {named!r}; expected one of {', '.join(SECURITY_PROTOCOLS)}")
    protocol = Protocol[named]
    for name in properties:
        is_of_tokens = name == _ENDPOINT or (name == _HANDLER and properties[name] in _HANDLERS)
        is_known = name in (_PROTOCOL, _MECHANISM, _JAAS) or is_of_tokens or name.startswith("ssl.")
        if not is_known:
            raise InvalidConfig(f"{name} is not a setting of the security of a client")
        has_effect = protocol.has_tls if name.startswith("ssl.") else protocol.has_sasl
        if name != _PROTOCOL and not has_effect:
            raise InvalidConfig(f"{name} has no effect with {_PROTOCOL}={named}; set that, or remove this")
    context = client_context(tls_config(properties), now()) if protocol.has_tls else None
    if not protocol.has_sasl:
        if token is not None:
            raise InvalidConfig(f"token has no effect with {_PROTOCOL}={named}; set that, or remove this")
        return ClientSecurity(context)
    mechanism = properties.get(_MECHANISM, "")
    if not mechanism:
        raise InvalidConfig(f"{_PROTOCOL}={named} needs {_MECHANISM}: one of {', '.join(MECHANISMS)}")
    if mechanism not in MECHANISMS:
        raise InvalidConfig(f"{_MECHANISM} is {mechanism!r}; supported are {', '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        if token is not None and _ENDPOINT in properties:
            raise InvalidConfig(f"{_ENDPOINT} has no effect with token=; give one of them")
        return ClientSecurity(context, TokenLogin(token or _token_source(properties)))
    if token is not None or _ENDPOINT in properties:
        raise InvalidConfig(f"{_MECHANISM} is {mechanism}, which takes no tokens; use OAUTHBEARER")
    return ClientSecurity(context, _login(mechanism, parse_jaas(_JAAS, properties.get(_JAAS, ""), mechanism)))


def _token_source(properties: Mapping[str, str]) -> TokenSource:
    """Return where the properties say that tokens come from. Raises `InvalidConfig`."""
    url = properties.get(_ENDPOINT, "")
    if not url:
        raise InvalidConfig(
            f"OAUTHBEARER needs {_ENDPOINT}, a file:// or https:// URL, or in programs token="
        )
    check_url(_ENDPOINT, url)
    if url.startswith("file:"):
        return FromFile(url)
    client = parse_jaas(_JAAS, properties.get(_JAAS, ""), OAUTHBEARER)
    if not client.username or not client.password:
        raise InvalidConfig(f"{_JAAS} needs clientId and clientSecret for {_ENDPOINT}")
    return ClientCredentials(url, client, provider_context(tls_config(properties)))


def inter_broker_security(security: Security) -> ClientSecurity:
    """Return how brokers connect to each other. Raises `InvalidConfig`."""
    found = _to_listener(security.of_brokers)
    if security.of_controller is None:
        return found
    return replace(found, control_plane=_to_listener(security.of_controller))


def _to_listener(listener: Listener) -> ClientSecurity:
    context = client_context(listener.tls, now()) if listener.protocol.has_tls else None
    login: ClientLogin | TokenLogin | None = None
    if listener.protocol.has_sasl:
        mechanism = listener.sasl.sasl_mechanism_inter_broker_protocol
        if mechanism == OAUTHBEARER:
            login = TokenLogin(_tokens_of_broker(listener))
        else:
            login = _login(mechanism, listener.jaas[mechanism])
    return ClientSecurity(context, login, listener.name)


def _tokens_of_broker(listener: Listener) -> TokenSource:
    assert listener.oauth is not None, "checked with the settings"
    url = listener.oauth.sasl_oauthbearer_token_endpoint_url
    if url.startswith("file:"):
        return FromFile(url)
    return ClientCredentials(url, listener.jaas[OAUTHBEARER], provider_context(listener.tls))


def _login(mechanism: str, jaas: Jaas) -> ClientLogin:
    if not jaas.username or not jaas.password:
        raise InvalidConfig(f"{_JAAS} needs username and password")
    return ClientLogin(mechanism, jaas.username, jaas.password, jaas.by_token)
