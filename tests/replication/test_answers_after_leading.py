"""acks=all when the leader is replaced: the client learns what became of its batch, not that the role moved.

`NOT_LEADER_OR_FOLLOWER (6)` for a batch that is committed afterwards makes librdkafka write it again, under a
new producer epoch, if a later batch has met a gap meanwhile.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.replication import following, orders
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.messages import ProduceResponse
from logstore.replication.partition import ACKS_ALL
from logstore.replication.replica_manager import owes_answers
from logstore.testing.stage import TP, Pending, Stage
from tests.replication.test_replica_manager import ELSEWHERE, F1, F2, ME, P0, P1, Manager

NONE = ErrorCode.NONE
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT


def led_by_a(names: str = "AB") -> Stage:
    stage = Stage(names)
    stage.elect("A", isr=names)
    for name in names[1:]:
        stage.fetch(name)
    return stage


def replaced_after(stage: Stage, *, replicated: bool) -> Pending:
    """A takes a record, which B fetches or not; then B leads."""
    waiting = stage.append("A", acks=ACKS_ALL)
    if replicated:
        stage.fetch("B")
    stage.elect("B", isr=stage.names)
    return waiting


def test_the_batch_is_committed_by_the_new_leader() -> None:
    stage = led_by_a()
    waiting = replaced_after(stage, replicated=True)
    assert waiting.error is None, "nobody knows yet"
    assert stage.append("A", acks=ACKS_ALL).error is NOT_LEADER, "a new one is refused at once"
    stage.fetch("A")
    stage.fetch("A")
    assert waiting.result is not None
    assert waiting.result.error is NONE
    assert waiting.result.base_offset == 0
    assert stage.log("B").partition.high_watermark == 1


def test_the_batch_is_not_in_the_new_leaders_log() -> None:
    stage = led_by_a()
    waiting = replaced_after(stage, replicated=False)
    assert waiting.error is None
    stage.fetch("A")
    assert waiting.error is NOT_LEADER
    assert stage.values("A") == []


def test_the_batch_is_not_in_the_new_leaders_log_and_a_full_disk_delays_the_cut() -> None:
    """The answer does not wait for room in quarantine: a late one is sent again behind newer messages."""
    stage = led_by_a()
    waiting = replaced_after(stage, replicated=False)
    disk = stage.disks[0]
    disk.capacity = 0
    stage.fetch("A")
    assert waiting.error is NOT_LEADER
    assert len(stage.values("A")) == 1, "nothing is cut before its bytes are kept"
    disk.capacity = None
    stage.advance(1_000)
    stage.fetch("A")
    assert stage.values("A") == []


def test_a_batch_that_ends_where_a_full_disk_delays_the_cut_is_committed() -> None:
    stage = led_by_a()
    replicated = stage.append("A", acks=ACKS_ALL)
    stage.fetch("B")
    behind_it = replaced_after(stage, replicated=False)
    disk = stage.disks[0]
    disk.capacity = 0
    stage.fetch("A")
    assert (replicated.error, behind_it.error) == (None, NOT_LEADER)
    disk.capacity = None
    stage.advance(1_000)
    for _ in range(3):  # one that cuts, one at the end, one that brings the high watermark
        stage.fetch("A")
    assert replicated.error is NONE


def test_another_batch_at_its_offset_is_not_taken_for_it() -> None:
    """The new leader has written at the same offset and committed it, before the old one asks."""
    stage = led_by_a("ABC")
    waiting = replaced_after(stage, replicated=False)
    stage.append("B", count=3)
    stage.fetch("C")
    stage.fetch("C")
    for _ in range(3):
        assert waiting.error in (None, NOT_LEADER)
        stage.fetch("A")
    assert waiting.error is NOT_LEADER
    assert stage.values("A") == stage.values("B")


def test_a_high_watermark_of_before_the_comparison_proves_nothing() -> None:
    """The answer of the old leader's own fetch of an earlier epoch, or a high watermark of its own."""
    stage = led_by_a("ABC")
    waiting = stage.append("A", acks=ACKS_ALL)
    stage.elect("B", isr="ABC", to="AB")
    partition = stage.partition("A")
    partition.log.set_high_watermark(1)
    stage.manager("A").waiting.wake(TP)
    stage.manager("A").end_turn(stage.now_ms)
    assert waiting.error is None
    stage.fetch("A")
    assert waiting.error is NOT_LEADER


def test_the_leadership_returns_with_the_batch() -> None:
    stage = led_by_a()
    waiting = replaced_after(stage, replicated=True)
    stage.elect("A", isr="AB")
    assert waiting.error is None
    stage.fetch("B")
    stage.fetch("B")
    assert waiting.error is NONE


def test_the_leadership_returns_without_the_batch() -> None:
    """Cut under the leader in between; then the same node writes something else there."""
    stage = led_by_a("ABC")
    waiting = replaced_after(stage, replicated=False)
    stage.fetch("A")
    assert waiting.error is NOT_LEADER
    stage.elect("A", isr="ABC")
    later = stage.append("A", acks=ACKS_ALL)
    stage.fetch("B")
    stage.fetch("B")
    stage.fetch("C")
    stage.fetch("C")
    assert (waiting.error, later.error) == (NOT_LEADER, NONE)


def test_a_session_is_lost_and_the_role_returns() -> None:
    """The node cannot know what others decided meanwhile; its next role tells."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=60_000)
    rig.follow(F1, 1)
    rig.take(orders.session_lost(rig.manager, rig.now_ms))
    assert rig.error("w") is None
    rig.follow(F2, 1)
    assert rig.error("w") is None
    rig.take(orders.registered(rig.manager, 6, rig.now_ms))
    rig.role(ME, 1, version=rig.versions, broker_epoch=6)
    rig.follow(F1, 1)
    rig.follow(F2, 1)
    assert rig.error("w") is NONE


def test_the_deadline_of_the_request_ends_the_wait() -> None:
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=500)
    rig.role(F1, 2)
    assert rig.error("w") is None
    rig.tick(500)
    assert rig.error("w") is TIMED_OUT


def test_a_stop_answers_that_nobody_knows() -> None:
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=60_000)
    rig.role(F1, 2)
    rig.take(orders.stop(rig.manager, rig.now_ms))
    assert rig.error("w") is TIMED_OUT


def test_a_node_that_stops_follows_until_its_clients_are_answered() -> None:
    """Of two partitions it follows the new leader of the one that a client waits for."""
    rig = Manager()
    rig.role(ME, 1, P0, P1)
    rig.produce("w", timeout_ms=60_000)
    rig.manager.is_departing = True
    rig.role(F1, 2, P0, P1)
    assert set(rig.manager.followers.followed) == {P0}
    assert owes_answers(rig.manager)
    rig.tick(60_000)
    assert rig.error("w") is TIMED_OUT
    assert not owes_answers(rig.manager)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_replica_is_deleted(is_known: bool) -> None:
    """Whether the batch was committed elsewhere cannot be said here any more."""
    rig = Manager()
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=60_000)
    if is_known:
        rig.manager.metadata.partitions[P0] = rig.manager.metadata.partitions[ELSEWHERE]
    rig.role(F1, 2)
    rig.stop(3, delete=True)
    assert rig.error("w") is (TIMED_OUT if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_the_level_that_is_promised_is_one_that_was_reached() -> None:
    """The new leader may go by a lower level than this node knows of."""
    rig = Manager(durability=Durability.SYNCED)
    rig.role(ME, 1)
    rig.produce("w", timeout_ms=60_000)
    rig.role(F1, 2)
    partition = rig.manager.partitions[P0]
    partition.log.set_high_watermark(1)
    following.agree(partition)
    rig.manager.waiting.wake(P0)
    rig.take(rig.manager.end_turn(rig.now_ms))
    answer = rig.body(ProduceResponse)
    assert answer is not None
    assert (answer.partitions[P0].error, answer.partitions[P0].durability) == (NONE, Durability.REPLICATED)


def test_too_few_in_sync_where_the_watermark_does_not_wait_for_them() -> None:
    config = NodeConfig(
        node_id=0, replica_fetch_wait_max_ms=0, replica_lag_time_max_ms=10_000, min_insync_wall=False
    )
    stage = Stage("AB", min_insync=2, config=config)
    stage.elect("A", isr="AB")
    stage.fetch("B")
    waiting = replaced_after(stage, replicated=True)
    stage.fetch("A")
    stage.fetch("A")
    assert waiting.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "nobody told of an ISR of two"


def test_a_batch_sent_again_is_judged_by_the_epoch_it_was_written_in() -> None:
    stage = led_by_a()
    first = replaced_after(stage, replicated=True)
    assert first.error is None
    partition = stage.partition("A")
    assert partition.holds(1, 0)
    assert not partition.holds(1, 1)
    assert not partition.holds(2, 0)
