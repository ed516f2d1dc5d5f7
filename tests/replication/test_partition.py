"""One partition: roles, epochs, appends, high watermark and reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import encode_batch, walk
from logstore.format.record import ControlType, Record
from logstore.log.append import append_as_leader, append_end_transaction, maybe_start_verification
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.replication import following, membership, reading
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    UnknownLeaderEpoch,
)
from logstore.replication.isr import PendingExpand, PendingShrink
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    AlterPartitionResult,
    BrokerEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResult,
    PartitionState,
    UpdateMetadataRequest,
)
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.partition import ACKS_ALL, Counters, Partition
from logstore.replication.replica import NEVER_MS
from logstore.replication.transaction_messages import Aborted
from logstore.segment.epochs import EpochEndOffset

TP = TopicPartition("t", 0)
ME, F1, F2, CONSUMER = 0, 1, 2, -1
LAG_MS = 10_000
NOW_MS = 1_000_000


def data(*epochs: int, base_offset: int = 0) -> bytes:
    """Batches as a leader would send them: one record each, of these epochs."""
    return b"".join(
        encode_batch(
            [Record(base_offset + number, 0, None, b"%d" % number)],
            base_offset=base_offset + number,
            leader_epoch=epoch,
        )
        for number, epoch in enumerate(epochs)
    )


class Rig:
    """A partition on broker 0, with brokers 1 and 2 alive."""

    def __init__(
        self,
        *,
        durability: Durability = Durability.REPLICATED,
        log_config: LogConfig | None = None,
        disk: Disk | None = None,
        lag_messages: int = -1,
        was_clean: bool = True,
    ) -> None:
        self.disk: Disk = disk if disk is not None else MemoryDisk()
        self.logs = LogManager(
            ["data"],
            disk=self.disk,
            clock=lambda: NOW_MS,
            random=random.Random(0),
            config=log_config or LogConfig(),
        )
        self.metadata = MetadataCache()
        self.counters = Counters()
        self.alive({ME: 1, F1: 1, F2: 1})
        config = NodeConfig(
            node_id=ME,
            replica_lag_time_max_ms=LAG_MS,
            replica_lag_max_messages=lag_messages,
        )
        self.partition = Partition(
            self.logs.get_or_create(TP).partition, config, self.metadata, self.counters, was_clean=was_clean
        )
        self._versions = -1
        self._durability = durability

    @property
    def log(self) -> Log:
        return Log(self.partition.log)

    def alive(self, brokers: Mapping[int, int]) -> None:
        endpoints = tuple(BrokerEndpoint(broker, epoch=epoch) for broker, epoch in brokers.items())
        self.metadata.update(UpdateMetadataRequest(9, 1, -1, {}, endpoints))

    def state(
        self,
        leader: int,
        epoch: int,
        *,
        isr: tuple[int, ...] = (ME, F1, F2),
        replicas: tuple[int, ...] = (ME, F1, F2),
        version: int | None = None,
    ) -> PartitionState:
        self._versions = self._versions + 1 if version is None else version
        return PartitionState(1, leader, epoch, isr, self._versions, replicas, durability=self._durability)

    def lead(self, epoch: int = 1, *, isr: tuple[int, ...] = (ME, F1, F2), now_ms: int = NOW_MS) -> bool:
        return self.partition.become_leader(self.state(ME, epoch, isr=isr), now_ms)

    def write(self, count: int = 1, *, acks: int = 1) -> None:
        for number in range(count):
            self.partition.append(encode_batch([Record(0, 0, None, b"%d" % number)]), acks, NOW_MS)

    def fetch(
        self,
        replica: int,
        offset: int,
        *,
        now_ms: int = NOW_MS,
        epoch: int = -1,
        last_epoch: int = -1,
        broker_epoch: int = 1,
    ) -> FetchResult:
        """A follower's fetch, counted as the replica manager counts it."""
        wanted = FetchPartition(
            offset,
            1 << 20,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
            log_start_offset=0,
            is_synced=self._durability is Durability.SYNCED,
        )
        result = reading.read(
            self.partition,
            FetchRequest(replica, 0, 1, 1 << 20, {TP: wanted}, broker_epoch),
            wanted,
            max_bytes=1 << 20,
            at_least_one=True,
        )
        if result.diverging_epoch is None:
            membership.record_fetch(
                self.partition, replica, wanted, now_ms, broker_epoch=broker_epoch, own_broker_epoch=1
            )
        return result

    def answer(
        self, error: ErrorCode, *, isr: tuple[int, ...] = (), epoch: int = 1, version: int = 0
    ) -> membership.IsrOutcome:
        """The controller's answer to what is pending."""
        pending = self.partition.isr
        assert isinstance(pending, PendingExpand | PendingShrink)
        return membership.on_isr_answer(
            self.partition, pending, AlterPartitionResult(error, ME, epoch, isr, version)
        )


def error_of(call: object, *args: object, **kwargs: object) -> ErrorCode:
    try:
        call(*args, **kwargs)  # type: ignore[operator]
    except EngineError as error:
        return error.code
    return ErrorCode.NONE


# --- roles and epochs -------------------------------------------------------------------------------


def test_an_election_is_in_the_epoch_cache_before_any_record() -> None:
    """KAFKA-7415: epoch 8 on a log that ends at 4 already answers (8, 4)."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 7))
    following.append_fetched(rig.partition, data(7, 7, 7, 7), high_watermark=4, log_start_offset=0)
    rig.lead(8)
    assert reading.end_of_epoch(rig.partition, 8, 8) == EpochEndOffset(8, 4)
    assert reading.end_of_epoch(rig.partition, 7, 8) == EpochEndOffset(7, 4)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_to_a_leader_of_epoch_5(named: int, expected: ErrorCode) -> None:
    """6.2: e-1, none, e, e+1 for a fetch, ListOffsets and OffsetsForLeaderEpoch."""
    rig = Rig()
    rig.lead(5)
    assert error_of(rig.fetch, F1, 0, epoch=named) is expected
    ask = partial(reading.list_offset, rig.partition)
    assert error_of(ask, EARLIEST_TIMESTAMP, replica_id=CONSUMER, current_leader_epoch=named) is expected
    assert error_of(reading.end_of_epoch, rig.partition, 5, named) is expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_to_a_follower_of_epoch_5(named: int, expected: ErrorCode) -> None:
    """6.2: the epoch is judged before the role."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 5))
    assert error_of(rig.fetch, F1, 0, epoch=named) is expected
    ask = partial(reading.list_offset, rig.partition)
    assert error_of(ask, EARLIEST_TIMESTAMP, replica_id=CONSUMER, current_leader_epoch=named) is expected
    assert error_of(reading.end_of_epoch, rig.partition, 5, named) is expected


def test_a_stranger_fetches() -> None:
    """6.2: with an epoch it may know a newer assignment; without one it is lost."""
    rig = Rig()
    rig.lead(5)
    assert error_of(rig.fetch, 77, 0, epoch=5) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error_of(rig.fetch, 77, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_assignment_within_the_epoch() -> None:
    """6.2: same epoch, higher partition epoch: the new replica may fetch, the others' states are kept."""
    rig = Rig()
    rig.lead(1)
    rig.write(3)
    rig.fetch(F1, 2)
    start = rig.partition.epoch_start_offset
    state = rig.state(ME, 1, replicas=(ME, F1, F2, 3))
    assert rig.partition.become_leader(state, NOW_MS) is False
    rig.fetch(3, 0)
    assert rig.partition.remote_replicas[F1].log_end_offset == 2
    assert rig.partition.remote_replicas[3].log_end_offset == 0
    assert rig.partition.epoch_start_offset == start


def test_re_election_of_the_leader_keeps_ends_and_restarts_the_lag_clock() -> None:
    """6.2: now for members, never for others."""
    rig = Rig()
    rig.lead(1)
    rig.write(3)
    rig.fetch(F1, 2)
    rig.fetch(F2, 1)
    rig.lead(2, isr=(ME, F1), now_ms=NOW_MS + 50)
    remote = rig.partition.remote_replicas
    assert [remote[r].log_end_offset for r in (F1, F2)] == [2, 1]
    assert [remote[r].caught_up_ms for r in (F1, F2)] == [NOW_MS + 50, NEVER_MS]


def test_r5_a_leader_that_missed_an_epoch_knows_no_ends() -> None:
    """Found by the model: whoever led in between may have made a follower cut its log; counting its old end
    would commit what it no longer has."""
    rig = Rig()
    rig.lead(1)
    rig.write(3)
    rig.fetch(F1, 3)
    rig.lead(3, isr=(ME, F1))
    assert rig.partition.remote_replicas[F1].log_end_offset == -1
    assert rig.log.partition.high_watermark == 0
    rig.fetch(F1, 3, epoch=3)
    assert rig.log.partition.high_watermark == 3


def test_becoming_a_follower_forgets_the_leadership() -> None:
    """6.2: no ISR, no remote states, no epoch start; True iff the epoch grew."""
    rig = Rig()
    rig.lead(1)
    assert rig.partition.become_follower(rig.state(F1, 2)) is True
    assert rig.partition.become_follower(rig.state(F1, 2)) is False
    assert rig.partition.isr.maximal == frozenset()
    assert not rig.partition.remote_replicas
    assert rig.partition.epoch_start_offset is None
    with pytest.raises(NotLeaderOrFollower):
        rig.write()


def test_a_log_that_outgrew_the_word_of_the_controller() -> None:
    """Epochs only grow in the store: a role of epoch 5 for a log with epoch 7 is an old message."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 7))
    following.append_fetched(rig.partition, data(7), high_watermark=1, log_start_offset=0)
    anew = Partition(rig.log.partition, NodeConfig(node_id=ME), rig.metadata, rig.counters, was_clean=True)
    with pytest.raises(FencedLeaderEpoch):
        anew.become_leader(rig.state(ME, 5), NOW_MS)
    with pytest.raises(FencedLeaderEpoch):
        anew.become_follower(rig.state(F2, 5))


@pytest.mark.parametrize("was_clean", [True, False])
def test_after_an_unclean_stop_a_leader_needs_a_new_epoch(was_clean: bool) -> None:
    """R3: it may have lost records of epoch 7 that others copied, and would write others in their place."""
    rig = Rig()
    rig.lead(7)
    rig.write(2)
    anew = Partition(
        rig.log.partition, NodeConfig(node_id=ME), rig.metadata, rig.counters, was_clean=was_clean
    )
    if was_clean:
        assert anew.become_leader(rig.state(ME, 7), NOW_MS)
        return
    with pytest.raises(FencedLeaderEpoch):
        anew.become_leader(rig.state(ME, 7), NOW_MS)
    assert anew.become_leader(rig.state(ME, 8), NOW_MS)


def test_a_suspended_leader_answers_nobody() -> None:
    """R7: without a store session it appends, reads and commits nothing."""
    rig = Rig()
    rig.lead(1, isr=(ME,))
    rig.alive({ME: 1})
    rig.write()
    tenure = rig.partition.tenure
    rig.partition.suspend()
    assert error_of(rig.write) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(rig.fetch, F1, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert rig.partition.advance_high_watermark(NOW_MS) is False
    assert membership.propose_shrink(rig.partition, NOW_MS, own_broker_epoch=1) is None
    assert rig.partition.tenure != tenure, "what was promised is void"
    rig.lead(2)
    rig.write()


# --- append and the high watermark ------------------------------------------------------------------


def test_min_isr_is_asked_before_anything_is_written() -> None:
    """2.2: acks=all only; the count is of the committed ISR, the leader included."""
    rig = Rig(log_config=LogConfig(min_insync_replicas=2))
    rig.lead(1, isr=(ME,))
    with pytest.raises(NotEnoughReplicas):
        rig.write(acks=ACKS_ALL)
    assert rig.log.log_end_offset == 0
    rig.write(acks=1)
    assert rig.log.log_end_offset == 1


def test_min_isr_is_never_more_than_there_are_replicas() -> None:
    rig = Rig(log_config=LogConfig(min_insync_replicas=5))
    rig.lead(1)
    assert rig.partition.min_insync == 3
    rig.write(acks=ACKS_ALL)


def test_the_watermark_stands_while_too_few_are_in_sync() -> None:
    """6.2: ISR below the minimum, all followers advance: unchanged; it moves once the ISR is confirmed."""
    rig = Rig(log_config=LogConfig(min_insync_replicas=3))
    rig.lead(1, isr=(ME, F1))
    rig.write(10)
    for follower in (F1, F2):
        rig.fetch(follower, 10)
    assert rig.log.partition.high_watermark == 0
    assert rig.partition.isr.maximal == {ME, F1, F2}
    assert rig.answer(ErrorCode.NONE, isr=(ME, F1, F2), version=1) is membership.IsrOutcome.ADOPTED
    assert rig.partition.advance_high_watermark(NOW_MS)
    assert rig.log.partition.high_watermark == 10


def test_a_replica_that_died_is_not_waited_for() -> None:
    """6.2: ISR {leader}, end 20, a caught-up follower at 10: 10 while it lives, 20 once it is gone."""
    rig = Rig()
    rig.lead(1, isr=(ME,))
    rig.write(10)
    rig.fetch(F1, 10)
    assert rig.answer(ErrorCode.INELIGIBLE_REPLICA) is membership.IsrOutcome.REVERTED
    rig.write(10)
    assert rig.log.partition.high_watermark == 10
    rig.alive({ME: 1, F2: 1})
    assert rig.partition.advance_high_watermark(NOW_MS)
    assert rig.log.partition.high_watermark == 20


def test_the_checkpointed_watermark_is_where_a_leader_starts() -> None:
    """6.2: 4 in the file: hw 4 until the followers have said where they are."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(1, 1, 1, 1, 1, 1), high_watermark=4, log_start_offset=0)
    rig.lead(2)
    assert rig.log.partition.high_watermark == 4
    with pytest.raises(OffsetNotAvailable):
        reading.list_offset(rig.partition, LATEST_TIMESTAMP, replica_id=CONSUMER, current_leader_epoch=-1)
    answer = reading.list_offset(rig.partition, LATEST_TIMESTAMP, replica_id=F1, current_leader_epoch=2)
    assert answer.offset == 6, "a replica gets the end"
    earliest = reading.list_offset(
        rig.partition, EARLIEST_TIMESTAMP, replica_id=CONSUMER, current_leader_epoch=-1
    )
    assert (earliest.offset, earliest.leader_epoch) == (0, 1)
    for follower in (F1, F2):
        rig.fetch(follower, 6)
    answer = reading.list_offset(
        rig.partition, LATEST_TIMESTAMP, replica_id=CONSUMER, current_leader_epoch=-1
    )
    assert answer.offset == 6


def test_a_synced_leader_votes_with_what_it_flushed() -> None:
    """SYNCED durability: the followers hold and flushed it, this machine may still lose it."""
    rig = Rig(durability=Durability.SYNCED)
    rig.lead(1)
    rig.write(3)
    for follower in (F1, F2):
        rig.fetch(follower, 3)
    assert rig.log.partition.high_watermark == 0
    rig.log.flush()
    assert rig.partition.advance_high_watermark(NOW_MS)
    assert rig.log.partition.high_watermark == 3


# --- follower fetches -------------------------------------------------------------------------------


def test_a_failed_or_diverging_read_counts_for_nothing() -> None:
    """KAFKA-8400, 13141: nothing changes on an error, and nothing on a divergence."""
    rig = Rig()
    rig.partition.become_follower(rig.state(F1, 1))
    following.append_fetched(rig.partition, data(1, 1, 1), high_watermark=3, log_start_offset=0)
    rig.lead(2)
    before = dict(rig.partition.remote_replicas)
    with pytest.raises(OffsetOutOfRange):
        rig.fetch(F1, 9)
    with pytest.raises(UnknownLeaderEpoch):
        rig.fetch(F1, 3, epoch=3)
    assert rig.fetch(F1, 5, last_epoch=1).diverging_epoch == EpochEndOffset(1, 3)
    assert rig.partition.remote_replicas == before


def test_the_answer_carries_the_watermark_from_before_the_fetch() -> None:
    """1.16: the position is recorded after the read."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.alive({ME: 1, F1: 1})
    rig.write(2)
    assert rig.fetch(F1, 2).high_watermark == 0
    assert rig.log.partition.high_watermark == 2


def test_committed_readers_stop_at_the_first_open_transaction() -> None:
    """read_committed: data up to the last stable offset, and the aborted transactions in it."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.alive({ME: 1, F1: 1})
    for producer_id, time_ms in ((7, 30), (8, 50), (9, 40)):
        batch = encode_batch(
            [Record(0, time_ms, None, b"x")],
            producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True,
        )  # fmt: skip
        guard = maybe_start_verification(rig.log.partition, producer_id, 0, 0)
        append_as_leader(rig.log.partition, batch, leader_epoch=1, now_ms=NOW_MS, verification_guard=guard)
    for producer_id, kind in ((7, ControlType.ABORT), (8, ControlType.COMMIT)):
        append_end_transaction(
            rig.log.partition, producer_id, 0, kind, coordinator_epoch=0, leader_epoch=1, now_ms=20
        )
    rig.fetch(F1, 5)

    def read(*, committed_only: bool) -> FetchResult:
        wanted = FetchPartition(0, 1 << 20)
        request = FetchRequest(CONSUMER, 0, 1, 1 << 20, {TP: wanted}, committed_only=committed_only)
        return reading.read(rig.partition, request, wanted, max_bytes=1 << 20, at_least_one=True)

    assert (rig.log.partition.high_watermark, rig.log.partition.last_stable_offset) == (5, 2)
    everything, committed = read(committed_only=False), read(committed_only=True)
    assert (everything.high_watermark, everything.last_stable_offset, everything.aborted) == (5, 2, None)
    assert [batch.base_offset for batch in walk(everything.records)] == [0, 1, 2, 3, 4]
    assert [batch.base_offset for batch in walk(committed.records)] == [0, 1]
    assert (committed.last_stable_offset, committed.aborted) == (2, (Aborted(7, 0),))
    assert rig.fetch(F1, 0).last_stable_offset == -1

    def offset(timestamp: int, *, committed_only: bool) -> int:
        return reading.list_offset(
            rig.partition,
            timestamp,
            replica_id=CONSUMER,
            current_leader_epoch=-1,
            committed_only=committed_only,
        ).offset

    for asked, uncommitted, decided in ((LATEST_TIMESTAMP, 5, 2), (40, 1, 1), (LARGEST_TIMESTAMP, 1, 1)):
        assert offset(asked, committed_only=False) == uncommitted
        assert offset(asked, committed_only=True) == decided


def test_the_largest_time_of_a_log_is_the_first_record_that_has_it() -> None:
    """KIP-734; only replicas see records that are not committed yet."""
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.alive({ME: 1, F1: 1})

    def largest(replica: int = CONSUMER) -> tuple[int, int]:
        found = reading.list_offset(
            rig.partition, LARGEST_TIMESTAMP, replica_id=replica, current_leader_epoch=-1
        )
        return found.offset, found.timestamp

    assert largest() == (-1, -1)
    for times in ((10, 30, 20), (30, 5)):
        records = [Record(number, time_ms, None, b"") for number, time_ms in enumerate(times)]
        rig.partition.append(encode_batch(records), 1, NOW_MS)
    assert (largest(), largest(F1)) == ((-1, -1), (1, 30))
    rig.fetch(F1, 5)
    assert largest() == (1, 30)


def test_a_follower_whose_log_starts_inside_of_a_batch_ends_where_it_fetches() -> None:
    rig = Rig()
    rig.lead(1, isr=(ME, F1))
    rig.partition.append(encode_batch([Record(number, 0, None, b"") for number in range(3)]), 1, NOW_MS)
    rig.fetch(F1, 2)
    assert rig.partition.remote_replicas[F1].log_end_offset == rig.log.partition.high_watermark == 2


def test_a_fetch_of_an_earlier_life_is_refused() -> None:
    """KIP-903: by what the metadata says, and by what was seen fetching."""
    rig = Rig()
    rig.lead(1)
    rig.alive({ME: 1, F1: 5, F2: 1})
    assert error_of(rig.fetch, F1, 0, broker_epoch=4) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(rig.fetch, F1, 0, broker_epoch=5) is ErrorCode.NONE
    assert error_of(rig.fetch, F1, 0, broker_epoch=6) is ErrorCode.NONE
    assert error_of(rig.fetch, F1, 0, broker_epoch=5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(rig.fetch, F1, 0, broker_epoch=-1) is ErrorCode.NONE


def test_the_log_holds_a_batch_of_the_epoch_in_which_it_was_written() -> None:
    """At the same offset another leader may have written another batch."""
    rig = Rig()
    rig.lead(1)
    rig.write()
    rig.lead(3)
    rig.write()
    held = [(end, epoch) for end in (1, 2, 3) for epoch in range(5) if rig.partition.holds(end, epoch)]
    assert held == [(1, 1), (2, 3)]
