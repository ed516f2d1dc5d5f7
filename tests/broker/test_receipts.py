"""Receipts: what a broker can prove of a record, now and later, and what it refuses to promise."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

import logstore.broker.client
from logstore import Log, OffsetOutOfRange
from logstore.broker import (
    BlockingClient,
    Broker,
    BrokerCluster,
    BrokerConfig,
    BrokerStopped,
    Client,
    RequestRefused,
    RequestUnanswered,
)
from logstore.broker.limits import parse_address
from logstore.broker.metrics import Watched, page
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.replication import Durability
from logstore.replication.receipts import Receipt
from tests.cli.conftest import Outcome, command

__all__ = ["command"]
WRITTEN, SYNCED = Durability.REPLICATED, Durability.SYNCED


def test_an_append_says_whether_it_is_synced() -> None:
    disk = MemoryDisk()
    with Log.open("/orders-0", disk=disk) as log:
        assert not log.append(b"0").is_synced
        assert not log.is_synced(0)
        assert log.append(b"1", sync=True).is_synced
        assert (log.is_synced(0), log.is_synced(1)) == (True, True)
        log.append([b"2", b"3"])
        assert not log.is_synced(3)
        with pytest.raises(OffsetOutOfRange):
            log.is_synced(4)
        after = disk.image(Random(1))
        synced = sum(log.is_synced(offset) for offset in range(4))
    with Log.open("/orders-0", disk=after) as found:
        assert found.log_end_offset >= synced


def test_a_single_broker_proves_its_own_disk_and_syncs_when_asked() -> None:
    with Broker(BrokerConfig()) as broker:
        broker.create_topic("orders")
        broker.append("orders", b"0")
        assert broker.durability("orders", 0, 0) == Receipt(0, 1, 1, 0, True)
        assert at_risk(broker) == 1
        assert broker.wait_for("orders", 0, 0, SYNCED).synced_on == 1
        assert at_risk(broker) == 0
        with pytest.raises(OffsetOutOfRange):
            broker.durability("orders", 0, 1)
        with pytest.raises(OffsetOutOfRange):
            broker.wait_for("orders", 0, 1, SYNCED)
        with pytest.raises(ValueError, match="has 1 replicas"):
            broker.wait_for("orders", 0, 0, copies=2)
        late = "orders-0: durability of offset 7 not confirmed after 0.01 s"
        with pytest.raises(TimeoutError, match=late):
            broker.wait_for("orders", 0, 7, timeout=0.01)
        with pytest.raises(EngineError) as refused:
            broker.durability("orders", 5, 0)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def at_risk(broker: Broker) -> float:
    """What Prometheus reads."""
    text = page(Watched(node=broker._client._running.runtime.node)).content.decode()
    name = "kafka_server_replicamanager_recordsatrisk"
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def led_by(cluster: BrokerCluster, topic: str) -> Broker:
    return cluster.brokers[cluster.leader(topic)]


def test_a_cluster_proves_what_its_level_tells() -> None:
    with BrokerCluster(3) as cluster:
        cluster.create_topic("plain", replication_factor=3)
        cluster.create_topic("safe", replication_factor=3, settings={"durability.level": "synced"})
        assert cluster.append("plain", b"0").durability is WRITTEN
        assert cluster.append("safe", b"0").durability is SYNCED
        plain = led_by(cluster, "plain").wait_for("plain", 0, 0, copies=3)
        assert (plain.written_on, plain.is_committed) == (3, True)
        assert plain.synced_on <= 1, "what followers have synced is not known at this level"
        with pytest.raises(ValueError, match="does not learn what the followers"):
            led_by(cluster, "plain").wait_for("plain", 0, 0, SYNCED, copies=2)
        assert led_by(cluster, "safe").wait_for("safe", 0, 0, SYNCED, copies=3).synced_on == 3
        other = next(each for each in cluster.brokers.values() if each is not led_by(cluster, "safe"))
        with pytest.raises(EngineError) as refused:
            other.durability("safe", 0, 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_waiter_is_woken_by_its_record_and_ended_with_its_broker() -> None:
    with Broker(BrokerConfig()) as broker:
        broker.create_topic("orders")
        broker.append("orders", b"0")
        found: list[object] = []

        def wait(offset: int) -> None:
            try:
                found.append(broker.wait_for("orders", 0, offset))
            except EngineError as error:
                found.append(error)

        waiting = [threading.Thread(target=wait, args=(offset,)) for offset in (1, 2)]
        for each in waiting:
            each.start()
        broker.append("orders", b"1")
        waiting[0].join(20)
        broker.stop()
        waiting[1].join(20)
    assert isinstance(found[0], Receipt)
    assert isinstance(found[1], BrokerStopped)


def test_a_client_elsewhere_asks_the_leader() -> None:
    """Over a connection, whoever it asks first; waiting for what is not written yet, too."""
    with BrokerCluster(3) as cluster:
        cluster.create_topic("safe", replication_factor=3, settings={"durability.level": "synced"})
        cluster.create_topic("plain", replication_factor=3)
        addresses = [parse_address(each) for each in cluster.bootstrap.split(",")]
        with BlockingClient(addresses) as client:
            for topic in ("safe", "plain"):
                client.append(topic, b"0")
            receipt = client.wait_for("safe", 0, 0, SYNCED, copies=3)
            assert receipt == Receipt(0, 3, 3, 3, True) == client.durability("safe", 0, 0)
            assert client.wait_for("plain", 0, 0, copies=3).written_on == 3
            assert refusal(lambda: client.durability("safe", 0, 1)) is ErrorCode.OFFSET_OUT_OF_RANGE
            assert (
                refusal(lambda: client.durability("safe", 7, 0, timeout=0.2))
                is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            too_many = partial(client.wait_for, "plain", 0, 0, SYNCED, copies=2)
            assert refusal(too_many) is ErrorCode.INVALID_REQUEST
            with pytest.raises(TimeoutError, match="durability not confirmed in time"):
                client.wait_for("safe", 0, 1, timeout=0.01)
            later = threading.Timer(0, lambda: cluster.append("safe", b"1"))
            later.start()
            assert client.wait_for("safe", 0, 1, SYNCED, copies=3).proves(SYNCED, 3)
            later.join()


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        call()
    return refused.value.error


def test_the_verb(command: Callable[..., Outcome]) -> None:
    with Broker(BrokerConfig()) as broker:
        broker.create_topic("orders")
        broker.append("orders", b"0")
        asked = ("durability", "orders-0", 0, "--bootstrap", broker.bootstrap)
        assert command(*asked).code == 0
        lacking = command(*asked, "--level", "synced", "--json")
        assert (lacking.code, json.loads(lacking.out)["synced_on"]) == (1, 0)
        waited = command(*asked, "--level", "synced", "--wait", 20)
        assert waited.code == 0
        assert waited.out == "orders-0 offset 0: committed, written on 1 and synced on 1 of 1 replicas\n"
        assert command("durability", "orders-0", 5, "--bootstrap", broker.bootstrap).code == 1
        assert command("durability", "orders-0", 5, "--bootstrap", broker.bootstrap, "--wait", 0.01).code == 1
        later = command("durability", "orders-0", 5, "--bootstrap", broker.bootstrap)
        assert "offset 5 is not written yet: the log ends at 1" in later.err
        assert command("durability", "orders", 5, "--bootstrap", broker.bootstrap).code == 2
        assert command("durability", "orders-0", 5, "--bootstrap", "nowhere").code == 2


def test_an_absent_broker_is_named_at_once(command: Callable[..., Outcome]) -> None:
    """As by the other verbs; the client would try again for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    ended = command("durability", "orders-0", 0, "--bootstrap", address)
    assert ended.code == 1
    assert "no broker answers: " in ended.err
    assert address in ended.err


def test_a_wait_that_ends_during_a_look_tells_what_the_last_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader answered; only the time was over before it did so again."""
    found = Receipt(0, 3, 0, 0, False)
    answers: list[Receipt | Exception] = [found, RequestUnanswered("no leader answers")]
    left = iter([0.7, 0.2, 0.2, 0.0])

    async def retried(*_: object) -> Receipt:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def wait() -> None:
        async with Client("127.0.0.1:9") as client:
            monkeypatch.setattr(client._cluster, "retried", retried)
            await client.wait_for("orders", 0, 0)

    monkeypatch.setattr(logstore.broker.client, "left_s", lambda deadline: next(left))
    with pytest.raises(TimeoutError) as ended:
        asyncio.run(wait())
    assert str(ended.value) == f"orders-0: durability not confirmed in time, but {found}"
