"""`kafka.*` options of a read: which are used, which refused, which told to do nothing."""

from __future__ import annotations

import pickle

import pytest

from logstore.broker.limits import Address
from logstore.spark.client import FETCH_BYTES, ClientSettings
from logstore.spark.errors import InvalidOption

SERVERS = "one:9092, two:9093"


def test_defaults() -> None:
    settings = ClientSettings.parse(SERVERS, {})
    assert settings.bootstrap == (Address("one", 9092), Address("two", 9093))
    assert (settings.fetch_bytes, settings.fetch_wait_ms, settings.timeout_s) == (FETCH_BYTES, 500, 60.0)
    assert settings.unused == ()


def test_what_has_a_meaning_is_used() -> None:
    settings = ClientSettings.parse(
        SERVERS,
        {
            "client.id": "me",
            "request.timeout.ms": "1000",
            "socket.connection.setup.timeout.ms": "200",
            "reconnect.backoff.ms": "5",
            "reconnect.backoff.max.ms": "50",
            "default.api.timeout.ms": "2500",
            "fetch.max.wait.ms": "40",
            "fetch.max.bytes": "2000",
            "max.partition.fetch.bytes": "3000",
            "group.id": "read elsewhere",
            "isolation.level": "read_committed",
            "security.protocol": "plaintext",
        },
    )
    limits = settings.limits
    assert settings.client_id == "me"
    assert (limits.request_timeout_ms, limits.connect_timeout_ms) == (1000, 200)
    assert (limits.reconnect_backoff_ms, limits.reconnect_backoff_max_ms) == (5, 50)
    assert (settings.timeout_s, settings.fetch_wait_ms, settings.fetch_bytes) == (2.5, 40, 2000)
    assert settings.unused == ()


def test_a_fetch_may_be_larger_than_by_default() -> None:
    assert ClientSettings.parse(SERVERS, {"fetch.max.bytes": "99000000"}).fetch_bytes == 99_000_000


def test_what_does_nothing_is_told() -> None:
    settings = ClientSettings.parse(SERVERS, {"max.poll.records": "500", "clinet.id": "misspelt"})
    assert settings.unused == ("kafka.clinet.id", "kafka.max.poll.records")


@pytest.mark.parametrize(
    ("kafka", "name"),
    [
        ({"security.protocol": "TLS"}, "s kafka.…: security.protocol"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "s kafka.…: sasl.mechanism"),
        ({"sasl.mechanism": "PLAIN"}, "s kafka.…: sasl.mechanism"),
        ({"ssl.truststore.location": "/x"}, "s kafka.…: ssl.truststore.location"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x"}, "s kafka.…: ssl.truststore.location"),
        ({"request.timeout.ms": "soon"}, "kafka.request.timeout.ms"),
        ({"fetch.max.bytes": "0"}, "kafka.fetch.max.bytes"),
    ],
)
def test_what_cannot_be_done_is_refused(kafka: dict[str, str], name: str) -> None:
    """To connect in plain text where somebody asked for TLS would be worse than not to connect."""
    with pytest.raises(InvalidOption, match=f"^option ?{name}"):
        ClientSettings.parse(SERVERS, kafka)


def test_a_login_travels_to_executors() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hush";'
    secured = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    settings = ClientSettings.parse(SERVERS, secured)
    assert settings.unused == ()
    assert "hush" not in repr(settings)
    there = pickle.loads(pickle.dumps(settings))
    login = there.client()._connections.security.login
    assert login is not None
    assert (login.username, login.password.reveal()) == ("me", "hush")


@pytest.mark.parametrize("servers", ["", " , ", "one", "one:many", "one:9092,two"])
def test_addresses_are_checked(servers: str) -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
        ClientSettings.parse(servers, {})
