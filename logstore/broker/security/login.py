"""The login of one connection on a listener with SASL.

    begin ──ApiVersions──▶ versions ──SaslHandshake──▶ tokens ──SaslAuthenticate …──▶ complete
      └───────────────────SaslHandshake──────────────────┘                              │
                                             tokens again ◀──SaslHandshake, if its session ends (KIP-368)

Until the login is complete a connection may send little, few APIs, and not for long. Whatever fails is
answered late and then closed: `connection.failed.authentication.delay.ms`. Version 0 of SaslHandshake is
followed by bare tokens, `size int32 │ token`, both ways.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from logstore.broker.identity import AskStore
from logstore.broker.limits import Limits
from logstore.broker.security import users
from logstore.broker.security.audit import Audit
from logstore.broker.security.config import Listener
from logstore.broker.security.delegation_store import DelegationTokens
from logstore.broker.security.oauth import bearer_logins
from logstore.broker.security.principals import ANONYMOUS
from logstore.broker.security.sasl import OAUTHBEARER, PLAIN, Exchange, Plain, Scram, Step
from logstore.broker.security.scram import LoginFailed
from logstore.broker.security.tls import provider_context
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.loggers import logger_of

if TYPE_CHECKING:
    from logstore.broker.connection import Connection
    from logstore.broker.dispatch import Call

_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 18, 17, 36
_SIZE: Final = struct.Struct(">i")
_LOGIN_S: Final = 60
"""The longest login. A client that seldom polls takes a step at a time."""
_RENEWAL_S: Final = 1.0
"""A connection logs in again at most once in this time."""

_log = logger_of(__name__)


class _State(Enum):
    BEGIN = "before the handshake"
    VERSIONS = "after ApiVersions"
    TOKENS = "in the login"
    COMPLETE = "logged in"
    FAILED = "refused"


class LoginCounts:
    """Counters of a broker's logins."""

    def __init__(self) -> None:
        self.successful = 0
        self.failed = 0
        self.renewed = 0
        self.expired = 0
        """connections that went on after the end of their session"""


@dataclass(frozen=True, slots=True)
class SaslDoor:
    """The login that a SASL listener requires of each connection."""

    mechanisms: Mapping[str, Callable[[], Exchange]]
    """By name: begins a login."""
    audit: Audit = field(default_factory=Audit)
    counts: LoginCounts = field(default_factory=LoginCounts)
    failure_delay_s: float = 0.1
    max_receive_bytes: int = 512 << 10
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    """By mechanism: how long a session lasts; absent for ever."""


async def sasl_door(
    listener: Listener,
    ask: AskStore,
    limits: Limits,
    counts: LoginCounts,
    audit: Audit,
    tokens: DelegationTokens | None = None,
) -> SaslDoor:
    """Return what a listener with SASL does. Raises `MetadataStoreFailed`: credentials are in the store;
    and `KeysUnreadable`, `ModuleNotFoundError` for tokens.
    """
    random, begin = SystemRandom(), dict[str, Callable[[], Exchange]]()
    for mechanism in listener.sasl.mechanisms:
        if mechanism == OAUTHBEARER:
            assert listener.oauth is not None, "read with the mechanism"
            begin[mechanism] = await bearer_logins(
                listener.oauth, provider_context(listener.tls), wall_clock_ms
            )
        elif mechanism == PLAIN:
            begin[mechanism] = partial(Plain, listener.jaas[mechanism].users)
            if not listener.protocol.has_tls:
                _log.warning("listener %s sends passwords without encryption: PLAIN needs TLS", listener.name)
        else:
            secret = await users.login_secret(ask, random)
            begin[mechanism] = partial(Scram, mechanism, partial(users.find, ask), secret, random, tokens)
    return SaslDoor(
        begin,
        audit,
        counts,
        limits.connection_failed_authentication_delay_ms / 1000,
        listener.sasl.sasl_server_max_receive_size,
        {mechanism: reauth_ms for mechanism, reauth_ms in listener.reauth_ms.items() if reauth_ms},
    )


class Login:
    """A connection's way to its principal. Belongs to the event loop's thread."""

    def __init__(self, connection: Connection, door: SaslDoor) -> None:
        self._connection, self._door = connection, door
        self._loop = asyncio.get_running_loop()
        self._state = _State.BEGIN
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._session_ms = 0
        self._is_counted = False
        """Whether the failure of this login has been counted and audited already."""
        self._is_bare = False
        self._ends_s = float("inf")
        self._began_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            _LOGIN_S, self._connection.refuse, f"not logged in after {_LOGIN_S:g} s"
        )
        self.principal = ANONYMOUS
        self.token_id = ""
        """The delegation token by which the client has logged in; empty for other logins."""

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    def end(self) -> None:
        """The connection has closed."""
        if self._timer is not None:
            self._timer.cancel()

    # --- requests -----------------------------------------------------------------------------

    @property
    def takes_bare_tokens(self) -> bool:
        return self._is_bare and self._state is _State.TOKENS

    def refuses(self, key: int) -> bool:
        """Return whether a request of this API is refused now; the connection is closed late then."""
        if self._state is _State.COMPLETE:
            if self._loop.time() < self._ends_s or key == _HANDSHAKE:
                return False
            self._door.counts.expired += 1
            reason = f"the session of {self.principal} has expired"
            host = self._connection.peer
            self._door.audit("refused", principal=self.principal, host=host, reason=reason)
            self._connection.refuse(reason)
            return True
        allowed = {
            _State.BEGIN: (_VERSIONS, _HANDSHAKE),
            _State.VERSIONS: (_HANDSHAKE,),
            _State.TOKENS: (_AUTHENTICATE,),
        }
        if key in allowed.get(self._state, ()):
            return False
        self.fail(f"API {key} {self._state.value}", lambda: None)
        return True

    def versions_told(self) -> None:
        """ApiVersions has been answered with versions."""
        if self._state is _State.BEGIN:
            self._state = _State.VERSIONS

    def handshake(self, call: Call, mechanism: str) -> t.SaslHandshakeResponse | None:
        """Begin a login by this mechanism; None: the answer follows."""
        if self._state is _State.COMPLETE:
            is_early = self._loop.time() < self._began_s + _RENEWAL_S
            if self._ends_s == float("inf") or is_early:
                return t.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            if mechanism != self._mechanism:
                self._refuse_mechanism(call, mechanism)
                return None
        if mechanism not in self._door.mechanisms:
            self._refuse_mechanism(call, mechanism)
            return None
        self._began_s = self._loop.time()
        self._mechanism, self._exchange = mechanism, self._door.mechanisms[mechanism]()
        self._state, self._is_bare = _State.TOKENS, call.version == 0
        return t.SaslHandshakeResponse(mechanisms=list(self._door.mechanisms))

    def _refuse_mechanism(self, call: Call, mechanism: str) -> None:
        names = list(self._door.mechanisms)
        answer = t.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=names)
        self.fail(f"mechanism {mechanism[:40]!r} is not enabled", lambda: call.answer(answer))

    async def authenticate(self, call: Call, token: bytes) -> t.SaslAuthenticateResponse | None:
        """Take a token in SaslAuthenticate; None: the answer follows, late."""
        if self._state is not _State.TOKENS:
            return t.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        try:
            answer = await self._step(token)
        except LoginFailed as failure:
            refusal = t.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=failure.args[1] if len(failure.args) > 1 else self._said,
            )
            self.fail(str(failure.args[0]), lambda: call.answer(refusal))
            return None
        except EngineError as error:
            # Not the client's fault, and not for ever: it may try again.
            self.fail(f"credentials cannot be read: {error}", lambda: None)
            return None
        return t.SaslAuthenticateResponse(
            error_message="",
            auth_bytes=answer,
            session_lifetime_ms=self._session_ms if self.is_complete else 0,
        )

    async def bare_token(self, token: bytes) -> None:
        """Take a token without a header."""
        try:
            answer = await self._step(token)
        except (LoginFailed, EngineError) as failure:
            self.fail(str(failure.args[0]), lambda: None)
            return
        self._connection.answer((_SIZE.pack(len(answer)), answer))

    async def _step(self, token: bytes) -> bytes:
        assert self._exchange is not None, "a handshake was made"
        step = await self._exchange.step(token)
        if step.refusal:
            self._count_failure(step.refusal)
        if step.user is not None:
            self._complete(f"User:{step.user}", step)
        return step.answer

    def _complete(self, principal: str, step: Step) -> None:
        if self._state is _State.FAILED:
            # Its connection was closed while the step was checked: that was counted as a failure.
            return
        is_renewal = self.principal != ANONYMOUS
        if is_renewal and principal != self.principal:
            said = f"Cannot change principals during re-authentication from {self.principal}: {principal}"
            raise LoginFailed(said, said)
        self.principal, self._state, self._exchange = principal, _State.COMPLETE, None
        self.token_id = step.token_id
        limits = (self._door.max_reauth_ms.get(self._mechanism, 0), step.lifetime_ms)
        self._session_ms = min((each for each in limits if each), default=0)
        self._ends_s = self._loop.time() + self._session_ms / 1000 if self._session_ms else float("inf")
        self.end()
        counts, peer = self._door.counts, self._connection.peer
        event = "login renewed" if is_renewal else "login"
        by_token = {"token": step.token_id} if step.token_id else {}
        self._door.audit(event, principal=principal, host=peer, mechanism=self._mechanism, **by_token)
        if is_renewal:
            counts.renewed += 1
        else:
            counts.successful += 1
            self._connection.logged_in()

    @property
    def _said(self) -> str:
        if self._mechanism == "PLAIN":
            return "Authentication failed: Invalid username or password"
        return (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )

    def fail(self, reason: str, answer: Callable[[], None]) -> None:
        """Refuse the login: answer late, and close. Nothing is read meanwhile."""
        self._failed(reason)
        self._connection.fail_late(answer, self._door.failure_delay_s)

    def cut(self, reason: str) -> None:
        """The connection is closed because of what was sent: before the login that is a failed one."""
        if self._state not in (_State.COMPLETE, _State.FAILED):
            self._failed(reason)

    def _failed(self, reason: str) -> None:
        self._state = _State.FAILED
        self.end()
        if not self._is_counted:
            self._count_failure(reason)

    def _count_failure(self, reason: str) -> None:
        self._is_counted = True
        self._door.counts.failed += 1
        host = self._connection.peer
        self._door.audit("login failed", host=host, mechanism=self._mechanism, reason=reason)
