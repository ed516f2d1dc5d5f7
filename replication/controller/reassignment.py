"""Replicas move to other brokers. Pure: the assignment before and after, the state that ends it.

    [1 2 3] ──begin──▶ [4 5 6 1 2 3]          ──4 5 6 in sync──▶ [4 5 6]       ──each confirms──▶ [4 5 6]
                       adding 4 5 6                              leaving 1 2 3
                       removing 1 2 3
                       originally 1 2 3

The list of a partition that is being reassigned holds its target first and then whatever else still counts;
`adding` are members that it did not have, `removing` those that it will not have (KIP-455). Two things more
are remembered than Kafka does: the original list in its order, which calling off restores, and the replicas
that have left and whose broker has not confirmed the deletion, so that no lost message leaves data behind.

A later target replaces an earlier one. Replicas that only the earlier one wanted leave at once, except those
that are in sync: they hold what is committed and stay (`removing`) until the new target does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from logstore.replication.controller.election import (
    Incarnation,
    Standing,
    in_new_epoch,
    reassigned_leader,
    standing,
)
from logstore.replication.metastore.layout import LeaderAndIsr, TopicAssignment

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition's replicas as the topic node has them; all but `replicas` are empty at rest."""

    replicas: Replicas
    adding: Replicas = ()
    removing: Replicas = ()
    original: Replicas = ()
    """The list before the reassignment, in its order; empty at rest, and where Kafka wrote the node."""
    leaving: Replicas = ()
    """No replicas any more, but the deletion of their logs is not confirmed."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> Replicas:
        return _without(self.replicas, self.removing)

    @property
    def origin(self) -> Replicas:
        """What calling off goes back to."""
        return self.original or _without(self.replicas, self.adding)

    def is_at(self, target: Replicas) -> bool:
        """Whether nothing is left to do to have these replicas, whoever still has to confirm."""
        return not self.is_reassigning and self.replicas == target

    def reassign_to(self, target: Replicas, isr: Collection[int] = ()) -> Assignment:
        """The assignment that leads to `target`, whatever was under way before; itself if nothing changes."""
        origin = self.origin
        in_sync = tuple(each for each in self.replicas if each in isr)
        replicas = _united(target, origin, in_sync)
        adding, removing = _without(target, origin), _without(replicas, target)
        return Assignment(
            replicas,
            adding,
            removing,
            origin if adding or removing else (),
            _without(_united(self.leaving, self.replicas), replicas),
        )

    def finished(self) -> Assignment:
        """The target alone; who is not in it leaves."""
        return Assignment(self.target, leaving=_united(_without(self.leaving, self.target), self.removing))

    def confirmed(self, broker_id: int) -> Assignment:
        """`broker_id` has deleted its replica."""
        return replace(self, leaving=_without(self.leaving, (broker_id,)))


def _united(*lists: Iterable[int]) -> Replicas:
    return tuple(dict.fromkeys(each for replicas in lists for each in replicas))


def _without(replicas: Iterable[int], others: Collection[int]) -> Replicas:
    return tuple(each for each in replicas if each not in others)


def assignment_in(node: TopicAssignment, partition: int) -> Assignment:
    """The partition's part of the topic node, which must have it."""
    return Assignment(
        node.partitions[partition],
        node.adding_replicas.get(partition, ()),
        node.removing_replicas.get(partition, ()),
        node.original_replicas.get(partition, ()),
        node.leaving_replicas.get(partition, ()),
    )


def with_assignment(node: TopicAssignment, partition: int, assignment: Assignment) -> TopicAssignment:
    """The topic node with this partition's part replaced."""

    def changed(lists: Mapping[int, Replicas], replicas: Replicas) -> dict[int, Replicas]:
        others = {each: lists[each] for each in lists if each != partition}
        return {**others, partition: replicas} if replicas else others

    return TopicAssignment(
        node.topic_id,
        changed(node.partitions, assignment.replicas),
        changed(node.adding_replicas, assignment.adding),
        changed(node.removing_replicas, assignment.removing),
        changed(node.original_replicas, assignment.original),
        changed(node.leaving_replicas, assignment.leaving),
    )


def opening_state(
    before: Assignment, after: Assignment, state: LeaderAndIsr, controller_epoch: int
) -> LeaderAndIsr | None:
    """The state that goes with new members; None if there are none.

    The new leader epoch makes whatever was ordered before, a deletion of a replica that is now to come
    back above all, an order of the past.
    """
    if set(before.replicas) == set(after.replicas) and set(before.adding) == set(after.adding):
        return None
    return replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def closing_state(
    assignment: Assignment,
    state: LeaderAndIsr,
    live: Mapping[int, Incarnation],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """The state that ends the reassignment: led by the target, the target in sync; None while it must wait.

    The target must be in sync as a whole, and one of it alive to lead. Leader and ISR change in one epoch:
    nobody leads with a list that still admits those who leave.
    """
    target = assignment.target
    if not set(target) <= set(state.isr):
        return None
    recorded = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    intact = [each for each in target if standing(recorded[each], live.get(each)) is Standing.INTACT]
    leader: int | None = state.leader
    if leader not in intact:
        leader = reassigned_leader(target, state.isr, _without(intact, shutting_down))
    if leader is None:
        return None
    isr = tuple(each for each in state.isr if each in target)
    still_recovering = state.recovering and leader == state.leader
    return in_new_epoch(state, leader, isr, recorded, controller_epoch, recovering=still_recovering)
