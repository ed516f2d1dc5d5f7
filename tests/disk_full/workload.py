"""Producers that write while a disk is full: two idempotent ones, a plain one, and one that is elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.access import Access
from tests.kill9.workload import DELIVERY_MS, TOPIC, Acknowledged, Seen, message

ELSEWHERE = "elsewhere"
"""A topic with no replica on the broker whose disk is full."""
PADDING = b"." * 1000


class Workload:
    """Producers, a thread each, until `stop`; then everything that may be retried is acknowledged."""

    def __init__(self, access: Access, partitions: int, *, pause_s: float) -> None:
        self.seen = Seen()
        self.elsewhere = Seen()
        self.refused_plain = 0
        """Messages of the producer that does not retry."""
        self.waits_s: list[tuple[float, float]] = []
        """Elsewhere: when each message was sent, and how long its acknowledgement took."""
        self._access, self._partitions, self._pause_s = access, partitions, pause_s
        self._lock = threading.Lock()
        self._no_more = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__, daemon=True)
            for work in (self.librdkafka, self.kafka_python, self.plain, self.bystander)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, patience_s: float) -> None:
        self._no_more.set()
        end_s = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0.1))
            assert not thread.is_alive(), f"{thread.name} has not come to its end in {patience_s:.0f} s"

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.seen.failures.append(error)

    def _acknowledge(self, seen: Seen, name: str, partition: int, number: int, offset: int | None) -> None:
        with self._lock:
            known = offset if offset is not None and offset >= 0 else None
            seen.acknowledged[partition].append(Acknowledged(name, number, known))

    # --- producers ------------------------------------------------------------------------------

    def librdkafka(self) -> None:
        """Idempotent, with five requests in flight: what the full disk made write twice."""
        self._confluent("librdkafka", TOPIC, {"enable.idempotence": True})

    def plain(self) -> None:
        """Sends each message once, with its answer before the next one is sent; an error is an error.

        Without the wait librdkafka itself changes the order: what the old leader refuses it sends again,
        behind what it has sent to the new leader meanwhile.
        """
        self._confluent("plain", TOPIC, {"message.send.max.retries": 0}, is_plain=True)

    def bystander(self) -> None:
        self._confluent("bystander", ELSEWHERE, {"enable.idempotence": True})

    def _confluent(self, name: str, topic: str, settings: dict[str, Any], *, is_plain: bool = False) -> None:
        from confluent_kafka import Producer

        seen = self.elsewhere if topic == ELSEWHERE else self.seen
        producer = Producer(
            {
                **self._access.librdkafka,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_MS,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
                **settings,
            }
        )

        def delivered(number: int, sent_s: float) -> Callable[[Any, Any], None]:
            def report(error: Any, record: Any) -> None:
                if topic == ELSEWHERE:
                    self.waits_s.append((sent_s, time.monotonic() - sent_s))
                if error is None:
                    self._acknowledge(seen, name, record.partition(), number, record.offset())
                elif is_plain:
                    self.refused_plain += 1
                else:
                    seen.refused.append(f"{name} {number}: {error}")

            return report

        number = 0
        while not self._no_more.is_set():
            for partition in range(self._partitions if topic == TOPIC else 1):
                try:
                    producer.produce(
                        topic,
                        message(name, number),
                        key=PADDING,
                        partition=partition,
                        on_delivery=delivered(number, time.monotonic()),
                    )
                except BufferError:
                    producer.poll(0.1)
            number += 1
            if is_plain:
                producer.flush(DELIVERY_MS / 1000)
            producer.poll(self._pause_s)
            time.sleep(self._pause_s)
        assert producer.flush(DELIVERY_MS / 1000) == 0, "messages that were never answered for"

    def kafka_python(self) -> None:
        from kafka import KafkaProducer

        name = "kafka-python"
        producer = KafkaProducer(
            **self._access.kafka_python,
            acks="all",
            linger_ms=5,
            delivery_timeout_ms=DELIVERY_MS,
            request_timeout_ms=10_000,
            metadata_max_age_ms=2_000,
            max_block_ms=DELIVERY_MS,
        )

        def report(partition: int, number: int, future: Any) -> None:
            future.add_callback(
                lambda told: self._acknowledge(self.seen, name, partition, number, told.offset)
            )
            future.add_errback(lambda error: self.seen.refused.append(f"{name} {number}: {error!r}"))

        number = 0
        while not self._no_more.is_set():
            for partition in range(self._partitions):
                sent = producer.send(TOPIC, message(name, number), key=PADDING, partition=partition)
                report(partition, number, sent)
            number += 1
            time.sleep(2 * self._pause_s)
        producer.flush(DELIVERY_MS / 1000)
        producer.close()
