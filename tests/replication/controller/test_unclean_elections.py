"""Unclean elections: the settings that allow them, their time, and the resulting states.

S and I numbers are those of the failure schedules and invariants in docs/replication.md.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.alter_partition import judge
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.context import UNCLEAN_ELECTION
from logstore.replication.controller.election import Incarnation
from logstore.replication.messages import NO_LEADER, ElectionType, IsrProposal
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import ANY_VERSION, Create, Set
from tests.replication.controller.world import World, state_writes, topic

T0, T1 = (TopicPartition("t", partition) for partition in range(2))


def set_for_all(world: World, value: str) -> None:
    data = layout.encode_topic_config({UNCLEAN_ELECTION: value})
    made = world.admin(Create(layout.BROKER_DEFAULTS_PATH, data, make_parents=True))
    if made.error is not None:
        world.admin(Set(layout.BROKER_DEFAULTS_PATH, data, ANY_VERSION))


def without_leaders(*, brokers: int = 4, **settings: str) -> World:
    """Of partition 0 the ISR is dead, and 2, which lives, lacks records; so of topic `u`, with `settings`.

    Partition 1 is led by 4.
    """
    world = World(brokers)
    world.create(topic((2, 3), (4, 2)), topic((2, 3), name="u", **settings))
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    world.start(2)
    world.run()
    assert world.view() == (NO_LEADER, 2, (3,))
    assert world.view(1)[0] == 4
    return world


def test_s8_unclean_election_off() -> None:
    """A dies as the only member; B up, restarts twice; A returns: LE +1 when A fails, +1 when it leads."""
    world = World(3)
    world.create(topic((2, 3)))
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    assert world.view() == (2, 0, (2,))
    world.stop(2)
    world.run()
    assert world.view() == (NO_LEADER, 1, (2,))
    for _ in range(2):
        world.start(3)
        world.run()
        assert world.view() == (NO_LEADER, 1, (2,))
    world.start(2)
    world.run()
    assert world.view() == (2, 2, (2,))
    assert all(state.leader != 3 for _, _, state in state_writes(world))


def test_switched_on_for_all_brokers_it_elects_where_nobody_leads() -> None:
    """unclean enabled dynamically: triggers election only for leaderless partitions."""
    world = without_leaders()
    before = world.view(1)
    set_for_all(world, "true")
    world.run()
    assert world.view() == (2, 3, (2,))
    state = world.state()
    assert state is not None
    assert state.recovering
    assert world.view(1) == before
    assert world.members[2].broker.states[T0].leader == 2


def with_a_damaged_replica() -> World:
    """The ISR is (3), which is away with all that was committed; 2 comes back and says its log is damaged.

    Unclean election is allowed. One of 1 and 4 is the controller.
    """
    world = World(4)
    world.create(topic((2, 3), unclean_leader_election_enable="true"))
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    assert world.view() == (NO_LEADER, 2, (3,))
    world.start(2, clean=False, damaged=(T0,))
    world.members[2].broker.failing.add(T0)  # a log is cut only where others lead
    world.run()
    return world


def test_a_damaged_log_does_not_push_out_who_has_everything() -> None:
    """It was elected before it could refuse its role, and was then alone in the ISR (seed 15033)."""
    world = with_a_damaged_replica()
    assert world.view() == (NO_LEADER, 2, (3,))
    unclean = ElectionType.UNCLEAN
    assert world.elect(T0, election_type=unclean) == {T0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    world.start(3)
    world.run()
    state = world.state()
    assert state is not None
    assert (state.leader, state.isr, state.recovering) == (3, (3,), False)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_log_that_was_mended_may_be_elected(is_replaced: bool) -> None:
    """Its registration calls it damaged as long as it lives; that it took a role says that it is not."""
    world = with_a_damaged_replica()
    world.members[2].broker.failing.clear()
    world.start(3)
    world.run()
    assert world.view()[0] == 3
    if is_replaced:  # the next controller reads the registration, and hears of the role when it asks
        world.stop(world.controller_id)
        world.run()
    world.stop(3)
    world.run()
    state = world.state()
    assert state is not None
    assert (state.leader, state.isr, state.recovering) == (2, (2,), True)


def test_the_topics_own_word_is_the_last() -> None:
    """topic override beats broker value either way"""
    world = without_leaders(unclean_leader_election_enable="false")
    set_for_all(world, "true")
    world.run()
    assert world.view()[0] == 2
    assert world.view(0, "u")[0] == NO_LEADER


def test_it_can_be_switched_off_again_for_all() -> None:
    """Kept in the store, so the next controller abides by it; a broker's own setting comes after it."""
    config = ControllerConfig(
        request_timeout_ms=1_000,
        retry_backoff_ms=100,
        auto_leader_rebalance_enable=False,
        unclean_leader_election_enable=True,
    )
    world = World(4, config=config)
    set_for_all(world, "false")
    world.run()
    world.create(topic((2, 3)))
    world.stop(world.controller_id)
    world.run()
    for broker in (2, 3):
        world.stop(broker)
        world.run()
    world.start(2)
    world.run()
    assert world.view()[0] == NO_LEADER


@pytest.mark.parametrize("data", [b"?", b'{"config":{"unclean.leader.election.enable":"perhaps"}}'])
def test_a_node_that_makes_no_sense_changes_nothing(data: bytes) -> None:
    world = without_leaders()
    world.admin(Create(layout.BROKER_DEFAULTS_PATH, data, make_parents=True))
    world.run()
    assert world.view()[0] == NO_LEADER
    context = world.active.controller.context
    assert context is not None
    assert layout.BROKER_DEFAULTS_PATH in context.unreadable
    set_for_all(world, "true")
    world.run()
    assert world.view()[0] == 2
    assert layout.BROKER_DEFAULTS_PATH not in context.unreadable


def test_s64_the_last_replica_standing_lost_its_end() -> None:
    """A led alone, lost power and its tail: nobody known to hold everything lives; an operator may decide.

    One in-sync replica was enough to commit, so B and C may lack what A had.
    """
    world = World(4)
    world.create(topic((2, 3, 4), min_insync_replicas="1"))
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    world.stop(2)
    world.run()
    world.start(2, clean=False)
    world.run()
    assert world.view()[::2] == (NO_LEADER, (2,))
    world.start(2)
    world.run()
    assert world.view()[0] == NO_LEADER, "a clean stop after that brings nothing back"
    set_for_all(world, "true")
    world.run()
    assert world.view()[0] == 3, "A is known to have lost something"
    state = world.state()
    assert state is not None
    assert state.recovering


@pytest.mark.parametrize("clean", [True, False])
def test_s64_who_left_an_isr_too_small_to_commit_leads(clean: bool) -> None:
    """At once when A goes, as whatever was committed is on B and C; A follows when it returns."""
    world = World(4)
    world.create(topic((2, 3, 4), min_insync_replicas="2"))
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    world.stop(2)
    world.run()
    assert world.view() == (3, 1, (3, 4))
    state = world.state()
    assert state is not None
    assert not state.recovering
    world.start(2, clean=clean)
    world.run()
    assert world.view() == (3, 1, (3, 4))


def test_s64_the_last_replica_standing_stopped_in_order() -> None:
    world = World(4)
    world.create(topic((2, 3, 4), min_insync_replicas="1"))
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    world.stop(2)
    world.run()
    world.start(2, clean=True)
    world.run()
    assert world.view() == (2, 2, (2,))


LIVE = {member: Incarnation(member + 10, clean=True) for member in (1, 2)}


@pytest.mark.parametrize(
    ("recovering", "isr", "still_recovering", "error", "written"),
    [
        (True, (1,), False, ErrorCode.NONE, False),
        (True, (1, 2), False, ErrorCode.NONE, False),
        (True, (1,), True, ErrorCode.NONE, None),
        (True, (1, 2), True, ErrorCode.INVALID_REQUEST, None),
        (False, (1,), True, ErrorCode.INVALID_REQUEST, None),
        (False, (1, 2), True, ErrorCode.INVALID_REQUEST, None),
        (False, (1,), False, ErrorCode.NONE, None),
    ],
)
def test_recovery_goes_one_way(
    recovering: bool, isr: tuple[int, ...], still_recovering: bool, error: ErrorCode, written: bool | None
) -> None:
    """RECOVERING with |ISR|>1, or RECOVERED->RECOVERING -> INVALID_REQUEST; `written` is the new mark."""
    verdict = judge(
        IsrProposal(3, 5, isr, recovering=still_recovering),
        LeaderAndIsr(1, 3, (1,), 1, (11,), recovering=recovering),
        5,
        (1, 2),
        sender=1,
        live=LIVE,
        shutting_down=(),
        controller_epoch=1,
    )
    assert verdict.error is error
    assert (verdict.write.recovering if verdict.write is not None else None) is written
