"""Security settings: listeners, prefixes, and what is refused by name."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import pytest

from logstore.broker.limits import Address
from logstore.broker.security.config import (
    NOT_BUILT,
    Protocol,
    Security,
    read_security,
    refuse_open,
    split_security,
)
from logstore.broker.security.secret import Secret
from logstore.broker.settings import read_settings
from logstore.errors import InvalidConfig


def read(settings: dict[str, str]) -> Security:
    own, rest = split_security(settings)
    assert rest == {}
    security = read_security(own)
    assert security is not None
    return security


TWO = {
    "listeners": "INTERNAL://127.0.0.1:9092, Clients://:9093",
    "advertised.listeners": "INTERNAL://127.0.0.1:9092,CLIENTS://one.example:19093",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SSL",
    "inter.broker.listener.name": "INTERNAL",
}


def test_several_listeners() -> None:
    security = read({**TWO, "ssl.client.auth": "required", "listener.name.clients.ssl.client.auth": "none"})
    internal, clients = security.listeners
    assert security.of_brokers == internal
    assert (internal.name, internal.protocol) == ("INTERNAL", Protocol.PLAINTEXT)
    assert (clients.name, clients.protocol) == ("CLIENTS", Protocol.SSL)
    assert (clients.bind, clients.advertised) == (Address("0.0.0.0", 9093), Address("one.example", 19093))
    assert (internal.tls.ssl_client_auth, clients.tls.ssl_client_auth) == ("required", "none")


def test_a_name_may_have_hyphens() -> None:
    """As Strimzi's listeners have."""
    settings = {
        "listeners": "PLAIN-9092://127.0.0.1:9092,TLS-9093://127.0.0.1:9093",
        "listener.security.protocol.map": "PLAIN-9092:PLAINTEXT,TLS-9093:SSL",
        "inter.broker.listener.name": "PLAIN-9092",
        "listener.name.tls-9093.ssl.client.auth": "requested",
    }
    plain, tls = read(settings).listeners
    assert (plain.name, tls.name, tls.tls.ssl_client_auth) == ("PLAIN-9092", "TLS-9093", "requested")


def test_a_single_listener_is_the_brokers_own() -> None:
    assert read({"listeners": "SSL://[::1]:9093"}).of_brokers.bind == Address("::1", 9093)


def test_the_protocol_of_the_brokers_names_their_listener() -> None:
    listeners = "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
    assert read({"listeners": listeners}).inter_broker == "PLAINTEXT"
    assert read({"listeners": listeners, "security.inter.broker.protocol": "SSL"}).inter_broker == "SSL"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"listeners": "SSL://h"}, "expected NAME://host:port"),
        ({"listeners": "SSL://h:70000"}, "expected NAME://host:port"),
        ({"listeners": ""}, "expected listeners"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "different ports"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "names SSL twice"),
        ({"listeners": "INSIDE://h:1"}, "no protocol for listener INSIDE"),
        ({"listeners": "SSL://h:1", "listener.security.protocol.map": "SSL:TLS"}, "'SSL:TLS'"),
        (
            {"listeners": "SSL://h:1", "listener.security.protocol.map": "A:SSL"},
            "no protocol for listener SSL",
        ),
        ({"listeners": "SSL://:1"}, "clients cannot connect to SSL"),
        ({"listeners": "SSL://h:1", "advertised.listeners": "SSL://0.0.0.0:1"}, "clients cannot connect"),
        ({"listeners": "SSL://h:1", "advertised.listeners": "A://h:1"}, "names A, which is not in listeners"),
        ({**TWO, "advertised.listeners": "CLIENTS://h:1"}, "lacks INTERNAL"),
        ({**TWO, "inter.broker.listener.name": "OTHER"}, "OTHER, which is not in listeners"),
        ({**TWO, "security.inter.broker.protocol": "SSL"}, "not both"),
        ({"listeners": "SSL://h:1", "ssl.client.auth": "yes"}, "expected none, requested or required"),
        ({"listeners": "SSL://h:1", "ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({"listeners": "SSL://h:1", "ssl.cipher": "x"}, "unknown settings: ssl.cipher"),
        ({"listeners": "SSL://h:1", "listener.name.b.ssl.client.auth": "none"}, "no listener 'b'"),
        ({"listeners": "SSL://h:1", "listener.name.ssl.max.connections": "1"}, "cannot be set for one"),
        (
            {"listeners": "SSL://h:1", "listener.name.ssl.max.connection.creation.rate": "0"},
            "it must be 1 to",
        ),
        (
            {"listeners": "SSL://h:1", "listener.name.ssl.max.connection.creation.rate": "-1"},
            "it must be 1 to",
        ),
        ({"ssl.client.auth": "none"}, "has no effect without listeners"),
        ({"inter.broker.listener.name": "SSL"}, "has no effect without listeners"),
        ({"listeners": "SSL://h:1", "ssl.endpoint.identification.algorithm": "ldap"}, "expected https"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        read(settings)


@pytest.mark.parametrize("start", NOT_BUILT)
@pytest.mark.parametrize("prefix", ["", "listener.name.ssl."])
def test_what_is_not_built_is_refused_by_name(start: str, prefix: str) -> None:
    name = f"{prefix}{start}x" if start.endswith(".") else f"{prefix}{start}"
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        read_settings({"listeners": "SSL://h:1", name: "1"}, node_id=1, host="h", port=1)


def test_old_files_name_the_plain_listener() -> None:
    own = {"security.inter.broker.protocol": "PLAINTEXT", "inter.broker.listener.name": "PLAINTEXT"}
    assert read_security({**own, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}) is None


def test_a_listener_between_the_controller_and_brokers() -> None:
    three = {
        "listeners": "INTERNAL://h:1,CONTROL://h:3,CLIENTS://h:2",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SSL,CONTROL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "control.plane.listener.name": "control",
    }
    security = read(three)
    assert security.of_controller is not None
    assert [each.name for each in security.listeners if security.is_for_brokers(each)] == [
        "INTERNAL",
        "CONTROL",
    ]
    for wrong in (
        {"control.plane.listener.name": "INTERNAL"},
        {"control.plane.listener.name": "OTHER"},
        {"advertised.listeners": "INTERNAL://h:1,CLIENTS://h:2"},
    ):
        with pytest.raises(InvalidConfig, match="that is not INTERNAL"):
            read({**three, **wrong})


def test_a_listener_has_a_rate_of_new_connections_of_its_own() -> None:
    internal, clients = read({**TWO, "listener.name.clients.max.connection.creation.rate": "7"}).listeners
    assert (internal.most_a_second, clients.most_a_second) == (None, 7)


def test_an_open_listener_is_refused() -> None:
    refuse_open(None, Address("127.0.0.1", 1))
    refuse_open(None, Address("localhost", 1))
    refuse_open(read(TWO), Address("0.0.0.0", 1))
    with pytest.raises(InvalidConfig, match="--insecure"):
        refuse_open(None, Address("0.0.0.0", 9092))
    with pytest.raises(InvalidConfig, match="listener PLAINTEXT on host:1"):
        refuse_open(read({"listeners": "PLAINTEXT://host:1,SSL://host:2"}), Address("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("127.example.com", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("localhost.example", False),
    ],
)
def test_the_hosts_that_are_this_one(host: str, is_here: bool) -> None:
    with nullcontext() if is_here else pytest.raises(InvalidConfig, match="full access"):
        refuse_open(None, Address(host, 9092))


@pytest.mark.parametrize("listeners", [{}, {"listeners": "SSL://localhost:9093"}])
def test_the_time_of_a_handshake_is_a_limit_of_all_listeners(listeners: dict[str, str]) -> None:
    found = read_settings(
        {**listeners, "ssl.handshake.timeout.ms": "5000"}, node_id=1, host="localhost", port=0
    )
    assert found.limits.ssl_handshake_timeout_ms == 5_000


def test_a_secret_is_not_printed() -> None:
    settings = {"listeners": "SSL://h:1", "ssl.key.password": "hush", "ssl.keystore.key": "hush"}
    read_in = read_settings(settings, node_id=1, host="h", port=1)
    assert read_in.security is not None
    assert read_in.security.listeners[0].tls.ssl_key_password.reveal() == "hush"
    assert "hush" not in f"{read_in!r} {read_in.security} {Secret('hush')} {[Secret('hush')]}"
    assert not Secret("")
    with pytest.raises(TypeError):
        pickle.dumps(Secret("hush"))
