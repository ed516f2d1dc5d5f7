"""S64 (KIP-966): a replica that left an ISR too small to commit may lead while it must hold everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.alter_partition import judge
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.controller.election import (
    Incarnation,
    next_state,
    state_after_shutdown,
    with_eligible,
    with_min_insync,
)
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    NO_LEADER,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    IsrProposal,
    LeaderAndIsrRequest,
    PartitionState,
)
from logstore.replication.metastore.layout import (
    LOST_BROKER_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    Eligible,
    LeaderAndIsr,
)
from tests.replication.controller.world import World, topic

T0 = TopicPartition("t", 0)
REPLICAS = (1, 2, 3)
WHOLE = LeaderAndIsr(1, 4, (1, 2, 3), 1, (10, 20, 30), min_insync=2)
ALONE = replace(WHOLE, isr=(1,), isr_broker_epochs=(10,), eligible=(Eligible(2, 20), Eligible(3, 30)))
INTACT = {1: Incarnation(10, True), 2: Incarnation(20, True), 3: Incarnation(30, True)}
CLEAN, UNCLEAN = Incarnation(99, True), Incarnation(99, False)


def proposed(state: LeaderAndIsr, *isr: int, all_synced: bool = False) -> LeaderAndIsr:
    """What is written when the leader proposes this ISR."""
    verdict = judge(
        IsrProposal(state.leader_epoch, 7, isr, all_synced=all_synced),
        state,
        7,
        REPLICAS,
        sender=state.leader,
        live=INTACT,
        shutting_down=(),
        controller_epoch=1,
    )
    assert verdict.error is ErrorCode.NONE
    return verdict.write or state


# --- what is remembered ---------------------------------------------------------------------------


def test_who_leaves_an_isr_that_gets_too_small_is_remembered() -> None:
    assert proposed(WHOLE, 1) == ALONE


def test_who_leaves_an_isr_that_stays_large_enough_is_not() -> None:
    """The high watermark goes on without it."""
    smaller = proposed(WHOLE, 1, 2)
    assert smaller.eligible == ()
    assert proposed(smaller, 1).eligible == (Eligible(2, 20),), "3 left too early"


def test_an_isr_that_is_large_enough_again_clears_the_memory_in_the_same_write() -> None:
    assert proposed(ALONE, 1, 3).eligible == ()
    of_three = replace(ALONE, min_insync=3)
    assert proposed(of_three, 1, 3).eligible == (Eligible(2, 20),), "still too small to commit"


def test_another_number_recounts() -> None:
    """Lowered: eligible replicas are cleared before the leader commits alone. Raised: none are added."""
    assert with_min_insync(ALONE, 0, REPLICAS, 1) == replace(ALONE, min_insync=0, eligible=())
    assert with_min_insync(ALONE, 3, REPLICAS, 1) == replace(ALONE, min_insync=3)
    two = replace(WHOLE, isr=(1, 2), isr_broker_epochs=(10, 20), min_insync=3, eligible=(Eligible(3, 30),))
    assert with_min_insync(two, 2, REPLICAS, 1).eligible == ()
    unwalled = replace(ALONE, min_insync=0, eligible=())
    assert with_min_insync(unwalled, 2, REPLICAS, 1).eligible == ()


def test_without_a_number_nobody_is_remembered() -> None:
    """The wall is switched off, or one replica is enough."""
    assert proposed(replace(WHOLE, min_insync=0), 1).eligible == ()


def test_a_member_of_no_known_incarnation_is_not_remembered() -> None:
    """Kafka wrote the node: whatever comes back later could pass for it."""
    unknown = replace(WHOLE, isr_broker_epochs=(10, UNKNOWN_BROKER_EPOCH, 30))
    assert proposed(unknown, 1).eligible == (Eligible(3, 30),)


def test_those_whom_the_controller_removes_are_remembered_too() -> None:
    alive = {1: INTACT[1]}
    assert (found := next_state(WHOLE, REPLICAS, alive, 1)) is not None
    assert (found.isr, found.eligible) == ((1,), ALONE.eligible)
    assert (left := state_after_shutdown(WHOLE, REPLICAS, INTACT, (2, 3), 1)) is not None
    assert (left.isr, left.eligible) == ((1,), ALONE.eligible)


def test_who_is_no_replica_any_more_is_forgotten() -> None:
    assert with_eligible(ALONE, ALONE, (1, 3)).eligible == (Eligible(3, 30),)


def test_a_report_that_all_is_synced_is_not_about_who_is_outside() -> None:
    """`all_synced` would let it lead after an unclean stop, and it may have flushed nothing."""
    switched = replace(ALONE, durability=Durability.SYNCED)
    reported = proposed(switched, 1, all_synced=True)
    assert (reported.all_synced, reported.eligible) == (True, ())


# --- who leads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "leader", "isr", "epochs", "eligible"),
    [
        # The member that stood last is lost, or only away: those who left lead, in the assignment's order.
        (INTACT | {1: UNCLEAN}, 2, (2, 3), (20, 30), ()),
        ({2: INTACT[2], 3: INTACT[3]}, 2, (2, 3), (20, 30), ()),
        ({2: CLEAN, 3: INTACT[3]}, 2, (2, 3), (99, 30), ()),
        # One of them alone: the others stay known, but for what is lost.
        ({3: INTACT[3]}, 3, (3,), (30,), (Eligible(1, 10), Eligible(2, 20))),
        ({1: UNCLEAN, 3: INTACT[3]}, 3, (3,), (30,), (Eligible(2, 20),)),
        ({1: UNCLEAN, 2: UNCLEAN, 3: INTACT[3]}, 3, (3,), (30,), ()),
        # A member of the ISR may have more, and comes first.
        ({1: CLEAN, 2: INTACT[2]}, 1, (1,), (99,), ALONE.eligible),
        # Nobody holds everything for certain.
        ({1: UNCLEAN}, NO_LEADER, (1,), (LOST_BROKER_EPOCH,), ALONE.eligible),
        ({1: UNCLEAN, 2: UNCLEAN}, NO_LEADER, (1,), (LOST_BROKER_EPOCH,), (Eligible(3, 30),)),
        ({2: UNCLEAN}, NO_LEADER, (1,), (10,), (Eligible(3, 30),)),
    ],
)
def test_the_last_replica_standing_is_gone(
    live: dict[int, Incarnation],
    leader: int,
    isr: tuple[int, ...],
    epochs: tuple[int, ...],
    eligible: tuple[Eligible, ...],
) -> None:
    found = next_state(ALONE, REPLICAS, live, 1)
    assert found is not None
    assert (found.leader, found.isr, found.isr_broker_epochs) == (leader, isr, epochs)
    assert found.eligible == eligible
    assert not found.recovering


def test_who_comes_back_with_a_loss_is_forgotten_while_the_leader_goes_on() -> None:
    """Permanently, because its next stop may be clean; no new epoch, because leader and ISR stay."""
    found = next_state(ALONE, REPLICAS, INTACT | {2: UNCLEAN}, 1)
    assert found == replace(ALONE, eligible=(Eligible(3, 30),))
    assert next_state(found, REPLICAS, INTACT | {2: Incarnation(100, True)}, 1) is None


def test_a_replica_that_cannot_be_used_is_forgotten() -> None:
    """Its log failed or is damaged: the same incarnation may return with a truncated log."""
    alive = {1: INTACT[1], 3: INTACT[3]}
    found = next_state(ALONE, REPLICAS, alive, 1, failed=(2,))
    assert found == replace(ALONE, eligible=(Eligible(3, 30),))


def test_who_shuts_down_is_not_given_leadership_and_stays_known() -> None:
    found = next_state(ALONE, REPLICAS, {2: INTACT[2], 3: INTACT[3]}, 1, shutting_down=(2,))
    assert found is not None
    assert (found.leader, found.isr) == (3, (3,))
    assert found.eligible == (Eligible(1, 10), Eligible(2, 20))


@pytest.mark.parametrize(
    ("live", "leader"),
    [
        ({1: UNCLEAN, 4: CLEAN}, 4),  # 4 is not known to have lost anything
        ({1: UNCLEAN, 2: UNCLEAN, 4: CLEAN}, 4),
        ({1: UNCLEAN, 2: UNCLEAN}, 1),  # all have: the assignment decides
        ({1: UNCLEAN, 2: INTACT[2], 4: CLEAN}, 2),  # and no unclean election at all
    ],
)
def test_unclean_election_prefers_who_is_not_known_to_have_lost(
    live: dict[int, Incarnation], leader: int
) -> None:
    found = next_state(ALONE, (*REPLICAS, 4), live, 1, unclean_enabled=True)
    assert found is not None
    assert (found.leader, found.recovering) == (leader, leader != 2)
    if found.recovering:
        assert found.eligible == (), "what is committed is from now on what the leader has"


def test_every_combination_is_settled_at_once_and_invents_nobody() -> None:
    """All standings of three brokers × who stood last × unclean: nobody lost, or unknown, is remembered."""
    kinds = [None, "intact", CLEAN, UNCLEAN]
    for one, two, three in product(kinds, repeat=3):
        live = {
            broker: INTACT[broker] if isinstance(kind, str) else kind
            for broker, kind in ((1, one), (2, two), (3, three))
            if kind is not None
        }
        for before, unclean in product((ALONE, WHOLE, replace(ALONE, leader=NO_LEADER)), (False, True)):
            after = next_state(before, REPLICAS, live, 1, unclean_enabled=unclean) or before
            assert next_state(after, REPLICAS, live, 1, unclean_enabled=unclean) is None
            assert not {each.replica for each in after.eligible} & set(after.isr)
            assert not after.eligible or len(after.isr) < after.min_insync
            for each in after.eligible:
                assert live.get(each.replica) != UNCLEAN
                assert each.broker_epoch == each.replica * 10 or live[each.replica] == CLEAN


# --- by a controller ------------------------------------------------------------------------------


def last_standing(brokers: int = 4, config: ControllerConfig | None = None, **settings: str) -> World:
    """2 is the only member left; 3 and 4 live."""
    world = World(brokers, config=config)
    world.create(topic((2, 3, 4), **(settings or {"min_insync_replicas": "2"})))
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    return world


def known(world: World) -> LeaderAndIsr:
    state = world.state()
    assert state is not None
    return state


def remembered(world: World) -> list[int]:
    return [each.replica for each in known(world).eligible]


def told(world: World, broker: int) -> list[PartitionState]:
    """Every role for the partition that this broker heard of."""
    received = world.members[broker].broker.received
    roles = [body.partitions for body in received if isinstance(body, LeaderAndIsrRequest)]
    return [states[T0] for states in roles if T0 in states]


def test_a_lower_number_is_in_the_store_before_the_leader_hears_of_it() -> None:
    world = last_standing()
    assert remembered(world) == [3, 4]
    world.ask(AlterConfigsRequest({"t": {"min.insync.replicas": "1"}}))

    def hears() -> bool:
        said = [state.min_insync for state in told(world, 2)]
        if 0 not in said:
            return False
        assert (known(world).min_insync, remembered(world)) == (0, [])
        return True

    world.run(until=hears)
    assert hears()
    world.stop(2)
    world.run()
    assert world.view()[0] == NO_LEADER


def test_a_number_that_is_raised_remembers_from_then_on() -> None:
    world = last_standing(min_insync_replicas="1")
    world.ask(AlterConfigsRequest({"t": {"min.insync.replicas": "2"}}))
    world.run()
    assert (known(world).min_insync, remembered(world)) == (2, [])
    assert world.alter(2, (2, 3)).partitions[T0].error is ErrorCode.NONE
    assert world.alter(2, (2,)).partitions[T0].error is ErrorCode.NONE
    assert remembered(world) == [3]


def test_the_number_is_the_controllers_default_where_the_topic_says_nothing() -> None:
    config = ControllerConfig(min_insync_replicas=3, auto_leader_rebalance_enable=False)
    world = last_standing(config=config, retention_ms="1000")
    assert (known(world).min_insync, remembered(world)) == (3, [3, 4])


def test_never_more_than_there_are_replicas() -> None:
    world = World(3)
    world.create(topic((2, 3), min_insync_replicas="3"), topic((2,), name="u", min_insync_replicas="3"))
    assert known(world).min_insync == 2
    alone = world.state(0, "u")
    assert alone is not None
    assert alone.min_insync == 0


def test_with_the_wall_off_nobody_is_remembered() -> None:
    config = ControllerConfig(min_insync_wall=False, auto_leader_rebalance_enable=False)
    world = last_standing(config=config)
    assert (known(world).min_insync, remembered(world)) == (0, [])
    world.stop(2)
    world.run()
    world.start(2, clean=False)
    world.run()
    assert world.view()[::2] == (NO_LEADER, (2,))


def test_a_replica_that_refuses_its_role_is_not_counted_on() -> None:
    """Its log is damaged. Once the state says so it is cut and follows, in the very life that was known."""
    world = last_standing()
    world.stop(3)
    world.run()
    assert remembered(world) == [3, 4], "it may have everything"
    world.start(3)
    world.members[3].broker.failing.add(T0)
    world.run()
    assert told(world, 3)[0].eligible == (3, 4), "a damaged log is not cut while the state says so"
    assert remembered(world) == [4]


def test_replicas_that_a_reassignment_takes_away_are_forgotten() -> None:
    """And the number goes by the replicas that stay."""
    world = last_standing(5)
    world.ask(AlterPartitionReassignmentsRequest({T0: (2, 3)}))
    world.run()
    assert world.alter(2, (2, 3)).partitions[T0].error is ErrorCode.NONE
    world.run()
    assert (known(world).isr, remembered(world)) == ((2, 3), [])
    world.ask(AlterPartitionReassignmentsRequest({T0: (2,)}))
    world.run()
    assert (known(world).isr, known(world).min_insync, remembered(world)) == ((2,), 0, [])
