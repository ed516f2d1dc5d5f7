"""Who may connect to the served store: TLS, certificates, and the names in them."""

from __future__ import annotations

import socket
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import InvalidACLError
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from logstore.broker import Broker, BrokerConfig
from logstore.broker.limits import Address
from logstore.broker.metadata import process
from logstore.broker.metadata.entrance import read_entrance
from logstore.broker.security import store
from logstore.broker.security.store import access_of, split_store
from logstore.errors import InvalidConfig
from logstore.replication.metastore.operations import Children, Create, Get
from logstore.replication.metastore.zookeeper_access import Access
from tests.broker.security.authority import stores
from tests.metadata_server import served
from tests.zookeeper import Client


def _guarded(directory: Path, **more: str) -> dict[str, str]:
    return {**stores(directory, "store", "localhost"), "ssl.client.auth": "required", **more}


def _access(directory: Path, name: str) -> Access:
    files = {f"zookeeper.{key}": value for key, value in stores(directory, name).items()}
    return access_of(split_store({"zookeeper.ssl.client.enable": "true", **files})[0])


def _url(port: int) -> str:
    return f"zookeeper://localhost:{port}"


def test_a_client_with_a_certificate_uses_the_store_over_tls(tmp_path: Path) -> None:
    """Many answers share TLS records, and all are read; large nodes go both ways."""
    large = bytes(range(256)) * 2000
    with (
        served(settings=_guarded(tmp_path)) as port,
        Client(_url(port), access=_access(tmp_path, "one")) as client,
    ):
        assert client.call(Create("/large", large)).error is None
        calls = [client.submit(Children("/", watch=True)) for _ in range(300)]
        answered = [client.next() for _ in calls]
        assert [each.call_id for each in answered] == calls  # type: ignore[union-attr]
        assert client.call(Get("/large")).data == large


def test_only_the_names_of_super_users_may_connect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = _guarded(
        tmp_path, **{"super.users": "User:one", "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
    )
    with served(settings=settings) as port:
        with Client(_url(port), access=_access(tmp_path, "one")) as client:
            assert client.call(Create("/x")).error is None
        assert _greeting(port, _access(tmp_path, "two")) == b""
    assert "User:two is not in super.users" in caplog.text


def test_without_a_certificate_or_without_tls_nobody_connects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": stores(tmp_path)["ssl.truststore.location"],
    }
    with served(settings=_guarded(tmp_path)) as port:
        assert _greeting(port, access_of(split_store(settings)[0])) == b""
        assert _greeting(port, Access()) == b""
    assert "peer did not return a certificate" in caplog.text
    assert "its first bytes are not TLS" in caplog.text


def _greeting(port: int, access: Access) -> bytes:
    """What the store says to a client that waits; nothing if it closes the connection."""
    connect = access.connect
    address = ("localhost", port)
    try:
        with (
            connect(address, "localhost", 10.0) if connect else socket.create_connection(address, 10) as peer
        ):
            peer.sendall(b"ruok")
            return bytes(peer.recv(4))
    except TimeoutError:
        raise
    except OSError:
        return b""


def test_access_lists_that_the_store_would_not_keep_are_refused() -> None:
    with served() as port:
        client = KazooClient(f"127.0.0.1:{port}")
        client.start(30)
        try:
            for acl in (CREATOR_ALL_ACL, READ_ACL_UNSAFE):
                with pytest.raises(InvalidACLError):
                    client.create("/mine", acl=acl)
            assert client.exists("/mine") is None
        finally:
            client.stop()
            client.close()


def test_a_store_that_is_open_to_the_network_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "log_as_json", lambda file: None)
    everywhere = Address("0.0.0.0", 2181)
    for settings in ({}, stores(tmp_path)):
        with pytest.raises(InvalidConfig, match="everyone on the network full access"):
            read_entrance(settings).refuse_open(everywhere)
        read_entrance(settings).refuse_open(Address("127.0.0.1", 2181))
    read_entrance(_guarded(tmp_path)).refuse_open(everywhere)
    assert process.run(str(tmp_path / "store"), everywhere) == 2
    assert "--insecure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "SSL://:1"}, "listeners is not a setting of the metadata store"),
        ({"ssl.client.auth": "required"}, "needs a key and a certificate"),
        ({"super.users": "User:CN=x"}, "set ssl.client.auth=required"),
        ({"super.users": "x", "ssl.client.auth": "required"}, "expected User:name"),
    ],
)
def test_settings_that_could_leave_it_open_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_entrance(settings)


def test_a_broker_uses_the_store_over_tls(tmp_path: Path) -> None:
    own = _guarded(tmp_path)
    settings = {f"zookeeper.{name}": value for name, value in stores(tmp_path, "one").items()}
    settings |= {"zookeeper.ssl.client.enable": "true", "offsets.topic.replication.factor": "1"}
    with served(settings=own) as port:
        config = BrokerConfig(metadata=_url(port), settings=settings, timeout_s=30)
        with Broker(config) as broker:
            broker.create_topic("orders")
            broker.append("orders", b"a")


def test_a_renewed_certificate_counts_at_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(0.0, 10.0)
    monkeypatch.setattr(store, "steady_s", lambda: next(seconds))
    rules = {"super.users": "User:CN=two"}
    with served(settings=_guarded(tmp_path, **rules)) as port:
        access = _access(tmp_path, "one")
        assert _greeting(port, access) == b""
        renewed = tmp_path / "renewed.pem"
        renewed.write_bytes(Path(stores(tmp_path, "two")["ssl.keystore.location"]).read_bytes())
        renewed.replace(tmp_path / "one.pem")
        assert _greeting(port, access) == b"imok"
