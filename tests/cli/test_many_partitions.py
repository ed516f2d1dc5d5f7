"""Verbs on clusters with many partitions: each is looked at once, and nodes are read many at a time.

With 20,000 partitions some took minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from logstore.cli import topics
from logstore.cli.causes import causes
from logstore.cli.cluster_plans import proposal
from logstore.cli.cluster_state import Cluster, Session, Topic, read_cluster
from logstore.cli.trouble import Trouble
from logstore.cli.troubles import troubles
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Create, Get, Outcome
from tests.cli.test_causes import MANY, many


def cluster_of(names: Iterable[str]) -> Cluster:
    """Two brokers, and topics of two partitions."""
    topic = Topic(TopicAssignment("id", {0: (1, 2), 1: (2, 1)}), {}, -1, -1)
    brokers = {each: BrokerRegistration("host", 9092) for each in (1, 2)}
    return Cluster(brokers, dict.fromkeys(names, topic), {}, 1)


def test_partitions_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20,000 of them that took minutes."""
    looked = 0

    class Roots(frozenset[str]):
        def __contains__(self, subject: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(subject)

    def equal(one: Trouble, other: object) -> bool:
        nonlocal looked
        looked += 1
        return one is other

    def text(each: TopicPartition) -> str:
        nonlocal looked
        looked += 1
        return f"{each.topic}-{each.partition}"

    monkeypatch.setattr(Trouble, "__eq__", equal)
    monkeypatch.setattr(TopicPartition, "__str__", text)
    seen = many()
    found = troubles(replace(seen, damaged={2: {f"t-{number}": "damaged" for number in range(MANY)}}))
    assert sum(each.subject.startswith("broker 2, t-") for each in found) == MANY
    causes([replace(each, roots=Roots(each.roots)) for each in found])
    assert looked < 10 * MANY


def test_each_topic_is_described_without_a_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(f"t{number}" for number in range(20))
    looks, partitions = 0, Cluster.partitions

    def looked(*arguments: Any) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
        nonlocal looks
        for each in partitions(*arguments):
            looks += 1
            yield each

    class Operator:
        def read(self, *_: object, **__: object) -> Cluster:
            return cluster

        def min_isr(self, _: object) -> dict[str, int]:
            return {}

    @contextmanager
    def operator(*_: object) -> Iterator[Operator]:
        yield Operator()

    monkeypatch.setattr(topics, "operator", operator)
    monkeypatch.setattr(Cluster, "partitions", looked)
    assert topics.describe(["t7"]) == 0
    assert capsys.readouterr().out.count("t7-") == 2
    assert topics.describe() == 0
    assert looks == 2 + 2 * len(cluster.topics)


class Store(MemoryStore):
    """Counts how often many nodes are read at a time."""

    rounds = 0

    def read_many(self, session_id: int, reads: Sequence[Get]) -> list[Outcome]:
        self.rounds += 1
        return [self.call(session_id, each, 0)[0] for each in reads]

    def close(self) -> None: ...


def test_nodes_are_read_many_at_a_time() -> None:
    store = Store()
    session = Session(store)
    state = layout.encode_state(LeaderAndIsr(1, 5, (1,), -1))
    for each, _ in cluster_of(f"t{number}" for number in range(20)).partitions():
        topic = layout.encode_topic(TopicAssignment("id", {0: (1, 2), 1: (2, 1)}))
        session.call(Create(layout.topic_path(each.topic), topic, make_parents=True))
        path = layout.partition_state_path(each)
        session.call(Create(path, state, make_parents=True))
    found = read_cluster(session, settings=True)
    assert [each.isr for each in found.states.values()] == [(1,)] * 40
    assert 0 < store.rounds < 10


class Name(str):
    """The name of a topic that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_plan_for_many_topics_does_not_compare_each_with_all() -> None:
    cluster = cluster_of([Name(f"t{number}") for number in range(50)])
    names = list(cluster.topics)
    Name.compared = 0
    plan = proposal(cluster, [*names], [1, 2], with_racks=False, start=0, shift=0)
    assert {each.topic for each in plan} == {*names}
    assert Name.compared < 10 * len(plan)
