"""AlterPartition against the store: lost replies, other writers, outdated leaders and controllers.

S numbers are those of the failure schedules in docs/replication.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Peer
from logstore.replication.messages import (
    BEING_DELETED,
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrProposal,
    LeaderAndIsrRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Delete,
    Multi,
    Set,
)
from tests.replication.controller.world import World, topic

T0 = TopicPartition("t", 0)


def test_alter_partition_moves_the_version_not_the_epoch() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    result = world.alter(1, (1, 3)).partitions[T0]
    assert (result.error, result.leader, result.leader_epoch) == (ErrorCode.NONE, 1, 0)
    assert (result.isr, result.partition_epoch) == ((1, 3), 1)
    assert world.members[2].broker.metadata[T0].isr == (1, 3)
    again = world.alter(1, (1, 3), partition_epoch=0).partitions[T0]
    assert (again.error, again.partition_epoch) == (ErrorCode.NONE, 1), "a repeat hears success"
    stale = world.alter(1, (1, 2, 3), partition_epoch=0).partitions[T0]
    assert stale.error is ErrorCode.INVALID_UPDATE_VERSION


def test_stale_broker_epoch_is_refused_whole() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    epoch = world.members[1].broker.epoch
    assert world.alter(1, (1,), broker_epoch=epoch - 1).error is ErrorCode.STALE_BROKER_EPOCH
    assert world.alter(1, (1,), broker_epoch=epoch + 1).error is ErrorCode.STALE_BROKER_EPOCH
    assert world.view() == (1, 0, (1, 2, 3))


def test_expansion_by_a_dead_broker_or_a_former_incarnation_is_refused() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    old = world.members[3].broker.epoch
    world.stop(3)
    world.run()
    assert world.alter(1, (1, 2, 3)).partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA
    world.start(3)
    world.run()
    epochs = (world.members[1].broker.epoch, world.members[2].broker.epoch)
    refused = world.alter(1, (1, 2, 3), broker_epochs=(*epochs, old))
    assert refused.partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA
    new = world.members[3].broker.epoch
    assert world.alter(1, (1, 2, 3), broker_epochs=(*epochs, new)).partitions[T0].error is ErrorCode.NONE


def test_s25_proposal_against_a_controllers_own_removal() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(2)
    world.run()
    assert world.view() == (1, 1, (1, 3))
    refused = world.alter(1, (1, 2), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
    assert world.view() == (1, 1, (1, 3))


def test_a_leader_that_was_overtaken_is_told_by_what() -> None:
    """It waits for the controller's state with the larger ISR, and that request may have been lost."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.stop(2)
    world.run()
    told = world.members[1].broker.received
    told.clear()
    refused = world.alter(1, (1,), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
    [word] = [body for body in told if isinstance(body, LeaderAndIsrRequest)]
    assert (word.partitions[T0].leader_epoch, word.partitions[T0].isr) == (1, (1, 3))
    assert not [body for body in world.members[3].broker.received[-1:] if body is word], "only the asker"


def test_a_proposal_over_a_node_that_somebody_else_wrote() -> None:
    """The copy was outdated: the proposal is refused, the node read again, and the leader gets its state."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    state = world.state()
    assert state is not None
    by_hand = layout.encode_state(replace(state, leader_epoch=4, isr=(1, 2), isr_broker_epochs=()))
    world.admin(Set(layout.partition_state_path(T0), by_hand, ANY_VERSION))
    refused = world.alter(1, (1, 3), leader_epoch=0, partition_epoch=0).partitions[T0]
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert world.view() == (1, 4, (1, 2))
    assert world.members[1].broker.states[T0].leader_epoch == 4


def test_a_proposal_for_a_partition_that_nobody_knows() -> None:
    world = World(1)
    world.create(topic((1,)))
    world.admin(Delete(layout.partition_state_path(T0)))
    proposal = IsrProposal(0, 0, (1,))
    member = world.members[1]
    for number, partition in enumerate((TopicPartition("nowhere", 0), T0)):
        request = AlterPartitionRequest(1, member.broker.epoch, {partition: proposal})
        world.perform(member, member.controller.on_request(Peer(1, 900 + number), request, world.now_ms))
        world.run()
    unknown, known = (world.responses[900 + number] for number in range(2))
    assert isinstance(unknown, AlterPartitionResponse)
    assert unknown.partitions[TopicPartition("nowhere", 0)].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(known, AlterPartitionResponse)
    assert known.partitions[T0].error is ErrorCode.NONE, "as the copy has it: nothing was to be written"


def test_a_topic_that_vanished_is_forgotten() -> None:
    """A tool removed its node: no election writes a state for it any more."""
    world = World(2)
    world.create(topic((1, 2)), topic((2, 1), name="gone"))
    for node in ("partitions/0/state", "partitions/0", "partitions"):
        world.admin(Delete(f"{layout.topic_path('gone')}/{node}"))
    world.admin(Delete(layout.topic_path("gone")))
    world.run()
    context = world.active.controller.context
    assert context is not None
    assert list(context.topics) == ["t"]
    for member in world.members.values():
        assert member.broker.metadata[TopicPartition("gone", 0)].leader == BEING_DELETED
        roles = [body for body in member.broker.received if isinstance(body, LeaderAndIsrRequest)]
        assert roles[-1].assigned is not None, "its logs are strays, and nobody starts anew to hear of it"
        assert roles[-1].assigned.keys() == {T0}
    world.stop(2)
    world.run()
    assert world.view() == (1, 1, (1,))
    assert world.admin(Children(layout.TOPICS_PATH)).children == ("t",)


@pytest.mark.parametrize("applied", [True, False])
def test_s26_lost_reply_of_an_isr_write(applied: bool) -> None:
    """Applied or not, the leader gets the right result and the node's version."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    calls = world.members[1].store_calls
    request = AlterPartitionRequest(1, world.members[1].broker.epoch, {T0: IsrProposal(0, 0, (1, 2))})
    controller = world.members[1].controller
    world.perform(world.members[1], controller.on_request(Peer(1, 999), request, world.now_ms))
    assert len(calls) == 1
    world.apply_call(1, lose_reply=applied, lose_call=not applied)
    world.run()
    response = world.responses[999]
    assert isinstance(response, AlterPartitionResponse)
    assert response.partitions[T0].error is ErrorCode.NONE
    assert response.partitions[T0].partition_epoch == world.version() == 1
    assert world.alter(1, (1, 2, 3)).partitions[T0].error is ErrorCode.NONE, "and the next one works"


def test_s27_zombie_controller_says_that_it_is_not_the_controller() -> None:
    """Its copy is older than the leader's state: neither NONE nor FENCED_LEADER_EPOCH (74) is right."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    world.members[1].paused = True
    world.admin(Delete(layout.CONTROLLER_PATH))
    world.run(until=lambda: any(world.members[each].controller.is_active for each in (2, 3)))
    world.run()
    world.start(2)
    world.run()
    assert world.view()[:2] == (3, 1)
    zombie = world.members[1]
    assert zombie.controller.is_active
    zombie.paused = False
    zombie.inbox.clear()
    response = world.alter(3, (3,), via=1, broker_epoch=world.members[3].broker.epoch)
    assert response.partitions[T0].error is ErrorCode.NOT_CONTROLLER


def test_s55_controller_and_leader_write_at_once() -> None:
    """The leader's shrink lands between the controller's reading and its write: decide again."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    controller = world.members[1]
    world.stop(2)
    while not (controller.store_calls and isinstance(controller.store_calls[0].operation, Multi)):
        if controller.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
    state = world.state()
    assert state is not None
    smaller = layout.LeaderAndIsr(2, 0, (2, 1), state.controller_epoch, state.isr_broker_epochs[::2])
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(smaller), 0))
    world.run()
    assert world.view() == (1, 1, (1,)), "3, elected on the old reading, had left the ISR"
