"""librdkafka's producers and consumers under quotas: no faster than they may, and told why."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from statistics import quantiles

import confluent_kafka as ck
import pytest

from logstore.broker import Broker, BrokerConfig
from logstore.cli.quotas import set_quota

RATE = 300_000
RECORD = bytes(5_000)
BURST_S = 11
"""What may be used at once: all windows together."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(settings={"log.flush.interval.messages": str(2**62)})) as running:
        running.create_topic("orders", 1)
        yield running


def producer(broker: Broker, client_id: str, waits: list[float]) -> ck.Producer:
    return ck.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: waits.append(event.throttle_time),
            "linger.ms": 5,
            "batch.size": 20_000,
        }
    )


def produce(client: ck.Producer, count: int) -> None:
    for _ in range(count):
        while True:
            try:
                client.produce("orders", RECORD)
                break
            except BufferError:
                client.poll(0.1)
    assert client.flush(120) == 0


def test_clients_are_no_faster_than_they_may(broker: Broker) -> None:
    """A lower bound on time: a slow machine cannot break it."""
    set_quota(broker.bootstrap, client_id="slow", producer_byte_rate=RATE)
    set_quota(broker.bootstrap, client_id="reader", consumer_byte_rate=RATE)
    waits: list[float] = []
    begun_s = time.monotonic()
    count = (BURST_S + 2) * RATE // len(RECORD)
    produce(producer(broker, "slow", waits), count)
    assert time.monotonic() - begun_s >= 1.5
    assert max(waits) > 0
    waits.clear()
    produce(producer(broker, "quick", waits), 10)
    assert not any(waits)
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "reader",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 100_000,
            "throttle_cb": lambda event: waits.append(event.throttle_time),
        }
    )
    consumer.assign([ck.TopicPartition("orders", 0, 0)])
    begun_s, read = time.monotonic(), 0
    while read < count:
        assert consumer.poll(60) is not None, "records within a minute"
        read += 1
    assert time.monotonic() - begun_s >= 1.5
    consumer.close()
    assert max(waits) > 0


@pytest.mark.slow
def test_two_clients_keep_their_rate_for_a_minute(broker: Broker) -> None:
    """Within 5 %, while a third client's p99 stays within twice its quiet one (with 5 ms for the machine)."""
    for name in ("a", "b"):
        set_quota(broker.bootstrap, client_id=name, producer_byte_rate=RATE)
    is_over = threading.Event()
    sent: dict[str, list[float]] = {"a": [], "b": []}

    def pump(name: str) -> None:
        client = producer(broker, name, [])
        while not is_over.is_set():
            try:
                client.produce("orders", RECORD, on_delivery=lambda *_: sent[name].append(time.monotonic()))
            except BufferError:
                pass
            client.poll(0.01)
        client.purge()
        client.flush(10)

    def p99_s(count: int) -> float:
        client, took = producer(broker, "c", []), []
        for _ in range(count):
            begun_s = time.monotonic()
            client.produce("orders", b"x")
            assert client.flush(60) == 0
            took.append(time.monotonic() - begun_s)
            time.sleep(0.02)
        return quantiles(took, n=100)[98]

    quiet_s = p99_s(500)
    threads = [threading.Thread(target=pump, args=(name,)) for name in sent]
    begun_s = time.monotonic()
    for each in threads:
        each.start()
    time.sleep(20)
    busy_s = p99_s(1_000)
    time.sleep(max(0.0, begun_s + 80 - time.monotonic()))
    is_over.set()
    for each in threads:
        each.join()
    for times in sent.values():
        measured = sum(begun_s + 20 <= each < begun_s + 80 for each in times) * len(RECORD) / 60
        assert measured == pytest.approx(RATE, rel=0.05)
    assert busy_s <= 2 * quiet_s + 0.005
