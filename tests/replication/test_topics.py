"""Topics that go and come back, on whole clusters with real logs: whose log is it, and what proves that?

S numbers are those of the failure schedules; I17 is the invariant that only the incarnation that was asked
for is ever deleted.
"""

from __future__ import annotations

import random

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication import InProcessCluster, orders, serving
from logstore.replication.effects import Peer, Request
from logstore.replication.in_process import Envelope
from logstore.replication.messages import (
    BEING_DELETED,
    AdminResult,
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    NewPartitions,
    NewTopic,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Create, Delete
from logstore.replication.strays import strays
from tests.replication.test_driver import TP, cluster, is_whole, values, write
from tests.replication.test_replica_manager import F1, ME, P0, Manager

T1 = TopicPartition("t", 1)
ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


def delete(made: InProcessCluster) -> AdminResult:
    body = made.administer(DeleteTopicsRequest(("t",)))
    assert isinstance(body, DeleteTopicsResponse)
    return body.topics["t"]


def create(made: InProcessCluster, *replicas: int) -> str:
    body = made.create_topic(NewTopic("t", assignment=(replicas,)))
    assert isinstance(body, CreateTopicsResponse)
    return body.topics["t"].topic_id


def is_gone(made: InProcessCluster) -> bool:
    assert isinstance(made.store, MemoryStore)
    nodes = [path for path, _ in made.store.tree.nodes() if "/t/" in f"{path}/"]
    return not nodes and all(node.logs.get(TP) is None for node in made.nodes.values())


def test_a_deleted_topic_is_gone_from_every_disk_and_can_be_made_again() -> None:
    """delete: all up | recreate: usable afterwards, log empty"""
    made = cluster()
    write(made, b"old")
    assert delete(made).error is ErrorCode.NONE
    assert made.run_until(lambda: is_gone(made))
    made.advance(120_000)
    for node_id in made.nodes:
        assert not [e.name for e in made.disk(node_id).scan("data") if e.name.startswith("t-")]
        assert TP not in made.nodes[node_id].replicas.metadata.partitions
    create(made, 1, 2, 0)
    assert made.leader_of(TP) == 1
    write(made, b"new")
    assert values(made, 1) == [b"new"]


def test_s65_a_follower_that_is_down_holds_the_deletion_up() -> None:
    """delete: follower down | waits, until it is back and has deleted its log"""
    made = cluster()
    write(made, b"a")
    made.kill_node(2, expire_session=True)
    made.advance(1_000)
    delete(made)
    made.advance(20_000)
    assert made.nodes[0].logs.get(TP) is None
    (context,) = [n.controller.context for n in made.nodes.values() if n.controller.context is not None]
    assert context.deletions["t"].blocking == {2: "not alive"}
    made.start_node(2)
    assert made.nodes[2].logs.get(TP) is not None
    assert made.run_until(lambda: is_gone(made))
    assert not made.nodes[2].replicas.strays, "it was deleted by order, not set aside"


def test_s59_a_log_of_the_deleted_incarnation_gives_way_to_its_namesakes() -> None:
    """The topic is deleted by force while node 2 is down, and made anew: its old log is never believed."""
    made = cluster()
    for number in range(5):
        write(made, b"old %d" % number)
    made.kill_node(2, expire_session=True)
    made.advance(1_000)
    delete(made)
    made.advance(20_000)
    operator = made.store.open_session(10**9, made.now_ms)
    for path in (  # who does not wait
        *(
            f"/brokers/topics/t{below}"
            for below in ("/partitions/0/state", "/partitions/0", "/partitions", "")
        ),
        "/config/topics/t",
        "/admin/delete_topics/t",
    ):
        assert made.store.call(operator, Delete(path), made.now_ms)[0].error is None
    node = layout.TopicAssignment(ID_1, {0: (0, 1, 2)})  # by a tool: a client needs node 2 for that
    again = Create(layout.topic_path("t"), layout.encode_topic(node), make_parents=True)
    assert made.store.call(operator, again, made.now_ms)[0].error is None
    made.kill_node(0, expire_session=True)  # and a controller that has heard of nothing takes over
    made.start_node(0)
    made.advance(1_000)
    for number in range(5):
        write(made, b"new %d" % number)
    made.start_node(2)
    assert made.run_until(lambda: is_whole(made)), made.describe(TP)
    assert values(made, 2) == values(made, 0) == [b"new %d" % number for number in range(5)]
    assert "belongs to topic id" in made.nodes[2].replicas.strays[TP]
    assert [e.name for e in made.disk(2).scan("data") if e.name.endswith("-stray")], "kept for an operator"


def test_a_log_that_nobody_assigned_is_set_aside_at_the_first_full_word() -> None:
    made = cluster()
    write(made, b"a")
    made.kill_node(2, expire_session=True)
    logs = LogManager(["data"], disk=made.disk(2), clock=lambda: made.now_ms, random=random.Random(0))
    logs.get_or_create(TopicPartition("nobody", 3), topic_id=ID_1)
    logs.abandon()
    made.start_node(2)
    assert made.run_until(lambda: is_whole(made))
    assert made.nodes[2].replicas.strays == {TopicPartition("nobody", 3): "not assigned to this broker"}
    assert values(made, 2) == [b"a"]
    again = made.nodes[2].logs
    assert TopicPartition("nobody", 3) not in again.logs()


def test_a_stray_that_a_full_disk_keeps_is_set_aside_when_there_is_room() -> None:
    """No new registration is needed: the broker asks for its roles again, and hears what it has."""
    made = cluster()
    made.kill_node(2, expire_session=True)
    disk, nobody = made.disk(2), TopicPartition("nobody", 3)
    assert isinstance(disk, MemoryDisk)
    logs = LogManager(["data"], disk=disk, clock=lambda: made.now_ms, random=random.Random(0))
    logs.get_or_create(nobody, topic_id=ID_1).append(b"left over")
    logs.close()
    disk.capacity = 0
    made.start_node(2)
    made.advance(20_000)
    assert nobody in made.nodes[2].logs.logs()
    disk.capacity = None
    made.advance(130_000)
    assert made.nodes[2].replicas.strays == {nobody: "not assigned to this broker"}
    assert nobody not in made.nodes[2].logs.logs()


def wipe(made: InProcessCluster) -> None:
    """What somebody does who removes a topic from the store, past every broker."""
    operator = made.store.open_session(10**9, made.now_ms)
    for below in ("/partitions/0/state", "/partitions/0", "/partitions", ""):
        path = f"/brokers/topics/t{below}"
        outcome, fired = made.store.call(operator, Delete(path), made.now_ms)
        assert outcome.error is None
        made.store_link.fire(fired)


def test_a_topic_that_vanishes_from_the_store_leaves_strays_on_running_brokers() -> None:
    """Nothing is deleted, nothing goes on being served, and no broker has to be started anew."""
    made = cluster()
    write(made, b"old")
    wipe(made)
    made.advance(5_000)
    for node_id, node in made.nodes.items():
        assert node.replicas.strays == {TP: "not assigned to this broker"}
        assert TP not in node.replicas.metadata.partitions
        assert [e.name for e in made.disk(node_id).scan("data") if e.name.endswith("-stray")]
    create(made, 1, 2, 0)
    assert made.run_until(lambda: made.leader_of(TP) == 1)
    write(made, b"new")
    assert values(made, 1) == [b"new"]


def test_settings_are_live_and_partitions_come_while_clients_write() -> None:
    made = cluster()
    write(made, b"a")
    body = made.administer(AlterConfigsRequest({"t": {"min.insync.replicas": "3"}}))
    assert isinstance(body, AlterConfigsResponse)
    assert made.run_until(lambda: made.nodes[0].replicas.partitions[TP].min_insync == 3)
    more = made.administer(CreatePartitionsRequest({"t": NewPartitions(2)}))
    assert isinstance(more, CreatePartitionsResponse)
    assert made.run_until(lambda: made.leader_of(T1) is not None)
    assert values(made, 0) == [b"a"]


# --- one broker -------------------------------------------------------------------------------


def stop(rig: Manager, topic_id: str, epoch: int = BEING_DELETED) -> ErrorCode:
    body = StopReplicaRequest(9, 1, 5, {P0: StopReplicaPartition(epoch, True)}, {"t": topic_id})
    rig.take(orders.stop_replica(rig.manager, Peer(9, 10_000), body, rig.now_ms))
    response = rig.body(StopReplicaResponse)
    assert response is not None
    return response.partitions[P0]


@pytest.mark.parametrize("has_role", [True, False])
def test_s60_a_late_order_to_delete_names_another_incarnation(has_role: bool) -> None:
    """Delivered after the topic was made again: the log of the namesake stays. With its own id it goes."""
    rig = Manager()
    if has_role:
        rig.role(ME, 0, topic_ids={"t": ID_2})
        rig.produce("w", acks=1)
    else:
        rig.logs.get_or_create(P0, topic_id=ID_2)
    assert stop(rig, ID_1) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.logs.get(P0) is not None
    if has_role:
        assert rig.manager.partitions[P0].is_leader
    assert stop(rig, ID_2) is ErrorCode.NONE
    assert rig.logs.get(P0) is None


def test_s45_an_order_that_was_overtaken_by_a_role_is_fenced() -> None:
    """StopReplica(e7, delete) is late: the replica was assigned again in e9."""
    rig = Manager()
    rig.role(F1, 9, topic_ids={"t": ID_1})
    assert stop(rig, ID_1, epoch=7) is ErrorCode.FENCED_LEADER_EPOCH
    assert rig.logs.get(P0) is not None


def test_s43_an_order_of_a_former_controller_deletes_nothing() -> None:
    rig = Manager()
    rig.role(ME, 1, controller_epoch=5)
    assert rig.stop(1, delete=True, controller_epoch=4).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert rig.manager.partitions[P0].is_leader


def test_a_role_of_the_deleted_incarnation_that_comes_late_makes_no_log() -> None:
    """I17: after the last confirmation no log of that incarnation comes back, in whatever epoch."""
    rig = Manager()
    rig.role(ME, 1, topic_ids={"t": ID_1})
    stop(rig, ID_1)
    late = rig.role(ME, 7, topic_ids={"t": ID_1})
    assert late.partitions[P0] is ErrorCode.STALE_CONTROLLER_EPOCH
    assert rig.logs.get(P0) is None
    assert rig.role(ME, 0, topic_ids={"t": ID_2}).partitions[P0] is ErrorCode.NONE


def test_a_replica_in_use_is_not_exchanged_for_its_namesakes() -> None:
    """topic id mismatch | INCONSISTENT_TOPIC_ID even at a higher epoch; absent id accepted"""
    rig = Manager()
    rig.role(ME, 1)
    assert rig.role(ME, 1, version=rig.versions, topic_ids={"t": ID_1}).partitions[P0] is ErrorCode.NONE
    for epoch in (1, 2, 9):
        response = rig.role(ME, epoch, topic_ids={"t": ID_2})
        assert response.partitions[P0] is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.manager.partitions[P0].leader_epoch == 1
    assert rig.role(ME, 2).partitions[P0] is ErrorCode.NONE


@pytest.mark.parametrize("broker_epoch", [-1, 6])
def test_a_ghost_stays_where_the_word_may_be_for_another_life(broker_epoch: int) -> None:
    """Only what is addressed to this very registration is sure to be newer than the log."""
    rig = Manager()
    rig.logs.get_or_create(P0, topic_id=ID_1)
    response = rig.role(ME, 0, topic_ids={"t": ID_2}, broker_epoch=broker_epoch)
    assert response.partitions[P0] is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.logs.get(P0) is not None
    assert rig.role(ME, 0, topic_ids={"t": ID_2}).partitions[P0] is ErrorCode.NONE
    assert rig.manager.strays.keys() == {P0}


def full(
    rig: Manager, assigned: dict[TopicPartition, str], *, broker_epoch: int = 5, number: int | None = None
) -> None:
    body = LeaderAndIsrRequest(9, 1, broker_epoch, {}, assigned=assigned)
    sent = Peer(9, rig._next_id() if number is None else number)
    rig.take(orders.leader_and_isr(rig.manager, sent, body, rig.now_ms))
    assert rig.body(LeaderAndIsrResponse) is not None


@pytest.mark.parametrize("broker_epoch", [-1, 4, 6])
def test_a_full_word_that_may_be_for_another_life_proves_no_stray(broker_epoch: int) -> None:
    """Whoever wrote it need not have known what was assigned until we registered."""
    rig = Manager()
    rig.logs.get_or_create(P0, topic_id=ID_1)
    full(rig, {}, broker_epoch=broker_epoch)
    assert not rig.manager.strays
    full(rig, {})
    assert rig.manager.strays == {P0: "not assigned to this broker"}
    assert rig.logs.get(P0) is None


def test_a_full_word_that_comes_late_proves_no_stray() -> None:
    """It does not know what was assigned since; one that is sent again does."""
    rig = Manager()
    number = rig._next_id()
    rig.role(ME, 0, topic_ids={"t": ID_1})
    full(rig, {}, number=number)
    assert not rig.manager.strays
    assert rig.manager.partitions[P0].is_leader
    full(rig, {})
    assert rig.manager.strays == {P0: "not assigned to this broker"}
    assert P0 not in rig.manager.partitions


def test_a_replica_in_use_gives_way_to_its_namesakes_where_a_full_word_says_so() -> None:
    """The topic was replaced in the store: not one role more or less tells that, the whole list does."""
    rig = Manager()
    rig.role(ME, 3, topic_ids={"t": ID_1})
    rig.produce("old", acks=1)
    full(rig, {P0: ID_2})
    assert "belongs to topic id" in rig.manager.strays[P0]
    assert rig.role(ME, 0, topic_ids={"t": ID_2}).partitions[P0] is ErrorCode.NONE
    assert rig.manager.partitions[P0].log.log_end_offset == 0
    assert [e.name for e in rig.disk.scan("data") if e.name.endswith("-stray")], "kept for an operator"


def test_what_is_a_stray() -> None:
    one, two, three = (TopicPartition("t", number) for number in range(3))
    found = strays({one: ID_1, two: None, three: ID_1}, {one: ID_2, two: ID_2, three: ""})
    assert found.keys() == {one}, "an id that is not known on both sides proves nothing"


def test_fetches_name_the_incarnation_they_mean() -> None:
    """INCONSISTENT_TOPIC_ID from a replica of another one, UNKNOWN_TOPIC_ID where nobody knows it."""
    rig = Manager()
    rig.role(ME, 1, topic_ids={"t": ID_2})

    def fetch(tp: TopicPartition, topic_id: str) -> ErrorCode:
        request = FetchRequest(F1, 0, 1, 1 << 20, {tp: FetchPartition(0, 1 << 20, 1, topic_id=topic_id)}, 5)
        rig.take(serving.fetch(rig.manager, Peer(F1, 77), request, rig.now_ms))
        response = rig.body(FetchResponse)
        assert response is not None
        return response.partitions[tp].error

    assert fetch(P0, ID_1) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert rig.manager.partitions[P0].remote_replicas[F1].log_end_offset == -1, "it counts for nothing"
    assert fetch(P0, ID_2) is ErrorCode.NONE
    assert fetch(TopicPartition("u", 0), ID_1) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_follower_names_the_id_of_its_log() -> None:
    made = cluster()
    topic_id = made.nodes[0].replicas.partitions[TP].log.topic_id
    asked: list[str] = []

    def listen(envelope: Envelope) -> bool:
        event = envelope.event
        if isinstance(event, Request) and isinstance(event.body, FetchRequest):
            asked.extend(wanted.topic_id for wanted in event.body.partitions.values())
        return False

    made.intercept = listen
    made.advance(2_000)
    assert asked
    assert set(asked) == {topic_id}
