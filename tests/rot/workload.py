"""Clients beside those of the kill -9 campaign: a reader from the start, and a clock.

The reader reads partition after partition from its first offset to its end, so that every damage is met by a
read. `Watch` measures how long each partition of the group stands still.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from tests.access import Access
from tests.kill9.workload import TOPIC, Workload


class Reader(threading.Thread):
    """Reads every partition from its first offset again and again; each offset must give the same value."""

    def __init__(self, access: Access, partitions: int) -> None:
        super().__init__(name="reader", daemon=True)
        self.values: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.wrong: list[str] = []
        self.reads = 0
        self.failure: BaseException | None = None
        self._access, self._partitions = access, partitions
        self._ended = threading.Event()

    def end(self, patience_s: float) -> None:
        self._ended.set()
        self.join(patience_s)
        assert not self.is_alive(), "the reader has not come to its end"

    def take(self, partition: int, offset: int, value: bytes) -> None:
        """Compare a record with what the offset gave before."""
        before = self.values[partition].setdefault(offset, value)
        if before != value:
            self.wrong.append(f"partition {partition}, offset {offset}: read {value!r}, before {before!r}")

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self._read(self.reads % self._partitions)
                self.reads += 1
        except BaseException as error:
            self.failure = error

    def _read(self, partition: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                **self._access.librdkafka,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        try:
            place = TopicPartition(TOPIC, partition, OFFSET_BEGINNING)
            try:
                _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=10)
            except KafkaException:
                return
            consumer.assign([place])
            at = -1
            while not self._ended.is_set() and at < end - 200:
                for record in consumer.consume(1000, 0.5):
                    offset, value = record.offset(), record.value()
                    if record.error() is None and isinstance(value, bytes):
                        assert offset is not None
                        self.take(partition, offset, value)
                        at = offset
        finally:
            consumer.close()


class Watch(threading.Thread):
    """Measures the longest time in which the group got nothing from a partition."""

    def __init__(self, workload: Workload, partitions: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._workload = workload
        self._seen: dict[str, int] = defaultdict(int)
        self._last_s = dict.fromkeys(range(partitions), time.monotonic())
        self._longest_s = dict.fromkeys(range(partitions), 0.0)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join(5)

    def longest_s(self) -> float:
        """The longest pause since the last call, also one that goes on."""
        now_s = time.monotonic()
        with self._lock:
            longest_s = max(max(self._longest_s[each], now_s - self._last_s[each]) for each in self._last_s)
            self._longest_s = dict.fromkeys(self._longest_s, 0.0)
            return longest_s

    def run(self) -> None:
        while not self._ended.wait(0.02):
            now_s = time.monotonic()
            with self._lock:
                for name, records in list(self._workload.seen.consumed.items()):
                    for partition, _, _ in records[self._seen[name] :]:
                        self._longest_s[partition] = max(
                            self._longest_s[partition], now_s - self._last_s[partition]
                        )
                        self._last_s[partition] = now_s
                    self._seen[name] = len(records)
