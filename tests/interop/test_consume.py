"""Consuming by assignment: where to begin, how much at a time, what is seen."""

from __future__ import annotations

import pytest

from tests.interop.kit import Kit, refused, take, until, values, written
from tests.interop.seam import Outgoing, Partition, Record

pytestmark = pytest.mark.interop

HOUR_MS = 3_600_000
BASE_MS = 1_700_000_000_000


def _timed(kit: Kit) -> str:
    """A topic with a record each hour, in several batches."""
    topic = kit.topic()
    producer = kit.producer({"acks": "all", "linger.ms": 5})
    for first in (0, 3, 6):
        producer.send(
            topic,
            [
                Outgoing(b"%d" % number, timestamp_ms=BASE_MS + number * HOUR_MS)
                for number in range(first, first + 3)
            ],
        )
    return topic


def test_assign_several_partitions(kit: Kit) -> None:
    topic = kit.topic(3)
    for number in range(3):
        kit.fill(topic, values(20, f"p{number}"), partition=number)
    found = take(kit.reading(topic, partitions=3), 60)
    for number in range(3):
        of = Partition(topic, number)
        assert written(each for each in found if each.partition == of) == values(20, f"p{number}")


def test_assign_several_topics(kit: Kit) -> None:
    topics = [kit.topic(), kit.topic()]
    for topic in topics:
        kit.fill(topic, values(5, topic))
    consumer = kit.consumer()
    consumer.assign(*(Partition(topic, 0) for topic in topics))
    found = take(consumer, 10)
    for topic in topics:
        assert written(each for each in found if each.partition.topic == topic) == values(5, topic)


def test_begin_at_the_start(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    found = kit.read(topic, 10, {"auto.offset.reset": "earliest"})
    assert [each.offset for each in found] == list(range(10))


def test_begin_at_the_end(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10, "old"))
    consumer = kit.reading(topic, {"auto.offset.reset": "latest"})
    found: list[Record] = []

    def read_something() -> bool:
        # It begins at what was the end when it asked, which nobody is told: write until it reads.
        kit.fill(topic, [b"new"])
        found.extend(consumer.poll(timeout_s=1.0))
        return bool(found)

    until(read_something, "a record written after the consumer had begun")
    assert set(written(found)) == {b"new"}


def test_records_that_come_while_waiting(kit: Kit) -> None:
    """A fetch that waits is answered when there is something."""
    topic = kit.topic()
    consumer = kit.reading(topic, {"fetch.max.wait.ms": 15_000, "auto.offset.reset": "earliest"})
    for _ in range(3):
        assert consumer.poll() == []
    kit.fill(topic, values(3))
    assert written(take(consumer, 3)) == values(3)


def test_seek(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(20))
    consumer = kit.reading(topic)
    take(consumer, 20)
    consumer.seek(Partition(topic, 0), 12)
    assert [each.offset for each in take(consumer, 8)] == list(range(12, 20))


def test_seek_into_a_batch(kit: Kit) -> None:
    """The broker sends the whole batch; the client leaves out what comes before."""
    topic = kit.topic()
    producer = kit.producer({"linger.ms": 100, "compression.type": "gzip"})
    producer.send(topic, [Outgoing(each) for each in values(100)])
    consumer = kit.reading(topic)
    take(consumer, 100)
    consumer.seek(Partition(topic, 0), 57)
    assert written(take(consumer, 43)) == values(100)[57:]


def test_seek_to_beginning(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    consumer = kit.reading(topic)
    take(consumer, 10)
    consumer.seek_to_beginning(Partition(topic, 0))
    assert written(take(consumer, 10)) == values(10)


def test_seek_to_end(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10, "old"))
    consumer = kit.reading(topic)
    take(consumer, 10)
    consumer.seek(Partition(topic, 0), 2)
    consumer.seek_to_end(Partition(topic, 0))
    found: list[Record] = []

    def read_something() -> bool:
        kit.fill(topic, [b"new"])
        found.extend(consumer.poll(timeout_s=1.0))
        return bool(found)

    until(read_something, "a record written after the seek")
    assert set(written(found)) == {b"new"}


@pytest.mark.parametrize(("hours", "offset"), [(0, 0), (1, 1), (2.5, 3), (7.999, 8), (-100, 0)])
def test_seek_by_time(kit: Kit, hours: float, offset: int) -> None:
    """Exact inside a batch."""
    topic = _timed(kit)
    consumer = kit.reading(topic)
    of = Partition(topic, 0)
    found = consumer.offset_for_time(of, BASE_MS + int(hours * HOUR_MS))
    assert found == offset
    take(consumer, 9)
    consumer.seek(of, found)
    assert [each.offset for each in take(consumer, 9 - offset)] == list(range(offset, 9))


def test_seek_by_a_time_after_all(kit: Kit) -> None:
    topic = _timed(kit)
    assert kit.reading(topic).offset_for_time(Partition(topic, 0), BASE_MS + 100 * HOUR_MS) is None


def test_seek_by_time_in_an_empty_partition(kit: Kit) -> None:
    topic = kit.topic()
    assert kit.reading(topic).offset_for_time(Partition(topic, 0), BASE_MS) is None


def test_pause_and_resume(kit: Kit) -> None:
    topic = kit.topic(2)
    paused, other = Partition(topic, 0), Partition(topic, 1)
    consumer = kit.reading(topic, partitions=2)
    kit.fill(topic, values(3, "a"), partition=0)
    kit.fill(topic, values(3, "b"), partition=1)
    take(consumer, 6)
    consumer.pause(paused)
    kit.fill(topic, values(3, "c"), partition=0)
    kit.fill(topic, values(3, "d"), partition=1)
    assert {each.partition for each in take(consumer, 3)} == {other}
    assert consumer.poll(timeout_s=0.5) == []
    consumer.resume(paused)
    assert written(take(consumer, 3)) == values(3, "c")


def test_bounds(kit: Kit) -> None:
    topic = kit.topic()
    consumer = kit.reading(topic)
    of = Partition(topic, 0)
    assert consumer.bounds(of) == (0, 0)
    kit.fill(topic, values(7))
    assert consumer.bounds(of) == (0, 7)
    kit.admin.delete_records(of, 4)
    assert consumer.bounds(of) == (4, 7)


def test_position(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    consumer = kit.reading(topic)
    take(consumer, 10)
    assert consumer.position(Partition(topic, 0)) == 10


def test_few_records_at_a_time(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(25))
    consumer = kit.reading(topic, {"max.poll.records": 4})
    found: list[Record] = []

    def all_read() -> bool:
        some = consumer.poll(max_records=4)
        assert len(some) <= 4
        found.extend(some)
        return len(found) >= 25

    until(all_read, "25 records, four at a time")
    assert written(found) == values(25)


def test_small_fetches(kit: Kit) -> None:
    """What a fetch may bring is less than all there is: many fetches."""
    topic = kit.topic()
    producer = kit.producer()
    for turn in range(10):
        producer.send(topic, [Outgoing(bytes([turn]) * 1_000)])
    found = kit.read(topic, 10, {"max.partition.fetch.bytes": 2_500})
    assert [each.value for each in found] == [bytes([turn]) * 1_000 for turn in range(10)]


def test_message_larger_than_a_fetch_may_be(kit: Kit) -> None:
    """It is sent all the same: else the consumer would be stuck for ever."""
    topic = kit.topic()
    kit.fill(topic, [b"small", bytes(300_000), b"small"])
    found = kit.read(topic, 3, {"max.partition.fetch.bytes": 1_000})
    assert [len(each.value or b"") for each in found] == [5, 300_000, 5]


def test_fetches_that_wait_for_much(kit: Kit) -> None:
    """Less than `fetch.min.bytes` comes when the wait is over."""
    topic = kit.topic()
    kit.fill(topic, values(3))
    found = kit.read(topic, 3, {"fetch.min.bytes": 100_000, "fetch.max.wait.ms": 400})
    assert written(found) == values(3)


def test_out_of_range_goes_to_the_start(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    kit.admin.delete_records(Partition(topic, 0), 6)
    consumer = kit.reading(topic, {"auto.offset.reset": "earliest"})
    take(consumer, 4)
    consumer.seek(Partition(topic, 0), 2)
    assert [each.offset for each in take(consumer, 4)] == [6, 7, 8, 9]


def test_out_of_range_goes_to_the_end(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10, "old"))
    consumer = kit.reading(topic, {"auto.offset.reset": "latest"})
    consumer.poll()
    consumer.seek(Partition(topic, 0), 1_000)
    found: list[Record] = []

    def read_something() -> bool:
        kit.fill(topic, [b"new"])
        found.extend(consumer.poll(timeout_s=1.0))
        return bool(found)

    until(read_something, "a record written after the reset")
    assert set(written(found)) == {b"new"}


def test_out_of_range_without_a_way_out(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(3))
    consumer = kit.reading(topic, {"auto.offset.reset": "none"})
    with refused():
        consumer.seek(Partition(topic, 0), 1_000)
        until(lambda: bool(consumer.poll()), "the error")


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_level(kit: Kit, level: str) -> None:
    """Without transactions all that is committed is seen at either."""
    topic = kit.topic()
    kit.producer({"enable.idempotence": True, "acks": "all"}).send(topic, [Outgoing(b"a"), Outgoing(b"b")])
    assert written(kit.read(topic, 2, {"isolation.level": level})) == [b"a", b"b"]


def test_log_that_begins_later(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    kit.admin.delete_records(Partition(topic, 0), 6)
    assert written(kit.read(topic, 4)) == values(10)[6:]


def test_partitions_of_a_topic(kit: Kit) -> None:
    topic = kit.topic(3)
    consumer = kit.reading(topic)
    until(lambda: consumer.partitions_of(topic) == {0, 1, 2}, "the client has heard of all three")


def test_two_consumers_without_a_group(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    first, second = kit.reading(topic), kit.reading(topic)
    assert written(take(first, 10)) == written(take(second, 10)) == values(10)


def test_much_data(kit: Kit) -> None:
    """More than one fetch's worth, of several partitions at once."""
    topic = kit.topic(2)
    for number in range(2):
        kit.fill(topic, [bytes([each]) * 100_000 for each in range(40)], partition=number)
    consumer = kit.reading(topic, partitions=2)
    found = take(consumer, 80)
    for number in range(2):
        of_this = [each for each in found if each.partition.number == number]
        assert [each.offset for each in of_this] == list(range(40))
        assert all(each.value == bytes([each.offset]) * 100_000 for each in of_this)


def test_consumer_of_a_topic_that_grows(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.fill(topic, [b"0"], partition=0)
    kit.admin.create_partitions(topic, 2)
    kit.until_ready(topic, 2)
    kit.fill(topic, [b"1"], partition=1)
    assert {each.value for each in take(kit.reading(topic, partitions=2), 2)} == {b"0", b"1"}


def test_broker_restarts_under_a_consumer(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(5, "before"))
    consumer = kit.reading(topic)
    take(consumer, 5)
    leader = kit.leader(topic)
    kit.cluster.stop(leader)
    kit.cluster.start(leader)
    kit.until_ready(topic)
    kit.fill(topic, values(5, "after"))
    assert written(take(consumer, 5)) == values(5, "after")


def test_leader_moves_while_consuming(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(5, "before"))
    consumer = kit.reading(topic)
    take(consumer, 5)
    leader = kit.leader(topic)
    kit.cluster.stop(leader)
    try:
        kit.fill(topic, values(5, "after"))
        assert written(take(consumer, 5)) == values(5, "after")
    finally:
        kit.cluster.start(leader)
    kit.until_ready(topic)
