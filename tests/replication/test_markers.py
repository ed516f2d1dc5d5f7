"""Transaction markers on request: the leader appends them, the answer waits until the ISR has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidProducerEpoch, LogDirOffline
from logstore.format.batch import Batch, encode_batch, walk
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader, maybe_start_verification
from logstore.log.read import FetchIsolation, open_transactions, read_bytes
from logstore.log.truncate import truncate_to
from logstore.replication import following, markers, serving
from logstore.replication.effects import Client
from logstore.replication.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
)
from logstore.replication.transaction_messages import (
    Aborted,
    ProducerMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.replication.test_replica_manager import ELSEWHERE, F1, F2, ME, NOWHERE, P0, P1, Manager

NONE = ErrorCode.NONE
TIMEOUT_MS = 5_000


def transactional(producer_id: int, epoch: int = 0, sequence: int = 0, value: bytes = b"x") -> bytes:
    return encode_batch(
        [Record(0, 1_000_000, None, value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def ending(
    producer_id: int, epoch: int = 0, *, commit: bool = False, coordinator_epoch: int = 0
) -> ProducerMarker:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return ProducerMarker(producer_id, epoch, EndTransactionMarker(kind, coordinator_epoch))


class Rig(Manager):
    """Broker 0 leads two partitions with two followers in the ISR."""

    def __init__(self, log_config: LogConfig | None = None) -> None:
        super().__init__(log_config=log_config)
        self.role(ME, 1, P0, P1)

    def begin(self, *producer_ids: int, tp: TopicPartition = P0) -> None:
        """Write a record of each producer's transaction, on all replicas."""
        log = self.manager.partitions[tp].log
        for producer_id in producer_ids:
            guard = maybe_start_verification(log, producer_id, 0, 0)
            batch = transactional(producer_id)
            append_as_leader(log, batch, leader_epoch=1, now_ms=self.now_ms, verification_guard=guard)
        self.catch_up(tp)
        assert log.high_watermark == log.log_end_offset

    def catch_up(self, tp: TopicPartition = P0) -> None:
        for follower in (F1, F2):
            self.follow(follower, self.manager.partitions[tp].log.log_end_offset, tp)

    def write(
        self, wanted: Mapping[TopicPartition, Sequence[ProducerMarker]], *, token: str = "m"
    ) -> dict[TopicPartition, tuple[ErrorCode, ...]] | None:
        request = WriteTxnMarkersRequest({tp: tuple(each) for tp, each in wanted.items()}, TIMEOUT_MS)
        self.take(markers.write_txn_markers(self.manager, Client(token), request, self.now_ms))
        return self.told(token)

    def told(self, token: str = "m") -> dict[TopicPartition, tuple[ErrorCode, ...]] | None:
        """Return the answer among the last effects; None without one."""
        response = self.body(WriteTxnMarkersResponse, token)
        return None if response is None else dict(response.partitions)

    def committed(self) -> tuple[list[bytes | None], tuple[Aborted, ...]]:
        """Return what a reader of committed data gets: values, and the aborted transactions it must skip."""
        request = FetchRequest(-1, 0, 1, 1 << 20, {P0: FetchPartition(0, 1 << 20)}, committed_only=True)
        self.take(serving.fetch(self.manager, Client("r"), request, self.now_ms))
        response = self.body(FetchResponse)
        assert response is not None
        found = response.partitions[P0]
        batches = [each for each in walk(bytes(found.records)) if not each.is_control]
        assert found.aborted is not None
        return [record.value for each in batches for record in each.records()], found.aborted

    def wait(self, offset: int) -> FetchResult | None:
        """Fetch as a reader of committed data who waits for some."""
        wanted = {P0: FetchPartition(offset, 1 << 20)}
        request = FetchRequest(-1, TIMEOUT_MS, 1, 1 << 20, wanted, committed_only=True)
        self.take(serving.fetch(self.manager, Client("r"), request, self.now_ms))
        return self.answered()

    def answered(self) -> FetchResult | None:
        """Return the answer to that reader among the last effects; None while it waits."""
        response = self.body(FetchResponse, "r")
        return None if response is None else response.partitions[P0]


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_ends_the_transaction_once_the_isr_has_it(commit: bool) -> None:
    rig = Rig()
    rig.begin(7)
    log = rig.manager.partitions[P0].log
    assert log.last_stable_offset == 0
    assert rig.write({P0: [ending(7, commit=commit)]}) is None, "the followers lack it"
    assert open_transactions(log) == ()
    assert log.last_stable_offset == 0, "a reader of committed data may not pass what could be lost"
    rig.follow(F1, 2)
    assert rig.told() is None
    rig.follow(F2, 2)
    assert rig.told() == {P0: (NONE,)}
    assert log.last_stable_offset == 2
    assert rig.committed() == ([b"x"], () if commit else (Aborted(7, 0),))


def test_a_follower_takes_the_marker_over_as_any_batch() -> None:
    rig = Rig()
    rig.begin(7)
    rig.write({P0: [ending(7, coordinator_epoch=4)]})
    response = rig.follow(F1, 1)
    assert response is not None
    (batch,) = walk(bytes(response.partitions[P0].records))
    assert isinstance(batch, Batch)
    assert (batch.is_control, batch.is_transactional, batch.leader_epoch) == (True, True, 1)
    assert EndTransactionMarker.parse(next(batch.records())) == EndTransactionMarker(ControlType.ABORT, 4)
    other = Manager(disk=MemoryDisk())
    other.role(F1, 1, isr=(F1, ME))
    copy = other.manager.partitions[P0]
    stored = read_bytes(rig.manager.partitions[P0].log, 0, 1 << 20, isolation=FetchIsolation.LOG_END)
    following.append_fetched(copy, bytes(stored.records), high_watermark=2, log_start_offset=0)
    assert open_transactions(copy.log) == ()
    assert copy.log.last_stable_offset == 2


def test_each_marker_has_its_own_error() -> None:
    """An older producer epoch, an older coordinator epoch; the others of the partition are written."""
    rig = Rig()
    rig.begin(7, 8, 9)
    log = rig.manager.partitions[P0].log
    rig.write({P0: [ending(8, epoch=3, coordinator_epoch=5)]}, token="first")
    rig.catch_up()
    assert rig.told("first") == {P0: (NONE,)}, "a higher epoch of the producer ends its transaction"
    wanted = [ending(7), ending(8, epoch=2), ending(8, epoch=3, coordinator_epoch=4), ending(9, commit=True)]
    assert rig.write({P0: wanted}) is None
    rig.catch_up()
    codes = (NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED, NONE)
    assert rig.told() == {P0: codes}
    assert open_transactions(log) == ()
    assert log.log_end_offset == 3 + 1 + 2, "a refused marker is not written"
    assert rig.committed()[0] == [b"x"] * 3
    assert {each.producer_id for each in rig.committed()[1]} == {7, 8}


def test_what_is_refused_as_a_whole_is_answered_at_once() -> None:
    rig = Rig()
    rig.role(F1, 2, P1)
    wanted = {tp: [ending(7), ending(8)] for tp in (P1, ELSEWHERE, NOWHERE)}
    assert rig.write(wanted) == {
        P1: (ErrorCode.NOT_LEADER_OR_FOLLOWER,) * 2,
        ELSEWHERE: (ErrorCode.NOT_LEADER_OR_FOLLOWER,) * 2,
        NOWHERE: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,) * 2,
    }
    assert rig.write({}) == {}


def test_too_few_replicas_in_sync_refuse_a_marker() -> None:
    rig = Rig(LogConfig(min_insync_replicas=2))
    rig.begin(7)
    rig.role(ME, 2, P0, isr=(ME,))
    assert rig.write({P0: [ending(7)]}) == {P0: (ErrorCode.NOT_ENOUGH_REPLICAS,)}
    assert rig.manager.partitions[P0].log.log_end_offset == 1


def test_a_marker_without_a_transaction_is_written_and_fences() -> None:
    """As in Kafka: a producer of an older epoch is refused from then on."""
    rig = Rig()
    rig.write({P0: [ending(7, epoch=4)]})
    rig.catch_up()
    assert rig.told() == {P0: (NONE,)}
    assert rig.manager.partitions[P0].log.log_end_offset == 1
    log = rig.manager.partitions[P0].log
    guard = maybe_start_verification(log, 7, 0, 3)
    with pytest.raises(InvalidProducerEpoch):
        append_as_leader(
            log, transactional(7, epoch=3), leader_epoch=1, now_ms=rig.now_ms, verification_guard=guard
        )


def test_a_marker_that_is_sent_again_is_written_again_and_changes_nothing() -> None:
    """A tool repeats a request whose answer was lost."""
    rig = Rig()
    rig.begin(7, 8)
    for _ in range(2):
        rig.write({P0: [ending(7)]})
        rig.catch_up()
        assert rig.told() == {P0: (NONE,)}
    log = rig.manager.partitions[P0].log
    assert log.log_end_offset == 4
    assert [each.producer_id for each in open_transactions(log)] == [8]
    assert log.last_stable_offset == 1
    assert rig.committed()[1] == (Aborted(7, 0),)


def test_time_runs_out_and_the_marker_stays() -> None:
    rig = Rig()
    rig.begin(7)
    assert rig.write({P0: [ending(7), ending(8)]}) is None
    rig.follow(F1, 3)
    rig.tick(TIMEOUT_MS)
    assert rig.told() == {P0: (ErrorCode.REQUEST_TIMED_OUT,) * 2}
    assert open_transactions(rig.manager.partitions[P0].log) == ()


def test_the_leader_is_replaced_before_the_marker_is_committed() -> None:
    """The new leader's log decides: without the marker the client must send it again, there."""
    rig = Rig()
    rig.begin(7)
    assert rig.write({P0: [ending(7)]}) is None
    log = rig.manager.partitions[P0].log
    rig.role(F1, 2)
    assert rig.told() is None
    truncate_to(log, 1)
    rig.manager.waiting.wake(P0)
    rig.take(rig.manager.end_turn(rig.now_ms))
    assert rig.told() == {P0: (ErrorCode.NOT_LEADER_OR_FOLLOWER,)}
    assert [each.producer_id for each in open_transactions(log)] == [7], "it is open again"


def test_a_log_that_fails_takes_the_replica_offline() -> None:
    rig = Rig()
    rig.begin(7)
    log = rig.manager.partitions[P0].log
    with pytest.raises(LogDirOffline):
        log.fail(OSError(5, "EIO"))
    assert rig.write({P0: [ending(7), ending(8)], P1: [ending(7)]}) is not None
    assert rig.told() == {
        P0: (ErrorCode.KAFKA_STORAGE_ERROR,) * 2,
        P1: (ErrorCode.KAFKA_STORAGE_ERROR,),
    }
    assert P0 in rig.manager.offline


def test_a_reader_of_committed_data_waits_before_a_transaction_in_an_earlier_segment() -> None:
    """Its offset is in an older segment than the high watermark, but there is nothing to read."""
    rig = Rig()
    rig.begin(1)
    rig.manager.partitions[P0].log.roll()
    rig.begin(2)
    assert rig.wait(0) is None
    rig.write({P0: [ending(1), ending(2)]})
    rig.catch_up()
    assert rig.answered() is not None
