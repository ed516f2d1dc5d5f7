"""What a behaviour has in hand: one client, one cluster, and topics of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.interop.cluster import DEADLINE_S, Cluster
from tests.interop.seam import (
    Admin,
    Client,
    Consumer,
    Outgoing,
    Partition,
    Producer,
    Receipt,
    Record,
    Refused,
)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it. Fails, saying what was waited for, when the deadline is over."""
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def values(count: int, prefix: str = "value") -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


@contextmanager
def refused(*codes: int) -> Iterator[None]:
    """It must be refused, with one of these of Kafka's error codes; with none given: with any."""
    with pytest.raises(Refused) as caught:
        yield
    assert not codes or caught.value.code in codes, caught.value


class Kit:
    def __init__(
        self, client: Client, cluster: Cluster, admin: Callable[[], Admin], name: str, stack: ExitStack
    ) -> None:
        """Topics and groups begin with `name`; what is opened is closed by `stack`."""
        self.client, self.cluster, self.name = client, cluster, name
        self._admin = admin
        self._stack = stack
        self._topics = 0

    @property
    def admin(self) -> Admin:
        return self._admin()

    @property
    def size(self) -> int:
        return len(self.cluster.brokers)

    def fresh(self) -> str:
        """A name that no topic has."""
        self._topics += 1
        return f"{self.name}.{self._topics}"

    def topic(
        self,
        partitions: int = 1,
        *,
        assignment: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """A new topic, replicated on all brokers if not told otherwise, that can be used."""
        name = self.fresh()
        if assignment:
            self.admin.create_topic(name, assignment=assignment, configs=configs)
        else:
            self.admin.create_topic(name, partitions=partitions, factor=self.size, configs=configs)
        self.until_ready(name, len(assignment) or partitions)
        return name

    def until_ready(self, topic: str, partitions: int = 1, in_sync: int | None = None) -> None:
        """Every broker has heard of the topic, and so many of its replicas (or all) are in sync."""
        until(
            lambda: self.cluster.knows(topic, partitions, in_sync),
            f"all brokers know {topic}, and {in_sync or 'all'} of its replicas are in sync",
        )

    def producer(
        self, settings: Mapping[str, object] | None = None, *, cluster: Cluster | None = None
    ) -> Producer:
        made = self.client.producer((cluster or self.cluster).bootstrap, settings or {})
        self._stack.callback(made.close)
        return made

    def consumer(self, settings: Mapping[str, object] | None = None) -> Consumer:
        """One that begins at the start where it has no other word."""
        given = {"auto.offset.reset": "earliest", **(settings or {})}
        made = self.client.consumer(self.cluster.bootstrap, given)
        self._stack.callback(made.close)
        return made

    def member(self, group: str, settings: Mapping[str, object] | None = None) -> Consumer:
        """A consumer in a group whose times are short."""
        given = {"group.id": group, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        return self.consumer({**given, **(settings or {})})

    def fill(self, topic: str, what: Iterable[bytes], *, partition: int = 0) -> list[Receipt]:
        """Have these values written, by a producer with acks=all."""
        producer = self.client.producer(self.cluster.bootstrap, {"acks": "all", "linger.ms": 5})
        try:
            return producer.send(topic, [Outgoing(value, partition=partition) for value in what])
        finally:
            producer.close()

    def reading(
        self, topic: str, settings: Mapping[str, object] | None = None, *, partitions: int = 1
    ) -> Consumer:
        """A consumer that is assigned the topic's partitions."""
        consumer = self.consumer(settings)
        consumer.assign(*(Partition(topic, number) for number in range(partitions)))
        return consumer

    def read(self, topic: str, count: int, settings: Mapping[str, object] | None = None) -> list[Record]:
        """The first records of a topic's one partition."""
        return take(self.reading(topic, settings), count)

    def leader(self, topic: str, partition: int = 0) -> int:
        return self.admin.describe_topic(topic)[partition].leader


def take(consumer: Consumer, count: int) -> list[Record]:
    """Poll until there are that many; more is a failure."""
    found: list[Record] = []

    def enough() -> bool:
        found.extend(consumer.poll(timeout_s=1.0))
        return len(found) >= count

    until(enough, f"{count} records")
    assert len(found) == count, f"{len(found)} records instead of {count}"
    return found


def written(records: Iterable[Record]) -> list[bytes | None]:
    return [each.value for each in records]
