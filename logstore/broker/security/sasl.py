"""SASL mechanisms on the server's side: PLAIN and SCRAM. OAUTHBEARER is in `oauth.py`.

An exchange takes the client's tokens one by one and returns answers; the last one comes with the user's name.
The error that a client receives is the same for a wrong password and for an unknown user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.broker.security import scram
from logstore.broker.security.delegation import USER, Token
from logstore.broker.security.scram import Credential, LoginFailed
from logstore.broker.security.secret import Secret

if TYPE_CHECKING:
    from logstore.broker.security.delegation_store import DelegationTokens

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *scram.HASHES, OAUTHBEARER)
"""The mechanisms that exist here."""
LONGEST_NAME: Final = 1 << 10
SHORTEST_SESSION_MS: Final = 1_200
"""A connection may log in again once a second."""

FindCredential = Callable[[str, str], Awaitable[Credential | None]]
"""Returns a user's credential for a mechanism."""


class Step(NamedTuple):
    """An answer to the client; `user` once the login is complete, and for how long at most (0: for ever).

    `refusal` is why the login has failed already, though the client is to send another message first.
    `token_id` is that of the delegation token with which the client has proved.
    """

    answer: bytes
    user: str | None = None
    lifetime_ms: int = 0
    refusal: str = ""
    token_id: str = ""


class Exchange(ABC):
    """One login under way."""

    @abstractmethod
    async def step(self, token: bytes) -> Step:
        """Take the client's next token. Raises `LoginFailed`, and `EngineError` if the store fails."""


class Plain(Exchange):
    """`[authzid] NUL name NUL password`, in one message."""

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users

    async def step(self, token: bytes) -> Step:
        try:
            authzid, name, password = token.decode().split("\0")
        except ValueError:  # too few, too many, or no UTF-8
            raise LoginFailed("the PLAIN message is malformed") from None
        if not name or not password or authzid not in ("", name):
            raise LoginFailed("the PLAIN message lacks a name or a password, or is for another user")
        expected = self._users.get(name)
        # The same work for an unknown user.
        is_right = scram.same(password, expected.reveal() if expected is not None else "\0")
        if expected is None or not is_right:
            raise LoginFailed(f"wrong password for {name!r}, or no such user")
        return Step(b"", name)


class Scram(Exchange):
    """Four messages, after which both sides know that the other one knows the password."""

    def __init__(
        self,
        mechanism: str,
        find: FindCredential,
        secret: bytes,
        random: Random,
        tokens: DelegationTokens | None = None,
    ) -> None:
        """`secret` makes the salts of unknown users."""
        self._mechanism, self._find, self._secret, self._random = mechanism, find, secret, random
        self._first: scram.ClientFirst | None = None
        self._nonce = ""
        self._credential = Credential(b"", b"", b"", 0)
        self._is_known = False
        self._tokens = tokens
        self._token: Token | None = None

    async def step(self, token: bytes) -> Step:
        if self._first is None:
            return await self._begin(scram.parse_first(token))
        answer = scram.server_final(self._mechanism, self._first, self._nonce, self._credential, token)
        if not self._is_known:
            raise LoginFailed(f"no such user: {self._first.name!r}")
        if self._token is not None and self._tokens is not None:
            return self._by_token(answer, self._token, self._tokens.now_ms())
        return Step(answer.encode(), self._first.name)

    @staticmethod
    def _by_token(answer: str, token: Token, now_ms: int) -> Step:
        """Log the token's owner in, for as long as the token lives."""
        left_ms = token.expires_ms - now_ms
        if left_ms < SHORTEST_SESSION_MS:
            raise LoginFailed(f"delegation token {token.token_id} is about to expire")
        return Step(answer.encode(), token.owner.removeprefix(USER), left_ms, token_id=token.token_id)

    async def _begin(self, first: scram.ClientFirst) -> Step:
        if len(first.name) > LONGEST_NAME:
            raise LoginFailed("the name is too long")
        # Made for known users, too: the time must not tell them apart.
        unknown = scram.made_up(self._mechanism, first.name, self._secret)
        found = await self._found(first)
        if found is not None and found.iterations < scram.LEAST_ITERATIONS:
            raise LoginFailed(
                f"the credential of {first.name!r} has too few iterations; set the password again"
            )
        self._is_known = found is not None
        self._credential = found or unknown
        self._first, self._nonce = first, first.nonce + scram.base36(self._random.getrandbits(130))
        return Step(scram.server_first(self._nonce, self._credential).encode())

    async def _found(self, first: scram.ClientFirst) -> Credential | None:
        if not first.has_token:
            return await self._find(first.name, self._mechanism)
        known = await self._tokens.find(first.name, self._mechanism) if self._tokens is not None else None
        if known is None:
            return None
        self._token, credential = known
        return credential
