"""`reassign … --wait` over brokers: one that is asked may know less than the controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from logstore.cli import operating
from logstore.cli.cluster_plans import Standing
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.reassign import _look
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import TopicAssignment

MOVED = TopicPartition("moved", 0)
PLAN = {MOVED: (2, 3)}


class Operator:
    """Answers one look after another: whether the controller lists the partition, and its replicas."""

    def __init__(self, looks: Iterable[tuple[bool, tuple[int, ...]]]) -> None:
        self.looks: Iterator[tuple[bool, tuple[int, ...]]] = iter(looks)
        self.replicas: tuple[int, ...] = ()
        self.count = 0

    def moving(self) -> list[TopicPartition]:
        is_listed, self.replicas = next(self.looks)
        self.count += 1
        return [MOVED] if is_listed else []

    def read(self, topics: Iterable[str], *, settings: bool = False) -> Cluster:
        assert set(topics) == {"moved"}
        topic = Topic(TopicAssignment("", {0: self.replicas}), {}, 0, -1)
        return Cluster({}, {"moved": topic}, {}, None)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "pause", lambda: None)


def standing(operator: Operator) -> Standing:
    return _look(operator, PLAN, 3600)[1][MOVED]  # type: ignore[arg-type]


def test_a_broker_that_is_behind_the_controller_makes_no_failure() -> None:
    stale = [(False, (1, 2))] * 3
    operator = Operator([(True, (1, 2)), (True, (2, 3, 1)), *stale, (False, (2, 3)), (False, ())])
    assert standing(operator) is Standing.COMPLETED
    assert operator.count == 6


def test_a_failed_plan_is_told_before_the_time_is_over() -> None:
    operator = Operator([(True, (1, 2)), *[(False, (1, 2))] * 1000])
    assert standing(operator) is Standing.FAILED
    assert operator.count < 100
