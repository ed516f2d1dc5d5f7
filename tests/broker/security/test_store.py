"""The way to ZooKeeper: settings, and a real server that asks for certificates or a login."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from logstore.broker.security.store import StoreSecurity, access_of, split_store
from logstore.broker.settings import read_settings
from logstore.cli import main
from logstore.errors import InvalidConfig
from logstore.replication.metastore.operations import Create, Get, Set, StoreError
from logstore.replication.metastore.zookeeper_requests import acl_of
from tests.broker.security.authority import stores
from tests.zookeeper import Client, ZooKeeperServer

_SASL = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="%s";'


# --- settings ---------------------------------------------------------------------------------


def _split(**settings: str) -> StoreSecurity:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    security, rest = split_store({"num.partitions": "3", **given})
    assert rest == {"num.partitions": "3"}
    return security


def test_without_settings_connections_are_plain_and_nodes_open() -> None:
    assert _split() == StoreSecurity()
    assert access_of(StoreSecurity()).connect is None


def test_settings_of_kafka_are_taken() -> None:
    """Types of stores follow their names, and the password of a PEM key store is that of its key."""
    security, rest = split_store(
        {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": "/etc/key.pem",
            "zookeeper.ssl.keystore.password": "of-the-key",
            "zookeeper.ssl.truststore.location": "/etc/trust.p12",
            "zookeeper.ssl.truststore.password": "of-the-store",
            "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS",
            "zookeeper.ssl.enabled.protocols": "TLSv1.2",
            "zookeeper.ssl.protocol": "TLSv1.2",
            "zookeeper.ssl.crl.enable": "false",
            "zookeeper.set.acl": "true",
        }
    )
    assert not rest
    tls = security.tls
    assert tls is not None
    assert security.set_acl
    assert (tls.ssl_keystore_type, tls.ssl_truststore_type) == ("PEM", "PKCS12")
    assert tls.ssl_key_password.reveal() == "of-the-key"
    assert not tls.ssl_keystore_password
    assert tls.ssl_truststore_password.reveal() == "of-the-store"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zookeeper.ssl.keystore.location": "x.pem"}, "no effect without zookeeper.ssl.client.enable"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.crl.enable": "true"}, "revoked"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "x.jks"}, "keytool"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.context.supplier.class": "x"}, "unknown"),
        ({"zookeeper.ssl.client.enable": "yes"}, "expected true or false"),
        ({"zookeeper.set.acl": "true"}, "needs a login"),
        ({"zookeeper.sasl.jaas.config": _SASL.replace('password="%s"', "")}, "needs username and password"),
        ({"zookeeper.sasl.jaas.config": "ScramLoginModule required;"}, "needs DigestLoginModule"),
    ],
)
def test_what_could_leave_the_store_open_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_settings(settings, node_id=1, host="127.0.0.1", port=0)


def test_access_lists_are_those_of_kafka() -> None:
    """Nodes belong to their creator, secrets are not read by others, old consumers write for themselves."""

    def told(path: str, *, has_acls: bool = True) -> list[tuple[int, str]]:
        return [(each.perms, each.id.scheme) for each in acl_of(path, has_acls=has_acls)]

    assert told("/brokers/topics", has_acls=False) == [(31, "world")]
    assert told("/brokers/topics") == [(31, "auth"), (1, "world")]
    for path in (
        "/config/users/ann",
        "/config/brokers",
        "/delegation_token/tokens/x",
        "/logstore/login_secret",
    ):
        assert told(path) == [(31, "auth")]
    assert told("/consumers") == [(31, "world")]


# --- a real server ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """It has a port that asks for certificates, and takes logins of the user kafka."""
    directory = tmp_path_factory.mktemp("zookeeper-tls")
    own = stores(directory, "zookeeper", "localhost")
    tls = {
        "ssl.keyStore.location": own["ssl.keystore.location"],
        "ssl.trustStore.location": own["ssl.truststore.location"],
        "ssl.clientAuth": "need",
    }
    server = ZooKeeperServer(directory / "server", tls=tls, user="kafka:right")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _settings(directory: Path, name: str = "kafka", **more: str) -> dict[str, str]:
    files = {f"zookeeper.{name}": value for name, value in stores(directory, name).items()}
    return {"zookeeper.ssl.client.enable": "true", **files, **more}


def _client(server: ZooKeeperServer, settings: dict[str, str], chroot: str = "", **more: Any) -> Client:
    access = access_of(split_store(settings)[0])
    return Client(f"zookeeper://localhost:{server.tls_port}{chroot}", access=access, **more)


def _reads(url_port: int, path: str) -> bytes:
    """What a stranger on the plain port reads."""
    stranger = KazooClient(hosts=f"127.0.0.1:{url_port}")
    stranger.start(30)
    try:
        data, _ = stranger.get(path)
        return bytes(data)
    finally:
        stranger.stop()
        stranger.close()


def test_over_tls_with_a_certificate_nodes_belong_to_it(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Strangers read what is no secret, and write nothing."""
    with _client(server, _settings(tmp_path, **{"zookeeper.set.acl": "true"}), "/owned") as client:
        assert client.call(Create("/brokers/ids", b"x", make_parents=True)).error is None
        assert client.call(Create("/config/users/ann", b"secret", make_parents=True)).error is None
        assert client.call(Get("/config/users/ann")).data == b"secret"
        assert client.call(Set("/brokers/ids", b"y", 0)).error is None
    assert _reads(server.port, "/owned/brokers/ids") == b"y"
    with pytest.raises(NoAuthError):
        _reads(server.port, "/owned/config/users/ann")
    with Client(f"{server.url}/owned") as stranger:
        assert stranger.call(Set("/brokers/ids", b"z", -1)).error is not None
        assert stranger.call(Get("/brokers/ids")).data == b"y"


def test_a_root_that_is_missing_and_may_not_be_made_is_no_endless_loop(
    server: ZooKeeperServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker and `users set` waited for ever, and sent the same writes again and again."""
    with _client(server, _settings(tmp_path, **{"zookeeper.set.acl": "true"}), "/owned-root") as client:
        assert client.call(Create("/brokers", make_parents=True)).error is None
    with Client(f"{server.url}/owned-root/mine") as stranger:
        assert stranger.call(Create("/a/b", make_parents=True)).error is StoreError.CONNECTION_LOSS
    refused = "ZooKeeper refused to create the root /owned-root/mine, and it is missing: NoAuthError"
    assert refused in caplog.messages
    with Client(f"{server.url}/owned-root/brokers") as reader:  # it is there, and may not be made either
        assert reader.call(Get("/x")).error is StoreError.NO_NODE


def test_a_root_that_is_there_and_may_not_be_made_is_found(server: ZooKeeperServer) -> None:
    """It was taken for missing: a write whose parents others made meanwhile was not sent again."""
    owner = KazooClient(hosts=f"127.0.0.1:{server.port}")
    owner.start(30)
    owner.create("/closed")
    owner.create("/closed/mine")
    owner.set_acls("/closed", [make_acl("world", "anyone", read=True)])
    owner.stop()
    owner.close()
    with Client(f"{server.url}/closed/mine") as client:
        assert client.call(Create("/a/b", make_parents=True)).error is None
        assert all(session._has_root for session in client.store._sessions)


def test_a_refusal_is_reported_with_its_reason_and_without_the_data(
    server: ZooKeeperServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Data may be a credential."""
    with _client(server, _settings(tmp_path, **{"zookeeper.set.acl": "true"}), "/refuses") as client:
        assert client.call(Create("/config", make_parents=True)).error is None
    password = tmp_path / "password"
    password.write_text("a-secret")
    store = f"{server.url}/refuses"
    assert main.run(["users", "set", "ann", "--metadata", store, "--password-file", str(password)]) == 1
    refused = "ZooKeeper refused Create /config/users/ann, Create /config/changes/config_change_: NoAuthError"
    why = f"the metadata store does not answer changes of settings; check the store. {refused}; the outcome"
    assert why in capsys.readouterr().err
    assert refused in caplog.text
    assert "stored_key" not in caplog.text


@pytest.mark.parametrize("wrong", ["no certificate", "another host", "unknown authority"])
def test_a_wrong_certificate_or_host_is_not_connected(
    server: ZooKeeperServer, tmp_path: Path, wrong: str
) -> None:
    settings = _settings(tmp_path)
    host = "localhost"
    if wrong == "no certificate":
        del settings["zookeeper.ssl.keystore.location"]
    elif wrong == "unknown authority":
        del settings["zookeeper.ssl.truststore.location"]
    else:
        host = "127.0.0.1"  # which its certificate does not name
    connect = access_of(split_store(settings)[0]).connect
    assert connect is not None

    def greet() -> bytes:
        with connect((host, server.tls_port), host, 10.0) as connection:
            connection.sendall(struct.pack(">iiqiqi16s", 44, 0, 0, 10_000, 0, 16, b""))
            return bytes(connection.recv(4))  # TLS 1.3 tells of a missing certificate here

    with pytest.raises(OSError, match=r"(?i)tls|certificate|alert"):
        greet()


@pytest.mark.skipif(importlib.util.find_spec("puresasl") is None, reason="needs pylogstore[zookeeper-sasl]")
def test_a_login_by_sasl_owns_its_nodes_and_a_wrong_password_is_told(
    server: ZooKeeperServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"zookeeper.sasl.jaas.config": _SASL % "right", "zookeeper.set.acl": "true"}
    access = access_of(split_store(settings)[0])
    with Client(f"{server.url}/sasl", access=access) as client:
        assert client.call(Create("/config/users", b"secret", make_parents=True)).error is None
        assert client.call(Get("/config/users")).data == b"secret"
    with pytest.raises(NoAuthError):
        _reads(server.port, "/sasl/config/users")
    wrong = access_of(split_store({"zookeeper.sasl.jaas.config": _SASL % "wrong"})[0])
    with Client(f"{server.url}/sasl", access=wrong) as client:
        client.wait_for_end()
    assert "refused the login" in caplog.text


def test_a_broker_and_the_commands_reach_it_by_the_same_settings(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    from logstore.broker import Broker, BrokerConfig
    from logstore.cli.cluster_state import read_cluster, session

    settings = _settings(tmp_path, **{"zookeeper.set.acl": "true"})
    url = f"zookeeper://localhost:{server.tls_port}/broker"
    config = BrokerConfig(metadata=url, settings={**settings, "offsets.topic.replication.factor": "1"})
    with Broker(config), session(url, split_store(settings)[0]) as opened:
        assert list(read_cluster(opened).brokers) == [1]
