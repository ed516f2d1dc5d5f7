"""Stories of logins, tokens and quotas of users, on brokers with an authorizer.

Not drawn: the raw tokens after SaslHandshake 0, and the messages of SCRAM after the first, which need a
password's proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from logstore.broker.wire import types as t
from tests.wire_judge import cluster, permissions, topics
from tests.wire_judge.sides import NO_LOGIN, plain_login
from tests.wire_judge.stories import Draw, Known, Step

_MINUTE_MS: Final = 60_000
_UNKNOWN_HMAC: Final = b"no token has this one"
_USER_RIGHTS: Final = ((6, 8), (7, 13), (7, 14))
"""Types of resources about tokens, and an operation on each."""


def handshake(draw: Draw) -> Step:
    request = t.SaslHandshakeRequest(
        mechanism=draw.usual("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "plain", "", of=0.7)
    )
    return draw.at(draw.usual(1, 0, of=0.95), lambda _: request, client=NO_LOGIN)


def authenticate(draw: Draw) -> Step:
    tokens = (
        *(plain_login("ann", "wrong"), plain_login("carl"), b"", b"ann", b"\0ann", b"\0\0ann", b"\0ann\0"),
        *(b"bob\0ann\0ann", b"\0ann\0ann\0", b"\xff\0ann\0ann", b"n,,n=ann,r=abc", b"n,,n=,r=abc"),
        *(b"n,,n=ann,r=", b"y,,n=ann,r=abc", b"p=tls-unique,,n=ann,r=abc", b"n,a=bob,n=ann,r=abc"),
    )
    request = t.SaslAuthenticateRequest(auth_bytes=draw.usual(plain_login("ann"), *tokens, of=0.5))
    return draw.step(t.SaslAuthenticateRequest, lambda _: request, client=NO_LOGIN, trim=_without_nonce)


def _without_nonce(response: Any) -> None:
    """Leave out what SCRAM draws."""
    response.auth_bytes = bytes(response.auth_bytes[:5])


def ask_somebody(draw: Draw) -> Step:
    """Ask on the connection whose login is in question."""
    step = draw.pick(cluster.versions, topics.metadata, cluster.cluster, cluster.describe_users)(draw)
    return replace(step, client=NO_LOGIN)


def create_token(draw: Draw) -> Step:
    owner = draw.usual((None, None), ("User", "bob"), ("User", ""), ("", ""), ("Group", "x"), of=0.5)
    renewers = draw.usual([], [("User", "bob")], [("Group", "x")], [("User", "")], [("", "bob")], of=0.6)
    request = t.CreateDelegationTokenRequest(
        owner_principal_type=owner[0],
        owner_principal_name=owner[1],
        renewers=[
            t.CreateDelegationTokenRequestCreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in renewers
        ],
        max_lifetime_ms=draw.usual(-1, 0, 5 * _MINUTE_MS, 1 << 60, -7, of=0.5),
    )

    def learn(response: Any, known: Known) -> None:
        if response.error_code == 0:
            known["hmac"], known["token"] = bytes(response.hmac), response.token_id
            response.expiry_timestamp_ms -= response.issue_timestamp_ms
            response.max_timestamp_ms -= response.issue_timestamp_ms

    user = draw.usual("ann", "bob", "root", "a", of=0.7)
    return draw.step(t.CreateDelegationTokenRequest, lambda _: request, learn, client=user)


def _hmac(draw: Draw) -> Callable[[Known], bytes]:
    wrong = draw.usual(None, _UNKNOWN_HMAC, b"", of=0.85)
    return lambda known: known.get("hmac", _UNKNOWN_HMAC) if wrong is None else wrong


def renew_token(draw: Draw) -> Step:
    """Renew a token, or say when it expires; mostly somebody who may."""
    hmac, user = _hmac(draw), draw.usual("ann", "bob", "root", "a", of=0.6)
    period = draw.pick(10 * _MINUTE_MS, -1, 0, -5, 1 << 50, 1)
    if draw.chance(0.5):
        return draw.step(
            t.RenewDelegationTokenRequest,
            lambda known: t.RenewDelegationTokenRequest(hmac=hmac(known), renew_period_ms=period),
            client=user,
        )
    return draw.step(
        t.ExpireDelegationTokenRequest,
        lambda known: t.ExpireDelegationTokenRequest(hmac=hmac(known), expiry_time_period_ms=period),
        client=user,
    )


def describe_tokens(draw: Draw) -> Step:
    """List tokens; those of other stories are left out."""
    owner = t.DescribeDelegationTokenRequestDescribeDelegationTokenOwner
    owners = draw.usual(None, [], ["ann"], ["bob"], ["ann", "bob"], ["ann", "ann"], of=0.4)
    request = t.DescribeDelegationTokenRequest(
        owners=None
        if owners is None
        else [owner(principal_type="User", principal_name=each) for each in owners]
    )

    def learn(response: Any, known: Known) -> None:
        response.tokens = [each for each in response.tokens if each.token_id == known.get("token")]

    user = draw.usual("ann", "bob", "root", "a", of=0.5)
    return draw.step(t.DescribeDelegationTokenRequest, lambda _: request, learn, client=user)


def grant(draw: Draw) -> Step:
    """Let somebody make or see tokens of others."""
    kind, operation = draw.pick(*_USER_RIGHTS)
    principal = draw.pick("User:ann", "User:bob")
    wanted = draw.pick("User:ann", "User:bob", "*")

    def build(known: Known) -> t.CreateAclsRequest:
        name = known.get("token", "none") if kind == _USER_RIGHTS[0][0] else wanted
        rule = t.CreateAclsRequestAclCreation(
            resource_type=kind,
            resource_name=name,
            principal=principal,
            host="*",
            operation=operation,
            permission_type=3,
        )
        return t.CreateAclsRequest(creations=[rule])

    return draw.step(t.CreateAclsRequest, build, client="root")


def _about_users(draw: Draw) -> Step:
    step = draw.pick(
        *(cluster.alter_users, cluster.describe_users, cluster.alter_quotas, cluster.describe_quotas),
    )(draw)
    return replace(step, client=draw.usual("root", "ann", of=0.9))


_STAGES: Final[tuple[tuple[Callable[[Draw], Step], ...], ...]] = (
    (handshake, handshake, authenticate, authenticate, authenticate, ask_somebody),
    (create_token, renew_token, renew_token, describe_tokens, describe_tokens, grant),
    (_about_users,),
)


def story(draw: Draw) -> list[Step]:
    """Draw a story of logins, of tokens, or of users."""
    steps, stage = [permissions.revoke_all(draw)], draw.pick(*_STAGES)
    return steps + [draw.pick(*stage)(draw) for _ in range(draw.number(2, 9))]
