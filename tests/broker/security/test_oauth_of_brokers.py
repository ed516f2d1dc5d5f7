"""Brokers that log in to each other by tokens of an identity provider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logstore.broker import AsyncBroker, Client, SharedStore, open_store
from logstore.disk.files import wall_clock_ms
from tests.broker.security.authority import broker
from tests.broker.security.provider import claims, serving, settings, signed
from tests.broker.security.test_login import run

_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def _token(**change: object) -> str:
    return signed(claims(wall_clock_ms() / 1000, **change))


def _two(directory: Path, endpoint: str, shared: SharedStore, **more: str) -> tuple[AsyncBroker, AsyncBroker]:
    own = {
        "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:brokers;User:ANONYMOUS",
        "default.replication.factor": "2",
        "min.insync.replicas": "2",
        **settings(directory),
        _ENDPOINT: endpoint,
        **more,
    }
    return broker(own, metadata=shared), broker(own, 2, metadata=shared)


@pytest.mark.parametrize("origin", ["a file", "the provider"])
def test_brokers_replicate_by_tokens(tmp_path: Path, origin: str) -> None:
    async def test() -> None:
        with serving() as provider, open_store() as shared:
            provider.token = 200, json.dumps({"access_token": _token(sub="brokers")}).encode()
            file = tmp_path / "token"
            file.write_text(_token(sub="brokers"))
            endpoint, more = file.as_uri(), {}
            if origin == "the provider":
                endpoint = f"{provider.url}/token"
                jaas = "listener.name.brokers.oauthbearer.sasl.jaas.config"
                more = {jaas: f'{_MODULE} clientId="broker" clientSecret="x";'}
            first, second = _two(tmp_path, endpoint, shared, **more)
            async with first, second, Client([first.bootstrap], timeout_s=30) as client:
                await client.create_topic("orders", 4)
                for partition in range(4):
                    await client.append("orders", b"a", partition=partition)
                assert first._running.server.logins.successful + second._running.server.logins.successful >= 2
            if origin == "the provider":
                assert {path for path, _, _ in provider.asked} == {"/token"}

    run(test)
