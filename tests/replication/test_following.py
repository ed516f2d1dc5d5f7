"""The follower's path of one partition: append, high watermark, truncate."""

from __future__ import annotations

import errno

import pytest

from logstore.disk.errors import EngineError
from logstore.disk.memory import MemoryDisk
from logstore.errors import DiskFull, UnexpectedAppendOffset
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication import following
from logstore.segment.epochs import EpochEndOffset
from logstore.testing.disks import Fault, FaultyDisk
from tests.replication.test_partition import F1, Rig, data


def test_a_followers_watermark_follows_even_down() -> None:
    """S38: but never above its own end."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(1, 1, 1), high_watermark=9, log_start_offset=0)
    assert rig.log.partition.high_watermark == 3
    following.append_fetched(rig.partition, b"", high_watermark=1, log_start_offset=0)
    assert rig.log.partition.high_watermark == 1


def test_a_batch_above_our_epoch_is_refused() -> None:
    """S21, KAFKA-18723: it would be a record of a leadership that we have not reconciled with."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    with pytest.raises(EngineError):
        following.append_fetched(rig.partition, data(3), high_watermark=0, log_start_offset=0)
    assert rig.log.log_end_offset == 0


def test_a_log_may_begin_inside_a_batch() -> None:
    """S20, 6.2: started at 5, a batch of 4..6 comes: the empty log starts at 4; a later 3 is refused."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.restart_at(rig.partition, 5)
    with pytest.raises(UnexpectedAppendOffset):
        following.append_fetched(rig.partition, data(1, base_offset=3), high_watermark=0, log_start_offset=0)
    records = [Record(4 + number, 0, None, b"x") for number in range(3)]
    whole = encode_batch(records, base_offset=4, leader_epoch=1)
    following.append_fetched(rig.partition, whole, high_watermark=7, log_start_offset=5)
    assert (rig.log.log_start_offset, rig.log.log_end_offset, rig.log.partition.high_watermark) == (5, 7, 7)
    with pytest.raises(UnexpectedAppendOffset):
        following.append_fetched(rig.partition, data(1, base_offset=3), high_watermark=7, log_start_offset=5)


def test_a_log_that_the_leaders_start_has_passed_gives_way_to_a_batch_across_it() -> None:
    """S20: ours ends in the middle of the leader's first batch, and at its log start: nothing parts the two
    logs that the leader could still tell, and all that we have is gone there."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 2))
    following.append_fetched(rig.partition, data(0, 0), high_watermark=0, log_start_offset=0)
    records = [Record(1 + number, 0, None, b"x") for number in range(3)]
    whole = encode_batch(records, base_offset=1, leader_epoch=2)
    with pytest.raises(UnexpectedAppendOffset):
        following.append_fetched(rig.partition, whole, high_watermark=4, log_start_offset=1)
    following.append_fetched(rig.partition, whole, high_watermark=4, log_start_offset=2)
    assert (rig.log.log_start_offset, rig.log.log_end_offset, rig.log.partition.high_watermark) == (2, 4, 4)
    assert [tuple(entry) for entry in rig.log.partition.epochs] == [(2, 2)]


@pytest.mark.parametrize(
    ("epoch", "log_start_offset", "remembered"),
    [(2, 1, []), (2, 0, [7]), (1, 1, [7])],
    ids=["all of it below the start", "compared", "from this very leader"],
)
def test_a_follower_forgets_producers_that_nothing_can_be_compared_of(
    epoch: int, log_start_offset: int, remembered: list[int]
) -> None:
    """The leader's log begins where ours ends: if an older leader wrote ours, it may never have been
    committed, and a producer that sends it again must not be told that it is there (seed 221)."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, epoch))
    one = [Record(0, 0, None, b"x")]
    sent = encode_batch(one, leader_epoch=1, producer_id=7, producer_epoch=0, base_sequence=0)
    following.append_fetched(rig.partition, sent, high_watermark=0, log_start_offset=0)
    following.append_fetched(rig.partition, b"", high_watermark=1, log_start_offset=log_start_offset)
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (log_start_offset, 1)
    assert [producer.producer_id for producer in rig.log.partition.producers()] == remembered


def test_without_room_for_the_log_start_the_watermark_does_not_rise_either() -> None:
    """What lies below the leader's log start was compared with nothing: here it is another record than was
    committed, and while it is still served it must not pass for committed (simulation, seed 177)."""
    disk = FaultyDisk(MemoryDisk())
    rig = Rig(disk=disk)
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(0, 0), high_watermark=1, log_start_offset=0)
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))
    with pytest.raises(DiskFull):
        following.append_fetched(rig.partition, b"", high_watermark=2, log_start_offset=2)
    assert (rig.log.log_start_offset, rig.log.partition.high_watermark) == (0, 1)
    disk.heal()
    following.append_fetched(rig.partition, b"", high_watermark=2, log_start_offset=2)
    assert (rig.log.log_start_offset, rig.log.partition.high_watermark) == (2, 2)


def test_truncations_are_counted_and_those_below_the_watermark_apart() -> None:
    """S22: in a run without unclean elections or lost disks the second number stays 0."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(*[1] * 6), high_watermark=4, log_start_offset=0)
    following.truncate_to(rig.partition, 5)
    following.truncate_to(rig.partition, 5)
    assert (rig.counters.truncations, rig.counters.records_truncated) == (1, 1)
    assert rig.counters.truncations_below_high_watermark == 0
    following.truncate_to(rig.partition, 2)
    assert (rig.counters.truncations, rig.counters.records_truncated) == (2, 4)
    assert rig.counters.truncations_below_high_watermark == 1
    assert rig.log.partition.high_watermark == 2


def test_what_a_follower_cuts_is_entered_with_its_reason() -> None:
    """The entry names the leader and its epoch."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 3))
    following.append_fetched(rig.partition, data(1, 1, 2), high_watermark=0, log_start_offset=0)
    following.reconcile(rig.partition, EpochEndOffset(1, 2))
    following.restart_at(rig.partition, 40)
    cut, restart = rig.log.losses()
    assert (cut.who, cut.first_offset, cut.last_offset) == ("truncation", 2, 2)
    assert cut.why == f"epoch 1 ends at 2 for leader {F1} of epoch 3"
    assert (restart.who, restart.why) == ("restart", f"the log of leader {F1} of epoch 3 starts at 40")


def test_a_leader_that_ends_below_our_log_start() -> None:
    """After an unclean election, say: what we had not deleted yet was never its. The two must meet again."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(*[1] * 6), high_watermark=6, log_start_offset=5)
    following.truncate_to(rig.partition, 3)
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (3, 3)
    following.append_fetched(rig.partition, data(1, base_offset=3), high_watermark=4, log_start_offset=0)
    assert [record.offset for record in rig.log.read()] == [3]


def test_deleted_batches_of_an_epoch_that_the_leader_never_had_go() -> None:
    """Ours led epoch 3 alone, and everything is below its log start. In the leader's log those offsets are of
    epoch 2, and its next batch is, too: behind ours no older epoch may be written (seed 1010224)."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 3))
    following.append_fetched(rig.partition, data(3, 3), high_watermark=1, log_start_offset=1)
    rig.partition.become_follower(rig.state(F1, 4))
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (1, 2)
    following.reconcile(rig.partition, EpochEndOffset(2, 5))
    assert (rig.log.log_start_offset, rig.log.log_end_offset) == (1, 1)
    following.append_fetched(rig.partition, data(2, base_offset=1), high_watermark=2, log_start_offset=1)
    assert rig.log.log_end_offset == 2
