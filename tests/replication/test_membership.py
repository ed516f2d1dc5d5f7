"""ISR changes of a leader, and the answers of the controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.replication import following, membership
from logstore.replication.isr import PendingExpand
from logstore.replication.messages import (
    AlterPartitionResult,
)
from tests.replication.test_partition import F1, F2, LAG_MS, ME, NOW_MS, Rig, data


def test_expansion() -> None:
    """6.2: not below the epoch start although above the watermark; proposed at it; then confirmed."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(*[1] * 6), high_watermark=3, log_start_offset=0)
    rig.lead(2, isr=(ME, F1))
    rig.fetch(F2, 5)
    assert rig.partition.isr.maximal == {ME, F1}
    rig.fetch(F2, 6)
    pending = rig.partition.isr
    assert isinstance(pending, PendingExpand)
    assert pending.committed == {ME, F1}
    assert pending.maximal == {ME, F1, F2}
    assert pending.proposal.new_isr == (ME, F1, F2)
    assert pending.proposal.broker_epochs == (1, -1, 1), "F1 has not been seen in this epoch"
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), epoch=2, version=7) is membership.IsrOutcome.ADOPTED
    assert rig.partition.isr.committed == rig.partition.isr.maximal == {ME, F1, F2}
    assert rig.partition.partition_epoch == 7
    assert rig.counters.isr_expands == 1


def expanding() -> Rig:
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.fetch(F2, 0)
    assert isinstance(rig.partition.isr, PendingExpand)
    return rig


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_definite_refusal_leaves_the_larger_isr(error: ErrorCode) -> None:
    """6.2: the stored state has changed; until it arrives here, every possible member counts."""
    rig = expanding()
    pending = rig.partition.isr
    assert rig.answer(error) is membership.IsrOutcome.UNKNOWN
    assert rig.partition.isr is pending
    rig.fetch(F2, 0)
    assert rig.partition.isr is pending, "and nothing else is proposed"


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_was_never_written_is_taken_back(error: ErrorCode) -> None:
    """6.2: back to the committed ISR; the next fetch may propose again."""
    rig = expanding()
    assert rig.answer(error) is membership.IsrOutcome.REVERTED
    assert rig.partition.isr.maximal == {ME, F1}
    rig.fetch(F2, 0)
    assert isinstance(rig.partition.isr, PendingExpand)


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT])
def test_no_real_answer_is_asked_again(error: ErrorCode) -> None:
    rig = expanding()
    pending = rig.partition.isr
    assert rig.answer(error) is membership.IsrOutcome.RESEND
    assert rig.partition.isr is pending


def test_answers_of_other_epochs_are_not_taken() -> None:
    """2.6: another leader epoch, or a lower partition epoch; an equal one is a repeat and fine."""
    rig = expanding()
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), epoch=2, version=5) is membership.IsrOutcome.STALE
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), version=-1) is membership.IsrOutcome.STALE
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), version=0) is membership.IsrOutcome.ADOPTED


def test_the_high_watermark_stands_below_the_number_that_the_state_names() -> None:
    """S64: other replicas are recorded as holding all committed records, even with a smaller setting here.

    The number comes with a role, and with the state that answers a proposal: in either way, with the ISR.
    """
    rig = Rig()
    alone = replace(rig.state(ME, 1, isr=(ME,)), min_insync=2)
    rig.partition.become_leader(alone, NOW_MS)
    rig.write(2)
    assert rig.partition.min_insync == 1
    assert rig.log.partition.high_watermark == 0
    rig.partition.become_leader(replace(alone, min_insync=0, partition_epoch=1), NOW_MS)
    rig.fetch(F1, 2)
    pending = rig.partition.isr
    assert isinstance(pending, PendingExpand)
    said = AlterPartitionResult(ErrorCode.NONE, ME, 1, (ME, F1), 5, min_insync=3)
    assert membership.on_isr_answer(rig.partition, pending, said) is membership.IsrOutcome.ADOPTED
    before = rig.log.partition.high_watermark
    rig.write()
    rig.fetch(F1, 3)
    assert rig.log.partition.high_watermark == before


def test_a_former_life_that_was_caught_up_does_not_hold_the_watermark() -> None:
    """Its fetches prove nothing (KIP-903): it cannot join, so there is nothing to wait for."""
    rig = Rig()
    rig.lead(1, isr=(ME,))
    rig.fetch(F1, 0)
    assert rig.answer(ErrorCode.INELIGIBLE_REPLICA) is membership.IsrOutcome.REVERTED
    rig.write()
    assert rig.log.partition.high_watermark == 0, "a live follower that is about to join is waited for"
    rig.alive({ME: 1, F1: 2})
    rig.write()
    assert rig.log.partition.high_watermark == 2
    rig.fetch(F1, 2, broker_epoch=2)
    assert rig.partition.isr.maximal == {ME, F1}


def test_a_new_word_of_the_controller_ends_what_is_pending() -> None:
    """6.2: it is dropped; the late answer is for a replaced state."""
    rig = expanding()
    pending = rig.partition.isr
    assert isinstance(pending, PendingExpand)
    rig.lead(2, isr=(ME, F1))
    assert rig.partition.isr.maximal == {ME, F1}
    late = AlterPartitionResult(ErrorCode.NONE, ME, 1, (ME, F1, F2), 9)
    assert membership.on_isr_answer(rig.partition, pending, late) is membership.IsrOutcome.STALE
    assert rig.partition.isr.maximal == {ME, F1}


def test_a_leadership_that_goes_on_keeps_its_proposal() -> None:
    """Suspended, then confirmed in the same state: what was proposed before may still be persisted."""
    rig = expanding()
    pending = rig.partition.isr
    state = rig.state(ME, 1, isr=(ME, F1), version=rig.partition.partition_epoch)
    rig.partition.suspend()
    assert not rig.partition.become_leader(state, NOW_MS)
    assert rig.partition.isr is pending
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), version=7) is membership.IsrOutcome.ADOPTED


def test_shrinking() -> None:
    """6.2: none at the start; after the bound proposed; committed ISR and watermark wait for the answer."""
    rig = Rig()
    rig.lead(1)
    rig.write(5)
    rig.fetch(F1, 5)
    assert membership.propose_shrink(rig.partition, NOW_MS + LAG_MS, own_broker_epoch=1) is None
    pending = membership.propose_shrink(rig.partition, NOW_MS + LAG_MS + 1, own_broker_epoch=1)
    assert pending is not None
    assert pending.proposal.new_isr == (ME, F1)
    assert rig.partition.isr.committed == {ME, F1, F2}
    assert rig.log.partition.high_watermark == 0
    assert membership.propose_shrink(rig.partition, NOW_MS + 2 * LAG_MS, own_broker_epoch=1) is None, (
        "one at a time"
    )
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1), version=1) is membership.IsrOutcome.ADOPTED
    assert rig.partition.advance_high_watermark(NOW_MS + LAG_MS + 1)
    assert rig.log.partition.high_watermark == 5


def test_a_suspended_leader_proposes_nothing() -> None:
    """Another may lead by now; and the followers that it did not hear meanwhile are not late for that."""
    rig = Rig()
    rig.lead(1)
    rig.write(5)
    rig.partition.suspend()
    assert membership.propose_shrink(rig.partition, NOW_MS + 2 * LAG_MS, own_broker_epoch=1) is None
    assert rig.partition.isr.maximal == rig.partition.isr.committed == {ME, F1, F2}


def test_an_idle_follower_at_the_end_stays() -> None:
    """6.2, S34: however long it is silent."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.write(5)
    rig.fetch(F1, 5)
    assert membership.propose_shrink(rig.partition, NOW_MS + 100 * LAG_MS, own_broker_epoch=1) is None


def test_a_follower_that_reaches_each_previous_end_stays() -> None:
    """6.2: never equal to the leader, always in time; then it stops, and goes."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    now_ms = NOW_MS
    for end in range(0, 50, 5):
        rig.write(5)
        now_ms += LAG_MS * 3 // 4
        rig.fetch(F1, end, now_ms=now_ms)
        assert membership.propose_shrink(rig.partition, now_ms, own_broker_epoch=1) is None
    assert membership.propose_shrink(rig.partition, now_ms + LAG_MS + 1, own_broker_epoch=1) is not None


def test_a_follower_that_fetches_without_ever_arriving_goes() -> None:
    """S33, KIP-16: constant fetching is not keeping up."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.write(100)
    for step in range(30):
        rig.write(5)
        rig.fetch(F1, step, now_ms=NOW_MS + step * 1000)
    assert membership.propose_shrink(rig.partition, NOW_MS + LAG_MS + 1, own_broker_epoch=1) is not None


def test_the_message_criterion_is_there_for_who_wants_it() -> None:
    """1.3: replica.lag.max.messages, off by default."""
    rig = Rig(lag_messages=4)
    rig.lead(1, isr=(ME, F1))
    rig.fetch(F1, 0)
    rig.write(4)
    assert membership.propose_shrink(rig.partition, NOW_MS, own_broker_epoch=1) is None
    rig.write(1)
    assert membership.propose_shrink(rig.partition, NOW_MS, own_broker_epoch=1) is not None
