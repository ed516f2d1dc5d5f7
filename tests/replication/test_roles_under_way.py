"""Roles that wait for a flush: taken, and answered, once new logs and new epochs are durable."""

from __future__ import annotations

from random import Random

from logstore.checkpoint import read_leader_epoch_checkpoint
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append_fetched import append_as_follower
from logstore.log.manager import LogManager
from logstore.replication import orders
from logstore.replication.carrying import flush
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Effect, Request, Respond, SessionExpired, SessionOpened, Sync
from logstore.replication.messages import (
    BEING_DELETED,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.node import Node
from logstore.testing.disks.recording import RecordingDisk

ME, CONTROLLER, BROKER_EPOCH = 0, 9, 100
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_IDS = {"t": "AAECAwQFBgcICQoLDA0ODw"}
NOW_MS = 1_000_000


class Host:
    """A registered node whose fsyncs the test carries out."""

    def __init__(self) -> None:
        self.memory = MemoryDisk()
        self.disk = RecordingDisk(self.memory)
        self.logs = LogManager(["data"], disk=self.disk, clock=lambda: NOW_MS, random=Random(0))
        self.node = Node(NodeConfig(node_id=ME), self.logs, random=Random(0))
        self.numbers = 0
        self.register(7, BROKER_EPOCH)

    def register(self, session_id: int, broker_epoch: int) -> None:
        self.node.receive(SessionOpened(session_id), NOW_MS)
        orders.registered(self.node.replicas, broker_epoch, NOW_MS)
        self.node._gate.confirmed_epoch = 1
        self.broker_epoch = broker_epoch

    def send(self, body: LeaderAndIsrRequest | StopReplicaRequest) -> list[Effect]:
        self.numbers += 1
        return self.node.receive(Request(CONTROLLER, self.numbers, body), NOW_MS)

    def roles(self, *partitions: TopicPartition, epoch: int = 0, leader: int = ME) -> list[Effect]:
        state = PartitionState(1, leader, epoch, (leader,), epoch, (ME, CONTROLLER), is_new=epoch == 0)
        return self.send(
            LeaderAndIsrRequest(CONTROLLER, 1, self.broker_epoch, dict.fromkeys(partitions, state), TOPIC_IDS)
        )

    def epochs_on_disk(self, topic_partition: TopicPartition) -> list[tuple[int, int]]:
        return read_leader_epoch_checkpoint(self.memory.durable_image(), f"data/{topic_partition}")

    def synced(self, effect: Effect) -> list[Effect]:
        assert isinstance(effect, Sync)
        return self.node.receive(flush(self.logs, effect), NOW_MS)


def answers(effects: list[Effect]) -> list[object]:
    return [each.body for each in effects if isinstance(each, Respond)]


def test_roles_are_taken_and_answered_after_the_last_new_log_is_durable() -> None:
    host = Host()
    first, second = syncs = host.roles(P0, P1)
    assert syncs == [Sync(P0, 0), Sync(P1, 0)]
    assert "data/t-0/partition.metadata" not in host.memory.durable_image().files()
    assert host.synced(first) == []
    assert not host.node.replicas.partitions
    (answer,) = answers(host.synced(second))
    assert answer == LeaderAndIsrResponse(ErrorCode.NONE, dict.fromkeys((P0, P1), ErrorCode.NONE))
    assert all(each.is_leader for each in host.node.replicas.partitions.values())
    after = LogManager(["data"], disk=host.memory.durable_image(), clock=lambda: NOW_MS, random=Random(0))
    assert {log.partition.topic_id for log in after.logs().values()} == set(TOPIC_IDS.values())
    assert sorted(after.logs()) == [P0, P1]


def test_a_later_request_waits_for_the_end_of_an_earlier_one() -> None:
    """A deletion that overtook the role would leave a log that nobody deletes."""
    host = Host()
    (sync,) = host.roles(P0)
    deletion = StopReplicaPartition(BEING_DELETED, delete=True)
    assert host.send(StopReplicaRequest(CONTROLLER, 1, BROKER_EPOCH, {P0: deletion}, TOPIC_IDS)) == []
    role, stop = answers(host.synced(sync))
    assert isinstance(role, LeaderAndIsrResponse)
    assert isinstance(stop, StopReplicaResponse)
    assert role.partitions[P0] is stop.partitions[P0] is ErrorCode.NONE
    assert not host.logs.logs()


def test_the_end_of_the_session_ends_the_wait() -> None:
    host = Host()
    (sync,) = host.roles(P0)
    (answer,) = answers(host.node.receive(SessionExpired(7), NOW_MS))
    assert isinstance(answer, LeaderAndIsrResponse)
    assert answer.error is ErrorCode.STALE_BROKER_EPOCH
    host.synced(sync)
    assert not host.node.replicas.partitions, "nobody leads without a session"


def test_a_leader_takes_its_next_epoch_at_once() -> None:
    """It goes on appending: the epoch cannot begin at an offset that is still moving."""
    host = Host()
    (sync,) = host.roles(P0)
    host.synced(sync)
    (answer,) = answers(host.roles(P0, epoch=1))
    assert isinstance(answer, LeaderAndIsrResponse)
    assert host.epochs_on_disk(P0) == [(1, 0)]


# --- the epochs of existing logs ------------------------------------------------------------------


def test_followers_become_leaders_without_an_fsync_in_the_turn() -> None:
    host = following(P0, P1)
    host.disk.operations.clear()
    first, second = syncs = host.roles(P0, P1, epoch=1)
    assert syncs == [Sync(P0, 0), Sync(P1, 0)]
    assert not host.disk.operations
    assert host.synced(first) == []
    (answer,) = answers(host.synced(second))
    assert answer == LeaderAndIsrResponse(ErrorCode.NONE, dict.fromkeys((P0, P1), ErrorCode.NONE))
    assert all(each.is_leader for each in host.node.replicas.partitions.values())
    assert host.epochs_on_disk(P0) == host.epochs_on_disk(P1) == [(1, 0)]


def test_nothing_is_flushed_but_the_epoch() -> None:
    """The records of the old leader may be many: they are not what the role waits for."""
    host = following(P0)
    log = host.node.replicas.partitions[P0].log
    append_as_follower(log, encode_batch([Record(0, NOW_MS, None, b"x")], leader_epoch=0), leader_epoch=0)
    (sync,) = host.roles(P0, epoch=1)
    host.synced(sync)
    assert (log.recovery_point, log.log_end_offset) == (0, 1)
    assert host.epochs_on_disk(P0) == [(0, 0), (1, 1)]


def test_a_replica_that_is_to_lead_hears_no_more_of_the_old_leader() -> None:
    host = following(P0)
    assert P0 in host.node.replicas.followers.followed
    host.roles(P0, epoch=1)
    assert P0 not in host.node.replicas.followers.followed


def test_a_role_that_comes_again_after_a_lost_session_finds_its_epoch() -> None:
    """The process never stopped, and nothing was written in the epoch: nobody else has to be elected."""
    host = following(P0)
    (sync,) = host.roles(P0, epoch=1)
    host.node.receive(SessionExpired(7), NOW_MS)
    host.synced(sync)
    assert host.epochs_on_disk(P0) == [(1, 0)]
    assert not host.node.replicas.partitions[P0].is_leader
    host.register(8, BROKER_EPOCH + 1)
    (answer,) = answers(host.roles(P0, epoch=1))
    assert isinstance(answer, LeaderAndIsrResponse)
    assert answer.partitions == {P0: ErrorCode.NONE}


def test_a_late_flush_assigns_no_epoch_that_was_overtaken() -> None:
    host = following(P0)
    (sync,) = host.roles(P0, epoch=1)
    log = host.node.replicas.partitions[P0].log
    log.assign_epoch(2, 0)
    assert isinstance(sync, Sync)
    flush(host.logs, sync)
    assert log.epochs == ((2, 0),)


def test_a_full_disk_refuses_the_role_and_leaves_the_epochs() -> None:
    host = following(P0)
    (sync,) = host.roles(P0, epoch=1)
    host.memory.capacity = 0
    (answer,) = answers(host.synced(sync))
    assert isinstance(answer, LeaderAndIsrResponse)
    assert answer.partitions == {P0: ErrorCode.KAFKA_STORAGE_ERROR}
    partition = host.node.replicas.partitions[P0]
    assert (partition.is_leader, partition.log.latest_epoch) == (False, -1)
    host.memory.capacity = None
    partition.log.flush()
    assert partition.log.latest_epoch == -1, "the refused role is over"


def test_a_replica_that_is_told_to_follow_begins_no_epoch() -> None:
    """The session ended before the flush: its epoch would hide the records of the next leader's."""
    host = following(P0)
    host.roles(P0, epoch=1)
    host.node.receive(SessionExpired(7), NOW_MS)
    host.register(8, BROKER_EPOCH + 1)
    host.roles(P0, epoch=2, leader=CONTROLLER)
    log = host.node.replicas.partitions[P0].log
    log.flush()
    assert log.epochs == ()


def following(*partitions: TopicPartition) -> Host:
    """Return a host whose logs are durable, and which follows the controller's broker."""
    host = Host()
    for sync in host.roles(*partitions, leader=CONTROLLER):
        if isinstance(sync, Sync):
            host.synced(sync)
    return host
