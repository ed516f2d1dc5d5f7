"""What the console shows of a cluster, by what was read of it: no broker runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.cli.cluster_state import Topic
from logstore.cli.console import views
from logstore.cli.console.desk import Seen
from logstore.cli.log_dirs import LogDir
from logstore.cli.troubles import Observed
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore.layout import LeaderAndIsr, TopicAssignment
from tests.cli.test_health import ORDERS, observed


def seen(what: Observed) -> Seen:
    return Seen(what, at_ms=7, took_s=0.1)


@pytest.mark.parametrize(
    ("what", "marks"),
    [
        (observed(), "LII"),
        (observed(leader=2), "ILI"),
        (observed(isr=(1, 2)), "LIO"),
        (observed(isr=(1, 2), adding=(3,)), "LIA"),
        (observed(live=(1, 2)), "LID"),
        (observed(live=(2, 3)), "SII"),
        (observed(silent={1: "no answer"}), "SII"),
        (observed(silent={3: "no answer"}), "LID"),
        (observed(leader=-1, isr=(3,), live=(1, 2)), "NND"),
    ],
)
def test_each_replica_has_a_mark(what: Observed, marks: str) -> None:
    assert views.marks(what, ORDERS, (1, 2, 3)) == marks
    assert views.partitions(seen(what), views.Wanted())["rows"][0][5] == marks


def test_lag_is_the_distance_from_the_leaders_end() -> None:
    ends = {1: 100, 2: 70, 3: 101}
    dirs = tuple(
        LogDir(broker, "/data", replicas=frozenset((ORDERS,)), end_offsets={ORDERS: end}, sizes={ORDERS: 5})
        for broker, end in ends.items()
    )
    found = views.partitions(seen(observed(log_dirs=dirs)), views.Wanted())
    assert found["rows"] == [[0, 0, 1, 5, (1, 2, 3), "LII", [0, 30, 0], 0]]
    assert found["topics"] == ["orders"]
    one = views.partition(seen(observed(log_dirs=dirs)), ORDERS)
    assert one is not None
    assert [each["lag"] for each in one["replicas"]] == [0, 30, 0]
    unknown = views.partition(seen(observed()), ORDERS)
    assert unknown is not None
    assert [each["lag"] for each in unknown["replicas"]] == [None, None, None]


def many(topics: int, partitions: int) -> Observed:
    """A cluster whose last partition of each topic lacks broker 3 in its ISR."""

    def isr(number: int) -> tuple[int, ...]:
        return (1, 2) if number == partitions - 1 else (1, 2, 3)

    held = {number: (1, 2, 3) for number in range(partitions)}
    names = [f"t{number:04}" for number in range(topics)]
    cluster = replace(
        observed().cluster,
        topics={name: Topic(TopicAssignment("id", dict(held)), {}, -1, -1) for name in names},
        states={
            TopicPartition(name, number): LeaderAndIsr(1, 0, isr(number), -1)
            for name in names
            for number in held
        },
    )
    return replace(observed(), cluster=cluster, min_isr=dict.fromkeys(names, 1), log_dirs=())


def test_partitions_come_in_pages() -> None:
    what = seen(many(3, 4))
    page = views.partitions(what, views.Wanted(offset=3, limit=2))
    assert (page["total"], page["topics"]) == (12, ["t0000", "t0001"])
    assert [(row[0], row[1]) for row in page["rows"]] == [(0, 3), (1, 0)]
    assert views.partitions(what, views.Wanted(offset=12))["rows"] == []
    of_topic = views.partitions(what, views.Wanted(topic="t0001"))
    assert (of_topic["total"], of_topic["topics"]) == (4, ["t0001"])
    bad = views.partitions(what, views.Wanted(only_bad=True, offset=1, limit=1))
    assert (bad["total"], bad["topics"], [row[1] for row in bad["rows"]]) == (3, ["t0001"], [3])


def test_an_overview_counts() -> None:
    found = views.overview(seen(observed(live=(1, 2), isr=(1, 2))))
    assert (found["partitions"], found["unavailable"], found["under_replicated"]) == (1, 0, 1)
    assert [(each["id"], each["state"], each["leads"]) for each in found["brokers"]] == [
        (1, "up", 1),
        (2, "up", 0),
        (3, "gone", 0),
    ]
    assert found["brokers"][2]["out_of_sync"] == 1
    assert not found["is_sound"]
    assert found["troubles"][0]["subject"] == "broker 3"
    assert found["not_preferred"] == 0
    assert views.overview(seen(observed(leader=2)))["not_preferred"] == 1


def test_what_is_wrong_is_told_by_causes() -> None:
    found = views.overview(seen(many(150, 1)))
    assert [(each["subject"], each["partitions"]) for each in found["troubles"]] == [("150 partitions", 150)]
    assert found["troubles_in_all"] == 1


def test_the_load_of_a_plan_beside_that_of_now() -> None:
    here = frozenset((ORDERS,))
    dirs = tuple(LogDir(broker, "/data", replicas=here, sizes={ORDERS: 10}) for broker in (1, 2))
    what = observed(log_dirs=dirs)
    found = {each["broker"]: each for each in views.load(what, {ORDERS: (2, 4)})}
    assert found[1]["now"] == {"replicas": 1, "preferred": 1, "bytes": 10}
    assert found[1]["then"] == {"replicas": 0, "preferred": 0, "bytes": 0}
    assert found[2]["then"] == {"replicas": 1, "preferred": 1, "bytes": 10}
    assert found[4]["then"] == {"replicas": 1, "preferred": 0, "bytes": 10}


def test_what_moves_is_listed_with_its_progress() -> None:
    ends = {1: 100, 3: 40}
    dirs = tuple(LogDir(broker, "/data", end_offsets={ORDERS: end}) for broker, end in ends.items())
    (found,) = views.moves(seen(observed(isr=(1, 2), adding=(3,), log_dirs=dirs)))
    assert (found["adding"], found["in_sync"], found["lag"], found["end_offset"]) == ([3], [], [60], 100)
    assert views.moves(seen(observed())) == []
