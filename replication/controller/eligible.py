"""Who else holds everything committed: replicas that left an ISR too small to commit any more. Pure.

    ISR {A,B,C} ──shrinks──▶ {A}, eligible B, C      the high watermark stands: 1 of 2 is in sync
                 ──A is lost──▶ {B,C}, led by B      nothing that was committed is lost

(After KIP-966.) While fewer than `min_insync` are in the ISR the high watermark does not move, so a replica
that was a member when that began has, as the incarnation on record, all that is committed. The state node
names these replicas next to the ISR, and `min_insync` itself: the leader goes by the number in the very state
that it acts in, never by a smaller one, or its watermark could pass while we still remember.

Every write of a state node passes through `with_eligible` (or leaves the ISR and the number alone), so that
ISR, number and memory change in one conditional write:

* An ISR that is large enough clears the memory, before its leader can hear that it may commit again.
* A smaller number does the same, before any leader hears of it.
* Whoever leaves an ISR that stays large enough is not remembered: the watermark goes on without it.
* While a smaller ISR is only proposed, the watermark waits for whoever is to go. A member that the controller
  removed is waited for by its leader until that hears of it, in one message with the smaller ISR.
* An election outside both forgets all: what is committed is from then on what the new leader has.

A node without these fields, as Kafka writes it, has an empty memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from logstore.disk.marks import mark
from logstore.replication.metastore.layout import Eligible, LeaderAndIsr


def with_eligible(
    before: LeaderAndIsr, after: LeaderAndIsr, replicas: Collection[int], *, lost: Collection[int] = ()
) -> LeaderAndIsr:
    """`after`, which is to follow upon `before`, with its memory.

    `replicas` is the assignment that goes with `after`; `lost` are those known to lack something.
    """
    if len(after.isr) >= after.min_insync or after.recovering:
        if before.eligible:
            mark("eligible: forgotten")
        return replace(after, eligible=())
    former = {*map(Eligible, before.isr, before.isr_broker_epochs), *before.eligible}
    eligible = tuple(
        sorted(
            each
            for each in former
            # An incarnation that nobody recorded could come back as any other.
            if each.replica not in after.isr
            and each.replica in replicas
            and each.replica not in lost
            and each.broker_epoch >= 0
        )
    )
    if eligible and not before.eligible:
        mark("eligible: an ISR is too small to commit, who leaves it is remembered")
    return replace(after, eligible=eligible)


def with_min_insync(
    state: LeaderAndIsr, min_insync: int, replicas: Collection[int], controller_epoch: int
) -> LeaderAndIsr:
    """The same state when another number of members must be in sync for the high watermark to move."""
    if min_insync == state.min_insync:
        return state
    after = replace(state, min_insync=min_insync, controller_epoch=controller_epoch)
    return with_eligible(state, after, replicas)
