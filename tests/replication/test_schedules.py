"""Failure schedules as transcripts: each line an action, and every replica after it.

`A = 0 0 1 | hw 2` is the leader epoch of each record in A's log, then A's high watermark; `0x5` is five
records of epoch 0, `·` an empty log. `e1@3` in a comment: epoch 1 starts at offset 3. A replica that is
`new` runs but knows no role yet. Logs are real ones, over disks in memory.

The second half plants the bug that each rule is there to prevent, and sees that it is found.
"""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.replication.config import NodeConfig
from logstore.replication.messages import (
    LATEST_TIMESTAMP,
)
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import Stage


def test_s0a_the_high_watermark_travels_by_fetches() -> None:
    """Two fetches commit a record: the first carries it, the second says so.

    The second has no new data: it is parked, and answered on timeout from a second reading.
    """
    stage = Stage("AB", config=NodeConfig(node_id=0, replica_fetch_wait_max_ms=500))
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.fetch("B")
    parked = stage.request_of("B")
    stage.fetch("B")
    stage.advance(500)
    answer = stage.answer_to(parked)
    assert answer is not None
    stage.deliver(answer)
    stage.note("B hears the answer")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 0 | hw 0; B = · | hw 0
        B fetches at 0                      A = 0 | hw 0; B = 0 | hw 0
        B fetches at 1 (e0): waits          A = 0 | hw 1; B = 0 | hw 0
        500 ms pass                         A = 0 | hw 1; B = 0 | hw 0
        B hears the answer                  A = 0 | hw 1; B = 0 | hw 1
        """
    )


def test_s0b_an_epoch_that_ended_elsewhere() -> None:
    """A led e1 up to 6, B took over at 4: A asks about e1, hears 4, drops two and copies e2@4."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 4)
    stage.replicate("B")
    stage.append("A", 2)
    stage.kill("A")
    stage.elect("B", isr="B")
    stage.append("B", 3)
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 4, acks=1                   A = 1x4 | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1x6 | hw 4; B = 1x4 | hw 4
        A dies                              A down; B = 1x4 | hw 4
        B leads e2, ISR B                   A down; B = 1x4 | hw 4
        B takes 3, acks=1                   A down; B = 1x4 2 2 2 | hw 7
        A starts                            A new; B = 1x4 2 2 2 | hw 7
        A hears of e2                       A = 1x6 | hw 0; B = 1x4 2 2 2 | hw 7
        A fetches at 6 (e1): diverging(1,4) A = 1x4 | hw 0; B = 1x4 2 2 2 | hw 7
        A fetches at 4 (e1)                 A = 1x4 2 2 2 | hw 7; B = 1x4 2 2 2 | hw 7
        """
    )
    assert stage.log("A").partition.epochs == ((1, 0), (2, 4))


def test_s1_nobody_cuts_by_high_watermark() -> None:
    """KIP-101, the loss: B bounces before it hears of hw 2, A dies, B leads. The second record was
    acknowledged and must be there; cutting to B's own hw would have dropped it."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.fetch("B")
    stage.fetch("B")
    promise = stage.append("A", acks=ACKS_ALL)
    stage.fetch("B")
    stage.fetch("B", answer=False)
    assert promise.error is ErrorCode.NONE
    stage.kill("B")
    stage.start("B")
    stage.tell("B")
    stage.kill("A")
    stage.elect("B", isr="B")
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 0 | hw 0; B = · | hw 0
        B fetches at 0                      A = 0 | hw 0; B = 0 | hw 0
        B fetches at 1 (e0)                 A = 0 | hw 1; B = 0 | hw 0
        A takes 1, acks=all                 A = 0 0 | hw 1; B = 0 | hw 0
        B fetches at 1 (e0)                 A = 0 0 | hw 1; B = 0 0 | hw 1
        B fetches at 2 (e0), not answered   A = 0 0 | hw 2; B = 0 0 | hw 1
        B dies                              A = 0 0 | hw 2; B down
        B starts                            A = 0 0 | hw 2; B new
        B hears of e0                       A = 0 0 | hw 2; B = 0 0 | hw 0
        A dies                              A down; B = 0 0 | hw 0
        B leads e1, ISR B                   A down; B = 0 0 | hw 2
        A starts                            A new; B = 0 0 | hw 2
        A hears of e1                       A = 0 0 | hw 0; B = 0 0 | hw 2
        A fetches at 2 (e0)                 A = 0 0 | hw 2; B = 0 0 | hw 2
        """
    )
    assert stage.lost() == []
    assert stage.log("B").partition.epochs == ((0, 0), (1, 2)), "e1@2, though nothing was written under it"


def test_s2_two_histories_become_one() -> None:
    """KIP-101, the divergence: both lose power, B without its last record; B leads and goes on.

    The loss was declared (nobody synced), so the record may go; what may not be is `0 0` beside `0 1`.
    """
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A")
    stage.fetch("B")
    stage.log("B").flush()
    stage.append("A")
    stage.fetch("B")
    stage.fetch("B", answer=False)
    stage.log("A").flush()
    stage.power_cut("A")
    stage.power_cut("B")
    stage.start("B")
    stage.elect("B", isr="B")
    stage.append("B")
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 0 | hw 0; B = · | hw 0
        B fetches at 0                      A = 0 | hw 0; B = 0 | hw 0
        A takes 1, acks=1                   A = 0 0 | hw 0; B = 0 | hw 0
        B fetches at 1 (e0)                 A = 0 0 | hw 1; B = 0 0 | hw 0
        B fetches at 2 (e0), not answered   A = 0 0 | hw 2; B = 0 0 | hw 0
        A loses power                       A down; B = 0 0 | hw 0
        B loses power                       A down; B down
        B starts                            A down; B new
        B leads e1, ISR B                   A down; B = 0 | hw 1
        B takes 1, acks=1                   A down; B = 0 1 | hw 2
        A starts                            A new; B = 0 1 | hw 2
        A hears of e1                       A = 0 0 | hw 0; B = 0 1 | hw 2
        A fetches at 2 (e0): diverging(0,1) A = 0 | hw 0; B = 0 1 | hw 2
        A fetches at 1 (e0)                 A = 0 1 | hw 2; B = 0 1 | hw 2
        """
    )
    assert stage.values("A") == stage.values("B")


def test_s3_the_answer_names_the_epoch_it_speaks_of() -> None:
    """KIP-279: B led e2 and lost it at once. A does not know e2 and answers (1, 4): B looks up where its
    own e1 ended, 2, and drops its record of e2. An answer of "4" alone would have kept it."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.append("A", 2)
    stage.elect("B", isr="AB", to="B")
    stage.append("B")
    stage.elect("A", isr="AB", to="A")
    stage.append("A")
    stage.tell("B")
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1 1 | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1x4 | hw 2; B = 1 1 | hw 2
        B leads e2, ISR AB, told B          A = 1x4 | hw 2; B = 1 1 | hw 2
        B takes 1, acks=1                   A = 1x4 | hw 2; B = 1 1 2 | hw 2
        A leads e3, ISR AB, told A          A = 1x4 | hw 2; B = 1 1 2 | hw 2
        A takes 1, acks=1                   A = 1x4 3 | hw 2; B = 1 1 2 | hw 2
        B hears of e3                       A = 1x4 3 | hw 2; B = 1 1 2 | hw 2
        B fetches at 3 (e2): diverging(1,4) A = 1x4 3 | hw 2; B = 1 1 | hw 2
        B fetches at 2 (e1)                 A = 1x4 3 | hw 2; B = 1x4 3 | hw 2
        """
    )
    assert stage.values("A") == stage.values("B")


def test_s4_a_fetch_of_an_older_epoch_counts_for_nothing() -> None:
    """KIP-320: B said "I have 5" under e1, then cut to 3 under e2. The late request carries its epoch and
    is fenced; counted, it would commit two records that B does not have."""
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    stage.append("A", 3)
    stage.replicate("B", "C")
    stage.append("A", 2)
    stage.fetch("B")
    late = stage.take(stage.request_of("B"))
    stage.note("B's fetch at 5 is held")
    stage.elect("C", isr="ABC", to="BC")
    stage.fetch("B")
    stage.kill("C")
    stage.elect("A", isr="AB", to="A")
    stage.deliver(late)
    stage.note("B's late fetch arrives")
    assert stage.log("A").partition.high_watermark == 3
    answer = stage.answer_to(late)
    assert answer is not None
    assert stage.outcome(answer.body) == ": FENCED_LEADER_EPOCH"
    stage.tell("B")
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 1 1 1 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        B fetches at 3 (e1)                 A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 | hw 3
        B's fetch at 5 is held              A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 | hw 3
        C leads e2, ISR ABC, told BC        A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 | hw 3
        B fetches at 5 (e1): diverging(1,3) A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        C dies                              A = 1x5 | hw 3; B = 1 1 1 | hw 3; C down
        A leads e3, ISR AB, told A          A = 1x5 | hw 3; B = 1 1 1 | hw 3; C down
        B's late fetch arrives              A = 1x5 | hw 3; B = 1 1 1 | hw 3; C down
        B hears of e3                       A = 1x5 | hw 3; B = 1 1 1 | hw 3; C down
        B fetches at 3 (e1)                 A = 1x5 | hw 3; B = 1x5 | hw 3; C down
        B fetches at 5 (e1)                 A = 1x5 | hw 5; B = 1x5 | hw 3; C down
        """
    )


def test_s5_a_fetch_from_the_future() -> None:
    """B knows e4 already, A still leads e3: A says so and counts nothing; later all goes on."""
    stage = Stage("AB", first_epoch=3)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.append("A")
    stage.elect("A", isr="AB", to="B")
    stage.fetch("B")
    assert stage.partition("A").remote_replicas[1].log_end_offset == 2
    stage.tell("A")
    stage.advance(1000)
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e3, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 3 3 | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 3 3 3 | hw 2; B = 3 3 | hw 2
        A leads e4, ISR AB, told B          A = 3 3 3 | hw 2; B = 3 3 | hw 2
        B fetches at 2 (e3): UNKNOWN_LEADER_EPOCH A = 3 3 3 | hw 2; B = 3 3 | hw 2
        A hears of e4                       A = 3 3 3 | hw 2; B = 3 3 | hw 2
        1000 ms pass                        A = 3 3 3 | hw 2; B = 3 3 | hw 2
        B fetches at 2 (e3)                 A = 3 3 3 | hw 2; B = 3 3 3 | hw 2
        B fetches at 3 (e3)                 A = 3 3 3 | hw 3; B = 3 3 3 | hw 2
        """
    )


def test_s6_an_unclean_election_is_reported() -> None:
    """A alone committed 5..9; B, which lacks them, is elected all the same. A follows: it cuts below its own
    high watermark, which is counted, and both go on with one history."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 5)
    stage.replicate("B")
    stage.kill("B")
    stage.elect("A", isr="A")
    stage.append("A", 5, acks=ACKS_ALL)
    stage.checkpoint("A")
    stage.kill("A")
    stage.start("B")
    stage.elect("B", isr="B")
    stage.append("B", 2)
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    assert stage.manager("A").counters.truncations_below_high_watermark == 1
    stage.fetch("A")
    stage.fetch("A")
    stage.persist_isr()
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 5, acks=1                   A = 0x5 | hw 0; B = · | hw 0
        B dies                              A = 0x5 | hw 5; B down
        A leads e1, ISR A                   A = 0x5 | hw 5; B down
        A takes 5, acks=all                 A = 0x5 1x5 | hw 10; B down
        A checkpoints its hw                A = 0x5 1x5 | hw 10; B down
        A dies                              A down; B down
        B starts                            A down; B new
        B leads e2, ISR B                   A down; B = 0x5 | hw 5
        B takes 2, acks=1                   A down; B = 0x5 2 2 | hw 7
        A starts                            A new; B = 0x5 2 2 | hw 7
        A hears of e2                       A = 0x5 1x5 | hw 10; B = 0x5 2 2 | hw 7
        A fetches at 10 (e1): diverging(0,5) A = 0x5 | hw 5; B = 0x5 2 2 | hw 7
        A fetches at 5 (e0)                 A = 0x5 2 2 | hw 7; B = 0x5 2 2 | hw 7
        A fetches at 7 (e2)                 A = 0x5 2 2 | hw 7; B = 0x5 2 2 | hw 7
        ISR AB stored                       A = 0x5 2 2 | hw 7; B = 0x5 2 2 | hw 7
        """
    )
    assert stage.partition("B").isr.committed == {0, 1}


def test_s7_two_unclean_elections() -> None:
    """S6, but B dies before A hears of it, and A leads again with all it had: B finds out the same way."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 5)
    stage.replicate("B")
    stage.kill("B")
    stage.append("A", 5)
    stage.kill("A")
    stage.start("B")
    stage.elect("B", isr="B")
    stage.append("B", 2)
    stage.kill("B")
    stage.start("A")
    stage.elect("A", isr="A")
    stage.append("A")
    stage.start("B")
    stage.tell("B")
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 5, acks=1                   A = 0x5 | hw 0; B = · | hw 0
        B dies                              A = 0x5 | hw 5; B down
        A takes 5, acks=1                   A = 0x10 | hw 5; B down
        A dies                              A down; B down
        B starts                            A down; B new
        B leads e1, ISR B                   A down; B = 0x5 | hw 5
        B takes 2, acks=1                   A down; B = 0x5 1 1 | hw 7
        B dies                              A down; B down
        A starts                            A new; B down
        A leads e2, ISR A                   A = 0x10 | hw 10; B down
        A takes 1, acks=1                   A = 0x10 2 | hw 11; B down
        B starts                            A = 0x10 2 | hw 11; B new
        B hears of e2                       A = 0x10 2 | hw 11; B = 0x5 1 1 | hw 0
        B fetches at 7 (e1): diverging(0,10) A = 0x10 2 | hw 11; B = 0x5 | hw 0
        B fetches at 5 (e0)                 A = 0x10 2 | hw 11; B = 0x10 2 | hw 11
        """
    )
    assert stage.values("A") == stage.values("B")


def test_s9a_a_stale_checkpoint_of_a_leader_alone() -> None:
    """The checkpoint says 4 of 10: with nobody else in sync the high watermark is whole at once."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 4)
    stage.replicate("B")
    stage.checkpoint("A")
    stage.append("A", 6)
    stage.replicate("B")
    stage.kill("B")
    stage.elect("A", isr="A")
    stage.kill("A")
    stage.start("A")
    stage.elect("A", isr="A")
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 4, acks=1                   A = 0x4 | hw 0; B = · | hw 0
        A checkpoints its hw                A = 0x4 | hw 4; B = 0x4 | hw 4
        A takes 6, acks=1                   A = 0x10 | hw 4; B = 0x4 | hw 4
        B dies                              A = 0x10 | hw 10; B down
        A leads e1, ISR A                   A = 0x10 | hw 10; B down
        A dies                              A down; B down
        A starts                            A new; B down
        A leads e2, ISR A                   A = 0x10 | hw 10; B down
        """
    )


def test_s9b_a_stale_checkpoint_of_a_new_leader() -> None:
    """B starts from hw 4: nothing is cut, and it does not tell clients where committed records end before
    it knows (KIP-207)."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 4)
    stage.replicate("B")
    stage.checkpoint("A")
    stage.checkpoint("B")
    stage.append("A", 6)
    stage.replicate("B")
    stage.kill("A")
    stage.start("A")
    stage.kill("B")
    stage.start("B")
    stage.elect("B", isr="AB")
    assert stage.list_offset("B", LATEST_TIMESTAMP).error is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.fetch("A")
    assert stage.list_offset("B", LATEST_TIMESTAMP).offset == 10
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 4, acks=1                   A = 0x4 | hw 0; B = · | hw 0
        A checkpoints its hw                A = 0x4 | hw 4; B = 0x4 | hw 4
        B checkpoints its hw                A = 0x4 | hw 4; B = 0x4 | hw 4
        A takes 6, acks=1                   A = 0x10 | hw 4; B = 0x4 | hw 4
        A dies                              A down; B = 0x10 | hw 10
        A starts                            A new; B = 0x10 | hw 10
        B dies                              A new; B down
        B starts                            A new; B new
        B leads e1, ISR AB                  A = 0x10 | hw 4; B = 0x10 | hw 4
        A fetches at 10 (e0)                A = 0x10 | hw 4; B = 0x10 | hw 10
        """
    )


def test_s11_a_follower_longer_than_its_leader() -> None:
    """A wrote two records that nobody else had: they were never committed, and they go."""
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    stage.append("A", 3)
    stage.replicate("B", "C")
    stage.append("A", 2)
    stage.kill("A")
    stage.elect("B", isr="BC")
    stage.append("B")
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 1 1 1 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        A dies                              A down; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        B leads e2, ISR BC                  A down; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        B takes 1, acks=1                   A down; B = 1 1 1 2 | hw 3; C = 1 1 1 | hw 3
        A starts                            A new; B = 1 1 1 2 | hw 3; C = 1 1 1 | hw 3
        A hears of e2                       A = 1x5 | hw 0; B = 1 1 1 2 | hw 3; C = 1 1 1 | hw 3
        A fetches at 5 (e1): diverging(1,3) A = 1 1 1 | hw 0; B = 1 1 1 2 | hw 3; C = 1 1 1 | hw 3
        A fetches at 3 (e1)                 A = 1 1 1 2 | hw 3; B = 1 1 1 2 | hw 3; C = 1 1 1 | hw 3
        """
    )


def test_s12_missed_epochs_of_the_same_leader() -> None:
    """KAFKA-7164: B hears of e3 only. Its leader's name is the same, its log has to be compared anew."""
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    stage.append("A", 3)
    stage.replicate("B", "C")
    stage.append("A", 2)
    stage.fetch("B")
    stage.elect("C", isr="ABC", to="AC")
    stage.append("C")
    stage.fetch("A")
    stage.fetch("A")
    stage.elect("A", isr="ABC")
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 1 1 1 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 2, acks=1                   A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        B fetches at 3 (e1)                 A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 | hw 3
        C leads e2, ISR ABC, told AC        A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 | hw 3
        C takes 1, acks=1                   A = 1x5 | hw 3; B = 1x5 | hw 3; C = 1 1 1 2 | hw 3
        A fetches at 5 (e1): diverging(1,3) A = 1 1 1 | hw 3; B = 1x5 | hw 3; C = 1 1 1 2 | hw 3
        A fetches at 3 (e1)                 A = 1 1 1 2 | hw 3; B = 1x5 | hw 3; C = 1 1 1 2 | hw 3
        A leads e3, ISR ABC                 A = 1 1 1 2 | hw 3; B = 1x5 | hw 3; C = 1 1 1 2 | hw 3
        B fetches at 5 (e1): diverging(1,3) A = 1 1 1 2 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 2 | hw 3
        B fetches at 3 (e1)                 A = 1 1 1 2 | hw 3; B = 1 1 1 2 | hw 3; C = 1 1 1 2 | hw 3
        """
    )
    assert stage.values("A") == stage.values("B")


def test_s13_a_leader_that_wrote_nothing() -> None:
    """KAFKA-7415: B led e2 and A leads e3, neither wrote. A knows where e3 began, and nothing is cut."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.elect("B", isr="AB")
    stage.elect("A", isr="AB")
    stage.fetch("B")
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1 1 | hw 0; B = · | hw 0
        B leads e2, ISR AB                  A = 1 1 | hw 2; B = 1 1 | hw 2
        A leads e3, ISR AB                  A = 1 1 | hw 2; B = 1 1 | hw 2
        B fetches at 2 (e2): diverging(1,2) A = 1 1 | hw 2; B = 1 1 | hw 2
        """
    )
    assert stage.manager("B").counters.truncations == 0


def test_s13b_a_cut_to_the_end_still_drops_an_epoch_without_records() -> None:
    """KAFKA-10706: A led e2 and wrote nothing. It must forget e2@5, or hear "diverging" for ever."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("B", isr="AB")
    stage.append("B", 5)
    stage.replicate("A")
    stage.elect("A", isr="AB", to="A")
    assert stage.log("A").partition.epochs == ((1, 0), (2, 5))
    stage.elect("B", isr="AB")
    stage.fetch("A")
    assert stage.log("A").partition.epochs == ((1, 0),)
    stage.fetch("A")
    stage.check(
        """
        B leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        B takes 5, acks=1                   A = · | hw 0; B = 1x5 | hw 0
        A leads e2, ISR AB, told A          A = 1x5 | hw 5; B = 1x5 | hw 5
        B leads e3, ISR AB                  A = 1x5 | hw 5; B = 1x5 | hw 5
        A fetches at 5 (e2): diverging(1,5) A = 1x5 | hw 5; B = 1x5 | hw 5
        A fetches at 5 (e1)                 A = 1x5 | hw 5; B = 1x5 | hw 5
        """
    )


def test_s14_s15_what_stands_beside_a_divergence_is_of_another_history() -> None:
    """KAFKA-14704, 8400: A takes over neither the high watermark nor records from a diverging answer, and
    B counts nothing of a fetch that diverged."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 8)
    stage.replicate("B")
    stage.append("A", 1)
    stage.fetch("B")
    stage.append("A", 3)
    stage.elect("B", isr="B", to="B")
    stage.append("B", 2)
    stage.tell("A")
    assert stage.log("B").partition.high_watermark == 11
    stage.fetch("A")
    assert stage.log("A").partition.high_watermark == 8
    assert stage.partition("B").remote_replicas[0].log_end_offset == -1
    stage.fetch("A")
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 8, acks=1                   A = 1x8 | hw 0; B = · | hw 0
        A takes 1, acks=1                   A = 1x9 | hw 8; B = 1x8 | hw 8
        B fetches at 8 (e1)                 A = 1x9 | hw 8; B = 1x9 | hw 8
        A takes 3, acks=1                   A = 1x12 | hw 8; B = 1x9 | hw 8
        B leads e2, ISR B, told B           A = 1x12 | hw 8; B = 1x9 | hw 9
        B takes 2, acks=1                   A = 1x12 | hw 8; B = 1x9 2 2 | hw 11
        A hears of e2                       A = 1x12 | hw 8; B = 1x9 2 2 | hw 11
        A fetches at 12 (e1): diverging(1,9) A = 1x9 | hw 8; B = 1x9 2 2 | hw 11
        A fetches at 9 (e1)                 A = 1x9 2 2 | hw 11; B = 1x9 2 2 | hw 11
        """
    )


def test_s16_an_answer_of_an_older_position_is_dropped() -> None:
    """B asked A for what follows 4; before the answer arrives, C leads and B has cut to 3."""
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    stage.append("A", 3)
    stage.replicate("B", "C")
    stage.append("A")
    stage.fetch("B")
    stage.append("A")
    late = stage.fetch("B", answer=False)
    assert late is not None
    stage.take(late)
    stage.elect("C", isr="ABC", to="BC")
    stage.fetch("B")
    stage.deliver(late)
    stage.note("A's late answer arrives")
    stage.check(
        """
        A leads e1, ISR ABC                 A = · | hw 0; B = · | hw 0; C = · | hw 0
        A takes 3, acks=1                   A = 1 1 1 | hw 0; B = · | hw 0; C = · | hw 0
        A takes 1, acks=1                   A = 1x4 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        B fetches at 3 (e1)                 A = 1x4 | hw 3; B = 1x4 | hw 3; C = 1 1 1 | hw 3
        A takes 1, acks=1                   A = 1x5 | hw 3; B = 1x4 | hw 3; C = 1 1 1 | hw 3
        B fetches at 4 (e1), not answered   A = 1x5 | hw 3; B = 1x4 | hw 3; C = 1 1 1 | hw 3
        C leads e2, ISR ABC, told BC        A = 1x5 | hw 3; B = 1x4 | hw 3; C = 1 1 1 | hw 3
        B fetches at 4 (e1): diverging(1,3) A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        A's late answer arrives             A = 1x5 | hw 3; B = 1 1 1 | hw 3; C = 1 1 1 | hw 3
        """
    )
