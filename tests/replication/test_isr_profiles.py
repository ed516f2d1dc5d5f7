"""The rules for being in sync as Kafka had them over time, the gauges, and the fetchers' number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import LagCriterion, NodeConfig
from logstore.replication.effects import Send
from logstore.replication.isr import LagBounds, lags_in_messages, lags_in_time
from logstore.replication.messages import FetchRequest, FetchResponse, FetchResult
from logstore.replication.partition import ACKS_ALL
from logstore.replication.replica import RemoteReplica
from logstore.testing.stage import Stage
from tests.replication.test_replica_manager import F1, F2, ME, P0, P1, Manager

LAG_MS = 10_000
CONFIG = NodeConfig(node_id=0, replica_fetch_wait_max_ms=0, replica_lag_time_max_ms=LAG_MS)
# Fetching all the time, ten records behind; at the end and silent; behind and silent.
BUSY = RemoteReplica(1, 10, 0, caught_up_ms=0, last_fetch_ms=50_000, last_fetch_leader_end_offset=20)
IDLE = RemoteReplica(1, 20, 0, caught_up_ms=0, last_fetch_ms=0, last_fetch_leader_end_offset=20)
GONE = RemoteReplica(1, 10, 0, caught_up_ms=0, last_fetch_ms=0, last_fetch_leader_end_offset=20)


@pytest.mark.parametrize(
    ("replica", "caught_up", "silence", "messages"),
    [(BUSY, True, False, True), (IDLE, False, False, False), (GONE, True, True, True)],
)
def test_three_predicates(replica: RemoteReplica, caught_up: bool, silence: bool, messages: bool) -> None:
    """1.3: caught up (>= 0.9), silent (0.8), too many records behind (0.8): who is out of sync by which."""
    now_ms, end = 50_001, 20
    assert lags_in_time(replica, end, now_ms, LagBounds(LAG_MS)) is caught_up
    assert lags_in_time(replica, end, now_ms, LagBounds(LAG_MS, by_silence=True)) is silence
    assert lags_in_messages(replica, end, LagBounds(LAG_MS, 9)) is messages
    assert not lags_in_messages(replica, end, LagBounds(LAG_MS, 10))


def test_a_member_that_never_fetched_has_the_whole_bound() -> None:
    """By silence too: it is counted from the election."""
    fresh = RemoteReplica(1).under_new_epoch(in_isr=True, was_leader=False, leader_end_offset=5, now_ms=1000)
    bounds = LagBounds(LAG_MS, by_silence=True)
    assert not lags_in_time(fresh, 5, 1000 + LAG_MS, bounds)
    assert lags_in_time(fresh, 5, 1001 + LAG_MS, bounds)


@pytest.mark.parametrize(
    ("criterion", "out_after_ms"), [(LagCriterion.CAUGHT_UP, 15_000), (LagCriterion.SILENCE, 20_000)]
)
def test_how_often_it_is_looked_at(criterion: LagCriterion, out_after_ms: int) -> None:
    """1.3: every half of the bound, so out after at most 1.5 of it; 0.8: every bound, after at most two."""
    stage = Stage("AB", config=replace(CONFIG, replica_lag_criterion=criterion))
    stage.elect("A", isr="AB")
    stage.append("A")
    waited_ms = 0
    while stage.proposal() is None:
        stage.advance(1000)
        waited_ms += 1000
    assert waited_ms == out_after_ms


@pytest.mark.parametrize(
    ("criterion", "is_out"), [(LagCriterion.CAUGHT_UP, True), (LagCriterion.SILENCE, False)]
)
def test_s33_a_slow_follower_by_either_criterion(criterion: LagCriterion, is_out: bool) -> None:
    """It fetches all the time and never reaches the end: only by messages did 0.8 take it out."""
    stage = Stage("AB", config=replace(CONFIG, replica_lag_criterion=criterion, replica_fetch_max_bytes=1))
    stage.elect("A", isr="AB")
    for _ in range(25):
        stage.append("A", 3)
        stage.fetch("B")
        stage.advance(1000)
    assert (stage.proposal() is not None) is is_out


def test_s35_without_the_wall() -> None:
    """Before 3.7: the watermark goes on with the smaller ISR, and the client hears that it was written."""
    stage = Stage("AB", min_insync=2, config=replace(CONFIG, min_insync_wall=False))
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    waiting = stage.append("A", acks=ACKS_ALL)
    stage.advance(11_000)
    stage.persist_isr()
    assert stage.log("A").partition.high_watermark == 3
    assert waiting.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_gauges() -> None:
    """6.2: UnderMinIsr / AtMinIsr: ISR < / == min(min.isr, RF); a follower reports neither."""
    rig = Manager()
    manager = rig.manager
    rig.role(ME, 1, P0, P1, configs={"t": {"min.insync.replicas": "2"}})

    def shown() -> tuple[int, int, int]:
        led = manager.partitions.values()
        return (
            sum(each.is_under_replicated for each in led),
            sum(each.is_under_min_isr for each in led),
            sum(each.is_at_min_isr for each in led),
        )

    assert shown() == (0, 0, 0)
    settings = {P0.topic: {"min.insync.replicas": "2"}, P1.topic: {"min.insync.replicas": "2"}}
    rig.role(ME, 1, P0, P1, isr=(ME, F1), configs=settings)
    assert shown() == (2, 0, 2)
    rig.role(ME, 1, P0, isr=(ME,), configs=settings)
    assert shown() == (2, 1, 1)
    rig.role(F1, 2, P0, P1, configs=settings)
    assert shown() == (0, 0, 0)
    assert (manager.offline_replicas, len(manager.followers.failed)) == (0, 0)
    sent = [effect for effect in rig.effects if isinstance(effect, Send)]
    fenced = FetchResult(ErrorCode.FENCED_LEADER_EPOCH)
    rig.take(manager.on_response(sent[0].correlation_id, FetchResponse({P0: fenced}), rig.now_ms))
    assert len(manager.followers.failed) == 1
    rig.role(F2, 3, P0)
    assert len(manager.followers.failed) == 0


def test_6_5_resizing_keeps_states_and_failures() -> None:
    """6.5: resize 10 -> 50 -> 10: every partition on thread hash mod n; failed set preserved."""
    rig = Manager()
    manager = rig.manager
    many = [TopicPartition("t", number) for number in range(40)]
    rig.role(F1, 1, *many)
    (send,) = (effect for effect in rig.effects if isinstance(effect, Send))
    assert isinstance(send.body, FetchRequest)
    assert set(send.body.partitions) == set(many), "one fetcher has them all"
    fenced = FetchResponse({many[0]: FetchResult(ErrorCode.FENCED_LEADER_EPOCH)})
    rig.take(manager.on_response(send.correlation_id, fenced, rig.now_ms))
    before = manager.followers.followed
    for count in (10, 50, 10):
        manager.followers.resize(count)
        rig.take(manager.end_turn(rig.now_ms + 2000))
        bodies = [effect.body for effect in rig.effects if isinstance(effect, Send)]
        asked = [body.partitions for body in bodies if isinstance(body, FetchRequest)]
        assert len(asked) == min(count, 39)
        assert sum(map(len, asked)) == 39, "each once, the failed one not at all"
        assert manager.followers.followed == before
        assert list(manager.followers.failed) == [many[0]]
    assert manager.on_disconnected(send.correlation_id, rig.now_ms) is False, "the old request is nobody's"


def test_3_7_fetchers_without_partitions_end_with_the_change_of_roles() -> None:
    """Not in the middle of it: partitions that come back in the same request find theirs."""
    rig = Manager()
    manager = rig.manager
    rig.role(F1, 1, P0, P1)
    rig.role(F2, 2, P0)
    assert {leader for leader, _ in manager.followers.fetchers} == {F1, F2}
    rig.role(F2, 2, P1)
    assert {leader for leader, _ in manager.followers.fetchers} == {F2}
    rig.role(ME, 3, P0, P1)
    assert not manager.followers.fetchers
