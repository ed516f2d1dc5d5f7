"""Settings of OAUTHBEARER, of brokers and of clients."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from logstore.broker import client_security
from logstore.broker.security import oauth
from logstore.broker.security.config import OAuthConfig, TlsConfig, read_security, split_security
from logstore.broker.security.oauth import header_of
from logstore.broker.security.tls import provider_context
from logstore.disk.files import wall_clock_ms
from logstore.errors import InvalidConfig
from tests.broker.security.hostile_tokens import GOOD
from tests.broker.security.provider import jwks, key

LISTENER = {
    "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
}
OWN = "listener.name.clients.oauthbearer."
URL = "sasl.oauthbearer.jwks.endpoint.url"
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler"


def read(more: dict[str, str]) -> OAuthConfig:
    security = read_security(split_security(LISTENER | more)[0])
    assert security is not None
    found = next(each for each in security.listeners if each.name == "CLIENTS").oauth
    assert found is not None
    return found


def test_kafkas_lines_are_taken_as_they_are() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;"
    found = read(
        {
            URL: "https://all.example/keys",
            f"{OWN}{URL}": "https://one.example/keys",
            f"{OWN}sasl.jaas.config": module,
            f"{OWN}sasl.server.callback.handler.class": VALIDATOR,
            "sasl.oauthbearer.expected.audience": "a, b,",
        }
    )
    assert found.sasl_oauthbearer_jwks_endpoint_url == "https://one.example/keys"
    assert found.audiences == ("a", "b")


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({}, "so set sasl.oauthbearer.jwks.endpoint.url"),
        ({URL: "ftp://x/keys"}, "expected https://host/path or file:///path"),
        ({URL: "keys.json"}, "expected https://host/path or file:///path"),
        ({URL: "https:///keys"}, "expected https://host/path or file:///path"),
        ({URL: "file://keys"}, "expected https://host/path or file:///path"),
        ({URL: "https://[::1/keys"}, "Invalid IPv6 URL"),
        ({URL: "file:///k", "sasl.oauthbearer.expected.audience": " , "}, "names none"),
        ({URL: "file:///k", "sasl.oauthbearer.clock.skew.seconds": "-1"}, "too small"),
        ({URL: "file:///k", "sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "too small"),
        ({URL: "file:///k", "sasl.oauthbearer.require.luck": "1"}, "is not supported"),
        ({URL: "file:///k", f"{OWN}sasl.server.callback.handler.class": "my.Own"}, "Java classes"),
        ({URL: "file:///k", f"{OWN}sasl.oauthbearer.luck": "1"}, "is not supported for one mechanism"),
        (
            {URL: "file:///k", f"{OWN}sasl.jaas.config": 'x.OAuthBearerLoginModule required unsecured="1";'},
            "not supported",
        ),
        (
            {
                URL: "file:///k",
                "inter.broker.listener.name": "CLIENTS",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            },
            "so set sasl.oauthbearer.token.endpoint.url",
        ),
        (
            {
                URL: "file:///k",
                "inter.broker.listener.name": "CLIENTS",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
            },
            "clientId and clientSecret",
        ),
    ],
)
def test_settings_that_are_wrong(more: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        read(more)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "x"}, "expected https"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://id.example/t"}, "not of the form"),
        ({"sasl.login.callback.handler.class": "my.Own"}, "is not a setting"),
        (
            {
                "sasl.oauthbearer.token.endpoint.url": "https://id.example/t",
                "sasl.jaas.config": 'x.OAuthBearerLoginModule required clientId="a";',
            },
            "needs clientId and clientSecret",
        ),
    ],
)
def test_settings_of_clients_that_are_wrong(more: dict[str, str], complaint: str) -> None:
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(InvalidConfig, match=complaint):
        client_security(properties | more)


def test_a_start_without_expectations_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(key()))
    config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
    asyncio.run(_begun(config))
    for told in ("audience is not set: tokens with", "issuer is not set: tokens of any"):
        assert f"sasl.oauthbearer.expected.{told}" in caplog.text


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    config = OAuthConfig(sasl_oauthbearer_jwks_endpoint_url="file:///k")
    with pytest.raises(
        ModuleNotFoundError, match=r"joserfc is not installed: pip install 'pylogstore\[security\]'"
    ):
        asyncio.run(_begun(config))


async def _begun(config: OAuthConfig) -> None:
    await oauth.bearer_logins(config, provider_context(TlsConfig()), wall_clock_ms)


def test_headers_are_read_without_the_library() -> None:
    assert header_of(GOOD) == ("RS256", "one")
