"""The requests of a client's login: SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from logstore.broker.errors import AuthenticationFailed
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct

Exchange: TypeAlias = Callable[[Struct, int], Awaitable[Struct]]
"""Sends a request in a version and returns the answer."""


async def begin(ask: Exchange, mechanism: str) -> None:
    """Agree on a mechanism. Raises `AuthenticationFailed`, and what `ask` raises."""
    answer = await ask(t.SaslHandshakeRequest(mechanism=mechanism), 1)
    assert isinstance(answer, t.SaslHandshakeResponse), "the link checks the type"
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none: does this listener have SASL?"
        raise AuthenticationFailed(f"mechanism {mechanism} is not enabled; enabled are {offered}")


async def send(ask: Exchange, token: bytes, who: str) -> tuple[bytes, int]:
    """Send a token; return the answer, and the lifetime of the session in milliseconds. Raises as `begin`."""
    answer = await ask(t.SaslAuthenticateRequest(auth_bytes=token), 1)
    assert isinstance(answer, t.SaslAuthenticateResponse), "the link checks the type"
    if answer.error_code:
        said = answer.error_message or answer.error_code
        raise AuthenticationFailed(f"login of {who} refused: {said}")
    return bytes(answer.auth_bytes), answer.session_lifetime_ms
