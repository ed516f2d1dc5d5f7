"""DeleteRecords: the leader deletes, followers follow as they fetch, the answer waits for all live ones."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import serving
from logstore.replication.driver import InProcessCluster, three_nodes
from logstore.replication.effects import Client, Peer
from logstore.replication.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    NewTopic,
)
from logstore.testing.stage import batch
from tests.replication.test_driver import BASE, TP, write
from tests.replication.test_replica_manager import F1, F2, ME, NOWHERE, P0, P1, Manager

TIMEOUT_MS = 5000


class Rig(Manager):
    """Broker 0 leads with five committed records; followers report their log start offsets."""

    def __init__(self, *, log_config: LogConfig | None = None) -> None:
        super().__init__(log_config=log_config)
        self.role(ME, 1, P0, P1)
        for _ in range(5):
            self.produce("w", P0)
        for follower in (F1, F2):
            self.says(follower)
        assert self.manager.partitions[P0].log.high_watermark == 5

    def says(
        self, follower: int, log_start: int = 0, offset: int = 5, *, max_wait_ms: int = 0
    ) -> FetchResponse | None:
        wanted = FetchPartition(offset, 1 << 20, log_start_offset=log_start)
        request = FetchRequest(follower, max_wait_ms, 1, 1 << 20, {P0: wanted}, 5)
        self.take(serving.fetch(self.manager, Peer(follower, self._next_id()), request, self.now_ms))
        return self.body(FetchResponse)

    def delete(
        self, offset: int, tp: TopicPartition = P0, *, timeout_ms: int = TIMEOUT_MS
    ) -> DeleteRecordsResult | None:
        request = DeleteRecordsRequest({tp: offset}, timeout_ms)
        self.take(serving.delete_records(self.manager, Client("d"), request, self.now_ms))
        return self.answered(tp)

    def answered(self, tp: TopicPartition = P0) -> DeleteRecordsResult | None:
        """Return the answer among the last effects; None without one."""
        response = self.body(DeleteRecordsResponse, "d")
        return None if response is None else response.partitions[tp]


def test_it_is_answered_when_every_live_follower_has_deleted() -> None:
    """6.4: DeleteRecords delayed: completes when all live followers' log start >= target."""
    rig = Rig()
    assert rig.delete(3) is None
    assert rig.manager.partitions[P0].log.log_start_offset == 3
    rig.says(F1, 3)
    assert rig.answered() is None
    rig.says(F2, 2)
    assert rig.answered() is None
    rig.says(F2, 3)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.NONE, 3)


@pytest.mark.parametrize("offset", [6, -2])
def test_beyond_the_high_watermark_nothing_is_deleted(offset: int) -> None:
    """6.2: DeleteRecords beyond HW: OFFSET_OUT_OF_RANGE."""
    rig = Rig()
    assert rig.delete(offset) == DeleteRecordsResult(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert rig.manager.partitions[P0].log.log_start_offset == 0


def test_minus_one_is_the_high_watermark() -> None:
    """2.9: -1 is the high watermark when the request arrives."""
    rig = Rig()
    rig.produce("uncommitted")
    assert rig.delete(-1) is None
    assert rig.manager.partitions[P0].log.log_start_offset == 5
    for follower in (F1, F2):
        rig.says(follower, 5)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.NONE, 5)


def test_what_is_deleted_already_is_answered_at_once() -> None:
    """The low watermark is already at the requested offset, or above it."""
    rig = Rig()
    rig.delete(3)
    for follower in (F1, F2):
        rig.says(follower, 3)
    assert rig.delete(2) == DeleteRecordsResult(ErrorCode.NONE, 3)


def test_time_runs_out_and_the_deletion_stays() -> None:
    """2.9: REQUEST_TIMED_OUT while a live replica has not confirmed; the log start does not go back."""
    rig = Rig()
    assert rig.delete(3) is None
    assert rig.manager.deadline_ms == rig.now_ms + TIMEOUT_MS
    rig.says(F1, 3)
    rig.tick(TIMEOUT_MS)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT, 0)
    rig.says(F2, 3)
    assert rig.answered() is None, "answered once"
    assert rig.manager.partitions[P0].log.log_start_offset == 3


def test_a_follower_that_asks_after_the_deletion_is_told_of_it_at_once() -> None:
    """Its fetch would wait for records, and the deletion for its next fetch. Its log began at 0."""
    rig = Rig()
    assert rig.delete(3) is None
    told = rig.says(F1, 0, max_wait_ms=TIMEOUT_MS)
    assert told is not None
    assert told.partitions[P0].log_start_offset == 3


def test_without_time_to_wait_it_is_answered_at_once() -> None:
    rig = Rig()
    assert rig.delete(3, timeout_ms=0) == DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_follower_that_dies_is_not_waited_for_once_it_has_left_the_isr() -> None:
    """2.9: the low watermark is over *live* replicas: a dead one learns when it returns. As a member of the
    ISR it may return as the leader."""
    rig = Rig()
    rig.delete(3)
    rig.says(F1, 3)
    rig.metadata((ME, F1))
    assert rig.answered() is None
    rig.role(ME, 1, isr=(ME, F1))
    assert rig.answered() == DeleteRecordsResult(ErrorCode.NONE, 3)


def test_an_isr_too_small_to_commit_confirms_no_deletion() -> None:
    """Replicas that left it may be elected, and they have the records (seed 603967)."""
    rig = Rig()
    rig.role(ME, 1, isr=(ME,), min_insync=2)
    rig.metadata((ME,))
    assert rig.delete(3) is None
    rig.tick(TIMEOUT_MS)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT, 3)
    assert rig.delete(3) is None
    rig.metadata((ME, F1))
    rig.role(ME, 1, isr=(ME, F1), min_insync=2)
    assert rig.answered() is None
    rig.says(F1, 3)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.NONE, 3)


def test_a_leader_that_steps_down_says_so() -> None:
    """1.17: a role change completes waiting requests with NOT_LEADER_OR_FOLLOWER (6)."""
    rig = Rig()
    rig.delete(3)
    rig.role(F1, 2)
    assert rig.answered() == DeleteRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_who_does_not_lead_deletes_nothing() -> None:
    rig = Rig()
    rig.role(F1, 2)
    assert rig.delete(1) == DeleteRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert rig.delete(1, NOWHERE) == DeleteRecordsResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert rig.manager.partitions[P0].log.log_start_offset == 0


def test_a_compacted_log_goes_by_its_keys() -> None:
    """POLICY_VIOLATION: a compacted topic keeps the last record of each key, wherever it lies."""
    rig = Rig(log_config=LogConfig(cleanup_policy="delete"))
    rig.manager.partitions[P0].log.config = LogConfig(cleanup_policy="compact")
    assert rig.delete(1) == DeleteRecordsResult(ErrorCode.POLICY_VIOLATION)


def test_a_follower_that_waits_for_records_hears_of_the_new_start_at_once() -> None:
    """A request waits for it; a fetch would otherwise report the new start only after its whole wait."""
    rig = Rig()
    assert rig.says(F1, max_wait_ms=500) is None
    rig.delete(3)
    parked = rig.body(FetchResponse)
    assert parked is not None
    assert parked.partitions[P0].log_start_offset == 3
    assert rig.says(F1, 3, max_wait_ms=500) is None, "one that knows waits for records again"


def test_across_a_cluster_every_log_starts_there() -> None:
    """1.16, 2.9: the new start travels with the fetches, and is there after a restart."""
    made = InProcessCluster(three_nodes(base=BASE), disk_of=lambda node_id: MemoryDisk())
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    for number in range(5):
        write(made, b"%d" % number)
    before_ms = made.now_ms
    body = made.call(DeleteRecordsRequest({TP: 4}, 30_000), 0)
    assert isinstance(body, DeleteRecordsResponse)
    assert body.partitions[TP] == DeleteRecordsResult(ErrorCode.NONE, 4)
    assert made.now_ms - before_ms < 500, "no fetch waited for its time to run out"
    made.produce(TP, batch(b"next"))
    for node_id in range(3):
        made.kill_node(node_id)
    made.start()
    made.advance(10_000)
    starts = [node.replicas.partitions[TP].log.log_start_offset for node in made.nodes.values()]
    assert starts == [4, 4, 4]
