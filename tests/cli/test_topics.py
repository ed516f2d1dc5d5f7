"""`logstore topics describe`: what it shows of a topic, in text and in JSON, and its filters together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logstore.broker import BrokerCluster
from logstore.cli import store_operator, topics
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.store_operator import StoreOperator
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
SETTINGS = {"min.insync.replicas": "2", "cleanup.policy": "compact"}


def lines(ended: Outcome) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A store with a topic that has settings and one without; returns whether each reading had settings.

    Partition 0 of both has replica 2 out of sync, partition 1 is whole.
    """
    readings: list[bool] = []

    def read_cluster(*_: object, settings: bool) -> Cluster:
        readings.append(settings)
        assignment = {0: (1, 2), 1: (2, 1)}
        return Cluster(
            {each: BrokerRegistration("host", 9092) for each in (1, 2)},
            {
                name: Topic(TopicAssignment(f"id-of-{name}", assignment), own if settings else {}, -1, -1)
                for name, own in {"set": SETTINGS, "unset": dict[str, str]()}.items()
            },
            {
                TopicPartition(name, number): LeaderAndIsr(1, 0, (1, 2) if number else (1,), 1)
                for name in ("set", "unset")
                for number in (0, 1)
            },
            1,
        )

    @contextmanager
    def operator(*_: object) -> Iterator[StoreOperator]:
        yield StoreOperator(None)  # type: ignore[arg-type]

    monkeypatch.setattr(store_operator, "read_cluster", read_cluster)
    monkeypatch.setattr(topics, "operator", operator)
    return readings


def test_json_has_what_the_text_shows(command: Command, store: list[bool]) -> None:
    rows = lines(command("topics", "describe", "--json"))
    assert [(each["topic"], each["topic_id"], each["settings"], each["min_isr"]) for each in rows] == [
        *[("set", "id-of-set", SETTINGS, 2)] * 2,
        *[("unset", "id-of-unset", {}, None)] * 2,
    ]
    text = command("topics", "describe").out.splitlines()
    assert text[0] == "set  id id-of-set  cleanup.policy=compact,min.insync.replicas=2"
    assert text[1] == "  set-0  leader 1  epoch 0  replicas 1,2  isr 1  min isr 2"
    assert text[3:5] == ["unset  id id-of-unset", "  unset-0  leader 1  epoch 0  replicas 1,2  isr 1"]
    assert store == [True, True], "one reading each"


def test_a_filter_of_partitions_leaves_settings_out(command: Command, store: list[bool]) -> None:
    (row, _) = lines(command("topics", "describe", "--under-replicated", "--json"))
    assert (row["topic_id"], row["settings"], row["min_isr"]) == ("id-of-set", None, None)
    assert store == [False]
    (row,) = lines(command("topics", "describe", "--under-min-isr", "--json"))
    assert (row["topic"], row["partition"], row["settings"], row["min_isr"]) == ("set", 0, None, 2)


def test_topics_with_overrides_and_a_filter_of_partitions(command: Command, store: list[bool]) -> None:
    """Both count: the partitions that the filter selects, of topics that the option selects."""
    both = ("topics", "describe", "--topics-with-overrides", "--under-replicated")
    assert command(*both).out == "  set-0  leader 1  epoch 0  replicas 1,2  isr 1  min isr 2\n"
    (row,) = lines(command(*both, "--json"))
    assert (row["topic"], row["partition"], row["settings"]) == ("set", 0, SETTINGS)
    assert command("topics", "describe", "--topics-with-overrides", "--unavailable").out == ""
    assert command("topics", "describe", "--topics-with-overrides").out == (
        "set  cleanup.policy=compact,min.insync.replicas=2\n"
    )


def test_brokers_tell_a_minimum_that_the_topic_does_not_set(command: Command) -> None:
    with BrokerCluster(1) as cluster:
        cluster.create_topic("orders")
        describe = ("topics", "describe", "orders", "--bootstrap", cluster.bootstrap)
        (row,) = lines(command(*describe, "--json"))
        assert (row["settings"], row["min_isr"]) == ({}, 1)
        head, shown = command(*describe).out.splitlines()
        assert head == f"orders  id {row['topic_id']}"
        assert shown.endswith("  isr 1  min isr 1")
