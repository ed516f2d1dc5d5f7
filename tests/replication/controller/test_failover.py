"""A term's beginning and end: takeover, first announcements, resumed procedures, resignation.

S and I numbers are those of the failure schedules and invariants in docs/replication.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import deletion, elect_leaders, failover, reassignment
from logstore.replication.messages import (
    NO_LEADER,
    AlterPartitionReassignmentsRequest,
    ControlledShutdownRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    LeaderAndIsrRequest,
    NewTopic,
    RequestBody,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import ANY_VERSION, Children, Create, Delete, Get, Multi, Set
from tests.replication.controller.world import World, state_writes, topic

T0 = TopicPartition("t", 0)


def move_leader(world: World, leader: int) -> None:
    """Write a state with another leader, as an earlier controller could have left it."""
    state = world.state()
    assert state is not None
    moved = LeaderAndIsr(
        leader, state.leader_epoch + 1, state.isr, state.controller_epoch, state.isr_broker_epochs
    )
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(moved), ANY_VERSION))


# --- beginning --------------------------------------------------------------------------------


def test_addresses_before_roles_at_a_takeover() -> None:
    """KAFKA-4443: every broker gets the live brokers before its roles."""
    world = World(4)
    world.create(topic((2, 3, 4)))
    for member in world.members.values():
        member.broker.received.clear()
    world.stop(1)
    world.run()
    for broker in (2, 3, 4):
        received = world.members[broker].broker.received
        assert isinstance(received[0], UpdateMetadataRequest)
        assert not received[0].partitions
        assert LeaderAndIsrRequest in [type(body) for body in received]


def test_the_dead_are_taken_out_at_a_takeover() -> None:
    """KAFKA-3143: replicas of brokers that died with the controller, or before it took notice."""
    world = World(4)
    world.create(topic((2, 3, 4), (4, 3, 2)))
    world.stop(1)
    world.stop(4)
    world.run()
    assert world.view(0) == (2, 1, (2, 3))
    assert world.view(1) == (3, 1, (3, 2))


def test_controller_and_leader_die_together_in_one_decision() -> None:
    """LE +1 where Kafka's failover takes two: the dead leave and the next one leads in a single write."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(1)
    world.run()
    assert world.view() == (2, 1, (2, 3))


def test_a_sole_replica_that_is_the_controller_too() -> None:
    """Always two: one for nobody, one for its return."""
    world = World(2)
    world.create(topic((1,)))
    world.stop(1)
    world.run()
    assert world.view() == (NO_LEADER, 1, (1,))
    world.start(1)
    world.run()
    assert world.view() == (1, 2, (1,))


def test_what_is_half_done_is_taken_up_in_order() -> None:
    """Reassignments, deletions, preferred elections."""
    order = [reassignment.resume, deletion.resume, elect_leaders.asked_in_store]
    assert list(failover.RESUME) == order


def test_a_topic_on_its_way_out_is_not_elected_for() -> None:
    """Both requests were left behind: the deletion is read before the election."""
    world = World(4)
    world.create(topic((2, 3)), topic((2, 3), name="u"))
    move_leader(world, 3)
    world.kill(1)
    listed = layout.encode_partitions([T0, TopicPartition("u", 0)])
    world.admin(Create(layout.PREFERRED_ELECTION_PATH, listed, make_parents=True))
    world.admin(Create(f"{layout.DELETE_TOPICS_PATH}/t", make_parents=True))
    world.expire(1)
    world.run(for_ms=10_000)
    assert all(state.leader != 2 for _, each, state in state_writes(world)[2:] if each == T0)
    assert world.admin(Get(layout.PREFERRED_ELECTION_PATH)).stat is None


def test_controller_epoch_after_a_restart_of_the_cluster() -> None:
    """It goes on from the stored value."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    epoch = world.controller_epoch()
    for broker in (1, 2, 3):
        world.stop(broker)
    for broker in (1, 2, 3):
        world.start(broker)
        world.run()
    assert world.controller_epoch() == epoch + 1
    state = world.state()
    assert state is not None
    assert state.controller_epoch == epoch + 1


def test_a_broker_without_replicas_comes_and_goes() -> None:
    """if nothing changed at least send UpdateMetadata"""
    world = World(4)
    world.create(topic((1, 2)))
    world.stop(4)
    world.run()
    assert 4 not in world.members[2].broker.live
    world.start(4)
    world.run()
    assert world.members[2].broker.live == (1, 2, 3, 4)
    assert world.members[4].broker.metadata[T0].leader == 1
    assert world.view() == (1, 0, (1, 2))


# --- new partitions ---------------------------------------------------------------------------


def test_a_state_that_appears_under_a_first_election_is_kept() -> None:
    """New -> Online write conflict: the other writer's state stays, and is read."""
    world = World(3)
    node = layout.TopicAssignment("", {0: (2, 3)})
    member = world.members[1]
    world.admin(Create(layout.topic_path("t"), layout.encode_topic(node)))
    while not (member.store_calls and isinstance(member.store_calls[0].operation, Multi)):
        if member.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    epochs = tuple(world.members[each].broker.epoch for each in (2, 3))
    other = layout.encode_state(LeaderAndIsr(3, 4, (2, 3), 1, epochs))
    world.admin(Create(layout.partition_state_path(T0), other, make_parents=True))
    world.run()
    assert world.view() == (3, 4, (2, 3))
    world.stop(3)
    world.run()
    assert world.view() == (2, 5, (2,)), "and what is decided next is decided on it"


def test_a_first_state_does_not_bring_back_a_topic_that_is_gone() -> None:
    """A tool removed the topic when its first state was to be written: a node without a word in it, which
    nobody can read, would keep every stray log in its place (simulation, seed 11167)."""
    world = World(3)
    member = world.members[1]
    world.admin(Create(layout.topic_path("t"), layout.encode_topic(layout.TopicAssignment("", {0: (2, 3)}))))
    while not (member.store_calls and isinstance(member.store_calls[0].operation, Multi)):
        if member.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    world.admin(Delete(layout.topic_path("t")))
    world.run()
    assert world.admin(Children(layout.TOPICS_PATH)).children == ()
    context = world.active.controller.context
    assert context is not None
    assert not context.replicas
    assert not context.unreadable


def test_a_state_that_is_to_be_replaced_is_told_to_nobody() -> None:
    """It turned out to be news when a leader had to be elected, and the write was lost. Had its leader
    started anew, it would have gone on in the epoch of its former life (simulation, seed 12698)."""
    world = World(3)
    world.create(topic((2, 3)))
    state = world.state()
    assert state is not None
    moved = layout.encode_state(replace(state, leader_epoch=5))
    world.admin(Set(layout.partition_state_path(T0), moved, ANY_VERSION))
    world.stop(2)
    member = world.members[1]
    while not (member.store_calls and isinstance(member.store_calls[0].operation, Multi)):
        if member.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    told = len(world.members[3].broker.received)
    world.apply_call(1, lose_call=True)
    world.run()
    assert world.view() == (3, 6, (3,))
    heard = [
        body.partitions[T0].leader_epoch
        for body in world.members[3].broker.received[told:]
        if isinstance(body, LeaderAndIsrRequest | UpdateMetadataRequest) and T0 in body.partitions
    ]
    assert heard == [6, 6]


# --- the end of a term ------------------------------------------------------------------------

REQUESTS: dict[str, RequestBody] = {
    "create": CreateTopicsRequest((NewTopic("x"),)),
    "delete": DeleteTopicsRequest(("t",)),
    "preferred": ElectLeadersRequest(ElectionType.PREFERRED, (T0,)),
    "reassign": AlterPartitionReassignmentsRequest({T0: (3, 4)}),
    "shutdown": ControlledShutdownRequest(2, -1),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_zombie_resigns_whatever_it_is_asked_for(name: str) -> None:
    """controller epoch check on topic create, delete, preferred, reassign: nothing of it is written."""
    world = World(4)
    world.create(topic((2, 3)))
    if name == "preferred":
        move_leader(world, 3)
    later = layout.encode_controller_epoch(world.controller_epoch() + 5)
    world.admin(Set(layout.CONTROLLER_EPOCH_PATH, later, ANY_VERSION))
    before = world.view(), world.partitions()
    token = world.post(REQUESTS[name])
    world.run(until=lambda: token in world.replies)
    body = world.replies[token]
    assert ErrorCode.NOT_CONTROLLER.name in repr(body)
    assert world.members[1].controller.resigned_because
    assert (world.view(), world.partitions()) == before


def test_a_state_of_a_later_controller_ends_the_term() -> None:
    """A state node written by a higher controller epoch: another controller exists."""
    world = World(3)
    world.create(topic((2, 3)))
    state = world.state()
    assert state is not None
    later = LeaderAndIsr(2, 0, (2, 3), 9, state.isr_broker_epochs)
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(later), ANY_VERSION))
    token = world.post(ElectLeadersRequest(ElectionType.PREFERRED, (T0,)))
    world.run(until=lambda: token in world.replies)
    assert "controller epoch 9" in world.members[1].controller.resigned_because


def test_garbage_in_the_controllers_node_counts_as_nobody() -> None:
    world = World(2)
    world.admin(Set(layout.CONTROLLER_PATH, b'{"brokerid":"one"}', ANY_VERSION))
    world.run()
    assert world.controller_epoch() == 2
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.admin(Create(layout.CONTROLLER_PATH, b"?"))
    world.run()
    assert not any(member.controller.is_active for member in world.members.values()), "it is not ours"
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.run()
    assert world.controller_epoch() >= 3
    assert any(member.controller.is_active for member in world.members.values())


# --- batches ----------------------------------------------------------------------------------


def test_each_event_is_one_request_of_each_kind_a_broker() -> None:
    """Forty partitions change hands: StopReplica, LeaderAndIsr, UpdateMetadata once each."""
    world = World(4)
    world.create(topic(*[(2, 3, 1)] * 20, *[(3, 2, 1)] * 20))
    for member in world.members.values():
        member.broker.received.clear()
    world.shut_down(2)
    for broker in world.members:
        received = world.members[broker].broker.received
        roles = [body for body in received if isinstance(body, LeaderAndIsrRequest)]
        stops = [body for body in received if isinstance(body, StopReplicaRequest)]
        told = [body for body in received if isinstance(body, UpdateMetadataRequest) and body.partitions]
        assert [len(body.partitions) for body in roles] == ([40] if broker in (1, 2, 3) else [])
        assert [len(body.partitions) for body in stops] == ([20] if broker == 2 else [])
        assert [len(body.partitions) for body in told] == [40]
