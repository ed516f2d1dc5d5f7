"""Rules of the engine switched off for a while, from outside. Production code knows nothing of this.

A patch gets an `ExitStack`, replaces functions of the engine, and puts on the stack what brings them back.
While it is in force it holds for the whole process. The stories use these; `tests/plants/` has many more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.replication import following, membership, orders, reading
from logstore.replication.controller import deletion, election, reassignment
from logstore.replication.follower import Followers
from logstore.replication.partition import Partition
from logstore.replication.reconcile import Divergence, Truncation
from logstore.replication.replica_manager import ReplicaManager

Patch: TypeAlias = Callable[[ExitStack], None]


def swap(stack: ExitStack, owner: Any, name: str, value: object) -> Any:
    """Replace an attribute, where it is defined, until the stack unwinds; returns what was there."""
    if isinstance(owner, type):
        owner = next(each for each in owner.__mro__ if name in each.__dict__)
    before = owner.__dict__[name]
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)
    return before


def truncate_by_high_watermark(stack: ExitStack) -> None:
    """A follower truncates to its own high watermark when it learns of a leader (before KIP-101)."""

    def add(self: Followers, partition: Partition) -> None:
        following.truncate_to(partition, partition.log.high_watermark, why="it truncates to its own HW")
        real(self, partition)

    real = swap(stack, Followers, "add", add)


def divergence_not_noticed(stack: ExitStack) -> None:
    """A leader does not compare the epochs of a fetch with its own."""

    def divergence_of(**_: object) -> Divergence:
        return Divergence(None, False)

    swap(stack, reading, "divergence_of", divergence_of)


def answer_without_epoch(stack: ExitStack) -> None:
    """A follower ignores of which epoch the leader's end offset is (KIP-101 before KIP-279)."""

    def truncation_for(answer: Any, **facts: Any) -> Truncation:
        return real(answer._replace(epoch=-1), **facts)  # type: ignore[no-any-return]

    real = swap(stack, following, "truncation_for", truncation_for)


def without_leader_epochs(stack: ExitStack) -> None:
    """Truncation as before KIP-101: by high watermark, and nobody compares epochs."""
    truncate_by_high_watermark(stack)
    divergence_not_noticed(stack)


def without_epochs_in_answers(stack: ExitStack) -> None:
    """Truncation as between KIP-101 and KIP-279: by the leader's end offset alone."""
    answer_without_epoch(stack)
    divergence_not_noticed(stack)


def preferred_leads_at_once(stack: ExitStack) -> None:
    """The preferred replica leads as soon as it lives, in sync or not."""

    def preferred_leader(replicas: Any, isr: Any, live: Any) -> int | None:
        return real(replicas, live, live)  # type: ignore[no-any-return]

    real = swap(stack, election, "preferred_leader", preferred_leader)


def former_controller_obeyed(stack: ExitStack) -> None:
    """A broker does not compare the controller epoch of an order with the one that it knows."""

    def refusal_of(manager: ReplicaManager, controller_epoch: int, broker_epoch: int) -> ErrorCode | None:
        return real(manager, manager.controller_epoch, broker_epoch)  # type: ignore[no-any-return]

    real = swap(stack, orders, "refusal_of", refusal_of)


def nobody_leaves_the_isr(stack: ExitStack) -> None:
    """A leader never proposes a smaller ISR."""
    swap(stack, membership, "propose_shrink", lambda *_, **__: None)


def reassignment_does_not_wait(stack: ExitStack) -> None:
    """A reassignment ends at once: whoever lives of the new replicas leads, with or without the records."""

    def closing_state(assignment: Any, state: Any, live: Any, *rest: Any) -> Any:
        members = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
        members |= {each: live[each].epoch if each in live else -1 for each in assignment.target}
        everybody = replace(state, isr=tuple(members), isr_broker_epochs=tuple(members.values()))
        after = real(assignment, everybody, live, *rest)
        return after and replace(after, isr=tuple(each for each in after.isr if each in live))

    real = swap(stack, reassignment, "closing_state", closing_state)


def deletion_forgets_the_dead(stack: ExitStack) -> None:
    """A topic is gone once every live broker has deleted its replica."""

    def is_complete(self: deletion.Deletion) -> bool:
        waiting = (deletion.ReplicaState.SUCCESSFUL, deletion.ReplicaState.INELIGIBLE)
        return all(state in waiting for state in self.states.values())

    swap(stack, deletion.Deletion, "is_complete", property(is_complete))
