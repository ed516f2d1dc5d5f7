"""The delegation tokens of a cluster, in its metadata store, where Kafka keeps them.

Nothing is remembered but SCRAM credentials, which follow from the secret: each login reads its token, so a
token counts, and ends, on all brokers at once. The controller removes expired ones.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import OrderedDict
from collections.abc import Callable
from random import SystemRandom
from typing import Final, NamedTuple

from logstore.broker.errors import RequestRefused
from logstore.broker.identity import AskStore
from logstore.broker.security.audit import Audit
from logstore.broker.security.delegation import (
    Token,
    TokenConfig,
    changed,
    check_changer,
    encode,
    hmac_of,
    made,
    parse,
)
from logstore.broker.security.scram import Credential
from logstore.broker.security.secret import Secret
from logstore.broker.security.users import new_credential
from logstore.broker.store_reads import not_written, read
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.ids import id_from_text, new_id
from logstore.loggers import logger_of
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.operations import Children, Create, Delete, Get, Operation, Outcome, Set

TOKENS_PATH: Final = "/delegation_token/tokens"
_ROUNDS: Final = 20
_MOST_KNOWN: Final = 4_096
"""Credentials that are remembered: each costs milliseconds."""
_AT_ONCE: Final = 100
"""Tokens that are read from the store at the same time."""

_log = logger_of(__name__)


class Stored(NamedTuple):
    """A token, and the version of its node."""

    token: Token
    version: int


class DelegationTokens:
    """One for all connections of a broker. Belongs to the event loop's thread."""

    def __init__(self, config: TokenConfig, ask: AskStore, now_ms: Callable[[], int], audit: Audit) -> None:
        self.config, self.now_ms = config, now_ms
        self._ask, self._random, self._audit = ask, SystemRandom(), audit
        self._known: OrderedDict[tuple[str, str], Credential] = OrderedDict()

    @property
    def are_on(self) -> bool:
        return bool(self.config.delegation_token_secret_key)

    def hmac_of(self, token_id: str) -> bytes:
        """Return the password of a token."""
        return hmac_of(self.config.delegation_token_secret_key, token_id)

    # --- requests -----------------------------------------------------------------------------

    def check_on(self) -> None:
        """Raise `RequestRefused` without a secret."""
        if not self.are_on:
            raise RequestRefused(
                ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set"
            )

    async def create(self, owner: str, requester: str, renewers: tuple[str, ...], life_ms: int) -> Token:
        """Make a token. Raises `RequestRefused`, and `MetadataStoreFailed`."""
        self.check_on()
        token = made(new_id(self._random), owner, requester, renewers, life_ms, self.now_ms(), self.config)
        # A new id each time: an earlier try may have been carried out without an answer.
        for _ in range(_ROUNDS):
            if (await self._ask(Create(_path(token), encode(token), make_parents=True))).error is None:
                return token
            token = token._replace(token_id=new_id(self._random))
        raise MetadataStoreFailed(
            "the metadata store did not store the new delegation token; check the store"
        )

    async def renew(self, principal: str, password: bytes, period_ms: int) -> Token:
        """Let a token expire later, or earlier; below 0 as long as the settings say. Raises as `create`."""
        wanted_ms = period_ms if period_ms >= 0 else self.config.delegation_token_expiry_time_ms
        return await self._change(password, lambda found: changed(found, principal, wanted_ms, self.now_ms()))

    async def expire(self, principal: str, password: bytes, period_ms: int) -> Token:
        """Let a token expire after `period_ms`; below 0 it is removed now. Raises as `create`."""
        if period_ms >= 0:
            return await self.renew(principal, password, period_ms)

        def removed(found: Token) -> None:
            check_changer(found, principal)

        return (await self._change(password, removed))._replace(expires_ms=self.now_ms())

    async def all(self) -> list[Token]:
        """Return all tokens, expired ones included. Raises as `create`."""
        self.check_on()
        return [each.token for each in await self._stored()]

    async def _change(self, password: bytes, change: Callable[[Token], Token | None]) -> Token:
        """Replace the token of this password by what `change` returns; None removes it."""
        self.check_on()
        listed = (await read(self._ask, Children(TOKENS_PATH), "delegation tokens")).children
        token_id = next((each for each in listed if hmac.compare_digest(self.hmac_of(each), password)), "")
        removed: Token | None = None
        outcome = Outcome()
        for _ in range(_ROUNDS):
            found = await self._read(token_id) if token_id else None
            if found is None and removed is not None:
                return removed  # only the answer was lost
            if found is None:
                break
            wanted = change(found.token)
            path = _path(found.token)
            write: Operation = Delete(path, found.version)
            if wanted is not None:
                write = Set(path, encode(wanted), found.version)
            outcome = await self._ask(write)
            if outcome.error is None:
                return wanted or found.token
            removed = found.token if wanted is None else None
        else:
            raise not_written("delegation tokens", outcome)
        raise RequestRefused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")

    # --- logins -------------------------------------------------------------------------------

    async def find(self, token_id: str, mechanism: str) -> tuple[Token, Credential] | None:
        """Return a token that may be used for a login, and its SCRAM credential; None if there is none.

        Raises `MetadataStoreFailed` and `CorruptMetadata`.
        """
        try:
            id_from_text(token_id)  # it becomes a part of a path
        except ValueError:
            return None
        found = await self._read(token_id) if self.are_on else None
        if found is None or found.token.is_expired(self.now_ms()):
            return None
        return found.token, await self._credential(token_id, mechanism)

    async def _credential(self, token_id: str, mechanism: str) -> Credential:
        name = token_id, mechanism
        if name not in self._known:
            password = Secret(base64.b64encode(self.hmac_of(token_id)).decode())
            found = await asyncio.get_running_loop().run_in_executor(
                None, new_credential, mechanism, password, self._random
            )
            self._known.setdefault(name, found)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return self._known[name]

    # --- the store ----------------------------------------------------------------------------

    async def _read(self, token_id: str) -> Stored | None:
        node = await read(self._ask, Get(f"{TOKENS_PATH}/{token_id}"), "delegation tokens")
        return Stored(parse(node.data), node.stat.version) if node.stat is not None else None

    async def _stored(self) -> list[Stored]:
        """Return all tokens. One that is malformed is left out, and logged."""
        listed = sorted((await read(self._ask, Children(TOKENS_PATH), "delegation tokens")).children)
        found: list[Stored | None] = []
        for start in range(0, len(listed), _AT_ONCE):
            found += await asyncio.gather(*map(self._sound, listed[start : start + _AT_ONCE]))
        return [each for each in found if each is not None]

    async def _sound(self, token_id: str) -> Stored | None:
        try:
            return await self._read(token_id)
        except CorruptMetadata as error:
            _log.error("ignoring delegation token %s: %s", token_id, error)
            return None

    async def remove_expired(self) -> None:
        """Remove the tokens that have expired. Raises `MetadataStoreFailed`."""
        for found in await self._stored():
            token = found.token
            if not token.is_expired(self.now_ms()):
                continue
            if (await self._ask(Delete(_path(token), found.version))).error is None:
                self._audit("token removed", token=token.token_id, owner=token.owner, reason="expired")

    async def keep_removing(self, is_controller: Callable[[], bool]) -> None:
        """Remove expired tokens periodically while this broker is the controller. Never returns."""
        while True:
            await asyncio.sleep(self.config.delegation_token_expiry_check_interval_ms / 1000)
            try:
                if is_controller():
                    await self.remove_expired()
            except EngineError as error:
                _log.error("expired delegation tokens were not removed: %s", error)


def _path(token: Token) -> str:
    return f"{TOKENS_PATH}/{token.token_id}"
