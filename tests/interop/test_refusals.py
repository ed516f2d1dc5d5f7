"""What is not supported is refused at once and with a reason: no client waits for its timeout."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.interop.cluster import Cluster

PATIENCE_S = 30


@pytest.fixture
def address(clusters: Callable[[int], Cluster]) -> str:
    return clusters(1).bootstrap


def test_librdkafka_init_transactions_ends_with_the_reason(address: str) -> None:
    """It used to ask for the coordinator until the caller's timeout."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(PATIENCE_S)
    error = caught.value.args[0]
    assert error.code() in (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._FATAL), error
    assert "transactions are not supported" in error.str()


def test_librdkafka_consumer_protocol_ends_with_a_fatal_error(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to look for another coordinator for ever. It reports fatal errors of a group in its log."""
    settings = {"bootstrap.servers": address, "group.id": "g", "group.protocol": "consumer"}
    consumer = Consumer(settings, logger=logging.getLogger("librdkafka"))
    consumer.subscribe(["t"])
    ends_s = time.monotonic() + PATIENCE_S
    try:
        while "Fatal error" not in caplog.text and time.monotonic() < ends_s:
            consumer.poll(0.5)
    finally:
        consumer.close()
    assert "ConsumerGroupHeartbeat fatal error: Broker: API version not supported" in caplog.text
