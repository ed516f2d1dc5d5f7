"""Logins from end to end: our client, librdkafka, and clients that lie, on listeners with SASL."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.broker import (
    AsyncBroker,
    Client,
    ClientSecurity,
    SharedStore,
    client_security,
    open_store,
)
from logstore.broker.config_nodes import change_entity
from logstore.broker.errors import AuthenticationFailed
from logstore.broker.limits import Limits
from logstore.broker.metrics import Watched, page
from logstore.broker.security import login, sasl, scram, users
from logstore.broker.security.client import ClientLogin
from logstore.broker.security.secret import Secret
from logstore.broker.store_session import StoreSession
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.messages import DeleteTopicsRequest
from tests.broker.asking import Asker
from tests.broker.security.authority import broker, stores

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SALT = b"sixteen bytes ok"
NAME = "listener.name.clients."
SASL = {
    "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://localhost:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    f"{NAME}plain.sasl.jaas.config": f'{PLAIN} user_ann="ann-secret" user_bob="bob-secret";',
    "connection.failed.authentication.delay.ms": "5",
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def by(mechanism: str, name: str = "ann", password: str = "", **more: str) -> ClientSecurity:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    jaas = f'{module} username="{name}" password="{password or name + "-secret"}";'
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    return client_security({**properties, "sasl.jaas.config": jaas, **more})


async def add(store: SharedStore, name: str, *mechanisms: str) -> None:
    """Add a user before any broker has started."""
    async with StoreSession(store.client) as session:
        random = Random(1)
        found = {
            each: users.new_credential(each, Secret(f"{name}-secret"), random)
            for each in mechanisms or MECHANISMS[1:]
        }
        await change_entity(session.ask, users.entity_path(name), lambda now: users.changed(now, found))


class Bench:
    """A broker whose listener CLIENTS asks for a login, with the user ann."""

    def __init__(self, **settings: str) -> None:
        self._settings = {**SASL, **{name.replace("_", "."): value for name, value in settings.items()}}

    async def __aenter__(self) -> Bench:
        self._store = open_store()
        self.store = self._store.__enter__()
        await add(self.store, "ann")
        self.broker: AsyncBroker = broker(self._settings, metadata=self.store)
        await self.broker.__aenter__()
        self.address = self.broker.listeners["CLIENTS"]
        self.counts = self.broker._running.server.logins
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.broker.__aexit__(None, None, None)
        self._store.__exit__(None, None, None)

    def client(self, security: ClientSecurity, timeout_s: float = 20) -> Client:
        return Client([self.address], security=security, timeout_s=timeout_s)

    def asker(self) -> Asker:
        return Asker(self.address)


# --- our client -------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_logs_in(mechanism: str) -> None:
    async def test() -> None:
        async with Bench() as bench:
            async with bench.client(by(mechanism)) as client:
                await client.create_topic("orders")
                placed = await client.append("orders", b"a")
                assert [each.value for each in await client.read("orders", 0, placed.offset)] == [b"a"]
            successful, failed = bench.counts.successful, bench.counts.failed
            assert (successful > 0, failed) == (True, 0)
            for name, password in (("ann", "wrong"), ("nobody", "ann-secret")):
                async with bench.client(by(mechanism, name, password)) as client:
                    with pytest.raises(AuthenticationFailed, match="refused: Authentication failed"):
                        await client.metadata()
            assert (bench.counts.successful, bench.counts.failed) == (successful, 2)

    run(test)


ASKED: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "append": lambda client: client.append("orders", b"a"),
    "read": lambda client: client.read("orders", 0, 0),
    "create_topic": lambda client: client.create_topic("orders"),
    "topics": lambda client: client.topics(),
    "topic_settings": lambda client: client.topic_settings("orders"),
    "producer_id": lambda client: client.producer_id(),
    "commit": lambda client: client.commit("readers", {TopicPartition("orders", 0): 1}),
    "committed": lambda client: client.committed("readers", [TopicPartition("orders", 0)]),
    "offset": lambda client: client.offset(TopicPartition("orders", 0), -1),
    "durability": lambda client: client.durability("orders", 0, 0),
    "of_controller": lambda client: client.of_controller(DeleteTopicsRequest(("orders",))),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_refused_login_is_not_repeated(name: str) -> None:
    async def test() -> None:
        async with Bench() as bench, bench.client(by("PLAIN", "ann", "wrong")) as client:
            with pytest.raises(AuthenticationFailed, match="login of 'ann' refused"):
                await ASKED[name](client)
            assert bench.counts.failed == 1

    run(test)


def test_logins_are_counted_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "logstore.audit")

    async def test() -> None:
        async with Bench() as bench:
            for password in ("ann-secret", "wrong"):
                async with bench.client(by("SCRAM-SHA-256", "ann", password)) as client:
                    await asyncio.gather(client.metadata(), return_exceptions=True)
            text = page(Watched(logins=bench.counts, failed_handshakes=3)).content.decode()
            begins = "kafka_server_socketservermetrics_"
            assert f"{begins}successful_authentication_total {float(bench.counts.successful)}" in text
            assert f"{begins}failed_authentication_total 1.0" in text
            assert f"{begins}failed_tls_handshakes_total 3.0" in text

    run(test)
    lines = [each.getMessage() for each in caplog.records if each.name == "logstore.audit"]
    assert {json.loads(line)["event"] for line in lines} == {"login", "login failed"}
    assert not any("secret" in line for line in lines)


def test_a_mechanism_that_is_not_enabled() -> None:
    async def test() -> None:
        async with Bench(sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN") as bench:
            async with bench.client(by("SCRAM-SHA-256")) as client:
                with pytest.raises(AuthenticationFailed, match="enabled are SCRAM-SHA-512, PLAIN"):
                    await client.metadata()
            async with Client([bench.broker.listeners["INTERNAL"]], security=by("PLAIN")) as client:
                with pytest.raises(AuthenticationFailed, match="does this listener have SASL"):
                    await client.metadata()

    run(test)


def test_a_server_that_asks_for_too_much_work_or_does_not_know_the_password() -> None:
    async def test() -> None:
        for i, complaint in (
            ("1", "unsafe"),
            ("1000001", "unsafe"),
            ("999999999999", "unsafe"),
            ("4096", "SCRAM"),
        ):

            async def ask(request: Any, version: int, i: str = i) -> Any:
                if isinstance(request, t.SaslHandshakeRequest):
                    return t.SaslHandshakeResponse()
                token = bytes(request.auth_bytes).decode()
                if token.startswith("n,,"):
                    nonce = token.partition("r=")[2]
                    return t.SaslAuthenticateResponse(auth_bytes=f"r={nonce}x,s=AAAA,i={i}".encode())
                return t.SaslAuthenticateResponse(auth_bytes=b"v=" + base64.b64encode(bytes(32)))

            with pytest.raises(AuthenticationFailed, match=complaint):
                await ClientLogin("SCRAM-SHA-256", "ann", Secret("x")).log_in(ask)

    run(test)


def test_spaces_behind_values_are_none_of_them() -> None:
    """Properties files keep them, and Kafka's clients do not."""
    jaas = 'a.PlainLoginModule required username="ann" password="x"; '
    properties = {
        "security.protocol": "SASL_PLAINTEXT ",
        "sasl.mechanism": "PLAIN\t",
        "sasl.jaas.config": jaas,
    }
    login = client_security(properties).login
    assert isinstance(login, ClientLogin)
    assert login.mechanism == "PLAIN"


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS'; expected one of"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism: one of PLAIN"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "is not of the form"),
        ({"ssl.truststore.location": "ca.pem"}, "has no effect with security.protocol=PLAINTEXT"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "has no effect with security.protocol=SSL"),
        ({"client.id": "x"}, "client.id is not a setting of the security"),
    ],
)
def test_what_a_client_cannot_do_is_refused(properties: dict[str, str], complaint: str) -> None:
    """To connect in plain text where somebody asked for TLS would be worse than not to connect."""
    with pytest.raises(InvalidConfig, match=complaint):
        client_security(properties)


# --- the connection's states ------------------------------------------------------------------


async def logged_in(asker: Asker, version: int = 2) -> Any:
    answer = await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert answer.mechanisms == MECHANISMS
    token = b"\0ann\0ann-secret"
    return await asker.ask(t.SaslAuthenticateRequest(auth_bytes=token), version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_step_by_step(version: int) -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            assert (await asker.ask(t.ApiVersionsRequest(), 0)).error_code == 0
            answer = await logged_in(asker, version)
            assert (answer.error_code, answer.error_message, answer.session_lifetime_ms) == (0, "", 0)
            assert (await asker.ask(t.MetadataRequest(topics=None), 9)).brokers
            again = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=b"x"), version)
            assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
            again = await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert (again.error_code, again.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
            assert (await asker.ask(t.MetadataRequest(topics=None), 9)).brokers

    run(test)


def test_bare_tokens_behind_version_0() -> None:
    """As clients older than SaslAuthenticate do."""

    async def test() -> None:
        async with Bench() as bench:
            async with bench.asker() as asker:
                await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 0)
                token = b"\0ann\0ann-secret"
                asker.send_bytes(struct.pack(">i", len(token)) + token)
                assert await asker.size() == 0
                assert (await asker.ask(t.MetadataRequest(topics=None), 9)).brokers
            async with bench.asker() as asker:
                await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 0)
                asker.send_bytes(struct.pack(">i", 4) + b"\0a\0b")
                assert await asker.is_cut_off()

    run(test)


REQUESTS: dict[str, list[tuple[Any, int]]] = {
    "metadata": [(t.MetadataRequest(topics=None), 9)],
    "produce": [(t.ProduceRequest(acks=1), 9)],
    "a token without a handshake": [(t.SaslAuthenticateRequest(auth_bytes=b"\0ann\0ann-secret"), 2)],
    "create topics": [(t.CreateTopicsRequest(), 5)],
    "alter users": [(t.AlterUserScramCredentialsRequest(), 0)],
    "ApiVersions twice": [(t.ApiVersionsRequest(), 0), (t.ApiVersionsRequest(), 0)],
    "metadata behind a handshake": [
        (t.SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (t.MetadataRequest(topics=None), 9),
    ],
    "two handshakes": [(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)] * 2,
}


@pytest.mark.parametrize("case", REQUESTS)
def test_nothing_else_is_served_before_the_login(case: str) -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            *before, (request, version) = REQUESTS[case]
            for each, of in before:
                await asker.ask(each, of)
            asker.send(request, version)
            assert await asker.is_cut_off()
            assert bench.counts.failed == 1

    run(test)


HOSTILE = {
    "nothing": b"",
    "a byte": b"\0",
    "zeros": bytes(1000),
    "noise": bytes(range(256)) * 10,
    "a long name": b"\0" + b"x" * 400_000 + b"\0x",
    "three users": b"\0ann\0ann-secret\0bob",
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("case", HOSTILE)
def test_tokens_that_are_none(mechanism: str, case: str) -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            await asker.ask(t.SaslHandshakeRequest(mechanism=mechanism), 1)
            answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=HOSTILE[case]), 2)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message.startswith("Authentication failed")
            assert await asker.is_cut_off()

    run(test)


@pytest.mark.parametrize("size", [-1, 0, (512 << 10) + 1, 2**31 - 1])
def test_large_frames_are_not_read_before_the_login(size: int) -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            asker.send_bytes(struct.pack(">i", size) + bytes(100))
            assert await asker.is_cut_off()

    run(test)


def test_frames_may_be_larger_afterwards() -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            await logged_in(asker)
            answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=bytes(600 << 10)), 2)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(test)


def test_a_client_that_polls_seldom_may_log_in() -> None:
    """The consumer of Debezium's signals polls for 100 ms in 5 s: Kafka logs it in after 26 s."""
    assert min(login._LOGIN_S, Limits().ssl_handshake_timeout_ms / 1000) > 30


def test_a_silent_client_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOGIN_S", 0.02)

    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            await asker.ask(t.ApiVersionsRequest(), 0)
            assert await asker.is_cut_off()

    run(test)


def test_a_step_that_ends_after_its_connection_is_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was counted and audited as failed, and then as successful."""
    monkeypatch.setattr(login, "_LOGIN_S", 0.05)

    async def test() -> None:
        is_cut, has_ended = asyncio.Event(), asyncio.Event()

        async def slow(self: sasl.Plain, token: bytes) -> sasl.Step:
            await is_cut.wait()
            has_ended.set()
            return sasl.Step(b"", "ann")

        monkeypatch.setattr(sasl.Plain, "step", slow)
        async with Bench() as bench, bench.asker() as asker:
            await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
            asker.send(t.SaslAuthenticateRequest(auth_bytes=b"\0ann\0ann-secret"), 2)
            assert await asker.is_cut_off()
            is_cut.set()
            await has_ended.wait()
            await asyncio.sleep(0)
            assert (bench.counts.failed, bench.counts.successful) == (1, 0)

    run(test)


def test_a_failed_login_is_answered_late() -> None:
    async def test() -> None:
        async with Bench(connection_failed_authentication_delay_ms="100") as bench, bench.asker() as asker:
            await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
            began_s = asyncio.get_running_loop().time()
            asker.send(t.SaslAuthenticateRequest(auth_bytes=b"\0ann\0no"), 2)
            assert not await asker.is_cut_off(), "the answer comes first"
            assert asyncio.get_running_loop().time() - began_s >= 0.09

    run(test)


def test_a_session_that_has_ended() -> None:
    """Only a new login is served then, by the same mechanism and as the same user."""

    async def test() -> None:
        async with Bench(connections_max_reauth_ms="1200") as bench:
            for mechanism, token, error in (
                ("PLAIN", b"\0ann\0ann-secret", 0),
                ("PLAIN", b"\0bob\0bob-secret", ErrorCode.SASL_AUTHENTICATION_FAILED),
            ):
                async with bench.asker() as asker:
                    assert (await logged_in(asker)).session_lifetime_ms == 1200
                    early = await asker.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), 1)
                    assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
                    (held,) = (each.login for each in bench.broker._running.server.connections if each.login)
                    held._ends_s = held._began_s = 0.0
                    await asker.ask(t.SaslHandshakeRequest(mechanism=mechanism), 1)
                    answer = await asker.ask(t.SaslAuthenticateRequest(auth_bytes=token), 2)
                    assert answer.error_code == error
                    if error:
                        assert "Cannot change principals" in answer.error_message
                        assert await asker.is_cut_off()
                        continue
                    assert bench.counts.renewed == 1
                    held._ends_s = 0.0
                    asker.send(t.MetadataRequest(topics=None), 9)
                    assert await asker.is_cut_off()
                    assert bench.counts.expired == 1

    run(test)


# --- users ------------------------------------------------------------------------------------


def test_users_are_changed_by_requests() -> None:
    async def test() -> None:
        async with Bench() as bench, bench.asker() as asker:
            await logged_in(asker)
            upsertion = t.AlterUserScramCredentialsRequestScramCredentialUpsertion
            deletion = t.AlterUserScramCredentialsRequestScramCredentialDeletion
            salted = scram.salted_password("SCRAM-SHA-256", Secret("new"), SALT, 8192)
            good: dict[str, Any] = {
                "mechanism": 1,
                "iterations": 8192,
                "salt": SALT,
                "salted_password": salted,
            }
            answer = await asker.ask(
                t.AlterUserScramCredentialsRequest(
                    deletions=[deletion(name="ann", mechanism=2), deletion(name="nobody", mechanism=1)],
                    upsertions=[
                        upsertion(name="CN=new,*", **good),
                        upsertion(name="few", **{**good, "iterations": 4095}),
                        upsertion(name="many", **{**good, "iterations": 16_385}),
                        upsertion(name="", **good),
                        upsertion(name="odd", **{**good, "mechanism": 3}),
                        upsertion(name="twice", **good),
                        upsertion(name="twice", **good),
                        upsertion(name="empty", **{**good, "salted_password": b""}),
                    ],
                ),
                0,
            )
            assert {each.user: each.error_code for each in answer.results} == {
                "ann": 0,
                "nobody": ErrorCode.RESOURCE_NOT_FOUND,
                "CN=new,*": 0,
                "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                "twice": ErrorCode.DUPLICATE_RESOURCE,
                "empty": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            }
            everyone = await asker.ask(t.DescribeUserScramCredentialsRequest(users=None), 0)
            assert {
                each.user: [(one.mechanism, one.iterations) for one in each.credential_infos]
                for each in everyone.results
            } == {"CN=new,*": [(1, 8192)], "ann": [(1, 4096)]}
            named = t.DescribeUserScramCredentialsRequestUserName
            some = await asker.ask(
                t.DescribeUserScramCredentialsRequest(
                    users=[named(name=each) for each in ("ann", "nobody", "twice", "twice")]
                ),
                0,
            )
            codes = {each.user: each.error_code for each in some.results}
            assert codes == {"ann": 0, "nobody": ErrorCode.RESOURCE_NOT_FOUND, "twice": 92}
            async with bench.client(by("SCRAM-SHA-256", "CN=new,*", "new")) as client:
                assert await client.metadata()
            async with bench.client(by("SCRAM-SHA-512")) as client:
                with pytest.raises(AuthenticationFailed):
                    await client.metadata()

    run(test)


# --- librdkafka -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_logs_in(protocol: str, tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="needs the extra `interop`")

    def attempt(bootstrap: str, mechanism: str, password: str) -> list[str]:
        said: list[str] = []
        admin = confluent.Producer(
            {
                "bootstrap.servers": bootstrap,
                "security.protocol": protocol,
                "ssl.ca.location": str(tmp_path / "ca.pem"),
                "sasl.mechanism": mechanism,
                "sasl.username": "ann",
                "sasl.password": password,
                "error_cb": lambda error: said.append(error.name()),
            }
        )
        if password == "ann-secret":
            return sorted(admin.list_topics(timeout=20).brokers.values(), key=str) and ["in"]
        while "_AUTHENTICATION" not in said:
            admin.poll(0.05)
        return ["out"]

    async def test() -> None:
        settings = stores(tmp_path) | {
            "listener_security_protocol_map": f"INTERNAL:PLAINTEXT,CLIENTS:{protocol}"
        }
        async with Bench(**settings) as bench:
            for mechanism in MECHANISMS:
                for password, outcome in (("ann-secret", "in"), ("wrong", "out")):
                    found = await asyncio.to_thread(attempt, bench.broker.bootstrap, mechanism, password)
                    assert found == [outcome], mechanism

    run(test)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "cryptography"
    monkeypatch.setitem(sys.modules, package, None)
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'ScramLoginModule required username="a" password="b";',
    }
    with pytest.raises(ModuleNotFoundError, match=rf"{package} is not installed: .*pylogstore\[security\]"):
        client_security(login)
