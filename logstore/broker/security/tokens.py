"""Logins of clients by tokens (OAUTHBEARER): from a function, a file, or the identity provider's endpoint."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from logstore.broker.errors import AuthenticationFailed
from logstore.broker.security import web
from logstore.broker.security.handshake import Exchange, begin, send
from logstore.broker.security.jaas import Jaas
from logstore.broker.security.sasl import OAUTHBEARER
from logstore.disk.clocks import steady_s

TokenSource: TypeAlias = Callable[[], str]
"""Returns a token; it may block, and is called in a thread. After an `OSError` it is asked again; any other
error ends the login as `AuthenticationFailed`."""
NO_TOKEN: Final = "no token to log in with"
_TOKEN: Final = re.compile(r"[-_~+/.A-Za-z0-9]+=*", re.ASCII)
_USED_FOR: Final = 0.8
"""The part of a token's lifetime for which it is used again."""
_UNKNOWN_LIFETIME_S: Final = 60.0
_PATIENCE_S: Final = 4.0
"""Less than `Limits.connect_timeout_ms`, whose end would blame the broker instead of the provider."""


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A login by tokens; each login asks for one."""

    source: TokenSource = field(repr=False)

    async def log_in(self, ask: Exchange) -> int:
        """Log in on a connection; return the lifetime of the session in milliseconds, 0 for no end.

        Raises `AuthenticationFailed`, and what `ask` and the source raise.
        """
        try:
            found: object = await asyncio.get_running_loop().run_in_executor(None, self.source)
        except AuthenticationFailed:
            raise
        except OSError as error:
            raise ConnectionError(f"{NO_TOKEN}: {error}") from error
        except Exception as error:  # of the program's own function
            raise AuthenticationFailed(f"{NO_TOKEN}: {type(error).__name__}: {error}") from error
        if not isinstance(found, str):
            raise AuthenticationFailed(f"{NO_TOKEN}: its function returned {type(found).__name__}, not str")
        token = found.strip()
        if not _TOKEN.fullmatch(token):
            raise AuthenticationFailed("the token is empty or has invalid characters")
        await begin(ask, OAUTHBEARER)
        answer, lifetime_ms = await send(
            ask, b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01", "the token"
        )
        if answer:
            # The broker has refused the token, and says so in the answer to this.
            await send(ask, b"\x01", "the token")
            raise AuthenticationFailed(f"login by the token refused: {answer[:200].decode(errors='replace')}")
        return lifetime_ms


@dataclass(frozen=True, slots=True)
class FromFile:
    """Reads a token from a file each time, as others renew it there."""

    url: str

    def __call__(self) -> str:
        return web.read(self.url, ssl.create_default_context()).decode("ascii", "replace")


class ClientCredentials:
    """Asks an identity provider for tokens (RFC 6749, section 4.4); one is used for most of its lifetime."""

    def __init__(self, url: str, client: Jaas, context: ssl.SSLContext) -> None:
        self._url, self._client, self._context = url, client, context
        self._lock = threading.Lock()
        self._token, self._until_s = "", 0.0

    def __call__(self) -> str:
        """Return a token. Raises `OSError`, and `AuthenticationFailed` if the provider refuses."""
        with self._lock:
            if not self._token or steady_s() >= self._until_s:
                self._token, lifetime_s = self._fetch()
                self._until_s = steady_s() + _USED_FOR * lifetime_s
            return self._token

    def _fetch(self) -> tuple[str, float]:
        client = self._client
        names = quote(client.username, safe=""), quote(client.password.reveal(), safe="")
        form = {"grant_type": "client_credentials"} | ({"scope": client.scope} if client.scope else {})
        headers = {
            "Authorization": f"Basic {base64.b64encode(':'.join(names).encode()).decode()}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            data = urlencode(form).encode()
            answer = web.read(self._url, self._context, data=data, headers=headers, timeout_s=_PATIENCE_S)
            found = json.loads(answer)
            token, lifetime = found["access_token"], found.get("expires_in", _UNKNOWN_LIFETIME_S)
            # Some providers send it as text.
            lifetime_s = float(lifetime)
        except HTTPError as error:
            if error.code < 500:
                raise AuthenticationFailed(
                    f"{self._url} refused to issue a token: {error.code} {error.reason}"
                ) from error
            raise OSError(f"{self._url} answers {error.code} {error.reason}") from error
        except OSError as error:
            raise OSError(f"{self._url} returned no token: {getattr(error, 'reason', error)}") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise AuthenticationFailed(f"{self._url} returned no access_token") from error
        if not isinstance(token, str):
            raise AuthenticationFailed(f"{self._url} returned no access_token")
        if not 0 <= lifetime_s < float("inf"):
            raise AuthenticationFailed(f"{self._url} returned a token with a lifetime of {lifetime_s} s")
        return token, lifetime_s
