"""Clients of the broker under test, whoever it is: librdkafka's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cycles.model import TOPICS, Content, Row, Topic, Written

PATIENCE_S: Final = 60.0
_KEYS: Final = 20
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TRANSACTIONAL_ID: Final = "dealer"


def create_topics(bootstrap: str) -> None:
    """Create every topic of the campaign, with one partition. Raises `KafkaException`."""
    wanted = [NewTopic(each.name, 1, 1, config=dict(each.settings)) for each in TOPICS]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics(wanted).values():
        done.result(PATIENCE_S)


def read(bootstrap: str, topic: str, *, committed: bool) -> list[Row]:
    """Read all records of a topic, to its end (with `committed`, to the last stable offset)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    rows: list[Row] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(PATIENCE_S)
            if message is None:
                raise TimeoutError(f"{topic}: no end after {PATIENCE_S:.0f} s and {len(rows)} records")
            if (error := message.error()) is None:
                headers: tuple[Any, ...] = tuple(message.headers() or ())
                offset = message.offset()
                assert offset is not None, "a message has an offset"
                rows.append(Row(offset, message.key(), message.value(), message.timestamp()[1], headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                return rows
            elif not error.retriable():
                raise RuntimeError(f"{topic}: {error}")
    finally:
        consumer.close()


class Writer:
    """Writes records of its own kind; `written` is what it knows of each topic."""

    def __init__(self, seed: int) -> None:
        self.written = {each.name: Written() for each in TOPICS}
        self._random = Random(seed)
        self._numbers = count()

    def fill(self, bootstrap: str, topic: Topic, records: int) -> None:
        """Write records that are all acknowledged, in batches of a random codec."""
        producer = _producer(bootstrap, **{"compression.type": self._random.choice(_CODECS)})
        self._send(producer, topic, records)
        _flush(producer)

    def transact(self, bootstrap: str, topics: Sequence[Topic], transactions: int, records: int) -> None:
        """Commit and abort transactions over several topics, and leave the last one open."""
        producer = _producer(
            bootstrap, **{"transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(PATIENCE_S)  # it ends what the last one left open
        for each in topics:
            self.written[each.name].aborted |= self.written[each.name].open
            self.written[each.name].open = set()
        for number in range(transactions):
            producer.begin_transaction()
            before = {each.name: set(self.written[each.name].acknowledged) for each in topics}
            for each in topics:
                self._send(producer, each, records)
            _flush(producer)
            made = {
                each.name: set(self.written[each.name].acknowledged) - before[each.name] for each in topics
            }
            if number == transactions - 1:
                for name, offsets in made.items():
                    self.written[name].open = offsets
            elif self._random.random() < 0.4:
                producer.abort_transaction(PATIENCE_S)
                for name, offsets in made.items():
                    self.written[name].aborted |= offsets
            else:
                producer.commit_transaction(PATIENCE_S)

    def flood(self, bootstrap: str, topics: Sequence[Topic]) -> Callable[[], None]:
        """Write in the background, and return how to end it: what has no answer may be there."""
        enough = threading.Event()
        producer = _producer(bootstrap, **{"linger.ms": 1})

        def run() -> None:
            while not enough.is_set():
                for each in topics:
                    self._send(producer, each, 1)
                producer.poll(0.002)

        thread = threading.Thread(target=run)
        thread.start()

        def end() -> None:
            enough.set()
            thread.join()
            producer.purge()
            producer.flush(PATIENCE_S)

        return end

    def _send(self, producer: Any, topic: Topic, records: int) -> None:
        written = self.written[topic.name]
        for content, headers in self._records(topic, records):
            written.unanswered.add(content)

            def heard(error: KafkaError | None, message: Message, content: Content = content) -> None:
                if error is None:
                    written.unanswered.discard(content)
                    offset = message.offset()
                    assert offset is not None, "an answer has an offset"
                    written.acknowledged[offset] = content

            producer.produce(topic.name, content[1], content[0], headers=headers, on_delivery=heard)
            producer.poll(0)

    def _records(self, topic: Topic, records: int) -> Iterator[tuple[Content, list[tuple[str, bytes]]]]:
        for number in (next(self._numbers) for _ in range(records)):
            key = b"key %d" % self._random.randrange(_KEYS) if topic.is_compacted else None
            value = b"%d " % number + self._random.randbytes(self._random.choice([10, 4_000, 14_000]))
            is_tombstone = topic.is_compacted and self._random.random() < 0.05
            # Of tombstones there may be two with one content, so the number goes into the key of those.
            yield (
                (key + b"/%d" % number, None) if key is not None and is_tombstone else (key, value),
                [("number", b"%d" % number)],
            )


def _producer(bootstrap: str, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, **settings})


def _flush(producer: Any) -> None:
    if left := producer.flush(PATIENCE_S):
        raise TimeoutError(f"{left} records have no answer after {PATIENCE_S:.0f} s")
