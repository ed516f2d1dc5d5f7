"""Brokers with several listeners: who is told which address, and what is served where."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from logstore.broker import Address, Client, SharedStore, client_security, open_store
from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Limits
from logstore.broker.links import Link
from logstore.broker.peers import Lane
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.cli.brokers import Brokers
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.messages import CreateTopicsRequest, NewTopic
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import encode_broker, parse_broker
from logstore.replication.metastore.operations import Get
from tests.broker.asking import Asker
from tests.broker.security.authority import broker, stores, trusting
from tests.broker.security.provider import serving
from tests.broker.security.test_login import by

TWO = {
    "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://localhost:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SSL",
    "inter.broker.listener.name": "INTERNAL",
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_a_client_logs_in_by_tls(tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"listeners": "SSL://localhost:0", **stores(tmp_path)}
        async with broker(settings) as running:
            async with Client([running.address], security=trusting(tmp_path), timeout_s=20) as client:
                await client.create_topic("orders")
                placed = await client.append("orders", b"a")
                (record,) = await client.read("orders", placed.partition, placed.offset)
                assert record.value == b"a"
            async with Client([running.address], timeout_s=0.5) as client:
                with pytest.raises(RequestUnanswered):
                    await client.metadata()

    run(test)


def test_a_broker_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker(
            {"listeners": "SSL://127.0.0.1:0", **stores(tmp_path, "wrong", "elsewhere")}
        ) as other:
            for security in (client_security({"security.protocol": "SSL"}), trusting(tmp_path)):
                async with Client([other.address], security=security, timeout_s=0.5) as client:
                    with pytest.raises(RequestUnanswered):
                        await client.metadata()
            unchecked = trusting(tmp_path, **{"ssl.endpoint.identification.algorithm": ""})
            async with Client([other.address], security=unchecked, timeout_s=20) as client:
                assert await client.metadata()

    run(test)


def _refused(address: Address, properties: dict[str, str]) -> str:
    """Return what a command reports that gets no answer. Run it in a thread."""
    brokers = Brokers(str(address), client_security(properties), timeout_s=5)
    try:
        with pytest.raises(RequestUnanswered) as refusal:
            brokers.metadata(())
    finally:
        brokers.close()
    return str(refusal.value)


def test_a_command_that_gets_no_answer_reports_what_to_check(tmp_path: Path) -> None:
    trust = {"ssl.truststore.location": stores(tmp_path, "client")["ssl.truststore.location"]}
    login = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" '
        'password="b";',
    }

    async def test() -> None:
        named = {"listeners": "SSL://127.0.0.1:0", **stores(tmp_path, "wrong", "elsewhere")}
        async with broker(named) as other:
            failed = f"no broker answers: failed to connect to {other.address}: TLS handshake failed: "
            text = await asyncio.to_thread(_refused, other.address, {"security.protocol": "SSL", **trust})
            mismatch = "IP address mismatch, certificate is not valid for '127.0.0.1'"
            assert text == f"{failed}{mismatch}; connect to a name or address that the certificate has"
            text = await asyncio.to_thread(_refused, other.address, {"security.protocol": "SSL"})
            assert text.startswith(failed)
            assert text.endswith("; no certificate in ssl.truststore.location has signed it")
            plain = {"security.protocol": "SASL_PLAINTEXT", **login}
            text = await asyncio.to_thread(_refused, other.address, plain)
            advice = "security.protocol in --command-config: it is that of the listener"
            assert text.endswith(f". Check --bootstrap, and {advice}")

    run(test)


def test_a_command_without_a_token_reports_where_it_asked_for_one(tmp_path: Path) -> None:
    endpoint = "sasl.oauthbearer.token.endpoint.url"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{module} required clientId="a" clientSecret="b";',
    }
    with serving() as provider, socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
        failed = f"no broker answers: failed to connect to {address}: no token to log in with: "
        text = _refused(address, login | {endpoint: (tmp_path / "token").as_uri()})
        assert text == f"{failed}[Errno 2] No such file or directory: '{tmp_path}/token'"
        provider.token = 503, b""
        text = _refused(address, login | {endpoint: f"{provider.url}/token"})
        assert text == f"{failed}{provider.url}/token answers 503 Service Unavailable"
    text = _refused(address, login | {endpoint: f"{provider.url}/token"})
    assert "Connect call failed" in text  # the broker is gone, too: this comes first


def test_a_broker_that_is_silent_at_the_login_is_reported_as_such() -> None:
    """Its connection is accepted by the operating system, as that of a paused process is."""
    heard: list[str] = []

    async def test() -> None:
        answered = asyncio.Event()

        def then(answer: object) -> None:
            heard.append(str(answer))
            answered.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            address, limits = Address(*listener.getsockname()), Limits(connect_timeout_ms=20)
            link = Link(address, client_id="a", limits=limits, scratch=None, security=by("PLAIN"))
            link.ask(t.MetadataRequest(), 1, then)
            await answered.wait()
            assert heard == [f"failed to connect to {address}: no answer in 0.02 s"]

    run(test)


def test_each_listener_names_its_own_addresses(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker({**TWO, **stores(tmp_path)}) as running:
            internal, clients = running.listeners.values()
            assert running.bootstrap == str(clients)
            assert running.address == internal
            await running.create_topic("orders", 1)
            for address, security in ((internal, None), (clients, trusting(tmp_path))):
                async with Client([address], security=security, timeout_s=20) as client:
                    (known,) = (await client.metadata()).brokers
                    assert (known.host, known.port) == address
            async with Asker(internal) as asker:
                cluster = await asker.ask(t.DescribeClusterRequest(), 0)
                assert [(each.host, each.port) for each in cluster.brokers] == [internal]
                found = await asker.ask(t.FindCoordinatorRequest(coordinator_keys=["g"]), 4)
                assert found.coordinators[0].error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    run(test)


def test_the_controller_has_a_listener_of_its_own(tmp_path: Path) -> None:
    """Two brokers: orders, proposals and forwarded requests come there, and fetches do not."""

    async def test() -> None:
        three = {
            "listeners": "INTERNAL://127.0.0.1:0,CONTROL://localhost:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROL:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "control.plane.listener.name": "CONTROL",
            "listener.name.control.ssl.client.auth": "required",
            "default.replication.factor": "2",
            "min.insync.replicas": "2",
            **stores(tmp_path),
        }
        with open_store() as shared:
            async with broker(three, metadata=shared) as one, broker(three, 2, metadata=shared) as other:
                for each in (one, other):
                    async with Client([each.bootstrap], timeout_s=30) as client:
                        await client.create_topic(f"orders-{each.node_id}", 3)
                        await client.append(f"orders-{each.node_id}", b"a")
                used = {
                    (lane, link.address == other.listeners["CONTROL"])
                    for (_, lane), link in one._running.runtime.peers._links.items()
                }
                for lane, is_on_control in used:
                    assert is_on_control == (lane is not Lane.FETCHES), used
                assert used

    run(test)


def test_messages_of_brokers_are_refused_on_other_listeners() -> None:
    async def test() -> None:
        plain = TWO | {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:PLAINTEXT"}
        async with broker(plain) as running:
            internal, clients = running.listeners.values()
            follower = t.FetchRequest(replica_id=2, max_wait_ms=1, max_bytes=1, min_bytes=0)
            proposal = t.AlterPartitionRequest(broker_id=9)
            shutdown = w.ControlledShutdownRequest(broker_id=9)
            for request, version in ((follower, 4), (proposal, 3), (shutdown, 3)):
                async with Asker(clients) as asker:
                    asker.send(request, version)
                    assert await asker.is_cut_off(), request
                async with Asker(internal) as asker:
                    await asker.ask(request, version)
            async with Asker(clients) as asker:
                follower.replica_id = -1
                assert not (await asker.ask(follower, 4)).error_code

    run(test)


def test_brokers_replicate_over_their_own_listener(tmp_path: Path) -> None:
    """Two brokers, with certificates among themselves; a third one knows another listener only."""

    async def test() -> None:
        settings = {
            "listeners": "INTERNAL://localhost:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:SSL,CLIENTS:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "listener.name.internal.ssl.client.auth": "required",
            **stores(tmp_path),
        }
        with open_store() as store:
            assert isinstance(store, SharedStore)
            async with (
                broker(settings, 1, metadata=store) as one,
                broker(settings, 2, metadata=store) as two,
            ):
                await one.create_topic("orders", 1, replication_factor=2)
                placed = await two.append("orders", b"a", acks="all")
                assert placed.offset == 0
                clients = [each.listeners["CLIENTS"] for each in (one, two)]
                async with Client(clients, timeout_s=20) as client:
                    while len((await client.metadata()).partitions[TopicPartition("orders", 0)].isr) < 2:
                        await asyncio.sleep(0.01)
                    known = (await client.metadata()).brokers
                    assert {Address(each.host, each.port) for each in known} == set(clients)
                node = await one._running.services.ask_store(Get(layout.broker_path(1)))
                registered = parse_broker(node.data)
                assert [each.listener for each in registered.endpoints] == ["INTERNAL", "CLIENTS"]
                assert encode_broker(registered) == node.data

    run(test)


def test_a_leader_without_the_listener_is_not_shown() -> None:
    async def test() -> None:
        one_only = {**TWO, "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:PLAINTEXT"}
        hidden = {**one_only, "listeners": "INTERNAL://127.0.0.1:0"}
        with open_store() as store:
            async with (
                broker(one_only, 1, metadata=store) as one,
                broker(hidden, 2, metadata=store),
            ):
                new = NewTopic("orders", assignment=((2,),))
                await one.of_controller(CreateTopicsRequest((new,)))
                async with Asker(one.listeners["CLIENTS"]) as asker:
                    for version, error in ((1, ErrorCode.LEADER_NOT_AVAILABLE), (9, 72)):
                        answer = await asker.ask(t.MetadataRequest(topics=None), version)
                        assert [each.node_id for each in answer.brokers] == [1]
                        (partition,) = answer.topics[0].partitions
                        assert (partition.error_code, partition.leader_id) == (error, -1)

    run(test)


def test_an_open_listener_needs_a_word() -> None:
    with pytest.raises(InvalidConfig, match="--insecure"):
        broker({}, listen="0.0.0.0:0", advertised="127.0.0.1:1")
    broker({}, listen="0.0.0.0:0", advertised="127.0.0.1:1", insecure=True)


def test_a_broker_that_cannot_be_secured_does_not_start(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.location"):
            await broker({"listeners": "SSL://localhost:0", "ssl.keystore.location": "/no/such"}).start()

    run(test)


@pytest.mark.parametrize("internal", ["PLAINTEXT", "SSL"])
def test_clients_do_not_keep_brokers_from_their_own_listener(tmp_path: Path, internal: str) -> None:
    """`max.connections` is for the others, as in Kafka."""

    async def test() -> None:
        settings = {
            **TWO,
            **stores(tmp_path),
            "listener.security.protocol.map": f"INTERNAL:{internal},CLIENTS:PLAINTEXT",
            "max.connections": "2",
        }
        security = trusting(tmp_path) if internal == "SSL" else None
        async with broker(settings) as running:
            clients, brokers = running.listeners["CLIENTS"], running.listeners["INTERNAL"]
            async with Asker(clients) as one, Asker(clients) as two, Asker(clients) as three:
                for each in (one, two):
                    assert await each.ask(t.ApiVersionsRequest(), 0)
                assert await three.is_cut_off()
                async with Client([brokers], security=security, timeout_s=20) as client:
                    assert await client.metadata()

    run(test)
