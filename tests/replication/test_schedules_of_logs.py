"""More failure schedules of logs: bounds, checkpoints, answers that come too late.

Transcripts in the notation of `test_schedules.py`; each line is an action, then every replica after it.
"""

from __future__ import annotations

import random

import pytest

from logstore.errors import InvalidRecord, UnexpectedAppendOffset
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append_fetched import append_as_follower
from logstore.replication import following, serving
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Client
from logstore.replication.messages import NO_EPOCH, OffsetForLeaderEpochRequest, ProduceRequest
from logstore.replication.partition import ACKS_ALL
from logstore.testing.stage import TP, Message, Stage, batch


def test_s10_a_checkpoint_ahead_of_its_log() -> None:
    """The high watermark was checkpointed at 10, the power took all but 6 records: it is 6."""
    stage = Stage("A")
    stage.elect("A", isr="A")
    stage.append("A", 6)
    stage.log("A").flush()
    stage.append("A", 4)
    stage.checkpoint("A")
    stage.power_cut("A")
    stage.start("A")
    stage.elect("A", isr="A")
    assert stage.log("A").log_start_offset == 0
    stage.check(
        """
        A leads e0, ISR A                   A = · | hw 0
        A takes 6, acks=1                   A = 0x6 | hw 6
        A takes 4, acks=1                   A = 0x10 | hw 10
        A checkpoints its hw                A = 0x10 | hw 10
        A loses power                       A down
        A starts                            A new
        A leads e1, ISR A                   A = 0x6 | hw 6
        """
    )


def test_s17_an_answer_about_an_epoch_that_is_over() -> None:
    """B asks A where epoch 1 ends, and hears of another epoch before the answer: it asks again."""
    config = NodeConfig(node_id=0, replica_fetch_wait_max_ms=0, truncate_on_fetch=False)
    stage = Stage("AB", config=config, first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    stage.elect("A", isr="AB")
    question = stage.request_of("B")
    assert isinstance(question.body, OffsetForLeaderEpochRequest)
    answer = stage.fetch("B", answer=False)
    assert answer is not None
    stage.elect("A", isr="AB")
    stage.deliver(answer)
    stage.note("the late answer reaches B")
    again = stage.request_of("B")
    assert isinstance(again.body, OffsetForLeaderEpochRequest)
    assert again.body.partitions[TP].current_leader_epoch == 3
    stage.fetch("B")
    stage.fetch("B")
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1 1 | hw 0; B = · | hw 0
        A leads e2, ISR AB                  A = 1 1 | hw 2; B = 1 1 | hw 2
        B asks, not answered                A = 1 1 | hw 2; B = 1 1 | hw 2
        A leads e3, ISR AB                  A = 1 1 | hw 2; B = 1 1 | hw 2
        the late answer reaches B           A = 1 1 | hw 2; B = 1 1 | hw 2
        B asks                              A = 1 1 | hw 2; B = 1 1 | hw 2
        B fetches at 2                      A = 1 1 | hw 2; B = 1 1 | hw 2
        """
    )


def test_s18_a_follower_below_the_leaders_log_start() -> None:
    """Away for longer than retention: its log starts over where the leader's begins, epochs and all."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    stage.append("A", 4)
    stage.replicate("B")
    stage.kill("B")
    stage.elect("A", isr="A")
    stage.append("A", 5)
    stage.log("A").delete_records(7)
    stage.start("B")
    stage.tell("B")
    for _ in range(4):
        stage.fetch("B")
    assert (stage.log("B").log_start_offset, stage.log("B").partition.high_watermark) == (7, 9)
    assert stage.log("B").partition.epochs == stage.log("A").partition.epochs
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 4, acks=1                   A = 0x4 | hw 0; B = · | hw 0
        B dies                              A = 0x4 | hw 4; B down
        A leads e1, ISR A                   A = 0x4 | hw 4; B down
        A takes 5, acks=1                   A = 0x4 1x5 | hw 9; B down
        B starts                            A = 1 1 | hw 9; B new
        B hears of e1                       A = 1 1 | hw 9; B = 0x4 | hw 0
        B fetches at 4 (e0): OFFSET_OUT_OF_RANGE A = 1 1 | hw 9; B = 0x4 | hw 0
        B asks                              A = 1 1 | hw 9; B = 0x4 | hw 0
        B asks                              A = 1 1 | hw 9; B = · | hw 7
        B fetches at 7                      A = 1 1 | hw 9; B = 1 1 | hw 9
        """
    )


def test_s19_a_follower_that_knows_no_epochs_is_past_the_leaders_end() -> None:
    """Nothing but its length tells that it is wrong: it is cut to the leader's end, and goes on."""
    stage = Stage("AB")
    stage.elect("A", isr="A", to="A")
    stage.append("A", 2)
    old = b"".join(
        encode_batch([Record(offset, 0, None, b"old")], leader_epoch=NO_EPOCH, base_offset=offset)
        for offset in range(5)
    )
    log = stage.logs[1].get_or_create(TP).partition  # type: ignore[union-attr]
    append_as_follower(log, old, leader_epoch=NO_EPOCH)
    log.set_high_watermark(5)
    stage.checkpoint("B")
    stage.tell("B")
    for _ in range(3):
        stage.fetch("B")
    stage.append("A")
    stage.fetch("B")
    stage.check(
        """
        A leads e0, ISR A, told A           A = · | hw 0; B new
        A takes 2, acks=1                   A = 0 0 | hw 2; B new
        B checkpoints its hw                A = 0 0 | hw 2; B new
        B hears of e0                       A = 0 0 | hw 2; B = ?x5 | hw 5
        B fetches at 5: OFFSET_OUT_OF_RANGE A = 0 0 | hw 2; B = ?x5 | hw 5
        B asks                              A = 0 0 | hw 2; B = ? ? | hw 2
        B fetches at 2                      A = 0 0 | hw 2; B = ? ? | hw 2
        A takes 1, acks=1                   A = 0 0 0 | hw 2; B = ? ? | hw 2
        B fetches at 2                      A = 0 0 0 | hw 2; B = ? ? 0 | hw 2
        """
    )


def test_s20_a_batch_that_lies_across_the_log_start() -> None:
    """Batches are not split: an empty log starts where the batch does, then is raised."""
    stage = Stage("AB")
    stage.elect("A", isr="A")
    stage.append("A", 4)
    request = ProduceRequest({TP: batch(b"4", b"5", b"6")}, 1, 1000)
    serving.produce(stage.manager("A"), Client("three at once"), request, stage.now_ms)
    stage.log("A").delete_records(5)
    stage.tell("B")
    for _ in range(4):
        stage.fetch("B")
    log = stage.log("B")
    assert (log.log_start_offset, log.log_end_offset) == (5, 7)
    assert log.partition.segments[0].base_offset == 4
    late = encode_batch([Record(3, 0, None, b"3")], base_offset=3, leader_epoch=0)
    with pytest.raises(UnexpectedAppendOffset):
        following.append_fetched(stage.partition("B"), late, high_watermark=7, log_start_offset=5)
    stage.check(
        """
        A leads e0, ISR A                   A = · | hw 0; B = · | hw 0
        A takes 4, acks=1                   A = 0x4 | hw 4; B = · | hw 0
        B hears of e0                       A = 0 0 | hw 7; B = · | hw 0
        B fetches at 0: OFFSET_OUT_OF_RANGE A = 0 0 | hw 7; B = · | hw 0
        B asks                              A = 0 0 | hw 7; B = · | hw 0
        B asks                              A = 0 0 | hw 7; B = · | hw 5
        B fetches at 5                      A = 0 0 | hw 7; B = 0 0 | hw 7
        """
    )


def test_what_ends_at_the_leaders_log_start_is_no_history_of_its_producers() -> None:
    """A alone has a producer's batch, which never was committed; B has other records there, and has deleted
    them. A ends where B begins, so B cannot tell. When A leads again the producer sends once more: the batch
    is new, not one that A remembers, for nobody holds it (seed 221)."""
    stage = Stage("AB")
    stage.elect("A", isr="AB")
    record = [Record(0, 0, None, b"precious")]
    sent = encode_batch(record, producer_id=7, producer_epoch=0, base_sequence=0)
    request = ProduceRequest({TP: sent}, 1, 1000)
    serving.produce(stage.manager("A"), Client("first"), request, stage.now_ms)
    stage.note("A takes the batch")
    stage.kill("A")
    stage.elect("B", isr="B")
    stage.append("B", 1)
    stage.log("B").delete_records(1)
    stage.start("A")
    stage.tell("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.elect("A", isr="AB")
    serving.produce(stage.manager("A"), Client("again"), request, stage.now_ms)
    stage.note("A takes it again")
    assert stage.values("A") == [b"precious"]
    stage.check(
        """
        A leads e0, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes the batch                   A = 0 | hw 0; B = · | hw 0
        A dies                              A down; B = · | hw 0
        B leads e1, ISR B                   A down; B = · | hw 0
        B takes 1, acks=1                   A down; B = 1 | hw 1
        A starts                            A new; B = · | hw 1
        A hears of e1                       A = 0 | hw 0; B = · | hw 1
        A fetches at 1 (e0)                 A = · | hw 1; B = · | hw 1
        A fetches at 1 (e0)                 A = · | hw 1; B = · | hw 1
        A leads e2, ISR AB                  A = · | hw 1; B = · | hw 1
        A takes it again                    A = 2 | hw 1; B = · | hw 1
        """
    )


def test_s21_records_of_a_newer_epoch_than_the_followers() -> None:
    """KAFKA-18723: a misrouted answer carries epoch 3 to a follower that lives in epoch 1. It is refused."""
    stage = Stage("AB", first_epoch=1)
    stage.elect("A", isr="AB")
    stage.append("A", 2)
    stage.replicate("B")
    newer = encode_batch([Record(2, 0, None, b"?")], base_offset=2, leader_epoch=3)
    with pytest.raises(InvalidRecord):
        following.append_fetched(stage.partition("B"), newer, high_watermark=2, log_start_offset=0)
    stage.note("B refuses a record of e3")
    assert [entry.epoch for entry in stage.log("B").partition.epochs] == [1]
    stage.check(
        """
        A leads e1, ISR AB                  A = · | hw 0; B = · | hw 0
        A takes 2, acks=1                   A = 1 1 | hw 0; B = · | hw 0
        B refuses a record of e3            A = 1 1 | hw 2; B = 1 1 | hw 2
        """
    )


def has_asked(stage: Stage, name: str) -> bool:
    number = stage.number(name)
    return any(message.is_request and message.source == number for message in stage.wire)


@pytest.mark.parametrize("seed", range(20))
def test_s22_without_a_fault_nobody_cuts_below_its_high_watermark(seed: int) -> None:
    """Clean elections among members, in any order; words that never come, answers that come late."""
    draw = random.Random(seed)
    stage = Stage("ABC", first_epoch=1)
    stage.elect("A", isr="ABC")
    leader = "A"
    late: list[Message] = []
    for _ in range(80):
        match draw.randrange(6):
            case 0:
                stage.append(leader, draw.randrange(1, 4), acks=draw.choice((1, ACKS_ALL)))
            case 1 | 2 | 3:
                follower = draw.choice([name for name in "ABC" if name != leader])
                if has_asked(stage, follower):
                    is_late = draw.random() < 0.2
                    answer = stage.fetch(follower, answer=not is_late)
                    late += [answer] if answer is not None else []
            case 4 if late:
                stage.deliver(late.pop(draw.randrange(len(late))))
            case 5 if draw.random() < 0.4:
                leader = draw.choice("ABC")
                others = [name for name in "ABC" if name != leader]
                stage.elect(leader, isr="ABC", to=leader + "".join(draw.sample(others, draw.randrange(3))))
        stage.advance(50)
    for answer in late:
        stage.deliver(answer)
    followers = [name for name in "ABC" if name != leader]
    for name in followers:
        stage.tell(name)
    for _ in range(12):
        stage.advance(1000)
        for name in followers:
            if has_asked(stage, name):
                stage.fetch(name)
    assert stage.lost() == []
    assert stage.values("A") == stage.values("B") == stage.values("C")
    counters = [stage.manager(name).counters for name in "ABC"]
    assert sum(each.truncations_below_high_watermark for each in counters) == 0
