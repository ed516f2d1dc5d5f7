"""`logstore elect-preferred`: after a success it shows the new leader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

import logstore.cli.elect
import logstore.cli.operating
from logstore.broker.wire import types as t
from logstore.cli.broker_operator import BrokerOperator
from logstore.cli.cluster_state import Cluster, Topic
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.cli.conftest import Outcome

T0 = TopicPartition("t", 0)


class Lagging:
    """A cluster of which the broker that is asked hears of the election after some reads."""

    def __init__(self, before: Cluster, after: Cluster, reads: int) -> None:
        self._before, self._after, self._left = before, after, reads

    def read(self, topics: object = None) -> Cluster:
        self._left -= 1
        return self._before if self._left >= 0 else self._after

    def elect(self, partitions: object) -> dict[TopicPartition, str]:
        return {}

    def elect_unclean(self, partitions: object) -> dict[TopicPartition, tuple[int, str | None]]:
        return {T0: (0, None)}

    def is_electing(self) -> bool:
        return False


@pytest.mark.parametrize(("wait", "said"), [(60, "t-0  leader 1"), (0, "t-0  leader 2 instead of 1")])
def test_a_broker_that_hears_of_the_leader_later_is_asked_again(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, wait: int, said: str
) -> None:
    brokers = {number: BrokerRegistration(f"b{number}", 9092) for number in (1, 2)}
    state = LeaderAndIsr(leader=2, leader_epoch=1, isr=(1, 2), controller_epoch=1)
    before = Cluster(brokers, {"t": Topic(TopicAssignment("id", {0: (1, 2)}), {}, 0, -1)}, {T0: state}, 1)
    after = replace(before, states={T0: replace(state, leader=1)})

    @contextmanager
    def operator(*_: object) -> Iterator[Lagging]:
        yield Lagging(before, after, 4)

    monkeypatch.setattr(logstore.cli.elect, "operator", operator)
    monkeypatch.setattr(logstore.cli.operating, "pause", lambda: None)
    ended = command("elect-preferred", "t-0", "--bootstrap", "b1:9092", "--wait", wait)
    assert (ended.code, ended.out) == (0, said + "\n")


def test_an_unclean_election_shows_its_leader_not_that_there_was_none(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LeaderAndIsr(leader=-1, leader_epoch=1, isr=(1,), controller_epoch=1)
    topics = {"t": Topic(TopicAssignment("id", {0: (1, 2)}), {}, 0, -1)}
    before = Cluster({2: BrokerRegistration("b2", 9092)}, topics, {T0: state}, 2)
    after = replace(before, states={T0: replace(state, leader=2)})
    lagging = Lagging(before, after, 4)
    monkeypatch.setattr("logstore.cli.broker_operator.BrokerOperator", lambda _: lagging)
    monkeypatch.setattr(logstore.cli.operating, "pause", lambda: None)
    ended = command("elect-unclean", "t-0", "--accept-loss", "--bootstrap", "b2:9092")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "t-0  leader 2  what broker 1 alone has: when it follows, it keeps that as a loss\n"


def test_a_preferred_replica_that_is_down_hides_no_election_of_others(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller elects what it can; the verb shows each outcome, and waits for those alone."""
    dead, home = TopicPartition("t", 0), TopicPartition("t", 1)
    state = LeaderAndIsr(leader=2, leader_epoch=1, isr=(1, 2), controller_epoch=1)
    brokers = {number: BrokerRegistration(f"b{number}", 9092) for number in (1, 2)}
    topic = Topic(TopicAssignment("id", {0: (3, 2), 1: (1, 2)}), {}, 0, -1)
    cluster = Cluster(brokers, {"t": topic}, {dead: state, home: replace(state, leader=1)}, 1)
    answer = t.ElectLeadersResponse(
        replica_election_results=[
            t.ElectLeadersResponseReplicaElectionResult(
                topic="t",
                partition_result=[
                    t.ElectLeadersResponsePartitionResult(
                        partition_id=0,
                        error_code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                        error_message="broker 3 is not alive and in sync",
                    ),
                    t.ElectLeadersResponsePartitionResult(partition_id=1),
                ],
            )
        ]
    )

    class Asked:
        def controller(self, request: object) -> object:
            return answer

    class Answered(BrokerOperator):
        def read(self, *_: object, **__: object) -> Cluster:
            return cluster

    @contextmanager
    def operator(*_: object) -> Iterator[BrokerOperator]:
        yield Answered(cast("Any", Asked()))

    monkeypatch.setattr(logstore.cli.elect, "operator", operator)
    ended = command("elect-preferred", "--bootstrap", "b1:9092", "--wait", 60)
    assert (ended.code, ended.out) == (1, "t-1  leader 1  nothing to elect: it led already\n")
    assert "t-0: broker 3 is not alive and in sync; leader 2 stays" in ended.err
    as_json = command("elect-preferred", "t-0", "--bootstrap", "b1:9092", "--json")
    assert "broker 3 is not alive" in json.loads(as_json.out.splitlines()[0])["error"]
