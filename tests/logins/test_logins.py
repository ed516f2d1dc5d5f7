"""Other projects' clients at a broker of ours, by every way in, with right and with wrong credentials."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.kafka.jars import Missing, jars
from logstore.broker import BlockingClient, SharedStore, client_security, open_store
from logstore.broker.config_nodes import change_entity
from logstore.broker.embedded import BrokerConfig
from logstore.broker.security import users
from logstore.broker.security.certificates import new_authority, signed_by
from logstore.broker.security.secret import Secret
from logstore.broker.security.tls import now
from logstore.broker.store_session import StoreSession
from logstore.broker.threaded import Broker
from logstore.cli.certs import make_certificates
from tests.broker.security.provider import claims, settings, signed
from tests.logins.clients import CLIENTS, VERSION, answer
from tests.logins.secured_kafka import client_properties

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAMS, "OAUTHBEARER")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SESSION_MS = 2_000
RECORDS = 5
TRIED = count()


@dataclass
class Target:
    """The broker, its listeners, and what clients need for each."""

    broker: Broker
    store: SharedStore
    tls: Path

    def spec(self, listener: str, mechanism: str = "", **change: Any) -> dict[str, Any]:
        """The options of a client with the right credentials; `change` replaces some."""
        encrypted = listener != "SASL"
        protocol = {"SASL": "SASL_PLAINTEXT", "MUTUAL": "SSL"}.get(listener, "SASL_SSL")
        topic = f"t{next(TRIED)}"
        if not change.pop("is_refused", False):
            self.broker.create_topic(topic, 1)
        return {
            "bootstrap": str(self.broker._client.listeners[listener]),
            "protocol": protocol,
            "mechanism": mechanism,
            "user": "ann",
            "password": "ann-secret",
            "token": signed(claims(time.time())) if mechanism == "OAUTHBEARER" else "",
            "ca": str(self.tls / "ca.pem") if encrypted else "",
            "cert": str(self.tls / "ann.pem") if listener == "MUTUAL" else "",
            "topic": topic,
            "count": RECORDS,
            "pause_s": 0,
            **change,
        }

    @property
    def logins(self) -> Any:
        return self.broker._client._running.server.logins

    def change_user(self, name: str, password: str | None) -> None:
        """Give a user a password, or take it away."""

        async def change() -> None:
            async with StoreSession(self.store.client) as session:
                new = {
                    each: users.new_credential(each, Secret(password), Random(1)) if password else None
                    for each in SCRAMS
                }
                path = users.entity_path(name)
                await change_entity(session.ask, path, lambda found: users.changed(found, new))

        asyncio.run(change())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("logins")
    tls = home / "tls"
    make_certificates(tls, {"broker": ["localhost", "127.0.0.1"], "ann": []})
    stranger = new_authority(now())
    expired = now() - timedelta(days=30)
    for name, made in (
        ("stranger", signed_by(stranger, "ann", [], now())),
        ("expired", signed_by(stranger, "ann", [], expired, days=9)),
    ):
        (tls / f"{name}.pem").write_bytes(made.key_pem + made.certificate_pem)
    given = {
        "listeners": "BROKERS://127.0.0.1:0,SASL://localhost:0,TLS://localhost:0,"
        "MUTUAL://localhost:0,SHORT://localhost:0",
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,"
        "MUTUAL:SSL,SHORT:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.location": str(tls / "broker.pem"),
        "ssl.truststore.location": str(tls / "ca.pem"),
        "connection.failed.authentication.delay.ms": "20",
        "group.initial.rebalance.delay.ms": "0",
        "delegation.token.secret.key": "a secret of all brokers",
        "offsets.topic.replication.factor": "1",
        **{
            name: value
            for name, value in settings(home).items()
            if name.startswith("sasl.oauthbearer.") and "mechanisms" not in name
        },
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_ann="ann-secret";'
            for name in ("sasl", "tls", "short")
        },
    }
    with open_store() as store, Broker(BrokerConfig(metadata=store, settings=given)) as broker:
        running = Target(broker, store, tls)
        running.change_user("ann", "ann-secret")
        yield running


def said_by(client: str, spec: dict[str, Any]) -> dict[str, Any]:
    try:
        return answer(client, spec)
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("listener", ["SASL", "TLS"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_login(target: Target, client: str, mechanism: str, listener: str) -> None:
    failed = target.logins.failed
    said = said_by(client, target.spec(listener, mechanism))
    assert said == {"written": RECORDS, "read": RECORDS}
    assert target.logins.failed == failed


@pytest.mark.parametrize("client", CLIENTS)
def test_a_certificate(target: Target, client: str) -> None:
    assert said_by(client, target.spec("MUTUAL")) == {"written": RECORDS, "read": RECORDS}


WRONG: dict[str, dict[str, Any]] = {
    "PLAIN": {"password": "wrong"},
    "SCRAM-SHA-256": {"password": "wrong"},
    "SCRAM-SHA-512": {"user": "nobody"},
    "OAUTHBEARER": {"token": "expired"},
}


@pytest.mark.parametrize("listener", ["SASL", "TLS"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_login(target: Target, client: str, mechanism: str, listener: str) -> None:
    failed = target.logins.failed
    change = dict(WRONG[mechanism])
    if "token" in change:
        change["token"] = signed(claims(time.time() - 3600))
    said = said_by(client, target.spec(listener, mechanism, is_refused=True, **change))
    assert said.keys() == {"error"}
    assert target.logins.failed > failed


@pytest.mark.parametrize("certificate", ["", "stranger", "expired"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_certificate(target: Target, client: str, certificate: str) -> None:
    cert = str(target.tls / f"{certificate}.pem") if certificate else ""
    said = said_by(client, target.spec("MUTUAL", cert=cert, is_refused=True))
    assert said.keys() == {"error"}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_revoked_user(target: Target, client: str) -> None:
    target.change_user("bob", "bob-secret")
    change = {"user": "bob", "password": "bob-secret"}
    assert said_by(client, target.spec("TLS", "SCRAM-SHA-512", **change))["read"] == RECORDS
    target.change_user("bob", None)
    said = said_by(client, target.spec("TLS", "SCRAM-SHA-512", is_refused=True, **change))
    assert said.keys() == {"error"}


RENEWS = {"java", "librdkafka", "franz-go", "kafkajs", "kafka-python"}
"""The others are disconnected at the end of their session, and connect again."""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_that_ends_in_the_middle(target: Target, client: str, mechanism: str) -> None:
    """Every record is written once, and in order."""
    renewed = target.logins.renewed
    spec = target.spec("SHORT", mechanism, count=30, pause_s=0.2)
    assert said_by(client, spec) == {"written": 30, "read": 30}
    values = [int(record.value or b"-1") for record in target.broker.scan(spec["topic"], 0)]
    assert values == list(range(30))
    if client in RENEWS:
        assert target.logins.renewed > renewed


WITH_TOKENS = ("java", "franz-go")
"""Clients that can log in by a delegation token."""


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_delegation_tokens(target: Target, tmp_path: Path, mechanism: str) -> None:
    """Kafka's tool makes, describes, renews and expires a token; clients log in by it."""
    file = tmp_path / "client.properties"
    properties = client_properties(mechanism, "ann-secret", ca=target.tls / "ca.pem")
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def tool(*words: str, config: Path = file) -> str:
        server = ("--bootstrap-server", str(target.broker._client.listeners["TLS"]))
        return _tool("DelegationTokenCommand", *words, *server, "--command-config", str(config))

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    (row,) = [each for each in made.splitlines() if "User:ann" in each]
    token_id, password, owner, _, renewers = row.split()[:5]
    assert (owner, renewers) == ("User:ann", "[User:bob]"), made
    assert token_id in tool("--describe", "--owner-principal", "User:ann")
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "60000", "--hmac", password)
    change = {"user": token_id, "password": password, "by_token": True}
    for client in WITH_TOKENS:
        said = said_by(client, target.spec("TLS", mechanism, **change))
        assert said == {"written": RECORDS, "read": RECORDS}, client
    line = properties["sasl.jaas.config"].replace('"ann"', f'"{token_id}"').replace("ann-secret", password)
    of_token = {**properties, "sasl.jaas.config": line.replace(";", ' tokenauth="true";')}
    with BlockingClient([target.broker._client.listeners["TLS"]], security=client_security(of_token)) as ours:
        assert ours.metadata().brokers
    by_token = tmp_path / "token.properties"
    by_token.write_text("".join(f"{name}={value}\n" for name, value in of_token.items()))
    assert "not allowed" in tool("--create", "--max-life-time-period", "-1", config=by_token)
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", password)
    for client in WITH_TOKENS:
        said = said_by(client, target.spec("TLS", mechanism, is_refused=True, **change))
        assert said.keys() == {"error"}, client


def _tool(name: str, *words: str) -> str:
    """Run one of Kafka's tools; return what it prints."""
    try:
        found = jars(VERSION)
    except Missing as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [
            *("java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", f"{found}/*"),
            *(f"org.apache.kafka.tools.{name}", *words),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


WAYS = [*((listener, mechanism) for listener in ("SASL", "TLS") for mechanism in MECHANISMS), ("MUTUAL", "")]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_kafkas_tools(target: Target, tmp_path: Path, listener: str, mechanism: str) -> None:
    """By every way in, with right credentials and with wrong ones."""
    wrong = dict(WRONG.get(mechanism, {"cert": str(target.tls / "stranger.pem")}))
    if "token" in wrong:
        wrong["token"] = signed(claims(time.time() - 3600))
    for change in ({}, wrong):
        spec = target.spec(listener, mechanism, is_refused=True, **change)
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in _properties(spec, tmp_path).items()))
        words = ("--create", "--topic", spec["topic"], "--bootstrap-server", spec["bootstrap"])
        failed = target.logins.failed
        said = _tool("TopicCommand", *words, "--command-config", str(file))
        if change:
            assert "Created topic" not in said
            assert (
                target.logins.failed > failed or not mechanism
            )  # TLS refuses a certificate before any login
        else:
            assert f"Created topic {spec['topic']}." in said, said
            assert target.logins.failed == failed


def _properties(spec: dict[str, Any], directory: Path) -> dict[str, str]:
    """Return the properties of Kafka's clients for these options, as `java/Logins.java` makes them."""
    mechanism, security = spec["mechanism"], "org.apache.kafka.common.security"
    ca = Path(spec["ca"]) if spec["ca"] else None
    if mechanism in ("PLAIN", *SCRAMS):
        return client_properties(mechanism, spec["password"], ca=ca, user=spec["user"])
    found = {"security.protocol": spec["protocol"]}
    if ca is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}
    if spec["cert"]:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": spec["cert"]}
    if mechanism == "OAUTHBEARER":
        token = directory / "token.jwt"
        token.write_text(spec["token"])
        found |= {
            "sasl.mechanism": mechanism,
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.login.callback.handler.class": f"{security}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
        }
    return found
