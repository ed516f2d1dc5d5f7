"""Clients that never pause: idempotent producers with acks=all, a group of consumers, and what they saw.

Producers are kafka-python's and confluent-kafka's; each numbers its messages by partition. Of the group two
members are confluent-kafka's and one is kafka-python's. A thread a client; `verdict.py` judges.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.access import Access

TOPIC = "orders"
GROUP = "readers"
PAUSE_S = 0.004
"""Between two messages of one producer."""
DELIVERY_MS = 600_000
"""No message is given up: each is acknowledged in the end, however long nobody leads."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """`offset` is None where the client does not know it: it had sent again what was there already."""

    producer: str
    number: int
    offset: int | None


@dataclass(slots=True)
class Seen:
    """What clients saw. Each list has one writer."""

    acknowledged: dict[int, list[Acknowledged]] = field(default_factory=lambda: defaultdict(list))
    """by partition"""
    refused: list[str] = field(default_factory=list)
    consumed: dict[str, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    """by consumer: partition, offset, value"""
    failures: list[BaseException] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    """why librdkafka raised its producer epoch, in its own words: then it numbers its batches anew"""


def message(producer: str, number: int) -> bytes:
    return f"{producer} {number}".encode()


class Workload:
    """Runs until `stop`; then everything that was sent is acknowledged, and everything read."""

    def __init__(self, access: Access, partitions: int, *, acks: str = "all") -> None:
        """Without `acks` "all" producers are not idempotent, and acknowledged messages may be lost."""
        self.seen = Seen()
        self._acks = acks
        self._access, self._partitions = access, partitions
        self._lock = threading.Lock()
        self._no_more = threading.Event()
        self._read_enough = threading.Event()
        self._producers = [
            self._spawn(self._produce_with_librdkafka, "librdkafka"),
            self._spawn(self._produce_with_kafka_python, "kafka-python"),
        ]
        self._consumers = [
            self._spawn(self._consume_with_librdkafka, "librdkafka-1"),
            self._spawn(self._consume_with_librdkafka, "librdkafka-2"),
            self._spawn(self._consume_with_kafka_python, "kafka-python-1"),
        ]

    def stop_producing(self, patience_s: float) -> None:
        """No more messages; waits until all of them are acknowledged."""
        self._no_more.set()
        self._join(self._producers, patience_s)

    def stop_consuming(self, patience_s: float) -> None:
        self._read_enough.set()
        self._join(self._consumers, patience_s)

    def consumed_up_to(self) -> dict[int, int]:
        """The offset after the last one that any consumer has had, by partition."""
        ends: dict[int, int] = defaultdict(int)
        for records in list(self.seen.consumed.values()):
            for partition, offset, _ in list(records):
                ends[partition] = max(ends[partition], offset + 1)
        return dict(ends)

    def _spawn(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                work(name)
            except BaseException as error:
                self.seen.failures.append(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _join(threads: list[threading.Thread], patience_s: float) -> None:
        end_s = time.monotonic() + patience_s
        for thread in threads:
            thread.join(max(end_s - time.monotonic(), 0.1))
            assert not thread.is_alive(), f"{thread.name} has not come to its end in {patience_s:.0f} s"

    def _acknowledge(self, producer: str, partition: int, number: int, offset: int | None) -> None:
        with self._lock:
            known = offset if offset is not None and offset >= 0 else None
            self.seen.acknowledged[partition].append(Acknowledged(producer, number, known))

    def _listening(self) -> logging.Logger:
        seen = self.seen

        class Heard(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                _, is_raised, why = record.getMessage().partition("epoch bump for")
                if is_raised:
                    seen.raised.append(why.rpartition(": ")[2])

        logger = logging.Logger("librdkafka", logging.DEBUG)
        logger.addHandler(Heard())
        return logger

    # --- producers ----------------------------------------------------------------------------

    def _produce_with_librdkafka(self, name: str) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                **self._access.librdkafka,
                "enable.idempotence": self._acks == "all",
                "acks": self._acks,
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_MS,
                "socket.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": 2_000,
                "debug": "eos",
                "log_level": 7,
            },
            logger=self._listening(),
        )

        def delivered(number: int) -> Callable[[Any, Any], None]:
            def report(error: Any, record: Any) -> None:
                if error is not None:
                    self.seen.refused.append(f"{name} {number}: {error}")
                else:
                    self._acknowledge(name, record.partition(), number, record.offset())

            return report

        number = 0
        while not self._no_more.is_set():
            for partition in range(self._partitions):
                try:
                    producer.produce(
                        TOPIC, message(name, number), partition=partition, on_delivery=delivered(number)
                    )
                except BufferError:
                    producer.poll(0.1)
            number += 1
            producer.poll(PAUSE_S)
            time.sleep(PAUSE_S)
        assert producer.flush(DELIVERY_MS / 1000) == 0, "messages that were never answered for"

    def _produce_with_kafka_python(self, name: str) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            **self._access.kafka_python,
            acks="all" if self._acks == "all" else int(self._acks),
            enable_idempotence=self._acks == "all",
            linger_ms=5,
            delivery_timeout_ms=DELIVERY_MS,
            request_timeout_ms=10_000,
            metadata_max_age_ms=2_000,
            max_block_ms=DELIVERY_MS,
        )

        def report(partition: int, number: int, future: Any) -> None:
            future.add_callback(lambda told: self._acknowledge(name, partition, number, told.offset))
            future.add_errback(lambda error: self.seen.refused.append(f"{name} {number}: {error!r}"))

        number = 0
        while not self._no_more.is_set():
            for partition in range(self._partitions):
                report(partition, number, producer.send(TOPIC, message(name, number), partition=partition))
            number += 1
            time.sleep(2 * PAUSE_S)
        producer.flush(DELIVERY_MS / 1000)
        producer.close()

    # --- consumers ----------------------------------------------------------------------------

    def _consume_with_librdkafka(self, name: str) -> None:
        from confluent_kafka import Consumer

        mine = self.seen.consumed.setdefault(name, [])
        consumer = Consumer(
            {
                **self._access.librdkafka,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "socket.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not self._read_enough.is_set():
                for record in consumer.consume(500, 0.2):
                    partition, offset, value = record.partition(), record.offset(), record.value()
                    if record.error() is None and isinstance(value, bytes):
                        assert partition is not None
                        assert offset is not None
                        mine.append((partition, offset, value))
        finally:
            consumer.close()

    def _consume_with_kafka_python(self, name: str) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaConnectionError

        mine = self.seen.consumed.setdefault(name, [])
        consumer = KafkaConsumer(
            TOPIC,
            **self._access.kafka_python,
            group_id=GROUP,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            request_timeout_ms=20_000,
            metadata_max_age_ms=2_000,
        )
        try:
            while not self._read_enough.is_set():
                try:
                    polled = consumer.poll(200)
                except KafkaConnectionError:
                    continue  # kafka-python lets the end of a connection out; the next poll goes on
                for records in polled.values():
                    mine += [(record.partition, record.offset, record.value) for record in records]
        finally:
            consumer.close()
