"""What follows a refused batch of an idempotent producer gets the same error, and is not out of order."""

from __future__ import annotations

import errno

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.errors import DiskFull
from logstore.format.batch import encode_batch
from logstore.format.record import MAX_INT, Record
from logstore.log.producer_state import ProducerState
from logstore.replication import serving
from logstore.replication.effects import Client
from logstore.replication.messages import ProduceRequest
from logstore.replication.refusals import MOST_PRODUCERS, REMEMBERED_MS, Refusals
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.replication.test_replica_manager import F1, ME, P0, Manager

NONE = ErrorCode.NONE
FULL = ErrorCode.KAFKA_STORAGE_ERROR
TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def batch_of(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    record = Record(0, 0, None, b"%d" % sequence)
    return encode_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


class Leader(Manager):
    """Broker 0 leads alone in the ISR, on a disk that can be filled."""

    def __init__(self, *, min_insync: int = 1) -> None:
        self.faulty = FaultyDisk(MemoryDisk())
        super().__init__(disk=self.faulty, log_config=LogConfig(min_insync_replicas=min_insync))
        self.role(ME, 1, isr=(ME,))

    def fill(self) -> None:
        self.faulty.inject(Fault(operation="pwrite", errno=errno.ENOSPC, forever=True))

    def send(self, sequence: int, *, producer_id: int = 7, epoch: int = 0) -> ErrorCode | None:
        """Return the answer; None while the batch waits to be committed."""
        data = batch_of(sequence, producer_id=producer_id, epoch=epoch)
        self.take(
            serving.produce(self.manager, Client("p"), ProduceRequest({P0: data}, -1, 1000), self.now_ms)
        )
        return self.error("p")


@pytest.mark.parametrize("sent_before", [0, 3])
def test_a_full_disk_refuses_all_that_is_in_flight_and_loses_no_order(sent_before: int) -> None:
    """Also for a producer that the log does not know yet: its first batch may come with any sequence."""
    leader = Leader()
    assert [leader.send(number) for number in range(sent_before)] == [NONE] * sent_before
    leader.fill()
    assert leader.send(sent_before) is FULL
    leader.faulty.heal()
    in_flight = range(sent_before, sent_before + 5)
    assert [leader.send(number) for number in in_flight[1:]] == [FULL] * 4
    assert [leader.send(number) for number in in_flight] == [NONE] * 5
    log = leader.manager.partitions[P0].log
    assert log.log_end_offset == sent_before + 5
    assert not leader.manager.partitions[P0].refusals.by_producer


def test_too_few_replicas_in_sync_refuse_what_follows_too() -> None:
    leader = Leader(min_insync=2)
    assert leader.send(0) is TOO_FEW
    leader.role(ME, 1, isr=(ME, F1))
    assert leader.send(1) is TOO_FEW
    leader.role(ME, 1, isr=(ME, F1))
    leader.send(0)
    leader.send(1)
    assert leader.manager.partitions[P0].log.log_end_offset == 2


def test_a_late_repetition_that_is_refused_holds_up_nothing() -> None:
    """Row 259: it was appended long ago, so nobody sends it again; what follows it waited for a minute."""
    leader = Leader(min_insync=2)
    leader.role(ME, 1, isr=(ME, F1))
    leader.send(0)
    leader.send(1)
    leader.role(ME, 1, isr=(ME,))
    assert leader.send(0) is TOO_FEW
    leader.role(ME, 1, isr=(ME, F1))
    leader.send(1)
    leader.send(2)
    assert leader.manager.partitions[P0].log.log_end_offset == 3


def test_other_producers_and_a_gap_of_the_producers_own_are_not_concerned() -> None:
    leader = Leader()
    leader.fill()
    assert leader.send(0) is FULL
    leader.faulty.heal()
    assert leader.send(0, producer_id=8) is NONE
    assert leader.send(2, producer_id=8) is OUT_OF_ORDER
    assert leader.send(1) is FULL
    assert leader.send(0) is NONE
    assert leader.send(3) is OUT_OF_ORDER


def test_a_later_epoch_of_the_producer_starts_anew() -> None:
    leader = Leader()
    leader.fill()
    assert leader.send(5) is FULL
    leader.faulty.heal()
    assert leader.send(0, epoch=1) is NONE
    assert leader.send(1, epoch=1) is NONE
    assert not leader.manager.partitions[P0].refusals.by_producer


def test_a_producer_that_gives_up_meets_its_gap() -> None:
    leader = Leader()
    assert leader.send(0) is NONE
    leader.fill()
    assert leader.send(1) is FULL
    leader.faulty.heal()
    assert leader.send(2) is FULL
    leader.tick(REMEMBERED_MS + 1)
    assert leader.send(2) is OUT_OF_ORDER


def test_a_refused_batch_that_is_refused_for_good_says_so() -> None:
    """It was itself behind a gap; the full disk came first."""
    leader = Leader(min_insync=2)
    leader.role(ME, 1, isr=(ME, F1))
    leader.send(0)
    leader.role(ME, 1, isr=(ME,))
    assert leader.send(2) is TOO_FEW
    leader.role(ME, 1, isr=(ME, F1))
    leader.follow(F1, 1)
    assert leader.send(2) is OUT_OF_ORDER


def test_a_leader_that_nobody_has_fetched_from_takes_no_gap_for_a_loss() -> None:
    """It may have been replaced before it heard that it leads: the gap is what the next leader has."""
    leader = Leader()
    assert leader.send(0) is NONE
    leader.role(ME, 2, isr=(ME, F1))
    assert leader.send(3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.follow(F1, 1)
    assert leader.send(3) is OUT_OF_ORDER
    leader.role(ME, 4, isr=(ME, F1))
    assert leader.send(3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.role(ME, 5, isr=(ME,))
    assert leader.send(3) is OUT_OF_ORDER


def test_the_first_refused_one_counts_and_sequences_wrap() -> None:
    refusals, error = Refusals(), DiskFull("no room")
    refusals.note(batch_of(1), error, 0, ProducerState())
    refusals.note(batch_of(MAX_INT), error, 0, ProducerState())
    for sequence in (0, 1, 2):
        with pytest.raises(DiskFull, match=f"sequence {sequence} follows {MAX_INT}"):
            refusals.check(batch_of(sequence), 0)
    refusals.check(batch_of(MAX_INT - 1), 0)
    refusals.check(batch_of(0, producer_id=8), 0)
    refusals.check(batch_of(MAX_INT), 0)
    refusals.check(batch_of(0), 0)


def test_memory_is_bounded_and_what_is_no_producers_is_ignored() -> None:
    refusals, error = Refusals(), EngineError("refused")
    for producer_id in range(MOST_PRODUCERS + 5):
        refusals.note(batch_of(0, producer_id=producer_id), error, 0, ProducerState())
    assert len(refusals.by_producer) == MOST_PRODUCERS
    refusals.clear()
    refusals.note(encode_batch([Record(0, 0, None, b"plain")]), error, 0, ProducerState())
    refusals.note(b"not a batch", error, 0, ProducerState())
    refusals.check(b"not a batch", 0)
    assert not refusals.by_producer
