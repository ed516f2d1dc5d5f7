"""Roles whose logs are new: taken, and answered, once the logs are durable."""

from __future__ import annotations

from random import Random

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
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

ME, CONTROLLER, BROKER_EPOCH = 0, 9, 100
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_IDS = {"t": "AAECAwQFBgcICQoLDA0ODw"}
NOW_MS = 1_000_000


class Host:
    """A registered node whose fsyncs the test carries out."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.logs = LogManager(["data"], disk=self.disk, clock=lambda: NOW_MS, random=Random(0))
        self.node = Node(NodeConfig(node_id=ME), self.logs, random=Random(0))
        self.node.receive(SessionOpened(7), NOW_MS)
        orders.registered(self.node.replicas, BROKER_EPOCH, NOW_MS)
        self.node._gate.confirmed_epoch = 1
        self.numbers = 0

    def send(self, body: LeaderAndIsrRequest | StopReplicaRequest) -> list[Effect]:
        self.numbers += 1
        return self.node.receive(Request(CONTROLLER, self.numbers, body), NOW_MS)

    def roles(self, *partitions: TopicPartition, epoch: int = 0) -> list[Effect]:
        state = PartitionState(1, ME, epoch, (ME,), epoch, (ME,), is_new=True)
        return self.send(
            LeaderAndIsrRequest(CONTROLLER, 1, BROKER_EPOCH, dict.fromkeys(partitions, state), TOPIC_IDS)
        )

    def synced(self, effect: Effect) -> list[Effect]:
        assert isinstance(effect, Sync)
        return self.node.receive(flush(self.logs, effect), NOW_MS)


def answers(effects: list[Effect]) -> list[object]:
    return [each.body for each in effects if isinstance(each, Respond)]


def test_roles_are_taken_and_answered_after_the_last_new_log_is_durable() -> None:
    host = Host()
    first, second = syncs = host.roles(P0, P1)
    assert syncs == [Sync(P0, 0), Sync(P1, 0)]
    assert "data/t-0/partition.metadata" not in host.disk.durable_image().files()
    assert host.synced(first) == []
    assert not host.node.replicas.partitions
    (answer,) = answers(host.synced(second))
    assert answer == LeaderAndIsrResponse(ErrorCode.NONE, dict.fromkeys((P0, P1), ErrorCode.NONE))
    assert all(each.is_leader for each in host.node.replicas.partitions.values())
    after = LogManager(["data"], disk=host.disk.durable_image(), clock=lambda: NOW_MS, random=Random(0))
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


def test_a_role_for_an_existing_log_is_answered_at_once() -> None:
    host = Host()
    (sync,) = host.roles(P0)
    host.synced(sync)
    (answer,) = answers(host.roles(P0, epoch=1))
    assert isinstance(answer, LeaderAndIsrResponse)
