"""Producing: what is acknowledged is there, as it was sent."""

from __future__ import annotations

import time

import pytest

from tests.interop.cluster import Cluster
from tests.interop.kit import Kit, refused, take, until, values, written
from tests.interop.seam import CREATE_TIME, LOG_APPEND_TIME, Outgoing

pytestmark = pytest.mark.interop

MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD = 10, 32, 87
UNKNOWN = -1
"""What aiokafka makes of codes that it has not heard of."""
SHORT_TIMES = {
    "delivery.timeout.ms": 3_000,
    "request.timeout.ms": 2_000,
    "max.block.ms": 3_000,
    "linger.ms": 0,
}
LONG_AGO_MS = 1_600_000_000_000


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_produce_with_acks(kit: Kit, acks: object) -> None:
    topic = kit.topic()
    receipts = kit.producer({"acks": acks}).send(topic, [Outgoing(each) for each in values(10)])
    assert written(kit.read(topic, 10)) == values(10)
    if acks != 0:
        assert [each.offset for each in receipts] == list(range(10))


def test_produce_idempotently(kit: Kit) -> None:
    topic = kit.topic()
    producer = kit.producer({"acks": "all", "enable.idempotence": True})
    for turn in range(7):  # more than the five batches that are remembered
        receipts = producer.send(topic, [Outgoing(b"%d" % turn)])
        assert receipts[0].offset == turn
    assert written(kit.read(topic, 7)) == [b"%d" % turn for turn in range(7)]


def test_two_idempotent_producers_at_once(kit: Kit) -> None:
    topic = kit.topic()
    settings = {"acks": "all", "enable.idempotence": True}
    first, second = kit.producer(settings), kit.producer(settings)
    for turn in range(3):
        first.send(topic, [Outgoing(b"a%d" % turn)])
        second.send(topic, [Outgoing(b"b%d" % turn)])
    assert written(kit.read(topic, 6)) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codec(kit: Kit, codec: str) -> None:
    topic = kit.topic()
    sent = [each * 50 for each in values(100)]
    producer = kit.producer({"compression.type": codec, "linger.ms": 50})
    producer.send(topic, [Outgoing(each) for each in sent])
    assert written(kit.read(topic, 100)) == sent


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codec_of_the_topic(kit: Kit, codec: str) -> None:
    """The broker compresses anew where the topic says so."""
    topic = kit.topic(configs={"compression.type": codec})
    sent = [each * 50 for each in values(20)]
    kit.fill(topic, sent)
    assert written(kit.read(topic, 20)) == sent


def test_headers(kit: Kit) -> None:
    topic = kit.topic()
    headers = (("trace", b"1"), ("trace", b"2"), ("größe", bytes(range(256))), ("empty", b""))
    kit.producer().send(topic, [Outgoing(b"with", headers=headers), Outgoing(b"without")])
    first, second = kit.read(topic, 2)
    assert first.headers == headers
    assert second.headers == ()


def test_null_key(kit: Kit) -> None:
    topic = kit.topic()
    kit.producer().send(topic, [Outgoing(b"v"), Outgoing(b"v", key=b"")])
    assert [each.key for each in kit.read(topic, 2)] == [None, b""]


def test_null_value(kit: Kit) -> None:
    topic = kit.topic()
    kit.producer().send(topic, [Outgoing(None, key=b"gone")])
    (record,) = kit.read(topic, 1)
    assert (record.key, record.value) == (b"gone", None)


def test_empty_value(kit: Kit) -> None:
    topic = kit.topic()
    kit.producer().send(topic, [Outgoing(b"", key=b"k")])
    assert kit.read(topic, 1)[0].value == b""


def test_many_small_messages(kit: Kit) -> None:
    """In many batches, several of them on their way at once; in order all the same."""
    topic = kit.topic()
    sent = values(5_000)
    producer = kit.producer({"acks": "all", "enable.idempotence": True, "batch.size": 4_096, "linger.ms": 2})
    receipts = producer.send(topic, [Outgoing(each) for each in sent])
    assert [each.offset for each in receipts] == list(range(5_000))
    assert written(kit.read(topic, 5_000)) == sent


def test_large_messages(kit: Kit) -> None:
    topic = kit.topic()
    sent = [bytes([number]) * 900_000 for number in range(4)]
    receipts = kit.producer({"acks": "all"}).send(topic, [Outgoing(each) for each in sent])
    assert [each.offset for each in receipts] == [0, 1, 2, 3]
    assert written(kit.read(topic, 4)) == sent


def test_messages_of_all_sizes(kit: Kit) -> None:
    """Around the sizes at which buffers end."""
    topic = kit.topic()
    sent = [bytes(size) for size in (1, 127, 128, 16_383, 16_384, 65_535, 65_536, 131_072, 500_000)]
    kit.producer().send(topic, [Outgoing(each) for each in sent])
    assert written(kit.read(topic, len(sent))) == sent


def test_message_that_the_topic_refuses_as_too_large(kit: Kit) -> None:
    topic = kit.topic(configs={"max.message.bytes": "10000"})
    producer = kit.producer({"acks": "all"})
    with refused(MESSAGE_TOO_LARGE):
        producer.send(topic, [Outgoing(bytes(20_000))])
    producer.send(topic, [Outgoing(b"small enough")])
    assert written(kit.read(topic, 1)) == [b"small enough"]


def test_message_that_the_client_refuses_as_too_large(kit: Kit) -> None:
    topic = kit.topic()
    producer = kit.producer({"max.request.size": 100_000})
    with refused(MESSAGE_TOO_LARGE):
        producer.send(topic, [Outgoing(bytes(200_000))])


def test_large_message_that_the_topic_takes(kit: Kit) -> None:
    topic = kit.topic(configs={"max.message.bytes": str(5 << 20)})
    producer = kit.producer({"max.request.size": 5 << 20})
    producer.send(topic, [Outgoing(bytes(3 << 20))])
    (record,) = kit.read(topic, 1)
    assert record.value == bytes(3 << 20)


def test_create_time(kit: Kit) -> None:
    topic = kit.topic()
    kit.producer().send(topic, [Outgoing(b"then", timestamp_ms=LONG_AGO_MS), Outgoing(b"now")])
    then, now = kit.read(topic, 2)
    assert (then.timestamp_ms, then.timestamp_type) == (LONG_AGO_MS, CREATE_TIME)
    assert abs(now.timestamp_ms - time.time() * 1000) < 600_000


def test_append_time(kit: Kit) -> None:
    topic = kit.topic(configs={"message.timestamp.type": "LogAppendTime"})
    kit.producer().send(topic, [Outgoing(b"then", timestamp_ms=LONG_AGO_MS)])
    (record,) = kit.read(topic, 1)
    assert record.timestamp_type == LOG_APPEND_TIME
    assert abs(record.timestamp_ms - time.time() * 1000) < 600_000


def test_timestamp_that_the_topic_refuses(kit: Kit) -> None:
    topic = kit.topic(configs={"message.timestamp.before.max.ms": "60000"})
    producer = kit.producer({"acks": "all"})
    with refused(INVALID_TIMESTAMP):
        producer.send(topic, [Outgoing(b"v", timestamp_ms=LONG_AGO_MS)])


def test_record_without_key_in_a_compacted_topic(kit: Kit) -> None:
    topic = kit.topic(configs={"cleanup.policy": "compact"})
    producer = kit.producer({"acks": "all"})
    with refused(INVALID_RECORD, UNKNOWN):
        producer.send(topic, [Outgoing(b"v")])
    producer.send(topic, [Outgoing(b"v", key=b"k")])
    assert kit.read(topic, 1)[0].key == b"k"


def test_explicit_partition(kit: Kit) -> None:
    topic = kit.topic(3)
    wanted = [2, 0, 1, 2]
    receipts = kit.producer().send(topic, [Outgoing(b"%d" % each, partition=each) for each in wanted])
    assert [each.partition for each in receipts] == wanted
    found = take(kit.reading(topic, partitions=3), 4)
    assert {(each.partition.number, each.offset): each.value for each in found} == {
        (2, 0): b"2",
        (0, 0): b"0",
        (1, 0): b"1",
        (2, 1): b"2",
    }


def test_keys_keep_their_partition(kit: Kit) -> None:
    topic = kit.topic(3)
    keys = [f"key-{number}".encode() for number in range(20)]
    producer = kit.producer()
    first = producer.send(topic, [Outgoing(b"1", key=key) for key in keys])
    again = kit.producer().send(topic, [Outgoing(b"2", key=key) for key in keys])
    assert [each.partition for each in first] == [each.partition for each in again]
    assert len({each.partition for each in first}) == 3


def test_messages_without_key_reach_all_partitions(kit: Kit) -> None:
    """Whichever way the client spreads them: all can be read."""
    topic = kit.topic(4)
    producer = kit.producer()
    for turn in range(12):
        producer.send(topic, [Outgoing(b"%d" % turn)])
    found = take(kit.reading(topic, partitions=4), 12)
    assert {each.value for each in found} == {b"%d" % turn for turn in range(12)}


def test_one_producer_several_topics(kit: Kit) -> None:
    topics = [kit.topic() for _ in range(3)]
    producer = kit.producer({"linger.ms": 5})
    for topic in topics:
        producer.send(topic, [Outgoing(topic.encode())])
    for topic in topics:
        assert written(kit.read(topic, 1)) == [topic.encode()]


def test_unknown_topic_is_made(kit: Kit) -> None:
    topic = kit.fresh()
    receipts = kit.producer().send(topic, [Outgoing(b"first")])
    assert receipts[0].offset == 0
    assert written(kit.read(topic, 1)) == [b"first"]


def test_unknown_topic_that_the_producer_will_not_have_made(kit: Kit) -> None:
    topic = kit.fresh()
    producer = kit.producer({"allow.auto.create.topics": False, **SHORT_TIMES})
    with refused():
        producer.send(topic, [Outgoing(b"never")])
    assert topic not in kit.admin.topics()


def test_unknown_topic_that_the_broker_will_not_make(kit: Kit, strict: Cluster) -> None:
    topic = kit.fresh()
    producer = kit.producer(SHORT_TIMES, cluster=strict)
    with refused():
        producer.send(topic, [Outgoing(b"never")])


def test_topic_with_a_bad_name(kit: Kit) -> None:
    producer = kit.producer(SHORT_TIMES)
    with refused():
        producer.send("bad name!", [Outgoing(b"v")])


def test_not_enough_replicas_in_sync(kit: Kit) -> None:
    """Refused with an error that the client tries again on, until its time is over."""
    topic = kit.topic(configs={"min.insync.replicas": "3"})
    follower = next(each for each in kit.cluster.brokers if each != kit.leader(topic))
    kit.cluster.stop(follower)
    try:
        # A leader that has not heard of the smaller ISR appends first, and refuses only the acknowledgement.
        kit.until_ready(topic, in_sync=2)
        producer = kit.producer({"acks": "all", **SHORT_TIMES})
        with refused():
            producer.send(topic, [Outgoing(b"v")])
        kit.producer({"acks": 1}).send(topic, [Outgoing(b"w")])
    finally:
        kit.cluster.start(follower)
    kit.until_ready(topic)
    assert kit.read(topic, 1)[0].value == b"w"


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_leader_moves_while_producing(kit: Kit, is_idempotent: bool) -> None:
    topic = kit.topic(configs={"min.insync.replicas": "2"})
    producer = kit.producer({"acks": "all", "enable.idempotence": is_idempotent})
    producer.send(topic, [Outgoing(b"before")])
    leader = kit.leader(topic)
    kit.cluster.stop(leader)
    try:
        receipts = producer.send(topic, [Outgoing(each) for each in values(50)])
        assert [each.offset for each in receipts] == list(range(1, 51))
        until(lambda: kit.leader(topic) not in (leader, -1), "another leads")
    finally:
        kit.cluster.start(leader)
    assert written(kit.read(topic, 51)) == [b"before", *values(50)]
    kit.until_ready(topic)


def test_leader_is_killed_while_producing(kit: Kit) -> None:
    topic = kit.topic(configs={"min.insync.replicas": "2"})
    producer = kit.producer({"acks": "all", "enable.idempotence": True})
    producer.send(topic, [Outgoing(b"before")])
    leader = kit.leader(topic)
    kit.cluster.kill(leader)
    try:
        receipts = producer.send(topic, [Outgoing(each) for each in values(50)])
        assert [each.offset for each in receipts] == list(range(1, 51))
    finally:
        kit.cluster.start(leader)
    assert written(kit.read(topic, 51)) == [b"before", *values(50)]
    kit.until_ready(topic)


def test_broker_restarts_under_a_producer(kit: Kit) -> None:
    """On the same port: the client comes back by itself, and nothing that was acknowledged is gone."""
    topic = kit.topic()
    producer = kit.producer({"acks": "all"})
    producer.send(topic, [Outgoing(b"before")])
    leader = kit.leader(topic)
    kit.cluster.stop(leader)
    kit.cluster.start(leader)
    producer.send(topic, [Outgoing(b"after")])
    assert written(kit.read(topic, 2)) == [b"before", b"after"]
    kit.until_ready(topic)
