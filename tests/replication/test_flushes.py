"""Failing disks, and flushes of partitions with synced durability."""

from __future__ import annotations

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import flushes
from logstore.replication.durability import Durability
from logstore.replication.effects import Send, Sync, SyncDone
from logstore.replication.messages import (
    FetchRequest,
    FetchResponse,
)
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.replication.test_replica_manager import F1, F2, ME, P0, P1, Manager


def test_one_failing_log_leaves_the_others_alone() -> None:
    """S58, 6.4: the log of one cannot be made: the dir that held all of them is offline."""
    disk = FaultyDisk(MemoryDisk())
    rig = Manager(disk=disk)
    disk.inject(Fault(operation="open", path=lambda path: "t-1/" in path, forever=True))
    codes = rig.role(F1, 1, P0, P1).partitions
    assert codes == dict.fromkeys((P0, P1), ErrorCode.KAFKA_STORAGE_ERROR)
    assert rig.manager.offline.keys() == {P0, P1}, "then all that the dir held resigns: it is the only one"
    assert rig.role(F1, 2, P1).partitions[P1] is ErrorCode.KAFKA_STORAGE_ERROR, "until a new start"


def test_a_disk_that_fails_under_a_leader() -> None:
    """F2: it acknowledges and serves nothing any more; waiting requests are answered."""
    disk = FaultyDisk(MemoryDisk())
    rig = Manager(disk=disk)
    rig.role(ME, 1)
    rig.produce("w")
    disk.inject(Fault(operation="pwrite", path=lambda path: path.endswith(".log")))
    rig.produce("next")
    assert rig.error("next") is ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.error("w") is ErrorCode.KAFKA_STORAGE_ERROR
    rig.follow(F1, 2)
    response = rig.body(FetchResponse)
    assert response is not None
    assert response.partitions[P0].error is ErrorCode.KAFKA_STORAGE_ERROR


def test_all_replicas_of_a_failed_dir_resign_together() -> None:
    """F2: a replica in the same dir must not lead on, although its own log has not failed yet."""
    disk = FaultyDisk(MemoryDisk())
    rig = Manager(disk=disk)
    rig.role(ME, 1, P0, P1)
    rig.produce("w", P1)
    disk.inject(Fault(operation="pwrite", path=lambda path: "t-0/" in path))
    rig.produce("next", P0)
    assert rig.error("w", P1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(rig.manager.offline) == [P0, P1]
    assert not rig.manager.partitions
    assert rig.role(ME, 2, P0, P1).partitions == dict.fromkeys((P0, P1), ErrorCode.KAFKA_STORAGE_ERROR)


def test_a_synced_leader_acknowledges_after_its_own_flush() -> None:
    """D2: the followers have flushed it, this disk has not. One flush serves all waiting requests."""
    rig = Manager(durability=Durability.SYNCED)
    rig.role(ME, 1)
    rig.produce("a")
    assert Sync(P0, 1) in rig.effects
    rig.produce("b")
    assert not [e for e in rig.effects if isinstance(e, Sync)], "one at a time"
    for broker in (F1, F2):
        rig.follow(broker, 2)
    assert rig.error("a") is None
    rig.manager.partitions[P0].log.flush()
    rig.take(rig.manager.on_sync_done(SyncDone(P0, 1), rig.now_ms))
    assert rig.error("a") is ErrorCode.NONE
    assert rig.error("b") is ErrorCode.NONE, "what was flushed counts, not what was asked for"


def test_a_synced_follower_claims_only_what_it_flushed() -> None:
    """D2: its fetch at offset x says that everything below x is on its disk."""
    rig = Manager(durability=Durability.SYNCED)
    rig.role(F1, 1)
    [send] = [e for e in rig.effects if isinstance(e, Send)]
    source = Manager()
    source.role(ME, 1)
    source.produce("a", acks=1)
    response = source.follow(F1, 0)
    assert response is not None
    result = response.partitions[P0]._replace(high_watermark=0)
    rig.take(rig.manager.on_response(send.correlation_id, FetchResponse({P0: result}), rig.now_ms))
    assert rig.effects == [Sync(P0, 1)]
    rig.manager.partitions[P0].log.flush()
    rig.take(rig.manager.on_sync_done(SyncDone(P0, 1), rig.now_ms))
    [send] = [e for e in rig.effects if isinstance(e, Send)]
    assert isinstance(send.body, FetchRequest)
    assert send.body.partitions[P0].fetch_offset == 1


def test_a_flush_that_fails_takes_the_replica_out() -> None:
    """F1, F2: never retried, never acknowledged."""
    rig = Manager(durability=Durability.SYNCED)
    rig.role(ME, 1)
    rig.produce("a")
    rig.take(rig.manager.on_sync_done(SyncDone(P0, 1, "no space on the moon"), rig.now_ms))
    assert rig.error("a") is ErrorCode.KAFKA_STORAGE_ERROR
    assert "moon" in rig.manager.offline[P0]


class TestAheadOfARoll:
    """A segment is synced before the next one is made: a roll waits for what was not flushed before."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flushes, "AHEAD_BYTES", 4_000)
        monkeypatch.setattr(flushes, "AHEAD_NEAR_THE_END_BYTES", 500)

    @staticmethod
    def synced(rig: Manager) -> list[TopicPartition]:
        return [effect.topic_partition for effect in rig.effects if isinstance(effect, Sync)]

    @staticmethod
    def end(rig: Manager, topic_partition: TopicPartition) -> None:
        """As the thread does."""
        rig.manager.partitions[topic_partition].log.flush()
        rig.take(rig.manager.on_sync_done(SyncDone(topic_partition, 1), rig.now_ms))

    def test_a_leader_flushes_some_megabytes_at_a_time(self) -> None:
        rig = Manager()
        rig.role(ME, 1)
        rig.produce("a" * 3_000, acks=1)
        assert self.synced(rig) == [], "the kernel may take its time"
        rig.produce("b" * 1_500, acks=1)
        assert self.synced(rig) == [P0]
        rig.produce("c" * 5_000, acks=1)
        assert self.synced(rig) == [], "it is under way"
        self.end(rig, P0)
        rig.produce("d" * 100, acks=1)
        assert self.synced(rig) == []

    def test_one_partition_at_a_time(self) -> None:
        """The threads also serve partitions whose clients wait for a flush."""
        rig = Manager()
        rig.role(ME, 1, P0, P1)
        rig.produce("a" * 5_000, P0, acks=1)
        assert self.synced(rig) == [P0]
        rig.produce("b" * 5_000, P1, acks=1)
        assert self.synced(rig) == []
        self.end(rig, P0)
        rig.produce("c" * 100, P1, acks=1)
        assert self.synced(rig) == [P1]

    def test_more_often_near_the_end(self) -> None:
        rig = Manager(log_config=LogConfig(segment_bytes=10_000))
        rig.role(ME, 1)
        rig.produce("a" * 5_900, acks=1)
        assert self.synced(rig) == [P0]
        self.end(rig, P0)
        rig.produce("b" * 600, acks=1)
        assert self.synced(rig) == [P0]

    def test_a_follower_does_the_same(self) -> None:
        rig = Manager()
        rig.role(F1, 1)
        [send] = [each for each in rig.effects if isinstance(each, Send)]
        source = Manager()
        source.role(ME, 1)
        source.produce("a" * 5_000, acks=1)
        response = source.follow(F1, 0)
        assert response is not None
        result = response.partitions[P0]._replace(high_watermark=0)
        rig.take(rig.manager.on_response(send.correlation_id, FetchResponse({P0: result}), rig.now_ms))
        assert self.synced(rig) == [P0]
        assert [each for each in rig.effects if isinstance(each, Send)], "and fetches on meanwhile"
