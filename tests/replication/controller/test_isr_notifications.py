"""States written by Kafka's brokers or a tool: the copy follows; no decision depends on it."""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.assignment import Assignment
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Children, Create, Get, Set
from tests.replication.controller.world import World, topic

T0, T1 = (TopicPartition("t", partition) for partition in range(2))


def shrink(world: World, isr: tuple[int, ...], partition: int = 0) -> None:
    """A leader of Kafka's changes its ISR in the store, without a request to the controller."""
    state = world.state(partition)
    assert state is not None
    epochs = tuple(state.broker_epoch_of(member) for member in isr)
    data = layout.encode_state(
        layout.LeaderAndIsr(state.leader, state.leader_epoch, isr, state.controller_epoch, epochs)
    )
    path = layout.partition_state_path(TopicPartition("t", partition))
    world.admin(Set(path, data, ANY_VERSION))


def notify(world: World, data: bytes) -> None:
    world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, data, sequential=True))


def notices(world: World) -> tuple[str, ...]:
    return world.admin(Children(layout.ISR_NOTIFICATIONS_PATH)).children


def test_listed_states_are_read_again_and_told_to_all() -> None:
    world = World(3)
    world.create(topic((1, 2), (1, 2)))
    shrink(world, (1,))
    shrink(world, (1,), 1)
    notify(world, layout.encode_partitions([T0, TopicPartition("gone", 4)]))
    world.run()
    for member in world.members.values():
        assert member.broker.metadata[T0].isr == (1,)
        assert member.broker.metadata[T1].isr == (1, 2), "nobody spoke of this one"
    assert notices(world) == ()
    notify(world, layout.encode_partitions([T1]))
    world.run()
    assert world.members[3].broker.metadata[T1].isr == (1,)
    assert notices(world) == ()


def test_the_node_is_read_when_served_not_when_written() -> None:
    """KAFKA-5879: between the notice and its reading the ISR may have changed once more."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    shrink(world, (1, 2))
    notify(world, layout.encode_partitions([T0]))
    shrink(world, (1,))
    world.run()
    assert world.members[2].broker.metadata[T0].isr == (1,)
    assert world.members[2].broker.metadata[T0].partition_epoch == 2


def test_one_that_makes_no_sense_is_removed_and_reported() -> None:
    world = World(2)
    world.create(topic((1, 2)))
    shrink(world, (1,))
    for data in (b"?", b'{"partitions":[7]}', b'{"partitions":7}', layout.encode_partitions([T0])):
        notify(world, data)
    world.run()
    assert notices(world) == ()
    assert world.members[2].broker.metadata[T0].isr == (1,), "the others are served"
    context = world.active.controller.context
    assert context is not None
    assert layout.ISR_NOTIFICATIONS_PATH in context.unreadable


def test_s56_a_lost_notification_costs_only_fresh_metadata() -> None:
    """The controller's copy still says {2,3,1}; the election reads the node and finds {2,1}."""
    world = World(3)
    world.create(topic((2, 3, 1)))
    shrink(world, (2, 1))
    assert world.members[1].broker.metadata[T0].isr == (2, 3, 1), "metadata lags"
    world.stop(2)
    world.run()
    assert world.view() == (1, 1, (1,)), "3 comes first in the assignment, but is out of sync"


def test_those_left_for_the_controller_before_are_dropped() -> None:
    """A takeover reads and announces every state, so older notices are removed unread."""
    world = World(3)
    world.create(topic((1, 2, 3)))
    world.kill(1)
    shrink(world, (1, 2))
    notify(world, layout.encode_partitions([T0]))
    world.expire(1)
    world.run()
    assert notices(world) == ()
    assert world.view() == (2, 1, (2,))


def test_a_reassignment_goes_on_when_kafkas_leader_admits_its_target() -> None:
    world = World(4)
    world.create(topic((2, 3)))
    node = layout.TopicAssignment(
        layout.parse_topic(world.admin(Get(layout.topic_path("t"))).data).topic_id,
        {0: (3, 4, 2)},
        {0: (4,)},
        {0: (2,)},
    )
    context = world.active.controller.context
    assert context is not None
    world.admin(Set(layout.topic_path("t"), layout.encode_topic(node), ANY_VERSION))
    context.learn_assignment(T0, Assignment((3, 4, 2), (4,), (2,)))
    state = world.state()
    assert state is not None
    grown = layout.LeaderAndIsr(2, 0, (2, 3, 4), 1, (*state.isr_broker_epochs, world.members[4].broker.epoch))
    world.admin(Set(layout.partition_state_path(T0), layout.encode_state(grown), ANY_VERSION))
    notify(world, layout.encode_partitions([T0]))
    world.run()
    assert world.view()[0] == 3
    assert world.view()[2] == (3, 4)


def test_proposals_over_what_kafka_wrote_are_judged_on_it() -> None:
    world = World(3)
    world.create(topic((1, 2, 3)))
    shrink(world, (1, 2))
    notify(world, layout.encode_partitions([T0]))
    world.run()
    assert world.alter(1, (1, 2, 3)).partitions[T0].error is ErrorCode.NONE
    assert world.view() == (1, 0, (1, 2, 3))
