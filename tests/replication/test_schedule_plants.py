"""Planted bugs that the failure schedules must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.replication import following, membership, reading
from logstore.replication.isr import CommittedIsr, PendingExpand, PendingShrink, may_join
from logstore.replication.messages import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    PartitionState,
)
from logstore.replication.partition import Partition
from logstore.replication.replica import RemoteReplica
from logstore.segment.epochs import EpochEndOffset
from logstore.testing.stage import Stage
from tests.replication import test_schedules, test_schedules_of_members


def shrink_before_it_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S24: the leader believes its own proposal."""
    honest = membership.propose_shrink

    def hasty(partition: Partition, now_ms: int, *, own_broker_epoch: int) -> PendingShrink | None:
        pending = honest(partition, now_ms, own_broker_epoch=own_broker_epoch)
        if pending is not None:
            partition.isr = CommittedIsr(pending.last.isr - pending.removed)
        return pending

    monkeypatch.setattr(membership, "propose_shrink", hasty)


def count_the_committed_isr_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark does not wait for a member that may be in already."""
    monkeypatch.setattr(PendingExpand, "maximal", property(lambda self: self.last.isr))
    monkeypatch.setattr(RemoteReplica, "is_caught_up", lambda *_: False)


def count_who_remains_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark does not wait for a member that is about to leave."""
    monkeypatch.setattr(PendingShrink, "maximal", property(lambda self: self.last.isr - self.removed))


def no_gate_at_the_epoch_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower joins as soon as it reaches the high watermark."""

    def lax(*args: object, **kwargs: object) -> bool:
        return may_join(*args, **{**kwargs, "epoch_start_offset": 0})  # type: ignore[arg-type]

    monkeypatch.setattr("logstore.replication.membership.may_join", lax)


def no_fence_on_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs in requests are not looked at."""
    monkeypatch.setattr(Partition, "check_epoch", lambda self, epoch: None)


def truncate_to_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Kafka did before KIP-101."""
    honest = Partition.become_follower

    def by_watermark(self: Partition, state: PartitionState) -> bool:
        is_new = honest(self, state)
        following.truncate_to(self, self.log.high_watermark)
        return is_new

    monkeypatch.setattr(Partition, "become_follower", by_watermark)


def answer_without_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-101 alone: the leader says where, not of which epoch (before KIP-279)."""
    honest = following.reconcile

    def blind(partition: Partition, answer: EpochEndOffset) -> object:
        return honest(partition, EpochEndOffset(-1, answer.end_offset))

    monkeypatch.setattr(following, "reconcile", blind)


def count_failed_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's position counts although its log has left ours (KAFKA-8400)."""
    honest = reading.read

    def counting(
        partition: Partition, request: FetchRequest, wanted: FetchPartition, **rest: object
    ) -> FetchResult:
        replica_id = request.replica_id
        if replica_id in partition.remote_replicas and partition.is_leader:
            membership.record_fetch(partition, replica_id, wanted, 0, broker_epoch=-1, own_broker_epoch=-1)
        return honest(partition, request, wanted, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read", counting)


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (
            shrink_before_it_is_confirmed,
            lambda: test_schedules_of_members.isolated_leader(Stage("ABC", first_epoch=1)),
        ),
        (
            count_the_committed_isr_only,
            lambda: test_schedules_of_members.expansion_races_the_watermark(Stage("ABC", first_epoch=1)),
        ),
        (
            count_who_remains_only,
            lambda: test_schedules_of_members.shrink_is_lost(Stage("ABC", first_epoch=1)),
        ),
        (no_gate_at_the_epoch_start, lambda: test_schedules_of_members.late_admission(Stage("ABCD"))),
        (no_fence_on_fetches, test_schedules.test_s4_a_fetch_of_an_older_epoch_counts_for_nothing),
        (truncate_to_the_high_watermark, test_schedules.test_s1_nobody_cuts_by_high_watermark),
        (answer_without_the_epoch, test_schedules.test_s3_the_answer_names_the_epoch_it_speaks_of),
        (
            count_failed_fetches,
            test_schedules.test_s14_s15_what_stands_beside_a_divergence_is_of_another_history,
        ),
    ],
)
def test_s24_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S24 and its like: a schedule that no bug can fail proves nothing."""
    schedule()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        schedule()
