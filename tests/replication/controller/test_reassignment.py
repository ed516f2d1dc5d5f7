"""Assignments in motion: KIP-455's arithmetic, what is remembered besides, when one may end."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.replication.controller.assignment import Assignment, assignment_in, with_assignment
from logstore.replication.controller.election import Incarnation
from logstore.replication.controller.reassignment import closing_state, opening_state
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore.layout import LeaderAndIsr, TopicAssignment, encode_topic, parse_topic

LISTS = st.lists(st.integers(0, 8), min_size=1, max_size=5, unique=True).map(tuple)


class TestReassignTo:
    def test_target_first_then_the_rest(self) -> None:
        """{1,2,3,4}.reassign_to(4,2,5,3): full 4,2,5,3,1; adding 5; removing 1"""
        after = Assignment((1, 2, 3, 4)).reassign_to((4, 2, 5, 3))
        assert (after.replicas, after.adding, after.removing) == ((4, 2, 5, 3, 1), (5,), (1,))
        assert after.target == (4, 2, 5, 3)

    def test_the_latest_target_counts(self) -> None:
        """{1,2,3}.to(4,5,6).to(7,8,9) same as direct .to(7,8,9)"""
        twice = Assignment((1, 2, 3)).reassign_to((4, 5, 6)).reassign_to((7, 8, 9))
        direct = Assignment((1, 2, 3)).reassign_to((7, 8, 9))
        assert twice == Assignment(
            direct.replicas, direct.adding, direct.removing, direct.original, leaving=(4, 5, 6)
        )

    def test_back_to_the_original(self) -> None:
        """{1,2,3}.to(4,5,6).to(1,2,3): the original"""
        back = Assignment((1, 2, 3)).reassign_to((4, 5, 6)).reassign_to((1, 2, 3))
        assert back == Assignment((1, 2, 3), leaving=(4, 5, 6))

    def test_another_order_is_no_reassignment(self) -> None:
        """{1,2,3}.to(3,1,2): not "being reassigned", new order"""
        assert Assignment((1, 2, 3)).reassign_to((3, 1, 2)) == Assignment((3, 1, 2))

    def test_target_of_a_full_list(self) -> None:
        """ReplicaAssignment(1..6, adding 2,3,4, removing 1,5,6).target: 2,3,4"""
        full = Assignment((1, 2, 3, 4, 5, 6), adding=(2, 3, 4), removing=(1, 5, 6))
        assert full.target == (2, 3, 4)
        assert full.origin == (1, 5, 6)

    @pytest.mark.parametrize("original", list(permutations((1, 2, 3))))
    def test_the_original_order_is_kept(self, original: tuple[int, ...]) -> None:
        """The full list puts the target first: without a memory, what both share comes back permuted."""
        moving = Assignment(original).reassign_to((3, 4, 1)).reassign_to((5, 2, 3))
        assert moving.origin == original
        assert moving.reassign_to(moving.origin).replicas == original

    def test_without_a_memory_it_is_kafkas_origin(self) -> None:
        """A node that Kafka wrote has no original list: the order is lost, the set is not."""
        assert Assignment((4, 3, 1, 2), adding=(4,), removing=(1, 2)).origin == (3, 1, 2)

    def test_an_earlier_target_in_sync_stays_until_the_new_one_is(self) -> None:
        after = Assignment((1, 2, 3)).reassign_to((4, 5, 6)).reassign_to((4, 7, 8), isr=(1, 2, 3, 4, 5))
        assert after.replicas == (4, 7, 8, 1, 2, 3, 5)
        assert after.removing == (1, 2, 3, 5)
        assert after.leaving == (6,)
        assert after.origin == (1, 2, 3)
        assert after.finished() == Assignment((4, 7, 8), leaving=(6, 1, 2, 3, 5))

    def test_who_comes_back_leaves_no_more(self) -> None:
        left = Assignment((1, 2, 3)).reassign_to((4, 2, 3)).finished()
        assert left == Assignment((4, 2, 3), leaving=(1,))
        assert left.reassign_to((1, 2, 3)).leaving == ()
        assert left.confirmed(1) == Assignment((4, 2, 3))

    @given(st.lists(LISTS, min_size=2, max_size=5), st.sets(st.integers(0, 8)))
    @settings(derandomize=True)
    def test_nobody_is_forgotten(self, lists: list[tuple[int, ...]], some: set[int]) -> None:
        """Whoever was once a member still is one, or leaves; an in-sync member never just leaves."""
        assignment = Assignment(lists[0])
        members = set(lists[0])
        for target in lists[1:]:
            isr = some & set(assignment.replicas)
            before, assignment = assignment, assignment.reassign_to(target, isr)
            members |= set(assignment.replicas)
            assert assignment.target == target
            assert set(before.origin) == set(assignment.origin) or not before.is_reassigning
            assert set(assignment.replicas) >= {*target, *isr}
            assert set(assignment.replicas) >= set(assignment.origin) or not assignment.is_reassigning
            assert members == {*assignment.replicas, *assignment.leaving}
            assert not set(assignment.replicas) & set(assignment.leaving)
            assert assignment.reassign_to(target, isr) == assignment
        assert members == {*assignment.finished().replicas, *assignment.finished().leaving}


class TestTopicNode:
    def test_one_partitions_part(self) -> None:
        moving = Assignment((1, 2)).reassign_to((2, 3)).reassign_to((4, 2))
        node = with_assignment(TopicAssignment("id", {0: (7,), 1: (1, 2)}), 1, moving)
        assert parse_topic(encode_topic(node)) == node
        assert assignment_in(node, 0) == Assignment((7,))
        assert assignment_in(node, 1) == moving
        assert with_assignment(node, 1, Assignment((1, 2))) == TopicAssignment("id", {0: (7,), 1: (1, 2)})

    def test_at_rest_the_node_is_kafkas(self) -> None:
        assert encode_topic(TopicAssignment("id", {0: (1, 2)})) == (
            b'{"version":3,"topic_id":"id","partitions":{"0":[1,2]},"adding_replicas":{},"removing_replicas":{}}'
        )

    def test_in_motion_two_fields_more(self) -> None:
        node = TopicAssignment("id", {0: (1, 2)}, original_replicas={0: (2, 1)}, leaving_replicas={0: (3,)})
        assert encode_topic(node).endswith(b',"original_replicas":{"0":[2,1]},"leaving_replicas":{"0":[3]}}')


def state(leader: int, isr: tuple[int, ...], epochs: tuple[int, ...] | None = None) -> LeaderAndIsr:
    recorded = epochs or tuple(100 + member for member in isr)
    return LeaderAndIsr(leader, 7, isr, controller_epoch=1, isr_broker_epochs=recorded)


LIVE = {broker_id: Incarnation(100 + broker_id, clean=True) for broker_id in range(1, 7)}
MOVING = Assignment((1, 2, 3)).reassign_to((4, 5, 6))


def closing(
    before: LeaderAndIsr, live: dict[int, Incarnation] = LIVE, down: set[int] | None = None
) -> object:
    after = closing_state(MOVING, before, live, down or set(), controller_epoch=2)
    return after and (after.leader, after.leader_epoch, after.isr, after.isr_broker_epochs)


class TestTheEnd:
    def test_waits_for_all_of_the_target(self) -> None:
        assert closing(state(1, (1, 2, 3, 4, 5))) is None

    def test_leadership_moves_to_the_target_in_the_targets_order(self) -> None:
        assert closing(state(1, (6, 5, 4, 1))) == (4, 8, (6, 5, 4), (106, 105, 104))

    def test_a_leader_in_the_target_stays(self) -> None:
        assert closing(state(5, (1, 4, 5, 6))) == (5, 8, (4, 5, 6), (104, 105, 106))

    def test_a_dead_leader_does_not(self) -> None:
        live = {each: LIVE[each] for each in (1, 2, 3, 5, 6)}
        assert closing(state(4, (4, 5, 6)), live) == (5, 8, (4, 5, 6), (104, 105, 106))

    def test_nobody_leads_whom_the_state_does_not_know_in_this_life(self) -> None:
        """A member that restarted since is worth an election of its own first."""
        live = {**LIVE, 4: Incarnation(999, clean=True)}
        assert closing(state(1, (1, 4, 5, 6)), live) == (5, 8, (4, 5, 6), (104, 105, 106))

    def test_nobody_who_is_about_to_stop_is_elected(self) -> None:
        assert closing(state(1, (1, 4, 5, 6)), down={4, 5}) == (6, 8, (4, 5, 6), (104, 105, 106))

    def test_waits_while_none_of_the_target_lives(self) -> None:
        live = {each: LIVE[each] for each in (1, 2, 3)}
        assert closing(state(NO_LEADER, (4, 5, 6)), live) is None


def test_new_members_take_a_new_leader_epoch() -> None:
    before, known = Assignment((1, 2)), state(1, (1, 2))
    opened = opening_state(before, before.reassign_to((2, 3)), known, controller_epoch=2)
    assert opened is not None
    assert (opened.leader, opened.leader_epoch, opened.isr) == (1, 8, (1, 2))
    assert opening_state(before, before.reassign_to((2, 1)), known, 2) is None
    assert opening_state(before, before.reassign_to((2,)), known, 2) is None


@pytest.mark.parametrize(
    ("target", "isr", "live", "leader"),
    [
        # reassign([2,4]): isr[2,4] live{4}; isr[2] live{}; isr[] live{2}: 4; none; none
        ((2, 4), (2, 4), (4,), 4),
        ((2, 4), (2,), (), None),
        ((2, 4), (5,), (2,), None),
    ],
)
def test_reassign_election(
    target: tuple[int, ...], isr: tuple[int, ...], live: tuple[int, ...], leader: int | None
) -> None:
    """The strategy's table, as the end of a reassignment sees it."""
    moving = Assignment((9, *target), removing=(9,))
    after = closing_state(moving, state(NO_LEADER, isr), {each: LIVE[each] for each in live}, (), 2)
    assert (after.leader if after else None) == leader
