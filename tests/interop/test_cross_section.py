"""The part of the suite that runs with all other tests: each client once there and back, with one broker."""

from __future__ import annotations

from tests.interop.kit import Kit, take, until, values, written
from tests.interop.seam import Outgoing, Partition


def test_there_and_back(kit: Kit) -> None:
    """A topic is made, written to, read from the start and from the middle, and deleted."""
    topic = kit.topic(configs={"retention.ms": "-1"})
    producer = kit.producer({"acks": "all", "enable.idempotence": True, "compression.type": "lz4"})
    headers = (("trace", b"1"),)
    receipts = producer.send(topic, [Outgoing(each, key=b"k", headers=headers) for each in values(20)])
    assert [each.offset for each in receipts] == list(range(20))
    consumer = kit.reading(topic)
    found = take(consumer, 20)
    assert written(found) == values(20)
    assert {(each.key, each.headers) for each in found} == {(b"k", headers)}
    consumer.seek(Partition(topic, 0), 15)
    assert written(take(consumer, 5)) == values(20)[15:]
    assert consumer.bounds(Partition(topic, 0)) == (0, 20)
    kit.admin.delete_topic(topic)


def test_a_group_goes_on_where_it_was(kit: Kit) -> None:
    topic = kit.topic(2)
    for number in range(2):
        kit.fill(topic, values(5), partition=number)
    first = kit.member(kit.name, {"enable.auto.commit": False})
    first.subscribe(topic)
    take(first, 10)
    first.commit()
    first.close()
    second = kit.member(kit.name)
    second.subscribe(topic)
    until(lambda: second.poll() == [] and len(second.assignment()) == 2, "the second has both partitions")
    kit.fill(topic, [b"new"])
    assert written(take(second, 1)) == [b"new"]
