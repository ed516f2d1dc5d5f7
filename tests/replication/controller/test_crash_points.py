"""The controller dies after each store call of each procedure: the next one reaches the same final state.

A call may have been applied without its answer being heard; so every point is tried both ways. What a
client asked for and was not told of it may ask again, and does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.context import UNCLEAN_ELECTION
from logstore.replication.messages import (
    NO_LEADER,
    ControlledShutdownRequest,
    ElectionType,
    ElectLeadersRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import ANY_VERSION, Children, Create, Get, Set
from tests.replication.controller.world import World, state_writes, topic

T0, T1 = (TopicPartition("t", partition) for partition in range(2))


class Procedure(NamedTuple):
    """The initial world, the trigger, the condition at the end, and the repeated request."""

    make: Callable[[], World]
    begin: Callable[[World], object]
    check: Callable[[World], None]
    again: Callable[[World], object] | None = None


def strayed(config: ControllerConfig | None = None) -> World:
    """2 is preferred and in sync, 3 leads both partitions; 1 is the controller and has no replica."""
    world = World(4, config=config)
    world.create(topic((2, 3, 4), (2, 3, 4)))
    for each in (T0, T1):
        state = world.state(each.partition)
        assert state is not None
        moved = LeaderAndIsr(3, 1, state.isr, state.controller_epoch, state.isr_broker_epochs)
        world.admin(Set(layout.partition_state_path(each), layout.encode_state(moved), ANY_VERSION))
    world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, layout.encode_partitions([T0, T1]), sequential=True))
    world.run()
    assert world.members[4].broker.metadata[T1].leader == 3
    return world


def home(world: World) -> None:
    for partition in (0, 1):
        leader, leader_epoch, isr = world.view(partition)
        assert (leader, leader_epoch, set(isr)) == (2, 2, {2, 3, 4})


def ask_in_store(world: World) -> None:
    data = layout.encode_partitions([T0, T1])
    world.admin(Create(layout.PREFERRED_ELECTION_PATH, data, make_parents=True))


def home_and_cleared(world: World) -> None:
    home(world)
    assert world.admin(Get(layout.PREFERRED_ELECTION_PATH)).stat is None


def elect(world: World) -> object:
    return world.post(ElectLeadersRequest(ElectionType.PREFERRED, (T0, T1)))


def balanced() -> World:
    world = strayed(
        ControllerConfig(
            request_timeout_ms=1_000,
            retry_backoff_ms=100,
            leader_imbalance_check_interval_seconds=20,
            partitions_per_transaction=1,
        )
    )
    deadline_ms = world.members[1].controller.deadline_ms
    assert deadline_ms is not None
    world.run(for_ms=deadline_ms - 1 - world.now_ms)
    assert world.view()[0] == 3
    return world


def next_check(world: World) -> None:
    world.pass_time(1)


def shut_down(world: World) -> object:
    return world.post(ControlledShutdownRequest(3, world.members[3].broker.epoch))


def let_go(world: World) -> None:
    assert world.view(0)[::2] == (2, (2, 4))
    assert world.view(1)[::2] == (2, (2, 4))
    assert world.alter(2, (2, 3, 4)).partitions[T0].error is ErrorCode.INELIGIBLE_REPLICA


def shrunk_by_others(world: World) -> None:
    for each in (T0, T1):
        state = world.state(each.partition)
        assert state is not None
        smaller = LeaderAndIsr(
            3, state.leader_epoch, (3, 4), state.controller_epoch, state.isr_broker_epochs[1:]
        )
        world.admin(Set(layout.partition_state_path(each), layout.encode_state(smaller), ANY_VERSION))
        data = layout.encode_partitions([each])
        world.admin(Create(layout.ISR_NOTIFICATION_PREFIX, data, sequential=True))


def told_and_dropped(world: World) -> None:
    for partition in (0, 1):
        told = world.members[2].broker.metadata[TopicPartition("t", partition)]
        assert (told.leader, told.isr) == (3, (3, 4))
    assert world.admin(Children(layout.ISR_NOTIFICATIONS_PATH)).children == ()


def leaderless() -> World:
    world = World(5)
    world.create(topic((2, 3), (2, 3)))
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    world.start(2)
    world.run()
    assert [world.view(partition)[0] for partition in (0, 1)] == [NO_LEADER] * 2
    return world


def allow_unclean(world: World) -> None:
    data = layout.encode_topic_config({UNCLEAN_ELECTION: "true"})
    world.admin(Create(layout.BROKER_DEFAULTS_PATH, data, make_parents=True))


def elected_out_of_sync(world: World) -> None:
    for partition in (0, 1):
        assert world.view(partition) == (2, 3, (2,))
        state = world.state(partition)
        assert state is not None
        assert state.recovering


PROCEDURES = {
    "preferred election asked in the store": Procedure(strayed, ask_in_store, home_and_cleared),
    "preferred election asked by a client": Procedure(strayed, elect, home, elect),
    "rebalancing": Procedure(balanced, next_check, home, lambda world: world.run(for_ms=6_000)),
    "controlled shutdown": Procedure(strayed, shut_down, let_go, shut_down),
    "isr notifications": Procedure(strayed, shrunk_by_others, told_and_dropped),
    "unclean election allowed for all": Procedure(leaderless, allow_unclean, elected_out_of_sync),
}


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("name", PROCEDURES)
def test_another_controller_brings_it_to_the_same_end(name: str, is_answered: bool) -> None:
    make, begin, check, again = PROCEDURES[name]
    points = 0
    is_quiet = False
    while not is_quiet:
        world = make()
        begin(world)
        is_quiet = run_calls(world, points, is_answered=is_answered)
        world.stop(1)
        world.run(for_ms=1_000)
        if again is not None:
            again(world)
        world.run(for_ms=1_000)
        check(world)
        versions = [(each, version) for version, each, _ in state_writes(world)]
        assert len(set(versions)) == len(versions)
        points += 1
    assert points > 3, "or it was not that procedure that was cut short"


def run_calls(world: World, count: int, *, is_answered: bool) -> bool:
    """Let controller 1 make this many store calls; return whether it had no more to make."""
    member = world.members[1]
    made = 0
    while member.inbox or member.store_calls:
        if made == count:
            return False
        if member.inbox:
            world.read_inbox(1)
        else:
            world.apply_call(1)
            made += 1
            if made == count and not is_answered:
                return False
    return True
