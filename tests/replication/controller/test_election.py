"""Elections: Kafka's table row by row, then every combination of members' standings."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from logstore.replication.controller.election import (
    Elected,
    Incarnation,
    Standing,
    first_state,
    next_state,
    offline_leader,
    preferred_leader,
    reassigned_leader,
    shutdown_leader,
    standing,
    state_after_shutdown,
)
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.layout import LOST_BROKER_EPOCH, UNKNOWN_BROKER_EPOCH, LeaderAndIsr

AR = (2, 4)


@pytest.mark.parametrize(
    ("isr", "live", "unclean", "expected"),
    [
        ([2, 4], [4], False, Elected(4)),
        ([2], [4], False, None),
        ([2], [4], True, Elected(4, unclean=True)),
        ([4], [2, 4], True, Elected(4)),
        ([2], [], True, None),
    ],
)
def test_offline(isr: list[int], live: list[int], unclean: bool, expected: Elected | None) -> None:
    assert offline_leader(AR, isr, live, unclean_enabled=unclean) == expected


def test_the_assignment_decides_not_the_isr() -> None:
    assert offline_leader((0, 1, 2), [2, 1], [1, 2]) == Elected(1)


@pytest.mark.parametrize(("isr", "live", "expected"), [([2, 4], [4], 4), ([2], [], None), ([], [2], None)])
def test_reassigned(isr: list[int], live: list[int], expected: int | None) -> None:
    assert reassigned_leader(AR, isr, live) == expected


@pytest.mark.parametrize(
    ("isr", "live", "expected"),
    [([2, 4], [2, 4], 2), ([2], [], None), ([4], [2, 4], None), ([], [], None)],
)
def test_preferred(isr: list[int], live: list[int], expected: int | None) -> None:
    assert preferred_leader(AR, isr, live) == expected


@pytest.mark.parametrize(
    ("isr", "down", "expected"), [([2, 4], [2], 4), ([2], [2], None), ([2, 4], [2, 4], None)]
)
def test_shutdown(isr: list[int], down: list[int], expected: int | None) -> None:
    assert shutdown_leader(AR, isr, [2, 4], down) == expected


def test_a_leader_stays_while_its_follower_shuts_down() -> None:
    """Also one that the assignment does not prefer."""
    state = LeaderAndIsr(2, 4, (1, 2, 3), 1, (10, 20, 30))
    live = {broker: Incarnation(broker * 10, True) for broker in state.isr}
    found = state_after_shutdown(state, (1, 2, 3), live, {3}, 1)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr) == (2, 5, (1, 2))


def test_first_state_takes_the_live_replicas() -> None:
    live = {3: Incarnation(30, True), 2: Incarnation(20, False)}
    assert first_state((1, 2, 3), live, 7) == LeaderAndIsr(2, 0, (2, 3), 7, (20, 30))
    assert first_state((1,), live, 7) is None, "nobody lives: no state yet"


def test_standing_of_a_member() -> None:
    assert standing(5, None) is Standing.DEAD
    assert standing(5, Incarnation(5, False)) is Standing.INTACT
    assert standing(5, Incarnation(6, True)) is Standing.RESTARTED
    assert standing(5, Incarnation(6, False)) is Standing.LOST
    assert standing(5, Incarnation(6, False, (5,))) is Standing.RESTARTED, "the same process, never stopped"
    assert standing(4, Incarnation(6, False, (5,))) is Standing.LOST
    assert standing(UNKNOWN_BROKER_EPOCH, Incarnation(6, False)) is Standing.INTACT
    assert standing(LOST_BROKER_EPOCH, Incarnation(6, True)) is Standing.LOST, "clean stops mend nothing"


STATE = LeaderAndIsr(
    leader=1, leader_epoch=4, isr=(1, 2, 3), controller_epoch=1, isr_broker_epochs=(10, 20, 30)
)
REPLICAS = (1, 2, 3, 4)
INTACT = {
    1: Incarnation(10, True),
    2: Incarnation(20, True),
    3: Incarnation(30, True),
    4: Incarnation(40, True),
}


def without(*brokers: int) -> dict[int, Incarnation]:
    return {broker: incarnation for broker, incarnation in INTACT.items() if broker not in brokers}


def restarted(clean: bool, *brokers: int) -> dict[int, Incarnation]:
    return INTACT | {broker: Incarnation(99, clean) for broker in brokers}


def test_nothing_to_do_is_none() -> None:
    assert next_state(STATE, REPLICAS, INTACT, 2) is None
    assert next_state(STATE, REPLICAS, without(4), 2) is None, "a replica outside the ISR may come and go"


def test_members_without_an_incarnation_on_record_get_one() -> None:
    """Kafka wrote the node: from now on a restart of theirs is noticed (R1, R3)."""
    unknown = replace(STATE, isr_broker_epochs=(UNKNOWN_BROKER_EPOCH,) * 3)
    state = next_state(unknown, REPLICAS, without(3), 2)
    assert state is not None
    assert (state.leader, state.isr, state.isr_broker_epochs) == (1, (1, 2), (10, 20))
    assert next_state(state, REPLICAS, without(3), 2) is None, "once"


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (without(1), (2, (2, 3), (20, 30))),
        (without(3), (1, (1, 2), (10, 20))),
        (without(1, 2), (3, (3,), (30,))),
        (without(1, 2, 3), (NO_LEADER, (1, 2, 3), (10, 20, 30))),
        # A restarted member leaves while an intact one is there, clean or not.
        (restarted(True, 1), (2, (2, 3), (20, 30))),
        (restarted(False, 1, 2), (3, (3,), (30,))),
        # Without an intact one, the clean lead, as their new selves; the dead are left out.
        (restarted(True, 2, 3) | {1: Incarnation(99, False)}, (2, (2, 3), (99, 99))),
        ({3: Incarnation(99, True)}, (3, (3,), (99,))),
        # Unclean ones alone do not lead; who is dead may still have everything.
        ({3: Incarnation(99, False)}, (NO_LEADER, (1, 2), (10, 20))),
        (restarted(False, 1, 2, 3), (NO_LEADER, (1, 2, 3), (LOST_BROKER_EPOCH,) * 3)),
    ],
)
def test_next_state(
    live: dict[int, Incarnation], expected: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> None:
    state = next_state(STATE, REPLICAS, live, 2)
    assert state is not None
    assert (state.leader, state.isr, state.isr_broker_epochs) == expected
    assert (state.leader_epoch, state.controller_epoch) == (5, 2)


def test_unclean_election_is_the_last_resort() -> None:
    kept = next_state(STATE, REPLICAS, without(1, 2), 2, unclean_enabled=True)
    assert kept is not None
    assert (kept.leader, kept.isr, kept.recovering) == (3, (3,), False)
    elected = next_state(STATE, REPLICAS, without(1, 2, 3), 2, unclean_enabled=True)
    assert elected is not None
    assert (elected.leader, elected.isr, elected.isr_broker_epochs, elected.recovering) == (
        4,
        (4,),
        (40,),
        True,
    )
    after = next_state(elected, REPLICAS, INTACT, 2, unclean_enabled=True)
    assert after is None, "who returns afterwards does not take over"


def test_nobody_is_elected_from_outside_who_would_refuse() -> None:
    """It would be alone in the ISR and unable to lead; the members may have everything."""
    outside = without(1, 2, 3)
    kept = next_state(STATE, REPLICAS, outside, 2, refusing=(4,), unclean_enabled=True)
    assert kept is not None
    assert (kept.leader, kept.isr) == (NO_LEADER, (1, 2, 3))
    lost = {1: Incarnation(11, False), 4: INTACT[4]}
    alone = replace(STATE, isr=(1,), isr_broker_epochs=(10,))
    for refusing, leader in (((), 4), ((4,), 1), ((1, 4), NO_LEADER)):
        found = next_state(alone, REPLICAS, lost, 2, refusing=refusing, unclean_enabled=True)
        assert found is not None
        assert found.leader == leader


def test_a_lost_member_stays_lost_over_a_clean_restart() -> None:
    """A clean stop keeps what the broker had, but that was incomplete."""
    sole = LeaderAndIsr(1, 4, (1,), 1, (10,))
    lost = next_state(sole, (1,), {1: Incarnation(11, False)}, 2)
    assert lost is not None
    assert (lost.leader, lost.isr_broker_epochs) == (NO_LEADER, (LOST_BROKER_EPOCH,))
    assert next_state(lost, (1,), {}, 2) is None
    assert next_state(lost, (1,), {1: Incarnation(12, True)}, 2) is None
    forced = next_state(lost, (1,), {1: Incarnation(12, True)}, 2, unclean_enabled=True)
    assert forced is not None
    assert (forced.leader, forced.leader_epoch, forced.isr_broker_epochs) == (1, 6, (12,))


def test_every_combination_keeps_the_state_node_sound() -> None:
    """All standings of three members × unclean × leader: 1,536 cases, the rules checked on each."""
    incarnations = [None, "intact", "clean", "unclean"]
    recorded = {1: 10, 2: 20, 3: 30}
    for kinds in product(incarnations, repeat=4):
        live = {
            broker: Incarnation(recorded.get(broker, 40) if kind == "intact" else 99, kind != "unclean")
            for broker, kind in enumerate(kinds, 1)
            if kind is not None
        }
        for leader, unclean in product((1, 3, NO_LEADER), (False, True)):
            before = LeaderAndIsr(leader, 4, (1, 2, 3), 1, (10, 20, 30))
            after = next_state(before, REPLICAS, live, 2, unclean_enabled=unclean)
            if after is None:
                assert leader == NO_LEADER or live.get(leader) == Incarnation(recorded[leader], True)
                continue
            assert after.leader_epoch == 5
            assert after.isr
            assert set(after.isr) <= set(REPLICAS)
            assert len(after.isr_broker_epochs) == len(after.isr)
            assert after.leader == NO_LEADER or after.leader in after.isr
            assert after.leader == NO_LEADER or after.leader in live
            if not after.recovering:
                assert set(after.isr) <= set(before.isr), "no failure admits a member"
            if after.leader not in (NO_LEADER, before.leader) and not after.recovering:
                kind = kinds[after.leader - 1]
                assert kind in ("intact", "clean")
            assert next_state(after, REPLICAS, live, 2, unclean_enabled=unclean) is None, "settled at once"
