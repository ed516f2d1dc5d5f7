"""From Apache Kafka (KRaft) to our broker and back, as `docs/adopting.md` says: Kafka itself is the judge.

Needs Java; the jars come from Maven.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.kafka.jars import Missing, jars
from bench.kafka.servers import Kafka
from logstore.broker import Broker, BrokerConfig
from logstore.cli.operating import wait_until
from tests.cli.test_adopt import Command
from tests.cycles.clients import PATIENCE_S, read

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(600)]
STRAY = re.compile(r"^(.+)\.[0-9a-f]{32}-stray$")


@pytest.fixture
def kafka(tmp_path: Path) -> Kafka:
    try:
        return Kafka(tmp_path / "kafka", 1, version="3.9.1", jars=jars("3.9.1"))
    except Missing as reason:
        pytest.skip(str(reason))


def fill(kafka: Kafka, topic: str, numbers: range) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "batch.num.messages": 20}
    producer, errors = Producer(settings), list[object]()
    for number in numbers:
        producer.produce(
            topic, b"%d" % number, key=b"k%d" % (number % 7), partition=0,
            on_delivery=lambda error, _: errors.append(error),
        )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * len(numbers)


def values(kafka: Kafka, topic: str) -> list[bytes | None]:
    return [row.value for row in read(kafka.bootstrap, topic, committed=True)]


def group(kafka: Kafka) -> Consumer:
    return Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "billing"})


def commit(consumer: Consumer, offset: int) -> bool:
    """Commit for the first partition of orders; False while Kafka still loads the group's partition."""
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    except KafkaException as error:
        loading = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
        if error.args[0].code() not in loading:
            raise
        return False
    return True


def test_kafka_goes_on_where_we_only_served(command: Command, tmp_path: Path, kafka: Kafka) -> None:
    log_dir = kafka.log_dirs(1)[0]
    expected = [b"%d" % number for number in range(300)]
    try:
        kafka.start_all()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        made = admin.create_topics(
            [NewTopic("orders", 1, 1, config={"segment.bytes": "2048"}), NewTopic("empty", 2, 1)]
        )
        for done in made.values():
            done.result(PATIENCE_S)
        fill(kafka, "orders", range(300))
        committed = group(kafka)
        assert wait_until(PATIENCE_S, lambda: commit(committed, 120))
        committed.close()
        kafka.end(1, signal.SIGTERM)

        facts = json.loads(command("adopt", log_dir, "--apply", "--json").out)
        assert {"orders", "empty", "__consumer_offsets"} <= facts["topics"].keys()
        for _ in range(3):  # each start raises the leader epochs of our store, not those of Kafka's
            with Broker(BrokerConfig(log_dirs=(str(log_dir),))) as ours:
                found = [record.value for record in ours.read("orders", 0, 0)]
                assert found == expected[: len(found)] != []

        for each in log_dir.iterdir():
            if name := STRAY.match(each.name):
                each.rename(log_dir / name[1])
        shutil.rmtree(f"{log_dir}.metadata")
        kafka.start(1)
        kafka.wait_until_whole()
        assert values(kafka, "orders") == expected
        fill(kafka, "orders", range(300, 400))
        assert values(kafka, "orders") == [b"%d" % number for number in range(400)]
        again = group(kafka)
        assert again.committed([TopicPartition("orders", 0)], PATIENCE_S)[0].offset == 120
        again.close()
    finally:
        kafka.end_all()
