"""Failure schedules of ISR members, late messages and consumers (S23 to S44)."""

from __future__ import annotations

from dataclasses import replace

from logstore.disk.errors import ErrorCode
from logstore.replication import orders
from logstore.replication.messages import (
    LATEST_TIMESTAMP,
    AlterPartitionResult,
)
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import TP, Message, Stage


def isolated_leader(stage: Stage) -> None:
    """S23: A is cut off with two records that nobody else has, one of them waiting for acks=all."""
    stage.elect("A", isr="ABC")
    stage.append("A", 10)
    stage.replicate("B", "C")
    stage.append("A")
    stage.append("A", acks=ACKS_ALL)
    stage.elect("B", isr="BC", to="BC")
    stage.append("B", acks=ACKS_ALL)
    stage.fetch("C")
    stage.fetch("C")
    stage.advance(11_000)
    stage.persist_isr()
    stage.advance(30_000)
    stage.tell("A")
    stage.fetch("A")
    stage.fetch("A")
    assert stage.lost() == []


def test_s23_an_isolated_leader_commits_nothing_alone() -> None:
    """It may want to shrink the ISR to itself, but the store refuses, and until it agrees B and C count.
    The client of acks=all is told that time ran out; only the acks=1 record was promised less and is lost."""
    stage = Stage("ABC", first_epoch=1)
    isolated_leader(stage)
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 10, acks=1                  A = 1x10 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 1, acks=1                   A = 1x11 | hw 10; B = 1x10 | hw 10; C = 1x10 | hw 10
        A takes 1, acks=all                 A = 1x12 | hw 10; B = 1x10 | hw 10; C = 1x10 | hw 10
        B leads e2, ISR BC, told BC         A = 1x12 | hw 10; B = 1x10 | hw 10; C = 1x10 | hw 10
        B takes 1, acks=all                 A = 1x12 | hw 10; B = 1x10 2 | hw 10; C = 1x10 | hw 10
        C fetches at 10 (e1)                A = 1x12 | hw 10; B = 1x10 2 | hw 10; C = 1x10 2 | hw 10
        C fetches at 11 (e2)                A = 1x12 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        11000 ms pass                       A = 1x12 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        ISR A FENCED_LEADER_EPOCH           A = 1x12 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        30000 ms pass                       A = 1x12 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        A hears of e2                       A = 1x12 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        A fetches at 12 (e1): diverging(1,10) A = 1x10 | hw 10; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        A fetches at 10 (e1)                A = 1x10 2 | hw 11; B = 1x10 2 | hw 11; C = 1x10 2 | hw 10
        """
    )
    assert [promise.error for promise in stage.promised.values()] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NONE,
    ]


def expansion_races_the_watermark(stage: Stage) -> None:
    """S28: C's admission is in the store, the leader does not know it yet, and dies."""
    stage.elect("A", isr="ABC")
    stage.append("A", 10)
    stage.replicate("B", "C")
    stage.elect("A", isr="AB")
    stage.append("A", 2, acks=ACKS_ALL)
    stage.fetch("B")
    stage.fetch("C", answer=False)
    stage.persist_isr(answer=False)
    stage.fetch("B")
    stage.kill("A")
    stage.elect("C", isr="BC")
    stage.fetch("B")
    assert stage.lost() == []


def test_s28_a_new_member_counts_before_it_is_confirmed() -> None:
    """The high watermark stayed at 10, so C, elected, holds all that was committed."""
    stage = Stage("ABC", first_epoch=1)
    expansion_races_the_watermark(stage)
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 10, acks=1                  A = 1x10 | hw 0; B = · | hw 0; C = · | hw 0
        A leads e2, ISR AB                  A = 1x10 | hw 10; B = 1x10 | hw 10; C = 1x10 | hw 10
        A takes 2, acks=all                 A = 1x10 2 2 | hw 10; B = 1x10 | hw 10; C = 1x10 | hw 10
        B fetches at 10 (e1)                A = 1x10 2 2 | hw 10; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        C fetches at 10 (e1), not answered  A = 1x10 2 2 | hw 10; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        ISR ABC stored, not answered        A = 1x10 2 2 | hw 10; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        B fetches at 12 (e2)                A = 1x10 2 2 | hw 10; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        A dies                              A down; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        C leads e3, ISR BC                  A down; B = 1x10 2 2 | hw 10; C = 1x10 | hw 10
        B fetches at 12 (e2): diverging(1,10) A down; B = 1x10 | hw 10; C = 1x10 | hw 10
        """
    )


def lagging_member(stage: Stage) -> None:
    """The scene of S29: C stopped at 8, A and B are at 12."""
    stage.elect("A", isr="ABC")
    stage.append("A", 8)
    stage.replicate("B", "C")
    stage.append("A", 4, acks=ACKS_ALL)
    stage.replicate("B")
    stage.advance(11_000)


def test_s29a_a_shrink_that_is_confirmed_lets_the_watermark_go() -> None:
    """In the very turn that the confirmation arrives (KAFKA-13091)."""
    stage = Stage("ABC", first_epoch=1)
    lagging_member(stage)
    stage.persist_isr()
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 8, acks=1                   A = 1x8 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 4, acks=all                 A = 1x12 | hw 8; B = 1x8 | hw 8; C = 1x8 | hw 8
        11000 ms pass                       A = 1x12 | hw 8; B = 1x12 | hw 8; C = 1x8 | hw 8
        ISR AB stored                       A = 1x12 | hw 12; B = 1x12 | hw 8; C = 1x8 | hw 8
        """
    )
    assert stage.lost() == []


def shrink_is_lost(stage: Stage) -> None:
    """S29b: the proposal is lost, the leader dies, and C is still in the ISR."""
    lagging_member(stage)
    proposal = stage.proposal()
    assert proposal is not None
    stage.take(proposal)
    stage.kill("A")
    stage.elect("C", isr="BC")
    stage.fetch("B")
    assert stage.lost() == []


def test_s29b_until_then_the_member_counts() -> None:
    """C may be elected: nothing that it lacks was committed."""
    stage = Stage("ABC", first_epoch=1)
    shrink_is_lost(stage)
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 8, acks=1                   A = 1x8 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 4, acks=all                 A = 1x12 | hw 8; B = 1x8 | hw 8; C = 1x8 | hw 8
        11000 ms pass                       A = 1x12 | hw 8; B = 1x12 | hw 8; C = 1x8 | hw 8
        A dies                              A down; B = 1x12 | hw 8; C = 1x8 | hw 8
        C leads e2, ISR BC                  A down; B = 1x12 | hw 8; C = 1x8 | hw 8
        B fetches at 12 (e1): diverging(1,8) A down; B = 1x8 | hw 8; C = 1x8 | hw 8
        """
    )


def late_admission(stage: Stage) -> Message:
    """S30: B leads with hw 6 what A had committed up to 10. C, out of sync, has 7 records."""
    stage.elect("A", isr="ABD")
    stage.tell_who_lives(alive="ABD")
    stage.append("A", 6)
    stage.replicate("B", "D")
    stage.append("A", acks=ACKS_ALL)
    stage.replicate("C", rounds=1)
    stage.fetch("B")
    stage.fetch("D")
    stage.append("A", 3, acks=ACKS_ALL)
    stage.fetch("B")
    stage.fetch("D")
    stage.fetch("B", answer=False)
    stage.fetch("D", answer=False)
    stage.kill("A")
    stage.elect("B", isr="BD", to="BC")
    answer = stage.fetch("C", answer=False)
    assert answer is not None
    if stage.proposal() is not None:  # as planted bugs make it
        stage.persist_isr()
        stage.elect("C", isr="CD")
        assert stage.lost() == []
    assert stage.partition("B").isr.maximal == {1, 3}
    return answer


def test_s30_nobody_joins_below_the_start_of_the_epoch() -> None:
    """KAFKA-7128: B's hw is 6, and 7 is above it; but records 7..9 are committed, and B knows only that its
    own epoch began at 10. C has to get there first."""
    stage = Stage("ABCD")
    stage.deliver(late_admission(stage))
    stage.note("C hears the answer")
    stage.fetch("C", answer=False)
    assert stage.proposal() is not None
    stage.check(
        """
        A leads e0, ISR ABD                 A = · | hw 0; B = · | hw 0; C = · | hw 0; D = · | hw 0
        A takes 6, acks=1                   A = 0x6 | hw 0; B = · | hw 0; C = · | hw 0; D = · | hw 0
        A takes 1, acks=all                 A = 0x7 | hw 6; B = 0x6 | hw 6; C = · | hw 0; D = 0x6 | hw 6
        B fetches at 6 (e0)                 A = 0x7 | hw 6; B = 0x7 | hw 6; C = 0x7 | hw 6; D = 0x6 | hw 6
        D fetches at 6 (e0)                 A = 0x7 | hw 6; B = 0x7 | hw 6; C = 0x7 | hw 6; D = 0x7 | hw 6
        A takes 3, acks=all                 A = 0x10 | hw 6; B = 0x7 | hw 6; C = 0x7 | hw 6; D = 0x7 | hw 6
        B fetches at 7 (e0)                 A = 0x10 | hw 6; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x7 | hw 6
        D fetches at 7 (e0)                 A = 0x10 | hw 7; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        B fetches at 10 (e0), not answered  A = 0x10 | hw 7; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        D fetches at 10 (e0), not answered  A = 0x10 | hw 10; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        A dies                              A down; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        B leads e1, ISR BD, told BC         A down; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        C fetches at 7 (e0), not answered   A down; B = 0x10 | hw 6; C = 0x7 | hw 6; D = 0x10 | hw 6
        C hears the answer                  A down; B = 0x10 | hw 6; C = 0x10 | hw 6; D = 0x10 | hw 6
        C fetches at 10 (e0), not answered  A down; B = 0x10 | hw 6; C = 0x10 | hw 6; D = 0x10 | hw 6
        """
    )


def test_s31_a_late_fetch_of_a_former_life_admits_nobody() -> None:
    """C lost its store session, fetched on, then lost its power, and with it both records. Outside the ISR
    that costs no leader epoch; only the incarnation in the late fetch tells it from one of C's new life."""
    stage = Stage("ABC")
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    orders.session_lost(stage.manager("C"), stage.now_ms)
    stage.fetch("C")
    late = stage.take(stage.request_of("C"))
    stage.power_cut("C")
    stage.start("C")
    stage.tell("C")
    stage.deliver(late)
    answer = stage.answer_to(late)
    assert answer is not None
    stage.note(f"C's late fetch{stage.outcome(answer.body)}")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 0 0 | hw 0; B = · | hw 0; C = · | hw 0
        C fetches at 0                      A = 0 0 | hw 2; B = 0 0 | hw 2; C = 0 0 | hw 2
        C loses power                       A = 0 0 | hw 2; B = 0 0 | hw 2; C down
        C starts                            A = 0 0 | hw 2; B = 0 0 | hw 2; C new
        C hears of e0                       A = 0 0 | hw 2; B = 0 0 | hw 2; C = · | hw 0
        C's late fetch: NOT_LEADER_OR_FOLLOWER A = 0 0 | hw 2; B = 0 0 | hw 2; C = · | hw 0
        """
    )
    assert stage.proposal() is None, "C is not in sync: it holds nothing"


def test_s37_a_consumer_beyond_the_new_high_watermark() -> None:
    """It read up to 10 from A. B knows of 7 at first: it answers with nothing, never with an older end, and
    later with the very same bytes."""
    stage = Stage("ABC")
    stage.elect("A", isr="ABC")
    stage.append("A", 7)
    stage.replicate("B", "C")
    stage.append("A", 3)
    stage.fetch("B")
    stage.fetch("C")
    stage.fetch("B", answer=False)
    stage.fetch("C", answer=False)
    before = [stage.consume("A", offset).records for offset in (7, 8, 9)]
    assert all(before)
    stage.kill("A")
    stage.elect("B", isr="BC")
    beyond = stage.consume("B", 10)
    assert (beyond.error, beyond.records) == (ErrorCode.NONE, b"")
    assert stage.consume("B", 7).records == b""
    assert stage.list_offset("B", LATEST_TIMESTAMP).error is ErrorCode.OFFSET_NOT_AVAILABLE
    assert stage.manager("B").partitions[TP].is_catching_up
    stage.fetch("C")
    assert not stage.manager("B").partitions[TP].is_catching_up
    assert stage.list_offset("B", LATEST_TIMESTAMP).offset == 10
    assert [stage.consume("B", offset).records for offset in (7, 8, 9)] == before
    stage.check(
        """
        A leads e0, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 7, acks=1                   A = 0x7 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 0x10 | hw 7; B = 0x7 | hw 7; C = 0x7 | hw 7
        B fetches at 7 (e0)                 A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x7 | hw 7
        C fetches at 7 (e0)                 A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x10 | hw 7
        B fetches at 10 (e0), not answered  A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x10 | hw 7
        C fetches at 10 (e0), not answered  A = 0x10 | hw 10; B = 0x10 | hw 7; C = 0x10 | hw 7
        A dies                              A down; B = 0x10 | hw 7; C = 0x10 | hw 7
        B leads e1, ISR BC                  A down; B = 0x10 | hw 7; C = 0x10 | hw 7
        C fetches at 10 (e0)                A down; B = 0x10 | hw 10; C = 0x10 | hw 7
        """
    )


def test_s38_a_followers_high_watermark_may_go_down() -> None:
    """C heard 10 from A, and hears 7 from B, which leads and does not know better yet."""
    stage = Stage("ABC")
    stage.elect("A", isr="ABC")
    stage.append("A", 7)
    stage.replicate("B", "C")
    stage.append("A", 3)
    stage.fetch("B")
    stage.fetch("C")
    stage.fetch("B", answer=False)
    stage.fetch("C")
    stage.fetch("C")
    stage.kill("A")
    stage.elect("B", isr="BC")
    stage.fetch("C")
    stage.fetch("C")
    stage.check(
        """
        A leads e0, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 7, acks=1                   A = 0x7 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 0x10 | hw 7; B = 0x7 | hw 7; C = 0x7 | hw 7
        B fetches at 7 (e0)                 A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x7 | hw 7
        C fetches at 7 (e0)                 A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x10 | hw 7
        B fetches at 10 (e0), not answered  A = 0x10 | hw 7; B = 0x10 | hw 7; C = 0x10 | hw 7
        C fetches at 10 (e0)                A = 0x10 | hw 10; B = 0x10 | hw 7; C = 0x10 | hw 7
        C fetches at 10 (e0)                A = 0x10 | hw 10; B = 0x10 | hw 7; C = 0x10 | hw 10
        A dies                              A down; B = 0x10 | hw 7; C = 0x10 | hw 10
        B leads e1, ISR BC                  A down; B = 0x10 | hw 7; C = 0x10 | hw 10
        C fetches at 10 (e0)                A down; B = 0x10 | hw 10; C = 0x10 | hw 7
        C fetches at 10 (e0)                A down; B = 0x10 | hw 10; C = 0x10 | hw 10
        """
    )
    assert [stage.manager(name).counters.watermarks_lowered for name in "BC"] == [0, 1]


def test_s41_an_isr_answer_that_a_newer_word_overtook() -> None:
    """The store took the change as v1, then the controller wrote v2: the answer to v1 comes too late."""
    stage = Stage("AB")
    stage.elect("A", isr="A")
    stage.append("A")
    stage.replicate("B", rounds=2)
    proposal = stage.proposal()
    assert proposal is not None
    stage.persist_isr(answer=False)
    stage.elect("A", isr="A")
    stage.answer_isr(proposal, AlterPartitionResult(ErrorCode.NONE, 0, 0, (0, 1), 1))
    stage.note("the answer of v1 arrives")
    stage.check(
        """
        A leads e0, ISR A                   A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 0 | hw 1; B = · | hw 0
        ISR AB stored, not answered         A = 0 | hw 1; B = 0 | hw 1
        A leads e1, ISR A                   A = 0 | hw 1; B = 0 | hw 1
        the answer of v1 arrives            A = 0 | hw 1; B = 0 | hw 1
        """
    )
    assert stage.partition("A").isr.maximal == {0}
    assert stage.partition("A").partition_epoch == 2


def test_s44_reordered_and_repeated_words_of_the_controller() -> None:
    """e3, e2, e3 again, then e3 with a newer ISR: one change of roles; the fetcher is not disturbed."""
    stage = Stage("AB", first_epoch=2)
    stage.elect("A", isr="AB", to="")
    old = stage.state
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.fetch("B")
    request = stage.request_of("B")
    start = stage.partition("A").epoch_start_offset
    for name in "AB":
        assert stage.tell_state(name, old) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert stage.tell_state(name, stage.state) is ErrorCode.NONE
        newer = replace(stage.state, partition_epoch=stage.state.partition_epoch + 1, isr=(0,))
        assert stage.tell_state(name, newer) is ErrorCode.NONE
        assert stage.tell_state(name, stage.state) is ErrorCode.STALE_CONTROLLER_EPOCH, "the one before"
        assert stage.partition(name).partition_epoch == newer.partition_epoch
    assert stage.request_of("B") is request
    assert stage.partition("A").epoch_start_offset == start
    assert stage.partition("A").isr.committed == {0}, "within an epoch, the partition epoch tells news apart"
    stage.fetch("B")
    stage.check(
        """
        A leads e2, ISR AB, told nobody     A new; B new
        A leads e3, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 3 | hw 0; B = · | hw 0
        B fetches at 0                      A = 3 | hw 0; B = 3 | hw 0
        B fetches at 1 (e3)                 A = 3 | hw 1; B = 3 | hw 0
        """
    )
