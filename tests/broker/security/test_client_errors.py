"""Errors of a client whose login cannot begin, or whose certificate is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.broker import BlockingClient, Broker, BrokerConfig, client_security
from logstore.broker.errors import AuthenticationFailed, RequestUnanswered
from logstore.errors import InvalidConfig
from tests.broker.security.authority import stores

BY_TOKEN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def fails() -> str:
    raise RuntimeError("the vault is down")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (fails, "no token to log in with: RuntimeError: the vault is down"),
        (lambda: None, "its function returned NoneType, not str"),
        (lambda: b"token", "its function returned bytes, not str"),
        (lambda: "", "the token is empty or has invalid characters"),
    ],
)
def test_a_function_that_returns_no_token(
    source: Callable[[], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "asyncio")
    security = client_security(BY_TOKEN, token=source)
    with (
        Broker(BrokerConfig()) as broker,
        BlockingClient([broker.address], security=security) as client,
        pytest.raises(AuthenticationFailed, match=said),
    ):
        client.create_topic("orders")
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("more", "token", "said"),
    [
        ({}, "abc", "token is not a function"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///token"}, lambda: "x", "has no effect with token="),
        ({"sasl.oauthbearer.token.endpoint.url": "file://here/token"}, None, "expected https"),
        ({"sasl.mechanism": ""}, None, "needs sasl.mechanism: one of "),
        ({"sasl.jaas.config": None}, None, "sasl.jaas.config is None; expected text"),
    ],
)
def test_what_no_client_can_log_in_with(more: dict[str, Any], token: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        client_security(BY_TOKEN | more, token=token)


def test_a_token_without_logins() -> None:
    """It was ignored."""
    with pytest.raises(InvalidConfig, match=r"token has no effect with security\.protocol=PLAINTEXT"):
        client_security({}, token=lambda: "x")


def test_a_certificate_that_is_required_or_not_trusted_is_named(tmp_path: Path) -> None:
    """The alert comes after the handshake, as if the broker had closed the connection."""
    own = stores(tmp_path)
    settings = {"listeners": "SSL://localhost:0", "ssl.client.auth": "required", **own}
    tls = {"security.protocol": "SSL", "ssl.truststore.location": own["ssl.truststore.location"]}
    said = "requires a certificate; set ssl.keystore.location"
    with (
        Broker(BrokerConfig(settings=settings)) as broker,
        BlockingClient([broker.address], security=client_security(tls), timeout_s=2) as client,
        pytest.raises(RequestUnanswered, match=said) as told,
    ):
        client.create_topic("orders")
    assert "('" not in str(told.value)
    assert "it may require TLS" not in str(told.value)
