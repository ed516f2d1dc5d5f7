"""Delegation tokens: their rules, their form in the store, requests about them, and logins by them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logstore.broker import AsyncBroker, ClientSecurity, client_security, open_store
from logstore.broker.errors import AuthenticationFailed, RequestRefused
from logstore.broker.security import delegation
from logstore.broker.security.acls import Acl, Operation, Pattern, Permission, Resource
from logstore.broker.security.config import read_security
from logstore.broker.security.delegation import Token, TokenConfig, hmac_of
from logstore.broker.security.delegation_store import TOKENS_PATH, DelegationTokens
from logstore.broker.security.jaas import parse_jaas
from logstore.broker.security.secret import Secret
from logstore.broker.store_session import StoreSession
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.errors import InvalidConfig
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import Create, Get
from tests.broker.asking import Asker
from tests.broker.security.authority import broker, stores, trusting
from tests.broker.security.test_login import SASL, Bench, by, run
from tests.broker.security.test_permissions import ACLS

SECRET = "a secret of all brokers"
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, DENIED, EXPIRED, WRONG_TYPE = range(61, 68)
DAY_MS = 24 * 60 * 60 * 1000
ANN = "User:ann"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
STORED = (
    b'{"issueTimestamp":1,"renewers":["User%3Abob"],"tokenRequester":"User%3ACN%3Dx","tokenId":"AAAAAAAAAAAAAAAAAAAAAA",'
    b'"owner":"User%3Aann","expiryTimestamp":50,"maxTimestamp":90,"version":3}'
)
STORED_TOKEN = Token("A" * 22, ANN, "User:CN=x", ("User:bob",), 1, 50, 90)


# --- rules and form ---------------------------------------------------------------------------


def test_the_password_is_the_hmac_of_the_id() -> None:
    """As Java's HmacSHA512 computes it."""
    assert base64.b64encode(hmac_of(Secret("key"), "id")).decode() == (
        "aSA7IkWyB8Yvd5QD6kFnqpTOWxStWVN2+Jx9S1KGvERNr7Vtzbym26dQs3UQ858IduHslsBkS5g2QsF591iFjA=="
    )


def test_a_token_is_stored_as_by_kafka() -> None:
    assert delegation.parse(STORED) == STORED_TOKEN
    assert json.loads(delegation.encode(STORED_TOKEN)) == json.loads(STORED)
    older = STORED.replace(b'"version":3', b'"version":2')
    assert delegation.parse(older).requester == ANN


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", STORED.replace(b":3}", b":4}"), b"\xff"])
def test_a_malformed_token(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        delegation.parse(data)


@pytest.mark.parametrize(
    ("life_ms", "expires_ms", "ends_ms"), [(-1, 30, 60), (0, 30, 60), (20, 20, 20), (2**60, 30, 60)]
)
def test_how_long_a_token_lives(life_ms: int, expires_ms: int, ends_ms: int) -> None:
    config = TokenConfig(delegation_token_expiry_time_ms=30, delegation_token_max_lifetime_ms=60)
    token = delegation.made("id", ANN, ANN, (), life_ms, 1_000, config)
    assert (token.expires_ms - 1_000, token.ends_ms - 1_000) == (expires_ms, ends_ms)


def test_a_renewal() -> None:
    """It may shorten a token's life, too, and does not go beyond its end."""
    assert delegation.changed(STORED_TOKEN, "User:bob", 30, 50).expires_ms == 80
    assert delegation.changed(STORED_TOKEN, ANN, 2**62, 50).expires_ms == 90
    assert delegation.changed(STORED_TOKEN, ANN, 0, 20).expires_ms == 20
    for principal, now_ms, code in (
        ("User:CN=x", 50, MISMATCH),
        (ANN, 51, EXPIRED),
        ("User:x", 51, MISMATCH),
    ):
        with pytest.raises(RequestRefused) as refusal:
            delegation.changed(STORED_TOKEN, principal, 1, now_ms)
        assert refusal.value.error == code


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"delegation.token.max.lifetime.ms": "0"}, "the minimum is 1"),
        ({"delegation.token.secret": "hidden"}, "is not a setting of delegation tokens"),
    ],
)
def test_wrong_settings(settings: Mapping[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as error:
        read_security({"listeners": "PLAINTEXT://localhost:1", **settings})
    assert "hidden" not in str(error.value)


def test_the_older_name_of_the_secret() -> None:
    for settings in (
        {"delegation.token.master.key": SECRET},
        {"delegation.token.master.key": "older", "delegation.token.secret.key": SECRET},
    ):
        security = read_security({"listeners": "PLAINTEXT://localhost:1", **settings})
        assert security is not None
        assert security.tokens.delegation_token_secret_key.reveal() == SECRET
        assert SECRET not in repr(security)


def test_a_jaas_line_with_a_token() -> None:
    line = f'{MODULE} username="id" password="hmac" tokenauth="true";'
    assert parse_jaas("jaas", line, "SCRAM-SHA-256").by_token
    assert not parse_jaas("jaas", line.replace("true", "false"), "SCRAM-SHA-256").by_token
    with pytest.raises(InvalidConfig, match="tokenauth"):
        parse_jaas("jaas", line.replace("true", "yes"), "SCRAM-SHA-256")


# --- requests and logins ----------------------------------------------------------------------


class Town(Bench):
    """A broker with delegation tokens and rules: ann is a super user, bob is not."""

    def __init__(self, *rules: Acl, **settings: str) -> None:
        super().__init__(**{**ACLS, "delegation.token.secret.key": SECRET, **settings})
        self._rules = rules

    async def __aenter__(self) -> Town:
        await super().__aenter__()
        services = self.broker._running.services
        assert services.authorizer is not None
        assert services.tokens is not None
        self.tokens: DelegationTokens = services.tokens
        await services.authorizer.change(add=self._rules)
        return self

    async def asks(self, name: str, request: Struct, version: int) -> Any:
        """The answer to a user, by PLAIN."""
        async with self.asker() as asker:
            await log_in(asker, name)
            return await asker.ask(request, version)

    async def refuses(self, name: str, request: Struct, code: int) -> None:
        assert (await self.asks(name, request, 2)).error_code == code

    async def make(self, name: str = "ann", version: int = 3, **fields: Any) -> Any:
        return await self.asks(
            name, t.CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **fields}), version
        )

    async def describe(self, name: str, owners: list[str] | None = None) -> list[str]:
        """The owners of the tokens that are described to a user."""
        kind = t.DescribeDelegationTokenRequestDescribeDelegationTokenOwner
        named = None
        if owners is not None:
            named = [kind(principal_type="User", principal_name=each) for each in owners]
        answer = await self.asks(name, t.DescribeDelegationTokenRequest(owners=named), 3)
        assert answer.error_code == 0
        return [each.principal_name for each in answer.tokens]


async def log_in(asker: Asker, name: str) -> None:
    await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    token = f"\0{name}\0{name}-secret".encode()
    assert not (await asker.ask(t.SaslAuthenticateRequest(auth_bytes=token), 2)).error_code


def by_token(made: Any, mechanism: str = "SCRAM-SHA-256", password: str = "") -> ClientSecurity:
    password = password or base64.b64encode(made.hmac).decode()
    jaas = f'{MODULE} username="{made.token_id}" password="{password}" tokenauth=true;'
    return client_security(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    )


def renewer(name: str, kind: str = "User") -> Any:
    return t.CreateDelegationTokenRequestCreatableRenewers(principal_type=kind, principal_name=name)


def allow(operation: Operation, resource: Resource, name: str) -> Acl:
    return Acl(resource, Pattern.LITERAL, name, "User:bob", "*", operation, Permission.ALLOW)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_login_by_a_token(version: int, caplog: pytest.LogCaptureFixture) -> None:
    """The client is the owner; the audit log names the token, and no log has its password or the secret."""
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        async with Town() as town:
            made = await town.make(version=version)
            assert (made.error_code, made.principal_name) == (0, "ann")
            assert made.expiry_timestamp_ms - made.issue_timestamp_ms == DAY_MS
            assert made.max_timestamp_ms - made.issue_timestamp_ms == 7 * DAY_MS
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                async with town.client(by_token(made, mechanism)) as client:
                    await client.create_topic(mechanism)  # ann may
            logins = [json.loads(each.message) for each in caplog.records if each.name == "logstore.audit"]
            by_scram = [each for each in logins if each.get("mechanism", "").startswith("SCRAM")]
            assert {each["token"] for each in by_scram} == {made.token_id}
            assert [each["owner"] for each in logins if each["event"] == "token created"] == [ANN]
            for hidden in (SECRET, base64.b64encode(made.hmac).decode(), repr(bytes(made.hmac))):
                assert hidden not in caplog.text

    run(test)


def test_logins_that_are_refused() -> None:
    """A wrong password, an unknown token, one that was removed, one that is not meant as a token."""

    async def test() -> None:
        async with Town() as town:
            made = await town.make()
            wrong = [
                by_token(made, password="wrong"),
                by_token(t.CreateDelegationTokenResponse(token_id="B" * 22, hmac=made.hmac)),
                by_token(t.CreateDelegationTokenResponse(token_id="../../cluster/id", hmac=made.hmac)),
                by("SCRAM-SHA-256", made.token_id, base64.b64encode(made.hmac).decode()),
            ]
            for each in wrong:
                with pytest.raises(AuthenticationFailed):
                    async with town.client(each) as client:
                        await client.metadata()
            gone = t.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
            assert (await town.asks("ann", gone, 2)).error_code == 0
            with pytest.raises(AuthenticationFailed):
                async with town.client(by_token(made)) as client:
                    await client.metadata()
            assert town.counts.failed == len(wrong) + 1

    run(test)


def test_a_session_ends_with_its_token() -> None:
    """A client by a token hears when its session ends, may not ask for tokens, and is cut off then."""

    async def test() -> None:
        async with Town() as town:
            made = await town.make(max_lifetime_ms=3_000)
            login = by_token(made).login
            assert login is not None
            async with town.asker() as asker:

                async def ask(request: Struct, version: int) -> Struct:
                    return await asker.ask(request, version)  # type: ignore[no-any-return]

                assert 1_000 < await login.log_in(ask) <= 3_000
                for request in (
                    t.CreateDelegationTokenRequest(max_lifetime_ms=-1),
                    t.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1),
                    t.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1),
                    t.DescribeDelegationTokenRequest(owners=None),
                ):
                    assert (await asker.ask(request, 2)).error_code == NOT_ALLOWED
                (session,) = [each.login for each in town.broker._running.server.connections if each.login]
                session._ends_s = 0.0  # as if the time had passed
                asker.send(t.MetadataRequest(topics=[]), 12)
                assert await asker.is_cut_off()

    run(test)


def test_a_token_about_to_expire_begins_no_session() -> None:
    async def test() -> None:
        async with Town() as town:
            made = await town.make()
            town.tokens.now_ms = lambda: made.expiry_timestamp_ms - 1_000
            with pytest.raises(AuthenticationFailed):
                async with town.client(by_token(made)) as client:
                    await client.metadata()

    run(test)


@pytest.mark.parametrize("listener", ["INTERNAL", "TLS"])
def test_who_asks_must_be_known(tmp_path: Path, listener: str) -> None:
    """Not on a plain listener, and not over TLS without a certificate."""

    async def test() -> None:
        settings = {
            "listeners": "INTERNAL://localhost:0,TLS://localhost:0",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,TLS:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "delegation.token.secret.key": SECRET,
            **stores(tmp_path),
        }
        async with broker(settings) as running:
            requests = [
                t.CreateDelegationTokenRequest(max_lifetime_ms=-1),
                t.RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1),
                t.ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=-1),
                t.DescribeDelegationTokenRequest(owners=None),
            ]
            security = trusting(tmp_path) if listener == "TLS" else None
            codes = [await _code(running, listener, each, security) for each in requests]
            assert codes == [NOT_ALLOWED] * 4

    run(test)


async def _code(running: AsyncBroker, listener: str, request: Struct, security: ClientSecurity | None) -> int:
    from logstore.broker.connections import Connections
    from logstore.broker.limits import Limits

    connections = Connections(
        limits=Limits(), client_id="test", ways={}, check=lambda: None, security=security
    )
    try:
        answer = await connections.ask_wire(running.listeners[listener], request)
        return int(answer.error_code)  # type: ignore[attr-defined]
    finally:
        connections.close(None)


def test_without_a_secret() -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            await log_in(asker, "ann")
            for request in (
                t.CreateDelegationTokenRequest(max_lifetime_ms=-1),
                t.RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1),
                t.ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=-1),
                t.DescribeDelegationTokenRequest(owners=[]),
            ):
                assert (await asker.ask(request, 2)).error_code == DISABLED

    run(test)


def test_who_may_change_a_token() -> None:
    """Its owner and its renewers, who need no permission."""

    async def test() -> None:
        async with Town() as town:
            mine = await town.make("ann")
            theirs = await town.make("ann", renewers=[renewer("bob")])

            def renews(password: bytes, period_ms: int = -1) -> Struct:
                return t.RenewDelegationTokenRequest(hmac=password, renew_period_ms=period_ms)

            def expires(password: bytes, period_ms: int = -1) -> Struct:
                return t.ExpireDelegationTokenRequest(hmac=password, expiry_time_period_ms=period_ms)

            for change in (renews, expires):
                assert (await town.asks("bob", change(b"unknown"), 2)).error_code == NOT_FOUND
                assert (await town.asks("bob", change(mine.hmac), 2)).error_code == MISMATCH
            shorter = await town.asks("bob", renews(theirs.hmac, 5_000), 2)
            assert 0 <= shorter.expiry_timestamp_ms - theirs.issue_timestamp_ms - 5_000 < 60_000
            later = await town.asks("ann", expires(theirs.hmac, 2**62), 1)
            assert later.expiry_timestamp_ms == theirs.max_timestamp_ms
            town.tokens.now_ms = lambda: theirs.max_timestamp_ms + 1
            assert (await town.asks("bob", renews(theirs.hmac), 2)).error_code == EXPIRED
            assert (await town.asks("bob", expires(theirs.hmac, 0), 2)).error_code == EXPIRED
            assert (await town.asks("bob", expires(theirs.hmac), 2)).error_code == 0
            assert await town.describe("ann") == ["ann"]

    run(test)


def test_who_may_create_and_describe() -> None:
    """Everyone their own; others' by CreateTokens, DescribeTokens, or Describe of the token."""

    async def test() -> None:
        async with Town(allow(Operation.CREATE_TOKENS, Resource.USER, "User:eve")) as town:
            for_eve: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "eve"}
            for_dan: dict[str, Any] = {**for_eve, "owner_principal_name": "dan"}
            refused = await town.make("bob", **for_dan)
            assert (refused.error_code, refused.token_id, refused.hmac) == (DENIED, "", b"")
            assert (refused.principal_name, refused.token_requester_principal_name) == ("dan", "bob")
            assert (await town.make("bob", renewers=[renewer("x", "Group")])).error_code == WRONG_TYPE
            assert (await town.make("ann", **{**for_dan, "owner_principal_type": "Group"})).error_code == (
                WRONG_TYPE
            )
            assert await town.describe("ann") == []
            made = await town.make("bob", **for_eve)
            assert (made.principal_name, made.token_requester_principal_name) == ("eve", "bob")
            dans = await town.make("ann", **for_dan)
            await town.make("ann", renewers=[renewer("bob")])
            await town.make("ann")
            assert sorted(await town.describe("ann")) == ["ann", "ann", "dan", "eve"]
            assert sorted(await town.describe("bob")) == ["ann", "eve"]
            assert await town.describe("bob", ["eve"]) == ["eve"]
            assert await town.describe("bob", ["dan"]) == []
            assert await town.describe("ann", []) == []
            authorizer = town.broker._running.services.authorizer
            assert authorizer is not None
            await authorizer.change(
                add=[
                    allow(Operation.DESCRIBE_TOKENS, Resource.USER, "User:ann"),
                    allow(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, dans.token_id),
                ]
            )
            assert sorted(await town.describe("bob")) == ["ann", "ann", "dan", "eve"]

    run(test)


def test_expired_tokens_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    """By the controller; a malformed one stays, and is named in the log."""
    caplog.set_level(logging.INFO, logger="logstore.audit")

    async def test() -> None:
        async with Town(**{"delegation.token.expiry.check.interval.ms": "20"}) as town:
            async with StoreSession(town.store.client) as session:
                await session.ask(Create(f"{TOKENS_PATH}/broken", b"?", make_parents=True))
                kept, gone = await town.make(), await town.make(max_lifetime_ms=3_000)
                town.tokens.now_ms = lambda: gone.max_timestamp_ms + 1
                while (await session.ask(Get(f"{TOKENS_PATH}/{gone.token_id}"))).stat is not None:
                    await asyncio.sleep(0.01)
                for name in (kept.token_id, "broken"):
                    assert (await session.ask(Get(f"{TOKENS_PATH}/{name}"))).stat is not None
            assert "ignoring delegation token broken" in caplog.text
            removed = [json.loads(each.message) for each in caplog.records if each.name == "logstore.audit"]
            while not any(each["event"] == "token removed" for each in removed):
                await asyncio.sleep(0.01)
                removed = [
                    json.loads(each.message) for each in caplog.records if each.name == "logstore.audit"
                ]

    run(test)


def test_a_token_of_another_broker() -> None:
    """It counts at once: a login reads the store."""

    async def test() -> None:
        with open_store() as store:
            settings = {**SASL, "delegation.token.secret.key": SECRET}
            async with broker(settings, 1, metadata=store) as one, broker(settings, 2, metadata=store) as two:
                async with Asker(one.listeners["CLIENTS"]) as asker:
                    await log_in(asker, "ann")
                    made = await asker.ask(t.CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
                from logstore.broker import Client

                async with Client([two.listeners["CLIENTS"]], security=by_token(made)) as client:
                    await client.metadata()

    run(test)
